"""list_path: list_directory for any path of the box, with all that is known of each entry."""

from urllib.parse import quote, unquote_to_bytes

from coldframe.contract.command import BoxUserName
from coldframe.contract.paths import ListPath
from coldframe.contract.sandbox import SandboxSpec
from coldframe.tools.list_directory import ListDirectoryArguments, Unreadable
from coldframe.tools.registry import (
    Answer,
    AnyPathArgument,
    CallFacts,
    Ran,
    ToolCall,
    any_path,
    check_user,
    in_box,
    other_user,
    shown_path,
    tool,
)
from coldframe.tools.stat_path import PathEntry, shown


class ListPathArguments(ListDirectoryArguments):
    path: AnyPathArgument = ""
    user: BoxUserName = "user"

    def facts(self) -> CallFacts:
        return CallFacts(path=any_path(self.path), user=other_user(self.user))

    def fit(self, spec: SandboxSpec) -> None:
        check_user(self.user, spec)


class ListPathAnswer(Answer):
    path: str
    entries: tuple[PathEntry, ...]
    complete: bool
    truncated_because: str | None
    next_after: str | None
    errors: tuple[Unreadable, ...]


@tool(arguments=ListPathArguments, answer=ListPathAnswer, writes=False, listed=False, judged_as="list_directory")
async def list_path(call: ToolCall[ListPathArguments]) -> Ran:
    """List a directory anywhere in the sandbox, with owner, times and notes of every entry."""
    arguments = call.arguments
    after = arguments.after
    found = await call.box.ask(
        ListPath(
            path=in_box(any_path(arguments.path)),
            user=arguments.user,
            after=None if after is None else unquote_to_bytes(after).decode("utf-8", "surrogateescape"),
            **arguments.model_dump(include={"recursive", "max_depth", "max_entries"}),
        )
    )
    entries = tuple(map(PathEntry.of, found.entries))
    answer = ListPathAnswer(
        path=shown_path(found.path),
        entries=entries,
        complete=found.complete,
        truncated_because=found.truncated_because,
        next_after=None if found.next_after is None else quote(found.next_after.encode("utf-8", "surrogateescape")),
        errors=tuple(Unreadable(path=shown_path(path), reason=shown_path(reason)) for path, reason in found.errors),
    )
    return shown(answer, *entries)
