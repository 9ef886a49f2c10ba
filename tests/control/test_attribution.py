"""Held here: a contact is laid to a command only if it can only have been that one, or the host knows, whatever is forgotten."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import coldframe.control.attribution as attribution_module
from coldframe.contract.policy import Role
from coldframe.control.attribution import Attribution
from coldframe.control.contacts import Contacts
from tests.control.keeping import Keeping
from tests.fakes.network import contact


def ran(keeping: Keeping, command_id: str, *, leftovers: int = 0) -> datetime:
    """Put a command on record that ran from one tick of the clock to the next but one. A moment within."""
    whose = {"sandbox_id": "sbx", "command_id": command_id, "call_id": f"call-{command_id}"}
    keeping.ledger.append("call.started", f"call-{command_id}", whose)
    within = keeping.clock()
    keeping.ledger.append("call.ended", f"call-{command_id}", {**whose, "leftovers": leftovers})
    return within


def asked(keeping: Keeping, attribution: Attribution, at: datetime, contact_id: str = "c1") -> str | None:
    return asyncio.run(attribution.command_of("sbx", contact(contact_id, began_at=at)))


def test_what_is_not_kept_any_more_is_not_guessed(keeping: Keeping, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribution_module, "MOST_RUNS", 3)
    attribution = Attribution(keeping.ledger, Contacts(keeping.store))
    moments = [ran(keeping, f"cmd{number}") for number in range(6)]
    found = [asked(keeping, attribution, at) for at in moments]
    assert found == [None, None, None, "cmd3", "cmd4", "cmd5"]
    moments.append(ran(keeping, "cmd6"))
    assert [asked(keeping, attribution, at) for at in moments[3:]] == [None, "cmd4", "cmd5", "cmd6"]
    assert len(asyncio.run(attribution.runs_of("sbx"))._ended) == 3


def test_a_command_that_runs_for_long_is_known_however_many_ended_meanwhile(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attribution_module, "MOST_RUNS", 3)
    attribution = Attribution(keeping.ledger, Contacts(keeping.store))
    keeping.ledger.append("call.started", "call-long", {"sandbox_id": "sbx", "command_id": "long"})
    moments = [ran(keeping, f"cmd{number}") for number in range(6)]
    assert asked(keeping, attribution, keeping.clock()) == "long"
    assert [asked(keeping, attribution, at) for at in moments] == [None] * 6  # two ran then, or nobody knows


def test_a_contact_on_record_keeps_its_command_and_one_of_nobody_has_none(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attribution_module, "MOST_RUNS", 1)
    contacts = Contacts(keeping.store)
    attribution = Attribution(keeping.ledger, contacts)
    first = ran(keeping, "first")
    with keeping.store.transaction():
        contacts.open_network("sbx", Role.OWNER)
        for contact_id, command_id in (("kept-alive", "first"), ("nobodys", None)):
            begun = contact(contact_id, began_at=first, command_id=command_id)
            contacts.add("sbx", None, "ses", begun, is_open=True)
    assert asked(keeping, attribution, first, "new") == "first"
    for number in range(3):
        ran(keeping, f"cmd{number}")
    assert asked(keeping, attribution, first, "new") is None
    assert asked(keeping, attribution, first, "kept-alive") == "first"
    assert asked(keeping, attribution, first, "nobodys") is None


def test_after_one_that_left_processes_behind_nobody_is_named(keeping: Keeping) -> None:
    attribution = Attribution(keeping.ledger, Contacts(keeping.store))
    during = ran(keeping, "leaves", leftovers=1)
    after = ran(keeping, "next")
    assert [asked(keeping, attribution, at) for at in (during, after)] == ["leaves", None]
    assert asked(keeping, attribution, datetime.now(UTC) + timedelta(days=9999)) is None


def test_what_the_host_tells_counts_of_a_command_that_has_begun_here_and_else_nobody_is_named(keeping: Keeping) -> None:
    attribution = Attribution(keeping.ledger, Contacts(keeping.store))
    before = keeping.clock()
    ran(keeping, "leaves", leftovers=1)
    keeping.ledger.append("call.started", "call-1", {"sandbox_id": "sbx", "command_id": "one"})
    keeping.ledger.append("call.started", "call-2", {"sandbox_id": "sbx", "command_id": "two"})
    keeping.ledger.append("call.started", "call-3", {"sandbox_id": "other", "command_id": "elsewhere"})
    now = keeping.clock()

    def told(command_id: str | None, at: datetime) -> str | None:
        return asyncio.run(attribution.command_of("sbx", contact("c1", began_at=at, command_id=command_id)))

    assert [told(one, now) for one in ("leaves", "one", "two", "elsewhere", None)] == [
        *("leaves", "one", "two"),
        *(None, None),
    ]
    assert told("one", before) is None


def test_others_are_served_while_much_is_read_and_few_sandboxes_are_kept(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attribution_module, "PAGE", 2)
    monkeypatch.setattr(attribution_module, "MOST_SANDBOXES", 2)
    moments = [ran(keeping, f"cmd{number}") for number in range(10)]

    async def scenario() -> None:
        attribution = Attribution(keeping.ledger, Contacts(keeping.store))
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(other())
        assert (await attribution.runs_of("sbx")).command_at(moments[0]) == "cmd0"
        beside.cancel()
        assert turns >= 9
        for sandbox_id in ("b", "c", "d"):
            await attribution.runs_of(sandbox_id)
        assert list(attribution._runs) == ["c", "d"]
        assert (await attribution.runs_of("sbx")).command_at(moments[0]) == "cmd0"
        attribution.forget("sbx")
        assert list(attribution._runs) == ["d"]

    asyncio.run(scenario())
