"""Beginning and end of one box; implements BoxLife."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Protocol

from coldframe.contract.command import Contact, EndedWith
from coldframe.contract.errors import PauseKindUnsupported, WrongState
from coldframe.contract.files import AtStake, ListTemporary, LookAtStake, TemporaryPaths
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.sandbox import Limits
from coldframe.contract.volume import VolumeAttachment
from coldframe.host import report
from coldframe.host.box import KeeperBox
from coldframe.host.box_view import Surroundings
from coldframe.host.cgroups import BoxGroups
from coldframe.host.confine import ConfineError
from coldframe.host.marks import KeeperMark
from coldframe.host.ways_out import Captured


class EndBox(Protocol):
    async def __call__(self, sandbox_id: str, *, keep_workspace: bool) -> object: ...


class KeeperLife:
    """Of a box on this machine, which *end* ends."""

    def __init__(
        self,
        mark: KeeperMark,
        box: KeeperBox,
        groups: BoxGroups,
        end: EndBox,
        captured: Callable[[], Captured | None],
    ) -> None:
        self.mark = mark
        self.box = box
        self._groups = groups
        self._end = end
        self._captured = captured
        self.turn = asyncio.Lock()
        """Of whoever holds it still or lets it go on."""

    def measure(self, evidence: dict[str, Any], around: Surroundings | None = None) -> IsolationReport:
        """Blocking; from any thread. *around* is what was looked at already."""
        limits = Limits.model_validate(self.mark.limits)
        return report.measure(
            self.mark.init,
            self.mark.pid,
            evidence,
            limits=limits,
            groups=self._groups,
            runtimes=self.mark.runtimes,
            denied=self.mark.denied,
            template=self.mark.template,
            captured=self._captured(),
            volumes=[VolumeAttachment.model_validate(one) for one in self.mark.volumes],
            around=around,
        )

    async def report(self) -> IsolationReport:
        evidence = await self.box.evidence()
        return await asyncio.to_thread(self.measure, evidence)

    async def contacts(self) -> list[Contact]:
        return await self.box.contacts()

    async def pause(self) -> None:
        async with self.turn:
            await self._pause()

    async def _pause(self) -> None:
        if not self._groups.can_freeze:
            raise PauseKindUnsupported(
                "this machine has no control group for sandboxes that can be frozen",
                hint="pause with kind `files`, or let the host daemon have a control group of its own (docs/isolation.md)",
                kind="memory",
            )
        try:
            await asyncio.to_thread(self._groups.freeze)
        except ConfineError as error:
            raise WrongState(
                f"sandbox `{self.box.sandbox_id}` could not be paused, and goes on: {error}",
                sandbox_id=self.box.sandbox_id,
            ) from error

    async def resume(self) -> None:
        async with self.turn:
            self._groups.thaw()

    async def at_stake(self, ending: EndedWith | None = None, *, ends: bool = False) -> AtStake:
        return await self.box.ask(LookAtStake(ending=ending, ends=ends))

    async def temporary(self, most: int) -> TemporaryPaths:
        return await self.box.ask(ListTemporary(most=most))

    async def connect(self, port: int) -> socket.socket:
        return await self.box.connect_port(port)

    async def end(self, *, keep_workspace: bool = False) -> None:
        await self._end(self.box.sandbox_id, keep_workspace=keep_workspace)
