"""What watches of directories noted, for whoever may see it: judged again with each answer, as the call that began the watch.

Names of files are content like any other: whoever reads them takes on the label of the workspace. That a watch begins is a
call of `watch_path` and on record with its decision; fetching from it is not, as reading the output of a command is not.
"""

from collections.abc import AsyncIterator

from coldframe.contract.caller import Caller
from coldframe.contract.errors import NotFound
from coldframe.contract.ledger import CallStarted
from coldframe.contract.paths import EndWatch, ReadWatch, WatchEvents
from coldframe.contract.policy import Outcome
from coldframe.contract.sandbox import SandboxInfo
from coldframe.control.call_records import ids_of
from coldframe.control.judgement import judge_call, refusal_of
from coldframe.control.ledger import Ledger
from coldframe.control.rights import require
from coldframe.control.rulebook import Rulebook
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.sessions import Sessions
from coldframe.control.taints import Taints
from coldframe.policy.labels import join

STREAM_WAIT_S = 20.0
"""Longest question to a box; after it the next one is asked."""
MOST_WAIT_S = 60.0


class Watches:
    def __init__(
        self, ledger: Ledger, rulebook: Rulebook, sandboxes: Sandboxes, sessions: Sessions, taints: Taints
    ) -> None:
        self._ledger = ledger
        self._rulebook = rulebook
        self._sandboxes = sandboxes
        self._sessions = sessions
        self._taints = taints

    async def read(self, caller: Caller, sandbox_id: str, watch_id: str, *, wait_s: float = 0.0) -> WatchEvents:
        """Return what happened since the last answer, after at most *wait_s* without anything.

        Raises:
            NotFound: there is no such watch, or nobody has asked about it for ten minutes.
            Refused, PolicyUnavailable: rules have something against the call that began it by now.
            WrongState: the sandbox does not run.
        """
        info, started = self._find(caller, sandbox_id, watch_id)
        box = await self._sandboxes.box(info)
        found = await box.ask(ReadWatch(watch_id=watch_id, wait_s=min(wait_s, MOST_WAIT_S)))
        if found.events or found.overflowed:
            decision = judge_call(started.context, self._rulebook.current)
            if decision.outcome is not Outcome.ALLOW:
                raise refusal_of(decision)
            info = self._sandboxes.find(sandbox_id)
            session = self._sandboxes.session(info)
            self._sessions.raise_taint(session.session_id, join(info.workspace_label, decision.label))
            await self._taints.settle(info)
        return found

    async def follow(self, caller: Caller, sandbox_id: str, watch_id: str) -> AsyncIterator[WatchEvents]:
        """Yield what happens as it does, an empty answer now and then, until the directory is gone. Raises like `read`."""
        while True:
            found = await self.read(caller, sandbox_id, watch_id, wait_s=STREAM_WAIT_S)
            yield found
            if found.ended:
                return

    async def end(self, caller: Caller, sandbox_id: str, watch_id: str) -> None:
        """Let go of it. Raises NotFound if there is none."""
        info, _ = self._find(caller, sandbox_id, watch_id)
        await (await self._sandboxes.box(info)).ask(EndWatch(watch_id=watch_id))

    def _find(self, caller: Caller, sandbox_id: str, watch_id: str) -> tuple[SandboxInfo, CallStarted]:
        require(caller, "tool.call")
        info = self._sandboxes.get(caller, sandbox_id)
        entry = self._ledger.course(ids_of(watch_id).call_id).get("call.started")
        started = None if entry is None else CallStarted.model_validate(entry.body)
        if (
            started is None
            or not watch_id.startswith("wch_")
            or (started.tool, started.sandbox_id) != ("watch_path", info.sandbox_id)
        ):
            raise NotFound(f"there is no watch `{watch_id[:80]}`", hint="begin one", watch_id=watch_id[:80])
        return info, started
