"""The broker is a process without rights, may be killed at any time, and is believed nothing that it may not say."""

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import ClassVar, NamedTuple

import pytest

from coldframe.contract.errors import InvalidArgument, RulesInvalid
from coldframe.contract.policy import Label, Outcome
from coldframe.host.egress import life as life_file
from coldframe.host.egress import link as link_file
from coldframe.host.egress import messages
from coldframe.host.egress.arrivals import Arrivals, CaptureFailed
from coldframe.host.egress.channel import receive
from coldframe.host.egress.contact import EgressContact, EgressLookup, EgressRequest, HandleUse, SecretAnswer
from coldframe.host.egress.holders import Holder, Holders
from coldframe.host.egress.life import Reach, Secrets
from coldframe.host.egress.lineage import Lineage, LineageLost
from coldframe.host.egress.link import BrokerLink
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
from tests.host import boxes
from tests.host.egress import world as world_file
from tests.host.egress.brokered import (
    ORIGIN,
    PLAIN,
    Brokered,
    code_of,
    refused,
    rest_of,
    section,
    send_all,
    until,
    with_link,
)
from tests.host.egress.world import SITE, SSH, UNKNOWN
from tests.host.forked import in_child, wait_until
from tests.host.machines import as_root_and_ordinary

LABELLED = f"{{id: secret, to: {SSH}, scheme: tcp, mode: raw, ports: [9000], label: CONFIDENTIAL}}"
READ = f"{{id: read, to: {SITE}, ports: [8443], methods: [GET]}}"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def status_of(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/status", encoding="ascii") as source:
        return dict(line.rstrip("\n").split(":\t", 1) for line in source if ":\t" in line)


def is_gone(pid: int) -> bool:
    try:
        return status_of(pid)["State"].startswith("Z")
    except (OSError, KeyError):
        return True


def dialled() -> int:
    """Connections that were tried from this network namespace, which is the broker's as well."""
    with open("/proc/self/net/snmp", encoding="ascii") as source:
        names, values = (line.split() for line in source if line.startswith("Tcp:"))
    return int(values[names.index("ActiveOpens")])


# -- what it is ------------------------------------------------------------------------------------


@as_root_and_ordinary
def test_a_box_reaches_what_the_rules_name_and_both_ends_are_on_record(who: str) -> None:
    async def steps(made: Brokered) -> None:
        assert await made.inside(lambda: send_all(b"x")) == b"xend"
        begun, ended = await made.lines_until("ended", 1)
        assert begun.contact is not None and ended.contact is not None
        assert (begun.event, begun.contact.name, begun.contact.ended) == ("begun", SSH, None)
        assert (ended.contact.id, ended.contact.ended) == (begun.contact.id, "closed")
        assert (ended.contact.sent_bytes, ended.contact.received_bytes) == (1, 4)

    with_link(steps, who=who)


@as_root_and_ordinary
def test_the_broker_has_no_rights(who: str) -> None:
    async def steps(made: Brokered) -> None:
        pid = made.link.pid
        assert pid is not None
        status = status_of(pid)
        assert "0" not in (status["Uid"] + "\t" + status["Gid"]).split("\t")
        assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        if who == "root":
            assert os.stat(f"/proc/{pid}/status").st_uid == 0  # nobody of its own user may look into it
            assert int(status["CapBnd"], 16) == 0 and status["Groups"].strip() == ""
            with open(f"/proc/{pid}/limits", encoding="ascii") as source:
                assert "Max core file size        0                    0 " in source.read()
            with open(f"/proc/{pid}/environ", "rb") as file:
                assert {part.split(b"=")[0] for part in file.read().split(b"\0")} <= {b"LANG", b"PATH", b""}
        else:
            assert code_of(lambda: os.listdir(f"/proc/{pid}/fd")) == "EACCES"

    with_link(steps, who=who)


@needs_root
def test_as_root_it_is_not_started_without_a_user_to_become() -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.raises(InvalidArgument):
        BrokerLink(Lineage(folder))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.send(messages.write_command(messages.Stop(1)))
        errors = life_file._open_errors()
        process = life_file._start(theirs, 0, errors, None)
        assert process.wait(30) != 0
        assert b"become an unprivileged user" in os.pread(errors, life_file.STDERR_BYTES, 0)
        os.close(errors)
        theirs.close()
        assert code_of(lambda: ours.recv(100)) == "ECONNRESET"  # what it was told was never read


# -- its end ---------------------------------------------------------------------------------------


@as_root_and_ordinary
def test_a_killed_broker_lets_nothing_out_and_the_next_one_serves_who_waits(who: str) -> None:
    async def steps(made: Brokered) -> None:
        told, tell = os.pipe()
        go, let_go = os.pipe()

        def hold() -> str | bytes:
            with socket.create_connection((SSH, 9000), timeout=30) as client:
                client.sendall(b"a")
                client.recv(1)
                os.write(tell, b"h")
                return code_of(lambda: client.recv(1)) or "ended"

        def wait() -> bytes:
            address = socket.getaddrinfo(SSH, 9000, socket.AF_INET, socket.SOCK_STREAM)[0][4]
            os.write(tell, b"r")
            os.read(go, 1)
            with socket.create_connection((str(address[0]), 9000), timeout=30) as client:
                client.sendall(b"w")
                client.shutdown(socket.SHUT_WR)
                os.write(tell, b"w")
                return rest_of(client)

        holding = made.start(hold)
        assert await asyncio.to_thread(os.read, told, 1) == b"h"
        waiting = made.start(wait)
        assert await asyncio.to_thread(os.read, told, 1) == b"r"

        first = made.link.pid
        assert first is not None
        made.restart.clear()
        os.kill(first, signal.SIGKILL)
        await made.gone.wait()
        assert is_gone(first)
        before = dialled()
        os.write(let_go, b"g")
        assert await asyncio.to_thread(os.read, told, 1) == b"w"
        assert await asyncio.to_thread(holding.result) == "ECONNRESET"  # half an answer is not taken for a whole one
        assert dialled() == before
        events = [line.event for line in made.lines()]
        assert events == ["begun", "ended"]

        made.restart.set()
        assert await asyncio.to_thread(waiting.result) == b"wend"
        assert await made.inside(lambda: send_all(b"n")) == b"nend"
        assert made.link.pid not in (first, None)
        lines = await made.lines_until("ended", 3)
        begun = [line.contact.id for line in lines if line.event == "begun" and line.contact is not None]
        ended = {line.contact.id: line.contact.ended for line in lines if line.event == "ended" and line.contact}
        assert set(begun) == set(ended) and len(begun) == len(lines) / 2 == 3
        assert [ended[one] for one in begun] == ["the broker ended", "closed", "closed"]
        for file in (told, tell, go, let_go):
            os.close(file)

    with_link(steps, who=who)


def test_an_address_leads_to_its_name_after_another_broker_was_started() -> None:
    async def steps(made: Brokered) -> None:
        told, tell = os.pipe()
        go, let_go = os.pipe()

        def remember() -> tuple[str | None, bytes]:
            address = socket.getaddrinfo("other.example.com", 443, socket.AF_INET, socket.SOCK_STREAM)[0][4]
            known = socket.getaddrinfo(SSH, 9000, socket.AF_INET, socket.SOCK_STREAM)[0][4]
            os.write(tell, b"r")
            os.read(go, 1)
            new = socket.getaddrinfo("third.example.com", 9000, socket.AF_INET, socket.SOCK_STREAM)[0][4]
            return str(new[0] in (address[0], known[0])), send_all(b"k", name=str(known[0]))

        running = made.start(remember)
        assert await asyncio.to_thread(os.read, told, 1) == b"r"
        assert made.link.pid is not None
        os.kill(made.link.pid, signal.SIGKILL)
        await made.gone.wait()
        os.write(let_go, b"g")
        assert await asyncio.to_thread(running.result) == ("False", b"kend")
        for file in (told, tell, go, let_go):
            os.close(file)

    other = "{id: more, to: [other.example.com, third.example.com], scheme: tcp, mode: raw, ports: [443, 9000]}"
    with_link(steps, rules=(PLAIN, other))


def test_a_killed_broker_has_told_what_it_carried() -> None:
    async def steps(made: Brokered) -> None:
        told, tell = os.pipe()

        def hold() -> str | None:
            with socket.create_connection((SSH, 9000), timeout=30) as client:
                client.sendall(b"abc")
                client.recv(3, socket.MSG_WAITALL)
                os.write(tell, b"h")
                return code_of(lambda: client.recv(1))

        holding = made.start(hold)
        assert await asyncio.to_thread(os.read, told, 1) == b"h"
        life = made.link._life
        assert life is not None
        await until(lambda: any(one.received_bytes for one in life._begun.values()))
        os.kill(life.process.pid, signal.SIGKILL)
        await asyncio.to_thread(holding.result)
        ended = (await made.lines_until("ended", 1))[-1].contact
        assert ended is not None
        assert (ended.sent_bytes, ended.received_bytes, ended.is_partial) == (3, 3, True)
        os.close(told)
        os.close(tell)

    with_link(steps)


@as_root_and_ordinary
def test_programs_go_on_trusting_their_authority_after_another_broker_was_started(who: str) -> None:
    async def steps(made: Brokered) -> None:
        certificate = made.link.certificate_of(ORIGIN.sandbox_id).decode()

        def ask() -> bytes:
            context = ssl.create_default_context(cadata=certificate)
            with socket.create_connection((SITE, 8443), timeout=30) as plain:
                with context.wrap_socket(plain, server_hostname=SITE) as client:
                    client.sendall(f"GET /v1/x HTTP/1.1\r\nHost: {SITE}:8443\r\n\r\n".encode())
                    return client.recv(12)

        # The server of this world is not vouched for by the host, which its broker sees, and not the program.
        assert await made.inside(ask) == b"HTTP/1.1 502"
        first = made.link.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await made.gone.wait()
        assert await made.inside(ask) == b"HTTP/1.1 502"
        assert made.link.pid != first

    with_link(steps, rules=(READ,), who=who)


def test_who_asks_for_nothing_is_no_reason_to_end_the_broker() -> None:
    async def steps(made: Brokered) -> None:
        certificate = made.link.certificate_of(ORIGIN.sandbox_id).decode()

        def leave() -> None:
            context = ssl.create_default_context(cadata=certificate)
            with socket.create_connection((SITE, 8443), timeout=30) as plain:
                context.wrap_socket(plain, server_hostname=SITE).unwrap().close()

        first = made.link.pid
        await made.inside(leave)
        (line,) = await made.lines_until("denied", 1)
        assert line.contact is not None and (line.contact.mode, line.contact.ended) == ("intercept", "closed")
        assert made.link.pid == first

    with_link(steps, rules=(READ,))


def test_a_box_that_is_shut_while_a_label_is_raised_is_no_reason_to_end_the_broker() -> None:
    waits = asyncio.Event()

    def reach(_: list[Brokered]) -> Reach:
        async def wait(contact: EgressContact) -> None:
            waits.set()
            await asyncio.Event().wait()

        return wait

    async def steps(made: Brokered) -> None:
        first = made.link.pid
        knocking = made.start(refused)
        await waits.wait()
        await made.link.shut(ORIGIN.sandbox_id)
        assert await asyncio.to_thread(knocking.result) == "ECONNRESET"
        assert [line.event for line in made.lines()] == ["denied"]
        await made.link.use_rules("")
        assert made.link.pid == first

    with_link(steps, rules=(LABELLED,), reach=reach)


def test_a_box_whose_sockets_are_none_has_no_way_out_and_others_keep_theirs() -> None:
    async def steps(made: Brokered) -> None:
        first = made.link.pid
        with socket.socket() as nothing:
            with pytest.raises(CaptureFailed):
                await made.link.open(ORIGIN._replace(sandbox_id="sb-2"), NOTHING._replace(connections=(nothing,)))
        assert await made.inside(lambda: send_all(b"x")) == b"xend"
        assert made.link.pid == first

    with_link(steps)


@as_root_and_ordinary
def test_a_broker_whose_daemon_is_gone_ends(who: str) -> None:
    def whole() -> None:
        if who == "ordinary":
            boxes.become_ordinary()
        reading, writing = os.pipe()
        daemon = os.fork()
        if daemon == 0:

            async def wait_to_be_killed() -> None:
                with tempfile.TemporaryDirectory(prefix="cf-lineage-", dir="/tmp") as folder:
                    link = BrokerLink(Lineage(folder), user=boxes.NOBODY)
                    link.start()
                    await until(lambda: link.pid)
                    await link.use_rules("")
                os.write(writing, str(link.pid).encode())
                await asyncio.Event().wait()

            asyncio.run(wait_to_be_killed())
        broker = int(os.read(reading, 100))
        assert not is_gone(broker)
        os.kill(daemon, signal.SIGKILL)
        os.waitpid(daemon, 0)
        wait_until(lambda: is_gone(broker))

    in_child(whole)


# -- what it is told -------------------------------------------------------------------------------


def test_rules_hold_when_they_were_taken_and_bad_ones_change_nothing() -> None:
    async def steps(made: Brokered) -> None:
        with pytest.raises(RulesInvalid):
            await made.link.use_rules("profiles: [")
        assert await made.inside(lambda: send_all(b"x")) == b"xend"
        await made.link.use_rules("")
        assert await made.inside(refused) == "gaierror"
        await made.link.use_rules(section(PLAIN))
        assert await made.inside(lambda: send_all(b"x")) == b"xend"

    with_link(steps)


def test_a_box_that_is_shut_has_no_way_out_and_its_connections_are_ended_on_record() -> None:
    async def steps(made: Brokered) -> None:
        told, tell = os.pipe()

        def hold() -> str | None:
            with socket.create_connection((SSH, 9000), timeout=30) as client:
                client.sendall(b"a")
                client.recv(1)
                os.write(tell, b"h")
                return code_of(lambda: client.recv(1))

        holding = made.start(hold)
        assert await asyncio.to_thread(os.read, told, 1) == b"h"
        await made.link.shut(ORIGIN.sandbox_id)
        lines = made.lines()
        assert [line.event for line in lines] == ["begun", "ended"]
        assert lines[1].contact is not None and lines[1].contact.ended == "the box has no way out any more"
        assert await asyncio.to_thread(holding.result) == "ECONNRESET"
        os.close(told)
        os.close(tell)

    with_link(steps)


def test_a_raised_label_closes_what_is_below_it_also_for_the_next_broker() -> None:
    async def steps(made: Brokered) -> None:
        assert await made.inside(lambda: send_all(b"x")) == b"xend"
        await made.link.raise_taint(ORIGIN.sandbox_id, Label.CONFIDENTIAL)
        assert await made.inside(refused) == "ECONNRESET"
        assert made.link.pid is not None
        os.kill(made.link.pid, signal.SIGKILL)
        await made.gone.wait()
        assert await made.inside(refused) == "ECONNRESET"
        rules = {line.contact.rule_id for line in made.lines() if line.event == "denied" and line.contact}
        assert rules == {"floor:write-down"}

    with_link(steps)


def test_the_label_of_a_destination_is_on_the_session_before_it_is_dialled() -> None:
    seen: list[tuple[str, Label, int]] = []

    def reach(made: list[Brokered]) -> Reach:
        async def raise_label(contact: EgressContact) -> None:
            seen.append((contact.sandbox_id, contact.label, dialled()))
            await made[0].link.raise_taint(contact.sandbox_id, contact.label)

        return raise_label

    async def steps(made: Brokered) -> None:
        before = dialled()
        assert await made.inside(lambda: send_all(b"x")) == b"xend"
        assert seen == [(ORIGIN.sandbox_id, Label.CONFIDENTIAL, before)]
        assert dialled() == before + 1

    with_link(steps, rules=(LABELLED,), reach=reach)


def test_the_first_request_of_a_connection_is_asked_about_once_and_together_with_it() -> None:
    asked: list[tuple[Label, list[str]]] = []

    def reach(_: list[Brokered]) -> Reach:
        async def note(contact: EgressContact) -> None:
            asked.append((contact.label, [request.path for request in contact.requests]))

        return note

    async def steps(made: Brokered) -> None:
        certificate = made.link.certificate_of(ORIGIN.sandbox_id).decode()

        def ask() -> bytes:
            context = ssl.create_default_context(cadata=certificate)
            with socket.create_connection((SITE, 8443), timeout=30) as plain:
                with context.wrap_socket(plain, server_hostname=SITE) as client:
                    client.sendall(f"GET /v1/text HTTP/1.1\r\nHost: {SITE}\r\n\r\n".encode())
                    return client.recv(65536)[:12]

        assert await made.inside(ask) == b"HTTP/1.1 502"  # see above
        lines = await made.lines_until("ended", 1)
        assert asked == [(Label.CONFIDENTIAL, ["/v1/text"])]
        events = [(line.event, [request.path for request in line.contact.requests]) for line in lines if line.contact]
        wanted = [("begun", []), ("request", ["/v1/text"]), ("ended", ["/v1/text"])]
        assert [event for event in events if event[0] in ("begun", "request", "ended")] == wanted

    with_link(steps, rules=(READ.replace("}", ", label: CONFIDENTIAL}"),), reach=reach)


@pytest.mark.parametrize("is_there", [True, False])
def test_without_the_label_on_the_session_nothing_is_dialled(is_there: bool) -> None:
    def reach(_: list[Brokered]) -> Reach:
        async def fail(contact: EgressContact) -> None:
            raise ConnectionError("the server does not answer")

        return fail

    async def steps(made: Brokered) -> None:
        before = dialled()
        assert await made.inside(refused) == "ECONNRESET"
        assert dialled() == before
        (line, *more) = await made.lines_until("denied", 1)
        assert {one.event for one in more} <= {"denied"}
        assert line.contact is not None and line.contact.rule_id == "network:journal"
        assert ("does not answer" if is_there else "nobody here") in line.contact.reason

    with_link(steps, rules=(LABELLED,), reach=reach if is_there else None)


def test_what_cannot_be_put_on_record_is_not_dialled() -> None:
    async def steps(made: Brokered) -> None:
        known = await made.inside(lambda: socket.getaddrinfo(SSH, 9000))
        assert known
        made.lineage.close(ORIGIN.sandbox_id)
        before = dialled()
        assert await made.inside(refused) == "ECONNRESET"
        assert await made.inside(lambda: code_of(lambda: socket.getaddrinfo(SITE, 443))) == "gaierror"
        assert dialled() == before

    with_link(steps, rules=(PLAIN, f"{{id: site, to: {SITE}}}"))


# -- many ------------------------------------------------------------------------------------------


def _rss_kib(pid: int) -> int:
    return int(status_of(pid)["VmRSS"].split()[0])


@needs_root
@pytest.mark.parametrize(
    "count",
    [
        1000,
        pytest.param(
            10_000,
            marks=[
                pytest.mark.skipif("COLDFRAME_SLOW" not in os.environ, reason="COLDFRAME_SLOW=1 runs it"),
                pytest.mark.timeout(600),
            ],
        ),
    ],
)
def test_connections_leave_no_descriptor_and_little_memory(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_file, "_PATIENCE_S", 500)

    async def steps(made: Brokered) -> None:
        def connect(times: int) -> int:
            return sum(send_all(b"x") == b"xend" for _ in range(times))

        async def settled() -> tuple[int, int]:
            pid = made.link.pid
            assert pid is not None
            return len(os.listdir(f"/proc/{pid}/fd")), _rss_kib(pid)

        assert await made.inside(lambda: connect(50)) == 50
        await made.lines_until("ended", 50)
        pid, (files, rss_kib) = made.link.pid, await settled()
        own = len(os.listdir("/proc/self/fd"))
        assert await made.inside(lambda: connect(count)) == count
        events = [line.event for line in await made.lines_until("ended", 50 + count)]
        assert (events.count("begun"), events.count("ended")) == (50 + count, 50 + count)
        files_after, rss_after_kib = await settled()
        assert made.link.pid == pid
        assert files_after <= files + 2 and len(os.listdir("/proc/self/fd")) <= own
        assert rss_after_kib - rss_kib < 32 * 1024

    with_link(steps)


def test_a_flood_of_look_ups_is_counted_and_not_written_down() -> None:
    count = 5000

    async def steps(made: Brokered) -> None:
        def flood() -> None:
            for _ in range(count):
                code_of(lambda: socket.getaddrinfo(UNKNOWN, 443, socket.AF_INET, socket.SOCK_STREAM))

        await made.inside(flood)
        await until(lambda: sum(one.times for one in made.lineage.read(ORIGIN.sandbox_id).sums) >= count - 10)
        page = made.lineage.read(ORIGIN.sandbox_id)
        assert len(page.lines) == 10 and {line.event for line in page.lines} == {"denied"}
        (added,) = page.sums
        assert (added.protocol, added.wanted, added.port) == ("udp", UNKNOWN, 53)

    with_link(steps)


def test_what_was_counted_of_look_ups_is_on_record_when_the_box_is_shut() -> None:
    count = 7

    async def steps(made: Brokered) -> None:
        def look_up() -> None:
            for _ in range(count):
                socket.getaddrinfo(SSH, 9000, socket.AF_INET, socket.SOCK_STREAM)

        await made.inside(look_up)
        await made.link.shut(ORIGIN.sandbox_id)
        told = [line.contact for line in made.all_lines() if line.event == "looked-up"]
        assert sum(one.times for one in told if one is not None and one.name == SSH) == count
        assert len({one.id for one in told if one is not None}) == len(told) == 2

    with_link(steps)


# -- what it says ----------------------------------------------------------------------------------


NOTHING = Arrivals("nftables", "", (), (), (), ())


class Talk(NamedTuple):
    """A link whose broker is the test."""

    link: BrokerLink
    lineage: "Slow"
    end: socket.socket
    gone: asyncio.Event

    async def hear(self) -> messages.Command:
        """The next command; who has a number was obeyed."""
        while True:
            heard = await asyncio.to_thread(receive, self.end)
            assert heard is not None
            message, files = heard
            for file in files:
                os.close(file)
            if message.startswith(b'{"mechanism"'):
                continue
            command = messages.read_command(message)
            if not isinstance(command, Acknowledge | Answered):
                self.say(Done(command.number))
            if isinstance(command, messages.Ping):
                continue
            return command

    def say(self, event: Event) -> None:
        self.end.send(messages._EVENTS.dump_json(event))


class Slow(Lineage):
    """Reads a record when it is let, after the first one."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.let = threading.Event()
        self.let.set()
        self.reading = threading.Event()

    def open(self, sandbox_id: str) -> bool:
        self.reading.set()
        assert self.let.wait(30)
        return super().open(sandbox_id)


def with_talk(
    steps: Callable[[Talk], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    reach: Reach | None = None,
    secrets: Secrets | None = None,
) -> None:
    ends: list[socket.socket] = []

    def start(theirs: socket.socket, user: int, errors: int, packages: int | None) -> "subprocess.Popen[bytes]":
        ends.append(theirs.dup())
        ends[-1].settimeout(30)
        return subprocess.Popen(["/bin/sleep", "1000"])

    async def whole() -> None:
        gone = asyncio.Event()

        async def pause(_: float) -> None:
            gone.set()
            await asyncio.Event().wait()

        with tempfile.TemporaryDirectory() as folder:
            lineage = Slow(folder)
            link = BrokerLink(lineage, user=boxes.NOBODY, reach=reach, secrets=secrets, pause=pause)
            await link.open(ORIGIN, NOTHING)
            link.start()
            await until(lambda: ends)
            talk = Talk(link, lineage, ends[0], gone)
            assert [type(await talk.hear()) for _ in range(2)] == [messages.UseRules, messages.OpenBox]
            try:
                async with asyncio.timeout(30):
                    await steps(talk)
            finally:
                ends[0].close()
                await link.close()
                lineage.close_all()

    monkeypatch.setattr(life_file, "_start", start)
    asyncio.run(whole())


def contact(**changes: object) -> EgressContact:
    made = EgressContact("c-1", ORIGIN.sandbox_id, "tcp", "198.18.1.0", 443, datetime.now(UTC), outcome=Outcome.ALLOW)
    return replace(made, **changes)  # type: ignore[arg-type]


def ended(**changes: object) -> EgressContact:
    return contact(**{"ended": "closed", "ended_at": datetime.now(UTC), **changes})


TARGET = ("198.18.1.0", 443)
LOOKUP = EgressLookup("A", "address")
REQUEST = EgressRequest("GET", "/", Outcome.ALLOW, "r", datetime.now(UTC))
USE = HandleUse("cfh_1", "authorization: Bearer {secret}", is_verified=True)


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
