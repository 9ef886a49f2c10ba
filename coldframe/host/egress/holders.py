"""Who in a box holds a connection: the program, its process and its command, as the kernel knows them and not as the box says.

The kernel is asked for the socket behind address and port, through a netlink socket that was made inside the box's
network namespace (`capture.py`): that gives the socket's inode. Then the processes of the box are looked through for one
that holds it. A program cannot name another one than that which its process runs, nor another command than that in whose
control group it is, which nobody in a box can leave; it can be called what it likes (a copy of a program under another
name), hand its socket to another process that takes it, hold so many files that nobody looks through them all, or be
gone: then it is `unknown`.

Without control groups processes are found as descendants of the keeper and of the box's first process, and there is no word
about commands: marks can be changed (`limits.py`).

Blocking, for some 0.1 ms: it is asked when the connection comes and has to wait, so that whoever holds it is still there.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from itertools import islice
from typing import NamedTuple

from coldframe.host.claims import read_claim

UNKNOWN_PROGRAM = "unknown"
MOST_LOOKS = 512
"""Open files that are looked at for one connection, of all processes of a box."""
MOST_LOOKS_OF_PROCESS = 128
"""Those with the highest numbers: what was opened last is mostly there."""
MOST_GROUPS = 64
"""Of a box, of which it is remembered who was found where."""
_LISTED_AS_ONE = 16
"""To list so many open files takes about as long as to look at one."""

_BY_FAMILY = 20
_REQUEST, _DUMP = 1, 0x300
_ALL_STATES = 0xFFFFFFFF
_HEAD = struct.Struct("=IHHII")
_WHICH = struct.Struct("=BBBBI")
_NO_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_PORTS = struct.Struct("!HH")
_INODE = struct.Struct("=I")
_PORTS_AT, _INODE_AT, _FAMILY_BYTES = 4, 68, 72
"""In an answer, behind its head of 16 bytes: family, state, …; ports and addresses; …; inode."""
_GROUP = 21
"""Attribute of an answer, behind all that."""
_ESTABLISHED, _FIN_WAIT_1, _FIN_WAIT_2, _CLOSE_WAIT = 1, 4, 5, 8
_CONNECTED = (_ESTABLISHED, _FIN_WAIT_1, _FIN_WAIT_2, _CLOSE_WAIT)
_MOST_ANSWERS = 64
"""To one question, and of earlier ones that nobody has read."""
_HIERARCHIES = ("unified", "memory", "cpuacct", "freezer")
"""In which commands have groups: the first that there is."""
_READ_BYTES = 1 << 16


class Holder(NamedTuple):
    """Whose a connection is."""

    program: str = UNKNOWN_PROGRAM
    """Path in the box."""
    pid: int | None = None
    """In the box."""
    command_id: str | None = None


@dataclass(frozen=True)
class Holders:
    """Of one box."""

    keeper: int
    init: int
    groups: Mapping[str, str]
    """Directory of the box's control group in each hierarchy, as its mark has it."""
    records: str
    """Directory of the records of its commands."""
    _found: dict[int, str] = field(default_factory=dict, compare=False, repr=False)
    """By the number of a group in which sockets are made: the name of the one whose processes held the last of them."""

    def find(
        self, diagnosis: socket.socket | None, protocol: str, source: tuple[str, int] | None, target: tuple[str, int]
    ) -> Holder:
        """*diagnosis*: a netlink socket of the box's network namespace. *source* and *target*: of the box's own socket; of
        one for UDP the target does not matter. Never raises."""
        if diagnosis is None or source is None:
            return Holder()
        try:
            asked = _find_socket(diagnosis, protocol, source, target)
        except (OSError, ValueError, struct.error):
            return Holder()
        return Holder() if asked is None else self._holder(asked)

    def _holder(self, asked: "_Socket") -> Holder:
        looks, wanted = MOST_LOOKS, f"socket:[{asked.inode}]"
        for group, pids in self._processes(asked.group):
            looks -= 1
            for pid in pids:
                if looks <= 0:
                    return Holder()
                file, looked = _find_file(pid, wanted, min(looks, MOST_LOOKS_OF_PROCESS))
                looks -= looked
                if file is not None:
                    command_id = None if group is None else read_claim(self.records, group)
                    holder = Holder(_program_of(pid), _pid_inside(pid), command_id)
                    # As long as it holds that, it is in its group, which is nobody else's.
                    if _target_of(file) != wanted:
                        return Holder()
                    self._note_group(asked.group, group)
                    return holder
        return Holder()

    def _note_group(self, number: int, group: str | None) -> None:
        if number and group is not None:
            if len(self._found) >= MOST_GROUPS:
                self._found.clear()
            self._found[number] = group

    def _processes(self, first: int) -> Iterator[tuple[str | None, list[int]]]:
        """The processes of each command's control group, with its name, that with the number *first* before all others; all
        together where there are no groups."""
        name = next((name for name in _HIERARCHIES if name in self.groups), None)
        if name is None:
            yield None, self._descendants()
            return
        directory = self.groups[name] + ("/box" if name == "unified" else "")
        found = self._found.get(first)
        if found is not None:  # mostly that is all, and then the others are not even listed
            yield found, _members(f"{directory}/{found}")
        try:
            with os.scandir(directory) as entries:
                below = {one.name: one.inode() for one in entries if one.name[:1] == "c" and one.name[1:].isdecimal()}
        except OSError:
            return
        for group in sorted(below, key=lambda name: (below[name] != first, int(name[1:]))):
            if group != found:
                yield group, _members(f"{directory}/{group}")

    def _descendants(self) -> list[int]:
        found: list[int] = []
        left, looks = [self.keeper, self.init], MOST_LOOKS
        while left and looks > 0:
            pid = left.pop()
            with contextlib.suppress(OSError):
                for task in os.listdir(f"/proc/{pid}/task")[:looks]:
                    looks -= 1
                    children = [int(word) for word in _read(f"/proc/{pid}/task/{task}/children").split()]
                    found += children
                    left += [child for child in children if child != self.init]
        return sorted(found)


class _Socket(NamedTuple):
    inode: int
    group: int
    """Number of the version 2 control group in which it was made; 0 if that is not told."""


def _find_socket(
    diagnosis: socket.socket, protocol: str, source: tuple[str, int], target: tuple[str, int]
) -> _Socket | None:
    """None if nobody has it any more, or it could be more than one. Raises OSError, ValueError, struct.error."""
    here = ip_address(source[0])
    families = (socket.AF_INET, socket.AF_INET6) if here.version == 4 else (socket.AF_INET6,)
    if protocol == "tcp":
        there = ip_address(target[0]).packed.ljust(16, b"\0")
        wanted = _PORTS.pack(source[1], target[1]) + here.packed.ljust(16, b"\0") + there
        for answer in _ask(diagnosis, families[0], socket.IPPROTO_TCP, wanted, 0):
            # What listens is told too, if nobody holds the connection.
            if answer[1] in _CONNECTED and answer[_PORTS_AT : _PORTS_AT + 4] == wanted[:4]:
                return _read_answer(answer)
        return None
    # To whom it was sent is not known here, so all with that port are told; one that is not bound to it is none.
    found = set()
    for family in families:
        for answer in _ask(diagnosis, family, socket.IPPROTO_UDP, _PORTS.pack(source[1], 0) + bytes(32), _DUMP):
            if answer[_PORTS_AT : _PORTS_AT + 2] == _PORTS.pack(source[1], 0)[:2]:
                found.add(_read_answer(answer))
                if len(found) > 1:  # as many as there may be that share it
                    return None
    return found.pop() if found else None


def _read_answer(answer: bytes) -> _Socket | None:
    (inode,) = _INODE.unpack_from(answer, _INODE_AT)
    if not inode:
        return None  # closed, and not gone yet
    place = _FAMILY_BYTES
    while place + 4 <= len(answer):
        size, kind = struct.unpack_from("=HH", answer, place)
        if kind == _GROUP:
            return _Socket(inode, struct.unpack_from("=Q", answer, place + 4)[0])
        place += max(4, (size + 3) & ~3)
    return _Socket(inode, 0)


def _ask(diagnosis: socket.socket, family: int, protocol: int, wanted: bytes, flags: int) -> Iterator[bytes]:
    """What the kernel answers. Raises OSError."""
    number = struct.unpack("=I", os.urandom(4))[0]
    body = _WHICH.pack(family, protocol, 0, 0, _ALL_STATES) + wanted + _NO_COOKIE
    diagnosis.sendto(_HEAD.pack(_HEAD.size + len(body), _BY_FAMILY, _REQUEST | flags, number, 0) + body, (0, 0))
    for _ in range(_MOST_ANSWERS):
        message, sender = diagnosis.recvfrom(_READ_BYTES, socket.MSG_DONTWAIT)
        place = 0
        while sender[0] == 0 and place + _HEAD.size <= len(message):
            length, kind, _, answered, _ = _HEAD.unpack_from(message, place)
            if length < _HEAD.size:
                return
            if answered != number:
                break  # the rest of an answer that nobody has read to its end: nothing else is in that message
            if kind != _BY_FAMILY:
                return  # over, or an error
            if length >= _HEAD.size + _FAMILY_BYTES:
                yield message[place + _HEAD.size : place + length]
            if not flags:
                return
            place += (length + 3) & ~3


def _find_file(pid: int, wanted: str, most: int) -> tuple[str | None, int]:
    """Where the process has that open, and how many files were looked at."""
    folder, listed = f"/proc/{pid}/fd", MOST_LOOKS * _LISTED_AS_ONE
    try:
        with os.scandir(folder) as entries:  # of a million, no more are read than are looked through
            numbers = [entry.name for entry in islice(entries, listed)]
    except OSError:
        return None, 1
    looked = 1 + len(numbers) // _LISTED_AS_ONE
    if len(numbers) == listed:
        return None, looked
    for number in numbers[: -most - 1 : -1]:
        looked += 1
        if _target_of(f"{folder}/{number}") == wanted:
            return f"{folder}/{number}", looked
    return None, looked


def _members(group: str) -> list[int]:
    return sorted(int(word) for word in _read(f"{group}/cgroup.procs").split() if word.isdigit())


def _target_of(file: str) -> str | None:
    try:
        return os.readlink(file)
    except OSError:
        return None


def _program_of(pid: int) -> str:
    try:
        path = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return UNKNOWN_PROGRAM
    return os.fsencode(path).decode("utf-8", "replace")


def _pid_inside(pid: int) -> int | None:
    _, _, rest = _read(f"/proc/{pid}/status").partition(b"\nNSpid:")
    numbers = rest.partition(b"\n")[0].split()
    return int(numbers[-1]) if len(numbers) > 1 and numbers[-1].isdigit() else None


def _read(path: str) -> bytes:
    """Empty if it cannot be read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, _READ_BYTES)
    except OSError:
        return b""
    finally:
        os.close(file)
