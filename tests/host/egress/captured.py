"""A network namespace whose traffic is captured, with the test as its broker and programs without rights inside it."""

import array
import os
import pickle
import select
import socket
import struct
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

from coldframe.guest import contacts, refusals
from coldframe.host import confine
from coldframe.host.egress import arrivals, capture
from tests.host import boxes

T = TypeVar("T")
OWN = "198.18.0.1"
ANSWER = "198.18.7.7"
"""Of every name that is looked up."""
PATIENCE_S = 30.0
RESET = b"reset"
"""Who says so is answered as one who is denied."""


class Running(Generic[T]):
    """A function in a process of the namespace."""

    def __init__(self, pid: int, answer: int, files: list[str]) -> None:
        self._pid = pid
        self._files = files
        self.answer = answer

    def result(self) -> T:
        with os.fdopen(self.answer, "rb") as pipe:
            try:
                good, value = pickle.load(pipe)
            except EOFError:
                good, value = False, "ended without an answer"
        os.waitpid(self._pid, 0)
        for path in self._files:
            os.unlink(path)
        assert good, value
        return value  # type: ignore[no-any-return]


class Served(NamedTuple):
    """What the broker of the test has seen."""

    destinations: list[tuple[str, int]]
    questions: list[str]


class Namespace:
    """Nobody lives in it: it is held by descriptors alone, as are the sockets that came out of it."""

    def __init__(self, who: str, user: int, net: int, came: arrivals.Arrivals, seen: refusals.Refusals) -> None:
        self._who = who
        self._spaces = {"user": user, "net": net}
        self.arrivals = came
        self.seen = seen

    def start(self, function: Callable[[], T], *, files: dict[str, str] | None = None, raw: bool = False) -> Running[T]:
        """*files*: paths that have another text inside; *raw*: with capabilities, as no program of a box has."""
        reading, writing = os.pipe()
        shown = {path: _file_with(text) for path, text in (files or {}).items()}
        pid = os.fork()
        if pid == 0:
            answer: tuple[bool, object] = (False, "")
            try:
                os.close(reading)
                if self._who == "ordinary":
                    boxes.become_ordinary()
                for kind, space in self._spaces.items():
                    confine.setns(space, kind)
                if shown:
                    _show(shown)
                self._forget()
                if not raw:
                    boxes.give_up_all_rights()
                answer = (True, function())
            except BaseException:
                answer = (False, traceback.format_exc())
            finally:
                with os.fdopen(writing, "wb") as pipe:
                    pickle.dump(answer, pipe)
                os._exit(0)
        os.close(writing)
        return Running(pid, reading, list(shown.values()))

    def run(self, function: Callable[[], T], *, raw: bool = False) -> T:
        return self.start(function, raw=raw).result()

    def serve(self, running: Running[T]) -> tuple[T, Served]:
        """Be the broker of everything until *running* has ended: each connection is told where it wanted to go."""
        served = Served([], [])
        waiting = select.poll()
        by_number = {one.fileno(): one for one in self.arrivals.sockets()}
        for number in (*by_number, running.answer):
            waiting.register(number, select.POLLIN)
        while True:
            ready = {number for number, _ in waiting.poll(PATIENCE_S * 1000)}
            assert ready, "nothing came, and the program has not ended"
            for number in ready - {running.answer}:
                self._take(by_number[number], served)
            if ready == {running.answer}:
                return running.result(), served

    def _take(self, one: socket.socket, served: Served) -> None:
        if one in self.arrivals.look_ups:
            question, whom = one.recvfrom(4096)
            served.questions.append(f"{asked(question)} by udp")
            one.sendto(dns_answer(question), whom)
            return
        connection, _ = one.accept()
        with connection:
            connection.settimeout(PATIENCE_S)
            if one in self.arrivals.long_look_ups:
                question = connection.recv(4096)[2:]
                served.questions.append(f"{asked(question)} by tcp")
                reply = dns_answer(question)
                connection.sendall(struct.pack("!H", len(reply)) + reply)
                return
            destination = arrivals.original_destination(connection, self.arrivals.mechanism)
            served.destinations.append(tuple(destination))
            heard = connection.recv(65536)
            if heard == RESET:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif heard:
                body = f"{destination.address} {destination.port}".encode()
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                connection.sendall(head.encode() + body)

    def attempts(self) -> list[contacts.Attempt]:
        """All that was refused and not yet told."""
        found: list[contacts.Attempt] = []
        more = True
        while more:
            some, more = self.seen.read_ready()
            found += some
        return found

    def _forget(self) -> None:
        """In a child: what the broker holds."""
        self.arrivals.close()
        self.seen.close()
        for space in self._spaces.values():
            os.close(space)

    def close(self) -> None:
        self._forget()


def _file_with(text: str) -> str:
    number, path = tempfile.mkstemp(prefix="cf-setting-", dir="/tmp")
    with os.fdopen(number, "w") as file:
        os.fchmod(number, 0o644)
        file.write(text)
    return path


def _show(files: dict[str, str]) -> None:
    confine.unshare("mnt")
    confine.mount(None, "/", None, confine.MS_REC | confine.MS_PRIVATE)
    for path, other in files.items():
        confine.bind(other, path)


@contextmanager
def namespace(
    who: str, *, ports: tuple[int, ...] = (80, 443), before: Callable[[], None] = lambda: None
) -> Iterator[Namespace]:
    """*before* runs in the process that captures, which ends when it has handed everything over."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        try:
            if who == "ordinary":
                boxes.become_ordinary()
            before()
            confine.unshare("user", "net")
            came, seen = capture.capture_traffic(ports, own_ip=OWN)
            arrivals.hand_over(came, theirs)
            spaces = [os.open(f"/proc/thread-self/ns/{kind}", os.O_RDONLY) for kind in ("user", "net")]
            socket.send_fds(theirs, [b"and"], [seen.fileno(), *spaces])
        except BaseException:
            theirs.send(traceback.format_exc().encode())
        finally:
            os._exit(0)
    theirs.close()
    with ours:
        os.waitpid(pid, 0)
        first = ours.recv(4096, socket.MSG_PEEK)
        assert first.startswith(b"{"), first.decode()
        came = arrivals.receive(ours)
        _, ancillary, _, _ = ours.recvmsg(100, socket.CMSG_SPACE(12), socket.MSG_CMSG_CLOEXEC)
    log, user, net = array.array("i", ancillary[0][2])
    served = refusals.Served(frozenset(came.ports), OWN)
    read = refusals.logged_attempt if came.mechanism == "nftables" else served.attempt
    made = Namespace(who, user, net, came, refusals.Refusals(socket.socket(fileno=log), read))
    try:
        yield made
    finally:
        made.close()


def asked(question: bytes) -> str:
    parts, place = [], 12
    while question[place]:
        parts.append(question[place + 1 : place + 1 + question[place]].decode())
        place += 1 + question[place]
    return ".".join(parts)


def dns_question(name: str) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return struct.pack("!HHHHHH", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", 1, 1)


def dns_answer(question: bytes) -> bytes:
    """`ANSWER` to who asks for an IPv4 address, and to anybody else that there is no other."""
    place = 12
    while question[place]:
        place += 1 + question[place]
    end = place + 5
    (kind,) = struct.unpack_from("!H", question, place + 1)
    records = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 60, 4) + socket.inet_aton(ANSWER) if kind == 1 else b""
    return question[:2] + struct.pack("!HHHHH", 0x8180, 1, bool(records), 0, 0) + question[12:end] + records
