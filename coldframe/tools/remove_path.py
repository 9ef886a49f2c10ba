"""remove_path: a file, a link, or a directory with all that is in it, anywhere in the box."""

from pydantic import Field, StrictBool

from coldframe.contract.paths import RemoveBoxPath, StatPath
from coldframe.tools.registry import Answer, Ran, ToolCall, any_path, in_box, path_change, tool
from coldframe.tools.stat_path import PathArguments


class RemovePathArguments(PathArguments):
    recursive: StrictBool = Field(default=False, description="Also a directory, with all that is in it.")


class RemovePathAnswer(Answer):
    path: str
    """From the root of the box on."""


@tool(arguments=RemovePathArguments, answer=RemovePathAnswer, writes=True, listed=False)
async def remove_path(call: ToolCall[RemovePathArguments]) -> Ran:
    """Remove a file or link anywhere in the sandbox, or a directory with all that is in it."""
    arguments = call.arguments
    path = any_path(arguments.path)
    found = await call.box.ask(StatPath(path=in_box(path), user=arguments.user))
    await call.box.ask(RemoveBoxPath(path=in_box(path), recursive=arguments.recursive, user=arguments.user))
    return Ran(RemovePathAnswer(path=in_box(path)), files=path_change((path, "deleted", found.kind)))
