"""Points of time of the workspaces of one machine; implements Snapshots.

What is done to a workspace is done alone: no box is built on it meanwhile, and none that is there ends unseen. Steps on disk
are those of `workspaces.py`, in threads; a step that was begun is ended, even if whoever asked leaves.

Upkeep goes on behind all of it: what is over is removed, what is there is counted and digested, long stacks are flattened
while nobody uses them, and workspaces of which a snapshot had to be copied become stacks, so that the next one need not be.
"""

import asyncio
import errno
import logging
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

from coldframe.contract.errors import (
    ColdframeError,
    HostUnreachable,
    InvalidArgument,
    LimitReached,
    NotFound,
    WrongState,
)
from coldframe.contract.files import Request
from coldframe.contract.model import Model
from coldframe.contract.policy import Label
from coldframe.contract.snapshot import (
    Change,
    ChangesPage,
    Point,
    SnapshotContents,
    SnapshotFacts,
    SnapshotPoint,
    SnapshotSystem,
    SnapshotWish,
    SystemPoint,
    WorkspacePoint,
)
from coldframe.host.layers import diff
from coldframe.host.layers.archive import Caps, Contents
from coldframe.host.layers.merged import MergedView
from coldframe.host.layers.moves import Wish
from coldframe.host.layers.omissions import OF_HOME, OF_SYSTEM
from coldframe.host.layers.records import Snapshot
from coldframe.host.layers.register import UNMEASURED, Sizes
from coldframe.host.layers.store import LayerStore
from coldframe.host.life import KeeperLife
from coldframe.host.reader import ANSWERED
from coldframe.host.reader_link import Reader
from coldframe.host.sandbox_users import FIRST_UID, UID_COUNT, users_of
from coldframe.host.stacks import HISTORY
from coldframe.host.stillness import StillBox, Stillness
from coldframe.host.system_views import Seen, SystemViews
from coldframe.host.templates.systems import Systems
from coldframe.host.workspaces import PARTS, Workspaces
from coldframe.policy.labels import join, parse

A = TypeVar("A", bound=Model)
R = TypeVar("R")
UPKEEP_EVERY_S = 3600.0
IMPORTER = FIRST_UID + UID_COUNT
"""As root, whose imported files are until a workspace is made of them: nobody's."""
MOST_LOOKS_AT_WORK = 2
"""For work that no commit has, each of which may take much memory: others wait their turn."""
MOST_AT_ONCE = 4
"""Steps, looks, and archives, of each; more wait."""
_PIECE_BYTES = 256 * 1024
_log = logging.getLogger(__name__)


class Occupant(NamedTuple):
    """A box on a workspace."""

    box: StillBox
    life: KeeperLife | None
    """None if its keeper has ended."""


class Boxes(Protocol):
    """What the machine tells of its boxes."""

    def on(self, workspace: WorkspacePoint) -> list[Occupant]:
        """Those that live."""
        ...

    def alone_on(self, workspace: WorkspacePoint) -> AbstractAsyncContextManager[None]:
        """Within, no box is built on it, none is just being ended, and nobody else is alone on it."""
        ...

    async def gone_from(self, workspace: WorkspacePoint) -> None:
        """Wait for those that have ended and are not gone yet: until then they hold what they used."""
        ...


class MachineSnapshots:
    """Those of one machine."""

    def __init__(self, workspaces: Workspaces, systems: Systems, boxes: Boxes) -> None:
        self._workspaces = workspaces
        self._stacks = workspaces.stacks
        self._systems = systems
        self._system_views = SystemViews(self._stacks, systems, _name_of)
        self._boxes = boxes
        self._reader = Reader()
        self.settling: set[str] = set()
        """Names of workspaces that become stacks before a box is built on them, or after the last one, if nobody uses them."""
        self._upkeep: asyncio.Task[None] | None = None
        self._upkeep_wanted = asyncio.Event()
        self._closing = threading.Event()
        self._looks_at_work = ThreadPoolExecutor(MOST_LOOKS_AT_WORK, "snapshots-unsaved")
        self._steps, self._looks, self._archives = (
            ThreadPoolExecutor(MOST_AT_ONCE, f"snapshots-{name}") for name in ("steps", "looks", "archives")
        )
        """Threads of their own: as many as anybody may ask for at once leave the machine those that it needs to build and end
        boxes. A tree may be large, a pattern slow, and whoever sends or takes an archive as slow as he likes."""

    # -- steps ---------------------------------------------------------------------------------

    async def take(self, workspace: WorkspacePoint, wish: SnapshotWish) -> SnapshotFacts:
        return await _to_the_end(self._take(workspace, wish))

    async def _take(self, workspace: WorkspacePoint, wish: SnapshotWish) -> SnapshotFacts:
        path = self._path(workspace)
        wanted = Wish(wish.name, wish.label.value, wish.reason, wish.expires_at)
        async with self._boxes.alone_on(workspace), AsyncExitStack() as held:
            occupants = self._boxes.on(workspace)
            for life in [one.life for one in occupants if one.life is not None]:
                await held.enter_async_context(life.turn)
            frozen = Stillness([one.box for one in occupants]) if occupants else None
            taken = await _thread(self._steps, partial(self._workspaces.take_snapshot, path, wanted, frozen))
        if frozen is not None and not taken.stack:
            self.settling.add(_name_of(workspace))
        self.keep_up()
        return await asyncio.to_thread(self._facts, taken)

    async def reset(
        self, workspace: WorkspacePoint, snapshot_id: str | None, *, discard: bool = False
    ) -> SnapshotFacts | None:
        return await _to_the_end(self._reset(workspace, snapshot_id, discard=discard))

    async def _reset(
        self, workspace: WorkspacePoint, snapshot_id: str | None, *, discard: bool
    ) -> SnapshotFacts | None:
        path = self._path(workspace)
        parts = PARTS if workspace.agent_id is not None else ()
        async with self._boxes.alone_on(workspace):
            if occupants := self._boxes.on(workspace):
                raise WrongState(
                    f"sandbox `{occupants[0].box.sandbox_id}` still uses the workspace",
                    hint="stop or terminate it first",
                )
            kept = await _thread(
                self._steps, partial(self._workspaces.reset, path, snapshot_id, parts=parts, discard=discard)
            )
        self.keep_up()
        return None if kept is None else await asyncio.to_thread(self._facts, kept)

    async def all(self) -> list[SnapshotFacts]:
        if not self._stacks.any():
            return []

        def told() -> list[SnapshotFacts]:
            sizes = self._store.sizes()
            return [self._facts(one, sizes) for one in self._store.snapshots()]

        return await asyncio.to_thread(told)

    async def remove(self, snapshot_id: str) -> None:
        def remove() -> None:
            if self._stacks.any():
                with suppress(NotFound):
                    self._store.remove_snapshot(snapshot_id)

        await asyncio.to_thread(remove)
        self.keep_up()

    async def settle(self, workspace: WorkspacePoint) -> None:
        """Let it become a stack if it waits for that and nobody uses it. It is as good a workspace if it cannot."""
        if _name_of(workspace) in self.settling:
            await _to_the_end(self._settle(workspace))

    async def _settle(self, workspace: WorkspacePoint) -> None:
        try:
            async with self._boxes.alone_on(workspace):
                if not self._boxes.on(workspace) and _name_of(workspace) in self.settling:
                    await _thread(self._steps, partial(self._workspaces.become_stack, self._path(workspace)))
                    self.settling.discard(_name_of(workspace))
        except ColdframeError as error:
            _log.warning("a workspace stays a directory for now, and its snapshots copies: %s", error)

    # -- reading -------------------------------------------------------------------------------

    async def changes(self, before: Point, after: Point, *, after_path: str | None = None, limit: int) -> ChangesPage:
        return await _thread(self._looks, partial(self._changes, before, after, after_path, limit))

    def _changes(self, before: Point, after: Point, after_path: str | None, limit: int) -> ChangesPage:
        if limit < 1:
            raise InvalidArgument("`limit` has to be at least 1")
        with self._both(before, after) as ((old, old_layers), (new, new_layers)):
            all_of_them = diff.changes(old, new, old_layers, new_layers, proceed=self._proceed)
            of_system = isinstance(before, SystemPoint)
            found = (one for one in all_of_them if of_system or one.path != HISTORY.encode())
            if after_path is not None:
                last = os.fsencode(after_path)
                if not any(one.path == last for one in found):
                    raise WrongState("what is compared has changed since the page before", hint="begin again")
            page = list(islice(found, limit + 1))
        changes = tuple(
            Change(
                path=os.fsdecode(one.path),
                change=one.change,
                kind=one.kind,
                bytes_before=one.bytes_before,
                bytes_after=one.bytes_after,
            )
            for one in page[:limit]
        )
        return ChangesPage(changes=changes, next_after=changes[-1].path if len(page) > limit else None)

    def _proceed(self) -> None:
        if self._closing.is_set():
            raise HostUnreachable("the machine is closing", hint="try again in a moment")

    @contextmanager
    def _both(self, before: Point, after: Point) -> Iterator[tuple[Seen, Seen]]:
        if isinstance(before, SystemPoint) and isinstance(after, SystemPoint):
            with self._system_views.compared(before, after) as seen:
                yield seen
        elif isinstance(before, SystemPoint) or isinstance(after, SystemPoint):
            raise InvalidArgument("a system is compared with a system")
        else:
            with self._seen(before) as old, self._seen(after) as new:
                yield old, new

    @contextmanager
    def _seen(self, point: WorkspacePoint | SnapshotPoint) -> Iterator[Seen]:
        if isinstance(point, SnapshotPoint):
            with self._snapshot_store().seen(point.snapshot_id) as seen:
                yield seen
            return
        path = self._path(point)
        stack = self._stacks.find(_name_of(point))
        if stack is not None:
            with self._store.seen(stack.id) as seen:
                yield seen
            return
        os.close(self._workspaces.open_top(path))  # it is there, and mounted if it has a disk
        with MergedView([path], [users_of(self._workspaces.owner_of(path))]) as view:
            yield view, (path,)

    async def ask(self, point: Point, request: Request[A]) -> A:
        if request.verb not in ANSWERED:
            raise InvalidArgument(f"files at rest do not answer `{request.verb[:40]}`")
        if isinstance(point, SystemPoint) and isinstance(point.of, WorkspacePoint):
            await self._boxes.gone_from(point.of)
        pool = self._looks_at_work if request.verb == "find_unsaved" else self._looks
        return await _thread(pool, partial(self._ask, point, request))

    def _ask(self, point: Point, request: Request[A]) -> A:
        if isinstance(point, SystemPoint):
            with self._system_views.opened(point) as (root, user):
                return self._reader.ask(root, user, request)
        with self._opened(point) as root:
            status = os.fstat(root)
            owner = (status.st_uid or IMPORTER, status.st_gid or IMPORTER) if os.geteuid() == 0 else None
            return self._reader.ask(root, owner, request)

    @contextmanager
    def _opened(self, point: WorkspacePoint | SnapshotPoint) -> Iterator[int]:
        """A descriptor of what a point looks like."""
        if isinstance(point, SnapshotPoint):
            with self._stacks.reading(self._snapshot_store().snapshot(point.snapshot_id)) as root:
                yield root
            return
        root = self._workspaces.open_top(self._path(point))
        try:
            yield root
        finally:
            os.close(root)

    # -- out and in ----------------------------------------------------------------------------

    async def export(self, point: Point) -> AsyncGenerator[bytes | SnapshotContents, None]:
        """Of a workspace the label in the archive is RESTRICTED: nobody here knows what it should be."""
        read, write = os.pipe2(os.O_CLOEXEC)
        pieces = asyncio.StreamReader(limit=_PIECE_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(pieces),
            open(read, "rb", buffering=0),  # noqa: SIM115 - closed with the transport
        )
        exporting = asyncio.ensure_future(_thread(self._archives, partial(self._export, point, write)))
        try:
            while piece := await pieces.read(_PIECE_BYTES):
                yield piece
            yield _contents(await exporting)
        finally:
            transport.close()  # the thread is told by its next write
            await asyncio.wait({exporting})
            if not exporting.cancelled():
                exporting.exception()

    def _export(self, point: Point, write: int) -> Contents:
        with open(write, "wb", buffering=_PIECE_BYTES) as target:
            if isinstance(point, SnapshotPoint):
                return self._snapshot_store().export(point.snapshot_id, target.write)
            if isinstance(point, SystemPoint):
                raise InvalidArgument("an archive holds the files of a workspace, and not its system")
            path, label = self._path(point), Label.RESTRICTED.value
            os.close(self._workspaces.open_top(path))
            stack = self._stacks.find(_name_of(point))
            if stack is not None:
                return self._store.export(stack.id, target.write, label=label)
            return self._store.export_directory(path, target.write, label=label)

    async def take_in(
        self,
        content: AsyncIterable[bytes],
        wish: SnapshotWish,
        *,
        most_bytes: int,
        most_files: int,
        expected: str | None = None,
    ) -> tuple[SnapshotFacts, SnapshotContents]:
        source = _Pulled(content)
        owner = (IMPORTER, IMPORTER) if os.geteuid() == 0 else None
        taking = asyncio.ensure_future(
            _thread(
                self._archives,
                lambda: self._store.take_in(
                    source,
                    Caps(most_bytes, most_files),
                    owner=owner,
                    wish=Wish(wish.name, wish.label.value, "imported", wish.expires_at),
                    judged=lambda told, wished: join(parse(told), parse(wished)).value,
                    expected=expected,
                ),
            )
        )
        try:
            snapshot, contents = await asyncio.shield(taking)
        finally:
            source.close()
            await asyncio.wait({taking})
        self.keep_up()
        return await asyncio.to_thread(self._facts, snapshot), _contents(contents)

    # -- upkeep --------------------------------------------------------------------------------

    def keep_up(self) -> None:
        """Let upkeep begin, or go on once more. Nobody waits for it."""
        self._upkeep_wanted.set()
        if self._upkeep is None and not self._closing.is_set():
            self._upkeep = asyncio.ensure_future(self._keep_up())

    async def _keep_up(self) -> None:
        while not self._closing.is_set():
            self._upkeep_wanted.clear()
            with _logged("layers"):
                await asyncio.to_thread(self._tidy)
            with _logged("layers"):
                for name in self._stacks.names():
                    with _logged(name):  # what an agent has put into its own is no reason to leave those of others
                        await self._flatten(name)
                for name in self._systems.names():
                    with _logged(f"the system of {name}"):
                        await self._flatten_system(name)
            with suppress(TimeoutError):
                async with asyncio.timeout(UPKEEP_EVERY_S):
                    await self._upkeep_wanted.wait()

    def _tidy(self) -> None:
        self._store.collect()
        for snapshot in self._store.snapshots():
            if self._closing.is_set():
                return
            with _logged(f"snapshot `{snapshot.id}`"), suppress(NotFound):  # removed meanwhile
                self._store.count(snapshot.id)
        self._store.digest(stopped=self._closing.is_set)

    async def _flatten(self, name: str) -> None:
        stack = self._stacks.find(name)
        if stack is None or not await asyncio.to_thread(self._store.wants_flattening, stack.id):
            return
        workspace = _workspace_of(name)
        assert workspace is not None
        async with self._boxes.alone_on(workspace):
            if not self._boxes.on(workspace):
                await _to_the_end(asyncio.to_thread(self._workspaces.flatten, self._path(workspace)))

    async def _flatten_system(self, name: str) -> None:
        stack_id, workspace = self._systems.stack_of(name), _workspace_of(name)
        if stack_id is None or workspace is None or not self._store.wants_flattening(stack_id):
            return
        below = await asyncio.to_thread(self._systems.below, self._store.stack(stack_id).template)
        async with self._boxes.alone_on(workspace):
            if not self._boxes.on(workspace):
                await _to_the_end(asyncio.to_thread(self._store.flatten, stack_id, below=below))

    async def close(self) -> None:
        self._closing.set()
        self._upkeep_wanted.set()
        if self._upkeep is not None:
            await asyncio.wait({self._upkeep})
        await asyncio.to_thread(self._reader.close)
        for pool in (self._steps, self._looks, self._archives, self._looks_at_work):
            pool.shutdown(wait=False)

    # -- inside --------------------------------------------------------------------------------

    @property
    def _store(self) -> LayerStore:
        return self._stacks.store

    def _snapshot_store(self) -> LayerStore:
        """For a snapshot that is to be there. Without any the store is not made to say that."""
        if not self._stacks.any():
            raise NotFound("there are no snapshots on this machine")
        return self._store

    def _path(self, workspace: WorkspacePoint) -> str:
        _name_of(workspace)
        if workspace.agent_id is not None:
            return self._workspaces.of_agent(workspace.agent_id)
        return self._workspaces.of_session(workspace.session_id or "")

    def _facts(self, snapshot: Snapshot, sizes: dict[str, Sizes] | None = None) -> SnapshotFacts:
        size = (self._store.sizes() if sizes is None else sizes).get(snapshot.id, UNMEASURED)
        label = Label.RESTRICTED if snapshot.reason == "discarded" and not snapshot.label else parse(snapshot.label)
        return SnapshotFacts(
            snapshot_id=snapshot.id,
            workspace=_workspace_of(snapshot.workspace),
            name=snapshot.name,
            label=label,
            reason=snapshot.reason,
            created_at=snapshot.created_at,
            expires_at=snapshot.expires_at,
            bytes=snapshot.bytes,
            files=snapshot.files,
            own_bytes=size.own,
            added_bytes=size.added,
            was_live=snapshot.was_live,
            frozen_ms=snapshot.frozen_ms,
            system=None if snapshot.system is None else SnapshotSystem(template_sha256=snapshot.system.template),
            left_out=OF_HOME if snapshot.system is None else (*OF_HOME, *OF_SYSTEM),
        )


@contextmanager
def _logged(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ColdframeError) as error:
        _log.warning("the upkeep of %s failed, and is tried again: %s", what, error)


class _Pulled:
    """An asynchronous stream as a thread reads it. To be made in the event loop."""

    def __init__(self, content: AsyncIterable[bytes]) -> None:
        self._loop = asyncio.get_running_loop()
        self._content = aiter(content)
        self._rest = memoryview(b"")
        self._closed = False

    def read(self, size: int) -> bytes:
        while not self._rest:
            if self._closed:
                raise OSError(errno.EPIPE, "the stream was left")
            pulling = asyncio.run_coroutine_threadsafe(self._next(), self._loop)
            piece = pulling.result()
            if piece is None:
                return b""
            self._rest = memoryview(piece)
        found, self._rest = bytes(self._rest[:size]), self._rest[size:]
        return found

    async def _next(self) -> bytes | None:
        if self._closed:  # left before this came to run
            raise OSError(errno.EPIPE, "the stream was left")
        self._pulling = asyncio.current_task()
        try:
            return await anext(self._content)
        except StopAsyncIteration:
            return None

    _pulling: "asyncio.Task[object] | None" = None

    def close(self) -> None:
        """Whoever reads is told at once."""
        self._closed = True
        if self._pulling is not None:
            self._pulling.cancel()


def _name_of(workspace: WorkspacePoint) -> str:
    if (workspace.agent_id is None) == (workspace.session_id is None):
        raise InvalidArgument("a workspace is of an agent, or of the session of a background sandbox")
    if workspace.agent_id is not None:
        return f"workspace/{workspace.agent_id}"
    return f"background/{workspace.session_id}"


def _workspace_of(name: str) -> WorkspacePoint | None:
    parent, _, rest = name.partition("/")
    if not rest:
        return None
    return WorkspacePoint(agent_id=rest) if parent == "workspace" else WorkspacePoint(session_id=rest)


def _contents(contents: Contents) -> SnapshotContents:
    return SnapshotContents(sha256=contents.sha256, files=contents.entries, bytes=contents.data_bytes)


async def _to_the_end(work: Coroutine[object, object, R]) -> R:
    """A step that was begun is ended, even if whoever waits for it leaves."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()
        raise


async def _thread(pool: ThreadPoolExecutor, work: Callable[[], R]) -> R:
    """In a thread; a disk that is full is told as such."""
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, work)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise LimitReached("the disk of the host has no room for it; nothing has changed") from error
        if error.errno in (errno.ENOENT, errno.ESTALE):
            raise WrongState(
                "the workspace changed while it was read", hint="try again, or take a snapshot first"
            ) from error
        raise
