"""Workspaces are made whole or not at all, each for a user of its own; what was broken off goes, and nothing else."""

import os
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from coldframe.contract.errors import Internal, InvalidArgument, IsolationUnavailable
from coldframe.guest.digests import MOST_BYTES
from coldframe.host.stacks import HISTORY, Stacks
from coldframe.host.workspaces import PARTS, Workspaces
from tests.host import boxes
from tests.host.forked import in_child


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    for name in ("workspace", "background"):
        (tmp_path / name).mkdir(mode=0o711)
    yield tmp_path


def test_a_workspace_has_its_parts_and_one_that_is_there_is_left_as_it_is(data: Path) -> None:
    workspaces = Workspaces(str(data))
    path = Path(workspaces.of_agent("a"))
    workspaces.make(str(path))
    assert sorted(os.listdir(path)) == sorted([*PARTS, HISTORY])
    (path / "scratch" / "kept").write_text("kept")
    workspaces.make(str(path))
    assert (path / "scratch" / "kept").read_text() == "kept"
    workspaces.remove(str(path))
    workspaces.remove(str(path))
    assert os.listdir(data / "workspace") == []


def test_digests_are_kept_as_long_as_the_workspace_is_and_within_bounds(data: Path) -> None:
    workspaces = Workspaces(str(data))

    def digests(more: bytes = b"") -> bytes:
        file = workspaces.open_digests("a")
        assert file is not None
        with os.fdopen(file, "r+b", buffering=0) as opened:
            opened.write(more)
            return os.pread(opened.fileno(), 100, 0)

    workspaces.make(workspaces.of_agent("a"))
    assert digests(b"kept\n") == digests() == b"kept\n"
    workspaces.remove(workspaces.of_agent("a"))
    assert digests() == b""
    digests(b"x" * MOST_BYTES)
    assert digests() == b""
    os.unlink(workspaces._digests_of("workspace/a"))
    os.symlink("/etc/passwd", workspaces._digests_of("workspace/a"))
    assert workspaces.open_digests("a") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_workspaces_made_at_the_same_time_belong_to_different_users(data: Path) -> None:
    workspaces = Workspaces(str(data))
    together = threading.Barrier(8)

    def make(number: int) -> None:
        together.wait()
        workspaces.make(workspaces.of_agent(f"a{number}"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, range(8)))
    assert len({os.stat(workspaces.of_agent(f"a{number}")).st_uid for number in range(8)}) == 8


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_one_that_gets_its_name_while_a_user_is_chosen_for_another_is_in_nobodys_way(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its draft is gone between the list of the names and the look at it."""
    scan = os.scandir

    @contextmanager
    def scan_too_early(path: str) -> Iterator[list[os.DirEntry[str]]]:
        draft = Path(path, "b.new-1")
        draft.mkdir()
        with scan(path) as entries:
            found = list(entries)
        draft.rmdir()
        yield found

    workspaces = Workspaces(str(data))
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", scan_too_early)
        workspaces.make(workspaces.of_agent("a"))
    assert os.stat(workspaces.of_agent("a")).st_uid != 0


def test_a_workspace_made_twice_at_the_same_time_is_made_once(data: Path) -> None:
    workspaces = Workspaces(str(data))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(workspaces.make, [workspaces.of_agent("a")] * 8))
    assert os.listdir(data / "workspace") == ["a"]


def test_strays_are_what_was_broken_off_and_sessions_that_are_over(data: Path) -> None:
    workspaces = Workspaces(str(data))
    workspaces.make(workspaces.of_agent("kept"))
    for session in ("kept", "over"):
        workspaces.make(workspaces.of_session(session), parts=())
    for name in ("workspace/a.new-1", "workspace/b.gone-2", "background/kept.new-3", "background/over.gone-4"):
        (data / name).mkdir()
    strays = workspaces.strays(keep_sessions={"kept"})
    assert strays == sorted(
        ["workspace/b.gone-2", "workspace/a.new-1", "background/over.gone-4", "background/over"], reverse=True
    )
    for name in strays:
        workspaces.remove_stray(name)
        workspaces.remove_stray(name)
    assert os.listdir(data / "workspace") == ["kept"]
    assert sorted(os.listdir(data / "background")) == ["kept", "kept.new-3"]


def test_a_workspace_that_is_being_made_is_no_stray(data: Path) -> None:
    workspaces = Workspaces(str(data))
    seen: list[str] = []
    fill = workspaces._fill

    def look(top: int, parts: tuple[str, ...], uid: int) -> None:
        seen.extend(workspaces.strays(keep_sessions=set()))
        fill(top, parts, uid)

    workspaces._fill = look  # type: ignore[method-assign]
    workspaces.make(workspaces.of_agent("a"))
    workspaces.make(workspaces.of_session("s"), parts=())
    assert seen == []


@pytest.mark.parametrize("session_id", ["", "..", "a/b", "a.new-1"])
def test_a_session_id_that_is_a_path_names_nothing(data: Path, session_id: str) -> None:
    with pytest.raises(InvalidArgument):
        Workspaces(str(data)).of_session(session_id)


def test_the_history_is_opened_only_if_it_is_the_file_that_was_made(data: Path) -> None:
    workspaces = Workspaces(str(data))
    path = Path(workspaces.of_agent("a"))
    assert workspaces.open_history("a", None, os.O_RDONLY) is None
    workspaces.make(str(path))
    workspaces.append_history("a", None, b"one\n")
    file = workspaces.open_history("a", None, os.O_RDONLY)
    assert file is not None
    assert os.read(file, 100) == b"one\n"
    os.close(file)
    (path / HISTORY).unlink()
    (path / HISTORY).symlink_to("/etc/hostname")
    with pytest.raises(OSError):
        workspaces.open_history("a", None, os.O_RDONLY)
    (path / HISTORY).unlink()
    os.mkfifo(path / HISTORY)
    with pytest.raises(Internal):
        workspaces.open_history("a", None, os.O_RDONLY)


def _asks_for_a_disk_as_ordinary_user() -> tuple[dict[str, object], list[str]]:
    boxes.become_ordinary()
    with tempfile.TemporaryDirectory(prefix="cf-workspaces-", dir="/tmp") as data:
        for name in ("workspace", "background"):
            os.mkdir(os.path.join(data, name))
        workspaces = Workspaces(data, own_disks=True)
        with pytest.raises(IsolationUnavailable) as refused:
            workspaces.make(workspaces.of_agent("a"))
        return dict(refused.value.facts), [name for _, folders, files in os.walk(data) for name in folders + files]


def test_an_ordinary_user_who_asks_for_disks_is_told_so_and_gets_no_directory_instead() -> None:
    facts, made = in_child(_asks_for_a_disk_as_ordinary_user)
    assert facts["property"] == "workspace_disk"
    assert facts["reason"] == "only root can mount one"
    assert facts["remedy"] == "start the installation as root"
    assert sorted(made) == ["background", "workspace"]


def test_a_reset_that_is_refused_begins_no_system(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stacks, "can_have", lambda self, name: False)
    workspaces = Workspaces(str(data))
    path = workspaces.of_agent("a")
    workspaces.make(path)
    begun = []

    class Beginning:
        def stack_of(self, workspace: str) -> str | None:
            return None

        def user_of(self, workspace: str) -> tuple[int, int] | None:
            return None

        def ready_for(self, workspace: str, snapshot_id: str | None, user: tuple[int, int]) -> str | None:
            begun.append(workspace)
            return "begun"

        def fork(self, workspace: str, snapshot_id: str, user: tuple[int, int]) -> None: ...
        def remove(self, workspace: str) -> None: ...

    workspaces.systems = Beginning()
    store = workspaces.stacks.store
    home, system = store.create(), store.create("system", template="digest")
    taken = store.take_snapshot(home.id, system=system.id)
    with pytest.raises(IsolationUnavailable, match="two file systems"):
        workspaces.reset(path, taken.id, parts=PARTS, discard=False)
    assert begun == [] and store.snapshots() == [taken]
    workspaces.stacks.close()
