"""Results that are deleted once they were fetched (`on_result: delete`): offered, confirmed by digest, and then gone.

Whoever confirms says the digest of what they have. Nothing is deleted for another one, nor if the files are others by now
than those that were offered. What is begun is carried to its end, after a crash too: the sandbox, its temporary workspace,
the output of its commands and what rules have looked at of it. What stays are the ledger, receipts and digests.

Where nobody has confirmed in time, the timer that ends the sandbox, and its workspace with it, deletes the rest as well.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from coldframe.contract.caller import Caller
from coldframe.contract.errors import Conflict, WrongState, next_action
from coldframe.contract.ledger import LedgerEntry
from coldframe.contract.outputs import DeclaredOutputs, FoundOutput
from coldframe.contract.policy import Role
from coldframe.contract.ports import Host
from coldframe.contract.result import SandboxResult, result_digest
from coldframe.contract.sandbox import ENDED, SandboxInfo
from coldframe.control.declared_outputs import DeclaredFiles
from coldframe.control.judged_outputs import JudgedOutputs
from coldframe.control.ledger import Ledger
from coldframe.control.lifecycle import TIMER, Lifecycle
from coldframe.control.rights import require
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.store import Store
from coldframe.control.timers import Due, Timers

OFFERED, DELETING, DELETED = "result.offered", "result.deleting", "result.deleted"
_LATEST = 2**62
_ENDED_WITH_RESULT = (
    "SELECT sandbox_id FROM sandboxes WHERE json_extract(state, '$.state') = 'terminated' "
    "AND agent_id IS NULL AND json_extract(spec, '$.on_result') = 'delete'"
)
AGAIN_S = 30.0
"""After a deletion that broke off, as while the host cannot be reached."""
_log = logging.getLogger(__name__)
_SERVER = Caller(token_id="server", role=Role.OWNER, surface="embedded")  # noqa: S106  no token has that name
"""Who ends the sandbox where whoever confirmed is not there any more."""


class Results:
    """Of sandboxes whose spec says so."""

    def __init__(
        self,
        ledger: Ledger,
        sandboxes: Sandboxes,
        declared: DeclaredFiles,
        lifecycle: Lifecycle,
        timers: Timers,
        judged: JudgedOutputs,
        host: Host,
        store: Store,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._sandboxes = sandboxes
        self._declared = declared
        self._lifecycle = lifecycle
        self._timers = timers
        self._judged = judged
        self._host = host
        self.forget_cells: Callable[[str], None] = lambda _: None
        """What is in memory of the cells of a sandbox."""
        self._work: dict[str, asyncio.Task[None]] = {}
        """By sandbox."""
        self._again: dict[str, asyncio.TimerHandle] = {}
        """Those whose deletion broke off."""
        self._act_on_timer, timers.expire = timers.expire, self._expire

    def get(self, caller: Caller, sandbox_id: str) -> SandboxResult:
        """How it stands with the result. Raises GrantMissing, NotFound, WrongState for a sandbox that keeps its own."""
        require(caller, "ledger.read")
        return self._result(self._info(caller, sandbox_id))

    async def offer(self, caller: Caller, sandbox_id: str) -> SandboxResult:
        """Take down what the result is: the declared outputs as they are now. Again, and it is what they are then.

        Raises:
            GrantMissing, NotFound: not the caller's.
            WrongState: an output is missing, or it is being deleted.
        """
        require(caller, "sandbox.terminate")
        info = self._info(caller, sandbox_id)
        self._require_undeleted(info)
        outputs = await self._found(caller, info)
        self._require_undeleted(info)
        body = {
            "sandbox_id": sandbox_id,
            "agent_id": info.agent_id,
            "caller": caller.name,
            "sha256": _digest(outputs.found),
            "files": [one.model_dump(mode="json") for one in outputs.found],
        }
        self._ledger.append(OFFERED, sandbox_id, body)
        return self._result(info)

    async def confirm(self, caller: Caller, sandbox_id: str, sha256: str) -> SandboxResult:
        """Delete all that is left of the sandbox, for the digest of what was fetched. Idempotent. Of one that has ended, that
        is what its commands have written.

        Raises:
            GrantMissing, NotFound: not the caller's.
            WrongState: nothing was offered.
            Conflict: that is another digest, or the files are others now; nothing is deleted.
        """
        require(caller, "sandbox.terminate")
        info = self._info(caller, sandbox_id)
        result = self._result(info)
        if result.sha256 is None:
            raise WrongState(
                f"the result of sandbox `{sandbox_id}` was not offered yet",
                next_actions=[next_action("result.offer", "takes down what the result is", sandbox_id=sandbox_id)],
                sandbox_id=sandbox_id,
            )
        if sha256 != result.sha256:
            raise Conflict(
                f"`{sha256}` is not the digest of the result of sandbox `{sandbox_id}`",
                hint="fetch the files that are offered again, and confirm what you have; nothing was deleted",
                next_actions=[next_action("result.get", "lists what is offered", sandbox_id=sandbox_id)],
                sandbox_id=sandbox_id,
                offered=result.sha256,
            )
        if result.state == "awaiting_fetch":
            found = await self._found(caller, info)
            if _digest(found.found) != sha256:
                raise Conflict(
                    f"the files of the result of sandbox `{sandbox_id}` have changed since it was offered",
                    hint="offer and fetch it again; nothing was deleted",
                    next_actions=[next_action("result.offer", "takes down what it is now", sandbox_id=sandbox_id)],
                    sandbox_id=sandbox_id,
                )
        if self._last(sandbox_id, DELETING) is None:  # nobody else was faster
            self._begin(info, caller.name, sha256)
        await self._whole(sandbox_id)
        return self._result(info)

    def _begin(self, info: SandboxInfo, by: str, sha256: str | None) -> None:
        """*sha256* is what somebody has confirmed; None if nobody has."""
        body = {"sandbox_id": info.sandbox_id, "agent_id": info.agent_id, "caller": by, "sha256": sha256}
        self._ledger.append(DELETING, info.sandbox_id, body, durable=True)

    async def _expire(self, info: SandboxInfo, due: Due) -> None:
        """What the timer does, and what follows from it."""
        await self._act_on_timer(info, due)
        if info.spec.on_result == "delete":
            self._delete_expired(info.sandbox_id)

    def _delete_expired(self, sandbox_id: str) -> None:
        """If a timer has ended it, and nobody has begun with that."""
        info = self._sandboxes.find(sandbox_id)
        if info.state.state == "terminated" and self._last(sandbox_id, DELETING) is None:
            end = self._last(sandbox_id, "sandbox.terminated")
            if end is not None and end.body.get("caller") == TIMER:
                self._begin(info, TIMER, None)
                self._start(sandbox_id)

    def take_up(self) -> None:
        """After a start: what was begun is carried on, and what was to follow from the end of a sandbox."""
        for (sandbox_id,) in self._store.read(_ENDED_WITH_RESULT):
            self._delete_expired(str(sandbox_id))
        begun = {one.subject: one for one in self._all(DELETING)}
        for entry in self._all(DELETED):
            begun.pop(entry.subject, None)
        for sandbox_id in begun:
            self._start(sandbox_id)

    async def close(self) -> None:
        while self._work or self._again:
            for timer in self._again.values():
                timer.cancel()
            self._again.clear()
            for task in self._work.values():
                task.cancel()
            await asyncio.gather(*self._work.values(), return_exceptions=True)
            await asyncio.sleep(0)  # so that each is settled

    async def _whole(self, sandbox_id: str) -> None:
        """To its end, whoever leaves."""
        await asyncio.shield(self._start(sandbox_id))

    def _start(self, sandbox_id: str) -> "asyncio.Task[None]":
        if (timer := self._again.pop(sandbox_id, None)) is not None:
            timer.cancel()
        if (begun := self._work.get(sandbox_id)) is not None:
            return begun
        task = self._work[sandbox_id] = asyncio.ensure_future(self._delete(sandbox_id))
        task.add_done_callback(lambda done: self._settle(sandbox_id, done))
        return task

    def _settle(self, sandbox_id: str, task: "asyncio.Task[None]") -> None:
        """What fails stands as begun, and is carried on after a while, or when it is confirmed again."""
        del self._work[sandbox_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("the result of `%s` could not be deleted: %s", sandbox_id, error)
            self._again[sandbox_id] = asyncio.get_running_loop().call_later(AGAIN_S, self._start, sandbox_id)

    async def _delete(self, sandbox_id: str) -> None:
        """Whatever of it was done before is not there to be done again."""
        if self._last(sandbox_id, DELETED) is not None:
            return
        info = self._sandboxes.find(sandbox_id)
        await self._lifecycle.terminate(_SERVER, sandbox_id)
        await self._host.forget_stored(sandbox_id)
        self._judged.forget(sandbox_id)
        self.forget_cells(sandbox_id)
        offered = self._last(sandbox_id, OFFERED)
        body: dict[str, Any] = {
            "sandbox_id": sandbox_id,
            "agent_id": info.agent_id,
            "sha256": None if offered is None else offered.body["sha256"],
            "deleted": ["workspace", "temporary files", "processes", "output of commands"],
        }
        if self._last(sandbox_id, DELETED) is None:
            self._ledger.append(DELETED, sandbox_id, body, durable=True)

    async def _found(self, caller: Caller, info: SandboxInfo) -> DeclaredOutputs:
        outputs = await self._declared.find(caller, info.sandbox_id, with_undeclared=False)
        if outputs.code is not None or not outputs.complete:
            wrong = [*outputs.missing, *(one.path for one in outputs.refused)]
            why = f"lacks {', '.join(wrong[:5])}" if wrong else "has more files than can be told"
            raise WrongState(
                f"the result of sandbox `{info.sandbox_id}` is not whole: it {why}",
                next_actions=[next_action("sandbox.outputs", "lists what there is", sandbox_id=info.sandbox_id)],
                sandbox_id=info.sandbox_id,
                code_of_result="OUTPUT_MISSING",
            )
        return outputs

    def _info(self, caller: Caller, sandbox_id: str) -> SandboxInfo:
        info = self._sandboxes.get(caller, sandbox_id)
        if info.spec.on_result != "delete":
            raise WrongState(
                f"sandbox `{sandbox_id}` keeps its result",
                hint="make it with `on_result: delete` for one that is deleted when it was fetched",
                sandbox_id=sandbox_id,
            )
        return info

    def _require_undeleted(self, info: SandboxInfo) -> None:
        state = self._result(info).state
        if state in ("deleting", "deleted"):
            raise WrongState(
                f"the result of sandbox `{info.sandbox_id}` is {state}: it was fetched", sandbox_id=info.sandbox_id
            )

    def _result(self, info: SandboxInfo) -> SandboxResult:
        offered = self._last(info.sandbox_id, OFFERED)
        deleting = self._last(info.sandbox_id, DELETING)
        deleted = self._last(info.sandbox_id, DELETED)
        state: Any = "open" if offered is None else "awaiting_fetch"
        if self._sandboxes.find(info.sandbox_id).state.state in ENDED:
            state = "expired"
        if deleting is not None and deleting.body["sha256"] is not None:  # else nobody had confirmed
            state = "deleting" if deleted is None else "deleted"
        files = () if offered is None else tuple(FoundOutput.model_validate(one) for one in offered.body["files"])
        due = self._timers.shown(info).expires_at
        return SandboxResult(
            sandbox_id=info.sandbox_id,
            state=state,
            sha256=None if offered is None else offered.body["sha256"],
            files=files,
            offered_at=None if offered is None else offered.at,
            kept_until=due if state in ("open", "awaiting_fetch") else None,
            deleted_at=None if deleted is None else deleted.at,
        )

    def _last(self, sandbox_id: str, kind: str) -> LedgerEntry | None:
        return self._ledger.last(sandbox_id, kind, before=_LATEST)

    def _all(self, kind: str) -> list[LedgerEntry]:
        found: list[LedgerEntry] = []
        while page := self._ledger.entries(kinds=(kind,), after=found[-1].seq if found else 0, limit=1000):
            found += page
        return found


def _digest(files: tuple[FoundOutput, ...]) -> str:
    return result_digest((one.path, one.bytes, one.sha256) for one in files)
