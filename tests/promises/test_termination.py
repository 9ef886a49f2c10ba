"""A sandbox ends at once whatever goes on in it, what ran says so, and nothing of it is left on the machine."""

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.sandbox import Limits
from tests.installation import Installation, wait_until, waits_for_a_box

WITHIN_S = 60.0
"""Far more than the 5 s that are promised, for a busy machine; what never ends takes longer."""
LISTENING = ("0A", "07")
"""Of TCP, and of UDP, as /proc/net has it."""
HUNDREDS = """
import os, time
for number in range(500):
    if os.fork() == 0:
        if number % 2:
            os.setsid()
        time.sleep(1000)
os.open("there-hundreds", os.O_CREAT)
time.sleep(1000)
"""
STOPPED = "touch there-stopped; kill -STOP $$"
LISTENS = """
import os, socket, time
held = [socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)]
held[1].bind("socket")
os.open("there-listens", os.O_CREAT)
time.sleep(1000)
"""
HANGS = """
import os
os.mkfifo("pipe")
os.open("there-hangs", os.O_CREAT)
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 9, "pipe", os.O_RDONLY, 0)])
"""
"""Waits in the kernel where signals do not wake it (state D): for a child that waits for somebody at the other end."""


def on_machine(installation: Installation) -> Counter[str]:
    """What there is of it beside records: processes, namespaces, mounts, control groups, sockets, files."""
    found: Counter[str] = Counter()
    spaces, sockets = set(), set()
    for pid in installation.processes():
        try:
            if waits_for_a_box(pid):
                continue
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            program = words.partition(b"\0")[0]
            found[f"process {program if program.endswith(b'/bwrap') else words!r}"] += 1  # some are told the rest later
            ends = [os.readlink(f"/proc/{pid}/fd/{file}") for file in os.listdir(f"/proc/{pid}/fd")]
            sockets |= {end.strip("socket:[]") for end in ends}
            spaces |= {os.readlink(f"/proc/{pid}/ns/{name}") for name in ("net", "mnt", "pid", "ipc", "uts", "user")}
        except OSError:
            continue
    found.update(space.partition(":")[0] for space in spaces)
    found.update(one for one in installation.leftovers() if not one.startswith("process"))
    for table in ("tcp", "tcp6", "udp", "udp6"):
        lines = [line.split() for line in Path("/proc/net", table).read_text().splitlines()[1:]]
        found.update(f"{table} {line[1]}" for line in lines if line[3] in LISTENING and line[9] in sockets)
    for folder, names, files in os.walk(installation.data_dir):
        names[:] = [name for name in names if name not in ("control", "records")]
        if os.path.basename(folder) != "boxes":
            found.update(os.path.join(folder, name) for name in (*names, *files))
    return found


def begin(sandbox: SyncSandbox, name: str, command: str | list[str]) -> str:
    job = sandbox.run_command(command, background=True)
    wait_until(lambda: any(one.name == f"there-{name}" for one in sandbox.list_directory().entries), f"{name} runs")
    return job.command_id


def settled(installation: Installation, client: SyncColdframe) -> Counter[str]:
    """Once nothing comes or goes any more, and as many boxes wait for the next sandboxes as may."""
    wait_until(lambda: (pool := client.pool()).refused or pool.ready == pool.size, "all wait that should", timeout_s=60)
    seen = [on_machine(installation)]

    def same() -> bool:
        seen.append(on_machine(installation))
        return seen[-1] == seen[-2]

    wait_until(same, "nothing comes or goes")
    return seen[-1]


@pytest.mark.req("T4.62")
def test_whatever_runs_ends_at_once_says_so_and_leaves_nothing(
    installation: Installation, client: SyncColdframe, agent_id: str
) -> None:
    limits = Limits(pids=1000)
    for _ in range(2):  # as many as boxes wait for, which are like the last ones
        with client.sandboxes.create(agent_id=agent_id, limits=limits) as first:
            first.run_command("true")
    before = settled(installation, client)
    sandbox = client.sandboxes.create(agent_id=agent_id, limits=limits)
    jobs = [
        begin(sandbox, "hundreds", ["python3", "-c", HUNDREDS]),
        begin(sandbox, "stopped", STOPPED),
        begin(sandbox, "listens", ["python3", "-c", LISTENS]),
        begin(sandbox, "hangs", ["python3", "-c", HANGS]),
    ]
    wait_until(lambda: len(sandbox.processes()) > 500, "all are there")
    wait_until(
        lambda: {"stopped", "blocked"} <= {one.state for one in sandbox.processes()}, "one stands still, one hangs"
    )
    began = time.monotonic()
    ended = [sandbox.terminate() for _ in range(2)]
    assert time.monotonic() - began < WITHIN_S
    assert [one.state for one in ended] == [ended[0].state] * 2
    assert ended[0].state.state == "terminated"
    assert {job for one in ended[0].lost for job in one.command_ids} == set(jobs)
    for job in jobs:
        wait_until(lambda job=job: sandbox.command(job).state != "running", "its end is on record")  # type: ignore[misc]
        told = sandbox.command(job)
        assert told.result is not None
        assert (told.result.ended, told.result.cancelled) == ("cancelled", True)
        assert told.result.ended_with is not None
        assert told.result.ended_with.act == "terminate"
        assert told.status is not None
        assert told.status.code == "CANCELLED"
        assert "terminated" in told.status.message
        assert client.receipt(f"rcp_{job.partition('_')[2]}")["ended"] == "cancelled"
    client.agents.delete(agent_id)
    before = Counter({what: count for what, count in before.items() if agent_id not in what})
    now = [before, settled(installation, client)]

    def as_before() -> bool:
        now.append(on_machine(installation))
        return now[-1] == before

    try:
        wait_until(as_before, "the machine is as before")
    except AssertionError as error:
        raise AssertionError(f"{error}: more {now[-1] - before}, less {before - now[-1]}") from None
    assert client.ledger.verify().intact
