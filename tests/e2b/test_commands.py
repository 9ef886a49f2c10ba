"""Commands through the official SDK: each is a command of ours, judged and recorded, and nothing of it is lost when a client
gives up."""

import hashlib
import threading

import pytest
from e2b import CommandExitException, NotFoundException, Sandbox, SandboxException, TimeoutException
from e2b.exceptions import AuthenticationException, InvalidArgumentException

from tests.e2b.real import RealEdge
from tests.installation import wait_until

pytestmark = pytest.mark.req("T4.83")


def test_output_exit_codes_and_streams_are_the_programs_own(box: Sandbox) -> None:
    done = box.commands.run("echo out; echo err >&2")
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 0)
    with pytest.raises(CommandExitException) as failed:
        box.commands.run("echo before; exit 7")
    assert (failed.value.exit_code, failed.value.stdout) == (7, "before\n")
    seen: list[str] = []
    box.commands.run("echo one; echo two >&2", on_stdout=seen.append, on_stderr=seen.append)
    assert sorted(seen) == ["one\n", "two\n"]


def test_output_of_any_size_is_complete(box: Sandbox) -> None:
    done = box.commands.run("seq 1000000", timeout=60)
    assert (
        hashlib.sha256(done.stdout.encode()).hexdigest()
        == hashlib.sha256("".join(f"{n}\n" for n in range(1, 1_000_001)).encode()).hexdigest()
    )


def test_a_command_begins_where_and_with_what_it_was_told(box: Sandbox) -> None:
    assert box.commands.run("pwd").stdout == "/home/user\n"
    assert box.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    box.files.make_dir("deep/er")
    assert box.commands.run("pwd; echo $A", cwd="deep/er", envs={"A": "1 2"}).stdout == "/home/user/deep/er\n1 2\n"
    assert box.commands.run("pwd", cwd="~/deep").stdout == "/home/user/deep\n"
    for cwd in ("/nowhere", "nowhere"):
        with pytest.raises(InvalidArgumentException, match=r"cwd '.*nowhere' does not exist"):
            box.commands.run("pwd", cwd=cwd)


def test_users_that_are_not_there_are_told_apart(box: Sandbox) -> None:
    assert box.commands.run("id -un", user="user").stdout == "user\n"
    with pytest.raises(AuthenticationException, match="invalid username"):
        box.commands.run("id", user="mallory")
    with pytest.raises(SandboxException, match="no root in a sandbox"):
        box.commands.run("id", user="root")


def test_a_process_is_listed_followed_and_killed_by_its_number(box: Sandbox) -> None:
    one = box.commands.run("echo begun; exec sleep 600", background=True)
    two = box.commands.run("exec sleep 600", background=True, envs={"A": "1"})
    listed = {process.pid: process for process in box.commands.list()}
    assert {one.pid, two.pid} <= set(listed)
    assert listed[two.pid].args == ["-l", "-c", "exec sleep 600"]
    assert listed[two.pid].envs == {"A": "1"}
    assert box.commands.run(f"ps -o args= -p {one.pid}").stdout == "sleep 600\n", "the number is that inside the box"
    assert box.commands.kill(one.pid)
    with pytest.raises(CommandExitException) as killed:
        one.wait()
    assert (killed.value.exit_code, killed.value.error) == (-1, "signal: killed")
    assert one.pid not in {process.pid for process in box.commands.list()}
    assert not box.commands.kill(one.pid)
    assert not box.commands.kill(999_999)
    with pytest.raises(NotFoundException):
        box.commands.connect(999_999)


def test_a_client_that_gives_up_ends_nothing_and_misses_nothing(box: Sandbox) -> None:
    """The stream of a background command ends after a minute in SDKs; here with its patience of a second."""
    line = "echo first; while ! [ -e go ]; do sleep 0.05; done; echo second"
    handle = box.commands.run(line, background=True, timeout=1)
    seen: list[str] = []
    with pytest.raises(TimeoutException):
        handle.wait(on_stdout=seen.append)
    assert seen == ["first\n"]
    assert handle.pid in {process.pid for process in box.commands.list()}, "it was ended with its stream"
    box.files.write("go", "")
    wait_until(lambda: handle.pid not in {process.pid for process in box.commands.list()}, "it has ended")
    done = box.commands.connect(handle.pid).wait()
    assert (done.stdout, done.exit_code) == ("second\n", 0), "what nobody had seen is told, and nothing twice"


def test_two_who_follow_one_process_both_see_it(box: Sandbox) -> None:
    first = box.commands.run("while ! [ -e go ]; do sleep 0.05; done; echo seen", background=True)
    second = box.commands.connect(first.pid)
    results: list[str] = []
    waiting = threading.Thread(target=lambda: results.append(second.wait().stdout))
    waiting.start()
    box.files.write("go", "")
    results.append(first.wait().stdout)
    waiting.join(30)
    assert results == ["seen\n", "seen\n"]


def test_input_is_passed_on_in_order_until_it_is_closed(box: Sandbox) -> None:
    cat = box.commands.run("sha256sum; echo done", background=True, stdin=True)
    data = bytes(range(256)) * 4096
    for at in range(0, len(data), 300_000):
        box.commands.send_stdin(cat.pid, data[at : at + 300_000])
    box.commands.close_stdin(cat.pid)
    done = cat.wait()
    assert done.stdout == f"{hashlib.sha256(data).hexdigest()}  -\ndone\n"
    with pytest.raises(SandboxException):
        box.commands.send_stdin(cat.pid, "late")


def test_what_a_command_leaves_running_holds_nobody(box: Sandbox) -> None:
    """A server that inherits the output of its starter is what hangs a stream elsewhere."""
    done = box.commands.run("(while :; do sleep 1; done) & echo $!", timeout=20)
    assert box.commands.run(f"kill -0 {done.stdout.strip()} && echo runs").stdout == "runs\n"


def test_bytes_that_are_no_text_and_a_lot_of_signs_arrive(box: Sandbox) -> None:
    assert box.commands.run(r"printf 'a\xe2b'").stdout == "a�b"
    text = "'\"$`\\!*?[]{}~;&|<>\n\t é漢😀"
    assert box.commands.run('printf %s "$T"', envs={"T": text}).stdout == text


@pytest.mark.req("T1.78")
def test_each_command_is_judged_once_with_what_its_shell_would_start(real: RealEdge, box: Sandbox) -> None:
    lines = ["true", "cat /etc/hostname | wc -c", "env A=1 sh -c 'ls -d /tmp'", "printf x > out"]
    for line in lines:
        box.commands.run(line, cwd="/tmp")
    with real.client() as client:
        entries = client.ledger.entries(kinds=["call.started"], sandbox_id=f"sbx_{box.sandbox_id}")
    begun = [entry.body for entry in entries if entry.body["tool"] == "run_command"]
    assert [body["argv"] for body in begun] == [["/bin/bash", "-l", "-c", line] for line in lines]
    for body in begun:
        context = body["context"]
        assert body["caller"].startswith("e2b:tok_")
        assert (context["cwd"], context["role"], context["taint"]) == ("/tmp", "owner", "PUBLIC")
        assert context["session_id"] == body["session_id"]
    programs = [{one["name"] for one in body["context"]["reading"]["programs"]} for body in begun]
    assert {"cat", "wc"} <= programs[1]
    assert {"env", "sh", "ls"} <= programs[2]


@pytest.mark.req("T1.80")
def test_what_is_denied_is_refused_with_the_reason_before_it_starts(box: Sandbox) -> None:
    with pytest.raises(SandboxException, match="`sudo` asks for privileges"):
        box.commands.run("touch begun; sudo id")
    assert not box.files.exists("begun")
    with pytest.raises(SandboxException, match="`sudo` asks for privileges"):
        box.commands.run("bash -c 'echo x | sudo tee y'", background=True)
