"""Memory that no controller counts: what is shared counts once, page tables count, and looking takes a bounded time."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldframe.host import held_memory
from coldframe.host.held_memory import LATELY_S, MOST_PAGE_S, WALK_PAGES, Walks, held_bytes
from coldframe.host.limits import read_file

KIB, MIB = 1 << 10, 1 << 20
ALL = lambda: WALK_PAGES  # noqa: E731


class Processes:
    """A /proc of processes that there are not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.proc = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self.pids: list[int] = []
        self.walked: list[int] = []
        """Those that were looked at closely."""

    def add(
        self,
        *,
        anon_mib: float = 0,
        shared_mib: float = 0,
        file_mib: float = 0,
        tables_kib: int = 64,
        share_mib: float = 0,
    ) -> int:
        """One that has so much resident, and so small a share of what is no page of a file."""
        self.pids.append(pid := len(self.pids) + 1)
        place = self.folder / str(pid)
        place.mkdir()
        lines = {
            "VmRSS": anon_mib + shared_mib + file_mib,
            "RssAnon": anon_mib,
            "RssFile": file_mib,
            "RssShmem": shared_mib,
            "VmPTE": tables_kib / 1024,
            "VmSwap": 0,
        }
        sizes = "".join(f"{name}:\t{round(size * 1024):8} kB\n" for name, size in lines.items())
        (place / "status").write_text(f"Name:\tRssAnon:   7 kB\nUmask:\t0022\n{sizes}Threads:\t1\n")
        (place / "smaps_rollup").write_text(
            "55d0c0000000-7ffd00000000 ---p 00000000 00:00 0                          [rollup]\n"
            f"Rss:            {round(lines['VmRSS'] * 1024):8} kB\nPss:            {round(share_mib * 1024):8} kB\n"
            f"Pss_Anon:       {round(share_mib * 1024):8} kB\nPss_File:       {0:8} kB\nPss_Shmem:      {0:8} kB\n"
        )
        return pid

    def read(self, proc: int, name: str) -> bytes | None:
        if name.endswith("/smaps_rollup"):
            self.walked.append(int(name.partition("/")[0]))
        return read_file(proc, name)


class Clock:
    """A walk takes `walk_s` of processor time by it."""

    def __init__(self, walk_s: float) -> None:
        self.now, self.walk_s = 100.0, walk_s

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        self.now += self.walk_s
        return self.now


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    processes = Processes(tmp_path)
    monkeypatch.setattr(held_memory, "read_file", processes.read)
    yield processes
    os.close(processes.proc)


def test_within_the_limit_by_the_counters_nobody_is_looked_at_closely_and_pages_of_files_are_no_matter(
    fake: Processes,
) -> None:
    for _ in range(3):
        fake.add(anon_mib=10, shared_mib=5, file_mib=5000, tables_kib=MIB // KIB)
    assert held_bytes(fake.proc, fake.pids, 48 * MIB, ALL) == 48 * MIB
    assert not fake.walked


def test_what_is_shared_counts_once_as_far_as_it_matters(fake: Processes) -> None:
    for _ in range(5):
        fake.add(anon_mib=40, share_mib=8)
    tables = 5 * 64 * KIB
    assert held_bytes(fake.proc, fake.pids, 10 * MIB, ALL) == 40 * MIB + tables
    assert len(fake.walked) == 5
    assert held_bytes(fake.proc, fake.pids, 150 * MIB, ALL) == 136 * MIB + tables  # no look more than it takes


def test_page_tables_count_for_each_process_that_has_them(fake: Processes) -> None:
    for _ in range(2):
        fake.add(anon_mib=10, share_mib=5, tables_kib=8 * MIB // KIB)
    assert held_bytes(fake.proc, fake.pids, 20 * MIB, ALL) == 26 * MIB


def test_a_file_that_is_mapped_everywhere_is_walked_over_no_further_than_is_allowed(fake: Processes) -> None:
    pages = 5001 * MIB // 4096
    for _ in range(250):
        fake.add(anon_mib=1, file_mib=5000, share_mib=1 / 250)
    small = fake.add(anon_mib=0.5, share_mib=0.25)
    assert held_bytes(fake.proc, fake.pids, 100 * MIB, ALL) > 100 * MIB
    assert small in fake.walked  # what is cheap to know is known
    assert (len(fake.walked) - 1) * pages <= WALK_PAGES


def test_tables_without_pages_are_walked_over_no_further_than_is_allowed(fake: Processes) -> None:
    for _ in range(20):
        fake.add(anon_mib=1, tables_kib=5 * MIB // KIB, share_mib=0)
    assert held_bytes(fake.proc, fake.pids, 10 * MIB, ALL) > 100 * MIB
    assert len(fake.walked) == WALK_PAGES // (5 * MIB // 8)


def test_walks_that_take_longer_than_their_pages_tell_are_fewer(
    fake: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(250):
        fake.add(anon_mib=1)
    monkeypatch.setattr(held_memory, "time", Clock(walk_s := 0.01))
    assert held_bytes(fake.proc, fake.pids, 10 * MIB, ALL) > 100 * MIB
    assert len(fake.walked) * walk_s <= WALK_PAGES * MOST_PAGE_S + walk_s


def test_who_cannot_be_looked_at_counts_by_its_counters_and_who_is_gone_meanwhile_does_not(
    fake: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, gone = fake.add(anon_mib=40, tables_kib=0), fake.add(anon_mib=30, tables_kib=0)
    (fake.folder / str(closed) / "smaps_rollup").unlink()

    def read(proc: int, name: str) -> bytes | None:
        if name == f"{gone}/smaps_rollup":
            for file in ("smaps_rollup", "status"):
                (fake.folder / str(gone) / file).unlink()
        return read_file(proc, name)

    monkeypatch.setattr(held_memory, "read_file", read)
    assert held_bytes(fake.proc, fake.pids, 10 * MIB, ALL) == 40 * MIB


def test_a_process_of_this_machine_is_counted() -> None:
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    try:
        roughly = held_bytes(proc, [os.getpid()], 1 << 60, ALL)
        assert MIB < held_bytes(proc, [os.getpid()], 0, ALL) <= roughly + MIB
    finally:
        os.close(proc)


def test_what_may_be_walked_is_divided_among_those_who_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_memory, "time", clock := Clock(0))
    walks = Walks(live := {1, 2, 3})
    assert walks.pages_for(1) == WALK_PAGES
    assert walks.pages_for(2) == walks.pages_for(1) == WALK_PAGES // 2
    assert walks.pages_for(3) == WALK_PAGES // 3
    live.discard(2)
    assert walks.pages_for(1) == WALK_PAGES // 2
    clock.now += LATELY_S
    assert walks.pages_for(3) == WALK_PAGES
