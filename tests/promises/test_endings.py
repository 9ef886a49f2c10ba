"""What an end takes away is told by name before, and is then exactly that; work that no commit has does not go unasked."""

import json

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import UnsavedWork
from tests.installation import Installation
from tests.promises.test_snapshots import can_hold, take

TREE = """
import os, pathlib, subprocess
home = pathlib.Path("/home/user")
repo = home / "repo"
for n in range(40):
    for m in range(100):
        file = repo / f"d{n}" / f"f{m}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{n} {m}")
(repo / ".gitignore").write_text("out/\\n")
run = lambda *words: subprocess.run(["git", *words], cwd=repo, check=True)
run("init", "-q"); run("config", "user.name", "a"); run("config", "user.email", "a@b")
run("add", "."); run("commit", "-qm", "first")
for n in range(600):
    for file in (repo / "out" / f"o{n}", home / ".cache" / "tool" / f"c{n}"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
for n in range(300):
    pathlib.Path(f"/tmp/t{n}").write_text("x")
os.makedirs("/dev/shm/shared")
os.symlink("/etc/passwd", home / "link")
"""
CHANGED = (
    "rm -r repo/d1; printf y > repo/d2/f1; mkdir repo/new; for n in $(seq 1500); do printf x > repo/new/$n; done; "
    "rm -r .cache; printf x > .profile"
)


def built(sandbox: SyncSandbox) -> None:
    sandbox.write_file("make.py", TREE)
    done = sandbox.run_command(["python3", "make.py"])
    assert done.exit_code == 0, done.stderr


def there(sandbox: SyncSandbox, snapshot: str | None = None) -> set[str]:
    found = sandbox.list_directory(recursive=True, max_entries=100_000, snapshot=snapshot)
    assert found.complete
    return {f"/home/user/{one.path}" for one in found.entries if not one.path.startswith(".exec_history")}


def in_memory(sandbox: SyncSandbox) -> set[str]:
    return set((sandbox.run_command("find /tmp /dev/shm /run -xdev -mindepth 1").stdout or "").split("\n")) - {""}


@pytest.mark.req("T4.58")
def test_dry_runs_of_every_end_tell_5000_files_and_the_end_is_exactly_that(client: SyncColdframe) -> None:
    sandbox = client.sandboxes.create(background=True)
    before_any = in_memory(sandbox)
    built(sandbox)
    files = there(sandbox)
    assert len(files) > 5000
    temporary = in_memory(sandbox) - before_any
    # A stop.
    told = sandbox.stop(dry_run=True)
    assert told.paths is not None and told.paths.complete
    assert set(told.paths.kept) == files
    assert len(temporary) > 300 and temporary <= set(told.paths.lost)
    assert {one.item: one.count for one in told.lost} == {one.item: one.count for one in sandbox.stop().lost}
    sandbox.start_again()
    assert there(sandbox) == files
    assert in_memory(sandbox) == before_any
    # A snapshot, and a reset to it.
    plan = sandbox.plan_snapshot()
    taken = take(sandbox)
    assert {f"/home/user/{path}" for path in plan.paths} == there(sandbox, taken.snapshot_id) == files
    assert sandbox.run_command(CHANGED).exit_code == 0
    changed = sandbox.reset(taken.snapshot_id, dry_run=True)
    assert changed.changes is not None and changed.changes.next_after is None
    now = there(sandbox)
    sandbox.reset(taken.snapshot_id)
    paths = {f"/home/user/{one.path}": one.change for one in changed.changes.changes}
    assert {path for path, change in paths.items() if change == "deleted"} == now - files
    assert {path for path, change in paths.items() if change == "added"} == files - now
    assert there(sandbox) == files and "/home/user/repo/d2/f1" in paths
    # The end.
    ending = sandbox.terminate(dry_run=True)
    assert ending.paths is not None and ending.paths.complete and ending.unsaved == ()
    assert set(ending.paths.lost) - set(in_memory(sandbox)) == files and ending.paths.kept == ()
    assert {one.item for one in ending.kept} & {"tree", "commits", "home", "temporary", "processes"} == set()
    if not can_hold(sandbox):
        sandbox.stop()
    ended = sandbox.terminate(snapshot=True)
    other = client.sandboxes.create(background=True)
    assert there(other, ended.snapshot_id) == files  # what there was at the end
    other.terminate()
    for snapshot_id in (taken.snapshot_id, ended.snapshot_id):
        client.snapshots.remove(str(snapshot_id))


@pytest.mark.req("T3.42")
def test_a_commit_outlives_its_sandbox_and_what_is_in_none_is_asked_about(
    installation: Installation, client: SyncColdframe, agent_id: str
) -> None:
    commit = (
        "git init -q repo && cd repo && git config user.name a && git config user.email a@b && seq 9 > n && git add . && "
        "git commit -qm first && git rev-parse HEAD"
    )
    durable = client.sandboxes.create(agent_id)
    made = durable.run_command(commit)
    assert durable.run_command("printf x > repo/n").exit_code == 0
    durable.terminate()  # the workspace stays, and with it what is in no commit
    again = client.sandboxes.create(agent_id)
    looked = again.run_command(
        "cd repo && git rev-parse HEAD && git fsck --strict 2>/dev/null && git status --porcelain"
    )
    assert looked.stdout == f"{made.stdout} M n\n"
    again.terminate()
    sandbox = client.sandboxes.create(background=True)
    assert sandbox.run_command(commit).exit_code == 0
    hostile = "git config core.fsmonitor 'touch /home/user/ran' && git config filter.f.clean 'touch /home/user/ran' && echo '* filter=f' > .gitattributes"
    assert sandbox.run_command(f"cd repo && {hostile} && printf y > n && printf z > new").exit_code == 0
    with pytest.raises(UnsavedWork) as refused:
        sandbox.terminate()
    assert sorted(map(str, refused.value.facts["files"])) == ["repo/.gitattributes", "repo/n", "repo/new"]  # type: ignore[arg-type]
    assert "ran" not in {one.name for one in sandbox.list_directory().entries}
    said = installation.cli("--json", "sandbox", "terminate", sandbox.id)
    assert said.returncode != 0 and b"UNSAVED_WORK" in said.stdout + said.stderr
    sandbox.stop()
    with pytest.raises(UnsavedWork):
        sandbox.terminate()
    done = installation.cli("--json", "sandbox", "terminate", sandbox.id, "--snapshot")
    kept = json.loads(done.stdout)["snapshot_id"]
    with client.sandboxes.create(background=True, snapshot=kept) as other:
        assert other.read_file("repo/new").content == "z"
        with pytest.raises(UnsavedWork):
            other.terminate()
    client.snapshots.remove(kept)
