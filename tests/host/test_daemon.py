"""The privileged process answers its server and nobody else, and no request ends it or makes it hold much."""

import asyncio
import contextlib
import fcntl
import json
import os
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.command import Ended
from coldframe.contract.errors import ColdframeError, GuestLost, HostUnreachable, Internal, InvalidArgument, NotFound
from coldframe.contract.sandbox import SandboxSpec
from coldframe.guest.frames import PREFIX, decode_head, encode
from coldframe.host import daemon, history_files, machine, successor
from coldframe.host.confine import ConfineError
from coldframe.host.history_files import HistoryFiles
from coldframe.host.remote import RemoteHost, daemon_answers
from coldframe.host.removal import remove_tree
from coldframe.host.stacks import HISTORY
from coldframe.host.strays import mark_of
from coldframe.host.successor import announced, is_coming
from coldframe.host.workspaces import Workspaces
from tests.host import boxes
from tests.host.forked import in_child
from tests.host.machines import needs_bubblewrap, run, until
from tests.installation import CHECKOUT

SPEC = SandboxSpec(agent_id="agent", on_missing="degrade")


def with_a_daemon(steps: Callable[[str], Awaitable[None]]) -> None:
    """Run *steps* with the data directory of a daemon that serves."""
    folder = tempfile.mkdtemp(prefix="cf-daemon-", dir="/tmp")
    os.chmod(folder, 0o711)

    async def whole() -> None:
        serving = await serve(folder)
        try:
            await steps(folder)
        finally:
            host = RemoteHost(folder)
            await host.sweep(keep_boxes=set(), keep_sessions=set())
            await host.close()
            await end(serving)

    try:
        asyncio.run(whole())
    finally:
        remove_tree(folder)


async def serve(folder: str) -> asyncio.Task[None]:
    ready = asyncio.Event()
    serving = asyncio.create_task(daemon.serve(folder, ready=ready.set))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    assert ready.is_set()
    return serving


async def end(serving: asyncio.Task[None]) -> None:
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving


async def exchange(folder: str, *pieces: bytes) -> dict[str, Any] | None:
    """The head of the answer to raw bytes; None if the daemon ends the connection instead."""
    reader, writer = await asyncio.open_unix_connection(daemon.socket_path(folder))
    try:
        for piece in pieces:
            writer.write(piece)
        await writer.drain()
        async with asyncio.timeout(5):
            head, body = PREFIX.unpack(await reader.readexactly(PREFIX.size))
            return decode_head((await reader.readexactly(head + body))[:head])
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    finally:
        writer.close()


def test_a_daemon_is_announced_also_while_somebody_asks_in_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "host"
    directory.mkdir()
    asks = os.open(directory / successor.NAME, os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(asks, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda _: os.close(asks))
    with announced(str(tmp_path)):
        assert is_coming(str(directory))
    assert not is_coming(str(directory))


def test_who_asks_while_a_daemon_is_on_its_way_waits_for_it_and_else_is_told_at_once() -> None:
    async def steps(folder: str) -> None:
        host = RemoteHost(folder)
        with pytest.raises(HostUnreachable):
            await host.ping()
        with announced(folder):
            asking = asyncio.ensure_future(host.ping())
            await until_waits(asking)
            serving = await serve(folder)
            assert (await asking)["pid"] == os.getpid()
        await host.close()
        await end(serving)
        host = RemoteHost(folder)
        with announced(folder):
            asking = asyncio.ensure_future(host.ping())
            await until_waits(asking)
        with pytest.raises(HostUnreachable):  # whoever was to start it has given up, or died
            await asking
        await host.close()

    async def until_waits(asking: asyncio.Future[dict[str, Any]]) -> None:
        """It has looked for the daemon more than once."""
        before = looks.count
        async with asyncio.timeout(10):
            while looks.count < before + 3:
                assert not asking.done()
                await asyncio.sleep(0)

    class Looks:
        count = 0

        def __call__(self, directory: str) -> bool:
            self.count += 1
            return is_coming(directory)

    looks = Looks()
    folder = tempfile.mkdtemp(prefix="cf-daemon-", dir="/tmp")
    os.chmod(folder, 0o711)
    os.mkdir(os.path.join(folder, "host"), 0o711)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("coldframe.host.remote.is_coming", looks)
            asyncio.run(steps(folder))
    finally:
        remove_tree(folder)


@pytest.mark.parametrize(
    "request_bytes",
    [
        PREFIX.pack(1 << 31, 0),
        PREFIX.pack(daemon.MOST_HEAD_BYTES + 1, 0),
        PREFIX.pack(2, daemon.MOST_BODY_BYTES + 1) + b"{}",
        PREFIX.pack(2, 0) + b"[]",
        PREFIX.pack(1, 0) + b"{",
        PREFIX.pack(200_000, 0) + b"[" * 200_000,
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_whoever_does_not_speak_the_protocol_or_wants_too_much_is_cut_off(request_bytes: bytes) -> None:
    async def steps(folder: str) -> None:
        assert await exchange(folder, request_bytes) is None
        answer = await exchange(folder, encode({"verb": "ping"}))
        assert answer is not None
        assert answer["answer"]["pid"] == os.getpid()

    with_a_daemon(steps)


@pytest.mark.parametrize(
    "head",
    [
        {},
        {"verb": "no-such-verb"},
        {"verb": ["create"]},
        {"verb": "create"},
        {"verb": "create", "sandbox_id": 7, "session_id": "s", "spec": {"agent_id": "a"}},
        {"verb": "create", "sandbox_id": "b", "session_id": "s", "spec": {"isolation": "none", "agent_id": "a"}},
        {"verb": "create", "sandbox_id": "../b", "session_id": "s", "spec": {"agent_id": "a"}},
        {"verb": "create", "sandbox_id": "b", "session_id": "../s", "spec": {"background": True}},
        {"verb": "create_workspace", "agent_id": "../../etc"},
        {"verb": "delete_workspace", "agent_id": ".."},
        {"verb": "delete_workspace", "agent_id": None},
        {"verb": "append_history", "owner": "../boxes"},
        {"verb": "append_history", "owner": "background", "session_id": ""},
        {"verb": "sweep"},
        {"verb": "sweep", "keep_boxes": 1, "keep_sessions": None},
        {"verb": "stored"},
        {"verb": "stored", "sandbox_id": "b", "command_id": "a\0b", "after_seq": 0},
        {"verb": "stored", "sandbox_id": "b", "command_id": "../../x", "after_seq": 0},
        {"verb": "stored", "sandbox_id": "b", "command_id": "c", "after_seq": "x"},
        {"verb": "report", "sandbox_id": "no-such-box"},
    ],
)
def test_a_malformed_request_is_an_error_that_is_told(head: dict[str, Any]) -> None:
    async def steps(folder: str) -> None:
        before = sorted(os.listdir(folder))
        answer = await exchange(folder, encode(head))
        assert answer is not None
        assert answer["error"]["code"] in ("INVALID_ARGUMENT", "NOT_FOUND", "INTERNAL")
        assert sorted(os.listdir(folder)) == before
        assert os.listdir(os.path.join(folder, "boxes")) == []

    with_a_daemon(steps)


def test_a_failure_that_nobody_foresaw_is_told_and_the_daemon_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(folder: str) -> None:
        for failure in (ConfineError("remove a control group", "busy"), RecursionError("deep")):

            async def boxes_of(_: machine.Machine, failure: Exception = failure) -> None:
                raise failure

            monkeypatch.setattr(machine.Machine, "boxes", boxes_of)
            host = RemoteHost(folder)
            with pytest.raises(ColdframeError) as told:
                await host.boxes()
            assert told.value.code == "INTERNAL"
            assert (await host.ping())["pid"] == os.getpid()
            await host.close()

    with_a_daemon(steps)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
def test_another_user_is_not_served_even_past_the_mode_of_the_socket() -> None:
    async def steps(folder: str) -> None:
        def as_another() -> tuple[str, bytes]:
            boxes.become_ordinary()
            with socket.socket(socket.AF_UNIX) as peer:
                peer.settimeout(5)
                try:
                    peer.connect(daemon.socket_path(folder))
                except PermissionError:
                    return "refused", b""
                try:
                    peer.sendall(encode({"verb": "ping"}))
                    return "connected", peer.recv(100)
                except ConnectionError:
                    return "connected", b""

        assert await asyncio.to_thread(in_child, as_another) == ("refused", b"")
        os.chmod(daemon.socket_path(folder), 0o666)
        os.chmod(os.path.join(folder, "host"), 0o711)
        assert await asyncio.to_thread(in_child, as_another) == ("connected", b"")

    with_a_daemon(steps)


def test_what_the_first_sandbox_would_wait_for_is_begun_when_the_server_is_up() -> None:
    def zygotes(folder: str) -> int:
        mark = mark_of(Path(folder, "host", "installation").read_text().strip()).encode()
        found = 0
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                found += mark in (entry / "cmdline").read_bytes().split(b"\0")
        return found

    async def steps(folder: str) -> None:
        assert zygotes(folder) == 0
        host = RemoteHost(folder)
        await host.sweep(keep_boxes=set(), keep_sessions=set())

        async def is_there() -> bool:
            return zygotes(folder) == 1

        await until(is_there, "the zygote is there")
        await host.close()

    with_a_daemon(steps)


def test_no_daemon_is_told_as_an_unreachable_host() -> None:
    async def steps() -> None:
        host = RemoteHost("/tmp/cf-there-is-no-such-place")
        with pytest.raises(HostUnreachable):
            await host.boxes()

    asyncio.run(steps())


@needs_bubblewrap
def test_a_lost_box_is_not_taken_for_a_lost_daemon() -> None:
    async def steps(folder: str) -> None:
        host = RemoteHost(folder)
        await host.create("box", SPEC, session_id="s")
        (box,) = (one for one in await host.boxes())
        assert box.state == "running"
        keeper = await _keeper_of(folder)
        os.kill(keeper, 9)
        with pytest.raises(GuestLost):
            await (await host.life("box")).report()
        with pytest.raises(NotFound):
            await host.report("never-was")
        await host.close()

    with_a_daemon(steps)


@needs_bubblewrap
def test_boxes_live_on_while_the_daemon_is_ended_and_started_again() -> None:
    folder = tempfile.mkdtemp(prefix="cf-daemon-", dir="/tmp")
    os.chmod(folder, 0o711)

    async def start() -> asyncio.subprocess.Process:
        program = f"import asyncio\nfrom coldframe.host.daemon import serve\nasyncio.run(serve({folder!r}))"
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, cwd=CHECKOUT)
        await until(lambda: asyncio.to_thread(daemon_answers, folder), "the daemon answers")
        return process

    async def steps() -> None:
        process = await start()
        host = RemoteHost(folder)
        await host.create("box", SPEC, session_id="s")
        box = await host.box("box")
        running = asyncio.create_task(run(box, "until [ -e go ]; do sleep 0.02; done; exit 3", command_id="c"))
        process.kill()
        await process.wait()
        with pytest.raises(HostUnreachable):
            await host.boxes()
        assert (await run(box, "echo meanwhile")).stdout == "meanwhile\n"
        process = await start()
        assert [one.sandbox_id for one in await host.boxes()] == ["box"]
        assert (await (await host.life("box")).report()).level == "namespaces"
        await run(box, "touch go")
        assert (await running).result.exit_code == 3
        await host.end("box")
        stored = [event async for event in await host.stored("box", "c")]
        assert isinstance(stored[-1], Ended)
        with pytest.raises(NotFound):
            _ = [event async for event in await host.stored("box", "other")]
        with pytest.raises(InvalidArgument):
            _ = [event async for event in await host.stored("box", "a/b")]
        await host.sweep(keep_boxes=set(), keep_sessions=set())
        await host.close()
        process.terminate()
        await process.wait()

    try:
        asyncio.run(steps())
    finally:
        remove_tree(folder)
    assert not os.path.exists(folder)


async def _keeper_of(folder: str) -> int:
    with open(os.path.join(folder, "boxes", "box", "keeper.json"), encoding="utf-8") as file:
        return int(json.load(file)["pid"])


def test_the_socket_belongs_to_its_user_alone() -> None:
    async def steps(folder: str) -> None:
        status = os.stat(daemon.socket_path(folder))
        assert (status.st_mode & 0o777, status.st_uid) == (0o600, os.getuid())
        _, writer = await asyncio.open_unix_connection(daemon.socket_path(folder))
        peer = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        assert struct.unpack("3i", peer)[1] == os.getuid()
        writer.close()

    with_a_daemon(steps)


@pytest.mark.parametrize("owner", ["agent", "background"])
def test_history_is_written_without_the_daemon_once_it_has_handed_the_file_over(
    owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(folder: str) -> None:
        host = RemoteHost(folder)
        opened = count_openings(monkeypatch)
        try:
            home, session = await new_home(host, folder, owner)
            for number in range(3):
                await host.append_history(owner, session, b"%d\n" % number)
            path = os.path.join(home, HISTORY)
            assert Path(path).read_bytes() == b"0\n1\n2\n"
            assert len(opened) == 2  # to append the first, and to hand the file over
            assert handles_on(path) == 1
            await remove_home(host, owner)
            assert handles_on(path) == 0
            await host.append_history(owner, session, b"late\n")  # nothing to write to any more is fine
            assert not os.path.exists(home)
            home, session = await new_home(host, folder, owner)
            await host.append_history(owner, session, b"new\n")
            assert Path(home, HISTORY).read_bytes() == b"new\n"
        finally:
            await host.close()
        assert handles_on(os.path.join(home, HISTORY)) == 0

    with_a_daemon(steps)


def test_a_line_that_is_being_given_while_its_workspace_is_removed_does_not_reach_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def steps(folder: str) -> None:
        host = RemoteHost(folder)
        go_on, begun, order = threading.Event(), threading.Event(), []
        ask, send = HistoryFiles._ask, RemoteHost._ask

        def slowly(self: HistoryFiles, owner: str, session_id: str | None, lines: bytes) -> int | None:
            begun.set()
            go_on.wait()
            file = ask(self, owner, session_id, lines)
            order.append("given")
            return file

        async def sent(self: RemoteHost, verb: str, body: bytes = b"", **fields: Any) -> dict[str, Any]:
            order.append(verb)
            return await send(self, verb, body, **fields)

        try:
            await host.create_workspace("ada")
            monkeypatch.setattr(HistoryFiles, "_ask", slowly)
            monkeypatch.setattr(RemoteHost, "_ask", sent)
            giving = asyncio.create_task(host.append_history("ada", None, b"old\n"))
            await asyncio.to_thread(begun.wait)
            removing = asyncio.create_task(host.delete_workspace("ada"))
            await asyncio.sleep(0)
            await host.append_history("ada", None, b"older\n")
            go_on.set()
            await giving
            await removing
            assert order == ["given", "delete_workspace"]
            await host.create_workspace("ada")
            await host.append_history("ada", None, b"new\n")
            assert Path(folder, "workspace", "ada", HISTORY).read_bytes() == b"new\n"
        finally:
            go_on.set()
            await host.close()

    with_a_daemon(steps)


def count_openings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The owners whose history the daemon opens from now on."""
    opened = []
    whole = Workspaces.open_history

    def counted(self: Workspaces, owner: str, session_id: str | None, flags: int) -> int | None:
        opened.append(owner)
        return whole(self, owner, session_id, flags)

    monkeypatch.setattr(Workspaces, "open_history", counted)
    return opened


async def new_home(host: RemoteHost, folder: str, owner: str) -> tuple[str, str | None]:
    """The workspace of *owner*, made, and its session if it is one of the background."""
    if owner != "background":
        await host.create_workspace(owner)
        return os.path.join(folder, "workspace", owner), None
    Workspaces(folder).make(os.path.join(folder, "background", "ses_1"), parts=())
    return os.path.join(folder, "background", "ses_1"), "ses_1"


async def remove_home(host: RemoteHost, owner: str) -> None:
    if owner == "background":
        await host.sweep(keep_boxes=set(), keep_sessions=set())
    else:
        await host.delete_workspace(owner)


def handles_on(path: str) -> int:
    """How often this process, which is daemon and server here, has that file open, also if it was removed since."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            place = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        found += place.startswith(os.path.dirname(path)) and place.removesuffix(" (deleted)").endswith(HISTORY)
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_another_file_in_the_place_of_the_history_is_not_handed_over() -> None:
    async def steps(folder: str) -> None:
        host = RemoteHost(folder)
        try:
            home, _ = await new_home(host, folder, "agent")
            path = os.path.join(home, HISTORY)
            os.unlink(path)
            Path(path).touch()
            os.chown(path, 2_000_000, 2_000_000)
            with pytest.raises(Internal):
                await host.append_history("agent", None, b"line\n")
            assert Path(path).read_bytes() == b""
            os.unlink(path)
            Path(folder, "outside").touch()
            os.symlink(os.path.join(folder, "outside"), path)
            with pytest.raises(Internal):
                await host.append_history("agent", None, b"line\n")
            assert Path(folder, "outside").read_bytes() == b""
        finally:
            await host.close()

    with_a_daemon(steps)


def test_without_a_daemon_known_histories_go_on_and_others_wait_for_the_next_one() -> None:
    async def steps(folder: str) -> None:
        serving = await serve(os.path.join(folder, "own"))
        host = RemoteHost(os.path.join(folder, "own"))
        try:
            known, _ = await new_home(host, os.path.join(folder, "own"), "known")
            other, _ = await new_home(host, os.path.join(folder, "own"), "other")
            await host.append_history("known", None, b"one\n")
            await end(serving)
            await host.append_history("known", None, b"two\n")
            with pytest.raises(HostUnreachable):
                await host.append_history("other", None, b'{"sequence":1}\n')
            serving = await serve(os.path.join(folder, "own"))
            await host.append_history("known", None, b"three\n")
            await host.append_history("other", None, b'{"sequence":1}\n')
            assert Path(known, HISTORY).read_bytes() == b"one\ntwo\nthree\n"
            assert Path(other, HISTORY).read_bytes() == b'{"sequence":1}\n'
        finally:
            await host.close()
            await end(serving)

    with_a_daemon(steps)


def test_of_very_many_histories_only_the_last_used_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_files, "MOST_OPEN", 2)

    async def steps(folder: str) -> None:
        host = RemoteHost(folder)
        try:
            homes = [(await new_home(host, folder, owner))[0] for owner in ("a", "b", "c")]
            for number, owner in enumerate(("a", "b", "a", "c", "b")):
                await host.append_history(owner, None, b"%d\n" % number)
            assert [handles_on(os.path.join(home, HISTORY)) for home in homes] == [0, 1, 1]
            assert [Path(home, HISTORY).read_text() for home in homes] == ["0\n2\n", "1\n4\n", "3\n"]
        finally:
            await host.close()

    with_a_daemon(steps)
