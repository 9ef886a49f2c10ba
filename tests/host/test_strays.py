"""What bubblewrap left half built of a dead keeper's box is found whoever's child it is, and nothing of anybody else's."""

import contextlib
import os
import secrets
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldframe.host import strays
from coldframe.host.birth import KEEPER_NAME
from coldframe.host.isolation import namespaces
from coldframe.host.machine import Machine
from coldframe.host.processes import process_start
from coldframe.host.strays import kill_strays, mark_of
from tests.host.boxes import become_ordinary
from tests.host.forked import in_child, wait_until
from tests.host.machines import as_root_and_ordinary, needs_bubblewrap, new_box, on_a_machine

pytestmark = needs_bubblewrap
_made: list[int] = []
"""By the present test: a process that is left here would wait for ever."""


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    while _made:
        with contextlib.suppress(ProcessLookupError):
            os.kill(_made.pop(), signal.SIGKILL)


def _children_of(pid: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parent = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if int(parent) == pid:
                found.append(int(entry))
    return found


def _leave_behind(name: str, *, own_session: bool = True) -> int:
    """A first process that waits for ever: bubblewrap is held just before it tells it to go on, and killed there.

    *name* is what bubblewrap calls itself. Its keeper, with a session of its own or without, ends at once.
    """

    def keeper() -> int:
        become_ordinary()
        if own_session:
            os.setsid()
        _, full = os.pipe()
        os.set_blocking(full, False)
        try:
            while True:
                os.write(full, bytes(4096))
        except BlockingIOError:
            os.set_blocking(full, True)
        os.set_inheritable(full, True)
        line = [name, "--unshare-all", "--die-with-parent", "--info-fd", str(full), "--ro-bind", "/", "/", "true"]
        bwrap = os.posix_spawn(namespaces.BWRAP, line, {})
        wait_until(lambda: bool(_children_of(bwrap)))
        first = _children_of(bwrap)[0]
        os.kill(bwrap, signal.SIGKILL)
        os.waitpid(bwrap, 0)
        return first

    first = in_child(keeper)
    _made.append(first)
    assert process_start(first) is not None
    return first


def test_a_stray_is_killed_and_no_bubblewrap_of_somebody_else() -> None:
    mark = mark_of(secrets.token_hex(6))
    left = {_leave_behind(namespaces.marked_name(mark)) for _ in range(2)}
    others = [
        _leave_behind("bwrap"),
        _leave_behind(namespaces.marked_name(mark_of("another"))),
        _leave_behind(namespaces.marked_name(mark), own_session=False),  # somebody who lives started it
    ]
    assert set(kill_strays(mark)) == left
    assert [process_start(pid) for pid in left] == [None, None]
    assert None not in [process_start(pid) for pid in others]
    assert kill_strays(mark) == []


def _forge(name: str) -> int:
    """A process that calls itself *name*, in a session whose leader is gone."""

    def leader() -> int:
        os.setsid()
        return os.posix_spawn(namespaces.SLEEP, [name, "1000"], {})

    forged = in_child(leader)
    _made.append(forged)
    wait_until(lambda: Path("/proc", str(forged), "cmdline").read_bytes() != b"")  # its exec has come so far
    return forged


def _leave_fork(mark: str, name: str) -> int:
    """A fork that has started no program yet, called *name* by the kernel, in a session whose leader is gone."""
    program = f"import os, signal; open('/proc/self/comm', 'w').write({name!r}); os.write(1, b'.'); signal.pause()"

    def leader() -> int:
        os.setsid()
        ready, telling = os.pipe()
        line = [sys.executable, "-I", "-S", "-c", program, mark]
        left = os.posix_spawn(sys.executable, line, {}, file_actions=[(os.POSIX_SPAWN_DUP2, telling, 1)])
        os.read(ready, 1)
        return left

    left = in_child(leader)
    _made.append(left)
    return left


def test_a_fork_of_a_dead_keeper_is_killed_and_one_of_a_dead_zygote_may_become_a_keeper() -> None:
    """That one has the zygote's session still: it leaves it in a moment, and what it builds may be wanted."""
    mark = mark_of(secrets.token_hex(6))
    newborn, left = _leave_fork(mark, "python3"), _leave_fork(mark, KEEPER_NAME)
    assert kill_strays(mark) == [left]
    assert process_start(newborn) is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_the_mark_in_the_name_of_another_users_process_stops_nobody() -> None:
    """Every user of the machine can read it there."""
    mark = mark_of(secrets.token_hex(6))

    def kill_as_ordinary() -> list[int]:
        become_ordinary()
        return kill_strays(mark)

    forged = _forge(namespaces.marked_name(mark))
    stray = _leave_behind(namespaces.marked_name(mark))
    assert in_child(kill_as_ordinary) == [stray]
    assert process_start(forged) is not None


def test_who_makes_such_processes_for_ever_does_not_hold_us_up_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = mark_of(secrets.token_hex(6))
    made: list[int] = []
    looking = strays._strays

    def another(mark: str) -> list[int]:
        made.append(_forge(namespaces.marked_name(mark)))
        return looking(mark)

    monkeypatch.setattr(strays, "_strays", another)
    monkeypatch.setattr(strays, "MOST_LOOKS", 5)
    assert kill_strays(mark) == made
    assert len(made) == 5


@as_root_and_ordinary
def test_a_stray_goes_with_its_zygote_and_with_a_sweep_and_a_box_that_lives_stays(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await new_box(machine)
        stray = _leave_behind(namespaces.marked_name(mark_of(machine.installation)))
        with machine._builder.zygote.turn:
            machine._builder.zygote._end()
        assert process_start(stray) is None
        stray = _leave_behind(namespaces.marked_name(mark_of(machine.installation)))
        removed = await machine.sweep(keep_boxes={"box"}, keep_sessions={"session-box"})
        assert removed == [f"process {stray}"]
        assert process_start(stray) is None
        assert (await machine.boxes())[0].state == "running"
        mark = machine._marks.read("box")
        assert mark is not None
        assert process_start(mark.init) == mark.init_started
        assert Path("/proc", str(mark.pid), "comm").read_text() == f"{KEEPER_NAME}\n"

    on_a_machine(steps, who=who)
