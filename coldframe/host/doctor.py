"""What `coldframe doctor` knows of a machine: throw-away boxes of no agent, measured, and the promises tried in them."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

from coldframe.contract.errors import IsolationUnavailable
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.network import NetworkAccess
from coldframe.contract.policy import Label, Role
from coldframe.contract.sandbox import SandboxSpec
from coldframe.host import report, trials
from coldframe.host.construction import Construction, Site
from coldframe.host.removal import remove_directory
from coldframe.host.templates.systems import judge_ability


class Doctor:
    """Of one machine. *held* keeps sweeps away from a box, *end_box* ends it."""

    def __init__(
        self,
        site: Site,
        construction: Construction,
        *,
        held: Callable[[str], contextlib.AbstractContextManager[None]],
        end_box: Callable[[str], Awaitable[object]],
    ) -> None:
        self._site = site
        self._construction = construction
        self._held = held
        self._end_box = end_box

    async def examine(self) -> IsolationReport:
        """Build a throw-away box, measure it and try the promises in it; and another one with a way out that no rule opens.
        A missing wall is told and not raised.

        Raises:
            IsolationUnavailable: no box can be built at all; with property, reason and remedy.
        """
        async with self._throw_away(None) as (name, measured):
            tried = await trials.try_promises(self._site.lives[name].box)
        walls = [*measured.properties]
        try:
            access = NetworkAccess(asked="none", role=Role.OWNER, taint=Label.PUBLIC)
            async with self._throw_away(access) as (name, with_way_out):
                tried += await trials.try_way_out(self._site.lives[name].box)
            walls += [
                one.model_copy(update={"name": report.WAY_OUT})
                for one in with_way_out.properties
                if one.name == "network"
            ]
        except IsolationUnavailable as error:
            walls.append(report.without_way_out(error))
        walls.append(await asyncio.to_thread(judge_ability))
        return measured.model_copy(update={"trials": tried, "properties": tuple(walls)})

    @contextlib.asynccontextmanager
    async def _throw_away(self, network: NetworkAccess | None) -> AsyncIterator[tuple[str, IsolationReport]]:
        """A box of no agent, and what was measured of it. Nothing of it is left afterwards."""
        name = f"doctor-{secrets.token_hex(4)}"
        spec = SandboxSpec(background=True, limits=trials.LIMITS)
        with self._held(name):
            try:
                yield (
                    name,
                    await self._construction.build(name, spec, name, network, is_refused_with_walls_missing=False),
                )
            finally:
                await self._end_box(name)
                await asyncio.to_thread(remove_directory, self._site.marks.directory(name))
                if network is not None:
                    await self._site.ways_out.forget(name)
