"""The disk limit of a workspace: hard where it has a disk of its own, by looking where it is a directory, and told as such."""

import os
import signal
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from coldframe.client.answers import CommandAnswer
from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import ColdframeError, IsolationUnavailable, WrongState
from coldframe.contract.sandbox import Limits, SandboxSpec
from coldframe.host import loop_mounts
from tests.host.disks import missing, traces, unmount_all
from tests.host.machines import needs_bubblewrap
from tests.installation import Installation, wait_until
from tests.promises.raw import own_installation

MIB = 1 << 20
DISK_MIB = 64
LIMITS = Limits(disk_mib=DISK_MIB)
pytestmark = needs_bubblewrap


@pytest.fixture(scope="module")
def with_disks() -> Iterator[Installation]:
    """An installation that gives each workspace a disk of its own."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with own_installation(COLDFRAME_WORKSPACE_DISK="image") as started:
        try:
            yield started
            with SyncColdframe(started.url, started.token) as client:
                for sandbox in client.sandboxes.list():
                    sandbox.terminate()
                for agent in client.agents.list():
                    client.agents.delete(agent.agent_id)
            wait_until(lambda: not traces(started.folder), "no mount and no loop device is left")
        finally:
            unmount_all(started.folder)


@pytest.fixture
def disks(with_disks: Installation) -> Iterator[SyncColdframe]:
    with SyncColdframe(with_disks.url, with_disks.token) as client:
        yield client


@pytest.fixture
def disk(disks: SyncColdframe, agent_id: str) -> Iterator[SyncSandbox]:
    with disks.sandboxes.create(agent_id=agent_id, limits=LIMITS) as sandbox:
        yield sandbox


class Attack(NamedTuple):
    """A way past the limit, and the way back."""

    command: str
    recovery: str = "rm -rf scratch; mkdir scratch"
    unit: str = "bytes"
    lasts: bool = True
    """The disk is still full when the command is over; if not, only the program itself knows why it failed."""


# Far more than can be written before somebody looks, also if who looks has to wait for a core: all of them are ended.
BIG = "head -c 2000M /dev/zero > scratch/big"
MANY = "for n in $(seq 500); do head -c 4M /dev/zero > scratch/f$n || exit 1; done"
SPARSE = (
    "cd scratch; for n in $(seq 200); do truncate -s 60M s$n || exit 9; done; "
    "for n in $(seq 200); do dd if=/dev/zero of=s$n bs=1M seek=40 count=10 conv=notrunc status=none || exit 1; done"
)
DELETED = (
    "exec python3 -c '\n"
    "import os\n"
    "held = []\n"
    "while True:\n"
    '    held.append(open("scratch/gone", "wb", buffering=0))\n'
    '    os.unlink("scratch/gone")\n'
    "    left = 4 << 20\n"
    "    while left:\n"
    "        left -= held[-1].write(bytes(left))\n"
    "'"
)
EMPTY = "cd scratch; for ((n = 0; n < 2000000; n++)); do : > f$n || exit 1; done"
ATTACKS = {
    "one file": Attack(BIG),
    "many files": Attack(MANY),
    "sparse files": Attack(SPARSE),
    "deleted and open": Attack(DELETED, recovery="true", lasts=False),
    "empty files": Attack(EMPTY, unit="files"),
}


def told(sandbox: SyncSandbox, ended: CommandAnswer) -> None:
    """The result and the state name the limit, and whether it holds by best effort only."""
    assert ended.limit is not None, ended
    assert ended.limit.kind == "disk"
    strength = next(one for one in sandbox.report().limits if one.kind == "disk").strength
    assert ("limit:disk" in ended.result.degraded) is (strength != "hard")
    assert ended.exit_code != 0
    status = sandbox.command(ended.command_id).status
    assert status is not None and status.code == "LIMIT_DISK"
    assert status.next_actions


def works_again(sandbox: SyncSandbox, recovery: str) -> None:
    assert sandbox.run_command(recovery, timeout_s=120).exit_code == 0
    assert sandbox.run_command("head -c 1M /dev/zero > next && rm next && echo next").stdout == "next\n"
    sandbox.write_file("small", "fits")


# -- a disk of its own -----------------------------------------------------------------------------


@pytest.mark.req("T1.103")
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=list(ATTACKS))
def test_past_the_limit_the_kernel_says_no_space_to_whoever_writes_and_to_nobody_else(
    with_disks: Installation, disks: SyncColdframe, disk: SyncSandbox, agent_id: str, attack: Attack
) -> None:
    with disks.sandboxes.create(agent_id=f"{agent_id}-other", limits=LIMITS) as other:
        ended = disk.run_command(attack.command, timeout_s=120)
        assert "No space left on device" in str(ended.stderr) + str(ended.stdout)
        if attack.lasts:
            told(disk, ended)
            assert ended.limit is not None
            assert ended.limit.unit == attack.unit
            assert ended.limit.limit == DISK_MIB * MIB or attack.unit == "files"
            assert ended.limit.used is not None
            assert 0.98 * ended.limit.limit <= ended.limit.used <= ended.limit.limit
        image = os.path.join(with_disks.data_dir, "images", "workspace", agent_id)
        assert os.stat(image).st_blocks * 512 <= (DISK_MIB + 32) * MIB  # its own needs, and no more, come on top
        assert other.run_command("head -c 40M /dev/zero > mine && rm mine && echo fine").stdout == "fine\n"
    works_again(disk, attack.recovery)


@pytest.mark.req("T1.103")
def test_a_tool_that_writes_past_the_limit_is_refused_with_what_there_is(disk: SyncSandbox) -> None:
    with pytest.raises(ColdframeError) as refused:
        disk.upload("big", (b"\0" * MIB for _ in range(80)))
    assert refused.value.code == "LIMIT_DISK"
    assert refused.value.facts["kind"] == "disk"
    assert "big" not in {one.name for one in disk.list_directory().entries}
    disk.run_command("for n in $(seq 100000); do : > scratch/f$n || exit 1; done", timeout_s=120)
    with pytest.raises(ColdframeError) as refused:
        disk.write_file("one-more", "x")
    assert refused.value.code == "LIMIT_DISK"
    works_again(disk, ATTACKS["empty files"].recovery)


@pytest.mark.req("T1.103")
def test_the_report_measures_the_disk_and_a_sandbox_that_insists_on_hard_limits_is_made(
    disks: SyncColdframe, agent_id: str
) -> None:
    with disks.sandboxes.create(agent_id=agent_id, limits=LIMITS) as sandbox:
        limit = next(one for one in sandbox.report().limits if one.kind == "disk")
        assert limit.strength == "hard"
        size = sandbox.run_command(["stat", "-f", "-c", "%S %b %f %a %c", "."])
        block, blocks, free, available, files = map(int, str(size.stdout).split())
        assert f"it holds {(blocks - free + available) * block} bytes and {files} files" in str(limit.bound)
        assert (blocks - free + available) * block <= DISK_MIB * MIB
        assert "limit:disk" not in sandbox.refresh().degraded
    spec = SandboxSpec(agent_id=agent_id, limits=LIMITS, on_missing="refuse")
    try:
        disks.sandboxes.create(spec=spec).terminate()
    except IsolationUnavailable as error:  # a machine without control groups
        missing_ones = error.facts["missing"]
        assert isinstance(missing_ones, list)
        assert "limit:disk" not in [one["property"] for one in missing_ones]


@pytest.mark.req("T1.103")
def test_a_raised_limit_makes_the_disk_larger_and_keeps_what_is_in_it(disks: SyncColdframe, agent_id: str) -> None:
    with disks.sandboxes.create(agent_id=agent_id, limits=LIMITS) as sandbox:
        sandbox.write_file("kept", "kept")
        assert sandbox.run_command("head -c 100M /dev/zero > big").exit_code != 0

    def larger() -> SyncSandbox | None:
        try:
            return disks.sandboxes.create(agent_id=agent_id, limits=Limits(disk_mib=200))
        except WrongState:  # somebody else on the machine has made a copy of all its mounts, and lets go of it soon
            return None

    with wait_until(larger, "the disk grows", timeout_s=40) as sandbox:
        assert sandbox.read_file("kept").content == "kept"
        assert sandbox.run_command("head -c 150M /dev/zero > big").exit_code == 0
        assert next(one for one in sandbox.report().limits if one.kind == "disk").strength == "hard"
        assert sandbox.run_command("head -c 100M /dev/zero > more").exit_code != 0


def test_the_owner_finds_the_files_at_their_documented_place(
    with_disks: Installation, disk: SyncSandbox, agent_id: str
) -> None:
    disk.write_file("scratch/found", "by the owner")
    workspace = os.path.join(with_disks.data_dir, "workspace", agent_id)
    with open(os.path.join(workspace, "scratch", "found"), encoding="utf-8") as file:
        assert file.read() == "by the owner"
    with open(os.path.join(workspace, ".exec_history"), encoding="utf-8") as file:
        assert "write_file" in file.read()
    assert disk.run_command("echo forged >> .exec_history").exit_code != 0


def test_a_temporary_workspace_has_a_disk_too_and_nothing_of_it_is_left(
    with_disks: Installation, disks: SyncColdframe
) -> None:
    with disks.sandboxes.create(background=True, limits=LIMITS) as sandbox:
        told(sandbox, sandbox.run_command("head -c 100M /dev/zero > big"))
        assert os.listdir(os.path.join(with_disks.data_dir, "images", "background"))
    wait_until(
        lambda: not os.listdir(os.path.join(with_disks.data_dir, "images", "background")), "the temporary disk is gone"
    )


def test_disks_outlive_server_daemon_and_machine(with_disks: Installation, disks: SyncColdframe, agent_id: str) -> None:
    sandbox = disks.sandboxes.create(agent_id=agent_id, limits=LIMITS)
    sandbox.write_file("kept", "kept")
    daemon = next(pid for pid in with_disks.processes() if _is_daemon(pid))
    os.kill(daemon, signal.SIGKILL)
    with_disks.kill()
    with_disks.start()
    with SyncColdframe(with_disks.url, with_disks.token) as client:
        found = client.sandboxes.get(sandbox.id)
        assert found.run_command("cat kept").stdout == "kept\n" or found.read_file("kept").content == "kept"
        found.terminate()
    with_disks.stop()
    place = os.path.join(with_disks.data_dir, "workspace", agent_id)
    loop_mounts.unmount(place)  # as a restart of the machine does
    with_disks.start()
    assert os.path.exists(os.path.join(place, "kept"))
    with (
        SyncColdframe(with_disks.url, with_disks.token) as client,
        client.sandboxes.create(agent_id=agent_id, limits=LIMITS) as again,
    ):
        assert again.read_file("kept").content == "kept"


def _is_daemon(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"\0daemon\0" in file.read()
    except OSError:
        return False


def test_an_agent_that_is_deleted_takes_its_disk_along(with_disks: Installation, disks: SyncColdframe) -> None:
    with disks.sandboxes.create(agent_id="deleted", limits=LIMITS) as sandbox:
        sandbox.write_file("secret", "old")
    disks.agents.delete("deleted")
    assert not [trace for trace in traces(with_disks.folder) if "/deleted" in trace]
    with disks.sandboxes.create(agent_id="deleted", limits=LIMITS) as sandbox:
        assert "secret" not in {one.name for one in sandbox.list_directory().entries}


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_a_daemon_that_runs_already_takes_on_what_a_new_start_asks_for() -> None:
    with own_installation() as started:
        try:
            started.kill()  # which may be before it has said that it listens
            said = started.log.count("listens on")
            started._environment["COLDFRAME_WORKSPACE_DISK"] = "image"
            started.start()
            wait_until(lambda: started.log.count("listens on") > said, "the new start says so")
            with SyncColdframe(started.url, started.token) as client:
                with client.sandboxes.create(agent_id="a", limits=LIMITS) as sandbox:
                    assert next(one for one in sandbox.report().limits if one.kind == "disk").strength == "hard"
                client.agents.delete("a")
        finally:
            unmount_all(started.folder)


# -- a directory -----------------------------------------------------------------------------------


@pytest.fixture
def directory(client: SyncColdframe, agent_id: str) -> Iterator[SyncSandbox]:
    with client.sandboxes.create(agent_id=agent_id, limits=LIMITS) as sandbox:
        yield sandbox


@pytest.mark.req("T1.103")
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=list(ATTACKS))
def test_in_a_directory_who_is_over_is_ended_and_the_next_call_works_after_cleaning_up(
    client: SyncColdframe, agent_id: str, attack: Attack
) -> None:
    disk_mib = 8 if attack.unit == "files" else DISK_MIB  # each file counts 1 KiB
    with (
        client.sandboxes.create(agent_id=f"{agent_id}-other") as other,
        client.sandboxes.create(agent_id=agent_id, limits=Limits(disk_mib=disk_mib)) as directory,
    ):
        ended = directory.run_command(attack.command, timeout_s=120)
        told(directory, ended)
        assert ended.limit is not None
        assert ended.limit.limit == disk_mib * MIB
        assert other.run_command("head -c 40M /dev/zero > mine && rm mine && echo fine").stdout == "fine\n"
        works_again(directory, attack.recovery)


@pytest.mark.req("T1.103")
def test_the_report_of_a_directory_says_how_far_it_may_be_overrun_and_what_would_be_hard(
    directory: SyncSandbox, client: SyncColdframe, agent_id: str
) -> None:
    limit = next(one for one in directory.report().limits if one.kind == "disk")
    assert limit.strength == "best_effort"
    assert "what can be written in 0.1 s" in str(limit.bound)
    assert "limit:disk" in directory.refresh().degraded
    with pytest.raises(IsolationUnavailable) as refused:
        client.sandboxes.create(spec=SandboxSpec(agent_id=agent_id, limits=LIMITS, on_missing="refuse"))
    missing_ones = refused.value.facts["missing"]
    assert isinstance(missing_ones, list)
    assert "limit:disk" in [one["property"] for one in missing_ones]
    assert "workspace_disk" in refused.value.advice


@pytest.mark.req("T1.103")
@pytest.mark.skipif(os.geteuid() == 0, reason="as an ordinary user")
def test_an_ordinary_user_who_asks_for_disks_gets_no_sandbox_instead_of_a_directory(agent_id: str) -> None:
    with (
        own_installation(COLDFRAME_WORKSPACE_DISK="image") as started,
        SyncColdframe(started.url, started.token) as client,
    ):
        with pytest.raises(IsolationUnavailable) as refused:
            client.sandboxes.create(agent_id=agent_id)
        assert refused.value.facts["property"] == "workspace_disk"
        assert refused.value.facts["reason"] and refused.value.facts["remedy"]
        assert os.listdir(os.path.join(started.data_dir, "workspace")) == []
