"""A state of files is kept, gone back to, read, compared, handed on and carried away, on a real machine and by the public ways."""

import contextlib
import json
import os
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import Conflict, NotFound, SnapshotCorrupt, WrongState
from coldframe.contract.policy import Label
from coldframe.contract.sandbox import Limits, SandboxSpec
from coldframe.contract.snapshot import Change, SnapshotInfo
from tests.installation import Installation, wait_until
from tests.promises.test_prepared import NAME, wheel

FORKS = 50 if "COLDFRAME_SLOW" in os.environ else 8
DATA_BYTES, WRITTEN_BYTES = 8 << 20, 4 << 20
WRITING = """
import itertools, os, sqlite3, time
base = sqlite3.connect("base.db")
base.execute("create table if not exists pairs (one integer, two integer)")
for n in itertools.count():
    with base:
        base.execute("insert into pairs values (?, ?)", (n, n))
    with open("count.new", "w") as file:
        file.write(str(n))
    os.replace("count.new", "count")
    time.sleep(0.001)
"""
REPOSITORY = (
    "mkdir old && touch -d 2001-02-03T04:05:06Z old/file && ln -s file old/link && "
    "touch -h -d 2024-02-03T04:05:06Z old/link && touch -d 2001-02-03T04:05:06Z old && git init -q repo && cd repo && git config user.name a && git config user.email a@b && "
    "seq 1000 > numbers && git add . && git commit -qm first"
)
SPOILED = (
    "rm -rf scratch/* .git-hooks; echo 'exit 1' > .bashrc; chmod 0 skills; mkdir -p .config/autostart; "
    "echo evil > .config/autostart/x; ln -s /etc/passwd link; mkdir -p .cache && head -c 100000 /dev/zero > .cache/big; "
    "sleep 1000 & export A=b; mkdir -p repo/.git/hooks; echo '#!/bin/sh' > repo/.git/hooks/pre-commit; "
    "echo x >> repo/numbers; echo gone > /tmp/left; true"
)


def count(sandbox: SyncSandbox) -> int:
    return int(sandbox.run_command("cat count 2>/dev/null || echo 0").stdout or 0)


def can_hold(sandbox: SyncSandbox) -> bool:
    """Whether this machine can hold processes still, without which there is no snapshot of a sandbox in which something runs."""
    return "memory" in sandbox.report().pause_kinds


def take(sandbox: SyncSandbox) -> SnapshotInfo:
    try:
        return sandbox.take_snapshot()
    except WrongState:
        assert not can_hold(sandbox)
    sandbox.stop()
    taken = sandbox.take_snapshot()
    sandbox.start_again()
    return taken


@pytest.mark.req("T4.66")
def test_a_sandbox_in_which_nothing_runs_is_copied_also_where_nothing_can_be_held_still(sandbox: SyncSandbox) -> None:
    sandbox.write_file("scratch/a", "one\n")
    sandbox.run_command("true")
    taken = sandbox.take_snapshot()
    assert taken.was_live
    assert sandbox.read_file("scratch/a", snapshot=taken.snapshot_id).content == "one\n"
    assert sandbox.run_command("cat scratch/a").stdout == "one\n", "its keeper goes on"
    if not can_hold(sandbox):
        for line in ("sleep 1000", "setsid sh -c 'sleep 1000 & exit' & wait; sleep 0.1"):
            runs = sandbox.run_command(line, background=True)
            with pytest.raises(WrongState, match="cannot be held still"):
                sandbox.take_snapshot()
            sandbox.signal(runs.command_id, cancel=True)


@pytest.mark.req("T4.65", "T4.66", "T4.67")
def test_a_state_is_kept_while_it_is_worked_on_and_comes_back_whole(
    client: SyncColdframe, sandbox: SyncSandbox, agent_id: str
) -> None:
    if not can_hold(sandbox):
        pytest.skip("processes cannot be held still on this machine")
    sandbox.write_file("scratch/settings", "configured\n")
    configured = sandbox.take_snapshot("configured")
    assert sandbox.run_command(REPOSITORY).exit_code == 0
    sandbox.write_file("writing.py", WRITING)
    writing = sandbox.run_command("python3 writing.py", background=True)
    wait_until(lambda: count(sandbox) > 20, "it writes")
    live = sandbox.take_snapshot("with data")
    assert live.was_live and live.label is Label.PUBLIC and live.agent_id == agent_id
    seen = count(sandbox)
    wait_until(lambda: count(sandbox) > seen, "it goes on")
    assert sandbox.command(writing.command_id).state == "running"
    assert sandbox.run_command(SPOILED).exit_code == 0
    before = sandbox.info
    done = sandbox.reset(live.snapshot_id)
    assert (done.sandbox_id, done.session_id, done.spec, done.state.state) == (
        before.sandbox_id, before.session_id, before.spec, "running"
    )  # fmt: skip
    assert writing.command_id in done.lost[0].command_ids
    whole = sandbox.run_command(
        "stat -c %Y old old/file old/link && "
        "git -C repo fsck --strict && git -C repo status --porcelain && ls -A skills scratch && "
        "test ! -e link -a ! -e .bashrc -a ! -e .cache -a ! -e .config -a ! -e /tmp/left -a ! -e repo/.git/hooks/pre-commit"
    )
    assert whole.exit_code == 0, whole
    assert (whole.stdout or "").split()[:3] == ["981173106", "981173106", "1706933106"]
    assert "numbers" not in (whole.stdout or "") and "settings" in (whole.stdout or "")
    assert (sandbox.run_command("ls -d /proc/[1-9]* | wc -l").stdout or "").strip() in ("2", "3", "4")
    checked = sandbox.run_command(
        'python3 -c \'import sqlite3; b = sqlite3.connect("base.db"); print(*b.execute("pragma integrity_check"));'
        ' print(*b.execute("select count(*) - count(distinct one), count(*) from pairs"))\''
    )
    assert (checked.stdout or "").startswith("('ok',)\n(0, "), checked
    # What a reset took away is there for a day, and can be taken back.
    assert done.kept is not None and done.kept.reason == "discarded" and done.kept.expires_at is not None
    assert sandbox.read_file(".bashrc", snapshot=done.kept.snapshot_id).content == "exit 1\n"
    sandbox.reset(configured.snapshot_id, discard=True)
    assert "repo" not in names(sandbox) and sandbox.read_file("scratch/settings").content == "configured\n"
    assert sandbox.output(writing.command_id).data is not None  # records stay
    assert client.receipt(str(whole.result.receipt_id))["exit_code"] == 0
    forks = [client.sandboxes.create(f"{agent_id}-{n}", snapshot=live.snapshot_id) for n in range(2)]
    for fork in forks:
        at_once = fork.take_snapshot(expires_in_s=60)
        fork.write_file("mine", fork.id)
        assert "mine" not in {one.name for one in fork.list_directory(snapshot=at_once.snapshot_id).entries}
        assert fork.run_command("git -C repo fsck --strict").exit_code == 0
    assert [fork.read_file("mine").content for fork in forks] == [fork.id for fork in forks]
    assert [len(one.commands()) for one in forks] == [1, 1] and sandbox.output(whole.command_id).data
    client.snapshots.remove(live.snapshot_id)
    assert forks[0].run_command("git -C repo status --porcelain").stdout == ""
    with pytest.raises(Conflict):
        client.sandboxes.create(agent_id, snapshot=configured.snapshot_id)
    for fork in forks:
        fork.terminate()
    spare = client.sandboxes.create(background=True)
    spare.write_file("kept", "x")
    ended = spare.terminate(snapshot=True)
    assert ended.state.state == "terminated" and ended.snapshot_id is not None
    assert sandbox.read_file("kept", snapshot=ended.snapshot_id).content == "x"


@pytest.mark.req("T4.67", "T4.66")
def test_each_of_three_moments_comes_back_as_it_was_and_forks_of_the_last_take_what_they_write(
    installation: Installation, client: SyncColdframe, sandbox: SyncSandbox
) -> None:
    if sandbox.run_command("python3 -m pip --version").exit_code != 0:
        pytest.skip("there is no pip on this machine")
    sandbox.write_file("scratch/settings", "configured\n")
    moments = {"configured": take(sandbox)}
    packed = f"{NAME}-1.0-py3-none-any.whl"
    sandbox.run_command(["sh", "-c", f"base64 -d > {packed}"], stdin=wheel())
    pip = "python3 -m pip install -q --no-index --no-deps --disable-pip-version-check --target site"
    assert sandbox.run_command(f"{pip} ./{packed}").exit_code == 0
    moments["with packages"] = take(sandbox)
    data = sandbox.run_command(f"head -c {DATA_BYTES} /dev/urandom > data && sha256sum data").stdout
    moments["with data"] = take(sandbox)
    look = f"cat scratch/settings; PYTHONPATH=site python3 -c 'import {NAME}; print({NAME}.value)' 2>&1 | tail -n 1; sha256sum data"
    seen = {}
    for name, moment in moments.items():
        with client.sandboxes.create(background=True, snapshot=moment.snapshot_id) as fork:
            seen[name] = str(fork.run_command(look).stdout)
    none = f"ModuleNotFoundError: No module named '{NAME}'"
    assert seen == {
        "configured": f"configured\n{none}\n",
        "with packages": "configured\n42\n",
        "with data": f"configured\n42\n{data}",
    }
    before = stored_bytes(installation)
    forks: list[SyncSandbox] = []
    try:
        for _ in range(FORKS):
            forks.append(client.sandboxes.create(background=True, snapshot=moments["with data"].snapshot_id))
        for fork in forks:
            fork.run_command(f"echo {fork.id} > mine; head -c {WRITTEN_BYTES} /dev/urandom > written; sync")
        assert [fork.run_command("cat mine").stdout for fork in forks] == [f"{fork.id}\n" for fork in forks]
        grown = stored_bytes(installation) - before
        if grown >= FORKS * DATA_BYTES:
            pytest.skip("this machine has no layers, so that a fork is a copy")
        assert FORKS * WRITTEN_BYTES <= grown <= FORKS * WRITTEN_BYTES * 1.05, "none has the data a second time"
    finally:
        for fork in forks:
            fork.terminate()


def stored_bytes(installation: Installation) -> int:
    """What its files take of the disk, each once, but for the records of what was done; what is mounted shows them again."""
    found = {}
    for folder, below, names in os.walk(installation.data_dir):
        if folder == installation.data_dir:
            below.remove("control")
        below[:] = [name for name in below if not os.path.ismount(os.path.join(folder, name))]
        for name in names:
            with contextlib.suppress(OSError):
                status = os.lstat(os.path.join(folder, name))
                found[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(found.values())


@pytest.mark.req("T4.65")
def test_a_sandbox_whose_disk_is_full_goes_back_to_one_that_has_room(client: SyncColdframe, agent_id: str) -> None:
    limits = Limits(disk_mib=32)
    with client.sandboxes.create(spec=SandboxSpec(agent_id=agent_id, limits=limits, on_missing="degrade")) as sandbox:
        sandbox.write_file("kept", "x")
        taken = take(sandbox)
        filled = sandbox.run_command("head -c 200M /dev/zero > filler")
        assert filled.exit_code != 0 and sandbox.command(filled.command_id).status is not None
        sandbox.reset(taken.snapshot_id, discard=True)
        assert names(sandbox) & {"kept", "filler"} == {"kept"}
        assert sandbox.run_command("head -c 8M /dev/zero > room && echo there").stdout == "there\n"


def names(sandbox: SyncSandbox) -> set[str]:
    return {one.name for one in sandbox.list_directory().entries}


@pytest.mark.req("T3.47")
def test_files_are_examined_after_the_end_and_nothing_runs_for_it(
    installation: Installation, client: SyncColdframe, agent_id: str
) -> None:
    sandbox = client.sandboxes.create(agent_id)
    hostile = (
        f"{REPOSITORY} && git config core.fsmonitor 'touch /home/user/ran' && git config core.pager 'touch /home/user/ran' && "
        "echo '* filter=evil' > .gitattributes && git config filter.evil.smudge 'touch /home/user/ran' && cd .. && "
        "ln -s /etc/passwd outside && ln -s ../../.. up && printf needle > found"
    )
    assert sandbox.run_command(hostile).exit_code == 0
    taken = take(sandbox)
    sandbox.write_file("found", "another\n")
    for end in ("stop", "terminate"):
        getattr(sandbox, end)()
        assert {"repo", "outside", "found"} <= names(sandbox) and "ran" not in names(sandbox)
        assert sandbox.read_file("found").content == "another\n"
        assert b"".join(sandbox.download("repo/numbers"))[:4] == b"1\n2\n"
        assert [one.path for one in sandbox.search_files("needle", snapshot=taken.snapshot_id).matches] == ["found"]
        assert [one.path for one in client.snapshots.compare(taken.snapshot_id, sandbox.id).changes] == ["found"]
        text = client.snapshots.compare_file(taken.snapshot_id, sandbox.id, "found")
        assert "-needle\n" in text.diff and "+another\n" in text.diff
        for link in ("outside", "up/etc/passwd"):
            result = sandbox.call("read_file", {"path": link}, snapshot=taken.snapshot_id)
            assert result.error is not None and result.error["code"] == "OUTSIDE_WORKSPACE"
        assert installation.cli("files", "cat", sandbox.id, "found").stdout == b"another\n"
        assert installation.cli("snapshot", "read", taken.snapshot_id, "found").stdout == b"needle"
    assert client.sandboxes.list(agent_id=agent_id, state=["running"]) == []


@pytest.mark.req("T4.58")
def test_what_a_dry_run_of_a_reset_lists_is_what_happens(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    made = "for d in $(seq 20); do mkdir scratch/$d; for f in $(seq 25); do echo $f > scratch/$d/$f; done; done"
    assert sandbox.run_command(made).exit_code == 0
    taken = take(sandbox)
    changed = "rm -r scratch/3; echo x > scratch/4/1; mkdir new; touch new/a; chmod 600 scratch/5/1; ln -s a new/b"
    assert sandbox.run_command(changed).exit_code == 0
    listed = sandbox.reset(taken.snapshot_id, dry_run=True)
    assert listed.changes is not None and listed.changes.next_after is None
    now = take(sandbox)
    sandbox.reset(taken.snapshot_id)
    really = client.snapshots.compare(now.snapshot_id, sandbox.id)
    assert told(listed.changes.changes) == told(really.changes)
    assert ("new/b", "deleted") in told(really.changes) and ("scratch/3/25", "added") in told(really.changes)
    assert client.snapshots.compare(taken.snapshot_id, sandbox.id).changes == ()


def told(changes: Iterable[Change]) -> list[tuple[str, str]]:
    return [(one.path, one.change) for one in changes]


@pytest.mark.req("T4.69")
def test_a_snapshot_is_carried_away_and_brought_in_with_label_and_digest(
    installation: Installation, client: SyncColdframe, sandbox: SyncSandbox, agent_id: str, tmp_path: Path
) -> None:
    sandbox.write_file("scratch/a", "one\n")
    client.agents.set_label(agent_id, "CONFIDENTIAL", reason="it is")

    def cli(*arguments: str, code: int = 0) -> str:
        done = installation.cli(*arguments)
        assert done.returncode == code, done.stderr
        return done.stdout.decode()

    if not can_hold(sandbox):
        sandbox.stop()
    taken = json.loads(cli("--json", "snapshot", "take", sandbox.id, "--name", "known good"))
    if sandbox.refresh().state.state == "stopped":
        sandbox.start_again()
    archive = tmp_path / "a.tar"
    exported = json.loads(cli("--json", "snapshot", "export", taken["snapshot_id"], str(archive)))
    assert exported["label"] == "CONFIDENTIAL" and len(exported["sha256"]) == 64
    with tarfile.open(archive) as tar:
        assert any(name.endswith("scratch/a") for name in tar.getnames())
        assert not any(".exec_history" in name for name in tar.getnames())
    back = cli("--json", "snapshot", "import", str(archive), "--expected", exported["sha256"])
    imported = json.loads(back)
    assert (imported["sha256"], imported["label"], imported["reason"]) == (
        exported["sha256"],
        "CONFIDENTIAL",
        "imported",
    )
    fork = client.sandboxes.get(cli("sandbox", "fork", imported["snapshot_id"], "--agent", f"{agent_id}-x").strip())
    assert fork.info.workspace_label is Label.CONFIDENTIAL and fork.info.session_id != sandbox.info.session_id
    assert fork.read_file("scratch/a").content == "one\n"
    assert fork.read_file("scratch/a").result.label is Label.CONFIDENTIAL
    fork.terminate()
    whole = archive.read_bytes()
    for spoiled in (whole[: len(whole) // 2], whole.replace(b"one\n", b"two\n")):
        with pytest.raises(SnapshotCorrupt):
            client.snapshots.import_archive(spoiled)
    listed = cli("snapshot", "list", "--agent", agent_id)
    assert taken["snapshot_id"] in listed and "known good" in listed
    same = client.snapshots.compare(taken["snapshot_id"], imported["snapshot_id"], sandbox_id=sandbox.id)
    assert same.changes == ()
    sandbox.write_file("scratch/a", "two\n")
    assert "-one\n+two\n" in cli("snapshot", "diff", taken["snapshot_id"], sandbox.id, "scratch/a", code=1)
    tried = cli("sandbox", "reset", sandbox.id, "--to", taken["snapshot_id"], "--dry-run")
    assert "would be reset" in tried and "scratch/a" in tried
    reset = cli("sandbox", "reset", sandbox.id, "--to", taken["snapshot_id"])
    assert "is kept until" in reset and "next: coldframe sandbox reset" in reset
    assert client.ledger.verify().intact


def test_an_agent_is_deleted_right_after_a_snapshot(client: SyncColdframe, agent_id: str) -> None:
    """What is tidied up after it on the machine is waited for, and refuses nobody."""
    with client.sandboxes.create(agent_id=agent_id) as sandbox:
        sandbox.write_file("kept", "x")
        take(sandbox)
    client.agents.delete(agent_id)
    with pytest.raises(NotFound):
        client.agents.get(agent_id)
