"""Work that was begun small goes on in a larger profile: the same id, files and record, and nothing of it is copied by hand."""

import hashlib
import json
from pathlib import Path

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import DemotionRefused, NotFound, NotInProfile
from tests.installation import Installation

FILES = {"data.csv": b"a,b\n1,2\n", "code/work.py": b"print('worked')\n", "out/chart.bin": bytes(range(256))}
PLACE = "import sys; print(f'.local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages')"


def digests(sandbox: SyncSandbox) -> dict[str, str]:
    return {path: hashlib.sha256(sandbox.read_file(path).data).hexdigest() for path in FILES}


@pytest.mark.req("T4.03")
def test_an_interpreter_becomes_a_workspace_with_its_files_and_packages_under_one_id(
    client: SyncColdframe, agent_id: str
) -> None:
    with client.sandboxes.create(profile="interpreter") as sandbox:
        for path, content in FILES.items():
            sandbox.upload(path, content)
        before = digests(sandbox)
        with pytest.raises(NotInProfile) as refused:
            sandbox.run_command("true")
        assert refused.value.facts["profiles"] == ["sandbox", "workspace", "computer"]
        first = sandbox.promote("sandbox")
        assert (first.spec.profile, first.lost, first.state.state) == ("sandbox", (), "running")
        place = (sandbox.run_command(["python3", "-c", PLACE]).stdout or "").strip()
        sandbox.write_file(f"{place}/leftbox.py", "value = 42\n")
        server = sandbox.start("exec sleep 600")
        done = sandbox.promote("workspace", agent_id=agent_id)
        assert (done.sandbox_id, done.agent_id, done.spec.profile) == (sandbox.id, agent_id, "workspace")
        assert done.snapshot_id is not None
        [lost] = [one for one in done.lost if one.item == "processes"]
        assert lost.command_ids == (server.id,)
        assert digests(sandbox) == before
        ran_there = sandbox.run_command(["python3", "-c", "import leftbox; print(leftbox.value)"])
        assert ran_there.stdout == "42\n"
        info = sandbox.command(ran_there.command_id)
        assert info.status is not None and info.status.code is None
        with pytest.raises(DemotionRefused):
            sandbox.promote("interpreter")
        again = sandbox.promote("workspace")
        assert (again.from_profile, again.lost) == ("workspace", ())
        assert sandbox.stop().state.state == "stopped"
        sandbox.start_again()
        assert digests(sandbox) == before
    with client.sandboxes.create(agent_id) as other:
        assert digests(other) == before, "they are the agent's"


@pytest.mark.req("T4.03")
def test_nothing_of_the_temporary_workspace_is_left_and_a_system_that_is_not_there_changes_nothing(
    installation: Installation, client: SyncColdframe, agent_id: str
) -> None:
    with client.sandboxes.create(background=True) as sandbox:
        sandbox.write_file("a.txt", "one\n")
        with pytest.raises(NotFound):
            sandbox.promote("computer", template="not-there")
        assert sandbox.refresh().spec.profile == "sandbox"
        assert sandbox.run_command("cat a.txt").stdout == "one\n"
        session = sandbox.info.session_id
        sandbox.promote("workspace", agent_id=agent_id)
        left = Path(installation.data_dir) / "background" / session
        assert not left.exists() or not any(left.iterdir())


@pytest.mark.req("T4.05")
def test_the_command_line_recommends_and_describes(installation: Installation, sandbox: SyncSandbox) -> None:
    found = json.loads(installation.cli("--json", "recommend", "not", "few_runs", "human-review").stdout)
    assert (found["profile"], [one["requirement"] for one in found["reasons"]]) == (
        "workspace",
        ["few_runs", "human_review"],
    )
    assert json.loads(installation.cli("--json", "recommend").stdout)["profile"] == "interpreter"
    assert "What can the agent do?" in installation.cli("describe", sandbox.id).stdout.decode()
    assert "left out" not in installation.cli("sandbox", "summary", sandbox.id).stdout.decode()
