"""A box of the fake."""

import os
import shutil
import signal
import socket
from collections.abc import AsyncIterable, AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from coldframe.contract.command import CommandEvent, CommandSpec, Contact, EndedWith, InputState
from coldframe.contract.errors import GuestLost, NotFound, PreviewNotListening, WrongState
from coldframe.contract.files import (
    AtStake,
    ChangeLimits,
    CommandsAnswer,
    Done,
    EndShell,
    ListCommands,
    ListProcesses,
    ListRuntimes,
    ListShells,
    ListTemporary,
    ProcessesAnswer,
    ProcessInfo,
    Request,
    ResizeTerminal,
    Runtime,
    RuntimesAnswer,
    SendInput,
    ShellsAnswer,
    SignalCommand,
    TemporaryFiles,
    TemporaryPaths,
    TightenLimits,
    WriteAnswer,
    WriteFile,
)
from coldframe.contract.isolation import WALLS, IsolationReport, LimitReport, Property
from coldframe.contract.model import Model
from coldframe.contract.paths import WritePath
from coldframe.contract.sandbox import SandboxSpec
from tests.fakes.command import FakeCommand
from tests.fakes.files import FILE_VERBS, FakeFiles
from tests.fakes.paths import PATH_VERBS, write_content

A = TypeVar("A", bound=Model)


def fake_report(spec: SandboxSpec | None = None) -> IsolationReport:
    """A report of what a box has to have, and of one thing more that the fake has not."""
    walls = [*WALLS, *(["programs"] if spec and spec.runtimes is not None else [])]
    walls += ["denied_programs"] if spec and spec.denied_programs else []
    return IsolationReport(
        level="namespaces",
        kernel="shared",
        kernel_release=os.uname().release,
        measured_at=datetime.now(UTC),
        properties=(
            Property(name="filesystem", state="absent", mechanism="none", evidence="this is a fake"),
            *(
                Property(name=name, state="enforced", mechanism="the fake", evidence="its word", required=True)
                for name in walls
            ),
        ),
        limits=(LimitReport(kind="wall", limit=600, unit="s", strength="hard", enforced_by="the fake"),),
        mounts=(),
        namespaces={},
        pause_kinds=("memory", "files"),
        sentences=("a fake promises nothing",),
    )


class Seen:
    """What reached the boxes of a host."""

    def __init__(self) -> None:
        self.ran: list[CommandSpec] = []
        """Every command that was really started, in order."""
        self.asked: list[Request[Any]] = []
        """Every question and write that reached a box, in order."""


class FakeBox:
    """`Box` and `BoxLife` in one. What reaches it is added to *seen*; *forget* is told of its end."""

    def __init__(
        self, sandbox_id: str, spec: SandboxSpec, workspace: str, seen: Seen, forget: Callable[[str], None]
    ) -> None:
        self.sandbox_id = sandbox_id
        self.spec = spec
        self.workspace = workspace
        self.files = FakeFiles(workspace)
        self.created_at = datetime.now(UTC)
        self.commands: dict[str, FakeCommand] = {}
        self.records: dict[str, FakeCommand] = {}
        """Of the boxes of that id before."""
        self.state: Any = "running"
        self._ending: EndedWith | None = None
        self._seen = seen
        self._forget = forget

    def _check_alive(self) -> None:
        if self.state not in ("running", "paused"):
            raise GuestLost(f"the keeper of sandbox `{self.sandbox_id}` ended")

    async def run(self, spec: CommandSpec) -> AsyncIterator[CommandEvent]:
        self._check_alive()
        command = self.commands.get(spec.command_id)
        attached = command is not None
        if command is None:
            self._seen.ran.append(spec)
            command = self.commands[spec.command_id] = FakeCommand(spec, self.workspace)
        async for event in command.watch(-1, attached=attached):
            yield event

    async def follow(self, command_id: str, *, after_seq: int = -1) -> AsyncIterator[CommandEvent]:
        self._check_alive()
        command = self.records.get(command_id) or self._command(command_id)
        async for event in command.watch(after_seq, attached=True):
            yield event

    def _command(self, command_id: str) -> FakeCommand:
        if command_id not in self.commands:
            raise NotFound(f"no command `{command_id}`", command_id=command_id)
        return self.commands[command_id]

    async def ask(self, request: Request[A]) -> A:
        self._check_alive()
        self._seen.asked.append(request)
        if (about_paths := PATH_VERBS.get(type(request))) is not None:
            found: A = about_paths(self.workspace, request)
            return found
        about_files = FILE_VERBS.get(type(request))
        answer: A = _VERBS[type(request)](self, request) if about_files is None else about_files(self.files, request)
        return answer

    async def write(self, request: WriteFile | WritePath, content: AsyncIterable[bytes]) -> WriteAnswer:
        self._check_alive()
        self._seen.asked.append(request)
        data = b"".join([part async for part in content])
        if isinstance(request, WritePath):
            return write_content(self.workspace, request, data)
        return self.files.write(request, data)

    async def report(self) -> IsolationReport:
        return fake_report(self.spec)

    async def contacts(self) -> list[Contact]:
        return []

    async def connect(self, port: int) -> socket.socket:
        """On this machine, where the commands of the fake run."""
        self._check_alive()
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            one = socket.socket(family, socket.SOCK_STREAM)
            if one.connect_ex((address, port)) == 0:
                one.setblocking(False)
                return one
            one.close()
        raise PreviewNotListening(f"nothing listens on port {port} of the sandbox", port=port)

    async def pause(self) -> None:
        self._check_alive()
        for command in self.commands.values():
            command.end_tree(signal.SIGSTOP)
        self.state = "paused"

    async def resume(self) -> None:
        self._check_alive()
        for command in self.commands.values():
            command.end_tree(signal.SIGCONT)
        self.state = "running"

    async def at_stake(self, ending: EndedWith | None = None, *, ends: bool = False) -> AtStake:
        self._check_alive()
        self._ending = ending
        running = sorted(one.spec.command_id for one in self.commands.values() if one.result is None)
        return AtStake(command_ids=tuple(running), processes=len(running), temporary=TemporaryFiles(files=0, bytes=0))

    async def temporary(self, most: int) -> TemporaryPaths:
        return await self.ask(ListTemporary(most=most))

    async def end(self, *, keep_workspace: bool = False) -> None:
        for command in self.commands.values():
            if self._ending is None:
                await command.lose()
            else:
                await command.end_with(self._ending)
        self.state = "ended"
        self._forget(self.sandbox_id)
        if self.spec.agent_id is None and not keep_workspace:
            shutil.rmtree(self.workspace, ignore_errors=True)

    def _signal(self, request: SignalCommand) -> Done:
        command = self._command(request.command_id)
        command.cancelled = command.cancelled or request.cancel
        command.end_tree(request.signal)
        return Done()

    def _send(self, request: SendInput) -> InputState:
        command = self._command(request.command_id)
        if command.result is not None or not command.spec.stdin_open:
            raise WrongState(f"command `{request.command_id}` takes no input")
        command.sent += request.content
        return InputState(taken=len(command.sent), waiting=len(command.sent), open=not request.end)

    def _end_shell(self, request: EndShell) -> Done:
        raise NotFound(f"there is no shell session `{request.name}`")

    def _change_limits(self, request: ChangeLimits) -> Done:
        if self._command(request.command_id).result is not None:
            raise WrongState(f"command `{request.command_id}` has ended")
        return Done()

    def _resize(self, request: ResizeTerminal) -> Done:
        self._command(request.command_id)
        return Done()

    def _commands(self, request: ListCommands) -> CommandsAnswer:
        wanted = [c for c in self.commands.values() if request.command_id in (None, c.spec.command_id)]
        return CommandsAnswer(commands=tuple(command.info() for command in wanted))

    def _processes(self, request: ListProcesses) -> ProcessesAnswer:
        running = [c for c in self.commands.values() if c.pid is not None and c.result is None]
        return ProcessesAnswer(
            processes=tuple(
                ProcessInfo(
                    pid=command.pid or 0,
                    parent=1,
                    command_line=command.info().command_line,
                    started_at=self.created_at,
                    command_id=command.spec.command_id,
                )
                for command in running
            )
        )

    def _runtimes(self, request: ListRuntimes) -> RuntimesAnswer:
        names = ("bash", "python3", "node", "deno")
        return RuntimesAnswer(
            runtimes=tuple(
                Runtime(name=name, present=shutil.which(name) is not None, path=shutil.which(name)) for name in names
            )
        )


_VERBS: dict[type[Any], Callable[[FakeBox, Any], Any]] = {
    SignalCommand: FakeBox._signal,
    ResizeTerminal: FakeBox._resize,
    SendInput: FakeBox._send,
    ChangeLimits: FakeBox._change_limits,
    ListShells: lambda _box, _request: ShellsAnswer(shells=()),
    EndShell: FakeBox._end_shell,
    ListCommands: FakeBox._commands,
    ListProcesses: FakeBox._processes,
    ListRuntimes: FakeBox._runtimes,
    ListTemporary: lambda _box, _request: TemporaryPaths(paths=(), complete=True),
    TightenLimits: lambda _box, _request: Done(),
}
