"""One new box, from the wish for it to its report: its workspace, its order to the builder, its mark, its way out.

Whoever fails or leaves on the way, nothing of it is left; what was there before, a workspace say, stays.
"""

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from coldframe.contract.errors import InvalidArgument, IsolationUnavailable, WrongState
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.network import NetworkAccess
from coldframe.contract.sandbox import SandboxSpec
from coldframe.contract.volume import VolumeAttachment
from coldframe.host import report
from coldframe.host.box_view import Surroundings, look_around, look_closer
from coldframe.host.builder import Builder
from coldframe.host.cgroups import BoxGroups, Controllers
from coldframe.host.confine import ConfineError
from coldframe.host.egress.arrivals import Arrivals
from coldframe.host.endings import Endings
from coldframe.host.life import KeeperLife
from coldframe.host.link import SOCKET_NAME
from coldframe.host.marks import HANDOVER_NAME, RECORDS, KeeperMark, Marks
from coldframe.host.offered_tools import NOTHING_DENIED, denied_here, lent_directories, libraries_of, offered_tools
from coldframe.host.outfit import Outfit, pack
from coldframe.host.pool import OWN_USER
from coldframe.host.processes import process_start
from coldframe.host.removal import remove_directory
from coldframe.host.strays import mark_of
from coldframe.host.templates.id_range import own_range, take_back
from coldframe.host.templates.systems import Prepared, Systems
from coldframe.host.volumes import MachineVolumes
from coldframe.host.ways_out import WaysOut
from coldframe.host.workspaces import PARTS, Workspaces

Preparing = Callable[[tuple[int, int], str], Prepared]
"""Makes the system of a box ready, given its sandbox user and an empty directory to mount it at. Blocking."""


class _Settled(NamedTuple):
    """A box that stands, and how far it is the machine's."""

    mark: KeeperMark
    measured: IsolationReport | None = None
    failure: OSError | None = None
    """That kept its mark from being written."""


class Site(NamedTuple):
    """Where boxes are built: what a machine has for all of them."""

    data: str
    installation: str
    server_uid: int | None
    controllers: Controllers
    marks: Marks
    workspaces: Workspaces
    systems: Systems
    volumes: MachineVolumes
    builder: Builder
    ways_out: WaysOut
    endings: Endings
    lives: dict[str, KeeperLife]
    """Of its boxes, by sandbox id; a box that stands is added."""
    new_life: Callable[[str, KeeperMark], KeeperLife]
    groups_of: Callable[[str, KeeperMark | None], BoxGroups]


class Construction:
    """Builds boxes on a *site*."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._data = site.data
        self._root = os.getuid() == 0
        self._marks = site.marks
        self._workspaces = site.workspaces
        self._endings = site.endings
        self._ways_out = site.ways_out

    async def _make_workspace(self, path: str, spec: SandboxSpec, *, anew: bool) -> None:
        """Whole, even if the caller leaves meanwhile; a temporary one goes again then."""
        begins = spec.snapshot is not None and not anew
        if not begins and self._workspaces.is_whole(path):
            return
        parts = () if spec.background else PARTS

        def make() -> None:
            self._workspaces.make(
                path,
                parts=parts,
                disk_mib=spec.limits.disk_mib,
                in_use=in_use,
                snapshot_id=spec.snapshot,
                begins=begins,
            )

        def in_use() -> bool:
            return any(mark.owner == spec.agent_id and mark.alive() for _, mark in self._marks.all())

        if self._workspaces.have_disks and spec.agent_id is not None:
            await self._endings.finish(spec.agent_id)  # a disk that has to grow may not be in use
        making = asyncio.ensure_future(asyncio.to_thread(make))
        try:
            await asyncio.shield(making)
        except asyncio.CancelledError:
            await asyncio.wait({making})
            if spec.background:
                await asyncio.to_thread(self._workspaces.remove, path)
            raise

    async def build(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        session_id: str,
        network: NetworkAccess | None = None,
        *,
        is_refused_with_walls_missing: bool = True,
        anew: bool = False,
        volumes: Sequence[VolumeAttachment] = (),
        prepare: Preparing | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> IsolationReport:
        """What was measured of it. With *anew* its workspace stays whatever happens, and the records of one before it.

        *prepare* gives it another system than the workspace has. *is_wanted* is asked when it stands. Raises IsolationUnavailable, InvalidArgument, WrongState.
        """
        if spec.background:
            workspace = self._workspaces.of_session(session_id)
        elif spec.agent_id is None:
            raise InvalidArgument("a sandbox needs an agent, or `background`")
        else:
            workspace = self._workspaces.of_agent(spec.agent_id)
        await self._make_workspace(workspace, spec, anew=anew)
        owner = self._owner_of(workspace)
        next_user = OWN_USER if self._workspaces.begin_use(workspace) and self._root else owner[0]
        directory = self._marks.directory(sandbox_id)
        if os.path.lexists(directory):
            if not anew or self._marks.is_there(sandbox_id):
                raise WrongState(f"there is a box `{sandbox_id}` already")
            await self._endings.end_unmarked(sandbox_id)  # of a machine that was killed while it built
            await asyncio.to_thread(self._site.groups_of(sandbox_id, None).remove)
        elif (
            network is not None or spec.template != "host"
        ):  # it holds what the box is built with, and not only what it is served by
            os.mkdir(directory, 0o711)
        try:
            building = partial(self._build, sandbox_id, spec, session_id, workspace, owner, network, volumes, prepare)
            if is_refused_with_walls_missing:
                building = partial(building, next_user=next_user)
            if network is None:
                measured = await building()
            else:
                async with self._ways_out.outfit(sandbox_id, network) as outfit:
                    measured = await building(outfit)
            if not is_wanted():
                raise WrongState(f"the box `{sandbox_id}` was ended while it was built")
            if is_refused_with_walls_missing:
                report.refuse_unless_enforced(measured)
            report.refuse_unless_met(measured, spec.requires)
            if spec.on_missing == "refuse":
                report.refuse_unless_hard(measured)
            return measured
        except BaseException:
            if anew:
                await asyncio.shield(self.discard_box(sandbox_id))
            else:
                await asyncio.shield(self._discard(sandbox_id, workspace if spec.background else None))
            raise

    async def _build(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        session_id: str,
        workspace: str,
        owner: tuple[int, int],
        network: NetworkAccess | None,
        volumes: Sequence[VolumeAttachment],
        prepare: Preparing | None,
        outfit: Outfit | None = None,
        *,
        next_user: int | None = None,
    ) -> IsolationReport:
        directory = self._marks.directory(sandbox_id)
        order: dict[str, Any] = {
            "sandbox_id": sandbox_id,
            "mark": mark_of(self._site.installation),
            "uid": owner[0],
            "gid": owner[1],
            "workspace": workspace,
            "history": self._workspaces.history_of(workspace),
            "tools": offered_tools(),
            "lent": lent_directories() if spec.runtimes is None else {},
            "limits": spec.limits.model_dump(mode="json"),
            "tells_all": not self._root,
            "memory_enforced": "memory" in self._site.controllers.controls,
            "holds_outside": not self._root,
            "waits": False,
            "captured_ports": None if network is None else self._ways_out.ports(),
            "system": None,
            "runtimes": None if spec.runtimes is None else list(spec.runtimes),
            "volumes": [],
            "libraries": await asyncio.to_thread(libraries_of, spec.runtimes) if spec.runtimes else [],
            **(await asyncio.to_thread(denied_here, spec.denied_programs) if spec.denied_programs else NOTHING_DENIED),
        }
        with contextlib.ExitStack() as opened:
            more = []
            if outfit is not None:
                more.append(("outfit", pack(outfit)))
                opened.callback(os.close, more[-1][1])
                handover = opened.enter_context(_listen(directory, HANDOVER_NAME, None, socket.SOCK_SEQPACKET))
                more.append(("handover", handover.fileno()))
            system = await self._prepare_system(workspace, spec, owner, directory, prepare)
            if system is not None:
                more.append(("system", system.held))
                opened.callback(os.close, system.held)
                more += [] if system.users is None else [("users", system.users)]
                order["system"] = system.system._asdict()
            if volumes:
                root = None if system is None else system.system.first
                show = self._site.volumes.show
                order["volumes"], mounts = await asyncio.to_thread(show, volumes, owner, opened, root=root)
                more += mounts
            template = None if system is None else system.digest
            mark = partial(
                self._mark, spec=spec, session_id=session_id, uid=owner[0], template=template, volumes=volumes
            )
            occupant = _Occupant(self._site, sandbox_id, spec.agent_id, owner, mark, opened, is_noted=network is None)
            checking = None if system is None else asyncio.ensure_future(asyncio.to_thread(system.check))
            try:
                answer, settled = await self._site.builder.build(
                    order, occupant, spec.limits, more=more, next_user=next_user
                )
            finally:
                if checking is not None:
                    await asyncio.wait({checking})
                changed = None if checking is None else checking.exception()
            if changed is not None:  # nothing has been started in it yet
                if network is not None:
                    answer["arrivals"].close()
                await self._endings.end_keeper(settled.mark)
                raise changed
        if network is not None:
            arrivals: Arrivals = answer["arrivals"]
            kept = self._ways_out.mark_of(sandbox_id, network, arrivals)
            settled = _write(self._marks, sandbox_id, replace(settled.mark, network=kept.model_dump(mode="json")))
            if settled.failure is not None:
                arrivals.close()
        if settled.failure is not None:
            await self._endings.end_keeper(settled.mark)  # nobody would find it again
            raise settled.failure
        if network is not None:
            await self._ways_out.open(sandbox_id, spec.agent_id, kept, arrivals)
        life = self._site.new_life(sandbox_id, settled.mark)
        measured = settled.measured
        if measured is None:
            measured = await asyncio.to_thread(life.measure, answer["ready"])
        if self._root and not report.is_whole(measured):  # what could not be read from here the keeper tells when asked
            measured = await life.report()
        self._site.lives[sandbox_id] = life
        return measured

    def _owner_of(self, workspace: str) -> tuple[int, int]:
        """The sandbox user of a workspace. What was done to its directory inside, so that it could not be entered or is
        another's, is undone.
        """
        status = os.stat(workspace)
        if not self._root and status.st_uid != os.getuid():
            take_back(workspace, own_range())
            status = os.stat(workspace)
        owner = status.st_uid, status.st_gid
        known = self._site.systems.user_of(os.path.relpath(workspace, self._data)) or owner if self._root else owner
        if owner != known:
            os.chown(workspace, *known)
        if status.st_mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(workspace, stat.S_IMODE(status.st_mode) | stat.S_IRWXU)
        return known

    async def _prepare_system(
        self,
        workspace: str,
        spec: SandboxSpec,
        owner: tuple[int, int],
        directory: str,
        prepare: Preparing | None,
    ) -> Prepared | None:
        """Of a sandbox that has one of its own. Raises IsolationUnavailable, WrongState."""
        if spec.template == "host":
            return None
        if spec.denied_programs:
            raise IsolationUnavailable(
                "programs cannot be denied in a system that its root may change",
                hint="leave `template` out, or have the rules deny no programs to this agent",
                property="denied_programs",
                reason="root of the sandbox could install them anew",
                remedy="leave `template` out",
            )
        if self._workspaces.has_disk(workspace):
            raise IsolationUnavailable(
                "a system of its own is not kept on the disk of a workspace yet, so that its limit would not hold",
                hint="set `workspace_disk` to `directory`, or leave `template` out",
                property="limit:disk",
                reason="the workspace has a disk of its own",
                remedy="set `workspace_disk` to `directory`",
            )
        if spec.runtimes is not None:
            raise IsolationUnavailable(
                "a system that its root may change cannot be restricted to a few programs",
                hint="leave `template` out, or have the rules restrict this agent to no `runtimes`",
                property="programs",
                reason="root of the sandbox could install others",
                remedy="leave `template` out",
            )
        if spec.agent_id is not None:
            await self._endings.finish(spec.agent_id)  # a box that has just ended may still hold it
        place = os.path.join(directory, "system")
        with contextlib.suppress(FileExistsError):
            os.mkdir(place, 0o700)
        if prepare is None:
            prepare = partial(self._site.systems.prepare, os.path.relpath(workspace, self._data), spec.template)
        preparing = asyncio.ensure_future(asyncio.to_thread(prepare, owner, place))
        try:
            return await asyncio.shield(preparing)
        except asyncio.CancelledError:
            await asyncio.wait({preparing})
            if preparing.exception() is None:  # else it would be held as long as this process lives
                os.close(preparing.result().held)
            raise

    def _mark(
        self,
        answer: dict[str, Any],
        *,
        spec: SandboxSpec,
        session_id: str,
        uid: int,
        template: str | None,
        volumes: Sequence[VolumeAttachment],
    ) -> KeeperMark:
        return KeeperMark(
            pid=answer["keeper"],
            started=process_start(answer["keeper"]) or "",
            created_at=datetime.now(UTC).isoformat(),
            owner=spec.agent_id,
            session_id=session_id,
            uid=uid,
            init=answer["init"],
            init_started=process_start(answer["init"]) or "",
            limits=spec.limits.model_dump(mode="json"),
            groups=answer["groups"],
            runtimes=None if spec.runtimes is None else list(spec.runtimes),
            denied=list(spec.denied_programs),
            settings=answer["settings"],
            template=template,
            volumes=[one.model_dump(mode="json") for one in volumes],
        )

    async def _discard(self, sandbox_id: str, background: str | None) -> None:
        """Leave nothing of a box that did not come to be."""
        mark = await self.discard_box(sandbox_id)
        if mark is not None and mark.network is not None:
            await self._ways_out.forget(sandbox_id)
        await asyncio.to_thread(remove_directory, self._marks.directory(sandbox_id))
        if background is not None:
            await asyncio.to_thread(self._workspaces.remove, background)

    async def discard_box(self, sandbox_id: str) -> KeeperMark | None:
        """Leave of it what was there before it, its records for one. Returns its mark, if it had one already."""
        mark = self._marks.read(sandbox_id)
        if mark is not None:
            await self._endings.end_keeper(mark)
            if mark.network is not None:
                await self._ways_out.shut(sandbox_id)
        with contextlib.suppress(ConfineError):  # what told the failure counts; the next sweep has another try
            await asyncio.to_thread(self._site.groups_of(sandbox_id, mark).remove)
        self._marks.remove(sandbox_id)
        self._site.lives.pop(sandbox_id, None)
        return mark


class _Occupant:
    """Implements Occupant: whoever gets a box of this site. What it opens ends with *opened*. A box with a way out is not
    noted before that is there, and then measured by whoever opens it."""

    def __init__(
        self,
        site: Site,
        sandbox_id: str,
        agent_id: str | None,
        owner: tuple[int, int],
        mark: Callable[[dict[str, Any]], KeeperMark],
        opened: contextlib.ExitStack,
        *,
        is_noted: bool,
    ) -> None:
        self._site = site
        self._sandbox_id = sandbox_id
        self._agent_id = agent_id
        self._owner = owner
        self._mark = mark
        self._opened = opened
        self._is_noted = is_noted
        self._is_root = os.getuid() == 0
        self._furniture: list[tuple[str, int]] = []
        self._settled: _Settled | None = None
        self._around: Surroundings | None = None

    def furnish(self) -> list[tuple[str, int]]:
        """The same again, where a box that waited came to nothing."""
        directory = self._site.marks.directory(self._sandbox_id)
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o711)
        there = {name for name, _ in self._furniture}
        if "listener" not in there:
            listener = self._opened.enter_context(_listen(directory, SOCKET_NAME, self._site.server_uid))
            self._furniture.append(("listener", listener.fileno()))
        if "records" not in there:
            self._furniture.append(("records", self._open_records(directory)))
        if "digests" not in there and self._agent_id is not None:
            digests = self._site.workspaces.open_digests(self._agent_id)
            if digests is not None:
                self._opened.callback(os.close, digests)
                self._furniture.append(("digests", digests))
        return self._furniture

    def _open_records(self, directory: str) -> int:
        path = os.path.join(directory, RECORDS)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        records = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._opened.callback(os.close, records)
        if self._is_root:
            was = os.fstat(records).st_uid
            os.fchown(records, *self._owner)
            if was not in (0, self._owner[0]):
                hand_over(records, was, self._owner)
        return records

    def note(self, answer: dict[str, Any]) -> None:
        """Before it is whole: should this process be killed now, the mark tells whose keeper ends for want of it."""
        mark = self._mark(answer)
        self._settled = _write(self._site.marks, self._sandbox_id, mark) if self._is_noted else _Settled(mark)

    def look_around(self, answer: dict[str, Any]) -> None:
        """As root: without, the keeper tells in the end what cannot be read from here, and all is of one moment."""
        if self._is_root and self._is_noted:
            self._around = look_around(answer["init"])

    def look_closer(self, answer: dict[str, Any]) -> None:
        if self._around is not None:
            self._around = look_closer(answer["init"], answer["keeper"], self._around)

    def settle(self, answer: dict[str, Any]) -> _Settled:
        assert self._settled is not None
        if not self._is_noted or self._settled.failure is not None:
            return self._settled
        life = self._site.new_life(self._sandbox_id, self._settled.mark)
        return self._settled._replace(measured=life.measure(answer["ready"], self._around))


def _write(marks: Marks, sandbox_id: str, mark: KeeperMark) -> _Settled:
    try:
        marks.write(sandbox_id, mark)
    except OSError as error:
        return _Settled(mark, failure=error)
    return _Settled(mark)


def hand_over(directory: int, was: int, owner: tuple[int, int]) -> None:
    """Give files of the user *was* to *owner*, as records of before a sandbox was promoted: its keeper reads them on. Files alone that
    have no second name: who had the directory could have put anything there."""
    for name in os.listdir(directory):
        try:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        except OSError:  # a link, or a socket
            continue
        try:
            status = os.fstat(file)
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid == was:
                os.fchown(file, *owner)
        finally:
            os.close(file)


def _listen(directory: str, name: str, uid: int | None, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """For this user and, as root, *uid*."""
    path = os.path.join(directory, name)
    with contextlib.ExitStack() as undone:
        listener = undone.enter_context(socket.socket(socket.AF_UNIX, kind))
        folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            listener.bind(f"/proc/self/fd/{folder}/{name}")
        finally:
            os.close(folder)
        undone.callback(os.unlink, path)
        os.chmod(path, 0o600)
        if os.getuid() == 0 and uid is not None:
            os.chown(path, uid, -1)
        listener.listen(128)
        undone.pop_all()
    return listener
