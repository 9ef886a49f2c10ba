"""Clients at work in a real installation while its processes are killed at random, and the judgement afterwards.

The seed decides who works how and who is hit in what order; the moments depend on the machine, so that a seed
that found a fault finds it again often, not always. Beside it stand things of similar names that belong to
somebody else: they have to survive untouched.
"""

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from coldframe.client.sync import SyncColdframe
from coldframe.contract.errors import ColdframeError
from tests.chaos.renter import Renter
from tests.chaos.rewinder import Rewinder
from tests.chaos.victims import Process, Victims, kill
from tests.chaos.worker import Worker, all_entries
from tests.installation import Installation, wait_until

CALM_S = 60.0
STARTS = 3
"""A server that dies takes a moment to let go of its data directory; a supervisor tries again then."""


MORE_PLACES = 1
"""Beside one for each client, and one for what each fifth has offered and never fetches: forks and those that rent for a
while wait for them in the queue, or come again."""


class Client(Protocol):
    """Works while it storms, and says afterwards what is wrong."""

    faults: list[str]
    calls: Counter[str]

    def work(self, until: threading.Event) -> None: ...
    def judge(self, client: SyncColdframe, killed: set[str]) -> None: ...


KINDS: tuple[Callable[[Installation, int, int], Client], ...] = (Worker, Worker, Worker, Rewinder, Renter)


class KillableInstallation(Installation):
    """Started again and again, by a client that keeps its token: an idempotency key belongs to one token."""

    _kept_token: str | None = None

    @property
    def token(self) -> str:
        self._kept_token = self._kept_token or super().token
        return self._kept_token

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None


class Storm:
    """`run` once. `faults` is what was found wrong, `strikes` what was killed how often."""

    def __init__(self, seed: int, seconds: float, *, sandboxes: int = 6) -> None:
        self.faults: list[str] = []
        self.strikes = Counter[str]()
        self.calls = Counter[str]()
        self._seconds = seconds
        self._random = random.Random(seed)
        self._installation = KillableInstallation(
            COLDFRAME_MAX_RUNNING=str(sandboxes + sandboxes // len(KINDS) + MORE_PLACES)
        )
        self._workers: list[Client] = [
            KINDS[number % len(KINDS)](self._installation, number, seed) for number in range(sandboxes)
        ]
        self._killed: set[str] = set()
        self._strangers = Strangers(self._installation)

    def run(self) -> list[str]:
        try:
            self._installation.start()
            assert self._installation.token
            self._strangers.appear()
            self._storm()
            self._judge()
        finally:
            self.faults += [f"left behind: {what}" for what in self._close()]
        return self.faults

    def _close(self) -> list[str]:
        boxes = os.path.join(self._installation.data_dir, "boxes")
        with contextlib.suppress(ColdframeError, OSError, ValueError, KeyError):
            self._installation.end_sandboxes()
        sockets = [
            os.path.join(path, name)
            for path, _, names in os.walk(boxes)
            for name in names
            if name in ("keeper.sock", "keeper.json") or name.endswith(".new")
        ]
        drafts = [
            os.path.join(path, name)
            for path, names, files in os.walk(os.path.join(self._installation.data_dir, "workspace"))
            for name in [*names, *files]
            if ".gone-" in name or ".new-" in name
        ]
        self.faults += self._strangers.missing()
        self._strangers.leave()
        return sockets + drafts + self._installation.close()

    # -- the storm ---------------------------------------------------------------------------------------------------

    def _storm(self) -> None:
        until = threading.Event()
        threads = [threading.Thread(target=worker.work, args=(until,), daemon=True) for worker in self._workers]
        for thread in threads:
            thread.start()
        end = time.monotonic() + self._seconds
        try:
            while time.monotonic() < end:
                time.sleep(self._random.uniform(0.1, 1.5))
                self._strike()
                self._revive()
        finally:
            until.set()
        for thread in threads:
            deadline = time.monotonic() + CALM_S * 4
            while thread.is_alive() and time.monotonic() < deadline:
                thread.join(0.5)
                self._revive()
            if thread.is_alive():
                self.faults.append("a client never got its answer")

    def _strike(self) -> None:
        kinds = [
            "server",
            "server",
            "parent",
            "daemon",
            "daemon",
            "zygote",
            "keeper",
            "box",
            "payload",
            "payload",
            "all",
        ]
        kind = self._random.choice(kinds)
        victims = Victims(self._installation)
        sandbox_id = self._random.choice(sorted(victims.keepers)) if victims.keepers else ""
        parent = [process for process in (self._parent(),) if process is not None]
        targets: dict[str, list[Process]] = {
            "server": victims.servers,
            "parent": parent,
            "daemon": victims.daemons,
            "zygote": victims.zygotes,
            "keeper": [victims.keepers[sandbox_id]] if sandbox_id else [],
            "box": victims.box(sandbox_id) if sandbox_id else [],
            "payload": victims.payload(sandbox_id) if sandbox_id else [],
            "all": [*parent, *victims.servers, *victims.daemons, *victims.zygotes],
        }
        if sum([kill(process) for process in targets[kind]]):
            self.strikes[kind] += 1
            if kind in ("keeper", "box"):
                self._killed.add(sandbox_id)

    def _parent(self) -> Process | None:
        try:
            pid = self._installation.pid
        except AssertionError:
            return None
        return Victims(self._installation).process(pid)

    def _revive(self) -> None:
        if not self._installation.running:
            revive(self._installation)

    # -- the judgement -----------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        self._installation.stop()
        self._installation.start()
        with SyncColdframe(self._installation.url, self._installation.token, timeout_s=60) as client:
            wait_until(lambda: not _open_calls(client), "no call is open any more", timeout_s=CALM_S)
            verdict = client.ledger.verify()
            if not verdict.intact:
                self.faults.append(f"the ledger does not verify: {verdict.faults}")
            numbers = [entry.seq for entry in all_entries(client)]
            if numbers != list(range(1, len(numbers) + 1)):
                self.faults.append("the ledger has a gap")
            for worker in sorted(
                self._workers, key=lambda one: not isinstance(one, Renter)
            ):  # who gives places back first
                worker.judge(client, self._killed)
                self.faults += worker.faults
                self.calls += worker.calls


def revive(installation: KillableInstallation) -> None:
    """What whoever supervises the product does: start it again when it ended."""
    told = ""
    for _ in range(STARTS):
        try:
            installation.start()
            return
        except AssertionError as error:
            told = str(error)
            time.sleep(0.5)
    raise AssertionError(f"the product did not start in {STARTS} attempts: {told}")


class Strangers:
    """Things of somebody else whose names are like ours: groups, directories, a process, and as root a mount."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._paths: list[str] = []
        self._groups: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._mount: str | None = None

    def appear(self) -> None:
        identity = self._installation.installation_id
        for name in (f"coldframe-{identity}0", f"coldframe-{identity}.old", "coldframe-0123456789ab"):
            path = os.path.join(self._installation.folder, name)
            os.mkdir(path)
            self._paths.append(path)
            for base in _group_bases():
                with contextlib.suppress(OSError):
                    os.mkdir(os.path.join(base, name))
                    self._groups.append(os.path.join(base, name))
        self._process = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(36000)", f"coldframe-{identity}0"],
            stdin=subprocess.DEVNULL,
            env={"COLDFRAME_COMMAND_ID": "cmd_0123456789abcdef"},
        )
        if os.getuid() == 0:
            where = os.path.join(self._installation.folder, "mount")
            os.mkdir(where)
            if subprocess.run(["mount", "-t", "tmpfs", f"coldframe-{identity}", where], check=False).returncode == 0:
                self._mount = where

    def missing(self) -> list[str]:
        gone = [f"not ours and gone: {path}" for path in [*self._paths, *self._groups] if not os.path.isdir(path)]
        if self._process is not None and self._process.poll() is not None:
            gone.append("not ours and gone: a process of similar name")
        if self._mount is not None and not os.path.ismount(self._mount):
            gone.append("not ours and gone: a mount of similar name")
        return gone

    def leave(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._mount is not None:
            subprocess.run(["umount", self._mount], check=False)
        for group in self._groups:
            with contextlib.suppress(OSError):
                os.rmdir(group)


def _open_calls(client: SyncColdframe) -> set[str]:
    open_calls: set[str] = set()
    for entry in all_entries(client):
        if entry.kind == "call.started":
            open_calls.add(entry.subject)
        elif entry.kind in ("call.ended", "call.interrupted"):
            open_calls.discard(entry.subject)
    return open_calls


def _group_bases() -> list[str]:
    """Directories of this process's own control groups, where ours are made too."""
    found = []
    with open("/proc/self/cgroup", encoding="ascii") as own:
        for line in own:
            _, names, path = line.rstrip("\n").split(":", 2)
            for folder in (names or "unified", ""):
                base = os.path.join("/sys/fs/cgroup", folder, path.lstrip("/"))
                if os.path.exists(os.path.join(base, "cgroup.procs")):
                    found.append(base)
                    break
    return found
