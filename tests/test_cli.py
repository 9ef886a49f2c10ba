"""The command line, as a program: bytes exact, exit codes as documented, JSON everywhere, errors that help."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coldframe import __version__ as coldframe_version
from coldframe.cli import connection, running
from coldframe.cli.output import COMMANDS
from coldframe.client.sync import Sandboxes, SyncColdframe, SyncSandbox
from coldframe.contract.command import Ended, OutputChunk, Started
from tests.fronts.served import Served, serve_fake

TIMEOUT_S = 60
needs_machine = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap to build real boxes")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_fake(str(tmp_path_factory.mktemp("data"))) as served:
        yield served


@pytest.fixture
def sandbox(served: Served) -> Iterator[SyncSandbox]:
    with served.sync_client() as client, client.sandboxes.create("builder") as sandbox:
        yield sandbox


def environment(**own: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COLDFRAME_")}
    return kept | own


def coldframe(
    served: Served, *arguments: str, stdin: bytes = b"", token: str | None = None
) -> "subprocess.CompletedProcess[bytes]":
    env = environment(COLDFRAME_URL=served.url, COLDFRAME_TOKEN=token or served.owner_token)
    return subprocess.run(
        [sys.executable, "-m", "coldframe.cli", *arguments],
        input=stdin,
        capture_output=True,
        env=env,
        timeout=TIMEOUT_S,
    )


def test_the_version_is_told_without_a_command_and_without_a_server() -> None:
    command = [sys.executable, "-m", "coldframe.cli", "--version"]
    done = subprocess.run(command, capture_output=True, env=environment(), timeout=TIMEOUT_S)
    assert (done.returncode, done.stdout.decode().strip(), done.stderr) == (0, coldframe_version, b"")


def test_help_is_there_at_once_and_documents_the_exit_codes() -> None:
    command = [sys.executable, "-m", "coldframe.cli", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment())
    assert done.returncode == 0 and "Exit codes" in done.stdout
    imported = subprocess.run(
        [sys.executable, "-c", "import sys, coldframe.cli; print(' '.join(sys.modules))"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    ).stdout.split()
    # What takes long is not loaded; how long it takes is the machine's affair.
    assert not {"pydantic", "starlette", "sqlalchemy", "h11", "uvicorn", "asyncio"} & set(imported)


@pytest.mark.parametrize(
    ("line", "code"), [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -9 $$", 137), ("no-such-program-x", 127)]
)
def test_exec_ends_with_the_code_of_the_command(served: Served, sandbox: SyncSandbox, line: str, code: int) -> None:
    assert coldframe(served, "exec", sandbox.id, "-c", line).returncode == code


def test_output_passes_through_byte_for_byte(served: Served, sandbox: SyncSandbox) -> None:
    data = os.urandom(300_000) + b"\r\n\0\xff"
    sandbox.upload("raw", data)
    done = coldframe(served, "exec", sandbox.id, "--", "sh", "-c", "cat raw; cat raw >&2")
    assert (done.stdout == data, done.stderr == data) == (True, True)
    assert coldframe(served, "exec", sandbox.id, "-i", "--", "cat", stdin=data).stdout == data


def test_run_uses_the_server_and_leaves_no_sandbox(served: Served) -> None:
    done = coldframe(served, "run", "--agent", "passing", "sh", "-c", "echo $0 ran; exit 4")
    assert (done.returncode, done.stdout) == (4, b"sh ran\n")
    states = {one["state"]["state"] for one in json.loads(coldframe(served, "sandbox", "list", "--json").stdout)}
    assert "running" not in states
    kept = coldframe(served, "run", "--keep", "--", "true")
    sandbox_id = kept.stderr.decode().split()[-1]
    assert coldframe(served, "sandbox", "terminate", sandbox_id).returncode == 0


def test_an_interrupt_while_the_sandbox_is_made_leaves_none(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SyncSandbox] = []

    def make_and_press(*given: Any, **named: Any) -> SyncSandbox:
        made.append(create(*given, **named))
        if len(made) == 1:
            raise KeyboardInterrupt
        return made[-1]

    create = Sandboxes.create
    monkeypatch.setattr(Sandboxes, "create", make_and_press)
    monkeypatch.setattr(connection, "connect_if_running", served.sync_client)
    with pytest.raises(KeyboardInterrupt):
        running.run(["true"], keep=True)
    with served.sync_client() as client:
        assert {client.sandboxes.get(one.id).info.state.state for one in made} == {"terminated"}


def test_json_gives_the_whole_result_and_the_code_still_passes(served: Served, sandbox: SyncSandbox) -> None:
    done = coldframe(served, "--json", "exec", sandbox.id, "--", "sh", "-c", "echo out; exit 6")
    result = json.loads(done.stdout)
    assert (done.returncode, result["value"]["stdout"], result["value"]["exit_code"]) == (6, "out\n", 6)
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("arguments", "code", "name"),
    [
        (["exec", "SANDBOX", "-c", "sudo id"], 3, "DENIED_BY_RULE"),
        (["exec", "sbx_none", "--", "true"], 4, "NOT_FOUND"),
        (["exec", "SANDBOX"], 2, "INVALID_ARGUMENT"),
        (["exec", "SANDBOX", "-c", "a", "--", "b"], 2, "INVALID_ARGUMENT"),
        (["exec", "SANDBOX", "-e", "novalue", "--", "b"], 2, "INVALID_ARGUMENT"),
        (["no-such-command"], 2, "INVALID_ARGUMENT"),
        (["sandbox", "show"], 2, "INVALID_ARGUMENT"),
        (["sandbox", "show", "none"], 4, "NOT_FOUND"),
        (["sandbox", "create", "--agent", "Not An Id"], 2, "INVALID_ARGUMENT"),
        (["files", "cat", "SANDBOX", "none"], 4, "FILE_NOT_FOUND"),
        (["files", "cat", "SANDBOX", "../../etc/passwd"], 3, "OUTSIDE_WORKSPACE"),
        (["files", "cat", "SANDBOX", "scratch"], 6, "IS_A_DIRECTORY"),
        (["files", "put", "SANDBOX", "/no/such/file"], 2, "INVALID_ARGUMENT"),
        (["policy", "check", "SANDBOX", "run_command", "{"], 2, "INVALID_ARGUMENT"),
        (["agent", "delete", "builder", "--json"], 2, "INVALID_ARGUMENT"),
        (["token", "revoke", "none"], 4, "NOT_FOUND"),
        (["--url", "http://127.0.0.1:1", "sandbox", "list"], 5, "UNAVAILABLE"),
        (["--token", "cf_wrong", "sandbox", "list"], 3, "UNAUTHENTICATED"),
    ],
)
def test_an_error_has_its_exit_code_a_code_and_a_hint(
    served: Served, sandbox: SyncSandbox, arguments: list[str], code: int, name: str
) -> None:
    arguments = [sandbox.id if one == "SANDBOX" else one for one in arguments]
    plain = coldframe(served, *arguments)
    if "--json" not in arguments:
        assert plain.returncode == code, plain.stderr
        assert f"[{name}]" in plain.stderr.decode() and "hint: " in plain.stderr.decode()
    as_json = coldframe(served, "--json", *arguments)
    assert as_json.returncode == code and as_json.stdout == b""
    error = json.loads(as_json.stderr)["error"]
    assert error["code"] == name and error["hint"]
    assert b"Traceback" not in plain.stderr + as_json.stderr


def test_what_can_be_done_next_is_said_in_commands_that_there_are(served: Served) -> None:
    wrong = coldframe(served, "files", "no-such-command")
    assert b"see `coldframe files --help`" in wrong.stderr
    missing = coldframe(served, "sandbox", "show", "none").stderr.decode()
    assert "next: coldframe sandbox list: " in missing
    for command in COMMANDS.values():
        words = command.partition(" {")[0].split()[1:]
        assert coldframe(served, *words, "--help").returncode == 0, command


def test_a_table_shows_times_to_the_second(served: Served, sandbox: SyncSandbox) -> None:
    table = coldframe(served, "sandbox", "list").stdout.decode()
    created = sandbox.info.created_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    assert re.search(rf"{sandbox.id} .* {created} *$", table, re.MULTILINE)


def test_files_go_in_and_out(served: Served, sandbox: SyncSandbox, tmp_path: Path) -> None:
    data = os.urandom(5_000_000)
    (tmp_path / "local.bin").write_bytes(data)
    assert coldframe(served, "files", "put", sandbox.id, str(tmp_path / "local.bin"), "in/there.bin").returncode == 0
    assert coldframe(served, "files", "cat", sandbox.id, "in/there.bin").stdout == data
    target = tmp_path / "back.bin"
    assert coldframe(served, "files", "get", sandbox.id, "in/there.bin", str(target)).returncode == 0
    assert target.read_bytes() == data
    assert coldframe(served, "files", "put", sandbox.id, "-", "piped", stdin=b"one two").returncode == 0
    assert coldframe(served, "files", "edit", sandbox.id, "piped", "two", "three").returncode == 0
    assert coldframe(served, "files", "search", sandbox.id, "thr.e").stdout == b"piped:1:one three\n"
    assert coldframe(served, "files", "search", sandbox.id, "absent").returncode == 1
    listing = json.loads(coldframe(served, "files", "ls", sandbox.id, "-r", "--json").stdout)
    assert {"in/there.bin", "piped"} <= {entry["path"] for entry in listing}
    assert coldframe(served, "files", "rm", sandbox.id, "piped").returncode == 0
    assert coldframe(served, "files", "cat", sandbox.id, "piped").returncode == 4


@pytest.mark.req("T4.17")
def test_folders_go_in_and_out_and_a_copy_is_resumed(served: Served, sandbox: SyncSandbox, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "run").write_text("#!/bin/sh\n")
    (folder / "sub" / "run").chmod(0o750)
    (folder / "link").symlink_to("sub/run")
    put = coldframe(served, "files", "put", sandbox.id, str(folder), "placed", "--json")
    assert (put.returncode, json.loads(put.stdout)["path"]) == (0, "placed"), put.stderr
    assert coldframe(served, "files", "put", sandbox.id, str(folder), "placed").returncode == 6
    back = tmp_path / "back"
    got = coldframe(served, "files", "get", sandbox.id, "placed", str(back), "--folder")
    assert got.returncode == 0, got.stderr
    assert ((back / "sub" / "run").stat().st_mode & 0o777, os.readlink(back / "link")) == (0o750, "sub/run")
    assert coldframe(served, "files", "get", sandbox.id, "placed", str(back), "--folder").returncode == 6
    assert (
        coldframe(served, "files", "get", sandbox.id, "placed/sub/run", str(tmp_path / "run"), "--resume").returncode
        == 0
    )
    assert (tmp_path / "run").read_text() == "#!/bin/sh\n"
    assert sorted(os.listdir(tmp_path)) == ["back", "folder", "run"]


def test_a_copy_that_fails_leaves_no_file(served: Served, sandbox: SyncSandbox, tmp_path: Path) -> None:
    assert coldframe(served, "files", "get", sandbox.id, "none", str(tmp_path / "x")).returncode == 4
    assert list(tmp_path.iterdir()) == []


def test_hostile_names_do_not_drive_the_terminal(served: Served, sandbox: SyncSandbox) -> None:
    sandbox.write_file("evil\x1b[2J\x07", "")
    shown = coldframe(served, "files", "ls", sandbox.id).stdout
    assert b"\x1b" not in shown and b"\\x1b[2J" in shown


def test_every_view_speaks_json(served: Served, sandbox: SyncSandbox) -> None:
    sandbox.run_command("true")
    for arguments in (
        ["sandbox", "list"],
        ["sandbox", "show", sandbox.id],
        ["sandbox", "report", sandbox.id],
        ["contract", "show", sandbox.id],
        ["sandbox", "allowed", sandbox.id],
        ["sandbox", "contacts", sandbox.id],
        ["sandbox", "processes", sandbox.id],
        ["sandbox", "runtimes", sandbox.id],
        ["ledger", "list"],
        ["ledger", "history", "--sandbox", sandbox.id],
        ["ledger", "verify"],
        ["policy", "show"],
        ["policy", "check", sandbox.id, "run_command", '{"command": "ls"}'],
        ["doctor"],
        ["token", "list"],
        ["agent", "list"],
    ):
        done = coldframe(served, "--json", *arguments)
        assert done.returncode == 0, (arguments, done.stderr)
        json.loads(done.stdout)


@pytest.mark.req("T3.15")
def test_the_contract_of_a_sandbox_is_shown_for_its_id_alone(served: Served, sandbox: SyncSandbox) -> None:
    for options in ([], ["--json"], ["--version", "1"]):
        short = coldframe(served, "contract", sandbox.id, *options)
        assert short.returncode == 0, short.stderr
        shown = coldframe(served, "contract", "show", sandbox.id, *options)
        assert short.stdout.splitlines()[0] == shown.stdout.splitlines()[0]
    assert json.loads(coldframe(served, "--json", "contract", sandbox.id).stdout)["sandbox_id"] == sandbox.id
    assert coldframe(served, "contract", "sbx_0").returncode == 4
    assert coldframe(served, "contract", "shew", sandbox.id).returncode == 2


def test_policy_check_and_load(served: Served, sandbox: SyncSandbox, tmp_path: Path) -> None:
    denied = coldframe(served, "policy", "check", sandbox.id, "run_command", '{"command": "sudo id"}')
    assert denied.returncode == 3 and denied.stdout.startswith(b"deny by ")
    rules = coldframe(served, "policy", "show").stdout
    (tmp_path / "rules.yaml").write_bytes(rules)
    assert coldframe(served, "policy", "validate", str(tmp_path / "rules.yaml")).returncode == 0
    assert coldframe(served, "policy", "load", str(tmp_path / "rules.yaml")).returncode == 0
    (tmp_path / "bad.yaml").write_text("version: 1\nnonsense: 1\n")
    for verb in ("validate", "load"):
        bad = coldframe(served, "--json", "policy", verb, str(tmp_path / "bad.yaml"))
        error = json.loads(bad.stderr)["error"]
        assert (bad.returncode, error["code"], error["facts"]["line"]) == (2, "RULES_INVALID", 2)


def test_a_token_made_here_works_and_its_role_binds(served: Served) -> None:
    made = coldframe(served, "--json", "token", "create", "--role", "viewer", "--name", "look")
    answer = json.loads(made.stdout)
    assert coldframe(served, "sandbox", "list", token=answer["secret"]).returncode == 0
    assert coldframe(served, "sandbox", "create", token=answer["secret"]).returncode == 3
    assert coldframe(served, "token", "revoke", answer["token"]["token_id"]).returncode == 0
    assert coldframe(served, "sandbox", "list", token=answer["secret"]).returncode == 3


def test_a_background_command_answers_with_its_id(served: Served, sandbox: SyncSandbox) -> None:
    started = coldframe(
        served, "exec", sandbox.id, "--background", "-c", "until [ -e go ]; do sleep 0.02; done; exit 8"
    )
    command_id = started.stdout.decode().strip()
    assert sandbox.command(command_id).state == "running"
    sandbox.write_file("go", "")
    last = list(sandbox.follow(command_id))[-1]
    assert isinstance(last, Ended) and last.result.exit_code == 8


@pytest.mark.req("T4.28")
def test_a_pipeline_is_started_from_a_file_and_what_failed_is_run_again(
    served: Served, sandbox: SyncSandbox, tmp_path: Path
) -> None:
    file = tmp_path / "build.yaml"
    file.write_text("steps:\n- {name: build, command: echo x >> built}\n- {name: check, command: test -e mended}\n")
    done = coldframe(served, "pipeline", "start", sandbox.id, str(file), "--wait")
    assert done.returncode == 1
    assert b"1 of 2 succeeded" in done.stdout
    pipeline_id = sandbox.pipelines()[0].pipeline_id
    assert f"next: coldframe pipeline rerun {sandbox.id} {pipeline_id}".encode() in done.stdout
    sandbox.write_file("mended", "")
    again = coldframe(served, "pipeline", "rerun", sandbox.id, pipeline_id, "--wait", "--json")
    assert again.returncode == 0
    assert [(one["name"], one["attempt"]) for one in json.loads(again.stdout)["steps"]] == [("build", 1), ("check", 2)]
    assert sandbox.read_file("built").content == "x\n"
    assert pipeline_id.encode() in coldframe(served, "pipeline", "list", sandbox.id).stdout
    file.write_text("steps:\n- {name: build}\n")
    wrong = coldframe(served, "pipeline", "start", sandbox.id, str(file))
    assert wrong.returncode == 2
    assert b"steps.0.command" in wrong.stderr


@pytest.mark.req("T3.77")
def test_a_build_is_started_followed_read_made_again_and_compared(
    served: Served, sandbox: SyncSandbox, tmp_path: Path
) -> None:
    file = tmp_path / "build.yaml"
    file.write_text("phases:\n- {name: make, command: 'echo making; echo made > out.txt'}\nartifacts: [out.txt]\n")
    done = coldframe(served, "build", "start", sandbox.id, "--file", str(file), "--wait", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    build_id = told["build_id"]
    assert [one["path"] for one in told["artifacts"]] == ["out.txt"]
    assert coldframe(served, "build", "log", build_id).stdout.endswith(b"making\n")
    assert coldframe(served, "build", "log", build_id, "--phase", "make").stdout == b"making\n"
    again = coldframe(served, "build", "rebuild", build_id, "--wait", "--json")
    assert again.returncode == 0, again.stderr
    same = coldframe(served, "build", "compare", build_id, json.loads(again.stdout)["build_id"])
    assert same.stdout.splitlines() == [b"differs: nothing", b"reproduced: yes, byte for byte"]
    failed = coldframe(served, "build", "start", sandbox.id, "echo why; exit 4", "true", "--wait")
    assert failed.returncode == 1 and b"ended with exit code 4" in failed.stdout
    listed = coldframe(served, "build", "list", "--sandbox", sandbox.id).stdout
    assert build_id.encode() in listed and b"failed" in listed
    assert coldframe(served, "build", "start", sandbox.id).returncode == 2


def hear_interrupts() -> None:
    """In the child: as in a terminal. Whoever runs the tests in the background has interrupts ignored, by inheritance."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupt_ends_the_command(served: Served, sandbox: SyncSandbox) -> None:
    env = environment(COLDFRAME_URL=served.url, COLDFRAME_TOKEN=served.owner_token)
    command = [sys.executable, "-m", "coldframe.cli", "exec", sandbox.id, "-c", "echo ready; sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env, preexec_fn=hear_interrupts) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) >= 128
    assert sandbox.commands()[-1].state == "ended"


def test_an_interrupt_before_the_command_began_is_kept_for_it() -> None:
    signalled = asyncio.Event()

    async def stream(*_: object) -> AsyncIterator[Started]:
        signal.raise_signal(signal.SIGTERM)
        for _turn in range(10):  # turns of the loop, in which it hears of the signal
            await asyncio.sleep(0)
        yield Started(command_id="cmd_1", pid=2, at=datetime.now(UTC))
        async with asyncio.timeout(20):
            await signalled.wait()

    async def told(*given: object, cancel: bool) -> None:
        assert (given[2], cancel) == ("cmd_1", True)
        signalled.set()

    control = SimpleNamespace(gate=SimpleNamespace(stream=stream), outputs=SimpleNamespace(signal=told))
    asyncio.run(running._print_embedded(cast("Any", control), cast("Any", None), "sbx_1", {}))
    assert signalled.is_set()


@pytest.fixture
def data_dir() -> Iterator[str]:
    """Below /tmp and open to pass, since boxes run as other users when the tests run as root."""
    with tempfile.TemporaryDirectory(prefix="cf-cli-", dir="/tmp") as directory:
        os.chmod(directory, 0o755)
        yield os.path.join(directory, "data")


def alone(data_dir: str, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-m", "coldframe.cli", "--data-dir", data_dir, *arguments]
    env = environment(XDG_CONFIG_HOME=data_dir + "-config")
    return subprocess.run(command, capture_output=True, env=env, timeout=TIMEOUT_S)


@needs_machine
def test_run_works_with_no_server_and_the_ledger_is_there_afterwards(data_dir: str) -> None:
    done = alone(data_dir, "run", "--agent", "solo", "--", "sh", "-c", "echo out; echo err >&2; echo kept > f; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    assert alone(data_dir, "run", "--agent", "solo", "--", "cat", "f").stdout == b"kept\n"
    refused = alone(data_dir, "run", "-c", "sudo id")
    assert refused.returncode == 3 and b"DENIED_BY_RULE" in refused.stderr
    assert alone(data_dir, "run", "--keep", "--", "true").returncode == 5
    assert alone(data_dir, "ledger", "verify").stdout.startswith(b"intact")
    history = json.loads(alone(data_dir, "--json", "ledger", "history").stdout)
    assert [entry["kind"] for entry in history].count("call.ended") == 2
    assert len(alone(data_dir, "ledger", "export").stdout.splitlines()) > 4


def test_what_needs_a_server_or_an_installation_says_so(data_dir: str) -> None:
    for arguments, code in ((["sandbox", "list"], 5), (["ledger", "verify"], 4), (["ledger", "list"], 4)):
        done = alone(data_dir, *arguments)
        assert done.returncode == code and b"coldframe up" in done.stderr


@contextmanager
def up(data_dir: str) -> Iterator[tuple["subprocess.Popen[bytes]", dict[str, Any]]]:
    """`coldframe up`, ended in order afterwards."""
    command = [sys.executable, "-m", "coldframe.cli", "--json", "up", "--data-dir", data_dir, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                assert process.wait(TIMEOUT_S) == 0


@needs_machine
def test_up_serves_until_it_is_told_to_stop_and_a_second_one_is_refused(data_dir: str) -> None:
    with up(data_dir) as (_, running):
        assert running["url"].startswith("http://127.0.0.1:")
        if os.geteuid() == 0:
            assert os.stat(f"/proc/{running['pid']}").st_uid != 0
            status = Path(f"/proc/{running['pid']}/status").read_text()
            assert "CapEff:\t0000000000000000" in status and "Groups:\t \n" in status
        assert os.stat(running["client_file"]).st_mode & 0o077 == 0
        assert alone(data_dir, "run", "--", "echo", "served").stdout == b"served\n"
        second = alone(data_dir, "--json", "up", "--port", "0")
        assert second.returncode == 6 and json.loads(second.stderr)["error"]["code"] == "WRONG_STATE"
        assert alone(data_dir, "run", "--", "true").returncode == 0
    for pid in (running["pid"], running["host_pid"]):
        assert not os.path.exists(f"/proc/{pid}")


@needs_machine
def test_killing_up_or_the_host_daemon_ends_no_command(data_dir: str) -> None:
    with up(data_dir) as (process, running):
        sandbox_id = alone(data_dir, "sandbox", "create", "--agent", "tough").stdout.decode().strip()
        line = "echo one; until [ -e go ]; do sleep 0.02; done; echo two; exit 9"
        command_id = alone(data_dir, "exec", sandbox_id, "--background", "-c", line).stdout.decode().strip()
        os.kill(running["host_pid"], signal.SIGKILL)
        process.kill()
        process.wait(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    while os.path.exists(f"/proc/{running['pid']}"):
        assert time.monotonic() < deadline, "the server outlived its parent"
        time.sleep(0.02)
    with up(data_dir) as (_, running):
        content = json.loads(Path(running["client_file"]).read_text())
        with SyncColdframe(content["url"], content["token"]) as client:
            sandbox = client.sandboxes.get(sandbox_id)
            sandbox.write_file("go", "")
            events = list(sandbox.follow(command_id))
            assert b"".join(event.data for event in events if isinstance(event, OutputChunk)) == b"one\ntwo\n"
            assert isinstance(events[-1], Ended) and events[-1].result.exit_code == 9
            sandbox.terminate()
            assert client.ledger.verify().intact


@pytest.mark.req("T4.61", "T4.62")
def test_a_sandbox_is_paused_stopped_and_ended_from_the_command_line(served: Served) -> None:
    def told(*arguments: str) -> dict[str, Any]:
        done = coldframe(served, "--json", "sandbox", *arguments)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    info = told("create", "--agent", "resting", "--idle-timeout-s", "3600", "--on-timeout", "pause")
    sandbox_id = info["sandbox_id"]
    assert (info["spec"]["on_timeout"], info["expires_at"] is None) == ("pause", False)
    for command, state in (("pause", "paused"), ("resume", "running"), ("stop", "stopped"), ("start", "running")):
        assert told(command, sandbox_id)["state"]["state"] == state
    assert told("pause", sandbox_id, "--kind", "files")["state"]["state"] == "stopped"
    listed = json.loads(coldframe(served, "--json", "sandbox", "list", "--state", "stopped", "--limit", "1").stdout)
    assert [one["sandbox_id"] for one in listed] == [sandbox_id]
    refused = coldframe(served, "exec", sandbox_id, "--", "true")
    assert f"next: coldframe sandbox start {sandbox_id}: " in refused.stderr.decode()
    told("resume", sandbox_id)
    before = told("show", sandbox_id)["expires_at"]
    assert told("extend", sandbox_id, "--for", "7200")["sandbox_id"] == sandbox_id
    assert told("show", sandbox_id)["expires_at"] > before
    tried = coldframe(served, "sandbox", "terminate", sandbox_id, "--dry-run").stdout.decode()
    assert "is running" in tried and "would lose" in tried
    assert told("terminate", sandbox_id)["state"]["state"] == "terminated"
    assert coldframe(served, "sandbox", "pause", sandbox_id, "--kind", "none").returncode == 2


@needs_machine
def test_an_interrupt_ends_an_embedded_command_and_leaves_nothing(data_dir: str) -> None:
    command = [sys.executable, "-m", "coldframe.cli", "--data-dir", data_dir, "run", "-c", "echo ready; sleep 60"]
    env = environment(XDG_CONFIG_HOME=data_dir + "-config")
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env, preexec_fn=hear_interrupts) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) >= 128
    assert os.listdir(os.path.join(data_dir, "background")) == []


def test_options_of_the_whole_program_may_stand_anywhere_before_the_command(tmp_path: Path) -> None:
    place = tmp_path / "elsewhere"
    for line in (["ledger", "verify", "--data-dir", str(place)], [f"--data-dir={place}", "ledger", "verify"]):
        done = subprocess.run(
            [sys.executable, "-m", "coldframe.cli", *line], capture_output=True, text=True, check=False
        )
        assert done.returncode == 4
        assert str(place) in done.stderr
