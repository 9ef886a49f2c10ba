"""A box as far as its past goes, for calls that are looked at again after a restart or under the same key."""

from collections.abc import AsyncIterable, AsyncIterator

from coldframe.contract.command import CommandEvent, CommandSpec
from coldframe.contract.errors import WrongState
from coldframe.contract.files import FindOutputs, Request, WriteAnswer, WriteFile
from coldframe.contract.paths import WritePath
from coldframe.contract.ports import A
from coldframe.contract.sandbox import SandboxInfo
from coldframe.control.sandboxes import Sandboxes


class PastBox:
    """A box as far as its past goes: follows commands, alive or from disk, and starts nothing."""

    def __init__(self, sandboxes: Sandboxes, info: SandboxInfo) -> None:
        self.sandbox_id = info.sandbox_id
        self._sandboxes = sandboxes
        self._info = info

    def run(self, spec: CommandSpec) -> AsyncIterator[CommandEvent]:
        raise WrongState("what is past cannot be run")

    def follow(self, command_id: str, *, after_seq: int = -1) -> AsyncIterator[CommandEvent]:
        return self._sandboxes.events(self._info, command_id, after_seq=after_seq)

    async def ask(self, request: Request[A]) -> A:
        """What a command that was under way has left, of a box that is there still. Raises WrongState for all else."""
        if request.verb != FindOutputs.model_fields["verb"].default:
            raise WrongState("what is past cannot be asked")
        info = self._sandboxes.find(self._info.sandbox_id)
        return await (await self._sandboxes.box(info, reads_only=True)).ask(request)

    async def write(self, request: WriteFile | WritePath, content: AsyncIterable[bytes]) -> WriteAnswer:
        raise WrongState("what is past cannot be written to")
