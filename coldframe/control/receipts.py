"""Receipts: the record of one act, put together from its two ledger entries.

Nothing of a receipt comes from inside the box except digests that the host took, and nothing is stored twice:
the ledger is the record, this is its readable form for one call.
"""

from coldframe.contract.caller import Caller
from coldframe.contract.errors import DeniedByRule, NotFound, WrongState
from coldframe.contract.ledger import CallEnded, CallStarted, StreamDigest
from coldframe.contract.policy import Decision, Outcome, Role
from coldframe.contract.receipt import Receipt, ReceiptDecision, ReceiptOutput
from coldframe.control.call_records import ids_of
from coldframe.control.judgement import digest_of
from coldframe.control.ledger import Ledger
from coldframe.control.rights import require
from coldframe.control.sandboxes import Sandboxes


class Receipts:
    def __init__(self, ledger: Ledger, sandboxes: Sandboxes) -> None:
        self._ledger = ledger
        self._sandboxes = sandboxes

    def get(self, caller: Caller, receipt_id: str) -> Receipt:
        """Return the receipt of one call that ran.

        Raises:
            GrantMissing, NotFound: not the caller's to see, or there is none.
            DeniedByRule: a rule withheld the result, and the caller is neither owner nor admin.
            WrongState: the call has not ended, or was interrupted so that nothing certain can be said.
        """
        require(caller, "receipt.read")
        ids = ids_of(receipt_id)
        entries = self._ledger.course(ids.call_id)
        begin, end = entries.get("call.started"), entries.get("call.ended")
        if begin is None or ids.receipt_id != receipt_id:
            raise NotFound(f"no receipt `{receipt_id[:80]}`", receipt_id=receipt_id[:80])
        self._sandboxes.get(caller, str(begin.body["sandbox_id"]))
        if end is None:
            raise WrongState(
                f"call `{ids.call_id}` {'was interrupted' if 'call.interrupted' in entries else 'has not ended yet'}",
                call_id=ids.call_id,
            )
        started, ended = CallStarted.model_validate(begin.body), CallEnded.model_validate(end.body)
        withheld = ended.decision is None or ended.decision.outcome is not Outcome.ALLOW
        if withheld and caller.role not in (Role.OWNER, Role.ADMIN):
            # It names files and endpoints, which are judged with the output.
            raise DeniedByRule(f"the result of call `{ids.call_id}` was withheld", call_id=ids.call_id)
        contract = self._ledger.last(started.sandbox_id, "contract.issued", before=begin.seq)
        measured = self._ledger.last(started.sandbox_id, "sandbox.created", "isolation.changed", before=begin.seq)
        previous = self._ledger.last(started.sandbox_id, "call.ended", before=end.seq)
        receipt = Receipt(
            receipt_id=ids.receipt_id,
            call_id=ids.call_id,
            sandbox_id=started.sandbox_id,
            session_id=started.session_id,
            agent_id=started.agent_id,
            caller=started.caller,
            role=started.role,
            tool=started.tool,
            previous_receipt_id=None if previous is None else ids_of(previous.subject).receipt_id,
            contract_version=None if contract is None else contract.body["version"],
            contract_sha256=None if contract is None else contract.body["sha256"],
            command=started.command,
            argv=started.argv,
            cwd=started.cwd,
            runtime=started.runtime,
            arguments_sha256=started.arguments_sha256,
            degraded=tuple(measured.body["degraded"]) if measured is not None else (),
            inputs=started.inputs,
            decision=_decision(begin.seq, started.decision),
            result_decision=None if ended.decision is None else _decision(end.seq, ended.decision),
            started_at=ended.started_at,
            ended_at=ended.ended_at,
            duration_us=ended.duration_us,
            cpu_us=ended.cpu_us,
            peak_memory_bytes=ended.peak_memory_bytes,
            ended=ended.ended,
            exit_code=ended.exit_code,
            signal=ended.signal,
            error_code=ended.error_code,
            out_of_memory=ended.out_of_memory,
            limit=ended.limit,
            stdout=ended.stdout,
            stderr=ended.stderr,
            files=ended.files,
            outputs=_outputs(ended),
            declared_outputs=ended.outputs,
            endpoints=ended.endpoints,
            dependencies=ended.dependencies,
            dependencies_omitted=ended.dependencies_omitted,
            tree_sha256_before=None if ended.files is None else ended.files.tree_sha256_before,
            tree_sha256_after=None if ended.files is None else ended.files.tree_sha256_after,
            label=ended.label,
            taint_before=started.taint_before,
            taint_after=ended.taint_after,
            ledger_seqs=(begin.seq, end.seq),
        )
        return receipt.model_copy(update={"digest": receipt_digest(receipt)})


def receipt_digest(receipt: Receipt) -> str:
    """Return the SHA-256 that `digest` must equal."""
    return digest_of(receipt.model_dump(mode="json", exclude={"digest"}))


def _decision(seq: int, decision: Decision) -> ReceiptDecision:
    return ReceiptDecision(
        ledger_seq=seq,
        outcome=decision.outcome,
        rule_id=decision.rule_id,
        rules_sha256=decision.rules_sha256,
        context_sha256=decision.context_sha256,
    )


def _outputs(ended: CallEnded) -> tuple[ReceiptOutput, ...]:
    streams: list[tuple[str, StreamDigest | None]] = [("stdout", ended.stdout), ("stderr", ended.stderr)]
    found = [
        ReceiptOutput(name=name, kind="stream", bytes=digest.bytes, sha256=digest.sha256)
        for name, digest in streams
        if digest is not None
    ]
    for change in ended.files.changes if ended.files is not None else ():
        found.append(
            ReceiptOutput(
                name=change.path, kind=change.change, sha256_before=change.sha256_before, sha256=change.sha256_after
            )
        )
    return tuple(found)
