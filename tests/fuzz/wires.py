"""The two sockets behind the server, spoken to by somebody hostile: keepers and the host daemon.

A conversation is a list of pieces of bytes; after each the peer may read, stop, or vanish. Whatever was said, the far
side answers typed errors or closes, lives on, and serves everybody else meanwhile.
"""

import asyncio
import os
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from coldframe.contract.errors import catalogue
from coldframe.contract.files import ListCommands
from coldframe.guest.frames import PREFIX, decode_head, encode
from coldframe.guest.records import read_record
from coldframe.host import daemon
from coldframe.host.link import LinkLost, connect
from coldframe.host.machine import Machine
from coldframe.host.remote import RemoteHost
from coldframe.host.removal import remove_tree
from tests.fuzz.target import Fault, odd_value
from tests.host.machines import new_box, run

ANSWER_S = 30.0
OPERATIONS = ("run", "follow", "ask", "write", "chunk", "commit", "report", "contacts", "nothing")
VERBS = (
    "read_file", "write_file", "edit_file", "list_directory", "search_files", "remove_path", "make_directory",
    "signal_command", "resize_terminal", "send_input", "change_limits", "list_shells", "end_shell", "list_commands", "list_processes", "list_runtimes", "nothing",
)  # fmt: skip
DAEMON_VERBS = (
    "ping", "report", "end", "boxes", "create_workspace", "delete_workspace", "append_history", "sweep", "stored",
    "create", "nothing",
)  # fmt: skip
FIELDS: dict[str, tuple[Any, ...]] = {
    "command_id": ("c", "../c", "", "c" * 81, "cmd_1"),
    "after_seq": (-1, 0, 10**9),
    "timeout_s": (1, 0, -1, 1e9),
    "idle_timeout_s": (1, 0, -1, 1e9),
    "stdin_open": (True, False),
    "end": (True, False),
    "shell_session": ("s", "../s", "", None),
    "name": ("s", "../s"),
    "cpu_s": (1, 0),
    "shell": ("true", "exit 3", "printf x; printf y >&2", ""),
    "argv": (["true"], [], ["no-such-program"], [""]),
    "cwd": ("", "dir", "..", "/etc"),
    "env": ({"A": "b"}, {"": ""}, {"A=B": "c"}, {"PATH": "\udcff"}),
    "path": ("a", "../a", "", "dir/a", "\udcff"),
    "content": ("x",),
    "pattern": ("x", "(", ".*"),
    "regex": (True, False),
    "glob": ("*", "[", "\ud800"),
    "budget_s": (1, 0, -1),
    "offset": (0, 1, 10**20),
    "length": (0, 1, None),
    "edits": ([], [{"old": "a", "new": "b"}], [{}]),
    "recursive": (True, False),
    "max_matches": (1, 0, -1),
    "signal": (0, 15, 9, 65, -1),
    "cancel": (True,),
    "columns": (80, 0, 70000),
    "rows": (24,),
    "terminal": ({"columns": 80, "rows": 24}, {}),
    "track_files": (True, False),
    "sandbox_id": ("box", "nothing", "../box", "."),
    "agent_id": ("agent", "nobody", "../agent", "..", ".", ""),
    "session_id": ("session-box", "..", "", None),
    "owner": ("agent", "background", "../agent", ".."),
    "keep_boxes": (["box"],),
    "keep_sessions": (["session-box"],),
    "spec": ({"agent_id": "agent"}, {"background": True}, {}),
}  # fmt: skip


def _head(random: random.Random, first: dict[str, Any], more: tuple[str, ...]) -> dict[str, Any]:
    head = dict(first)
    for name in random.sample(more, random.randrange(min(7, len(more)))):
        if random.random() < 0.6:
            head[name] = random.choice(FIELDS[name])
        else:
            head[name] = odd_value(random, ("a", "box", "c", "../x"))
    return head


def _conversation(random: random.Random, make_head: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
    """Pieces: `send` hex, then `read` or not; whoever has no more to say vanishes."""
    pieces = []
    for _ in range(random.randint(1, 6)):
        data = encode(make_head(), random.randbytes(random.choice([0, 0, 3, 3000])))
        act = random.randrange(10)
        if act == 0:
            data = data[: random.randint(0, len(data))]
        elif act == 1:
            data = random.choice(
                [PREFIX.pack(1 << 31, 0), PREFIX.pack(0, 1 << 31), PREFIX.pack(2, 0) + b"[]", b"\0" * 9]
            )
        elif act == 2:
            at = random.randint(0, len(data))
            data = data[:at] + random.randbytes(random.randint(1, 9)) + data[at + 1 :]
        pieces.append({"send": data.hex(), "read": random.random() < 0.8 and act > 2})
    return pieces


async def _speak(directory: str, socket_name: str, pieces: list[dict[str, Any]]) -> None:
    peer = connect(directory, socket_name)
    peer.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=peer)
    try:
        for piece in pieces:
            writer.write(bytes.fromhex(piece["send"]))
            await writer.drain()
            if piece["read"] and not await _reads_well(reader):
                return
    except ConnectionError:
        return
    finally:
        writer.close()


async def _reads_well(reader: asyncio.StreamReader) -> bool:
    """Read what is there within a moment. False if the far side closed."""
    while True:
        try:
            prefix = await asyncio.wait_for(reader.readexactly(PREFIX.size), 0.05)
        except TimeoutError:
            return True
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        head_bytes, body_bytes = PREFIX.unpack(prefix)
        try:
            text = await asyncio.wait_for(reader.readexactly(head_bytes + body_bytes), ANSWER_S)
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        head = decode_head(text[:head_bytes])
        failure = head.get("error")
        if failure is not None and failure.get("code") not in catalogue():
            raise Fault(f"an error outside the table: {failure}")
        if failure is not None and failure.get("code") == "INTERNAL":
            raise Fault(f"a fault of ours: {failure}")


class Keeper:
    """A keeper answers or closes, and serves the next one."""

    name = "keeper"

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="cf-fuzz-", dir="/tmp")
        os.chmod(self._folder, 0o711)
        self._loop = asyncio.new_event_loop()
        self._machine = Machine(os.path.join(self._folder, "data"), embedded=True)
        self._box = self._loop.run_until_complete(new_box(self._machine))
        self._number = 0
        self._stuck: set[str] = set()

    def make(self, random: random.Random) -> list[dict[str, Any]]:
        def head() -> dict[str, Any]:
            operation = random.choice(OPERATIONS)
            first: dict[str, Any] = {"op": operation}
            if operation == "ask":
                first["verb"] = random.choice(VERBS)
            if operation == "run" and random.random() < 0.5:
                self._number += 1
                first |= {"command_id": f"fuzz-{self._number}", "shell": "echo x", "timeout_s": 2}
            return _head(random, first, tuple(FIELDS)[:25])

        return _conversation(random, head)

    def check(self, value: Any) -> None:
        self._loop.run_until_complete(self._check(value))

    async def _check(self, pieces: list[dict[str, Any]]) -> None:
        mark = self._machine._marks.read("box")
        directory = self._machine._marks.directory("box")
        speaking = asyncio.create_task(_speak(directory, "keeper.sock", pieces))
        answered = await _within(run(self._box, "echo alive"), "another's command meanwhile")
        await _within(speaking, "the conversation")
        if mark is None or not mark.alive():
            raise Fault("the keeper ended")
        if answered.stdout != "alive\n":
            raise Fault(f"another's command gave {answered.stdout!r}")
        try:
            await self._no_limbo()
        except LinkLost as error:
            raise Fault("the keeper ended") from error
        self._forget_records()

    async def _no_limbo(self) -> None:
        """A command that was begun is started or has ended: one in between would be waited for without end."""
        for _ in range(25):
            listed = (await self._box.ask(ListCommands())).commands
            held = {one.command_id for one in listed}
            between = {one.command_id for one in listed if one.state == "running" and one.pid is None}
            records = os.path.join(self._machine._marks.directory("box"), "records")
            begun = {name.removesuffix(".record") for name in os.listdir(records) if name.endswith(".record")}
            between |= {one for one in begun - held if not _has_ended(records, one)}
            if not between - self._stuck:
                return
            await asyncio.sleep(0.2)
        self._stuck |= between
        raise Fault(f"neither started nor ended: {sorted(between)}")

    def _forget_records(self) -> None:
        records = Path(self._machine._marks.directory("box"), "records")
        if len(os.listdir(records)) > 3000:
            for path in records.iterdir():
                path.unlink(missing_ok=True)

    def close(self) -> None:
        async def end() -> None:
            await self._machine.sweep(keep_boxes=set(), keep_sessions=set())
            await self._machine.close()

        self._loop.run_until_complete(end())
        self._loop.close()
        remove_tree(self._folder)


class HostDaemon:
    """The daemon answers or closes, keeps serving, and touches nothing beside its data directory."""

    name = "daemon"

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="cf-fuzz-", dir="/tmp")
        os.chmod(self._folder, 0o711)
        self._data = os.path.join(self._folder, "data")
        for name in ("agent", "other"):
            os.makedirs(os.path.join(self._folder, name, "kept"))
        self._loop = asyncio.new_event_loop()
        self._serving = self._loop.run_until_complete(self._start())

    async def _start(self) -> "asyncio.Task[None]":
        ready = asyncio.Event()
        serving = asyncio.create_task(daemon.serve(self._data, ready=ready.set))
        await asyncio.wait_for(ready.wait(), ANSWER_S)
        return serving

    def make(self, random: random.Random) -> list[dict[str, Any]]:
        def head() -> dict[str, Any]:
            verb = random.choice(DAEMON_VERBS if random.random() < 0.9 else ("create",))
            names = (
                "sandbox_id",
                "agent_id",
                "session_id",
                "owner",
                "keep_boxes",
                "keep_sessions",
                "spec",
                "command_id",
            )
            first = {"verb": verb, "after_seq": -1, "keep_boxes": ["box"], "keep_sessions": []}
            return _head(random, first, names)

        return _conversation(random, head)

    def check(self, value: Any) -> None:
        self._loop.run_until_complete(self._check(value))

    async def _check(self, pieces: list[dict[str, Any]]) -> None:
        host = RemoteHost(self._data)
        try:
            speaking = asyncio.create_task(_speak(os.path.join(self._data, "host"), "daemon.sock", pieces))
            await _within(host.ping(), "another's request meanwhile")
            await _within(speaking, "the conversation")
            await _within(host.sweep(keep_boxes=set(), keep_sessions=set()), "the sweep afterwards")
        finally:
            await host.close()
        if self._serving.done():
            raise Fault("the daemon ended")
        if sorted(os.listdir(self._folder)) != ["agent", "data", "other"]:
            raise Fault("something beside the data directory came or went")
        for name in ("agent", "other"):
            if os.listdir(os.path.join(self._folder, name)) != ["kept"]:
                raise Fault("something beside the data directory was changed")

    def close(self) -> None:
        async def end() -> None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)

        self._loop.run_until_complete(end())
        self._loop.close()
        shutil.rmtree(self._folder)


async def _within(waiting: Awaitable[Any], what: str) -> Any:
    try:
        return await asyncio.wait_for(waiting, ANSWER_S)
    except TimeoutError:
        raise Fault(f"no end of {what}") from None


def _has_ended(records: str, command_id: str) -> bool:
    record = read_record(records, command_id)
    return record is not None and record.end is not None
