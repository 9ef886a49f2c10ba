"""What there is of the outputs that a sandbox was made for, as its files are now."""

import asyncio

from coldframe.contract.caller import Caller
from coldframe.contract.files import FindOutputs
from coldframe.contract.outputs import DeclaredOutputs, OutputsAnswer, report_outputs
from coldframe.control.call_records import plain_path
from coldframe.control.ledger import Ledger
from coldframe.control.rights import require
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.store import Store

_CALLS = "SELECT seq FROM ledger WHERE sandbox_id = ? AND kind = 'call.ended' ORDER BY seq DESC LIMIT ?"
_CHANGED = """SELECT json_extract(file.value, '$.path'), json_extract(file.value, '$.change')
FROM ledger, json_each(json_extract(ledger.body, '$.files.changes')) AS file
WHERE ledger.seq = ? AND json_extract(file.value, '$.kind') = 'file'"""
MOST_CALLS = 20_000
"""Of a sandbox that are looked through, the newest."""


class DeclaredFiles:
    """Of each sandbox. Those of a command stand in its result."""

    def __init__(self, store: Store, ledger: Ledger, sandboxes: Sandboxes) -> None:
        self._store = store
        self._ledger = ledger
        self._sandboxes = sandboxes

    async def find(self, caller: Caller, sandbox_id: str, *, with_undeclared: bool = True) -> DeclaredOutputs:
        """Look for them now. What was made and was not declared is told from the records of its calls, for people.

        Raises:
            GrantMissing, NotFound: not the caller's.
            WrongState: there is no box to look into.
        """
        require(caller, "ledger.read")
        info = self._sandboxes.get(caller, sandbox_id)
        box = await self._sandboxes.box(info, reads_only=True)
        declared = info.spec.outputs
        answer = await box.ask(FindOutputs(patterns=declared)) if declared else OutputsAnswer()
        made = await self._made(sandbox_id) if with_undeclared else ()
        return report_outputs(declared, answer.renamed(plain_path), made)

    async def _made(self, sandbox_id: str) -> tuple[str, ...]:
        self._ledger.settle()
        left: dict[str, None] = {}
        for (seq,) in reversed(self._store.read(_CALLS, (sandbox_id, MOST_CALLS))):
            for path, change in self._store.read(_CHANGED, (seq,)):
                if change == "deleted":
                    left.pop(path, None)
                elif change != "metadata":
                    left[path] = None
            await asyncio.sleep(0)  # a call may have changed many, and others want their turn
        return tuple(sorted(left))
