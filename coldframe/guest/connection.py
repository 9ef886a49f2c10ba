"""The wire at the keeper's end: one client, one request at a time, answered in frames.

A connection follows at most one command; what its client has not fetched yet waits in the transcript.
"""

import errno
import os
import signal
import socket
import traceback
from collections.abc import Callable
from typing import Any

import coldframe.guest.outputs
import coldframe.guest.repository
import coldframe.guest.unsaved  # noqa: F401  registers its verb
from coldframe.guest.box_paths import PathWriter, Spool, open_path_range, write_spooled
from coldframe.guest.command import Command
from coldframe.guest.commands import Commands, Setting, checked_id
from coldframe.guest.dial import Dial
from coldframe.guest.files import FileWriter, open_range
from coldframe.guest.frames import (
    LONG_BYTES,
    MALFORMED,
    SENT_AHEAD_BYTES,
    BadFrame,
    Body,
    Reader,
    encode,
    encode_start,
    is_whole,
)
from coldframe.guest.input import Input, Sending, Taken
from coldframe.guest.loop import HANGUP, IN, OUT, Timer
from coldframe.guest.outgoing import Outgoing
from coldframe.guest.path_watch import PathWatch
from coldframe.guest.search import BUDGET_GRACE_S
from coldframe.guest.transcript import STREAMS, Place, StoredTranscript
from coldframe.guest.verbs import VERBS, Answer, Failure

SEND_BUFFER_BYTES = 2 * 1024 * 1024
"""What is encoded ahead for one connection; the rest waits in the transcript."""
MOST_SPARE_BYTES = 1024 * 1024
"""As long as the parts of an upload are, whose memory is used again."""
SLOW_VERB_S = 30.0
GROWING_VERBS = ("write_file", "edit_file", "make_directory", "write_path", "make_path", "move_path")
MOST_WAIT_S = 60.0
"""For the next event of a watch."""


class Connection:
    """One client, one request at a time."""

    def __init__(self, commands: Commands, peer: socket.socket) -> None:
        self._commands = commands
        self._peer = peer
        self._reader = Reader()
        self._out = Outgoing()
        self._watched = IN
        self._is_broken = False
        """Nothing more can be sent."""
        self._following: Command | None = None
        self._stored: StoredTranscript | None = None
        self._stored_end: dict[str, Any] | None = None
        self._cursor = 0
        self._told_start = False
        self._attached = False
        self._writer: FileWriter | PathWriter | Spool | None = None
        self._helper: tuple[int, int, Timer] | None = None
        self._sending: tuple[Input, Sending] | None = None
        """To a command's input, which may wait for room."""
        self._dial: Dial | None = None
        self._awaited: tuple[PathWatch, Timer] | None = None
        peer.setblocking(False)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENT_AHEAD_BYTES)
        commands.loop.watch(peer.fileno(), IN, self._on_event)

    def _on_event(self, events: int) -> None:
        if events & (IN | HANGUP):
            try:
                is_open = self._take_in()
            except BadFrame:
                is_open = False
            if not is_open:
                self._close()
                return
        if events & OUT:
            self._send(b"")
            self.pump()

    def _take_in(self) -> bool:
        """Read what came, once, and serve what is whole. False at the end. Raises BadFrame."""
        room = self._reader.room
        data = b""
        try:
            if room is None:
                data = self._peer.recv(1 << 20)
                count = len(data)
            else:
                count = self._peer.recv_into(room)
        except BlockingIOError:
            return True
        except OSError:
            return False
        for head, body in self._reader.feed(data) if room is None else self._reader.filled(count):
            self._receive(head, body)
            if isinstance(body, bytearray) and len(body) <= MOST_SPARE_BYTES:  # what is kept of it was copied
                self._reader.spare = body
        return count > 0

    # -- requests ------------------------------------------------------------------------------

    def _receive(self, head: dict[str, Any], body: Body) -> None:
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

    def _serve(self, head: dict[str, Any], content: Body) -> None:
        commands = self._commands
        operation = head.pop("op")
        if operation == "chunk":
            if self._writer is not None:  # after a failure the rest of the upload is read and dropped
                commands.require_room(len(content))
                self._writer.write(content)
            return
        body = bytes(content)
        if operation == "run":
            command, attached = commands.start(head, body)
            self._follow(head["command_id"], command, after_seq=-1, attached=attached)
        elif operation == "follow":
            self._follow(
                head["command_id"], commands.held.get(head["command_id"]), after_seq=head["after_seq"], attached=True
            )
        elif operation == "ask":
            self._ask(head, body)
        elif operation == "write":
            commands.require_room(0)
            self._writer = self._begin_writing(head)
        elif operation == "commit":
            if isinstance(self._writer, Spool):
                self._commit_spooled(self._writer)
            elif self._writer is not None:
                answer = self._writer.commit()
                self._writer = None
                self._send(encode({"answer": answer}))
        elif operation == "connect":
            self._connect(head["port"])
        elif operation == "open":
            self._open_range(head)
        elif operation == "report":
            self._send(encode({"answer": commands.setting.evidence()}))
        elif operation == "contacts":
            self._send(encode({"answer": {"contacts": commands.contacts.contacts()}}))
        elif operation == "end":
            commands.end_box()
        else:
            raise Failure("INVALID_ARGUMENT", f"unknown operation `{str(operation)[:40]}`")

    def _ask(self, request: dict[str, Any], content: bytes) -> None:
        commands = self._commands
        name = request.pop("verb")
        if name == "signal_command":
            command = commands.running(request["command_id"])
            if request.get("cancel"):
                command.cancel()
            else:
                command.send_signal(int(request["signal"]))
            self._send(encode({"answer": {"ok": True}}))
        elif name == "send_input":
            self._send_input(request, content)
        elif name == "change_limits":
            commands.change_limits(request)
            self._send(encode({"answer": {"ok": True}}))
        elif name == "resize_terminal":
            if not commands.running(request["command_id"]).resize(request["columns"], request["rows"]):
                raise Failure("WRONG_STATE", "the command has no terminal, or has ended")
            self._send(encode({"answer": {"ok": True}}))
        elif name == "list_commands":
            self._send(encode({"answer": {"commands": commands.list_commands(request.get("command_id"))}}))
        elif name == "list_processes":
            self._send(encode({"answer": {"processes": commands.list_processes()}}))
        elif name == "list_shells":
            self._send(encode({"answer": {"shells": commands.shells.listing()}}))
        elif name == "end_shell":
            commands.shells.end(request["name"])
            self._send(encode({"answer": {"ok": True}}))
        elif name == "look_at_stake":
            self._send(encode({"answer": commands.look_at_stake(request.get("ending"))}))
            if request.get("ends"):
                commands.end_box()
        elif name == "tighten_limits":
            commands.tighten_limits(request["limits"])
            self._send(encode({"answer": {"ok": True}}))
        elif name == "watch_path":
            self._send(encode({"answer": commands.path_watches.begin(commands.box_root, request)}))
        elif name == "read_watch":
            self._read_watch(request)
        elif name == "end_watch":
            commands.path_watches.end(request["watch_id"])
            self._send(encode({"answer": {"ok": True}}))
        elif name not in VERBS:
            raise Failure("INVALID_ARGUMENT", f"unknown verb `{str(name)[:40]}`")
        elif VERBS[name].anywhere:
            self._ask_anywhere(name, request, content)
        elif VERBS[name].slow:
            if name == "list_runtimes":
                request["path_env"] = commands.setting.environment[b"PATH"].decode()
            self._ask_helper(name, request, lambda: VERBS[name].function(commands.setting.root, request, content))
        else:
            if name in GROWING_VERBS:
                edits = request.get("edits") or ()
                commands.require_room(len(content) + sum(len(edit["new"].encode("utf-8", "replace")) for edit in edits))
            self._send_answer(*VERBS[name].function(commands.setting.root, request, content))

    def _send_input(self, request: dict[str, Any], content: bytes) -> None:
        if self._sending is not None:
            raise Failure("INVALID_ARGUMENT", "one request at a time")
        command = self._commands.running(request["command_id"])
        if command.input is None:
            raise Failure("WRONG_STATE", "the command got its whole input when it started")
        offset = request.get("offset")
        sending = Sending(
            None if offset is None else int(offset), content, end=bool(request.get("end")), done=self._on_sent
        )
        self._sending = command.input, sending
        try:
            command.input.send(sending)
        except Failure:
            self._sending = None
            raise

    def _on_sent(self, how: Taken | Failure) -> None:
        self._sending = None
        if isinstance(how, Failure):
            self._fail(how)
        else:
            self._send(encode({"answer": {"taken": how.bytes, "waiting": how.waiting, "open": how.open}}))

    def _connect(self, port: int) -> None:
        if self._dial is not None:
            raise Failure("INVALID_ARGUMENT", "one request at a time")
        self._dial = Dial(self._commands.loop, port, self._on_connected)
        self._dial.begin()

    def _on_connected(self, how: socket.socket | Failure) -> None:
        self._dial = None
        if isinstance(how, Failure):
            self._fail(how)
            return
        with how:
            self._hand_over({"ok": True}, how.fileno())

    def _open_range(self, request: dict[str, Any]) -> None:
        """A long range of a file is read by whoever asks, from the file: its bytes need not come through here."""
        commands = self._commands
        if request["verb"] == "read_path" and request.get("user", "user") == "user":
            answer, held, place, wanted = open_path_range(commands.box_root, request)
        elif request["verb"] == "read_file":
            answer, held, place, wanted = open_range(commands.setting.root, request)
        else:
            raise Failure("INVALID_ARGUMENT", "this is not opened for others")
        try:
            self._hand_over({**answer, "place": place, "length": wanted}, held)
        finally:
            os.close(held)

    def _hand_over(self, answer: dict[str, Any], file: int) -> None:
        frame = encode({"answer": answer})
        try:  # a request that was answered has room for this
            sent = 0 if self._out else socket.send_fds(self._peer, [frame], [file])
        except OSError:
            sent = 0
        if sent != len(frame):
            self._commands.loop.soon(self._close)

    # -- any path of the box -------------------------------------------------------------------

    def _ask_anywhere(self, name: str, request: dict[str, Any], content: bytes) -> None:
        """As the user that it names; as another than the keeper itself, in a child that becomes that user first."""
        commands = self._commands
        user = request.pop("user", "user")
        become = commands.steps_to_become(user)
        if name in GROWING_VERBS:
            commands.require_room(len(content))
        function, root = VERBS[name].function, commands.box_root
        if user == "user" and not VERBS[name].slow:
            self._send_answer(*function(root, request, content))
            return

        def serve() -> Answer:
            for act in become:
                act()
            return function(root, request, content)

        self._ask_helper(name, request, serve)

    def _begin_writing(self, head: dict[str, Any]) -> FileWriter | PathWriter | Spool:
        if head.get("verb") != "write_path":
            return FileWriter(self._commands.setting.root, head)
        if head.get("user", "user") == "user":
            return PathWriter(self._commands.box_root, head)
        self._commands.steps_to_become(head["user"])
        return Spool(self._commands.setting.root, head)

    def _commit_spooled(self, spool: Spool) -> None:
        become = self._commands.steps_to_become(spool.request.pop("user"))
        root = self._commands.box_root

        def serve() -> Answer:
            for act in become:
                act()
            return write_spooled(root, spool.request, spool.file)

        self._writer = None
        try:
            self._ask_helper("write_path", {}, serve)
        finally:
            spool.abort()

    def _read_watch(self, request: dict[str, Any]) -> None:
        if self._awaited is not None:
            raise Failure("INVALID_ARGUMENT", "one request at a time")
        watch = self._commands.path_watches.find(request["watch_id"])
        if watch.on_event is not None:  # whoever waits already, perhaps without anybody behind it, is answered now
            watch.on_event()
        answer = watch.take()
        wait_s = min(float(request.get("wait_s") or 0.0), MOST_WAIT_S)
        if not wait_s or answer["events"] or answer["overflowed"] or answer["ended"]:
            self._send(encode({"answer": answer}))
            return

        def tell() -> None:
            self._forget_awaited()
            self._send(encode({"answer": watch.take()}))

        self._awaited = watch, self._commands.loop.after(wait_s, tell, while_held=True)
        watch.on_event = tell

    def _forget_awaited(self) -> None:
        if self._awaited is not None:
            watch, timer = self._awaited
            self._awaited = watch.on_event = None
            timer.cancel()

    # -- verbs that take long ------------------------------------------------------------------

    def _ask_helper(self, name: str, request: dict[str, Any], serve: Callable[[], Answer]) -> None:
        """Run a verb that may take long in a forked child, so that it delays nobody and can be killed."""
        if self._helper is not None:
            raise Failure("INVALID_ARGUMENT", "one request at a time")
        budget_s = float(request["budget_s"]) + BUDGET_GRACE_S if "budget_s" in request else SLOW_VERB_S
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            pid = os.fork()
            if pid == 0:
                self._commands.leave_to_keeper()
                _help(serve, self._commands.setting, write)
        except OSError:
            os.close(read)
            raise
        finally:
            os.close(write)
        timer = self._commands.loop.after(budget_s, lambda: self._helper_too_slow(name), while_held=True)
        self._helper = (pid, read, timer)
        self._commands.loop.watch(read, IN, self._on_helper)
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
        self._commands.loop.forget(read)
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
            self._open_stored(checked_id(command_id))
        else:
            self._following = command
            self._commands.followers.setdefault(command.command_id, set()).add(self)
        self.pump()

    def _open_stored(self, command_id: str) -> None:
        record = self._commands.read_record(command_id)
        if record is None or record.start is None or record.end is None:
            raise Failure("NOT_FOUND", f"no command `{command_id}` is held by this sandbox")
        try:
            file = os.open(f"{command_id}.out", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._commands.setting.records)
        except FileNotFoundError:
            file = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._stored, self._stored_end = StoredTranscript(file), record.end
        skipped, self._cursor = self._cursor, 0
        while self._cursor < skipped and self._stored.skip():
            self._cursor += 1
        event = {"event": "started", "command_id": command_id, "pid": None, "at": record.start["at"], "attached": True}
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
            self._out.add(
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
            if self._cursor >= len(command.transcript) and command.result is None:
                self._send(b"")  # else it goes with what follows
        while self._cursor < len(command.transcript) and len(self._out) < SEND_BUFFER_BYTES and not self._is_broken:
            self._send_chunk(command.transcript.file, command.transcript.place(self._cursor))
        if command.result is not None and self._cursor >= len(command.transcript):
            self._stop_following()
            self._send(encode(command.end or {"event": "ended", "result": command.result}))

    def _pump_stored(self, stored: StoredTranscript) -> None:
        while len(self._out) < SEND_BUFFER_BYTES and not self._is_broken:
            place = stored.next_place()
            if place is None:
                end, self._stored_end = self._stored_end, None
                self._stop_following()
                assert end is not None
                self._send(encode({"event": "ended", "result": end["result"]}))
                return
            self._send_chunk(stored.file, place)

    def _send_chunk(self, file: int, place: Place) -> None:
        at = None if place.at_us is None else place.at_us / 1_000_000
        head = {"event": "output", "seq": self._cursor, "stream": STREAMS[place.stream], "at": at}
        is_long = place.length >= LONG_BYTES
        if not (is_long and self._out.add_piece(encode_start(head, place.length), file, place.offset, place.length)):
            self._out.add(encode(head, os.pread(file, place.length, place.offset)))
        self._send(b"")
        self._cursor += 1

    def _stop_following(self) -> None:
        if self._following is not None:
            self._commands.followers.get(self._following.command_id, set()).discard(self)
            self._following = None
        if self._stored is not None:
            self._stored.close()
            self._stored = None

    # -- bytes ---------------------------------------------------------------------------------

    def _send_answer(self, answer: dict[str, Any], body: bytes) -> None:
        if len(body) < LONG_BYTES:
            self._send(encode({"answer": answer}, body))
        else:
            self._out.add(encode_start({"answer": answer}, len(body)))
            self._send(body)

    def _send(self, data: bytes) -> None:
        self._out.add(data)
        try:
            self._out.send(self._peer)
        except OSError:
            self._commands.loop.soon(self._close)
            self._out.clear()
            self._is_broken = True
            return
        wanted = IN | OUT if self._out else IN
        if wanted != self._watched and self._peer.fileno() >= 0:
            self._watched = wanted
            self._commands.loop.change(self._peer.fileno(), wanted)

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
        self._forget_awaited()
        self._out.clear()
        if self._sending is not None:
            command_input, sending = self._sending
            self._sending = None
            command_input.withdraw(sending)
        if self._dial is not None:
            self._dial.withdraw()
            self._dial = None
        self._commands.loop.forget(self._peer.fileno())
        self._peer.close()


def _help(serve: Callable[[], Answer], setting: Setting, write: int) -> None:
    """The helper child: serve one verb, write one frame, be gone. Never returns."""
    try:
        setting.seal()
        os.set_blocking(write, True)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        try:
            answer, body = serve()
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
