"""Addresses for names, made up: a box asks, and nobody outside hears of it.

A name that policy knows gets an address of a pool, from which the broker later tells the name that a connection is for.
All other names do not exist. Only A and AAAA are answered; any other type of a known name has no data, so that neither
a key for Encrypted Client Hello nor a second address nor text comes in this way, and nothing goes out.

Queries are a box's own bytes. One is refused (FORMERR) if it is not exactly one question with at most the one record of
EDNS; what is no query is not answered at all, so that nothing can be made to talk to itself.
"""

import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import IntEnum, StrEnum
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from coldframe.policy.hostnames import NameInvalid, read_name

IPV4_POOL = IPv4Address("198.18.1.0")
"""Start of the pool within 198.18.0.0/15, which is for measuring networks and routed nowhere. Its first 256 are left
free for the box's own network."""
IPV6_POOL = IPv6Address("fd63:6f6c:6466::1:0")
"""Start of the pool, in a unique local prefix of its own. Not in the one for documentation, which some programs take for a
mistake; and programs prefer IPv4 to unique local addresses (RFC 6724), so they try one address and not two."""
POOL_SIZE = (1 << 17) - 256
MAX_NAMES = 4096
"""Names of one box at a time; about 2 MiB. A page of the web needs a few hundred."""
TTL_S = 30
"""Short, as a rule may change; long enough that programs do not ask for each connection."""
MAX_QUERY_BYTES = 1232
"""Also of what EDNS is told that we take (the size that needs no fragments, as resolvers have agreed)."""
MOST_ANSWERS = 512
"""To one box, that are kept as they were said."""
_NUMBER_BYTES = 2
"""Of a query, at its beginning."""

_A, _OPT, _AAAA, _IN = 1, 41, 28, 1
_RESPONSE, _AUTHORITATIVE, _TRUNCATED, _DESIRED, _AVAILABLE = 0x8000, 0x0400, 0x0200, 0x0100, 0x0080
_OPCODE = 0x7800
_HEAD = struct.Struct("!HHHHHH")


class ReplyCode(IntEnum):
    """How a query ends, by the numbers of the wire."""

    NOERROR = 0
    FORMERR = 1
    SERVFAIL = 2
    NXDOMAIN = 3
    NOTIMP = 4
    REFUSED = 5
    BADVERS = 16


class LookupOutcome(StrEnum):
    """How a look-up ended, for the record."""

    ANSWERED = "answered"
    NO_DATA = "no-data"
    """The name exists; what was asked about it does not."""
    UNKNOWN = "unknown"
    """No rule knows the name."""
    FULL = "full"
    """Every name of the pool has an open connection."""
    INVALID = "invalid"


class Lookup(NamedTuple):
    """One query and its answer."""

    reply: bytes | None
    """What to send back; None to say nothing."""
    outcome: LookupOutcome
    name: str | None = None
    """As it was asked for, lower case, odd bytes escaped; None if that could not be read."""
    kind: int | None = None
    """The type of record: 1 for A."""


class PooledName(NamedTuple):
    """The addresses of one name."""

    ipv4: IPv4Address
    ipv6: IPv6Address


class PoolFull(Exception):
    """No name can be forgotten, since each has an open connection."""


class NamePool:
    """Names of one box and their addresses.

    A name keeps its addresses while it lives. When there are `limit` names, the one that was not asked for the longest and
    has no open connection is forgotten; its addresses then mean nothing. They are given to another name only after all
    others of the pool had their turn, so what a program remembered does not soon lead elsewhere.
    """

    __slots__ = ("_held", "_limit", "_names", "_next", "_on_new", "_places")

    def __init__(
        self,
        *,
        limit: int = MAX_NAMES,
        names: Mapping[str, int] | None = None,
        start: int = 0,
        on_new: Callable[[str, int, str | None], None] = lambda name, place, forgotten: None,
    ) -> None:
        """*on_new* hears of a new name, its place, and the name that was forgotten for it, so that who listens has the same.

        *names*: what is known by that from an earlier pool of the box, in its order; as many of the last as there is room.
        *start*: the first place that is given, if there are none.
        """
        if not 0 < limit <= POOL_SIZE // 2:
            raise ValueError(f"a pool has room for 1 to {POOL_SIZE // 2} names")
        self._limit = limit
        self._on_new = on_new
        self._places: OrderedDict[str, int] = OrderedDict(list((names or {}).items())[-limit:])
        self._names: dict[int, str] = {place: name for name, place in self._places.items()}
        self._held: dict[str, int] = {}
        self._next = (next(reversed(self._names)) + 1) % POOL_SIZE if self._names else start % POOL_SIZE

    def __len__(self) -> int:
        return len(self._places)

    def addresses_of(self, name: str) -> PooledName:
        """The addresses of a name, new ones if it has none. Raises PoolFull."""
        place = self.touch(name)
        if place is None:
            forgotten = None
            if len(self._places) >= self._limit:
                forgotten = self._forget_one()
            while self._next in self._names:
                self._next = (self._next + 1) % POOL_SIZE
            place = self._next
            self._next = (place + 1) % POOL_SIZE
            self._places[name] = place
            self._names[place] = name
            self._on_new(name, place, forgotten)
        return PooledName(IPV4_POOL + place, IPV6_POOL + place)

    def touch(self, name: str) -> int | None:
        """Its place, and it was asked for just now; None if it has none."""
        place = self._places.get(name)
        if place is not None:
            self._places.move_to_end(name)
        return place

    def name_of(self, address: IPv4Address | IPv6Address) -> str | None:
        """The name that has the address now."""
        start = int(IPV4_POOL if isinstance(address, IPv4Address) else IPV6_POOL)
        return self._names.get(int(address) - start)

    def hold(self, name: str) -> None:
        """Keep a living name from being forgotten while a connection is open; as often as `release`."""
        if name not in self._places:
            raise KeyError(name)
        self._held[name] = self._held.get(name, 0) + 1

    def release(self, name: str) -> None:
        """The connection is gone."""
        count = self._held[name] - 1
        if count:
            self._held[name] = count
        else:
            del self._held[name]

    def _forget_one(self) -> str:
        oldest = next((name for name in self._places if name not in self._held), None)
        if oldest is None:
            raise PoolFull
        del self._names[self._places.pop(oldest)]
        return oldest


class _Query(NamedTuple):
    """What is needed for a reply."""

    id: int
    flags: int
    question: bytes
    """As it came, so that the case of its letters comes back."""
    has_edns: bool = False


class _QueryInvalid(Exception):
    def __init__(self, query: _Query, code: ReplyCode) -> None:
        super().__init__(code.name)
        self.query = query
        self.code = code


def answer_query(data: bytes, pool: NamePool, is_known: Callable[[str], bool]) -> Lookup:
    """Answer one message, as it comes by UDP or out of `split_stream`.

    `is_known` is asked about the name in its one form. Never raises; a reply is never longer than 512 bytes.
    """
    if len(data) < _HEAD.size:
        return Lookup(None, LookupOutcome.INVALID)
    if _HEAD.unpack_from(data)[1] & _RESPONSE:
        return Lookup(None, LookupOutcome.INVALID)
    try:
        query, labels, kind = _read_query(data)
    except _QueryInvalid as error:
        return Lookup(_reply(error.query, error.code), LookupOutcome.INVALID)
    shown = ".".join("".join(_shown(byte) for byte in label) for label in labels) or "."
    try:
        name = read_name(b".".join(labels).decode("ascii")) if not any(b"." in label for label in labels) else None
    except (NameInvalid, UnicodeDecodeError):
        name = None
    if name is None or not is_known(name):
        return Lookup(_reply(query, ReplyCode.NXDOMAIN), LookupOutcome.UNKNOWN, shown, kind)
    if kind not in (_A, _AAAA):
        return Lookup(_reply(query, ReplyCode.NOERROR), LookupOutcome.NO_DATA, shown, kind)
    try:
        addresses = pool.addresses_of(name)
    except PoolFull:
        return Lookup(_reply(query, ReplyCode.SERVFAIL), LookupOutcome.FULL, shown, kind)
    address = addresses.ipv4.packed if kind == _A else addresses.ipv6.packed
    return Lookup(_reply(query, ReplyCode.NOERROR, kind, address), LookupOutcome.ANSWERED, shown, kind)


class Answers:
    """Those to one box: what was asked before, byte for byte, is not taken apart again."""

    def __init__(self, pool: NamePool, is_known: Callable[[str], bool]) -> None:
        """*is_known* is asked each time: rules change."""
        self._pool = pool
        self._is_known = is_known
        self._found: dict[bytes, tuple[int, Lookup]] = {}
        """By all of a query but its number: the place of its name, and what was said."""

    def find(self, data: bytes) -> Lookup:
        """As `answer_query`."""
        known = self._found.get(data[_NUMBER_BYTES:])
        if known is not None:
            place, found = known
            assert found.name is not None and found.reply is not None
            if self._is_known(found.name) and self._pool.touch(found.name) == place:
                return found._replace(reply=data[:_NUMBER_BYTES] + found.reply[_NUMBER_BYTES:])
        found = answer_query(data, self._pool, self._is_known)
        if found.outcome is LookupOutcome.ANSWERED and found.name is not None:
            place_now = self._pool.touch(found.name)
            if place_now is not None:
                if len(self._found) >= MOST_ANSWERS:
                    self._found.clear()
                self._found[data[_NUMBER_BYTES:]] = place_now, found
        return found


def fail(reply: bytes) -> bytes:
    """In place of a reply of ours: that it failed, so that whoever waits need not."""
    end = _HEAD.size
    while reply[end]:
        end += 1 + reply[end]
    number, flags = struct.unpack_from("!HH", reply)
    return _HEAD.pack(number, flags & ~0xF | ReplyCode.SERVFAIL, 1, 0, 0, 0) + reply[_HEAD.size : end + 5]


def split_stream(buffer: bytearray) -> list[bytes]:
    """Take the whole messages off what came by TCP, each behind its length. Raises ValueError on an impossible length."""
    found = []
    while len(buffer) >= 2:
        length = int.from_bytes(buffer[:2], "big")
        if not _HEAD.size <= length <= MAX_QUERY_BYTES:
            raise ValueError(f"{length} bytes are no query")
        if len(buffer) < 2 + length:
            break
        found.append(bytes(buffer[2 : 2 + length]))
        del buffer[: 2 + length]
    return found


def frame(message: bytes) -> bytes:
    """A message as it goes by TCP."""
    return len(message).to_bytes(2, "big") + message


def _read_query(data: bytes) -> tuple[_Query, list[bytes], int]:
    number, flags, questions, answers, authorities, more = _HEAD.unpack_from(data)
    query = _Query(number, flags, b"")
    if flags & _OPCODE:
        raise _QueryInvalid(query, ReplyCode.NOTIMP)
    malformed = _QueryInvalid(query, ReplyCode.FORMERR)
    if len(data) > MAX_QUERY_BYTES or flags & _TRUNCATED or (questions, answers, authorities) != (1, 0, 0) or more > 1:
        raise malformed
    labels: list[bytes] = []
    place = _HEAD.size
    while place < len(data) and (length := data[place]) != 0:
        if length > 63 or place - _HEAD.size + length + 2 > 255:  # a pointer, or too long in all
            raise malformed
        labels.append(data[place + 1 : place + 1 + length])
        place += 1 + length
    end = place + 5
    if len(data) < end:
        raise malformed
    kind, family = struct.unpack_from("!HH", data, place + 1)
    query = query._replace(question=data[_HEAD.size : end], has_edns=bool(more))
    if more:
        _check_edns(data[end:], query)
    elif len(data) > end:
        raise malformed
    if family != _IN:
        raise _QueryInvalid(query, ReplyCode.REFUSED)
    return query, labels, kind


def _check_edns(record: bytes, query: _Query) -> None:
    """Hold that exactly one OPT record stands there. What it asks for is not needed for so small answers."""
    plain = query._replace(has_edns=False)
    if len(record) < 11 or record[0] != 0 or int.from_bytes(record[1:3], "big") != _OPT:
        raise _QueryInvalid(plain, ReplyCode.FORMERR)
    options = record[11:]
    if len(options) != int.from_bytes(record[9:11], "big"):
        raise _QueryInvalid(plain, ReplyCode.FORMERR)
    while options:
        length = int.from_bytes(options[2:4], "big")
        if len(options) < 4 + length:
            raise _QueryInvalid(plain, ReplyCode.FORMERR)
        options = options[4 + length :]
    if record[6] != 0:
        raise _QueryInvalid(query, ReplyCode.BADVERS)


def _reply(query: _Query, code: ReplyCode, kind: int = 0, address: bytes = b"") -> bytes:
    flags = _RESPONSE | _AUTHORITATIVE | _AVAILABLE | (query.flags & (_OPCODE | _DESIRED)) | (code & 0xF)
    counts = (1 if query.question else 0, 1 if address else 0, 0, 1 if query.has_edns else 0)
    reply = _HEAD.pack(query.id, flags, *counts) + query.question
    if address:  # its name is that of the question, which stands at 12
        reply += struct.pack("!HHHIH", 0xC000 | _HEAD.size, kind, _IN, TTL_S, len(address)) + address
    if query.has_edns:
        reply += struct.pack("!BHHBBHH", 0, _OPT, MAX_QUERY_BYTES, code >> 4, 0, 0, 0)
    return reply


def _shown(byte: int) -> str:
    sign = chr(byte).lower()
    return sign if 0x21 <= byte < 0x7F and sign not in ".\\" else f"\\{byte:03}"
