"""start_kernel: start what keeps the kernel of a context of code cells, as a command like any other.

Rules know it as `run_command`, and so do records: after a restart of the server it is followed as one.
"""

from pydantic import Field

from coldframe.contract.cell import DRIVER, Language
from coldframe.contract.command import LONGEST_S, CommandSpec, OutputChunk, Started
from coldframe.contract.errors import GuestLost, NotInProfile
from coldframe.contract.profile import require_capability
from coldframe.contract.sandbox import SandboxSpec
from coldframe.tools.output import OutputCollector
from coldframe.tools.registry import HOME, Arguments, CallFacts, Ran, Text, ToolCall, tool
from coldframe.tools.run_command import RunCommandAnswer, RunCommandArguments, answer_of, running_answer


class StartKernelArguments(Arguments):
    language: Language = "python"
    cwd: Text = Field(default=HOME, description="Absolute in the box.", max_length=4096)
    env: dict[Text, Text] = Field(default_factory=dict)

    @property
    def argv(self) -> tuple[str, ...]:
        return ("python3", DRIVER, self.language, self.cwd)

    def facts(self) -> CallFacts:
        return CallFacts(argv=self.argv, environment=tuple(self.env.items()), background=True)

    def fit(self, spec: SandboxSpec) -> None:
        if self.language == "bash":
            require_capability(spec.profile, "shell")
        if spec.runtimes is not None:
            raise NotInProfile(
                "there are no code cells in a sandbox that only starts some programs",
                hint="make a sandbox without `runtimes`",
                runtimes=list(spec.runtimes),
            )


@tool(arguments=StartKernelArguments, answer=RunCommandAnswer, writes=True, listed=False, judged_as="run_command")
async def start_kernel(call: ToolCall[StartKernelArguments]) -> Ran:
    """Start the kernel of a context. It lives as long as the sandbox, or until it is signalled."""
    arguments = call.arguments
    shown = RunCommandArguments.model_validate({"command": list(arguments.argv), "background": True})
    output = OutputCollector(keep=False)
    if call.attach:
        events = call.box.follow(call.command_id)
    else:
        events = call.box.run(
            CommandSpec(
                command_id=call.command_id,
                argv=arguments.argv,
                env={**call.environment, **arguments.env},
                stdin_open=True,
                timeout_s=LONGEST_S,
                lasting=True,
                track_files=False,
            )
        )
    pid = None
    async for event in events:
        if isinstance(event, Started):
            pid = event.pid
            call.answer_early(running_answer(shown, event))
        elif isinstance(event, OutputChunk):
            output.add(event.stream, event.data)
        else:
            answer = answer_of(shown, event.result, output, pid, None)
            return Ran(answer, output_bytes=sum(output.total.values()), command=event.result)
    raise GuestLost(f"kernel `{call.command_id}` ended without a result", command_id=call.command_id)
