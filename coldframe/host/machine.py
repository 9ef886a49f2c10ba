"""One machine: its boxes, workspaces and records; implements Host.

Everything made for a box carries the installation's mark: its directory below `boxes/`, the keeper's
process id with its start time, the control groups. So a restart finds what is its own, and touches
nothing else.

On disk, below the data directory:

    host/installation        id of this installation
    workspace/AGENT/         durable workspace, owned by the sandbox user of that agent
    background/SESSION/      temporary one
    boxes/SANDBOX/           keeper.sock, keeper.json (ending.json while it is removed), records/ (see guest/main.py)
"""

import asyncio
import contextlib
import json
import logging
import os
import resource
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pydantic import ValidationError

from coldframe.contract.command import CommandEvent, CommandResult, Contact, Ended, OutputChunk, Started
from coldframe.contract.errors import (
    Fact,
    GuestLost,
    InvalidArgument,
    IsolationUnavailable,
    NotFound,
    WrongState,
)
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.ports import Box, BoxLife, BoxStatus
from coldframe.contract.sandbox import Limits, SandboxSpec
from coldframe.guest.records import Record, read_record
from coldframe.guest.transcript import STREAMS, StoredTranscript
from coldframe.host import report, trials
from coldframe.host.box import KeeperBox
from coldframe.host.cgroups import (
    BoxGroups,
    Controllers,
    GroupLimits,
    detect_controllers,
    is_delegated_by_namespace,
    remove_groups,
)
from coldframe.host.confine import ConfineError
from coldframe.host.isolation import namespaces, programs
from coldframe.host.link import SOCKET_NAME
from coldframe.host.remedies import diagnose
from coldframe.host.removal import remove_directory, remove_tree
from coldframe.host.workspaces import HISTORY, PARTS, Workspaces

BUILD_TIMEOUT_S = 30.0
END_TIMEOUT_S = 10.0
ZYGOTE_END_S = 2.0
KEPT, ENDING = "keeper.json", "ending.json"
"""The mark of a box, and its name from when the box is gone until all that belonged to it is."""
BWRAP_NAME = os.path.basename(namespaces.BWRAP)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KeeperMark:
    """Who keeps a box, told so that a reused process id is not mistaken for it."""

    pid: int
    started: str
    created_at: str
    owner: str | None
    session_id: str
    uid: int
    init: int
    init_started: str
    limits: dict[str, Any]
    groups: dict[str, str]
    """Directory of the box's control group in each hierarchy: a later daemon may itself live in another group."""

    runtimes: list[str] | None = None
    """The only runtimes of the box; None for all programs of the machine."""

    def alive(self) -> bool:
        return process_start(self.pid) == self.started


class _Ending(NamedTuple):
    """A box that is being ended."""

    owner: str | None
    dead: "asyncio.Future[None]"
    """Every process in it is gone."""
    whole: "asyncio.Task[None]"


def process_start(pid: int) -> str | None:
    """Start time of a live process in clock ticks since boot; None if there is none (or a zombie)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as source:
            fields = source.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


class Machine:
    """Implements Host in this process. As root it gives each workspace an unprivileged user of its own.

    *embedded* boxes end when this process does; others go on and are found again after a restart.
    *server_uid* is the user that may connect to keepers, if it is not this one. *own_disks* gives each new
    workspace a disk of its own, and refuses what cannot have one.
    """

    def __init__(
        self,
        data_dir: str,
        *,
        embedded: bool = False,
        server_uid: int | None = None,
        own_disks: bool = False,
    ) -> None:
        self._data = os.path.abspath(data_dir)
        self._embedded = embedded
        self._root = os.getuid() == 0
        self._server_uid = server_uid
        self._lives: dict[str, KeeperLife] = {}
        self._endings: dict[str, _Ending] = {}
        self._lease_read, self._lease_write = os.pipe2(os.O_CLOEXEC)
        self._zygote: subprocess.Popen[bytes] | None = None
        self._zygote_socket: socket.socket | None = None
        self._zygote_lock = asyncio.Lock()
        self._building: set[str] = set()
        """Sandbox ids and agent ids of boxes that are being built: nobody may sweep or delete beneath them."""
        _allow_most_descriptors_in_flight()
        for name in ("", "host", "workspace", "background", "boxes"):
            path = os.path.join(self._data, name)
            os.makedirs(path, mode=0o711, exist_ok=True)
        os.chmod(os.path.join(self._data, "host"), 0o700)
        if self._root:
            for name in ("workspace", "background", "boxes"):
                os.chmod(os.path.join(self._data, name), 0o711)
            self._check_traversable()
        self.workspaces = Workspaces(self._data, own_disks=own_disks)
        self.installation = self._installation_id()
        self._controllers: Controllers = detect_controllers(self.installation)
        self._groups_hold_namespaces = is_delegated_by_namespace()
        self._finish_former_endings()

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

    async def _make_workspace(self, path: str, spec: SandboxSpec) -> None:
        """Whole, even if the caller leaves meanwhile; a temporary one goes again then."""
        parts = () if spec.background else PARTS

        def make() -> None:
            self.workspaces.make(path, parts=parts, disk_mib=spec.limits.disk_mib, in_use=in_use)

        def in_use() -> bool:
            return any(mark.owner == spec.agent_id and mark.alive() for _, mark in self._marks())

        if self.workspaces.have_disks and spec.agent_id is not None:
            await self._finish_endings(spec.agent_id)  # a disk that has to grow may not be in use
        making = asyncio.ensure_future(asyncio.to_thread(make))
        try:
            await asyncio.shield(making)
        except asyncio.CancelledError:
            await asyncio.wait({making})
            if spec.background:
                await asyncio.to_thread(self.workspaces.remove, path)
            raise

    async def delete_workspace(self, agent_id: str) -> None:
        path = self.workspaces.of_agent(agent_id)
        if agent_id in self._building:
            raise WrongState("a sandbox is being built on the workspace", hint="terminate it first")
        await self._finish_endings(agent_id)
        for mark_id, mark in self._marks():
            if mark.owner == agent_id and mark.alive():
                raise WrongState(f"sandbox `{mark_id}` still uses the workspace", hint="terminate it first")
        await asyncio.to_thread(self.workspaces.remove, path)

    async def append_history(self, owner: str, session_id: str | None, lines: bytes) -> None:
        if self.workspaces.have_disks:
            await asyncio.to_thread(self.workspaces.append_history, owner, session_id, lines)
        else:
            self.workspaces.append_history(owner, session_id, lines)

    # -- boxes ---------------------------------------------------------------------------------

    def _directory(self, sandbox_id: str) -> str:
        if not sandbox_id.replace("_", "").replace("-", "").isalnum():
            raise InvalidArgument("malformed sandbox id")
        return os.path.join(self._data, "boxes", sandbox_id)

    async def create(self, sandbox_id: str, spec: SandboxSpec, *, session_id: str) -> IsolationReport:
        report.refuse_unoffered(spec.isolation, spec.requires)
        held = {sandbox_id, spec.agent_id or session_id} - self._building
        self._building |= held
        try:
            return await self._create(sandbox_id, spec, session_id)
        finally:
            self._building -= held

    async def _create(
        self, sandbox_id: str, spec: SandboxSpec, session_id: str, *, is_refused_with_walls_missing: bool = True
    ) -> IsolationReport:
        if spec.background:
            workspace = self.workspaces.of_session(session_id)
        elif spec.agent_id is None:
            raise InvalidArgument("a sandbox needs an agent, or `background`")
        else:
            workspace = self.workspaces.of_agent(spec.agent_id)
        await self._make_workspace(workspace, spec)
        owner = os.stat(workspace)
        directory = self._directory(sandbox_id)
        try:
            os.mkdir(directory, 0o711)
        except FileExistsError:
            raise WrongState(f"there is a box `{sandbox_id}` already") from None
        try:
            measured = await self._build(sandbox_id, spec, session_id, workspace, (owner.st_uid, owner.st_gid))
            if is_refused_with_walls_missing:
                report.refuse_unless_enforced(measured)
            report.refuse_unless_met(measured, spec.requires)
            if spec.on_missing == "refuse":
                report.refuse_unless_hard(measured)
            return measured
        except BaseException:
            await asyncio.shield(self._discard(sandbox_id, workspace if spec.background else None))
            raise

    async def _build(
        self, sandbox_id: str, spec: SandboxSpec, session_id: str, workspace: str, owner: tuple[int, int]
    ) -> IsolationReport:
        directory = self._directory(sandbox_id)
        records = os.path.join(directory, "records")
        os.mkdir(records, 0o700)
        if self._root:
            os.chown(records, *owner)
        order = {
            "sandbox_id": sandbox_id,
            "installation": self.installation,
            "uid": owner[0],
            "gid": owner[1],
            "workspace": workspace,
            "history": os.path.join(workspace, HISTORY),
            "records": records,
            "tools": offered_tools(),
            "limits": spec.limits.model_dump(mode="json"),
            "memory_enforced": "memory" in self._controllers.controls,
            "runtimes": None if spec.runtimes is None else list(spec.runtimes),
            "libraries": await asyncio.to_thread(libraries_of, spec.runtimes or ()),
        }
        listener = self._listen(directory)
        try:
            async with self._zygote_lock:
                answer = await _unbroken(asyncio.to_thread(self._order_keeper, order, listener, spec.limits))
        finally:
            listener.close()
        if "ready" not in answer:
            raise _not_built(str(answer.get("failed", "no answer")))
        mark = KeeperMark(
            pid=answer["keeper"],
            started=process_start(answer["keeper"]) or "",
            created_at=datetime.now(UTC).isoformat(),
            owner=spec.agent_id,
            session_id=session_id,
            uid=owner[0],
            init=answer["init"],
            init_started=process_start(answer["init"]) or "",
            limits=spec.limits.model_dump(mode="json"),
            groups=BoxGroups(self._controllers, self.installation, sandbox_id).paths,
            runtimes=None if spec.runtimes is None else list(spec.runtimes),
        )
        path = os.path.join(directory, KEPT)
        with open(f"{path}.new", "w", encoding="utf-8") as target:
            json.dump(mark.__dict__, target)
        os.rename(f"{path}.new", path)
        life = self._new_life(sandbox_id, mark)
        measured = life.measure(answer["ready"])
        self._lives[sandbox_id] = life
        return measured

    def _listen(self, directory: str) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            listener.bind(f"/proc/self/fd/{folder}/{SOCKET_NAME}")
        finally:
            os.close(folder)
        path = os.path.join(directory, SOCKET_NAME)
        os.chmod(path, 0o600)
        if self._root and self._server_uid is not None:
            os.chown(path, self._server_uid, -1)
        listener.listen(128)
        return listener

    def _order_keeper(self, order: dict[str, Any], listener: socket.socket, limits: Limits) -> dict[str, Any]:
        """The whole conversation with a new keeper; blocking, on a worker thread."""
        groups = BoxGroups(self._controllers, self.installation, order["sandbox_id"])
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mine.settimeout(BUILD_TIMEOUT_S)
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        descriptors: list[tuple[str, int]] = []
        keeper = init = -1
        try:
            groups.create(
                GroupLimits(limits.memory_mib << 20, limits.pids, limits.cpus),
                owner_uid=order["uid"],
            )
            opened = groups.descriptors()
            descriptors += [(f"per_command:{name}", file) for name, file in opened.per_command]
            descriptors += [(f"attach_only:{name}", file) for name, file in opened.attach_only]
            files = [("listener", listener.fileno()), ("answer", theirs.fileno()), *descriptors]
            if self._embedded:
                files.append(("lease", self._lease_read))
            order["files"] = [name for name, _ in files]
            self._send_order(json.dumps(order).encode(), [file for _, file in files])
            theirs.close()
            hello = _heard(mine)
            keeper = os.pidfd_open(hello["keeper"])
            if self._groups_hold_namespaces:
                groups.enter(hello["keeper"])
                mine.send(b".")
            else:  # beside its work: the kernel takes 10 ms for a move, unless there was one just before
                mine.send(b".")
                groups.enter(hello["keeper"])
            begun = _heard(mine)
            with contextlib.suppress(ProcessLookupError):  # the keeper says why
                init = os.pidfd_open(begun["init"])
            _settle(groups, begun["init"], mine)
            return {**hello, **begun, **_heard(mine)}
        except (OSError, ConfineError, KeyError, ValueError) as error:
            for process in (keeper, init):  # bubblewrap's child is bound to the life of the keeper only at its end
                if process >= 0:
                    _kill(process)
            if self._zygote is not None:
                _kill_strays(self._zygote.pid)
            return {"failed": f"{error}"}
        finally:
            mine.close()
            theirs.close()
            for file in (keeper, init, *(file for _, file in descriptors)):
                if file >= 0:
                    os.close(file)

    def _send_order(self, message: bytes, files: list[int]) -> None:
        """Hand it to the zygote; a zygote that died meanwhile is started again, once."""
        try:
            socket.send_fds(self._zygote_channel(), [message], files)
        except OSError:
            self._end_zygote()
            socket.send_fds(self._zygote_channel(), [message], files)

    def _zygote_channel(self) -> socket.socket:
        if self._zygote_socket is not None and self._zygote is not None and self._zygote.poll() is None:
            return self._zygote_socket
        self._end_zygote()
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        program = (
            "import os, sys; "
            f"given = {theirs.fileno()}; given == 3 or (os.dup2(given, 3), os.close(given)); sys.path.append({home!r}); "
            "from coldframe.host.zygote import main; main()"
        )
        mine.setblocking(True)
        self._zygote = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program, f"coldframe-{self.installation}"],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"},
            start_new_session=True,
        )
        theirs.close()
        self._zygote_socket = mine
        return mine

    def _end_zygote(self) -> None:
        if self._zygote_socket is not None:
            self._zygote_socket.close()
            self._zygote_socket = None
        if self._zygote is not None:
            try:
                self._zygote.wait(ZYGOTE_END_S)
            except subprocess.TimeoutExpired:  # stopped by somebody, say
                self._zygote.kill()
                self._zygote.wait()
            self._zygote = None

    async def _discard(self, sandbox_id: str, background: str | None) -> None:
        """Leave nothing of a box that did not come to be."""
        directory = self._directory(sandbox_id)
        mark = self._mark(sandbox_id)
        if mark is not None:
            await self._end_keeper(mark)
        with contextlib.suppress(ConfineError):  # what told the failure counts; the next sweep has another try
            await asyncio.to_thread(self._groups_of(sandbox_id, mark).remove)
        await asyncio.to_thread(remove_directory, directory)
        if background is not None:
            await asyncio.to_thread(self.workspaces.remove, background)
        self._lives.pop(sandbox_id, None)

    def _mark(self, sandbox_id: str, file: str = KEPT) -> KeeperMark | None:
        try:
            with open(os.path.join(self._directory(sandbox_id), file), encoding="utf-8") as source:
                return KeeperMark(**json.load(source))
        except (OSError, ValueError, TypeError):
            return None

    def _marks(self) -> list[tuple[str, KeeperMark]]:
        found = []
        for name in sorted(os.listdir(os.path.join(self._data, "boxes"))):
            mark = self._mark(name) if ".gone-" not in name else None
            if mark is not None:
                found.append((name, mark))
        return found

    def _life(self, sandbox_id: str) -> "KeeperLife":
        life = self._lives.get(sandbox_id)
        mark = life.mark if life else self._mark(sandbox_id)
        if mark is None or sandbox_id in self._endings:
            raise NotFound(f"no box `{sandbox_id}` on this machine")
        if not mark.alive():
            self._lives.pop(sandbox_id, None)
            raise GuestLost(f"the keeper of sandbox `{sandbox_id}` ended")
        if life is None:
            life = self._lives[sandbox_id] = self._new_life(sandbox_id, mark)
        return life

    def _new_life(self, sandbox_id: str, mark: KeeperMark) -> "KeeperLife":
        groups = self._groups_of(sandbox_id, mark)
        return KeeperLife(self, sandbox_id, mark, groups, self._directory(sandbox_id))

    async def box(self, sandbox_id: str) -> Box:
        return self._life(sandbox_id).box

    async def life(self, sandbox_id: str) -> BoxLife:
        return self._life(sandbox_id)

    async def boxes(self) -> list[BoxStatus]:
        return [
            BoxStatus(
                sandbox_id=name,
                state="running" if mark.alive() else "lost",
                created_at=datetime.fromisoformat(mark.created_at),
                owner=mark.owner,
            )
            for name, mark in self._marks()
            if name not in self._endings
        ]

    async def stored(self, sandbox_id: str, command_id: str, *, after_seq: int = -1) -> AsyncIterator[CommandEvent]:
        return self._stored(os.path.join(self._directory(sandbox_id), "records"), command_id, after_seq)

    async def _stored(self, records: str, command_id: str, after_seq: int) -> AsyncIterator[CommandEvent]:
        """Records belong to the sandbox user, so they are opened without following links and parsed as hostile."""
        record = _read_record(records, command_id)
        if record is None or record.start is None:
            raise NotFound(f"no record of command `{command_id}`")
        try:
            at = datetime.fromisoformat(str(record.start.get("at")))
        except ValueError:
            raise GuestLost(f"the record of command `{command_id}` is damaged") from None
        yield Started(command_id=command_id, pid=None, at=at, attached=True)
        file = _open_record(records, f"{command_id}.out")
        if file is not None:
            transcript = StoredTranscript(file)
            try:
                number = 0
                while (chunk := transcript.next()) is not None:
                    if number > after_seq:
                        yield OutputChunk.model_validate(
                            {"seq": number, "stream": STREAMS[chunk[0]], "data": b""}
                        ).model_copy(update={"data": chunk[1]})
                    number += 1
            finally:
                transcript.close()
        record = _read_record(records, command_id)
        if record is not None and record.end is not None:
            try:
                result = CommandResult.model_validate(record.end.get("result"))
            except ValidationError:
                raise GuestLost(f"the record of command `{command_id}` is damaged") from None
            yield Ended(result=result)

    async def end_box(self, sandbox_id: str) -> None:
        """End a box and remove all of it but its records, and the temporary workspace of a background box.

        Returns when every process in it is gone, for this process is as good as not there from then on, and when the
        temporary workspace is. The kernel takes up to 30 ms more to let the keeper go (its mounts, its packet socket),
        and the groups after it: that goes on by itself, `close` and `sweep` wait for it, and after a crash the next
        start or sweep finishes it.
        """
        if sandbox_id not in self._endings:
            mark = self._mark(sandbox_id) or self._mark(sandbox_id, ENDING)
            if mark is None:
                return
            dead = asyncio.get_running_loop().create_future()
            task = asyncio.ensure_future(self._end(sandbox_id, mark, dead))
            self._endings[sandbox_id] = _Ending(mark.owner, dead, task)
            task.add_done_callback(lambda _: self._endings.pop(sandbox_id))
        ending = self._endings[sandbox_id]
        await asyncio.wait(
            {ending.dead, ending.whole} if ending.owner is not None else {ending.whole},
            return_when=asyncio.FIRST_COMPLETED,
        )
        if ending.whole.done():
            await ending.whole

    async def _end(self, sandbox_id: str, mark: KeeperMark, dead: "asyncio.Future[None]") -> None:
        try:
            life = self._lives.pop(sandbox_id, None)
            if life is not None:
                life.box.close()
            await _end_process(mark.init, mark.init_started, at_once=True)
            directory = self._directory(sandbox_id)
            with contextlib.suppress(FileNotFoundError):
                os.rename(os.path.join(directory, KEPT), os.path.join(directory, ENDING))
                os.unlink(os.path.join(directory, SOCKET_NAME))
            dead.set_result(None)
            await self._end_keeper(mark)
            await asyncio.to_thread(self._groups_of(sandbox_id, mark).remove)
            if mark.owner is None:
                await asyncio.to_thread(self.workspaces.remove, self.workspaces.of_session(mark.session_id))
            self._remove_traces(sandbox_id)
        except (OSError, ConfineError) as error:
            if not dead.done() or mark.owner is None:
                raise
            _log.warning(
                "what is left of sandbox `%s` could not be removed, a sweep tries again: %s", sandbox_id, error
            )

    def _half_ended(self) -> list[str]:
        """Boxes whose end was answered and not finished."""
        boxes = os.path.join(self._data, "boxes")
        names = [name for name in os.listdir(boxes) if ".gone-" not in name]
        return sorted(name for name in names if os.path.exists(os.path.join(boxes, name, ENDING)))

    def _finish_former_endings(self) -> None:
        """At a start: nobody else will come back to what the process before was about to remove."""
        for name in self._half_ended():
            mark = self._mark(name, ENDING)
            if mark is not None:
                for pid, started in ((mark.init, mark.init_started), (mark.pid, mark.started)):
                    _kill_if_same(pid, started)
                with contextlib.suppress(ConfineError):  # a sweep tries again
                    self._groups_of(name, mark).remove()
                    self._remove_traces(name)

    async def _finish_endings(self, owner: str | None = None) -> None:
        """Wait for those of one agent's boxes, or for all."""
        wholes = {one.whole for one in self._endings.values() if owner is None or one.owner == owner}
        if wholes:
            await asyncio.wait(wholes)

    def _remove_traces(self, sandbox_id: str) -> None:
        """Remove what tells of a live box, and keep its records."""
        for name in (SOCKET_NAME, KEPT, f"{KEPT}.new", ENDING):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self._directory(sandbox_id), name))

    async def _end_keeper(self, mark: KeeperMark) -> None:
        """Returns when box and keeper are gone. The keeper ends with its box, once it has written what it has to."""
        await _end_process(mark.init, mark.init_started, at_once=True)
        await _end_process(mark.pid, mark.started, at_once=False)

    async def _end_unmarked(self, sandbox_id: str) -> bool:
        """End the keeper of a box whose daemon was killed before it could write who keeps it; True if there was one."""
        directory = self._directory(sandbox_id)
        box = KeeperBox(sandbox_id, directory)
        try:
            await asyncio.wait_for(box.end(), 2.0)
        except (GuestLost, TimeoutError):
            return False
        finally:
            box.close()
        return True

    async def sweep(self, *, keep_boxes: set[str], keep_sessions: set[str]) -> list[str]:
        removed = []
        await self._finish_endings()
        for name in self._half_ended():
            await self.end_box(name)
            removed.append(f"box {name}")
        await self._finish_endings()
        boxes = os.path.join(self._data, "boxes")
        for name in sorted(os.listdir(boxes)):
            if ".gone-" in name:
                await asyncio.to_thread(remove_tree, os.path.join(boxes, name))
                removed.append(f"boxes/{name}")
            elif name in keep_boxes | self._building or self._mark(name) is not None:
                continue
            else:
                if await self._end_unmarked(name):
                    removed.append(f"box {name}")
                self._remove_traces(name)
        for name, mark in self._marks():
            if name not in keep_boxes | self._building:
                await self.end_box(name)
                removed.append(f"box {name}")
            elif not mark.alive():
                await self._end_keeper(mark)
                await asyncio.to_thread(self._groups_of(name, mark).remove)
        await self._finish_endings()
        for name in self.workspaces.strays(keep_sessions=keep_sessions | self._building):
            await asyncio.to_thread(self.workspaces.remove_stray, name)
            removed.append(name)
        await asyncio.to_thread(self.workspaces.mount_all)
        alive = {name for name, mark in self._marks() if mark.alive()} | self._building
        gone = await asyncio.to_thread(remove_groups, self._controllers, self.installation, keep=alive)
        removed += [f"groups of {name}" for name in gone]
        return removed

    def _groups_of(self, sandbox_id: str, mark: KeeperMark | None) -> BoxGroups:
        groups = BoxGroups(self._controllers, self.installation, sandbox_id)
        if mark is not None:
            groups.paths = mark.groups
        return groups

    async def doctor(self) -> IsolationReport:
        """Build a throw-away box, measure it and try the promises in it. A missing wall is told and not raised.

        Raises:
            IsolationUnavailable: no box can be built at all; with property, reason and remedy.
        """
        name = f"doctor-{secrets.token_hex(4)}"
        spec = SandboxSpec(background=True, limits=trials.LIMITS)
        self._building |= {name}
        try:
            measured = await self._create(name, spec, name, is_refused_with_walls_missing=False)
            tried = await trials.try_promises(self._lives[name].box)
        finally:
            await self.end_box(name)
            await asyncio.to_thread(remove_directory, self._directory(name))
            self._building -= {name}
        return measured.model_copy(update={"trials": tried})

    async def close(self) -> None:
        """Let go of this process's part. Boxes go on, unless they are embedded: those end."""
        if self._embedded:
            for sandbox_id in list(self._lives):
                await self.end_box(sandbox_id)
        await self._finish_endings()
        for life in self._lives.values():
            life.box.close()
        self._lives.clear()
        await asyncio.to_thread(self._end_zygote)
        if not any(mark.alive() for _, mark in self._marks()):
            remove_groups(self._controllers, self.installation, keep=set())
        os.close(self._lease_read)
        os.close(self._lease_write)


class KeeperLife:
    """Beginning and end of one box on this machine; implements BoxLife."""

    def __init__(self, machine: Machine, sandbox_id: str, mark: KeeperMark, groups: BoxGroups, directory: str) -> None:
        self.mark = mark
        self.box = KeeperBox(sandbox_id, directory)
        self._machine = machine
        self._sandbox_id = sandbox_id
        self._groups = groups

    def measure(self, evidence: dict[str, Any]) -> IsolationReport:
        limits = Limits.model_validate(self.mark.limits)
        return report.measure(
            self.mark.init,
            self.mark.pid,
            evidence,
            limits=limits,
            groups=self._groups,
            runtimes=self.mark.runtimes,
        )

    async def report(self) -> IsolationReport:
        return self.measure(await self.box.evidence())

    async def contacts(self) -> list[Contact]:
        return await self.box.contacts()

    async def end(self) -> None:
        await self._machine.end_box(self._sandbox_id)


def _not_built(failure: str) -> IsolationUnavailable:
    found = diagnose(failure)
    missing: dict[str, Fact] = {
        "property": found.name,
        "enforced": False,
        "reason": found.reason,
        "remedy": found.remedy,
    }
    return IsolationUnavailable(
        f"the sandbox could not be built: {failure}",
        hint=found.remedy + (f" ({found.caveat})" if found.caveat else ""),
        property=found.name,
        reason=found.reason,
        remedy=found.remedy,
        missing=[missing],
    )


def offered_tools() -> dict[str, str]:
    """Programs of this installation that boxes get beside the host's own /usr."""
    found = {}
    deno = os.path.join(os.path.dirname(sys.executable), "deno")
    if not os.path.exists(deno):
        deno = shutil.which("deno") or ""
    if deno and os.stat(deno).st_mode & 0o005 == 0o005:
        found["deno"] = deno
    return found


def libraries_of(runtimes: Iterable[str]) -> list[str]:
    """The files that the programs of these runtimes need to start, told by the machine's own loader.

    Raises:
        IsolationUnavailable: one of them is not on this machine.
    """
    tools = offered_tools()
    found: set[str] = set()
    for name in runtimes:
        if name not in tools:
            raise IsolationUnavailable(
                f"the sandbox is restricted to `{name}`, which this machine does not have",
                hint=f"install `{name}` beside this installation or on the PATH of the host daemon",
                property="programs",
            )
        try:
            listing = subprocess.run(["ldd", tools[name]], capture_output=True, text=True, check=True, env={})
        except (OSError, subprocess.CalledProcessError) as error:
            raise IsolationUnavailable(f"the libraries of `{name}` could not be listed", property="programs") from error
        found.update(programs.files_of(listing.stdout))
    return sorted(found)


def _open_record(records: str, name: str) -> int | None:
    if "/" in name:
        raise InvalidArgument("malformed command id")
    try:
        return os.open(os.path.join(records, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def _read_record(records: str, command_id: str) -> Record | None:
    if "/" in command_id:
        raise InvalidArgument("malformed command id")
    return read_record(records, command_id)


class _KeeperEnded(ValueError):
    """A keeper that is being built ended without a word."""


def _heard(answer: socket.socket) -> dict[str, Any]:
    """One message of a keeper that is being built.

    Raises:
        ValueError: it failed, in its words; _KeeperEnded if it has none.
    """
    try:
        message = answer.recv(16 << 20)
    except ConnectionResetError:  # told once; what it said before is still there
        message = answer.recv(16 << 20)
    if not message:
        raise _KeeperEnded("the keeper ended while it built the box")
    heard = json.loads(message)
    if "failed" in heard:
        raise ValueError(heard["failed"])
    return dict(heard)


def _settle(groups: BoxGroups, init: int, keeper: socket.socket) -> None:
    """Put the first process into its groups and say so. If that is gone, what the keeper says next is the reason."""
    try:
        groups.settle(init)
    except ConfineError:
        with contextlib.suppress(ConnectionError):
            keeper.shutdown(socket.SHUT_WR)
        with contextlib.suppress(_KeeperEnded):
            _heard(keeper)
        raise
    with contextlib.suppress(ConnectionError):
        keeper.send(b".")


def _kill_if_same(pid: int, started: str) -> None:
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            if process_start(pid) == started:
                _kill(process)
        finally:
            os.close(process)


async def _end_process(pid: int, started: str, *, at_once: bool) -> None:
    """Return when it is gone: killed now, or END_TIMEOUT_S from now if it does not end by itself."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if process_start(pid) != started:
            return
        if at_once or not await _ended(process, END_TIMEOUT_S):
            signal.pidfd_send_signal(process, signal.SIGKILL)
            await _ended(process, END_TIMEOUT_S)
    except ProcessLookupError:
        return
    finally:
        os.close(process)


async def _ended(process: int, timeout_s: float) -> bool:
    """Whether the process behind the descriptor ends within the time."""
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(process, gone.set)
    try:
        await asyncio.wait_for(gone.wait(), timeout_s)
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(process)
    return True


def _kill(process: int) -> None:
    """KILL the process behind the descriptor and wait until it is gone, at most END_TIMEOUT_S."""
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
    except ProcessLookupError:
        return
    gone = select.poll()  # select() takes no descriptor past 1023
    gone.register(process, select.POLLIN)
    gone.poll(END_TIMEOUT_S * 1000)


def _kill_strays(zygote: int) -> None:
    """Kill what bubblewrap left of boxes whose keepers died while it was at work.

    Its own process dies with the keeper, but the first process of the box may wait for it in vain; a killed keeper's
    children go to the zygote, whose own are keepers.
    """
    found = True
    while found:
        found = False
        for entry in os.listdir("/proc"):
            if entry.isdecimal():
                try:
                    with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as source:
                        name, _, rest = source.read().partition("(")[2].rpartition(")")
                    state, parent = rest.split()[:2]
                    if name == BWRAP_NAME and int(parent) == zygote and state not in "ZX":
                        process = os.pidfd_open(int(entry))
                        try:
                            _kill(process)
                        finally:
                            os.close(process)
                        found = True
                except (FileNotFoundError, ProcessLookupError):
                    continue


async def _unbroken(ordering: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """The answer about a new keeper. If the caller is cancelled meanwhile, the keeper that still comes is ended."""
    task = asyncio.ensure_future(ordering)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        answer = task.result()
        if "ready" in answer:
            keeper = os.pidfd_open(answer["keeper"])
            await asyncio.to_thread(_kill, keeper)
            os.close(keeper)
        raise


def _allow_most_descriptors_in_flight() -> None:
    """Raise the soft limit: descriptors on their way count per user, and without root the payload is the same user.

    The kernel compares that count with the limit of whoever sends. A payload that left a thousand of its own on
    the way kept this process from handing any to a new keeper (measured).
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
