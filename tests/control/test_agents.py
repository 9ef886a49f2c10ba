"""Held here: ids are strict, a workspace is made on first use, and a deleted agent leaves its record and nothing else."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.caller import Caller
from coldframe.contract.errors import (
    GrantMissing,
    HostUnreachable,
    InvalidArgument,
    NotFound,
    Unauthenticated,
    WrongState,
)
from coldframe.contract.policy import Label, Role
from coldframe.contract.sandbox import SandboxSpec
from coldframe.control.agents import Agents
from coldframe.control.ledger import Ledger
from coldframe.control.store import Store
from coldframe.control.tokens import Tokens
from tests.fakes.host import FakeHost

OWNER = Caller(token_id="tok_o", role=Role.OWNER)
MEMBER = Caller(token_id="tok_m", role=Role.MEMBER)


class Desk:
    def __init__(self, root: Path) -> None:
        clock = lambda: datetime.now(UTC)  # noqa: E731
        self.root = root
        self.store = Store(str(root / "control.db"))
        self.ledger = Ledger(self.store, str(root / "ledger"), clock)
        self.host = FakeHost(str(root))
        self.tokens = Tokens(self.store, self.ledger, clock)
        self.agents = Agents(self.store, self.ledger, self.tokens, self.host, clock)

    def workspace(self, agent_id: str) -> Path:
        return self.root / "workspace" / agent_id

    def close(self) -> None:
        self.ledger.close()
        self.store.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    opened = Desk(tmp_path)
    yield opened
    opened.close()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


@pytest.mark.req("T1.40")
def test_an_agent_gets_its_workspace_on_first_use_and_keeps_it(desk: Desk) -> None:
    made = run(desk.agents.ensure("alpha", caller=MEMBER))
    assert sorted(path.name for path in desk.workspace("alpha").iterdir()) == [
        ".exec_history",
        "integrations",
        "scratch",
        "skills",
    ]
    (desk.workspace("alpha") / "scratch" / "note").write_text("kept")
    assert run(desk.agents.ensure("alpha", caller=MEMBER)) == made
    assert (desk.workspace("alpha") / "scratch" / "note").read_text() == "kept"
    assert len(desk.ledger.entries(kinds=["agent.created"])) == 1


@pytest.mark.req("T1.46")
@pytest.mark.parametrize(
    "agent_id",
    [
        "../x", "a/b", "", ".", "..", "background", "Alpha", "ALPHA", "alphа", "ａlpha", "alpha ", " alpha", "alpha\n",
        "a" * 300, "a" * 64, "-alpha", "al_pha", "al.pha", "alpha\0", "ﬁ", "ı", "~", "%2e%2e", "a\\b", "\udcff",
    ],
)  # fmt: skip
def test_an_id_that_is_not_strict_is_refused_and_makes_nothing(desk: Desk, agent_id: str) -> None:
    with pytest.raises(InvalidArgument):
        run(desk.agents.ensure(agent_id, caller=OWNER))
    assert desk.agents.list() == []
    assert not (desk.root / "workspace").exists()
    assert desk.ledger.entries() == []


@pytest.mark.parametrize("agent_id", ["a", "0", "a-1", "a" * 63, "alpha-"])
def test_every_strict_id_is_taken(desk: Desk, agent_id: str) -> None:
    assert run(desk.agents.ensure(agent_id, caller=OWNER)).agent_id == agent_id


@pytest.mark.req("T1.47")
def test_deleting_removes_the_workspace_and_keeps_the_record(desk: Desk) -> None:
    run(desk.agents.ensure("alpha", caller=MEMBER))
    run(desk.agents.ensure("beta", caller=MEMBER))
    before = len(desk.ledger.entries(agent_id="alpha"))
    run(desk.agents.delete("alpha", caller=OWNER))
    assert not desk.workspace("alpha").exists()
    assert desk.workspace("beta").exists()
    assert [agent.agent_id for agent in desk.agents.list()] == ["beta"]
    with pytest.raises(NotFound):
        desk.agents.get("alpha")
    kinds = [entry.kind for entry in desk.ledger.entries(agent_id="alpha")]
    assert kinds[:before] == ["agent.created"]
    assert kinds[before:] == ["agent.deletion_started", "agent.deleted"]
    assert desk.ledger.verify().intact


@pytest.mark.req("T1.47")
def test_the_same_id_again_starts_empty_and_public(desk: Desk) -> None:
    run(desk.agents.ensure("alpha", caller=MEMBER))
    (desk.workspace("alpha") / "scratch" / "secret").write_text("of the first")
    desk.agents.raise_label("alpha", Label.RESTRICTED)
    run(desk.agents.delete("alpha", caller=OWNER))
    # What a broken-off deletion or a person could have left behind:
    (desk.workspace("alpha") / "scratch").mkdir(parents=True)
    (desk.workspace("alpha") / "scratch" / "secret").write_text("of the first")
    again = run(desk.agents.ensure("alpha", caller=MEMBER))
    assert again.workspace_label is Label.PUBLIC
    assert [path for path in desk.workspace("alpha").rglob("*") if path.is_file()] == []
    generations = [entry.body["generation"] for entry in desk.ledger.entries(kinds=["agent.created"])]
    assert generations == [1, 2]


@pytest.mark.req("T1.47")
def test_tokens_of_a_deleted_agent_do_not_open_the_next_one(desk: Desk) -> None:
    run(desk.agents.ensure("alpha", caller=MEMBER))
    secret, _ = desk.tokens.create(Role.AGENT, "x", agent_id="alpha")
    other, _ = desk.tokens.create(Role.AGENT, "y", agent_id="beta")
    run(desk.agents.delete("alpha", caller=OWNER))
    run(desk.agents.ensure("alpha", caller=MEMBER))
    with pytest.raises(Unauthenticated):
        desk.tokens.authenticate(secret, surface="rest")
    desk.tokens.authenticate(other, surface="rest")


def test_an_agent_with_a_running_sandbox_is_not_deleted(desk: Desk) -> None:
    async def scene() -> None:
        await desk.agents.ensure("alpha", caller=MEMBER)
        await desk.host.create("sbx_1", SandboxSpec(agent_id="alpha"), session_id="ses_1")
        with pytest.raises(WrongState) as caught:
            await desk.agents.delete("alpha", caller=OWNER)
        assert caught.value.facts["sandboxes"] == ["sbx_1"]
        assert caught.value.next_actions[0]["args"] == {"sandbox_id": "sbx_1"}
        assert desk.workspace("alpha").exists()
        await (await desk.host.life("sbx_1")).end()
        await desk.agents.delete("alpha", caller=OWNER)
        await desk.host.close()

    run(scene())


def test_a_deletion_that_broke_off_blocks_the_agent_until_it_is_finished(desk: Desk) -> None:
    run(desk.agents.ensure("alpha", caller=MEMBER))
    remove = desk.host.delete_workspace

    async def unreachable(agent_id: str) -> None:
        raise HostUnreachable("the host daemon does not answer")

    desk.host.delete_workspace = unreachable  # type: ignore[method-assign]
    with pytest.raises(HostUnreachable):
        run(desk.agents.delete("alpha", caller=OWNER))
    with pytest.raises(WrongState):
        run(desk.agents.ensure("alpha", caller=MEMBER))
    desk.host.delete_workspace = remove  # type: ignore[method-assign]
    run(desk.agents.delete("alpha", caller=OWNER))
    assert run(desk.agents.ensure("alpha", caller=MEMBER)).agent_id == "alpha"


def test_a_host_that_makes_no_workspace_makes_no_agent(desk: Desk) -> None:
    desk.host.unreachable = HostUnreachable("the host daemon does not answer")
    with pytest.raises(HostUnreachable):
        run(desk.agents.ensure("alpha", caller=MEMBER))
    assert desk.agents.list() == []


def test_many_first_uses_at_once_make_one_agent(desk: Desk) -> None:
    async def scene() -> None:
        made = await asyncio.gather(*(desk.agents.ensure("alpha", caller=MEMBER) for _ in range(20)))
        assert len({agent.created_at for agent in made}) == 1

    run(scene())
    assert len(desk.ledger.entries(kinds=["agent.created"])) == 1


def test_labels_rise_by_themselves_and_anything_unknown_is_restricted(desk: Desk) -> None:
    run(desk.agents.ensure("alpha", caller=MEMBER))
    assert desk.agents.raise_label("alpha", Label.INTERNAL) is Label.INTERNAL
    assert desk.agents.raise_label("alpha", Label.PUBLIC) is Label.INTERNAL
    assert desk.agents.raise_label("alpha", "no label") is Label.RESTRICTED
    assert desk.agents.get("alpha").workspace_label is Label.RESTRICTED
    assert len(desk.ledger.entries(kinds=["agent.label_raised"])) == 2


@pytest.mark.req("TP.17")
def test_lowering_a_label_is_for_owner_and_admin_with_a_reason_on_record(desk: Desk) -> None:
    run(desk.agents.ensure("alpha", caller=MEMBER))
    desk.agents.raise_label("alpha", Label.RESTRICTED)
    for role in (Role.MEMBER, Role.VIEWER, Role.AGENT):
        with pytest.raises(GrantMissing):
            caller = Caller(token_id="tok_x", role=role, agent_id="alpha")
            desk.agents.set_label("alpha", Label.PUBLIC, caller=caller, reason="please")
    with pytest.raises(InvalidArgument):
        desk.agents.set_label("alpha", Label.PUBLIC, caller=OWNER, reason="  ")
    assert desk.agents.get("alpha").workspace_label is Label.RESTRICTED
    desk.agents.set_label("alpha", Label.INTERNAL, caller=OWNER, reason="looked through it")
    assert desk.agents.get("alpha").workspace_label is Label.INTERNAL
    (entry,) = desk.ledger.entries(kinds=["agent.label_set"])
    assert (entry.body["label_before"], entry.body["label_after"]) == ("RESTRICTED", "INTERNAL")
    assert (entry.body["caller"], entry.body["reason"]) == (OWNER.name, "looked through it")


@pytest.mark.req("TP.17")
@pytest.mark.parametrize(
    "act",
    [
        lambda agents, caller: agents.ensure("new", caller=caller),
        lambda agents, caller: agents.delete("alpha", caller=caller),
    ],
)
@pytest.mark.parametrize("role", [Role.VIEWER, Role.AGENT])
def test_who_may_not_makes_and_deletes_nothing(
    desk: Desk, act: Callable[[Agents, Caller], Coroutine[Any, Any, Any]], role: Role
) -> None:
    run(desk.agents.ensure("alpha", caller=MEMBER))
    with pytest.raises(GrantMissing):
        run(act(desk.agents, Caller(token_id="tok_x", role=role, agent_id="alpha")))
    assert [agent.agent_id for agent in desk.agents.list()] == ["alpha"]
    assert desk.workspace("alpha").exists()
