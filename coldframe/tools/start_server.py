"""start_server: run_command for what serves others, as a preview's: it lives as long as its sandbox."""

from typing import ClassVar

from coldframe.tools.registry import Ran, ToolCall, tool
from coldframe.tools.run_command import RunCommandAnswer, RunCommandArguments, run_command


class StartServerArguments(RunCommandArguments):
    lasting: ClassVar[bool] = True


@tool(arguments=StartServerArguments, answer=RunCommandAnswer, writes=True, listed=False, judged_as="run_command")
async def start_server(call: ToolCall[StartServerArguments]) -> Ran:
    """Run a command as run_command does, without an end after some time: it ends by a signal, or with its sandbox."""
    return await run_command(call)  # type: ignore[arg-type]  # what it reads of the arguments is the same
