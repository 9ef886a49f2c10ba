"""Sandboxes: which there are, how each stands, and the live handle of its box.

How they come to be is in `creation.py`, what becomes of them by request or timer in `lifecycle.py`, and by a crash of ours
in `reconciliation.py`. The state is what the host says, checked at start, whenever a call finds the box gone, and by
`losses.py`. Whatever changes it goes through `move`.
"""

import asyncio
import builtins
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Collection
from datetime import datetime
from typing import Any, Literal
from weakref import WeakValueDictionary

import sqlalchemy as sa

from coldframe.contract.caller import Caller
from coldframe.contract.command import CommandEvent, CommandInfo, Contact, Ended, OutputChunk
from coldframe.contract.document import ContractDocument
from coldframe.contract.errors import (
    ColdframeError,
    GuestLost,
    HostUnreachable,
    IsolationUnavailable,
    NextAction,
    NotFound,
    WrongState,
    next_action,
)
from coldframe.contract.files import ListCommands, ListProcesses, ListRuntimes, ProcessInfo, Runtime, TightenLimits
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.packages import ListSystemPackages, PackagesFound
from coldframe.contract.policy import Label, Outcome, Role
from coldframe.contract.ports import Box, Host
from coldframe.contract.sandbox import (
    ENDED,
    TRANSITIONS,
    WITH_BOX,
    Limits,
    SandboxInfo,
    SandboxSpec,
    SandboxState,
    SessionInfo,
)
from coldframe.contract.snapshot import WorkspacePoint
from coldframe.control.agents import Agents
from coldframe.control.at_rest import AtRest
from coldframe.control.judgement import build_context, digest_of, judge_call
from coldframe.control.latest import keep_latest
from coldframe.control.ledger import Ledger, format_time, parse_time
from coldframe.control.networked import Networked, find_profiles
from coldframe.control.rights import require
from coldframe.control.rulebook import Rulebook
from coldframe.control.sandbox_rows import (
    ALL_LIVING,
    FIELDS,
    INSERT,
    SET_REPORT,
    SET_RUNNING,
    SET_STATE,
    SET_WHOSE,
    STATES_OF_LIVING,
    TEMPORARY,
    degraded_of,
    fallen_walls,
    newest,
    sandboxes,
    state_object,
    stored_spec,
    stored_state,
    template_of,
    weak_points,
)
from coldframe.control.sandbox_specs import tightened
from coldframe.control.sessions import Sessions
from coldframe.control.slots import Slots
from coldframe.control.store import MOST_KEPT, Kept, Store
from coldframe.policy.labels import join, parse
from coldframe.policy.rules import RuleSet
from coldframe.tools.registry import CallFacts

IssueContract = Callable[[SandboxInfo, IsolationReport], str]
"""Gives the newest document as JSON."""


class Sandboxes:
    """The sandboxes of this installation."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        agents: Agents,
        sessions: Sessions,
        rulebook: Rulebook,
        slots: Slots,
        host: Host,
        clock: Callable[[], datetime],
        issue_contract: IssueContract,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._agents = agents
        self._sessions = sessions
        self._rulebook = rulebook
        self.slots = slots
        self._host = host
        self._clock = clock
        self._issue_contract = issue_contract
        self._kept: Kept[SandboxInfo] = Kept(store, self._load)
        self._kept_under: RuleSet | None = None
        self._labelled_last: dict[str, tuple[SandboxInfo, RuleSet | None, Label, SandboxInfo]] = {}
        self.told: dict[str, Limits] = {}
        """The limits that each box holds its commands to, as far as it was told since this server began."""
        self._telling = asyncio.Lock()
        self.networked = Networked()
        self.used: set[str] = set()
        """Those in which something may run that the probe has not measured; it takes out what it has."""
        self.active: dict[str, datetime] = {}
        """When something was done last in those that were used since this server began."""
        self.begun: Callable[[SandboxInfo], None] = lambda _: None
        """Told of each that runs from now on, by whichever way."""
        self.risen: Callable[[sa.Connection], None] = lambda _: None
        """Told when the label of a temporary workspace has risen, within the same transaction."""
        self.ended: Callable[[str], None] = lambda _: None
        """Told of each that has ended, in the transaction in which that is written."""
        self.moved: Callable[[SandboxInfo], None] = lambda _: None
        """Told of each that has no box any more, within the transaction that says so."""
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def add(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        session_id: str,
        *,
        state: Literal["starting", "queued"] = "starting",
        message: str = "",
    ) -> None:
        """The row of one that is about to be built, in the transaction of whoever makes it."""
        now, written = self._clock(), spec.model_dump_json()
        self._kept.forget(sandbox_id)
        begins = state_object(sandbox_id, state, now, message=message).model_dump_json()
        row = (sandbox_id, spec.agent_id, session_id, written, begins, Label.PUBLIC.value)
        self._store.raw.execute(INSERT, (*row, format_time(now)))

    def become(self, sandbox_id: str, spec: SandboxSpec) -> None:
        """It is another one by its spec from now on, in the transaction of whoever records it."""
        with self._store.transaction():
            self._kept.forget(sandbox_id)
            self._store.raw.execute(SET_WHOSE, (spec.model_dump_json(), spec.agent_id, sandbox_id))

    def remove(self, sandbox_id: str, *, connection: sa.Connection) -> None:
        """As if it had never been there."""
        self._kept.forget(sandbox_id)
        connection.execute(sandboxes.delete().where(sandboxes.c.sandbox_id == sandbox_id))
        self._free_slot(sandbox_id)

    def _free_slot(self, sandbox_id: str) -> None:
        """Once it is certain that it has no box: the next one that waits begins then."""
        self._store.after(lambda _: self.slots.release(sandbox_id), lambda: None)

    def get(self, caller: Caller, sandbox_id: str) -> SandboxInfo:
        """Return one sandbox. An agent's token sees its own agent's only: another one is as good as not there.

        Raises:
            GrantMissing: the role may not look at sandboxes.
            NotFound: there is none of that id, or it is not the caller's.
        """
        require(caller, "sandbox.read")
        info = self._find(sandbox_id)
        if not self._is_visible(caller, info):
            raise _no_sandbox(sandbox_id)
        session_id = self.session(info).session_id
        return info if session_id == info.session_id else info.model_copy(update={"session_id": session_id})

    def _is_visible(self, caller: Caller, info: SandboxInfo) -> bool:
        """People see all. An agent sees its own, and not those of an earlier agent of the same id."""
        if caller.role is not Role.AGENT:
            return True
        return info.agent_id is not None and info.agent_id == caller.agent_id and self.has_its_agent(info)

    def has_its_agent(self, info: SandboxInfo) -> bool:
        """Whether its workspace is there: one that was made later under the id of an agent is another. True without."""
        if info.agent_id is None:
            return True
        with contextlib.suppress(NotFound):
            made = self._agents.get(info.agent_id).created_at
            return info.created_at >= made or self._was_promoted(info, made)
        return False

    def _was_promoted(self, info: SandboxInfo, made: datetime) -> bool:
        """Whether it came to its agent later than it was created itself, when that agent was there."""
        found = self._ledger.last(info.sandbox_id, "sandbox.promoted", before=1 << 62)
        return found is not None and found.body["agent_id"] == info.agent_id and found.at >= made

    def require_its_agent(self, info: SandboxInfo) -> None:
        """Raise WrongState where the workspace of its agent is another one by now, made later under the same id."""
        if self.has_its_agent(info):
            return
        raise WrongState(
            f"agent `{info.agent_id}` was deleted, and the workspace of sandbox `{info.sandbox_id}` with it",
            hint="terminate it and create another",
            next_actions=[next_action("sandbox.terminate", "ends it", sandbox_id=info.sandbox_id)],
            sandbox_id=info.sandbox_id,
        )

    def list(
        self,
        caller: Caller,
        *,
        states: Collection[str] = (),
        agent_id: str | None = None,
        label: Label | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> builtins.list[SandboxInfo]:
        """Return the caller's sandboxes, newest first, ended ones included; of these states, this agent, this label of the
        workspace. *after* one of them, the last of the page before, come at most *limit* more.

        Raises:
            GrantMissing: the role may not look at sandboxes.
            NotFound: there is none to come after, or it is not the caller's.
        """
        require(caller, "sandbox.read")
        position = None
        if after is not None:
            last = self.get(caller, after)
            position = format_time(last.created_at), last.sandbox_id
        if caller.role is Role.AGENT:  # it sees no others, so none of them is read
            if agent_id not in (None, caller.agent_id):
                return []
            agent_id = caller.agent_id
        rows = newest(self._store, states=states, agent_id=agent_id, after=position, expected=limit)
        found = (
            info
            for info in (self._labelled(self._info(row)) for row in rows)
            if label in (None, info.workspace_label) and self._is_visible(caller, info)
        )
        return [*itertools.islice(found, limit)]

    def on_template(self, digest: str) -> builtins.list[str]:
        """Ids of those that have not ended and whose system began from this template."""
        infos = (self._info(row) for row in self._store.read(ALL_LIVING, ()))
        return [info.sandbox_id for info in infos if info.template_sha256 == digest]

    def turn(self, sandbox_id: str) -> asyncio.Lock:
        """To be held by whoever takes a sandbox from one state to another over something to wait for."""
        lock = self._turns.get(sandbox_id)
        if lock is None:
            lock = self._turns[sandbox_id] = asyncio.Lock()
        return lock

    async def report(self, caller: Caller, sandbox_id: str) -> IsolationReport:
        """Measure the walls now; of a sandbox that ended, what was measured last."""
        info = self.get(caller, sandbox_id)
        if info.state.state in WITH_BOX:
            with contextlib.suppress(GuestLost, NotFound):
                return await self.measure(info)
        return self.measured(sandbox_id)

    async def measure(self, info: SandboxInfo) -> IsolationReport:
        """Measure now; what holds otherwise than before is kept, recorded, and in the contract.

        What was found missing is looked at once more: processes end while they are read.
        """
        life = await self._host.life(info.sandbox_id)
        report = await life.report()
        before = degraded_of(self.measured(info.sandbox_id))
        if degraded_of(report) != before:
            report = await life.report()
        now = degraded_of(report)
        if now != before:
            with self._store.transaction() as connection:
                self._kept.forget(info.sandbox_id)
                self._store.raw.execute(SET_REPORT, (report.model_dump_json(), info.sandbox_id))
                body = {"sandbox_id": info.sandbox_id, "agent_id": info.agent_id, "degraded": list(now)}
                self._ledger.append("isolation.changed", info.sandbox_id, body, connection=connection)
                self._issue_contract(self._find(info.sandbox_id), report)
        return report

    async def contacts(self, caller: Caller, sandbox_id: str) -> builtins.list[Contact]:
        """Return attempts to reach out that belong to no command that still runs."""
        info = self.get(caller, sandbox_id)
        if info.state.state not in WITH_BOX:
            return []
        return await (await self._host.life(sandbox_id)).contacts()

    async def contract(self, caller: Caller, sandbox_id: str) -> ContractDocument:
        """Measure now and return the newest version of the contract; a change of the walls or rules makes a new one."""
        report = await self.report(caller, sandbox_id)
        return ContractDocument.model_validate(json.loads(self._issue_contract(self.get(caller, sandbox_id), report)))

    def session(self, info: SandboxInfo) -> SessionInfo:
        """Return the session that calls join unless they name another: the newest one, if the owner has reset it."""
        session = self._sessions.get(info.session_id)
        if session.closed_at is None or info.state.state in ENDED:
            return session
        open_ones = [one for one in self._sessions.of_sandbox(info.sandbox_id) if one.closed_at is None]
        if not open_ones:
            return session
        with self._store.transaction() as connection:
            self._kept.forget(info.sandbox_id)
            connection.execute(
                sandboxes.update()
                .where(sandboxes.c.sandbox_id == info.sandbox_id)
                .values(session_id=open_ones[-1].session_id)
            )
        return open_ones[-1]

    async def processes(self, caller: Caller, sandbox_id: str) -> builtins.list[ProcessInfo]:
        """Return what runs, or is paused, in the box now. Raises WrongState if there is no box."""
        require(caller, "command.read")
        box = await self.box(self.get(caller, sandbox_id), reads_only=True)
        return list((await box.ask(ListProcesses())).processes)

    async def seen_inside(
        self, info: SandboxInfo, command_id: str | None
    ) -> tuple[CommandInfo | None, builtins.list[ProcessInfo]]:
        """That command as its box knows it, and what runs there. Raises WrongState if there is no box."""
        box = await self.box(info, reads_only=True)
        processes = (await box.ask(ListProcesses())).processes
        if command_id is None:
            return None, list(processes)
        commands = (await box.ask(ListCommands(command_id=command_id))).commands
        return next((one for one in commands if one.command_id == command_id), None), list(processes)

    async def runtimes(self, caller: Caller, sandbox_id: str) -> builtins.list[Runtime]:
        """Return the runtimes found inside, each with what the gate would say to starting it now."""
        info = self.get(caller, sandbox_id)
        found = (await (await self.box(info)).ask(ListRuntimes())).runtimes
        rules, taint = self._rulebook.current, self.session(info).taint
        judged = []
        for runtime in found:
            facts = CallFacts(argv=(runtime.name,), cwd="")
            context = build_context(caller, info, info.session_id, taint, "run_command", facts, digest_of({}))
            allowed = judge_call(context, rules).outcome is Outcome.ALLOW
            judged.append(runtime.model_copy(update={"allowed": allowed}))
        return judged

    async def system_packages(self, info: SandboxInfo) -> PackagesFound:
        """What is on record in the system of its box. Raises WrongState if there is no box."""
        return await (await self.box(info, reads_only=True)).ask(ListSystemPackages())

    def measured(self, sandbox_id: str) -> IsolationReport:
        """Return the report made at creation. Raises WrongState while the sandbox is starting."""
        with self._store.transaction() as connection:
            stored = connection.execute(
                sa.select(sandboxes.c.report).where(sandboxes.c.sandbox_id == sandbox_id)
            ).scalar_one_or_none()
        if stored is None:
            raise WrongState(f"sandbox `{sandbox_id[:80]}` has not been measured yet", sandbox_id=sandbox_id[:80])
        return IsolationReport.model_validate_json(stored)

    async def box(self, info: SandboxInfo, *, reads_only: bool = False) -> Box:
        """Return the live handle, for the gate alone. *reads_only*: nothing is started or written with it, which a paused
        one can serve as well.

        Raises:
            WrongState: the sandbox is not running.
            IsolationUnavailable: a wall of it was found missing since, so nothing more is started in it.
            GuestLost: it ended by itself; its state is `lost` from now on.
        """
        self.require_running(info, reads_only=reads_only)
        self.used.add(info.sandbox_id)
        if fallen := fallen_walls(info.degraded):
            raise IsolationUnavailable(
                f"a wall of sandbox `{info.sandbox_id}` does not hold any more: {', '.join(fallen)}",
                hint="terminate it and create another; the files of the agent are kept",
                property=fallen[0],
                sandbox_id=info.sandbox_id,
            )
        try:
            return await self._host.box(info.sandbox_id)
        except (GuestLost, NotFound) as error:
            await self.lose(info.sandbox_id, str(error))
            raise GuestLost(f"sandbox `{info.sandbox_id}` is lost: {error}", sandbox_id=info.sandbox_id) from error

    async def files(self, info: SandboxInfo) -> Box:
        """What reads its files, for the gate alone: its box, or where it has none the files by themselves. Nothing is
        started.

        Raises:
            WrongState: there are none, or they are on their way.
            And what `box` raises.
        """
        if info.state.state in WITH_BOX:
            return await self.box(info, reads_only=True)
        self.require_readable(info)
        point = WorkspacePoint(agent_id=info.agent_id)
        if info.agent_id is None:
            point = WorkspacePoint(session_id=self.first_session(info.sandbox_id))
        return AtRest(self._host.snapshots, info.sandbox_id, point)

    def require_readable(self, info: SandboxInfo) -> None:
        """Raise WrongState unless its files are there: of one that ended those of its agent are, while that lives."""
        if info.state.state in WITH_BOX or (info.state.state == "stopped" and info.agent_id is None):
            return
        if info.agent_id is not None and info.state.state in ("stopped", *ENDED):
            if self.has_its_agent(info):
                return
            raise WrongState(
                f"agent `{info.agent_id}` was deleted, and the files of sandbox `{info.sandbox_id}` with it",
                hint="look into its snapshots, or at the record",
                sandbox_id=info.sandbox_id,
            )
        self.require_running(info, reads_only=True)

    async def hold_to_limits(self, sandbox_id: str, box: Box) -> None:
        """Return once the box holds what starts next to the limits that the rules put on its agent now."""
        while self._find(sandbox_id).spec.limits != self.told.get(sandbox_id):
            async with self._telling:
                limits = self._find(sandbox_id).spec.limits
                if limits != self.told.get(sandbox_id):
                    await box.ask(TightenLimits(limits=limits))
                    self.told[sandbox_id] = limits

    def require_running(self, info: SandboxInfo, *, reads_only: bool = False) -> None:
        """Raise WrongState, with what can be done, unless the sandbox runs, or is paused where that is enough."""
        if info.state.state != "running" and not (reads_only and info.state.state in WITH_BOX):
            raise WrongState(
                f"sandbox `{info.sandbox_id}` is {info.state.state}",
                next_actions=[NextAction(action) for action in info.state.next_actions],
                retry="later" if info.state.retryable else "after_change",
                sandbox_id=info.sandbox_id,
                state=info.state.state,
            )

    async def events(self, info: SandboxInfo, command_id: str, *, after_seq: int = -1) -> AsyncIterator[CommandEvent]:
        """Yield the events of a command, running or ended, from its box or from what the box left on disk.

        Ends without Ended if the command was lost. Raises NotFound if there never was one.
        """
        with contextlib.suppress(GuestLost, NotFound):
            box = await self._host.box(info.sandbox_id)
            async for event in box.follow(command_id, after_seq=after_seq):
                yield event
                if isinstance(event, OutputChunk):
                    after_seq = event.seq
                elif isinstance(event, Ended):
                    return
        async for event in await self._host.stored(info.sandbox_id, command_id, after_seq=after_seq):
            yield event

    async def check_alive(self, sandbox_id: str, reason: str) -> None:
        """Mark the sandbox lost if the host says so. One helper of the box that was ended is not the box's end, and no loss
        is that of a box which was stopped, also if it is being started again meanwhile.
        """
        before = self._find(sandbox_id).state
        if before.state not in WITH_BOX:
            return
        try:
            boxes = await self._host.boxes()
        except HostUnreachable:
            return  # Nobody knows; the next call asks again.
        alive = {status.sandbox_id for status in boxes if status.state != "lost"}
        if sandbox_id not in alive and self._find(sandbox_id).state == before:
            await self.lose(sandbox_id, reason)

    async def lose(self, sandbox_id: str, reason: str) -> None:
        """Mark it lost; a temporary workspace goes with its session now, and not at the next start only."""
        self.mark_lost(sandbox_id, reason)
        if self._find(sandbox_id).spec.background:
            with contextlib.suppress(ColdframeError):  # a host that does not answer is swept when it is back
                await self.sweep()

    def mark_lost(self, sandbox_id: str, reason: str) -> None:
        """Record that the box ended by itself. Does nothing if it has ended otherwise."""
        with self._store.transaction() as connection:
            info = self._find(sandbox_id)
            if info.state.state not in WITH_BOX:
                return
            label = self.label(info)
            self.move(sandbox_id, "lost", message=reason)
            self.close_sessions(sandbox_id)
            body = {"sandbox_id": sandbox_id, "agent_id": info.agent_id, "reason": reason, "label": label}
            self._ledger.append("sandbox.lost", sandbox_id, body, connection=connection)

    def raise_workspace_label(self, info: SandboxInfo, label: Label, *, connection: sa.Connection) -> None:
        """Join *label* into the high-water label of the workspace, which only rises."""
        if info.agent_id is not None:
            with contextlib.suppress(NotFound):  # An agent that was deleted has no files left to label.
                self._agents.raise_label(info.agent_id, label, connection=connection)
            return
        before = self._find(info.sandbox_id).workspace_label
        risen = join(before, label)
        if risen is before:
            return
        self._kept.forget(info.sandbox_id)
        connection.execute(
            sandboxes.update().where(sandboxes.c.sandbox_id == info.sandbox_id).values(workspace_label=risen.value)
        )
        self.risen(connection)

    def find(self, sandbox_id: str) -> SandboxInfo:
        """Return one sandbox, whoever asks; for control itself."""
        return self._find(sandbox_id)

    def first_session(self, sandbox_id: str) -> str:
        """Its temporary workspace, if it has one, has that name, also when the owner has reset the session since."""
        return self._sessions.of_sandbox(sandbox_id)[0].session_id

    def asked(self, sandbox_id: str) -> SandboxSpec:
        """What it shall be, without what the rules in force tighten."""
        return stored_spec(self._store.read("SELECT spec FROM sandboxes WHERE sandbox_id = ?", (sandbox_id,))[0][0])

    def with_box(self) -> builtins.list[SandboxInfo]:
        """All that have one now, whoever's."""
        return [info for info in self.living() if info.state.state in WITH_BOX]

    def living(self) -> builtins.list[SandboxInfo]:
        """All that have not ended, whoever's."""
        return [self._info(row) for row in self._store.read(ALL_LIVING)]

    def note_activity(self, sandbox_id: str) -> None:
        """Something was begun or done in it that is more than a look."""
        self.active[sandbox_id] = self._clock()

    def end_in(self, sandbox_id: str, state: Literal["stopped", "terminated"], by: str, **more: Any) -> None:
        """Its box is gone: from `stopping` into that state, recorded."""
        self.told.pop(sandbox_id, None)
        with self._store.transaction() as connection:
            info = self._find(sandbox_id)
            label = self.label(info)
            self.move(sandbox_id, state)
            if state == "terminated":
                self.close_sessions(sandbox_id)
            body = {"sandbox_id": sandbox_id, "agent_id": info.agent_id, "caller": by, "label": label, **more}
            self._ledger.append(f"sandbox.{state}", sandbox_id, body, connection=connection)

    async def sweep(self) -> builtins.list[str]:
        """Have the host remove what belongs to no sandbox that has a box, or is about to. Returns what was."""
        since = await self._host.moment()  # a sandbox may be made between these lists and the sweep
        living = {str(sandbox_id): state for sandbox_id, state, _ in self._store.read(STATES_OF_LIVING)}
        temporary = [str(sandbox_id) for (sandbox_id,) in self._store.read(TEMPORARY)]
        kept = {session.session_id for sandbox_id in temporary for session in self._sessions.of_sandbox(sandbox_id)}
        return await self._host.sweep(
            keep_boxes={sandbox_id for sandbox_id, state in living.items() if state != "stopped"},
            keep_sessions=kept,
            since=since,
        )

    def close_sessions(self, sandbox_id: str) -> None:
        for session in self._sessions.of_sandbox(sandbox_id):
            self._sessions.close(session.session_id)

    def move(
        self,
        sandbox_id: str,
        state: SandboxState,
        *,
        message: str = "",
        finish: str = "sandbox.terminate",
        report: IsolationReport | None = None,
    ) -> None:
        """From the state that it is in to another: the one place that changes states, and it lets nothing pass but what is
        published. *finish* is what a stopping one can be finished with, *report* what was measured on the way.

        Raises:
            WrongState: there is no such way.
        """
        with self._store.transaction():
            info = self._find(sandbox_id)
            now = info.state.state
            if state not in TRANSITIONS[now] and not state == now == "stopping":
                raise WrongState(f"sandbox `{sandbox_id}` is {now}, and not {state} from there", state=now)
            self._kept.forget(sandbox_id)
            text = state_object(
                sandbox_id, state, self._clock(), message=message, finish=finish, before=info.state
            ).model_dump_json()
            if report is None:
                self._store.raw.execute(SET_STATE, (text, sandbox_id))
            else:
                self._store.raw.execute(SET_RUNNING, (report.model_dump_json(), text, sandbox_id))
            if state in (*ENDED, "stopped"):
                self._free_slot(sandbox_id)
                self.moved(info)
            if state in ENDED:
                self.ended(sandbox_id)
        if state in (*ENDED, "stopped"):
            self.networked.end(sandbox_id)
            if now == "stopping" and info.network is not None:
                self.networked.ended(sandbox_id)  # one that was stopped before was none of them any more
            self.active.pop(sandbox_id, None)

    def _find(self, sandbox_id: str) -> SandboxInfo:
        if self._kept_under is not self._rulebook.in_force:
            self._kept.forget_all()  # what they have of the network is by the rules
            self._kept_under = self._rulebook.in_force
        found = self._kept.get(sandbox_id)
        if found is None:
            raise _no_sandbox(sandbox_id)
        return self._labelled(found)

    def label(self, info: SandboxInfo, session_id: str | None = None) -> Label:
        """The highest that what is told of it may have: of its workspace, and of that session, else the one that calls join."""
        session = self.session(info) if session_id is None else self._sessions.get(session_id)
        return join(info.workspace_label, session.taint)

    def _load(self, sandbox_id: str) -> SandboxInfo | None:
        rows = self._store.read(f"SELECT {FIELDS} FROM sandboxes WHERE sandbox_id = ?", (sandbox_id,))  # noqa: S608
        return self._info(rows[0]) if rows else None

    def _labelled(self, info: SandboxInfo) -> SandboxInfo:
        """With what may differ from the row: the limits in force now, and the label of an agent's workspace, whichever
        sandbox raised it."""
        rules, label = self._rulebook.in_force, info.workspace_label
        if info.agent_id is not None:
            with contextlib.suppress(NotFound):
                label = self._agents.get(info.agent_id).workspace_label
        last = self._labelled_last.get(info.sandbox_id)
        if last is not None and last[0] is info and last[1] is rules and last[2] is label:
            return last[3]
        now, spec = info, tightened(info.spec, rules)
        if spec is not info.spec or label is not info.workspace_label:
            now = info.model_copy(update={"spec": spec, "workspace_label": label})
        keep_latest(self._labelled_last, info.sandbox_id, (info, rules, label, now), MOST_KEPT)
        return now

    def _info(self, row: tuple[Any, ...]) -> SandboxInfo:
        sandbox_id, agent_id, session_id, written, state, report, label, created_at, role = row
        workspace_label, spec, rules = parse(label), stored_spec(written), self._rulebook.in_force
        network = None
        if role is not None:
            network = find_profiles(None if rules is None else rules.network, sandbox_id, agent_id, spec.network, role)
        return SandboxInfo(
            sandbox_id=sandbox_id,
            agent_id=agent_id,
            session_id=session_id,
            spec=spec,
            state=stored_state(state),
            created_at=parse_time(created_at),
            workspace_label=workspace_label,
            network=network,
            degraded=() if report is None else weak_points(report),
            template_sha256=template_of(report) if report is not None and spec.profile == "computer" else None,
        )


def _no_sandbox(sandbox_id: str) -> NotFound:
    return NotFound(
        f"no sandbox `{sandbox_id[:80]}`",
        next_actions=[next_action("sandbox.list", "lists the sandboxes that are yours")],
        sandbox_id=sandbox_id[:80],
    )
