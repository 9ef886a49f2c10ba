"""Beginning and end of one box; implements BoxLife."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from coldframe.contract.command import Contact
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.sandbox import Limits
from coldframe.host import report
from coldframe.host.box import KeeperBox
from coldframe.host.cgroups import BoxGroups
from coldframe.host.marks import KeeperMark
from coldframe.host.ways_out import Captured


class KeeperLife:
    """Of a box on this machine, which *end* ends."""

    def __init__(
        self,
        mark: KeeperMark,
        box: KeeperBox,
        groups: BoxGroups,
        end: Callable[[str], Awaitable[None]],
        captured: Callable[[], Captured | None],
    ) -> None:
        self.mark = mark
        self.box = box
        self._groups = groups
        self._end = end
        self._captured = captured

    def measure(self, evidence: dict[str, Any]) -> IsolationReport:
        """Blocking; from any thread."""
        limits = Limits.model_validate(self.mark.limits)
        return report.measure(
            self.mark.init,
            self.mark.pid,
            evidence,
            limits=limits,
            groups=self._groups,
            runtimes=self.mark.runtimes,
            denied=self.mark.denied,
            captured=self._captured(),
        )

    async def report(self) -> IsolationReport:
        evidence = await self.box.evidence()
        return await asyncio.to_thread(self.measure, evidence)

    async def contacts(self) -> list[Contact]:
        return await self.box.contacts()

    async def end(self) -> None:
        await self._end(self.box.sandbox_id)
