"""Who made which sandbox, and how many somebody may have: the operator's maxima of one owner, which is one token.

The age has a maximum of its own (`max_age_s`). What is refused here is on the ledger.
"""

from typing import NamedTuple, NoReturn

from coldframe.contract.caller import Caller
from coldframe.contract.errors import LimitReached, next_action
from coldframe.contract.sandbox import SandboxInfo
from coldframe.control.latest import keep_latest
from coldframe.control.ledger import Ledger
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.usage import MIB, Usage

MOST_KNOWN = 100_000
"""Of whom the maker is kept in memory, those of the latest. The ledger knows the others."""
_LATEST = 1 << 62


class Maxima(NamedTuple):
    """Of one owner; None for no end."""

    number: int | None = None
    """Sandboxes that have not ended."""
    stored_mib: int | None = None
    """Of their workspaces, and of snapshots taken through them."""


NO_MAXIMA = Maxima()


class Makers:
    """Of all sandboxes."""

    def __init__(self, ledger: Ledger, sandboxes: Sandboxes, usage: Usage, maxima: Maxima) -> None:
        self._ledger = ledger
        self._sandboxes = sandboxes
        self._usage = usage
        self._maxima = maxima
        self._known: dict[str, str] = {}

    def note(self, sandbox_id: str, caller: Caller) -> None:
        """It is being made, and stands in no entry yet."""
        self._keep(sandbox_id, caller.name)

    def find(self, sandbox_id: str) -> str | None:
        """By the name of surface and token."""
        if (known := self._known.get(sandbox_id)) is not None:
            return known
        made = self._ledger.last(sandbox_id, "sandbox.created", "sandbox.queued", before=_LATEST)
        return None if made is None else self._keep(sandbox_id, str(made.body["caller"]))

    def _keep(self, sandbox_id: str, name: str) -> str:
        return keep_latest(self._known, sandbox_id, name, MOST_KNOWN)

    async def check_stored(self, caller: Caller) -> None:
        """Raise LimitReached if the caller has as much stored as may be. What is stored is added up again where something may have
        changed since the last time."""
        most = self._maxima.stored_mib
        if most is None:
            return
        counted: dict[str, int] = {}
        for info in self._mine(caller):
            place = info.agent_id or info.sandbox_id
            if place not in counted:  # the sandboxes of an agent have one workspace
                counted[place] = await self._usage.counted_bytes(info)
        taken = self._usage.snapshot_bytes().items()
        kept = sum(size for sandbox_id, size in taken if _token_of(self.find(sandbox_id)) == caller.token_id)
        used = (sum(counted.values()) + kept) // MIB
        if used >= most:
            self._refuse(caller, "owner_stored_mib", most, used)

    def check_number(self, caller: Caller) -> None:
        """Raise LimitReached if the caller has as many as may be. Returns at once, so that nobody else comes between."""
        most = self._maxima.number
        if most is not None and (used := len(self._mine(caller))) >= most:
            self._refuse(caller, "owner_sandboxes", most, used)

    def _mine(self, caller: Caller) -> list[SandboxInfo]:
        return [info for info in self._sandboxes.living() if _token_of(self.find(info.sandbox_id)) == caller.token_id]

    def _refuse(self, caller: Caller, kind: str, limit: int, used: int) -> NoReturn:
        body = {"caller": caller.name, "code": LimitReached.code, "kind": kind, "limit": limit, "used": used}
        self._ledger.append("sandbox.create_refused", caller.token_id, body)
        raise LimitReached(
            f"you have reached what the operator lets one owner have: {used} of {limit} ({kind})",
            hint="end some that are not needed, or have the operator raise the maximum",
            next_actions=[next_action("sandbox.list", "lists them, the largest first", sort="stored")],
            kind=kind,
            limit=limit,
            used=used,
        )


def _token_of(name: str | None) -> str | None:
    """Of `surface:token`: whoever comes through another surface is the same owner."""
    return None if name is None else name.rpartition(":")[2]
