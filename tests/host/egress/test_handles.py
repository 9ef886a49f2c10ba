"""Promise: a secret goes into the one declared header, and comes back from nowhere."""

import base64
import json
import random
from collections.abc import Callable

import pytest

from coldframe.contract.credential import HANDLE
from coldframe.host.egress.handles import Found, HandleMisused, SentSecrets, Swap, find_handle, is_legible

A = "cfh_" + "a1" * 24
B = "cfh_" + "b2" * 24
SECRET = 'tok/en+"with=odd<signs>&'


def pairs(*headers: str) -> tuple[tuple[bytes, bytes], ...]:
    found = [one.partition(": ") for one in headers]
    return tuple((name.encode(), value.encode()) for name, _, value in found)


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


def found_in(*headers: str) -> Found:
    found = find_handle(pairs(*headers))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (f"Bearer {A}", "Bearer {secret}"),
        (f"token {A}", "token {secret}"),
        (f"{A}", "{secret}"),
        (f"x{A}y", "x{secret}y"),
        (basic(f"alice:{A}"), "Basic alice:{secret}"),
        (basic(f"{A}:"), "Basic {secret}:"),
        (basic(f"alice:{A}").replace("Basic", "basic"), "Basic alice:{secret}"),
    ],
)
def test_a_handle_is_found_in_a_header_with_its_form(value: str, shown: str) -> None:
    found = found_in("accept: */*", f"authorization: {value}")
    assert (found.handle, found.header, found.place) == (A, f"authorization: {shown}", 1)


@pytest.mark.parametrize(
    "headers",
    [
        ("accept: */*",),
        (f"x-key: {A[:-1]}",),
        (f"x-key: {A.upper()}",),
        (f"x-key: {basic(A)}",),
        ("authorization: Basic !!!",),
        ("authorization: Basic " + base64.b64encode(base64.b64encode(A.encode())).decode(),),
    ],
)
def test_what_is_no_handle_is_none(headers: tuple[str, ...]) -> None:
    assert find_handle(pairs(*headers)) is None


@pytest.mark.parametrize(
    "headers",
    [
        (f"authorization: Bearer {A}", f"x-key: {B}"),
        (f"authorization: Bearer {A}", f"x-key: {A}"),
        (f"authorization: Bearer {A} {A}",),
        (f"authorization: {basic(f'{A}:{B}')}",),
        (f"authorization: Bearer {A}", "authorization: Bearer other"),
        ("authorization: Bearer other", f"authorization: Bearer {A}"),
        (f"authorization: Bearer {A}\x80",),
        (f"authorization: {'x' * 600} {A}",),
        (f"authorization: {basic(chr(10) + A)}",),
    ],
)
def test_a_request_in_which_a_handle_could_be_meant_in_two_ways_is_refused(headers: tuple[str, ...]) -> None:
    with pytest.raises(HandleMisused) as refused:
        find_handle(pairs(*headers))
    assert "cfh_" not in str(refused.value)


def test_the_secret_takes_the_place_of_the_handle_and_of_nothing_else() -> None:
    headers = pairs(
        "accept-encoding: gzip, br", f"authorization: Bearer {A}", "x-other: Bearer", "accept-encoding: zstd"
    )
    swap = Swap(found_in(f"accept: {A}")._replace(place=1, header="authorization: Bearer {secret}"), SECRET)
    assert swap.put_in(headers) == pairs(
        f"authorization: Bearer {SECRET}", "x-other: Bearer", "accept-encoding: identity"
    )
    headers = pairs(f"authorization: {basic(f'alice:{A}')}")
    found = find_handle(headers)
    assert found is not None
    assert Swap(found, SECRET).put_in(headers)[0] == pairs(f"authorization: {basic(f'alice:{SECRET}')}")[0]


def test_neither_the_swap_nor_what_it_is_made_of_shows_the_secret() -> None:
    swap = Swap(found_in(f"authorization: Bearer {A}"), SECRET)
    assert SECRET not in repr(swap) and SECRET not in repr(swap.scrubber())


@pytest.mark.parametrize("header", [f"Bearer {A}", basic(f"alice:{A}")])
def test_no_form_of_the_secret_comes_back_however_the_answer_is_cut(header: str) -> None:
    found = found_in(f"authorization: {header}")
    said = header.replace(A, SECRET) if "Bearer" in header else basic(f"alice:{SECRET}")
    forms = [
        *(SECRET, said, json.dumps({"authorization": said}), json.dumps(SECRET).replace("/", "\\/")),
        *("tok%2Fen%2B%22with%3Dodd%3Csigns%3E%26", "tok%2fen%2b%22with%3dodd%3csigns%3e%26", "tok/en+&quot;with=odd"),
        *("tok/en+&quot;with=odd&lt;signs&gt;&amp;", base64.b64encode(SECRET.encode()).decode()),
    ]
    whole = "-".join(["before", *forms, SECRET + SECRET, SECRET[:-1], "after"]).encode()
    wanted = Swap(found, SECRET).scrubber().scrub(whole)
    for secret in (
        SECRET,
        base64.b64encode(f"alice:{SECRET}".encode()).decode(),
        "tok%2Fen%2B",
        "odd&lt;signs&gt;&amp;",
    ):
        if secret.startswith("YWxp") and "Bearer" in header:
            continue
        assert secret.encode() not in wanted
    assert HANDLE.search(wanted) and wanted.startswith(b"before-") and wanted.endswith(b"-after")
    chance = random.Random(7)
    for size in (1, 2, 3, 7, 64):
        scrubber = Swap(found, SECRET).scrubber()
        heard, at = b"", 0
        while at < len(whole):
            step = chance.randint(1, size)
            heard += scrubber.feed(whole[at : at + step])
            at += step
        assert heard + scrubber.finish() == wanted


@pytest.mark.parametrize("header", ["Bearer {}", "Basic alice:{}"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_secret_comes_back_in_neither_alphabet_of_base64(header: str, encode: Callable[[bytes], bytes]) -> None:
    secret = "odd???>>>~~~"  # whose last bytes have other letters in each of them
    given = header.format(A) if "Bearer" in header else basic(f"alice:{A}")
    scrubber = Swap(found_in(f"authorization: {given}"), secret).scrubber()
    for text in [secret, *([] if "Bearer" in header else [f"alice:{secret}"])]:
        form = encode(text.encode())
        assert form != (base64.urlsafe_b64encode if encode is base64.b64encode else base64.b64encode)(text.encode())
        assert scrubber.scrub(b"<" + form + b">") == b"<" + encode(text.replace(secret, A).encode()) + b">"


def test_what_cannot_be_the_beginning_of_a_secret_passes_at_once() -> None:
    scrubber = Swap(found_in(f"authorization: Bearer {A}"), SECRET).scrubber()
    assert scrubber.feed(b"data: first\n\n") == b"data: first\n\n"
    assert scrubber.feed(b"data: to") == b"data: "
    assert scrubber.feed(b"day\n\n") == b"today\n\n"
    assert scrubber.finish() == b""


def test_a_large_answer_passes_whole() -> None:
    data = random.Random(3).randbytes(1 << 20)
    scrubber = Swap(found_in(f"authorization: Bearer {A}"), SECRET).scrubber()
    heard = b"".join(scrubber.feed(data[at : at + 65536]) for at in range(0, len(data), 65536)) + scrubber.finish()
    assert heard == data


@pytest.mark.parametrize(
    ("headers", "legible"),
    [
        ((), True),
        (("content-encoding: identity",), True),
        (("content-encoding: gzip",), False),
        (("content-encoding: identity", "content-encoding: br"), False),
        (("content-encoding: identity, gzip",), False),
    ],
)
def test_a_packed_answer_is_told_from_one_that_can_be_read(headers: tuple[str, ...], legible: bool) -> None:
    assert is_legible(pairs(*headers)) is legible


def test_an_answer_is_not_asked_for_in_parts_between_which_the_secret_could_be_cut() -> None:
    headers = pairs(f"authorization: Bearer {A}", "range: bytes=0-20", 'if-range: "one"', "accept: */*")
    found = find_handle(headers)
    assert found is not None
    names = [name for name, _ in Swap(found, SECRET).put_in(headers)]
    assert names == [b"authorization", b"accept", b"accept-encoding"]


def test_an_answer_that_had_begun_is_searched_for_what_is_sent_meanwhile_too() -> None:
    first, second = f"cfh_{'a' * 43}", f"cfh_{'b' * 43}"

    def swap(handle: str, secret: str) -> Swap:
        return Swap(Found(handle, "authorization: Bearer {secret}", 0, is_basic=False), secret)

    sent = SentSecrets()
    assert sent.renewed(None) is None
    sent.add(swap(first, "first-secret"))
    scrubber = sent.renewed(None)
    assert scrubber is not None
    assert scrubber.feed(b"one first-") == b"one "
    assert sent.renewed(scrubber) is scrubber
    sent.add(swap(first, "first-secret"))
    assert sent.renewed(scrubber) is scrubber
    sent.add(swap(second, "second-secret"))
    later = sent.renewed(scrubber)
    assert later is not None
    assert later.feed(b"secret, second-secret") + later.finish() == f"{first}, {second}".encode()
