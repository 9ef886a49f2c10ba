"""Jobs: commands that go on when the call, the connection and the client are gone, each reached by its `command_id`."""

import base64
import codecs
from typing import Annotated, Any, Literal

from pydantic import Field

from coldframe.contract.command import CommandInfo, InputState
from coldframe.contract.errors import InvalidArgument
from coldframe.contract.files import MOST_SENT_BYTES
from coldframe.contract.model import Model
from coldframe.contract.policy import Label
from coldframe.fronts.mcp.answers import CallAnswer
from coldframe.fronts.mcp.choice import choose_sandbox, sandbox_of_command
from coldframe.fronts.mcp.gate_tools import LONGEST_WAIT_S, WAIT_S, answer_schema, call_gate, gate_input_schema
from coldframe.fronts.mcp.offers import OFFERS, Asked, Offer, offer
from coldframe.tools.registry import find_tool

LOG_BYTES = 64 * 1024
MOST_LOG_BYTES = 1024 * 1024
CommandId = Annotated[str, Field(max_length=100, description="As `start_command` or `run_command` gave it.")]
SandboxId = Annotated[str | None, Field(max_length=100, description="Of the command; found by itself without.")]
Stream = Literal["stdout", "stderr"]


class CommandNow(CommandInfo):
    """One command as it is now."""

    sandbox_id: str


class WaitedCommand(CommandNow):
    stdout: str | None = None
    """The end of what it printed, once it has ended; the rest with `read_logs`."""
    stderr: str | None = None
    complete: bool = False
    """Both streams are here in full."""


class WhichCommand(Model):
    command_id: CommandId
    sandbox_id: SandboxId = None


class WaitFor(WhichCommand):
    wait_s: Annotated[float, Field(ge=0, le=LONGEST_WAIT_S)] = WAIT_S
    max_bytes: Annotated[int, Field(ge=0, le=MOST_LOG_BYTES)] = LOG_BYTES
    """Of each stream, from its end."""


@offer(arguments=WhichCommand, answer=CommandNow, right="command.read", reads=True)
async def command_status(asked: Asked, which: WhichCommand) -> CommandNow:
    """State of a command: whether it runs, how it ended, exit code, signal, duration, limits, what it waits for, and what can
    be done if something is the matter."""
    sandbox_id = _sandbox(asked, which)
    info = await asked.control.outputs.command(asked.caller, sandbox_id, which.command_id)
    return CommandNow(sandbox_id=sandbox_id, **dict(info))


@offer(arguments=WaitFor, answer=WaitedCommand, right="command.read", reads=True)
async def wait_command(asked: Asked, which: WaitFor) -> WaitedCommand:
    """Wait until a command has ended, at most `wait_s` seconds, and tell its state and the end of what it printed. It goes on
    if the time is over: wait again."""
    sandbox_id = _sandbox(asked, which)
    outputs = asked.control.outputs
    info = await outputs.command(asked.caller, sandbox_id, which.command_id)
    if info.state == "running" and which.wait_s:
        await asked.control.gate.await_end(which.command_id, which.wait_s)
        info = await outputs.command(asked.caller, sandbox_id, which.command_id)
    if info.state == "running" or info.result is None or not which.max_bytes:
        return WaitedCommand(sandbox_id=sandbox_id, **dict(info))
    shown: dict[Stream, str] = {}
    sizes: dict[Stream, int] = {"stdout": info.result.stdout.bytes, "stderr": info.result.stderr.bytes}
    for stream, size in sizes.items():
        asked_for = ReadLogs(command_id=which.command_id, stream=stream, offset=max(size - which.max_bytes, 0))
        shown[stream] = (await _read(asked, sandbox_id, asked_for, which.max_bytes)).text or "" if size else ""
    whole = max(info.result.stdout.bytes, info.result.stderr.bytes) <= which.max_bytes
    return WaitedCommand(
        sandbox_id=sandbox_id, stdout=shown["stdout"], stderr=shown["stderr"], complete=whole, **dict(info)
    )


class InSandbox(Model):
    sandbox_id: Annotated[str | None, Field(max_length=100)] = None
    workspace: Annotated[str | None, Field(max_length=63)] = None


class ManyCommands(Model):
    sandbox_id: str
    commands: tuple[CommandInfo, ...]


@offer(arguments=InSandbox, answer=ManyCommands, right="command.read", reads=True)
async def list_commands(asked: Asked, which: InSandbox) -> ManyCommands:
    """Commands of a sandbox, oldest first, those of other clients as well."""
    sandbox_id = choose_sandbox(asked.control, asked.caller, which.sandbox_id, which.workspace)
    found = await asked.control.outputs.commands(asked.caller, sandbox_id)
    return ManyCommands(sandbox_id=sandbox_id, commands=tuple(found))


class ReadLogs(WhichCommand):
    stream: Stream = "stdout"
    offset: Annotated[int, Field(ge=0)] | None = None
    """First byte wanted; by default the last `max_bytes` are given."""
    max_bytes: Annotated[int, Field(ge=4, le=MOST_LOG_BYTES)] = LOG_BYTES
    encoding: Literal["utf-8", "base64"] = "utf-8"


class Logs(Model):
    command_id: str
    sandbox_id: str
    stream: Stream
    offset: int
    text: str | None
    """None if base64 was asked for."""
    base64: str | None
    next_offset: int | None
    """Where the rest begins, or what comes next while it runs; None if this is the last of it."""
    total_bytes: int
    ended: bool
    sha256: str | None
    """Of the whole stream, once it has ended."""
    label: Label


@offer(arguments=ReadLogs, answer=Logs, right="command.read", reads=True)
async def read_logs(asked: Asked, which: ReadLogs) -> Logs:
    """What a command printed, byte for byte, also while it runs and long after: from `offset` on, or its end. Reading on is
    done from `next_offset`."""
    return await _read(asked, _sandbox(asked, which), which, which.max_bytes)


async def _read(asked: Asked, sandbox_id: str, which: ReadLogs, max_bytes: int) -> Logs:
    outputs, offset = asked.control.outputs, which.offset
    if offset is None:
        probe = await outputs.output(asked.caller, sandbox_id, which.command_id, which.stream, 0, 1)
        offset = max(probe.total_bytes - max_bytes, 0)
    window = await outputs.output(asked.caller, sandbox_id, which.command_id, which.stream, offset, max_bytes)
    text, next_offset = None, window.next_offset
    if which.encoding == "utf-8":
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(window.data, final=next_offset is None)
        if next_offset is not None:  # a character that is not whole yet is left for the next window
            next_offset -= len(decoder.getstate()[0])
    return Logs(
        command_id=which.command_id,
        sandbox_id=sandbox_id,
        stream=which.stream,
        offset=offset,
        text=text,
        base64=base64.b64encode(window.data).decode() if text is None else None,
        next_offset=next_offset,
        total_bytes=window.total_bytes,
        ended=window.ended,
        sha256=window.sha256,
        label=window.label,
    )


class SentInput(WhichCommand):
    text: str | None = None
    base64: str | None = None
    """Bytes, instead of `text`."""
    end: bool = False
    """Nothing comes behind it."""
    offset: Annotated[int, Field(ge=0)] | None = None
    """Place of its first byte in the whole input, so that nothing is taken twice."""


@offer(arguments=SentInput, answer=InputState, right="tool.call")
async def send_input(asked: Asked, sent: SentInput) -> InputState:
    """Send text to the input of a command that was started with `stdin_open`. It is judged as if the command were called with
    it now."""
    if (sent.text is None) == (sent.base64 is None) and not sent.end:
        raise InvalidArgument("give either `text` or `base64`", argument="text")
    try:
        content = base64.b64decode(sent.base64, validate=True) if sent.base64 else (sent.text or "").encode()
    except ValueError:
        raise InvalidArgument("`base64` is not valid base64", argument="base64") from None
    if len(content) > MOST_SENT_BYTES:
        raise InvalidArgument(f"at most {MOST_SENT_BYTES} bytes are sent at once", argument="text")
    return await asked.control.gate.send_input(
        asked.caller, _sandbox(asked, sent), sent.command_id, content, offset=sent.offset, end=sent.end
    )


class SentSignal(WhichCommand):
    signal: Annotated[int, Field(ge=1, le=64)] = 15
    cancel: bool = True
    """End it: TERM, and KILL if that is not enough; it then counts as cancelled. False to send `signal` alone."""


@offer(arguments=SentSignal, answer=CommandNow, right="command.signal", destroys=True, repeats=True)
async def signal_command(asked: Asked, sent: SentSignal) -> CommandNow:
    """End a command with all that it started, or send it a signal. Anybody who may use the sandbox can, not only the client that
    started it."""
    sandbox_id = _sandbox(asked, sent)
    await asked.control.outputs.signal(
        asked.caller, sandbox_id, sent.command_id, 15 if sent.cancel else sent.signal, cancel=sent.cancel
    )
    return await command_status(asked, WhichCommand(command_id=sent.command_id, sandbox_id=sandbox_id))


def _sandbox(asked: Asked, which: WhichCommand) -> str:
    return sandbox_of_command(asked.control, asked.caller, which.command_id, which.sandbox_id).sandbox_id


_NOT_OF_A_JOB = frozenset({"background", "view", "encoding"})
"""Of the arguments of a command: they say how its answer shall look."""


async def _start(asked: Asked, given: dict[str, Any]) -> CallAnswer:
    if wrong := _NOT_OF_A_JOB & given.keys():
        raise InvalidArgument(f"`start_command` has no parameter `{min(wrong)}`", argument=min(wrong))
    return await call_gate(asked, "run_command", {**given, "background": True}, waits=False)


def _start_schema() -> dict[str, Any]:
    schema = gate_input_schema(find_tool("run_command"))
    kept = {name: one for name, one in schema["properties"].items() if name not in _NOT_OF_A_JOB}
    return {**schema, "properties": kept}


OFFERS["start_command"] = Offer(
    name="start_command",
    description="Start a command as a job and answer at once with its `command_id`. It goes on when this call, the connection "
    "and the client are gone: `wait_command`, `command_status`, `read_logs`, `send_input` and `signal_command` reach it by that "
    "id. Arguments are those of `run_command`.",
    make_input_schema=_start_schema,
    make_output_schema=lambda: answer_schema(find_tool("run_command")),
    run=_start,
    right="tool.call",
    destroys=True,
    passes_as="run_command",
)
