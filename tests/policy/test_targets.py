"""Promise: the path that is judged is the path that is sent, and no server reads another one out of it."""

from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldframe.policy.targets import MAX_TARGET_BYTES, TargetInvalid, is_below, read_target


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("/", "/"),
        ("/v1/items", "/v1/items"),
        ("/v1/%69tems/%7Ea", "/v1/items/~a"),
        ("/%c3%a9", "/%C3%A9"),
        ("/a?x=1&x=2&y=", "/a?x=1&x=2&y="),
        ("/a?", "/a?"),
        ("/a?q=../%2e%2f//?", "/a?q=../%2e%2f//?"),
        ("/@scope%2fname", "/@scope%2Fname"),
        ("/a/..b/...", "/a/..b/..."),
        ("/a;b=1/c", "/a;b=1/c"),
        ("/100%25", "/100%25"),
        ("/v1/", "/v1/"),
    ],
)
def test_a_target_is_sent_in_one_form(text: str, sent: str) -> None:
    assert read_target(text).text == sent


@pytest.mark.parametrize(
    "text",
    [
        *("", "v1", "*", "http://example.org/", "//example.org/", "?x", "/a#b", "/a b", "/a\tb", "/a\r\nX: y", "/é"),
        *("/..", "/.", "/a/../b", "/a/./b", "/a/..", "/%2e%2e/b", "/%2E./b", "/.%2e", "/a/%2e", "/a//b", "/a///"),
        *("/a\\b", "/a%5cb", "/a%5Cb", "/a%00", "/a%0d%0a", "/a%7f", "/a%", "/a%2", "/a%zz", "/a%u002e", "/%c0%ae/"),
        *("/%252e%252e/a", "/a%252fb", "/a%255cb", "/%25%32%65", "/..%2fa", "/a%2f..%2fb", "/a%2F%2Fb", "/%2f/a"),
        *("/a/..;x/b", "/a/.;/b", "/;x/..", "/a/;/b", "/a%2f..;x"),
        "/" + "a" * MAX_TARGET_BYTES,
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(text: str) -> None:
    with pytest.raises(TargetInvalid):
        read_target(text)


TEXTS = st.text(max_size=40).map("/".__add__) | st.lists(
    st.sampled_from(["/", ".", "..", "a", "%2e", "%2F", "%5c", "%25", "2e", ";", "?", "%41", "%", "\\", "#", "%c3%a9"]),
    max_size=14,
).map(lambda parts: "/" + "".join(parts))


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_what_was_read_is_read_the_same_again(text: str) -> None:
    try:
        target = read_target(text)
    except TargetInvalid:
        return
    assert read_target(target.text) == target
    assert unquote(target.path) == unquote(text.partition("?")[0])
    assert target.query is None or text.endswith(target.query)


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_no_reading_of_a_path_climbs(text: str) -> None:
    try:
        target = read_target(text)
    except TargetInvalid:
        return
    for reading in {*target.readings, unquote(target.path), unquote(unquote(target.path))}:
        assert not {".", ".."} & set(reading.replace("\\", "/").split("/"))


def test_an_encoded_slash_is_read_in_both_ways() -> None:
    assert read_target("/v1%2Fadmin;x=1/a").readings == {
        "/v1%2Fadmin;x=1/a",
        "/v1/admin;x=1/a",
        "/v1%2Fadmin/a",
        "/v1/admin/a",
    }


def test_a_path_is_below_only_on_the_border_of_a_segment() -> None:
    assert is_below("/v1", "/v1")
    assert is_below("/v1/a", "/v1")
    assert is_below("/v1/a", "/v1/")
    assert not is_below("/v1", "/v1/")
    assert not is_below("/v1beta", "/v1")
    assert is_below("/anything", "/")
