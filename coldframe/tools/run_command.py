"""run_command: run one command in the workspace and tell everything about it.

The answer is structured: nothing in it is found by looking at what the program printed. Output is whole by
default. Only two things shorten it, and both are told by `complete`, `truncated` and exact byte counts: a
`view` that the caller asked for, and more than 64 MiB on one stream, which is given as a stream of events
only (or fetched by ranges under `artifact_id`); the answer then shows the first and last MiB of each stream.
"""

import base64
import shlex
from datetime import datetime
from functools import partial
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from coldframe.contract.command import (
    LONGEST_S,
    MAX_COMMAND_BYTES,
    BoxUserName,
    CommandResult,
    CommandSpec,
    Contact,
    EndedWith,
    FileChanges,
    Leftover,
    LimitHit,
    OutputChunk,
    ShellName,
    ShellSession,
    Started,
    StreamInfo,
    TerminalSize,
)
from coldframe.contract.diagnosis import Diagnosis, Failed, diagnose
from coldframe.contract.errors import ColdframeError, GuestLost, HostUnreachable
from coldframe.contract.files import MOST_SENT_BYTES, FindOutputs
from coldframe.contract.model import Model
from coldframe.contract.outputs import DeclaredOutputs, Patterns, report_outputs
from coldframe.contract.ports import Box
from coldframe.contract.sandbox import SandboxSpec
from coldframe.tools.output import OutputCollector, Segment, Stream, joined_text, transcript_of
from coldframe.tools.registry import (
    Answer,
    Arguments,
    CallFacts,
    PathArgument,
    Ran,
    Text,
    ToolCall,
    check_limits,
    check_user,
    relative_path,
    shown_path,
    tool,
)

STDIN_CAP_BYTES = 16 * 1024 * 1024

Runtime = Literal["sh", "bash", "python", "python3", "node", "deno"]
_CODE_OPTION: dict[str, tuple[str, ...]] = {
    "sh": ("-c",),
    "bash": ("-c",),
    "python": ("-c",),
    "python3": ("-c",),
    "node": ("-e",),
    "deno": ("eval",),
}


class View(Model):
    max_bytes: Annotated[StrictInt, Field(ge=2)] = Field(
        description="Most bytes of each stream to show, half from its head and half from its tail."
    )


class RunCommandArguments(Arguments):
    lasting: ClassVar[bool] = False
    """Whether it has no end after some time."""
    command: Text | Annotated[list[Text], Field(min_length=1, max_length=10_000)] = Field(
        description="A line or script for bash, or a list of program and arguments that no shell reads."
    )
    cwd: PathArgument = ""
    timeout_s: Annotated[StrictFloat | StrictInt, Field(gt=0)] | None = Field(
        default=None, description="Wall time in seconds; by default, and at most, that of the sandbox."
    )
    idle_timeout_s: Annotated[StrictFloat | StrictInt, Field(gt=0)] | None = Field(
        default=None,
        description="Longest silence in seconds: no output, and no input that is taken; by default as the sandbox says.",
    )
    cpu_s: Annotated[StrictFloat | StrictInt, Field(gt=0)] | None = Field(
        default=None, description="CPU time of all its processes; by default, and at most, that of the sandbox."
    )
    stdin: Text | None = Field(default=None, description="Given whole to the command, then end of file.")
    stdin_base64: StrictStr | None = Field(default=None, description="Bytes, instead of `stdin`.")
    stdin_open: StrictBool = Field(
        default=False, description="Keep the input open behind `stdin`: more is sent to it while the command runs."
    )
    user: BoxUserName = Field(
        default="user",
        description="`root` to install and set up what needs it, in a sandbox that has a system of its own.",
    )
    env: dict[Text, Text] = Field(default_factory=dict, description="Added to the clean environment.")
    runtime: Runtime | None = Field(
        default=None, description="Run `command` with this: a text as its code, a list as its arguments."
    )
    shell_session: ShellName | None = Field(
        default=None,
        description="Go on with directory, variables and functions of this session's last command, and leave them to the next.",
    )
    pty: StrictBool = Field(default=False, description="Run on a terminal: one stream, isatty is true.")
    columns: Annotated[StrictInt, Field(ge=1, le=1000)] = 120
    rows: Annotated[StrictInt, Field(ge=1, le=1000)] = 40
    outputs: Patterns = Field(
        default=(),
        description="Files that it shall make, as `chart.png` or `report/*.html`: each is told with digest, size and type, and "
        "what is missing as well.",
    )
    background: StrictBool = Field(
        default=False, description="Answer as soon as it has started; it is followed by its `command_id`."
    )
    view: View | None = Field(default=None, description="Show only a part of a long output, and say so.")
    encoding: Literal["utf-8", "base64"] = Field(
        default="utf-8", description="`utf-8` shows invalid bytes as U+FFFD and tells; `base64` gives exact bytes."
    )
    leftovers: Literal["adopt", "end"] | None = Field(
        default=None, description="Keep or end processes that outlive the command; by default as the sandbox does."
    )

    @model_validator(mode="after")
    def _sound(self) -> "RunCommandArguments":
        words = [self.command] if isinstance(self.command, str) else self.command
        if any("\0" in word for word in words):
            raise ValueError("`command` holds a NUL character")
        if not isinstance(self.command, str) and not self.command[0] and self.runtime is None:
            raise ValueError("the program of `command` is empty")
        if sum(len(word.encode()) for word in words) > MAX_COMMAND_BYTES:
            raise ValueError(f"`command` is longer than {MAX_COMMAND_BYTES} bytes")
        for name, value in self.env.items():
            if not name or "=" in name or "\0" in name or "\0" in value:
                raise ValueError("`env` holds an empty name, a name with `=`, or a NUL character")
        if self.shell_session is not None and (self.runtime is not None or not isinstance(self.command, str)):
            raise ValueError("a `shell_session` takes a line for bash, without `runtime`")
        if self.shell_session is not None and self.user != "user":
            raise ValueError("a `shell_session` is that of `user`")
        if self.stdin is not None and self.stdin_base64 is not None:
            raise ValueError("give either `stdin` or `stdin_base64`")
        if len(self.stdin_base64 or "") * 3 // 4 > STDIN_CAP_BYTES or len(self.stdin or "") > STDIN_CAP_BYTES:
            raise ValueError(f"`stdin` is longer than {STDIN_CAP_BYTES} bytes; write a file and redirect from it")
        try:
            given = self.stdin_bytes()
        except ValueError:
            raise ValueError("`stdin_base64` is not valid base64") from None
        if self.stdin_open and len(given) > MOST_SENT_BYTES:  # the keeper holds what is not read yet
            raise ValueError(
                f"`stdin` is longer than the {MOST_SENT_BYTES} bytes that an open input begins with; send the rest"
            )
        return self

    def stdin_bytes(self) -> bytes:
        if self.stdin_base64 is not None:
            return base64.b64decode(self.stdin_base64, validate=True)
        return (self.stdin or "").encode()

    def program(self) -> tuple[str | None, tuple[str, ...] | None]:
        """Return shell text or an argument list; exactly one of them."""
        if self.runtime is not None:
            if isinstance(self.command, str):
                return None, (self.runtime, *_CODE_OPTION[self.runtime], self.command)
            return None, (self.runtime, *self.command)
        return (self.command, None) if isinstance(self.command, str) else (None, tuple(self.command))

    def place(self) -> str:
        """Where it runs, relative to the workspace."""
        return relative_path(self.cwd)

    def directory(self) -> str:
        """The same for the box. A shell session goes on in its own unless another is named, be it the workspace itself."""
        is_named = self.shell_session is not None and "cwd" in self.model_fields_set
        return self.place() or ("." if is_named else "")

    def facts(self) -> CallFacts:
        shell, argv = self.program()
        return CallFacts(
            command=shell,
            argv=argv,
            cwd=self.place(),
            runtime=self.runtime,
            user=self.user,
            timeout_s=None if self.timeout_s is None else float(self.timeout_s),
            idle_timeout_s=None if self.idle_timeout_s is None else float(self.idle_timeout_s),
            cpu_s=None if self.cpu_s is None else float(self.cpu_s),
            environment=tuple(self.env.items()),
            stdin=self.stdin_bytes(),
            outputs=self.outputs,
            background=self.background,
            shell_session=self.shell_session,
        )

    def fit(self, spec: SandboxSpec) -> None:
        check_user(self.user, spec)
        check_limits(spec.limits, timeout_s=self.timeout_s, idle_timeout_s=self.idle_timeout_s, cpu_s=self.cpu_s)


class StreamView(Model):
    """How much there is of one stream, and how much of it this answer shows."""

    bytes: int
    sha256: str
    """Of the whole stream as it is kept."""
    invalid_utf8: bool
    complete: bool
    omitted_bytes: int
    omitted_at: int | None
    """Offset of the first byte left out; None if all is shown."""


class RunCommandAnswer(Answer):
    command_id: str
    state: Literal["running", "ended"]
    ended: str | None
    """exited, signalled, timed_out, cancelled, limit, lost or not_started; None while it runs."""
    exit_code: int | None
    """The program's own; 128 + signal if a signal ended it; 126 or 127 if it could not start."""
    signal: int | None
    timed_out: bool
    cancelled: bool
    ended_with: EndedWith | None
    """What became of its sandbox, and of it: then it counts as cancelled, or as lost."""
    out_of_memory: bool
    limit: LimitHit | None
    start_error: str | None
    started_at: datetime
    ended_at: datetime | None
    duration_ms: float | None
    """Without the time in which its sandbox was paused."""
    cpu_s: float | None
    peak_memory_bytes: int | None
    encoding: Literal["utf-8", "base64"]
    paused_s: float = Field(default=0.0, exclude_if=lambda paused_s: not paused_s)
    """For how long it stood still with its sandbox, which was paused, or held for a snapshot."""
    stdout: str | None
    """None if base64 was asked for, while it runs, or if the chunks were handed over as a stream."""
    stderr: str | None
    stdout_base64: str | None
    stderr_base64: str | None
    invalid_utf8: bool
    complete: bool
    """Both streams are here in full."""
    truncated: bool
    streamed: bool
    """The chunks were handed over before this answer, which does not repeat them."""
    stdout_info: StreamView | None
    stderr_info: StreamView | None
    transcript: tuple[Segment, ...] | None
    """Both streams in the order of their writes; None unless the answer is complete."""
    order: Literal["exact", "approximate"] | None
    leftovers: tuple[Leftover, ...]
    leftovers_ended: int
    shell_session: ShellSession | None
    files: FileChanges | None
    outputs: DeclaredOutputs | None
    """What was found of the outputs that were declared; None without any, and while it runs."""
    contacts: tuple[Contact, ...]
    diagnosis: Diagnosis | None = None
    """What is missing, where the end of the output of a command that failed by itself says so. It changes nothing else."""
    artifact_id: str
    """Names the raw streams, to be fetched whole or by ranges."""
    pid: int | None


def _shown_files(files: FileChanges) -> FileChanges:
    changes = tuple(change.model_copy(update={"path": shown_path(change.path)}) for change in files.changes)
    return files.model_copy(update={"changes": changes})


def answer_of(
    arguments: RunCommandArguments,
    result: CommandResult,
    output: OutputCollector,
    pid: int | None,
    outputs: DeclaredOutputs | None,
    diagnosis: Diagnosis | None = None,
) -> RunCommandAnswer:
    shown: dict[Stream, tuple[str | None, str | None, StreamView]] = {}
    limit = None if arguments.view is None else arguments.view.max_bytes
    infos: dict[Stream, StreamInfo] = {"stdout": result.stdout, "stderr": result.stderr}
    for stream, info in infos.items():
        head, tail = output.view(stream, limit)
        omitted = info.bytes - len(head) - len(tail)
        view = StreamView(
            bytes=info.bytes,
            sha256=info.sha256,
            invalid_utf8=info.invalid_utf8,
            complete=omitted == 0,
            omitted_bytes=omitted,
            omitted_at=len(head) if omitted else None,
        )
        text = exact = None
        if output.keep and arguments.encoding == "base64":
            exact = base64.b64encode(head + tail).decode()
        elif output.keep:
            text = joined_text(head, tail, omitted)
        shown[stream] = text, exact, view
    whole = all(view.complete for _, _, view in shown.values())
    return RunCommandAnswer(
        command_id=result.command_id,
        state="ended",
        ended=result.ended,
        exit_code=result.exit_code,
        signal=result.signal,
        timed_out=result.timed_out,
        cancelled=result.cancelled,
        ended_with=result.ended_with,
        out_of_memory=result.out_of_memory,
        limit=result.limit,
        start_error=None if result.start_error is None else shown_path(result.start_error),
        started_at=result.started_at,
        ended_at=result.ended_at,
        duration_ms=result.duration_ms,
        paused_s=result.paused_s,
        cpu_s=result.cpu_s,
        peak_memory_bytes=result.peak_memory_bytes,
        encoding=arguments.encoding,
        stdout=shown["stdout"][0],
        stderr=shown["stderr"][0],
        stdout_base64=shown["stdout"][1],
        stderr_base64=shown["stderr"][1],
        invalid_utf8=result.stdout.invalid_utf8 or result.stderr.invalid_utf8,
        complete=whole,
        truncated=not whole and output.keep,
        streamed=not output.keep,
        stdout_info=shown["stdout"][2],
        stderr_info=shown["stderr"][2],
        transcript=transcript_of(output.segments, encoding=arguments.encoding) if whole and output.keep else None,
        order=result.order,
        leftovers=tuple(
            one.model_copy(update={"command_line": shown_path(one.command_line)}) for one in result.leftovers
        ),
        leftovers_ended=result.leftovers_ended,
        shell_session=result.shell_session,
        files=_shown_files(result.files),
        outputs=None if outputs is None else outputs.renamed(shown_path),
        contacts=result.contacts,
        diagnosis=diagnosis,
        artifact_id=result.artifact_id,
        pid=pid,
    )


async def find_outputs(box: Box, patterns: tuple[str, ...], files: FileChanges) -> DeclaredOutputs:
    """What there is of them in the box now. One that cannot be asked any more leaves it unknown, and loses no result."""
    try:
        answer = await box.ask(FindOutputs(patterns=patterns))
    except HostUnreachable:
        raise  # it is asked again
    except ColdframeError as error:
        return DeclaredOutputs(declared=patterns, complete=False, problem=error.message)
    changed = [one.path for one in files.changes if one.kind == "file" and one.change in ("created", "changed")]
    return report_outputs(patterns, answer, tuple(changed))


def running_answer(arguments: RunCommandArguments, started: Started) -> RunCommandAnswer:
    return RunCommandAnswer(
        command_id=started.command_id,
        state="running",
        ended=None,
        exit_code=None,
        signal=None,
        timed_out=False,
        cancelled=False,
        ended_with=None,
        out_of_memory=False,
        limit=None,
        start_error=None,
        started_at=started.at,
        ended_at=None,
        duration_ms=None,
        cpu_s=None,
        peak_memory_bytes=None,
        encoding=arguments.encoding,
        stdout=None,
        stderr=None,
        stdout_base64=None,
        stderr_base64=None,
        invalid_utf8=False,
        complete=False,
        truncated=False,
        streamed=False,
        stdout_info=None,
        stderr_info=None,
        transcript=None,
        order=None,
        leftovers=(),
        leftovers_ended=0,
        shell_session=None,
        files=None,
        outputs=None,
        contacts=(),
        artifact_id=started.command_id,
        pid=started.pid,
    )


def diagnosis_of(
    arguments: RunCommandArguments, result: CommandResult, output: OutputCollector, spec: SandboxSpec
) -> Diagnosis | None:
    """Of a command that failed by itself; one that exits with 0 has none, whatever it printed."""
    if result.ended not in ("exited", "not_started") or not result.exit_code:
        return None
    shell, argv = arguments.program()
    return diagnose(
        Failed(
            exit_code=result.exit_code,
            words=shell if shell is not None else shlex.join(argv or ()),
            profile=spec.profile,
            stdout=output.last("stdout").decode("utf-8", "replace"),
            stderr=output.last("stderr").decode("utf-8", "replace"),
            start_error=result.start_error,
        )
    )


def _judged(output: OutputCollector, answer: RunCommandAnswer) -> bytes:
    """Return all that the caller would see of a program's making: names of files and processes are output too."""
    names = [one.command_line for one in answer.leftovers]
    if answer.files is not None:
        names.extend(change.path for change in answer.files.changes)
    if answer.outputs is not None:
        names.extend(one.path for one in answer.outputs.found)
        names.extend(one.path for one in answer.outputs.refused)
        names.extend(answer.outputs.undeclared)
        for one in answer.outputs.found:
            if one.report is not None:
                for failure in one.report.failures:
                    names += [failure.full_name, failure.text or "", failure.file or ""]
    if answer.start_error is not None:
        names.append(answer.start_error)
    return b"\0".join([output.judged(), *(name.encode() for name in names)])


@tool(arguments=RunCommandArguments, answer=RunCommandAnswer, writes=True)
async def run_command(call: ToolCall[RunCommandArguments]) -> Ran:
    """Run a command in the workspace, as a shell line or as a list of program and arguments. Returns complete
    stdout and stderr, exit code, signal, duration, what was changed and what was left running. Each call starts
    in the workspace with a clean environment and stdin at its end."""
    arguments = call.arguments
    shell, argv = arguments.program()
    output = OutputCollector(keep=call.keep_output)
    if call.attach:
        events = call.box.follow(call.command_id)
    else:
        events = call.box.run(
            CommandSpec(
                command_id=call.command_id,
                shell=shell,
                argv=argv,
                cwd=arguments.directory(),
                user=arguments.user,
                env={**call.environment, **arguments.env},
                stdin=arguments.stdin_bytes(),
                stdin_open=arguments.stdin_open,
                timeout_s=arguments.timeout_s or (LONGEST_S if arguments.lasting else call.spec.limits.wall_s),
                lasting=arguments.lasting,
                idle_timeout_s=arguments.idle_timeout_s or call.spec.command_idle_s,
                cpu_s=arguments.cpu_s,
                shell_session=arguments.shell_session,
                terminal=TerminalSize(columns=arguments.columns, rows=arguments.rows) if arguments.pty else None,
                leftovers=arguments.leftovers or call.spec.leftovers,
                track_files=call.spec.track_files,
            )
        )
    pid = None
    result: CommandResult | None = None
    async for event in events:  # to its end: a generator that is left early costs a task of its own to close
        call.emit(event)
        if isinstance(event, Started):
            pid = event.pid
            if arguments.background:
                call.answer_early(running_answer(arguments, event))
            else:
                call.while_running(partial(running_answer, arguments, event))
        elif isinstance(event, OutputChunk):
            output.add(event.stream, event.data)
        else:
            result = event.result
    if result is not None:
        outputs = call.outputs
        if arguments.outputs and outputs is None:
            found = await find_outputs(call.box, arguments.outputs, result.files)
            outputs = found.of_command(result.artifact_id)
        diagnosis = diagnosis_of(arguments, result, output, call.spec)
        answer = answer_of(arguments, result, output, pid, outputs, diagnosis)
        return Ran(answer, partial(_judged, output, answer), sum(output.total.values()), result, outputs, diagnosis)
    raise GuestLost(f"command `{call.command_id}` ended without a result", command_id=call.command_id)
