"""Tools: what an agent may ask for. One file each beside this one; discovery, argument checks and schemas are here.

A tool is *handed* a box and checked arguments; it decides nothing about permission and records nothing,
which is the gate's business. Arguments are closed: an unknown or mistyped one is an error that names it,
because a misspelt `timout_s` that is quietly ignored does harm. JSON types are taken at their word: the
text `"5"` is no number here.
"""

import importlib
import pkgutil
import posixpath
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, cast

from pydantic import AfterValidator, Field, StrictStr, ValidationError

import coldframe.tools
from coldframe.contract.cell import CellEvent, Kernel
from coldframe.contract.command import CommandEvent, CommandResult, FileChange, FileChanges
from coldframe.contract.diagnosis import Diagnosis
from coldframe.contract.errors import InvalidArgument, NotInProfile, OutsideWorkspace, UnknownTool
from coldframe.contract.files import FileKind
from coldframe.contract.model import Model
from coldframe.contract.outputs import DeclaredOutputs
from coldframe.contract.packages import Dependency
from coldframe.contract.ports import Box
from coldframe.contract.sandbox import Limits, SandboxSpec
from coldframe.contract.tool import ToolInfo

HOME = "/home/user"
"""Where the workspace lies inside every box."""
STREAM_CAP_BYTES = 64 * 1024 * 1024
"""Most bytes of one stream that one answer holds. A stream of events has no such cap."""
JUDGED_CAP_BYTES = STREAM_CAP_BYTES
"""Most content of one call that rules can be asked about."""
MAX_PATH_BYTES = 4096
"""Longest path argument: Linux's PATH_MAX."""


class CallFacts(NamedTuple):
    """What the arguments of a call say about it, for the rules."""

    path: str | None = None
    """Relative to the workspace; absolute where it is elsewhere in the box."""
    from_path: str | None = None
    """Where what comes to `path` is from; rules that would refuse either refuse the call."""
    more_paths: tuple[str, ...] = ()
    """Others that it names; rules that would refuse one of them refuse the call."""
    command: str | None = None
    """Shell text, if a shell will read it."""
    argv: tuple[str, ...] | None = None
    cwd: str | None = None
    runtime: str | None = None
    user: str | None = None
    """Whom it runs as, of a command, or in whose name a path outside the workspace is touched."""
    runtime_path: str | None = None
    """Of the program that the named runtime is in the box; filled in by the gate."""
    runtime_version: str | None = None
    timeout_s: float | None = None
    idle_timeout_s: float | None = None
    cpu_s: float | None = None
    shell_session: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    stdin: bytes = b""
    source: str | None = None
    """Where the content of a file is from, as the caller says."""
    outputs: tuple[str, ...] = ()
    """Patterns of the files that it declares to make."""
    background: bool = False
    """The caller wants its answer when the command has started."""
    in_kernel: bool = False
    """What would run is read by a kernel that runs already: it is no command of its own."""


class Arguments(Model):
    """Base of every tool's arguments."""

    def facts(self) -> CallFacts:
        """Raises OutsideWorkspace for a path that leaves the workspace by its text alone."""
        return CallFacts()

    def fit(self, spec: SandboxSpec) -> None:
        """Raise InvalidArgument if the call asks for more than the sandbox has."""


class Answer(Model):
    """Base of every tool's answer."""


def relative_path(path: str) -> str:
    """Return *path* relative to the workspace, normalised by text alone; empty for the workspace itself.

    An absolute path is taken only below the workspace as the agent sees it. Links are the box's business:
    it resolves what is left beneath a directory handle.

    Raises:
        OutsideWorkspace: for another absolute path, or one that climbs out.
    """
    inner = path
    if path.startswith("/"):
        clean = posixpath.normpath("/" + path.lstrip("/"))
        if clean != HOME and not clean.startswith(HOME + "/"):
            raise OutsideWorkspace(f"`{path[:200]}` is outside the workspace", path=path)
        inner = clean[len(HOME) + 1 :]
    normal = posixpath.normpath(inner) if inner else ""
    if normal == ".." or normal.startswith("../"):
        raise OutsideWorkspace(f"`{path[:200]}` is outside the workspace", path=path)
    return "" if normal == "." else normal


def any_path(path: str) -> str:
    """Return *path* for a tool that takes any of the box: below the workspace relative to it, as rules know it from all tools,
    and from the root on elsewhere. Normalised by text alone.
    """
    clean = "/" + posixpath.normpath(posixpath.join(HOME, path)).lstrip("/")
    if clean == HOME:
        return ""
    return clean.removeprefix(HOME + "/") if clean.startswith(HOME + "/") else clean


def in_box(path: str) -> str:
    """Return what `any_path` gave as the box has it: absolute."""
    return path if path.startswith("/") else f"{HOME}/{path}".rstrip("/")


def other_user(user: str) -> str | None:
    """Return *user* for the facts of a call that runs nothing; None for the one that everybody is."""
    return None if user == "user" else user


def check_user(user: str | None, spec: SandboxSpec) -> None:
    """Raise NotInProfile for a user that the sandbox does not have."""
    if user == "root" and spec.profile != "computer":
        raise NotInProfile(
            f"there is no root in a sandbox of the profile `{spec.profile}`",
            hint="ask as `user`, or make a sandbox with `template: debian`, which has a system of its own",
            profile=spec.profile,
        )


def check_limits(limits: Limits, **asked: float | None) -> None:
    """Raise InvalidArgument if `timeout_s`, `idle_timeout_s` or `cpu_s` of a command is over what its sandbox has."""
    for name, value in asked.items():
        limit = "cpu_s" if name == "cpu_s" else "wall_s"
        most = limits.cpu_s if name == "cpu_s" else limits.wall_s
        if value is not None and value > most:
            raise InvalidArgument(
                f"`{name}` of {value:g} is over this sandbox's {most:g}",
                hint=f"ask for less, or create a sandbox with a higher `limits.{limit}`",
                argument=name,
                limit=most,
            )


def _plain_text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("holds a lone surrogate, which no UTF-8 text can") from None
    return value


def _plain_path(value: str) -> str:
    if "\0" in value:
        raise ValueError("holds a NUL character")
    if len(_plain_text(value).encode()) > MAX_PATH_BYTES:
        raise ValueError(f"is longer than {MAX_PATH_BYTES} bytes")
    return value


Text = Annotated[StrictStr, AfterValidator(_plain_text)]
"""Text that has a UTF-8 form."""
PathArgument = Annotated[
    StrictStr,
    AfterValidator(_plain_path),
    Field(description="Relative to the workspace, or absolute below /home/user."),
]


AnyPathArgument = Annotated[
    StrictStr,
    AfterValidator(_plain_path),
    Field(description="Relative to the workspace, or absolute, anywhere in the sandbox."),
]


def shown_path(path: str) -> str:
    """Return *path* in a form that JSON can carry: bytes that are no UTF-8 become U+FFFD."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def one_change(
    path: str, *, created: bool, sha256_before: str | None, sha256_after: str, size: int | None = None
) -> FileChanges:
    """Return the record of one file that was written."""
    change = FileChange(
        path=path,
        change="created" if created else "changed",
        kind="file",
        sha256_before=sha256_before,
        sha256_after=sha256_after,
        bytes=size,
    )
    return FileChanges(recorded=True, changes=(change,))


ChangedPath = tuple[str, Literal["created", "changed", "deleted"], FileKind]


def path_change(*changed: ChangedPath) -> FileChanges:
    """Return the record of paths that came or went, none of which had its content looked at."""
    changes = tuple(
        FileChange(path=shown_path(path), change=change, kind=_KINDS.get(kind, "other"))
        for path, change, kind in changed
    )
    return FileChanges(recorded=True, changes=changes)


_KINDS: dict[str, Literal["file", "directory", "symlink"]] = {
    "file": "file",
    "directory": "directory",
    "symlink": "symlink",
}


def _show_nobody(_: CellEvent) -> None:
    pass


Args = TypeVar("Args", bound=Arguments)
Result = TypeVar("Result", bound=Answer)


@dataclass(frozen=True)
class ToolCall(Generic[Args]):
    """One call as a tool gets it."""

    arguments: Args
    box: Box
    spec: SandboxSpec
    command_id: str
    """For a tool that starts a command: the id to start it under."""
    attach: bool
    """Look at the command started under that id, and never start it."""
    keep_output: bool
    """False if the caller has been handed the chunks already; then only totals are wanted."""
    emit: Callable[[CommandEvent], None]
    """Told every event of a command as it happens. Returns at once."""
    content: AsyncIterable[bytes] | None
    """Content that is streamed in beside the arguments; None if they hold it."""
    answer_early: Callable[[Answer], None]
    """Lets the caller go with this answer while the tool works on, for a command in the background."""
    while_running: Callable[[Callable[[], Answer]], None] = lambda _: None
    """Told, once a command runs, how to make the answer for a caller who waits no longer for its end."""
    deliver: Callable[[bytes], None] | None = None
    """Takes the content of a file as it is, beside an answer without it; None if the answer holds it."""
    outputs: DeclaredOutputs | None = None
    """Those on record, for a command that is looked at again."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of commands, beside what the arguments say: handles in place of secrets."""
    kernel: Kernel | None = None
    """For a code cell: what runs it."""
    show: Callable[[CellEvent], None] = _show_nobody
    """Told every event of a cell as it happens. Returns at once."""


class Ran(NamedTuple):
    """What a tool hands back to the gate: its answer, and what rules about results look at."""

    answer: Answer
    output: Callable[[], bytes] = bytes
    """Gives the content that the caller will get to see; called only if some rule reads output."""
    output_bytes: int = 0
    """Its true size. Over JUDGED_CAP_BYTES, `output` may give but a part."""
    command: CommandResult | None = None
    outputs: DeclaredOutputs | None = None
    diagnosis: Diagnosis | None = None
    files: FileChanges | None = None
    """What a tool that runs nothing did to files."""
    dependencies: tuple[Dependency, ...] = ()
    """What registries have handed over to its command."""
    whole: bool = True
    """False if `output` is a range of a file."""


Run = Callable[[ToolCall[Any]], Awaitable[Ran]]


class ToolSpec(NamedTuple):
    """One registered tool."""

    name: str
    description: str
    arguments: type[Arguments]
    answer: type[Answer]
    writes: bool
    """May leave data in the workspace, so that the workspace takes the label of the session."""
    run: Run
    listed: bool = True
    """Offered to agents. What is not is for fronts and SDK: called like any other, and told nobody of."""

    @property
    def info(self) -> ToolInfo:
        return ToolInfo(
            name=self.name,
            description=self.description,
            input_schema=self.arguments.model_json_schema(mode="validation"),
            output_schema=self.answer.model_json_schema(mode="serialization"),
        )

    def check(self, arguments: dict[str, Any]) -> Arguments:
        """Return the checked arguments.

        Raises:
            InvalidArgument: names the first argument that is unknown, missing, mistyped or out of range.
        """
        try:
            return self.arguments.model_validate(arguments)
        except ValidationError as error:
            raise _invalid(self, error) from None


_TOOLS: dict[str, ToolSpec] = {}


def tool(
    *, arguments: type[Args], answer: type[Result], writes: bool, listed: bool = True, judged_as: str | None = None
) -> Callable[[Callable[[ToolCall[Args]], Awaitable[Ran]]], Callable[[ToolCall[Args]], Awaitable[Ran]]]:
    """Register the function below as the tool of its name; its docstring is the published description.

    *judged_as*: rules, records and results know it by the name of another tool, of which it is a wider form: what a rule
    says of `write_file` has to hold for whoever writes by another way.
    """

    def register(run: Callable[[ToolCall[Args]], Awaitable[Ran]]) -> Callable[[ToolCall[Args]], Awaitable[Ran]]:
        name = run.__name__
        description = " ".join((run.__doc__ or "").split())
        _TOOLS[name] = ToolSpec(judged_as or name, description, arguments, answer, writes, cast("Run", run), listed)
        return run

    return register


@cache
def all_tools() -> dict[str, ToolSpec]:
    """Every tool that agents are offered by name, in alphabetical order, from the files beside this one."""
    return {name: spec for name, spec in every_tool().items() if spec.listed}


@cache
def every_tool() -> dict[str, ToolSpec]:
    """The same with those that nobody is told of."""
    for module in pkgutil.iter_modules(coldframe.tools.__path__):
        if module.name != "registry":
            importlib.import_module(f"{coldframe.tools.__name__}.{module.name}")
    return dict(sorted(_TOOLS.items()))


def find_tool(name: str) -> ToolSpec:
    """Return the tool of that name.

    Raises:
        UnknownTool: with the names there are.
    """
    found = every_tool().get(name)
    if found is None:
        raise UnknownTool(f"there is no tool `{name[:80]}`", tools=list(all_tools()))
    return found


def _invalid(spec: ToolSpec, error: ValidationError) -> InvalidArgument:
    first = error.errors(include_url=False, include_context=False)[0]
    parts = [str(part) for part in first["loc"]]
    name = parts[0] if parts else ""
    where = ".".join(parts) or "arguments"
    known = sorted(spec.arguments.model_fields)
    if first["type"] == "extra_forbidden":
        message = f"`{spec.name}` has no parameter `{where[:80]}`"
    elif first["type"] == "missing":
        message = f"`{spec.name}` needs the parameter `{where}`"
    else:
        reason = first["msg"].removeprefix("Value error, ")
        message = f"`{where[:80]}` of `{spec.name}`: {reason[:1].lower()}{reason[1:]}"
    return InvalidArgument(message, hint=f"parameters are {', '.join(known)}", argument=name, parameters=list(known))
