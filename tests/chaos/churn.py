"""Sandboxes made and ended in a circle while the product is killed; others live beside them and may not notice.

The numbers of the acceptance row are 500 circles and 50 kills: `scripts/chaos --circles 500 --kills 50`.
"""

import random
import threading
import time
from collections import Counter

from coldframe.client.sync import SyncColdframe
from coldframe.contract.errors import ColdframeError
from tests.chaos.storm import KillableInstallation, Strangers, revive
from tests.chaos.victims import Victims, kill
from tests.installation import wait_until

MAKERS = 2
RECONCILED_S = 30.0


class Churn:
    """`run` once. `circles` and `kills` count what was really done."""

    def __init__(self, seed: int, *, circles: int, kills: int, living: int = 2) -> None:
        self.faults: list[str] = []
        self.circles = 0
        self.kills = Counter[str]()
        self.slowest_start_s = 0.0
        self._wanted = circles
        self._most_kills = kills
        self._living = living
        self._random = random.Random(seed)
        self._installation = KillableInstallation(COLDFRAME_READY_BOXES="2")  # and what stands ready is killed as well
        self._strangers = Strangers(self._installation)
        self._lock = threading.Lock()
        self._over = threading.Event()

    def run(self) -> list[str]:
        try:
            self._installation.start()
            assert self._installation.token
            self._strangers.appear()
            self._churn()
        finally:
            self.faults += self._strangers.missing()
            self._strangers.leave()
            self.faults += [f"left behind: {what}" for what in self._installation.close()]
        return self.faults

    def _churn(self) -> None:
        with self._client() as client:
            living = [client.sandboxes.create(agent_id=f"living-{number}") for number in range(self._living)]
            counters = [
                sandbox.run_command("while :; do echo x >> beats; sleep 0.1; done", background=True).command_id
                for sandbox in living
            ]
        makers = [threading.Thread(target=self._make, args=(number,), daemon=True) for number in range(MAKERS)]
        for maker in makers:
            maker.start()
        while not self._over.is_set():
            if self.circles >= self._wanted and sum(self.kills.values()) >= self._most_kills:
                self._over.set()
            # Kills are spread over the circles, at moments that the seed and the machine choose.
            if sum(self.kills.values()) < self._most_kills * min(1, self.circles / self._wanted):
                time.sleep(self._random.uniform(0, 0.3))
                self._strike()
            self._restart()
            time.sleep(0.02)
        for maker in makers:
            while maker.is_alive():
                self._restart()
                maker.join(0.2)
        self._installation.stop()
        revive(self._installation)
        with self._client() as client:
            kept = {sandbox.id for sandbox in living}
            states = {sandbox.id: sandbox.info.state.state for sandbox in client.sandboxes.list()}
            lost = [sandbox_id for sandbox_id in kept if states[sandbox_id] != "running"]
            self.faults += [f"a live sandbox is {states[sandbox_id]}: {sandbox_id}" for sandbox_id in lost]
            others = Counter(state for sandbox_id, state in states.items() if sandbox_id not in kept)
            if set(others) - {"terminated", "failed"}:
                self.faults.append(f"sandboxes that nobody wants: {dict(others)}")
            for sandbox, command_id in zip(living, counters, strict=True):
                if sandbox.id not in lost and not self._beats(client, sandbox.id):
                    self.faults.append(f"command {command_id} no longer runs")
            if not client.ledger.verify().intact:
                self.faults.append("the ledger does not verify")
            extra = set(Victims(self._installation).keepers) - kept
            if extra:
                self.faults.append(f"keepers of no sandbox: {sorted(extra)}")

    def _beats(self, client: SyncColdframe, sandbox_id: str) -> bool:
        sandbox = client.sandboxes.get(sandbox_id)
        before = sandbox.read_file("beats").total_bytes
        try:
            wait_until(lambda: sandbox.read_file("beats").total_bytes > before, "it goes on", timeout_s=20)
        except AssertionError:
            return False
        return True

    def _make(self, number: int) -> None:
        """Make and end sandboxes; what a kill left unknown is looked up and ended too."""
        agent_id = f"maker-{number}"
        while not self._over.is_set():
            try:
                with self._client() as client:
                    client.sandboxes.create(agent_id=agent_id).terminate()
                with self._lock:
                    self.circles += 1
            except (ColdframeError, OSError, ValueError, KeyError):
                time.sleep(0.05)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                with self._client() as client:
                    for sandbox in client.sandboxes.list():
                        if sandbox.info.agent_id == agent_id:
                            sandbox.terminate()
                return
            except (ColdframeError, OSError, ValueError, KeyError):
                time.sleep(0.05)
        self.faults.append("sandboxes could not be ended")

    def _client(self) -> SyncColdframe:
        return SyncColdframe(self._installation.url, self._installation.token, timeout_s=30)

    def _strike(self) -> None:
        victims = Victims(self._installation)
        kind = self._random.choice(["server", "daemon", "zygote", "all"])
        targets = {
            "server": victims.servers,
            "daemon": victims.daemons,
            "zygote": victims.zygotes,
            "all": [*victims.servers, *victims.daemons, *victims.zygotes],
        }[kind]
        if sum([kill(process) for process in targets]):
            self.kills[kind] += 1

    def _restart(self) -> None:
        if not self._installation.running:
            begun = time.monotonic()
            revive(self._installation)
            self.slowest_start_s = max(self.slowest_start_s, time.monotonic() - begun)
