"""One machine: its boxes, workspaces and records; implements Host.

Everything made for a box carries the installation's mark: its directory below `boxes/`, the keeper's
process id with its start time, the control groups. So a restart finds what is its own, and touches
nothing else.

On disk, below the data directory:

    host/installation        id of this installation
    workspace/AGENT/         durable workspace, owned by the sandbox user of that agent
    background/SESSION/      temporary one
    settings/NAME/           what boxes have as /etc (see settings.py)
    boxes/SANDBOX/           marks of a live box (see marks.py) and the records of its commands
    host/lineage/            whom sandboxes reached (see ways_out.py)
    layers/, history/        of workspaces that have snapshots (see stacks.py)
    volumes/VOLUME/          durable directories beside workspaces (see volumes.py)
"""

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Literal

from coldframe.contract.command import CommandEvent
from coldframe.contract.errors import GuestLost, InvalidArgument, NotFound, WrongState
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.network import NetworkAccess, NetworkAnswer, NetworkNews, NetworkPage, NetworkQuestion
from coldframe.contract.policy import Label
from coldframe.contract.pool import PoolStatus
from coldframe.contract.ports import Box, BoxLife, BoxStatus
from coldframe.contract.sandbox import SandboxSpec
from coldframe.contract.snapshot import WorkspacePoint
from coldframe.contract.template import STEP_BOXES
from coldframe.contract.volume import VolumeAttachment
from coldframe.host import report
from coldframe.host.box import KeeperBox
from coldframe.host.builder import Builder
from coldframe.host.cgroups import BoxGroups, Controllers, detect_controllers, remove_groups
from coldframe.host.construction import Construction, Site
from coldframe.host.doctor import Doctor
from coldframe.host.egress.packages.cache import FOLDER as PACKAGES
from coldframe.host.egress.packages.cache import kept_files
from coldframe.host.endings import Endings
from coldframe.host.layers.store import LayerStore
from coldframe.host.life import KeeperLife
from coldframe.host.machine_templates import MachineTemplates
from coldframe.host.marks import ENDING, GRAVE, KeeperMark, Marks
from coldframe.host.recipe_build import SealedSystem
from coldframe.host.removal import remove_directory, remove_tree, try_removal
from coldframe.host.settings import HostSettings
from coldframe.host.snapshots import MachineSnapshots, Occupant
from coldframe.host.stillness import StillBox, go_on, is_held
from coldframe.host.stored_commands import read_stored, remove_stored
from coldframe.host.strays import kill_strays, mark_of
from coldframe.host.templates.systems import Systems
from coldframe.host.volumes import MachineVolumes
from coldframe.host.ways_out import BROKER_UID, WaysOut, check_broker_uid
from coldframe.host.workshop import Workshop
from coldframe.host.workspaces import Workspaces

MOST_MOMENTS = 64
"""Kept for sweeps that may follow; whoever asked for an older one has ended meanwhile."""


@dataclass
class _Build:
    """A box that is being built."""

    owner: str
    """Agent or session whose workspace it is built on."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    is_wanted: bool = True


class _Occupied:
    """Implements Boxes for the snapshots of a machine."""

    def __init__(self, machine: "Machine") -> None:
        self._machine = machine

    def on(self, workspace: WorkspacePoint) -> list[Occupant]:
        return self._machine.occupants(workspace)

    def alone_on(self, workspace: WorkspacePoint) -> contextlib.AbstractAsyncContextManager[None]:
        return self._machine.alone_on(workspace)

    async def gone_from(self, workspace: WorkspacePoint) -> None:
        await self._machine.gone_from(workspace)


def _workspace_of(agent_id: str | None, session_id: str) -> WorkspacePoint:
    return WorkspacePoint(session_id=session_id) if agent_id is None else WorkspacePoint(agent_id=agent_id)


class Machine:
    """Implements Host in this process. As root it gives each workspace an unprivileged user of its own.

    *embedded* boxes end when this process does; others go on and are found again after a restart.
    *server_uid* is the user that may connect to keepers, if it is not this one. *own_disks* gives each new
    workspace a disk of its own, and refuses what cannot have one. *broker_uid* is whom the egress broker becomes as root.
    Up to *pool_size* boxes wait for sandboxes like the last ones, once it is prepared.
    """

    def __init__(
        self,
        data_dir: str,
        *,
        embedded: bool = False,
        server_uid: int | None = None,
        own_disks: bool = False,
        broker_uid: int = BROKER_UID,
        pool_size: int = 0,
    ) -> None:
        others = [] if server_uid is None else [server_uid]
        check_broker_uid(broker_uid, others)  # before anything is made
        self._data = os.path.abspath(data_dir)
        self._embedded = embedded
        self._root = os.getuid() == 0
        self._lives: dict[str, KeeperLife] = {}
        self._built: set[str] = set()
        """Boxes of this process. Those that it has found go on when it ends, also if its own do not."""
        self._holds: list[set[str]] = []
        """Sandbox, agent and session ids of boxes that are being built: nobody may sweep or delete beneath them."""
        self._sweeps: list[set[str]] = []
        self._moments: dict[str, set[str]] = {}
        """What each sweep that goes on must let alone: all that was being built since it was asked for."""
        self._builds: dict[str, _Build] = {}
        self._deleting: set[str] = set()
        self._background: set[asyncio.Future[None]] = set()
        self._steps: dict[str, asyncio.Event] = {}
        """By agent or session: what is done to a workspace alone. Nobody builds on it until that is over."""
        for name in ("", "host", "workspace", "background", "boxes", "settings"):
            path = os.path.join(self._data, name)
            os.makedirs(path, mode=0o711, exist_ok=True)
        os.chmod(os.path.join(self._data, "host"), 0o700)
        if self._root:
            for name in ("workspace", "background", "boxes", "settings"):
                os.chmod(os.path.join(self._data, name), 0o711)
            self._check_traversable()
        self.workspaces = Workspaces(self._data, own_disks=own_disks)
        self.installation = self._installation_id()
        self._controllers: Controllers = detect_controllers(self.installation)
        self._marks = Marks(os.path.join(self._data, "boxes"))
        self._settings = HostSettings(os.path.join(self._data, "settings"))
        self._builder = Builder(
            self.installation,
            self._controllers,
            self._settings,
            embedded=embedded,
            users=self.workspaces,
            pool_size=pool_size,
        )
        self._ways_out = WaysOut(
            os.path.join(self._data, "host", "lineage"),
            self._marks,
            broker_uid=broker_uid,
            others=others,
        )
        self.systems = Systems(self._data, lambda: self.layers)
        self.workspaces.spare_user = self._builder.pool.spare_user
        self.workspaces.taken_users, self.workspaces.systems = self.systems.users, self.systems
        self.volumes = MachineVolumes(self._data, own_disks=own_disks, holders=self._holders_of)
        self._endings = Endings(self._marks, self.workspaces, self._groups_of)
        self._endings.finish_former()
        site = Site(
            data=self._data,
            installation=self.installation,
            server_uid=server_uid,
            controllers=self._controllers,
            marks=self._marks,
            workspaces=self.workspaces,
            systems=self.systems,
            volumes=self.volumes,
            builder=self._builder,
            ways_out=self._ways_out,
            endings=self._endings,
            lives=self._lives,
            new_life=self._new_life,
            groups_of=self._groups_of,
        )
        self._construction = Construction(site)
        self._doctor = Doctor(site, self._construction, held=self._held, end_box=self.end_box)
        workshop = Workshop(site, self._construction, held=self._held, end_box=self.end_box)
        self.templates = MachineTemplates(self._data, workshop, self.systems, self._name_of, self._system_of)
        self.snapshots = MachineSnapshots(self.workspaces, self.systems, _Occupied(self))
        for name, mark in self._marks.all():
            go_on(self.still_box(name, mark))  # of a machine that was killed while it took a snapshot

    @property
    def layers(self) -> LayerStore:
        """Opened when it is first needed: a machine without snapshots has none. May block; raises Conflict."""
        return self.workspaces.stacks.store

    def _check_traversable(self) -> None:
        """bubblewrap resolves paths as the sandbox user, so each folder above must let it pass."""
        path = self._data
        while path != "/":
            if not os.stat(path).st_mode & 0o001:
                raise InvalidArgument(
                    f"the data directory lies below `{path}`, which only its owner may enter",
                    hint=f"choose another data directory, or `chmod o+x {path}`",
                    path=path,
                )
            path = os.path.dirname(path)

    def _installation_id(self) -> str:
        path = os.path.join(self._data, "host", "installation")
        try:
            with open(path, encoding="ascii") as source:
                return source.read().strip()
        except FileNotFoundError:
            made = secrets.token_hex(6)
            with open(path, "x", encoding="ascii") as target:
                target.write(made)
            return made

    # -- workspaces ----------------------------------------------------------------------------

    async def create_workspace(self, agent_id: str) -> None:
        await asyncio.to_thread(self.workspaces.make, self.workspaces.of_agent(agent_id))

    async def delete_workspace(self, agent_id: str) -> None:
        path = self.workspaces.of_agent(agent_id)
        await self._endings.finish(agent_id)
        while (step := self._steps.get(agent_id)) is not None:  # a snapshot is taken, or tidied up after
            await step.wait()
            await self._endings.finish(agent_id)
        if agent_id in self._building:
            raise WrongState("a sandbox is being built on the workspace", hint="terminate it first")
        for mark_id, mark in self._marks.all():
            if mark.owner == agent_id and mark.alive():
                raise WrongState(f"sandbox `{mark_id}` still uses the workspace", hint="terminate it first")
        self._deleting.add(agent_id)
        try:
            await asyncio.to_thread(self.workspaces.remove, path)
            await asyncio.to_thread(self.systems.remove, os.path.relpath(path, self._data))
        finally:
            self._deleting.discard(agent_id)

    async def append_history(self, owner: str, session_id: str | None, lines: bytes) -> None:
        if self.workspaces.have_disks or (session_id or owner) in self._steps or owner in self._steps:
            await asyncio.to_thread(self.workspaces.append_history, owner, session_id, lines)
        else:
            self.workspaces.append_history(owner, session_id, lines)

    @contextlib.asynccontextmanager
    async def alone_on(self, workspace: WorkspacePoint) -> AsyncIterator[None]:
        """Within, no box is built on a workspace, none is just being ended, and nobody else is alone on it."""
        owner = workspace.agent_id or workspace.session_id or ""
        while (step := self._steps.get(owner)) is not None:
            await step.wait()
        if owner in self._deleting:
            raise WrongState("the workspace is being deleted", hint="ask again when it is gone")
        over = self._steps[owner] = asyncio.Event()
        try:
            while building := [build for build in self._builds.values() if build.owner == owner]:
                await building[0].over.wait()
            await self._endings.finish(workspace.agent_id)
            yield
        finally:
            del self._steps[owner]
            over.set()

    async def gone_from(self, workspace: WorkspacePoint) -> None:
        await self._endings.finish(workspace.agent_id)

    def occupants(self, workspace: WorkspacePoint) -> list[Occupant]:
        """The boxes that live on a workspace."""
        found = []
        for name, mark in self._marks.all():
            if _workspace_of(mark.owner, mark.session_id) == workspace and (mark.alive() or mark.runs()):
                life = self._life(name) if mark.alive() and name not in self._endings else None
                found.append(Occupant(self.still_box(name, mark), life))
        return found

    def _name_of(self, workspace: WorkspacePoint) -> str:
        """As `Systems` has it."""
        if workspace.agent_id is not None:
            return os.path.relpath(self.workspaces.of_agent(workspace.agent_id), self._data)
        return os.path.relpath(self.workspaces.of_session(workspace.session_id or ""), self._data)

    @contextlib.contextmanager
    def _system_of(self, snapshot_id: str) -> Iterator[SealedSystem]:
        """What a snapshot holds of a system; it stays meanwhile. Raises NotFound: nothing, or there is no such snapshot."""
        with self.layers.system_layers(snapshot_id) as (template, layers):
            yield SealedSystem(template, tuple(one for one, _ in layers), tuple(users for _, users in layers))

    def _holders_of(self, volume_id: str) -> list[str]:
        """The boxes that have a volume."""
        return [
            name
            for name, mark in self._marks.all()
            if any(one["volume_id"] == volume_id for one in mark.volumes) and (mark.alive() or mark.runs())
        ]

    def _later(self, work: Coroutine[None, None, None]) -> None:
        """Something that nobody waits for, but `close`."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # -- boxes ---------------------------------------------------------------------------------

    async def create(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        *,
        session_id: str,
        network: NetworkAccess | None = None,
        anew: bool = False,
        volumes: Sequence[VolumeAttachment] = (),
    ) -> IsolationReport:
        report.refuse_unoffered(spec.isolation, spec.requires)
        owner = spec.agent_id or session_id
        if self.snapshots.settling:
            await self.snapshots.settle(_workspace_of(spec.agent_id, session_id))
        while (step := self._steps.get(owner)) is not None:
            await step.wait()
        if sandbox_id in self._builds:
            raise WrongState(f"the box `{sandbox_id}` is being built already")
        if spec.agent_id in self._deleting:
            raise WrongState("the workspace is being deleted", hint="ask again when it is gone")
        build = self._builds[sandbox_id] = _Build(owner)
        try:
            with self._held(sandbox_id, owner):
                if anew:
                    await self._finish_end(sandbox_id)
                await self._endings.end_former_writers({one.volume_id for one in volumes if one.mode == "rw"})
                self._built.add(sandbox_id)
                return await self._construction.build(
                    sandbox_id, spec, session_id, network, anew=anew, volumes=volumes, is_wanted=lambda: build.is_wanted
                )
        finally:
            del self._builds[sandbox_id]
            build.over.set()

    async def _finish_end(self, sandbox_id: str) -> None:
        """Of a box that there is to be another of."""
        await self._endings.finish_of(sandbox_id)
        if self._marks.read(sandbox_id) is None:  # a crash may have left half of it
            await self._endings.end(sandbox_id, keep_workspace=True)
            await self._endings.finish_of(sandbox_id)

    @contextlib.contextmanager
    def _held(self, *names: str) -> Iterator[None]:
        held = set(names)
        self._holds.append(held)
        for spared in self._sweeps:
            spared.update(held)
        try:
            yield
        finally:
            self._holds.remove(held)

    @property
    def _building(self) -> set[str]:
        return set().union(*self._holds)

    def _life(self, sandbox_id: str) -> "KeeperLife":
        life = self._lives.get(sandbox_id)
        mark = life.mark if life else self._marks.read(sandbox_id)
        if mark is None or sandbox_id in self._endings:
            raise NotFound(f"no box `{sandbox_id}` on this machine")
        if not mark.alive():
            self._lives.pop(sandbox_id, None)
            self._ways_out.shut_later(sandbox_id)
            raise GuestLost(f"the keeper of sandbox `{sandbox_id}` ended")
        if life is None:
            life = self._lives[sandbox_id] = self._new_life(sandbox_id, mark)
        return life

    def _new_life(self, sandbox_id: str, mark: KeeperMark) -> "KeeperLife":
        groups = self._groups_of(sandbox_id, mark)
        box = KeeperBox(sandbox_id, self._marks.directory(sandbox_id))
        return KeeperLife(mark, box, groups, self.end_box, partial(self._ways_out.captured, sandbox_id, mark))

    async def box(self, sandbox_id: str) -> Box:
        return self._life(sandbox_id).box

    async def life(self, sandbox_id: str) -> BoxLife:
        return self._life(sandbox_id)

    async def boxes(self) -> list[BoxStatus]:
        return [
            BoxStatus(
                sandbox_id=name,
                state=self._state_of(name, mark),
                created_at=datetime.fromisoformat(mark.created_at),
                owner=mark.owner,
            )
            for name, mark in self._marks.all()
            if name not in self._endings
        ]

    def _state_of(self, sandbox_id: str, mark: KeeperMark) -> Literal["running", "paused", "lost"]:
        """As the kernel has it: whoever paused a box may be gone. One that a snapshot holds still runs."""
        if not mark.serves():
            return "lost"
        if not self._groups_of(sandbox_id, mark).is_frozen():
            return "running"
        return "running" if is_held(self.still_box(sandbox_id, mark)) else "paused"

    def still_box(self, sandbox_id: str, mark: KeeperMark) -> StillBox:
        return StillBox(sandbox_id, self._marks.directory(sandbox_id), mark, self._groups_of(sandbox_id, mark))

    async def stored(self, sandbox_id: str, command_id: str, *, after_seq: int = -1) -> AsyncIterator[CommandEvent]:
        return read_stored(os.path.join(self._marks.directory(sandbox_id), "records"), command_id, after_seq=after_seq)

    async def forget_stored(self, sandbox_id: str, command_ids: Sequence[str] | None = None) -> None:
        directory = self._marks.directory(sandbox_id)
        if command_ids is not None:
            await asyncio.to_thread(remove_stored, os.path.join(directory, "records"), command_ids)
            return
        await self._endings.finish_of(sandbox_id)
        if self._marks.is_there(sandbox_id) or sandbox_id in self._building:
            raise WrongState(f"sandbox `{sandbox_id}` has a box", hint="terminate it first")
        await asyncio.to_thread(remove_directory, directory)

    async def end_box(self, sandbox_id: str, *, keep_workspace: bool = False) -> str | None:
        """End a box, if there is one or will be in a moment; returns as `Endings.end` says, with the session whose temporary
        workspace went with it."""
        build = self._builds.get(sandbox_id)
        if build is not None:  # whoever asked for it has left meanwhile
            build.is_wanted = False
            await build.over.wait()
        life = self._lives.pop(sandbox_id, None)
        if life is not None:
            life.box.close()
        mark = self._marks.read(sandbox_id)
        try:
            await self._endings.end(sandbox_id, keep_workspace=keep_workspace)
        finally:
            await self._ways_out.shut(sandbox_id)
        if mark is not None and mark.template is not None and mark.owner is None and not keep_workspace:
            workspace = os.path.relpath(self.workspaces.of_session(mark.session_id), self._data)
            await asyncio.to_thread(try_removal, f"the system of {workspace}", partial(self.systems.remove, workspace))
        if mark is not None and mark.owner is not None and self.snapshots.settling:
            self._later(self.snapshots.settle(_workspace_of(mark.owner, mark.session_id)))
        return mark.session_id if mark is not None and mark.owner is None and not keep_workspace else None

    async def moment(self) -> str:
        word = secrets.token_hex(8)
        self._moments[word] = spared = self._building  # what is built from now on is added
        self._sweeps.append(spared)
        if len(self._moments) > MOST_MOMENTS:
            self._forget_moment(next(iter(self._moments)))
        return word

    def _forget_moment(self, word: str) -> set[str] | None:
        spared = self._moments.pop(word, None)
        self._sweeps[:] = [one for one in self._sweeps if one is not spared]
        return spared

    async def sweep(self, *, keep_boxes: set[str], keep_sessions: set[str], since: str | None = None) -> list[str]:
        # Without a moment, whoever asks knew nothing of what is built from now on.
        spared = self._building if since is None else self._forget_moment(since)
        if spared is None:
            return []
        self._sweeps.append(spared)
        try:
            return await self._sweep(keep_boxes, keep_sessions, spared)
        finally:
            self._sweeps[:] = [one for one in self._sweeps if one is not spared]

    async def _sweep(self, keep_boxes: set[str], keep_sessions: set[str], spared: set[str]) -> list[str]:
        removed = []
        if self.workspaces.stacks.any():
            await asyncio.to_thread(lambda: self.layers)
        await self._endings.finish()
        for name in self._marks.half_ended():
            half = self._marks.read(name, ENDING)
            is_kept = half is not None and half.session_id in keep_sessions
            if await self._endings.attempt(name, self.end_box(name, keep_workspace=is_kept)):
                removed.append(f"box {name}")
        await self._endings.finish()
        boxes = os.path.join(self._data, "boxes")
        for name in sorted(os.listdir(boxes)):
            if GRAVE in name:
                grave = partial(remove_tree, os.path.join(boxes, name))
                if await asyncio.to_thread(try_removal, f"boxes/{name}", grave):
                    removed.append(f"boxes/{name}")
        for name in self._marks.names():
            if name in keep_boxes | spared or self._marks.is_there(name):
                continue
            if await self._endings.end_unmarked(name):
                removed.append(f"box {name}")
        for name, mark in self._marks.all():
            if name not in keep_boxes | spared:
                is_kept = mark.session_id in keep_sessions
                if await self._endings.attempt(name, self.end_box(name, keep_workspace=is_kept)):
                    removed.append(f"box {name}")
            elif not mark.alive():
                await self._endings.attempt(name, self._endings.end_lost(name, mark))
                await self._ways_out.shut(name)
        await self._endings.finish()
        strays = await asyncio.to_thread(kill_strays, mark_of(self.installation))
        removed += [f"process {pid}" for pid in strays]
        temporary = (mark for _, mark in self._marks.all() if mark.owner is None)
        spared.update(mark.session_id for mark in temporary if mark.runs())  # also of one that would not end
        for name in self.workspaces.strays(keep_sessions=keep_sessions | spared):
            if await asyncio.to_thread(try_removal, name, partial(self.workspaces.remove_stray, name)):
                removed.append(name)
        for name in await asyncio.to_thread(self.systems.strays, self.workspaces.is_known):
            if await asyncio.to_thread(try_removal, f"the system of {name}", partial(self.systems.remove, name)):
                removed.append(f"system of {name}")
        if self.workspaces.stacks.any():
            await asyncio.to_thread(self.systems.drop_unnamed)
        removed += await asyncio.to_thread(self.volumes.sweep)
        removed += await self.templates.sweep()
        removed += await self._remove_left_by_builds(spared)
        await asyncio.to_thread(self.workspaces.mount_all)
        if self.workspaces.stacks.any():
            self.snapshots.keep_up()
        if len(self._sweeps) - len(self._moments) == 1:
            self._builder.ahead.drop_names()
        for name, mark in self._marks.all():
            if mark.alive():
                spared.update((name, *(os.path.basename(path) for path in mark.groups.values())))
        if not self._building:  # nor does anybody begin to meanwhile, since nothing else goes on in this thread
            used = {mark.settings for _, mark in self._marks.all() if mark.settings is not None}
            self._settings.remove_unused(used | self._builder.pool.settings())
        gone = await asyncio.to_thread(
            remove_groups, self._controllers, self.installation, keep=spared, ahead=self._builder.ahead.group_names
        )
        removed += [f"groups of {name}" for name in gone]
        return removed

    async def _remove_left_by_builds(self, spared: set[str]) -> list[str]:
        """Nobody asks for the records of steps that a killed daemon was carrying out."""
        boxes, alive = os.path.join(self._data, "boxes"), {name for name, _ in self._marks.all()}
        left = [name for name in os.listdir(boxes) if name.startswith(STEP_BOXES) and name not in spared | alive]
        removed = []
        for name in sorted(left):
            removal = partial(remove_directory, os.path.join(boxes, name))
            if await asyncio.to_thread(try_removal, f"boxes/{name}", removal):
                removed.append(f"boxes/{name}")
        return removed

    def _groups_of(self, sandbox_id: str, mark: KeeperMark | None) -> BoxGroups:
        groups = BoxGroups(self._controllers, self.installation, sandbox_id)
        if mark is not None:
            groups.paths = mark.groups
        return groups

    async def pool(self) -> PoolStatus:
        pool = self._builder.pool
        held = await asyncio.to_thread(pool.memory_bytes)
        return PoolStatus(
            size=pool.size, ready=len(pool.boxes()), used=pool.used, memory_bytes=held, refused=pool.refused
        )

    async def doctor(self) -> IsolationReport:
        """As `Doctor.examine`."""
        return await self._doctor.examine()

    # -- ways out ------------------------------------------------------------------------------

    async def use_network_rules(self, text: str) -> None:
        await asyncio.to_thread(self._builder.pool.empty)
        await self._ways_out.use_rules(text)

    async def raise_taint(self, sandbox_id: str, taint: Label) -> None:
        await self._ways_out.raise_taint(sandbox_id, taint)

    async def renew_session(self, sandbox_id: str, taint: Label) -> None:
        await self._ways_out.renew_session(sandbox_id, taint)

    async def withdraw_credential(self, name: str) -> None:
        await self._ways_out.withdraw_credential(name)

    def network_events(self) -> AsyncGenerator[NetworkQuestion | NetworkNews, None]:
        return self._ways_out.questions.events()

    async def answer(self, question_id: str, answer: NetworkAnswer) -> None:
        self._ways_out.questions.answer(question_id, answer)

    async def network_records(self, sandbox_id: str, *, after_seq: int = 0, limit: int = 1000) -> NetworkPage:
        return await self._ways_out.records(sandbox_id, after_seq=after_seq, limit=limit)

    async def cached_packages(self, digests: Sequence[str]) -> frozenset[str]:
        path = os.path.join(self._data, "host", PACKAGES)
        return frozenset(await asyncio.to_thread(kept_files, path, digests))

    async def forget_network_records(self, sandbox_id: str) -> None:
        await self._ways_out.forget(sandbox_id)

    async def prepare(self) -> None:
        """What the first sandbox would wait for."""
        await asyncio.to_thread(self._builder.prepare)

    async def close(self) -> None:
        """Let go of this process's part. Boxes go on, unless they are embedded and of this process: those end."""
        if self._embedded:
            for sandbox_id in self._built & self._lives.keys():
                await self.end_box(sandbox_id)
        await self._endings.finish()
        if self._background:
            await asyncio.wait(self._background)
        await self.snapshots.close()
        self.systems.close()
        await self.volumes.close()
        await self._ways_out.close()
        for life in self._lives.values():
            life.box.close()
        self._lives.clear()
        await asyncio.to_thread(self._builder.close)
        self._settings.close()
        await asyncio.to_thread(self.workspaces.stacks.unmount_idle)
        self.workspaces.stacks.close()
        if not any(mark.alive() for _, mark in self._marks.all()):
            remove_groups(self._controllers, self.installation, keep=set())
