"""Promise: two scans of a workspace tell exactly what changed between them, fast enough to surround every command."""

import mmap
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.command import FileChange
from coldframe.guest import manifest
from coldframe.guest.manifest import Manifest, compare, scan
from coldframe.guest.watch import is_memory
from tests.guest.workspace import Workspace, unprivileged


def changes(before: Manifest, after: Manifest) -> dict[str, str]:
    found = [FileChange.model_validate(change) for change in compare(before, after)]
    assert [change.path for change in found] == sorted(change.path for change in found)
    return {change.path: change.change for change in found}


def settle(path: Path) -> None:
    """Wait until the file system's clock has left the tick of the last change, so that digests may be reused."""
    until = max(os.lstat(found).st_ctime_ns for found in [path, *path.rglob("*")]) + manifest.TICK_NS
    deadline = time.monotonic() + 5
    while time.time_ns() <= until and time.monotonic() < deadline:
        os.sched_yield()


def test_every_kind_of_change_is_told(workspace: Workspace) -> None:
    for name in ("same", "changed", "touched", "mode", "deleted", "type", "moved"):
        (workspace.path / name).write_text(name)
    (workspace.path / "dir").mkdir()
    os.symlink("same", workspace.path / "link")
    before = scan(workspace.root)
    (workspace.path / "changed").write_text("CHANGED")
    os.utime(workspace.path / "touched", (1, 1))
    os.chmod(workspace.path / "mode", 0o600)
    os.chmod(workspace.path / "dir", 0o700)
    (workspace.path / "deleted").unlink()
    (workspace.path / "type").unlink()
    (workspace.path / "type").mkdir()
    (workspace.path / "moved").rename(workspace.path / "dir" / "moved")
    (workspace.path / "link").unlink()
    os.symlink("changed", workspace.path / "link")
    (workspace.path / "caf\udce9").touch()
    after = scan(workspace.root, before)
    assert changes(before, after) == {
        "changed": "changed",
        "touched": "metadata",
        "mode": "metadata",
        "dir": "metadata",
        "deleted": "deleted",
        "type": "changed",
        "moved": "deleted",
        "dir/moved": "created",
        "link": "changed",
        "caf\udce9": "created",
    }
    assert changes(after, after) == {}
    assert before.tree_sha256 != after.tree_sha256


def test_digests_are_those_of_the_content(workspace: Workspace) -> None:
    (workspace.path / "f").write_text("1")
    before = scan(workspace.root)
    (workspace.path / "f").write_text("2")
    (change,) = compare(before, scan(workspace.root, before))
    sums = [
        subprocess.run(["sha256sum"], input=text, capture_output=True).stdout[:64].decode() for text in (b"1", b"2")
    ]
    assert [change["sha256_before"], change["sha256_after"]] == sums
    assert change["kind"] == "file"


def test_a_tree_digest_depends_on_content_names_and_modes_alone(workspace: Workspace, tmp_path: Path) -> None:
    (workspace.path / "d").mkdir()
    (workspace.path / "d" / "f").write_text("x")
    first = scan(workspace.root).tree_sha256
    subprocess.run(["cp", "-r", workspace.path, tmp_path / "copy"], check=True)
    copy = Workspace(tmp_path / "copy")
    assert scan(copy.root).tree_sha256 == first
    (tmp_path / "copy" / "d" / "f").rename(tmp_path / "copy" / "f")
    assert scan(copy.root).tree_sha256 != first
    copy.close()


def test_a_change_within_one_clock_tick_is_seen(workspace: Workspace) -> None:
    known: Manifest | None = None
    for number in range(200):
        (workspace.path / "f").write_text(f"{number:04}")
        now = scan(workspace.root, known)
        if known is not None:
            assert now.tree_sha256 != known.tree_sha256
            assert changes(known, now) == {"f": "changed"}
        known = now


def test_a_digest_of_what_changed_within_the_tick_is_not_kept_whatever_the_kernels_clock(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace.path / "f").write_text("1")
    changed_ns = os.stat(workspace.path / "f").st_ctime_ns
    for past_ns, is_kept in ((manifest.TICK_NS // 2, False), (manifest.TICK_NS, False), (manifest.TICK_NS + 1, True)):
        now_ns = changed_ns + past_ns
        monkeypatch.setattr(time, "time_ns", lambda now_ns=now_ns: now_ns)
        assert bool(scan(workspace.root).digests) is is_kept, past_ns


def test_a_change_behind_a_restored_time_is_seen(workspace: Workspace) -> None:
    (workspace.path / "f").write_text("1")
    settle(workspace.path)
    before = scan(workspace.root)
    status = os.stat(workspace.path / "f")
    (workspace.path / "f").write_text("2")
    os.utime(workspace.path / "f", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert changes(before, scan(workspace.root, before)) == {"f": "changed"}


def test_the_history_in_the_root_is_no_part_of_it(workspace: Workspace) -> None:
    before = scan(workspace.root)
    (workspace.path / ".exec_history").write_text("line")
    assert changes(before, scan(workspace.root)) == {}
    (workspace.path / "d").mkdir()
    (workspace.path / "d" / ".exec_history").write_text("line")
    assert "d/.exec_history" in changes(before, scan(workspace.root))


def test_an_upload_in_hand_is_left_out_and_a_file_that_only_has_such_a_name_is_not(workspace: Workspace) -> None:
    before = scan(workspace.root)
    writer = workspace.writer("f")
    (workspace.path / ".coldframe-write-0123456789abcdef").touch()
    assert set(changes(before, scan(workspace.root))) == {".coldframe-write-0123456789abcdef"}
    writer.abort()


def test_too_many_entries_are_not_recorded_and_say_so(workspace: Workspace) -> None:
    for number in range(20):
        (workspace.path / str(number)).touch()
    assert scan(workspace.root, max_entries=20).recorded
    cut = scan(workspace.root, max_entries=19)
    assert (cut.recorded, cut.entries, cut.tree_sha256) == (False, {}, None)
    assert cut.reason is not None and "19" in cut.reason
    assert compare(cut, scan(workspace.root)) == []


def test_a_tree_that_is_deep_instead_of_full_is_not_recorded(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "PATH_BYTES", 1000)
    (workspace.path / "/".join(["d"] * 100)).mkdir(parents=True)
    assert not scan(workspace.root).recorded


def test_files_past_the_budget_are_compared_by_their_status(workspace: Workspace) -> None:
    (workspace.path / "big").write_bytes(b"x" * 1000)
    (workspace.path / "small").write_bytes(b"x")
    before = scan(workspace.root, hash_budget_bytes=100)
    assert before.recorded
    assert (before.tree_sha256, before.reason) == (None, "1 files were compared without a digest")
    assert before.entries[b"small"].digest is not None
    digested = scan(workspace.root, before)
    assert changes(before, digested) == {}
    assert digested.tree_sha256 is not None
    (workspace.path / "big").write_bytes(b"y" * 1000)
    assert changes(before, scan(workspace.root, before, hash_budget_bytes=100)) == {"big": "changed"}


def test_what_can_no_longer_be_read_is_not_called_deleted(workspace: Workspace) -> None:
    (workspace.path / "d").mkdir()
    (workspace.path / "d" / "f").touch()

    def look() -> tuple[dict[str, str], Any, Any]:
        before = scan(workspace.root)
        os.chmod("d", 0, dir_fd=workspace.root)
        after = scan(workspace.root, before)
        return changes(before, after), after.tree_sha256, after.reason

    assert unprivileged(workspace.path, look) == ({"d": "metadata"}, None, "1 directories could not be read")


def test_special_files_and_loops_do_not_hold_up_a_scan(workspace: Workspace) -> None:
    os.mkfifo(workspace.path / "fifo")
    os.symlink(".", workspace.path / "loop")
    os.symlink("/dev/zero", workspace.path / "zero")
    with open(workspace.path / "sparse", "wb") as sparse:
        sparse.truncate(1 << 40)
    found = scan(workspace.root)  # who reads one of them reads for ever
    assert {path: entry.kind for path, entry in found.entries.items()} == {
        b"fifo": "other",
        b"loop": "symlink",
        b"zero": "symlink",
        b"sparse": "file",
    }


def test_a_warm_scan_reads_no_content_and_is_quick(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1000):
        (workspace.path / str(number % 20)).mkdir(exist_ok=True)
        (workspace.path / str(number % 20) / f"f{number}").write_text(str(number))
    settle(workspace.path)
    known = scan(workspace.root)
    kept, opened = os.open, []

    def counted(path: Any, *rest: Any, **more: Any) -> int:
        opened.append(path)
        return kept(path, *rest, **more)

    monkeypatch.setattr(os, "open", counted)
    took_s = []
    for _ in range(5):
        begun = time.perf_counter()
        again = scan(workspace.root, known)
        took_s.append(time.perf_counter() - begun)
    assert opened == []
    assert again.tree_sha256 == known.tree_sha256
    assert min(took_s) < 0.05  # about 3 ms on an idle machine


def test_what_is_written_again_to_a_file_in_memory_is_told_if_others_lived_at_the_last_scan(
    workspace: Workspace,
) -> None:
    if is_memory(workspace.root):
        pytest.skip("no digest is kept here")
    began_ns = time.time_ns()
    (workspace.path / "held").write_text("old")
    with open(workspace.path / "held", "r+b") as file, mmap.mmap(file.fileno(), 3) as held:
        held[:3] = b"one"
        settle(workspace.path)
        before = scan(workspace.root, others_since_ns=began_ns)
        assert before.entries[b"held"].digest is not None
        held[:3] = b"two"  # changes no time, the page is to be written anyway
        after = scan(workspace.root, before, others_since_ns=began_ns)
    assert after.entries[b"held"].identity == before.entries[b"held"].identity
    assert after.entries[b"held"].digest != before.entries[b"held"].digest
    assert after.tree_sha256 != before.tree_sha256


def test_others_make_only_those_files_read_again_that_they_may_hold(workspace: Workspace) -> None:
    if is_memory(workspace.root):
        pytest.skip("no digest is kept here")
    (workspace.path / "old").write_text("old")
    settle(workspace.path)
    later_ns = time.time_ns() + manifest.TICK_NS
    with open(workspace.path / "old", "r+b"):
        assert len(scan(workspace.root, others_since_ns=later_ns).digests) == 1
        assert scan(workspace.root, others_since_ns=0).digests == {}
    with open(workspace.path / "old", "rb") as file:
        leases = not manifest._is_held_to_write(file.fileno())
    if leases:
        assert len(scan(workspace.root, others_since_ns=0).digests) == 1


def test_no_digest_is_trusted_where_a_map_changes_no_time() -> None:
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no file system in memory")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        workspace = Workspace(Path(folder))
        if not is_memory(workspace.root):
            workspace.close()
            pytest.skip("no file system in memory")
        (workspace.path / "held").write_text("old")
        settle(workspace.path)
        before = scan(workspace.root)
        with open(workspace.path / "held", "r+b") as file, mmap.mmap(file.fileno(), 3) as held:
            assert held[:3] == b"old"  # read first: then a write is not noticed
            held[:3] = b"new"
        after = scan(workspace.root, before)
        workspace.close()
    assert changes(before, after) == {"held": "changed"}
