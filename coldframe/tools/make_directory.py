"""make_directory: a directory anywhere in the box, with its parents."""

from coldframe.contract.paths import MakePath
from coldframe.tools.registry import Answer, Ran, ToolCall, any_path, in_box, path_change, tool
from coldframe.tools.stat_path import PathArguments, PathEntry


class MakeDirectoryAnswer(Answer):
    created: bool
    """False if it was there already."""
    entry: PathEntry


@tool(arguments=PathArguments, answer=MakeDirectoryAnswer, writes=True, listed=False)
async def make_directory(call: ToolCall[PathArguments]) -> Ran:
    """Make a directory and its missing parents anywhere in the sandbox; one that is there already is fine."""
    path = any_path(call.arguments.path)
    made = await call.box.ask(MakePath(path=in_box(path), user=call.arguments.user))
    changes = path_change((path, "created", "directory")) if made.created else path_change()
    return Ran(MakeDirectoryAnswer(created=made.created, entry=PathEntry.of(made.info)), files=changes)
