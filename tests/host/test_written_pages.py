"""What keepers write anyway they have before they are waited for."""

import ctypes
import mmap
import os
import resource
import signal

import pytest

from coldframe.host.machine import Machine
from coldframe.host.written_pages import copy_ahead, written_pages
from tests.host.forked import in_child
from tests.host.machines import needs_bubblewrap, new_box, on_a_machine, run, until
from tests.host.test_ahead import keeper_of, waiting

PAGE = mmap.PAGESIZE
PAGES, WRITTEN = 400, range(0, 400, 2)
MOST_FAULTS = 200
"""Of a keeper from its order until its first command has ended; 50 are reached, and it was 830."""
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="takes the rights to read the page table of another process")


@needs_root
def test_what_a_child_has_written_since_its_fork_is_told_and_the_next_one_has_it_without_a_fault_for_each() -> None:
    def told_and_faults() -> tuple[set[int], int]:
        area = mmap.mmap(-1, PAGES * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        area[:] = bytes(len(area))
        first = ctypes.addressof(ctypes.c_char.from_buffer(area)) // PAGE
        pid = os.fork()
        if pid == 0:
            for page in WRITTEN:
                area[page * PAGE] = 1
            os.kill(os.getpid(), signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        ranges = written_pages(pid, os.getpid())
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        pages = {page - first for start, count in ranges for page in range(start, start + count)}

        def faults() -> int:
            copy_ahead(ranges)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for page in WRITTEN:
                area[page * PAGE] = 1
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

        return pages & set(range(PAGES)), in_child(faults)

    told, faults = in_child(told_and_faults)
    assert told == set(WRITTEN)
    assert faults < len(WRITTEN) / 4  # those are of the interpreter itself


@needs_root
@needs_bubblewrap
@pytest.mark.parametrize("are_gone", [False, True])
def test_a_keeper_that_waits_has_most_of_what_its_box_and_first_command_will_write(are_gone: bool) -> None:
    """Whether the sandboxes before it live on, or but the first, which ran nothing before somebody looked at it."""

    def stat_of(pid: int) -> list[str]:
        with open(f"/proc/{pid}/stat", encoding="ascii") as source:
            return source.read().rpartition(")")[2].split()

    async def steps(machine: Machine) -> None:
        await machine.prepare()
        for name in ("one", "two"):
            await waiting(machine._builder)
            box = await new_box(machine, name, agent=name)
            if are_gone and name == "two":
                await machine.end_box(name)
            elif are_gone:
                await waiting(machine._builder)
            if not are_gone or name == "one":
                await run(box, "true")
        pid = await waiting(machine._builder)

        async def sleeps() -> bool:
            return stat_of(pid)[0] == "S"

        await until(sleeps, "it waits for its order")
        before = int(stat_of(pid)[7])
        await run(await new_box(machine, "three", agent="three"), "true")
        assert keeper_of(machine, "three") == pid
        assert int(stat_of(pid)[7]) - before < MOST_FAULTS

    on_a_machine(steps)
