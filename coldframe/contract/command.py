"""What is asked of a command, and everything that is told about one."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from coldframe.contract.diagnosis import Diagnosis
from coldframe.contract.model import Model
from coldframe.contract.outputs import DeclaredOutputs
from coldframe.contract.state import StateObject

MAX_COMMAND_BYTES = 8 * 1024 * 1024
"""Longest shell text. Past 100 KB it goes to bash as a script on a descriptor, since Linux caps one argument at
128 KiB."""


LONGEST_S = 86_400.0
"""Longest wall time of a command that has one."""


class TerminalSize(Model):
    columns: int = Field(default=120, ge=1, le=1000)
    rows: int = Field(default=40, ge=1, le=1000)


ShellName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=64)]


BoxUserName = Literal["user", "root"]


class CommandSpec(Model):
    """One command as the gate hands it to a box. Exactly one of `shell` and `argv` is given."""

    command_id: str
    """Chosen by control; starting the same id twice attaches to the first start."""
    shell: str | None = None
    """Text for `bash`, passed byte for byte; never wrapped or joined."""
    argv: tuple[str, ...] | None = None
    """Program and arguments, started without a shell."""
    cwd: str = ""
    """Relative to the workspace; empty for its root."""
    user: BoxUserName = "user"
    """Whom it runs as. There is a root in a sandbox of the profile `computer` alone, and it is root of that alone."""
    env: dict[str, str] = Field(default_factory=dict)
    """Added to the box's clean environment."""
    stdin: bytes = b""
    """Given whole, then end of file."""
    stdin_open: bool = False
    """The input stays open behind `stdin`: more of it is sent later, and its end. A terminal's does in any case."""
    timeout_s: float = Field(default=600.0, gt=0, le=LONGEST_S)
    """Wall time. Source of the default: A-36."""
    idle_timeout_s: float | None = Field(default=None, gt=0, le=LONGEST_S)
    """Longest time without output and without input that is taken; None for no such limit."""
    lasting: bool = False
    """It lives as long as its sandbox and works at what comes by its input: whoever sends that sets the time for it. CPU time is
    counted anew from each input on."""
    cpu_s: float | None = Field(default=None, gt=0)
    """CPU time of the whole process tree; None for the box's own limit."""
    terminal: TerminalSize | None = None
    """Run on a pseudo-terminal of this size: one stream, isatty true."""
    shell_session: ShellName | None = None
    """The session whose directory, variables, functions, aliases and options the shell goes on with, and leaves to the
    next command of it. One command of a session runs at a time."""
    leftovers: Literal["adopt", "end"] = "adopt"
    """What happens to processes that outlive the main one: kept and listed, or ended."""
    track_files: bool = True
    """Record which workspace files the command created, changed and deleted."""


class Leftover(Model):
    """A process that outlived the main process of its command."""

    pid: int
    """As seen inside the box."""
    command_line: str
    started_at: datetime


class FileChange(Model):
    """What a command did to one path of the workspace."""

    path: str
    change: Literal["created", "changed", "deleted", "metadata"]
    kind: Literal["file", "directory", "symlink", "other"]
    sha256_before: str | None = None
    sha256_after: str | None = None
    bytes: int | None = Field(default=None, exclude_if=lambda size: size is None)
    """Size afterwards of a file that a call wrote; of one that a command changed it is not told."""


class FileChanges(Model):
    """The changes, or why they were not recorded."""

    recorded: bool
    reason: str | None = None
    tree_sha256_before: str | None = None
    tree_sha256_after: str | None = None
    size_change_bytes: int | None = None
    """Growth of all regular files together, by their sizes; negative if they shrank, None if it was not recorded."""
    changes: tuple[FileChange, ...] = ()


class Contact(Model):
    """One kind of connection attempt that left a process of the box."""

    protocol: Literal["tcp", "udp", "icmp", "other"]
    address: str
    port: int
    name: str | None = None
    """Host name, where the attempt was a look-up or the name is known."""
    verdict: Literal["refused", "allowed"] = "refused"
    rule: str = "network:none"
    attempts: int = 1
    first_at: datetime
    last_at: datetime


class LimitHit(Model):
    kind: Literal["wall", "idle", "cpu", "memory", "pids", "disk", "output"]
    limit: float
    used: float | None = None
    unit: str


class StreamInfo(Model):
    """One whole stream as it is kept on disk."""

    bytes: int = 0
    sha256: str
    invalid_utf8: bool = False


class ShellSession(Model):
    """What became of the shell session that a command ran in."""

    name: str
    kept: bool
    """Whether the next command finds what this one left. If not, it finds what this one found."""
    reason: str | None = None
    """Why not."""


class EndedWith(Model):
    """What became of the sandbox of a command, and of the command with it."""

    act: Literal["stop", "terminate"]
    timer: Literal["idle", "age", "lease"] | None = None
    """Which timer of the sandbox it was; None if somebody asked."""


class CommandResult(Model):
    """How a command ended. Never says "ok": that is the caller's to judge."""

    command_id: str
    ended: Literal["exited", "signalled", "timed_out", "cancelled", "limit", "lost", "not_started"]
    exit_code: int | None
    """The program's own; 128 + signal if a signal ended it; 126 or 127 if it could not start; None if lost."""
    signal: int | None = None
    timed_out: bool = False
    cancelled: bool = False
    ended_with: EndedWith | None = None
    """Its sandbox ended: `terminate` counts as cancelled, after `stop` its process is lost."""
    out_of_memory: bool = False
    """Only if the memory controller counted a kill."""
    limit: LimitHit | None = None
    start_error: str | None = None
    started_at: datetime
    ended_at: datetime
    duration_ms: float
    """Without the time in which its sandbox was paused."""
    paused_s: float = Field(default=0.0, ge=0, exclude_if=lambda paused_s: not paused_s)
    """For how long it stood still with its sandbox, which was paused, or held for a snapshot."""
    cpu_s: float = 0.0
    peak_memory_bytes: int | None = None
    """Of the whole tree as its memory controller counted it; of the largest waited-for process where there is none."""
    stdout: StreamInfo
    stderr: StreamInfo
    order: Literal["exact", "approximate"] = "exact"
    """Whether the transcript holds the exact order of writes across both streams."""
    leftovers: tuple[Leftover, ...] = ()
    leftovers_ended: int = 0
    files: FileChanges
    shell_session: ShellSession | None = None
    contacts: tuple[Contact, ...] = ()
    artifact_id: str
    """Names the raw streams in the store of the box; equal to the command id."""


class Started(Model):
    """The command runs (or is about to end with 126/127)."""

    event: Literal["started"] = "started"
    command_id: str
    pid: int | None
    at: datetime
    attached: bool = False
    """True if this id had been started before and this is a second look at it."""


class OutputChunk(Model):
    """Bytes of one stream in the order in which they were read. `seq` counts chunks from 0."""

    event: Literal["output"] = "output"
    seq: int
    stream: Literal["stdout", "stderr"]
    data: bytes
    at: datetime | None = None
    """When it was read; None for output that a version without times has kept."""


class Ended(Model):
    event: Literal["ended"] = "ended"
    result: CommandResult


CommandEvent = Started | OutputChunk | Ended


class InputState(Model):
    """How far the input of a command has come."""

    taken: int
    """Bytes from the first one on, those given at the start included: where the next one belongs. They are not lost any
    more, whoever sent them ends."""
    waiting: int
    """Of these, not passed on to the command yet; of those that were, its pipe holds some until it reads them."""
    open: bool
    """Whether it takes more."""


class Activity(Model):
    """What a command does now, as far as the kernel tells; a diagnosis, since a program decides how it waits."""

    running_for_s: float
    silent_for_s: float
    """Since the last output, or input that was taken."""
    stalled: bool
    """Silent for three seconds, and it waits for somebody or computes."""
    waiting_for: Literal["stdin", "lock", "child", "none"] | None
    """`none`: it computes, or is stopped. None: it waits for time or the network, or nobody can tell."""
    cpu_used_s: float
    timeout_s: float
    """The limits in force, counted from its start."""
    idle_timeout_s: float | None
    cpu_s: float
    stdin: InputState | None
    """None if its whole input was given when it started."""


class CommandInfo(Model):
    """One line of the list of a box's commands."""

    command_id: str
    state: Literal["running", "ended", "lost"]
    pid: int | None = None
    command_line: str = ""
    started_at: datetime | None = None
    result: CommandResult | None = None
    activity: Activity | None = None
    """Of a command that runs, if it is the only one that was asked for."""
    outputs: DeclaredOutputs | None = None
    """None without declared ones, and until it has ended."""
    diagnosis: Diagnosis | None = None
    """What is missing, if its output says so. Filled in by control."""
    status: StateObject | None = None
    """How it stands, with a code if something is the matter and what can be done. Filled in by control."""
