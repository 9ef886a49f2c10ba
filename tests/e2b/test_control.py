"""The life of sandboxes through the official SDK: what it asks for happens, and what cannot be is refused with the reason."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from e2b import Sandbox, SandboxQuery, SandboxState
from e2b.exceptions import (
    AuthenticationException,
    InvalidArgumentException,
    NotFoundException,
    SandboxException,
    SandboxNotFoundException,
)

from coldframe.contract.errors import PauseKindUnsupported, WrongState
from coldframe.contract.policy import Role
from tests.e2b.edge_served import EdgeServed, Mode
from tests.fakes.box import FakeBox
from tests.installation import wait_until

pytestmark = pytest.mark.req("T4.83")


@pytest.fixture
def sandbox(params: dict[str, Any]) -> Iterator[Sandbox]:
    made = Sandbox.create(timeout=300, **params)
    yield made
    made.kill(**params)


def test_a_sandbox_is_made_looked_at_and_killed_once(params: dict[str, Any]) -> None:
    sandbox = Sandbox.create("base", timeout=300, metadata={"user": "ada"}, envs={"A": "1"}, **params)
    info = sandbox.get_info(**params)
    assert (info.sandbox_id, info.name, info.state) == (sandbox.sandbox_id, "base", SandboxState.RUNNING)
    assert info.metadata == {"user": "ada"}
    assert 290 < (info.end_at - datetime.now(UTC)).total_seconds() <= 300
    assert sandbox.is_running()
    assert sandbox.kill(**params) is True
    assert sandbox.kill(**params) is False
    assert not sandbox.is_running()
    with pytest.raises(SandboxNotFoundException):
        Sandbox.get_info(sandbox.sandbox_id, **params)


def test_a_sandbox_of_e2b_is_one_of_ours_with_its_maker_on_record(edge: EdgeServed, params: dict[str, Any]) -> None:
    sandbox = Sandbox.create(timeout=300, **params)
    with edge.served.sync_client() as client:
        info = client.sandboxes.get(f"sbx_{sandbox.sandbox_id}").info
        assert info.spec.background
        assert str(info.created_by).startswith("e2b:tok_")
        created = client.ledger.entries(kinds=["sandbox.created"], subject=info.sandbox_id)[0]
        assert created.body["caller"].startswith("e2b:tok_")
    sandbox.kill(**params)


def test_lists_are_filtered_by_metadata_with_any_signs_and_come_in_pages(params: dict[str, Any]) -> None:
    mark = {"k =&%": "v é+/ %25"}
    made = [Sandbox.create(timeout=300, metadata={**mark, "n": str(n)}, **params) for n in range(3)]
    other = Sandbox.create(timeout=300, **params)
    made[1].pause(**params)

    def ids(query: SandboxQuery, **more: Any) -> list[list[str]]:
        pages, paginator = [], Sandbox.list(query=query, **more, **params)
        while paginator.has_next:
            pages.append([one.sandbox_id for one in paginator.next_items()])
        return pages

    newest = [one.sandbox_id for one in reversed(made)]
    assert ids(SandboxQuery(metadata=mark)) == [newest]
    assert ids(SandboxQuery(metadata=mark), limit=1) == [[one] for one in newest]
    assert ids(SandboxQuery(metadata=mark), order="asc") == [newest[::-1]]
    assert ids(SandboxQuery(metadata=mark, state=[SandboxState.PAUSED])) == [[made[1].sandbox_id]]
    assert ids(SandboxQuery(metadata={**mark, "n": "7"})) == [[]]
    started = made[1].get_info(**params).started_at
    assert ids(SandboxQuery(metadata=mark, started_after=started)) == [newest[:2]]
    for one in (*made, other):
        one.kill(**params)


def test_a_paused_one_does_not_answer_and_connecting_lets_it_go_on(params: dict[str, Any], sandbox: Sandbox) -> None:
    assert sandbox.pause(**params)
    assert not sandbox.pause(**params)
    assert sandbox.get_info(**params).state == SandboxState.PAUSED
    assert not sandbox.is_running()
    with pytest.raises(SandboxException, match="paused"):
        sandbox.set_timeout(10, **params)
    again = Sandbox.connect(sandbox.sandbox_id, timeout=600, **params)
    assert again.is_running()
    left = again.get_info(**params).end_at - datetime.now(UTC)
    assert timedelta(seconds=590) < left <= timedelta(seconds=600)


def test_connecting_gives_more_time_and_never_less_and_a_timeout_may_be_less(
    params: dict[str, Any], sandbox: Sandbox
) -> None:
    before = sandbox.get_info(**params).end_at
    Sandbox.connect(sandbox.sandbox_id, timeout=10, **params)
    assert sandbox.get_info(**params).end_at == before
    Sandbox.connect(sandbox.sandbox_id, timeout=900, **params)
    assert sandbox.get_info(**params).end_at > before + timedelta(seconds=500)
    sandbox.set_timeout(0, **params)
    wait_until(lambda: not sandbox.is_running(), "it ends with its time")
    with pytest.raises(SandboxNotFoundException):
        sandbox.get_info(**params)


def test_one_that_pauses_at_the_end_of_its_time_can_be_gone_on_with(params: dict[str, Any]) -> None:
    sandbox = Sandbox.create(timeout=300, lifecycle={"on_timeout": "pause"}, **params)
    assert sandbox.get_info(**params).lifecycle == {"on_timeout": "pause", "auto_resume": False}
    sandbox.set_timeout(0, **params)
    wait_until(lambda: not sandbox.is_running(), "it is paused when its time is over")
    assert sandbox.get_info(**params).state == SandboxState.PAUSED
    assert sandbox.connect(timeout=60, **params).is_running()
    sandbox.kill(**params)


def test_one_that_resumes_by_itself_wakes_when_it_is_called(params: dict[str, Any]) -> None:
    lifecycle: Any = {"on_timeout": "pause", "auto_resume": True}
    sandbox = Sandbox.create(timeout=300, lifecycle=lifecycle, **params)
    sandbox.pause(**params)
    assert sandbox.is_running()
    assert sandbox.get_info(**params).state == SandboxState.RUNNING
    sandbox.kill(**params)


def test_a_key_that_is_none_gets_nowhere(params: dict[str, Any], sandbox: Sandbox) -> None:
    wrong = {**params, "api_key": "e2b_" + "0" * 64}
    with pytest.raises(AuthenticationException):
        Sandbox.create(**wrong)
    with pytest.raises(AuthenticationException):
        Sandbox.get_info(sandbox.sandbox_id, **wrong)


def test_a_key_has_the_rights_of_its_role_and_no_more(edge: EdgeServed, mode: Mode, sandbox: Sandbox) -> None:
    viewer = edge.params(mode, edge.key_of(Role.VIEWER))
    assert Sandbox.get_info(sandbox.sandbox_id, **viewer).state == SandboxState.RUNNING
    for attempt in (
        lambda: Sandbox.create(**viewer),
        lambda: Sandbox.kill(sandbox.sandbox_id, **viewer),
        lambda: Sandbox.set_timeout(sandbox.sandbox_id, 5, **viewer),
        lambda: Sandbox.pause(sandbox.sandbox_id, **viewer),
    ):
        with pytest.raises(SandboxException, match="403"):
            attempt()
    assert Sandbox.connect(sandbox.sandbox_id, timeout=9000, **viewer).is_running()
    assert sandbox.get_info(**viewer).end_at < datetime.now(UTC) + timedelta(seconds=400)
    agent = edge.params(mode, edge.key_of(Role.AGENT, "ada"))
    with pytest.raises(SandboxNotFoundException):
        Sandbox.get_info(sandbox.sandbox_id, **agent)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"network": {"deny_out": ["8.8.8.8"]}}, "names that lead there"),
        ({"network": {"allow_out": ["example.com"]}}, "allowOut"),
        ({"network": {"deny_out": ["0.0.0.0/0"], "allow_out": ["169.254.169.254"]}}, "no network rule"),
        ({"network": {"rules": {"a.example.com": [{"transform": {"headers": {"A": "b"}}}]}}}, "credential"),
        ({"iam": {"tokens": {"aws": {"audience": "a", "token_type": "JWT-SVID"}}}}, "identities"),
        ({"network": {"mask_request_host": "a b"}}, "maskRequestHost"),
        ({"metadata": {"coldframe.agent": "No Agent"}}, "coldframe.agent"),
        ({"template": "nothing-of-that-name"}, "not found"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason_and_nothing_is_made(
    edge: EdgeServed, params: dict[str, Any], asked: dict[str, Any], reason: str
) -> None:
    before = len(edge.served.control.sandboxes.living())
    with pytest.raises((SandboxException, NotFoundException, InvalidArgumentException), match=reason):
        Sandbox.create(timeout=300, **asked, **params)
    assert len(edge.served.control.sandboxes.living()) == before


def test_a_lease_says_what_is_reached_and_may_change_that(params: dict[str, Any]) -> None:
    network: Any = {"deny_out": ["0.0.0.0/0"], "allow_out": ["1.1.1.1", "api.example.com"]}
    sandbox = Sandbox.create(timeout=300, network=network, **params)
    info = sandbox.get_info(**params)
    assert info.allow_internet_access is True
    assert info.network is not None
    assert info.network["allow_out"] == ["1.1.1.1", "api.example.com"]
    sandbox.update_network({"deny_out": ["0.0.0.0/0"], "allow_out": ["8.8.8.8"]}, **params)
    info = sandbox.get_info(**params)
    assert info.network is not None
    assert info.network["allow_out"] == ["8.8.8.8"]
    closed = Sandbox.create(timeout=300, allow_internet_access=False, **params)
    assert closed.get_info(**params).allow_internet_access is False
    with pytest.raises(SandboxException, match="without a network"):
        closed.update_network({"allow_out": ["1.1.1.1"]}, **params)
    for one in (sandbox, closed):
        one.kill(**params)


def test_the_durable_workspace_of_an_agent_is_had_by_metadata_and_outlives_a_kill(
    edge: EdgeServed, params: dict[str, Any]
) -> None:
    sandbox = Sandbox.create(timeout=300, metadata={"coldframe.agent": "eve"}, **params)
    with edge.served.sync_client() as client:
        assert client.sandboxes.get(f"sbx_{sandbox.sandbox_id}").info.agent_id == "eve"
        sandbox.kill(**params)
        assert "eve" in [agent.agent_id for agent in client.agents.list()]


def test_where_memory_cannot_be_kept_a_pause_keeps_the_files_and_says_what_was_lost(
    edge: EdgeServed, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cannot(_: FakeBox) -> None:
        raise PauseKindUnsupported("processes cannot be held still on this machine")

    monkeypatch.setattr(FakeBox, "pause", cannot)
    sandbox = Sandbox.create(timeout=300, **params)
    assert sandbox.pause(**params)
    assert sandbox.get_info(**params).state == SandboxState.PAUSED
    assert edge.served.control.sandboxes.find(f"sbx_{sandbox.sandbox_id}").state.state == "stopped"
    assert sandbox.connect(timeout=60, **params).is_running()
    sandbox.kill(**params)


def test_a_pause_that_fails_is_no_pause_that_was_there_already(
    edge: EdgeServed, params: dict[str, Any], sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cannot(_: FakeBox) -> None:
        raise WrongState("a process could not be held")

    monkeypatch.setattr(FakeBox, "pause", cannot)
    with pytest.raises(SandboxException, match="could not be held"):
        sandbox.pause(**params)
    assert sandbox.is_running()
