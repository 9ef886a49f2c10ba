"""The commands of one sandbox: started, held while they run and for a while afterwards, recorded.

Also what is said of the sandbox around a command: which files it changed, whom it tried to reach. Both are
told apart by moments: what is known before the fork, and what is found once nobody of the command lives.
Records are files of `guest/records.py`; `ID.out` is the transcript, `ID.late` what adopted processes wrote
afterwards.
"""

import contextlib
import itertools
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from coldframe.guest import manifest
from coldframe.guest.box_paths import open_root
from coldframe.guest.command import Command, now
from coldframe.guest.contacts import ContactLog
from coldframe.guest.digests import KeptDigests
from coldframe.guest.facts import Named
from coldframe.guest.frames import write_json
from coldframe.guest.loop import IN, Loop
from coldframe.guest.path_watch import PathWatches
from coldframe.guest.paths import open_directory
from coldframe.guest.ports import find_ports
from coldframe.guest.presence import Presence
from coldframe.guest.ready_files import ReadyFiles
from coldframe.guest.records import Record, end_record, is_id, open_record, read_record
from coldframe.guest.refusals import Refusals
from coldframe.guest.shells import Entered, Shells
from coldframe.guest.spawn import BoxUser, ReadyPipes, Steps, steps_into
from coldframe.guest.temporary import weigh_temporary
from coldframe.guest.transcript import Transcript
from coldframe.guest.usage import Tree
from coldframe.guest.verbs import Failure
from coldframe.guest.watch import TreeWatch

MOST_BATCHES = 64
"""Of captured packets that are read when a command begins or ends."""
FLOOD_REST_S = 0.05
LOWERED_LIVE = ("wall_s", "cpu_s", "memory_mib", "disk_mib", "output_mib", "file_mib", "open_files")
"""Limits that can be lowered for the next command of a box that runs."""
PREPARED_ENTRIES, PREPARED_BYTES = 200, 4 << 20
"""A workspace of so much is scanned before anybody asks for a command: a few milliseconds at most."""
END_WITHIN_S = 10.0
"""Whoever says that the box ends has it ended by then, or it goes on."""
MOST_PATH_BYTES = 4000
MOST_END_BYTES = 64 * 1024
"""Of the end of a command that is kept as it is told."""
KEPT_COMMANDS = 64
"""Ended commands held in memory; older ones are read back from their records."""


class Quota(Protocol):
    """The disk limit of the workspace."""

    used: int | None
    limit_bytes: int

    def refuses(self, more_bytes: int) -> bool: ...

    def hold_to(self, limit_bytes: int) -> None: ...


class Handover(NamedTuple):
    """Who comes to this listener is given the sockets of the box's way out. No file leads the server there."""

    listener: socket.socket
    give: Callable[[socket.socket], None]
    """Raises OSError."""


class Setting(NamedTuple):
    """All that a keeper needs to serve its box."""

    listener: socket.socket
    handover: Handover | None
    """None for a box without a way out."""
    lease: int
    """End of file on it ends the box; -1 for a box that outlives its creator."""
    records: int
    digests: int
    """File of digests for all sandboxes of the workspace; -1 for one that has no other (see digests.py)."""
    root: int
    """The workspace, opened inside the box's own mounts."""
    init: int
    """Process descriptor of the box's first process."""
    group_events: int
    """`cgroup.events` of the box's version 2 group, which tells whether it is paused; -1 without."""
    environment: dict[bytes, bytes]
    limits: dict[str, Any]
    """Fields of Limits; lowered in place by `tighten_limits`."""
    tree: Callable[[int], Tree]
    prepare: Callable[[], None]
    """To be called when nobody waits: what the next command needs."""
    seal: Callable[[], None]
    """In whatever is forked beside commands: take on the filter of the box."""
    quota: Quota
    starts_any_program: bool
    """False for a box that has but a few: then no input of a command comes as a file that could be started."""
    users: Mapping[str, BoxUser]
    """By name; none for a box in which everything is the same user's."""
    refusals: Refusals | None
    """What the box was refused to reach; None for nobody who looks."""
    evidence: Callable[[], dict[str, Any]]
    closed: frozenset[bytes] = frozenset()
    """Paths below the workspace where something else is mounted that nobody inside can change: it is not scanned."""


class Follower(Protocol):
    """Who is told that a command has something new."""

    def pump(self) -> None: ...


class Commands:
    def __init__(self, setting: Setting, loop: Loop) -> None:
        self.setting = setting
        self.loop = loop
        self.held: dict[str, Command] = {}
        self.followers: dict[str, set[Follower]] = {}
        self.contacts = self._new_log()
        self._command_contacts: dict[str, ContactLog] = {}
        self._built_limits = dict(setting.limits)
        self._digests = KeptDigests(setting.digests)
        self._manifest: manifest.Manifest | None = None
        self._before: dict[str, manifest.Manifest | None] = {}
        self._ready_files = ReadyFiles(setting.records)
        self._ready_pipes = ReadyPipes()
        self._records: dict[str, int] = {}
        """Descriptor of the record of each command without an end."""
        self._live: dict[Command, int] = {}
        """Commands of which something may live, and when each began, in ns; some may have ended since."""
        self.shells = Shells()
        self.box_root = open_root()
        self.path_watches = PathWatches(loop)
        self._entered: dict[str, Entered] = {}
        """By the command that runs in a session."""
        self._count = 0
        self._ending: dict[str, Any] = {}
        """How the box is about to end, if somebody has said so; taken for true until `_ends_by`."""
        self._ends_by = 0.0
        self._nothing = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._presence = Presence(setting.root)
        self._watch = TreeWatch()
        self._quiet = select.epoll()
        """What tells of changed files and of attempts to reach somebody: one look for both before and after a command."""
        if self._watch.file >= 0:
            self._quiet.register(self._watch.file, select.EPOLLIN)
        if setting.refusals is not None:
            self._quiet.register(setting.refusals.fileno(), select.EPOLLIN)
            self._watch_refusals(setting.refusals)

    def prepare(self) -> None:
        """Do ahead what the first command would wait for, within bounds; what fails now is told to that command."""
        self._prepare_next()
        with contextlib.suppress(OSError):
            if self._presence.is_alone():  # else it is scanned again in any case
                scanned = self._scan(
                    None, max_entries=PREPARED_ENTRIES, hash_budget_bytes=PREPARED_BYTES, others_since_ns=0
                )
                if scanned.recorded and scanned.reason is None:
                    self._manifest = scanned

    def _prepare_next(self) -> None:
        """What a command takes is made between two of them."""
        self.setting.prepare()
        self._ready_files.prepare()
        self._ready_pipes.prepare()

    def end_box(self) -> None:
        """Kill the box: its first process takes all others with it. Nothing to do if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.setting.init, signal.SIGKILL)

    def leave_to_keeper(self) -> None:
        """In a child of the keeper that serves a verb: let go of what is ready for the next command."""
        self._ready_pipes.close()

    def require_room(self, more_bytes: int) -> None:
        """Raise LIMIT_DISK if the workspace may not hold that much more."""
        quota = self.setting.quota
        if quota.refuses(more_bytes):
            raise Failure(
                "LIMIT_DISK",
                f"the workspace holds {quota.used} of at most {quota.limit_bytes} bytes, and this needs {more_bytes} more",
                kind="disk",
                limit=quota.limit_bytes,
                used=quota.used,
            )

    def tighten_limits(self, limits: dict[str, Any]) -> None:
        """Hold the next command to `limits` where they are below those that the box was built with; else to the latter."""
        built = self._built_limits
        lowered = {}
        for name in LOWERED_LIVE:
            value = limits.get(name, built[name])
            if type(value) not in (type(built[name]), int) or value <= 0:
                raise Failure("INVALID_ARGUMENT", f"the limit `{name}` cannot be lowered to this")
            lowered[name] = min(value, built[name])
        self.setting.limits.update({**built, **lowered})
        self.setting.quota.hold_to(self.setting.limits["disk_mib"] << 20)

    # -- commands ------------------------------------------------------------------------------

    def change_limits(self, request: dict[str, Any]) -> None:
        """Raise or lower limits of a command that runs, up to what the box has now.

        Raises:
            Failure: one is over that, or the command does not run.
        """
        most = self.setting.limits
        wanted = {}
        for name, limit in (("timeout_s", "wall_s"), ("idle_timeout_s", "wall_s"), ("cpu_s", "cpu_s")):
            if request.get(name) is not None:
                wanted[name] = float(request[name])
                if not 0 < wanted[name] <= most[limit]:
                    message = f"`{name}` of {wanted[name]:g} is not above 0 and at most this sandbox's {most[limit]:g}"
                    raise Failure("INVALID_ARGUMENT", message, argument=name, limit=most[limit])
        self.running(request["command_id"]).change_limits(wanted)

    def start(self, request: dict[str, Any], stdin: bytes) -> tuple[Command | None, bool]:
        """Start, or find what was started under that id. (None, True) if only its record is left."""
        command_id = checked_id(request.get("command_id"))
        if command_id in self.held:
            return self.held[command_id], True
        limits = self.setting.limits
        spec = {
            **request,
            "timeout_s": min(float(request["timeout_s"]), limits["wall_s"]),
            "cpu_s": min(float(request.get("cpu_s") or limits["cpu_s"]), limits["cpu_s"]),
            "idle_timeout_s": float(request.get("idle_timeout_s") or 0.0) or None,
            "memory_bytes": limits["memory_mib"] << 20,
            "output_bytes": limits["output_mib"] << 20,
            "pids": limits["pids"],
            "sealed_input": not self.setting.starts_any_program,
        }
        user = self._user(request.get("user") or "user")
        environment = self._environment(request, command_id, user)
        root = self.setting.root
        try:
            cwd = request.get("cwd") or ""
            outside = absolute_directory(cwd) if cwd.startswith("/") else None
            directory = open_directory(root, cwd) if cwd and outside is None else root
        except Failure:
            if self.read_record(command_id) is None:
                raise
            return None, True  # it ran once; where it ran may be gone since
        try:
            if not self._presence.shown:
                with Named(b""):
                    self._presence.show()
            self._look()
            before = self._state() if request.get("track_files") else None
            in_session = request.get("shell_session") is not None
            if in_session and self.read_record(command_id) is not None:
                return None, True  # whether its session is free now is nothing to it
            self._count += 1
            # The record comes when all is there that the start needs: a recorded start always gets an end.
            tree = self.setting.tree(self._count)
            entered = None
            try:
                tree.claim(command_id)
                if in_session:
                    entered = self.shells.enter(request, command_id)
                    environment.update([entered.environment])
                start = {"at": now(), "command_line": command_line(request)}
                self._records[command_id] = open_record(
                    self.setting.records, command_id, start, make=self._ready_files.make
                )
            except BaseException as error:
                tree.close()
                if entered is not None:
                    self.shells.abandon(entered)
                if isinstance(error, FileExistsError):
                    return None, True
                raise
            if entered is not None:
                self._entered[command_id] = entered
            self._before[command_id] = before
            command = Command(
                self.loop,
                spec,
                tree=tree,
                become=() if user is None else user.become,
                enter=() if outside is None else steps_into(outside),
                nothing=self._nothing,
                open_output=self._ready_pipes.take,
                transcript=Transcript(self.setting.records, f"{command_id}.out", make=self._ready_files.make),
                late=Transcript(self.setting.records, f"{command_id}.late", make=self._ready_files.make),
                finish=self._finish,
                on_change=self._on_change,
            )
            self.held[command_id] = command
            self._live[command] = time.time_ns()
            self._command_contacts[command_id] = self._new_log()
            command.begin(directory, environment, stdin)
        finally:
            if directory != root:
                os.close(directory)
        return command, False

    def _user(self, name: str) -> BoxUser | None:
        """None where there is but one. Raises Failure for one that is not in the box."""
        users = self.setting.users
        if name not in users and (users or name != "user"):
            raise Failure("NOT_IN_PROFILE", f"this sandbox has no user `{name[:80]}` for commands", user=name)
        return users.get(name)

    def steps_to_become(self, name: object) -> Steps:
        """What a child does to be a user of the box. Raises Failure for one that is not there."""
        user = self._user(str(name))
        return () if user is None else user.become

    def _environment(self, request: dict[str, Any], command_id: str, user: BoxUser | None) -> dict[bytes, bytes]:
        environment = {**self.setting.environment, **(user.environment if user is not None else {})}
        if request.get("terminal"):
            environment[b"TERM"] = b"xterm-256color"
            environment.pop(b"NO_COLOR", None)
        for name, value in (request.get("env") or {}).items():
            environment[name.encode("utf-8", "surrogateescape")] = value.encode("utf-8", "surrogateescape")
        environment[b"COLDFRAME_COMMAND_ID"] = command_id.encode()
        return environment

    def _finish(self, command: Command) -> dict[str, Any]:
        """Make the whole result and put it on disk. Called by the command when it is over."""
        self._look()
        log = self._command_contacts.pop(command.command_id)
        before = self._before.pop(command.command_id)
        tracked = bool(command.spec.get("track_files"))
        result = {
            **command.describe_end(),
            "contacts": log.contacts(),
            "files": self._file_changes(command, before, tracked=tracked),
        }
        if result["signal"] == signal.SIGKILL and result["ended"] == "signalled" and self.loop.time() < self._ends_by:
            result["ended_with"] = self._ending
            if self._ending["act"] == "terminate":
                result.update(ended="cancelled", cancelled=True)
            else:
                result.update(ended="lost", exit_code=None, signal=None)
        if (entered := self._entered.pop(command.command_id, None)) is not None:
            result["shell_session"] = self.shells.leave(entered)
        try:
            end = write_json({"event": "ended", "result": result})
            end_record(self._records.pop(command.command_id), end)
            command.end = end if len(end) <= MOST_END_BYTES else None
        except OSError as error:
            result["start_error"] = f"the record of this command could not be kept: {str(error.strerror).lower()}"
        self._forget_old()
        self.loop.soon(self._prepare_next)
        return result

    def _look(self) -> None:
        """Take what was seen up to now, before a command begins or ends: whom it wanted to reach, what was changed."""
        refusals = self.setting.refusals
        for file, _ in self._quiet.poll(0, 2):
            if file == self._watch.file:
                self._watch.read()
            elif refusals is not None:
                for _ in range(MOST_BATCHES):
                    if not self._contact_log().take(refusals):
                        break

    def _state(self, ending: Command | None = None) -> manifest.Manifest:
        """The workspace now: the last one, if nothing has changed since and nobody else could have changed it unseen."""
        known = self._manifest
        others = [
            since_ns for one, since_ns in self._live.items() if not one.settled and (one is not ending or one.outlived)
        ]
        since_s = self._presence.others_since_s()
        if since_s is not None:
            others.append(since_s * 1_000_000_000)
        if known is None or others or not self._watch.unchanged:
            others_since_ns = min(others, default=None)
            known = self._scan(known, others_since_ns=others_since_ns)
            self._manifest = known
        return known

    def _scan(
        self,
        known: manifest.Manifest | None,
        *,
        others_since_ns: int | None,
        max_entries: int = manifest.MOST_ENTRIES,
        hash_budget_bytes: int = manifest.HASH_BUDGET_BYTES,
    ) -> manifest.Manifest:
        found = manifest.scan(
            self.setting.root,
            known or manifest.Manifest(False, None, {}, None, self._digests.read(), ()),
            max_entries=max_entries,
            hash_budget_bytes=hash_budget_bytes,
            watch=self._watch,
            others_since_ns=others_since_ns,
            closed=self.setting.closed,
        )
        self._digests.add(found.digests)
        return found

    def _file_changes(self, command: Command, before: manifest.Manifest | None, *, tracked: bool) -> dict[str, Any]:
        if not tracked or before is None:
            return {"recorded": False, "reason": "tracking was switched off for this command", "changes": []}
        after = self._state(command)
        for scanned in (before, after):
            if not scanned.recorded:
                return {"recorded": False, "reason": scanned.reason, "changes": []}
        same = after is before
        return {
            "recorded": True,
            "reason": after.reason,
            "tree_sha256_before": before.tree_sha256,
            "tree_sha256_after": after.tree_sha256,
            "size_change_bytes": 0 if same else after.file_bytes - before.file_bytes,
            "changes": [] if same else manifest.compare(before, after),
        }

    def _watch_refusals(self, refusals: Refusals) -> None:
        """Read what is refused; a flood gets a rest after each full batch, so that it cannot keep the keeper busy."""

        def read(_: int) -> None:
            if self._contact_log().take(refusals):
                self.loop.forget(refusals.fileno())
                self.loop.watch_later(FLOOD_REST_S, refusals.fileno(), IN, read)

        self.loop.watch(refusals.fileno(), IN, read)

    def _new_log(self) -> ContactLog:
        return ContactLog() if self.setting.refusals is None else ContactLog(self.setting.refusals.rule)

    def _contact_log(self) -> ContactLog:
        """An attempt belongs to a command only if no other one runs: no guessing."""
        running = list(self._command_contacts.values())
        return running[0] if len(running) == 1 else self.contacts

    def _forget_old(self) -> None:
        self._live = {one: since_ns for one, since_ns in self._live.items() if not one.settled}
        too_many = len(self.held) - len(self._live) - KEPT_COMMANDS
        settled = (key for key, command in self.held.items() if command.settled)
        for key in list(itertools.islice(settled, max(0, too_many))):  # looks at no more than it has to
            if not self.followers.get(key):
                self.held.pop(key).transcript.close()

    def _on_change(self, command: Command) -> None:
        for connection in tuple(self.followers.get(command.command_id, ())):
            connection.pump()

    def read_record(self, command_id: str) -> Record | None:
        return read_record(self.setting.records, command_id)

    def list_commands(self, only: str | None) -> list[dict[str, Any]]:
        return [
            {
                "command_id": key,
                "state": "ended" if command.result else "running",
                "pid": command.started.pid if command.started else None,
                "command_line": command_line(command.spec),
                "started_at": command.started.at if command.started else None,
                "result": command.result,
                "activity": command.activity() if only is not None and command.result is None else None,
            }
            for key, command in self.held.items()
            if only in (None, key)
        ]

    def list_processes(self) -> list[dict[str, Any]]:
        found = []
        for key, command in self.held.items():
            if not command.settled:
                found += [{**process, "command_id": key} for process in command.tree.processes()]
        ports = find_ports([process["pid"] for process in found])
        return [{**process, "ports": ports.get(process["pid"], [])} for process in found]

    def look_at_stake(self, ending: dict[str, Any] | None) -> dict[str, Any]:
        """Fields of AtStake. Whoever wants an end waits for it, so it looks at no more than it has to.

        *ending* is how the box is about to end, as EndedWith: what is killed in the next moments is killed by that. The
        kernel does not say so: the first process of a box is there until the last other one was waited for.
        """
        self._ending, self._ends_by = ending or {}, self.loop.time() + END_WITHIN_S if ending else 0.0
        living = [command for command in self.held.values() if not command.settled]
        with Named(b""):
            return {
                "command_ids": sorted(command.command_id for command in living if command.result is None),
                "processes": sum(len(command.tree.members()) for command in living),
                "temporary": weigh_temporary(),
            }

    def running(self, command_id: str) -> Command:
        command = self.held.get(checked_id(command_id))
        if command is None:
            raise Failure("NOT_FOUND", f"no command `{command_id}` is held by this sandbox")
        return command


def checked_id(value: object) -> str:
    """Raises Failure for what is no id of a command."""
    if not isinstance(value, str) or not is_id(value):
        raise Failure("INVALID_ARGUMENT", "malformed command id")
    return value


def absolute_directory(path: str) -> bytes:
    """As a child can go there. Raises Failure for what is no path."""
    directory = path.encode("utf-8", "surrogateescape")
    if b"\0" in directory or len(directory) > MOST_PATH_BYTES:
        raise Failure("INVALID_ARGUMENT", "the directory holds a NUL, or is too long", argument="cwd")
    return directory


def command_line(request: dict[str, Any]) -> str:
    text = request["shell"] if request.get("shell") is not None else " ".join(request.get("argv") or ())
    return str(text)[:4096]
