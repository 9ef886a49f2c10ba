"""A durable workspace is there to return to: after its sandbox has ended, and a month later, each entry has its receipt, every link
leads somewhere, and the work goes on from there."""

import contextlib
import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import NotFound, WrongState
from coldframe.contract.overview import OverviewAction, OverviewSection, WorkspaceOverview
from coldframe.contract.policy import Role
from tests.faults.jumping import JumpingInstallation
from tests.installation import Installation, wait_until
from tests.mcp.speaking import Raw, Server
from tests.promises.governed import token_of

MONTH_S = 30 * 86400.0
NAMES = ["files", "git", "activity", "builds", "logs", "previews", "deployment"]
APP = {
    "app/server.py": "import http.server\n\nclass Page(http.server.BaseHTTPRequestHandler):\n    def do_GET(self):\n"
    "        self.send_response(200)\n        self.end_headers()\n        self.wfile.write(b'well')\n\n"
    "http.server.HTTPServer(('127.0.0.1', 8090), Page).serve_forever()\n",
    "app/total.py": "def total(prices):\n    return sum(prices) - 1\n",
    "app/test_total.py": "import unittest\nfrom total import total\n\n\nclass Totals(unittest.TestCase):\n"
    "    def test_sum(self):\n        self.assertEqual(total([1, 2]), 3)\n",
}


@pytest.fixture(scope="module")
def later() -> Iterator[JumpingInstallation]:
    started = JumpingInstallation()
    try:
        started.start()
        yield started
    finally:
        left = started.close()
    assert not left, left


def get(installation: Installation, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(installation.url).netloc, timeout=30)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {installation.token}"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def post(installation: Installation, action: OverviewAction, **names: str) -> dict[str, Any]:
    path = action.path.format(**names)
    connection = http.client.HTTPConnection(urlsplit(installation.url).netloc, timeout=60)
    try:
        headers = {"Authorization": f"Bearer {installation.token}", "Content-Type": "application/json"}
        connection.request("POST", path, body=json.dumps(action.body), headers=headers)
        answer = connection.getresponse()
        value: dict[str, Any] = json.loads(answer.read())
        assert answer.status == 200, value
        return value
    finally:
        connection.close()


def judged(installation: Installation, told: WorkspaceOverview) -> dict[str, OverviewSection]:
    """All seven, with no dead link and no entry without a receipt among what has ended."""
    assert [one.name for one in told.sections] == NAMES
    links = [
        (entry, name, path) for one in told.sections for entry in one.entries for name, path in entry.links.items()
    ]
    dead = [(name, path) for _, name, path in links if get(installation, path)[0] != 200]
    assert not dead and len(links) > 20
    for section in told.sections:
        for entry in section.entries:
            assert entry.receipt_id is not None and entry.links["receipt"] == f"/v1/receipts/{entry.receipt_id}", entry
    return {one.name: one for one in told.sections}


def work(sandbox: SyncSandbox) -> str:
    sandbox.git.init("app")
    for path, content in APP.items():
        sandbox.write_file(path, content)
    assert sandbox.run_command("python3 -m unittest", cwd="app").exit_code == 1
    head = sandbox.git.commit("Begin the application", "app", paths=["."]).head
    assert head is not None
    return head


@pytest.mark.req("T3.74")
def test_a_workspace_is_returned_to_after_its_end_and_a_month_later(later: JumpingInstallation) -> None:
    with SyncColdframe(later.url, later.token) as client:
        with client.sandboxes.create(agent_id="returning") as sandbox:
            head = work(sandbox)
            build = client.builds.start(
                sandbox.id, [{"name": "pack", "command": "tar cf app.tar app/total.py"}], artifacts=["app.tar"]
            )
            client.builds.wait(build.build_id)
            sandbox.take_snapshot("before the preview")
            preview = client.previews.create(sandbox.id, 8090, start="python3 app/server.py", name="the page")
            before = sandbox.overview()
            assert [one.name for one in before.sections] == NAMES
            assert before.sections[5].entries[0].facts["state"] == "healthy"
        later.jump(MONTH_S)
        told = client.sandboxes.get(sandbox.id).overview()
        sections = judged(later, told)
        assert told.state == "terminated" and told.agent_id == "returning"
        assert not sections["deployment"].available and sections["deployment"].reason

        files = {entry.title: entry for entry in sections["files"].entries}
        assert set(APP) <= set(files)
        assert get(later, files["app/total.py"].links["content"])[1].decode() == APP["app/total.py"]
        repository = next(one for one in sections["git"].entries if one.title == "repository app")
        assert repository.facts["commit"] == head and repository.facts["message"] == "Begin the application"
        shown = json.loads(get(later, repository.links["commit"])[1])
        assert shown["commit"]["id"] == head and shown["diff"]["total"] == 3
        assert any("git" in one.title and "commit" in one.title for one in sections["git"].entries)
        failed = next(one for one in sections["logs"].entries if one.title == "python3 -m unittest")
        assert failed.facts["exit_code"] == 1 and b"test_sum" in get(later, failed.links["stderr"])[1]
        made = sections["builds"].entries[0]
        assert made.facts["state"] == "succeeded" and get(later, made.links["log"])[0] == 200
        served = sections["previews"].entries[0]
        assert served.title == "the page" and served.facts["state"] != "healthy" and "log" in served.links
        assert {one.facts["tool"] for one in sections["activity"].entries} >= {"write_file", "run_command"}

        actions = {one.name: one for one in told.actions}
        begun = post(later, actions["start_on_commit"])
        try:
            for step in actions["start_on_commit"].then:
                done = post(later, step, sandbox_id=begun["sandbox_id"])
            assert done["head"] == head and done["branch"] is None
            assert (
                client.sandboxes.get(begun["sandbox_id"]).read_file(f"{done['repository']}/total.py").content
                == (APP["app/total.py"])
            )
        finally:
            client.sandboxes.get(begun["sandbox_id"]).terminate(discard=True)
        copied = post(later, actions["start_on_snapshot"])
        try:
            copy = client.sandboxes.get(copied["sandbox_id"])
            assert copy.read_file("app/total.py").content == APP["app/total.py"]
        finally:
            copy.terminate(discard=True)
        rebuild = next((one for one in served.actions if one.name == "rebuild"), None)
        if rebuild is not None:  # where this machine takes snapshots of what runs
            again = post(later, rebuild)
            assert again["preview_id"] == preview.preview_id
            now = client.sandboxes.get(again["sandbox_id"]).overview()
            shown_again = now.sections[5].entries[0]
            assert shown_again.facts["state"] == "healthy"
            controls = {one.name: one for one in shown_again.actions}
            for control, state in (("stop", "stopped"), ("start", "healthy")):
                post(later, controls[control])
                status = client.previews.get(preview.preview_id).status
                assert status is not None and status.state == state
            assert get(later, shown_again.links["log"])[0] == 200
            client.sandboxes.get(again["sandbox_id"]).terminate(discard=True)


@pytest.mark.req("T3.74")
def test_the_agent_the_command_line_and_mcp_see_it_and_others_do_not(
    installation: Installation, client: SyncColdframe, sandbox: SyncSandbox, agent_id: str
) -> None:
    work(sandbox)
    sandbox.terminate(discard=True)
    with SyncColdframe(installation.url, token_of(client, Role.AGENT, agent_id)) as mine:
        told = mine.sandboxes.get(sandbox.id).overview()
        assert [one.name for one in told.sections] == NAMES and told.actions == ()
    with SyncColdframe(installation.url, token_of(client, Role.AGENT, f"{agent_id}-other")) as other:
        with pytest.raises(NotFound):
            other.sandboxes.get(sandbox.id).overview()
    done = installation.cli("sandbox", "overview", sandbox.id)
    text = done.stdout.decode()
    assert done.returncode == 0 and "repository app" in text and "deployment: this version deploys nothing" in text
    speaker = Raw(Server(installation.url, installation.token), installation.token)
    by_name = speaker.value("workspace_overview", workspace=agent_id)
    assert by_name["sandbox_id"] == sandbox.id and [one["name"] for one in by_name["sections"]] == NAMES


@pytest.mark.req("T3.74")
def test_of_a_sandbox_that_lost_its_agent_nothing_leads_to_whoever_has_that_name_now(
    client: SyncColdframe, agent_id: str
) -> None:
    name = f"{agent_id}-again"
    first = client.sandboxes.create(agent_id=name)
    work(first)
    own = first.take_snapshot("of the first").snapshot_id
    first.terminate(discard=True)
    assert {one.name for one in first.overview().actions} == {
        "start_on_commit",
        "start_on_workspace",
        "start_on_snapshot",
    }
    wait_until(lambda: has_deleted(client, name), "nothing is done to its workspace any more")
    with client.sandboxes.create(agent_id=name) as second:
        work(second)
        theirs = second.take_snapshot("of the second").snapshot_id
        of_first = {one.name: one for one in first.overview().actions}
        assert not {"start_on_commit", "start_on_workspace"} & of_first.keys()
        assert all(one.body.get("snapshot") == own for one in of_first.values())
        of_second = {one.name: one for one in second.overview().actions}
        assert of_second["start_on_snapshot"].body["snapshot"] == theirs
    wait_until(lambda: has_deleted(client, name), "nothing is done to its workspace any more")


def has_deleted(client: SyncColdframe, agent_id: str) -> bool:
    with contextlib.suppress(WrongState):
        client.agents.delete(agent_id)
        return True
    return False
