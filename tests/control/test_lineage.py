"""Held here: every item has its whole record, what is known of its inputs is told from what is assumed, and the index can
be made anew at any time with the same ids."""

import asyncio
import hashlib
import itertools
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.caller import Caller
from coldframe.contract.errors import GrantMissing, InvalidArgument, LedgerUnavailable, NotFound
from coldframe.contract.lineage import LineageItem, LineageTrace, TracedItem
from coldframe.contract.policy import Label, Role
from coldframe.contract.sandbox import SandboxSpec
from coldframe.control import derivation
from coldframe.control.call_records import ids_of
from coldframe.control.ledger import format_time
from coldframe.control.lineage import WantedItems
from coldframe.control.lineage_rows import LineageRows
from tests.control.bench import AGENT, OTHER, OWNER, SECRETS, UNTIL_GO, VIEWER, Bench, opened, refused


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


async def items(bench: Bench, **wanted: Any) -> list[LineageItem]:
    found, after = list[LineageItem](), 0
    while True:
        page = await bench.control.lineage.items(VIEWER, WantedItems(**wanted), after=after, limit=3)
        found += page.items
        if page.next_after is None:
            return found
        after = page.next_after


async def one(bench: Bench, **wanted: Any) -> LineageItem:
    (found,) = await items(bench, **wanted)
    return found


async def of_call(bench: Bench, call_id: str, kind: str) -> LineageItem:
    (found,) = [item for item in await items(bench) if (item.call_id, item.kind) == (call_id, kind)]
    return found


async def trace(bench: Bench, traced: str, direction: Any = "back", **how: Any) -> list[TracedItem]:
    """All pages as one."""
    found, after = list[TracedItem](), None
    while True:
        page: LineageTrace = await bench.control.lineage.trace(VIEWER, traced, direction, after=after, limit=2, **how)
        found += page.items
        after = page.next_after
        if after is None:
            return found


async def known(bench: Bench, traced: str, direction: Any = "back") -> list[tuple[int, str]]:
    return [(found.generation, found.item.item_id) for found in await trace(bench, traced, direction, known=True)]


def put_contact(bench: Bench, info: Any, contact_id: str, **facts: Any) -> None:
    """On record, as if the host had told of it."""
    body = {
        "sandbox_id": info.sandbox_id,
        "agent_id": info.agent_id,
        "session_id": info.session_id,
        "record": 1,
        "event": "begun",
        "command_id": None,
        "contact_id": contact_id,
        "protocol": "tcp",
        "address": "198.18.0.2",
        "name": "CRM.example.com",
        "port": 443,
        "mode": "intercept",
        "outcome": "allow",
        "rule_id": "crm",
        "label": "PUBLIC",
        "began_at": format_time(bench.clock()),
        "received_bytes": 0,
        "requests": [],
        **facts,
    }
    bench.control.ledger.append("network.denied" if body["outcome"] == "deny" else "network.contact", contact_id, body)


@pytest.mark.req("TP.13")
def test_an_item_says_what_it_is_where_it_came_from_and_where_it_lies(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, SECRETS) as bench:
            info = await bench.sandbox()
            whose = {"session_id": info.session_id, "agent_id": "ada", "sandbox_id": info.sandbox_id}
            wrote = await bench.call(info, "write_file", path="a.txt", content="alpha")
            ran = await bench.call(info, "run_command", command="cat a.txt; echo b > b.txt")
            (output,) = [item for item in await items(bench, **whose) if item.kind == "stdout"]
            begun, ended = bench.entries(call_id=ran.call_id)
            assert output.sha256 == sha256("alpha")
            assert output.bytes == 5
            assert output.origin.model_dump(exclude_none=True) == {
                "type": "command",
                "name": ids_of(ran.call_id).command_id,
                "record": ran.receipt_id,
            }
            assert (output.accessed.by, output.accessed.how) == ("mcp:tok_agent", "run_command")
            assert format_time(output.accessed.at) == format_time(
                output.accessed.at.fromisoformat(ended.body["ended_at"])
            )
            assert (output.label, output.label_reason, output.assigned_at) == (Label.PUBLIC, ran.label_reason, ended.at)
            assert {name: getattr(output, name) for name in whose} == whose
            assert (output.call_id, output.command_id) == (ran.call_id, ids_of(ran.call_id).command_id)
            assert (output.location, output.retention) == (f"output:{output.command_id}/stdout", "with_sandbox")
            assert output.ledger_seq == ended.seq
            assert [(how.scope, how.name, how.before_seq) for how in output.assumed_inputs] == [
                ("session", info.session_id, begun.seq),
                ("workspace", "ada", ended.seq),
            ]
            (how,) = output.transformations
            assert (how.type, how.description, how.at) == ("run_command", "cat a.txt; echo b > b.txt", begun.at)
            written = await one(bench, path="b.txt")
            assert (written.kind, written.sha256, written.made_by) == ("file", sha256("b\n"), "known")
            assert (written.location, written.retention) == ("workspace:ada/b.txt", "kept")
            first = await one(bench, path="a.txt")
            assert (first.call_id, first.origin.type, first.origin.name) == (wrote.call_id, "tool", "write_file")
            put_contact(
                *(bench, info, "con_1"),
                command_id=output.command_id,
                label="CONFIDENTIAL",
                program="/usr/bin/curl",
                received_bytes=7,
                requests=[{"method": "GET", "outcome": "allow", "label": "PUBLIC"}],
            )
            contact = await one(bench, endpoint="crm.example.com:443")
            assert contact.origin.model_dump() == {
                "type": "endpoint",
                "name": "CRM.example.com",
                "endpoint": "tcp:CRM.example.com:443",
                "method": "GET",
                "record": "con_1",
            }
            assert (contact.accessed.by, contact.accessed.how) == ("/usr/bin/curl", "intercept")
            assert (contact.label, contact.label_reason) == (Label.CONFIDENTIAL, "CONFIDENTIAL by rule crm")
            assert (contact.command_id, contact.bytes) == (output.command_id, 7)
            put_contact(
                *(bench, info, "con_1"),
                event="ended",
                received_bytes=90,
                sent_sha256="5e",
                requests=[{"method": "POST", "outcome": "allow", "label": "RESTRICTED"}],
            )
            later = await bench.control.lineage.item(OWNER, contact.item_id)
            assert (later.number, later.bytes, later.sha256, later.origin.method) == (
                contact.number,
                90,
                "5e",
                "GET, POST",
            )
            assert later.label is Label.RESTRICTED

    asyncio.run(scenario())


@pytest.mark.req("TP.13")
def test_items_are_found_by_whatever_is_known_of_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, SECRETS) as bench:
            info, other = await bench.sandbox(), await bench.sandbox("bob")
            await bench.call(info, "write_file", path="a.txt", content="same")
            await bench.call(other, "write_file", caller=OTHER, path="b.txt", content="same")
            await bench.call(other, "write_file", caller=OTHER, path="secrets/key", content="key")
            put_contact(bench, info, "con_1", name=None, address="2001:db8::1", port=80)
            put_contact(bench, info, "con_2", outcome="deny")
            put_contact(bench, info, "con_3", lookup={"kind": "A", "answer": "address"})
            every = [item.item_id for item in await items(bench)]
            assert len(every) == 5
            paths = ["a.txt", "b.txt", "secrets/key"]
            questions: list[tuple[dict[str, Any], list[str]]] = [
                ({"sha256": sha256("same")}, paths[:2]),
                ({"sha256": sha256("same"), "agent_id": "bob"}, ["b.txt"]),
                ({"path": "a.txt"}, ["a.txt"]),
                ({"path": "a.txt", "agent_id": "bob"}, []),
                ({"sandbox_id": other.sandbox_id}, paths[1:]),
                ({"session_id": other.session_id, "label": Label.INTERNAL}, ["secrets/key"]),
                ({"label": Label.CONFIDENTIAL}, ["secrets/key"]),
                ({"label": Label.RESTRICTED}, []),
                ({"endpoint": "2001:db8::1"}, ["con_1"]),
                ({"endpoint": "[2001:DB8::1]:80"}, ["con_1"]),
                ({"endpoint": "crm.example.com"}, ["con_2"]),
                ({"endpoint": "crm.example.com:80"}, []),
            ]
            for wanted, expected in questions:
                found = await items(bench, **wanted)
                names = [
                    item.origin.record if item.kind == "contact" else str(item.location).partition("/")[2]
                    for item in found
                ]
                assert names == expected, wanted
            denied = await one(bench, endpoint="crm.example.com")
            assert denied.outcome.value == "deny"
            assert [item.item_id for item in await items(bench)] == every

    asyncio.run(scenario())


@pytest.mark.req("TP.13", "TP.14")
def test_what_is_known_is_traced_over_all_generations_apart_from_what_is_assumed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            texts = ["zero", "one", "two", "three"]
            await bench.call(info, "write_file", path="a.txt", content=texts[0])
            for old, new in itertools.pairwise(texts):
                await bench.call(info, "edit_file", path="a.txt", old=old, new=new)
            versions = [item for item in await items(bench, path="a.txt") if item.kind == "file"]
            assert [item.sha256 for item in versions] == [sha256(text) for text in texts]
            assert [item.retention for item in versions] == ["superseded"] * 3 + ["kept"]
            ids = [item.item_id for item in versions]
            assert await known(bench, ids[3]) == [(1, ids[2]), (2, ids[1]), (3, ids[0])]
            ahead = await trace(bench, ids[0], "forward", known=True)
            files = [(found.generation, found.item.item_id) for found in ahead if found.item.kind == "file"]
            assert files == [(1, ids[1]), (2, ids[2]), (3, ids[3])]

            read = await bench.call(info, "read_file", path="a.txt")
            part = await bench.call(info, "read_file", path="a.txt", offset=1)
            ran = await bench.call(info, "run_command", command="cat a.txt > copy; echo x")
            result = await of_call(bench, read.call_id, "result")
            assert (result.sha256, result.retention, result.location) == (sha256("three"), "not_kept", None)
            assert [(one.item_id, one.certainty) for one in result.inputs] == [(ids[3], "known")]
            shown = await of_call(bench, part.call_id, "result")
            assert (shown.sha256, [(one.item_id, one.certainty) for one in shown.inputs]) == (
                sha256("hree"),
                [(ids[3], "assumed")],
            )
            copy = await one(bench, path="copy")
            assert copy.inputs == ()
            assert await known(bench, copy.item_id) == []
            behind = await trace(bench, copy.item_id)
            assert {found.item.item_id for found in behind} >= {*ids, result.item_id, shown.item_id}
            assert {found.certainty for found in behind} == {"assumed"}
            assert [found.item.number for found in behind] == sorted(
                (found.item.number for found in behind), reverse=True
            )
            # a call is traced as what it gave, and by any of its ids
            for any_id in ids_of(ran.call_id):
                assert [found.item.item_id for found in await trace(bench, any_id)] == [
                    found.item.item_id for found in behind
                ]
            own = await trace(bench, ran.call_id, "forward")
            assert {(found.generation, found.item.kind) for found in own} == {(1, "stdout"), (1, "file")}
            assert {found.certainty for found in own} == {"known"}

    asyncio.run(scenario())


@pytest.mark.req("TP.14")
def test_what_one_session_read_is_behind_what_another_finds_in_the_workspace_and_labels_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, SECRETS) as bench:
            first = await bench.sandbox()
            await bench.call(first, "run_command", command="mkdir secrets; echo key > secrets/key")
            read = await bench.call(first, "read_file", path="secrets/key")
            await bench.call(first, "run_command", command="echo derived > out")
            bench.control.sessions.reset(first.session_id, caller=OWNER)
            second = await bench.sandbox()
            found = await bench.call(second, "run_command", command="cat out")
            output = await of_call(bench, found.call_id, "stdout")
            assert output.label is Label.CONFIDENTIAL
            behind = {one.item.item_id: one.generation for one in await trace(bench, output.item_id)}
            secret = await of_call(bench, read.call_id, "result")
            assert behind[secret.item_id] == 2
            assert behind[(await one(bench, path="out")).item_id] == 1
            ahead = {one.item.item_id for one in await trace(bench, secret.item_id, "forward")}
            assert output.item_id in ahead
            # a person may lower what the gate goes by; where things came from stays
            bench.control.agents.set_label("ada", Label.PUBLIC, caller=OWNER, reason="looked through")
            third = await bench.sandbox()
            again = await bench.call(third, "run_command", command="cat out")
            assert again.label is Label.PUBLIC
            lowered = await of_call(bench, again.call_id, "stdout")
            assert (lowered.label, lowered.label_reason) == (
                Label.CONFIDENTIAL,
                "CONFIDENTIAL by what it may be derived from",
            )
            other = await bench.sandbox("bob")
            apart = await bench.call(other, "run_command", caller=OTHER, command="echo apart")
            assert await trace(bench, (await of_call(bench, apart.call_id, "stdout")).item_id) == []

    asyncio.run(scenario())


@pytest.mark.req("TP.13")
def test_a_file_that_nobody_is_known_to_have_written_is_an_item_of_its_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            (tmp_path / "workspace" / "ada" / "found.txt").write_text("found")
            for _ in range(2):
                await bench.call(info, "read_file", path="found.txt")
            found = await one(bench, path="found.txt")
            assert (found.origin.type, found.origin.name, found.made_by) == ("workspace", "found.txt", "assumed")
            assert (found.sha256, found.transformations) == (sha256("found"), ())
            results = [item for item in await items(bench) if item.kind == "result"]
            assert [item.inputs[0].item_id for item in results] == [found.item_id, found.item_id]
            assert [how.scope for how in found.assumed_inputs] == ["workspace"]
            # changed by nobody that is on record
            (tmp_path / "workspace" / "ada" / "found.txt").write_text("other")
            await bench.call(info, "read_file", path="found.txt")
            assert [(one.sha256, one.retention) for one in await items(bench, path="found.txt")] == [
                (sha256("found"), "superseded"),
                (sha256("other"), "kept"),
            ]

    asyncio.run(scenario())


def test_what_others_could_have_written_meanwhile_is_not_known_to_be_of_one_command(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            first, second = await bench.sandbox(), await bench.sandbox()
            waiting = asyncio.ensure_future(bench.call(first, "run_command", command=f"{UNTIL_GO}; echo 1 > one"))
            await bench.call(second, "run_command", command="echo 2 > two")
            bench.go()
            await waiting
            await bench.call(second, "run_command", command="echo 3 > three")
            await bench.call(second, "run_command", command="rm three")
            made = {item.location: item.made_by for item in await items(bench) if item.kind == "file"}
            assert made == {
                "workspace:ada/one": "assumed",
                "workspace:ada/two": "assumed",
                "workspace:ada/three": "known",
                **({"workspace:ada/go": "assumed"} if "workspace:ada/go" in made else {}),
            }
            assert (await one(bench, path="three")).retention == "removed"

    asyncio.run(scenario())


def test_what_outlived_a_command_reaches_nothing_that_the_command_had_printed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            ran = await bench.call(info, "run_command", command="echo over")
            output = await of_call(bench, ran.call_id, "stdout")
            late = format_time(output.accessed.at + timedelta(seconds=5))
            put_contact(bench, info, "con", command_id=output.command_id, label="RESTRICTED", began_at=late)
            contact = await one(bench, endpoint="crm.example.com")
            assert (contact.command_id, contact.label) == (output.command_id, Label.RESTRICTED)
            output = await bench.control.lineage.item(OWNER, output.item_id)
            assert (output.inputs, output.label) == ((), Label.PUBLIC)
            assert await known(bench, contact.item_id, "forward") == await known(bench, output.item_id) == []

    asyncio.run(scenario())


def test_a_command_that_changed_many_files_holds_nobody_up_and_is_taken_whole_after_any_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            await bench.call(info, "run_command", command="touch 1 2 3 4 5 6 7 8 9")
            last = await bench.call(info, "run_command", command="for one in 1 2 3 4 5 6 7 8 9; do echo x > $one; done")
            expected = {item.item_id: item for item in await items(bench)}
            assert len([item for item in expected.values() if (item.call_id, item.kind) == (last.call_id, "file")]) == 9
            monkeypatch.setattr(derivation, "AT_ONCE", 2)
            given: list[int] = []
            give = LineageRows.give

            def give_some(self: LineageRows, *about: Any) -> int:
                given.append(1)
                if len(given) == fails_at:
                    raise LedgerUnavailable("the disk is full", reason="ENOSPC")
                return give(self, *about)

            monkeypatch.setattr(LineageRows, "give", give_some)
            for fails_at in (3, 14, 99):
                given.clear()
                with bench.control.store.transaction():
                    bench.control.store.raw.execute("UPDATE lineage_position SET form = -1")
                asking = asyncio.ensure_future(items(bench))
                most = 0
                while not asking.done():
                    at_first = len(given)
                    await asyncio.sleep(0)
                    most = max(most, len(given) - at_first)
                if fails_at == 99:
                    assert {item.item_id: item for item in await asking} == expected
                    assert most <= 3
                else:
                    with pytest.raises(LedgerUnavailable):
                        await asking
                    given.extend([1] * 200)
                    assert {item.item_id: item for item in await items(bench)} == expected

    asyncio.run(scenario())


@pytest.mark.req("TP.13", "TP.14")
def test_the_index_is_made_anew_from_the_ledger_with_the_same_ids(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, SECRETS) as bench:
            info = await bench.sandbox()
            await bench.call(info, "write_file", path="secrets/key", content="key")
            await items(bench)  # up to here in one go, the rest in another
            put_contact(bench, info, "con_1", label="RESTRICTED")
            await bench.call(info, "edit_file", path="secrets/key", old="key", new="word")
            await bench.call(info, "run_command", command="cat secrets/key; rm secrets/key")
            await refused(bench, info, "write_file", path="never/a", content="")
            before = await items(bench)
            await bench.restart()
            assert await items(bench) == before
            with bench.control.store.transaction():
                bench.control.store.raw.execute("UPDATE lineage_position SET form = 0")
            assert await items(bench) == before
            assert not any("never" in str(item.location) for item in before)

    asyncio.run(scenario())


@pytest.mark.req("TP.14")
def test_deleting_an_agent_keeps_its_items_and_the_traces_and_digests_of_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, SECRETS) as bench:
            ada, bob = await bench.sandbox(), await bench.sandbox("bob")
            await bench.call(ada, "write_file", path="secrets/key", content="same")
            await bench.call(bob, "write_file", caller=OTHER, path="b.txt", content="same")
            ran = await bench.call(bob, "run_command", caller=OTHER, command="cat b.txt")
            output = await of_call(bench, ran.call_id, "stdout")
            before = await trace(bench, output.item_id)
            mine, others = await items(bench, sha256=sha256("same"), agent_id="ada"), await items(bench, agent_id="bob")
            await bench.control.lifecycle.terminate(OWNER, ada.sandbox_id)
            await bench.control.agents.delete("ada", caller=OWNER)
            assert await items(bench, agent_id="bob") == others
            assert await trace(bench, output.item_id) == before
            same = await items(bench, sha256=output.sha256)
            assert [item.agent_id for item in same] == ["ada", "bob", "bob"]
            assert same[0] == mine[0].model_copy(update={"retention": "removed"})
            # another agent of the same name has nothing of it
            again = await bench.sandbox()
            new = await bench.call(again, "run_command", command="echo new")
            fresh = await of_call(bench, new.call_id, "stdout")
            assert (fresh.label, await trace(bench, fresh.item_id)) == (Label.PUBLIC, [])

    asyncio.run(scenario())


def test_names_that_read_alike_a_long_command_and_a_workspace_of_its_own_are_no_hindrance(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.control.creation.create(OWNER, SandboxSpec(background=True))
            command = r"printf 1 > $'a\\udcff'; printf 2 > $'a\xff'; exit 3 #" + "x" * 3000
            ran = await bench.call(info, "run_command", caller=OWNER, command=command)
            found = [item for item in await items(bench) if item.kind == "file"]
            assert {(item.location, item.sha256) for item in found} == {
                (f"workspace:{info.sandbox_id}/a\\udcff", sha256("1")),
                (f"workspace:{info.sandbox_id}/a\\udcff", sha256("2")),
            }
            assert len({item.item_id for item in found}) == 2
            assert {item.transformations[0].description for item in found} == {command[:2000] + "…"}
            assert await trace(bench, ran.call_id) == []
            await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)
            assert {item.retention for item in await items(bench) if item.kind == "file"} == {"removed"}

    asyncio.run(scenario())


def test_only_people_may_ask_and_only_for_what_there_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            ran = await bench.call(info, "run_command", command="echo x")
            lineage = bench.control.lineage
            output = await of_call(bench, ran.call_id, "stdout")
            for asking in (
                lineage.items(AGENT, WantedItems()),
                lineage.item(AGENT, output.item_id),
                lineage.trace(AGENT, output.item_id, "back"),
            ):
                with pytest.raises(GrantMissing):
                    await asking
            member = Caller(token_id="tok_member", role=Role.MEMBER)
            assert await lineage.item(member, output.item_id) == output
            for nothing in ("lin_0", "call_0", "sbx_" + ran.call_id.removeprefix("call_"), ""):
                with pytest.raises(NotFound):
                    await lineage.trace(VIEWER, nothing, "back")
            with pytest.raises(NotFound):
                await lineage.item(VIEWER, ran.call_id)
            with pytest.raises(InvalidArgument):
                await lineage.items(VIEWER, WantedItems(), limit=0)

    asyncio.run(scenario())
