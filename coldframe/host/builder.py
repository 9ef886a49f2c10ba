"""The maker of new boxes: orders a keeper from the zygote, and puts it and the box's first process into their groups.

Whoever dies at whatever step, the machine, the zygote or the keeper, nothing of a box goes on half built.
"""

import asyncio
import contextlib
import errno
import json
import logging
import os
import resource
import secrets
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from coldframe.contract.errors import Fact, IsolationUnavailable
from coldframe.contract.sandbox import Limits
from coldframe.host.birth import MAX_ORDER_BYTES
from coldframe.host.cgroups import BoxGroups, Controllers, GroupLimits
from coldframe.host.confine import ConfineError
from coldframe.host.egress import arrivals
from coldframe.host.processes import kill
from coldframe.host.remedies import diagnose
from coldframe.host.settings import HostSettings
from coldframe.host.strays import kill_strays, mark_of

_log = logging.getLogger(__name__)
BUILD_TIMEOUT_S = 30.0
ZYGOTE_END_S = 2.0
AHEAD_S = 0.03
"""After the last build: when a keeper is forked for the next, so that it is not in the way of the first command."""
LET_OUT_S = 0.5
"""After a build: when who is endangered is let out of the groups of the box, which holds up all that is forked then."""
AT_ONCE = min(8, max(2, os.cpu_count() or 1))
"""A build waits for its processes in turn, so that two of them take little longer than one."""


T = TypeVar("T")


class _Ahead(NamedTuple):
    """A keeper that knows no box yet."""

    pid: int
    process: int
    """Its descriptor."""
    answer: socket.socket
    """Where it waits for its order."""
    groups: BoxGroups
    """That it was born in."""


class Builder:
    """Builds the boxes of one machine, AT_ONCE at a time.

    *embedded* boxes end when this process does, or with `close`. After `prepare` a keeper is forked ahead of need.
    """

    def __init__(self, installation: str, controllers: Controllers, settings: HostSettings, *, embedded: bool) -> None:
        self._installation = installation
        self._controllers = controllers
        self._settings = settings
        self._embedded = embedded
        self._lease_read, self._lease_write = os.pipe2(os.O_CLOEXEC)
        self.zygote: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._ordering = threading.Lock()
        """Held while the zygote, or the settings of the next box, may change."""
        self._building = 0
        self._is_prepared = self._is_forking = False
        self.group_names: set[str] = set()
        """Of those that were made ahead: of the keeper that waits, of boxes in hand, and of others that may have marks."""
        self._in_hand: set[str] = set()
        self._ahead: list[_Ahead] = []
        """At most one."""
        self._endangered: list[BoxGroups] = []
        self._later: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self._closed = False
        _allow_most_descriptors_in_flight()

    async def build(
        self,
        order: dict[str, Any],
        listener: socket.socket,
        limits: Limits,
        *,
        more: Sequence[tuple[str, int]] = (),
        then: Callable[[dict[str, Any]], T],
    ) -> tuple[dict[str, Any], T]:
        """What the new keeper says: `keeper` and `init`, their process ids, and `ready`, the evidence.

        Beside that `groups`, their directories, `settings`, the one that the box has as its /etc, and of one with a way
        out `arrivals`, its sockets, which are the caller's then. *more* descriptors for it stay the caller's. And what
        *then* makes of it, on the worker thread that has it: to come back from there takes longer than most of this.

        Raises:
            IsolationUnavailable: with property, reason and remedy. Nothing runs then.
        """
        self._building += 1
        try:
            async with self._turns:
                answer, made = await _unbroken(asyncio.to_thread(self._order, order, listener, limits, more, then))
        finally:
            self._building -= 1
            if self._endangered:
                self._do_later(LET_OUT_S, self._let_out)
            if self._is_prepared and not self._building:
                self._do_later(AHEAD_S, self._fork_ahead)
        if made is None:
            raise _not_built(str(answer.get("failed", "no answer")))
        return answer, made

    def prepare(self) -> None:
        """Start the zygote now, which takes longer than a box: then the first of them need not wait for it. Blocking."""
        with self._ordering, contextlib.suppress(OSError):  # told when a box is wanted
            self._open_channel()
        self._is_prepared = True
        self._fork_ahead()

    def drop_names(self) -> None:
        """Forget which groups boxes have that are built; from now on their marks tell."""
        kept = {ahead.groups.name for ahead in self._ahead} | self._in_hand
        self.group_names &= kept

    def _do_later(self, delay_s: float, action: Callable[[], None]) -> None:
        """On a worker thread; once, however often it is asked for meanwhile."""
        loop = asyncio.get_running_loop()

        def begin() -> None:
            del self._later[action]
            loop.run_in_executor(None, action)

        if action not in self._later:
            self._later[action] = loop.call_later(delay_s, begin)

    def _let_out(self) -> None:
        while self._endangered:
            self._endangered.pop().let_out()

    def _fork_ahead(self) -> None:
        """Have one keeper wait for the next order, in groups of its own. Blocking; a failure is left to the next build."""
        if not self._begin_ahead():
            return
        groups = BoxGroups(self._controllers, self._installation, f"ahead-{secrets.token_hex(10)}")
        self.group_names.add(groups.name)
        mine, theirs = _conversation()
        places: list[tuple[str, int]] = []
        process = -1
        try:
            groups.create_ahead()
            places = [(name, file) for name, file in groups.birthplaces() if name == "birthplace"]
            files = [("answer", theirs.fileno()), *places]
            order = json.dumps({"files": [name for name, _ in files]}).encode()
            with self._ordering:
                self._send_order(order, [file for _, file in files])
            theirs.close()
            pid = _heard(mine)["keeper"]
            process = os.pidfd_open(pid)
            groups.enter(pid)
        except (OSError, ConfineError, KeyError, ValueError) as error:
            _log.warning("no keeper could be forked ahead: %s", error)
            mine.close()
            if process >= 0:
                kill(process)
                os.close(process)
            _remove(groups)
        else:
            self._ahead.append(_Ahead(pid, process, mine, groups))
        finally:
            theirs.close()
            for _, file in places:
                os.close(file)
            self._is_forking = False
            if self._closed:
                self._drop_ahead()

    def _begin_ahead(self) -> bool:
        """Whether a keeper is wanted that waits, and nobody else sees to it."""
        with self._ordering:
            is_wanted = not (self._closed or self._ahead or self._is_forking or self._building)
            self._is_forking |= is_wanted
        return is_wanted

    def _take_ahead(self) -> _Ahead | None:
        """The keeper that waits, if there is one and it lives."""
        try:
            ahead = self._ahead.pop()
        except IndexError:
            return None
        ended = select.poll()
        ended.register(ahead.process, select.POLLIN)
        if not ended.poll(0):
            return ahead
        self._ahead.append(ahead)
        self._drop_ahead()
        return None

    def _drop_ahead(self) -> None:
        """End the keeper that waits, if there is one."""
        with contextlib.suppress(IndexError):
            ahead = self._ahead.pop()
            ahead.answer.close()
            kill(ahead.process)
            os.close(ahead.process)
            _remove(ahead.groups)

    def close(self) -> None:
        """End the zygote, and let the lease go: embedded boxes end then. Blocking."""
        if not self._embedded:
            self._let_out()
        with self._ordering:
            self._closed = True
            self._drop_ahead()
            self._end_zygote()
        os.close(self._lease_read)
        os.close(self._lease_write)

    def _order(
        self,
        order: dict[str, Any],
        listener: socket.socket,
        limits: Limits,
        more: Sequence[tuple[str, int]],
        then: Callable[[dict[str, Any]], T],
    ) -> tuple[dict[str, Any], T | None]:
        answer = self._order_keeper(order, listener, limits, more)
        return answer, then(answer) if "ready" in answer else None

    def _order_keeper(
        self, order: dict[str, Any], listener: socket.socket, limits: Limits, more: Sequence[tuple[str, int]]
    ) -> dict[str, Any]:
        """The whole conversation with a new keeper; blocking, on a worker thread."""
        ahead = self._take_ahead()
        theirs: socket.socket | None = None
        keeper = init = -1
        if ahead is None:
            mine, theirs = _conversation()
            groups = BoxGroups(self._controllers, self._installation, order["sandbox_id"])
        else:
            mine, groups, keeper = ahead.answer, ahead.groups, ahead.process
        self._in_hand.add(groups.name)
        descriptors: list[tuple[str, int]] = []
        try:
            groups.create(
                GroupLimits(limits.memory_mib << 20, limits.pids, limits.cpus),
                owner_uid=order["uid"],
            )
            opened = groups.descriptors()
            descriptors += [(f"per_command:{name}", file) for name, file in opened.per_command]
            descriptors += [(f"attach_only:{name}", file) for name, file in opened.attach_only]
            descriptors += groups.birthplaces()
            files = [("listener", listener.fileno()), *more, *descriptors]
            if self._embedded:
                files.append(("lease", self._lease_read))
            if theirs is not None:
                files.insert(0, ("answer", theirs.fileno()))
                if not self._controllers.delegated:
                    mine.send(b".")  # it need not wait to be in its group before it goes on
            order["files"] = [name for name, _ in files]
            with self._ordering:
                order["settings"] = self._settings.current()
                message = json.dumps(order).encode()
                if theirs is not None:
                    self._send_order(message, [file for _, file in files])
            if theirs is None:
                socket.send_fds(mine, [_fitting(message)], [file for _, file in files])
                hello = {"keeper": ahead.pid} if ahead is not None else {}
            else:
                theirs.close()
                hello = _heard(mine)
                keeper = os.pidfd_open(hello["keeper"])
                groups.enter(hello["keeper"])
                if self._controllers.delegated:
                    mine.send(b".")
            begun = _heard(mine)
            with contextlib.suppress(ProcessLookupError):  # the keeper says why
                init = os.pidfd_open(begun["init"])
            _settle(groups, (begun["init"], begun["bwrap"]), mine)
            ready = _heard(mine)
            if groups.endangered:
                self._endangered.append(groups)
            if order["captured_ports"] is not None:
                ready["arrivals"] = arrivals.receive(mine)
            return {**hello, **begun, **ready, "settings": order["settings"], "groups": groups.paths}
        except (OSError, ConfineError, KeyError, ValueError) as error:
            for process in (keeper, init):  # bubblewrap's child is bound to the life of the keeper only at its end
                if process >= 0:
                    kill(process)
            kill_strays(mark_of(self._installation))
            if ahead is not None:
                _remove(groups)
            return {"failed": f"{error}"}
        finally:
            mine.close()
            if theirs is not None:
                theirs.close()
            self._in_hand.discard(groups.name)
            for file in (keeper, init, *(file for _, file in descriptors)):
                if file >= 0:
                    os.close(file)

    def _send_order(self, message: bytes, files: list[int]) -> None:
        """Hand it to the zygote; a zygote that died meanwhile is started again, once. Raises ValueError if it is too long."""
        message = _fitting(message)
        try:
            socket.send_fds(self._open_channel(), [message], files)
        except OSError:
            self._end_zygote()
            socket.send_fds(self._open_channel(), [message], files)

    def _open_channel(self) -> socket.socket:
        if self._channel is not None and self.zygote is not None and self.zygote.poll() is None:
            return self._channel
        if self._closed:
            raise OSError(errno.ESHUTDOWN, "this machine builds no more")
        self._end_zygote()
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        program = (
            "import os, sys; "
            f"given = {theirs.fileno()}; given == 3 or (os.dup2(given, 3), os.close(given)); sys.path.append({home!r}); "
            "from coldframe.host.zygote import main; main()"
        )
        mine.setblocking(True)
        self.zygote = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program, mark_of(self._installation)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"},
            start_new_session=True,
        )
        theirs.close()
        self._channel = mine
        return mine

    def _end_zygote(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self.zygote is not None:
            try:
                self.zygote.wait(ZYGOTE_END_S)
            except subprocess.TimeoutExpired:  # stopped by somebody, say
                self.zygote.kill()
                self.zygote.wait()
            self.zygote = None
            kill_strays(mark_of(self._installation))  # those that were its children are nobody's now


def _conversation() -> tuple[socket.socket, socket.socket]:
    """The machine's end and that of a keeper."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mine.settimeout(BUILD_TIMEOUT_S)
    for end, option in ((mine, socket.SO_RCVBUF), (theirs, socket.SO_SNDBUF)):
        end.setsockopt(socket.SOL_SOCKET, option, 4 << 20)
    return mine, theirs


def _fitting(message: bytes) -> bytes:
    """Raises ValueError for an order that is too long."""
    if len(message) > MAX_ORDER_BYTES:
        raise ValueError(
            f"the order of its keeper takes {len(message)} bytes of at most {MAX_ORDER_BYTES}: "
            "deny fewer programs one by one"
        )
    return message


def _remove(groups: BoxGroups) -> None:
    try:
        groups.remove()
    except ConfineError as error:
        _log.warning("%s; a sweep tries again", error)


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


def _settle(groups: BoxGroups, processes: tuple[int, int], keeper: socket.socket) -> None:
    """See that the first process is in its groups and say so. If it is gone, what the keeper says next is the reason."""
    try:
        groups.settle(*processes)
    except ConfineError:
        with contextlib.suppress(ConnectionError):
            keeper.shutdown(socket.SHUT_WR)
        with contextlib.suppress(_KeeperEnded):
            _heard(keeper)
        raise
    with contextlib.suppress(ConnectionError):
        keeper.send(b".")


async def _unbroken(
    ordering: Coroutine[Any, Any, tuple[dict[str, Any], T | None]],
) -> tuple[dict[str, Any], T | None]:
    """The answer about a new keeper. If the caller is cancelled meanwhile, the keeper that still comes is ended."""
    task = asyncio.ensure_future(ordering)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():  # whoever cancels twice has to wait as well
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        answer, _ = task.result()
        if "arrivals" in answer:
            answer["arrivals"].close()
        if "ready" in answer:
            with contextlib.suppress(ProcessLookupError):
                keeper = os.pidfd_open(answer["keeper"])
                try:
                    kill(keeper)
                finally:
                    os.close(keeper)
        raise


def _allow_most_descriptors_in_flight() -> None:
    """Raise the soft limit: descriptors on their way count per user, and without root the payload is the same user.

    The kernel compares that count with the limit of whoever sends. A payload that left a thousand of its own on
    the way kept this process from handing any to a new keeper (measured).
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
