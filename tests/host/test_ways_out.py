"""A box with a network reaches what rules allow, with the programs that agents use, and nothing else; all of it is told.

On real machines between real clients and the servers of a small world, from which no packet can leave.
"""

import asyncio
import os
import shutil
import signal
import stat
import subprocess
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from coldframe.contract.errors import GuestLost, InvalidArgument, IsolationUnavailable, RulesInvalid
from coldframe.contract.isolation import SERVICES
from coldframe.contract.network import NetworkAnswer, NetworkNews, NetworkPage, NetworkQuestion
from coldframe.contract.policy import Label, Outcome
from coldframe.contract.sandbox import SandboxSpec
from coldframe.host.machine import Machine
from coldframe.host.marks import HANDOVER_NAME, Marks
from coldframe.host.ways_out import MOST_PORTS, WaysOut
from tests.host.egress.world import OTHER, SITE, SSH
from tests.host.machines import as_root_and_ordinary, needs_bubblewrap, until
from tests.host.networked import (
    AGENT,
    PLAIN,
    READ,
    WEB,
    Networked,
    answering,
    on_a_networked_machine,
    rules,
    with_a_networked_daemon,
)

pytestmark = needs_bubblewrap

ANSWER = "answer to GET /v1/x HTTP/1.1"
SECRET = f"{{id: secret, to: {SITE}, label: CONFIDENTIAL}}"
HOLD = (
    'exec 3<>/dev/tcp/ssh.example.com/9000; echo one >&3; read -r line <&3; echo "$line"; touch held; '
    'read -r -t 30 line <&3; echo "ended $?"'
)
"""Has a connection open until it is ended from outside; the file `held` says that it has."""
TRY = "curl -sS -m 20 https://api.example.com/v1/x 2>&1 || echo refused"


async def held(made: Networked) -> None:
    """Wait until the command HOLD has its connection."""

    async def is_there() -> bool:
        return os.path.exists(os.path.join(made.folder, "workspace", "agent", "held"))

    await until(is_there, "the connection is open", timeout_s=30)


def told(page: NetworkPage) -> list[tuple[str, str, int, Outcome]]:
    """What was wanted, by which event."""
    found: list[tuple[str, str, int, Outcome]] = []
    for one in page.records:
        contact = one.contact
        assert contact is not None
        found.append((one.event, contact.name or contact.address, contact.port, contact.outcome))
    return found


# -- clients ---------------------------------------------------------------------------------------


@as_root_and_ordinary
def test_what_a_rule_allows_is_reached_and_the_rest_is_not_and_both_are_on_record(who: str) -> None:
    async def steps(made: Networked) -> None:
        await made.host.use_network_rules(rules(WEB))
        await made.box()
        shell = (
            "curl -sS https://api.example.com/v1/x; echo; curl -4sS https://api.example.com/v1/x; echo; "
            "curl -6sS https://api.example.com/v1/x; echo; "
            "for url in https://other.example.com/ http://93.184.215.14/ 'http://[2606:4700::1]/' http://127.0.0.1:1023/; "
            "do curl -sS -m 20 $url 2>/dev/null || echo refused; done; "
            "(echo x > /dev/udp/93.184.215.14/123) 2>/dev/null || echo unsent"
        )
        done = await made.run(shell)
        assert done.stdout.splitlines() == [ANSWER] * 3 + ["refused"] * 4 + ["unsent"], done.stderr
        page = await made.contacts_until("ended", 3)
        counted = Counter(told(page))
        assert counted["begun", SITE, 443, Outcome.ALLOW] == counted["ended", SITE, 443, Outcome.ALLOW] == 3
        assert counted["denied", "93.184.215.14", 80, Outcome.DENY] == 1
        assert counted["denied", "2606:4700::1", 80, Outcome.DENY] == 1
        assert ("denied", OTHER, 53, Outcome.DENY) in counted
        ended = [one.contact for one in page.records if one.event == "ended" and one.contact is not None]
        assert {(one.mode, one.rule_id, one.dialled) for one in ended} == {("sni", "web", "93.184.215.14")}
        assert all(one.received_bytes > 100 for one in ended)
        # what the kernel of the box refused is told with the command
        assert [(one.protocol, one.port, one.rule) for one in done.result.contacts] == [
            ("udp", 123, "network:protocol")
        ]

    on_a_networked_machine(steps, who=who)


@as_root_and_ordinary
def test_clients_trust_whoever_reads_their_requests_without_being_told_to(who: str) -> None:
    clients = {
        "curl": f"curl -sS https://{SITE}:8443/v1/text",
        "curl without variables": f"env -i curl -sS https://{SITE}:8443/v1/text",
        "wget": f"wget -qO- https://{SITE}:8443/v1/text",
        "python": f"python3 -c \"import urllib.request as u; print(u.urlopen('https://{SITE}:8443/v1/text').read().decode())\"",
        "node": f"node -e \"fetch('https://{SITE}:8443/v1/text').then(a => a.text()).then(console.log)\"",
        "perl": f"perl -MHTTP::Tiny -e 'print HTTP::Tiny->new(verify_SSL => 1)->get(\"https://{SITE}:8443/v1/text\")->{{content}}'",
        "openssl": f"printf 'GET /v1/text HTTP/1.1\\r\\nHost: {SITE}\\r\\nConnection: close\\r\\n\\r\\n' | "
        f"openssl s_client -quiet -verify_return_error -servername {SITE} -connect {SITE}:8443 2>/dev/null | tail -1",
    }
    here = {name: line for name, line in clients.items() if shutil.which(name.split()[0]) or name == "python"}
    if subprocess.run(["/usr/bin/perl", "-MIO::Socket::SSL", "-e", "1"], capture_output=True).returncode:
        here.pop("perl", None)

    async def steps(made: Networked) -> None:
        await made.host.use_network_rules(rules(READ))
        await made.box()
        for name, line in here.items():
            done = await made.run(line)
            assert done.stdout.strip() == "some text", (name, done.stdout, done.stderr)
        denied = await made.run(f"curl -sS -X DELETE https://{SITE}:8443/v1/text")
        assert '"DENIED_BY_RULE"' in denied.stdout
        page = await made.page()
        requests = [one.contact.requests[0] for one in page.records if one.event == "request" and one.contact]
        assert Counter((one.method, one.path, one.outcome) for one in requests) == {
            ("GET", "/v1/text", Outcome.ALLOW): len(here),
            ("DELETE", "/v1/text", Outcome.DENY): 1,
        }

    on_a_networked_machine(steps, who=who)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_trusts_it_too_and_is_told_what_the_server_says() -> None:
    async def steps(made: Networked) -> None:
        await made.host.use_network_rules(rules(READ))
        await made.box()
        done = await made.run(f"git ls-remote https://{SITE}:8443/v1/nothing-there")
        assert "not found" in done.stderr
        page = await made.page()
        asked = [one.contact.requests[0] for one in page.records if one.event == "request" and one.contact]
        assert [(one.method, one.path, one.status) for one in asked][0][:2] == ("GET", "/v1/nothing-there/info/refs")

    on_a_networked_machine(steps)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_static_program_that_knows_nothing_of_us_is_governed_all_the_same(tmp_path: Path) -> None:
    source = r"""
    #include <arpa/inet.h>
    #include <stdio.h>
    #include <unistd.h>
    int main(int count, char **given) {
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9000)};
        char heard[16] = {0};
        inet_pton(AF_INET, given[1], &to.sin_addr);
        int one = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(one, (struct sockaddr *)&to, sizeof to) || write(one, "hello", 5) != 5 || read(one, heard, 5) != 5)
            return puts("refused"), 0;
        return puts(heard), 0;
    }
    """
    address = "93.184.215.16"
    line = ["gcc", "-static", "-o", str(tmp_path / "client"), "-x", "c", "-"]
    if subprocess.run(line, input=source.encode(), capture_output=True).returncode:
        pytest.skip("gcc cannot link a static program here")

    async def steps(made: Networked) -> None:
        await made.box()
        program = os.path.join(made.folder, "workspace", "agent", "client")
        shutil.copyfile(tmp_path / "client", program)
        os.chmod(program, 0o755)
        assert (await made.run(f"./client {address}")).stdout == "refused\n"
        await made.host.use_network_rules(rules(f"{{id: raw, to: {address}, scheme: tcp, mode: raw, ports: 9000}}"))
        assert (await made.run(f"./client {address}")).stdout == "hello\n"

    on_a_networked_machine(steps)


@as_root_and_ordinary
def test_a_box_without_network_is_what_it_was_and_starts_no_broker(who: str) -> None:
    async def steps(made: Networked) -> None:
        await made.host.use_network_rules(rules(WEB))
        await made.box(access=None)
        done = await made.run("cat /etc/resolv.conf; ls /opt/coldframe; env; " + TRY)
        assert done.stdout.endswith("refused\n")
        assert "trust.pem" not in done.stdout and "CA_BUNDLE" not in done.stdout
        assert [(one.name, one.rule) for one in done.result.contacts] == [(SITE, "network:none")]
        await made.host.raise_taint("box", Label.RESTRICTED)  # nothing happens
        await made.host.renew_session("box", Label.PUBLIC)
        assert await made.page() == NetworkPage(records=(), more=False)
        assert not os.path.exists(os.path.join(made.folder, "boxes", "box", HANDOVER_NAME))
        assert brokers_of(os.getpid()) == []

    on_a_networked_machine(steps, who=who)


def brokers_of(pid: int) -> list[int]:
    """Processes of the broker that *pid* has started."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as line, open(f"/proc/{entry}/stat") as told_of:
                    parent = int(told_of.read().rpartition(")")[2].split()[1])
                    if parent == pid and b"egress/__main__.py" in line.read():
                        found.append(int(entry))
            except OSError:
                continue
    return found


# -- what changes meanwhile ------------------------------------------------------------------------


@as_root_and_ordinary
def test_a_change_of_rules_ends_what_they_forbid_and_holds_for_the_next_connection(who: str) -> None:
    async def steps(made: Networked) -> None:
        await made.host.use_network_rules(rules(WEB, PLAIN))
        await made.box()
        holding = asyncio.ensure_future(made.run(HOLD))
        await held(made)
        await made.host.use_network_rules(rules(WEB))
        assert (await holding).stdout == "one\nended 1\n"
        with pytest.raises(RulesInvalid) as caught:
            await made.host.use_network_rules("version: 1\nnetwork:\n  profiles: [")
        assert "line" in caught.value.facts
        assert ANSWER in (await made.run(TRY)).stdout
        page = await made.contacts_until("ended", 2)
        ends = {one.contact.port: one.contact for one in page.records if one.event == "ended" and one.contact}
        assert (ends[9000].ended, ends[9000].outcome) == ("ended by a change of the rules", Outcome.DENY)
        assert ends[443].outcome is Outcome.ALLOW

    on_a_networked_machine(steps, who=who)


@as_root_and_ordinary
def test_a_label_of_the_session_ends_what_may_not_go_on_until_there_is_another_session(who: str) -> None:
    async def steps(made: Networked) -> None:
        await made.host.use_network_rules(rules(WEB, PLAIN))
        await made.box()
        holding = asyncio.ensure_future(made.run(HOLD))
        await held(made)
        await made.host.raise_taint("box", Label.CONFIDENTIAL)
        assert (await holding).stdout == "one\nended 1\n"
        await made.host.raise_taint("box", Label.INTERNAL)  # at least: it is not lowered
        assert "refused" in (await made.run(TRY)).stdout
        denied = [one.contact for one in (await made.page()).records if one.event == "denied" and one.contact]
        assert {one.rule_id for one in denied} == {"floor:write-down"}
        await made.host.renew_session("box", Label.PUBLIC)
        assert ANSWER in (await made.run(TRY)).stdout

    on_a_networked_machine(steps, who=who)


# -- questions -------------------------------------------------------------------------------------


@as_root_and_ordinary
def test_what_is_labelled_is_reached_once_the_session_is_and_not_before(who: str) -> None:
    async def steps(made: Networked) -> None:
        await made.host.use_network_rules(rules(SECRET))
        await made.box()
        assert "refused" in (await made.run(TRY)).stdout  # there is nobody to ask
        refusing = NetworkAnswer(refusal="the session is over")

        async def refuse(_: NetworkQuestion) -> NetworkAnswer:
            return refusing

        async def agree(question: NetworkQuestion) -> NetworkAnswer:
            await made.host.raise_taint(question.sandbox_id, question.label)
            return NetworkAnswer()

        async with answering(made.host, refuse) as asked:
            assert "refused" in (await made.run(TRY)).stdout
        (question, *_) = asked
        assert (question.kind, question.sandbox_id, question.label) == ("reach", "box", Label.CONFIDENTIAL)
        assert (question.contact.name, question.contact.rule_id) == (SITE, "secret")
        async with answering(made.host, agree) as asked:
            assert ANSWER in (await made.run(TRY)).stdout
        assert len(asked) == 1
        reasons = [one.contact.reason for one in (await made.page()).records if one.event == "denied" and one.contact]
        assert any("there is nobody to ask" in reason for reason in reasons)
        assert any("the session is over" in reason for reason in reasons)
        await made.host.answer(question.question_id, NetworkAnswer())  # nobody waits any more

    on_a_networked_machine(steps, who=who)


def test_a_new_reader_takes_over_with_what_nobody_has_answered_yet() -> None:
    async def steps(made: Networked) -> None:
        await made.host.use_network_rules(rules(SECRET))
        await made.box()
        first = made.host.network_events()
        listening = asyncio.ensure_future(anext(first))
        running = asyncio.ensure_future(made.run(TRY))
        earlier = [await listening]
        while not isinstance(earlier[-1], NetworkQuestion):
            earlier.append(await anext(first))
        second = made.host.network_events()
        again = await anext(second)
        while isinstance(again, NetworkNews):
            again = await anext(second)
        assert again == earlier[-1]
        with pytest.raises(StopAsyncIteration):
            while True:
                await anext(first)
        await made.host.raise_taint("box", Label.CONFIDENTIAL)
        await made.host.answer(again.question_id, NetworkAnswer())
        assert ANSWER in (await running).stdout
        await second.aclose()  # type: ignore[attr-defined]

    on_a_networked_machine(steps)


# -- ends ------------------------------------------------------------------------------------------


@as_root_and_ordinary
def test_the_end_of_a_box_ends_its_connections_on_record_and_the_record_stays(who: str) -> None:
    async def steps(made: Networked) -> None:
        await made.host.use_network_rules(rules(PLAIN))
        await made.box()
        holding = asyncio.ensure_future(made.run(HOLD))
        await held(made)
        before = open_files()
        await (await made.host.life("box")).end()
        with suppress(GuestLost):  # or its end was told before
            await holding
        page = await made.page()
        assert [one.event for one in page.records] == ["begun", "ended"]
        assert open_files() < before
        await made.host.forget_network_records("box")
        assert await made.page() == NetworkPage(records=(), more=False)
        assert os.listdir(os.path.join(made.folder, "host", "lineage")) == []

    on_a_networked_machine(steps, who=who)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@as_root_and_ordinary
def test_a_creation_that_fails_leaves_nothing_of_a_way_out(who: str) -> None:
    async def steps(made: Networked) -> None:
        await made.box("other")
        before = open_files()
        spec = SandboxSpec(agent_id="agent", requires=("limit:nothing",))
        for name in ("first", "second"):
            with pytest.raises(IsolationUnavailable):
                await made.host.create(name, spec, session_id="session", network=AGENT)
        assert open_files() == before
        assert os.listdir(os.path.join(made.folder, "host", "lineage")) == ["other.jsonl"]
        assert os.listdir(os.path.join(made.folder, "boxes")) == ["other"]

    on_a_networked_machine(steps, who=who)


def test_a_keeper_that_is_killed_takes_the_way_out_with_it() -> None:
    async def steps(made: Networked) -> None:
        await made.host.use_network_rules(rules(PLAIN))
        await made.box()
        before = open_files()
        assert isinstance(made.host, Machine)
        mark = made.host._marks.read("box")
        assert mark is not None
        os.kill(mark.pid, signal.SIGKILL)

        async def is_lost() -> bool:
            try:
                await made.host.box("box")
            except GuestLost:
                return True
            return False

        await until(is_lost, "the box is lost")
        await until(lambda: _is(lambda: open_files() < before), "its sockets are closed")

    on_a_networked_machine(steps)


async def _is(condition) -> bool:  # type: ignore[no-untyped-def]
    return bool(condition())


# -- what dies -------------------------------------------------------------------------------------


@as_root_and_ordinary
def test_a_broker_that_is_killed_lets_nothing_out_and_the_next_one_goes_on_without_a_gap(who: str) -> None:
    async def steps(made: Networked) -> None:
        await made.host.use_network_rules(
            rules(
                WEB, PLAIN, READ.replace("id: read", "id: more").replace("8443", "8080").replace("}", ", scheme: http}")
            )
        )
        await made.box()
        holding = asyncio.ensure_future(made.run(HOLD))
        await held(made)
        (broker,) = brokers_of(os.getpid())
        os.kill(broker, signal.SIGKILL)
        assert (await holding).stdout == "one\nended 1\n"
        assert ANSWER in (await made.run(TRY)).stdout  # it waited for the next broker
        assert brokers_of(os.getpid()) != [broker]
        page = await made.contacts_until("ended", 2)
        ends = {one.contact.rule_id: one.contact for one in page.records if one.event == "ended" and one.contact}
        assert (ends["plain"].ended, ends["plain"].is_partial) == ("the broker ended", True)

    on_a_networked_machine(steps, who=who)


@as_root_and_ordinary
def test_a_daemon_that_is_killed_is_followed_by_one_that_serves_the_box_once_it_is_told_what_holds(who: str) -> None:
    async def steps(made: Networked) -> None:
        text = rules(READ, PLAIN)
        await made.host.use_network_rules(text)
        await made.box()
        ask = f"curl -sS -m 30 https://{SITE}:8443/v1/text 2>&1 || echo refused"
        assert (await made.run(ask)).stdout == "some text"
        given = (await made.run(f"getent ahostsv4 {SITE}")).stdout.split()[0]
        holding = asyncio.ensure_future(made.run(HOLD))
        await held(made)
        made.kill_daemon()
        assert (await holding).stdout == "one\nended 1\n"
        waiting = asyncio.ensure_future(made.run(ask))
        await made.start_daemon()

        async def refuse(_: NetworkQuestion) -> NetworkAnswer:
            return NetworkAnswer(refusal="nothing is asked here")

        async with answering(made.host, refuse):  # who reads hears of what the record is given at its opening
            await made.host.use_network_rules(text)  # and no word of the label yet
            other = await made.run("curl -sS -m 1 https://api.example.com:8443/v1/text; echo $?")
            assert other.stdout == "28\n"  # it waits, as it did before
            await made.host.raise_taint("box", Label.PUBLIC)
            assert (await waiting).stdout == "some text"
        page = await made.contacts_until("ended", 3)
        ends = [one.contact.ended for one in page.records if one.event == "ended" and one.contact]
        assert "the host daemon ended" in ends
        # what a program has remembered leads to no other name
        assert (await made.run(f"getent ahostsv4 {SSH} {SITE}")).stdout.count(given) == 0
        report = await (await made.host.life("box")).report()
        assert {one.name: one.state for one in report.properties if one.name in ("network", *SERVICES)} == {
            "network": "enforced",
            "egress_broker": "enforced",
            "resolver": "enforced",
        }
        await (await made.host.life("box")).end()

    with_a_networked_daemon(steps, who=who)


def test_a_box_that_ends_while_there_is_no_daemon_has_an_end_of_everything_on_record() -> None:
    async def steps(made: Networked) -> None:
        await made.host.use_network_rules(rules(PLAIN))
        await made.box()
        holding = asyncio.ensure_future(made.run(HOLD))
        await held(made)
        made.kill_daemon()
        await holding
        mark = Marks(os.path.join(made.folder, "boxes")).read("box")
        assert mark is not None
        os.kill(mark.pid, signal.SIGKILL)
        await made.start_daemon()
        assert await made.host.sweep(keep_boxes=set(), keep_sessions=set())
        page = await made.page()
        assert [(one.event, one.contact and one.contact.ended) for one in page.records] == [
            ("begun", None),
            ("ended", "the host daemon ended"),
        ]

    with_a_networked_daemon(steps)


def test_a_daemon_that_is_started_again_knows_no_lower_label_than_before() -> None:
    async def steps(made: Networked) -> None:
        await made.host.use_network_rules(rules(WEB))
        await made.box()
        await made.host.raise_taint("box", Label.CONFIDENTIAL)
        made.kill_daemon()
        await made.start_daemon()
        await made.host.raise_taint("box", Label.PUBLIC)
        await made.host.use_network_rules(rules(WEB))
        assert "refused" in (await made.run(TRY)).stdout
        await made.host.renew_session("box", Label.PUBLIC)
        assert ANSWER in (await made.run(TRY)).stdout

    with_a_networked_daemon(steps)


def test_all_of_it_goes_through_the_daemon_as_well() -> None:
    async def steps(made: Networked) -> None:
        await made.host.use_network_rules(rules(SECRET))
        with pytest.raises(RulesInvalid):
            await made.host.use_network_rules("version: 1\nnetwork: {use: {'*': unknown}}")
        await made.box()

        async def agree(question: NetworkQuestion) -> NetworkAnswer:
            await made.host.raise_taint(question.sandbox_id, question.label)
            return NetworkAnswer()

        async with answering(made.host, agree) as asked:
            # its reader is there once the daemon has read so: until then it is refused
            done = await made.run(f"until {TRY.split('||')[0]} | grep answer; do :; done")
        assert done.stdout.strip() == ANSWER
        assert {one.kind for one in asked} == {"reach"}
        await (await made.host.life("box")).end()
        assert (await made.page()).records
        await made.host.forget_network_records("box")
        assert not (await made.page()).records

    with_a_networked_daemon(steps)


@as_root_and_ordinary
def test_what_doctor_tries_holds_and_leaves_nothing(who: str) -> None:
    async def steps(made: Networked) -> None:
        report = await made.host.doctor()
        (wall,) = [one for one in report.properties if one.name == "network_access"]
        assert wall.state == "enforced" and "profile `none`" in wall.evidence
        assert [one.seen for one in report.trials if not one.held] == []
        assert "broker_denies" in {one.name for one in report.trials}
        assert os.listdir(os.path.join(made.folder, "boxes")) == []
        assert os.listdir(os.path.join(made.folder, "host", "lineage")) == []

    on_a_networked_machine(steps, who=who)


# -- many ------------------------------------------------------------------------------------------

MANY = 10_000 if "COLDFRAME_SLOW" in os.environ else 400


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to look into the broker")
def test_many_connections_leave_no_descriptor_and_no_memory() -> None:
    client = (
        "import socket, sys\n"
        "def one():\n"
        "    with socket.create_connection(('ssh.example.com', 9000), 30) as c:\n"
        "        c.sendall(b'x'); assert c.recv(1) == b'x'\n"
        "        c.shutdown(socket.SHUT_WR)\n"
        "        while c.recv(100): pass\n"
        "for _ in range(int(sys.argv[1])): one()\n"
        "held = [socket.create_connection(('ssh.example.com', 9000), 30) for _ in range(200)]\n"
        "for c in held: c.sendall(b'x')\n"
        "assert [c.recv(1) for c in held] == [b'x'] * 200\n"
    )

    async def steps(made: Networked) -> None:
        await made.host.use_network_rules(rules(PLAIN))
        await made.box()
        program = f"cat > client.py <<'END'\n{client}END\n"
        assert (await made.run(program + "python3 client.py 200")).result.exit_code == 0
        await made.contacts_until("ended", 400)
        daemon = made.daemons[-1].pid
        (broker,) = brokers_of(daemon)
        before = {pid: taken(pid) for pid in (broker, daemon)}
        assert (await made.run(f"python3 client.py {MANY}", patience_s=240)).result.exit_code == 0
        await made.contacts_until("ended", 600 + MANY)
        await (await made.host.life("box")).report()
        for pid, (files, memory_kib) in before.items():

            async def are_closed(pid: int = pid, files: int = files) -> bool:
                return taken(pid)[0] <= files + 4  # ours to the daemon

            await until(are_closed, f"the descriptors of {pid} are closed: {files}")
            assert taken(pid)[1] - memory_kib < 32 * 1024

    with_a_networked_daemon(steps, patience_s=280)


def taken(pid: int) -> tuple[int, int]:
    """Descriptors and KiB of memory."""
    with open(f"/proc/{pid}/status") as status:
        memory = next(line for line in status if line.startswith("VmRSS"))
    return len(os.listdir(f"/proc/{pid}/fd")), int(memory.split()[1])


# -- report and settings ---------------------------------------------------------------------------


@as_root_and_ordinary
def test_the_report_tells_of_the_capture_and_of_whom_its_listeners_are(who: str) -> None:
    async def steps(made: Networked) -> None:
        await made.host.use_network_rules(rules(WEB, use="{'*': own, 'agent:agent': open}"))
        await made.box()
        await made.run(
            "python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 & "
            "until (exec 3<>/dev/tcp/127.0.0.1/8000) 2>/dev/null; do :; done"
        )
        report = await (await made.host.life("box")).report()
        (wall,) = [one for one in report.properties if one.name == "network"]
        assert wall.state == "enforced"
        assert "profile `open` and `own`" in wall.evidence and "6 of 6 sockets" in wall.evidence
        held_by = {(one.kind, one.name): one.held_by for one in report.interfaces}
        assert held_by["tcp", "127.0.0.1:1023"] == held_by["udp", "127.0.0.1:53"] == "product"
        assert held_by["tcp", "127.0.0.1:8000"] == "box"
        assert not report.boundary_weakened

    on_a_networked_machine(steps, who=who)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_server_is_given_no_socket_of_a_way_out() -> None:
    async def steps(made: Networked) -> None:
        await made.box()
        status = os.stat(os.path.join(made.folder, "boxes", "box", HANDOVER_NAME))
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (0, 0o600)

    on_a_networked_machine(steps)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("uid", [0, 2_000_000, 2_059_999, 61_000])
def test_the_broker_is_nobody_of_ours(uid: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument):
        Machine(str(tmp_path / "data"), server_uid=61_000, broker_uid=uid)
    assert os.listdir(tmp_path) == []


@as_root_and_ordinary
def test_settings_of_the_way_out_are_there_also_where_etc_is_put_together_from_its_parts(who: str) -> None:
    async def steps(made: Networked) -> None:
        assert isinstance(made.host, Machine)
        made.host._settings.current = lambda: None  # type: ignore[method-assign]  # as without a watch
        await made.host.use_network_rules(rules(READ))
        await made.box()
        done = await made.run(f"cat /etc/resolv.conf; env -i curl -sS https://{SITE}:8443/v1/text")
        assert done.stdout == "nameserver 198.18.0.1\noptions timeout:5 attempts:3\nsome text", done.stderr
        assert (await made.run("echo x > /etc/resolv.conf || echo x > /opt/coldframe/trust.pem")).result.exit_code != 0

    on_a_networked_machine(steps, who=who)


def test_without_nftables_the_usual_ports_are_captured_and_those_that_rules_name(tmp_path: Path) -> None:
    async def steps() -> None:
        ways = WaysOut(str(tmp_path / "lineage"), Marks(str(tmp_path)))
        assert ways.ports() == [80, 443]
        named = [
            "{id: a, to: db.example.com, mode: raw, ports: [5432, 443]}",
            "{id: b, to: api.example.com, ports: 8000-8999}",  # too many to be meant one by one
            "{id: c, to: www.example.com, ports: any}",
            "{id: d, to: old.example.com, ports: 25, then: deny}",
        ]
        await ways.use_rules(rules(*named))
        assert ways.ports() == [80, 443, 5432]
        many = [f"{{id: r{n}, to: n{n}.example.com, ports: {9000 + n}}}" for n in range(100)]
        await ways.use_rules(rules(*many))
        assert len(ways.ports()) == MOST_PORTS
        await ways.close()

    asyncio.run(steps())
