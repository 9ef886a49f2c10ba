"""Builds of templates: begun, followed by whoever wants to and as often as they like, cancelled, and brought to their end.

What a build has said is kept by number, so that another client, or the same one later, sees all of it once and in order. A
build lives as long as the server that began it: one that a crash broke off is `failed` at the next start, and what it had
sealed serves the next attempt.
"""

import asyncio
import builtins
import contextlib
import hashlib
import json
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from datetime import datetime
from typing import Any, cast

from coldframe.contract.caller import Caller
from coldframe.contract.errors import (
    BuildFailed,
    ColdframeError,
    Conflict,
    DependencyMissing,
    HostUnreachable,
    Internal,
    InvalidArgument,
    LimitReached,
    NotFound,
    WrongState,
    next_action,
)
from coldframe.contract.policy import Label
from coldframe.contract.ports import Host
from coldframe.contract.template import (
    HOST,
    MOST_INPUT_BYTES,
    MOST_LINE,
    BuildEvent,
    BuildInfo,
    BuildLine,
    BuildLogPage,
    BuildOrder,
    BuildRequest,
    Recipe,
    StepEnd,
    TemplateFacts,
    describe_step,
)
from coldframe.control.build_contacts import BuildContacts
from coldframe.control.judged_acts import JudgedActs
from coldframe.control.ledger import Ledger, format_time
from coldframe.control.rights import require
from coldframe.control.snapshots import Snapshots
from coldframe.control.store import Store
from coldframe.control.template_rows import ADD_LINE, BUILD_FIELDS, LINES, BuildRow, builds, entry_of
from coldframe.control.template_tags import TemplateTags
from coldframe.control.templates import Templates

DEFAULT_BASE = "debian"
MOST_BUILDING = 4
"""At a time; each is a box with a whole processor's work."""
MOST_LINES = 200_000
"""Of one log that are kept; a build that says more goes on, and its log says so."""
MOST_LOOKED = 1000
"""Lines that one answer tells."""
MOST_LISTED = 100
AGAIN_S = 1.0
"""After the host could not be reached."""
FLUSH_S = 0.2
"""How long a line may wait for others before it is kept."""
RESERVED = frozenset({HOST, DEFAULT_BASE})
"""Names that are not built from recipes."""
_log = logging.getLogger(__name__)


class TemplateBuilds:
    """Those of one installation. Their right is `template.build`."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        templates: Templates,
        tags: TemplateTags,
        snapshots: Snapshots,
        judged: JudgedActs,
        host: Host,
        clock: Callable[[], datetime],
        sweep: Callable[[], Awaitable[object]],
        contacts: BuildContacts,
    ) -> None:
        """*sweep*: has the host remove what belongs to nothing."""
        self._store = store
        self._ledger = ledger
        self._templates = templates
        self._tags = tags
        self._sweep = sweep
        self._contacts = contacts
        self._sweeping: asyncio.Task[None] | None = None
        self._taking: asyncio.Task[None] | None = None
        self._snapshots = snapshots
        self._judged = judged
        self._host = host
        self._clock = clock
        self._running: dict[str, asyncio.Task[None]] = {}
        self._news: dict[str, asyncio.Event] = {}
        """Set when a build has said or done something; whoever waits then takes the next one."""
        self._cancelled: dict[str, str] = {}
        """By whom."""

    def start(self) -> None:
        """What was under way when the server stopped has failed."""
        error = BuildFailed(
            "the server ended while it was built",
            hint="build it again: the steps that were whole are kept",
            next_actions=[next_action("template.build", "builds it again")],
        )
        for row in self._rows("state = 'building'"):
            self._end(row.build_id, "failed", error=error)
        self._taking = asyncio.create_task(self._contacts.take(lambda build_id: build_id not in self._running))

    async def close(self) -> None:
        """Break them off: they are found `failed` at the next start."""
        others = (self._sweeping, self._taking)
        tasks = [*self._running.values(), *(one for one in others if one is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- inputs --------------------------------------------------------------------------------------------------------

    async def missing(self, caller: Caller, digests: tuple[str, ...]) -> tuple[str, ...]:
        """Which of these bytes have to be put here before a build. Raises GrantMissing."""
        require(caller, "template.build")
        return await self._host.templates.missing_inputs(digests)

    async def put(self, caller: Caller, sha256: str, content: AsyncIterable[bytes]) -> int:
        """Keep bytes for builds, under their digest; returns how many.

        Raises:
            GrantMissing: the caller may not build.
            InvalidArgument: they have another digest. TooLarge, LimitReached.
        """
        require(caller, "template.build")
        return await self._host.templates.put_input(sha256, _unbroken(content), most_bytes=MOST_INPUT_BYTES)

    # -- building ------------------------------------------------------------------------------------------------------

    async def begin(
        self,
        caller: Caller,
        request: BuildRequest,
        *,
        idempotency_key: str | None = None,
        build_id: str | None = None,
    ) -> BuildInfo:
        """Begin a build, and answer at once. The same key is the same build. *build_id* is of one that was announced.

        Raises:
            GrantMissing: the caller may not.
            Refused: a rule is against it; recorded.
            Conflict: that version is there already or is being built, or the key was used for something else.
            InvalidArgument: a file was not put here, or the name is none for recipes.
            NotFound: no such base or snapshot. WrongState: the snapshot is labelled, which templates are not.
            TemplateWithdrawn: the base is. LimitReached: too many are built now.
        """
        require(caller, "template.build")
        recipe = request.recipe
        if recipe.name in RESERVED:
            raise InvalidArgument(
                f"`{recipe.name}` is built by `coldframe setup`, and no name for a recipe",
                hint="give it another name",
                argument="name",
            )
        if build_id is not None:
            if known := self._made_before(build_id, recipe):
                return known
        elif idempotency_key is None:
            build_id = new_build_id()
        else:
            digest = hashlib.sha256(f"{caller.token_id}\0{idempotency_key}".encode()).hexdigest()
            build_id = f"bld_{digest[:20]}"
            if known := self._made_before(build_id, recipe):
                return known
        _, told = self._judged.allow_alone(
            caller, "build_template", {"name": recipe.name, "recipe_sha256": recipe.sha256}, subject=recipe.name
        )
        for tag in request.assign:
            self._tags.check(recipe.name, tag)
        base = await self._base_of(caller, recipe)
        if missing := await self._host.templates.missing_inputs(tuple(recipe.inputs)):
            raise InvalidArgument(
                f"{len(missing)} files of the recipe were not uploaded, among them the one with digest `{missing[0]}`",
                hint="upload them first; `coldframe template build` does",
                argument="recipe",
                missing=list(missing[:100]),
            )
        # from here to the row nothing else runs
        if known := self._made_before(build_id, recipe):
            return known
        if len(self._running) >= MOST_BUILDING:
            raise LimitReached(
                f"{MOST_BUILDING} templates are built now, which is the most",
                hint="wait for one of them to end",
                kind="template_builds",
                limit=MOST_BUILDING,
                used=len(self._running),
            )
        version = self._templates.free_version(recipe.name, recipe.version, self._building_versions(recipe.name))
        recipe = recipe.model_copy(update={"version": version})
        order = BuildOrder(build_id=build_id, recipe=recipe, base=base, no_cache=request.no_cache)
        with self._store.transaction(durable=True) as connection:
            connection.execute(
                builds.insert().values(
                    build_id=build_id,
                    name=recipe.name,
                    version=version,
                    state="building",
                    recipe=recipe.model_dump_json(),
                    recipe_sha256=recipe.sha256,
                    started_at=format_time(self._clock()),
                    started_by=caller.name,
                    steps=len(recipe.steps),
                    steps_done=0,
                    steps_cached=0,
                    last_seq=0,
                )
            )
            body = {
                "build_id": build_id,
                "name": recipe.name,
                "version": version,
                "recipe_sha256": recipe.sha256,
                "base": base,
                "snapshot_id": recipe.snapshot,
                "archive_sha256": recipe.archive,
                "steps": [describe_step(step) for step in recipe.steps],
                "caller": caller.name,
                **told,
            }
            self._ledger.append("template.build_started", build_id, body, connection=connection, durable=True)
        self._news[build_id] = asyncio.Event()
        drive = self._drive(order, caller.name, request)
        task = self._running[build_id] = asyncio.create_task(drive, name=build_id)
        task.add_done_callback(lambda _: self._settle(build_id))
        return self._row(build_id).info

    def _made_before(self, build_id: str, recipe: Recipe) -> BuildInfo | None:
        for row in self._rows("build_id = ?", build_id):
            if (row.recipe_sha256, row.name) != (recipe.sha256, recipe.name):
                raise Conflict("the key was used for another build", hint="use a new key for a new build")
            return row.info
        return None

    def _building_versions(self, name: str) -> set[str]:
        return {row.version for row in self._rows("name = ? AND state = 'building'", name)}

    async def _base_of(self, caller: Caller, recipe: Recipe) -> str | None:
        if recipe.archive is not None:
            return None
        if recipe.snapshot is None:
            return await self._templates.usable(recipe.base or DEFAULT_BASE)
        found = self._snapshots.ready(caller, recipe.snapshot)
        if found.label is not Label.PUBLIC:
            raise WrongState(
                f"snapshot `{recipe.snapshot}` is {found.label.value}, and a template has no label: whoever begins from it "
                "would not be labelled",
                hint="take a snapshot of a sandbox that has seen nothing but public data",
                snapshot_id=recipe.snapshot,
            )
        return None

    async def _drive(self, order: BuildOrder, by: str, request: BuildRequest) -> None:
        log = _Log(order.build_id, self._store, self._clock, self._news[order.build_id])
        facts: TemplateFacts | None = None
        error: ColdframeError | None = None
        is_cancelled = False
        try:
            async with log.flushing():
                for note in request.notes:
                    log.add(0, "build", note)
                events = cast("AsyncGenerator[BuildEvent, None]", self._host.templates.build(order))
                async with contextlib.aclosing(events) as source:
                    async for event in source:
                        if isinstance(event, BuildLine):
                            log.add(event.step, event.stream, event.text)
                        elif isinstance(event, StepEnd):
                            log.add(event.step, "build", _told_end(event))
                            log.flush(done=1, cached=int(event.was_cached))
                        else:
                            facts = event
        except asyncio.CancelledError:
            if order.build_id not in self._cancelled:  # the server stops
                raise
            is_cancelled = True
        except ColdframeError as failure:
            error = failure
            if isinstance(failure, HostUnreachable) and (self._sweeping is None or self._sweeping.done()):
                self._sweeping = asyncio.create_task(self._sweep_when_it_is_back())
            if isinstance(failure, BuildFailed | DependencyMissing):
                look = next_action("template.log", "shows the log of the build", build_id=order.build_id)
                failure.next_actions = [look]
        except Exception as failure:  # noqa: BLE001  the edge of a task: the build has failed, and says so
            _log.exception("build `%s` failed", order.build_id)
            error = Internal(f"the build failed: {type(failure).__name__}")
        if is_cancelled:
            self._end(order.build_id, "cancelled", by=self._cancelled[order.build_id])
        elif error is not None:
            self._end(order.build_id, "failed", error=error)
        elif facts is None:
            self._end(order.build_id, "failed", error=Internal("the build ended without a template"))
        else:
            self._end(order.build_id, "ready", facts=facts, order=order, by=by, assign=request.assign)
        await self._contacts.take(lambda build_id: build_id == order.build_id)

    async def _sweep_when_it_is_back(self) -> None:
        """A step that ran when its daemon was killed runs on until somebody says that it belongs to nothing."""
        while True:
            try:
                await self._sweep()
                await self._contacts.take(lambda build_id: build_id not in self._running)
                return
            except HostUnreachable:
                await asyncio.sleep(AGAIN_S)
            except ColdframeError:
                _log.exception("what a build has left could not be removed; the next start tries again")
                return

    def _settle(self, build_id: str) -> None:
        task = self._running.pop(build_id)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the end of build `%s` could not be recorded", build_id, exc_info=error)
        by = self._cancelled.pop(build_id, None)
        if task.cancelled() and by is not None:  # before it had taken its first step
            self._end(build_id, "cancelled", by=by)
        self._news.pop(build_id).set()

    def _end(
        self,
        build_id: str,
        state: str,
        *,
        error: ColdframeError | None = None,
        facts: TemplateFacts | None = None,
        order: BuildOrder | None = None,
        by: str | None = None,
        assign: tuple[str, ...] = (),
    ) -> None:
        values: dict[str, Any] = {"state": state, "ended_at": format_time(self._clock())}
        body: dict[str, Any] = {"build_id": build_id, "state": state}
        if by is not None:
            body["caller"] = by
        if error is not None:
            step = error.facts.get("step")
            values |= {"error": json.dumps(error.to_wire()), "failed_step": step if isinstance(step, int) else None}
            body |= {"code": error.code, "message": error.message, "step": values["failed_step"]}
        with self._store.transaction(durable=True) as connection:
            if facts is not None and order is not None and by is not None:
                values["digest"] = facts.digest
                row = self._templates.add(facts, order, by, connection)
                body |= {"digest": facts.digest, "name": row.name, "version": row.version, "bytes": facts.bytes}
                self._tags.move(row, assign, by, connection)
            connection.execute(builds.update().where(builds.c.build_id == build_id).values(values))
            kind = "template.built" if state == "ready" else f"template.build_{state}"
            self._ledger.append(kind, build_id, body, connection=connection, durable=True)

    async def cancel(self, caller: Caller, build_id: str) -> BuildInfo:
        """End a build; one that is over stays as it is. Whole steps are kept. Raises GrantMissing, NotFound."""
        require(caller, "template.build")
        self._row(build_id)
        task = self._running.get(build_id)
        if task is not None:
            if build_id not in self._cancelled:  # once: it has a box to end
                self._cancelled[build_id] = caller.name
                task.cancel()
            await asyncio.wait({task})
        return self._row(build_id).info

    # -- looking -------------------------------------------------------------------------------------------------------

    def list(self, caller: Caller, *, name: str | None = None) -> builtins.list[BuildInfo]:
        """The newest MOST_LISTED, newest first. Raises GrantMissing."""
        require(caller, "template.read")
        order = f"ORDER BY started_at DESC, rowid DESC LIMIT {MOST_LISTED}"
        if name is None:
            return [row.info for row in self._rows(f"1 {order}")]
        return [row.info for row in self._rows(f"name = ? {order}", name)]

    async def get(self, caller: Caller, build_id: str, *, wait_s: float = 0) -> BuildInfo:
        """How it stands; with *wait_s*, when it is over, or after that time. Raises GrantMissing, NotFound."""
        require(caller, "template.read")
        self._row(build_id)
        task = self._running.get(build_id)
        if task is not None and wait_s:
            await asyncio.wait({task}, timeout=wait_s)
        return self._row(build_id).info

    async def log(
        self, caller: Caller, build_id: str, *, after_seq: int = 0, limit: int = MOST_LOOKED, wait_s: float = 0
    ) -> BuildLogPage:
        """What it has said after line *after_seq*; with *wait_s*, as soon as there is something, or it is over, or after that
        time. Raises GrantMissing, NotFound."""
        require(caller, "template.read")
        page = self._page(build_id, after_seq, limit)
        if page.entries or page.build.state != "building" or not wait_s:
            return page
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not page.entries and page.build.state == "building" and (news := self._news.get(build_id)):
                    await news.wait()
                    news.clear()
                    page = self._page(build_id, after_seq, limit)
        return self._page(build_id, after_seq, limit)

    def _page(self, build_id: str, after_seq: int, limit: int) -> BuildLogPage:
        row = self._row(build_id)
        lines = self._store.read(LINES, (build_id, after_seq, min(limit, MOST_LOOKED)))
        return BuildLogPage(entries=tuple(entry_of(line) for line in lines), build=row.info)

    def _row(self, build_id: str) -> BuildRow:
        for row in self._rows("build_id = ?", build_id):
            return row
        raise NotFound(
            f"no build `{build_id[:80]}`", next_actions=[next_action("template.list", "lists the templates")]
        )

    def _rows(self, where: str, *values: str) -> builtins.list[BuildRow]:
        rows = self._store.read(f"SELECT {BUILD_FIELDS} FROM template_builds WHERE {where}", values)  # noqa: S608
        return [BuildRow._make(row) for row in rows]


class _Log:
    """What one build says, kept a few lines at a time."""

    def __init__(self, build_id: str, store: Store, clock: Callable[[], datetime], news: asyncio.Event) -> None:
        self._build_id = build_id
        self._store = store
        self._clock = clock
        self._news = news
        self._seq = 0
        self._waiting: list[tuple[Any, ...]] = []
        self._flush_at: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def flushing(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self.flush()

    def add(self, step: int, stream: str, text: str) -> None:
        if self._seq > MOST_LINES:
            return
        self._seq += 1
        if self._seq > MOST_LINES:
            step, stream, text = 0, "build", f"the log is longer than {MOST_LINES} lines; what follows is not kept"
        at = format_time(self._clock())
        kept = text[:MOST_LINE].encode("utf-8", "replace").decode()
        self._waiting.append((self._build_id, self._seq, at, step, stream, kept))
        if self._flush_at is None:
            self._flush_at = asyncio.get_running_loop().call_later(FLUSH_S, self.flush)

    def flush(self, *, done: int = 0, cached: int = 0) -> None:
        if self._flush_at is not None:
            self._flush_at.cancel()
            self._flush_at = None
        if not self._waiting and not done:
            return
        lines, self._waiting = self._waiting, []
        with self._store.transaction() as connection:
            self._store.raw.executemany(ADD_LINE, lines)
            connection.execute(
                builds.update()
                .where(builds.c.build_id == self._build_id)
                .values(
                    last_seq=self._seq if self._seq <= MOST_LINES else MOST_LINES + 1,
                    steps_done=builds.c.steps_done + done,
                    steps_cached=builds.c.steps_cached + cached,
                )
            )
        self._news.set()


def new_build_id() -> str:
    return f"bld_{secrets.token_hex(10)}"


def _told_end(end: StepEnd) -> str:
    return f"step {end.step}: as it was built before" if end.was_cached else f"step {end.step}: {end.duration_s:.1f} s"


async def _unbroken(content: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    try:
        async for part in content:
            yield part
    except ColdframeError:
        raise
    except Exception as error:
        raise InvalidArgument(f"the upload broke off: {type(error).__name__}", argument="body") from error
