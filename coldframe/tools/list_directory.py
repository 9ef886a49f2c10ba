"""list_directory: what lies in a directory, with kinds and sizes."""

from datetime import datetime
from typing import Annotated
from urllib.parse import quote, unquote_to_bytes

from pydantic import Field, StrictBool, StrictInt

from coldframe.contract.files import FileKind, ListDirectory
from coldframe.contract.model import Model
from coldframe.tools.registry import (
    Answer,
    Arguments,
    CallFacts,
    PathArgument,
    Ran,
    Text,
    ToolCall,
    relative_path,
    shown_path,
    tool,
)


class ListDirectoryArguments(Arguments):
    path: PathArgument = ""
    recursive: StrictBool = Field(default=False, description="Go into subdirectories; links are never followed.")
    max_depth: Annotated[StrictInt, Field(ge=1)] | None = Field(
        default=None, description="Levels to go down, with `recursive`."
    )
    max_entries: Annotated[StrictInt, Field(ge=1, le=100_000)] = 10_000
    after: Text | None = Field(
        default=None, description="Only names behind this one: `next_after` of the page before. Not with `recursive`."
    )

    def facts(self) -> CallFacts:
        return CallFacts(path=relative_path(self.path))


class DirectoryEntry(Model):
    path: str
    """Relative to the workspace."""
    name: str
    type: FileKind
    size: int
    """As stat gives it, in bytes."""
    mode: int
    modified_at: datetime
    target: str | None
    """Where a symbolic link points."""


class Unreadable(Model):
    path: str
    reason: str


class ListDirectoryAnswer(Answer):
    path: str
    entries: tuple[DirectoryEntry, ...]
    complete: bool
    truncated_because: str | None
    """`max_entries` or `max_depth`."""
    next_after: str | None = None
    """Given as `after` it asks for the next page of a directory that `max_entries` has cut. Percent-encoded, since a name may be
    any bytes."""
    errors: tuple[Unreadable, ...]


@tool(arguments=ListDirectoryArguments, answer=ListDirectoryAnswer, writes=False)
async def list_directory(call: ToolCall[ListDirectoryArguments]) -> Ran:
    """List a directory of the workspace: name, type, size in bytes, mode, time and link target of every entry,
    optionally with all subdirectories. The answer says if a limit cut it short."""
    arguments = call.arguments
    found = await call.box.ask(
        ListDirectory(
            path=relative_path(arguments.path),
            recursive=arguments.recursive,
            max_depth=arguments.max_depth,
            max_entries=arguments.max_entries,
            after=None
            if arguments.after is None
            else unquote_to_bytes(arguments.after).decode("utf-8", "surrogateescape"),
        )
    )
    entries = tuple(
        DirectoryEntry(
            path=shown_path(entry.path),
            name=shown_path(entry.name),
            type=entry.kind,
            size=entry.size,
            mode=entry.mode,
            modified_at=entry.modified_at,
            target=None if entry.target is None else shown_path(entry.target),
        )
        for entry in found.entries
    )
    answer = ListDirectoryAnswer(
        path=shown_path(found.path),
        entries=entries,
        complete=found.complete,
        truncated_because=found.truncated_because,
        next_after=None if found.next_after is None else quote(found.next_after.encode("utf-8", "surrogateescape")),
        errors=tuple(Unreadable(path=shown_path(path), reason=shown_path(reason)) for path, reason in found.errors),
    )
    output = "".join(f"{entry.path} -> {entry.target or ''}\n" for entry in entries).encode()
    return Ran(answer, output=lambda: output, output_bytes=len(output))
