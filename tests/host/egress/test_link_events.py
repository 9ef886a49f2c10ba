"""A broker is believed nothing that it may not say, and what it says is on record before it goes on."""

import asyncio
import os
import socket
import subprocess
from dataclasses import replace
from typing import ClassVar

import pytest

from coldframe.contract.policy import Label, Outcome
from coldframe.host.egress import life as life_file
from coldframe.host.egress import link as link_file
from coldframe.host.egress import messages
from coldframe.host.egress.channel import receive
from coldframe.host.egress.contact import EgressContact, EgressRequest, HandleUse, SecretAnswer
from coldframe.host.egress.holders import Holder, Holders
from coldframe.host.egress.lineage import LineageLost
from coldframe.host.egress.messages import (
    Acknowledge,
    Answered,
    Arrived,
    Asked,
    Begun,
    Carried,
    Done,
    Ended,
    Event,
    LookedUp,
    Named,
    Requested,
)
from tests.host.egress.brokered import ORIGIN, Brokered, until, with_link
from tests.host.egress.talk import LOOKUP, NOTHING, REQUEST, TARGET, USE, Slow, Talk, contact, ended, with_talk
from tests.host.forked import is_gone


@pytest.mark.parametrize(
    "said",
    [
        pytest.param([Ended(ended())], id="allowed and never on record"),
        pytest.param([Arrived("c-1", "sb-2", ("198.18.0.1", 1), TARGET)], id="arrived from another box"),
        pytest.param([Arrived("c-1", "sb-1", ("198.18.0.1", 65536), TARGET)], id="arrived from no port"),
        pytest.param([Arrived("c-1", "sb-1", ("1" * 65, 1), TARGET)], id="arrived from a long address"),
        pytest.param([Arrived("x" * 65, "sb-1", ("198.18.0.1", 1), TARGET)], id="arrived with a long id"),
        pytest.param([Begun(contact()), Begun(contact())], id="begun twice"),
        pytest.param([Begun(contact(sandbox_id="sb-2"))], id="of another box"),
        pytest.param([Ended(ended(sandbox_id="sb-2", outcome=Outcome.DENY))], id="denied of another box"),
        pytest.param([Begun(contact()), Ended(ended(port=444))], id="ended as another"),
        pytest.param([Begun(contact()), Ended(ended(ended_at=None))], id="ended without a time"),
        pytest.param([Begun(ended())], id="begun with an end"),
        pytest.param([Begun(contact(id="x" * 65))], id="long id"),
        pytest.param([Begun(contact(reason="x" * 2000))], id="long reason"),
        pytest.param([Begun(contact(sent_bytes=-1))], id="negative bytes"),
        pytest.param([Begun(contact(), replace(REQUEST, path="x" * 5000))], id="long path"),
        pytest.param([Begun(contact(sandbox_id="../sb-1"))], id="path for an id"),
        pytest.param([Requested("c-1/1", "c-1", REQUEST)], id="request of nothing"),
        pytest.param([Asked("c-1/1", "c-1", REQUEST, USE)], id="secret for nothing"),
        pytest.param(
            [Begun(contact()), Asked("c-1/1", "c-1", REQUEST, replace(USE, handle="x" * 600))], id="long handle"
        ),
        pytest.param([Named("sb-2", "a.example.com", 1)], id="name of another box"),
        pytest.param([Named("sb-1", "a b.example.com", 1)], id="no name"),
        pytest.param([Named("sb-1", "a.example.com", 1 << 20)], id="no address of the pool"),
        pytest.param([Named("sb-1", "a.example.com", 1), Named("sb-1", "b.example.com", 1)], id="address of another"),
        pytest.param([Named("sb-1", "a.example.com", 1), Named("sb-1", "a.example.com", 2)], id="second address"),
        pytest.param([Named("sb-1", "a.example.com", 1, "b.example.com")], id="forgets what was not known"),
        pytest.param([Begun(contact(times=2, outcome=Outcome.DENY))], id="several begin"),
        pytest.param([Ended(ended(times=2))], id="several were allowed"),
        pytest.param([Begun(contact()), Ended(ended(times=2, outcome=Outcome.DENY))], id="several end"),
        pytest.param([LookedUp(ended(lookup=LOOKUP, sandbox_id="sb-2"))], id="look-up of another box"),
        pytest.param([LookedUp(ended())], id="look-up of nothing"),
        pytest.param([LookedUp(ended(lookup=LOOKUP, outcome=Outcome.DENY))], id="look-up that was denied"),
        pytest.param([LookedUp(ended(lookup=LOOKUP, sent_bytes=1))], id="look-up that went somewhere"),
        pytest.param([Carried([("c-1", 1, 1)])], id="bytes of nothing"),
        pytest.param([Begun(contact()), Carried([("c-1", 1, -1)])], id="fewer bytes than none"),
        pytest.param([b"{}"], id="nothing"),
        pytest.param([b"\xff\xfe"], id="no text"),
        pytest.param([b"[" * 60_000], id="depth"),
        pytest.param([b'{"kind":"begun","contact":{"id":1}}'], id="other types"),
        pytest.param([b" " * (messages.MESSAGE_BYTES + 1)], id="too long"),
    ],
)
def test_a_broker_that_says_what_it_may_not_say_is_ended(
    said: list[Event | bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(talk: Talk) -> None:
        pid = talk.link.pid
        assert pid is not None
        for one in said:
            if isinstance(one, bytes):
                talk.end.send(one)
            else:
                talk.say(one)
        await talk.gone.wait()
        assert is_gone(pid)
        assert {line.event for line in talk.lineage.read(ORIGIN.sandbox_id).lines} <= {"begun", "ended"}
        lines = talk.lineage.read(ORIGIN.sandbox_id).lines
        assert {line.contact.is_partial for line in lines if line.event == "ended" and line.contact} <= {True}
        assert len(lines) % 2 == 0 and all(
            line.contact and line.contact.ended == "the broker ended" for line in lines[1::2]
        )

    with_talk(steps, monkeypatch)


class Asking(Holders):
    """Holders that are asked by a test."""

    asked: ClassVar[list[tuple[str, tuple[str, int] | None]]]
    is_known: ClassVar[bool]

    def find(
        self, diagnosis: socket.socket | None, protocol: str, source: tuple[str, int] | None, target: tuple[str, int]
    ) -> Holder:
        self.asked.append((protocol, source))
        return Holder("/usr/bin/curl", len(self.asked), "cmd_1") if self.is_known else Holder()


@pytest.mark.parametrize("is_known", [True, False])
def test_whose_a_connection_is_is_found_out_when_it_comes_and_once_more_only_if_nobody_knew(
    is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ("198.18.0.1", 40000)
    Asking.asked, Asking.is_known = [], is_known

    async def steps(talk: Talk) -> None:
        opening = asyncio.ensure_future(talk.link.open(ORIGIN, NOTHING, holders=Asking(1, 1, {}, "/nowhere")))
        assert [type(await talk.hear()) for _ in range(2)] == [messages.ShutBox, messages.OpenBox]
        await opening
        talk.say(Arrived("c-1", ORIGIN.sandbox_id, source, TARGET))
        await until(lambda: Asking.asked)
        assert talk.lineage.read(ORIGIN.sandbox_id).lines == []
        talk.say(Begun(contact(source=source)))
        assert await talk.hear() == Acknowledge("c-1", None)
        # Another connection than the one that came under this id is looked for by itself.
        talk.say(Arrived("c-2", ORIGIN.sandbox_id, source, TARGET))
        talk.say(Begun(contact(id="c-2", source=("198.18.0.1", 40001))))
        assert await talk.hear() == Acknowledge("c-2", None)
        others = [("tcp", source), ("tcp", ("198.18.0.1", 40001))]
        assert Asking.asked == [("tcp", source), *([] if is_known else [("tcp", source)]), *others]
        begun = [line.contact for line in talk.lineage.read(ORIGIN.sandbox_id).lines]
        pids = [one.pid for one in begun if one is not None]
        assert pids == ([1, 3] if is_known else [None, None])

    with_talk(steps, monkeypatch)


def test_what_a_broker_says_has_come_is_kept_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_file, "MOST_ARRIVED", 2)
    Asking.asked, Asking.is_known = [], True

    async def steps(talk: Talk) -> None:
        opening = asyncio.ensure_future(talk.link.open(ORIGIN, NOTHING, holders=Asking(1, 1, {}, "/nowhere")))
        assert [type(await talk.hear()) for _ in range(2)] == [messages.ShutBox, messages.OpenBox]
        await opening
        for number in range(10):
            talk.say(Arrived(f"c-{number}", ORIGIN.sandbox_id, ("198.18.0.1", number), TARGET))
        await until(lambda: len(Asking.asked) == 10)
        life = talk.link._life
        assert life is not None and list(life._arrived) == ["c-8", "c-9"]

    with_talk(steps, monkeypatch)


def test_what_begins_is_on_record_before_it_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(talk: Talk) -> None:
        talk.say(Begun(contact()))
        assert await talk.hear() == Acknowledge("c-1", None)
        assert [line.event for line in talk.lineage.read(ORIGIN.sandbox_id).lines] == ["begun"]
        talk.say(Requested("c-1/1", "c-1", REQUEST))
        assert await talk.hear() == Acknowledge("c-1/1", None)
        page = talk.lineage.read(ORIGIN.sandbox_id, 1)
        assert [(line.event, line.contact and line.contact.requests) for line in page.lines] == [("request", [REQUEST])]
        talk.say(Requested("c-1/2", "c-1", replace(REQUEST, label=Label.INTERNAL)))
        answer = await talk.hear()
        assert isinstance(answer, Acknowledge) and answer.refusal is not None

    with_talk(steps, monkeypatch)


def test_a_connection_that_begins_with_a_request_waits_for_the_higher_label_of_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raised: list[Label] = []
    lines: list[int] = []

    async def steps(talk: Talk) -> None:
        lineage.append(talk.lineage)
        talk.say(Begun(contact(label=Label.INTERNAL), replace(REQUEST, label=Label.PUBLIC)))
        assert await talk.hear() == Acknowledge("c-1", None)
        talk.say(Begun(contact(id="c-2"), replace(REQUEST, label=Label.CONFIDENTIAL)))
        assert await talk.hear() == Acknowledge("c-2", None)
        assert (raised, lines) == ([Label.INTERNAL, Label.CONFIDENTIAL], [0, 2])
        events = [line.event for line in talk.lineage.read(ORIGIN.sandbox_id).lines]
        assert events == ["begun", "request"] * 2

    lineage: list[Slow] = []

    async def reach(one: EgressContact) -> None:
        raised.append(one.label)
        lines.append(len(lineage[0].read(ORIGIN.sandbox_id).lines))

    with_talk(steps, monkeypatch, reach=reach)


def test_a_connection_whose_first_request_cannot_be_kept_does_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(talk: Talk) -> None:
        def lose(_: EgressContact, request: EgressRequest) -> None:
            raise LineageLost("the disk is full")

        monkeypatch.setattr(talk.lineage, "request", lose)
        talk.say(Begun(contact(), REQUEST))
        assert await talk.hear() == Acknowledge("c-1", "the disk is full")
        talk.say(Ended(ended(outcome=Outcome.DENY)))
        await until(lambda: len(talk.lineage.read(ORIGIN.sandbox_id).lines) == 2)
        assert [line.event for line in talk.lineage.read(ORIGIN.sandbox_id).lines] == ["begun", "ended"]

    with_talk(steps, monkeypatch)


@pytest.mark.parametrize("what", ["contact", "contact with a request", "request"])
def test_what_waits_for_its_label_when_the_broker_ends_is_denied_on_record(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = asyncio.Event()

    async def reach(_: EgressContact) -> None:
        waits.set()
        await asyncio.Event().wait()

    async def steps(talk: Talk) -> None:
        if what == "contact":
            talk.say(Begun(contact(label=Label.INTERNAL)))
        elif what == "contact with a request":
            talk.say(Begun(contact(), replace(REQUEST, label=Label.INTERNAL)))
        else:
            talk.say(Begun(contact()))
            talk.say(Requested("c-1/1", "c-1", replace(REQUEST, label=Label.INTERNAL)))
        await waits.wait()
        talk.end.send(b"nonsense")
        await talk.gone.wait()
        lines = talk.lineage.read(ORIGIN.sandbox_id).lines
        if what.startswith("contact"):
            ((event, told),) = [(line.event, line.contact) for line in lines]
            assert event == "denied" and told is not None
            assert (told.outcome, told.rule_id, told.ended) == (Outcome.DENY, "network:journal", "denied")
            kept = [(one.path, one.outcome, one.rule_id) for one in told.requests]
            assert kept == ([] if what == "contact" else [("/", Outcome.DENY, "network:journal")])
        else:
            assert [line.event for line in lines] == ["begun", "request", "ended"]
            assert lines[1].contact is not None
            (request,) = lines[1].contact.requests
            assert (request.outcome, request.rule_id) == (Outcome.DENY, "network:journal")

    with_talk(steps, monkeypatch, reach=reach)


def test_a_secret_is_asked_for_and_what_fails_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    async def secrets(_: EgressContact, request: EgressRequest, use: HandleUse) -> SecretAnswer:
        if request.path != "/":
            raise PermissionError("not this one")
        assert use == USE
        return SecretAnswer("s3cret", "crm")

    async def steps(talk: Talk) -> None:
        talk.say(Begun(contact()))
        assert await talk.hear() == Acknowledge("c-1", None)
        talk.say(Asked("c-1/1", "c-1", REQUEST, USE))
        assert await talk.hear() == Answered("c-1/1", SecretAnswer("s3cret", "crm"))
        assert "s3cret" not in repr(SecretAnswer("s3cret", "crm"))
        talk.say(Asked("c-1/2", "c-1", replace(REQUEST, path="/other"), USE))
        assert await talk.hear() == Answered("c-1/2", SecretAnswer(refusal="not this one"))

    with_talk(steps, monkeypatch, secrets=secrets)


def test_a_fault_in_deciding_about_a_secret_is_logged_without_its_text_and_is_a_refusal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def secrets(_: EgressContact, request: EgressRequest, use: HandleUse) -> SecretAnswer:
        raise ValueError("not readable: s3cret")

    async def steps(talk: Talk) -> None:
        talk.say(Begun(contact()))
        await talk.hear()
        talk.say(Asked("c-1/1", "c-1", REQUEST, USE))
        assert await talk.hear() == Answered("c-1/1", SecretAnswer(refusal="a fault of ours"))
        assert "ValueError" in caplog.text and "s3cret" not in caplog.text

    with_talk(steps, monkeypatch, secrets=secrets)


def test_a_fault_in_raising_a_label_is_logged_and_nothing_begins(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def reach(_: EgressContact) -> None:
        raise KeyError("session")

    async def steps(talk: Talk) -> None:
        talk.say(Begun(contact(label=Label.INTERNAL)))
        heard = await talk.hear()
        assert isinstance(heard, Acknowledge) and "a fault of ours" in str(heard.refusal)
        assert "KeyError" in caplog.text and talk.lineage.read(ORIGIN.sandbox_id).lines == []

    with_talk(steps, monkeypatch, reach=reach)


def test_without_somebody_who_has_secrets_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(talk: Talk) -> None:
        talk.say(Begun(contact()))
        await talk.hear()
        talk.say(Asked("c-1/1", "c-1", REQUEST, USE))
        answer = await talk.hear()
        assert isinstance(answer, Answered) and answer.answer.secret is None and answer.answer.refusal

    with_talk(steps, monkeypatch)


def test_what_a_broker_had_carried_when_it_ended_is_on_record_as_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(talk: Talk) -> None:
        talk.say(Begun(contact()))
        talk.say(Carried([("c-1", 5, 7)]))
        talk.end.send(b"nonsense")
        await talk.gone.wait()
        told = talk.lineage.read(ORIGIN.sandbox_id).lines[1].contact
        assert told is not None and (told.sent_bytes, told.received_bytes, told.is_partial) == (5, 7, True)

    with_talk(steps, monkeypatch)


def test_a_refusal_is_no_longer_than_a_message_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    async def reach(_: EgressContact) -> None:
        raise ConnectionError("\0" * 1_000_000)

    async def steps(talk: Talk) -> None:
        talk.say(Begun(contact(label=Label.INTERNAL)))
        answer = await talk.hear()
        assert isinstance(answer, Acknowledge) and answer.refusal is not None

    with_talk(steps, monkeypatch, reach=reach)
    assert len(messages.write_event(Done(1, "\0" * 1_000_000))) < messages.MESSAGE_BYTES


# -- what happens while a record is read -----------------------------------------------------------


def test_a_label_that_is_raised_while_a_box_is_opened_holds_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(talk: Talk) -> None:
        talk.lineage.let.clear()
        talk.lineage.reading.clear()
        opening = asyncio.create_task(talk.link.open(ORIGIN, NOTHING))
        assert isinstance(await talk.hear(), messages.ShutBox)
        assert await asyncio.to_thread(talk.lineage.reading.wait, 30)
        await talk.link.raise_taint(ORIGIN.sandbox_id, Label.CONFIDENTIAL)
        talk.lineage.let.set()
        opened = await talk.hear()
        assert isinstance(opened, messages.OpenBox) and opened.origin.taint is Label.CONFIDENTIAL
        await opening

    with_talk(steps, monkeypatch)


def test_a_box_that_is_opened_again_keeps_the_addresses_of_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(talk: Talk) -> None:
        talk.say(Named(ORIGIN.sandbox_id, "a.example.com", 1))
        talk.say(Named(ORIGIN.sandbox_id, "b.example.com", 2))
        talk.say(Named(ORIGIN.sandbox_id, "c.example.com", 3, "a.example.com"))
        opening = asyncio.create_task(talk.link.open(ORIGIN, NOTHING))
        assert isinstance(await talk.hear(), messages.ShutBox)
        heard = await asyncio.to_thread(receive, talk.end)
        assert heard is not None
        message, files = heard
        keepsakes = messages.read_keepsakes(messages.read_attached(files))
        assert keepsakes.names == {"b.example.com": 2, "c.example.com": 3}
        command = messages.read_command(message)
        assert isinstance(command, messages.OpenBox)
        talk.say(Done(command.number))
        await opening

    with_talk(steps, monkeypatch)


def test_a_box_that_is_shut_while_it_is_opened_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(talk: Talk) -> None:
        await asyncio.gather(talk.link.shut(ORIGIN.sandbox_id), talk.hear())
        talk.lineage.let.clear()
        talk.lineage.reading.clear()
        before = len(os.listdir("/proc/self/fd"))
        with socket.create_server(("127.0.0.1", 0)) as server:
            opening = asyncio.create_task(talk.link.open(ORIGIN, NOTHING._replace(connections=(server,))))
            assert await asyncio.to_thread(talk.lineage.reading.wait, 30)
            shutting = asyncio.create_task(talk.link.shut(ORIGIN.sandbox_id))
            await asyncio.sleep(0)
            talk.lineage.let.set()
            await asyncio.gather(opening, shutting)
        assert len(os.listdir("/proc/self/fd")) == before
        await asyncio.gather(talk.link.use_rules(""), hear_rules(talk))

    async def hear_rules(talk: Talk) -> None:
        assert isinstance(await talk.hear(), messages.UseRules)  # and nothing before it

    with_talk(steps, monkeypatch)


def test_of_two_that_open_a_box_at_once_the_later_one_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(talk: Talk) -> None:
        talk.lineage.let.clear()
        talk.lineage.reading.clear()
        first = asyncio.create_task(talk.link.open(ORIGIN, NOTHING))
        assert isinstance(await talk.hear(), messages.ShutBox)
        assert await asyncio.to_thread(talk.lineage.reading.wait, 30)
        second = asyncio.create_task(talk.link.open(ORIGIN._replace(agent_id="agent-8"), NOTHING))
        await asyncio.sleep(0)
        talk.lineage.let.set()
        opened = await talk.hear()
        assert isinstance(opened, messages.OpenBox) and opened.origin.agent_id == "agent-8"
        await asyncio.gather(first, second)
        talk.say(Begun(contact()))
        assert await talk.hear() == Acknowledge("c-1", None)

    with_talk(steps, monkeypatch)


# -- a broker that stands still --------------------------------------------------------------------


def test_what_is_only_counted_is_written_down_every_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_file, "FLUSH_S", 0.01)

    async def steps(made: Brokered) -> None:
        written = asyncio.Event()
        monkeypatch.setattr(made.link._lineage, "flush", written.set)
        await written.wait()

    with_link(steps)


def test_a_broker_that_stands_still_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_file, "FLUSH_S", 0.01)

    async def steps(talk: Talk) -> None:
        monkeypatch.setattr(life_file, "ANSWER_S", 0.05)
        message = b""
        while b'"ping"' not in message:
            heard = await asyncio.to_thread(receive, talk.end)
            assert heard is not None
            message, _ = heard
        talk.say(Done(messages.read_command(message).number))  # type: ignore[union-attr]
        await talk.gone.wait()  # since it never answers again

    with_talk(steps, monkeypatch)


def test_a_broker_writes_no_more_than_a_little_to_its_standard_error() -> None:
    errors = life_file._open_errors()
    program = "import os\nfor _ in range(3): os.write(2, b'x' * 10_000)\n"
    assert subprocess.run(["/usr/bin/python3", "-c", program], stderr=errors, timeout=30).returncode != 0
    assert os.fstat(errors).st_size == life_file.STDERR_BYTES
    assert os.pread(errors, 1 << 20, 0) == b"x" * life_file.STDERR_BYTES
    os.close(errors)


def test_a_broker_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_file, "ANSWER_S", 0.2)

    async def steps(talk: Talk) -> None:
        await talk.link.use_rules("")
        await talk.gone.wait()

    with_talk(steps, monkeypatch)
