"""How a command starts, ends and what outlives it: told exactly, within bounds, and never by its own output."""

import signal
import time

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import FileMissing, InvalidArgument, OutsideWorkspace
from coldframe.contract.sandbox import SandboxSpec


@pytest.mark.req("T1.16")
@pytest.mark.parametrize(
    ("command", "code", "number", "ended"),
    [
        ("exit 0", 0, None, "exited"),
        ("exit 1", 1, None, "exited"),
        ("exit 255", 255, None, "exited"),
        ("kill -9 $$", 137, signal.SIGKILL, "signalled"),
        ("kill -SEGV $$", 139, signal.SIGSEGV, "signalled"),
        (["/nonexistent/program"], 127, None, "not_started"),
        (["no-such-program-here"], 127, None, "not_started"),
        (["/home/user"], 126, None, "not_started"),
        ("no-such-program-here", 127, None, "exited"),
    ],
)
def test_exit_status_is_exact(
    sandbox: SyncSandbox, command: str | list[str], code: int, number: int | None, ended: str
) -> None:
    answer = sandbox.run_command(command)
    assert (answer.exit_code, answer.signal, answer.ended) == (code, number, ended)
    if ended == "not_started":
        assert answer.start_error


@pytest.mark.req("T1.16")
def test_a_timeout_keeps_what_was_written(sandbox: SyncSandbox) -> None:
    answer = sandbox.run_command("echo before; sleep 60; echo after", timeout_s=1)
    assert answer.timed_out
    assert answer.ended == "timed_out"
    assert answer.stdout == "before\n"
    assert answer.limit is not None
    assert (answer.limit.kind, answer.limit.limit, answer.limit.unit) == ("wall", 1.0, "s")


@pytest.mark.req("T1.16")
def test_cancelling_ends_the_whole_tree(sandbox: SyncSandbox) -> None:
    started = sandbox.run_command("trap '' TERM; (trap '' TERM; sleep 300) & echo on; wait", background=True)
    assert started.state == "running"
    sandbox.signal(started.command_id, cancel=True)
    *_, last = sandbox.follow(started.command_id)
    assert last.event == "ended"  # type: ignore[union-attr]
    assert last.result.cancelled  # type: ignore[union-attr]
    assert not sandbox.processes()


@pytest.mark.req("T1.32")
def test_commands_start_in_the_workspace_or_below(sandbox: SyncSandbox) -> None:
    sandbox.run_command("mkdir -p 'a b/c'")
    assert sandbox.run_command("pwd").stdout == "/home/user\n"
    assert sandbox.run_command("pwd", cwd="a b/c").stdout == "/home/user/a b/c\n"
    for outside in ("..", "/etc", "a b/../.."):
        with pytest.raises(OutsideWorkspace):
            sandbox.run_command("pwd", cwd=outside)
    with pytest.raises(FileMissing):
        sandbox.run_command("pwd", cwd="nowhere")


@pytest.mark.req("T1.32")
def test_scripts_pipes_globs_and_here_documents_work(sandbox: SyncSandbox) -> None:
    script = "for name in one two; do\n  cat > $name.txt <<EOF\nfile $name\nEOF\ndone\ncat *.txt | sort -r | head -1\n"
    assert sandbox.run_command(script).stdout == "file two\n"
    assert sandbox.run_command("[[ abc == a* ]] && echo ${BASH_VERSION:+bash}").stdout == "bash\n"


@pytest.mark.req("T1.32")
def test_duration_is_the_commands_own(sandbox: SyncSandbox) -> None:
    before = time.monotonic()
    answer = sandbox.run_command("sleep 0.5")
    outside_ms = (time.monotonic() - before) * 1000
    assert answer.duration_ms is not None
    assert 500 <= answer.duration_ms <= outside_ms


BOTH_SLEEP = "until [ $(pgrep -cx sleep) = 3 ]; do :; done"
"""A child of the shell is the shell itself at first. The third is the first process of the box."""


@pytest.mark.req("T1.38")
def test_left_overs_are_adopted_and_listed(sandbox: SyncSandbox) -> None:
    answer = sandbox.run_command(f"sleep 300 & (setsid sleep 301 &) ; {BOTH_SLEEP}; echo started")
    assert answer.exit_code == 0
    assert answer.stdout == "started\n"
    assert sorted(item.command_line for item in answer.leftovers) == ["sleep 300", "sleep 301"]
    assert answer.duration_ms is not None
    assert answer.duration_ms < 250_000
    living = {item.pid for item in sandbox.processes() if item.state != "zombie"}
    assert living == {item.pid for item in answer.leftovers}
    sandbox.signal(answer.command_id, cancel=True)
    deadline = time.monotonic() + 10
    while sandbox.processes():
        assert time.monotonic() < deadline


@pytest.mark.req("T1.38")
def test_left_overs_are_ended_where_the_sandbox_says_so(client: SyncColdframe, agent_id: str) -> None:
    spec = SandboxSpec(agent_id=agent_id, leftovers="end")
    with client.sandboxes.create(spec=spec) as sandbox:
        answer = sandbox.run_command(f"sleep 300 & (setsid sleep 301 &) ; {BOTH_SLEEP}; echo started")
        assert (answer.exit_code, answer.stdout) == (0, "started\n")
        assert answer.leftovers_ended == 2
        assert not sandbox.processes()


@pytest.mark.req("T1.38")
def test_a_background_job_can_be_polled_read_and_stopped(sandbox: SyncSandbox) -> None:
    started = sandbox.run_command("echo one; read line < <(sleep 300); echo two", background=True)
    assert sandbox.command(started.command_id).state == "running"
    deadline = time.monotonic() + 10
    while sandbox.output(started.command_id).data != b"one\n":
        assert time.monotonic() < deadline
    sandbox.signal(started.command_id, signal.SIGKILL)
    *_, last = sandbox.follow(started.command_id)
    assert last.result.ended == "signalled"  # type: ignore[union-attr]
    assert sandbox.command(started.command_id).state == "ended"


@pytest.mark.req("T1.39")
@pytest.mark.without_way_out
def test_the_environment_is_the_published_one(sandbox: SyncSandbox) -> None:
    names = {line.partition("=")[0] for line in (sandbox.run_command("env").stdout or "").splitlines()}
    shell_makes = {"PWD", "SHLVL", "_", "OLDPWD"}
    assert names - shell_makes == {
        "COLDFRAME_COMMAND_ID", "DEBIAN_FRONTEND", "DENO_NO_UPDATE_CHECK", "EDITOR", "GIT_EDITOR", "GIT_PAGER",
        "GIT_TERMINAL_PROMPT", "HOME", "LANG", "LOGNAME", "NO_COLOR", "NPM_CONFIG_UPDATE_NOTIFIER", "PAGER", "PATH",
        "PIP_BREAK_SYSTEM_PACKAGES",
        "PIP_DISABLE_PIP_VERSION_CHECK", "PYTHONDONTWRITEBYTECODE", "SHELL", "TERM", "TMPDIR", "USER",
    }  # fmt: skip


@pytest.mark.req("T1.39")
def test_no_descriptor_and_no_process_of_the_host_is_there(sandbox: SyncSandbox) -> None:
    assert (sandbox.run_command("ls /proc/self/fd").stdout or "").split() == ["0", "1", "2", "3"]
    lines = (sandbox.run_command("ps -eo args --no-headers").stdout or "").splitlines()
    assert [line.split()[0] for line in lines if "ps -eo" not in line] == ["/opt/coldframe/sleep"]
    assert sandbox.run_command("cat /proc/1/environ | tr '\\0' '\\n' | cut -d= -f1 | sort").stdout in ("", "PWD\n")


@pytest.mark.req("T1.39")
def test_variables_of_a_call_reach_that_call_only(sandbox: SyncSandbox) -> None:
    assert sandbox.run_command("echo $GREETING", env={"GREETING": "hello; `world`"}).stdout == "hello; `world`\n"
    assert sandbox.run_command('echo "[$GREETING]"').stdout == "[]\n"
    with pytest.raises(InvalidArgument):
        sandbox.run_command("true", env={"A=B": "x"})


@pytest.mark.req("T1.22")
def test_each_of_fifty_edits_shows_in_the_next_run(sandbox: SyncSandbox) -> None:
    sandbox.write_file("value.py", "VALUE = 0\n")
    sandbox.write_file("show.py", "import value\nprint(value.VALUE)\n")
    for number in range(1, 51):
        sandbox.edit_file("value.py", f"VALUE = {number - 1}\n", f"VALUE = {number}\n")
        assert sandbox.run_command(["python3", "show.py"]).stdout == f"{number}\n"


def test_a_program_that_is_an_argument_list_meets_no_shell(sandbox: SyncSandbox) -> None:
    answer = sandbox.run_command(["printf", "%s|", "$HOME", "a b", "*", ";true"])
    assert answer.stdout == "$HOME|a b|*|;true|"
