"""What was handed over of packages stands in the log of a sandbox, once for each request, with name, version and digest."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from coldframe.contract.network import NetworkPackage, NetworkRequest
from coldframe.contract.policy import Outcome
from coldframe.control import call_records
from coldframe.control.contacts import Wanted
from coldframe.control.receipts import receipt_digest
from tests.control.bench import OWNER, UNTIL_GO, opened, until
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


@pytest.mark.req("T4.18")
def test_the_receipt_of_a_command_has_what_registries_handed_over_to_it_each_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_records, "MOST_DEPENDENCIES", 2)

    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            plain = await bench.call(info, "run_command", OWNER, command="true")
            kinds = (("python", "a"), ("npm", "b"), ("debian", "c"), ("python", "a"), ("python", ""))
            given = [
                request(f"/{name}").model_copy(
                    update={
                        "package": NetworkPackage(
                            kind=kind,
                            name=name or "told",
                            version="1.0",
                            file=name and f"{name}.file",
                            digest="sha256:00",
                        )
                    }
                )
                for kind, name in kinds
            ]
            work = asyncio.ensure_future(bench.call(info, "run_command", OWNER, command=UNTIL_GO))
            await until(lambda: any(one.kind == "call.started" for one in bench.calls()[2:]))
            started = bench.calls()[-1].body["command_id"]
            bench.host.put(info.sandbox_id, "begun", contact(requests=tuple(given), command_id=started))
            bench.go()
            done = await work
            receipt = bench.control.receipts.get(OWNER, done.receipt_id or "")
            assert [(one.manager, one.name, one.file) for one in receipt.dependencies] == [
                ("pip", "a", "a.file"),
                ("npm", "b", "b.file"),
            ]
            assert receipt.dependencies_omitted == 1
            assert receipt_digest(receipt) == receipt.digest
            before = bench.control.receipts.get(OWNER, plain.receipt_id or "")
            assert before.dependencies == () and "dependencies" not in before.model_dump()

    asyncio.run(scenario())
