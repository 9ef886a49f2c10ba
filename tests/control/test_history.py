"""Held here: `.exec_history` shows one whole JSON line for each attempt, in order, to its own agent only."""

import asyncio
import json
from collections.abc import Coroutine, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest

from coldframe.contract.errors import HostUnreachable, NotFound
from coldframe.contract.ledger import CallEnded, CallInterrupted, CallRefused, CallStarted, LedgerEntry, StreamDigest
from coldframe.contract.policy import CallContext, Decision, Hook, Label, Outcome, Role
from coldframe.control.history import History, history_line
from coldframe.control.ledger import Ledger
from coldframe.control.store import Store
from tests.fakes.files import sha256
from tests.fakes.host import FakeHost

START = datetime(2026, 5, 4, tzinfo=UTC)
REQUIRED = {
    "sequence", "started_at", "ended_at", "agent", "session", "caller", "tool", "command", "argv", "cwd", "runtime",
    "decision", "rule", "approval_id", "exit_code", "signal", "duration_us", "cpu_us", "peak_memory_bytes",
    "disk_change_bytes", "stdout_bytes", "stdout_sha256", "stderr_bytes", "stderr_sha256", "endpoints",
    "taint_before", "taint_after", "lineage_ids", "previous_hash", "hash",
}  # fmt: skip


class Desk:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = Store(str(root / "control.db"))
        self.ledger = Ledger(self.store, str(root / "ledger"), lambda: datetime.now(UTC))
        self.host = FakeHost(str(root))
        self.history = History(self.store, self.ledger, self.host)
        self.calls = 0
        if not self.ledger.entries(limit=1):
            for sandbox_id, agent_id, session_id in (
                ("sbx_a", "alpha", "ses_a"),
                ("sbx_b", "beta", "ses_b"),
                ("sbx_g", None, "ses_g"),
            ):
                body = {"sandbox_id": sandbox_id, "agent_id": agent_id, "session_id": session_id}
                self.ledger.append("sandbox.created", sandbox_id, body)

    def record(self, sandbox_id: str, agent_id: str | None) -> dict[str, Any]:
        self.calls += 1
        return {
            "call_id": f"call_{self.calls}",
            "sandbox_id": sandbox_id,
            "agent_id": agent_id,
            "session_id": f"ses_{sandbox_id[-1]}",
            "caller": "rest:tok_1",
            "tool": "run_command",
            "taint_before": Label.PUBLIC,
        }

    def start(
        self, record: dict[str, Any], *, command: str = "make test", approval_id: str | None = None
    ) -> LedgerEntry:
        started = CallStarted(
            **record,
            role="member",
            command=command,
            cwd="skills/x",
            runtime="bash",
            command_id="cmd_1",
            arguments_sha256=sha256(b""),
            approval_id=approval_id,
            context=context(record, command),
            decision=decision(Outcome.ALLOW),
        )
        return self.ledger.append("call.started", started.call_id, started.model_dump(mode="json"))

    def end_noted(self, entry: LedgerEntry, *, may_wait: bool = False, **more: Any) -> LedgerEntry:
        """As the gate does it."""
        with self.store.transaction(may_wait=may_wait):
            ended = self.end(entry, **more)
            self.history.note(ended, CallStarted.model_validate(entry.body))
        return ended

    def end(self, entry: LedgerEntry, **more: Any) -> LedgerEntry:
        fields: dict[str, Any] = {
            "ended": "exited", "exit_code": 0, "started_at": START, "ended_at": START, "duration_us": 1500,
            "cpu_us": 900, "peak_memory_bytes": 4096, "disk_change_bytes": -12,
            "stdout": StreamDigest(bytes=3, sha256=sha256(b"abc")), "stderr": StreamDigest(bytes=0, sha256=sha256(b"")),
            "endpoints": ("tcp:203.0.113.9:443:refused",), "label": Label.INTERNAL, "label_reason": "a rule",
            "taint_after": Label.INTERNAL,
        }  # fmt: skip
        record = {name: entry.body[name] for name in CORE}
        ended = CallEnded(**record, started_seq=entry.seq, **{**fields, **more})
        return self.ledger.append("call.ended", entry.subject, ended.model_dump(mode="json"))

    def refuse(
        self, record: dict[str, Any], outcome: Literal["denied", "pending"] = "denied", **more: Any
    ) -> LedgerEntry:
        refused = CallRefused(
            **record,
            outcome=outcome,
            code="DENIED_BY_RULE",
            reason="on the deny list",
            role="member",
            command="rm -rf /",
            arguments_sha256=sha256(b""),
            decision=decision(Outcome.DENY),
            **more,
        )
        return self.ledger.append("call.refused", refused.call_id, refused.model_dump(mode="json"))

    def lines(self, *place: str) -> list[dict[str, Any]]:
        path = self.root.joinpath(*place, ".exec_history", "history.jsonl")
        return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []

    def close(self) -> None:
        self.ledger.close()
        self.store.close()


CORE = ("call_id", "sandbox_id", "agent_id", "session_id", "caller", "tool", "taint_before")


def context(record: dict[str, Any], command: str) -> CallContext:
    kept = {name: record[name] for name in ("sandbox_id", "session_id", "caller", "tool")}
    return CallContext(
        **kept,
        agent_id=record["agent_id"] or "",
        role=Role.MEMBER,
        profile="exec",
        taint=Label.PUBLIC,
        workspace_label=Label.PUBLIC,
        command=command,
        shell=True,
    )


def decision(outcome: Outcome) -> Decision:
    return Decision(
        hook=Hook.PRE_TOOL_CALL,
        outcome=outcome,
        rule_id="rule-7",
        reason="because",
        rules_sha256=sha256(b"rules"),
        context_sha256=sha256(b"context"),
    )


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    opened = Desk(tmp_path)
    yield opened
    opened.close()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


@pytest.mark.req("T1.85")
def test_every_kind_of_attempt_gives_one_line_with_every_field(desk: Desk) -> None:
    desk.end(desk.start(desk.record("sbx_a", "alpha")))
    desk.refuse(desk.record("sbx_a", "alpha"))
    desk.refuse(desk.record("sbx_a", "alpha"), "pending")
    desk.end(desk.start(desk.record("sbx_a", "alpha")), ended="timed_out", exit_code=137, signal=9)
    desk.end(desk.start(desk.record("sbx_a", "alpha")), ended="signalled", exit_code=143, signal=15)
    desk.end(desk.start(desk.record("sbx_a", "alpha"), approval_id="apr_1"))
    started = desk.start(desk.record("sbx_a", "alpha"))
    record = {name: started.body[name] for name in CORE}
    stopped = CallInterrupted(**record, started_seq=started.seq, reason="the server stopped", taint_after=Label.PUBLIC)
    desk.ledger.append("call.interrupted", started.subject, stopped.model_dump(mode="json"))
    run(desk.history.catch_up())

    lines = desk.lines("workspace", "alpha")
    assert [line["attempt"] for line in lines] == [
        "allowed", "denied", "pending", "timed_out", "killed", "approved", "interrupted",
    ]  # fmt: skip
    assert all(line.keys() >= REQUIRED for line in lines)
    by_seq = {entry.seq: entry for entry in desk.ledger.entries()}
    for line in lines:
        entry = by_seq[line["sequence"]]
        assert (line["hash"], line["previous_hash"]) == (entry.hash, entry.previous)
    whole = lines[0]
    assert (whole["command"], whole["cwd"], whole["rule"], whole["decision"]) == (
        "make test",
        "skills/x",
        "rule-7",
        "allow",
    )
    assert (whole["duration_us"], whole["cpu_us"], whole["disk_change_bytes"]) == (1500, 900, -12)
    assert (whole["stdout_bytes"], whole["stdout_sha256"]) == (3, sha256(b"abc"))
    assert (whole["taint_before"], whole["taint_after"]) == ("PUBLIC", "INTERNAL")
    assert whole["endpoints"] == ["tcp:203.0.113.9:443:refused"]
    assert lines[1]["decision"] == "deny"
    assert lines[5]["approval_id"] == "apr_1"


def test_nothing_that_an_agent_chooses_begins_a_line_of_its_own(desk: Desk) -> None:
    forged = 'echo a\n{"sequence":1,"attempt":"allowed"}\r\n\u2028\x85'
    desk.end(desk.start(desk.record("sbx_a", "alpha"), command=forged))
    run(desk.history.catch_up())
    path = desk.root / "workspace" / "alpha" / ".exec_history" / "history.jsonl"
    assert len(path.read_bytes().splitlines()) == len(path.read_text().splitlines()) == 1
    assert desk.lines("workspace", "alpha")[0]["command"] == forged


@pytest.mark.req("T1.85")
def test_each_agent_sees_its_own_attempts_only(desk: Desk) -> None:
    desk.end(desk.start(desk.record("sbx_a", "alpha")))
    desk.end(desk.start(desk.record("sbx_b", "beta")))
    desk.end(desk.start(desk.record("sbx_g", None)))
    desk.refuse(desk.record("sbx_b", "alpha"))  # Alpha tried Beta's sandbox.
    desk.refuse(desk.record("sbx_unknown", "alpha"))
    run(desk.history.catch_up())
    assert [line["agent"] for line in desk.lines("workspace", "alpha")] == ["alpha"]
    assert [line["agent"] for line in desk.lines("workspace", "beta")] == ["beta"]
    assert [line["sandbox"] for line in desk.lines("background", "ses_g")] == ["sbx_g"]


def test_everything_that_has_ended_is_shown_in_order_and_once_whoever_asks(desk: Desk) -> None:
    async def scene() -> list[int]:
        seqs = [desk.end(desk.start(desk.record("sbx_a", "alpha"))).seq for _ in range(5)]
        await asyncio.gather(*(desk.history.show() for _ in range(5)))
        seqs.extend(desk.end_noted(desk.start(desk.record("sbx_a", "alpha"))).seq for _ in range(5))
        await asyncio.gather(*(desk.history.show() for _ in range(5)))
        return seqs

    seqs = run(scene())
    assert [line["sequence"] for line in desk.lines("workspace", "alpha")] == seqs


@pytest.mark.parametrize("noted", [False, True])
def test_a_line_is_the_same_whether_it_was_noted_or_read_again(desk: Desk, *, noted: bool) -> None:
    run(desk.history.catch_up())
    end = desk.end_noted if noted else desk.end
    ended = end(desk.start(desk.record("sbx_a", "alpha"), approval_id="apr_1"), ended="signalled", signal=15)
    run(desk.history.show() if noted else desk.history.catch_up())
    started = desk.ledger.entry(ended.body["started_seq"])
    read_again = desk.ledger.entry(ended.seq)
    assert started is not None
    assert read_again is not None
    wanted = history_line(read_again, CallStarted.model_validate(started.body))
    assert desk.lines("workspace", "alpha") == [json.loads(wanted)]


@pytest.mark.req("T1.87")
def test_what_was_not_shown_before_a_restart_is_shown_after_it(desk: Desk, tmp_path: Path) -> None:
    first = desk.end(desk.start(desk.record("sbx_a", "alpha")))
    run(desk.history.show())
    desk.host.unreachable = HostUnreachable("the host daemon does not answer")
    second = desk.end_noted(desk.start(desk.record("sbx_a", "alpha")))
    with pytest.raises(HostUnreachable):
        run(desk.history.show())
    desk.close()
    desk.__init__(tmp_path)  # type: ignore[misc]
    run(desk.history.catch_up())
    assert [line["sequence"] for line in desk.lines("workspace", "alpha")] == [first.seq, second.seq]
    run(desk.history.catch_up())
    assert len(desk.lines("workspace", "alpha")) == 2


@pytest.mark.req("T1.87")
def test_what_was_shown_before_a_crash_is_not_shown_twice(desk: Desk, tmp_path: Path) -> None:
    run(desk.history.catch_up())
    seqs = [desk.end_noted(desk.start(desk.record("sbx_a", "alpha"))).seq for _ in range(10)]
    run(desk.history.show())
    desk.close()  # how far it came was not recorded
    desk.__init__(tmp_path)  # type: ignore[misc]
    seqs.append(desk.end(desk.start(desk.record("sbx_a", "alpha"))).seq)
    run(desk.history.catch_up())
    assert [line["sequence"] for line in desk.lines("workspace", "alpha")] == seqs


def test_what_an_earlier_agent_of_that_id_did_is_not_shown_to_the_next(desk: Desk) -> None:
    desk.end(desk.start(desk.record("sbx_a", "alpha")))
    desk.ledger.append("agent.created", "alpha", {"agent_id": "alpha", "generation": 2})
    run(desk.history.catch_up())
    assert desk.lines("workspace", "alpha") == []


@pytest.mark.parametrize("last", ["agent.deletion_started", "agent.created"])
def test_what_ended_is_not_shown_to_the_next_agent_of_that_id_that_was_made_meanwhile(desk: Desk, last: str) -> None:
    run(desk.history.catch_up())
    append = desk.host.append_history

    async def slowly(owner: str, session_id: str | None, lines: bytes) -> None:
        if owner == "alpha":  # while its lines are waited for, Beta is deleted, and perhaps made again
            for kind in ("agent.deletion_started", "agent.deleted", "agent.created"):
                desk.ledger.append(kind, "beta", {"agent_id": "beta"})
                if kind == last:
                    break
        await append(owner, session_id, lines)

    desk.host.append_history = slowly  # type: ignore[method-assign]
    first = desk.end_noted(desk.start(desk.record("sbx_a", "alpha")))
    desk.end_noted(desk.start(desk.record("sbx_b", "beta")))
    desk.ledger.append("sandbox.terminated", "sbx_b", {"sandbox_id": "sbx_b", "agent_id": "beta"})
    run(desk.history.show())
    assert [line["sequence"] for line in desk.lines("workspace", "alpha")] == [first.seq]
    assert desk.lines("workspace", "beta") == []


def test_places_are_kept_of_the_latest_sandboxes_and_found_again_of_others(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coldframe.control.history.MOST_HOMES", 1)
    for sandbox_id, agent_id in 2 * (("sbx_a", "alpha"), ("sbx_b", "beta")):
        desk.end(desk.start(desk.record(sandbox_id, agent_id)))
    desk.ledger.append("agent.created", "beta", {"agent_id": "beta", "generation": 2})
    run(desk.history.catch_up())
    assert len(desk.lines("workspace", "alpha")) == 2
    assert desk.lines("workspace", "beta") == []
    assert len(desk.history._homes) == 1


def test_what_was_given_while_a_transaction_failed_is_not_given_again(desk: Desk) -> None:
    run(desk.history.catch_up())
    given: list[bytes] = []

    async def while_another_fails(owner: str, session_id: str | None, lines: bytes) -> None:
        given.append(lines)
        if len(given) == 1:
            started = desk.start(desk.record("sbx_b", "beta"))
            with pytest.raises(ZeroDivisionError), desk.store.transaction():
                desk.end_noted(started)
                _ = 1 // 0

    desk.host.append_history = while_another_fails  # type: ignore[method-assign]
    first = desk.end_noted(desk.start(desk.record("sbx_a", "alpha")))
    run(desk.history.show())
    second = desk.end_noted(desk.start(desk.record("sbx_a", "alpha")))
    run(desk.history.show())
    assert [json.loads(lines)["sequence"] for lines in given] == [first.seq, second.seq]


def test_what_is_not_committed_is_not_shown(desk: Desk) -> None:
    run(desk.history.catch_up())
    started = desk.start(desk.record("sbx_a", "alpha"))
    ended = desk.end_noted(started, may_wait=True)
    run(desk.history.show())
    assert desk.lines("workspace", "alpha") == []
    desk.store.settle()
    run(desk.history.show())
    assert [line["sequence"] for line in desk.lines("workspace", "alpha")] == [ended.seq]


def test_an_end_whose_transaction_was_undone_is_not_shown_and_nothing_else_is_lost(desk: Desk) -> None:
    run(desk.history.catch_up())
    first = desk.end_noted(desk.start(desk.record("sbx_a", "alpha")))
    started = desk.start(desk.record("sbx_a", "alpha"))
    with pytest.raises(ZeroDivisionError), desk.store.transaction():
        desk.end_noted(started)
        _ = 1 // 0
    again = desk.end_noted(started)
    run(desk.history.show())
    assert [line["sequence"] for line in desk.lines("workspace", "alpha")] == [first.seq, again.seq]


def test_a_workspace_that_is_gone_does_not_hold_up_the_others(desk: Desk) -> None:
    append = desk.host.append_history

    async def gone(owner: str, session_id: str | None, lines: bytes) -> None:
        if owner == "alpha":
            raise NotFound("no workspace `alpha`")
        await append(owner, session_id, lines)

    desk.host.append_history = gone  # type: ignore[method-assign]
    desk.end(desk.start(desk.record("sbx_a", "alpha")))
    desk.end(desk.start(desk.record("sbx_b", "beta")))
    run(desk.history.catch_up())
    assert len(desk.lines("workspace", "beta")) == 1
