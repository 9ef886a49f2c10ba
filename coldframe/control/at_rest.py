"""Files of a workspace that nothing runs on, or of a snapshot, in place of a box: they are read, and nothing is started."""

from collections.abc import AsyncIterable, AsyncIterator
from typing import NamedTuple

from coldframe.contract.command import CommandEvent, CommandSpec
from coldframe.contract.errors import WrongState
from coldframe.contract.files import Request, WriteAnswer, WriteFile
from coldframe.contract.paths import WritePath
from coldframe.contract.policy import Label
from coldframe.contract.ports import A, Box, Snapshots
from coldframe.contract.snapshot import Point
from coldframe.tools.registry import CallFacts, ToolSpec


class AtRest:
    """A box as far as reading goes."""

    def __init__(self, snapshots: Snapshots, sandbox_id: str, point: Point) -> None:
        self.sandbox_id = sandbox_id
        self._snapshots = snapshots
        self._point = point

    def run(self, spec: CommandSpec) -> AsyncIterator[CommandEvent]:
        raise WrongState("files at rest cannot be run")

    def follow(self, command_id: str, *, after_seq: int = -1) -> AsyncIterator[CommandEvent]:
        raise WrongState("files at rest have no commands")

    async def ask(self, request: Request[A]) -> A:
        return await self._snapshots.ask(self._point, request)

    async def write(self, request: WriteFile | WritePath, content: AsyncIterable[bytes]) -> WriteAnswer:
        raise WrongState("files at rest cannot be written to")


def of_system(spec: ToolSpec) -> ToolSpec:
    """A tool that reads a system from its root on: rules see its paths as such."""

    class OfSystem(spec.arguments):  # type: ignore[name-defined,misc]
        def facts(self) -> CallFacts:
            found: CallFacts = super().facts()
            return found._replace(path=f"/{found.path or ''}")

    return spec._replace(arguments=OfSystem)


class View(NamedTuple):
    """What a call reads in place of the files of its sandbox."""

    box: Box
    label: Label
    """Of what can be seen there."""
    snapshot_ids: tuple[str, ...]
    spec: ToolSpec | None = None
    """In place of the tool of that name, by which it is judged."""
