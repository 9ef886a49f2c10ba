"""Each contact is on record with the program that made it, what it sent and what was left out; names and rules are as well."""

import hashlib
import json
import os

import pytest

from coldframe.client.sync import SyncColdframe
from tests.installation import Installation, wait_until
from tests.promises.raw import all_entries
from tests.promises.test_network_log import RULES, contacts, settled
from tests.reachable import Reachable

HOLD = """
import os, socket, sys
link = socket.create_connection(("ssh.example.com", 9000), 60)
link.sendall(sys.argv[1].encode())
link.recv(1)
print(os.getpid(), flush=True)
sys.stdin.read()
"""


@pytest.mark.req("T4.71")
def test_a_contact_names_program_process_and_command_also_when_several_run(room: Reachable) -> None:
    def steps(client: SyncColdframe) -> None:
        client.policy.load(RULES)
        with client.sandboxes.create("several") as box:
            box.write_file("hold.py", HOLD)
            lines = [f"exec tail -f /dev/null | python3 hold.py {name}" for name in ("one", "two", "three")]
            commands = [box.run_command(line, background=True).command_id for line in lines]
            wait_until(lambda: len(contacts(box)) == 3, "all three are there")
            wait_until(lambda: all(box.output(one).data.strip() for one in commands), "each has told its process")
            found = {one.pid: one for one in contacts(box)}
            told = {int(box.output(one).data): one for one in commands}
            assert found.keys() == told.keys()
            assert {one.program.rpartition("/")[2][:7] for one in found.values() if one.program} == {"python3"}
            by_process = {pid: one.command_id for pid, one in found.items()}
            if os.geteuid() == 0:
                assert by_process == told
            else:  # there may be no control groups, which tell commands apart
                assert {pid: known for pid, known in by_process.items() if known is not None}.items() <= told.items()
            for one in commands:
                box.job(one).cancel()

    room.use(steps)


@pytest.mark.req("T4.71")
@pytest.mark.skipif(
    os.geteuid() != 0, reason="without control groups nobody can tell what was left behind from a command"
)
def test_what_a_command_left_behind_is_told_from_the_command_that_runs(room: Reachable) -> None:
    left = "mkfifo go; (cat go; exec curl -sS http://api.example.com:8080/v1/text) > /dev/null 2>&1 &"

    def steps(client: SyncColdframe) -> None:
        client.policy.load(RULES)
        with client.sandboxes.create("left") as box:
            leaver = box.run_command(left)
            assert leaver.leftovers
            box.run_command("echo > go; curl -sS http://api.example.com:8080/v1/text")
            commands = [one.command_id for one in settled(box, 2)]
            assert commands.count(leaver.command_id) == 1
            assert None not in commands

    room.use(steps)


@pytest.mark.req("T4.71")
def test_denied_attempts_and_names_have_their_program_and_equal_names_are_told_once(room: Reachable) -> None:
    loop = "import socket\nfor _ in range(300): socket.getaddrinfo('api.example.com', 443)"

    def steps(client: SyncColdframe) -> None:
        client.policy.load(RULES)
        with client.sandboxes.create("names") as box:
            box.run_command(["python3", "-c", loop])
            box.run_command("curl -sS -m 20 http://evil.example.org/; curl -sS -m 20 http://93.184.215.15/")
            settled(box, 2)
            found = [one.contact for one in box.network_log(limit=1000, lookups=True).contacts]
            names = [one for one in found if one.lookup is not None and one.outcome.value == "allow"]
            kinds = [(one.name, one.lookup.kind, one.lookup.answer) for one in names if one.lookup]
            assert sorted(kinds) == [("api.example.com", kind, "address") for kind in ("A", "AAAA")]
            assert {str(one.program).rpartition("/")[2][:7] for one in names} == {"python3"}
            denied = [one for one in found if one.outcome.value == "deny"]
            assert {(one.name or one.address) for one in denied} == {"evil.example.org", "93.184.215.15"}
            assert {one.lookup.answer for one in denied if one.lookup} == {"no-name"}
            assert {str(one.program).rpartition("/")[2] for one in denied} == {"curl"}
            assert all(one.pid for one in found)
            # Nobody was reached by a name alone.
            assert [one for one in client.network.sandboxes(host="api.example.com") if one.sandbox_id == box.id] == []

    room.use(steps)


@pytest.mark.req("T4.71")
def test_a_query_and_headers_are_left_out_and_the_record_says_so(room: Reachable) -> None:
    def steps(installation: Installation) -> None:
        with SyncColdframe(installation.url, installation.token) as client:
            client.policy.load(RULES)
            with client.sandboxes.create("omitted") as box:
                url = "http://api.example.com:8080/v1/text"
                box.run_command(["curl", "-sS", "-H", "X-Key: secret-header", f"{url}?key=secret-query"])
                box.run_command(["python3", "-c", f"import urllib.request as r; r.urlopen('{url}').read()"])
                requests = [one for contact in settled(box, 2) for one in contact.requests]
                assert [one.omitted for one in requests] == [("query", "headers"), ("headers",)]
            shown = installation.cli("network", "log", box.id, "--follow").stdout.decode()
            assert "GET /v1/text (query omitted)" in shown
            entries = all_entries(client, sandbox_id=box.id, kinds=["network.contact"])
            assert "secret" not in json.dumps([one.body for one in entries]) + shown

    room.run(steps)


@pytest.mark.req("T3.09")
def test_what_was_sent_is_on_record_by_its_digest(room: Reachable) -> None:
    text = "the plan " * 5000

    def steps(client: SyncColdframe) -> None:
        client.policy.load(RULES)
        with client.sandboxes.create("sent") as box:
            box.write_file("plan.txt", text)
            sha256 = hashlib.sha256(text.encode()).hexdigest()
            post = ["curl", "-sS", "--data-binary", "@plan.txt"]
            box.run_command([*post, "http://api.example.com:8080/v1/store"])
            box.run_command([*post, "-H", "Transfer-Encoding: chunked", "http://api.example.com:8080/v1/store"])
            box.run_command("exec 3<>/dev/tcp/ssh.example.com/9000; cat plan.txt >&3; head -c 1 <&3")
            box.run_command(["curl", "-sS", "-o", "/dev/null", "https://api.example.com/"])
            whole, chunked, raw, read = settled(box, 4)
            for one in (whole, chunked):
                assert (one.sent_sha256, one.sent_sha256_of) == (sha256, "body")
                assert [(request.body_bytes, request.body_sha256) for request in one.requests] == [(len(text), sha256)]
            assert (raw.sent_bytes, raw.sent_sha256, raw.sent_sha256_of) == (len(text), sha256, "stream")
            if read.mode == "sni":
                assert (read.sent_sha256_of, len(str(read.sent_sha256))) == ("stream", 64)
            else:
                assert (read.sent_sha256, read.sent_sha256_of) == (None, None)

    room.use(steps)


@pytest.mark.req("T4.71")
def test_each_version_of_the_rules_is_on_record_with_who_when_and_why(room: Reachable) -> None:
    def steps(installation: Installation) -> None:
        with SyncColdframe(installation.url, installation.token) as client:
            before = client.policy.load(RULES.replace("ports: 9000", "ports: 9001"), reason="open the echo").sha256
            after = client.policy.load(RULES, reason="it moved").sha256
            log = client.policy.log(after=0)
            first, second = log[-2:]
            assert (second.reason, second.sha256_before, second.sha256) == ("it moved", before, after)
            assert (first.reason, first.sha256, first.origin) == ("open the echo", before, "call")
            assert first.at <= second.at
            assert str(second.caller).startswith("rest:tok_")
            assert client.policy.version(before).text == RULES.replace("ports: 9000", "ports: 9001")
            shown = installation.cli("policy", "log").stdout.decode()
            assert "it moved" in shown
            changed = installation.cli("policy", "diff", before[:12], after[:12]).stdout.decode()
            assert [line for line in changed.splitlines() if line[:1] in "+-" and "ports" in line] == [
                "-        - {id: echo, to: ssh.example.com, scheme: tcp, mode: raw, ports: 9001}",
                "+        - {id: echo, to: ssh.example.com, scheme: tcp, mode: raw, ports: 9000}",
            ]
            assert installation.cli("policy", "diff").stdout.decode() == changed

    room.run(steps)
