"""The maker of new boxes: orders a keeper from the zygote, and puts it and the box's first process into their groups.

Whoever dies at whatever step, the machine, the zygote or the keeper, nothing of a box goes on half built.
"""

import asyncio
import contextlib
import json
import logging
import os
import resource
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from coldframe.contract.errors import ColdframeError, Conflict, Fact, IsolationUnavailable
from coldframe.contract.sandbox import Limits
from coldframe.host import attachment, io_limit
from coldframe.host.ahead import Ahead, discard
from coldframe.host.cgroups import BoxGroups, Controllers, GroupLimits
from coldframe.host.confine import ConfineError
from coldframe.host.conversation import KeeperEnded, conversation, fitting, heard
from coldframe.host.egress import arrivals
from coldframe.host.isolation.volume_mounts import REFUSED
from coldframe.host.pool import OWN_USER, Pool, ReadyBox, Users, Wish, wish_of
from coldframe.host.processes import kill
from coldframe.host.remedies import diagnose
from coldframe.host.settings import HostSettings
from coldframe.host.strays import kill_strays, mark_of
from coldframe.host.zygote_link import ZygoteLink

_log = logging.getLogger(__name__)
AHEAD_S = 0.01
"""After the last build: when a keeper is forked for the next, so that it is not in the way of the first command."""
LET_OUT_S = 0.5
"""After a build: when who is endangered is let out of the groups of the box, which holds up all that is forked then."""
REMEMBERED = 8
"""Keepers from which is learned what the next will write."""
AT_ONCE = min(8, max(2, os.cpu_count() or 1))
"""A build waits for its processes in turn, so that two of them take little longer than one."""


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Occupant(Protocol[T_co]):
    """Whom a box is built for. What there is to be done for one is done while others work at the box: in this order, on the worker
    thread that has it, since to come back from there takes longer than most of this."""

    def furnish(self) -> Sequence[tuple[str, int]]:
        """Descriptors of what its keeper serves with, which stay the occupant's. Raises OSError."""

    def note(self, answer: dict[str, Any]) -> None:
        """The keeper and the first process are there; the box is not whole yet."""

    def look_around(self, answer: dict[str, Any]) -> None:
        """What lies around its processes is placed."""

    def look_closer(self, answer: dict[str, Any]) -> None:
        """They and the keeper have no right any more."""

    def settle(self, answer: dict[str, Any]) -> T_co:
        """It stands, and its keeper serves it."""


class _Unfurnished(ValueError):
    """That is the occupant's fault, and not the box's."""


class Builder:
    """Builds the boxes of one machine, AT_ONCE at a time.

    *embedded* boxes end when this process does, or with `close`. After `prepare` a keeper is forked ahead of need, and up to
    *pool_size* boxes wait in the `pool`.
    """

    def __init__(
        self,
        installation: str,
        controllers: Controllers,
        settings: HostSettings,
        *,
        embedded: bool,
        users: Users,
        pool_size: int = 0,
    ) -> None:
        self._installation = installation
        self._controllers = controllers
        self._settings = settings
        self._embedded = embedded
        self._lease_read, self._lease_write = os.pipe2(os.O_CLOEXEC)
        self.zygote = ZygoteLink(installation)
        self.ahead = Ahead(installation, controllers, self.zygote)
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._building = 0
        self._is_prepared = False
        self._newest: deque[int] = deque(maxlen=REMEMBERED)
        """Keepers of the last boxes."""
        self._endangered: list[BoxGroups] = []
        self._later: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self.pool = Pool(pool_size, self._discard_ready, users)
        self._users = users
        self._filling = threading.Lock()
        _allow_most_descriptors_in_flight()

    async def build(
        self,
        order: dict[str, Any],
        occupant: Occupant[T],
        limits: Limits,
        *,
        more: Sequence[tuple[str, int]] = (),
        next_user: int | None = None,
    ) -> tuple[dict[str, Any], T]:
        """What the new keeper says: `keeper` and `init`, their process ids, and `ready`, the evidence.

        Beside that `groups`, their directories, `settings`, the one that the box has as its /etc, and of one with a way
        out `arrivals`, its sockets, which are the caller's then. *more* descriptors for it stay the caller's. And what
        the *occupant* has settled.
        With *next_user* a box of the pool becomes this one, if one fits, and another one is to wait then for whoever is likely to
        be the next to ask: a sandbox of that user, OWN_USER for one with a workspace of its own that is yet to be made.

        Raises:
            IsolationUnavailable: with property, reason and remedy. Nothing runs then.
            Conflict: something stands in the workspace where a volume is to be.
            OSError: the occupant could not be furnished.
        """
        wish = None if next_user is None else wish_of(order, limits, next_user)
        self._building += 1
        try:
            async with self._turns:
                working = asyncio.get_running_loop().run_in_executor(
                    None, self._order, order, occupant, limits, more, wish
                )
                answer, made = await _unbroken(working)
        finally:
            self._building -= 1
            if self._endangered:
                self._do_later(LET_OUT_S, self._let_out)
            if self._is_prepared and not self._building:
                self._do_later(AHEAD_S, self._fork_ahead)
        if made is None:
            if "unfurnished" in answer:
                raise answer["unfurnished"]
            raise _not_built(str(answer.get("failed", "no answer")))
        self._newest.append(answer["keeper"])
        if wish is not None:
            self.pool.ask(wish)
        return answer, made

    def prepare(self) -> None:
        """Start the zygote now, which takes longer than a box: then the first of them need not wait for it. Blocking."""
        with self.zygote.turn, contextlib.suppress(OSError):  # told when a box is wanted
            self.zygote.start()
        self._is_prepared = True
        self._fork_ahead()

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
        if not self._building:  # else whoever builds sees to it afterwards
            self.ahead.learn(tuple(self._newest))
            self.ahead.fork()
        if not self._filling.acquire(blocking=False):
            return
        try:
            while not self._building and (lacking := self.pool.lacking()) is not None and self._raise_ready(*lacking):
                self.ahead.fork()
        finally:
            self._filling.release()

    def close(self) -> None:
        """End the zygote, and let the lease go: embedded boxes end then. Blocking."""
        if not self._embedded:
            self._let_out()
        self.pool.empty(closes=True)
        with self._filling:  # whoever is at it ends what he builds
            self.ahead.close()
        with self.zygote.turn:
            self.zygote.close()
        os.close(self._lease_read)
        os.close(self._lease_write)

    def _order(
        self,
        order: dict[str, Any],
        occupant: Occupant[T],
        limits: Limits,
        more: Sequence[tuple[str, int]],
        wish: Wish | None,
    ) -> tuple[dict[str, Any], T | None]:
        ready = None if wish is None else self.pool.take(wish.key, order["uid"], self._current_settings)
        if ready is not None:
            let_in = self._let_in(ready, order, occupant, more)
            if let_in is not None and "failed" in let_in:
                return let_in, None
            if let_in is not None:
                try:
                    self._slow(let_in, order, limits)
                    return let_in, occupant.settle(let_in)
                finally:
                    self.ahead.release(ready.groups)
        answer = self._order_keeper(order, occupant, limits, more)
        if "ready" not in answer:
            return answer, None
        self._slow(answer, order, limits)
        return answer, occupant.settle(answer)

    def _slow(self, box: dict[str, Any], order: dict[str, Any], limits: Limits) -> None:
        """Cap the disk bandwidth of a box that stands, before anything runs in it: only then all its mounts are there, also of one
        that waited. What cannot be capped is missing in what is read back, and so told."""
        if limits.io_mib_s:
            io_limit.slow(self._controllers, box["groups"], limits.io_mib_s, box["init"], order["workspace"])

    def _current_settings(self) -> str | None:
        with self.zygote.turn:
            return self._settings.current()

    def _let_in(
        self, ready: ReadyBox, order: dict[str, Any], occupant: Occupant[T], more: Sequence[tuple[str, int]]
    ) -> dict[str, Any] | None:
        """Have a box that waits become what is ordered. None if it does not; it is gone then."""
        known = {
            "keeper": ready.pid,
            **ready.begun,
            "settings": ready.settings,
            "groups": ready.groups.paths,
        }
        with contextlib.ExitStack() as opened:
            try:
                files = [*more]
                identity = attachment.identity_of(order["workspace"])
                place = attachment.Place(order["workspace"], identity, order["history"])
                if not order["holds_outside"]:
                    trees = attachment.copy_trees(place)
                    opened.callback(trees.close)
                    files += trees._asdict().items()
                arrival = {
                    **place._asdict(),
                    "captured_ports": order["captured_ports"],
                    "files": [name for name, _ in files],
                }
                socket.send_fds(ready.answer, [fitting(json.dumps(arrival).encode())], [file for _, file in files])
                _give(ready.answer, _furniture(occupant))
                occupant.note(known)
                heard(ready.answer)
                occupant.look_around(known)
                heard(ready.answer)
                occupant.look_closer(known)
                said = heard(ready.answer)
                if order["captured_ports"] is not None:
                    said["arrivals"] = arrivals.receive(ready.answer)
            except _Unfurnished as error:
                self._discard_ready(ready)
                return _failed(error)
            except (OSError, ConfineError, KeyError, ValueError) as error:
                self.pool.note_failure(order["workspace"], f"a box that waited could not be used: {error}")
                self._discard_ready(ready)
                return None
        self.pool.note_success()
        ready.close()
        return {**known, **said}

    def _raise_ready(self, wish: Wish, generation: int) -> bool:
        """Build a box that waits, unless there is no keeper for it now; whether there may be more to do. Blocking."""
        uid = self._users.reserve_user() if wish.uid == OWN_USER else wish.uid
        order = {
            **wish.order,
            "sandbox_id": "",
            "workspace": "",
            "history": "",
            "captured_ports": None,
            "uid": uid,
            "gid": uid if wish.uid == OWN_USER else wish.order["gid"],
            "waits": True,
        }
        answer = self._order_keeper(order, None, wish.limits, ())
        if "waits" not in answer:
            self._users.release_user(uid)
            if "failed" in answer:
                self.pool.note_failure("", f"no box could be built ahead: {answer['failed']}")
            return "failed" in answer
        box = ReadyBox(
            wish,
            uid,
            answer["keeper"],
            {name: answer[name] for name in ("init", "bwrap")},
            answer["settings"],
            *answer["held"],
        )
        self.pool.add(box, generation)
        return True

    def _discard_ready(self, box: ReadyBox) -> None:
        box.end()
        discard(box.groups)
        self.ahead.release(box.groups)
        self._users.release_user(box.uid)

    def _order_keeper(
        self, order: dict[str, Any], occupant: Occupant[T] | None, limits: Limits, more: Sequence[tuple[str, int]]
    ) -> dict[str, Any]:
        """The whole conversation with a new keeper; blocking, on a worker thread. With one that is to wait, for whoever comes
        and so for no *occupant*, it goes on: `held` are its process, the first one's, its socket and its groups."""
        is_held = False
        ahead = self.ahead.take()
        self.ahead.likely = order["uid"], order["gid"]
        theirs: socket.socket | None = None
        keeper = init = -1
        if ahead is None and order["waits"]:
            return {}
        if ahead is None:
            mine, theirs = conversation()
            groups = BoxGroups(self._controllers, self._installation, order["sandbox_id"])
        else:
            mine, groups, keeper = ahead.answer, ahead.groups, ahead.process
        descriptors: list[tuple[str, int]] = []
        try:
            groups.create(
                GroupLimits(limits.memory_mib << 20, limits.pids, limits.cpus, limits.io_mib_s << 20),
                owner_uid=order["uid"],
            )
            descriptors += groups.descriptors().named()
            descriptors += groups.birthplaces()
            files = [*more, *descriptors]
            if self._embedded:
                files.append(("lease", self._lease_read))
            if theirs is not None:
                files.insert(0, ("answer", theirs.fileno()))
                if not self._controllers.delegated:
                    mine.send(b".")  # it need not wait to be in its group before it goes on
            order["files"] = [name for name, _ in files]
            with self.zygote.turn:  # the settings of the next box may change in it
                order["settings"] = self._settings.current()
                message = json.dumps(order).encode()
                if theirs is not None:
                    self.zygote.send(message, [file for _, file in files])
            if theirs is None:
                socket.send_fds(mine, [fitting(message)], [file for _, file in files])
                hello = {"keeper": ahead.pid} if ahead is not None else {}
            else:
                theirs.close()
                hello = heard(mine)
                keeper = os.pidfd_open(hello["keeper"])
                groups.enter(hello["keeper"])
                if self._controllers.delegated:
                    mine.send(b".")
            furniture = () if occupant is None else _furniture(occupant)
            begun = heard(mine)
            with contextlib.suppress(ProcessLookupError):  # the keeper says why
                init = os.pidfd_open(begun["init"])
            _settle(groups, (begun["init"], begun["bwrap"]), mine, furniture)
            known = {**hello, **begun, "settings": order["settings"], "groups": groups.paths}
            if occupant is not None:
                occupant.note(known)
                heard(mine)
                occupant.look_around(known)
                heard(mine)
                occupant.look_closer(known)
            ready = heard(mine)
            if groups.endangered:
                self._endangered.append(groups)
            if order["waits"]:
                is_held = True
                ready["held"] = keeper, init, mine, groups
            elif order["captured_ports"] is not None:
                ready["arrivals"] = arrivals.receive(mine)
            return {**known, **ready}
        except (OSError, ConfineError, KeyError, ValueError) as error:
            for process in (keeper, init):  # bubblewrap's child is bound to the life of the keeper only at its end
                if process >= 0:
                    kill(process)
            kill_strays(mark_of(self._installation))
            if ahead is not None:
                discard(groups)
            return _failed(error)
        finally:
            if not is_held:
                mine.close()
                self.ahead.release(groups)
            if theirs is not None:
                theirs.close()
            for file in (*(() if is_held else (keeper, init)), *(file for _, file in descriptors)):
                if file >= 0:
                    os.close(file)


def _not_built(failure: str) -> ColdframeError:
    if REFUSED in failure:  # by what lies in the workspace, and not by the machine
        return Conflict(
            f"the sandbox was not made: {failure}",
            hint="choose another `at` for the volume, or move away what is there",
            argument="volumes",
        )
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


def _failed(error: Exception) -> dict[str, Any]:
    """What a keeper would have said."""
    return {"failed": f"{error}", **({"unfurnished": error.__cause__} if isinstance(error, _Unfurnished) else {})}


def _furniture(occupant: Occupant[object]) -> Sequence[tuple[str, int]]:
    try:
        return occupant.furnish()
    except OSError as error:
        raise _Unfurnished(str(error)) from error


def _settle(
    groups: BoxGroups, processes: tuple[int, int], keeper: socket.socket, furniture: Sequence[tuple[str, int]]
) -> None:
    """See that the first process is in its groups and say so, and give the keeper what it serves with. If it is gone, what the
    keeper says next is the reason."""
    try:
        groups.settle(*processes)
    except ConfineError:
        with contextlib.suppress(ConnectionError):
            keeper.shutdown(socket.SHUT_WR)
        with contextlib.suppress(KeeperEnded):
            heard(keeper)
        raise
    with contextlib.suppress(ConnectionError):
        _give(keeper, furniture)


def _give(keeper: socket.socket, furniture: Sequence[tuple[str, int]]) -> None:
    """The word that a keeper goes on with."""
    word = json.dumps({"files": [name for name, _ in furniture]}).encode()
    socket.send_fds(keeper, [word], [file for _, file in furniture])


async def _unbroken(
    task: "asyncio.Future[tuple[dict[str, Any], T | None]]",
) -> tuple[dict[str, Any], T | None]:
    """The answer about a new keeper. If the caller is cancelled meanwhile, the keeper that still comes is ended."""
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
