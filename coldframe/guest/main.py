"""The keeper at work: answers requests on its socket, holds the commands, writes their records.

Serves one sandbox. By the time it runs, the process has joined the box, dropped every right and loaded
the filter; what it still holds are descriptors: its socket, the directory of its records, the workspace
as the box sees it, the groups of the box.

Records of a command, in the record directory: `ID.start` before it is forked, `ID.out` its transcript,
`ID.end` its result, `ID.late` what adopted processes wrote afterwards.
"""

import errno
import json
import os
import signal
import socket
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from coldframe.guest import manifest
from coldframe.guest.command import Command, Tree, now
from coldframe.guest.contacts import BATCH, ContactLog
from coldframe.guest.files import FileWriter
from coldframe.guest.frames import MALFORMED, BadFrame, Reader, encode, is_whole
from coldframe.guest.loop import HANGUP, IN, OUT, Loop, Timer
from coldframe.guest.paths import open_directory
from coldframe.guest.search import BUDGET_GRACE_S
from coldframe.guest.transcript import STREAMS, StoredTranscript, Transcript
from coldframe.guest.verbs import VERBS, Failure, Verb

SEND_BUFFER_BYTES = 2 * 1024 * 1024
"""What is encoded ahead for one connection; the rest waits in the transcript."""
SLOW_VERB_S = 30.0
MOST_BATCHES = 64
"""Of captured packets that are read when a command begins or ends."""
FLOOD_REST_S = 0.05
ACCEPT_AGAIN_S = 0.1
GROWING_VERBS = ("write_file", "edit_file", "make_directory")
LOWERED_LIVE = ("wall_s", "cpu_s", "memory_mib", "disk_mib", "output_mib", "file_mib", "open_files")
"""Limits that can be lowered for the next command of a box that runs."""
KEPT_COMMANDS = 64
"""Ended commands held in memory; older ones are read back from their records."""


class Quota(Protocol):
    """The disk limit of the workspace."""

    used: int | None
    limit_bytes: int

    def refuses(self, more_bytes: int) -> bool: ...

    def hold_to(self, limit_bytes: int) -> None: ...


class Setting(NamedTuple):
    """All that a keeper needs to serve its box."""

    listener: socket.socket
    lease: int
    """End of file on it ends the box; -1 for a box that outlives its creator."""
    records: int
    root: int
    """The workspace, opened inside the box's own mounts."""
    init: int
    """Process descriptor of the box's first process."""
    environment: dict[bytes, bytes]
    limits: dict[str, Any]
    """Fields of Limits; lowered in place by `tighten_limits`."""
    tree: Callable[[int], Tree]
    quota: Quota
    starts_any_program: bool
    """False for a box that has but a few: then no input of a command comes as a file that could be started."""
    capture: socket.socket | None
    evidence: Callable[[], dict[str, Any]]


class Keeper:
    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.loop = Loop()
        self.commands: dict[str, Command] = {}
        self.followers: dict[str, set[Connection]] = {}
        self.contacts = ContactLog()
        self._command_contacts: dict[str, ContactLog] = {}
        self._built_limits = dict(setting.limits)
        self._manifest: manifest.Manifest | None = None
        self._before: dict[str, manifest.Manifest | None] = {}
        self._count = 0

    def serve(self) -> None:
        """Until the box ends."""
        setting = self.setting
        setting.listener.setblocking(False)
        self.loop.watch(setting.listener.fileno(), IN, self._accept)
        self.loop.watch(setting.init, IN, lambda _: self.loop.stop())
        if setting.lease >= 0:
            self.loop.watch(setting.lease, IN, self._on_lease)
        if setting.capture is not None:
            self._watch_capture(setting.capture)
        self.loop.run()

    def _on_lease(self, _: int) -> None:
        if not os.read(self.setting.lease, 1):
            self.end()

    def end(self) -> None:
        """Kill the box: its first process takes all others with it."""
        signal.pidfd_send_signal(self.setting.init, signal.SIGKILL)

    def _accept(self, _: int) -> None:
        listener = self.setting.listener
        try:
            peer, _address = listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor is free: whoever connects waits, instead of waking us without end
            self.loop.forget(listener.fileno())
            self.loop.after(ACCEPT_AGAIN_S, lambda: self.loop.watch(listener.fileno(), IN, self._accept))
            return
        try:
            Connection(self, peer)
        except OSError:  # the box's user has no event watch left, which its processes can bring about
            peer.close()

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
        lowered = {name: min(limits[name], built[name]) for name in LOWERED_LIVE if name in limits}
        self.setting.limits.update({**built, **lowered})
        self.setting.quota.hold_to(self.setting.limits["disk_mib"] << 20)

    # -- commands ------------------------------------------------------------------------------

    def start_command(self, request: dict[str, Any], stdin: bytes) -> tuple[Command | None, bool]:
        """Start, or find what was started under that id. (None, True) if only its record is left."""
        command_id = _checked_id(request.get("command_id"))
        if command_id in self.commands:
            return self.commands[command_id], True
        if self._has_record(command_id):
            return None, True
        limits = self.setting.limits
        spec = {
            **request,
            "timeout_s": min(float(request["timeout_s"]), limits["wall_s"]),
            "cpu_s": min(float(request.get("cpu_s") or limits["cpu_s"]), limits["cpu_s"]),
            "memory_bytes": limits["memory_mib"] << 20,
            "output_bytes": limits["output_mib"] << 20,
            "pids": limits["pids"],
            "sealed_input": not self.setting.starts_any_program,
            "cores": len(os.sched_getaffinity(0)),
        }
        environment = self._environment(request, command_id)
        directory = open_directory(self.setting.root, request.get("cwd") or "")
        try:
            # The record comes when all is there that the start needs: a recorded start always gets an end.
            before = self._scan() if request.get("track_files") else None
            self._note_contacts()
            self._count += 1
            tree = self.setting.tree(self._count)
            try:
                self._write_record(command_id, "start", {"at": now(), "command_line": _command_line(request)})
            except OSError:
                tree.close()
                raise
            self._before[command_id] = before
            command = Command(
                self.loop,
                spec,
                tree=tree,
                transcript=Transcript(self.setting.records, f"{command_id}.out"),
                late=Transcript(self.setting.records, f"{command_id}.late"),
                finish=self._finish,
                on_change=self._on_change,
            )
            self.commands[command_id] = command
            self._command_contacts[command_id] = ContactLog()
            command.begin(directory, environment, stdin)
        finally:
            os.close(directory)
        return command, False

    def _environment(self, request: dict[str, Any], command_id: str) -> dict[bytes, bytes]:
        environment = dict(self.setting.environment)
        if request.get("terminal"):
            environment[b"TERM"] = b"xterm-256color"
            environment.pop(b"NO_COLOR", None)
        for name, value in (request.get("env") or {}).items():
            environment[name.encode("utf-8", "surrogateescape")] = value.encode("utf-8", "surrogateescape")
        environment[b"COLDFRAME_COMMAND_ID"] = command_id.encode()
        return environment

    def _finish(self, command: Command) -> dict[str, Any]:
        """Make the whole result and put it on disk. Called by the command when it is over."""
        self._note_contacts()
        log = self._command_contacts.pop(command.command_id)
        result = {
            **command.describe_end(),
            "contacts": log.contacts(),
            "files": self._file_changes(
                self._before.pop(command.command_id), tracked=bool(command.spec.get("track_files"))
            ),
        }
        try:
            self._write_record(command.command_id, "end", {"result": result})
        except OSError as error:
            result["start_error"] = f"the record of this command could not be kept: {str(error.strerror).lower()}"
        self._forget_old()
        return result

    def _scan(self) -> manifest.Manifest:
        self._manifest = manifest.scan(self.setting.root, self._manifest)
        return self._manifest

    def _file_changes(self, before: manifest.Manifest | None, *, tracked: bool) -> dict[str, Any]:
        if not tracked or before is None:
            return {"recorded": False, "reason": "tracking was switched off for this command", "changes": []}
        after = self._scan()
        for scanned in (before, after):
            if not scanned.recorded:
                return {"recorded": False, "reason": scanned.reason, "changes": []}
        return {
            "recorded": True,
            "reason": after.reason,
            "tree_sha256_before": before.tree_sha256,
            "tree_sha256_after": after.tree_sha256,
            "size_change_bytes": after.file_bytes - before.file_bytes,
            "changes": manifest.compare(before, after),
        }

    def _watch_capture(self, capture: socket.socket) -> None:
        """Read what is captured; a flood gets a rest after each full batch, so that it cannot keep the keeper busy."""

        def read(_: int) -> None:
            if len(self._contact_log().read_ready(capture)) >= BATCH:
                self.loop.forget(capture.fileno())
                self.loop.after(FLOOD_REST_S, lambda: self._watch_capture(capture))

        self.loop.watch(capture.fileno(), IN, read)

    def _contact_log(self) -> ContactLog:
        """An attempt belongs to a command only if no other one runs: no guessing."""
        running = list(self._command_contacts.values())
        return running[0] if len(running) == 1 else self.contacts

    def _note_contacts(self) -> None:
        """Take what was captured up to now, before a command begins or ends."""
        capture = self.setting.capture
        if capture is None:
            return
        log = self._contact_log()
        for _ in range(MOST_BATCHES):
            if len(log.read_ready(capture)) < BATCH:
                break

    def _forget_old(self) -> None:
        ended = [key for key, command in self.commands.items() if command.settled]
        for key in ended[:-KEPT_COMMANDS]:
            if not self.followers.get(key):
                self.commands.pop(key).transcript.close()

    def _on_change(self, command: Command) -> None:
        for connection in tuple(self.followers.get(command.command_id, ())):
            connection.pump()

    def _write_record(self, command_id: str, kind: str, body: dict[str, Any]) -> None:
        """One file, whole or not there: written under another name first."""
        name, draft = f"{command_id}.{kind}", f"{command_id}.{kind}.new"
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=self.setting.records)
        try:
            data = memoryview(json.dumps(body, separators=(",", ":")).encode("ascii"))
            while data:
                data = data[os.write(file, data) :]
        except OSError:
            os.unlink(draft, dir_fd=self.setting.records)
            raise
        finally:
            os.close(file)
        os.rename(draft, name, src_dir_fd=self.setting.records, dst_dir_fd=self.setting.records)

    def read_record(self, command_id: str, kind: str) -> dict[str, Any] | None:
        try:
            file = os.open(f"{command_id}.{kind}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.setting.records)
        except FileNotFoundError:
            return None
        with os.fdopen(file, "rb") as source:
            body = json.loads(source.read())
        return body if isinstance(body, dict) else None

    def _has_record(self, command_id: str) -> bool:
        try:
            os.stat(f"{command_id}.start", dir_fd=self.setting.records)
        except FileNotFoundError:
            return False
        return True

    def list_commands(self, only: str | None) -> list[dict[str, Any]]:
        return [
            {
                "command_id": key,
                "state": "ended" if command.result else "running",
                "pid": command.started.pid if command.started else None,
                "command_line": _command_line(command.spec),
                "started_at": command.started.at if command.started else None,
                "result": command.result,
            }
            for key, command in self.commands.items()
            if only in (None, key)
        ]

    def list_processes(self) -> list[dict[str, Any]]:
        found = []
        for key, command in self.commands.items():
            if command.result is None or command.leftovers:
                found += [{**member, "command_id": key} for member in command.tree.members()]
        return found

    def running(self, command_id: str) -> Command:
        command = self.commands.get(_checked_id(command_id))
        if command is None:
            raise Failure("NOT_FOUND", f"no command `{command_id}` is held by this sandbox")
        return command


class Connection:
    """One client, one request at a time."""

    def __init__(self, keeper: Keeper, peer: socket.socket) -> None:
        self._keeper = keeper
        self._peer = peer
        self._reader = Reader()
        self._out = bytearray()
        self._watched = IN
        self._following: Command | None = None
        self._stored: StoredTranscript | None = None
        self._stored_end: dict[str, Any] | None = None
        self._cursor = 0
        self._told_start = False
        self._attached = False
        self._writer: FileWriter | None = None
        self._helper: tuple[int, int, Timer] | None = None
        peer.setblocking(False)
        keeper.loop.watch(peer.fileno(), IN, self._on_event)

    def _on_event(self, events: int) -> None:
        if events & (IN | HANGUP):
            try:
                data = self._peer.recv(1 << 20)
            except BlockingIOError:
                data = b"-"
            except OSError:
                data = b""
            if not data:
                self._close()
                return
            if data != b"-" or not events & HANGUP:
                try:
                    for head, body in self._reader.feed(data) if data != b"-" else ():
                        self._receive(head, body)
                except BadFrame:
                    self._close()
                    return
        if events & OUT:
            self._send(b"")
            self.pump()

    # -- requests ------------------------------------------------------------------------------

    def _receive(self, head: dict[str, Any], body: bytes) -> None:
        try:
            self._serve(head, body)
        except Failure as failure:
            self._fail(failure)
        except MALFORMED as error:
            self._fail(Failure("INVALID_ARGUMENT", f"malformed request: {error!r}"))
        except OSError as error:
            self._fail(Failure("LIMIT_DISK" if error.errno == errno.ENOSPC else "INTERNAL", f"{error.strerror}"))
        except Exception as error:  # noqa: BLE001 - the edge of a request: one that fails may not end the box
            traceback.print_exc()
            self._fail(Failure("INTERNAL", f"the request failed in the keeper: {type(error).__name__}"))

    def _fail(self, failure: Failure) -> None:
        if self._writer is not None:
            self._writer.abort()
            self._writer = None
        error = {"code": failure.code, "message": failure.message, "facts": failure.facts}
        self._send(encode({"error": error}))

    def _serve(self, head: dict[str, Any], body: bytes) -> None:
        keeper = self._keeper
        operation = head.pop("op")
        if operation == "run":
            command, attached = keeper.start_command(head, body)
            self._follow(head["command_id"], command, after_seq=-1, attached=attached)
        elif operation == "follow":
            self._follow(
                head["command_id"], keeper.commands.get(head["command_id"]), after_seq=head["after_seq"], attached=True
            )
        elif operation == "ask":
            self._ask(head, body)
        elif operation == "write":
            keeper.require_room(0)
            self._writer = FileWriter(keeper.setting.root, head)
        elif operation == "chunk":
            if self._writer is not None:  # after a failure the rest of the upload is read and dropped
                keeper.require_room(len(body))
                self._writer.write(body)
        elif operation == "commit":
            if self._writer is not None:
                answer = self._writer.commit()
                self._writer = None
                self._send(encode({"answer": answer}))
        elif operation == "report":
            self._send(encode({"answer": keeper.setting.evidence()}))
        elif operation == "contacts":
            self._send(encode({"answer": {"contacts": keeper.contacts.contacts()}}))
        elif operation == "end":
            keeper.end()
        else:
            raise Failure("INVALID_ARGUMENT", f"unknown operation `{str(operation)[:40]}`")

    def _ask(self, request: dict[str, Any], content: bytes) -> None:
        keeper = self._keeper
        name = request.pop("verb")
        if name == "signal_command":
            command = keeper.running(request["command_id"])
            if request.get("cancel"):
                command.cancel()
            else:
                command.send_signal(int(request["signal"]))
            self._send(encode({"answer": {"ok": True}}))
        elif name == "resize_terminal":
            if not keeper.running(request["command_id"]).resize(request["columns"], request["rows"]):
                raise Failure("WRONG_STATE", "the command has no terminal, or has ended")
            self._send(encode({"answer": {"ok": True}}))
        elif name == "list_commands":
            self._send(encode({"answer": {"commands": keeper.list_commands(request.get("command_id"))}}))
        elif name == "list_processes":
            self._send(encode({"answer": {"processes": keeper.list_processes()}}))
        elif name == "tighten_limits":
            keeper.tighten_limits(request["limits"])
            self._send(encode({"answer": {"ok": True}}))
        elif name not in VERBS:
            raise Failure("INVALID_ARGUMENT", f"unknown verb `{str(name)[:40]}`")
        elif VERBS[name].slow:
            if name == "list_runtimes":
                request["path_env"] = keeper.setting.environment[b"PATH"].decode()
            self._ask_helper(name, request, content)
        else:
            if name in GROWING_VERBS:
                edits = request.get("edits") or ()
                keeper.require_room(len(content) + sum(len(edit["new"].encode("utf-8", "replace")) for edit in edits))
            answer, body = VERBS[name].function(keeper.setting.root, request, content)
            self._send(encode({"answer": answer}, body))

    def _ask_helper(self, name: str, request: dict[str, Any], content: bytes) -> None:
        """Run a verb that may take long in a forked child, so that it delays nobody and can be killed."""
        if self._helper is not None:
            raise Failure("INVALID_ARGUMENT", "one request at a time")
        budget_s = float(request["budget_s"]) + BUDGET_GRACE_S if "budget_s" in request else SLOW_VERB_S
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            pid = os.fork()
            if pid == 0:
                _help(VERBS[name], self._keeper.setting.root, request, content, write)
        except OSError:
            os.close(read)
            raise
        finally:
            os.close(write)
        timer = self._keeper.loop.after(budget_s, lambda: self._helper_too_slow(name))
        self._helper = (pid, read, timer)
        self._keeper.loop.watch(read, IN, self._on_helper)
        self._helper_answer = bytearray()

    _helper_answer: bytearray

    def _on_helper(self, _: int) -> None:
        assert self._helper is not None
        try:
            data = os.read(self._helper[1], 1 << 20)
        except BlockingIOError:
            return
        self._helper_answer += data
        if data:
            return
        self._end_helper()
        if is_whole(self._helper_answer):  # a part of a frame would make what follows it part of it
            self._send(bytes(self._helper_answer))
        else:
            self._fail(Failure("GUEST_LOST", "the helper that served this request was ended from inside the sandbox"))

    def _helper_too_slow(self, verb: str) -> None:
        if self._helper is None:
            return
        self._end_helper()
        if verb == "search_files":
            self._fail(Failure("PATTERN_TOO_SLOW", "the pattern exceeded its time budget and was stopped"))
        else:
            self._fail(Failure("TOO_LARGE", f"the request did not end within {SLOW_VERB_S:g} s and was stopped"))

    def _end_helper(self) -> None:
        assert self._helper is not None
        pid, read, timer = self._helper
        self._helper = None
        timer.cancel()
        self._keeper.loop.forget(read)
        os.close(read)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    # -- following -----------------------------------------------------------------------------

    def _follow(self, command_id: str, command: Command | None, *, after_seq: int, attached: bool) -> None:
        self._stop_following()
        self._cursor = after_seq + 1
        self._told_start = False
        self._attached = attached
        if command is None:
            self._open_stored(_checked_id(command_id))
        else:
            self._following = command
            self._keeper.followers.setdefault(command.command_id, set()).add(self)
        self.pump()

    def _open_stored(self, command_id: str) -> None:
        start, end = self._keeper.read_record(command_id, "start"), self._keeper.read_record(command_id, "end")
        if start is None or end is None:
            raise Failure("NOT_FOUND", f"no command `{command_id}` is held by this sandbox")
        try:
            file = os.open(f"{command_id}.out", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._keeper.setting.records)
        except FileNotFoundError:
            file = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._stored, self._stored_end = StoredTranscript(file), end
        skipped, self._cursor = self._cursor, 0
        while self._cursor < skipped and self._stored.next() is not None:
            self._cursor += 1
        event = {"event": "started", "command_id": command_id, "pid": None, "at": start["at"], "attached": True}
        self._send(encode(event))

    def pump(self) -> None:
        """Send what the follower has not had yet, as far as the send buffer allows."""
        if self._following is not None:
            self._pump_command(self._following)
        elif self._stored is not None:
            self._pump_stored(self._stored)

    def _pump_command(self, command: Command) -> None:
        if command.started is None:
            return
        if not self._told_start:
            self._told_start = True
            self._send(
                encode(
                    {
                        "event": "started",
                        "command_id": command.command_id,
                        "pid": command.started.pid,
                        "at": command.started.at,
                        "attached": self._attached,
                    }
                )
            )
        while self._cursor < len(command.transcript) and len(self._out) < SEND_BUFFER_BYTES:
            stream, data = command.transcript.chunk(self._cursor)
            self._send(encode({"event": "output", "seq": self._cursor, "stream": STREAMS[stream]}, data))
            self._cursor += 1
        if command.result is not None and self._cursor >= len(command.transcript):
            self._stop_following()
            self._send(encode({"event": "ended", "result": command.result}))

    def _pump_stored(self, stored: StoredTranscript) -> None:
        while len(self._out) < SEND_BUFFER_BYTES:
            chunk = stored.next()
            if chunk is None:
                end, self._stored_end = self._stored_end, None
                self._stop_following()
                assert end is not None
                self._send(encode({"event": "ended", "result": end["result"]}))
                return
            self._send(encode({"event": "output", "seq": self._cursor, "stream": STREAMS[chunk[0]]}, chunk[1]))
            self._cursor += 1

    def _stop_following(self) -> None:
        if self._following is not None:
            self._keeper.followers.get(self._following.command_id, set()).discard(self)
            self._following = None
        if self._stored is not None:
            self._stored.close()
            self._stored = None

    # -- bytes ---------------------------------------------------------------------------------

    def _send(self, data: bytes) -> None:
        self._out += data
        while self._out:
            try:
                sent = self._peer.send(memoryview(self._out)[: 1 << 20])
            except BlockingIOError:
                break
            except OSError:
                self._keeper.loop.soon(self._close)
                self._out.clear()
                return
            del self._out[:sent]
        wanted = IN | OUT if self._out else IN
        if wanted != self._watched and self._peer.fileno() >= 0:
            self._watched = wanted
            self._keeper.loop.change(self._peer.fileno(), wanted)

    def _close(self) -> None:
        """The client went away. Its command goes on; an unfinished upload is dropped."""
        if self._peer.fileno() < 0:
            return
        self._stop_following()
        if self._writer is not None:
            self._writer.abort()
            self._writer = None
        if self._helper is not None:
            self._end_helper()
        self._keeper.loop.forget(self._peer.fileno())
        self._peer.close()


def _help(verb: Verb, root: int, request: dict[str, Any], content: bytes, write: int) -> None:
    """The helper child: serve one verb, write one frame, be gone. Never returns."""
    try:
        os.set_blocking(write, True)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        try:
            answer, body = verb.function(root, request, content)
            frame = encode({"answer": answer}, body)
        except Failure as failure:
            frame = encode({"error": {"code": failure.code, "message": failure.message, "facts": failure.facts}})
        except OSError as error:
            frame = encode({"error": {"code": "INTERNAL", "message": str(error.strerror), "facts": {}}})
        except MALFORMED as error:  # as in the keeper itself
            message = f"malformed request: {error!r}"
            frame = encode({"error": {"code": "INVALID_ARGUMENT", "message": message, "facts": {}}})
        rest = memoryview(frame)
        while rest:
            rest = rest[os.write(write, rest) :]
    finally:
        os._exit(0)


def _checked_id(value: object) -> str:
    """Ids become file names of records, so nothing but the form that control makes is taken."""
    if (
        not isinstance(value, str)
        or not 1 <= len(value) <= 80
        or not value.replace("_", "").replace("-", "").isalnum()
        or not value.isascii()
    ):
        raise Failure("INVALID_ARGUMENT", "malformed command id")
    return value


def _command_line(request: dict[str, Any]) -> str:
    text = request["shell"] if request.get("shell") is not None else " ".join(request.get("argv") or ())
    return str(text)[:4096]
