"""Creation: a box is built, measured and told its limits before anybody may use it.

A row is written before anything is built, so that a crash leaves something to clean up by. Creation is all or nothing: what
cannot be built leaves no row, no session, no box.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa

from coldframe.contract.caller import Caller
from coldframe.contract.declared_inputs import DeclaredInputs
from coldframe.contract.errors import (
    ColdframeError,
    Conflict,
    InvalidArgument,
    NotFound,
    PauseKindUnsupported,
    TooManySandboxes,
    Unauthenticated,
    WrongState,
)
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.network import NetworkAccess
from coldframe.contract.policy import Label
from coldframe.contract.ports import Host
from coldframe.contract.sandbox import SandboxInfo, SandboxSpec
from coldframe.contract.snapshot import SnapshotInfo, WorkspacePoint
from coldframe.control.agents import Agents
from coldframe.control.contacts import Contacts
from coldframe.control.contract_plans import ContractPlans
from coldframe.control.keyed_calls import KeyedCalls
from coldframe.control.ledger import Ledger
from coldframe.control.makers import Makers
from coldframe.control.networked import find_access
from coldframe.control.rulebook import Rulebook
from coldframe.control.sandbox_rows import SET_SPEC, degraded_of
from coldframe.control.sandbox_specs import (
    Longest,
    check_spec,
    digests_of,
    faults_beside,
    restricted,
    tightened,
    timed,
)
from coldframe.control.sandboxes import IssueContract, Sandboxes
from coldframe.control.sessions import Sessions
from coldframe.control.snapshots import Snapshots
from coldframe.control.store import Store
from coldframe.control.templates import Templates
from coldframe.control.volume_attachments import VolumeAttachments
from coldframe.policy.labels import join

_log = logging.getLogger(__name__)


Beside = Callable[[str, sa.Connection], None]
"""Told the id of a sandbox in the transaction that writes it down."""
BeginStart = Callable[[Caller, SandboxInfo], Awaitable[None]]
PutInputs = Callable[[Caller, SandboxInfo, DeclaredInputs], Awaitable[None]]


def writes_nothing(_: str, __: sa.Connection) -> None: ...


async def _puts_nothing(_: Caller, __: SandboxInfo, ___: DeclaredInputs) -> None:
    return


async def _starts_nothing(_: Caller, __: SandboxInfo) -> None:
    return


class Creation:
    """Makes sandboxes, and their boxes anew."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        agents: Agents,
        sessions: Sessions,
        rulebook: Rulebook,
        contacts: Contacts,
        sandboxes: Sandboxes,
        keyed: KeyedCalls,
        host: Host,
        plans: ContractPlans,
        snapshots: Snapshots,
        templates: Templates,
        issue_contract: IssueContract,
        *,
        volumes: VolumeAttachments,
        longest: Longest,
        is_valid: Callable[[Caller], bool],
    ) -> None:
        """*is_valid*: whether the token of a caller would be let in now."""
        self._store = store
        self._ledger = ledger
        self._agents = agents
        self._sessions = sessions
        self._rulebook = rulebook
        self._contacts = contacts
        self._sandboxes = sandboxes
        self._keyed = keyed
        self._host = host
        self._plans = plans
        self._snapshots = snapshots
        self.makers: Makers | None = None
        """Holds each owner to the maxima of the operator."""
        self._templates = templates
        self.begin_start: BeginStart = _starts_nothing
        """Starts what the template of a sandbox starts, once that runs, and returns when it is ready."""
        self.take_home: BeginStart = _starts_nothing
        """Puts what a template has for workspaces into that of a sandbox which is new, and comes from no snapshot."""
        self.put_inputs: PutInputs = _puts_nothing
        """Puts what was declared into a workspace that is new."""
        self.volumes = volumes
        self._issue_contract = issue_contract
        self._longest = longest
        self._is_valid = is_valid
        self._creating: dict[str, asyncio.Event] = {}
        """Sandboxes that are being made under a key; set when they are there, or are not."""
        self._queued: dict[str, asyncio.Task[None]] = {}

    async def close(self) -> None:
        """Let go of those that wait for their turn: the next start tells that they never began."""
        waiting = list(self._queued.values())
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def create(
        self,
        caller: Caller,
        spec: SandboxSpec,
        *,
        idempotency_key: str | None = None,
        queue_s: float | None = None,
        beside: Beside = writes_nothing,
    ) -> SandboxInfo:
        """Build a box for *spec* and measure it; with a key that was used already, return what was made then.

        *beside* is told the id in the transaction that writes the sandbox down, to write what belongs to it.
        A creation that failed gives its key back. Where as many run as the operator lets, it is refused, or with *queue_s*
        answered in state `queued`: it is made in its turn, or fails after so many seconds.

        Raises:
            GrantMissing: the caller may not.
            Conflict: the key was used for something else, or the agent that is to begin as a snapshot is there.
            InvalidArgument: neither or both of an agent and `background`, too many denied programs, or no such network
                profile.
            DeniedByRule: the rules give it no network although one was asked for, or do not let the snapshot be used.
            NotFound: there is no such snapshot, or volume.
            VolumeBusy: another sandbox has a volume to write to.
            ContractChanged: it would not have the contract that was agreed to.
            ContractDrift: it had not; nothing is left behind.
            TooManySandboxes: as many run as may.
            LimitReached: the caller has as many, or as much stored, as one owner may.
            IsolationUnavailable: a wall is missing on this host; nothing is left behind.
        """
        check_spec(caller, spec, self._longest)
        asked = digests_of(spec)
        declared = spec.inputs
        if not all(one.is_given for one in declared):
            raise InvalidArgument("an input is declared with its content", argument="inputs")
        spec = timed(spec.model_copy(update={"inputs": tuple(one.told() for one in declared)}), self._longest)
        if (made := await self._made_before(caller, idempotency_key, *asked)) is not None:
            return made
        if self.makers is not None:
            await self.makers.check_stored(caller)
        spec = restricted(spec, self._rulebook.current)
        check_contract = self._plans.agree(caller, spec)
        source = None if spec.snapshot is None else self._snapshots.source(caller, spec.snapshot)
        self.volumes.check(caller, spec)
        await self.volumes.free(spec)
        if spec.agent_id is not None:
            try:
                await self._agents.ensure(spec.agent_id, caller=caller, begins=None if source is None else source.label)
            except Conflict:  # unless it was made under this very key meanwhile
                if (made := await self._made_before(caller, idempotency_key, *asked)) is not None:
                    return made
                raise
        # once more: from here to the row that holds the key nothing else runs
        if (made := await self._made_before(caller, idempotency_key, *asked)) is not None:
            return made
        sandbox_id = f"sbx_{secrets.token_hex(10)}"
        try:
            taint = Label.PUBLIC if source is None else source.label
            if spec.agent_id is not None:
                taint = self._agents.get(spec.agent_id).workspace_label
            label = self.volumes.check(caller, spec)  # once more: grants and labels may have changed meanwhile
            network = find_access(self._rulebook.current.network, caller, sandbox_id, spec, join(taint, label))
            if self.makers is not None:
                self.makers.check_number(caller)
                self.makers.note(sandbox_id, caller)
            is_new = source is not None and spec.agent_id is not None  # others may use that agent meanwhile
            wait_s = self._take_slot(sandbox_id, caller.token_id, None if is_new else queue_s)
            with self._store.transaction() as connection:
                session = self._sessions.open(sandbox_id, spec.agent_id)
                draft = _Draft(sandbox_id, session.session_id, caller, spec, network, source, check_contract, declared)
                self._write(draft, wait_s, connection)
                beside(sandbox_id, connection)
                if idempotency_key is not None:
                    self._keyed.open(caller.token_id, idempotency_key, asked[0], sandbox_id, connection=connection)
        except BaseException:
            self._sandboxes.slots.release(sandbox_id)
            if source is not None and spec.agent_id is not None:
                await self._agents.unmake(spec.agent_id, caller=caller)
            raise
        if wait_s is not None:
            task = self._queued[sandbox_id] = asyncio.ensure_future(self._make_in_turn(draft, wait_s))
            task.add_done_callback(lambda _: self._queued.pop(sandbox_id))
            return self._sandboxes.find(sandbox_id)
        if idempotency_key is not None:
            self._creating[sandbox_id] = asyncio.Event()
        try:
            return await self._make(draft)
        except BaseException as error:
            await asyncio.shield(self._undo(draft, error))
            raise
        finally:
            if sandbox_id in self._creating:
                self._creating.pop(sandbox_id).set()

    async def wait(self, caller: Caller, sandbox_id: str, within_s: float) -> SandboxInfo:
        """One that is queued, once it is not any more, or after so many seconds. Raises GrantMissing, NotFound."""
        self._sandboxes.get(caller, sandbox_id)
        if (task := self._queued.get(sandbox_id)) is not None:
            await asyncio.wait({task}, timeout=within_s)
        return self._sandboxes.get(caller, sandbox_id)

    def _take_slot(self, sandbox_id: str, owner: str, queue_s: float | None) -> float | None:
        """How long it waits for one at most; None if it has one."""
        try:
            self._sandboxes.slots.take(sandbox_id, owner)
        except TooManySandboxes:
            if queue_s is None:
                raise
            self._sandboxes.slots.queue(sandbox_id, owner)
            return queue_s
        return None

    def _write(self, draft: "_Draft", wait_s: float | None, connection: sa.Connection) -> None:
        """What is there before anything is built."""
        sandbox_id, spec, source = draft.sandbox_id, draft.spec, draft.source
        if wait_s is None:
            self._sandboxes.add(sandbox_id, spec, draft.session_id)
        else:
            message = f"waits for one of {self._sandboxes.slots.most} that run to end, for {wait_s:g} s at most"
            self._sandboxes.add(sandbox_id, spec, draft.session_id, state="queued", message=message)
            body = {
                "sandbox_id": sandbox_id,
                "agent_id": spec.agent_id,
                "session_id": draft.session_id,
                "caller": draft.caller.name,
            }
            self._ledger.append("sandbox.queued", sandbox_id, body, connection=connection)
        if source is not None:
            self._sessions.raise_taint(draft.session_id, source.label, connection=connection)
            self._sandboxes.raise_workspace_label(self._sandboxes.find(sandbox_id), source.label, connection=connection)
        if wait_s is None:
            self.volumes.claim(sandbox_id, spec, connection)
        if draft.network is not None:
            self._contacts.open_network(sandbox_id, draft.caller.role)

    async def _make(self, draft: "_Draft") -> SandboxInfo:
        sandbox_id, spec, source, caller = draft.sandbox_id, draft.spec, draft.source, draft.caller
        report = await self.build(sandbox_id, spec, draft.session_id, draft.network)
        with self._store.transaction() as connection:
            self._sandboxes.move(sandbox_id, "running", report=report)
            info = self._sandboxes.find(sandbox_id)
            body: dict[str, Any] = {
                "sandbox_id": sandbox_id,
                "agent_id": spec.agent_id,
                "session_id": draft.session_id,
                "caller": caller.name,
                "label": self._sandboxes.label(info),
                "spec": spec.model_dump_json(),
                "degraded": list(degraded_of(report)),
            }
            if draft.network is not None:
                body["network"] = list(info.network or ())
            self._ledger.append("sandbox.created", sandbox_id, body, connection=connection)
            self.volumes.note(info, caller.name, connection)
            if source is not None:
                forked = {
                    "snapshot_id": source.snapshot_id,
                    "sandbox_id": sandbox_id,
                    "agent_id": spec.agent_id,
                    "from_sandbox_id": source.sandbox_id,
                    "from_agent_id": source.agent_id,
                    "label": source.label.value,
                    "caller": caller.name,
                }
                self._ledger.append("snapshot.forked", source.snapshot_id, forked, connection=connection)
            document = self._issue_contract(info, report)
            if draft.check_contract is not None:
                draft.check_contract(document)
        if draft.network is not None:
            self._sandboxes.networked.add(info)
        self._sandboxes.begun(info)
        if draft.inputs:
            await self.put_inputs(caller, info, draft.inputs)
        if info.template_sha256 is not None:
            if spec.background and source is None:
                await self.take_home(caller, info)
            await self.begin_start(caller, info)
        return info

    def faults_beside(self, caller: Caller, spec: SandboxSpec, left_out: frozenset[str]) -> list[tuple[str, str]]:
        """What else stands in the way of a wish, the fields *left_out* of which are no such thing. Raises GrantMissing."""
        return faults_beside(caller, spec, left_out, self._longest)

    async def _make_in_turn(self, draft: "_Draft", within_s: float) -> None:
        sandbox_id = draft.sandbox_id
        came = await self._sandboxes.slots.turn(sandbox_id, within_s)
        async with self._sandboxes.turn(sandbox_id):
            if self._sandboxes.find(sandbox_id).state.state != "queued":  # taken out of the queue
                self._sandboxes.slots.release(sandbox_id)
                return
            try:
                if not came:
                    raise TooManySandboxes(f"no other sandbox ended within {within_s:g} s")
                await self.volumes.free(draft.spec)
                await self._make(self._begin(draft))
            except BaseException as error:
                try:
                    await asyncio.shield(self._fail(draft, error))
                except ColdframeError:
                    _log.exception("sandbox `%s` failed, which could not be recorded", sandbox_id)
                if not isinstance(error, Exception):
                    raise
                if not isinstance(error, ColdframeError):
                    _log.exception("sandbox `%s` could not be made in its turn", sandbox_id)

    def _begin(self, draft: "_Draft") -> "_Draft":
        """As the rules and labels are now that it is made. Raises Unauthenticated, NotFound, DeniedByRule."""
        sandbox_id, info = draft.sandbox_id, self._sandboxes.find(draft.sandbox_id)
        if not self._is_valid(draft.caller):
            raise Unauthenticated("the token of whoever asked for it is not valid any more")
        if not self._sandboxes.has_its_agent(info):
            raise NotFound(f"agent `{info.agent_id}` was deleted meanwhile")
        spec, network = restricted(draft.spec, self._rulebook.current), None
        label = self.volumes.check(draft.caller, spec)
        if draft.network is not None:
            taint = join(join(self._sessions.get(draft.session_id).taint, info.workspace_label), label)
            network = find_access(self._rulebook.current.network, draft.caller, sandbox_id, spec, taint)
        with self._store.transaction() as connection:
            if spec != draft.spec:
                self._store.raw.execute(SET_SPEC, (spec.model_dump_json(), sandbox_id))
            self._sandboxes.move(sandbox_id, "starting")
            self.volumes.claim(sandbox_id, spec, connection)
        return draft._replace(spec=spec, network=network)

    async def build(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        session_id: str,
        network: NetworkAccess | None,
        *,
        anew: bool = False,
    ) -> IsolationReport:
        """Have the box built, held to the limits in force now, and measured.

        Raises IsolationUnavailable; NotFound, WrongState, TemplateWithdrawn, TemplateChanged: not of that template."""
        workspace = WorkspacePoint(agent_id=spec.agent_id, session_id=None if spec.agent_id is not None else session_id)
        settled = await self._templates.settled(spec, workspace, standing=self._standing(spec, anew=anew))
        given = self.volumes.attachments(spec)
        if given:
            await self.volumes.settle()
        report = await self._host.create(
            sandbox_id, settled, session_id=session_id, network=network, anew=anew, volumes=given
        )
        self._sandboxes.told[sandbox_id] = spec.limits
        if spec.on_timeout == "pause" and "memory" not in report.pause_kinds:
            raise PauseKindUnsupported(
                "this machine cannot pause sandboxes, so none can be paused by a timer",
                hint="ask for `on_timeout` `stop`, which keeps the files and not the processes",
                argument="on_timeout",
            )
        if tightened(spec, self._rulebook.in_force) is not spec:
            await self._sandboxes.hold_to_limits(sandbox_id, await self._host.box(sandbox_id))
            report = await (await self._host.life(sandbox_id)).report()
        return report

    def _standing(self, spec: SandboxSpec, *, anew: bool) -> str | None:
        """One that begins with the system of a snapshot has the template on which that stands, whichever is the newest now: its
        digest."""
        row = None if spec.snapshot is None or anew else self._snapshots.row("snapshot_id = ?", spec.snapshot)
        return None if row is None or row.info.system is None else row.info.system.template_sha256

    async def _made_before(self, caller: Caller, key: str | None, *asked: str) -> SandboxInfo | None:
        """The sandbox that was made under *key*, or None, and then without having let anybody else run after the look."""
        while key is not None and (known := self._keyed.find(caller.token_id, key, *asked)) is not None:
            if known.call_id not in self._creating:
                return self._sandboxes.get(caller, known.call_id)
            await self._creating[known.call_id].wait()
        return None

    async def _undo(self, draft: "_Draft", error: BaseException) -> None:
        """Nobody has heard of it, and nothing but the record is left."""
        await self._take_down(draft)
        with self._freeing(draft), self._store.transaction() as connection:
            self._sandboxes.remove(draft.sandbox_id, connection=connection)
            self.volumes.forget(draft.sandbox_id, connection)
            self._contacts.forget_network(draft.sandbox_id)
            self._sessions.close(draft.session_id)
            self._record_failure(draft, error, connection)
        await self._clear_away(draft)

    async def _fail(self, draft: "_Draft", error: BaseException) -> None:
        """Whoever asked knows it by its id, and is told there."""
        await self._take_down(draft)
        with self._freeing(draft), self._store.transaction() as connection:
            self._sandboxes.move(draft.sandbox_id, "failed", message=str(error))
            self._sandboxes.close_sessions(draft.sandbox_id)
            self._record_failure(draft, error, connection)
        await self._clear_away(draft)

    @contextlib.contextmanager
    def _freeing(self, draft: "_Draft") -> Iterator[None]:
        """It has no box any more and holds up nobody, also if that cannot be recorded: then the next start settles it."""
        try:
            yield
        except BaseException:
            self._sandboxes.slots.release(draft.sandbox_id)
            raise

    async def _take_down(self, draft: "_Draft") -> None:
        with contextlib.suppress(ColdframeError):
            life = await self._host.life(draft.sandbox_id)
            await life.end()
        with contextlib.suppress(ColdframeError):
            await self._host.forget_stored(draft.sandbox_id)

    def _record_failure(self, draft: "_Draft", error: BaseException, connection: sa.Connection) -> None:
        self._keyed.forget(draft.sandbox_id, connection=connection)
        body = {
            "sandbox_id": draft.sandbox_id,
            "agent_id": draft.spec.agent_id,
            "caller": draft.caller.name,
            "code": error.code if isinstance(error, ColdframeError) else type(error).__name__,
            "message": str(error),
        }
        self._ledger.append("sandbox.failed", draft.sandbox_id, body, connection=connection)

    async def _clear_away(self, draft: "_Draft") -> None:
        spec = draft.spec
        if spec.background:
            await self._sandboxes.sweep()
        elif spec.snapshot is not None and spec.agent_id is not None:
            with contextlib.suppress(WrongState):  # another sandbox of that agent is there by now, and keeps it
                await self._agents.unmake(spec.agent_id, caller=draft.caller)


class _Draft(NamedTuple):
    """All that one is made of."""

    sandbox_id: str
    session_id: str
    caller: Caller
    spec: SandboxSpec
    network: NetworkAccess | None
    source: SnapshotInfo | None
    check_contract: Callable[[str], None] | None
    inputs: DeclaredInputs = ()
    """With their content, which is kept nowhere else."""
