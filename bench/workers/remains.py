"""What a sandbox takes on disk, and what many of them leave behind when they are gone: nothing, and no memory of the server's."""

import os
from collections import Counter
from typing import Any

from bench.system_calls import parts_of
from bench.workers.product import AGENT, connected, installed
from bench.workers.wire import expect
from coldframe.client.api import Coldframe
from coldframe.client.sync import SyncColdframe
from tests.installation import Installation, wait_until

WARM_UP = 25
CYCLES_AT_ONCE = 4
CALM_S = 30.0
RECORDS = "control"
"""Below it are database and ledger, which grow with what was done and not with what there is."""


async def disk(request: dict[str, Any]) -> dict[str, float]:
    """KB on disk of one fresh sandbox, and of one snapshot of files that have not changed; an empty directory beside them."""
    count = int(request["count"])
    with connected() as (installation, client):
        with client.sandboxes.create(agent_id="first"):  # what the installation makes once
            pass
        made = []
        before = used_bytes(installation.data_dir)
        for number in range(count):
            made.append(client.sandboxes.create(agent_id=f"{AGENT}-{number}"))
        fresh = used_bytes(installation.data_dir)
        sandbox = made[0]
        sandbox.write_file("kept", "kept\n")
        sandbox.take_snapshot("first")
        unchanged = used_bytes(installation.data_dir)
        for number in range(count):
            sandbox.take_snapshot(f"again {number}")
        after = used_bytes(installation.data_dir)
        for one in made:
            one.terminate()
        directory = os.path.join(installation.folder, "empty")
        os.mkdir(directory)
        floor = os.lstat(directory).st_blocks * 512
        os.rmdir(directory)
    return {
        "sandbox": _kb(fresh["files"] - before["files"], count),
        "snapshot": _kb(after["files"] - unchanged["files"], count),
        "records of a sandbox": _kb(fresh["records"] - before["records"], count),
        "records of a snapshot": _kb(after["records"] - unchanged["records"], count),
        "an empty directory": floor / 1000,
    }


def _kb(grown: int, count: int) -> float:
    return max(0, grown) / 1000 / count


def used_bytes(data_dir: str) -> Counter[str]:
    """Bytes on the disk itself: what is mounted over it is counted where it lies."""
    found: Counter[str] = Counter()
    device = os.lstat(data_dir).st_dev
    for path, folders, files in os.walk(data_dir):
        where = "records" if os.path.relpath(path, data_dir).split(os.sep)[0] == RECORDS else "files"
        kept = []
        for name in [*folders, *files]:
            try:
                fact = os.lstat(os.path.join(path, name))
            except FileNotFoundError:
                continue
            if fact.st_dev == device:
                found[where] += fact.st_blocks * 512
                kept.append(name)
        folders[:] = [name for name in folders if name in kept]
    return found


async def soak(request: dict[str, Any]) -> dict[str, float]:
    """So many sandboxes created, used and ended: what there is more of afterwards, and how much the server has grown."""
    cycles = int(request["cycles"])
    with installed() as installation:
        async with Coldframe(installation.url, installation.token) as client:
            await _cycle(client, WARM_UP)
            before = _settled(installation, None)
            server = next(pid for pid, part in parts_of(installation).items() if part == "server")
            memory_kib = _resident_kib(server)
            await _cycle(client, cycles)
        after = _settled(installation, before)
        grown_kib = _resident_kib(server) - memory_kib
        with SyncColdframe(installation.url, installation.token) as asking:
            expect(asking.ledger.verify().intact, "the ledger does not verify")
    more = {name: float(after[name] - before[name]) for name in before}
    return {"left": sum(max(0.0, one) for one in more.values()), "growth": grown_kib / 1024, **more}


async def _cycle(client: Coldframe, cycles: int) -> None:
    import asyncio

    async def some(count: int) -> None:
        for _ in range(count):
            sandbox = await client.sandboxes.create(background=True)
            done = await sandbox.run_command(["echo", "ok"])
            expect(done.exit_code == 0 and done.stdout == "ok\n", f"exit code {done.exit_code}")
            await sandbox.terminate()

    shares = [cycles // CYCLES_AT_ONCE + (number < cycles % CYCLES_AT_ONCE) for number in range(CYCLES_AT_ONCE)]
    await asyncio.gather(*map(some, shares))


def _settled(installation: Installation, before: dict[str, int] | None) -> dict[str, int]:
    """What there is, once it stays so, or is no more than *before*: ends of sandboxes are still being tidied up after."""
    seen: list[dict[str, int]] = []

    def calm() -> bool:
        seen.append(counted(installation))
        if before is not None and all(seen[-1][name] <= before[name] for name in before):
            return True
        return before is None and len(seen) > 25 and all(one == seen[-1] for one in seen[-25:])

    try:
        wait_until(calm, "it is calm", timeout_s=CALM_S)
    except AssertionError:
        pass  # the figures say what is left
    return seen[-1]


def counted(installation: Installation) -> dict[str, int]:
    """Processes, open files, mounts, groups, network namespaces and directories of one installation; records apart."""
    pids = installation.processes()
    open_files, rooms = 0, set()
    for pid in pids:
        try:
            open_files += len(os.listdir(f"/proc/{pid}/fd"))
            rooms.add(os.readlink(f"/proc/{pid}/ns/net"))
        except OSError:  # ended meanwhile
            continue
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        mounted = sum(installation.folder in line for line in mounts)
    kept = (RECORDS, "boxes")  # of an ended sandbox the output of its commands stays, by the settings
    top = os.listdir(installation.data_dir)
    below = [os.path.join(installation.data_dir, name) for name in top if name not in kept]
    return {
        "processes": len(pids),
        "open files": open_files,
        "network namespaces": len(rooms),
        "mounts": mounted,
        "control groups": len(installation._control_groups()),
        "directories": sum(len(folders) for path in below for _, folders, _ in os.walk(path)),
    }


def _resident_kib(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:"))
