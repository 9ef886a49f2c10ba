"""The maker of new boxes: orders a keeper from the zygote, and puts it and the box's first process into their groups.

Whoever dies at whatever step, the machine, the zygote or the keeper, nothing of a box goes on half built.
"""

import asyncio
import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Coroutine
from typing import Any

from coldframe.contract.errors import Fact, IsolationUnavailable
from coldframe.contract.sandbox import Limits
from coldframe.host.cgroups import BoxGroups, Controllers, GroupLimits, is_delegated_by_namespace
from coldframe.host.confine import ConfineError
from coldframe.host.isolation import namespaces
from coldframe.host.processes import kill
from coldframe.host.remedies import diagnose

BUILD_TIMEOUT_S = 30.0
ZYGOTE_END_S = 2.0
BWRAP_NAME = os.path.basename(namespaces.BWRAP)


class Builder:
    """Builds the boxes of one machine, one after the other.

    *embedded* boxes end when this process does, or with `close`.
    """

    def __init__(self, installation: str, controllers: Controllers, *, embedded: bool) -> None:
        self._installation = installation
        self._controllers = controllers
        self._groups_hold_namespaces = is_delegated_by_namespace()
        self._embedded = embedded
        self._lease_read, self._lease_write = os.pipe2(os.O_CLOEXEC)
        self.zygote: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._lock = asyncio.Lock()
        _allow_most_descriptors_in_flight()

    async def build(self, order: dict[str, Any], listener: socket.socket, limits: Limits) -> dict[str, Any]:
        """What the new keeper says: `keeper` and `init`, their process ids, and `ready`, the evidence.

        Raises:
            IsolationUnavailable: with property, reason and remedy. Nothing runs then.
        """
        async with self._lock:
            answer = await _unbroken(asyncio.to_thread(self._order_keeper, order, listener, limits))
        if "ready" not in answer:
            raise _not_built(str(answer.get("failed", "no answer")))
        return answer

    def close(self) -> None:
        """End the zygote, and let the lease go: embedded boxes end then. Blocking."""
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
                    kill(process)
            if self.zygote is not None:
                kill_strays(self.zygote.pid)
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
            socket.send_fds(self._open_channel(), [message], files)
        except OSError:
            self._end_zygote()
            socket.send_fds(self._open_channel(), [message], files)

    def _open_channel(self) -> socket.socket:
        if self._channel is not None and self.zygote is not None and self.zygote.poll() is None:
            return self._channel
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
            [sys.executable, "-I", "-S", "-c", program, f"coldframe-{self._installation}"],
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


def kill_strays(zygote: int) -> None:
    """Kill what bubblewrap left of boxes whose keepers died while it was at work.

    Its own process dies with the keeper, but the first process of the box may wait for it in vain; a killed keeper's
    children go to the zygote, whose own are keepers.
    """
    found = True
    while found:
        found = False
        for entry in os.listdir("/proc"):
            if entry.isdecimal() and _is_stray(entry, zygote):
                with contextlib.suppress(ProcessLookupError):
                    process = os.pidfd_open(int(entry))
                    try:
                        if _is_stray(entry, zygote):  # still that one, so what is held is no other that got its id
                            found = kill(process) or found  # one that cannot be killed is not tried for ever
                    finally:
                        os.close(process)


def _is_stray(entry: str, zygote: int) -> bool:
    try:
        with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as source:
            name, _, rest = source.read().partition("(")[2].rpartition(")")
    except OSError:
        return False
    state, parent = rest.split()[:2]
    return name == BWRAP_NAME and int(parent) == zygote and state not in "ZX"


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
