"""read_path: read_file for any path of the box, with the rights of a user of the box."""

from coldframe.contract.command import BoxUserName
from coldframe.contract.errors import OutsideWorkspace
from coldframe.contract.files import ReadFile
from coldframe.contract.paths import ReadPath
from coldframe.contract.sandbox import SandboxSpec
from coldframe.tools.read_file import ReadFileAnswer, ReadFileArguments, answered
from coldframe.tools.registry import (
    AnyPathArgument,
    CallFacts,
    Ran,
    ToolCall,
    any_path,
    check_user,
    in_box,
    other_user,
    tool,
)


class ReadPathArguments(ReadFileArguments):
    path: AnyPathArgument
    user: BoxUserName = "user"

    def facts(self) -> CallFacts:
        return CallFacts(path=any_path(self.path), user=other_user(self.user))

    def fit(self, spec: SandboxSpec) -> None:
        check_user(self.user, spec)


@tool(arguments=ReadPathArguments, answer=ReadFileAnswer, writes=False, listed=False, judged_as="read_file")
async def read_path(call: ToolCall[ReadPathArguments]) -> Ran:
    """Read a file anywhere in the sandbox, as read_file reads one of the workspace."""
    arguments = call.arguments
    path, asked = any_path(arguments.path), arguments.model_dump(include={"offset", "length", "if_version"})
    anywhere = ReadPath(path=in_box(path), user=arguments.user, **asked)
    if path.startswith("/") or arguments.user != "user":
        found = await call.box.ask(anywhere)
    else:
        try:  # so that it is read also where nothing runs any more
            found = await call.box.ask(ReadFile(path=path, **asked))
        except OutsideWorkspace:  # by a link
            found = await call.box.ask(anywhere)
    return answered(call, found)  # type: ignore[arg-type]  # its arguments are those of read_file and more
