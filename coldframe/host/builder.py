"""The maker of new boxes: orders a keeper from the zygote, and puts it and the box's first process into their groups.

Whoever dies at whatever step, the machine, the zygote or the keeper, nothing of a box goes on half built.
"""

import asyncio
import contextlib
import errno
import json
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Coroutine
from typing import Any

from coldframe.contract.errors import Fact, IsolationUnavailable
from coldframe.contract.sandbox import Limits
from coldframe.host.birth import MAX_ORDER_BYTES
from coldframe.host.cgroups import BoxGroups, Controllers, GroupLimits
from coldframe.host.confine import ConfineError
from coldframe.host.processes import kill
from coldframe.host.remedies import diagnose
from coldframe.host.settings import HostSettings
from coldframe.host.strays import kill_strays, mark_of

BUILD_TIMEOUT_S = 30.0
ZYGOTE_END_S = 2.0
AT_ONCE = min(8, max(2, os.cpu_count() or 1))
"""A build waits for its processes in turn, so that two of them take little longer than one."""


class Builder:
    """Builds the boxes of one machine, AT_ONCE at a time.

    *embedded* boxes end when this process does, or with `close`.
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
        self._closed = False
        _allow_most_descriptors_in_flight()

    async def build(self, order: dict[str, Any], listener: socket.socket, limits: Limits) -> dict[str, Any]:
        """What the new keeper says: `keeper` and `init`, their process ids, and `ready`, the evidence.

        Beside that `groups`, their directories, and `settings`, the one that the box has as its /etc.

        Raises:
            IsolationUnavailable: with property, reason and remedy. Nothing runs then.
        """
        async with self._turns:
            answer = await _unbroken(asyncio.to_thread(self._order_keeper, order, listener, limits))
        if "ready" not in answer:
            raise _not_built(str(answer.get("failed", "no answer")))
        return answer

    def prepare(self) -> None:
        """Start the zygote now, which takes longer than a box: then the first of them need not wait for it. Blocking."""
        with self._ordering, contextlib.suppress(OSError):  # told when a box is wanted
            self._open_channel()

    def close(self) -> None:
        """End the zygote, and let the lease go: embedded boxes end then. Blocking."""
        with self._ordering:
            self._closed = True
            self._end_zygote()
        os.close(self._lease_read)
        os.close(self._lease_write)

    def _order_keeper(self, order: dict[str, Any], listener: socket.socket, limits: Limits) -> dict[str, Any]:
        """The whole conversation with a new keeper; blocking, on a worker thread."""
        groups = BoxGroups(self._controllers, self._installation, order["sandbox_id"])
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
            descriptors += groups.birthplaces()
            files = [("answer", theirs.fileno()), ("listener", listener.fileno()), *descriptors]
            if self._embedded:
                files.append(("lease", self._lease_read))
            order["files"] = [name for name, _ in files]
            if not self._controllers.delegated:
                mine.send(b".")  # it need not wait to be in its group before it goes on
            with self._ordering:
                order["settings"] = self._settings.current()
                self._send_order(json.dumps(order).encode(), [file for _, file in files])
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
                threading.Thread(target=groups.let_out, name="let-out", daemon=True).start()
            return {**hello, **begun, **ready, "settings": order["settings"], "groups": groups.paths}
        except (OSError, ConfineError, KeyError, ValueError) as error:
            for process in (keeper, init):  # bubblewrap's child is bound to the life of the keeper only at its end
                if process >= 0:
                    kill(process)
            kill_strays(mark_of(self._installation))
            return {"failed": f"{error}"}
        finally:
            mine.close()
            theirs.close()
            for file in (keeper, init, *(file for _, file in descriptors)):
                if file >= 0:
                    os.close(file)

    def _send_order(self, message: bytes, files: list[int]) -> None:
        """Hand it to the zygote; a zygote that died meanwhile is started again, once. Raises ValueError if it is too long."""
        if len(message) > MAX_ORDER_BYTES:
            raise ValueError(
                f"the order of its keeper takes {len(message)} bytes of at most {MAX_ORDER_BYTES}: "
                "deny fewer programs one by one"
            )
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


async def _unbroken(ordering: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """The answer about a new keeper. If the caller is cancelled meanwhile, the keeper that still comes is ended."""
    task = asyncio.ensure_future(ordering)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():  # whoever cancels twice has to wait as well
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        answer = task.result()
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
