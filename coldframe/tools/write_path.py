"""write_path: write_file for any path of the box, with the rights of a user of the box, and notes of the file."""

from pydantic import Field, StrictStr

from coldframe.contract.command import BoxUserName
from coldframe.contract.files import WriteAnswer
from coldframe.contract.paths import WritePath
from coldframe.contract.sandbox import SandboxSpec
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
from coldframe.tools.write_file import WriteFileAnswer, WriteFileArguments, written


class WritePathArguments(WriteFileArguments):
    path: AnyPathArgument
    user: BoxUserName = "user"
    metadata: dict[StrictStr, StrictStr] = Field(
        default_factory=dict, description="Noted of the file, in place of what was noted of one that it replaces."
    )

    def facts(self) -> CallFacts:
        return CallFacts(path=any_path(self.path), user=other_user(self.user), source=self.source)

    def fit(self, spec: SandboxSpec) -> None:
        check_user(self.user, spec)


@tool(arguments=WritePathArguments, answer=WriteFileAnswer, writes=True, listed=False, judged_as="write_file")
async def write_path(call: ToolCall[WritePathArguments]) -> Ran:
    """Write a file anywhere in the sandbox, as write_file writes one of the workspace."""
    arguments = call.arguments
    path = any_path(arguments.path)
    asked = arguments.model_dump(include={"if_version", "create_only", "mode", "sha256"})
    asked["content"] = arguments.data() if call.content is None else b""
    request = WritePath(path=in_box(path), user=arguments.user, metadata=arguments.metadata, **asked)
    done: WriteAnswer
    if call.content is not None:
        done = await call.box.write(request, call.content)
    else:
        done = await call.box.ask(request)
    return written(done.model_copy(update={"path": any_path(done.path)}))
