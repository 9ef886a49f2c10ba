"""What becomes of a sandbox by request or by timer: paused, resumed, stopped, started, extended, terminated.

Each act is recorded with who asked for it, one at a time for each sandbox, and carried to its end even if whoever asked
leaves. To ask again for what is so already changes nothing. What a crash or an unreachable host breaks off stays in a
state that names what finishes it; at the next start the host says how things stand.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar

from coldframe.contract.caller import Caller
from coldframe.contract.command import EndedWith
from coldframe.contract.errors import (
    ColdframeError,
    GuestLost,
    InvalidArgument,
    NotFound,
    SandboxExpired,
    WrongState,
    next_action,
)
from coldframe.contract.network import NetworkAccess
from coldframe.contract.ports import Host
from coldframe.contract.sandbox import ENDED, WITH_BOX, Loss, SandboxEnd, SandboxInfo
from coldframe.control.acts import Acts
from coldframe.control.contacts import Contacts
from coldframe.control.creation import Creation
from coldframe.control.ledger import Ledger, format_time
from coldframe.control.rights import require
from coldframe.control.rulebook import Rulebook
from coldframe.control.sandbox_rows import SET_SPEC, finishing
from coldframe.control.sandbox_specs import restricted
from coldframe.control.sandboxes import IssueContract, Sandboxes
from coldframe.control.store import Store
from coldframe.control.taints import Taints
from coldframe.control.timers import Due, Timers
from coldframe.policy.labels import join

_log = logging.getLogger(__name__)
T = TypeVar("T")
End = Literal["stopped", "terminated"]
LOOK_S = 1.0
"""For counting what an end takes away: it may be wanted because the keeper hangs."""
MEASURE_TIMEOUT_S = 5.0
"""For measuring a sandbox that goes on."""
TIMER = "timer"
"""Who it was, where nobody asked."""


class Lifecycle:
    """The acts. Their rights are those of `rights.py`, `sandbox.NAME`."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        rulebook: Rulebook,
        contacts: Contacts,
        sandboxes: Sandboxes,
        creation: Creation,
        taints: Taints,
        timers: Timers,
        host: Host,
        clock: Callable[[], datetime],
        issue_contract: IssueContract,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._rulebook = rulebook
        self._contacts = contacts
        self._sandboxes = sandboxes
        self._creation = creation
        self._taints = taints
        self._timers = timers
        self._host = host
        self._clock = clock
        self._issue_contract = issue_contract
        self._acts = Acts()
        self.keep_files: Callable[[str], Awaitable[str]] = _cannot_keep
        """Takes a snapshot of one whose time is over. Raises ColdframeError."""
        self.forget_files: Callable[[str], Awaitable[None]] = _nothing_kept
        """Removes it, where it was taken in vain."""
        self._keeping: set[str] = set()
        """Those of which one is being taken."""
        timers.expire = self._expire

    async def close(self) -> None:
        """Wait for what was begun, if it does not take too long: the next start goes by what the host says."""
        await self._acts.close()

    # -- pause and resume ----------------------------------------------------------------------------------------------

    async def pause(self, caller: Caller, sandbox_id: str, kind: Literal["memory", "files"] = "memory") -> SandboxEnd:
        """Hold every process still until `resume`, with its memory and connections; with kind `files`, stop it.

        The answer says what was lost, which is nothing with kind `memory`.

        Raises:
            GrantMissing, NotFound: not the caller's.
            WrongState: it does not run.
            PauseKindUnsupported: this host cannot; nothing has changed.
            GuestLost: it ended by itself.
        """
        require(caller, "sandbox.pause")
        self._sandboxes.get(caller, sandbox_id)
        if kind == "files":
            return await self._acts.whole(self._end(sandbox_id, "stopped", caller.name))
        return _ended(await self._acts.whole(self._pause(sandbox_id, caller.name)), ())

    async def _pause(self, sandbox_id: str, by: str, *, if_due: bool = False, **more: Any) -> SandboxInfo:
        async with self._sandboxes.turn(sandbox_id):
            info = self._sandboxes.find(sandbox_id)
            if info.state.state == "paused" or (if_due and not self._timers.is_due(info, more.get("reason"))):
                return info
            self._sandboxes.require_running(info, reads_only=True)
            if info.state.state == "running":
                self._sandboxes.move(sandbox_id, "pausing")
            await self._hold(info, "paused", by, kind="memory", **more)
        return self._sandboxes.find(sandbox_id)

    async def resume(self, caller: Caller, sandbox_id: str) -> SandboxInfo:
        """Let a paused one go on where it was; start a stopped one.

        Raises:
            GrantMissing, NotFound: not the caller's.
            WrongState: it is neither.
            SandboxExpired: it has reached its maximum age.
            GuestLost: it ended by itself.
            And for a stopped one what `start` raises.
        """
        require(caller, "sandbox.resume")
        if self._sandboxes.get(caller, sandbox_id).state.state == "stopped":
            return await self._acts.whole(self._start(sandbox_id, caller))
        return await self._acts.whole(self._resume(sandbox_id, caller.name))

    async def _resume(self, sandbox_id: str, by: str) -> SandboxInfo:
        async with self._sandboxes.turn(sandbox_id):
            info = self._sandboxes.find(sandbox_id)
            if info.state.state == "running":
                return info
            self._sandboxes.require_running(info, reads_only=True)
            self._check_age(info)
            if info.state.state == "paused":
                self._sandboxes.move(sandbox_id, "resuming")
            await self._hold(info, "running", by)
            self._sandboxes.used.add(sandbox_id)  # its walls are measured again, also if that fails now
            info = self._sandboxes.find(sandbox_id)
            self._sandboxes.begun(info)
            try:
                async with asyncio.timeout(MEASURE_TIMEOUT_S):
                    await self._sandboxes.measure(info)
            except (ColdframeError, TimeoutError) as error:
                _log.warning("the walls of sandbox `%s` could not be measured: %s", sandbox_id, error or "no answer")
        return self._sandboxes.find(sandbox_id)

    async def _hold(self, info: SandboxInfo, state: Literal["paused", "running"], by: str, **more: Any) -> None:
        """Have the host do it, and record it. If one of the two fails it is as before, as far as the host can be asked."""
        sandbox_id = info.sandbox_id
        try:
            life = await self._host.life(sandbox_id)
        except (GuestLost, NotFound) as error:
            await self._sandboxes.lose(sandbox_id, str(error))
            raise GuestLost(f"sandbox `{sandbox_id}` is lost: {error}", sandbox_id=sandbox_id) from error
        act, back = (life.pause, life.resume) if state == "paused" else (life.resume, life.pause)
        try:
            await act()
            with self._store.transaction() as connection:
                self._sandboxes.move(sandbox_id, state)
                label = self._sandboxes.label(self._sandboxes.find(sandbox_id))
                body = {"sandbox_id": sandbox_id, "agent_id": info.agent_id, "caller": by, "label": label, **more}
                kind = "sandbox.paused" if state == "paused" else "sandbox.resumed"
                self._ledger.append(kind, sandbox_id, body, connection=connection)
        except GuestLost as error:
            await self._sandboxes.lose(sandbox_id, str(error))
            raise
        except ColdframeError:
            with contextlib.suppress(ColdframeError):  # else it stays on its way, and says what finishes it
                await back()
                self._sandboxes.move(sandbox_id, "running" if state == "paused" else "paused")
                if state == "paused":  # while it was on its way it was not idle, nor measured
                    self._sandboxes.begun(info)
                    self._sandboxes.used.add(sandbox_id)
            raise

    # -- stop, start, terminate ----------------------------------------------------------------------------------------

    async def stop(self, caller: Caller, sandbox_id: str, *, dry_run: bool = False) -> SandboxEnd:
        """End its processes and keep its files, records and session: `start` builds it again on them.

        The answer says what was lost, or with *dry_run* what would be.

        Raises:
            GrantMissing, NotFound: not the caller's.
            WrongState: it has ended already.
            HostUnreachable: it is stopping; ask again.
        """
        require(caller, "sandbox.stop")
        return await self._ask_end(caller, sandbox_id, "stopped", dry_run=dry_run)

    async def stop_for_promotion(self, caller: Caller, sandbox_id: str) -> SandboxEnd:
        """As `stop`, also of an ephemeral one, which goes on as another. Where it does not come to that it is stopped, and its
        files are there."""
        require(caller, "sandbox.stop")
        self._sandboxes.get(caller, sandbox_id)
        return await self._acts.whole(self._end(sandbox_id, "stopped", caller.name, goes_on=True))

    async def terminate(self, caller: Caller, sandbox_id: str, *, dry_run: bool = False) -> SandboxEnd:
        """End the box and all in it; the workspace of an agent stays, a background one goes. Idempotent.

        The answer says what was lost, or with *dry_run* what would be.

        Raises:
            GrantMissing, NotFound: not the caller's.
            HostUnreachable: it is stopping; ask again.
        """
        require(caller, "sandbox.terminate")
        return await self._ask_end(caller, sandbox_id, "terminated", dry_run=dry_run)

    async def _ask_end(self, caller: Caller, sandbox_id: str, end: End, *, dry_run: bool) -> SandboxEnd:
        info = self._sandboxes.get(caller, sandbox_id)
        if dry_run:
            end = "terminated" if info.spec.ephemeral else end
            self._check_end(info, end)
            return _ended(info, await self._losses(info, end), dry_run=True)
        return await self._acts.whole(self._end(sandbox_id, end, caller.name))

    async def _end(
        self, sandbox_id: str, end: End, by: str, *, if_due: bool = False, goes_on: bool = False, **more: Any
    ) -> SandboxEnd:
        async with self._sandboxes.turn(sandbox_id):
            info = self._sandboxes.find(sandbox_id)
            end = "terminated" if info.spec.ephemeral and not goes_on else end
            if info.state.state == end or (end == "terminated" and info.state.state == "failed"):
                return _ended(info, ())
            if if_due and not self._timers.is_due(info, more.get("reason")):
                return _ended(info, ())
            if info.state.state == "queued" and end == "terminated":
                self._sandboxes.end_in(sandbox_id, end, by, **more)
                return _ended(self._sandboxes.find(sandbox_id), ())
            self._check_end(info, end)
            told = _told(end, by, **more) if info.state.state in WITH_BOX else None
            lost: tuple[Loss, ...] = ()
            has_ended_it = False
            if if_due:
                lost = await self._losses(info, end, told)
                info = self._sandboxes.find(sandbox_id)
                if not self._timers.is_due(info, more.get("reason")):  # something was begun while that was counted
                    await self._losses(info, end)  # and its commands are told that it goes on
                    return _ended(info, ())
                self._check_end(info, end)
            finish = "sandbox.stop" if end == "stopped" else "sandbox.terminate"
            self._sandboxes.move(sandbox_id, "stopping", finish=finish)
            if not if_due:  # nothing begins any more, so it can end as soon as that is counted
                lost = await self._losses(info, end, told, ends=True)
            with contextlib.suppress(NotFound, GuestLost):
                await (await self._host.life(sandbox_id)).end(keep_workspace=end == "stopped")
                has_ended_it = True
            if lost:
                more["lost"] = [one.model_dump(mode="json", exclude={"what"}) for one in lost]
            self._sandboxes.end_in(sandbox_id, end, by, **more)
            if end == "stopped":
                self._timers.watch(self._sandboxes.find(sandbox_id))
        if info.spec.background and end == "terminated" and not has_ended_it:
            await (
                self._sandboxes.sweep()
            )  # takes longer the more there have been, so not where the box took its files along
        return _ended(self._sandboxes.find(sandbox_id), lost)

    def _check_end(self, info: SandboxInfo, end: End) -> None:
        state = info.state
        if end == "stopped" and (
            state.state in ENDED or (state.state == "stopping" and finishing(state) == "sandbox.terminate")
        ):
            self._sandboxes.require_running(info)

    async def _losses(
        self, info: SandboxInfo, end: End, ending: EndedWith | None = None, *, ends: bool = False
    ) -> tuple[Loss, ...]:
        """What goes, as far as it can be asked: nothing is left undone because it cannot be counted."""
        found: list[Loss] = []
        if info.state.state in WITH_BOX:
            found += await self._in_box(info.sandbox_id, ending, ends=ends)
        if end == "terminated" and info.spec.background and info.state.state not in (*ENDED, "queued"):
            found.append(Loss(item="tree", what="The temporary workspace with all its files."))
        return tuple(found)

    async def _in_box(self, sandbox_id: str, ending: EndedWith | None, *, ends: bool) -> list[Loss]:
        try:
            async with asyncio.timeout(LOOK_S):
                found = await (await self._host.life(sandbox_id)).at_stake(ending, ends=ends)
        except (ColdframeError, TimeoutError) as error:
            reason = str(error) or "its keeper does not answer"
            return [Loss(item=item, what=f"Not known: {reason}.") for item in ("processes", "temporary")]
        losses = []
        if found.command_ids or found.processes:
            text = (
                f"{found.processes} processes, and their memory and connections; {len(found.command_ids)} commands run."
            )
            losses.append(Loss(item="processes", what=text, count=found.processes, command_ids=found.command_ids))
        if found.temporary.files:
            files, size = found.temporary.files, found.temporary.bytes
            text = f"{files} temporary files of {size} bytes."
            losses.append(Loss(item="temporary", what=text, count=files, bytes=size))
        return losses

    async def start(self, caller: Caller, sandbox_id: str) -> SandboxInfo:
        """Build a stopped one anew: the same id, workspace, session, network and limits. One that runs is left as it is.

        Raises:
            GrantMissing, NotFound: not the caller's, or a volume of it is granted no more.
            WrongState: it is not stopped, or its workspace is gone.
            SandboxExpired: it has reached its maximum age.
            TooManySandboxes: as many run as may; it stays stopped.
            StartNotReady: what its template starts does not serve; it stays stopped.
            VolumeBusy: another sandbox has a volume of it by now; it stays stopped.
            IsolationUnavailable: a wall is missing now; it stays stopped.
        """
        require(caller, "sandbox.start")
        self._sandboxes.get(caller, sandbox_id)
        return await self._acts.whole(self._start(sandbox_id, caller))

    async def _start(self, sandbox_id: str, caller: Caller) -> SandboxInfo:
        async with self._sandboxes.turn(sandbox_id):
            info = self._sandboxes.find(sandbox_id)
            if info.state.state == "running":
                return info
            if info.state.state != "stopped":
                self._sandboxes.require_running(info)
            self._check_age(info)
            self._sandboxes.require_its_agent(info)
            await self._creation.volumes.free(info.spec)
            self._creation.volumes.check(caller, info.spec)
            self._sandboxes.slots.take(sandbox_id, caller.token_id)
            try:
                with self._store.transaction() as connection:
                    self._sandboxes.move(sandbox_id, "starting")
                    self._creation.volumes.claim(sandbox_id, info.spec, connection, again=True)
                info = await self._build_again(self._sandboxes.find(sandbox_id), caller.name)
                if info.template_sha256 is not None:
                    await self._creation.begin_start(caller, info)
            except BaseException as error:
                await self._undo_start(info, caller.name, error)
                raise
            self._sandboxes.used.add(sandbox_id)
            self._sandboxes.begun(info)
        return info

    async def _build_again(self, info: SandboxInfo, by: str) -> SandboxInfo:
        sandbox_id, session = info.sandbox_id, self._sandboxes.session(info)
        asked = self._sandboxes.asked(sandbox_id)
        spec = restricted(asked, self._rulebook.current)
        network = None
        role = self._contacts.role_of(sandbox_id)
        if role is not None:
            taint = join(session.taint, info.workspace_label)
            network = NetworkAccess(asked=spec.network, role=role, taint=taint, ceiling=spec.ceiling)
            self._taints.forget(sandbox_id)
        with contextlib.suppress(GuestLost, NotFound):  # one that came to be when nobody heard of it any more
            await (await self._host.life(sandbox_id)).end(keep_workspace=True)
        home = self._sandboxes.first_session(sandbox_id)
        report = await self._creation.build(sandbox_id, spec, home, network, anew=True)
        with self._store.transaction() as connection:
            if spec != asked:
                self._store.raw.execute(SET_SPEC, (spec.model_dump_json(), sandbox_id))
            self._sandboxes.move(sandbox_id, "running", report=report)
            info = self._sandboxes.find(sandbox_id)
            body = {
                "sandbox_id": sandbox_id,
                "agent_id": info.agent_id,
                "session_id": session.session_id,
                "caller": by,
                "label": self._sandboxes.label(info),
                "degraded": list(info.degraded),
            }
            self._ledger.append("sandbox.started", sandbox_id, body, connection=connection)
            self._creation.volumes.note(info, by, connection)
            self._issue_contract(info, report)
        if network is not None:
            self._sandboxes.networked.add(info)
            await self._taints.settle(info)
        return info

    async def _undo_start(self, info: SandboxInfo, by: str, error: BaseException) -> None:
        sandbox_id = info.sandbox_id
        with contextlib.suppress(ColdframeError):
            await (await self._host.life(sandbox_id)).end(keep_workspace=True)
        self._sandboxes.slots.release(sandbox_id)
        now = self._sandboxes.find(sandbox_id).state.state
        with self._store.transaction() as connection:
            if now == "running":
                self._sandboxes.move(sandbox_id, "stopping", finish="sandbox.stop")
            if now in ("starting", "running"):
                self._sandboxes.move(sandbox_id, "stopped", message=f"it could not be started: {error}")
            body = {
                "sandbox_id": sandbox_id,
                "agent_id": info.agent_id,
                "caller": by,
                "code": error.code if isinstance(error, ColdframeError) else type(error).__name__,
                "message": str(error),
            }
            self._ledger.append("sandbox.start_failed", sandbox_id, body, connection=connection)

    # -- timers --------------------------------------------------------------------------------------------------------

    async def extend(self, caller: Caller, sandbox_id: str, for_s: float) -> SandboxInfo:
        """From now on no timer acts on it for at least *for_s* seconds. One that has more time keeps that.

        Raises:
            GrantMissing, NotFound: not the caller's.
            InvalidArgument: that is longer than the operator lets a sandbox live.
            WrongState: it has ended.
        """
        require(caller, "sandbox.extend")
        info = self._sandboxes.get(caller, sandbox_id)
        if info.state.state in ENDED:
            self._sandboxes.require_running(info)
        until = self._clock() + timedelta(seconds=for_s)
        latest = self._timers.latest(info)
        if latest is not None and until > latest:
            raise InvalidArgument(
                f"the operator lets sandbox `{sandbox_id}` live until {latest.isoformat(timespec='seconds')} at most",
                hint="extend it for less, or create another on the same workspace",
                argument="for_s",
            )
        self._timers.extend(info, until, caller.name)
        return info

    def _check_age(self, info: SandboxInfo) -> None:
        end = self._timers.end_of_age(info)
        if end is not None and end <= self._clock():
            raise SandboxExpired(
                f"sandbox `{info.sandbox_id}` has reached its maximum age at {end.isoformat(timespec='seconds')}",
                next_actions=[next_action("sandbox.extend", "gives it more time", sandbox_id=info.sandbox_id)],
                sandbox_id=info.sandbox_id,
            )

    async def _expire(self, info: SandboxInfo, due: Due) -> None:
        """What its spec says; what cannot be paused is stopped."""
        await self._acts.whole(self._act_on(info, due))

    async def _act_on(self, info: SandboxInfo, due: Due) -> None:
        sandbox_id, action = info.sandbox_id, info.spec.on_timeout
        if due.reason == "kept":
            action = "terminate"
        elif due.reason == "lease" and (lease := self._timers.lease_end(info)) is not None:
            action = lease[1]
        elif info.state.state == "stopping":  # that was broken off
            action = "stop" if finishing(info.state) == "sandbox.stop" else "terminate"
        elif due.reason == "idle" and self._timers.is_due(info, due.reason):
            self._note_abandoned(info)
        if action == "snapshot" or (
            due.reason == "kept" and info.spec.on_timeout == "snapshot" and info.spec.background
        ):
            await self._keep_and_end(info, due)
        elif action == "pause":
            try:
                await self._pause(sandbox_id, TIMER, if_due=True, reason=due.reason)
            except WrongState:  # this machine cannot, or a process in it is not to be held
                if self._sandboxes.find(sandbox_id).state.state not in ("running", "pausing"):
                    raise
                await self._end(sandbox_id, "stopped", TIMER, reason=due.reason)
        else:
            end: End = "stopped" if action == "stop" else "terminated"
            await self._end(sandbox_id, end, TIMER, if_due=True, reason=due.reason)

    def _note_abandoned(self, info: SandboxInfo) -> None:
        """Nobody has done anything in it for as long as it may be idle: whoever looks after it is told what it has used."""
        if self._timers.abandoned_at(info) is not None:  # what was to follow has failed, and is tried again
            return
        body = {
            "sandbox_id": info.sandbox_id,
            "agent_id": info.agent_id,
            "caller": TIMER,
            "active_at": format_time(self._timers.active_at(info)),
            "action": info.spec.on_timeout,
            "used": self._timers.used(info),
        }
        self._ledger.append("sandbox.abandoned", info.sandbox_id, body)

    async def _keep_and_end(self, info: SandboxInfo, due: Due) -> None:
        """Its files are kept as a snapshot and it ends. What cannot be held still for that is stopped first; what no snapshot
        can be taken of stays stopped, for its time."""
        if info.sandbox_id in self._keeping:
            return
        self._keeping.add(info.sandbox_id)
        try:
            await self._end_kept(info.sandbox_id, due)
        finally:
            self._keeping.discard(info.sandbox_id)

    async def _end_kept(self, sandbox_id: str, due: Due) -> None:
        snapshot_id = None
        try:
            snapshot_id = await self.keep_files(sandbox_id)
        except ColdframeError as error:
            if due.reason != "kept":
                await self._end(sandbox_id, "stopped", TIMER, if_due=True, reason=due.reason, not_kept=error.code)
                if self._sandboxes.find(sandbox_id).state.state != "stopped":
                    return
                with contextlib.suppress(ColdframeError):
                    snapshot_id = await self.keep_files(sandbox_id)
                if snapshot_id is not None:
                    await self._end(sandbox_id, "terminated", TIMER, reason=due.reason, snapshot_id=snapshot_id)
                return
        kept: dict[str, Any] = {} if snapshot_id is None else {"snapshot_id": snapshot_id}
        await self._end(sandbox_id, "terminated", TIMER, if_due=True, reason=due.reason, **kept)
        if snapshot_id is not None and self._sandboxes.find(sandbox_id).state.state not in ENDED:
            await self.forget_files(snapshot_id)  # something was begun in it meanwhile, and it goes on


async def _cannot_keep(_: str) -> str:
    raise WrongState("there are no snapshots here")


async def _nothing_kept(_: str) -> None: ...


def _told(end: End, by: str, *, reason: Any = None, **_: Any) -> EndedWith:
    """What commands will say that end with their sandbox."""
    return EndedWith(act="stop" if end == "stopped" else "terminate", timer=reason if by == TIMER else None)


def _ended(info: SandboxInfo, lost: tuple[Loss, ...], *, dry_run: bool = False) -> SandboxEnd:
    return SandboxEnd(**dict(info), lost=lost, dry_run=dry_run)
