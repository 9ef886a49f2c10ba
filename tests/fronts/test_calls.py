"""Tool calls over real HTTP: typed answers, failing programs as results, and each key at most once."""

import asyncio
import json

import pytest

from coldframe import Coldframe, SyncColdframe
from coldframe.client.sync import SyncSandbox
from coldframe.contract.errors import Conflict, DeniedByRule, EditNotUnique, FileMissing, NotFound
from coldframe.contract.policy import Label, Outcome
from tests.fronts.served import Served


def test_the_six_tools_answer_typed(sandbox: SyncSandbox) -> None:
    written = sandbox.write_file("src/a.py", "x = 1\ny = 1\n")
    assert (written.path, written.bytes_written, written.created) == ("src/a.py", 12, True)
    assert sandbox.read_file("src/a.py").content == "x = 1\ny = 1\n"
    edited = sandbox.edit_file("src/a.py", "x = 1", "x = 2")
    assert (edited.content, edited.replacements) == ("x = 2\ny = 1\n", 1)
    assert sandbox.edit_file_many("src/a.py", [("x = 2", "x = 3"), ("y = 1", "y = 3")]).replacements == 2
    assert "src/a.py" in [entry.path for entry in sandbox.list_directory(recursive=True).entries]
    assert [(m.path, m.line) for m in sandbox.search_files("y = ", "src", regex=False).matches] == [("src/a.py", 2)]
    done = sandbox.run_command("cat src/a.py; echo bad >&2; exit 3")
    assert (done.exit_code, done.stdout, done.stderr) == (3, "x = 3\ny = 3\n", "bad\n")
    assert done.result.label is Label.PUBLIC and done.result.decision is Outcome.ALLOW


def test_bytes_survive_both_ways(sandbox: SyncSandbox) -> None:
    data = bytes(range(256)) * 4
    sandbox.write_file("raw.bin", data)
    read = sandbox.read_file("raw.bin")
    assert read.binary and read.data == data
    assert sandbox.run_command(["cat"], stdin=data, encoding="base64").stdout_base64 is not None


def test_errors_arrive_as_their_classes(sandbox: SyncSandbox) -> None:
    with pytest.raises(FileMissing) as found:
        sandbox.read_file("none.txt")
    assert found.value.code == "FILE_NOT_FOUND" and found.value.advice
    sandbox.write_file("twice", "aa")
    with pytest.raises(EditNotUnique):
        sandbox.edit_file("twice", "a", "b")
    with pytest.raises(DeniedByRule) as denied:
        sandbox.run_command("sudo id")
    assert denied.value.facts["call_id"]


def test_a_result_with_an_error_keeps_label_and_decision(sandbox: SyncSandbox) -> None:
    result = sandbox.call("read_file", {"path": "none.txt"})
    assert result.error is not None and result.error["code"] == "FILE_NOT_FOUND"
    assert result.decision is Outcome.ALLOW and result.label is Label.PUBLIC


def test_a_nonzero_exit_code_is_http_200(served: Served, sandbox: SyncSandbox) -> None:
    path = f"/v1/sandboxes/{sandbox.id}/tools/run_command"
    status, result = served.json("POST", path, {"command": "exit 9"})
    assert status == 200 and result["value"]["exit_code"] == 9


def test_the_same_key_runs_once_and_another_request_under_it_is_refused(served: Served, sandbox: SyncSandbox) -> None:
    path = f"/v1/sandboxes/{sandbox.id}/tools/run_command"
    body = json.dumps({"command": "echo once >> count; wc -l < count"}).encode()
    headers = {"Idempotency-Key": "key-1", "Content-Type": "application/json"}
    first = served.request("POST", path, body=body, headers=headers)
    again = served.request("POST", path, body=body, headers=headers)
    assert first[0] == again[0] == 200
    assert json.loads(first[2])["call_id"] == json.loads(again[2])["call_id"]
    assert sandbox.read_file("count").content == "once\n"
    other = served.request("POST", path, body=b'{"command": "true"}', headers=headers)
    assert (other[0], json.loads(other[2])["error"]["code"]) == (409, "CONFLICT")


def test_a_session_of_another_sandbox_is_not_found(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    with client.sandboxes.create("builder") as other, pytest.raises(NotFound):
        sandbox.call("read_file", {"path": "a"}, session_id=other.info.session_id)


def test_many_calls_at_once_over_one_client(served: Served) -> None:
    async def run() -> list[str | None]:
        async with Coldframe(served.url, served.owner_token) as client:
            async with await client.sandboxes.create("crowd") as sandbox:
                calls = [sandbox.run_command(["echo", str(number)]) for number in range(20)]
                return [done.stdout for done in await asyncio.gather(*calls)]

    assert asyncio.run(run()) == [f"{number}\n" for number in range(20)]


def test_a_caller_that_leaves_ends_no_command(served: Served, sandbox: SyncSandbox) -> None:
    async def leave() -> None:
        async with Coldframe(served.url, served.owner_token) as client:
            there = await client.sandboxes.get(sandbox.id)
            async for event in there.run("echo begun; sleep 0.3; echo whole > left.txt"):
                if getattr(event, "event", "") == "output":
                    return

    asyncio.run(leave())
    command_id = sandbox.commands()[-1].command_id
    last = list(sandbox.follow(command_id))[-1]
    assert getattr(last, "event", "") == "ended"
    assert sandbox.read_file("left.txt").content == "whole\n"


def test_the_governing_views_answer(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    done = sandbox.run_command("echo seen")
    assert client.receipt(str(done.result.receipt_id))["call_id"] == done.result.call_id
    assert client.ledger.verify().intact
    started = client.ledger.entries(kinds=["call.started"], sandbox_id=sandbox.id)
    assert [entry.body["call_id"] for entry in started] == [done.result.call_id]
    assert client.policy.replay(started[0].seq)["same"]
    exported = [json.loads(line) for line in b"".join(client.ledger.export()).splitlines()]
    assert exported[started[0].seq - 1]["subject"] == started[0].subject
    assert client.policy.check(sandbox.id, "run_command", {"command": "sudo id"})["outcome"] == "deny"
    assert client.policy.check(sandbox.id, "run_command", {"command": "ls"})["outcome"] == "allow"
    assert sandbox.contract()["sandbox_id"] == sandbox.id
    assert sandbox.report().level == "namespaces"
    assert {tool.name for tool in client.tools()} >= {"run_command", "read_file"}


def test_a_rule_file_that_is_wrong_leaves_the_old_rules(client: SyncColdframe) -> None:
    before = client.policy.show()
    with pytest.raises(Exception) as found:
        client.policy.load("version: 1\nno_such_key: true\n")
    assert getattr(found.value, "code", "") == "RULES_INVALID"
    assert "line" in getattr(found.value, "facts", {})
    assert client.policy.show() == before


@pytest.mark.req("T1.42")
def test_scratch_is_emptied_by_one_call_and_nothing_else_is_touched(client: SyncColdframe) -> None:
    with client.sandboxes.create("tidy") as sandbox:
        for path in ("scratch/a", "scratch/deep/.hidden", "kept", "skills/kept"):
            sandbox.write_file(path, "x")
        client.agents.clean_scratch("tidy")
        left = {entry.path for entry in sandbox.list_directory(recursive=True).entries}
    assert {"scratch", "kept", "skills/kept"} <= left
    assert not any(path.startswith("scratch/") for path in left)


def test_a_write_on_a_stale_version_is_a_conflict(sandbox: SyncSandbox) -> None:
    first = sandbox.write_file("v", "1")
    sandbox.write_file("v", "22")
    with pytest.raises(Conflict):
        sandbox.write_file("v", "3", if_version=first.version)
    with pytest.raises(Conflict):
        sandbox.upload("v", b"3", if_version=first.version)
    assert sandbox.read_file("v").content == "22"
