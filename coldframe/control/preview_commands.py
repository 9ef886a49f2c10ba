"""Which command serves a port that somebody has shared: found by the processes of the box, as nobody need have said it.

A port may be shared before anything listens there, so it is looked for again until it is known: when somebody asks how the
preview stands, and when a visitor has come through to it.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal

from coldframe.contract.ledger import CallStarted
from coldframe.contract.preview import ServerStart
from coldframe.control.call_records import ids_of
from coldframe.control.ledger import Ledger
from coldframe.control.preview_rows import PreviewRow
from coldframe.control.preview_states import PreviewStates, ports_of


class PreviewCommands:
    def __init__(self, ledger: Ledger, states: PreviewStates, clock: Callable[[], datetime]) -> None:
        self._ledger = ledger
        self._states = states
        self._clock = clock

    async def serving(self, row: PreviewRow) -> dict[str, Any]:
        """What of a row is known by that, if somebody listens: the command, and how it was called."""
        _, processes = await self._states.inside(row)
        owner = next(
            (one.command_id for one in processes if row.port in ports_of([one], None) and one.command_id), None
        )
        if owner is None:
            return {}
        known: dict[str, Any] = {"command_id": owner, "started_at": self._clock()}
        begun = self._ledger.course(ids_of(owner).call_id).get("call.started")
        if begun is None:
            return known
        started = CallStarted.model_validate(begun.body)
        command = started.command if started.command is not None else started.argv
        if command is None or started.shell_session is not None:
            return known
        names = {} if started.inputs is None else dict.fromkeys(started.inputs.environment, "")
        is_root = started.inputs is not None and started.inputs.user == "root"
        user: Literal["user", "root"] = "root" if is_root else "user"
        start = ServerStart(command=command, cwd=started.cwd or "", user=user, env=names)
        return {**known, "terms": {**row.terms, "start": start.model_dump(mode="json")}}
