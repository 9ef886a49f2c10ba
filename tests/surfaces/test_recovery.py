"""A program in JavaScript that knows nothing of what went wrong goes on by what it is told, or asks a person."""

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from tests.surfaces.conftest import Script


@pytest.mark.req("T3.72")
@pytest.mark.parametrize("state", ["stopped", "paused", "terminated"])
def test_it_does_its_command_whatever_state_the_sandbox_is_in(
    script: Script, client: SyncColdframe, sandbox: SyncSandbox, state: str
) -> None:
    if state == "terminated":
        sandbox = client.sandboxes.create("recovery-ended")
    getattr(sandbox, {"stopped": "stop", "paused": "pause", "terminated": "terminate"}[state])()
    told = script("recover", id=sandbox.id, agent="recovery-ended", command="echo done >> done")
    assert told["question"] == "" and told["seen"] in (["WRONG_STATE"], ["WRONG_STATE"] * 2)
    assert client.sandboxes.get(told["id"]).read_file("done").content is not None
    if state == "terminated":
        client.sandboxes.get(told["id"]).terminate()


@pytest.mark.req("T3.72")
def test_where_a_program_fails_by_itself_it_asks_a_person(script: Script, sandbox: SyncSandbox) -> None:
    told = script("recover", id=sandbox.id, agent="none", command="echo which port >&2; exit 1")
    assert told["question"].startswith("exited: ") and len(told["question"]) > len("exited: ")
    assert told["seen"] == []
