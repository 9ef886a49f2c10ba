"""Requests to a box about files, and their answers. Paths are bytes-clean and relative to the workspace.

A path that is not valid UTF-8 travels with surrogate escapes, as Python's own file names do.
"""

from datetime import datetime
from typing import Generic, Literal, TypeVar

from pydantic import Field

from coldframe.contract.command import CommandInfo, EndedWith, InputState
from coldframe.contract.model import Model
from coldframe.contract.outputs import MOST_FOUND, OutputsAnswer
from coldframe.contract.sandbox import Limits

A = TypeVar("A", bound=Model)

READ_CAP_BYTES = 64 * 1024 * 1024
"""Most bytes that one ReadFile answers; more is read by range."""

MOST_SENT_BYTES = 256 * 1024
"""Most bytes that one SendInput takes."""

FileKind = Literal["file", "directory", "symlink", "fifo", "socket", "device"]


class Request(Model, Generic[A]):
    """A question to a box; `A` is the answer. `verb` names the guest function that serves it."""

    verb: str


class FileInfo(Model):
    path: str
    name: str
    kind: FileKind
    size: int
    """As stat gives it, in bytes."""
    mode: int
    """Permission bits."""
    modified_at: datetime
    target: str | None = None
    """Where a symbolic link points."""
    version: str | None = None
    """Changes whenever the content may have changed; regular files only."""


class ReadAnswer(Model):
    path: str
    content: bytes
    offset: int
    total_bytes: int
    complete: bool
    """True if `content` is the whole file."""
    version: str
    mode: int


class ReadFile(Request[ReadAnswer]):
    verb: str = "read_file"
    path: str
    offset: int = Field(default=0, ge=0)
    length: int | None = Field(default=None, ge=0)
    """Bytes wanted; None for the rest. TooLarge past READ_CAP_BYTES."""
    if_version: str | None = None


class WriteAnswer(Model):
    path: str
    bytes_written: int
    created: bool
    version: str
    sha256: str
    sha256_before: str | None = None
    """Digest of what was replaced; None for a new file, or for one over 64 MiB."""


class WriteFile(Request[WriteAnswer]):
    """Replace atomically: old or new content, never a mix. Parents are made; mode, owner and a link in the path
    are kept."""

    verb: str = "write_file"
    path: str
    content: bytes = b""
    """Left empty if the bytes are streamed beside the request."""
    if_version: str | None = None
    create_only: bool = False
    mode: int | None = None
    sha256: str | None = None
    """Digest that the content must have when it has arrived; with another, nothing is changed."""


class Edit(Model):
    old: str
    new: str
    replace_all: bool = False


class EditAnswer(Model):
    path: str
    content: bytes
    replacements: int
    bytes_written: int
    version: str
    sha256: str
    sha256_before: str


class EditFile(Request[EditAnswer]):
    """Literal replacements, all or none. LF text matches a CRLF region and takes its line ends."""

    verb: str = "edit_file"
    path: str
    edits: tuple[Edit, ...]
    if_version: str | None = None


class ListAnswer(Model):
    path: str
    entries: tuple[FileInfo, ...]
    complete: bool
    truncated_because: str | None = None
    """`max_entries` or `max_depth`."""
    next_after: str | None = None
    """Where the next page begins, if `max_entries` ended this one and it is of one directory."""
    errors: tuple[tuple[str, str], ...] = ()
    """(path, reason) of directories that could not be read."""


class ListDirectory(Request[ListAnswer]):
    verb: str = "list_directory"
    path: str = ""
    recursive: bool = False
    max_depth: int | None = Field(default=None, ge=1)
    max_entries: int = Field(default=10_000, ge=1, le=100_000)
    after: str | None = None
    """Names behind this one alone, for the next page; not with `recursive`."""


class SearchMatch(Model):
    path: str
    line: int
    text: str
    clipped: bool = False
    """The line was longer than 2,000 characters; `text` is the part around the match."""


class SearchAnswer(Model):
    matches: tuple[SearchMatch, ...]
    complete: bool
    truncated_because: str | None = None
    """`max_matches` or `time`."""
    files_searched: int
    binary_skipped: int
    large_skipped: tuple[str, ...] = ()
    special_skipped: int = 0
    directories_skipped: tuple[str, ...] = ()
    """Stores that were not looked into; the workspace's own `.exec_history` is counted as one."""
    errors: tuple[tuple[str, str], ...] = ()


class SearchFiles(Request[SearchAnswer]):
    verb: str = "search_files"
    pattern: str
    path: str = ""
    regex: bool = True
    ignore_case: bool = False
    glob: str | None = None
    """File name pattern such as `*.py`, or a path pattern if it holds a slash."""
    include_hidden_stores: bool = False
    """Also look into `.git`, `node_modules` and the like, which are skipped and named otherwise."""
    max_matches: int = Field(default=1000, ge=1, le=100_000)
    budget_s: float = Field(default=10.0, gt=0, le=120)


class FindOutputs(Request[OutputsAnswer]):
    """The files that a few patterns mean, as they are now."""

    verb: str = "find_outputs"
    patterns: tuple[str, ...]
    most: int = Field(default=MOST_FOUND, ge=1, le=MOST_FOUND)


class UnsavedFile(Model):
    path: str
    change: Literal["modified", "deleted", "staged", "untracked", "unreadable"]
    """`staged`: added to what is to be committed next. `unreadable`: it is a repository, and cannot be looked at."""


class UnsavedRepository(Model):
    path: str
    """Of its working tree; `.` for the workspace itself."""
    unsaved: int
    """Files that no commit of it has as they are."""
    reason: str | None = None
    """Why it could not be looked at; then it counts as one that is not saved."""


class UnsavedAnswer(Model):
    repositories: tuple[UnsavedRepository, ...]
    files: tuple[UnsavedFile, ...]
    """The first of them."""
    total: int
    complete: bool
    """`files` has all that there are."""
    looked_everywhere: bool
    """False: the time was over, or there are too many repositories."""


class FindUnsaved(Request[UnsavedAnswer]):
    """What is in no commit of the Git repositories of the workspace. Nothing of Git is run for it."""

    verb: str = "find_unsaved"
    most: int = Field(default=1000, ge=1, le=10_000)
    budget_s: float = Field(default=10.0, gt=0, le=25)


class Done(Model):
    ok: bool = True


class RemovePath(Request[Done]):
    """Remove a file or, with `recursive`, a whole tree below the workspace. Missing is an error."""

    verb: str = "remove_path"
    path: str
    recursive: bool = False
    contents_only: bool = False
    """Empty the directory but keep it."""


class MakeDirectory(Request[Done]):
    verb: str = "make_directory"
    path: str


class TemporaryFiles(Model):
    """What the memory file systems of a box hold."""

    files: int
    """Folders included."""
    bytes: int


class TemporaryPaths(Model):
    paths: tuple[str, ...]
    """Absolute, folders included."""
    complete: bool


class ListTemporary(Request[TemporaryPaths]):
    """What lies in the memory file systems of a box, by name."""

    verb: str = "list_temporary"
    most: int = Field(default=100_000, ge=1, le=100_000)


class AtStake(Model):
    """What is in a box and ends with it."""

    command_ids: tuple[str, ...]
    """Commands that have not ended."""
    processes: int
    """Of commands, and left over from them."""
    temporary: TemporaryFiles


class LookAtStake(Request[AtStake]):
    """What the end of the box would take away."""

    verb: str = "look_at_stake"
    ending: EndedWith | None = None
    """How the box is about to end: commands that end with it will tell so."""
    ends: bool = False
    """Have its processes ended as soon as they are counted; the rest of its end is for whoever asks."""


class TightenLimits(Request[Done]):
    """Hold what starts from now on to these limits, where they are below those that the box was built with.

    Each request replaces the one before; the box's own limits are never exceeded. Processes, CPU rate and what
    runs already are not touched.
    """

    verb: str = "tighten_limits"
    limits: Limits


class SignalCommand(Request[Done]):
    """Signal the whole process tree of one command."""

    verb: str = "signal_command"
    command_id: str
    signal: int
    cancel: bool = False
    """Count it as cancelled by the caller: TERM, then KILL after the grace period."""


class ChangeLimits(Request[Done]):
    """Hold a command that runs to these limits, each counted from its start; None leaves one as it is."""

    verb: str = "change_limits"
    command_id: str
    timeout_s: float | None = Field(default=None, gt=0)
    idle_timeout_s: float | None = Field(default=None, gt=0)
    cpu_s: float | None = Field(default=None, gt=0)


class SendInput(Request[InputState]):
    """Send bytes to an input that stays open, or to a terminal."""

    verb: str = "send_input"
    command_id: str
    content: bytes = b""
    """At most MOST_SENT_BYTES."""
    offset: int | None = Field(default=None, ge=0)
    """Which byte of the whole input the first one is; what was taken already is not taken again. None: behind all others."""
    end: bool = False
    """Nothing comes behind it: the command reads its end of file. At a terminal, what a person types for that."""


class ResizeTerminal(Request[Done]):
    verb: str = "resize_terminal"
    command_id: str
    columns: int = Field(ge=1, le=1000)
    rows: int = Field(ge=1, le=1000)


class CommandsAnswer(Model):
    commands: tuple[CommandInfo, ...]


class ListCommands(Request[CommandsAnswer]):
    verb: str = "list_commands"
    command_id: str | None = None
    """Only this one."""


class ShellInfo(Model):
    """A shell session of the box."""

    name: str
    command_id: str | None
    """The command that runs in it now."""


class ShellsAnswer(Model):
    shells: tuple[ShellInfo, ...]


class ListShells(Request[ShellsAnswer]):
    verb: str = "list_shells"


class EndShell(Request[Done]):
    """Forget a shell session: the next command of that name begins anew."""

    verb: str = "end_shell"
    name: str


class ListeningPort(Model):
    protocol: Literal["tcp", "udp"]
    address: str
    """As bound: `127.0.0.1`, `0.0.0.0`, `::`."""
    port: int


class ProcessInfo(Model):
    pid: int
    """As seen inside the box."""
    parent: int
    command_line: str
    """Empty for one that has ended and was not waited for."""
    started_at: datetime
    command_id: str | None
    """The command that started it, or whose left-over it is."""
    state: Literal["running", "sleeping", "blocked", "stopped", "zombie"] = "sleeping"
    """`blocked` waits for a disk; `zombie` has ended and was not waited for."""
    cpu_s: float = 0.0
    """Used by itself until now."""
    memory_bytes: int = 0
    """In memory now, shared pages included."""
    ports: tuple[ListeningPort, ...] = ()


class ProcessesAnswer(Model):
    processes: tuple[ProcessInfo, ...]


class ListProcesses(Request[ProcessesAnswer]):
    verb: str = "list_processes"


class Runtime(Model):
    name: str
    present: bool
    version: str | None = None
    path: str | None = None
    """As seen inside the box."""
    package_manager: str | None = None
    allowed: bool = True
    """Whether policy lets it be started; filled in by the gate."""
    code: Literal["NOT_AVAILABLE"] | None = None
    """Where it is not there."""
    recipe: str | None = None
    """How to get one that is not there, in this sandbox or in another; None if there is no way."""


class RuntimesAnswer(Model):
    runtimes: tuple[Runtime, ...]


class ListRuntimes(Request[RuntimesAnswer]):
    verb: str = "list_runtimes"


class TreeAnswer(Model):
    sha256: str | None
    """Over path, kind, mode and digest of everything, as receipts have it."""
    reason: str | None
    """Why there is none: too much, or something could not be read."""


class DigestTree(Request[TreeAnswer]):
    """The digest of all that a workspace holds, by which a receipt names what was there before and after."""

    verb: str = "digest_tree"
