"""`process.Process`: commands of a sandbox begun, followed, sent input and signals.

Each is a command of ours through the gate, so rules see its program and what a shell in it would start. It goes on whoever
leaves: a client that gives up, or whose time is over, has ended nothing. What its output was while nobody followed is kept, and
told to whoever follows next.
"""

import base64
import binascii
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request

from coldframe.contract.command import CommandEvent, Ended, OutputChunk, Started
from coldframe.contract.errors import Conflict, FileMissing, GuestLost, NotDirectory, WrongState, from_wire
from coldframe.contract.files import MOST_SENT_BYTES
from coldframe.contract.tool import ToolResult
from coldframe.fronts.e2b.box_user import BoxUser, Place
from coldframe.fronts.e2b.connect_protocol import ConnectError, Envelopes, Message
from coldframe.fronts.e2b.processes_known import Process, ProcessesKnown

PIECE_BYTES = 32 * 1024
"""Of output in one message."""
ARGUMENT_BYTES = 100_000
"""A script may be longer than an argument of a program, in whatever signs; then it is run without the start files of a login."""
KEEPALIVE: Message = {"event": {"keepalive": {}}}
KILL, TERMINATE = 9, 15
KILLED_WITHIN_S = 3.0
_SIGNALS = {"SIGNAL_SIGKILL": KILL, "SIGNAL_SIGTERM": TERMINATE}
_NAMES = {
    1: "hangup",
    2: "interrupt",
    3: "quit",
    4: "illegal instruction",
    6: "aborted",
    8: "floating point exception",
    9: "killed",
    11: "segmentation fault",
    13: "broken pipe",
    14: "alarm clock",
    15: "terminated",
}
"""As Go names signals, by which E2B tells them."""


class Processes:
    """Those of all sandboxes."""

    def __init__(self) -> None:
        self._known = ProcessesKnown()

    async def start(self, place: Place, user: BoxUser, message: Message) -> AsyncGenerator[Message, None]:
        """Begin one, and tell of it until it ends. The command goes on when the stream does not."""
        asked = _Asked(user, message)
        told = _Telling(self._known, place, asked)
        events = place.control.gate.stream(place.caller, place.sandbox_id, "run_anywhere", asked.arguments)
        try:
            async with aclosing(events) as source:  # type: ignore[type-var]  # a generator
                async for event in source:
                    for one in told.of(event):
                        yield one
        except GuestLost as error:
            raise _gone() from error

    async def connect(self, place: Place, user: BoxUser, message: Message) -> AsyncGenerator[Message, None]:
        """Tell of one that runs, or has ended: what no stream has told yet, and what comes."""
        process = await self._known.find(place, message.get("process"), runs=False)
        yield {"event": {"start": {"pid": process.pid}}}
        follow = place.control.outputs.follow(
            place.caller, place.sandbox_id, process.command_id, after_seq=process.delivered
        )
        async with aclosing(follow) as source:  # type: ignore[type-var]  # a generator
            async for event in source:
                if isinstance(event, OutputChunk):
                    if process.since is None or event.at is None or event.at >= process.since:
                        for one in _data(process, event):
                            yield one
                elif isinstance(event, Ended):
                    yield _end(event.result.model_dump(mode="json"))
                    return
        raise _gone()

    async def list(self, place: Place, user: BoxUser, message: Message) -> Message:
        """Those that run."""
        found = []
        for info in await self._known.running(place):
            config, tag = self._known.described(place, info)
            found.append({"pid": info.pid, "config": config, **({"tag": tag} if tag else {})})
        return {"processes": found}

    async def update(self, place: Place, user: BoxUser, message: Message) -> Message:
        """Give its terminal another size."""
        process = await self._known.find(place, message.get("process"), runs=True)
        size = _size(message.get("pty"))
        if size is not None:
            columns, rows = size
            await place.control.outputs.resize(
                place.caller, place.sandbox_id, process.command_id, columns=columns, rows=rows
            )
        return {}

    async def send_input(self, place: Place, user: BoxUser, message: Message) -> Message:
        process = await self._known.find(place, message.get("process"), runs=True)
        await _send(place, process, _input(message.get("input")))
        return {}

    async def close_stdin(self, place: Place, user: BoxUser, message: Message) -> Message:
        process = await self._known.find(place, message.get("process"), runs=True)
        async with process.sending:
            await place.control.gate.send_input(place.caller, place.sandbox_id, process.command_id, b"", end=True)
        return {}

    async def send_signal(self, place: Place, user: BoxUser, message: Message) -> Message:
        """To the whole tree of the command, which has ended when a KILL is answered."""
        number = _SIGNALS.get(str(message.get("signal")))
        if number is None:
            raise ConnectError("unimplemented", f"invalid signal: {str(message.get('signal'))[:40]}")
        process = await self._known.find(place, message.get("process"), runs=True)
        await place.control.outputs.signal(place.caller, place.sandbox_id, process.command_id, number)
        if number == KILL:
            await place.control.gate.await_end(process.command_id, KILLED_WITHIN_S)
        return {}

    async def stream_input(self, place: Place, user: BoxUser, request: Request) -> Message:
        """What comes is passed on as it comes."""
        envelopes = Envelopes(request.receive)
        first = await envelopes.next()
        start = None if first is None else first.get("start")
        if not isinstance(start, dict):
            raise ConnectError("invalid_argument", "the first message of the stream names no process")
        process = await self._known.find(place, start.get("process"), runs=True)
        while (message := await envelopes.next()) is not None:
            data = message.get("data")
            if isinstance(data, dict):
                await _send(place, process, _input(data.get("input")))
        return {}


class _Asked:
    """A request for a process, as a call of a tool."""

    def __init__(self, user: BoxUser, message: Message) -> None:
        config = message.get("process")
        if not isinstance(config, dict) or not isinstance(config.get("cmd"), str) or not config["cmd"]:
            raise ConnectError("invalid_argument", "`process.cmd` is missing")
        words, variables, cwd = config.get("args", []), config.get("envs", {}), config.get("cwd") or ""
        if not isinstance(words, list) or not isinstance(variables, dict) or not isinstance(cwd, str):
            raise ConnectError("invalid_argument", "`process` is malformed")
        self.config: dict[str, Any] = {"cmd": config["cmd"], "args": words, "envs": variables}
        if cwd:
            self.config["cwd"] = cwd
        self.cwd = user.place(cwd)
        tag = message.get("tag")
        self.tag = tag if isinstance(tag, str) and tag else None
        size = _size(message.get("pty"))
        self.is_terminal = "pty" in message
        command: str | list[str] = [config["cmd"], *words]
        if config["cmd"] == "/bin/bash" and words[:-1] == ["-l", "-c"] and _is_long(words[-1]):
            command = str(words[-1])  # as a script: Linux takes no argument of such a length
        self.arguments: dict[str, Any] = {
            "command": command,
            "cwd": self.cwd,
            "user": user.name,
            "env": variables,
            "leftovers": "adopt",
        }
        if self.is_terminal:
            columns, rows = size or (80, 24)
            self.arguments.update(pty=True, columns=columns, rows=rows)
        else:
            self.arguments["stdin_open"] = message.get("stdin", True) is not False


def _is_long(text: object) -> bool:
    return isinstance(text, str) and len(text.encode("utf-8", "surrogatepass")) > ARGUMENT_BYTES


def asked_of(message: Message) -> dict[str, Any]:
    """The arguments of the tool that a request for a process comes to. Raises ConnectError: it is none."""
    return _Asked(BoxUser("user"), message).arguments


class _Telling:
    """From events of a command to messages."""

    def __init__(self, known: ProcessesKnown, place: Place, asked: _Asked) -> None:
        self._known = known
        self._place = place
        self._asked = asked
        self._process: Process | None = None

    def of(self, event: CommandEvent | ToolResult) -> list[Message]:
        """Raises ConnectError: it did not start."""
        if isinstance(event, Started):
            if event.pid is None:
                return []
            asked = self._asked
            self._process = Process(
                self._place.sandbox_id, event.command_id, event.pid, asked.config, asked.tag, asked.is_terminal
            )
            self._known.add(self._process)
            return [{"event": {"start": {"pid": event.pid}}}]
        if isinstance(event, OutputChunk):
            return [] if self._process is None else _data(self._process, event)
        if isinstance(event, ToolResult):
            return self._landed(event)
        return []

    def _landed(self, result: ToolResult) -> list[Message]:
        if result.error is not None:
            error = from_wire(result.error)
            if isinstance(error, FileMissing | NotDirectory):
                raise self._no_directory()
            raise error
        value = result.value
        if value["ended"] == "not_started":
            reason = str(value["start_error"])
            raise self._no_directory() if "(directory)" in reason else ConnectError("invalid_argument", reason)
        return [_end(value)]

    def _no_directory(self) -> ConnectError:
        return ConnectError("invalid_argument", f"cwd '{self._asked.cwd}' does not exist")


def _data(process: Process, chunk: OutputChunk) -> list[Message]:
    name = "pty" if process.is_terminal else chunk.stream
    process.delivered = max(process.delivered, chunk.seq)
    pieces = range(0, len(chunk.data), PIECE_BYTES)
    return [{"event": {"data": {name: base64.b64encode(chunk.data[at : at + PIECE_BYTES]).decode()}}} for at in pieces]


def _gone() -> ConnectError:
    """In the words by which SDKs know it: where their connection breaks they ask whether the sandbox is there, and say so."""
    return ConnectError(
        "unavailable", "The sandbox was killed or reached its end of life while the request was in flight."
    )


def _end(value: dict[str, Any]) -> Message:
    """How it ended, as Go tells it: a signal has no exit code. Why we ended it is said as well.

    Raises ConnectError: it ended with its sandbox.
    """
    if value["ended_with"] is not None:
        raise _gone()
    number = value["signal"]
    if number is None:
        code = value["exit_code"] or 0
        end: Message = {"exitCode": code, "exited": True, "status": f"exit status {code}"}
    else:
        end = {"exitCode": -1, "exited": False, "status": f"signal: {_NAMES.get(number, f'signal {number}')}"}
    why = _why(value)
    if why or end["exitCode"]:
        end["error"] = f"{end['status']}{f': {why}' if why else ''}"
    return {"event": {"end": end}}


def _why(value: dict[str, Any]) -> str:
    if value["out_of_memory"]:
        return "it was out of memory"
    limit = value["limit"]
    if limit is not None:
        return f"its limit `{limit['kind']}` of {limit['limit']:g} {limit['unit']} was reached"
    return "it was lost" if value["ended"] == "lost" else ""


def _size(pty: object) -> tuple[int, int] | None:
    """Columns and rows. Raises ConnectError."""
    size = pty.get("size") if isinstance(pty, dict) else None
    if not isinstance(size, dict):
        return None
    columns, rows = size.get("cols", 0), size.get("rows", 0)
    for one in (columns, rows):
        if isinstance(one, bool) or not isinstance(one, int) or one < 0:
            raise ConnectError("invalid_argument", "the size of a terminal is a number of columns and of rows")
    return min(max(columns, 1), 1000), min(max(rows, 1), 1000)


def _input(given: object) -> bytes:
    coded = (given.get("stdin") or given.get("pty") or "") if isinstance(given, dict) else None
    if not isinstance(coded, str):
        raise ConnectError("invalid_argument", "`input` has neither `stdin` nor `pty`")
    try:
        return base64.b64decode(coded, validate=True)
    except binascii.Error:
        try:
            return base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4))
        except binascii.Error:
            raise ConnectError("invalid_argument", "the input is no base64") from None


async def _send(place: Place, process: Process, data: bytes) -> None:
    """All of it, in the order of calls. Raises ConnectError: the process reads no more."""
    async with process.sending:
        for at in range(0, len(data), MOST_SENT_BYTES):
            await _send_piece(place, process, data[at : at + MOST_SENT_BYTES])


async def _send_piece(place: Place, process: Process, piece: bytes) -> None:
    while piece:
        try:
            state = await place.control.gate.send_input(
                place.caller, place.sandbox_id, process.command_id, piece, offset=process.sent
            )
        except Conflict as error:  # somebody else sends as well: behind all that was taken
            taken = error.facts.get("taken")
            if not isinstance(taken, int) or process.sent is None:
                raise
            process.sent = taken
            continue
        except WrongState as error:
            raise ConnectError("failed_precondition", error.message) from error
        if process.sent is None:
            process.sent = state.taken
            return
        piece = piece[max(0, state.taken - process.sent) :]
        process.sent = state.taken
        if piece and not state.open:
            raise ConnectError("failed_precondition", "the process reads no more input")
