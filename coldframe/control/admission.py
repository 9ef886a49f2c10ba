"""How a call gets in: rights, arguments, reading, judgement, and the record that it starts or was refused.

From the moment the session is read for good until `call.started` is written nothing is awaited, so no other
call slips in between judging and acting. Every refusal is recorded, whatever its cause; the outcome of an
earlier call under the same key is no refusal, and is given again as it was.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from coldframe.contract.caller import Caller
from coldframe.contract.cell import keeps_kernel
from coldframe.contract.errors import (
    ColdframeError,
    HostUnreachable,
    InvalidArgument,
    NotFound,
    PolicyUnavailable,
    ResultExpired,
    WrongState,
    from_wire,
    next_action,
)
from coldframe.contract.files import ListRuntimes, Runtime
from coldframe.contract.ledger import CallEnded, CallStarted, InputSent
from coldframe.contract.outputs import DeclaredOutputs
from coldframe.contract.policy import CallContext, Decision, InputContext, Label, Outcome
from coldframe.contract.ports import Box
from coldframe.contract.profile import require_tool
from coldframe.contract.sandbox import ENDED, SandboxInfo, SessionInfo
from coldframe.contract.tool import ToolResult
from coldframe.control.at_rest import View
from coldframe.control.call_records import (
    CallIds,
    Subject,
    ids_of,
    new_ids,
    refused_record,
    started_record,
)
from coldframe.control.flights import Flight, Watch
from coldframe.control.history import History
from coldframe.control.judgement import (
    build_context,
    digest_of,
    holds_back,
    judge_call,
    refusal_of,
)
from coldframe.control.keyed_calls import KeyedCalls
from coldframe.control.landing import show
from coldframe.control.latest import keep_latest
from coldframe.control.ledger import Ledger
from coldframe.control.past_box import PastBox
from coldframe.control.rights import require, right_to_call
from coldframe.control.rulebook import Rulebook
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.sessions import Sessions
from coldframe.control.store import Store
from coldframe.control.taints import Taints
from coldframe.policy.labels import join
from coldframe.policy.rules import RuleSet
from coldframe.tools.registry import Arguments, CallFacts, ToolCall, ToolSpec, find_tool


class Known(NamedTuple):
    """The outcome of an earlier call under the same key, if it is an error."""

    error: ColdframeError


MOST_RUNTIMES = 256
"""Sandboxes whose runtimes are kept in memory."""
NO_FACTS = CallFacts()
ONLY_READ = frozenset({"read_file", "read_path", "list_directory", "list_path", "stat_path", "search_files"})
"""Tools that change nothing, and tell nothing before their end: their start may be committed together with that."""


@dataclass
class Draft:
    """What is known of a call while it is being let in, for the record of a refusal."""

    ids: CallIds
    caller: Caller
    tool: str
    subject: Subject
    facts: CallFacts = NO_FACTS
    arguments_sha256: str = ""
    context: CallContext | None = None
    decision: Decision | None = None
    input: InputContext | None = None
    snapshot_ids: tuple[str, ...] = ()

    def about(self, info: SandboxInfo, session: SessionInfo) -> None:
        self.subject = Subject(info.sandbox_id, info.agent_id, session.session_id, session.taint)


class Admission:
    """Lets calls in. The gate launches what comes out."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        rulebook: Rulebook,
        sandboxes: Sandboxes,
        sessions: Sessions,
        taints: Taints,
        history: History,
        keyed: KeyedCalls,
        flights: dict[str, Flight],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._rulebook = rulebook
        self._sandboxes = sandboxes
        self._sessions = sessions
        self._taints = taints
        self._history = history
        self._keyed = keyed
        self._flights = flights
        self._runtimes: dict[str, tuple[datetime | None, dict[str, Runtime]]] = {}

    async def admit(
        self,
        caller: Caller,
        sandbox_id: str,
        tool: str,
        arguments: dict[str, Any],
        session_id: str | None,
        key: str | None,
        *,
        keep_output: bool,
        view: Callable[[], View] | None = None,
    ) -> Flight | ToolResult:
        """Let a call in and launch it, or return the one that was made under the same key. *view* finds what it reads in
        place of the files of its sandbox.
        """
        ids = new_ids()
        draft = Draft(
            ids, caller, tool, Subject(sandbox_id[:80], caller.agent_id, (session_id or "")[:80], Label.PUBLIC)
        )
        try:
            info = self._sandboxes.get(caller, sandbox_id)
            draft.about(info, self._sandboxes.session(info))
            session = self._session(info, session_id)
            draft.about(info, session)
            require(caller, right_to_call(tool))
            seen = None if view is None else view()
            spec = find_tool(tool) if seen is None or seen.spec is None else seen.spec
            draft.tool = spec.name  # the one by which rules know it
            if seen is not None and spec.writes:
                raise InvalidArgument(
                    f"`{tool}` may change files, and snapshots never change",
                    hint="fork the snapshot, or reset the sandbox to it",
                    argument="snapshot",
                )
            self._rulebook.current  # noqa: B018  # without rules nothing is even looked at
            checked = spec.check(arguments)
            checked.fit(info.spec)
            told = arguments if seen is None else {**arguments, "snapshot_ids": list(seen.snapshot_ids)}
            draft.arguments_sha256 = digest_of(told)
            draft.facts = checked.facts()
            require_tool(info.spec.profile, tool, sandbox_id=info.sandbox_id, background=draft.facts.background)
            asked = {"sandbox": sandbox_id, "tool": tool, "session": session_id, "arguments": draft.arguments_sha256}
            request = "" if key is None else digest_of(asked)
            known = await self._same_call(caller, info, spec, checked, key, request)
            if known is None:
                looked = self._store.changes
                box = await self._find_box(info, spec, seen)
                if spec.writes:
                    await self._find_runtime(draft, info, session, box)
                    await self._sandboxes.hold_to_limits(info.sandbox_id, box)
                # Nothing is waited for from here until `call.started` is written.
                if self._store.changes != looked:
                    known = await self._same_call(caller, info, spec, checked, key, request)
            if known is None:
                flight = self._judge_and_start(draft, spec, checked, box, session_id, key, request, seen)
        except ColdframeError as error:
            await self._refuse(draft, error)
            raise
        if isinstance(known, Known):
            raise known.error
        if known is not None:
            # Whoever gets it again gets its label again, also in a session that was opened since.
            label = known.label if isinstance(known, ToolResult) else known.taint
            self._sessions.raise_taint(draft.subject.session_id, label)
            await self._taints.settle(info)
            return known
        held = holds_back(flight.rules, flight.spec.name)
        # Whoever is answered early reads the output where the box keeps it.
        flight.keep_output = held or (not draft.facts.background and (keep_output or key is not None))
        if not keep_output and flight.started.command_id is not None and not held:
            flight.watch = Watch()
        return flight

    async def admit_input(
        self,
        caller: Caller,
        sandbox_id: str,
        command_id: str,
        content: bytes,
        *,
        offset: int | None,
        end: bool,
        session_id: str | None,
    ) -> tuple[SandboxInfo, Box]:
        """Let bytes for the input of a command in, judged and recorded as if it were called now with them.

        What the command does with them is counted to its own session as well, which takes the label of the caller's.
        """
        draft = Draft(
            new_ids(),
            caller,
            "run_command",
            Subject(sandbox_id[:80], caller.agent_id, (session_id or "")[:80], Label.PUBLIC),
        )
        try:
            info = self._sandboxes.get(caller, sandbox_id)
            draft.about(info, self._sandboxes.session(info))
            draft.about(info, self._session(info, session_id))
            require(caller, "tool.call")
            started = self._command(info, command_id)
            draft.tool = started.tool
            _require_no_kernel(started)
            sha256 = hashlib.sha256(content).hexdigest()
            asked = {"command_id": command_id, "offset": offset, "end": end, "sha256": sha256}
            draft.arguments_sha256 = digest_of(asked)
            box = await self._sandboxes.box(info)
            # Nothing is waited for from here until it is recorded.
            info, session = self._sandboxes.get(caller, sandbox_id), self._session(info, session_id)
            draft.about(info, session)
            self._sandboxes.require_running(info)
            draft.input = InputContext(
                command_id=command_id,
                session_id=session.session_id,
                role=caller.role,
                caller=caller.name,
                taint=session.taint,
                workspace_label=info.workspace_label,
                arguments_sha256=draft.arguments_sha256,
            )
            draft.decision = judge_call(draft.input.whole(started.context), self._rulebook.current)
            if draft.decision.outcome is not Outcome.ALLOW:
                raise refusal_of(draft.decision)
            body = InputSent(
                call_id=started.call_id,
                sandbox_id=info.sandbox_id,
                agent_id=info.agent_id,
                session_id=session.session_id,
                caller=caller.name,
                tool=started.tool,
                taint_before=session.taint,
                role=caller.role.value,
                command_id=command_id,
                offset=offset,
                bytes=len(content),
                sha256=sha256,
                end=end,
                input=draft.input,
                decision=draft.decision,
            )
            with self._store.transaction() as connection:
                taint = self._sessions.raise_taint(
                    session.session_id, join(info.workspace_label, draft.decision.label), connection=connection
                )
                if started.session_id != session.session_id:
                    self._sessions.raise_taint(started.session_id, taint, connection=connection)
                self._sandboxes.raise_workspace_label(info, taint, connection=connection)
                self._ledger.append("call.input", started.call_id, body, connection=connection)
        except ColdframeError as error:
            await self._refuse(draft, error)
            raise
        await self._taints.settle(info)
        return info, box

    def _command(self, info: SandboxInfo, command_id: str) -> CallStarted:
        """The start of a command of the sandbox. Raises NotFound."""
        entry = self._ledger.course(ids_of(command_id).call_id).get("call.started")
        started = None if entry is None else CallStarted.model_validate(entry.body)
        if started is None or (started.command_id, started.sandbox_id) != (command_id, info.sandbox_id):
            raise NotFound(f"no command `{command_id[:80]}`", command_id=command_id[:80])
        return started

    async def _find_box(self, info: SandboxInfo, spec: ToolSpec, seen: View | None) -> Box:
        if seen is not None:
            return seen.box
        return await (self._sandboxes.box(info) if spec.writes else self._sandboxes.files(info))

    async def _find_runtime(self, draft: Draft, info: SandboxInfo, session: SessionInfo, box: Box) -> None:
        """Look up the program of a runtime that the call names, for the record; of one that is allowed at all.

        Kept as long as it runs, where its system files do not change meanwhile.
        """
        name = draft.facts.runtime
        if name is None or judge_call(self._context(draft, info, session), self._rulebook.current).outcome is not (
            Outcome.ALLOW
        ):
            return
        since, runtimes = self._runtimes.get(info.sandbox_id, (None, {}))
        if since != info.state.since or info.spec.profile == "computer":
            answer = await box.ask(ListRuntimes())
            runtimes = {one.name: one for one in answer.runtimes if one.present}
            keep_latest(self._runtimes, info.sandbox_id, (info.state.since, runtimes), MOST_RUNTIMES)
        found = runtimes.get(name)
        if found is not None:
            draft.facts = draft.facts._replace(runtime_path=found.path, runtime_version=found.version)

    def _judge_and_start(
        self,
        draft: Draft,
        spec: ToolSpec,
        checked: Arguments,
        box: Box,
        session_id: str | None,
        key: str | None,
        request: str,
        seen: View | None,
    ) -> Flight:
        info = self._sandboxes.get(draft.caller, draft.subject.sandbox_id)
        session = self._session(info, session_id)
        draft.about(info, session)
        if spec.writes:
            self._sandboxes.require_running(info)
        elif seen is None:
            self._sandboxes.require_readable(info)
        else:
            info = info.model_copy(update={"workspace_label": join(info.workspace_label, seen.label)})
            draft.snapshot_ids = seen.snapshot_ids
        rules = self._rulebook.current
        draft.context = self._context(draft, info, session)
        draft.decision = judge_call(draft.context, rules)
        if draft.decision.outcome is not Outcome.ALLOW:
            raise refusal_of(draft.decision)
        return self._start(draft, draft.context, draft.decision, info, spec, checked, rules, box, key, request)

    def _session(self, info: SandboxInfo, session_id: str | None) -> SessionInfo:
        if session_id is None:
            return self._sandboxes.session(info)
        session = self._sessions.get(session_id)
        if session.sandbox_id != info.sandbox_id:
            raise NotFound(f"no session `{session_id[:80]}` of this sandbox", session_id=session_id[:80])
        if session.closed_at is not None and info.state.state not in ENDED:
            raise WrongState(
                f"session `{session_id}` is closed",
                hint="leave the session out to use the one of the sandbox",
                session_id=session_id,
            )
        return session

    def _context(self, draft: Draft, info: SandboxInfo, session: SessionInfo) -> CallContext:
        try:
            return build_context(
                draft.caller,
                info,
                session.session_id,
                session.taint,
                draft.tool,
                draft.facts,
                draft.arguments_sha256,
            )
        except Exception as error:  # a command that cannot be read cannot be judged
            raise PolicyUnavailable(f"the command could not be read: {type(error).__name__}") from error

    def _start(
        self,
        draft: Draft,
        context: CallContext,
        decision: Decision,
        info: SandboxInfo,
        spec: ToolSpec,
        checked: Arguments,
        rules: RuleSet,
        box: Box,
        key: str | None,
        request: str,
    ) -> Flight:
        body = started_record(draft.ids, draft.caller, context, decision, draft.subject, draft.facts, info, key)
        if draft.snapshot_ids:
            body = body.model_copy(update={"snapshot_ids": draft.snapshot_ids})
        # What ended before is to be seen by what runs now, also in the history, so that nothing else may wait with it.
        may_wait = spec.name in ONLY_READ and not spec.writes and self._store.is_settled
        lost: list[bool] = []
        with self._store.transaction(may_wait=may_wait) as connection:
            taint = self._sessions.raise_taint(
                draft.subject.session_id, join(info.workspace_label, decision.label), connection=connection
            )
            if spec.writes:
                self._sandboxes.raise_workspace_label(info, taint, connection=connection)
            entry = self._ledger.append(
                "call.started", draft.ids.call_id, body, connection=connection, may_be_lost=may_wait
            )
            self._history.keep_position()
            if key is not None:
                self._keyed.open(draft.caller.token_id, key, request, draft.ids.call_id, connection=connection)
            if may_wait:
                self._store.after(_ignore, lambda: None, lambda: lost.append(True))
        if not self._store.is_settled:
            self._history.show_soon()  # and is committed by that, should it take long
        return Flight(
            ids=draft.ids,
            started=body,
            started_seq=entry.seq,
            started_at=entry.at,
            info=info,
            spec=spec,
            arguments=checked,
            facts=draft.facts,
            rules=rules,
            decision=decision,
            box=box,
            taint=taint,
            lost=lost,
        )

    async def _refuse(self, draft: Draft, error: ColdframeError) -> None:
        """Record a refusal and put where it is recorded among its facts. Raises LedgerUnavailable if it cannot."""
        body = refused_record(
            draft.ids,
            draft.caller,
            draft.tool,
            draft.subject,
            error,
            draft.facts,
            draft.arguments_sha256,
            draft.context,
            draft.decision,
        ).model_copy(update={"input": draft.input})
        with self._store.transaction() as connection:
            entry = self._ledger.append("call.refused", draft.ids.call_id, body, connection=connection)
            self._history.note(entry, None)
        error.facts.update(call_id=draft.ids.call_id, seq=entry.seq)
        if draft.decision is not None:
            error.facts["rule"] = draft.decision.rule_id
        await show(self._history)

    async def _same_call(
        self, caller: Caller, info: SandboxInfo, spec: ToolSpec, checked: Arguments, key: str | None, request: str
    ) -> Flight | ToolResult | Known | None:
        known = None if key is None else self._keyed.find(caller.token_id, key, request)
        if known is None:
            return None
        flight = self._flights.get(known.call_id)
        if flight is not None and not flight.recovered:
            return flight
        if flight is not None and known.result is None:
            # It goes on after a restart with what the ledger has of its arguments, which does not make the same answer.
            try:
                await flight.landed()
            except ColdframeError as error:
                return Known(error)
            known = self._keyed.find(caller.token_id, key or "", request) or known
        if known.result is None:
            result = self._recorded(info, spec, known.call_id)
            if result is None:
                return Known(
                    HostUnreachable(f"the outcome of call `{known.call_id}` is not known yet", call_id=known.call_id)
                )
        elif "tool" not in known.result:
            return Known(from_wire(known.result["error"]))
        else:
            result = ToolResult.model_validate(known.result)
            if result.error is not None or result.value.get("state") != "ended":
                return result
        try:
            ran = await spec.run(
                ToolCall(
                    arguments=checked,
                    box=PastBox(self._sandboxes, info),
                    spec=info.spec,
                    command_id=ids_of(known.call_id).command_id,
                    attach=True,
                    keep_output=True,
                    emit=_ignore,
                    content=None,
                    answer_early=_ignore,
                    outputs=self._outputs_of(known.call_id),
                )
            )
        except NotFound:
            call_id, receipt_id = known.call_id, ids_of(known.call_id).receipt_id
            look = next_action("receipt.get", "has the digests of what there was", receipt_id=receipt_id)
            return Known(
                ResultExpired(
                    f"what call `{call_id}` came to was kept for its time",
                    next_actions=[look],
                    call_id=call_id,
                    receipt_id=receipt_id,
                )
            )
        return result.model_copy(update={"value": ran.answer.model_dump(mode="json")})

    def _outputs_of(self, call_id: str) -> DeclaredOutputs | None:
        """As they were found at its end."""
        end = self._ledger.course(call_id).get("call.ended")
        return None if end is None else CallEnded.model_validate(end.body).outputs

    def _recorded(self, info: SandboxInfo, spec: ToolSpec, call_id: str) -> ToolResult | None:
        """The result of a command as the ledger has it, but for its value, which the box keeps; None if it has not ended."""
        entries = self._ledger.course(call_id)
        if "call.started" not in entries or "call.ended" not in entries:
            return None
        started = CallStarted.model_validate(entries["call.started"].body)
        ended = CallEnded.model_validate(entries["call.ended"].body)
        measured = self._ledger.last(
            info.sandbox_id, "sandbox.created", "isolation.changed", before=entries["call.started"].seq
        )
        if ended.command_id is None or ended.decision is None or ended.decision.outcome is not Outcome.ALLOW:
            return None  # its outcome stands beside the key; without that nothing is given away
        return ToolResult(
            call_id=call_id,
            tool=spec.name,
            sandbox_id=started.sandbox_id,
            session_id=started.session_id,
            label=ended.label,
            label_reason=ended.label_reason,
            taint=ended.taint_after,
            decision=started.decision.outcome,
            rule_id=started.decision.rule_id,
            value={},
            error=None,
            degraded=info.degraded if measured is None else tuple(measured.body["degraded"]),
            receipt_id=ids_of(call_id).receipt_id,
        )


def _require_no_kernel(started: CallStarted) -> None:
    """What a kernel gets are cells, which are judged as code; by its input they would pass that. Raises WrongState."""
    if keeps_kernel(started.argv):
        raise WrongState(
            f"command `{started.command_id}` is the kernel of a context, and takes cells alone",
            hint="send code to its context with `run_code`, and what a cell needs to read as a file",
            command_id=started.command_id,
        )


def _ignore(_: object) -> None:
    """For a call that is only looked at again."""
