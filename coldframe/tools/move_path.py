"""move_path: rename, or move to another directory, anywhere in the box."""

from pydantic import Field, StrictBool

from coldframe.contract.paths import MovePath
from coldframe.tools.registry import (
    Answer,
    AnyPathArgument,
    CallFacts,
    Ran,
    ToolCall,
    any_path,
    in_box,
    other_user,
    path_change,
    tool,
)
from coldframe.tools.stat_path import PathArguments, PathEntry


class MovePathArguments(PathArguments):
    target: AnyPathArgument
    replace: StrictBool = Field(default=True, description="False: CONFLICT if something is there.")

    def facts(self) -> CallFacts:
        return CallFacts(path=any_path(self.target), from_path=any_path(self.path), user=other_user(self.user))


class MovePathAnswer(Answer):
    entry: PathEntry
    """At the new place."""


@tool(arguments=MovePathArguments, answer=MovePathAnswer, writes=True, listed=False)
async def move_path(call: ToolCall[MovePathArguments]) -> Ran:
    """Rename a file or directory, or move it to another place in the sandbox, whose missing parents are made."""
    arguments = call.arguments
    source, target = any_path(arguments.path), any_path(arguments.target)
    moved = await call.box.ask(
        MovePath(path=in_box(source), target=in_box(target), replace=arguments.replace, user=arguments.user)
    )
    kind = moved.info.kind
    changes = path_change((source, "deleted", kind), (target, "created", kind))
    return Ran(MovePathAnswer(entry=PathEntry.of(moved.info)), files=changes)
