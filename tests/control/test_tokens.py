"""Held here: only a living secret opens anything, no secret is kept or recorded, and nobody makes more than they are."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from coldframe.contract.caller import Caller
from coldframe.contract.errors import (
    GrantMissing,
    InvalidArgument,
    NotFound,
    Unauthenticated,
    WrongState,
)
from coldframe.contract.policy import Role
from coldframe.control.ledger import Ledger
from coldframe.control.store import Store
from coldframe.control.tokens import Tokens


class Desk:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = datetime(2026, 5, 4, tzinfo=UTC)
        self.store = Store(str(root / "control.db"))
        self.ledger = Ledger(self.store, str(root / "ledger"), lambda: self.now)
        self.tokens = Tokens(self.store, self.ledger, lambda: self.now)

    def caller(self, role: Role, agent_id: str | None = None) -> Caller:
        secret, _ = self.tokens.create(role, f"a {role.value}", agent_id=agent_id)
        return self.tokens.authenticate(secret, surface="rest")

    def close(self) -> None:
        self.ledger.close()
        self.store.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    opened = Desk(tmp_path)
    yield opened
    opened.close()


def test_a_secret_tells_who_calls_and_from_where(desk: Desk) -> None:
    secret, info = desk.tokens.create(Role.AGENT, "builder", agent_id="alpha")
    assert secret.startswith("cf_")
    assert len(secret) >= 3 + 43
    caller = desk.tokens.authenticate(secret, surface="mcp")
    assert caller == Caller(token_id=info.token_id, role=Role.AGENT, agent_id="alpha", surface="mcp")


@pytest.mark.parametrize("secret", ["", "cf_", "cf_" + "A" * 43, "\udcff", "x" * 100_000, "' OR 1=1 --"])
def test_an_unknown_secret_opens_nothing(desk: Desk, secret: str) -> None:
    desk.caller(Role.OWNER)
    with pytest.raises(Unauthenticated):
        desk.tokens.authenticate(secret, surface="rest")


def test_a_token_works_until_it_expires_and_not_after(desk: Desk) -> None:
    secret, _ = desk.tokens.create(Role.MEMBER, "short", expires_at=desk.now + timedelta(hours=1))
    desk.now += timedelta(minutes=59)
    desk.tokens.authenticate(secret, surface="rest")
    desk.now += timedelta(minutes=1)
    with pytest.raises(Unauthenticated):
        desk.tokens.authenticate(secret, surface="rest")


def test_a_revoked_token_is_worthless_at_once_and_after_a_restart(desk: Desk, tmp_path: Path) -> None:
    owner = desk.caller(Role.OWNER)
    secret, info = desk.tokens.create(Role.MEMBER, "gone", caller=owner)
    assert desk.tokens.revoke(info.token_id, caller=owner).revoked_at == desk.now
    desk.tokens.revoke(info.token_id, caller=owner)
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            desk.tokens.authenticate(secret, surface="rest")
        desk.close()
        desk.__init__(tmp_path)  # type: ignore[misc]
    assert {token.token_id: token.revoked_at for token in desk.tokens.list()}[info.token_id] == desk.now


def test_the_refusal_does_not_tell_a_dead_token_from_an_unknown_one(desk: Desk) -> None:
    owner = desk.caller(Role.OWNER)
    secret, info = desk.tokens.create(Role.MEMBER, "gone", caller=owner)
    desk.tokens.revoke(info.token_id, caller=owner)
    answers = []
    for tried in (secret, "cf_unknown"):
        with pytest.raises(Unauthenticated) as caught:
            desk.tokens.authenticate(tried, surface="rest")
        answers.append(caught.value.to_wire())
    assert answers[0] == answers[1]


def test_no_secret_is_in_the_database_or_the_ledger(desk: Desk, tmp_path: Path) -> None:
    owner = desk.caller(Role.OWNER)
    secret, info = desk.tokens.create(Role.MEMBER, "kept quiet", caller=owner)
    desk.tokens.authenticate(secret, surface="rest")
    desk.tokens.revoke(info.token_id, caller=owner)
    with pytest.raises(Unauthenticated):
        desk.tokens.authenticate(secret, surface="rest")
    desk.close()
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert info.token_id.encode() in kept
    assert secret.encode() not in kept
    assert secret.removeprefix("cf_").encode() not in kept
    desk.__init__(tmp_path)  # type: ignore[misc]


def test_making_revoking_and_dead_use_are_recorded_and_dead_use_cannot_fill_the_disk(desk: Desk) -> None:
    owner = desk.caller(Role.OWNER)
    secret, info = desk.tokens.create(Role.AGENT, "x", agent_id="alpha", caller=owner)
    desk.tokens.revoke(info.token_id, caller=owner)
    for _ in range(100):
        with pytest.raises(Unauthenticated):
            desk.tokens.authenticate(secret, surface="rest")
    entries = desk.ledger.entries(subject=info.token_id)
    assert [entry.kind for entry in entries] == ["token.created", "token.revoked", "token.refused"]
    assert entries[0].body["caller"] == owner.name


@pytest.mark.req("TP.17")
@pytest.mark.parametrize("role", [Role.MEMBER, Role.VIEWER, Role.AGENT])
def test_only_owners_and_admins_make_and_revoke_tokens(desk: Desk, role: Role) -> None:
    owner = desk.caller(Role.OWNER)
    caller = desk.caller(role, "alpha" if role is Role.AGENT else None)
    with pytest.raises(GrantMissing):
        desk.tokens.create(Role.VIEWER, "x", caller=caller)
    with pytest.raises(GrantMissing):
        desk.tokens.revoke(owner.token_id, caller=caller)


@pytest.mark.req("TP.17")
def test_an_admin_has_no_say_over_owners(desk: Desk) -> None:
    desk.caller(Role.OWNER)
    owner, admin = desk.caller(Role.OWNER), desk.caller(Role.ADMIN)
    with pytest.raises(GrantMissing):
        desk.tokens.create(Role.OWNER, "x", caller=admin)
    with pytest.raises(GrantMissing):
        desk.tokens.revoke(owner.token_id, caller=admin)
    desk.tokens.create(Role.ADMIN, "x", caller=admin)


def test_the_last_owner_cannot_be_locked_out(desk: Desk) -> None:
    owner = desk.caller(Role.OWNER)
    with pytest.raises(WrongState):
        desk.tokens.revoke(owner.token_id, caller=owner)
    desk.caller(Role.OWNER)
    desk.tokens.revoke(owner.token_id, caller=owner)


def test_a_token_that_makes_no_sense_is_refused_and_not_made(desk: Desk) -> None:
    owner = desk.caller(Role.OWNER)
    before = desk.tokens.list()
    for role, name, more in [
        (Role.AGENT, "no agent", {}),
        (Role.MEMBER, "an agent", {"agent_id": "alpha"}),
        (Role.AGENT, "bad agent", {"agent_id": "../x"}),
        (Role.AGENT, "reserved agent", {"agent_id": "background"}),
        (Role.MEMBER, "", {}),
        (Role.MEMBER, "line\nbreak", {}),
        (Role.MEMBER, "n" * 101, {}),
        (Role.MEMBER, "past", {"expires_at": desk.now}),
        (Role.MEMBER, "no zone", {"expires_at": datetime(2030, 1, 1)}),
    ]:
        with pytest.raises(InvalidArgument):
            desk.tokens.create(role, name, caller=owner, **more)  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        desk.tokens.revoke("tok_none", caller=owner)
    assert desk.tokens.list() == before
