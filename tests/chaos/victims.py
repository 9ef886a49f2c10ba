"""Finds the processes of one installation by what they are: parent, server, host daemon, zygote, keepers, payload.

Only what carries the mark of that installation is found, so nothing else can be killed.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.installation import Installation


class Process(NamedTuple):
    pid: int
    parent: int
    started: str
    words: list[str]


class Victims:
    """A snapshot. A process may be gone by the time it is hit, which is fine: `kill` looks again who it is."""

    def __init__(self, installation: Installation) -> None:
        self._data_dir = installation.data_dir
        mark = f"coldframe-{installation.installation_id}"
        self._all = {process.pid: process for process in _processes()}
        self.servers = [p for p in self._all.values() if self._is_role(p, "server")]
        self.daemons = [p for p in self._all.values() if self._is_role(p, "daemon")]
        daemon_pids = {daemon.pid for daemon in self.daemons}
        self.zygotes = [p for p in self._all.values() if p.words[-1:] == [mark] and p.parent in daemon_pids]
        self.keepers: dict[str, Process] = {}
        self._firsts: set[int] = set()
        self._find_keepers()

    def process(self, pid: int) -> Process | None:
        return self._all.get(pid)

    def _is_role(self, process: Process, role: str) -> bool:
        words = process.words
        return "coldframe.assembly" in words and role in words and any(self._data_dir in word for word in words)

    def _find_keepers(self) -> None:
        for path in Path(self._data_dir, "boxes").glob("*/keeper.json"):
            try:
                mark = json.loads(path.read_text())
            except (OSError, ValueError):
                continue
            process = self._all.get(mark["pid"])
            if process is not None and process.started == mark["started"]:
                self.keepers[path.parent.name] = process
                self._firsts.add(mark["init"])

    def payload(self, sandbox_id: str) -> list[Process]:
        """Every command with what it started; not what holds the box itself."""
        return [process for process in self._below(sandbox_id) if not self._holds_box(process)]

    def box(self, sandbox_id: str) -> list[Process]:
        """What holds the box: it dies with its first process."""
        return [process for process in self._below(sandbox_id) if process.pid in self._firsts]

    def _holds_box(self, process: Process) -> bool:
        return process.pid in self._firsts or os.path.basename(process.words[0] if process.words else "") == "bwrap"

    def _below(self, sandbox_id: str) -> list[Process]:
        found: list[Process] = []
        above = {self.keepers[sandbox_id].pid}
        while above:
            layer = [process for process in self._all.values() if process.parent in above]
            found += layer
            above = {process.pid for process in layer}
        return found


def kill(process: Process) -> bool:
    """`kill -9`, if it still is the process that was seen."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        seen = _read(process.pid)
        if seen is None or seen.started != process.started:
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)


def _processes() -> Iterator[Process]:
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (process := _read(int(entry))) is not None:
            yield process


def _read(pid: int) -> Process | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return None
    return None if fields[0] in "ZX" else Process(pid, int(fields[1]), fields[19], words)
