"""watch_path: note what happens in a directory of the box, to be fetched by the watch's id."""

from pydantic import Field, StrictBool

from coldframe.contract.paths import WatchPath
from coldframe.tools.registry import (
    Answer,
    AnyPathArgument,
    Arguments,
    CallFacts,
    Ran,
    ToolCall,
    any_path,
    in_box,
    tool,
)


class WatchPathArguments(Arguments):
    path: AnyPathArgument = ""
    recursive: StrictBool = Field(default=False, description="Also all directories below, new ones included.")
    with_info: StrictBool = Field(default=False, description="Tell with each event what is known of the path then.")

    def facts(self) -> CallFacts:
        return CallFacts(path=any_path(self.path))


class WatchPathAnswer(Answer):
    watch_id: str
    path: str
    """From the root of the box on."""


@tool(arguments=WatchPathArguments, answer=WatchPathAnswer, writes=False, listed=False)
async def watch_path(call: ToolCall[WatchPathArguments]) -> Ran:
    """Begin to note what happens in a directory anywhere in the sandbox."""
    arguments = call.arguments
    asked = arguments.model_dump(include={"recursive", "with_info"})
    watch_id = "wch_" + call.command_id.partition("_")[2]
    begun = await call.box.ask(WatchPath(watch_id=watch_id, path=in_box(any_path(arguments.path)), **asked))
    return Ran(WatchPathAnswer(watch_id=begun.watch_id, path=begun.path))
