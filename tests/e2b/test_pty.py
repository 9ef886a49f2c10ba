"""Terminals through the official SDK."""

import pytest
from e2b import CommandExitException, PtySize, Sandbox

pytestmark = pytest.mark.req("T4.83")


def test_a_terminal_is_one_with_a_size_that_changes(box: Sandbox) -> None:
    terminal = box.pty.create(PtySize(rows=24, cols=80), cwd="/tmp", envs={"A": "set"})
    assert terminal.pid in {process.pid for process in box.commands.list()}
    box.pty.resize(terminal.pid, PtySize(rows=30, cols=100))
    box.pty.send_stdin(terminal.pid, b"tty -s && echo is_$A; stty size; pwd; exit 3\n")
    seen: list[bytes] = []
    with pytest.raises(Exception, match="exited with code 3"):
        terminal.wait(on_pty=seen.append)
    text = b"".join(seen).decode()
    assert "is_set" in text
    assert "30 100" in text
    assert "/tmp" in text


def test_a_terminal_goes_on_without_whoever_made_it(box: Sandbox) -> None:
    terminal = box.pty.create(PtySize(rows=24, cols=80))
    terminal.disconnect()
    box.pty.send_stdin(terminal.pid, b"echo mark_$((40 + 2))\n")
    again = box.pty.connect(terminal.pid)
    box.pty.send_stdin(terminal.pid, b"exit\n")
    seen: list[bytes] = []
    assert again.wait(on_pty=seen.append).exit_code == 0
    assert b"mark_42" in b"".join(seen)


def test_a_terminal_is_killed_once(box: Sandbox) -> None:
    terminal = box.pty.create(PtySize(rows=24, cols=80))
    assert box.pty.kill(terminal.pid)
    assert not box.pty.kill(terminal.pid)
    with pytest.raises(CommandExitException) as ended:
        box.pty.connect(terminal.pid).wait()
    assert ended.value.exit_code == -1, "how it ended stays known"
