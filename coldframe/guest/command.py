"""One command from start to record: its start, its end, what outlives it. Its streams are in `streams.py`.

The call ends when the main process has ended and its streams are empty, or at most DRAIN_LIMIT_S later
if somebody else still holds them. What lives on then is *adopted* (kept, listed, its late output kept
apart) or *ended*, as the spec says. Every end goes through the whole tree of the command: by its
control group where there is one, else by the mark that each descendant inherits.

The result is written to disk before anybody hears of it, so it is whole whoever dies afterwards.
"""

import errno
import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from coldframe.guest import spawn
from coldframe.guest.frames import MALFORMED
from coldframe.guest.input import Input
from coldframe.guest.loop import IN, Loop, Timer
from coldframe.guest.streams import Streams, Taken
from coldframe.guest.transcript import STDERR, STDOUT, Transcript
from coldframe.guest.usage import (
    LEFTOVERS_CHECK_S,
    USAGE_CHECK_S,
    Tree,
    limit_behind,
    limit_hit,
    limit_met,
    next_check_s,
)
from coldframe.guest.verbs import Failure
from coldframe.guest.waits import find_reason

DRAIN_IDLE_S = 0.15
"""After the main process ended: how long silence on a stream that somebody else holds counts as its end."""
DRAIN_LIMIT_S = 0.8
"""And the longest wait in all. T1.38 allows one second."""
GRACE_S = 1.0
"""Between TERM and KILL."""
HELD_LIMIT_S = 1.0
"""How long a killed main process may be held back by a neighbour that traces it, before its end is told anyway."""
TOGETHER_S = 0.002
"""How long the news that a command has started waits for its first output or its end, to be told with it."""
STALLED_AFTER_S = 3.0
"""Silence after which a command that waits for somebody, or computes, is said to be stalled. T3.68 allows five seconds."""
LATE_CAP_BYTES = 64 * 1024 * 1024
"""Output of adopted processes that is kept after their command's end; more is read and dropped."""


def now() -> str:
    return datetime.now(UTC).isoformat()


class Started(NamedTuple):
    pid: int | None
    at: str


class Command:
    """A running or ended command. `on_change` is called whenever followers have something new."""

    def __init__(
        self,
        loop: Loop,
        spec: dict[str, Any],
        *,
        tree: Tree,
        become: spawn.Steps,
        enter: spawn.Steps = (),
        nothing: int,
        open_output: Callable[[], spawn.Output] = spawn.open_output,
        transcript: Transcript,
        late: Transcript,
        finish: Callable[["Command"], dict[str, Any]],
        on_change: Callable[["Command"], None],
    ) -> None:
        self.spec = spec
        self.command_id: str = spec["command_id"]
        self.transcript = transcript
        self.tree = tree
        self._become = become
        self._enter = enter
        self.started: Started | None = None
        self.result: dict[str, Any] | None = None
        self.end: bytes | None = None
        """As followers are told it, if that is written already."""
        self.leftovers: list[dict[str, Any]] = []
        self.leftovers_ended = 0
        self.outlived = False
        """Something of it lived when it was over."""
        self.settled = False
        """Nothing of it lives or is held any more but the transcript."""
        self.state = "starting"
        self._loop = loop
        self._nothing = nothing
        """An empty input, for all commands that get none."""
        self._late = late
        self._finish = finish
        self._on_change = on_change
        self._began = self._heard = self._loop.time()
        """Heard: the last output, or input that was taken."""
        self._held_before_s = loop.held_s()
        self._began_at = now()
        self._child: spawn.Child | None = None
        self._streams = Streams(
            loop,
            transcript,
            take=self._take,
            on_arrival=self._on_arrival,
            on_last_end=self._on_last_end,
            on_taken=self._on_taken,
            open_output=open_output,
        )
        self._held = False
        self._kill_since = 0.0
        self._status: int | None = None
        self._usage_s = self._cpu_before_s = 0.0
        """The second: up to the last input of one that lasts, and else none."""
        self._largest_bytes: int | None = None
        self._reason: str | None = None
        self._limit: dict[str, Any] | None = None
        self._start_error: str | None = None
        self._news: Timer | None = None
        self._deadline: Timer | None = None
        self._usage_check: Timer | None = None
        self._drain_idle: Timer | None = None
        self._drain_end: Timer | None = None

    # -- start ---------------------------------------------------------------------------------

    def begin(self, directory: int, environment: dict[bytes, bytes], stdin: bytes) -> None:
        """Fork it. A start that fails becomes a result; no exception leaves here."""
        spec = self.spec
        terminal = spec.get("terminal")
        opened: list[int] = []
        try:
            arguments, script = self._arguments()
            if script >= 0:
                opened.append(script)
            if terminal:
                theirs = self._streams.open_terminal(terminal["columns"], terminal["rows"])
                opened.append(theirs)
                streams = (theirs, theirs, theirs)
            else:
                source = self._nothing
                if spec.get("stdin_open"):
                    source = self._streams.open_input()
                    opened.append(source)
                elif stdin:
                    source = spawn.open_input(stdin, sealed=bool(spec.get("sealed_input")))
                    opened.append(source)
                streams = (source, *self._streams.open_pipes())
            self._streams.watch()
            if not spec.get("lasting"):
                self._deadline = self._loop.after(spec["timeout_s"], self._on_timeout)
            self._usage_check = self._loop.after(USAGE_CHECK_S, self._check_usage)
            self._child = spawn.start(
                spawn.Start(
                    programs=spawn.find_programs(arguments[0], environment),
                    arguments=arguments,
                    environment=environment,
                    directory=directory,
                    streams=streams,
                    script=script,
                    terminal=bool(terminal),
                    become=self._become,
                    enter=self._enter,
                    birth=self.tree.birth,
                    fork=self.tree.fork,
                )
            )
        except (OSError, *MALFORMED) as error:
            reason: str | None = "the request is malformed"
            if isinstance(error, OSError):
                reason = error.strerror
            elif isinstance(error, UnicodeError):
                reason = "the command line is no text that Linux takes"
            self._start_error = f"no process could be made: {reason}"
            if isinstance(error, OSError) and error.errno == errno.EAGAIN:
                self._limit = limit_hit("pids", spec.get("pids", 0), unit="processes")
            self._status = 126 << 8
            self._streams.close()
            self.started = Started(None, self._began_at)
            self._complete()
            return
        finally:
            for file in opened:
                os.close(file)
        if self._streams.input is not None:
            self._streams.input.begin_with(stdin)
        self._news = self._loop.after(TOGETHER_S, self._tell)
        try:
            self._loop.watch(self._child.pidfd, IN, self._on_exit)
        except OSError as error:  # no event watch is left, which processes of the box can bring about
            self._end_unwatched(error)

    def _end_unwatched(self, error: OSError) -> None:
        """What cannot be watched may not run."""
        self._start_error = f"no process could be made: {error.strerror}"
        self.tree.kill()
        self._signal_main(signal.SIGKILL)
        self._kill_since = self._loop.time()
        self._loop.soon(lambda: self._on_exit(IN))
        self._loop.after(HELD_LIMIT_S, self._kill_until_gone)

    def _arguments(self) -> tuple[list[bytes], int]:
        if self.spec.get("shell") is not None:
            return spawn.shell_arguments(_bytes(self.spec["shell"]))
        return [_bytes(word) for word in self.spec["argv"]], -1

    def _read_report(self) -> None:
        """What is known of the start: its pid inside, and why it failed if it did."""
        assert self._child is not None
        report = spawn.read_report(self._child)
        if report.ended:
            self._child = spawn.let_go(self._child)
        if report.pid is not None and self.started is None:
            self.started = Started(report.pid, self._began_at)
            self.state = "running"
        if report.failure is not None:
            step, code, text = report.failure
            self._start_error = _start_message(self.spec, step, code, text)
            self._status_if_failed = 127 if code == errno.ENOENT else 126

    def _tell(self) -> None:
        """Have followers look, once there is a start to be told."""
        if self._news is not None:
            self._news.cancel()
            self._news = None
        if self.started is None:
            self._read_report()
        if self.started is None:  # a neighbour in the box can stop a child before it is a program
            self._news = self._loop.after(spawn.EXEC_WAIT_S, self._tell)
            return
        self._on_change(self)

    _status_if_failed = 126

    # -- output --------------------------------------------------------------------------------

    def _take(self, pending: Taken) -> None:
        self._heard = self._loop.time()
        try:
            for stream, data in pending:
                self._keep(stream, data)
        except OSError as error:
            self._output_lost(error)
        self._tell()

    def _on_arrival(self) -> None:
        if self._drain_idle is not None:
            self._restart_drain()

    def _on_taken(self) -> None:
        self._heard = self._loop.time()
        if self.spec.get("lasting"):
            self._cpu_before_s = self.tree.cpu_s()

    def _on_last_end(self) -> None:
        if self._status is not None and self.result is None:
            self._loop.soon(self._complete)

    def _keep(self, stream: int, data: bytearray | memoryview) -> None:
        if self.result is None:
            if self._limit is not None and self._limit["kind"] == "output":
                return  # read so that nobody hangs, not kept: the result names the limit
            self.transcript.append(stream, data)
            cap = self.spec.get("output_bytes")
            if cap and self.transcript.total_bytes > cap and self._limit is None:
                self._limit = limit_hit("output", cap)
                self._end_tree("limit")
        elif self._late.total_bytes < LATE_CAP_BYTES:
            self._late.append(stream, data)

    def _output_lost(self, error: OSError) -> None:
        """The host cannot keep the output, so the command may not go on as if it were kept."""
        if self.result is None and self._limit is None:
            self._limit = limit_hit("disk", 0)
            self._start_error = f"output could not be kept: {error.strerror}"
            self._end_tree("limit")

    # -- end -----------------------------------------------------------------------------------

    def _on_exit(self, _: int) -> None:
        assert self._child is not None
        pid, status, usage = os.wait4(self._child.pid, os.WNOHANG)
        if pid == 0:
            # It is dead and cannot be waited for: a neighbour traces it. Look again now and then, without spinning.
            self._held = True
            self._loop.forget(self._child.pidfd)
            self._loop.after(0.05 if self._status is None else 1.0, lambda: self._on_exit(IN))
            return
        self._held = False
        self._loop.forget(self._child.pidfd)
        os.close(self._child.pidfd)
        if self._status is None:
            self._usage_s = usage.ru_utime + usage.ru_stime
            self._largest_bytes = usage.ru_maxrss * 1024
            self._ended_with(status)
        self._child = spawn.let_go(self._child)

    def _ended_with(self, status: int) -> None:
        self._status = status
        self._read_report()
        if self.started is None:
            self.started = Started(None, self._began_at)
        if self._deadline is not None and self._reason is None:
            self._deadline.cancel()
        self._streams.let_go()
        self._streams.close_silent()
        if not self._streams.open:
            self._loop.soon(self._complete)
            return
        self._drain_end = self._loop.after(DRAIN_LIMIT_S, self._complete)
        self._restart_drain()

    def _restart_drain(self) -> None:
        if self._drain_idle is not None:
            self._drain_idle.cancel()
        self._drain_idle = self._loop.after(DRAIN_IDLE_S, self._complete)

    def _on_timeout(self) -> None:
        if self.result is None and self._reason is None:
            self._limit = limit_hit("wall", self.spec["timeout_s"], self._loop.time() - self._began, unit="s")
            self._end_tree("timed_out")

    def _check_usage(self) -> None:
        """CPU time of the whole tree, the workspace's size, and memory where only we can look.

        The overrun is bounded by the interval, so what is over is killed at once: a chance to end by itself would be
        a chance to go on.
        """
        if self.result is not None or self._reason is not None:
            return
        cpu_s = self.tree.cpu_s() - self._cpu_before_s
        self._limit = self._limit or limit_met(self.spec, self.tree, cpu_s)
        idle_s, silent_s = self.spec.get("idle_timeout_s"), self._loop.time() - self._heard
        if self._limit is None and idle_s and silent_s >= idle_s:
            self._limit = limit_hit("idle", idle_s, silent_s, unit="s")
            self._end_tree("timed_out")
        elif self._limit is None:
            self._usage_check = self._loop.after(next_check_s(self.spec, cpu_s), self._check_usage)
        else:
            self.tree.kill()
            self._end_tree("limit")

    def cancel(self) -> None:
        """End the whole tree because a caller asked. After the end it ends what was adopted."""
        if self.result is not None:
            self.tree.signal(signal.SIGTERM)
            self._loop.after(GRACE_S, self.tree.kill)
        elif self._reason is None:
            self._end_tree("cancelled")

    def send_signal(self, number: int) -> None:
        self.tree.signal(number)

    def resize(self, columns: int, rows: int) -> bool:
        return self._streams.resize(columns, rows)

    @property
    def input(self) -> Input | None:
        """What can be sent to; None if all that it gets was given at the start."""
        return self._streams.input

    def change_limits(self, limits: dict[str, float]) -> None:
        """Hold it to these from now on, each counted from its start; one that is over already acts at once.

        Raises:
            Failure: WRONG_STATE, it has ended or is being ended.
        """
        if self.result is not None or self._reason is not None or self._status is not None:
            raise Failure("WRONG_STATE", f"command `{self.command_id}` has ended, or is being ended")
        self.spec.update(limits)
        if "timeout_s" in limits and self._deadline is not None:
            self._deadline.cancel()
            left_s = self._began + limits["timeout_s"] - self._loop.time()
            self._deadline = self._loop.after(max(0.0, left_s), self._on_timeout)

    def activity(self) -> dict[str, Any]:
        """Fields of Activity: what it does now, for a command that has not ended."""
        now_s = self._loop.time()
        silent_s = now_s - self._heard
        waiting_for = find_reason((member["pid"] for member in self.tree.members()), self._streams.input_name)
        taken = None if self.input is None else self.input.state()
        return {
            "running_for_s": now_s - self._began,
            "silent_for_s": silent_s,
            "waiting_for": waiting_for,
            "stalled": waiting_for is not None and silent_s >= STALLED_AFTER_S,
            "cpu_used_s": self.tree.cpu_s(),
            "timeout_s": self.spec["timeout_s"],
            "idle_timeout_s": self.spec.get("idle_timeout_s"),
            "cpu_s": self.spec["cpu_s"],
            "stdin": None if taken is None else {"taken": taken.bytes, "waiting": taken.waiting, "open": taken.open},
        }

    def _end_tree(self, reason: str) -> None:
        self._reason = reason
        for number in (signal.SIGTERM, signal.SIGCONT):
            self.tree.signal(number)
            self._signal_main(number)
        self._kill_since = self._loop.time() + GRACE_S
        self._loop.after(GRACE_S, self._kill_until_gone)
        self._watch_for_end(self._loop.time() + GRACE_S)

    def _signal_main(self, number: int) -> None:
        """The main process by itself: it may have been stopped before it joined the tree, or have left it."""
        if self._status is None and self._child is not None:
            try:
                signal.pidfd_send_signal(self._child.pidfd, number)
            except ProcessLookupError:
                pass

    def _watch_for_end(self, until: float) -> None:
        """Complete before the grace period is over if everybody went by themselves."""
        if self.result is not None or self._loop.time() >= until:
            return
        if self._status is not None and self.tree.empty():
            self._complete()
        else:
            self._loop.after(0.02, lambda: self._watch_for_end(until))

    def _kill_until_gone(self) -> None:
        """KILL, again and again: a fork bomb may be faster than one pass."""
        if self.tree.empty() and self._status is not None:
            if self.result is None:
                self._complete()
            return
        self.tree.kill()
        self._signal_main(signal.SIGKILL)
        if self._held and self._loop.time() > self._kill_since + HELD_LIMIT_S:
            self._ended_with(signal.SIGKILL)
        self._loop.after(0.02, self._kill_until_gone)

    def _complete(self) -> None:
        """The command is over: settle what is left of it, write the record, tell followers. Once."""
        if self.result is not None or self._status is None:
            return
        if self._reason is not None and not self.tree.empty():
            return  # an ended tree is reported when it is really gone; _kill_until_gone comes back
        for timer in (self._drain_idle, self._drain_end, self._deadline, self._usage_check):
            if timer is not None:
                timer.cancel()
        self._streams.drain()
        self.outlived = not self.tree.empty()
        if self.outlived:
            if self.spec.get("leftovers") == "end":
                self.leftovers_ended = len(self.tree.members())
                self._reason_kept, self._reason = self._reason, "leftovers"
                self._end_leftovers()
                return
            self.leftovers = [
                {key: member[key] for key in ("pid", "command_line", "started_at")} for member in self.tree.members()
            ]
        self._seal()

    _reason_kept: str | None = None

    def _end_leftovers(self) -> None:
        if self.tree.empty():
            self._reason = self._reason_kept
            self.outlived = False
            self._seal()
            return
        self.tree.kill()
        self._loop.after(0.01, self._end_leftovers)

    def _seal(self) -> None:
        if self.result is not None:
            return
        self.result = self._finish(self)
        self.state = "ended"
        self._tell()  # whoever waits does not wait for what is tidied up
        if not self.outlived:
            self._close()
        else:
            self._watch_leftovers()

    def _watch_leftovers(self) -> None:
        """Keep the group of adopted processes until the last of them is gone."""
        if self.tree.empty():
            self._streams.drain()
            self._close()
        else:
            if (
                limit_met(self.spec, self.tree, self.tree.cpu_s()) is not None
            ):  # its result is told; the limit holds all the same
                self.tree.kill()
            self._loop.with_others(LEFTOVERS_CHECK_S, self._watch_leftovers)

    def _close(self) -> None:
        self._streams.close()
        self._late.close()
        self.tree.close()
        self.settled = True

    # -- record --------------------------------------------------------------------------------

    def describe_end(self) -> dict[str, Any]:
        """The fields of CommandResult that this room knows."""
        status = self._status or 0
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = 128 + number if number is not None else os.waitstatus_to_exitcode(status)
        if self._start_error and self._reason is None:
            ended, code, number = "not_started", self._status_if_failed, None
        elif self._reason in ("timed_out", "cancelled", "limit"):
            ended = self._reason
        else:
            ended = "signalled" if number is not None else "exited"
        usage = self.tree.usage()
        limit = self._limit or limit_behind(self.spec, self.tree, usage, code=code, signal_number=number)
        assert self.started is not None
        return {
            "command_id": self.command_id,
            "ended": ended,
            "exit_code": code,
            "signal": number,
            "timed_out": self._reason == "timed_out",
            "cancelled": self._reason == "cancelled",
            "out_of_memory": usage.oom_kills > 0,
            "limit": limit,
            "start_error": self._start_error,
            "started_at": self.started.at,
            "ended_at": now(),
            "duration_ms": (self._loop.time() - self._began) * 1000,
            "paused_s": self._loop.held_s() - self._held_before_s,
            "cpu_s": max(usage.cpu_s, self._usage_s),
            "peak_memory_bytes": usage.peak_memory_bytes or self._largest_bytes,
            "stdout": self.transcript.digests[STDOUT].summary(),
            "stderr": self.transcript.digests[STDERR].summary(),
            "order": "approximate" if self._streams.mixed else "exact",
            "leftovers": self.leftovers,
            "leftovers_ended": self.leftovers_ended,
            "artifact_id": self.command_id,
        }


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _start_message(spec: dict[str, Any], step: str, number: int, text: str) -> str:
    if step != "exec":
        return f"the command could not be prepared ({step}): {text}"
    program = "bash" if spec.get("shell") is not None else spec["argv"][0]
    reason = "command not found" if number == errno.ENOENT else (os.strerror(number).lower() if number else text)
    return f"{program}: {reason}"
