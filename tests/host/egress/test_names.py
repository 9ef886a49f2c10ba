"""Promise: a look-up tells nobody outside anything, gets an address only for a known name, and no address means two names."""

import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldframe.host.egress import names
from coldframe.host.egress.names import (
    IPV4_POOL,
    IPV6_POOL,
    MAX_QUERY_BYTES,
    POOL_SIZE,
    TTL_S,
    Answers,
    LookupOutcome,
    NamePool,
    PoolFull,
    ReplyCode,
    answer_query,
    frame,
    split_stream,
)
from coldframe.policy.addresses import judge_address

NAME = "api.example.com"
A, AAAA, TXT, HTTPS, ANY = 1, 28, 16, 65, 255
DEADLINE_S = 30.0


def wire(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".") if label) + b"\0"


def edns(*, version: int = 0, options: bytes = b"", kind: int = 41, owner: bytes = b"\0") -> bytes:
    return owner + struct.pack("!HHBBHH", kind, 4096, 0, version, 0x8000, len(options)) + options


def query(
    name: str | bytes = NAME,
    kind: int = A,
    *,
    flags: int = 0x0100,
    counts: tuple[int, int, int, int] = (1, 0, 0, 0),
    family: int = 1,
    more: bytes = b"",
) -> bytes:
    asked = wire(name) if isinstance(name, str) else name
    return struct.pack("!HHHHHH", 7, flags, *counts) + asked + struct.pack("!HH", kind, family) + more


def code(reply: bytes | None) -> ReplyCode:
    """The code of a reply that has no record but perhaps that of EDNS."""
    assert reply is not None
    number, flags, questions, answers, authorities, more = struct.unpack_from("!HHHHHH", reply)
    assert number == 7
    assert flags & 0x8000
    assert questions <= 1
    assert (answers, authorities) == (0, 0)
    extended = reply[-6] << 4 if more else 0
    return ReplyCode(extended | (flags & 0xF))


def address(reply: bytes | None) -> IPv4Address | IPv6Address:
    """The one address of an answer to one question."""
    assert reply is not None
    assert struct.unpack_from("!HHHH", reply, 2) == (0x8580, 1, 1, 0)
    place = reply.index(b"\0", 12) + 5
    name, kind, family, ttl, length = struct.unpack_from("!HHHIH", reply, place)
    data = reply[place + 12 : place + 12 + length]
    assert (name, family, ttl) == (0xC00C, 1, TTL_S)
    assert len(data) == length == (4 if kind == A else 16)
    return IPv4Address(data) if kind == A else IPv6Address(data)


def ask(data: bytes, pool: NamePool | None = None) -> tuple[bytes | None, LookupOutcome]:
    found = answer_query(data, NamePool() if pool is None else pool, lambda name: name.endswith("example.com"))
    return found.reply, found.outcome


def test_a_known_name_has_an_address_of_each_family() -> None:
    pool = NamePool()
    four, six = (address(ask(query(kind=kind), pool)[0]) for kind in (A, AAAA))
    assert four in IPv4Network("198.18.0.0/15")
    assert six in IPv6Network("fd63:6f6c:6466::/48")
    assert pool.name_of(four) == pool.name_of(six) == NAME
    assert address(ask(query(), pool)[0]) == four
    assert address(ask(query("www.example.com"), pool)[0]) != four


def test_no_address_of_the_pool_can_be_dialled() -> None:
    for start in (IPV4_POOL, IPV6_POOL):
        assert not judge_address(start).is_public
        assert not judge_address(start + (POOL_SIZE - 1)).is_public
    assert IPv4Address("198.19.255.255") == IPV4_POOL + (POOL_SIZE - 1)


def test_letters_come_back_as_they_were_asked_for() -> None:
    pool = NamePool()
    reply = ask(query("aPi.ExaMPLE.com"), pool)[0]
    assert reply is not None
    assert wire("aPi.ExaMPLE.com") in reply
    assert address(reply) == address(ask(query(), pool)[0])


@pytest.mark.parametrize("kind", [TXT, HTTPS, ANY, 2, 5, 6, 10, 12, 15, 33, 43, 64, 257, 65535])
def test_other_types_of_a_known_name_have_no_data(kind: int) -> None:
    reply, outcome = ask(query(kind=kind))
    assert (code(reply), outcome) == (ReplyCode.NOERROR, LookupOutcome.NO_DATA)


@pytest.mark.parametrize(
    "name",
    [
        *("other.example", "1.18.198.in-addr.arpa", "", "com", "127.0.0.1", "-a.example.com", "xn--a.example.com"),
        *(b"\x05a.b\0c\x07example\x03com\0", b"\x0da.example.com\0", b"\x02\xd0\xb0\x07example\x03com\0"),
        *(b"\x01*\x07example\x03com\0", b"\x01\0\x07example\x03com\0", b"\x01 \x07example\x03com\0"),
    ],
)
@pytest.mark.parametrize("kind", [A, TXT])
def test_any_other_name_does_not_exist(name: str | bytes, kind: int) -> None:
    pool = NamePool()
    reply, outcome = ask(query(name, kind), pool)
    assert (code(reply), outcome) == (ReplyCode.NXDOMAIN, LookupOutcome.UNKNOWN)
    assert len(pool) == 0


def test_a_name_is_told_for_the_record_as_it_was_asked_for() -> None:
    found = answer_query(query(b"\x03A.\n\x04ev\\l\0", TXT), NamePool(), lambda name: False)
    assert (found.name, found.kind) == ("a\\046\\010.ev\\092l", TXT)
    assert answer_query(query(""), NamePool(), lambda name: True).name == "."


LONGEST = ".".join(["a" * 63, "b" * 63, "c" * 63, "d" * 49, "example.com"])
INVALID = {
    "two questions": (query(counts=(2, 0, 0, 0), more=wire(NAME) + b"\0\1\0\1"), ReplyCode.FORMERR),
    "no question": (query(counts=(0, 0, 0, 0)), ReplyCode.FORMERR),
    "an answer": (query(counts=(1, 1, 0, 0)), ReplyCode.FORMERR),
    "an authority": (query(counts=(1, 0, 1, 0)), ReplyCode.FORMERR),
    "cut": (query(flags=0x0300), ReplyCode.FORMERR),
    "pointer": (query(b"\xc0\x0c"), ReplyCode.FORMERR),
    "pointer behind a label": (query(b"\3api\xc0\x0c"), ReplyCode.FORMERR),
    "other kind of label": (query(b"\x41a\0"), ReplyCode.FORMERR),
    "label beyond the end": (query(b"\x3fa\0"), ReplyCode.FORMERR),
    "no end of the name": (query()[:-6], ReplyCode.FORMERR),
    "no type": (query()[:-4], ReplyCode.FORMERR),
    "half a class": (query()[:-1], ReplyCode.FORMERR),
    "too long a name": (query("a." * 128), ReplyCode.FORMERR),
    "something behind": (query(more=b"\0"), ReplyCode.FORMERR),
    "too long": (query(more=bytes(MAX_QUERY_BYTES)), ReplyCode.FORMERR),
    "update": (query(flags=0x2800), ReplyCode.NOTIMP),
    "notify": (query(flags=0x2000), ReplyCode.NOTIMP),
    "class of chaos": (query("version.example.com", TXT, family=3), ReplyCode.REFUSED),
    "any class": (query(family=255), ReplyCode.REFUSED),
    "no record of EDNS": (query(counts=(1, 0, 0, 1)), ReplyCode.FORMERR),
    "two of EDNS": (query(counts=(1, 0, 0, 2), more=edns() * 2), ReplyCode.FORMERR),
    "EDNS not counted": (query(more=edns()), ReplyCode.FORMERR),
    "signature": (query(counts=(1, 0, 0, 1), more=edns(kind=250)), ReplyCode.FORMERR),
    "EDNS of a name": (query(counts=(1, 0, 0, 1), more=edns(owner=b"\1a\0")), ReplyCode.FORMERR),
    "behind EDNS": (query(counts=(1, 0, 0, 1), more=edns() + b"x"), ReplyCode.FORMERR),
    "half an option": (query(counts=(1, 0, 0, 1), more=edns(options=b"\0\x0a\0\x08abc")), ReplyCode.FORMERR),
    "later EDNS": (query(counts=(1, 0, 0, 1), more=edns(version=1)), ReplyCode.BADVERS),
}


@pytest.mark.parametrize("case", INVALID)
def test_what_is_not_one_question_is_refused(case: str) -> None:
    data, expected = INVALID[case]
    pool = NamePool()
    reply, outcome = ask(data, pool)
    assert (code(reply), outcome) == (expected, LookupOutcome.INVALID)
    assert len(pool) == 0


@pytest.mark.parametrize("data", [b"", b"\0" * 11, query(flags=0x8180), query(flags=0x8000)])
def test_what_is_no_query_is_not_answered(data: bytes) -> None:
    assert ask(data) == (None, LookupOutcome.INVALID)


def test_edns_is_answered_with_edns() -> None:
    cookie = b"\0\x0a\0\x08abcdefgh"
    reply, outcome = ask(query(NAME, TXT, counts=(1, 0, 0, 1), more=edns(options=cookie)))
    assert (code(reply), outcome) == (ReplyCode.NOERROR, LookupOutcome.NO_DATA)
    assert reply is not None
    assert reply.endswith(b"\0\0\x29\x04\xd0\0\0\0\0\0\0")
    assert cookie not in reply


def test_the_longest_name_fits_into_the_smallest_answer() -> None:
    assert len(LONGEST) == 253
    reply = ask(query(LONGEST, AAAA))[0]
    address(reply)
    assert reply is not None
    assert len(reply) <= 512


def test_a_full_pool_forgets_what_was_not_asked_for_longest() -> None:
    pool = NamePool(limit=3)
    first = pool.addresses_of("a.example.com").ipv4
    for name in ("b", "c"):
        pool.addresses_of(f"{name}.example.com")
    pool.addresses_of("a.example.com")
    pool.addresses_of("d.example.com")
    assert pool.name_of(first) == "a.example.com"
    assert pool.name_of(IPV4_POOL + 1) is None
    assert pool.addresses_of("b.example.com").ipv4 == IPV4_POOL + 4


def test_a_name_with_an_open_connection_is_not_forgotten() -> None:
    pool = NamePool(limit=2)
    kept = pool.addresses_of("a.example.com").ipv6
    pool.hold("a.example.com")
    pool.hold("a.example.com")
    pool.release("a.example.com")
    for number in range(50):
        pool.addresses_of(f"h{number}.example.com")
    assert pool.name_of(kept) == "a.example.com"
    pool.hold("h49.example.com")
    with pytest.raises(PoolFull):
        pool.addresses_of("b.example.com")
    reply, outcome = ask(query("b.example.com"), pool)
    assert (code(reply), outcome) == (ReplyCode.SERVFAIL, LookupOutcome.FULL)
    pool.release("a.example.com")
    pool.addresses_of("b.example.com")
    assert pool.name_of(kept) is None
    with pytest.raises(KeyError):
        pool.hold("a.example.com")


def test_using_the_whole_pool_up_gives_no_address_to_two_names() -> None:
    pool = NamePool(limit=50)
    kept = pool.addresses_of("kept.example.com").ipv4
    pool.hold("kept.example.com")
    last_use: dict[IPv4Address, int] = {}
    for number in range(POOL_SIZE + 500):
        found = pool.addresses_of(f"h{number}.example.com").ipv4
        assert found != kept
        assert number - last_use.get(found, -POOL_SIZE) > POOL_SIZE - 50
        last_use[found] = number
    assert len(pool) == 50
    assert pool.name_of(kept) == "kept.example.com"


def test_addresses_beside_the_pool_mean_nothing() -> None:
    pool = NamePool()
    pool.addresses_of(NAME)
    for text in ("198.18.0.255", "198.20.0.0", "0.0.0.0", "8.8.8.8"):
        assert pool.name_of(IPv4Address(text)) is None
    for text in ("::", "fd63:6f6c:6466::", "fd63:6f6c:6466::ffff", "::ffff:198.18.1.0"):
        assert pool.name_of(IPv6Address(text)) is None


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 7), max_size=60), st.integers(1, 4))
def test_who_hears_of_new_and_forgotten_names_knows_what_the_pool_knows(asked: list[int], limit: int) -> None:
    known: dict[str, int] = {}

    def hear(name: str, place: int, forgotten: str | None) -> None:
        if forgotten is not None:
            del known[forgotten]
        assert name not in known and place not in known.values()
        known[name] = place

    pool = NamePool(limit=limit, on_new=hear)
    for number in asked:
        pool.addresses_of(f"h{number}.example.com")
    assert len(known) == len(pool)
    again = NamePool(limit=limit, names=known)
    for name in known:
        assert again.addresses_of(name) == pool.addresses_of(name)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["ask", "hold", "release"]), st.integers(0, 7)), max_size=60),
    st.integers(1, 4),
)
def test_a_living_name_keeps_its_address(steps: list[tuple[str, int]], limit: int) -> None:
    pool = NamePool(limit=limit)
    held: dict[str, int] = {}
    known: dict[str, IPv4Address] = {}
    for step, number in steps:
        name = f"h{number}.example.com"
        if step == "release":
            if held.get(name):
                pool.release(name)
                held[name] -= 1
        else:
            try:
                known[name] = pool.addresses_of(name).ipv4
            except PoolFull:
                assert sum(1 for count in held.values() if count) == limit
                continue
            if step == "hold":
                pool.hold(name)
                held[name] = held.get(name, 0) + 1
        assert len(pool) <= limit
        living = [one for one, where in known.items() if pool.name_of(where) == one]
        assert all(one in living for one, count in held.items() if count)
        assert all(pool.name_of(where) in (one, None) for one, where in known.items())


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80) | st.binary(max_size=60).map(lambda data: query()[:12] + data))
def test_any_bytes_get_a_reply_or_none(data: bytes) -> None:
    found = answer_query(data, NamePool(), lambda name: True)
    if found.reply is not None:
        assert found.reply[:2] == data[:2]
        assert len(found.reply) <= 512
        assert found.reply[2] & 0x80
        assert answer_query(found.reply, NamePool(), lambda name: True).reply is None
    if found.name is not None:
        assert found.name.isprintable()
        assert found.name.isascii()


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 60), st.binary(max_size=3), st.integers(0, 3))
def test_a_damaged_query_never_gets_an_address_of_another_name(place: int, put: bytes, removed: int) -> None:
    whole = query(counts=(1, 0, 0, 1), more=edns())
    data = whole[:place] + put + whole[place + removed :]
    pool = NamePool()
    found = answer_query(data, pool, lambda name: name == NAME)
    if found.outcome is LookupOutcome.ANSWERED:
        assert found.name == NAME
        assert pool.name_of(IPV4_POOL) == NAME


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(12, 300), max_size=6), st.integers(1, 40))
def test_a_stream_is_split_however_it_comes(lengths: list[int], step: int) -> None:
    messages = [bytes([number]) * length for number, length in enumerate(lengths)]
    data = b"".join(frame(message) for message in messages)
    buffer, found = bytearray(), []
    for place in range(0, len(data), step):
        buffer += data[place : place + step]
        found += split_stream(buffer)
    assert found == messages
    assert not buffer


@pytest.mark.parametrize("length", [0, 11, MAX_QUERY_BYTES + 1, 65535])
def test_an_impossible_length_ends_a_stream(length: int) -> None:
    with pytest.raises(ValueError, match="no query"):
        split_stream(bytearray(length.to_bytes(2, "big")))


@contextmanager
def resolver(pool: NamePool) -> Iterator[int]:
    """The resolver at a port of loopback, by UDP, until the block ends."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))

        def serve() -> None:
            while True:
                data, sender = server.recvfrom(4096)
                if not data:
                    return
                reply = answer_query(data, pool, lambda name: name == NAME).reply
                if reply is not None:
                    server.sendto(reply, sender)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.sendto(b"", server.getsockname())
            thread.join()


# -- what was asked before -------------------------------------------------------------------------


@given(st.lists(st.sampled_from([A, AAAA, TXT, HTTPS]), max_size=8), st.integers(0, 0xFFFF), st.booleans())
def test_what_is_asked_again_is_answered_as_it_would_be_the_first_time(
    kinds: list[int], first: int, has_edns: bool
) -> None:
    pool, known = NamePool(), {NAME}
    answers = Answers(pool, known.__contains__)
    for number, kind in enumerate(kinds + kinds, first):
        more = {"counts": (1, 0, 0, 1), "more": edns()} if has_edns else {}
        for name in (NAME, "API.Example.com", "other.example.com"):
            asked = struct.pack("!H", number & 0xFFFF) + query(name, kind, **more)[2:]  # type: ignore[arg-type]
            assert answers.find(asked) == answer_query(asked, pool, known.__contains__)


def test_an_answer_holds_only_while_its_name_is_known_and_has_its_address() -> None:
    pool, known = NamePool(limit=2), {NAME, "b.example.com", "c.example.com"}
    answers = Answers(pool, known.__contains__)
    first = answers.find(query()).reply
    known.remove(NAME)
    assert answers.find(query()).outcome is LookupOutcome.UNKNOWN
    known.add(NAME)
    assert answers.find(query()).reply == first
    for name in ("b.example.com", "c.example.com"):  # by which it is forgotten
        answers.find(query(name))
    again = answers.find(query()).reply
    assert again is not None and again != first and again[-4:] == pool.addresses_of(NAME).ipv4.packed


def test_a_name_that_is_asked_for_again_is_not_the_one_that_is_forgotten() -> None:
    pool = NamePool(limit=2)
    answers = Answers(pool, lambda name: True)
    for name in (NAME, "b.example.com", NAME, "c.example.com"):
        answers.find(query(name))
    assert pool.touch(NAME) is not None and pool.touch("b.example.com") is None


def test_of_what_was_asked_only_so_much_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MOST_ANSWERS", 3)
    answers = Answers(NamePool(), lambda name: True)
    for number in range(20):
        answers.find(query(f"n{number}.example.com"))
        assert len(answers._found) <= 3


NODE = """
const resolver = new (require('dns').promises.Resolver)();
resolver.setServers(['127.0.0.1:PORT']);
(async () => {
  for (const [kind, name] of [['4', 'NAME'], ['6', 'NAME'], ['Txt', 'NAME'], ['4', 'other.example']])
    console.log(await resolver['resolve' + kind](name).then(found => found.join(), error => error.code));
})();
"""
DENO = """
for (const [kind, name] of [['A', 'NAME'], ['AAAA', 'NAME'], ['TXT', 'NAME'], ['A', 'other.example']])
  console.log(await Deno.resolveDns(name + '.', kind, {nameServer: {ipAddr: '127.0.0.1', port: PORT}})
    .then(found => found.join() || 'nothing', () => 'nothing'));
"""


@pytest.mark.parametrize(
    ("name", "arguments", "program", "answers"),
    [("node", ["-e"], NODE, ["ENODATA", "ENOTFOUND"]), ("deno", ["eval", "--no-config"], DENO, ["nothing", "nothing"])],
    ids=["node", "deno"],
)
def test_a_real_resolver_understands_the_answers(
    name: str, arguments: list[str], program: str, answers: list[str], tmp_path: Path
) -> None:
    beside = Path(sys.executable).with_name(name)
    binary = str(beside) if beside.exists() else shutil.which(name)
    if binary is None:
        pytest.skip(f"{name} is not here")
    pool = NamePool()
    with resolver(pool) as port:
        done = subprocess.run(
            [binary, *arguments, program.replace("PORT", str(port)).replace("NAME", NAME)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "DENO_DIR": str(tmp_path)},
        )
    assert done.returncode == 0, done.stderr
    addresses = pool.addresses_of(NAME)
    assert done.stdout.splitlines() == [str(addresses.ipv4), str(addresses.ipv6), *answers]
