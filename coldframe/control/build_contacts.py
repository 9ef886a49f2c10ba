"""Whom the steps of template builds reached and tried to reach, taken over from the host's records into the ledger.

A step's box is no sandbox: its contacts are on no log of one, and are found in the ledger by the build. Records stay with the
host until they are here, also when server or daemon end meanwhile; then the next start takes what is left.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from coldframe.contract.errors import ColdframeError
from coldframe.contract.network import NetworkPage, NetworkRecord
from coldframe.contract.policy import Outcome
from coldframe.contract.ports import Host
from coldframe.contract.template import StepBox, step_box_of
from coldframe.control.ledger import Ledger, format_time
from coldframe.control.store import Store

BATCH = 500
KINDS = ("template.contact", "template.denied", "template.lookup", "template.missing", "template.denied_sums")
_log = logging.getLogger(__name__)


class BuildContacts:
    """Of one installation."""

    def __init__(self, store: Store, ledger: Ledger, host: Host) -> None:
        self._store = store
        self._ledger = ledger
        self._host = host
        self._taking = asyncio.Lock()

    async def take(self, is_over: Callable[[str], bool]) -> None:
        """Take over what there is of builds that are over. What goes wrong is logged, and left for the next time."""
        try:
            async with self._taking:
                for name in await self._host.templates.reached():
                    box = step_box_of(name)
                    if box is not None and is_over(box.build_id):
                        await self._take(name, box)
        except ColdframeError as error:
            _log.warning("the contacts of template builds are not on record yet: %s", error.message)

    async def _take(self, name: str, box: StepBox) -> None:
        seq, has_sums = self._last_of(name, box)
        while True:
            page = await self._host.network_records(name, after_seq=seq, limit=BATCH)
            seq = self._write(name, box, page.model_copy(update={"denied_sums": ()}) if has_sums else page, seq)
            if not page.more:
                break
        await self._host.forget_network_records(name)

    def _last_of(self, name: str, box: StepBox) -> tuple[int, bool]:
        """Number of the last record that is here already, as when the server was killed before the host could forget it, and
        whether the sums are."""
        last, has_sums, after = 0, False, 0
        while known := self._ledger.entries(kinds=KINDS, subject=box.build_id, after=after, limit=1000):
            after = known[-1].seq
            for entry in known:
                if entry.body["box"] == name:
                    last = max(last, int(entry.body["record"]))
                    has_sums = has_sums or entry.kind == "template.denied_sums"
        return last, has_sums

    def _write(self, name: str, box: StepBox, page: NetworkPage, seq: int) -> int:
        with self._store.transaction(durable=True) as connection:

            def append(kind: str, record: int, body: dict[str, Any]) -> None:
                whose = {"build_id": box.build_id, "step": box.step, "box": name, "record": record}
                self._ledger.append(kind, box.build_id, {**whose, **body}, connection=connection)

            for record in page.records:
                if record.seq <= seq:
                    continue
                if record.seq != seq + 1:
                    append("template.missing", record.seq - 1, {"first": seq + 1, "last": record.seq - 1})
                seq = record.seq
                kind, body = _entry(record)
                append(kind, seq, body)
            if page.denied_sums and not page.more:
                append("template.denied_sums", seq, {"sums": [one.model_dump(mode="json") for one in page.denied_sums]})
        return seq


def _entry(record: NetworkRecord) -> tuple[str, dict[str, Any]]:
    contact = record.contact
    if contact is None:
        return "template.missing", {"torn_at": format_time(record.at)}
    of_request = record.event == "request" and bool(contact.requests)
    outcome = contact.requests[0].outcome if of_request else contact.outcome
    kind = "template.denied"
    if outcome is Outcome.ALLOW:
        kind = "template.lookup" if record.event == "looked-up" else "template.contact"
    return kind, {"event": record.event, **contact.model_dump(mode="json", exclude={"command_id"})}
