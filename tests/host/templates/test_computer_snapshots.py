"""What users see of snapshots of a sandbox with a system of its own: records, resets, forks, differences and files of it."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import IsolationUnavailable, Refused
from coldframe.contract.persistence import fate
from tests.installation import Installation

pytestmark = pytest.mark.timeout(900)  # whoever comes first waits for the template to be built
RULES = """version: 1
rules:
  - {id: keys, hook: PRE_TOOL_CALL, when: {path: {glob: "/etc/private/**"}}, then: deny, reason: not this}
"""
NO_LOOK = """version: 1
rules:
  - {id: system, hook: PRE_TOOL_CALL, when: {path: "/"}, then: deny, reason: not these}
"""


@pytest.fixture
def client(installed: Installation) -> Iterator[SyncColdframe]:
    with SyncColdframe(installed.url, installed.token) as client:
        yield client


def said(sandbox: SyncSandbox, line: str) -> str:
    answer = sandbox.run_command(line, user="root", timeout_s=200)
    assert answer.exit_code == 0, answer
    return str(answer.stdout)


@pytest.mark.req("T4.65", "T4.67", "T4.69")
def test_a_computer_is_taken_back_and_forked_with_its_system(client: SyncColdframe, installed: Installation) -> None:
    is_root = os.stat(installed.data_dir).st_uid == 0
    with client.sandboxes.create("first", template="debian") as first:
        said(
            first,
            "echo one > /var/state; rm /usr/bin/less; echo one > /home/user/state; mkdir /etc/private; id > /etc/private/id",
        )
        tried = first.stop(dry_run=True).paths
        assert tried is not None and tried.complete == is_root
        first.stop()
        taken = first.take_snapshot("one")
        contract = first.contract()["persistence"]
        told = next(one["value"] for one in contract if one["id"] == "persistence.system")
        assert told["events"]["reset"] == fate("system", "reset", background=False, profile="computer")
        if not is_root:  # its layers belong to others than the daemon
            assert taken.system is None and "identity" not in taken.left_out
            with pytest.raises(IsolationUnavailable, match="subordinate ids"):
                first.reset(taken.snapshot_id)
            return
        assert taken.system is not None and taken.system.template_sha256 == first.info.template_sha256
        assert {"/var/state", "/etc/private/id", "/home/user/state"} <= set(tried.kept)
        assert not {"/usr/bin/less", "/etc/debian_version"} & set(tried.kept), "what its template has is not its own"
        stopped = first.stop(dry_run=True).paths
        assert stopped is not None and stopped.kept == tried.kept and not tried.lost
        assert {"history", "logins", "identity", "system_logins"} <= set(taken.left_out)
        first.start_again()
        said(first, "echo two > /var/state; echo two > /home/user/state; useradd worker")
        plan = first.reset(taken.snapshot_id, dry_run=True)
        assert plan.changes is not None and plan.system_changes is not None
        assert "state" in {one.path for one in plan.changes.changes}
        assert {"var/state", "etc/passwd"} <= {one.path for one in plan.system_changes.changes}
        emptied = first.reset("empty", dry_run=True).system_changes
        assert emptied is not None and {"added", "deleted"} & {
            one.change for one in emptied.changes if one.path in ("usr/bin/less", "var/state")
        }
        assert said(first, "cat /var/state") == "two\n"
        done = first.reset(taken.snapshot_id)
        assert done.state.state == "running" and done.kept is not None and done.kept.system is not None
        assert (
            said(first, "cat /var/state /home/user/state; test ! -e /usr/bin/less; ! id worker 2>/dev/null")
            == "one\none\n"
        )
        assert (
            first.call("read_file", {"path": "var/state"}, snapshot=f"{done.kept.snapshot_id}:system").value["content"]
            == "two\n"
        )

        def coldframe(*words: str) -> subprocess.CompletedProcess[str]:
            line = [sys.executable, "-m", "coldframe.cli", "--data-dir", installed.data_dir, *words]
            return subprocess.run(line, capture_output=True, text=True, check=False, env=installed.environment)

        differs = coldframe("snapshot", "diff", "template", taken.snapshot_id, "--system")
        assert differs.returncode == 1 and "usr/bin/less" in differs.stdout and "var/state" in differs.stdout
        assert coldframe("snapshot", "read", taken.snapshot_id, "var/state", "--system").stdout == "one\n"
        client.policy.load(RULES)
        refused = coldframe("snapshot", "read", taken.snapshot_id, "etc/private/id", "--system")
        assert refused.returncode != 0 and "not this" in refused.stderr + refused.stdout
        client.policy.load(NO_LOOK)
        with pytest.raises(Refused, match="not these"):
            first.stop(dry_run=True)
        client.policy.load("version: 1\n")

        with first.fork("second") as second:
            assert second.info.spec.profile == "computer"
            assert said(second, "cat /var/state; test ! -e /usr/bin/less; stat -c %U /var/state") == "one\nroot\n"
            ids = {said(one, "cat /etc/machine-id") for one in (first, second)}
            assert len(ids) == 2
        made = coldframe("sandbox", "fork", taken.snapshot_id, "--agent", "third").stdout.strip()
        third = client.sandboxes.get(made)
        assert said(third, "cat /var/state /home/user/state") == "one\none\n"
        client.snapshots.remove(taken.snapshot_id)
        third.stop()
        third.start_again()
        assert said(third, "cat /var/state") == "one\n"
        third.terminate()


@pytest.mark.req("T4.03")
def test_work_moves_from_the_system_of_the_machine_to_one_of_its_own_and_nothing_is_lost(client: SyncColdframe) -> None:
    look = "sha256sum state data/one lib/mine.py; PYTHONPATH=lib python3 -c 'import mine; print(mine.VALUE)'; git -C repo log --format=%s"
    with client.sandboxes.create("grows") as small:
        for path, content in (("state", "a"), ("data/one", "b" * 100_000), ("lib/mine.py", "VALUE = 7\n")):
            small.write_file(path, content)
        small.run_command(
            "git init -q repo; git -C repo -c user.name=a -c user.email=a@b commit -q --allow-empty -m saved"
        )
        before = small.run_command(look).stdout
    assert before.endswith("7\nsaved\n")
    with client.sandboxes.create("grows", template="debian") as large:
        assert large.run_command(look).stdout == before
        assert said(large, "cat /home/user/state; touch /usr/bin/more-rights") == "a"
    with client.sandboxes.create("grows") as small:  # and back: the system of its own waits
        assert small.run_command(look).stdout == before
    client.agents.delete("grows")
