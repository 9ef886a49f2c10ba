"""What was handed over of packages stands in the log of a sandbox, once for each request, with name, version and digest."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from coldframe.contract.network import NetworkPackage, NetworkRequest
from coldframe.contract.policy import Outcome
from coldframe.control.contacts import Wanted
from tests.control.bench import OWNER, opened, until
from tests.fakes.network import contact

RULES = "version: 1\nnetwork: {use: {'*': packages}}\n"


def request(path: str) -> NetworkRequest:
    return NetworkRequest(method="GET", path=path, outcome=Outcome.ALLOW, rule_id="packages:x", at=datetime.now(UTC))


def test_a_request_is_shown_once_with_what_came_of_it_also_where_the_end_has_no_room_for_all(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            asked = [request(f"/simple/a/{number}.whl") for number in range(4)]
            given = [
                one.model_copy(
                    update={"status": 200, "package": NetworkPackage(kind="python", name="a", digest="sha256:00")}
                )
                for one in asked
            ]
            bench.host.put(info.sandbox_id, "begun", contact(requests=()))
            for first, second in zip(asked, given, strict=True):
                bench.host.put(info.sandbox_id, "request", contact(requests=(first,)))
                bench.host.put(info.sandbox_id, "request", contact(requests=(second,)))
            wanted = Wanted()

            async def shown() -> tuple[NetworkRequest, ...]:
                (one,) = (await bench.control.network.log(OWNER, info.sandbox_id, wanted)).contacts
                return one.contact.requests

            await until(lambda: len(bench.entries(kinds=["network.contact"])) == 9)
            assert await shown() == tuple(given)
            bench.host.put(info.sandbox_id, "ended", contact(requests=tuple(given[:2]), ended="closed"))
            await until(lambda: len(bench.entries(kinds=["network.contact"])) == 10)
            assert await shown() == tuple(given)

    asyncio.run(scenario())
