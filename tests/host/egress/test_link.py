"""The broker is a process without rights and may be killed at any time; what the daemon has it do holds."""

import asyncio
import os
import signal
import socket
import ssl
import tempfile

import pytest

from coldframe.contract.errors import InvalidArgument, RulesInvalid
from coldframe.contract.policy import Label
from coldframe.host.egress import life as life_file
from coldframe.host.egress import messages
from coldframe.host.egress.arrivals import CaptureFailed
from coldframe.host.egress.contact import EgressContact
from coldframe.host.egress.life import Reach
from coldframe.host.egress.lineage import Lineage
from coldframe.host.egress.link import BrokerLink
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
from tests.host.egress.talk import NOTHING
from tests.host.egress.world import SITE, SSH, UNKNOWN
from tests.host.forked import in_child, is_gone, status_of, wait_until
from tests.host.machines import as_root_and_ordinary

LABELLED = f"{{id: secret, to: {SSH}, scheme: tcp, mode: raw, ports: [9000], label: CONFIDENTIAL}}"
READ = f"{{id: read, to: {SITE}, ports: [8443], methods: [GET]}}"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


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


@pytest.mark.req("T3.22")
@pytest.mark.parametrize("end", ["refused", "shut", "closed"])
def test_whoever_waits_for_a_box_to_be_served_hears_at_once_that_it_will_not_be(end: str) -> None:
    async def steps(made: Brokered) -> None:
        assert made.link.pid is not None
        made.restart.clear()
        os.kill(made.link.pid, signal.SIGKILL)
        await made.gone.wait()
        with socket.socket() as nothing:
            sockets = NOTHING._replace(connections=(nothing,) if end == "refused" else ())
            await made.link.open(ORIGIN._replace(sandbox_id="sb-2"), sockets)  # nobody is there to refuse it
        waiting = asyncio.ensure_future(made.link.until_served("sb-2"))
        await asyncio.sleep(0)
        assert not waiting.done() and not made.link.serves("sb-2")
        match end:
            case "refused":
                made.restart.set()
            case "shut":
                await made.link.shut("sb-2")
            case _:
                await made.link.close()
        with pytest.raises(CaptureFailed) as told:
            await waiting
        assert "no egress broker took it within" not in str(told.value)
        assert ("shut meanwhile" in str(told.value)) is (end != "refused")

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
