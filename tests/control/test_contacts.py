"""Held here: contacts are found by any question, in order and each once, and nobody waits while much is looked at."""

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.pool import StaticPool

import coldframe.control.contacts as contacts_module
from coldframe.contract.network import NetworkPackage, NetworkRequest
from coldframe.contract.policy import Outcome
from coldframe.control.contacts import Contacts, Wanted
from coldframe.control.migrations import upgrade
from coldframe.control.store import Store
from tests.fakes.network import contact

BEGAN = datetime(2026, 5, 4, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(str(tmp_path / "coldframe.db"))
    yield opened
    opened.close()


def request(path: str) -> NetworkRequest:
    return NetworkRequest(method="GET", path=path, outcome=Outcome.ALLOW, rule_id="api", at=BEGAN)


def put(contacts: Contacts, contact_id: str, sandbox_id: str, agent_id: str | None, **facts: Any) -> None:
    begun = contact(contact_id, **{"began_at": BEGAN, **facts})
    with contacts._store.transaction():
        contacts.add(sandbox_id, agent_id, f"ses-{sandbox_id}", begun, is_open=True)


def filled(store: Store) -> Contacts:
    contacts = Contacts(store)
    for number in range(30):
        agent = ("ada", "bob", None)[number % 3]
        name, dialled = ("api.example.com", "10.0.0.1") if number % 2 else (None, "10.0.0.2")
        put(
            *(contacts, f"c{number}", f"sbx-{agent}", agent),
            name=name,
            address="198.18.0.2" if name else "10.0.0.2",
            dialled=dialled,
            outcome=Outcome.ALLOW if number % 5 else Outcome.DENY,
            command_id=f"cmd{number // 10}",
            began_at=BEGAN + timedelta(minutes=number),
        )
    return contacts


async def ids(contacts: Contacts, limit: int = 1000, **wanted: Any) -> list[int]:
    """All pages."""
    found: list[int] = []
    after, more = 0, True
    while more:
        page, more = await contacts.page(Wanted(**wanted), after=after, limit=limit)
        found += [int(one.contact.contact_id[1:]) for one in page]
        after = page[-1].number if page else after
    return found


@pytest.mark.parametrize("at_once", [1, 4, 10_000])
@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_every_question_gives_all_that_fit_in_order(
    store: Store, monkeypatch: pytest.MonkeyPatch, at_once: int, limit: int
) -> None:
    monkeypatch.setattr(contacts_module, "LOOKED_AT_ONCE", at_once)

    async def scenario() -> None:
        contacts, every = filled(store), range(30)
        odd, adas = list(every)[1::2], list(every)[::3]
        questions: list[tuple[dict[str, Any], list[int]]] = [
            ({}, list(every)),
            ({"agent_id": "ada"}, adas),
            ({"sandbox_id": "sbx-bob"}, list(every)[1::3]),
            ({"host": "API.example.com."}, odd),
            ({"host": "*.example.com"}, odd),
            ({"host": "*.xample.com"}, []),
            ({"host": "10.0.0.1"}, odd),
            ({"host": "10.0.0.2"}, list(every)[::2]),
            ({"host": "api.example.com", "agent_id": "ada"}, [one for one in odd if one in adas]),
            ({"outcome": Outcome.DENY}, list(every)[::5]),
            ({"command_id": "cmd1", "sandbox_id": "sbx-ada"}, [one for one in adas if 10 <= one < 20]),
            ({"since": BEGAN + timedelta(minutes=28)}, [28, 29]),
            ({"until": BEGAN + timedelta(minutes=2), "agent_id": "ada"}, [0]),
        ]
        for wanted, numbers in questions:
            assert await ids(contacts, limit, **wanted) == numbers, wanted
        reached = await contacts.reached_by(Wanted(), limit=10)
        assert [(one.sandbox_id, one.allowed, one.denied) for one in reached] == [
            ("sbx-None", 8, 2),
            ("sbx-bob", 8, 2),
            ("sbx-ada", 8, 2),
        ]
        (first,) = await contacts.reached_by(Wanted(agent_id="ada", host="10.0.0.2"), limit=1)
        assert (first.first_at, first.last_at) == (BEGAN, BEGAN + timedelta(minutes=24))
        assert len(await contacts.reached_by(Wanted(), limit=2)) == 2

    asyncio.run(scenario())


def test_others_are_served_while_a_search_goes_through_many(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contacts_module, "LOOKED_AT_ONCE", 3)

    async def scenario() -> None:
        contacts, turns = filled(store), 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(other())
        for asking in (ids(contacts, host="*.nowhere.example"), contacts.reached_by(Wanted(), limit=9)):
            before = turns
            await asking
            assert turns - before >= 9
        beside.cancel()

    asyncio.run(scenario())


def test_a_page_of_large_contacts_is_shorter_and_is_gone_on_from(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contacts_module, "MOST_BYTES", 100_000)
    monkeypatch.setattr(contacts_module, "BYTES_AT_ONCE", 10_000)

    async def scenario() -> None:
        contacts = Contacts(store)
        large = tuple(request("/" + "x" * 2000) for _ in range(20))
        for number in range(12):
            put(contacts, f"c{number}", "sbx", "ada", requests=large, command_id="cmd")
        page, more = await contacts.page(Wanted(), after=0, limit=1000)
        assert (len(page), more) == (3, True)
        assert page[0].contact.requests == large
        assert await ids(contacts) == list(range(12))
        # what the result of a command tells is without them, so all are told
        found = await contacts.of_command("cmd", limit=1000)
        assert [(one.contact_id, one.requests) for one in found] == [(f"c{number}", ()) for number in range(12)]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "wanted", [{"host": "a.example"}, {"agent_id": "ada"}, {"sandbox_id": "s"}, {"host": "1.2.3.4"}]
)
def test_what_an_index_can_narrow_down_is_looked_up_there_step_by_step(store: Store, wanted: dict[str, Any]) -> None:
    search = contacts_module._Search(Wanted(**wanted))
    query = f"EXPLAIN QUERY PLAN SELECT number FROM network_contacts WHERE {contacts_module._within(search)}"
    plan = " ".join(str(row[3]) for row in store.read(query, [*search.values, 1, 2]))
    assert "rowid>? AND rowid<?" in plan
    assert "INDEX network_contacts_" in plan


def test_contacts_of_a_version_of_before_are_found_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "coldframe.db"
    whole = contact("c1", began_at=BEGAN, requests=(request("/a"), request("/b")))
    raw = sqlite3.connect(path)
    engine = sqlalchemy.create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool)
    with engine.begin() as connection:
        upgrade(connection, "0005")
    values = (1, 1, "sbx", "ses", "c1", "api.example.com", "allow", BEGAN.isoformat(), 1, whole.model_dump_json())
    raw.execute(
        "INSERT INTO network_contacts (number, change, sandbox_id, session_id, contact_id, host, outcome, began_at, open, "
        "document) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        values,
    )
    raw.commit()
    raw.close()
    store = Store(str(path))
    try:
        found = Contacts(store).find("sbx", "c1")
        assert found is not None
        assert found.contact == whole
        document = store.read("SELECT document FROM network_contacts")[0][0]
        assert "requests" not in json.loads(document)
    finally:
        store.close()


def test_packages_are_told_in_order_without_reading_other_contacts(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contacts_module, "PARSED_AT_ONCE", 4)
    contacts = filled(store)
    for number in range(10):
        package = NetworkPackage(kind="python", name=f"p{number}", file=f"p{number}.whl", digest="sha256:0")
        with_package = request(f"/files/p{number}").model_copy(update={"package": package})
        denied = {"outcome": Outcome.DENY} if number == 5 else {}
        requests = (request("/simple"), with_package, with_package)
        put(contacts, f"p{number}", "sbx-ada", "ada", requests=requests, command_id=f"cmd{number}", **denied)
    put(contacts, "other", "sbx-bob", "bob", requests=(request('/"package":{'),))

    async def told(sandbox_id: str) -> list[tuple[str, str | None]]:
        return [(package.name, command_id) async for package, command_id in contacts.packages_of(sandbox_id)]

    expected = [(f"p{number}", f"cmd{number}") for number in range(10) if number != 5 for _ in range(2)]
    assert asyncio.run(told("sbx-ada")) == expected
    assert asyncio.run(told("sbx-bob")) == []
