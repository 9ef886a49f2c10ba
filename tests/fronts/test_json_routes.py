"""What a small route takes is checked before its handler runs, and what is wrong with it is told in full."""

import json

import pytest

from coldframe.client.sync import SyncSandbox
from coldframe.fronts import streams
from coldframe.fronts.rest.json_routes import MAX_FAULTS
from coldframe.fronts.streams import MOST_VALUES
from tests.fronts.served import Served


def test_all_faults_of_a_body_are_told_and_the_first_one_named(served: Served) -> None:
    body = {"agent_id": "a", "limits": {"pids": -1, "wall_s": "long"}, "colour": 1}
    status, answer = served.json("POST", "/v1/sandboxes", body)
    facts = answer["error"]["facts"]
    assert (status, facts["argument"]) == (400, "limits.wall_s")
    assert [fault["argument"] for fault in facts["faults"]] == ["limits.wall_s", "limits.pids", "colour"]


@pytest.mark.req("T4.59")
def test_faults_of_form_are_told_together_with_those_of_sense_and_nothing_is_made(served: Served) -> None:
    before = served.json("GET", "/v1/sandboxes")
    body = {"limits": {"pids": -1, "memory_mib": 10**9}, "colour": 1, "denied_programs": [f"p{n}" for n in range(300)]}
    for wrong, more in (
        ({"agent_id": "a", "background": True}, {"agent_id"}),
        ({"agent_id": 5}, {"agent_id"}),  # no such thing, and so nothing that could fit with the others or not
        ({"agent_id": "a", "on_result": "delete", "outputs": "none"}, {"outputs"}),
    ):
        status, answer = served.json("POST", "/v1/sandboxes", {**body, **wrong})
        faults = answer["error"]["facts"]["faults"]
        assert status == 400
        told = [fault["argument"] for fault in faults]
        assert sorted(told) == sorted(["limits.pids", "colour", "limits.memory_mib", "denied_programs", *more])
        assert "is over" in next(fault["reason"] for fault in faults if fault["argument"] == "limits.memory_mib")
    assert served.json("GET", "/v1/sandboxes") == before


def test_a_parameter_that_may_come_more_than_once_is_taken_whole_and_an_unknown_one_passed_over(served: Served) -> None:
    path = "/v1/ledger/entries?kind=token.created&kind=policy.loaded&colour=red&limit=500"
    status, entries = served.json("GET", path)
    assert status == 200
    both = {entry["kind"] for entry in entries}
    assert "token.created" in both and both <= {"token.created", "policy.loaded"}


def test_a_number_in_a_path_that_is_none_or_out_of_range_is_named(served: Served) -> None:
    for seq in ("x", "0", str(2**63)):
        status, answer = served.json("GET", f"/v1/policy/replay/{seq}")
        assert (status, answer["error"]["facts"]["argument"]) == (400, "seq")


@pytest.mark.parametrize("path", ["/v1/health", "/openapi.json"])
def test_whether_the_server_is_there_can_be_asked_without_the_body_of_an_answer(served: Served, path: str) -> None:
    status, headers, body = served.request("HEAD", path)
    assert (status, headers["content-type"], body) == (200, "application/json", b"")


def test_nothing_is_done_for_a_head_alone(served: Served, sandbox: SyncSandbox) -> None:
    """What is asked for no body builds no box, measures nothing, reads no file and follows no command."""
    asked = len(served.host.asked)
    entries = len(served.control.ledger.entries(limit=10_000))
    of_sandbox = f"/v1/sandboxes/{sandbox.id}"
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(type(served.host), "doctor")
        for path in (
            "/v1/doctor",
            "/v1/ledger/verify",
            "/v1/ledger/export",
            *(f"{of_sandbox}/{name}" for name in ("report", "processes", "files/a", "commands/none/events")),
        ):
            status, headers, body = served.request("HEAD", path)
            assert (status, "GET" in headers["allow"].split(", "), body) == (405, True, b""), path
    assert served.request("HEAD", of_sandbox)[1]["allow"] == "DELETE, GET"
    assert served.request("HEAD", "/v1/none")[0] == 404
    assert served.request("HEAD", "/v1/doctor", token="cf_wrong")[0] == 401
    assert len(served.host.asked) == asked
    assert len(served.control.ledger.entries(limit=10_000)) == entries


def test_a_body_of_many_faults_gets_a_short_answer(served: Served) -> None:
    body = {f"{number}{'x' * 2000}": 1 for number in range(5 * MAX_FAULTS)}
    status, answer = served.json("POST", "/v1/agents", body)
    faults = answer["error"]["facts"]["faults"]
    assert (status, len(faults)) == (400, MAX_FAULTS)
    assert len(json.dumps(answer)) < MAX_FAULTS * 1000


@pytest.mark.parametrize("content", [b"[" * 10_000, b'{"agent_id":' + b"9" * 5000 + b"}"])
@pytest.mark.parametrize("path", ["/v1/agents", "/v1/sandboxes/none/tools/run_command"])
def test_json_past_what_is_read_is_refused_without_the_words_of_an_interpreter(
    served: Served, path: str, content: bytes
) -> None:
    status, _, answer = served.request("POST", path, body=content)
    message = json.loads(answer)["error"]["message"]
    assert (status, message) == (400, "the body is nested too deep, or holds a number of too many digits")


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(dict.fromkeys(map(str, range(MOST_VALUES + 1)))).encode(),
        b'{"runtimes":[' + b"1," * MOST_VALUES + b"1]}",
        b'{"runtimes":[' + b"{}," * MOST_VALUES + b"{}]}",
        rb'["\\\\", "\\", "\"",' + b'"[",' * MOST_VALUES + b'""]',
        b"[" + b"[[[[[[1]]]]]]," * (MOST_VALUES // 6) + b"1]",
    ],
)
@pytest.mark.parametrize("path", ["/v1/sandboxes", "/v1/sandboxes/none/tools/run_command"])
def test_a_body_of_very_many_values_is_refused_before_any_of_them_is_looked_at(
    served: Served, monkeypatch: pytest.MonkeyPatch, path: str, content: bytes
) -> None:
    """All others wait for the one who reads a body: names nobody knows, some megabytes of them, took more than a second."""
    monkeypatch.setattr(streams, "json", None)
    status, _, answer = served.request("POST", path, body=content)
    monkeypatch.undo()
    error = json.loads(answer)["error"]
    assert (status, error["code"], error["facts"]) == (
        400,
        "INVALID_ARGUMENT",
        {"argument": "body", "limit": MOST_VALUES},
    )


def test_a_long_text_of_whatever_signs_is_one_value(served: Served, sandbox: SyncSandbox) -> None:
    content = 'a,[{"\\' * MOST_VALUES + "\\"
    assert sandbox.call("write_file", {"path": "signs", "content": content}).error is None
    assert sandbox.read_file("signs").content == content
    words = ["true", *["[,{"] * 9_999]
    status, answer = served.json("POST", f"/v1/sandboxes/{sandbox.id}/tools/run_command", {"command": words})
    assert (status, answer["value"]["exit_code"]) == (200, 0)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32-be"])
def test_a_body_in_another_encoding_than_utf_8_is_no_json(served: Served, encoding: str) -> None:
    """Its commas could not be told from parts of other signs."""
    status, _, answer = served.request("POST", "/v1/agents", body='{"agent_id":"a"}'.encode(encoding))
    assert (status, json.loads(answer)["error"]["code"]) == (400, "INVALID_ARGUMENT")
    assert served.request("POST", "/v1/agents", body='{"agent_id":"bom"}'.encode("utf-8-sig"))[0] == 200
