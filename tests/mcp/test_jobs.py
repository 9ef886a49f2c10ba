"""Work outlives the call and the connection that began it, is told of when it ends, and ends when it is called off."""

import json
import threading
from typing import Any

import pytest

from coldframe.contract.policy import Role
from tests.fronts.served import Served
from tests.installation import wait_until
from tests.mcp.speaking import CURRENT, PREVIOUS, REVISIONS, Raw

UNTIL_GO = "echo begun; while [ ! -e go ]; do sleep 0.01; done; echo over; exit 3"
TASKS = {"extensions": {"io.modelcontextprotocol/tasks": {}}}


def go(raw: Raw, sandbox_id: str) -> None:
    raw.value("write_file", sandbox_id=sandbox_id, path="go", content="")


@pytest.mark.req("T3.82")
def test_a_command_that_takes_longer_than_its_call_goes_on_under_a_handle(raw: Raw, sandbox_id: str) -> None:
    answer = raw.value("run_command", sandbox_id=sandbox_id, command=UNTIL_GO, wait_s=0.1)
    assert (answer["state"], answer["exit_code"], answer["stdout"]) == ("running", None, None)
    handle = answer["command_id"]
    other = Raw(raw.served, raw.token)  # another client, which knows the handle and nothing else
    assert other.value("command_status", command_id=handle)["state"] == "running"
    assert other.value("wait_command", command_id=handle, wait_s=0)["state"] == "running"
    read = other.value("read_logs", command_id=handle, offset=0)
    assert (read["text"], read["next_offset"], read["ended"]) == ("begun\n", 6, False)
    go(other, sandbox_id)
    over = other.value("wait_command", command_id=handle)
    assert (over["state"], over["result"]["exit_code"]) == ("ended", 3)
    assert (over["stdout"], over["complete"]) == ("begun\nover\n", True)
    rest = other.value("read_logs", command_id=handle, offset=6)
    assert (rest["text"], rest["next_offset"], rest["ended"], rest["total_bytes"]) == ("over\n", None, True, 11)


@pytest.mark.req("T3.82")
def test_a_job_is_answered_at_once_and_called_off_by_whoever_knows_it(raw: Raw, sandbox_id: str) -> None:
    handle = raw.value("start_command", sandbox_id=sandbox_id, command=UNTIL_GO)["command_id"]
    assert handle in [one["command_id"] for one in raw.value("list_commands", sandbox_id=sandbox_id)["commands"]]
    raw.value("signal_command", command_id=handle)
    over = raw.value("wait_command", command_id=handle)
    assert (over["state"], over["result"]["cancelled"]) == ("ended", True)
    assert raw.code("start_command", sandbox_id=sandbox_id, command="true", background=False) == "INVALID_ARGUMENT"


@pytest.mark.req("T3.82")
def test_a_client_that_goes_away_ends_no_job(raw: Raw, sandbox_id: str) -> None:
    started = {"sandbox_id": sandbox_id, "command": UNTIL_GO}
    handle = raw.value("start_command", **started)["command_id"]
    with raw.stream("tools/call", {"name": "wait_command", "arguments": {"command_id": handle}}):
        pass  # closed before its answer
    go(raw, sandbox_id)
    assert raw.value("wait_command", command_id=handle)["result"]["exit_code"] == 3


def test_closing_the_stream_of_a_request_calls_off_the_command_that_has_no_handle_yet(
    served: Served, sandbox_id: str
) -> None:
    raw = Raw(served)
    arguments = {"sandbox_id": sandbox_id, "command": UNTIL_GO}
    with raw.stream("tools/call", {"name": "run_command", "arguments": arguments}, meta={"progressToken": 1}) as told:
        assert next(told)["method"] == "notifications/progress"
    [command] = raw.value("list_commands", sandbox_id=sandbox_id)["commands"]
    over = raw.value("wait_command", command_id=command["command_id"])
    assert (over["state"], over["result"]["cancelled"]) == ("ended", True)


def test_in_a_session_calling_off_is_said_and_a_broken_connection_says_nothing(served: Served, sandbox_id: str) -> None:
    raw = Raw(served, revision=PREVIOUS)
    raw.initialize()
    arguments = {"sandbox_id": sandbox_id, "command": UNTIL_GO}
    with raw.stream("tools/call", {"name": "run_command", "arguments": arguments}, meta={"progressToken": 1}) as told:
        assert next(told)["method"] == "notifications/progress"
    [command] = raw.value("list_commands", sandbox_id=sandbox_id)["commands"]
    assert command["state"] == "running"
    go(raw, sandbox_id)
    assert raw.value("wait_command", command_id=command["command_id"])["result"]["exit_code"] == 3

    raw.value("run_command", sandbox_id=sandbox_id, command="rm go")
    message, headers = raw.worded("tools/call", {"name": "run_command", "arguments": arguments})
    ends: list[Any] = []
    waits = threading.Thread(target=lambda: ends.append(raw.post(message, headers=headers)))
    waits.start()
    running = wait_until(lambda: _running(raw, sandbox_id), "it runs")
    note = {"method": "notifications/cancelled", "params": {"requestId": message["id"]}}
    assert raw.post({"jsonrpc": "2.0", **note})[0] == 202
    waits.join(20)
    assert ends[0][2]["error"]["message"] == "the request was called off"
    assert raw.value("wait_command", command_id=running)["result"]["cancelled"] is True


def _running(raw: Raw, sandbox_id: str) -> str | None:
    found = raw.value("list_commands", sandbox_id=sandbox_id)["commands"]
    return next((one["command_id"] for one in found if one["state"] == "running"), None)


@pytest.mark.req("T4.33")
@pytest.mark.parametrize("revision", REVISIONS)
def test_the_end_of_a_command_is_told_to_whoever_asked_for_it_and_to_whoever_was_away(
    served: Served, sandbox_id: str, revision: str
) -> None:
    raw = Raw(served, revision=revision)
    if revision == PREVIOUS:
        raw.initialize()
    handle = raw.value("start_command", sandbox_id=sandbox_id, command=UNTIL_GO)["command_id"]
    uri = f"coldframe://sandboxes/{sandbox_id}/commands/{handle}"
    seqs = []
    for _ in range(2):  # the second one comes when all is over
        if revision == CURRENT:
            wanted = {"notifications": {"resourceSubscriptions": [uri, "coldframe://sandboxes"]}}
            with raw.stream("subscriptions/listen", wanted) as told:
                first = next(told)
                assert first["params"]["notifications"] == {"resourceSubscriptions": [uri]}
                go(raw, sandbox_id)
                message = next(told)
                assert "io.modelcontextprotocol/subscriptionId" in message["params"]["_meta"]
        else:
            with raw.stream("GET") as told:
                assert raw.ask("resources/subscribe", {"uri": uri})[1]["result"] == {}
                go(raw, sandbox_id)
                message = next(told)
        assert message["method"] == "notifications/resources/updated"
        assert message["params"]["uri"] == uri and "over" not in str(message)
        seqs.append(message["params"]["_meta"]["coldframe/seq"])
    assert seqs[0] == seqs[1]
    _, answer = raw.ask("resources/read", {"uri": f"{uri}/stdout"})
    assert answer["result"]["contents"][0]["text"] == "begun\nover\n"


@pytest.mark.req("T3.82", "T4.33")
def test_a_client_that_knows_tasks_gets_one_in_place_of_a_long_wait(served: Served, sandbox_id: str) -> None:
    raw = Raw(served)
    arguments = {"sandbox_id": sandbox_id, "command": UNTIL_GO}
    _, answer = raw.ask("tools/call", {"name": "run_command", "arguments": arguments}, capabilities=TASKS)
    task = answer["result"]
    assert (task["resultType"], task["status"]) == ("task", "working")
    other = Raw(served)

    def state(of: str = task["taskId"]) -> dict[str, Any]:
        found: dict[str, Any] = other.ask("tasks/get", {"taskId": of}, capabilities=TASKS)[1]["result"]
        return found

    assert (state()["status"], state()["createdAt"]) == ("working", task["createdAt"])
    go(raw, sandbox_id)
    over = wait_until(lambda: (found := state())["status"] != "working" and found, "the task has ended")
    value = over["result"]["structuredContent"]
    assert (over["status"], value["exit_code"], value["stdout"]) == ("completed", 3, "begun\nover\n")
    _, listed = raw.ask("tools/list")
    schema = next(one for one in listed["result"]["tools"] if one["name"] == "run_command")["outputSchema"]
    import jsonschema

    jsonschema.validate(value, schema)

    raw.value("run_command", sandbox_id=sandbox_id, command="rm go")
    _, answer = raw.ask("tools/call", {"name": "run_command", "arguments": arguments}, capabilities=TASKS)
    second = answer["result"]["taskId"]
    assert other.ask("tasks/cancel", {"taskId": second}, capabilities=TASKS)[1]["result"]["resultType"] == "complete"
    assert wait_until(lambda: state(second)["status"] == "cancelled", "it was called off")
    foreign = Raw(served, served.token(Role.AGENT, "somebody-else"))
    for method in ("tasks/get", "tasks/cancel", "tasks/update"):
        status, answer = foreign.ask(method, {"taskId": second}, capabilities=TASKS)
        assert (status, answer["error"]["data"]["code"]) == (400, "NOT_FOUND")


def test_progress_is_told_of_what_takes_longer_and_the_answer_comes_behind_it(raw: Raw, sandbox_id: str) -> None:
    arguments = {"sandbox_id": sandbox_id, "command": UNTIL_GO}
    with raw.stream("tools/call", {"name": "run_command", "arguments": arguments}, meta={"progressToken": "p"}) as told:
        first = next(told)
        assert (first["method"], first["params"]["progressToken"]) == ("notifications/progress", "p")
        go(raw, sandbox_id)
        messages = [*told]
    assert messages[-1]["result"]["structuredContent"]["stdout"] == "begun\nover\n"
    numbers = [first, *messages[:-1]]
    assert [one["params"]["progress"] for one in numbers] == sorted({one["params"]["progress"] for one in numbers})


def test_an_answer_that_no_event_can_carry_is_shortened_and_says_so(raw: Raw, sandbox_id: str) -> None:
    command = f"head -c 1000000 /dev/zero | tr '\\0' x; {UNTIL_GO}"
    arguments = {"sandbox_id": sandbox_id, "command": command}
    with raw.stream("tools/call", {"name": "run_command", "arguments": arguments}, meta={"progressToken": 1}) as told:
        next(told)
        go(raw, sandbox_id)
        value = [*told][-1]["result"]["structuredContent"]
    assert (value["complete"], value["truncated"], value["stdout_info"]["bytes"]) == (False, True, 1_000_011)
    assert value["stdout_info"]["omitted_bytes"] == 1_000_011 - len(value["stdout"])
    whole = raw.value("run_command", sandbox_id=sandbox_id, command="head -c 1000000 /dev/zero | tr '\\0' x")
    assert (whole["complete"], len(whole["stdout"])) == (True, 1_000_000)


def test_a_resource_that_no_event_can_carry_is_an_error_and_not_half_an_answer(raw: Raw, sandbox_id: str) -> None:
    raw.value("write_file", sandbox_id=sandbox_id, path="long.txt", content="x" * 900_000)
    uri = f"coldframe://sandboxes/{sandbox_id}/files/long.txt"
    message, headers = raw.worded("resources/read", {"uri": uri}, None, None)
    _, _, whole = raw.post(message, headers=headers)
    assert len(whole["result"]["contents"][0]["text"]) == 900_000
    _, _, told = raw.post(message, headers={**headers, "Accept": "text/event-stream"})
    error = json.loads(told.partition(b"data: ")[2])["error"]
    assert (error["data"]["code"], len(told) < 10_000) == ("TOO_LARGE", True)


def test_a_character_is_never_cut_by_a_window_of_the_log(raw: Raw, sandbox_id: str) -> None:
    ran = raw.value("run_command", sandbox_id=sandbox_id, command="printf 'ääää'")
    parts, offset = [], 0
    while offset is not None:
        read = raw.value("read_logs", command_id=ran["command_id"], offset=offset, max_bytes=5)
        parts.append(read["text"])
        offset = read["next_offset"]
    assert parts == ["ää", "ää"]
