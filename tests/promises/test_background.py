"""A background session has a temporary workspace of its own: empty at first, seen by nobody else, and gone with the session."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from coldframe.client.api import Coldframe
from coldframe.client.sandbox import Sandbox
from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.declared_inputs import DeclaredInput
from coldframe.contract.errors import ColdframeError
from coldframe.contract.policy import Label, Role
from coldframe.contract.sandbox import Limits, SandboxSpec
from tests.chaos.victims import Victims, kill
from tests.installation import Installation, wait_until
from tests.promises.governed import EVERY_TOOL, token_of
from tests.promises.raw import all_entries, call, own_installation, rest

GONE_WITHIN_S = 10.0
HISTORY = ".exec_history"
FIND = """
import os, sys
words = [word.encode() for word in sys.argv[1:]]
roots = ['/'] + [f'/proc/{pid}/{name}' for pid in os.listdir('/proc') if pid.isdigit() for name in ('root', 'cwd')]
looked = 0
for root in roots:
    for place, folders, files in os.walk(root):
        if place == root:
            folders[:] = [one for one in folders if one not in ('proc', 'sys', 'usr', 'opt')]
        for name in folders + files:
            path = os.path.join(place, name)
            looked += 1
            content = b''
            try:
                if os.path.isfile(path) and os.path.getsize(path) < 1 << 20:
                    content = open(path, 'rb').read()
            except OSError:
                pass
            for word in words:
                if word in os.fsencode(path) or word in content:
                    print('FOUND', word, path)
for pid in filter(str.isdigit, os.listdir('/proc')):
    for name in ('cmdline', 'environ', 'mountinfo', 'maps'):
        try:
            content = open(f'/proc/{pid}/{name}', 'rb').read()
        except OSError:
            continue
        for word in words:
            if word in content and int(pid) != os.getpid():
                print('FOUND', word, pid, name)
print('looked at', looked > 100)
"""
"""Looks at every path, file and process in view for each of its arguments."""


def folder_of(installation: Installation, session_id: str) -> str:
    return os.path.join(installation.data_dir, "background", session_id)


def wait_until_gone(folder: str) -> None:
    wait_until(lambda: not os.path.lexists(folder), f"{folder} is gone", timeout_s=GONE_WITHIN_S)


@pytest.fixture
def background(client: SyncColdframe) -> Iterator[SyncSandbox]:
    with client.sandboxes.create(background=True) as sandbox:
        yield sandbox


@pytest.mark.req("T1.50")
def test_it_works_in_a_folder_of_its_session_that_is_empty_at_first(
    background: SyncSandbox, installation: Installation
) -> None:
    folder = folder_of(installation, background.info.session_id)
    assert os.path.isdir(folder)
    assert [(entry.path, entry.type) for entry in background.list_directory().entries] == [(HISTORY, "file")]
    assert background.run_command(["find", ".", "-mindepth", "1"]).stdout == f"./{HISTORY}\n"
    started = background.run_command(
        "echo made > by-command; stat -c '%d %i' .; read -r _ < <(sleep 300)", background=True
    )
    wait_until(lambda: background.output(started.command_id).data.endswith(b"\n"), "the command works")
    seen = os.stat(folder)
    assert background.output(started.command_id).data == f"{seen.st_dev} {seen.st_ino}\n".encode()
    background.signal(started.command_id, cancel=True)
    if os.access(folder, os.R_OK | os.X_OK):
        assert set(os.listdir(folder)) == {HISTORY, "by-command"}


@pytest.mark.req("T1.50")
def test_what_it_declares_is_in_its_folder_at_its_start_and_nothing_else(
    governed: Installation, owner: SyncColdframe
) -> None:
    inputs = (
        DeclaredInput(path="orders.csv", content="a,b\n1,é\n", source="https://files.example.com/orders.csv"),
        DeclaredInput(path="deep/er/raw.bin", content_base64="AP8K"),
    )
    spec = SandboxSpec(background=True, inputs=inputs)
    with owner.sandboxes.create(spec=spec) as sandbox:
        found = sandbox.run_command("find . -type f | sort; cat orders.csv; od -An -tx1 deep/er/raw.bin").stdout
        assert found == f"./{HISTORY}\n./deep/er/raw.bin\n./orders.csv\na,b\n1,é\n 00 ff 0a\n"
        told = next(line for line in sandbox.contract()["inputs"] if line["id"] == "inputs.declared")
        assert isinstance(told["value"], list)
        assert [(one["path"], one["bytes"]) for one in told["value"]] == [("orders.csv", 9), ("deep/er/raw.bin", 3)]
        entries = {one.name: one for one in sandbox.inputs().inputs if one.type == "file"}
        assert set(entries) == {one.path for one in inputs}
        for one in inputs:
            assert (entries[one.path].sha256, entries[one.path].said_source) == (one.sha256, one.source)
            assert entries[one.path].call_id is not None and entries[one.path].granted_by
        assert all(
            not one.is_given and one.sha256 for one in sandbox.refresh().spec.inputs
        )  # content is a file's alone
        assert "1,é" not in sandbox.info.model_dump_json()
        sandbox.terminate(discard=True)
    assert {HISTORY, "own"} == _listed(owner, SandboxSpec(background=True))


def _listed(client: SyncColdframe, spec: SandboxSpec) -> set[str]:
    with client.sandboxes.create(spec=spec) as sandbox:
        sandbox.write_file("own", "")
        return {one.path for one in sandbox.list_directory().entries}


@pytest.mark.req("T1.50")
def test_an_input_that_rules_refuse_or_that_is_none_makes_no_sandbox(
    governed: Installation, owner: SyncColdframe
) -> None:
    owner.policy.load(
        "version: 1\nrules: [{id: no-keys, hook: PRE_TOOL_CALL, when: {tool: write_file, path: {glob: '*.pem'}}, then: deny}]\n"
    )
    folders = os.path.join(governed.data_dir, "background")
    before = {one.id for one in owner.sandboxes.list()}, set(os.listdir(folders))
    good, bad = {"path": "a.txt", "content": "a"}, {"path": "b.pem", "content": "key"}
    refused = rest(governed, "POST", "/v1/sandboxes", {"background": True, "inputs": [good, bad]})
    assert (refused.code, refused.json["error"]["facts"]["rule"]) == ("DENIED_BY_RULE", "no-keys")
    for wrong in (
        {"path": "../a", "content": "a"},
        {"path": "/etc/passwd", "content": "a"},
        {"path": "a"},
        {"path": "a", "sha256": "0" * 64},
        {"path": "a", "content": "a", "sha256": "0" * 64},
        {"path": "a", "content": "a", "content_base64": "YQ=="},
        {"path": "a", "content_base64": "?"},
        {"path": "a", "content": "a" * (1 << 20) + "a"},
        {"path": "a.txt", "content": "twice"},
    ):
        refused = rest(governed, "POST", "/v1/sandboxes", {"background": True, "inputs": [good, wrong]})
        assert (refused.status, refused.code) == (400, "INVALID_ARGUMENT"), wrong
    refused = rest(governed, "POST", "/v1/sandboxes", {"agent_id": "durable", "inputs": [good]})
    assert refused.code == "INVALID_ARGUMENT"
    wait_until(
        lambda: ({one.id for one in owner.sandboxes.list()}, set(os.listdir(folders))) == before,
        "nothing is left of them",
    )


@pytest.mark.req("T1.51")
def test_it_is_gone_with_its_session_whatever_the_job_left_in_it(
    client: SyncColdframe, installation: Installation
) -> None:
    with client.sandboxes.create(background=True) as sandbox:
        folder = folder_of(installation, sandbox.info.session_id)
        sandbox.run_command(
            "mkdir -p a/b closed; touch a/b/c closed/d; ln -s / root; mkfifo pipe; chmod 0 closed a/b;"
            " (setsid sleep 300 > left 2>&1 &) ; sleep 300 &"
        )
        assert os.path.isdir(folder)
    wait_until_gone(folder)
    assert client.sessions.get(sandbox.info.session_id).closed_at is not None


def kill_server_and_daemon(home: Installation) -> None:
    """`kill -9` of all three processes; keepers and what they run go on."""
    seen = Victims(home)
    assert seen.servers and seen.daemons
    for process in (*seen.servers, *seen.daemons):
        kill(process)
    home.kill()


@pytest.mark.req("T1.51")
def test_after_a_crash_of_everything_what_belongs_to_no_session_is_gone_and_what_does_goes_on() -> None:
    with own_installation() as home:
        with SyncColdframe(home.url, home.token) as client:
            goes_on, dies, ends = (client.sandboxes.create(background=True) for _ in range(3))
            folders = {one.id: folder_of(home, one.info.session_id) for one in (goes_on, dies, ends)}
            for sandbox in (goes_on, dies, ends):
                sandbox.write_file("work", "x")
            # One is being ended when everything dies: its daemon is stopped before it can do it.
            daemons = Victims(home).daemons
            for daemon in daemons:
                os.kill(daemon.pid, signal.SIGSTOP)
            ending = threading.Thread(target=end_if_possible, args=(home.url, home.token, ends.id))
            ending.start()
            wait_until(lambda: ends.refresh().state.state == "stopping", "it is being ended")
            assert os.path.isdir(folders[ends.id])
            # One loses its box together with the daemon that would have noticed.
            kill(Victims(home).keepers[dies.id])
        kill_server_and_daemon(home)
        ending.join()
        # One was half made.
        stranger = folder_of(home, "ses_of_nobody")
        os.mkdir(stranger)
        home.start()
        with SyncColdframe(home.url, home.token) as client:
            wait_until_gone(folders[dies.id])
            wait_until_gone(folders[ends.id])
            wait_until_gone(stranger)
            assert client.sandboxes.get(ends.id).info.state.state == "terminated"
            assert client.sandboxes.get(dies.id).info.state.state == "lost"
            found = client.sandboxes.get(goes_on.id)
            assert found.read_file("work").content == "x"
            found.terminate()
            wait_until_gone(folders[goes_on.id])
            assert os.listdir(os.path.join(home.data_dir, "background")) == []


def end_if_possible(url: str, token: str, sandbox_id: str) -> None:
    try:
        with SyncColdframe(url, token) as client:
            client.sandboxes.get(sandbox_id).terminate(discard=True)  # without a look, which would wait for the host
    except ColdframeError:
        pass  # the server is killed meanwhile


@pytest.mark.req("T1.51")
def test_when_its_box_is_killed_the_session_ends_and_the_folder_goes_without_a_call_or_a_restart(
    client: SyncColdframe, installation: Installation
) -> None:
    with client.sandboxes.create(background=True) as goes_on:
        sandbox = client.sandboxes.create(background=True)
        folder = folder_of(installation, sandbox.info.session_id)
        sandbox.write_file("work", "x")
        kill(Victims(installation).keepers[sandbox.id])
        wait_until_gone(folder)
        assert sandbox.refresh().state.state == "lost"
        assert client.sessions.get(sandbox.info.session_id).closed_at is not None
        with pytest.raises(ColdframeError):
            sandbox.run_command("true")
        assert os.path.isdir(folder_of(installation, goes_on.info.session_id))
        assert goes_on.run_command("echo here").stdout == "here\n"


@pytest.mark.req("T1.51")
def test_nothing_of_it_is_kept_but_what_was_exported_and_that_is_listed(
    client: SyncColdframe, installation: Installation
) -> None:
    ended = []
    for exported in (False, True):
        sandbox = client.sandboxes.create(background=True)
        sandbox.run_command("echo result > report.txt; mkdir dist; echo built > dist/app.js")
        told = sandbox.terminate(dry_run=True)
        assert told.paths is not None and {"report.txt", "dist/app.js"} <= {
            path.removeprefix("/home/user/") for path in told.paths.lost
        }
        ended.append(sandbox.terminate(snapshot=exported))
        wait_until_gone(folder_of(installation, sandbox.info.session_id))
    plain, kept = ended
    assert "tree" in {one.item for one in plain.lost} and plain.snapshot_id is None
    assert kept.snapshot_id is not None
    assert [
        one.snapshot_id for one in client.snapshots.list() if one.sandbox_id in (plain.sandbox_id, kept.sandbox_id)
    ] == [kept.snapshot_id]
    listed = client.sandboxes.get(kept.sandbox_id).artifacts().artifacts
    assert {"report.txt", "dist/app.js"} <= {one.name for one in listed}
    with client.sandboxes.create(spec=SandboxSpec(background=True, snapshot=kept.snapshot_id)) as anew:
        assert anew.read_file("report.txt").content == "result\n"
        anew.terminate(discard=True)
    client.snapshots.remove(kept.snapshot_id)


@pytest.mark.req("T1.52")
def test_neither_sees_the_other_by_tools_or_commands(
    client: SyncColdframe, sandbox: SyncSandbox, background: SyncSandbox, installation: Installation, agent_id: str
) -> None:
    session = background.info.session_id
    agents_folder = os.path.join(installation.data_dir, "workspace", agent_id)
    sides = (
        (sandbox, background, "canary-of-background-91c2", folder_of(installation, session), session),
        (background, sandbox, "canary-of-agent-7f04", agents_folder, agent_id),
    )
    for _, other, canary, _, _ in sides:
        other.write_file("find.py", FIND)
        other.write_file("canary.txt", canary)
        other.run_command("echo marked > /tmp/$(cat canary.txt); exec -a $(cat canary.txt) sleep 300 &")
        wait_until(lambda other=other, canary=canary: canary in str(other.processes()), "it runs under its name")
    for looking, other, canary, folder, name in sides:
        where = str(other.run_command(["python3", "find.py", canary]).stdout)
        assert all(found in where for found in ("/home/user/canary.txt", f"/tmp/{canary}", "cmdline")), where
        found = looking.run_command(["python3", "find.py", canary, name])
        assert (found.stdout, found.stderr) == ("looked at True\n", "")
        looking.run_command(["ln", "-s", folder, "way"])
        for path in (
            f"{folder}/canary.txt",
            "way/canary.txt",
            f"../{name}/canary.txt",
            f"../../background/{session}/canary.txt",
            f"../../workspace/{agent_id}/canary.txt",
            f"/home/user/../{name}/canary.txt",
        ):
            for tool, arguments in (
                ("read_file", {"path": path}),
                ("write_file", {"path": path, "content": "changed"}),
                ("edit_file", {"path": path, "old": "canary", "new": "changed"}),
                ("list_directory", {"path": os.path.dirname(path)}),
                ("search_files", {"path": os.path.dirname(path), "pattern": "canary"}),
            ):
                refused = call(installation, looking.id, tool, arguments)
                assert refused.code == "OUTSIDE_WORKSPACE", (tool, path, refused.body)
            assert looking.run_command(["cat", "--", path]).exit_code == 1
        assert looking.search_files(canary).matches == ()
        assert other.read_file("canary.txt").content == canary
        # A session is of one sandbox; the other's does not open a way.
        crossed = call(
            installation,
            looking.id,
            "read_file",
            {"path": "canary.txt"},
            Coldframe_Session=other.info.session_id,
        )
        assert crossed.status >= 400 and canary.encode() not in crossed.body


@pytest.mark.req("T1.52")
def test_an_agents_token_neither_makes_nor_reaches_a_background_session(
    client: SyncColdframe, background: SyncSandbox, installation: Installation, sandbox: SyncSandbox, agent_id: str
) -> None:
    token = token_of(client, Role.AGENT, agent_id)
    assert rest(installation, "POST", "/v1/sandboxes", {"background": True}, token=token).status in (403, 404)
    for path in ("", "/commands", "/processes", "/contract", "/files/canary.txt"):
        assert rest(installation, "GET", f"/v1/sandboxes/{background.id}{path}", token=token).status in (403, 404)
    for tool, arguments in EVERY_TOOL.items():
        assert call(installation, background.id, tool, arguments, token=token).status in (403, 404)
    listed = rest(installation, "GET", "/v1/sandboxes", token=token).json
    assert {one["sandbox_id"] for one in listed} == {sandbox.id}
    made = rest(installation, "POST", "/v1/sandboxes", {"background": True, "agent_id": agent_id})
    assert made.code == "INVALID_ARGUMENT"


RUNS = 20


@pytest.mark.req("T1.53")
def test_twenty_runs_of_one_job_at_once_write_the_same_name_and_do_not_meet(installation: Installation) -> None:
    job = "until [ -e go ]; do sleep 0.05; done; cat result.txt; ls; exit $(tail -c 3 result.txt)"

    async def run_one(client: Coldframe, number: int, all_wait: asyncio.Barrier) -> str:
        async with await client.sandboxes.create(background=True) as sandbox:
            await sandbox.write_file("result.txt", f"result of run {number:02}\n")
            started = await sandbox.run_command(job, background=True)
            await all_wait.wait()  # all have written, and the job of each runs
            await sandbox.write_file("go", "")
            end = await end_of(sandbox, started.command_id)
            assert end == (number, f"result of run {number:02}\ngo\nresult.txt\n")
            assert (await sandbox.read_file("result.txt")).content == f"result of run {number:02}\n"
            assert [one.path for one in (await sandbox.search_files("result of run")).matches] == ["result.txt"]
            assert (await sandbox.command(started.command_id)).command_id == started.command_id
            await all_wait.wait()
            assert os.path.isdir(folder_of(installation, sandbox.info.session_id))
            await all_wait.wait()  # each saw its folder, and none has been ended yet
        return sandbox.info.session_id

    async def run_all() -> list[str]:
        all_wait = asyncio.Barrier(RUNS)
        async with Coldframe(installation.url, installation.token) as client, asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(run_one(client, number, all_wait)) for number in range(1, RUNS + 1)]
        return [task.result() for task in running]

    sessions = asyncio.run(run_all())
    assert len(set(sessions)) == RUNS
    for session in sessions:
        wait_until_gone(folder_of(installation, session))


async def end_of(sandbox: Sandbox, command_id: str) -> tuple[int | None, str]:
    async for _ in sandbox.follow(command_id):
        pass
    result = (await sandbox.command(command_id)).result
    assert result is not None
    return result.exit_code, (await sandbox.output(command_id)).data.decode()


@pytest.mark.req("T1.54")
def test_it_has_the_six_tools_under_limits_of_its_own(
    governed: Installation, owner: SyncColdframe, box: SyncSandbox
) -> None:
    hold = "import time; held = bytearray(100 << 20); print(len(held) >> 20, flush=True)"
    owner.policy.load("version: 1\nsettings: {limits: {background: {memory_mib: 64, wall_s: 20}}}\n")
    with owner.sandboxes.create(background=True, limits=Limits(cpu_s=2)) as sandbox:
        limits = sandbox.refresh().spec.limits
        assert (limits.memory_mib, limits.wall_s, limits.cpu_s) == (64, 20, 2)
        sandbox.write_file("a.txt", "one\n")
        for tool, arguments in EVERY_TOOL.items():
            assert call(governed, sandbox.id, tool, arguments).status == 200, tool
        assert sandbox.run_command("echo $((6 * 7)); cat a.txt").stdout == "42\none\n"
        ended = sandbox.run_command(["python3", "-c", f"{hold}; time.sleep(60)"])
        assert ended.limit is not None and (ended.limit.kind, ended.limit.limit) == ("memory", 64 << 20)
        ended = sandbox.run_command(["python3", "-c", "while True: pass"])
        assert ended.limit is not None and (ended.limit.kind, ended.limit.limit) == ("cpu", 2.0)
        with pytest.raises(ColdframeError):
            sandbox.run_command("true", timeout_s=21)
        assert box.run_command(["python3", "-c", hold]).stdout == "100\n"  # an agent's are not touched


@pytest.mark.req("T1.54")
def test_rules_hold_it_below_a_label_and_leave_agents_alone(
    governed: Installation, owner: SyncColdframe, box: SyncSandbox
) -> None:
    """The ceiling: what would take the session above it is refused, and so is all else once it is above."""
    owner.policy.load(
        "version: 1\nrules:\n"
        "  - {id: internal, hook: PRE_TOOL_CALL, when: {tool: read_file, path: {glob: 'internal/*'}}, label: INTERNAL}\n"
        "  - {id: output, hook: POST_TOOL_RESPONSE, when: {tool: run_command, output: {contains: crm}}, label: CONFIDENTIAL}\n"
        "  - {id: ceiling, hook: PRE_TOOL_CALL, when: {agent_id: background, taint: {above: INTERNAL}}, then: deny}\n"
    )
    with owner.sandboxes.create(background=True) as sandbox:
        for one in (sandbox, box):
            one.write_file("internal/x", "x")
            assert one.read_file("internal/x").result.taint is Label.INTERNAL
            one.run_command(["printf", "%s%s", "c", "rm"])
            assert owner.sessions.get(one.info.session_id).taint is Label.CONFIDENTIAL
        for tool, arguments in EVERY_TOOL.items():
            refused = call(governed, sandbox.id, tool, arguments)
            assert (refused.code, refused.json["error"]["facts"]["rule"]) == ("DENIED_BY_RULE", "ceiling"), tool
            assert call(governed, box.id, tool, arguments).status == 200, tool


@pytest.mark.req("T1.54")
def test_a_job_carries_a_ceiling_of_its_own_that_rules_may_lower_and_nothing_lifts(
    governed: Installation, owner: SyncColdframe, box: SyncSandbox
) -> None:
    labels = (
        "  - {id: internal, hook: PRE_TOOL_CALL, when: {tool: read_file, path: {glob: 'internal/*'}}, label: INTERNAL}\n"
        "  - {id: secret, hook: PRE_TOOL_CALL, when: {tool: read_file, path: {glob: 'secret/*'}}, label: CONFIDENTIAL}\n"
        "  - {id: output, hook: POST_TOOL_RESPONSE, when: {tool: run_command, output: {contains: crm}}, label: CONFIDENTIAL}\n"
    )
    owner.policy.load("version: 1\nrules:\n" + labels)
    with owner.sandboxes.create(spec=SandboxSpec(background=True, ceiling=Label.INTERNAL)) as sandbox:
        line = next(one for one in sandbox.contract()["permissions"] if one["id"] == "permissions.ceiling")
        assert (line["value"], sandbox.refresh().spec.ceiling) == ("INTERNAL", Label.INTERNAL)
        for path in ("internal/x", "secret/x"):
            sandbox.write_file(path, "x")
        assert sandbox.read_file("internal/x").result.taint is Label.INTERNAL  # as high as it may get
        refused = call(governed, sandbox.id, "read_file", {"path": "secret/x"})
        assert (refused.code, refused.json["error"]["facts"]["rule"]) == ("DENIED_BY_RULE", "floor:ceiling")
        assert owner.sessions.get(sandbox.info.session_id).taint is Label.INTERNAL  # nothing was read
        for tool, arguments in EVERY_TOOL.items():
            assert call(governed, sandbox.id, tool, arguments).status == 200, tool
        withheld = call(governed, sandbox.id, "run_command", {"command": ["printf", "%s%s of people", "c", "rm"]})
        assert withheld.code == "DENIED_BY_RULE" and b"of people" not in withheld.body
        for tool, arguments in EVERY_TOOL.items():
            refused = call(governed, sandbox.id, tool, arguments)
            assert (refused.code, refused.json["error"]["facts"]["rule"]) == ("DENIED_BY_RULE", "floor:ceiling"), tool
        entries = [one for one in all_entries(owner) if one.body.get("sandbox_id") == sandbox.id]
        refusals = [one.body for one in entries if one.kind == "call.refused"]
        assert refusals and all(one["context"]["ceiling"] == "INTERNAL" for one in refusals)
        made = next(one.body for one in entries if one.kind == "sandbox.created")
        assert json.loads(made["spec"])["ceiling"] == "INTERNAL"
        sandbox.terminate(discard=True)
    for tool, arguments in EVERY_TOOL.items():
        assert call(governed, box.id, tool, arguments).status == 200, tool  # others have no ceiling
    lower = "  - {id: lower, hook: PRE_TOOL_CALL, when: {agent_id: background, taint: {above: PUBLIC}}, then: deny}\n"
    owner.policy.load("version: 1\nrules:\n" + labels + lower)
    with owner.sandboxes.create(spec=SandboxSpec(background=True, ceiling=Label.RESTRICTED)) as sandbox:
        sandbox.write_file("internal/x", "x")
        sandbox.read_file("internal/x")
        refused = call(governed, sandbox.id, "read_file", {"path": "internal/x"})
        assert refused.json["error"]["facts"]["rule"] == "lower"  # its own is higher, and lifts nothing
