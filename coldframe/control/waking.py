"""Wakes paused sandboxes whose lease says that whatever calls them does that.

On behalf of whoever has the lease, since they have said so: a visitor of one of its ports may be nobody whom we know.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from coldframe.contract.errors import Unauthenticated
from coldframe.control.leases import Leases
from coldframe.control.lifecycle import Lifecycle
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.tokens import Tokens

_RUN = ("running", "queued", "starting")
_HELD = ("paused", "pausing", "resuming")


class Waking:
    """Of the sandboxes of this installation."""

    def __init__(
        self,
        leases: Leases,
        tokens: Tokens,
        sandboxes: Sandboxes,
        lifecycle: Lifecycle,
        clock: Callable[[], datetime],
    ) -> None:
        self._leases = leases
        self._tokens = tokens
        self._sandboxes = sandboxes
        self._lifecycle = lifecycle
        self._clock = clock

    def can(self, sandbox_id: str) -> bool:
        """Whether it is paused, and goes on when it is called. What was stopped has no memory to go on with."""
        if self._sandboxes.find(sandbox_id).state.state not in _HELD:
            return False
        lease = self._leases.find(sandbox_id)
        return lease is not None and lease.terms.resumes_by_itself

    async def wake(self, sandbox_id: str) -> bool:
        """Have it go on, for as long as it was given for. Returns whether it runs now; raises what `Lifecycle.resume` does."""
        if self._sandboxes.find(sandbox_id).state.state in _RUN:
            return True
        lease = self._leases.find(sandbox_id)
        if lease is None or not self.can(sandbox_id):
            return False
        try:
            holder = self._tokens.caller_of(lease.token_id, surface="e2b")
        except Unauthenticated:  # whoever has said so has no say any more
            return False
        self._leases.set_end(lease, self._clock() + timedelta(seconds=lease.terms.resume_s), holder)
        await self._lifecycle.resume(holder, sandbox_id)
        return True
