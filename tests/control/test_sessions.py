"""Held here: taint only rises, is there again after a crash, and comes down by an owner's reset alone."""

import random
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coldframe.contract.caller import Caller
from coldframe.contract.errors import GrantMissing, NotFound, WrongState
from coldframe.contract.policy import Label, Role
from coldframe.control.ledger import Ledger
from coldframe.control.sessions import Sessions
from coldframe.control.store import Store

OWNER = Caller(token_id="tok_o", role=Role.OWNER)


class Desk:
    def __init__(self, root: Path) -> None:
        self.store = Store(str(root / "control.db"))
        clock = lambda: datetime.now(UTC)  # noqa: E731
        self.ledger = Ledger(self.store, str(root / "ledger"), clock)
        self.sessions = Sessions(self.store, self.ledger, clock)

    def close(self) -> None:
        self.ledger.close()
        self.store.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    opened = Desk(tmp_path)
    yield opened
    opened.close()


def test_a_session_starts_public_and_open(desk: Desk) -> None:
    session = desk.sessions.open("sbx_1", "alpha")
    assert desk.sessions.get(session.session_id) == session
    assert (session.taint, session.closed_at, session.agent_id) == (Label.PUBLIC, None, "alpha")


def test_raising_joins_and_never_lowers(desk: Desk) -> None:
    session_id = desk.sessions.open("sbx_1", "alpha").session_id
    assert desk.sessions.raise_taint(session_id, Label.CONFIDENTIAL) is Label.CONFIDENTIAL
    assert desk.sessions.raise_taint(session_id, Label.INTERNAL) is Label.CONFIDENTIAL
    assert desk.sessions.raise_taint(session_id, Label.PUBLIC) is Label.CONFIDENTIAL
    assert desk.sessions.get(session_id).taint is Label.CONFIDENTIAL
    assert len(desk.ledger.entries(kinds=["session.taint_raised"])) == 1


@pytest.mark.req("TP.10")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(list(Label)), st.text(), st.binary(), st.none(), st.integers()), max_size=30))
def test_taint_is_monotone_whatever_the_labels_are(desk: Desk, labels: list[object]) -> None:
    session_id = desk.sessions.open("sbx_1", None).session_id
    highest = Label.PUBLIC
    for label in labels:
        known = label if isinstance(label, str) and label in list(Label) else Label.RESTRICTED
        highest = max(highest, Label(known), key=lambda one: one.rank)
        assert desk.sessions.raise_taint(session_id, label) is highest
    assert desk.sessions.get(session_id).taint is highest


@pytest.mark.req("TP.11")
def test_taint_survives_a_kill_of_the_server(tmp_path: Path) -> None:
    code = """
import os, sys
from datetime import UTC, datetime
from coldframe.control.ledger import Ledger
from coldframe.control.sessions import Sessions
from coldframe.control.store import Store
clock = lambda: datetime.now(UTC)
store = Store(sys.argv[1] + "/control.db")
sessions = Sessions(store, Ledger(store, sys.argv[1] + "/ledger", clock), clock)
session_id = sessions.open("sbx_1", "alpha").session_id
sessions.raise_taint(session_id, "CONFIDENTIAL")
print(session_id, flush=True)
os.kill(os.getpid(), 9)
"""
    child = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, capture_output=True, text=True)
    assert child.returncode == -9, child.stderr
    desk = Desk(tmp_path)
    assert desk.sessions.get(child.stdout.strip()).taint is Label.CONFIDENTIAL
    assert desk.ledger.verify().intact
    desk.close()


def test_a_taint_that_somebody_spoiled_in_the_database_counts_as_restricted(desk: Desk) -> None:
    session_id = desk.sessions.open("sbx_1", "alpha").session_id
    desk.store.raw.execute("UPDATE sessions SET taint = 'public'")
    assert desk.sessions.get(session_id).taint is Label.RESTRICTED


def test_a_raise_goes_with_the_transaction_it_is_part_of(desk: Desk) -> None:
    session_id = desk.sessions.open("sbx_1", "alpha").session_id
    with pytest.raises(ZeroDivisionError), desk.store.transaction() as connection:
        desk.sessions.raise_taint(session_id, Label.RESTRICTED, connection=connection)
        _ = 1 // 0
    assert desk.sessions.get(session_id).taint is Label.PUBLIC
    assert desk.ledger.entries(kinds=["session.taint_raised"]) == []


@pytest.mark.req("TP.11")
def test_a_reset_archives_the_session_and_goes_on_in_a_new_one(desk: Desk) -> None:
    old = desk.sessions.open("sbx_1", "alpha")
    desk.sessions.raise_taint(old.session_id, Label.RESTRICTED)
    new = desk.sessions.reset(old.session_id, caller=OWNER)
    assert (new.taint, new.sandbox_id, new.agent_id) == (Label.PUBLIC, "sbx_1", "alpha")
    assert new.session_id != old.session_id
    archived = desk.sessions.get(old.session_id)
    assert archived.taint is Label.RESTRICTED
    assert archived.closed_at is not None
    assert [one.session_id for one in desk.sessions.of_sandbox("sbx_1")] == [old.session_id, new.session_id]
    (entry,) = desk.ledger.entries(kinds=["session.reset"])
    assert entry.body["taint_before"] == "RESTRICTED"
    assert entry.body["new_session_id"] == new.session_id
    assert entry.body["caller"] == OWNER.name
    with pytest.raises(WrongState):
        desk.sessions.reset(old.session_id, caller=OWNER)


@pytest.mark.req("TP.11", "TP.17")
@pytest.mark.parametrize("role", [Role.ADMIN, Role.MEMBER, Role.VIEWER, Role.AGENT])
def test_nobody_but_an_owner_resets(desk: Desk, role: Role) -> None:
    session_id = desk.sessions.open("sbx_1", "alpha").session_id
    desk.sessions.raise_taint(session_id, Label.RESTRICTED)
    with pytest.raises(GrantMissing):
        desk.sessions.reset(session_id, caller=Caller(token_id="tok_x", role=role, agent_id="alpha"))
    assert desk.sessions.get(session_id).taint is Label.RESTRICTED
    assert desk.sessions.get(session_id).closed_at is None


def test_closing_is_idempotent_and_keeps_the_taint(desk: Desk) -> None:
    session_id = desk.sessions.open("sbx_1", "alpha").session_id
    desk.sessions.raise_taint(session_id, Label.INTERNAL)
    desk.sessions.close(session_id)
    desk.sessions.close(session_id)
    assert desk.sessions.get(session_id).taint is Label.INTERNAL
    assert len(desk.ledger.entries(kinds=["session.closed"])) == 1


def test_an_unknown_session_is_missing(desk: Desk) -> None:
    for ask in (desk.sessions.get, desk.sessions.close, lambda one: desk.sessions.raise_taint(one, Label.PUBLIC)):
        with pytest.raises(NotFound):
            ask("ses_none")


def test_many_sessions_do_not_mix(desk: Desk) -> None:
    chosen = random.Random(7)
    sessions = [desk.sessions.open(f"sbx_{n}", None).session_id for n in range(5)]
    highest = dict.fromkeys(sessions, Label.PUBLIC)
    for _ in range(100):
        one, label = chosen.choice(sessions), chosen.choice(list(Label)[:3])
        highest[one] = max(highest[one], label, key=lambda found: found.rank)
        desk.sessions.raise_taint(one, label)
    assert {one: desk.sessions.get(one).taint for one in sessions} == highest
