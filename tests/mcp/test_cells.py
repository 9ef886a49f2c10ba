"""Code cells of a client: variables that stay, pictures as pictures, and cells that go on or are called off."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from coldframe.client.sync import SyncColdframe
from coldframe.host import interpreter
from tests.installation import Installation
from tests.mcp.speaking import REVISIONS, Raw, Server, connected

pytestmark = pytest.mark.skipif(
    interpreter.listing() is None, reason="no packages for code cells: run `coldframe code install`"
)
UNTIL_GO = "import os, time\nprint('begun')\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\nprint('over')"


@pytest.fixture(scope="module")
def client(installation: Installation) -> Raw:
    return Raw(Server(installation.url, installation.token))


@pytest.fixture(scope="module")
def sandbox_id(client: Raw) -> Iterator[str]:
    made = str(client.value("create_workspace")["sandbox_id"])
    yield made
    client.value("terminate_sandbox", sandbox_id=made, discard=True)


def test_variables_stay_and_what_a_cell_shows_can_be_read_and_seen(client: Raw, sandbox_id: str) -> None:
    client.value("run_code", sandbox_id=sandbox_id, code="answer = 6 * 7")
    shown = client.call("run_code", sandbox_id=sandbox_id, code="print('said')\nanswer")
    value = shown["structuredContent"]
    assert (value["status"], value["stdout"], value["is_running"]) == ("ok", "said\n", False)
    assert shown["content"][0]["text"] == "said\n42" and value["call"]["receipt_id"]
    drawn = client.call(
        "run_code",
        sandbox_id=sandbox_id,
        code="import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()",
    )
    pictures = [one for one in drawn["content"] if one["type"] == "image"]
    assert [one["mimeType"] for one in pictures] == ["image/png"] and pictures[0]["data"].startswith("iVBOR")
    assert [one["data"]["image/png"] for one in drawn["structuredContent"]["results"]] == [None]
    failed = client.call("run_code", sandbox_id=sandbox_id, code="1 / 0")
    assert failed["structuredContent"]["raised"]["name"] == "ZeroDivisionError"
    assert "ZeroDivisionError" in failed["content"][0]["text"]


def test_a_cell_that_takes_its_time_is_fetched_later_by_its_id(client: Raw, sandbox_id: str) -> None:
    begun = client.value("run_code", sandbox_id=sandbox_id, code=UNTIL_GO, wait_s=2)
    assert begun["is_running"] is True
    other = Raw(client.served)
    assert other.value("get_cell", cell_id=begun["cell_id"], wait_s=0)["is_running"] is True
    client.value("write_file", sandbox_id=sandbox_id, path="go", content="")
    over = other.value("get_cell", cell_id=begun["cell_id"])
    assert (over["status"], over["stdout"], over["is_running"]) == ("ok", "begun\nover\n", False)
    client.value("run_command", sandbox_id=sandbox_id, command="rm go")
    again = client.value("run_code", sandbox_id=sandbox_id, code=UNTIL_GO, wait_s=1)
    other.value("interrupt_cell", cell_id=again["cell_id"])
    assert other.value("get_cell", cell_id=again["cell_id"])["status"] == "interrupted"


def test_a_cell_whose_output_is_judged_before_it_is_shown_is_known_while_it_runs(
    installation: Installation, client: Raw
) -> None:
    rule = {"id": "judged", "hook": "POST_TOOL_RESPONSE", "when": {"output": {"contains": "SECRET"}}, "then": "deny"}
    with SyncColdframe(installation.url, installation.token) as owner:
        kept = owner.policy.show().text
        owner.policy.load(json.dumps({"version": 1, "rules": [rule]}))
        try:
            made = str(client.value("create_workspace")["sandbox_id"])
            begun = client.value("run_code", sandbox_id=made, code=UNTIL_GO, wait_s=3)
            assert begun["is_running"] is True and "stdout" not in begun
            assert client.value("get_cell", cell_id=begun["cell_id"], wait_s=0)["is_running"] is True
            assert client.code("run_code", sandbox_id=made, code="1", wait_s=0.1) == "CELL_NOT_BEGUN"
            client.value("write_file", sandbox_id=made, path="go", content="")
            assert client.value("get_cell", cell_id=begun["cell_id"])["stdout"] == "begun\nover\n"
            client.value("run_command", sandbox_id=made, command="rm go")
            again = client.value("run_code", sandbox_id=made, code=UNTIL_GO, wait_s=1)
            client.value("interrupt_cell", cell_id=again["cell_id"])
            assert client.value("get_cell", cell_id=again["cell_id"])["status"] == "interrupted"
            client.value("terminate_sandbox", sandbox_id=made, discard=True)
        finally:
            owner.policy.load(kept)


@pytest.mark.parametrize("revision", REVISIONS)
def test_the_official_client_takes_each_of_these_answers(
    installation: Installation, sandbox_id: str, revision: str
) -> None:
    async def flow() -> None:
        async with connected(installation.url, installation.token, revision=revision) as client:
            await client.list_tools()
            for code, wait_s in (("6 * 7", 30), ("1 / 0", 30), ("import time; time.sleep(1)", 0.2)):
                arguments = {"sandbox_id": sandbox_id, "code": code, "wait_s": wait_s}
                result = await client.call_tool("run_code", arguments)
                assert not result.is_error, result.structured_content
                await client.call_tool("get_cell", {"cell_id": result.structured_content["cell_id"]})

    asyncio.run(flow())


def test_a_cell_that_no_event_can_carry_comes_without_what_is_long_and_is_fetched_whole(
    client: Raw, sandbox_id: str
) -> None:
    code = "from IPython.display import display\nprint('x' * 900_000)\ndisplay({'text/html': 'y' * 100_000}, raw=True)\n6 * 7"
    arguments = {"sandbox_id": sandbox_id, "code": code}
    message, headers = client.worded("tools/call", {"name": "run_code", "arguments": arguments}, None, None)
    _, _, told = client.post(message, headers={**headers, "Accept": "text/event-stream"})
    assert len(told) < 768 * 1024
    answer = json.loads(told.partition(b"data: ")[2])["result"]
    value = answer["structuredContent"]
    assert not answer.get("isError") and (value["status"], value["complete"]) == ("ok", False)
    assert [one["data"] for one in value["results"]] == [{"text/html": None}, {"text/plain": "42"}]
    assert value["cell_id"] in answer["content"][0]["text"] and value["call"]["receipt_id"]
    whole = client.value("get_cell", cell_id=value["cell_id"])
    assert whole["complete"] and len(whole["stdout"]) == 900_001


def test_contexts_have_variables_of_their_own(client: Raw, sandbox_id: str) -> None:
    made = client.value("create_context", sandbox_id=sandbox_id, language="python")
    client.value("run_code", sandbox_id=sandbox_id, context_id=made["context_id"], code="own = 1")
    missing = client.value("run_code", sandbox_id=sandbox_id, code="'own' in globals()")
    assert missing["results"][0]["data"]["text/plain"] == "False"
    assert made["context_id"] in [
        one["context_id"] for one in client.value("list_contexts", sandbox_id=sandbox_id)["contexts"]
    ]
    client.value("restart_context", sandbox_id=sandbox_id, context_id=made["context_id"])
    gone = client.value("run_code", sandbox_id=sandbox_id, context_id=made["context_id"], code="'own' in globals()")
    assert gone["results"][0]["data"]["text/plain"] == "False"


def test_what_a_rule_forbids_is_forbidden_to_cells_as_well(client: Raw, sandbox_id: str) -> None:
    assert client.code("run_code", sandbox_id=sandbox_id, language="bash", code="sudo true") == "DENIED_BY_RULE"
    assert client.code("get_cell", cell_id="cell_" + "0" * 24) == "NOT_FOUND"
