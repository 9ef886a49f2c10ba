"""Counts what one command costs in system calls, database commits and page faults. No load of the machine moves these numbers.

strace watches the server, the host daemon, the zygote, the keepers and everything they start, while commands run
one after the other through the public SDK. Attaching takes root: a keeper lets nobody else look at it.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from typing import NamedTuple

from coldframe.client.sync import SyncColdframe
from tests.installation import Installation, wait_until

WARM_UP = 20
_CALL = re.compile(r"(\d+) +(\w+)\(")
_COMMIT = re.compile(r"""coldframe\.db-wal>, "(?:\\x..){4}(?!(?:\\x00){4})(?:\\x..){20}", 24,""")
"""The header of a frame of the write-ahead log is 24 bytes; its second number is not zero in the last of a commit."""


class Counted(NamedTuple):
    """What *commands* commands cost together."""

    commands: int
    calls: dict[str, int]
    """System calls by who made them: server, daemon, keeper (with the zygote), payload."""
    commits: int
    faults: int
    """Page faults of the keepers, in as many commands that nobody watched."""

    @property
    def calls_per_command(self) -> float:
        return sum(self.calls.values()) / self.commands

    @property
    def commits_per_command(self) -> float:
        return self.commits / self.commands

    @property
    def faults_per_command(self) -> float:
        return self.faults / self.commands


def reason_against() -> str | None:
    """Why nothing can be counted here; None if it can."""
    if shutil.which("strace") is None:
        return "strace is missing"
    return None if os.geteuid() == 0 else "a keeper lets only root trace it"


def count(installation: Installation, commands: int) -> Counted:
    """Run `true` *commands* times in a new sandbox and count."""
    with SyncColdframe(installation.url, installation.token) as client:
        with client.sandboxes.create(agent_id="counted") as sandbox:
            for _ in range(WARM_UP):
                sandbox.run_command(["true"])
            parts = parts_of(installation)
            if sorted(set(parts.values())) != ["daemon", "keeper", "server"]:
                raise AssertionError(f"these are not all parts of an installation: {parts}")
            before = _faults(parts)
            for _ in range(commands):
                sandbox.run_command(["true"])
            faults = _faults(parts) - before
            with tempfile.TemporaryDirectory(prefix="cf-strace-") as folder:
                path = os.path.join(folder, "trace")
                tracer = _attach(path, [*parts], folder)
                try:
                    for _ in range(commands):
                        if sandbox.run_command(["true"]).exit_code != 0:
                            raise AssertionError("`true` failed")
                finally:
                    threads = {thread: part for pid, part in parts.items() for thread in _threads(pid)}
                    tracer.terminate()
                    tracer.wait(30)
                with open(path, encoding="ascii", errors="replace") as trace:
                    return _read(trace.read(), threads, commands, faults)


def _attach(path: str, pids: list[int], folder: str) -> "subprocess.Popen[bytes]":
    said = os.path.join(folder, "said")
    wanted = sum(len(_threads(pid)) for pid in pids)
    with open(said, "wb") as messages:
        tracer = subprocess.Popen(
            ["strace", "-f", "-y", "-x", "-s", "24", "-o", path, *(f"--attach={pid}" for pid in pids)],
            stdin=subprocess.DEVNULL,
            stderr=messages,
        )

    def attached() -> bool:
        with open(said, encoding="utf-8", errors="replace") as messages:
            lines = messages.read().splitlines()
        if tracer.poll() is not None:
            raise AssertionError("strace ended: " + " ".join(lines))
        threads = sum(int(n) for line in lines for n in re.findall(r"attached with (\d+) threads", line))
        single = sum(line.endswith("attached") for line in lines)
        return threads + single >= wanted

    wait_until(attached, "strace is attached", timeout_s=30)
    return tracer


def parts_of(installation: Installation) -> dict[int, str]:
    """The long-lived processes of an installation and what they are."""
    found = {}
    for pid in installation.processes():
        if pid == installation.pid:
            continue
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except FileNotFoundError:
            continue  # it has ended meanwhile
        if b"server" in words:
            found[pid] = "server"
        elif b"daemon" in words:
            found[pid] = "daemon"
        elif b"-c" in words:
            found[pid] = "keeper"
    return found


def _faults(parts: dict[int, str]) -> int:
    """Of the keepers, those that needed no disk."""
    found = 0
    for pid, part in parts.items():
        if part == "keeper":
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                found += int(file.read().rpartition(")")[2].split()[7])
    return found


def _threads(pid: int) -> list[int]:
    return [int(name) for name in os.listdir(f"/proc/{pid}/task")]


def _read(trace: str, threads: dict[int, str], commands: int, faults: int) -> Counted:
    calls: Counter[str] = Counter()
    commits = 0
    for line in trace.splitlines():
        call = _CALL.match(line)  # the second half of an interrupted line is `<... name resumed>`: not counted twice
        if call is not None:
            calls[threads.get(int(call[1]), "payload")] += 1
            commits += bool(_COMMIT.search(line))
    return Counted(commands, dict(sorted(calls.items())), commits, faults)
