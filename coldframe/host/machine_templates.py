"""The templates of a machine as control asks for them; implements Templates. How one is made: `recipe_build.py`."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence

from coldframe.contract.errors import IsolationUnavailable, NotFound, TemplateChanged, WrongState
from coldframe.contract.snapshot import WorkspacePoint
from coldframe.contract.template import BuildEvent, BuildOrder, TemplateFacts
from coldframe.host.recipe_build import Bench, RecipeBuild, SealedSystem
from coldframe.host.templates.inputs import Inputs, no_room
from coldframe.host.templates.step_cache import StepCache
from coldframe.host.templates.store import Template
from coldframe.host.templates.systems import Systems
from coldframe.host.workshop import Workshop

COLLECT_EVERY_S = 3600.0
"""While templates are built."""
_WAITING = 1000
"""Events that nobody has taken yet. A step waits then."""


class MachineTemplates:
    """Those of one machine. *system_of* holds, as long as it is entered, what the snapshot of that id has of a system."""

    def __init__(
        self,
        data_dir: str,
        workshop: Workshop,
        systems: Systems,
        workspace_name: Callable[[WorkspacePoint], str],
        system_of: Callable[[str], contextlib.AbstractContextManager[SealedSystem]],
    ) -> None:
        folder = os.path.join(os.path.abspath(data_dir), "templates")
        self.store = systems.templates
        self._cache = StepCache(os.path.join(folder, "steps"))
        self._inputs = Inputs(os.path.join(folder, "inputs"))
        self._bench = Bench(self.store, self._cache, self._inputs, workshop, system_of)
        self._systems = systems
        self._workspace_name = workspace_name
        self._builds: list[set[str]] = []
        """Digests of templates, layers and inputs that builds under way have, each its own."""
        self._collected = time.monotonic()

    # -- asked by control ------------------------------------------------------------------------------

    async def missing_inputs(self, digests: Sequence[str]) -> tuple[str, ...]:
        return self._inputs.missing(digests)

    async def put_input(self, sha256: str, content: AsyncIterable[bytes], *, most_bytes: int) -> int:
        await self._collect_if_due()
        return await self._inputs.put(sha256, content, most_bytes=most_bytes)

    async def reached(self) -> tuple[str, ...]:
        return await asyncio.to_thread(self._bench.workshop.reached)

    async def digests(self) -> set[str]:
        return await asyncio.to_thread(self.store.digests)

    async def get(self, digest: str) -> TemplateFacts:
        return await asyncio.to_thread(lambda: self.store.facts(self.store.get(digest)))

    async def begun(self, workspace: WorkspacePoint) -> str | None:
        return await asyncio.to_thread(self._systems.template_of, self._workspace_name(workspace))

    async def verify(self, digest: str) -> None:
        if not await asyncio.to_thread(self.store.verify, digest):
            raise TemplateChanged(f"the template `{digest[:12]}…` is not what was built", digest=digest)

    async def remove(self, digest: str) -> None:
        def remove() -> None:
            with contextlib.suppress(NotFound):
                with self._systems.none_begun(digest):
                    if any(digest in needed for needed in self._builds):
                        raise WrongState(
                            "a build stands on it", hint="wait for the build, or cancel it", used_by=["a build"]
                        )
                    clear = self.store.bury(digest)
                clear()  # others begin theirs meanwhile

        await asyncio.to_thread(remove)
        await self.collect()

    async def collect(self) -> list[str]:
        """Remove what nobody needs any more: inputs, steps that were not used for long, layers. What was removed."""

        def keep() -> set[str]:
            return self._cache.layers().union(*self._builds)

        def collect() -> list[str]:
            self._inputs.forget_unused(set().union(*self._builds))
            self._cache.forget_unused()
            return [f"layer {one}" for one in self.store.collect(keep)]

        return await asyncio.to_thread(collect)

    async def _collect_if_due(self) -> None:
        if time.monotonic() - self._collected >= COLLECT_EVERY_S:
            self._collected = time.monotonic()
            await self.collect()

    async def sweep(self) -> list[str]:
        """Remove what builds of a machine that was killed have left. Their boxes have to be gone."""
        await asyncio.to_thread(self.store.sweep)
        return await self.collect()

    async def build(self, order: BuildOrder) -> AsyncIterator[BuildEvent]:
        """See `Templates.build`."""
        if os.getuid() != 0:
            raise IsolationUnavailable(
                "templates are built by a host daemon that is root",
                hint="run the daemon as root (`coldframe up` as root)",
                property="template",
                reason="the users of a template have to be mapped to those of a box",
                remedy="run the daemon as root",
            )
        await self._collect_if_due()
        events: asyncio.Queue[BuildEvent | None] = asyncio.Queue(_WAITING)
        needed: set[str] = set(order.recipe.inputs)
        self._builds.append(needed)
        build = RecipeBuild(self._bench, order, events, needed)

        async def work() -> Template:
            try:
                return await build.carry_out()
            finally:
                await events.put(None)

        task = asyncio.ensure_future(work())

        async def end() -> None:
            task.cancel()  # once: it has a box to end
            while not task.done():
                while not events.empty():
                    events.get_nowait()
                await asyncio.wait({task}, timeout=0.1)
            if not task.cancelled():
                task.exception()
            self._builds[:] = [one for one in self._builds if one is not needed]

        try:
            while (event := await events.get()) is not None:
                yield event
            try:
                made = await task
            except OSError as error:
                raise no_room(error) from error
            yield await asyncio.to_thread(self.store.facts, made)
        finally:
            ending = asyncio.ensure_future(end())
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                await asyncio.wait({ending})  # whoever cancels twice has to wait as well
                raise
