"""Promise: an edit changes exactly what it says, once, byte for byte; or the file is untouched and the answer tells why."""

import re
import time
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldframe.guest.edits import apply_edits
from coldframe.guest.verbs import Failure
from tests.guest.workspace import failure_of


def edited(content: bytes, *edits: tuple[str, str], replace_all: bool = False) -> bytes:
    return apply_edits(content, [{"old": old, "new": new, "replace_all": replace_all} for old, new in edits], "f")[0]


def refusal(content: bytes, *edits: tuple[str, str]) -> Failure:
    return failure_of(lambda: edited(content, *edits))


@pytest.mark.req("T1.31")
def test_new_text_lands_literally() -> None:
    new = "$$ $& $' $` \\1 \\g<0> \\n %s `x` {0}"
    assert edited(b"A=@\n", ("@", new)) == b"A=" + new.encode() + b"\n"


def test_old_text_is_literal_too() -> None:
    assert edited(b"a.c abc\n", ("a.c", "x")) == b"x abc\n"
    assert edited(b"f(x)*\r\n[y]\r\n", ("(x)*\n[y", "z")) == b"fz]\r\n"


def test_lf_text_matches_a_crlf_region_and_takes_its_ends() -> None:
    assert edited(b"one\r\ntwo\r\nthree\r\n", ("one\ntwo", "ONE\nTWO\nmore")) == b"ONE\r\nTWO\r\nmore\r\nthree\r\n"


def test_crlf_text_matches_an_lf_region_and_takes_its_ends() -> None:
    assert edited(b"l1\nl2\nl3\n", ("l1\r\nl2", "k1\r\nk2")) == b"k1\nk2\nl3\n"


def test_new_lines_within_one_line_of_a_crlf_file_are_crlf() -> None:
    assert edited(b"one\r\ntwo\r\n", ("two", "two\nmore")) == b"one\r\ntwo\r\nmore\r\n"
    assert edited(b"one\r\ntwo", ("two", "two\nmore")) == b"one\r\ntwo\r\nmore"
    assert edited(b"one\ntwo", ("two", "two\nmore")) == b"one\ntwo\nmore"


def test_line_ends_can_be_changed_on_purpose() -> None:
    assert edited(b"a\r\nb\r\n", ("a\r\nb\r\n", "a\nb\n")) == b"a\nb\n"
    assert edited(b"a\nb\n", ("a\nb", "a\r\nb")) == b"a\r\nb\n"


def test_in_a_mixed_file_other_line_ends_stay() -> None:
    content = b"a\nb\r\nc\nd\r\n"
    assert edited(content, ("b\nc", "B\nC")) == b"a\nB\r\nC\nd\r\n"


def test_a_line_end_that_opens_or_closes_the_old_text_is_taken_whole() -> None:
    assert edited(b"a\r\nb\r\nc\r\n", ("\nb", "")) == b"a\r\nc\r\n"
    assert edited(b"a\r\nb\r\nc\r\n", ("b\n", "")) == b"a\r\nc\r\n"


def test_bytes_that_are_no_text_stay() -> None:
    assert edited(b"int x = 1; // ok\n// caf\xe9 \xf3\n", ("x = 1", "x = 2")) == b"int x = 2; // ok\n// caf\xe9 \xf3\n"
    assert edited(b"\xef\xbb\xbfhead\n\0\xff", ("head", "body")) == b"\xef\xbb\xbfbody\n\0\xff"
    assert edited(b"caf\xe9", ("caf\udce9", "th\udce9")) == b"th\xe9"


@pytest.mark.req("T1.31")
def test_text_that_occurs_twice_is_refused_with_count_and_lines() -> None:
    failure = refusal(b"x\na\nx\nx\n", ("x", "y"))
    assert failure.code == "EDIT_NOT_UNIQUE"
    assert (failure.facts["count"], failure.facts["lines"]) == (3, [1, 3, 4])
    many = refusal(b"x\n" * 50, ("x", "y"))
    assert (many.facts["count"], len(many.facts["lines"])) == (50, 20)
    assert refusal(b"aaa", ("aa", "b")).facts["count"] == 2  # overlapping places are two places


def test_an_exact_place_is_preferred_to_one_with_other_line_ends() -> None:
    assert edited(b"a\r\nb\r\n--\na\nb\n", ("a\nb", "x")) == b"a\r\nb\r\n--\nx\n"


def test_replace_all_replaces_every_place_and_counts() -> None:
    content, count = apply_edits(b"x x\r\nx", [{"old": "x", "new": "yy", "replace_all": True}], "f")
    assert (content, count) == (b"yy yy\r\nyy", 3)
    assert edited(b"a\nb;a\r\nb", ("a\nb", "1\n2"), replace_all=True) == b"1\n2;1\r\n2"
    assert edited(b"aaaa", ("aa", "a"), replace_all=True) == b"aa"


def test_edits_apply_one_after_the_other() -> None:
    assert edited(b"1", ("1", "2"), ("2", "3")) == b"3"


@pytest.mark.req("T1.31")
def test_one_failing_edit_fails_all_and_is_named() -> None:
    failure = refusal(b"a b", ("a", "x"), ("nothing", "y"))
    assert (failure.code, failure.facts["edit"]) == ("EDIT_NOT_FOUND", 1)


def test_text_that_is_missing_by_white_space_alone_is_pointed_out() -> None:
    failure = refusal(b"def f():\n\treturn 1\n", ("def f():\n    return 1", "x"))
    assert (failure.code, failure.facts["near_line"]) == ("EDIT_NOT_FOUND", 1)
    assert "white space" in failure.message
    assert refusal(b"new\n", ("old", "new")).facts["already_there"]
    assert refusal(b"\nfoo\nbar\n", ("foo\nbaz", "")).facts["near_line"] == 2
    assert set(refusal(b"a", ("b", "c")).facts) == {"path", "edit"}


def test_an_edit_needs_old_text() -> None:
    assert refusal(b"a", ("", "c")).code == "INVALID_ARGUMENT"
    assert refusal(b"a").code == "INVALID_ARGUMENT"


@given(st.binary(max_size=200), st.text(st.characters(codec="utf-8"), min_size=1, max_size=5), st.text(max_size=5))
def test_a_unique_exact_text_is_replaced_and_nothing_else(content: bytes, old: str, new: str) -> None:
    if any(sign in old + new for sign in "\r\n"):
        return
    left, right = content, content[::-1]
    raw = old.encode()
    whole = left + raw + right
    try:
        new_raw = new.encode()
    except UnicodeEncodeError:
        return
    places: Any = [at for at in range(len(whole)) if whole.startswith(raw, at)]
    if len(places) == 1:
        assert edited(whole, (old, new)) == left + new_raw + right
    else:
        assert refusal(whole, (old, new)).facts["count"] == len(places)


@given(
    st.lists(st.sampled_from([b"a", b"b", b"\n", b"\r\n", b"\r"]), max_size=20).map(b"".join),
    st.lists(st.sampled_from(["a", "b", "\n", "\r\n"]), min_size=1, max_size=4).map("".join),
    st.sampled_from(["", "x", "x\ny", "x\r\ny"]),
)
def test_line_ends_are_matched_as_by_a_slow_and_obvious_way(content: bytes, old: str, new: str) -> None:
    """Compared with a regular expression in which a line end is either kind, but never half of a CRLF."""
    either = rb"(?:\r\n|(?<!\r)\n)"
    pattern = re.compile(either.join(re.escape(piece) for piece in re.split(rb"\r?\n", old.encode())))
    places = [match for at in range(len(content) + 1) if (match := pattern.match(content, at))]
    exact = [match for match in places if match.group() == old.encode()]
    chosen = exact or places
    if len(chosen) != 1:
        failure = refusal(content, (old, new))
        assert failure.code == ("EDIT_NOT_UNIQUE" if chosen else "EDIT_NOT_FOUND")
        assert failure.facts.get("count", 0) == len(chosen)
        return
    result = edited(content, (old, new))
    (match,) = chosen
    assert result[: match.start()] == content[: match.start()]
    assert result.endswith(content[match.end() :])
    middle = result[match.start() : len(result) - len(content) + match.end()]
    assert middle.replace(b"\r\n", b"\n") == new.encode().replace(b"\r\n", b"\n")


@pytest.mark.parametrize(
    ("content", "old", "new", "code"),
    [
        (b"a\n" * 4_000_000, "a\n" * 100_000 + "b", "", "EDIT_NOT_FOUND"),
        (b"a\r\n" * 2_000_000, "a\n" * 100_000, "", "EDIT_NOT_UNIQUE"),
        (b"a" * 8_000_000, "a" * 1000, "", "EDIT_NOT_UNIQUE"),
        (b"a " * 4_000_000, "a\t" * 90 + "b", "", "EDIT_NOT_FOUND"),
        (b"a " * 100_000, "a\t" * 90 + "b", "", "EDIT_NOT_FOUND"),
    ],
)
def test_large_files_made_to_be_slow_are_not(content: bytes, old: str, new: str, code: str) -> None:
    begun = time.process_time()
    assert refusal(content, (old, new)).code == code
    assert time.process_time() - begun < 3


def test_replacing_everywhere_in_a_large_file_is_bounded() -> None:
    begun = time.process_time()
    assert edited(b"a" * 10_000_000, ("a", "b"), replace_all=True) == b"b" * 10_000_000
    for content, old, new in (
        (b"a" * 10_000_000, "a", "bb"),
        (b"a\r\n" * 4_000_000, "a\n", "b\n"),
        (b"a" * 10_000_000 + b"\r\n", "a", "b\n"),
    ):
        assert failure_of(partial(edited, content, (old, new), replace_all=True)).code == "TOO_LARGE"
    assert time.process_time() - begun < 6
