"""What was done stands in the record, whole and in order; nobody inside can touch it, and whoever else does is found out."""

import hashlib
import itertools
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import ColdframeError, DeniedByRule, LedgerUnavailable, PendingApproval
from coldframe.contract.ledger import LedgerEntry
from coldframe.contract.policy import Role
from tests.installation import CHECKOUT, Installation, wait_until
from tests.promises.raw import Answer, all_entries, call, own_installation, rest

ASKED = {"agent", "session", "sandbox", "caller", "tool", "command", "argv", "cwd", "runtime"}
JUDGED = {"decision", "rule", "approval_id", "taint_before", "taint_after", "lineage_ids"}
RAN = {
    "started_at",
    "ended_at",
    "exit_code",
    "signal",
    "duration_us",
    "cpu_us",
    "peak_memory_bytes",
    "disk_change_bytes",
}
OUTPUT = {"stdout_bytes", "stdout_sha256", "stderr_bytes", "stderr_sha256", "endpoints"}
CHAINED = {"sequence", "previous_hash", "hash"}


@pytest.fixture
def home() -> Iterator[Installation]:
    """An installation that the test may stop, and whose rules it may change."""
    with own_installation() as started:
        yield started


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def lines_of(client: SyncColdframe, sandbox: SyncSandbox) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (sandbox.read_file(".exec_history").content or "").splitlines()]


def ended_calls(client: SyncColdframe, sandbox: SyncSandbox) -> list[LedgerEntry]:
    return all_entries(client, kinds=["call.ended"], sandbox_id=sandbox.id)


# Approvals come later: `approval_id` is null until then.
@pytest.mark.req("T1.85", "T1.43")
def test_every_attempt_is_one_line_with_what_really_happened(home: Installation) -> None:
    with SyncColdframe(home.url, home.token) as client:
        client.policy.load(
            "version: 1\nrules:\n"
            "  - {id: ask-date, hook: PRE_TOOL_CALL, when: {program: date}, then: ask}\n"
            "  - {id: crm, hook: POST_TOOL_RESPONSE, when: {tool: read_file, path: crm}, label: CONFIDENTIAL}\n"
            "  - {id: secret, hook: POST_TOOL_RESPONSE, when: {output: {contains: hush}}, then: deny}\n"
        )
        sandbox = client.sandboxes.create(agent_id="recorded")
        token, _ = client.tokens.create(Role.AGENT, "recorded", agent_id="recorded")
        work = "open('big', 'wb').write(b'x' * 5000)\nx = bytearray(64 << 20)\nfor i in range(3_000_000): pass\nprint('worked', flush=True)\nraise SystemExit(7)"
        allowed = sandbox.run_command(["-c", work], runtime="python3", cwd="scratch")
        call(home, sandbox.id, "run_command", {"command": "echo out; echo err >&2"}, token=token)
        with pytest.raises(DeniedByRule):
            sandbox.run_command(["sudo", "id"])
        with pytest.raises(PendingApproval):
            sandbox.run_command("date", cwd="scratch")
        sandbox.run_command("echo slow; sleep 60", timeout_s=0.3)
        killed = sandbox.run_command("echo on; kill -9 $$")
        cancelled = sandbox.run_command("sleep 60", background=True)
        sandbox.signal(cancelled.command_id, cancel=True)
        wait_until(
            lambda: cancelled.command_id in {one.body["command_id"] for one in ended_calls(client, sandbox)},
            "the end of the cancelled command is recorded",
        )
        sandbox.run_command("python3 -c 'import socket; socket.create_connection((\"203.0.113.9\", 443), 1)'; true")
        sandbox.write_file("crm", "x")
        sandbox.read_file("crm")
        with pytest.raises(ColdframeError):
            sandbox.read_file("none")
        with pytest.raises(DeniedByRule):
            sandbox.run_command("printf hu; echo sh")
        entries = [one for one in all_entries(client, sandbox_id=sandbox.id) if one.kind.startswith("call.")]
        lines = lines_of(client, sandbox)
        items = client.lineage.list(sandbox_id=sandbox.id, limit=1000).items
        session = sandbox.info.session_id
        sandbox.terminate()
    # One line for each call that was closed, in the order of the ledger and with its numbers and hashes.
    closed = [one for one in entries if one.kind != "call.started"]
    assert [(one["sequence"], one["previous_hash"], one["hash"]) for one in lines] == [
        (one.seq, one.previous, one.hash) for one in closed[: len(lines)]
    ]
    assert [one["call_id"] for one in lines] == [one.subject for one in closed[: len(lines)]]
    for line in lines:
        assert set(line) >= ASKED | JUDGED | RAN | OUTPUT | CHAINED
        assert (line["agent"], line["session"], line["sandbox"]) == ("recorded", session, sandbox.id)
        assert line["started_at"] <= line["ended_at"]
        made = [one for one in items if one.call_id == line["call_id"] and one.origin.type in ("command", "tool")]
        assert line["lineage_ids"] == [one.item_id for one in made]
    lines = [one for one in lines if one["tool"] != "read_file" or one["taint_after"] != "PUBLIC"]
    attempts = ["allowed", "allowed", "denied", "pending", "timed_out", "killed", "killed"]
    assert [one["attempt"] for one in lines] == [*attempts, "allowed", "allowed", "allowed", "allowed", "allowed"]
    worked, spoke, denied, pending, slow, shot, ended, reached, wrote, read, missing, withheld = lines
    assert (worked["argv"], worked["command"]) == (["python3", "-c", work], None)
    assert (worked["runtime"], worked["cwd"], worked["exit_code"], worked["signal"]) == ("python3", "scratch", 7, None)
    assert (worked["stdout_bytes"], worked["stdout_sha256"]) == (7, sha256(b"worked\n"))
    assert allowed.duration_ms is not None and allowed.cpu_s is not None
    assert worked["duration_us"] == pytest.approx(allowed.duration_ms * 1000, abs=1)
    assert 20_000 < worked["cpu_us"] == pytest.approx(allowed.cpu_s * 1_000_000, abs=1)
    assert worked["peak_memory_bytes"] > 64 << 20
    assert (worked["disk_change_bytes"], spoke["disk_change_bytes"], denied["disk_change_bytes"]) == (5000, 0, None)
    assert (spoke["command"], spoke["argv"], spoke["exit_code"]) == ("echo out; echo err >&2", None, 0)
    assert (spoke["stderr_bytes"], spoke["stderr_sha256"]) == (4, sha256(b"err\n"))
    assert spoke["caller"] != worked["caller"]
    assert (denied["decision"], denied["rule"], denied["argv"]) == ("deny", "denylist:privilege", ["sudo", "id"])
    assert (denied["error_code"], denied["exit_code"], denied["duration_us"]) == ("DENIED_BY_RULE", None, None)
    assert (pending["decision"], pending["rule"], pending["cwd"]) == ("ask", "ask-date", "scratch")
    assert pending["error_code"] == "PENDING_APPROVAL"
    assert 300_000 <= slow["duration_us"] < 30_000_000 and slow["stdout_sha256"] == sha256(b"slow\n")
    assert (shot["signal"], shot["exit_code"], killed.exit_code) == (9, 137, 137)
    assert ended["signal"] == 15
    assert reached["endpoints"] == ["tcp:203.0.113.9:443:refused"]
    assert [len(one["lineage_ids"]) for one in (worked, spoke, denied, wrote, read)] == [2, 2, 0, 1, 1]
    assert (wrote["tool"], wrote["taint_before"], wrote["taint_after"]) == ("write_file", "PUBLIC", "PUBLIC")
    assert (read["tool"], read["taint_before"], read["taint_after"]) == ("read_file", "PUBLIC", "CONFIDENTIAL")
    assert (missing["error_code"], missing["taint_before"]) == ("FILE_NOT_FOUND", "CONFIDENTIAL")
    assert (withheld["decision"], withheld["result_decision"], withheld["result_rule"]) == ("allow", "deny", "secret")
    assert withheld["stdout_sha256"] == sha256(b"hush\n")


@pytest.mark.req("T1.86", "T1.43")
def test_no_command_touches_the_history(sandbox: SyncSandbox, client: SyncColdframe) -> None:
    sandbox.run_command("echo first")
    attacks = (
        'echo \'{"attempt":"allowed"}\' >> .exec_history',
        ": > .exec_history",
        "rm -f .exec_history",
        "mv .exec_history gone",
        "ln -sf /dev/null .exec_history",
        "truncate -s 0 .exec_history",
        "chmod 666 .exec_history",
        "touch new && mv -f new .exec_history",
        "python3 -c \"open('.exec_history', 'r+').write('x')\"",
    )
    before = sandbox.read_file(".exec_history").content or ""
    for attack in attacks:
        assert sandbox.run_command(attack).exit_code != 0, attack
    after = sandbox.read_file(".exec_history").content or ""
    assert after.startswith(before)
    closed = [
        one.seq for one in all_entries(client, sandbox_id=sandbox.id) if one.kind in ("call.ended", "call.refused")
    ]
    assert [json.loads(line)["sequence"] for line in after.splitlines()] == closed[:-1]


# -- tampering is found out ----------------------------------------------------------------------------------------


def entry_hash(row: dict[str, Any]) -> str:
    """The documented hash: SHA-256 over the canonical JSON of an entry's other fields. Written anew, from the words."""
    fields = {name: row[name] for name in ("at", "body", "kind", "previous", "seq", "subject")}
    return sha256(json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode())


def without_server(
    home: Installation, *arguments: str, data_dir: str | None = None
) -> "subprocess.CompletedProcess[bytes]":
    environment = {**home.environment, "COLDFRAME_DATA_DIR": data_dir or home.data_dir}
    command = [sys.executable, "-m", "coldframe.cli", *arguments]
    return subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, timeout=60)


def rewrite(database: sqlite3.Connection, seq: int, **changes: str) -> None:
    """What somebody with the file does: entry *seq* changed and every hash from there on made anew."""
    names = ("seq", "at", "kind", "subject", "body", "previous", "hash")
    previous = None
    for values in database.execute(
        f"SELECT {', '.join(names)} FROM ledger WHERE seq >= ? ORDER BY seq", (seq,)
    ).fetchall():
        row = dict(zip(names, values, strict=True))
        row |= changes if row["seq"] == seq else {"previous": previous}
        previous = entry_hash({**row, "body": json.loads(row["body"])})
        database.execute(
            "UPDATE ledger SET body = ?, previous = ?, hash = ? WHERE seq = ?",
            (row["body"], row["previous"], previous, row["seq"]),
        )


def changed_body(database: sqlite3.Connection, seq: int) -> str:
    body = json.loads(database.execute("SELECT body FROM ledger WHERE seq = ?", (seq,)).fetchone()[0])
    body["command"] = "echo harmless"
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def edit(database: sqlite3.Connection, seq: int, last: int) -> None:
    database.execute("UPDATE ledger SET body = ? WHERE seq = ?", (changed_body(database, seq), seq))


def edit_and_hash_anew(database: sqlite3.Connection, seq: int, last: int) -> None:
    rewrite(database, seq, body=changed_body(database, seq))


def swap(database: sqlite3.Connection, seq: int, last: int) -> None:
    database.execute("UPDATE ledger SET seq = -1 WHERE seq = ?", (seq,))
    database.execute("UPDATE ledger SET seq = ? WHERE seq = ?", (seq, seq + 2))
    database.execute("UPDATE ledger SET seq = ? WHERE seq = -1", (seq + 2,))


def remove_middle(database: sqlite3.Connection, seq: int, last: int) -> None:
    database.execute("DELETE FROM ledger WHERE seq IN (?, ?)", (seq, seq + 1))


def remove_middle_and_close_up(database: sqlite3.Connection, seq: int, last: int) -> None:
    before = database.execute("SELECT hash FROM ledger WHERE seq = ?", (seq - 1,)).fetchone()[0]
    database.execute("DELETE FROM ledger WHERE seq = ?", (seq,))
    for number in range(seq + 1, last + 1):
        database.execute("UPDATE ledger SET seq = ? WHERE seq = ?", (number - 1, number))
    rewrite(database, seq, previous=before)


def remove_tail(database: sqlite3.Connection, seq: int, last: int) -> None:
    database.execute("DELETE FROM ledger WHERE seq > ?", (last - 3,))


def remove_all(database: sqlite3.Connection, seq: int, last: int) -> None:
    database.execute("DELETE FROM ledger")


TAMPERING: dict[Callable[[sqlite3.Connection, int, int], None], tuple[str, Callable[[int, int], int]]] = {
    edit: ("changed", lambda seq, last: seq),
    edit_and_hash_anew: ("changed", lambda seq, last: last),  # the head kept apart names another one
    swap: ("reordered", lambda seq, last: seq),
    remove_middle: ("missing", lambda seq, last: seq),
    remove_middle_and_close_up: ("tail_missing", lambda seq, last: last),
    remove_tail: ("tail_missing", lambda seq, last: last - 2),
    remove_all: ("tail_missing", lambda seq, last: 1),
}


@pytest.mark.req("T1.86", "TP.15")
def test_whoever_changes_the_record_is_found_out(home: Installation) -> None:
    """On copies of a real installation that was stopped; with the program that a person would use."""
    with SyncColdframe(home.url, home.token) as client, client.sandboxes.create(agent_id="kept") as sandbox:
        for number in range(5):
            sandbox.run_command(["echo", f"entry {number}"])
        with pytest.raises(DeniedByRule):
            sandbox.run_command("sudo id")
    home.stop()
    exported = [json.loads(line) for line in without_server(home, "ledger", "export").stdout.splitlines()]
    # The chain, recomputed from the documented words alone; and one record for each decision of a hook.
    assert [one["seq"] for one in exported] == list(range(1, len(exported) + 1))
    assert all(one["hash"] == entry_hash(one) for one in exported)
    assert all(later["previous"] == earlier["hash"] for earlier, later in itertools.pairwise(exported))
    hooks = [one["body"]["decision"]["hook"] for one in exported if one["body"].get("decision")]
    assert (hooks.count("PRE_TOOL_CALL"), hooks.count("POST_TOOL_RESPONSE")) == (6, 5)
    seq = next(one["seq"] for one in exported if "entry 1" in str(one["body"]))
    last = len(exported)

    def verify(tamper: Callable[[str], None]) -> tuple[int, dict[str, Any]]:
        with tempfile.TemporaryDirectory(dir=home.folder) as folder:
            os.chmod(folder, 0o711)
            copy = os.path.join(folder, "data")
            os.mkdir(copy, 0o711)
            shutil.copytree(os.path.join(home.data_dir, "control"), os.path.join(copy, "control"))
            tamper(os.path.join(copy, "control"))
            done = without_server(home, "ledger", "verify", "--json", data_dir=copy)
            return done.returncode, json.loads(done.stdout)

    code, verdict = verify(lambda control: None)
    assert (code, verdict["intact"], verdict["entries"], verdict["faults"]) == (0, True, last, [])

    def in_database(change: Callable[[sqlite3.Connection, int, int], None]) -> Callable[[str], None]:
        def tamper(control: str) -> None:
            database = sqlite3.connect(os.path.join(control, "coldframe.db"), isolation_level=None)
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
                database.execute(f"DROP TRIGGER {name}")
            change(database, seq, last)
            database.execute("PRAGMA journal_mode=DELETE")
            database.close()

        return tamper

    for change, (kind, where) in TAMPERING.items():
        code, verdict = verify(in_database(change))
        found = [(fault["kind"], fault["seq"]) for fault in verdict["faults"]]
        assert (code, verdict["intact"]) == (6, False), change.__name__
        assert (kind, where(seq, last)) in found, (change.__name__, found)
        assert all(fault["message"] for fault in verdict["faults"])

    def cut_checkpoints(control: str) -> None:
        path = os.path.join(control, "ledger", "checkpoints.jsonl")
        with open(path, "rb+") as file:
            file.truncate(file.read().rstrip(b"\n").rfind(b"\n") + 1)

    def forge_checkpoint(control: str) -> None:
        path = os.path.join(control, "ledger", "checkpoints.jsonl")
        with open(path, "rb+") as file:
            point = json.loads(file.readline())
            point["hash"] = "0" * 64
            rest_of_it = file.read()
            file.seek(0)
            file.write(json.dumps(point, sort_keys=True, separators=(",", ":")).encode() + b"\n" + rest_of_it)
            file.truncate()

    def remove_head(control: str) -> None:
        os.unlink(os.path.join(control, "ledger", "head"))

    for spoil, kind in (
        (cut_checkpoints, "checkpoint_missing"),
        (forge_checkpoint, "checkpoint_invalid"),
        (remove_head, "checkpoint_missing"),
    ):
        code, verdict = verify(spoil)
        assert code == 6 and kind in {fault["kind"] for fault in verdict["faults"]}, (spoil.__name__, verdict)


# -- decisions can be made again -----------------------------------------------------------------------------------


@pytest.mark.req("TP.18", "T1.89")
def test_every_decision_is_made_again_the_same_also_after_other_rules_and_a_restart(home: Installation) -> None:
    with SyncColdframe(home.url, home.token) as client:
        client.policy.load(
            "version: 1\nrules:\n"
            "  - {id: no-touch, hook: PRE_TOOL_CALL, when: {program: touch}, then: deny}\n"
            "  - {id: ask-date, hook: PRE_TOOL_CALL, when: {program: date}, then: ask}\n"
            "  - {id: crm, hook: POST_TOOL_RESPONSE, when: {tool: read_file, path: crm}, label: CONFIDENTIAL}\n"
            "  - {id: secret, hook: POST_TOOL_RESPONSE, when: {output: {contains: hush}}, then: deny}\n"
        )
        sandbox = client.sandboxes.create(agent_id="again")
        for command in ("echo fine", "touch x", "date", "printf hu; echo sh", "sudo id", "eval $x", ": 'unclosed"):
            call(home, sandbox.id, "run_command", {"command": command})
        sandbox.write_file("crm", "x")
        sandbox.read_file("crm")
        sandbox.list_directory()
        judged = [one for one in all_entries(client) if one.body.get("decision")]
        assert {one.body["decision"]["outcome"] for one in judged} == {"allow", "ask", "deny"}

        def replay_all(client: SyncColdframe) -> list[dict[str, Any]]:
            return [client.policy.replay(entry.seq) for entry in judged]

        first = replay_all(client)
        for entry, answer in zip(judged, first, strict=True):
            assert answer["same"] and answer["stored"] == answer["recomputed"] == entry.body["decision"]
        assert all(replay_all(client) == first for _ in range(20))
        client.policy.load("version: 1\nsettings: {strict_parsing: true, deny_commands: [echo]}\n")
        assert replay_all(client) == first
        sandbox.terminate()
    home.stop()
    home.start()
    with SyncColdframe(home.url, home.token) as client:
        assert replay_all(client) == first
        done = home.cli("policy", "replay", str(judged[-1].seq))
        assert done.returncode == 0 and done.stdout.startswith(b"same: ")
        # The same call under the same rules is decided alike, before and after.
        with client.sandboxes.create(agent_id="again") as sandbox:
            decided = {
                json.dumps(client.policy.check(sandbox.id, "run_command", {"command": "echo x"})) for _ in range(100)
            }
            assert len(decided) == 1


# -- there is no way without it ------------------------------------------------------------------------------------


def server_of(home: Installation) -> int:
    """Process id of the server, the child of `coldframe up` that is no host daemon."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            if parent == home.pid and b"server" in words:
                return int(entry)
    raise AssertionError("there is no server")


def limit_files_of(pid: int, size: str) -> None:
    """Let no file that process *pid* writes grow past *size* bytes; as its own user, who may."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        fields = dict(line.split(":\t", 1) for line in status.read().splitlines() if ":\t" in line)
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        user = {"user": int(fields["Uid"].split()[0]), "group": int(fields["Gid"].split()[0]), "extra_groups": []}
    subprocess.run(["prlimit", f"--pid={pid}", f"--fsize={size}:"], check=True, timeout=10, cwd="/", **user)


@pytest.mark.req("TP.16")
def test_no_setting_switches_the_record_off(home: Installation) -> None:
    for name in ("LEDGER", "AUDIT", "HISTORY", "NO_LEDGER", "LEDGER_ENABLED"):
        environment = {**home.environment, f"COLDFRAME_{name}": "false"}
        command = [sys.executable, "-m", "coldframe.cli", "up", "--port", "0"]
        done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, timeout=60)
        assert done.returncode == 2 and b"is not a setting" in done.stderr, name
    for text in (
        "version: 1\nsettings: {ledger: false}\n",
        "version: 1\nsettings: {audit: off}\n",
        "version: 1\nledger: off\n",
        "version: 1\nrules:\n  - {id: quiet, hook: PRE_TOOL_CALL, then: allow, record: false}\n",
    ):
        assert rest(home, "PUT", "/v1/policy", text.encode()).code == "RULES_INVALID"
    for path in ("/v1/ledger", "/v1/ledger/entries", "/v1/ledger/entries/1"):
        for method in ("DELETE", "PUT", "POST", "PATCH"):
            assert rest(home, method, path, {}).status in (404, 405)


@pytest.mark.req("TP.16", "TP.03")
def test_what_cannot_be_recorded_is_refused(home: Installation) -> None:
    """The disk is full: stood in for by a limit of zero bytes on every file that the server writes."""
    with SyncColdframe(home.url, home.token) as client:
        sandbox = client.sandboxes.create(agent_id="full")
        sandbox.write_file("kept", "before\n")
        server, before = server_of(home), client.ledger.verify()
        limit_files_of(server, "0")
        try:
            attempts: list[tuple[str, dict[str, object]]] = [
                ("run_command", {"command": "touch proof"}),
                ("run_command", {"command": "touch proof", "background": True}),
                ("run_command", {"command": "sudo id"}),
                ("write_file", {"path": "kept", "content": "after\n"}),
                ("read_file", {"path": "kept"}),
                ("list_directory", {"path": ""}),
            ]
            for tool, arguments in attempts:
                answer = call(home, sandbox.id, tool, arguments)
                assert (answer.status, answer.code) == (503, "LEDGER_UNAVAILABLE"), (tool, answer.body)
            streamed = call(home, sandbox.id, "run_command", {"command": "touch proof"}, Accept="application/x-ndjson")
            assert streamed.code == "LEDGER_UNAVAILABLE"
            assert rest(home, "PUT", f"/v1/sandboxes/{sandbox.id}/files/proof", b"x").code == "LEDGER_UNAVAILABLE"
            done = home.cli("exec", sandbox.id, "--", "touch", "proof")
            assert done.returncode == 5 and b"LEDGER_UNAVAILABLE" in done.stderr
            for refused in (
                lambda: client.sandboxes.create(agent_id="another"),
                lambda: client.policy.load("version: 1\n# other\n"),
                lambda: client.tokens.create("viewer", "late"),
                lambda: client.agents.set_label("full", "INTERNAL", reason="late"),
            ):
                with pytest.raises(LedgerUnavailable):
                    refused()
        finally:
            limit_files_of(server, "unlimited")
        assert client.ledger.verify().head_hash == before.head_hash
        assert [entry.name for entry in sandbox.list_directory().entries if entry.name == "proof"] == []
        assert sandbox.read_file("kept").content == "before\n"
        assert sandbox.run_command("touch proof").exit_code == 0
        assert client.ledger.verify().intact
        sandbox.terminate()


@pytest.mark.req("TP.16", "TP.03")
@pytest.mark.parametrize("recorded_by", ["the next call", "the server itself", "the next start"])
def test_an_end_that_cannot_be_recorded_stops_everything_until_it_is(home: Installation, recorded_by: str) -> None:
    """The box keeps the result of a command, so its record is not lost with a full disk; and nothing goes on without it."""
    command = "sleep 2; echo what-was-done"  # time enough to fill the disk between its start and its end
    answers: list[Answer] = []
    with SyncColdframe(home.url, home.token) as client:
        sandbox = client.sandboxes.create(agent_id="full")
        sandbox.write_file("kept", "before\n")
        waiting = threading.Thread(
            target=lambda: answers.append(call(home, sandbox.id, "run_command", {"command": command}))
        )
        waiting.start()
        wait_until(
            lambda: len(all_entries(client, kinds=["call.started"], sandbox_id=sandbox.id)) == 2, "it has started"
        )
        limit_files_of(server_of(home), "0")
        try:
            waiting.join(timeout=20)
            assert [answer.json["value"]["stdout"] for answer in answers] == ["what-was-done\n"]
            for tool, arguments in (("run_command", {"command": "touch proof"}), ("read_file", {"path": "kept"})):
                answer = call(home, sandbox.id, tool, arguments)
                assert (answer.status, answer.code) == (503, "LEDGER_UNAVAILABLE"), (tool, answer.body)
            if recorded_by == "the next start":
                home.kill()
        finally:
            if recorded_by != "the next start":
                limit_files_of(server_of(home), "unlimited")
    if recorded_by == "the next start":
        home.start()
    with SyncColdframe(home.url, home.token) as client:
        if recorded_by == "the next call":
            client.sandboxes.get(sandbox.id).read_file("kept")
        wait_until(lambda: len(commands_that_ended(client, sandbox)) == 1, "the command has its end")
        (ended,) = commands_that_ended(client, sandbox)
        assert ended.body["stdout"]["sha256"] == sha256(b"what-was-done\n")
        assert client.ledger.verify().intact
        again = client.sandboxes.get(sandbox.id)
        assert [entry.name for entry in again.list_directory().entries if entry.name == "proof"] == []
        assert [line["sequence"] for line in lines_of(client, again) if line["command"]] == [ended.seq]


def commands_that_ended(client: SyncColdframe, sandbox: SyncSandbox) -> list[LedgerEntry]:
    return [entry for entry in ended_calls(client, sandbox) if entry.body["command_id"]]


@pytest.mark.req("TP.16", "TP.03")
def test_a_result_that_no_box_keeps_is_withheld_if_its_end_cannot_be_recorded(home: Installation) -> None:
    answers: list[Answer] = []
    ready, go = threading.Event(), threading.Event()

    def content() -> Iterator[bytes]:
        yield b"first\n"
        ready.set()
        go.wait(20)
        yield b"second\n"

    with SyncColdframe(home.url, home.token) as client:
        sandbox = client.sandboxes.create(agent_id="full")

        def upload() -> None:
            path = f"/v1/sandboxes/{sandbox.id}/files/kept"
            answers.append(rest(home, "PUT", path, content()))

        waiting = threading.Thread(target=upload)
        waiting.start()
        ready.wait(20)
        wait_until(lambda: all_entries(client, kinds=["call.started"], sandbox_id=sandbox.id), "it has started")
        limit_files_of(server_of(home), "0")
        try:
            go.set()
            waiting.join(timeout=20)
        finally:
            limit_files_of(server_of(home), "unlimited")
        assert [(answer.status, answer.code) for answer in answers] == [(503, "LEDGER_UNAVAILABLE")]
    home.stop()
    home.start()
    with SyncColdframe(home.url, home.token) as client:
        kinds = [one.kind for one in all_entries(client, sandbox_id=sandbox.id) if one.kind.startswith("call.")]
        assert kinds == ["call.started", "call.interrupted"]
        assert client.ledger.verify().intact
