"""run_anywhere: run_command with any directory of the box to begin in, for callers who know whole machines."""

from coldframe.tools.registry import Ran, ToolCall, any_path, tool
from coldframe.tools.run_command import RunCommandAnswer, RunCommandArguments, run_command


class RunAnywhereArguments(RunCommandArguments):
    def place(self) -> str:
        return any_path(self.cwd)


@tool(arguments=RunAnywhereArguments, answer=RunCommandAnswer, writes=True, listed=False, judged_as="run_command")
async def run_anywhere(call: ToolCall[RunAnywhereArguments]) -> Ran:
    """Run a command as run_command does, in any directory that its user may enter."""
    return await run_command(call)  # type: ignore[arg-type]  # what it reads of the arguments is the same
