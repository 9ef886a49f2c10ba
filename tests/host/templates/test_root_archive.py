"""What an archive makes its reader hold has an end, however little of it lies on a disk."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from coldframe.contract.errors import InvalidArgument, LimitReached
from coldframe.host.templates import root_archive
from coldframe.host.templates.root_archive import read_root

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: files are given to others")
MEGABYTES = 1024 * 1024
OWNERS = (2_097_152, 2_097_152)


class Endless(io.RawIOBase):
    """A header, and then the same again and again."""

    def __init__(self, header: bytes, again: bytes) -> None:
        self._header, self._again = header, again
        self.at = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset
        return offset

    def read(self, size: int = -1) -> bytes:
        if self.at > 256 * MEGABYTES:
            raise AssertionError("it reads on and on")
        found = self._header[self.at : self.at + size]
        rest = max(0, self.at - len(self._header)) % len(self._again)
        while len(found) < size:
            found += self._again[rest : rest + size - len(found)]
            rest = 0
        self.at += size
        return found


def sparse_header() -> bytes:
    """Of a file with holes, whose list of these goes on in the block behind it."""
    member = tarfile.TarInfo("a")
    member.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(member.tobuf(format=tarfile.GNU_FORMAT))
    header[482] = 1
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    return bytes(header)


def test_a_list_of_holes_without_an_end_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    holes = (b"%011o\0%011o\0" % (512, 512)) * 21 + b"\1" + bytes(7)
    source = Endless(sparse_header(), holes)
    with pytest.raises(InvalidArgument, match="too large"):
        read_root(source, str(tmp_path), OWNERS)  # type: ignore[arg-type]
    assert source.at < 8 * MEGABYTES


def test_names_and_attributes_are_held_to_a_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root_archive, "_MOST_HELD_BYTES", 100_000)
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(50):
            member = tarfile.TarInfo(f"{number}-" + "n" * 200)
            member.type = tarfile.DIRTYPE
            member.pax_headers = {"SCHILY.xattr.user.note": "x" * 2000}
            tar.addfile(member)
    with pytest.raises(LimitReached, match="names and attributes"):
        read_root(io.BytesIO(target.getvalue()), str(tmp_path), OWNERS)
