"""The record of whom a sandbox reached and tried to reach: one append-only file each, kept by the host daemon.

    SANDBOX.jsonl   a line when a contact begins, one for each of its requests that is read, and one when it ends;
                    one for an attempt that was denied, and one for a look-up that was answered
    SANDBOX.json    what was counted and not written down, as sums

An allowed contact is in the file before anything is dialled for it, or it is denied. What a box may make without end is
the denied attempt: equal ones are written the first few times and then added up, and all of them together take no more
than their share of the file. Lines are complete or absent: a line that a crash has torn is taken away, and that is told
in its place; what then had begun and not ended is ended.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from coldframe.contract.policy import Outcome
from coldframe.host.egress.contact import EgressContact, EgressRequest
from coldframe.host.egress.messages import MessageInvalid, cut, read_contact, write_contact

MOST_BYTES = 256 << 20
"""Of one sandbox, about 250,000 contacts. Then nothing begins any more."""
DENIED_BYTES = 32 << 20
"""Of these for attempts that were denied; further ones are added up."""
WRITTEN_EACH = 10
"""Of equal denied attempts; further ones are added up."""
MOST_SUMS = 1000
"""Kinds of attempts that are added up apart; all others together."""
BATCH = 1000
"""Lines that are read at a time."""
PAGE_BYTES = 1 << 20
"""The same in bytes."""

Event = Literal["begun", "request", "ended", "denied", "looked-up", "torn"]
Kind = tuple[str, str, int, str]
"""Protocol, name (or address, if no name was asked for), port and rule: what makes denied attempts equal."""
_REST: Kind = ("", "", 0, "")

_SANDBOX_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_HEAD = re.compile(
    rb'\{"seq":([0-9]{1,15}),"event":"(begun|request|ended|denied|looked-up|torn)","at":"([^"]{1,40})","contact":'
)


class LineageLost(Exception):
    """It cannot be put on record, so it may not happen."""


class Line(NamedTuple):
    """One line of the file."""

    seq: int
    """From 1, without a gap."""
    event: Event
    """`request`: the contact as it began, with this request alone. `torn`: a line was lost here in a crash."""
    at: datetime
    """By the daemon's clock; the times of the contact are the broker's."""
    contact: EgressContact | None
    """None for `torn`."""


@dataclass
class Sum:
    """Denied attempts that are not in the file."""

    protocol: str
    """This, what was wanted and the rule are empty for what was beyond MOST_SUMS kinds."""
    wanted: str
    port: int
    rule_id: str
    times: int
    first_at: str
    last_at: str


class Page(NamedTuple):
    """What `read` found."""

    lines: list[Line]
    more: bool
    """Whether there are lines behind these."""
    sums: list[Sum]
    is_torn: bool
    """Whether the last line is cut off, as by a crash; it is not among the lines."""


@dataclass
class _Record:
    """The file of a sandbox whose box lives."""

    sandbox_id: str
    file: int
    size: int
    seq: int = 0
    denied_bytes: int = 0
    begun: dict[str, EgressContact] = field(default_factory=dict)
    unwritten: dict[str, set[str]] = field(default_factory=dict)
    """Of what has begun: of which nothing was let through yet, and no line says that it began. By id, with the rules that
    denied its requests."""
    owed: list[EgressContact] = field(default_factory=list)
    """Ends that could not be written; nothing begins before they are."""
    written: dict[Kind, int] = field(default_factory=dict)
    sums: dict[Kind, Sum] = field(default_factory=dict)
    has_new_sums: bool = False


class Lineage:
    """The records of one installation. Blocking, and quick: an append is one system call."""

    def __init__(
        self,
        directory: str,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        on_change: Callable[[str], None] = lambda sandbox_id: None,
    ) -> None:
        """*on_change* hears of each sandbox of which something was put on record."""
        self._directory = directory
        self._clock = clock
        self._on_change = on_change
        self._records: dict[str, _Record] = {}
        self._ends: dict[str, tuple[int, int]] = {}
        """Of each sandbox: number of the last line that was read, and the place in the file behind it."""
        os.makedirs(directory, mode=0o700, exist_ok=True)

    def open(self, sandbox_id: str) -> bool:
        """From now on contacts of the sandbox may be recorded. False if a torn line was found. Raises OSError."""
        if sandbox_id in self._records:
            return True
        file = os.open(self._path(sandbox_id, "jsonl"), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            record = _Record(sandbox_id, file, 0)
            is_torn = self._recover(record, sandbox_id)
            self._records[sandbox_id] = record
            if is_torn:
                self._append(record, "torn", None)
            for contact in list(record.begun.values()):
                self.end(replace(contact, ended="the host daemon ended", ended_at=self._clock(), is_partial=True))
        except BaseException:
            self._records.pop(sandbox_id, None)
            os.close(file)
            raise
        return not is_torn

    def begin(self, contact: EgressContact) -> None:
        """Raises LineageLost: it may not go on then.

        One that is denied, since no request of it was allowed yet, is written when one is; what a box may make without
        end is its denied requests, which are bounded, and not the two lines around them.
        """
        record = self._records.get(contact.sandbox_id)
        if record is None:
            raise LineageLost("the sandbox has no record")
        try:
            self._pay(record)
            if record.size >= MOST_BYTES:
                raise LineageLost(f"the record of the sandbox is full: {MOST_BYTES >> 20} MiB")
            if contact.outcome is Outcome.ALLOW:
                self._append(record, "begun", contact)
            else:
                record.unwritten[contact.id] = set()
        except OSError as error:
            raise LineageLost(error.strerror or "not written") from error
        record.begun[contact.id] = contact

    def request(self, contact: EgressContact, request: EgressRequest) -> None:
        """A request of a contact that has begun. Raises LineageLost: it may not go on then."""
        record = self._records.get(contact.sandbox_id)
        begun = None if record is None else record.begun.get(contact.id)
        if record is None or begun is None:
            raise LineageLost("the contact is not on record")
        contact = replace(contact, requests=[request])
        if request.outcome is not Outcome.ALLOW:
            self._deny(record, contact, "request", request.rule_id)
            if contact.id in record.unwritten:
                record.unwritten[contact.id].add(request.rule_id)
            return
        try:
            self._pay(record)
            if record.size >= MOST_BYTES:
                raise LineageLost(f"the record of the sandbox is full: {MOST_BYTES >> 20} MiB")
            if contact.id in record.unwritten:
                told = replace(begun, outcome=Outcome.ALLOW, rule_id=request.rule_id, reason=request.reason)
                self._append(record, "begun", told)
                del record.unwritten[contact.id]
            self._append(record, "request", contact)
        except OSError as error:
            raise LineageLost(error.strerror or "not written") from error

    def look_up(self, contact: EgressContact) -> None:
        """A look-up that is going to be answered. Raises LineageLost: it may not be then."""
        record = self._records.get(contact.sandbox_id)
        if record is None:
            raise LineageLost("the sandbox has no record")
        try:
            self._pay(record)
            if record.size >= MOST_BYTES:
                raise LineageLost(f"the record of the sandbox is full: {MOST_BYTES >> 20} MiB")
            self._append(record, "looked-up", contact)
        except OSError as error:
            raise LineageLost(error.strerror or "not written") from error

    def end(self, contact: EgressContact) -> bool:
        """The end of what has begun, or an attempt that was denied. False if it could not be written yet."""
        record = self._records.get(contact.sandbox_id)
        if record is None:
            return False
        begun = record.begun.pop(contact.id, None)
        denied_by = record.unwritten.pop(contact.id, None)
        if begun is None or denied_by is not None:
            if not denied_by or contact.rule_id not in denied_by:  # else it was counted with its requests
                self._deny(record, replace(contact, outcome=Outcome.DENY), "denied", contact.rule_id)
            return True
        try:
            if record.owed:
                raise BlockingIOError
            self._append(record, "ended", contact)
        except OSError:
            record.owed.append(contact)
            return False
        return True

    def read(self, sandbox_id: str, after: int = 0, *, limit: int = BATCH) -> Page:
        """Lines behind number *after*, and all sums. The box need not live. Raises OSError."""
        record = self._records.get(sandbox_id)
        if record is not None:
            self._write_sums(sandbox_id, record)
        return self.read_file(sandbox_id, after, limit=limit)

    def read_file(self, sandbox_id: str, after: int = 0, *, limit: int = BATCH) -> Page:
        """The same without sums that were not written yet; from any thread. Raises OSError.

        A page takes PAGE_BYTES at most, or one line. Whoever goes on where a page ended need not wait for all before it.
        """
        lines: list[Line] = []
        seen_bytes = 0
        is_torn = False
        sums = list(_read_sums(self._path(sandbox_id, "json")).values())
        path = self._path(sandbox_id, "jsonl")
        if not os.path.exists(path):
            return Page([], more=False, sums=sums, is_torn=False)
        seq, place = self._ends.get(sandbox_id, (0, 0))
        at = place if seq == after else 0
        with open(path, "rb") as source:
            source.seek(at)
            for text in source:
                if not text.endswith(b"\n"):
                    is_torn = True
                    break
                head = _HEAD.match(text)
                if head is None or int(head[1]) <= after:
                    at += len(text)
                    continue
                if len(lines) >= limit or (lines and seen_bytes + len(text) > PAGE_BYTES):
                    self._ends[sandbox_id] = lines[-1].seq, at
                    return Page(lines, more=True, sums=sums, is_torn=False)
                at += len(text)
                seen_bytes += len(text)
                line = _read_line(text)
                if line is not None:
                    lines.append(line)
        if lines:
            self._ends[sandbox_id] = lines[-1].seq, at
        return Page(lines, more=False, sums=sums, is_torn=is_torn)

    def settle(self, sandbox_id: str) -> None:
        """End on record what a crash has left open of a box that is no more. Raises OSError."""
        if sandbox_id not in self._records and os.path.exists(self._path(sandbox_id, "jsonl")):
            self.open(sandbox_id)
            self.close(sandbox_id)

    def forget(self, sandbox_id: str) -> None:
        """Remove the record of a sandbox whose box is no more. Raises OSError."""
        self.close(sandbox_id)
        self._ends.pop(sandbox_id, None)
        for suffix in ("jsonl", "json", "json.new"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(sandbox_id, suffix))

    def flush(self) -> None:
        """Write the sums that have changed; to be called every few seconds. A crash loses what was counted since."""
        for sandbox_id, record in list(self._records.items()):
            self._write_sums(sandbox_id, record)

    def close(self, sandbox_id: str) -> None:
        """Nothing more is recorded for the sandbox; what is there stays."""
        record = self._records.pop(sandbox_id, None)
        if record is not None:
            with contextlib.suppress(OSError):
                self._pay(record)
            self._write_sums(sandbox_id, record)
            os.close(record.file)

    def close_all(self) -> None:
        for sandbox_id in list(self._records):
            self.close(sandbox_id)

    # -- writing -------------------------------------------------------------------------------

    def _path(self, sandbox_id: str, suffix: str) -> str:
        if _SANDBOX_ID.fullmatch(sandbox_id) is None:
            raise ValueError("malformed sandbox id")
        return os.path.join(self._directory, f"{sandbox_id}.{suffix}")

    def _deny(self, record: _Record, contact: EgressContact, event: Event, rule_id: str) -> None:
        kind = _kind(contact, rule_id)
        written = record.written.get(kind, 0)
        is_apart = kind in record.written or len(record.written) < MOST_SUMS
        is_written = is_apart and written < WRITTEN_EACH and record.denied_bytes < DENIED_BYTES
        if is_written and contact.times == 1 and not record.owed:
            with contextlib.suppress(OSError):
                record.denied_bytes += self._append(record, event, contact)
                record.written[kind] = written + 1
                return
        self._add_up(record, kind, contact.times)

    def _pay(self, record: _Record) -> None:
        while record.owed:
            self._append(record, "ended", record.owed[0])
            record.owed.pop(0)

    def _add_up(self, record: _Record, kind: Kind, times: int) -> None:
        now = self._clock().isoformat()
        if kind not in record.sums and len(record.sums) >= MOST_SUMS:
            kind = _REST
        known = record.sums.setdefault(kind, Sum(*kind, times=0, first_at=now, last_at=now))
        known.times += times
        known.last_at = now
        record.has_new_sums = True
        self._on_change(record.sandbox_id)

    def _append(self, record: _Record, event: Event, contact: EgressContact | None) -> int:
        """Bytes of the line. It is whole, or not there. Raises OSError."""
        written = b"null" if contact is None else write_contact(cut(contact))
        head = f'{{"seq":{record.seq + 1},"event":"{event}","at":"{self._clock().isoformat()}","contact":'
        line = head.encode() + written + b"}\n"
        try:
            done = os.write(record.file, line)
            if done != len(line):
                raise OSError(None, "the disk is full")
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(record.file, record.size)
            raise
        record.size += len(line)
        record.seq += 1
        self._on_change(record.sandbox_id)
        return len(line)

    def _write_sums(self, sandbox_id: str, record: _Record) -> None:
        if not record.has_new_sums:
            return
        path = self._path(sandbox_id, "json")
        with contextlib.suppress(OSError):  # they are kept, and written with the next
            with open(f"{path}.new", "w", encoding="ascii") as target:
                json.dump([one.__dict__ for one in record.sums.values()], target)
            os.rename(f"{path}.new", path)
            record.has_new_sums = False

    # -- after a crash -------------------------------------------------------------------------

    def _recover(self, record: _Record, sandbox_id: str) -> bool:
        """Take in what is there, and take away a last line that is torn; whether there was one."""
        record.sums = _read_sums(self._path(sandbox_id, "json"))
        for text in _lines(record.file):
            if not text.endswith(b"\n"):
                os.ftruncate(record.file, record.size)
                return True
            record.size += len(text)
            line = _read_line(text)
            if line is None:
                continue
            record.seq = line.seq
            if line.contact is None:
                continue
            if line.event == "begun":
                record.begun[line.contact.id] = line.contact
            elif line.event == "ended":
                record.begun.pop(line.contact.id, None)
            elif line.event == "denied" or (line.event == "request" and _is_denied(line.contact)):
                record.denied_bytes += len(text)
                rule_id = (line.contact.requests[0] if line.event == "request" else line.contact).rule_id
                kind = _kind(line.contact, rule_id)
                record.written[kind] = record.written.get(kind, 0) + 1
        return False


def _lines(file: int) -> Iterator[bytes]:
    with open(file, "rb", closefd=False) as source:
        source.seek(0)
        yield from source


def _kind(contact: EgressContact, rule_id: str) -> Kind:
    return contact.protocol, contact.name or contact.address, contact.port, rule_id


def _is_denied(contact: EgressContact) -> bool:
    """Whether the one request of the line was."""
    return bool(contact.requests) and contact.requests[0].outcome is not Outcome.ALLOW


def _read_line(text: bytes) -> Line | None:
    """None if it is none, or not a whole one."""
    head = _HEAD.match(text)
    if head is None or not text.endswith(b"}\n"):
        return None
    written = text[head.end() : -2]
    try:
        contact = None if written == b"null" else read_contact(written)
        at = datetime.fromisoformat(head[3].decode("ascii"))
    except (MessageInvalid, ValueError):
        return None
    return Line(int(head[1]), head[2].decode(), at, contact)  # type: ignore[arg-type]


def _read_sums(path: str) -> dict[Kind, Sum]:
    try:
        with open(path, encoding="ascii") as source:
            sums = [Sum(**one) for one in json.load(source)]
    except (OSError, ValueError, TypeError):
        return {}
    return {(one.protocol, one.wanted, one.port, one.rule_id): one for one in sums}
