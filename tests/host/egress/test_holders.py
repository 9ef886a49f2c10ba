"""Who holds a connection is told by the kernel: its program and process, and `unknown` rather than a guess."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from coldframe.host.claims import SLOTS, Claims, read_claim
from coldframe.host.egress.arrivals import NETLINK_SOCK_DIAG
from coldframe.host.egress.holders import MOST_LOOKS, MOST_LOOKS_OF_PROCESS, UNKNOWN_PROGRAM, Holder, Holders

HOLD = """
import socket, sys
kind = socket.SOCK_STREAM if sys.argv[1] == "tcp" else socket.SOCK_DGRAM
link = socket.socket(socket.AF_INET, kind)
link.connect(("127.0.0.1", int(sys.argv[2])))
print(link.getsockname()[1], flush=True)
sys.stdin.readline()
{before}
print("closed", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def diagnosis() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as one:
        one.bind((0, 0))
        yield one


def _started(opened: ExitStack, protocol: str, port: int, before: str) -> "subprocess.Popen[bytes]":
    program = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(before=before), protocol, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    opened.enter_context(program)
    opened.callback(program.kill)
    return program


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_the_program_that_holds_it_is_found_among_descendants_and_is_unknown_when_it_is_closed(
    protocol: str, diagnosis: socket.socket
) -> None:
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    with ExitStack() as opened:
        server = opened.enter_context(socket.socket(socket.AF_INET, kind))
        server.bind(("127.0.0.1", 0))
        if protocol == "tcp":
            server.listen()
        target = server.getsockname()
        program = _started(opened, protocol, target[1], "link.close()")
        assert program.stdin is not None
        assert program.stdout is not None
        source = ("127.0.0.1", int(program.stdout.readline()))
        holders = Holders(os.getpid(), os.getpid(), {}, "/nowhere")
        found = holders.find(diagnosis, protocol, source, target)
        assert found == Holder(os.path.realpath(sys.executable), None, None)
        # Our own end has the same ports the other way round.
        assert holders.find(diagnosis, protocol, source, (target[0], target[1] ^ 1)) == (
            Holder() if protocol == "tcp" else found
        )
        assert holders.find(None, protocol, source, target) == Holder()
        assert holders.find(diagnosis, protocol, None, target) == Holder()
        assert holders.find(diagnosis, protocol, ("no address", 1), target) == Holder()
        program.stdin.write(b"\n")
        program.stdin.flush()
        assert program.stdout.readline() == b"closed\n"
        assert holders.find(diagnosis, protocol, source, target) == Holder()


def test_nobody_looks_through_all_files_of_who_hides_a_connection_among_many(diagnosis: socket.socket) -> None:
    with ExitStack() as opened:
        server = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        hide = f"import os; files = [os.open('/dev/null', 0) for _ in range({MOST_LOOKS_OF_PROCESS})]"
        program = _started(opened, "tcp", server.getsockname()[1], hide)
        assert program.stdin is not None
        assert program.stdout is not None
        source = ("127.0.0.1", int(program.stdout.readline()))
        holders = Holders(os.getpid(), os.getpid(), {}, "/nowhere")
        assert holders.find(diagnosis, "tcp", source, server.getsockname()).program != "unknown"
        program.stdin.write(b"\n")
        program.stdin.flush()
        program.stdout.readline()
        assert holders.find(diagnosis, "tcp", source, server.getsockname()) == Holder()


def test_a_group_is_claimed_by_one_command_after_the_other_and_what_is_no_claim_is_none(
    tmp_path: os.PathLike[str],
) -> None:
    records = os.fspath(tmp_path)
    assert read_claim(records, "c1") is None
    directory = os.open(records, os.O_RDONLY | os.O_DIRECTORY)
    claims = Claims(directory)
    os.close(directory)
    claims.write("c1", "cmd_first")
    claims.write("c2", "cmd_second")
    assert (read_claim(records, "c1"), read_claim(records, "c2")) == ("cmd_first", "cmd_second")
    claims.write("c1", "cmd_third")
    assert read_claim(records, "c1") == "cmd_third"
    claims.write(f"c{SLOTS + 1}", "cmd_much-later")
    assert read_claim(records, "c1") is None
    assert read_claim(records, "init") is None
    with open(os.path.join(records, "groups.claims"), "r+b") as file:
        file.seek(2 * 128)
        file.write(b"c2 ../../x\n")
    assert read_claim(records, "c2") is None


def test_where_the_last_one_was_found_is_looked_at_first_and_the_other_groups_if_it_is_there_no_more(
    tmp_path: os.PathLike[str], diagnosis: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = os.fspath(tmp_path)
    groups = {name: os.path.join(root, "box", name) for name in ("c1", "c2")}
    for folder in groups.values():
        os.makedirs(folder)
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    claims = Claims(directory)
    os.close(directory)
    claims.write("c1", "cmd_first")
    claims.write("c2", "cmd_second")
    listed: list[object] = []
    real = os.scandir

    def scan(path: str) -> object:
        listed.append(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scan)

    def put(pid: int, group: str) -> None:
        for name, folder in groups.items():
            with open(os.path.join(folder, "cgroup.procs"), "w", encoding="ascii") as file:
                file.write(f"{pid}\n" if name == group else "")

    with ExitStack() as opened:
        server = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        program = _started(opened, "tcp", server.getsockname()[1], "pass")
        assert program.stdout is not None
        source = ("127.0.0.1", int(program.stdout.readline()))
        holders = Holders(os.getpid(), os.getpid(), {"unified": root}, root)

        def found() -> str | None:
            return holders.find(diagnosis, "tcp", source, server.getsockname()).command_id

        put(program.pid, "c1")
        assert found() == "cmd_first"
        is_told = bool(holders._found)  # of a socket's group not every kernel tells
        listed.clear()
        assert found() == "cmd_first" and (os.path.join(root, "box") not in listed) is is_told
        put(program.pid, "c2")
        assert [found(), found()] == ["cmd_second"] * 2
        put(program.pid, "")
        assert found() is None


def test_of_a_process_with_a_million_files_only_as_many_are_listed_as_are_looked_through(
    diagnosis: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0

    class Counted:
        """As `os.scandir` for a process that has no end of files."""

        def __enter__(self) -> Iterator[SimpleNamespace]:
            return self._entries()

        def __exit__(self, *_: object) -> None:
            return

        def _entries(self) -> Iterator[SimpleNamespace]:
            nonlocal read
            for number in range(1 << 20):
                read += 1
                yield SimpleNamespace(name=str(number))

    with ExitStack() as opened:
        server = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        program = _started(opened, "tcp", server.getsockname()[1], "pass")
        assert program.stdout is not None
        source = ("127.0.0.1", int(program.stdout.readline()))
        monkeypatch.setattr(os, "scandir", lambda _: Counted())
        assert Holders(os.getpid(), os.getpid(), {}, "/nowhere").find(
            diagnosis, "tcp", source, server.getsockname()
        ) == Holder(UNKNOWN_PROGRAM)
        assert 0 < read <= 16 * MOST_LOOKS


def test_many_sockets_on_one_port_are_unknown_and_leave_the_next_question_its_answer(diagnosis: socket.socket) -> None:
    with ExitStack() as opened:
        shared: list[socket.socket] = []
        for _ in range(300):  # more than one message of the kernel holds
            one = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.bind(("127.0.0.1", shared[0].getsockname()[1] if shared else 0))
            shared.append(one)
        server = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        program = _started(opened, "tcp", server.getsockname()[1], "pass")
        assert program.stdout is not None
        source = ("127.0.0.1", int(program.stdout.readline()))
        holders = Holders(os.getpid(), os.getpid(), {}, "/nowhere")
        for _ in range(3):
            assert holders.find(diagnosis, "udp", shared[0].getsockname(), ("", 53)) == Holder()
            found = holders.find(diagnosis, "tcp", source, server.getsockname())
            assert found.program == os.path.realpath(sys.executable)
