"""Promise: a name has one form, and nothing that could mean an address or something local is one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldframe.policy.addresses import looks_like_address
from coldframe.policy.hostnames import NameInvalid, parents_of, read_name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("example.org", "example.org"),
        ("Example.ORG.", "example.org"),
        ("_dmarc.a-b.example", "_dmarc.a-b.example"),
        ("r1---sn-abc.example", "r1---sn-abc.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("XN--P1AI.xn--p1ai", "xn--p1ai.xn--p1ai"),
        ("1.example", "1.example"),
        ("a" * 63 + ".example", "a" * 63 + ".example"),
        ("a." * 125 + "abc", "a." * 125 + "abc"),
    ],
)
def test_a_name_has_one_form(text: str, name: str) -> None:
    assert read_name(text) == name


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "..", "a..b", ".a.b", "example.org..", "a" * 64 + ".example", "a." * 126 + "abc"),
        *("printer", "localhost", "a.localhost", "LOCALHOST.", "com."),
        *("-a.example", "a-.example", "*.example.org", "a b.example", "a.example\n", "a.example\0", "a/b.example"),
        *("bücher.example", "аexample.org", "ａ.example", "example。org", "ex\u00adample.org"),
        *("xn--.example", "xn--a.example", "xn--abc-.example", "xn--bcher-kv.example", "xn--zzzzzzzzzzzz.example"),
        *("127.0.0.1", "127.1", "0x7f.1", "2130706433", "[::1]", "::1", "example.123", "a.0x", "1.2.3.4."),
        *("user@example.org", "example.org:443", "a%2eexample", "a\\.example", "a,b.example"),
    ],
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(NameInvalid):
        read_name(text)


@settings(max_examples=300, deadline=None)
@given(
    st.text(max_size=80)
    | st.from_regex(r"[A-Za-z0-9_.-]{1,80}", fullmatch=True)
    | st.from_regex(r"xn--[a-z0-9-]{0,59}\.x")
)
def test_reading_twice_changes_nothing(text: str) -> None:
    try:
        name = read_name(text)
    except NameInvalid:
        return
    assert read_name(name) == name == name.lower()
    assert name.isascii()
    assert not looks_like_address(name)
    assert len(name) <= 253


def test_parents_are_told_the_nearest_first() -> None:
    assert parents_of("a.b.example.org") == ["b.example.org", "example.org", "org"]
