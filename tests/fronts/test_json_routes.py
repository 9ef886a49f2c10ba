"""What a small route takes is checked before its handler runs, and what is wrong with it is told in full."""

import json

import pytest

from coldframe.fronts.rest.json_routes import MAX_FAULTS
from tests.fronts.served import Served


def test_all_faults_of_a_body_are_told_and_the_first_one_named(served: Served) -> None:
    body = {"agent_id": "a", "limits": {"pids": -1, "wall_s": "long"}, "colour": 1}
    status, answer = served.json("POST", "/v1/sandboxes", body)
    facts = answer["error"]["facts"]
    assert (status, facts["argument"]) == (400, "limits.wall_s")
    assert [fault["argument"] for fault in facts["faults"]] == ["limits.wall_s", "limits.pids", "colour"]


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


def test_the_head_of_an_answer_can_be_asked_for_alone(served: Served) -> None:
    status, headers, body = served.request("HEAD", "/v1/health")
    assert (status, headers["content-type"], body) == (200, "application/json", b"")


def test_a_body_of_many_faults_gets_a_short_answer(served: Served) -> None:
    body = {f"{number}{'x' * 2000}": 1 for number in range(5 * MAX_FAULTS)}
    status, answer = served.json("POST", "/v1/agents", body)
    faults = answer["error"]["facts"]["faults"]
    assert (status, len(faults)) == (400, MAX_FAULTS)
    assert len(json.dumps(answer)) < MAX_FAULTS * 1000


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"agent_id":' + b"9" * 5000 + b"}"])
@pytest.mark.parametrize("path", ["/v1/agents", "/v1/sandboxes/none/tools/run_command"])
def test_json_past_what_is_read_is_refused_without_the_words_of_an_interpreter(
    served: Served, path: str, content: bytes
) -> None:
    status, _, answer = served.request("POST", path, body=content)
    message = json.loads(answer)["error"]["message"]
    assert (status, message) == (400, "the body is nested too deep, or holds a number of too many digits")
