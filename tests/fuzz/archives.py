"""The target of archives: tars of root file systems, with entries that say other than they should, whole and damaged."""

import io
import os
import random
import shutil
import tarfile
import tempfile
from typing import Any

from coldframe.contract.errors import InvalidArgument, LimitReached
from coldframe.host.layers.branch import Branch
from coldframe.host.templates.root_archive import read_root
from tests.fuzz.target import Fault, within_processor_time

NAMES = (
    "a",
    "./a",
    "a/b",
    "bin",
    "bin/bash",
    "etc",
    "etc/passwd",
    "..",
    "a/../../canary",
    "/canary",
    "",
    ".",
    "a//b",
    "x" * 300,
)
KINDS = (*(b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"S", b"x", b"g", b"L", b"K", b"\0", b"Z"),)
PAX = (
    "path",
    "linkpath",
    "size",
    "uid",
    "mtime",
    "SCHILY.xattr.user.a",
    "SCHILY.xattr.security.capability",
    "GNU.sparse.map",
)
VALUES = ("0", "-1", "1" * 30, "../canary", "a", "/", "\0", "1.5", "nan", "0,1,2", "x" * 5000)
WHOLE = (
    ("bin", b"5", ""),
    ("bin/bash", b"0", ""),
    ("etc", b"5", ""),
    ("etc/passwd", b"0", ""),
    ("etc/group", b"0", ""),
)


class Archives:
    """Any bytes are unpacked into their place and nowhere else, or are refused as what they are."""

    name = "archives"

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="cf-fuzz-", dir="/tmp")
        self._canary = os.path.join(self._folder, "canary")
        with open(self._canary, "w", encoding="ascii") as canary:
            canary.write("untouched")

    def close(self) -> None:
        shutil.rmtree(self._folder)

    def make(self, random: random.Random) -> str:
        """In hexadecimal."""
        target = io.BytesIO()
        entries = [*WHOLE, *((random.choice(NAMES), random.choice(KINDS), random.choice(NAMES)) for _ in range(3))]
        for _ in range(random.randrange(3)):
            random.shuffle(entries[: random.randrange(8)])
            entries.insert(random.randrange(len(entries)), random.choice(entries))
        for name, kind, link in entries:
            target.write(_entry(random, name, kind, link))
        target.write(bytes(1024))
        content = bytearray(target.getvalue())
        for _ in range(random.choice([0, 0, 0, 1, 3])):
            content[random.randrange(len(content))] = random.randrange(256)
        if random.random() < 0.1:
            del content[random.randrange(len(content)) :]
        return content.hex()

    def check(self, value: Any) -> None:
        target = tempfile.mkdtemp(dir=self._folder)
        try:
            with within_processor_time():
                read_root(io.BytesIO(bytes.fromhex(value)), target, (os.getuid(), os.getgid()))
            with Branch(target) as branch:
                for path, status in branch.walk():
                    if status.st_rdev:
                        raise Fault(f"a device came of it: {path!r}")
        except (InvalidArgument, LimitReached):
            pass
        except PermissionError:
            if os.getuid() == 0:  # nobody else can give files to others
                raise
        except Fault:
            raise
        except BaseException as error:
            raise Fault(f"{type(error).__name__}: {error}") from error
        finally:
            shutil.rmtree(target)
        with open(self._canary, encoding="ascii") as canary:
            if canary.read() != "untouched" or os.listdir(self._folder) != ["canary"]:
                raise Fault("something was written outside")


def _entry(random: random.Random, name: str, kind: bytes, link: str) -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, link, random.choice([0o755, 0o7777, 0, 0o40755])
    content = random.choice([b"", b"root:x:0:0::/:/bin/bash\n", b"x" * 600])
    content = content if kind == b"0" or random.random() < 0.1 else b""
    member.size = len(content) if random.random() < 0.95 else random.choice([1, 513, 2**33, 2**62])
    if random.random() < 0.05:
        member.uid, member.gid = random.choice([(0, 65_535), (65_536, 0), (2**31, 1), (-1, -1)])
    if random.random() < 0.2:
        member.pax_headers = {random.choice(PAX): random.choice(VALUES) for _ in range(random.randrange(1, 4))}
    form = random.choice([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
    return member.tobuf(form, "utf-8", "surrogateescape") + content + bytes(-len(content) % 512)
