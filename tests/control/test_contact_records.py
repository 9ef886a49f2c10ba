"""Each contact of a box is on the ledger and in its log once, whatever is killed, and is told to whoever may know."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import coldframe.control.network as network_module
from coldframe.contract.errors import GrantMissing, HostUnreachable
from coldframe.contract.network import DeniedSum, NetworkPage
from coldframe.contract.policy import Label, Outcome
from coldframe.control.contacts import Wanted
from coldframe.control.network import LAST_WORD
from tests.control.bench import AGENT, OTHER, OWNER, VIEWER, Bench, opened, until
from tests.control.network_bench import RULES, listened, logged, question
from tests.fakes.network import contact


def test_each_step_of_a_contact_is_in_the_ledger_and_the_log_has_it_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            await listened(bench)
            begun = contact()
            bench.host.put(info.sandbox_id, "begun", begun)
            await until(lambda: "network.contact" in bench.kinds())
            done = begun.model_copy(
                update={"sent_bytes": 10, "received_bytes": 20, "ended": "closed", "ended_at": datetime.now(UTC)}
            )
            bench.host.put(info.sandbox_id, "ended", done)
            refused = contact("c2", outcome=Outcome.DENY, rule_id="network:default", dialled=None, name="evil.example")
            bench.host.put(info.sandbox_id, "denied", refused)
            found = await logged(bench, info)
            assert [(one.contact.contact_id, one.contact.received_bytes) for one in found] == [("c1", 20), ("c2", 0)]
            assert [one.session_id for one in found] == [info.session_id] * 2
            entries = [entry for entry in bench.entries() if entry.kind.startswith("network.")]
            assert [(one.kind, one.body["event"], one.subject) for one in entries] == [
                ("network.contact", "begun", "c1"),
                ("network.contact", "ended", "c1"),
                ("network.denied", "denied", "c2"),
            ]
            assert [one.contact.name for one in await logged(bench, info, outcome=Outcome.DENY)] == ["evil.example"]
            assert [one.contact.name for one in await logged(bench, info, host="*.example.com")] == ["api.example.com"]
            assert [one.contact.name for one in await logged(bench, info, host="93.184.215.14")] == ["api.example.com"]
            assert await logged(bench, info, host="example.com") == []

    asyncio.run(scenario())


def test_what_a_host_tells_again_is_on_the_ledger_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            await listened(bench)
            network_records = bench.host.network_records

            async def from_the_first(sandbox_id: str, *, after_seq: int = 0, limit: int = 1000) -> NetworkPage:
                return await network_records(sandbox_id, limit=limit)

            monkeypatch.setattr(bench.host, "network_records", from_the_first)
            for number in range(1, 4):
                bench.host.put(info.sandbox_id, "begun", contact(f"c{number}"))
                assert len(await logged(bench, info)) == number
            entries = [entry for entry in bench.entries() if entry.kind.startswith("network.")]
            assert [(one.kind, one.subject) for one in entries] == [
                ("network.contact", f"c{number}") for number in range(1, 4)
            ]

    asyncio.run(scenario())


def test_requests_gather_in_their_contact_whether_any_was_allowed_or_not(tmp_path: Path) -> None:
    from coldframe.contract.network import NetworkRequest

    def request(path: str, outcome: Outcome, status: int | None = None) -> NetworkRequest:
        return NetworkRequest(
            method="GET", path=path, outcome=outcome, rule_id="api", status=status, at=datetime.now(UTC)
        )

    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            silent = contact(outcome=Outcome.DENY, mode="intercept", dialled=None)
            put = bench.host.put
            denied = silent.model_copy(update={"requests": (request("/no", Outcome.DENY),)})
            put(info.sandbox_id, "request", denied)
            assert [one.contact.outcome for one in await logged(bench, info)] == [Outcome.DENY]
            begun = silent.model_copy(update={"outcome": Outcome.ALLOW})
            put(info.sandbox_id, "begun", begun)
            put(info.sandbox_id, "request", begun.model_copy(update={"requests": (request("/yes", Outcome.ALLOW),)}))
            (found,) = await logged(bench, info)
            assert [one.path for one in found.contact.requests] == ["/no", "/yes"]
            assert found.contact.outcome is Outcome.ALLOW
            whole = (request("/no", Outcome.DENY), request("/yes", Outcome.ALLOW, 200))
            put(info.sandbox_id, "ended", begun.model_copy(update={"requests": whole, "ended": "closed"}))
            (found,) = await logged(bench, info)
            assert [one.status for one in found.contact.requests] == [None, 200]
            assert bench.kinds(kinds=["network.contact", "network.denied"]) == [
                "network.denied",
                *["network.contact"] * 3,
            ]

    asyncio.run(scenario())


def test_after_a_crash_nothing_is_missing_and_nothing_is_there_twice(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            for number in range(150):
                bench.host.put(info.sandbox_id, "begun", contact(f"c{number}"), quiet=True)
            assert len(await logged(bench, info)) == 100
            for number in range(150):
                bench.host.put(info.sandbox_id, "ended", contact(f"c{number}", ended="closed"), quiet=True)
            bench.kill()
            await bench.start()
            await until(lambda: bench.kinds().count("network.contact") == 300)
            page = await bench.control.network.log(OWNER, info.sandbox_id, Wanted(), limit=1000)
            assert [one.contact.contact_id for one in page.contacts] == [f"c{number}" for number in range(150)]
            assert {one.contact.ended for one in page.contacts} == {"closed"}
            assert page.next_after is None

    asyncio.run(scenario())


def test_a_gap_in_the_record_of_the_host_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            bench.host.put(info.sandbox_id, "begun", contact("c1"), quiet=True)
            bench.host.put(info.sandbox_id, "torn", None, quiet=True)
            bench.host.put(info.sandbox_id, "begun", contact("c2"), quiet=True)
            del bench.host.records[info.sandbox_id][0]
            assert [one.contact.contact_id for one in await logged(bench, info)] == ["c2"]
            first, second = bench.entries(kinds=["network.missing"])
            assert (first.body["first"], first.body["last"]) == (1, 1)
            assert "torn_at" in second.body

    asyncio.run(scenario())


def test_a_contact_belongs_to_the_one_command_that_ran_and_else_to_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            early = bench.clock()
            first = await bench.call(info, "run_command", command="true", background=True)
            during = bench.clock()
            await until(lambda: "call.ended" in bench.kinds())
            # as the clock of the bench is not that of the commands, the times of their ends lie far behind
            bench.host.put(info.sandbox_id, "begun", contact("c0", began_at=early), quiet=True)
            bench.host.put(info.sandbox_id, "begun", contact("c1", began_at=during), quiet=True)
            found = await logged(bench, info)
            assert [one.contact.command_id for one in found] == [None, first.value["command_id"]]
            await bench.call(info, "run_command", command="true")
            bench.host.put(info.sandbox_id, "begun", contact("c2", began_at=bench.clock()), quiet=True)
            assert (await logged(bench, info))[-1].contact.command_id is None
            only = await logged(bench, info, command_id=first.value["command_id"])
            assert [one.contact.contact_id for one in only] == ["c1"]

    asyncio.run(scenario())


def test_a_record_is_removed_from_the_host_once_it_is_whole_and_the_log_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            await listened(bench)
            now = datetime.now(UTC)
            sums = DeniedSum(
                protocol="tcp", wanted="x.example", port=443, rule_id="r", times=7, first_at=now, last_at=now
            )
            bench.host.sums[info.sandbox_id] = (sums,)
            bench.host.put(info.sandbox_id, "begun", contact())
            assert (await bench.control.network.log(OWNER, info.sandbox_id, Wanted())).denied_sums == (sums,)
            await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)
            await logged(bench, info)
            assert bench.host.forgotten == []
            bench.host.put(info.sandbox_id, "ended", contact(ended="the box ended"))
            await until(lambda: bench.host.forgotten == [info.sandbox_id])
            reads = bench.host.reads
            page = await bench.control.network.log(OWNER, info.sandbox_id, Wanted())
            assert [one.contact.ended for one in page.contacts] == ["the box ended"]
            assert page.denied_sums == (sums,)
            assert bench.host.reads == reads
            assert bench.entries(kinds=["network.denied_sums"])[0].body["sums"][0]["times"] == 7

    asyncio.run(scenario())


def test_a_record_that_could_not_be_removed_is_removed_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            await listened(bench)

            async def fail(_: str) -> None:
                raise HostUnreachable("gone")

            with monkeypatch.context() as patch:
                patch.setattr(bench.host, "forget_network_records", fail)
                await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)
                with pytest.raises(HostUnreachable):
                    await bench.control.network.catch_up(info.sandbox_id)
            await bench.restart()
            await until(lambda: bench.host.forgotten == [info.sandbox_id])

    asyncio.run(scenario())


def test_an_end_that_nobody_tells_is_told_as_that(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            bench.host.put(info.sandbox_id, "begun", contact(), quiet=True)
            await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)
            (found,) = await logged(bench, info)
            assert found.contact.ended is None
            bench.pass_time(LAST_WORD)
            (found,) = await logged(bench, info)
            assert (found.contact.ended, found.contact.is_partial) == ("its end is not known", True)
            assert bench.entries(kinds=["network.missing"])[0].body["ends_of"] == ["c1"]
            assert bench.host.forgotten == [info.sandbox_id]

    asyncio.run(scenario())


def test_an_ended_log_that_is_read_often_waits_for_its_last_word_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            await listened(bench)
            bench.host.put(info.sandbox_id, "begun", contact(), quiet=True)
            await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)
            loop, timers = asyncio.get_running_loop(), list[float]()
            call_later = loop.call_later

            def counted(delay: float, *rest: Any, **more: Any) -> asyncio.TimerHandle:
                timers.append(delay)
                return call_later(delay, *rest, **more)

            monkeypatch.setattr(loop, "call_later", counted)
            for _ in range(5):
                assert len(await logged(bench, info)) == 1
            assert len([delay for delay in timers if delay > LAST_WORD.total_seconds() / 2]) == 1
            bench.host.put(info.sandbox_id, "ended", contact(ended="closed"), quiet=True)
            await logged(bench, info)
            assert bench.host.forgotten == [info.sandbox_id]
            assert bench.control.network._last_words == {}

    asyncio.run(scenario())


class Failing:
    """The records of one sandbox cannot be had."""

    def __init__(self, bench: Bench, sandbox_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reason: Exception | None = HostUnreachable("its disk is broken")
        self.tries = 0
        network_records = bench.host.network_records

        async def fail(asked: str, *, after_seq: int = 0, limit: int = 1000) -> NetworkPage:
            if asked == sandbox_id:
                self.tries += 1
                if self.reason is not None:
                    raise self.reason
            return await network_records(asked, after_seq=after_seq, limit=limit)

        monkeypatch.setattr(bench.host, "network_records", fail)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "not on record yet" in one.getMessage()]


def test_a_record_that_cannot_be_taken_is_tried_less_and_less_and_each_reason_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(network_module, "GATHER_S", 0)
    monkeypatch.setattr(network_module, "RETRY_FIRST_S", 0.001)

    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            await listened(bench)
            failing = Failing(bench, info.sandbox_id, monkeypatch)
            bench.host.put(info.sandbox_id, "begun", contact())
            await until(lambda: failing.tries >= 5)
            assert bench.control.network._failing[info.sandbox_id].pause_s >= 0.008
            assert len(warnings_of(caplog)) == 1
            tries, failing.reason = failing.tries, OSError("another")
            await until(lambda: failing.tries >= tries + 2)
            assert len(warnings_of(caplog)) == 2
            failing.reason = None
            await until(lambda: "network.contact" in bench.kinds())
            await until(lambda: bench.control.network._failing == {})

    asyncio.run(scenario())


def test_while_a_record_that_cannot_be_taken_is_left_alone_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(network_module, "GATHER_S", 0)

    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info, other = await bench.sandbox(), await bench.sandbox("bob")
            await listened(bench)
            monkeypatch.setattr(network_module, "RETRY_FIRST_S", 3600)
            failing = Failing(bench, info.sandbox_id, monkeypatch)
            for number in range(1, 4):
                bench.host.put(info.sandbox_id, "begun", contact(f"c{number}"))
                bench.host.put(other.sandbox_id, "begun", contact(f"c{number}"))
                await until(lambda wanted=number: bench.kinds().count("network.contact") == wanted)  # type: ignore[misc]
            assert failing.tries == 1
            # whoever asks for the log does not wait, and a host that comes back is asked at once
            failing.reason = None
            assert len(await logged(bench, info)) == 3
            failing.reason = HostUnreachable("its disk is broken")
            monkeypatch.setattr(network_module, "RETRY_FIRST_S", 0)
            tries = failing.tries
            bench.host.break_off()
            await until(lambda: failing.tries > tries)
            assert len(warnings_of(caplog)) == 1

    asyncio.run(scenario())


def test_what_came_while_a_host_began_to_be_listened_to_is_looked_for_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_module, "AGAIN_LONGEST_S", 0.01)

    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            await listened(bench)
            unfinished, asked = bench.control.network._contacts.unfinished, 0

            def put_before_the_last() -> list[str]:
                nonlocal asked
                asked += 1
                if asked == 2:
                    bench.host.put(info.sandbox_id, "begun", contact(), quiet=True)
                return unfinished()

            monkeypatch.setattr(bench.control.network._contacts, "unfinished", put_before_the_last)
            bench.host.break_off()
            await until(lambda: "network.contact" in bench.kinds())

    asyncio.run(scenario())


def test_following_gives_each_contact_in_its_newest_form_and_ends_with_the_sandbox(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            await listened(bench)
            bench.host.put(info.sandbox_id, "begun", contact("c1"))
            heard: list[tuple[str, str | None]] = []

            async def follow() -> None:
                async for one in await bench.control.network.follow(OWNER, info.sandbox_id, Wanted()):
                    heard.append((one.contact.contact_id, one.contact.ended))

            following = asyncio.ensure_future(follow())
            await until(lambda: heard == [("c1", None)])
            bench.host.put(info.sandbox_id, "ended", contact("c1", ended="closed"))
            await until(lambda: heard[1:] == [("c1", "closed")])
            await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)
            await following
            assert len(heard) == 2

    asyncio.run(scenario())


@pytest.mark.req("T4.71")
def test_which_sandboxes_reached_something_is_answered_over_all_of_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            ada, bob = await bench.sandbox(), await bench.sandbox("bob")
            long_ago, lately = datetime.now(UTC) - timedelta(days=9), datetime.now(UTC) - timedelta(days=2)
            bench.host.put(ada.sandbox_id, "begun", contact("c1", began_at=long_ago), quiet=True)
            bench.host.put(bob.sandbox_id, "begun", contact("c1", began_at=lately), quiet=True)
            denied = contact("c2", began_at=lately, outcome=Outcome.DENY, dialled=None)
            bench.host.put(bob.sandbox_id, "denied", denied, quiet=True)
            for one in (ada, bob):
                await logged(bench, one)
            network = bench.control.network
            week = Wanted(host="API.example.com", since=datetime.now(UTC) - timedelta(days=7))
            (found,) = await network.reached_by(VIEWER, week)
            assert (found.sandbox_id, found.agent_id, found.allowed, found.denied) == (bob.sandbox_id, "bob", 1, 1)
            ever = await network.reached_by(VIEWER, Wanted(host="*.example.com"))
            assert [one.sandbox_id for one in ever] == [bob.sandbox_id, ada.sandbox_id]
            first = await network.search(VIEWER, Wanted(), limit=2)
            rest = await network.search(VIEWER, Wanted(), after=first.next_after or 0, limit=2)
            assert [one.contact.contact_id for one in (*first.contacts, *rest.contacts)] == ["c1", "c1", "c2"]
            assert rest.next_after is None
            with pytest.raises(GrantMissing):
                await network.search(AGENT, Wanted())

    asyncio.run(scenario())


def test_an_agent_sees_its_own_log_only_and_takes_the_label_of_what_it_reads(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            await listened(bench)
            await bench.host.ask(question(info))
            bench.host.put(info.sandbox_id, "begun", contact())
            await logged(bench, info)
            new = await bench.control.taints.reset(info.session_id, caller=OWNER)
            bench.control.agents.set_label("ada", Label.PUBLIC, caller=OWNER, reason="looked at")
            assert len((await bench.control.network.log(AGENT, info.sandbox_id, Wanted())).contacts) == 1
            assert bench.control.sessions.get(new.session_id).taint is Label.CONFIDENTIAL
            with pytest.raises(Exception, match="no sandbox"):
                await bench.control.network.log(OTHER, info.sandbox_id, Wanted())

    asyncio.run(scenario())
