"""What is decided and done is recorded in one chain, and what cannot be recorded is refused."""

import hashlib
import json
import sqlite3
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from coldframe.contract.errors import LedgerUnavailable
from coldframe.control.ledger import CHECKPOINT_EVERY, Ledger, export_line
from coldframe.control.open_calls import KEEP_EVERY
from tests.control.keeping import START, Keeping


def test_entries_are_numbered_without_gaps_and_chained(keeping: Keeping) -> None:
    keeping.fill(5)
    entries = keeping.ledger.entries()
    assert [entry.seq for entry in entries] == [1, 2, 3, 4, 5]
    assert entries[0].previous == "0" * 64
    assert [entry.previous for entry in entries[1:]] == [entry.hash for entry in entries[:-1]]


@pytest.mark.req("TP.15")
def test_an_exported_line_without_its_hash_is_what_the_hash_is_taken_over(keeping: Keeping) -> None:
    keeping.ledger.append("policy.changed", "rules", {"note": "line\nbreak, “quotes”, \udcff", "agent_id": "a"})
    keeping.fill(3)
    lines = list(keeping.ledger.export())
    assert len(lines) == 4
    for line in lines:
        fields = json.loads(line)
        stated = fields.pop("hash")
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        assert hashlib.sha256(text.encode()).hexdigest() == stated
    assert b"\n".join(lines).count(b"\n\n") == len(lines) - 1


def test_an_untouched_ledger_is_intact_while_open_and_after_closing(keeping: Keeping) -> None:
    keeping.fill(CHECKPOINT_EVERY * 2 + 10)
    assert keeping.ledger.verify().intact
    keeping.close()
    verdict = keeping.verdict()
    assert (verdict.intact, verdict.entries, verdict.checkpoints) == (True, CHECKPOINT_EVERY * 2 + 10, 3)


def test_a_ledger_without_entries_is_intact(keeping: Keeping) -> None:
    assert keeping.ledger.verify().intact
    keeping.close()
    assert keeping.verdict().intact
    keeping.open()
    assert keeping.ledger.verify().intact


@pytest.mark.req("T1.87")
def test_a_kill_between_commit_and_head_is_no_fault_and_leaves_no_gap(keeping: Keeping) -> None:
    keeping.fill(5)
    keeping.close()
    code = """
import os, sys
from datetime import UTC, datetime
from coldframe.control.checkpoints import Checkpoints
from coldframe.control.ledger import Ledger
from coldframe.control.store import Store
store = Store(sys.argv[1])
ledger = Ledger(store, sys.argv[2], lambda: datetime.now(UTC))
Checkpoints.move = lambda *_: os.kill(os.getpid(), 9)
ledger.append("note", "x", {})
"""
    child = subprocess.run([sys.executable, "-c", code, keeping.database, keeping.marks], check=False)
    assert child.returncode == -9
    assert keeping.verdict().intact
    keeping.open()
    keeping.fill(2)
    assert [entry.seq for entry in keeping.ledger.entries()] == list(range(1, 9))
    assert keeping.ledger.verify().intact
    assert keeping.ledger.entries(kinds=["ledger.fault_found"]) == []


@pytest.mark.req("T1.87")
def test_a_kill_in_the_middle_of_work_leaves_a_whole_chain(keeping: Keeping) -> None:
    keeping.close()
    code = """
import sys
from datetime import UTC, datetime
from coldframe.control.ledger import Ledger
from coldframe.control.store import Store
ledger = Ledger(Store(sys.argv[1]), sys.argv[2], lambda: datetime.now(UTC))
seq = 0
while True:
    seq = ledger.append("note", "x", {"text": "t" * 500}, durable=seq % 50 == 0).seq
    if seq % 100 == 0:
        print(seq, flush=True)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code, keeping.database, keeping.marks], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    told = [int(child.stdout.readline()) for _ in range(10)]
    assert keeping.verdict().intact  # Also beside a server that goes on writing.
    child.kill()
    child.wait()
    child.stdout.close()
    verdict = keeping.verdict()
    assert verdict.intact
    assert verdict.entries == verdict.head_seq >= told[-1]
    keeping.open()


def test_entries_of_a_transaction_that_failed_are_gone_and_leave_no_gap(keeping: Keeping) -> None:
    keeping.fill(2)
    with pytest.raises(ZeroDivisionError), keeping.store.transaction() as connection:
        keeping.ledger.append("note", "lost", {}, connection=connection)
        _ = 1 // 0
    with keeping.store.transaction() as connection:
        keeping.ledger.append("note", "first", {}, connection=connection)
        with pytest.raises(ZeroDivisionError), keeping.store.transaction():
            keeping.ledger.append("note", "lost", {})
            _ = 1 // 0
        keeping.ledger.append("note", "second", {}, connection=connection)
    assert [(entry.seq, entry.subject) for entry in keeping.ledger.entries(after=2)] == [(3, "first"), (4, "second")]
    assert keeping.ledger.verify().intact


def test_a_connection_without_a_transaction_of_this_store_is_our_mistake(keeping: Keeping) -> None:
    with keeping.store.transaction() as connection:
        pass
    with pytest.raises(RuntimeError):
        keeping.ledger.append("note", "x", {}, connection=connection)


@pytest.mark.parametrize("value", [1.5, {"inner": [0.1]}, float("nan"), b"bytes", {1: "number as key"}, {"a", "set"}])
def test_a_body_that_has_no_one_form_is_refused_as_our_mistake(keeping: Keeping, value: Any) -> None:
    with pytest.raises(TypeError):
        keeping.ledger.append("note", "x", {"value": value})
    assert keeping.ledger.entries() == []


def test_times_are_recorded_in_utc_and_a_time_without_zone_is_our_mistake(keeping: Keeping) -> None:
    keeping.clock = lambda: datetime(2026, 1, 2, 3, 0, tzinfo=timezone(timedelta(hours=2)))  # type: ignore[method-assign]
    keeping.ledger._clock = keeping.clock
    entry = keeping.ledger.append("note", "x", {})
    assert json.loads(export_line(entry))["at"] == "2026-01-02T01:00:00.000000Z"
    keeping.ledger._clock = lambda: datetime(2026, 1, 2, 3, 0)
    with pytest.raises(TypeError):
        keeping.ledger.append("note", "x", {})
    keeping.ledger._clock = lambda: START


@pytest.mark.req("T1.86")
@pytest.mark.parametrize(
    "statement", ["UPDATE ledger SET body = '{}'", "DELETE FROM ledger", "DELETE FROM ledger WHERE seq = 2"]
)
def test_the_database_itself_refuses_to_change_entries(keeping: Keeping, statement: str) -> None:
    keeping.fill(3)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        keeping.store.raw.execute(statement)
    assert keeping.ledger.verify().entries == 3


def test_entries_can_be_looked_up_by_what_they_are_about(keeping: Keeping) -> None:
    keeping.fill(9)
    keeping.ledger.append("agent.created", "alpha", {"agent_id": "alpha"})

    def seqs(**query: Any) -> list[int]:
        return [entry.seq for entry in keeping.ledger.entries(**query)]

    assert seqs(sandbox_id="sbx_1") == [2, 5, 8]
    assert seqs(sandbox_id="sbx_1", after=2, limit=1) == [5]
    assert seqs(subject="call_3") == [4]
    assert seqs(subject="alpha") == seqs(agent_id="alpha") == seqs(kinds=["agent.created"]) == [10]
    assert seqs(call_id="call_8") == [9]
    assert seqs(kinds=["agent.created", "call.started"], limit=100) == list(range(1, 11))
    assert seqs(subject="no such") == seqs(limit=0) == []


def test_what_is_about_one_sandbox_is_found_without_reading_what_is_about_others(keeping: Keeping) -> None:
    """The first command of each new sandbox asks."""

    def steps() -> int:
        counted = 0

        def count() -> int:
            nonlocal counted
            counted += 1
            return 0

        keeping.store.raw.set_progress_handler(count, 1)
        found = keeping.ledger.entries(kinds=("sandbox.created",), subject="sbx_last", limit=1)
        keeping.store.raw.set_progress_handler(None, 1)
        assert [entry.subject for entry in found] == ["sbx_last"]
        return counted

    def add(*names: str) -> None:
        with keeping.store.transaction() as connection:
            for name in names:
                keeping.ledger.append("sandbox.created", name, {"sandbox_id": name}, connection=connection)

    add("sbx_first", "sbx_last")
    before = steps()
    add(*(f"sbx_{number}" for number in range(500)))
    assert steps() < 2 * before


@pytest.mark.req("T1.87")
def test_calls_that_were_under_way_are_listed(keeping: Keeping) -> None:
    for call, ending in (("a", "call.ended"), ("b", None), ("c", "call.interrupted"), ("d", None)):
        keeping.ledger.append("call.started", call, {"call_id": call})
        if ending is not None:
            keeping.ledger.append(ending, call, {"call_id": call})
    assert [entry.subject for entry in keeping.ledger.open_calls()] == ["b", "d"]


@pytest.mark.req("T1.87")
def test_calls_that_were_under_way_are_found_without_reading_what_has_ended(keeping: Keeping) -> None:
    def call(name: str, *kinds: str) -> None:
        for kind in kinds:
            keeping.ledger.append(f"call.{kind}", name, {"call_id": name})

    def steps() -> tuple[int, list[str]]:
        counted = 0

        def count() -> int:
            nonlocal counted
            counted += 1
            return 0

        keeping.close()
        keeping.open()
        keeping.store.raw.set_progress_handler(count, 1)
        found = keeping.ledger.open_calls()
        keeping.store.raw.set_progress_handler(None, 1)
        return counted, [entry.subject for entry in found]

    call("stays", "started")
    call("ends later", "started")
    for number in range(KEEP_EVERY):
        call(f"few {number}", "started", "ended")
    before, found = steps()
    assert found == ["stays", "ends later"]
    for number in range(6 * KEEP_EVERY):
        call(f"more {number}", "started", "interrupted")
    call("ends later", "ended")
    call("new", "started")
    after, found = steps()
    assert found == ["stays", "new"]
    assert after < 2 * before + 1000


def test_calls_of_an_undone_transaction_are_not_under_way(keeping: Keeping) -> None:
    for number in range(KEEP_EVERY - 2):
        keeping.ledger.append("note", str(number), {})
    keeping.ledger.append("call.started", "stays", {"call_id": "stays"})
    with pytest.raises(ZeroDivisionError), keeping.store.transaction() as connection:  # over the number that is kept
        keeping.ledger.append("call.ended", "stays", {"call_id": "stays"}, connection=connection)
        keeping.ledger.append("call.started", "never", {"call_id": "never"}, connection=connection)
        raise ZeroDivisionError
    assert [entry.subject for entry in keeping.ledger.open_calls()] == ["stays"]
    for number in range(KEEP_EVERY):
        keeping.ledger.append("note", str(number), {})
    keeping.close()
    keeping.open()
    assert [entry.subject for entry in keeping.ledger.open_calls()] == ["stays"]


def test_a_closed_ledger_refuses(keeping: Keeping) -> None:
    keeping.ledger.close()
    with pytest.raises(LedgerUnavailable):
        keeping.ledger.append("note", "x", {})


@pytest.mark.req("TP.16")
def test_a_full_disk_refuses_the_action_and_writes_no_half_entry(keeping: Keeping) -> None:
    keeping.close()
    code = """
import resource, signal, sys
from datetime import UTC, datetime
from coldframe.contract.errors import LedgerUnavailable
from coldframe.control.ledger import Ledger
from coldframe.control.store import Store
store = Store(sys.argv[1])
ledger = Ledger(store, sys.argv[2], lambda: datetime.now(UTC))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, resource.RLIM_INFINITY))
acted = 0
try:
    while acted < 10_000:
        ledger.append("call.started", f"call_{acted}", {"call_id": f"call_{acted}", "text": "t" * 4000})
        acted += 1
    sys.exit("the limit was never met")
except LedgerUnavailable as error:
    assert error.code == "LEDGER_UNAVAILABLE"
try:
    ledger.append("call.started", "again", {"text": "t" * 200_000})
    sys.exit("a second try went through")
except LedgerUnavailable:
    pass
assert len(ledger.entries(limit=10_000)) == acted, (len(ledger.entries(limit=10_000)), acted)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
ledger.append("call.started", "after", {"call_id": "after"})
assert ledger.verify().intact, ledger.verify()
ledger.close()
store.close()
print(acted)
"""
    child = subprocess.run(
        [sys.executable, "-c", code, keeping.database, keeping.marks], check=False, capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr
    verdict = keeping.verdict()
    assert verdict.intact
    assert verdict.entries == int(child.stdout) + 1
    keeping.open()


@pytest.mark.req("TP.16")
def test_a_head_that_cannot_be_written_refuses_the_action(keeping: Keeping, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(keeping.ledger._checkpoints, "move", broken)
        with pytest.raises(LedgerUnavailable):
            keeping.ledger.append("note", "x", {})
    keeping.ledger.append("note", "y", {})
    assert keeping.ledger.verify().intact


def put_off(keeping: Keeping, call: str) -> None:
    with keeping.store.transaction(may_wait=True) as connection:
        keeping.ledger.append("call.ended", call, {"call_id": call}, connection=connection)


def test_entries_that_wait_for_their_commit_are_in_the_chain_and_the_head_is_never_ahead_of_the_file(
    keeping: Keeping,
) -> None:
    keeping.fill(3)
    put_off(keeping, "call_a")
    put_off(keeping, "call_b")
    assert [row[0] for row in keeping.store.read("SELECT seq FROM ledger")] == [1, 2, 3, 4, 5]
    assert keeping.ledger.committed_seq == 3
    beside = keeping.verdict()  # as another process sees it
    assert (beside.intact, beside.entries) == (True, 3)
    keeping.fill(1)
    beside = keeping.verdict()
    assert (beside.intact, beside.entries, keeping.ledger.committed_seq) == (True, 6, 6)
    put_off(keeping, "call_c")
    within = keeping.ledger.verify()
    assert (within.intact, within.entries) == (True, 7)


@pytest.mark.parametrize("look", ["entries", "entry", "open_calls", "export"])
def test_what_is_handed_out_is_committed_first(keeping: Keeping, look: str) -> None:
    keeping.fill(1)
    put_off(keeping, "call_a")
    if look == "entries":
        assert keeping.ledger.entries()[-1].seq == 2
    elif look == "entry":
        assert keeping.ledger.entry(2) is not None
    elif look == "open_calls":
        assert [entry.seq for entry in keeping.ledger.open_calls()] == [1]
    else:
        assert len(list(keeping.ledger.export())) == 2
    assert keeping.verdict().entries == 2  # as another process sees it
    with keeping.store.transaction() as connection:
        keeping.ledger.append("note", "x", {}, connection=connection)
        assert keeping.ledger.entry(3) is not None  # its own transaction sees it, and goes on
        assert keeping.verdict().entries == 2


@pytest.mark.req("T1.87")
def test_a_kill_before_the_commit_of_what_was_put_off_leaves_a_whole_chain_without_it(keeping: Keeping) -> None:
    keeping.fill(2)
    keeping.close()
    code = """
import os, sys
from datetime import UTC, datetime
from coldframe.control.ledger import Ledger
from coldframe.control.store import Store
store = Store(sys.argv[1])
ledger = Ledger(store, sys.argv[2], lambda: datetime.now(UTC))
with store.transaction(may_wait=True) as connection:
    ledger.append("call.ended", "call_a", {"call_id": "call_a"}, connection=connection)
assert not store.is_settled
os.kill(os.getpid(), 9)
"""
    child = subprocess.run([sys.executable, "-c", code, keeping.database, keeping.marks], check=False)
    assert child.returncode == -9
    verdict = keeping.verdict()
    assert (verdict.intact, verdict.entries) == (True, 2)
    keeping.open()
    keeping.fill(1)
    assert keeping.ledger.verify().intact


@pytest.mark.req("TP.16")
@pytest.mark.parametrize("settled_by", ["append", "settle", "close"])
def test_an_end_whose_later_commit_failed_is_written_before_anything_else_or_nothing_is(
    keeping: Keeping, settled_by: str
) -> None:
    keeping.close()
    code = """
import resource, signal, sys
from datetime import UTC, datetime
from coldframe.contract.errors import LedgerUnavailable
from coldframe.control.ledger import Ledger
from coldframe.control.store import Store
store = Store(sys.argv[1])
ledger = Ledger(store, sys.argv[2], lambda: datetime.now(UTC))
ledger.append("call.started", "call_a", {"call_id": "call_a"})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))  # the disk is full
with store.transaction(may_wait=True) as connection:
    ledger.append("call.ended", "call_a", {"call_id": "call_a"}, connection=connection)
for _ in range(3):
    try:
        ledger.append("call.started", "call_b", {"call_id": "call_b"})
        sys.exit("an entry was written on a full disk")
    except LedgerUnavailable:
        pass
    try:
        with store.transaction() as connection:
            ledger.append("call.started", "call_b", {"call_id": "call_b"}, connection=connection)
        sys.exit("a transaction was committed on a full disk")
    except LedgerUnavailable:
        pass
assert [entry.seq for entry in ledger.entries()] == [1], ledger.entries()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
if sys.argv[3] == "append":
    ledger.append("call.started", "call_c", {"call_id": "call_c"})
elif sys.argv[3] == "settle":
    ledger.settle()
    assert ledger.open_calls() == []
ledger.close()
store.close()
"""
    child = subprocess.run(
        [sys.executable, "-c", code, keeping.database, keeping.marks, settled_by],
        check=False,
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr
    assert keeping.verdict().intact
    keeping.open()
    last = [("call.started", "call_c")] if settled_by == "append" else []
    assert [(entry.kind, entry.subject) for entry in keeping.ledger.entries()] == [
        ("call.started", "call_a"),
        ("call.ended", "call_a"),
        *last,
    ]


def test_no_setting_reaches_the_ledger() -> None:
    parameters = Ledger.__init__.__annotations__.keys() - {"return"}
    assert parameters == {"store", "directory", "clock"}
