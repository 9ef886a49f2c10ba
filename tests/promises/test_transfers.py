"""Files of any size and whole folders, up and down, between this machine and a real box."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import Conflict, FileMissing, LimitReached, OutsideWorkspace, Unfit
from tests.client.test_folders import facts, make_folder
from tests.installation import Installation

MIB = 1024 * 1024
LARGE_MIB = 2048 if os.environ.get("COLDFRAME_SLOW") == "1" else 192
GROWTH_MIB = 64
"""Most that each process of the product may grow by, however large the file."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    made = make_folder(tmp_path / "folder")
    yield made
    for deep in tmp_path.glob("*/sub/deep"):
        deep.chmod(0o755)


@pytest.mark.req("T4.17")
def test_a_folder_goes_up_and_comes_down_as_it_was(sandbox: SyncSandbox, folder: Path, tmp_path: Path) -> None:
    sandbox.upload_folder(folder, "new/place")
    assert sandbox.run_command("cat 'new/place/sub/ö\nx'; test new/place/run.sh -ef new/place/sub/same").stdout == "odd"
    holes = sandbox.run_command("stat -c '%s %b' new/place/holes new/place/nothing").stdout or ""
    for line, size in zip(holes.splitlines(), (40 << 20, 8 << 20), strict=True):
        assert line.split()[0] == str(size) and int(line.split()[1]) * 512 < MIB
    assert sandbox.download_folder("new/place", tmp_path / "back") == []
    assert facts(tmp_path / "back") == facts(folder)
    assert (tmp_path / "back").stat().st_mode == folder.stat().st_mode
    assert (tmp_path / "back" / "holes").stat().st_blocks * 512 < MIB
    left = [entry.path for entry in sandbox.list_directory().entries if entry.path.startswith(".coldframe-")]
    assert left == []
    with pytest.raises(Conflict):
        sandbox.upload_folder(folder, "new/place")
    with pytest.raises(Conflict):
        sandbox.download_folder("new/place", tmp_path / "back")
    with pytest.raises(FileMissing):
        sandbox.download_folder("nowhere", tmp_path / "nowhere")


@pytest.mark.req("T4.17")
def test_a_folder_never_leaves_its_target(sandbox: SyncSandbox, folder: Path, tmp_path: Path) -> None:
    sandbox.run_command(
        "ln -s /tmp out; ln -s ../../../.. far; mkdir kept; touch kept/x; ln -s kept kept-link; mkdir venv"
    )
    for place in ("../x", "/tmp/x", "a/../../x", "out/x", "far/tmp/x"):
        with pytest.raises(OutsideWorkspace):
            sandbox.upload_folder(folder, place)
    for place in ("out", "kept", "kept-link"):
        with pytest.raises(Conflict):
            sandbox.upload_folder(folder, place)
    assert sandbox.run_command("ls /tmp | grep -c '^x$'; ls -A kept").stdout == "0\nx\n"
    sandbox.run_command("ln -s /etc/passwd venv/out; mkdir pipes; mkfifo pipes/p; echo hi > venv/file")
    for place in ("venv", "pipes"):
        with pytest.raises(Unfit):
            sandbox.download_folder(place, tmp_path / "down")
        assert not (tmp_path / "down").exists()
    assert sandbox.download_folder("venv", tmp_path / "down", skip_foreign_links=True) == ["out"]
    assert os.listdir(tmp_path / "down") == ["file"]
    assert [name for name in os.listdir(tmp_path) if name not in ("folder", "down")] == []
    assert not [entry for entry in sandbox.list_directory().entries if entry.path.startswith(".coldframe-")]


@pytest.mark.req("T4.17")
def test_a_hundred_thousand_entries_come_in_pages(sandbox: SyncSandbox) -> None:
    sandbox.run_command(
        [
            "python3",
            "-c",
            "import os; os.mkdir('many'); [open(b'many/' + n, 'x').close() for n in [b'%06d' % n for n in range(100_000)] + [b'\\xff']]",
        ]
    )
    names: list[str] = []
    after = None
    while True:
        page = sandbox.list_directory("many", max_entries=30_000, after=after)
        names += [entry.name for entry in page.entries]
        after = page.next_after
        assert page.complete is (after is None)
        if after is None:
            break
    assert names == [f"{number:06d}" for number in range(100_000)] + ["\ufffd"]


@pytest.mark.req("T4.17")
def test_a_full_disk_leaves_the_old_file(client: SyncColdframe, agent_id: str, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(os.urandom(MIB) * 40)
    limits = {"disk_mib": 64}
    with client.sandboxes.create(agent_id=agent_id, limits=limits) as small:
        small.upload("kept", b"old")
        small.upload("half", (b"\1" * MIB for _ in range(40)))
        with pytest.raises(LimitReached) as raised:
            small.upload_file(tmp_path / "big", "kept")
        assert raised.value.code == "LIMIT_DISK"
        assert small.read_file("kept").content == "old"
        small.remove_file("half")  # with room again, it need not come a second time
        steps: list[int] = []
        small.upload_file(tmp_path / "big", "kept", progress=lambda there, whole: steps.append(there))
        assert steps == []
        assert small.run_command("sha256sum < kept").stdout == (
            hashlib.sha256((tmp_path / "big").read_bytes()).hexdigest() + "  -\n"
        )


def memory_kib(data_dir: str) -> dict[int, int]:
    """Anonymous memory of every process that has *data_dir* in its command line, and of the boxes' keepers."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if data_dir.encode() not in Path(f"/proc/{entry}/cmdline").read_bytes():
                    continue
                for line in Path(f"/proc/{entry}/status").read_text().splitlines():
                    if line.startswith("RssAnon:"):
                        found[int(entry)] = int(line.split()[1])
            except (OSError, ValueError):
                pass
    return found


@pytest.mark.once
@pytest.mark.timeout(1800)
@pytest.mark.req("T4.17")
def test_a_large_file_takes_no_memory(
    client: SyncColdframe, installation: Installation, agent_id: str, tmp_path: Path
) -> None:
    """As large as the machine is asked for: 2 GiB with COLDFRAME_SLOW=1."""
    local = tmp_path / "large"
    block = os.urandom(MIB)
    digest = hashlib.sha256()
    with open(local, "wb") as file:
        for number in range(LARGE_MIB):
            piece = number.to_bytes(8) + block[8:]
            digest.update(piece)
            file.write(piece)
    with client.sandboxes.create(agent_id=agent_id, limits={"disk_mib": 3 * LARGE_MIB}) as sandbox:
        sandbox.upload("warm", b"x" * 4 * MIB)
        list(sandbox.download("warm"))
        before = memory_kib(installation.data_dir)
        assert before
        most: dict[int, int] = {}

        def look(there: int, whole: int) -> None:
            for pid, size in memory_kib(installation.data_dir).items():
                most[pid] = max(size, most.get(pid, 0))

        written = sandbox.upload_file(local, "large", progress=look)
        assert written.sha256 == digest.hexdigest()
        look(0, 0)
        local.unlink()
        own = sandbox.download_file(
            "large", local, progress=lambda there, whole: look(there, whole) if there % (32 * MIB) == 0 else None
        )
        look(0, 0)
        assert own == LARGE_MIB * MIB
        back = hashlib.sha256()
        with open(local, "rb") as file:
            while piece := file.read(MIB):
                back.update(piece)
        assert back.hexdigest() == digest.hexdigest()
        growth = {pid: (most[pid] - before[pid]) // 1024 for pid in before if pid in most}
        print(f"growth in MiB by process: {growth}")
        assert max(growth.values()) < GROWTH_MIB, growth
