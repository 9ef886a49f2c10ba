"""One build of a template: carries out a recipe, step by step, and seals what each has changed.

Each step runs as root of a throw-away box, upon the layers so far. Which layer came of it is kept (`templates/step_cache.py`), so
that a step is carried out again only if something before it or in it is another. Killed anywhere, whole layers are there and
else nothing; the next build goes on from them.
"""

import asyncio
import contextlib
import os
import shutil
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from coldframe.contract.command import CommandResult, CommandSpec, Ended, OutputChunk
from coldframe.contract.errors import (
    BuildFailed,
    ColdframeError,
    GuestLost,
    InvalidArgument,
    LimitReached,
    TemplateChanged,
    WrongState,
)
from coldframe.contract.ports import Box
from coldframe.contract.template import (
    MOST_LINE,
    BuildEvent,
    BuildLine,
    BuildOrder,
    EnvStep,
    FilesStep,
    Recipe,
    RunStep,
    Step,
    StepEnd,
    UnpackStep,
    describe_step,
    digest_of,
    template_digest,
)
from coldframe.host.layers.branch import Branch
from coldframe.host.layers.copies import copy_branch
from coldframe.host.layers.mapping import Users
from coldframe.host.sandbox_users import users_of_template
from coldframe.host.templates.id_range import own_range
from coldframe.host.templates.inputs import Inputs
from coldframe.host.templates.inventory import installed_in, refuse_differences
from coldframe.host.templates.placed_files import place_files
from coldframe.host.templates.recipe_steps import UNPACKED, VARIABLES, Act, Question, Running, acts_of, reason_in
from coldframe.host.templates.root_archive import read_root
from coldframe.host.templates.sealed_layers import Draft
from coldframe.host.templates.step_cache import StepCache, key_of
from coldframe.host.templates.store import Made, Template, Templates, distinct
from coldframe.host.workshop import LIMITS, Workshop

T = TypeVar("T")
MOST_LAYERS = 200
"""That a step stands on, its base among them: some more are mounted with those of a workspace, and one mount takes 220."""
KEPT_LINES = 40
"""Of what a step has said, in the error."""
_ANSWER_CHARACTERS = 4 * 1024 * 1024


class SealedSystem(NamedTuple):
    """What a snapshot has of a system: sealed layers upon a template."""

    template: str
    """Its digest."""
    layers: tuple[str, ...]
    """Directories, from the lowest up."""
    users: tuple[Users, ...]
    """Whose the files of each are."""


class Bench(NamedTuple):
    """What a build has to work with. *system_of* holds, as long as it is entered, what a snapshot has of a system."""

    store: Templates
    cache: StepCache
    inputs: Inputs
    workshop: Workshop
    system_of: Callable[[str], contextlib.AbstractContextManager[SealedSystem]]


class _Begun(NamedTuple):
    """What a recipe begins from."""

    base: Template | None
    layers: tuple[str, ...]
    """Digests of sealed layers upon it, from the lowest up."""


class RecipeBuild:
    """One of them. It tells *events* what happens, and *needed* the digests of all templates and layers that it has."""

    def __init__(
        self, bench: Bench, order: BuildOrder, events: "asyncio.Queue[BuildEvent | None]", needed: set[str]
    ) -> None:
        self._bench = bench
        self._store = bench.store
        self._order = order
        self._recipe: Recipe = order.recipe
        self._events = events
        self._needed = needed
        self._said: deque[str] = deque(maxlen=KEPT_LINES)
        self._step = 0
        self._is_broken_off = False

    async def carry_out(self) -> Template:
        """See `Templates.build`. Cancelled at any time it leaves nothing but whole layers, and nothing that runs."""
        base, layers = await self._begin()
        variables: dict[str, str] = dict(base.settings.env) if base is not None else {}
        for number, step in enumerate(self._recipe.steps, 1):
            self._step = number
            began = time.monotonic()
            layer, was_cached = await self._carry_out(step, base, layers, variables)
            layers = layers if layer is None else (*layers, layer)
            if isinstance(step, EnvStep):
                variables.update(step.variables)
            took_s = round(time.monotonic() - began, 3)
            await self._events.put(StepEnd(step=self._step, was_cached=was_cached, duration_s=took_s))
        self._step = 0
        return await self._thread(partial(self._make, base, layers))

    # -- what it begins from -----------------------------------------------------------------------------

    async def _begin(self) -> _Begun:
        if self._recipe.archive is not None:
            return _Begun(None, (await self._archived(self._recipe.archive),))
        if self._recipe.snapshot is not None:
            with self._bench.system_of(self._recipe.snapshot) as found:
                base = await asyncio.to_thread(self._checked, found.template)
                layers: tuple[str, ...] = ()
                for directory, users in zip(found.layers, found.users, strict=True):
                    layer = await self._seal(partial(_copy_layer, directory, users))
                    layers = layers if layer is None else (*layers, layer)
                return _Begun(base, layers)
        if self._order.base is None:
            raise InvalidArgument("a recipe begins from a template, an archive or a snapshot", argument="base")
        return _Begun(await asyncio.to_thread(self._checked, self._order.base), ())

    async def _archived(self, sha256: str) -> str:
        key = digest_of(["archive", sha256])
        known = None if self._order.no_cache else await asyncio.to_thread(self._cached, key)
        if known is not None and known[0] is not None:
            return known[0]
        await self._tell("unpack the archive")
        layer = await self._seal(partial(self._read_archive, sha256))
        assert layer is not None  # it has a bash
        await asyncio.to_thread(self._bench.cache.keep, key, layer)
        return layer

    def _read_archive(self, sha256: str, draft: Draft) -> Users:
        with open(self._bench.inputs.open(sha256), "rb") as source:
            ids = own_range()
            read_root(source, draft.files, (ids.first_uid, ids.first_gid))
            return users_of_template((ids.first_uid, ids.first_gid))

    def _place(self, step: FilesStep, directories: list[str], draft: Draft) -> Users:
        ids = own_range()
        place_files(step.files, directories, ids, self._bench.inputs.open, draft.files)
        return users_of_template((ids.first_uid, ids.first_gid))

    def _checked(self, digest: str) -> Template:
        self._needed.add(digest)
        found = self._store.get(digest)
        self._store.check(found)
        return found

    # -- steps -------------------------------------------------------------------------------------------

    async def _carry_out(
        self, step: Step, base: Template | None, layers: tuple[str, ...], variables: dict[str, str]
    ) -> tuple[str | None, bool]:
        """The layer that it has left, and whether that was known."""
        if isinstance(step, EnvStep):
            await self._tell(describe_step(step))
            return None, False
        base_digest = None if base is None else base.digest
        key = key_of(self._recipe, step, base=base_digest, layers=layers, variables=variables)
        known = None if self._order.no_cache else await asyncio.to_thread(self._cached, key)
        if known is not None:
            await self._tell(f"{describe_step(step)} (as before)")
            return known[0], True
        await self._tell(describe_step(step))
        self._said.clear()
        directories = self._directories(base, layers)
        if len(directories) > MOST_LAYERS:
            raise LimitReached(
                f"step {self._step} would stand on {len(directories)} layers, and {MOST_LAYERS} are the most",
                hint="put several steps into one, here or in the templates below",
                kind="template_layers",
                limit=MOST_LAYERS,
                used=len(directories),
                step=self._step,
            )
        if isinstance(step, FilesStep):
            layer = await self._seal(partial(self._place, step, directories))
        else:
            layer = await self._run_sealed(step, directories, base_digest, variables)
        await asyncio.to_thread(self._bench.cache.keep, key, layer)
        return layer, False

    async def _run_sealed(
        self, step: Running, directories: list[str], base_digest: str | None, variables: dict[str, str]
    ) -> str | None:
        ids = own_range()
        with contextlib.ExitStack() as opened:
            draft = await self._thread(partial(opened.enter_context, self._store.layers.draft()))
            digest = base_digest or digest_of(directories)
            put = partial(self._lay, step) if isinstance(step, UnpackStep) else None
            making = self._bench.workshop.box(
                *(draft, directories, ids),
                build_id=self._order.build_id,
                step=self._step,
                digest=digest,
                network=self._recipe.network,
                put=put,
            )
            async with making as (box, users):
                for act in acts_of(step, self._recipe.locked, keeps_home=self._recipe.home):
                    await self._run(box, step, act, variables)
            layer = await self._thread(partial(self._store.layers.seal, draft, users, ids, self._needed))
            await self._thread(opened.close)
            return layer

    def _lay(self, step: UnpackStep, target: str, root: tuple[int, int]) -> None:
        """The archive, where the step finds and removes it. It is read by nobody but the box, which is given a copy."""
        path = os.path.join(target, UNPACKED)
        with open(self._bench.inputs.open(step.sha256), "rb") as source, open(path, "xb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
            os.fchmod(copy.fileno(), 0o400)
            os.fchown(copy.fileno(), *root)

    async def _run(self, box: Box, step: Running, act: Act, variables: dict[str, str]) -> None:
        """Raises BuildFailed, DependencyMissing."""
        more = step.variables if isinstance(step, RunStep) else {}
        try:
            result = await self._follow(box, act, {**VARIABLES, **variables, **more}, self._tell)
        except GuestLost as error:
            raise self._failed(step, f"ended with its box: {error}") from error
        if result.ended == "exited" and result.exit_code == 0:
            return
        reason = reason_in(step, "\n".join(self._said), act)
        if isinstance(reason, Question):
            answer: list[str] = []

            async def keep(text: str, stream: str) -> None:
                if stream == "stdout" and sum(map(len, answer)) < _ANSWER_CHARACTERS:
                    answer.append(text)

            await self._follow(box, Act(reason.argv, 120.0), {**VARIABLES, **variables}, keep)
            reason = reason.understood("\n".join(answer))
        if reason is not None:
            reason.facts.update(step=self._step, log=list(self._said))
            raise reason
        raise self._failed(step, _how(result), result)

    async def _follow(
        self, box: Box, act: Act, variables: dict[str, str], tell: Callable[[str, Any], Awaitable[None]]
    ) -> CommandResult:
        spec = CommandSpec(
            command_id=f"step-{self._step}-{time.monotonic_ns()}",
            argv=act.argv,
            user=act.user,
            env=variables,
            stdin=act.stdin,
            timeout_s=act.timeout_s,
            leftovers="end",
            track_files=False,
        )
        lines = {"stdout": _Lines(), "stderr": _Lines()}
        result = None
        async for event in box.run(spec):
            if isinstance(event, OutputChunk):
                for text in lines[event.stream].add(event.data):
                    await tell(text, event.stream)
            elif isinstance(event, Ended):
                result = event.result
        for stream, rest in lines.items():
            for text in rest.finish():
                await tell(text, stream)
        if result is None:
            raise GuestLost("it ended under the call")
        return result

    def _failed(self, step: Step, how: str, result: CommandResult | None = None) -> BuildFailed:
        told = describe_step(step)
        error = BuildFailed(f"step {self._step} ({told[:200]}) {how}", step=self._step, log=list(self._said))
        if result is not None:
            error.facts.update(ended=result.ended, exit_code=result.exit_code)
        return error

    async def _tell(self, text: str, stream: Any = "build") -> None:
        if stream != "build":
            self._said.append(text)
        await self._events.put(BuildLine(step=self._step, stream=stream, text=text[:MOST_LINE]))

    # -- layers ------------------------------------------------------------------------------------------

    def _cached(self, key: str) -> tuple[str | None] | None:
        """A layer that is known and there; it stays meanwhile."""
        found = self._bench.cache.find(key)
        if found is None or found[0] is None:
            return found
        if not self._store.layers.hold(found[0], self._needed):
            return None
        try:
            self._store.layers.check(found[0], own_range())
        except TemplateChanged:
            return None  # made anew, and under another name if somebody has changed what it follows from
        return found

    async def _seal(self, fill: Callable[[Draft], Users]) -> str | None:
        """Of what is made here, without a box. *fill* tells whose it is."""

        def make() -> str | None:
            with self._store.layers.draft() as draft:
                return self._store.layers.seal(draft, fill(draft), own_range(), self._needed)

        return await self._thread(make)

    async def _thread(self, work: Callable[[], T]) -> T:
        """A step of the host's own that is not broken off; what goes wrong in it is the step's."""
        task = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._is_broken_off = True
            await asyncio.wait({task})
            task.exception()  # nobody else asks for it
            raise
        except ColdframeError as error:
            if self._step:
                error.facts.setdefault("step", self._step)
            raise

    def _directories(self, base: Template | None, layers: tuple[str, ...]) -> list[str]:
        """Of all layers, the highest first."""
        own = [self._store.layers.files(one) for one in reversed(layers)]
        return distinct(own if base is None else [*own, *base.layers, base.root])

    def _make(self, base: Template | None, layers: tuple[str, ...]) -> Template:
        installed = installed_in(self._directories(base, layers))
        if self._recipe.locked is not None:
            refuse_differences(installed, self._recipe.locked, () if base is None else base.installed)
        settings = self._recipe.settings
        if base is not None:
            env = {**base.settings.env, **settings.env}
            start, home = settings.start or base.settings.start, settings.home or base.settings.home
            settings = settings.model_copy(update={"env": env, "start": start, "home": home})
        origin = "archive" if self._recipe.archive else "snapshot" if self._recipe.snapshot else "recipe"
        made = Made(
            version=self._recipe.version,
            origin=origin,  # type: ignore[arg-type]
            base=None if base is None else base.digest,
            layers=layers,
            settings=settings,
            installed=tuple((one.manager, one.name, one.version, one.architecture) for one in installed),
            recipe_sha256=self._recipe.sha256,
            build_id=self._order.build_id,
        )
        if self._is_broken_off:
            raise WrongState("it was broken off before it had its name")
        self._needed.add(template_digest(made.base, made.layers, made.settings))  # until whoever asked has heard of it
        return self._store.make(self._recipe.name, made)


class _Lines:
    """Parts what a program writes into lines, and keeps no more of one than MOST_LINE characters."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_cut = False

    def add(self, piece: bytes) -> list[str]:
        *whole, rest = (self._rest + piece).split(b"\n")
        found = [self._text(line) for line in whole]
        if len(rest) > 4 * MOST_LINE:
            self._is_cut = True
            rest = rest[: 4 * MOST_LINE]
        self._rest = rest
        return found

    def finish(self) -> list[str]:
        return [self._text(self._rest)] if self._rest else []

    def _text(self, line: bytes) -> str:
        text = line.decode("utf-8", "replace").rstrip("\r")
        text = text.rpartition("\r")[2]  # as a terminal would show it
        is_cut, self._is_cut = self._is_cut, False
        mark = " … (cut)"
        return text[: MOST_LINE - len(mark)] + mark if is_cut or len(text) > MOST_LINE else text


def _how(result: CommandResult) -> str:
    if result.ended == "exited" and not result.out_of_memory:
        return f"ended with {result.exit_code}"
    if result.ended == "timed_out":
        return "took longer than it may"
    if result.out_of_memory:
        return f"had no memory left (it may have {LIMITS.memory_mib} MiB)"
    if result.limit is not None:
        return f"went over its limit of {result.limit.kind}"
    if result.ended == "not_started":
        return f"could not be started: {result.start_error}"
    return f"was ended ({result.ended})"


def _copy_layer(directory: str, users: Users, draft: Draft) -> Users:
    with Branch(directory) as branch:
        copy_branch(branch, draft.files)
    return users
