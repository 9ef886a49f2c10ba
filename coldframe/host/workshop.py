"""Where steps of a recipe are carried out: throw-away boxes of no agent, on a system that is being made."""

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from coldframe.contract.network import NetworkAccess
from coldframe.contract.policy import Label, Role
from coldframe.contract.ports import Box
from coldframe.contract.sandbox import Limits, SandboxSpec
from coldframe.contract.template import STEP_BOXES
from coldframe.host.construction import Construction, Site
from coldframe.host.isolation.own_system import System
from coldframe.host.layers.mapping import Users
from coldframe.host.removal import remove_directory
from coldframe.host.sandbox_users import range_of
from coldframe.host.templates.id_range import IdRange
from coldframe.host.templates.sealed_layers import Draft
from coldframe.host.templates.systems import Prepared

LIMITS = Limits(
    wall_s=86_400,
    cpu_s=200_000,
    memory_mib=4096,
    disk_mib=20_480,
    pids=4096,
    open_files=65_536,
    file_mib=20_480,
    output_mib=1024,
)
"""Of each step."""


class Workshop:
    """Of one machine. *held* keeps sweeps away from a box, *end_box* ends it and waits until all of it is gone."""

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

    @contextlib.asynccontextmanager
    async def box(
        self,
        draft: Draft,
        layers: Sequence[str],
        ids: IdRange,
        *,
        build_id: str,
        step: int,
        digest: str,
        network: str,
        put: Callable[[str, tuple[int, int]], None] | None = None,
    ) -> AsyncIterator[tuple[Box, Users]]:
        """One with a system of these layers, the highest first, that writes to *draft*; and whose what it writes is.
        *put* lays something into that, as root of the box, whose ids it is told.

        Nothing of it is left when this is over, but what it wrote, and on record whom it reached. *digest* is of the template that it begins from.
        """
        name = f"{STEP_BOXES}{build_id}-{step}-{secrets.token_hex(2)}"
        spec = SandboxSpec(
            background=True, template="debian", profile="computer", limits=LIMITS, leftovers="end", track_files=False
        )
        access = None
        if network != "none":
            access = NetworkAccess(asked=network, role=Role.OWNER, taint=Label.PUBLIC)
        whose: list[Users] = []

        def prepare(owner: tuple[int, int], place: str) -> Prepared:
            first = (range_of(owner[0]), range_of(owner[1]))
            whose.append(Users(first, owner))
            os.chown(draft.files, *first)
            if put is not None:
                put(draft.files, first)
            system = System(
                template=layers[-1],
                template_layers=tuple(layers[:-1]),
                template_first=(ids.first_uid, ids.first_gid),
                first=first,
                lower=(),
                upper=draft.files,
                work=draft.work,
                place=place,
            )
            return Prepared(system, digest, os.dup(draft.held))

        with self._held(name):
            try:
                await self._construction.build(name, spec, name, access, prepare=prepare)
                yield self._site.lives[name].box, whose[0]
            finally:
                ending = asyncio.ensure_future(self._leave_nothing(name, access))
                try:
                    await asyncio.shield(ending)
                except asyncio.CancelledError:
                    await asyncio.wait({ending})  # whoever cancels twice has to wait as well
                    raise

    def reached(self) -> tuple[str, ...]:
        """Names of the boxes of which there is a record of the network."""
        return self._site.ways_out.recorded(STEP_BOXES)

    async def _leave_nothing(self, name: str, access: NetworkAccess | None) -> None:
        await self._end_box(name)
        await self._site.endings.finish_of(name)
        await asyncio.to_thread(remove_directory, self._site.marks.directory(name))
        if access is not None:
            await self._site.ways_out.shut(name)  # its record stays until it is in the ledger
