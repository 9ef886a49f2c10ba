"""Archives of folders: what is packed comes back as it was, and a hostile archive never makes anything outside its target."""

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from coldframe.client.folders import check_folder_name, pack_folder, unpack_folder
from coldframe.contract.errors import ColdframeError, InvalidArgument, OutsideWorkspace, Unfit


def make_folder(at: Path) -> Path:
    (at / "sub" / "deep").mkdir(parents=True)
    (at / "run.sh").write_text("#!/bin/sh\n")
    (at / "run.sh").chmod(0o750)
    (at / "sub" / "ö\nx").write_bytes(b"odd")
    (at / ("n" * 200)).write_bytes(b"")
    (at / "link").symlink_to("sub/deep/../ö\nx")
    os.link(at / "run.sh", at / "sub" / "same")
    with open(at / "holes", "wb") as file:
        file.seek(3 << 20)
        file.write(b"middle")
        file.truncate(40 << 20)
    with open(at / "nothing", "wb") as file:
        file.truncate(8 << 20)
    for number, path in enumerate(sorted(at.rglob("*"))):
        os.utime(path, ns=(0, 981173106_123456789 + number), follow_symlinks=False)
    (at / "sub" / "deep").chmod(0o555)
    return at


def facts(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        mode = None if path.is_symlink() else status.st_mode
        links = status.st_nlink if path.is_file() else None
        found[str(path.relative_to(folder))] = (mode, status.st_mtime_ns, status.st_size, links, content)
    return found


@pytest.mark.req("T4.17")
def test_a_folder_comes_back_with_modes_links_times_and_holes(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "folder")
    try:
        with pack_folder(str(folder)) as packed:
            assert os.path.getsize(packed) < 1 << 20
            assert unpack_folder(packed, str(tmp_path / "back")) == []
            # What this makes, other programs read.
            (tmp_path / "tar").mkdir()
            subprocess.run(["tar", "-xpf", packed, "-C", str(tmp_path / "tar")], check=True)
        theirs = tmp_path / "theirs.tar"
        subprocess.run(
            ["tar", "--create", "--sparse", "--format=posix", "-f", str(theirs), "-C", str(folder), "."], check=True
        )
        unpack_folder(str(theirs), str(tmp_path / "again"))
        for other in ("back", "tar", "again"):
            assert facts(tmp_path / other) == facts(folder)
            for name in ("holes", "nothing"):
                assert (tmp_path / other / name).stat().st_blocks <= (folder / name).stat().st_blocks + 64
    finally:
        for place in ("folder", "back", "tar", "again"):
            if (deep := tmp_path / place / "sub" / "deep").exists():
                deep.chmod(0o755)


def hostile(*members: tuple[str, bytes, str]) -> bytes:
    """An archive of (name, type, link), each of two bytes where it has content."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, link in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = kind, link, 0o6777
            info.size = 2 if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(b"hi"))
    return made.getvalue()


FILE, DIRECTORY, LINK, HARD = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


@pytest.mark.req("T4.17")
@pytest.mark.parametrize(
    "members",
    [
        [("../escaped", FILE, "")],
        [("a/../../escaped", FILE, "")],
        [("/tmp/escaped", FILE, "")],
        [("out", LINK, ".."), ("out/escaped", FILE, "")],
        [("out", LINK, "/etc")],
        [("a", DIRECTORY, ""), ("a/out", LINK, "../../x")],
        [("a", DIRECTORY, ""), ("a/in", LINK, "x"), ("a/in/escaped", FILE, "")],
        [("a", DIRECTORY, ""), ("a", LINK, ".."), ("a/escaped", FILE, "")],
        [("hard", HARD, "../victim")],
        [("hard", HARD, "/etc/passwd")],
        [("in", LINK, "hard"), ("hard", HARD, "in")],
        [("device", tarfile.CHRTYPE, "")],
        [("pipe", tarfile.FIFOTYPE, "")],
        [("nowhere/escaped", FILE, "")],
    ],
)
def test_a_hostile_archive_makes_nothing(tmp_path: Path, members: list[tuple[str, bytes, str]]) -> None:
    (tmp_path / "victim").write_text("old")
    (tmp_path / "packed").write_bytes(hostile(("good", FILE, ""), *members))
    with pytest.raises(Unfit):
        unpack_folder(str(tmp_path / "packed"), str(tmp_path / "target"))
    assert sorted(os.listdir(tmp_path)) == ["packed", "victim"]
    assert (tmp_path / "victim").read_text() == "old"


@pytest.mark.req("T4.17")
def test_links_out_can_be_left_out_and_nobody_gets_special_bits(tmp_path: Path) -> None:
    (tmp_path / "packed").write_bytes(hostile(("good", FILE, ""), ("python", LINK, "/usr/bin/python3")))
    assert unpack_folder(str(tmp_path / "packed"), str(tmp_path / "target"), skip_foreign_links=True) == ["python"]
    assert os.listdir(tmp_path / "target") == ["good"]
    assert (tmp_path / "target" / "good").stat().st_mode & 0o7777 == 0o777


def test_a_cut_archive_makes_nothing(tmp_path: Path) -> None:
    whole = hostile(("good", FILE, ""), ("more", FILE, ""))
    for size in (100, 600, 1000, 1100):
        (tmp_path / "packed").write_bytes(whole[:size])
        with pytest.raises(ColdframeError):
            unpack_folder(str(tmp_path / "packed"), str(tmp_path / "target"))
        assert os.listdir(tmp_path) == ["packed"]


def test_a_folder_is_named_below_the_workspace() -> None:
    assert check_folder_name("./a//b/") == "a/b"
    for path, fault in (("/etc", OutsideWorkspace), ("a/../..", OutsideWorkspace), (".", InvalidArgument)):
        with pytest.raises(fault):
            check_folder_name(path)
