"""How a call comes to its end: the result is judged, labelled, recorded and shown in the history, in this order.

The end of a command that was let through and changed no label is recorded in a transaction that is put off: the box
keeps the result, and after a crash the gate makes the same record from it, under the same rules. Everything else is
committed before its result is delivered, of a call that only reads its start as well.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

from coldframe.contract.errors import (
    ColdframeError,
    GuestLost,
    HostUnreachable,
    LedgerUnavailable,
    PolicyUnavailable,
)
from coldframe.contract.ledger import CallStarted, LedgerEntry, Shown
from coldframe.contract.policy import Decision, Label, Outcome, ResultContext
from coldframe.contract.tool import ToolResult
from coldframe.control.call_records import ended_record, endpoint, interrupted_record
from coldframe.control.flights import Flight
from coldframe.control.history import History
from coldframe.control.judged_outputs import JudgedOutputs
from coldframe.control.judgement import (
    judge_result,
    judges_output,
    refusal_of,
)
from coldframe.control.keyed_calls import KeyedCalls
from coldframe.control.ledger import Ledger
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.sessions import Sessions
from coldframe.control.store import Store
from coldframe.control.taints import Taints
from coldframe.policy.labels import join
from coldframe.tools.registry import Answer, Ran

_log = logging.getLogger("coldframe.gate")
DIGESTED_AT_ONCE_BYTES = 1024**2
"""Of what a tool shows: more is digested in a thread, while others are served."""


class Landing:
    """Brings calls to their end. What it returns is what the caller gets."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        sandboxes: Sandboxes,
        sessions: Sessions,
        taints: Taints,
        history: History,
        keyed: KeyedCalls,
        judged: JudgedOutputs,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._sandboxes = sandboxes
        self._sessions = sessions
        self._taints = taints
        self._history = history
        self._keyed = keyed
        self._judged = judged
        self._clock = clock

    def early(self, flight: Flight, answer: Answer) -> ToolResult:
        """Return the result of a command that goes on in the background. Its own end is recorded later."""
        result = self._result(flight, flight.taint, _reason(flight, None), answer.model_dump(mode="json"), None)
        if flight.started.idempotency_key is None:
            return result
        with self._store.transaction() as connection:
            self._keyed.close(flight.ids.call_id, result.model_dump(mode="json"), connection=connection)
        return result

    async def finish(
        self, flight: Flight, ran: Ran | None, error: ColdframeError | None
    ) -> ToolResult | ColdframeError:
        """Judge, label and record the end of a call; return what its caller gets.

        Raises:
            LedgerUnavailable: it is not recorded, and nothing of it is to be told.
        """
        reads = judges_output(flight.rules, flight.spec.name)
        output = b""
        if reads:
            output = ran.output() if ran is not None else json.dumps(error.to_wire() if error else {}).encode()
        context = _result_context(flight, ran, error, output if reads else None)
        decision: Decision | None = None
        refusal: ColdframeError | None = None
        try:
            decision = judge_result(context, output, flight.rules)
            if decision.outcome is not Outcome.ALLOW:
                refusal = refusal_of(decision)
        except PolicyUnavailable as failure:
            refusal = failure
        shown = await _shown(ran)
        if shown is not None and flight.tell_shown is not None:
            flight.tell_shown(shown)
        ended_at = self._clock()
        key = flight.started.idempotency_key
        found_again = ran is not None and ran.command is not None and error is None and refusal is None
        # A box that could not keep its record says so there.
        is_kept = found_again and ran is not None and ran.command is not None and ran.command.start_error is None
        # What was found of declared outputs the box does not keep.
        may_wait = is_kept and not reads and not flight.started.outputs
        if flight.lost:
            raise LedgerUnavailable("the start of this call could not be recorded", call_id=flight.ids.call_id)
        with self._store.transaction(may_wait=may_wait) as connection:
            info = self._sandboxes.find(flight.info.sandbox_id)
            rules_say = join(flight.decision.label, decision.label if decision is not None else Label.PUBLIC)
            taint = self._sessions.raise_taint(
                flight.started.session_id, join(info.workspace_label, rules_say), connection=connection
            )
            # What a tool of the box shows lies in the workspace: a label on it is the workspace's too.
            left_behind = taint if flight.spec.writes else rules_say
            self._sandboxes.raise_workspace_label(info, left_behind, connection=connection)
            reason = _reason(flight, decision, workspace=info.workspace_label, taint=taint)
            body = ended_record(
                flight.started,
                flight.started_seq,
                flight.started_at,
                ended_at,
                ran,
                error,
                shown,
                taint,
                reason,
                taint,
                context,
                decision,
            )
            if refusal is not None:
                body = body.model_copy(update={"diagnosis": None})  # it quotes the output
            entry = self._ledger.append("call.ended", flight.ids.call_id, body, connection=connection)
            self._history.note(entry, flight.started)
            if reads:
                self._judged.keep(flight.ids.call_id, output, connection=connection)
            if refusal is not None:
                refusal.facts.update(call_id=flight.ids.call_id, seq=entry.seq, ran=True)
                if decision is not None:
                    refusal.facts["rule"] = decision.rule_id
                kept = {"error": refusal.to_wire()}
            else:
                value = {} if ran is None else ran.answer.model_dump(mode="json")
                result = self._result(flight, taint, reason, value, error)
                kept = {} if key is None or found_again else without_output(result).model_dump(mode="json")
            if key is not None and not found_again:
                self._keyed.close(flight.ids.call_id, kept, connection=connection)
        await self._taints.settle(info)
        if self._store.is_settled:
            await show(self._history)
        else:
            self._history.show_soon()
        return refusal if refusal is not None else result

    def _result(
        self, flight: Flight, taint: Label, reason: str, value: dict[str, Any], error: ColdframeError | None
    ) -> ToolResult:
        return ToolResult(
            call_id=flight.ids.call_id,
            tool=flight.spec.name,
            sandbox_id=flight.info.sandbox_id,
            session_id=flight.started.session_id,
            label=taint,
            label_reason=reason,
            taint=taint,
            decision=flight.decision.outcome,
            rule_id=flight.decision.rule_id,
            value=value,
            error=None if error is None else error.to_wire(),
            degraded=flight.info.degraded,
            receipt_id=flight.ids.receipt_id,
        )

    async def interrupt(
        self, entry: LedgerEntry, started: CallStarted, reason: str, *, began: bool = True
    ) -> ColdframeError:
        """Record that the end is not known, and return what whoever asks is told.

        A command that certainly never *began* gives its key back: sent again, it is a new call and runs once. Where its
        sandbox is there no more it would be refused for ever, so that is not advised then.
        """
        error: ColdframeError
        if began:
            error = GuestLost(
                f"call `{started.call_id}` was interrupted: {reason}",
                hint="look at the workspace: the call may have had effects; then use a new key",
                call_id=started.call_id,
            )
        elif self._sandboxes.find(started.sandbox_id).state.state != "running":
            reason = "the sandbox ended before the command had begun"
            error = GuestLost(f"call `{started.call_id}` did nothing: {reason}", call_id=started.call_id)
        else:
            reason = "the command had not begun when server or sandbox ended"
            error = HostUnreachable(
                f"call `{started.call_id}` did nothing: {reason}",
                hint="send it again, under the same idempotency key if it had one",
                call_id=started.call_id,
            )
        with self._store.transaction() as connection:
            taint = self._sessions.get(started.session_id).taint
            body = interrupted_record(started, entry.seq, reason, taint, began=began)
            written = self._ledger.append("call.interrupted", started.call_id, body, connection=connection)
            self._history.note(written, started)
            if started.idempotency_key is not None:
                if began:
                    self._keyed.close(started.call_id, {"error": error.to_wire()}, connection=connection)
                else:
                    self._keyed.forget(started.call_id, connection=connection)
        await show(self._history)
        return error


async def show(history: History) -> None:
    """Show what has ended in `.exec_history`. The ledger is the record: a projection that fails is made up for later."""
    try:
        await history.show()
    except ColdframeError as error:
        _log.warning("history is behind: %s", error.message)


async def _shown(ran: Ran | None) -> Shown | None:
    """The digest of what a tool hands out, for lineage. Of what a command prints it is on record anyway."""
    if ran is None or ran.command is not None or ran.output is bytes:
        return None
    output = ran.output()
    if len(output) > DIGESTED_AT_ONCE_BYTES:
        digest = await asyncio.to_thread(hashlib.sha256, output)
    else:
        digest = hashlib.sha256(output)
    return Shown(bytes=len(output), sha256=digest.hexdigest(), whole=ran.whole)


def _result_context(
    flight: Flight, ran: Ran | None, error: ColdframeError | None, output: bytes | None
) -> ResultContext:
    command = None if ran is None else ran.command
    size = (len(output) if output is not None else 0) if ran is None else ran.output_bytes
    return ResultContext(
        call=flight.started.context,
        failed=error is not None,
        exit_code=None if command is None else command.exit_code,
        signal=None if command is None else command.signal,
        timed_out=command is not None and command.timed_out,
        output_bytes=size,
        output_sha256="" if output is None else hashlib.sha256(output).hexdigest(),
        reached=() if command is None else tuple(endpoint(contact) for contact in command.contacts),
    )


def _reason(
    flight: Flight, decision: Decision | None, *, workspace: Label | None = None, taint: Label | None = None
) -> str:
    """Say which of session, workspace and rules make the label what it is."""
    label = flight.taint if taint is None else taint
    view = flight.info.workspace_label if workspace is None else workspace
    parts = []
    if flight.started.context.taint is label or (label is not view and decision is None):
        parts.append("session")
    if view is label:
        parts.append("workspace")
    for one in (flight.decision, decision):
        verdicts = () if one is None else one.verdicts
        parts.extend(f"rule {verdict.rule_id}" for verdict in verdicts if verdict.label is label)
    return f"{label.value} by {', '.join(dict.fromkeys(parts)) or 'session'}"


def without_output(result: ToolResult) -> ToolResult:
    """Return *result* without the output of a command, for whoever has the chunks or reads them where they are kept."""
    if "transcript" not in result.value:
        return result
    gone = dict.fromkeys(("stdout", "stderr", "stdout_base64", "stderr_base64", "transcript"))
    streamed = {"streamed": True, "complete": False, "truncated": False}
    return result.model_copy(update={"value": {**result.value, **gone, **streamed}})
