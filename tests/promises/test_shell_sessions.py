"""A named shell session goes on where its last command left it; every command of it has its own exit code, output and end."""

from collections.abc import Callable

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.command import ShellSession
from coldframe.contract.errors import Conflict, DeniedByRule, InvalidArgument, NotFound
from tests.installation import Installation, wait_until
from tests.promises.governed import NO_RULES

Run = Callable[..., tuple[str | None, int | None, bool]]


@pytest.fixture
def run(sandbox: SyncSandbox) -> Run:
    """Output, exit code, and whether the session was kept, of a line in the session `build`."""

    def run(line: str, **arguments: str | dict[str, str]) -> tuple[str | None, int | None, bool]:
        done = sandbox.run_command(line, shell_session="build", **arguments)  # type: ignore[arg-type]
        assert isinstance(done.shell_session, ShellSession)
        assert done.shell_session.name == "build"
        return (done.stdout or "") + (done.stderr or ""), done.exit_code, done.shell_session.kept

    return run


@pytest.mark.req("T3.38")
def test_an_environment_is_kept_between_exchanges_and_without_a_session_it_is_not(
    installation: Installation, client: SyncColdframe, agent_id: str
) -> None:
    sandbox = client.sandboxes.create(agent_id)
    try:
        sandbox.run_command("mkdir work; cd work; export TOKEN=abc; echo data > file", shell_session="build")
        server = sandbox.start("echo $$; exec sleep 600")
        wait_until(server.output, "it runs")
        with SyncColdframe(installation.url, installation.token) as later:
            again = later.sandboxes.get(sandbox.id)
            assert again.run_command("pwd; echo $TOKEN; cat file", shell_session="build").stdout == (
                "/home/user/work\nabc\ndata\n"
            )
            assert again.run_command("pwd; echo -$TOKEN-").stdout == "/home/user\n--\n"
            assert [one.pid for one in again.processes()] == [int(server.output())]
            assert [one.name for one in again.shells()] == ["build"]
    finally:
        sandbox.terminate()


def test_directory_variables_functions_aliases_and_options_go_on(run: Run) -> None:
    first = (
        'mkdir "d  d"; cd "d  d"; A="x y\nz"; B=(1 "2  3"); declare -A C=([k]="v w"); readonly R=5; export E=e;'
        ' f() { echo "f $1 $A"; }; export -f f; alias say="echo said"; shopt -s expand_aliases; set -o pipefail; umask 027'
    )
    assert run(first) == ("", 0, True)
    for _ in range(2):
        out, code, kept = run('pwd; declare -p A B C R E; bash -c "f sub"; say; set -o | grep pipefail; umask; exit 7')
        assert out == (
            "/home/user/d  d\n"
            "declare -- A=$'x y\\nz'\n"
            'declare -a B=([0]="1" [1]="2  3")\n'
            'declare -A C=([k]="v w" )\n'
            'declare -r R="5"\n'
            'declare -x E="e"\n'
            "f sub \nsaid\npipefail       \ton\n0027\n"
        )
        assert (code, kept) == (7, True)


def test_whatever_a_command_does_to_its_shell_the_next_one_runs_and_is_told_the_truth(run: Run) -> None:
    assert run("A=1") == ("", 0, True)
    assert run("A=2; exec true") == ("", 0, False)
    assert run("echo $A; A=3; kill -9 $$") == ("1\n", 137, False)
    assert run("trap 'echo bye' EXIT; A=4") == ("bye\n", 0, False)
    assert run("A=5; set -e; false; echo never") == ("", 1, True)
    assert run("echo $A; false; echo never") == ("5\n", 1, True)
    assert run("set +e; exit 3") == ("", 3, True)
    assert run("set -x; A=6") == ("+ A=6\n", 0, True)
    assert run("{ set +x; } 2>/dev/null; echo $A") == ("6\n", 0, True)
    out, code, kept = run("echo 'unfinished")
    assert (code, kept) == (2, True)
    assert "unexpected EOF" in str(out)
    assert run("echo $A $BASH_ENV; ls -d /tmp/.c* | wc -l; declare -F") == (
        "6\n1\ndeclare -f __coldframe_keep\ndeclare -f __coldframe_lost\n",
        0,
        True,
    )


def test_what_a_call_names_goes_before_what_the_session_holds(run: Run) -> None:
    run("mkdir a b; cd a; export V=held")
    assert run("pwd; echo $V", cwd="b", env={"V": "given $x"}) == ("/home/user/b\ngiven $x\n", 0, True)
    assert run("pwd; echo $V") == ("/home/user/b\ngiven $x\n", 0, True)
    assert run("pwd", cwd="/home/user") == ("/home/user\n", 0, True)
    run("cd b; W=1; rmdir ../b")
    out, code, kept = run("echo never")
    assert (code, kept) == (126, False)
    assert "/home/user/b is gone" in str(out)
    assert run("echo $W", cwd="a") == ("1\n", 0, True)


def test_a_session_runs_one_command_at_a_time_and_can_be_ended(sandbox: SyncSandbox) -> None:
    job = sandbox.start("A=1; read go; A=2", shell_session="one", stdin_open=True)
    with pytest.raises(Conflict):
        sandbox.run_command("true", shell_session="one")
    with pytest.raises(Conflict):
        sandbox.end_shell("one")
    assert sandbox.run_command("echo $A", shell_session="other").stdout == "\n"
    assert {one.name: one.command_id for one in sandbox.shells()} == {"one": job.id, "other": None}
    job.send_stdin("go\n")
    result = job.wait().result
    assert result is not None
    assert result.shell_session == ShellSession(name="one", kept=True)
    assert sandbox.run_command("echo $A", shell_session="one").stdout == "2\n"
    sandbox.end_shell("one")
    assert sandbox.run_command("echo -$A-", shell_session="one").stdout == "--\n"
    with pytest.raises(NotFound):
        sandbox.end_shell("never")
    for command, name in ((["true"], "one"), ("true", "../one"), ("true", "x" * 65)):
        with pytest.raises(InvalidArgument):
            sandbox.run_command(command, shell_session=name)
    for number in range(14):
        sandbox.run_command("true", shell_session=f"n{number}")
    with pytest.raises(Conflict, match="16"):
        sandbox.run_command("true", shell_session="seventeenth")


def test_options_are_kept_whether_a_new_bash_has_them_or_not(run: Run) -> None:
    assert run("set +B -u -e; shopt -s extglob globstar; shopt -u sourcepath; f() { false; echo in f; }") == (
        "",
        0,
        True,
    )
    look = "echo $- {a,b}; shopt extglob globstar sourcepath | tr -s ' \\t\\n' ' '; declare -F f; declare -Fx"
    seen = "ehuc {a,b}\nextglob on globstar on sourcepath off f\n"
    assert run(look) == (seen, 0, True)
    assert run(look) == (seen, 0, True)
    assert run("f; echo never") == ("", 1, True)
    assert run("set -B +u +e; shopt -u extglob globstar; shopt -s sourcepath; f") == ("in f\n", 0, True)
    assert run("echo $- {a,b}; shopt extglob sourcepath | tr -s ' \\t\\n' ' '") == (
        "hBc a b\nextglob off sourcepath on ",
        0,
        True,
    )


def test_a_line_of_a_session_takes_no_process_but_its_own(run: Run) -> None:
    run("A=1; f() { :; }")
    first = int(str(run("echo $$")[0]))
    assert [run("echo $$")[0] for _ in range(2)] == [f"{first + 1}\n", f"{first + 2}\n"]


@pytest.mark.parametrize("settings", ["strict_parsing: true", "allow_programs: [ls]"])
def test_where_only_what_can_be_read_may_run_a_session_may_not(
    owner: SyncColdframe, box: SyncSandbox, settings: str
) -> None:
    """What an earlier command defined may be what a word means: then its text does not say what runs."""
    box.run_command("ls() { true; }", shell_session="s")
    owner.policy.load(f"version: 1\nsettings: {{{settings}}}\n")
    assert box.run_command("ls").exit_code == 0
    with pytest.raises(DeniedByRule):
        box.run_command("ls", shell_session="s")
    owner.policy.load(NO_RULES)


def test_a_session_is_used_from_the_command_line(installation: Installation, sandbox: SyncSandbox) -> None:
    def cli(*arguments: str) -> str:
        done = installation.cli(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    cli("exec", sandbox.id, "--shell-session", "s", "-c", "A=1")
    assert cli("exec", sandbox.id, "--shell-session", "s", "-c", "echo $A") == "1\n"
    assert "s" in cli("sandbox", "shells", sandbox.id)
    cli("sandbox", "end-shell", sandbox.id, "s")
    assert cli("sandbox", "shells", sandbox.id) == "no shell sessions\n"
