"""Reconciliation: after a start, what a crash of ours left half done is settled by what the host says."""

from coldframe.contract.ports import Host
from coldframe.contract.sandbox import WITH_BOX, SandboxState
from coldframe.control.keyed_calls import KeyedCalls
from coldframe.control.ledger import Ledger
from coldframe.control.sandbox_rows import STATES_OF_LIVING, finishing
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.store import Store


class Reconciliation:
    """Done once, before anybody is let in."""

    def __init__(self, store: Store, ledger: Ledger, sandboxes: Sandboxes, keyed: KeyedCalls, host: Host) -> None:
        self._store = store
        self._ledger = ledger
        self._sandboxes = sandboxes
        self._keyed = keyed
        self._host = host

    async def run(self) -> list[str]:
        """After a start: the states are made what the host says; boxes that nobody knows are removed. Returns what was."""
        boxes = {status.sandbox_id: status.state for status in await self._host.boxes()}
        state: SandboxState
        for sandbox_id, state, was_running in self._store.read(STATES_OF_LIVING):
            if state in ("queued", "starting"):
                self._settle_start(sandbox_id, was_running=bool(was_running))
            elif state == "stopping":
                self._settle_end(sandbox_id)
            elif state in WITH_BOX and boxes.get(sandbox_id, "lost") != "lost":
                self._settle_pause(sandbox_id, state, is_paused=boxes[sandbox_id] == "paused")
                self._sandboxes.slots.occupy(sandbox_id)
                self._sandboxes.used.add(sandbox_id)  # nobody knows what was started in it before
                info = self._sandboxes.find(sandbox_id)
                if info.network is not None:
                    self._sandboxes.networked.add(info)
            elif state in WITH_BOX:
                self._sandboxes.mark_lost(sandbox_id, "its box was not there when the server started")
        return await self._sandboxes.sweep()

    def _settle_start(self, sandbox_id: str, *, was_running: bool) -> None:
        reason = "the server stopped meanwhile"
        if was_running:
            self._sandboxes.move(sandbox_id, "stopped", message=reason)
            return
        self._sandboxes.move(sandbox_id, "failed", message=reason)
        self._sandboxes.close_sessions(sandbox_id)
        with self._store.transaction() as connection:
            self._keyed.forget(sandbox_id, connection=connection)  # it did not start: ask again

    def _settle_end(self, sandbox_id: str) -> None:
        """What is left of its box the sweep removes."""
        is_stopped = finishing(self._sandboxes.find(sandbox_id).state) == "sandbox.stop"
        self._sandboxes.end_in(
            sandbox_id, "stopped" if is_stopped else "terminated", "server", reason="the server stopped meanwhile"
        )

    def _settle_pause(self, sandbox_id: str, state: SandboxState, *, is_paused: bool) -> None:
        """The host has the last word; what it did that nobody has recorded is recorded now."""
        if (state == "paused") is is_paused and state in ("running", "paused"):
            return
        with self._store.transaction() as connection:
            if state == ("running" if is_paused else "paused"):
                self._sandboxes.move(sandbox_id, "pausing" if is_paused else "resuming")
            self._sandboxes.move(sandbox_id, "paused" if is_paused else "running")
            if is_paused is (state in ("paused", "resuming")):
                return  # so it stands in the ledger already
            info = self._sandboxes.find(sandbox_id)
            body = {
                "sandbox_id": sandbox_id,
                "agent_id": info.agent_id,
                "caller": "server",
                "label": self._sandboxes.label(info),
                "reason": "found so when the server started",
            }
            self._ledger.append(
                "sandbox.paused" if is_paused else "sandbox.resumed", sandbox_id, body, connection=connection
            )
