"""Where the operator says how many sandboxes may run, one more is refused, or made in its turn if it waits."""

import json
import threading

import pytest

from coldframe.client.sync import SyncColdframe
from coldframe.contract.errors import TooManySandboxes
from tests.promises.raw import own_installation, rest


@pytest.mark.req("T4.59", "T4.31")
def test_one_more_than_may_run_is_refused_or_waits_and_is_seen_and_taken_out() -> None:
    with (
        own_installation(COLDFRAME_MAX_RUNNING="1") as started,
        SyncColdframe(started.url, started.token) as client,
    ):
        running = client.sandboxes.create("first")
        with pytest.raises(TooManySandboxes) as refused:
            client.sandboxes.create("second")
        assert "queue_s" in refused.value.advice
        assert rest(started, "POST", "/v1/sandboxes?queue_s=0", {"agent_id": "a"}).status == 400
        waiting, taken = (client.sandboxes.create(agent, queue_s=600) for agent in ("second", "third"))
        assert [one.id for one in client.sandboxes.list(state=["queued"])] == [taken.id, waiting.id]
        assert taken.terminate().state.state == "terminated"
        ends = threading.Thread(target=rest, args=(started, "DELETE", f"/v1/sandboxes/{running.id}"))
        ends.start()
        made = waiting.wait_for_turn()
        ends.join()
        assert made.state.state == "running"
        assert list(made.state.reached) == ["queued", "starting", "running"]
        assert waiting.run_command("echo first").stdout == "first\n"
        late = started.cli("sandbox", "create", "--background", "--queue", "0.1", "--wait", "--json")
        assert late.returncode != 0
        told = json.loads(late.stderr or late.stdout)
        assert "no other sandbox ended within 0.1 s" in json.dumps(told)
        waiting.terminate()
        assert taken.refresh().state.state == "terminated"
