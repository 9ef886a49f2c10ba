"""A workspace belongs to one agent, has its published layout, and outlives sandboxes and servers."""

import os

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import ColdframeError, InvalidArgument
from tests.installation import Installation


@pytest.mark.req("T1.40")
def test_the_layout_is_made_on_first_use(sandbox: SyncSandbox, installation: Installation, agent_id: str) -> None:
    entries = {(entry.path, entry.type) for entry in sandbox.list_directory().entries}
    assert entries == {
        (".exec_history", "file"),
        ("integrations", "directory"),
        ("scratch", "directory"),
        ("skills", "directory"),
    }
    if os.access(os.path.join(installation.data_dir, "workspace", agent_id), os.R_OK | os.X_OK):
        on_disk = set(os.listdir(os.path.join(installation.data_dir, "workspace", agent_id)))
        assert on_disk == {path for path, _ in entries}


@pytest.mark.req("T1.41")
def test_projects_of_several_files_are_developed_in_place(sandbox: SyncSandbox) -> None:
    sandbox.write_file("integrations/crm/main.py", "def total(rows):\n    return sum(rows)\n")
    sandbox.write_file(
        "integrations/crm/test_main.py",
        "import unittest\nfrom main import total\n\nclass Total(unittest.TestCase):\n"
        "    def test_sums(self):\n        self.assertEqual(total([1, 2]), 3)\n",
    )
    assert sandbox.run_command(["python3", "-m", "unittest", "-v"], cwd="integrations/crm").exit_code == 0
    if any(runtime.name == "deno" and runtime.present for runtime in sandbox.runtimes()):
        sandbox.write_file("skills/greet/package.json", '{"name": "greet", "type": "module"}\n')
        sandbox.write_file("skills/greet/index.ts", "export const greet = (name: string): string => `hello ${name}`;\n")
        sandbox.write_file(
            "skills/greet/index_test.ts",
            "import { greet } from './index.ts';\n"
            "Deno.test('greets', () => { if (greet('you') !== 'hello you') throw new Error('wrong'); });\n",
        )
        answer = sandbox.run_command(["deno", "test"], cwd="skills/greet")
        assert answer.exit_code == 0, answer.stderr


@pytest.mark.req("T1.42")
def test_scratch_is_cleaned_only_when_asked(client: SyncColdframe, sandbox: SyncSandbox, agent_id: str) -> None:
    sandbox.run_command(
        "mkdir -p scratch/deep/er; touch scratch/a scratch/deep/er/b; echo keep > skills/keep; chmod 0 scratch/deep"
    )
    client.agents.clean_scratch(agent_id)
    assert sandbox.run_command("find scratch; cat skills/keep").stdout == "scratch\nkeep\n"


@pytest.mark.req("T1.44")
def test_a_workspace_outlives_its_sandboxes(client: SyncColdframe, agent_id: str) -> None:
    with client.sandboxes.create(agent_id=agent_id) as first:
        first.run_command(
            "echo data > kept; chmod 640 kept; ln -s kept link; mkdir -p .local/bin; touch -d @1000000000 kept"
        )
    with client.sandboxes.create(agent_id=agent_id) as second:
        answer = second.run_command("cat link; stat -c '%a %Y' kept")
        assert answer.stdout == "data\n640 1000000000\n"


@pytest.mark.req("T1.45", "T1.48")
def test_agents_do_not_see_each_other(client: SyncColdframe, sandbox: SyncSandbox, agent_id: str) -> None:
    sandbox.write_file("secret.txt", "canary-5d1f")
    with client.sandboxes.create(agent_id=f"{agent_id}-other") as other:
        answer = other.run_command("grep -rs canary-5d1f /home /tmp /var /run 2>/dev/null; ls /home; ls /home/user")
        assert "canary" not in (answer.stdout or "")
        told = other.run_command("cat /proc/*/cmdline /proc/*/environ 2>/dev/null | tr '\\0' ' '").stdout
        assert told is not None and agent_id not in told
        for path in (
            f"../{agent_id}/secret.txt",
            f"/home/user/../{agent_id}/secret.txt",
            f"../../workspace/{agent_id}/secret.txt",
        ):
            with pytest.raises(ColdframeError) as failure:
                other.read_file(path)
            assert failure.value.code == "OUTSIDE_WORKSPACE"


@pytest.mark.req("T1.46")
@pytest.mark.parametrize(
    "bad",
    [
        "../x",
        "a/b",
        "",
        ".",
        "..",
        "background",
        "Upper",
        "a b",
        "-a",
        "a" * 300,
        "a\u0430",
        "a\n",
        "a.b",
        "a_b",
        "\uff41",
    ],
)
def test_unsafe_agent_ids_are_refused(client: SyncColdframe, bad: str) -> None:
    before = {agent.agent_id for agent in client.agents.list()}
    with pytest.raises(InvalidArgument):
        client.agents.create(bad)
    with pytest.raises((InvalidArgument, ValueError)):
        client.sandboxes.create(agent_id=bad)
    assert {agent.agent_id for agent in client.agents.list()} == before


@pytest.mark.req("T1.47")
def test_deleting_an_agent_keeps_its_audit(client: SyncColdframe, agent_id: str) -> None:
    with client.sandboxes.create(agent_id=agent_id) as sandbox:
        sandbox.write_file("left.txt", "x")
        sandbox.run_command("echo recorded")
    client.agents.delete(agent_id)
    assert agent_id not in {agent.agent_id for agent in client.agents.list()}
    kinds = [entry.kind for entry in client.ledger.entries(agent_id=agent_id, limit=1000)]
    assert kinds.count("call.started") == kinds.count("call.ended") == 2
    with client.sandboxes.create(agent_id=agent_id) as again:
        assert [entry.path for entry in again.list_directory("scratch").entries] == []
        assert not any(entry.path == "left.txt" for entry in again.list_directory().entries)
        assert "recorded" not in (again.read_file(".exec_history").content or "")


def test_a_background_workspace_is_gone_with_its_session(client: SyncColdframe, installation: Installation) -> None:
    with client.sandboxes.create(background=True) as sandbox:
        session = sandbox.info.session_id
        sandbox.write_file("temporary", "x")
        assert {entry.path for entry in sandbox.list_directory().entries} >= {"temporary"}
        assert os.path.isdir(os.path.join(installation.data_dir, "background", session))
    assert not os.path.exists(os.path.join(installation.data_dir, "background", session))
