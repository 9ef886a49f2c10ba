"""Output goes out while it is made, byte for byte, and any follower gets all of it."""

import json
import struct
import threading
from typing import Any

import pytest

from coldframe.client.sync import SyncSandbox
from coldframe.contract.command import Ended, OutputChunk, Started
from coldframe.contract.errors import DeniedByRule
from coldframe.contract.policy import Role
from coldframe.contract.tool import ToolResult
from tests.fronts.served import Served


def test_events_come_in_order_and_end_with_the_result(sandbox: SyncSandbox) -> None:
    events = list(sandbox.run("printf 'a\\0\\377'; exit 4"))
    assert isinstance(events[0], Started) and isinstance(events[-2], Ended) and isinstance(events[-1], ToolResult)
    chunks = [event for event in events if isinstance(event, OutputChunk)]
    assert b"".join(chunk.data for chunk in chunks) == b"a\0\xff"
    assert [chunk.seq for chunk in chunks] == list(range(len(chunks)))
    assert events[-2].result.exit_code == 4 and events[-1].value["exit_code"] == 4


def test_output_arrives_before_the_command_ends(sandbox: SyncSandbox) -> None:
    events = sandbox.run("echo first; until [ -e go ]; do sleep 0.02; done")
    for event in events:
        if isinstance(event, OutputChunk):
            assert event.data == b"first\n"
            sandbox.write_file("go", "")
    assert isinstance(event, ToolResult)


def test_several_followers_get_the_same_bytes(sandbox: SyncSandbox) -> None:
    started = sandbox.run_command("until [ -e go ]; do sleep 0.02; done; seq 5000", background=True)
    assert started.state == "running"
    seen: list[bytes] = []

    def follow() -> None:
        events = sandbox.follow(started.command_id)
        seen.append(b"".join(event.data for event in events if isinstance(event, OutputChunk)))

    followers = [threading.Thread(target=follow) for _ in range(4)]
    for follower in followers:
        follower.start()
    sandbox.write_file("go", "")
    for follower in followers:
        follower.join(30)
    expected = "".join(f"{number}\n" for number in range(1, 5001)).encode()
    assert seen == [expected] * 4


def test_a_follower_goes_on_after_the_chunk_it_saw_last(sandbox: SyncSandbox) -> None:
    done = sandbox.run_command("echo a; sleep 0.05; echo b; sleep 0.05; echo c")
    every = [event for event in sandbox.follow(done.command_id) if isinstance(event, OutputChunk)]
    rest = [event for event in sandbox.follow(done.command_id, after_seq=0) if isinstance(event, OutputChunk)]
    assert rest == every[1:]


def test_raw_output_is_read_by_ranges(sandbox: SyncSandbox) -> None:
    done = sandbox.run_command("printf 0123456789")
    window = sandbox.output(done.command_id, offset=3, length=4)
    assert (window.data, window.offset, window.total_bytes, window.next_offset) == (b"3456", 3, 10, 7)
    assert sandbox.output(done.command_id).data == b"0123456789"


def test_a_refusal_is_an_error_answer_and_not_a_stream(served: Served, sandbox: SyncSandbox) -> None:
    with pytest.raises(DeniedByRule):
        list(sandbox.run("sudo id"))
    headers = {"Accept": "application/x-ndjson", "Content-Type": "application/json"}
    path = f"/v1/sandboxes/{sandbox.id}/tools/run_command"
    status, answer_headers, body = served.request("POST", path, body=b'{"command": "sudo id"}', headers=headers)
    assert (status, answer_headers["content-type"]) == (403, "application/json")
    assert json.loads(body)["error"]["code"] == "DENIED_BY_RULE"


def test_each_line_of_a_stream_is_one_json_object(served: Served, sandbox: SyncSandbox) -> None:
    headers = {"Accept": "application/x-ndjson", "Content-Type": "application/json"}
    path = f"/v1/sandboxes/{sandbox.id}/tools/run_command"
    _, answer_headers, body = served.request("POST", path, body=b'{"command": "echo hi"}', headers=headers)
    assert answer_headers["content-type"].startswith("application/x-ndjson")
    events = [json.loads(line)["event"] for line in body.splitlines()]
    assert (events[0], events[-2:]) == ("started", ["ended", "result"])


def test_whoever_accepts_frames_gets_output_as_bytes(served: Served, sandbox: SyncSandbox) -> None:
    headers = {"Accept": "application/x-coldframe-frames", "Content-Type": "application/json"}
    path = f"/v1/sandboxes/{sandbox.id}/tools/run_command"
    command = json.dumps({"command": "printf 'a\\0\\377'"}).encode()
    _, answer_headers, body = served.request("POST", path, body=command, headers=headers)
    assert answer_headers["content-type"] == "application/x-coldframe-frames"
    events = frames_of(body)
    assert [head["event"] for head, _ in events] == ["started", "output", "ended", "result"]
    assert events[1] == ({"event": "output", "seq": 0, "stream": "stdout", "at": None}, b"a\0\xff")
    command_id = events[0][0]["command_id"]
    _, _, followed = served.request("GET", f"/v1/sandboxes/{sandbox.id}/commands/{command_id}/events", headers=headers)
    assert [head["event"] for head, _ in frames_of(followed)] == ["started", "output", "ended"]
    refused = served.request("POST", path, body=b'{"command": "sudo id"}', headers=headers)
    assert (refused[0], refused[1]["content-type"]) == (403, "application/json")


@pytest.mark.parametrize("accept", ["application/x-ndjson", "application/x-coldframe-frames"])
def test_what_a_rule_about_output_withholds_is_in_no_event(served: Served, sandbox: SyncSandbox, accept: str) -> None:
    headers = {"Accept": accept, "Content-Type": "application/json"}
    path = f"/v1/sandboxes/{sandbox.id}"
    command = b'{"command": "echo before; echo TOP-SECR\'\'ET"}'
    rule = "{id: marker, hook: POST_TOOL_RESPONSE, then: deny, when: {output: {contains: TOP-SECRET}}}"
    with served.sync_client() as client:
        client.policy.load(f"version: 1\nrules: [{rule}]\n")
        try:
            agent = served.token(Role.AGENT, "builder")
            answers = [served.request("POST", f"{path}/tools/run_command", token=agent, body=command, headers=headers)]
            one = f"{path}/commands/{sandbox.commands()[-1].command_id}"
            for rest in ("/events", "/output"):
                answers.append(served.request("GET", one + rest, token=agent, headers=headers))
        finally:
            client.policy.load("version: 1\n")
    for status, _, body in answers:
        assert (status, json.loads(body)["error"]["code"]) == (403, "DENIED_BY_RULE")
        assert not any(text in body for text in (b"TOP-SECRET", b"before", b"YmVmb3Jl"))


def frames_of(body: bytes) -> list[tuple[dict[str, Any], bytes]]:
    found = []
    while body:
        head, data = struct.unpack(">II", body[:8])
        found.append((json.loads(body[8 : 8 + head]), body[8 + head : 8 + head + data]))
        body = body[8 + head + data :]
    return found


def test_a_signal_ends_a_running_command(sandbox: SyncSandbox) -> None:
    started = sandbox.run_command("sleep 60", background=True)
    sandbox.signal(started.command_id, cancel=True)
    last = list(sandbox.follow(started.command_id))[-1]
    assert isinstance(last, Ended) and last.result.exit_code != 0
    assert sandbox.command(started.command_id).state == "ended"


def test_large_output_streams_whole(sandbox: SyncSandbox) -> None:
    total = 0
    for event in sandbox.run("head -c 20000000 /dev/zero"):
        if isinstance(event, OutputChunk):
            total += len(event.data)
    assert total == 20_000_000
