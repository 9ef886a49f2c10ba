"""A token opens its own things and no others: every tool and every resource, with the token of one on what another one has."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import mcp_types as types
import pytest

from coldframe.contract.caller import Caller
from coldframe.contract.policy import Role
from coldframe.fronts.mcp.http import STEP_S
from tests.fronts.served import Served
from tests.mcp.speaking import CURRENT, PREVIOUS, REVISIONS, Raw, connected


class Things(NamedTuple):
    """What one agent has."""

    sandbox_id: str
    command_id: str
    receipt_id: str
    snapshot_id: str
    running_id: str
    preview_id: str
    context_id: str
    build_id: str


@pytest.fixture(scope="module")
def owner(served: Served) -> Raw:
    return Raw(served)


@pytest.fixture(scope="module")
def blue(owner: Raw) -> Iterator[Things]:
    yield from things_of(owner, "blue")


@pytest.fixture(scope="module")
def red(owner: Raw) -> Iterator[Things]:
    yield from things_of(owner, "red")


def things_of(owner: Raw, name: str) -> Iterator[Things]:
    sandbox_id = owner.value("create_workspace", workspace=name)["sandbox_id"]
    owner.value("write_file", sandbox_id=sandbox_id, path="secret.txt", content=f"{name}'s own")
    ran = owner.value("run_command", sandbox_id=sandbox_id, command=f"echo {name}-output")
    running = owner.value("start_command", sandbox_id=sandbox_id, command="while [ ! -e go ]; do sleep 0.01; done")
    snapshot = owner.value("take_snapshot", sandbox_id=sandbox_id)
    preview = owner.value("start_preview", sandbox_id=sandbox_id, port=8080)
    build = owner.value("start_build", sandbox_id=sandbox_id, phases=[{"name": "one", "command": "true"}], wait_s=20)
    contexts = owner.value("list_contexts", sandbox_id=sandbox_id)["contexts"]
    yield Things(
        sandbox_id,
        ran["command_id"],
        ran["call"]["receipt_id"],
        snapshot["snapshot_id"],
        running["command_id"],
        preview["preview_id"],
        contexts[0]["context_id"],
        build["build_id"],
    )
    owner.value("terminate_sandbox", sandbox_id=sandbox_id)


def arguments_on(what: Things) -> dict[str, dict[str, Any]]:
    """For each tool, arguments that name something of *what*. A tool without its own has no line here, and fails the test."""
    here, command = {"sandbox_id": what.sandbox_id}, {"command_id": what.command_id}
    build = {"build_id": what.build_id}
    cell, preview = {"cell_id": what.command_id.replace("cmd_", "cell_")}, {"preview_id": what.preview_id}
    return {
        "allowed_operations": here,
        "build_log": build,
        "cancel_build": build,
        "command_status": command,
        "compare": {"before": what.snapshot_id, "after": what.sandbox_id},
        "compare_builds": {"before": what.build_id, "after": what.build_id},
        "compare_file": {"before": what.snapshot_id, "after": what.sandbox_id, "path": "secret.txt"},
        "create_context": here,
        "create_workspace": {"workspace": "taken-from-another", "snapshot": what.snapshot_id},
        "describe_sandbox": here,
        "edit_file": {**here, "path": "secret.txt", "old": "own", "new": "stolen"},
        "fork_sandbox": here,
        "get_build": build,
        "get_cell": cell,
        "get_contract": here,
        "get_preview": preview,
        "get_receipt": {"receipt_id": what.receipt_id},
        "get_sandbox": here,
        "git_branch": {**here, "name": "taken"},
        "git_clone": {**here, "url": "none"},
        "git_commit": {**here, "message": "taken", "paths": ["."]},
        "git_diff": here,
        "git_fetch": here,
        "git_init": here,
        "git_log": here,
        "git_merge": {**here, "revision": "main"},
        "git_push": here,
        "git_refs": here,
        "git_repositories": here,
        "git_restore": {**here, "paths": ["secret.txt"]},
        "git_show": here,
        "git_status": here,
        "git_switch": {**here, "to": "main"},
        "git_tag": {**here, "name": "taken"},
        "interrupt_cell": cell,
        "isolation_report": here,
        "link_preview": preview,
        "list_artifacts": here,
        "list_commands": here,
        "list_contexts": here,
        "list_directory": here,
        "network_log": here,
        "pause_sandbox": here,
        "preview_log": preview,
        "promote_sandbox": {**here, "to": "computer"},
        "read_file": {**here, "path": "secret.txt"},
        "read_logs": command,
        "rebuild_preview": preview,
        "repeat_build": build,
        "reset_sandbox": {**here, "to": what.snapshot_id},
        "restart_context": {**here, "context_id": what.context_id},
        "restart_preview": preview,
        "resume_sandbox": here,
        "revoke_preview": preview,
        "run_code": {**here, "code": "print(open('secret.txt').read())"},
        "run_command": {**here, "command": "cat secret.txt"},
        "search_files": {**here, "pattern": "own"},
        "send_input": {"command_id": what.running_id, "text": "x"},
        "signal_command": {"command_id": what.running_id},
        "start_build": {**here, "phases": [{"name": "one", "command": "cat secret.txt"}]},
        "start_command": {**here, "command": "cat secret.txt"},
        "start_preview": {**here, "port": 8081},
        "stop_preview": preview,
        "take_snapshot": here,
        "terminate_sandbox": here,
        "wait_command": command,
        "workspace_overview": here,
        "workspace_summary": here,
        "write_file": {**here, "path": "secret.txt", "content": "stolen"},
    }


LISTS = {"list_builds", "list_previews", "list_sandboxes", "list_snapshots", "recommend_profile"}
NAMELESS = Things(
    *("sbx_" + "0" * 20, "cmd_" + "0" * 24, "rcp_" + "0" * 24, "0" * 16, "cmd_" + "1" * 24),
    *("prv_" + "0" * 20, "ctx_" + "0" * 20, "bld_" + "0" * 20),
)


def uris_of(what: Things) -> list[str]:
    sandbox = f"coldframe://sandboxes/{what.sandbox_id}"
    return [
        sandbox,
        f"{sandbox}/contract",
        f"{sandbox}/network",
        f"{sandbox}/files/",
        f"{sandbox}/files/secret.txt",
        f"{sandbox}/commands",
        *(f"{sandbox}/commands/{what.command_id}{part}" for part in ("", "/stdout", "/stderr")),
        f"coldframe://receipts/{what.receipt_id}",
    ]


@pytest.mark.req("T3.79")
@pytest.mark.parametrize("revision", REVISIONS)
def test_nothing_of_another_agents_is_there_for_a_token(
    served: Served, owner: Raw, red: Things, blue: Things, revision: str
) -> None:
    client = Raw(served, served.token(Role.AGENT, "red"), revision=revision)
    if revision == PREVIOUS:
        client.initialize()
    theirs, nobodys = arguments_on(blue), arguments_on(NAMELESS)
    _, listed = owner.ask("tools/list")
    assert {one["name"] for one in listed["result"]["tools"]} == theirs.keys() | LISTS
    for tool, arguments in theirs.items():
        told = client.call(tool, **arguments)
        assert told.get("isError") is True, (tool, told)
        error, unknown = told["structuredContent"]["error"], client.call(tool, **nobodys[tool])
        assert error["code"] in ("NOT_FOUND", "GRANT_MISSING"), (tool, error)
        assert error["code"] == unknown["structuredContent"]["error"]["code"], tool
        assert "blue" not in str(told)
    missing = -32602 if revision == CURRENT else -32002
    for uri, same in zip(uris_of(blue), uris_of(NAMELESS), strict=True):
        for asked in (uri, same):
            _, answer = client.ask("resources/read", {"uri": asked})
            assert answer["error"]["code"] == missing and "NOT_FOUND" in answer["error"]["message"], answer
    assert owner.value("read_file", sandbox_id=blue.sandbox_id, path="secret.txt")["content"] == "blue's own"
    assert owner.value("command_status", command_id=blue.running_id)["state"] == "running"


@pytest.mark.req("T3.79")
def test_lists_hold_ones_own_things_and_those_are_all_to_be_had(served: Served, red: Things, blue: Things) -> None:
    client = Raw(served, served.token(Role.AGENT, "red"))
    found = client.value("list_sandboxes")["sandboxes"]
    assert [one["sandbox_id"] for one in found] == [red.sandbox_id]
    snapshots = client.value("list_snapshots")["snapshots"]
    assert {one["sandbox_id"] for one in snapshots} == {red.sandbox_id}
    assert red.snapshot_id in {one["snapshot_id"] for one in snapshots}
    assert [one["preview_id"] for one in client.value("list_previews")["previews"]] == [red.preview_id]
    assert [one["build_id"] for one in client.value("list_builds")["builds"]] == [red.build_id]
    _, listed = client.ask("resources/list")
    assert blue.sandbox_id not in str(listed) and red.sandbox_id in str(listed)
    for uri in uris_of(red):
        status, answer = client.ask("resources/read", {"uri": uri})
        assert status == 200 and answer["result"]["contents"][0]["uri"] == uri
    own = arguments_on(red)
    for tool in ("read_file", "read_logs", "get_receipt", "get_contract", "command_status", "list_commands", "compare"):
        assert not client.call(tool, **own[tool]).get("isError"), tool
    assert client.value("run_command", command="cat secret.txt")["stdout"] == "red's own"  # the only one it has


@pytest.mark.req("T3.79")
@pytest.mark.parametrize("role", [Role.VIEWER, Role.AGENT])
def test_a_role_is_told_of_the_tools_that_it_may_use_and_the_others_are_refused_all_the_same(
    served: Served, owner: Raw, red: Things, role: Role
) -> None:
    client = Raw(served, served.token(role, "red" if role is Role.AGENT else None))
    _, listed = client.ask("tools/list")
    offered = {one["name"] for one in listed["result"]["tools"]}
    own = arguments_on(red)
    if role is Role.VIEWER:
        assert not offered & {"run_command", "write_file", "edit_file", "start_command", "create_workspace"}
    else:
        assert {"run_command", "write_file", "start_command", "take_snapshot"} <= offered
        assert not offered & {"create_workspace", "terminate_sandbox", "reset_sandbox", "fork_sandbox"}
    for tool in own.keys() - offered:
        assert client.code(tool, **own[tool]) == "GRANT_MISSING", tool
    assert owner.value("read_file", sandbox_id=red.sandbox_id, path="secret.txt")["content"] == "red's own"


@pytest.mark.req("T3.79")
def test_a_token_that_is_revoked_stops_at_once_and_its_open_streams_within_seconds(served: Served, red: Things) -> None:
    async def make() -> tuple[str, Any]:
        return served.control.tokens.create(Role.AGENT, "to be revoked", agent_id="red")

    secret, info = served.call(make())
    client = Raw(served, secret)
    assert client.ask("tools/list")[0] == 200
    uri = f"coldframe://sandboxes/{red.sandbox_id}/commands/{red.running_id}"
    wanted = {"notifications": {"resourceSubscriptions": [uri]}}
    waiting = {"name": "wait_command", "arguments": {"command_id": red.running_id, "wait_s": 20}}

    async def revoke() -> None:
        served.control.tokens.revoke(info.token_id, caller=Caller(token_id="tok_test", role=Role.OWNER))

    with client.stream("subscriptions/listen", wanted) as told, client.stream("tools/call", waiting) as waited:
        assert next(told)["method"] == "notifications/subscriptions/acknowledged"
        served.call(revoke())
        assert client.ask("tools/list")[0] == 401
        last = [*told][-1]
        assert last["error"]["data"]["code"] == "UNAUTHENTICATED"
        assert next(waited)["error"]["code"] == "UNAUTHENTICATED"  # as an answer of HTTP, since nothing was said before
    assert STEP_S < 5  # between two looks whether the token is good


@pytest.mark.req("T3.79")
def test_a_token_that_expires_ends_its_open_stream(served: Served, red: Things) -> None:
    async def make() -> str:
        until = served.control.clock() + timedelta(seconds=2)
        return served.control.tokens.create(Role.AGENT, "short", agent_id="red", expires_at=until)[0]

    client = Raw(served, served.call(make()))
    uri = f"coldframe://sandboxes/{red.sandbox_id}/commands/{red.running_id}"
    with client.stream("subscriptions/listen", {"notifications": {"resourceSubscriptions": [uri]}}) as told:
        assert [*told][-1]["error"]["data"]["code"] == "UNAUTHENTICATED"
    assert client.ask("tools/list")[0] == 401


@pytest.mark.req("T3.79")
def test_an_agents_token_finds_no_way_to_widen_itself(served: Served, red: Things, blue: Things) -> None:
    """Nothing in a request says who makes it but the token."""
    client = Raw(served, served.token(Role.AGENT, "red"))
    for arguments in (
        {"command": "true", "agent_id": "blue"},
        {"command": "true", "role": "owner"},
        {"command": "true", "workspace": "blue"},
    ):
        assert client.code("run_command", **arguments) in ("INVALID_ARGUMENT", "NOT_FOUND")
    meta = {"coldframe/agent_id": "blue", "coldframe/role": "owner"}
    headers = {"Coldframe-Session": "ses_other", "X-Coldframe-Role": "owner", "X-Coldframe-Agent": "blue"}
    params = {"name": "read_file", "arguments": {"sandbox_id": blue.sandbox_id, "path": "secret.txt"}}
    _, answer = client.ask("tools/call", params, meta=meta, headers=headers)
    assert answer["result"]["structuredContent"]["error"]["code"] == "NOT_FOUND"
    assert not {"create_token", "set_label", "load_policy"} & {
        one["name"] for one in client.ask("tools/list")[1]["result"]["tools"]
    }


def test_a_session_is_its_tokens_alone(served: Served, red: Things) -> None:
    """Another token that sends its name gets a session of its own: it can call nothing off and hears nothing."""
    mine = Raw(served, served.token(Role.AGENT, "red"), revision=PREVIOUS)
    mine.initialize()
    other = Raw(served, served.token(Role.VIEWER), revision=PREVIOUS)
    other.session = mine.session
    headers = {"Mcp-Session-Id": str(mine.session)}
    assert served.request("DELETE", "/mcp", token=other.token, headers=headers)[0] == 204
    assert other.ask("ping")[0] == 404
    assert mine.ask("ping")[0] == 200


def test_what_a_person_has_to_decide_is_not_asked_of_the_client_or_its_user(served: Served, red: Things) -> None:
    """The official client would answer any question with yes. None is put to it, and nothing has run."""
    with served.sync_client() as people:
        people.policy.load(
            "version: 1\nrules:\n  - {id: ask, hook: PRE_TOOL_CALL, when: {program: touch}, then: ask}\n"
        )
    asked: list[Any] = []

    async def agree(*question: Any) -> types.ElicitResult:
        asked.append(question)
        return types.ElicitResult(action="accept", content={})

    async def flow(revision: str) -> None:
        token = served.token(Role.AGENT, "red")
        async with connected(served.url, token, revision=revision, elicitation_callback=agree) as client:
            told = await client.call_tool("run_command", {"command": "touch approved"})
            assert told.is_error and told.structured_content["error"]["code"] == "PENDING_APPROVAL"
            assert told.structured_content["error"]["retry"] == "after_approval"
            missing = await client.call_tool("read_file", {"path": "approved"})
            assert missing.structured_content["error"]["code"] == "FILE_NOT_FOUND"

    for revision in REVISIONS:
        asyncio.run(flow(revision))
    assert asked == []
