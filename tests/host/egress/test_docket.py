"""What the record of a connection says of itself while several of its requests are decided at once."""

import asyncio
from datetime import UTC, datetime
from typing import cast

from coldframe.contract.policy import Outcome
from coldframe.host.egress.contact import EgressContact, EgressRequest
from coldframe.host.egress.docket import Docket, Entry
from coldframe.host.egress.passage import Passage
from coldframe.policy.network import NetworkVerdict


class Begun:
    """As much of a passage as a docket uses; the first record waits."""

    def __init__(self) -> None:
        self.contact = EgressContact("c-1", "sb-1", "tcp", "198.18.0.2", 443, datetime.now(UTC))
        self.has_begun = False
        self.let = asyncio.Event()

    async def begin(self, _: NetworkVerdict, request: EgressRequest | None = None) -> None:
        assert request is not None
        self.contact.requests.append(request)
        await self.let.wait()
        self.has_begun = True

    async def tell(self, request: EgressRequest) -> None:
        self.contact.requests.append(request)


def _entry(outcome: Outcome, rule_id: str) -> Entry:
    request = EgressRequest("GET", "/", outcome, rule_id, datetime.now(UTC))
    return Entry(request, NetworkVerdict(outcome, rule_id, ""), None)


def test_a_request_that_is_denied_while_another_is_put_on_record_does_not_make_the_connection_denied() -> None:
    async def steps() -> None:
        passage = Begun()
        docket = Docket(cast(Passage, passage))
        entries = [_entry(Outcome.ALLOW, "yes"), _entry(Outcome.DENY, "no")]
        asked = [asyncio.ensure_future(docket.record(entry)) for entry in entries]
        await asyncio.wait(asked, timeout=0)
        passage.let.set()
        await asyncio.gather(*asked)
        assert (passage.contact.outcome, passage.contact.rule_id) == (Outcome.ALLOW, "yes")
        assert [entry.place for entry in entries] == [0, 1]

    asyncio.run(steps())
