"""A point of time goes through one tar file and comes back the same; an archive that is hostile or broken leaves nothing."""

import hashlib
import io
import os
import random
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from coldframe.contract.errors import LimitReached, SnapshotCorrupt
from coldframe.host.layers import tape
from coldframe.host.layers.archive import Caps, Contents
from coldframe.host.layers.manifest import ContentDigest
from coldframe.host.layers.moves import Wish
from coldframe.host.layers.records import Snapshot
from coldframe.host.layers.store import LayerStore
from coldframe.host.layers.tape import DIRECTORY, FILE, HARD_LINK, SYMBOLIC_LINK, Member
from tests.host.layers.trees import at_work, disturb, look_through, require_overlay

CAPS = Caps(data_bytes=1 << 30, entries=10_000)


def exported(store: LayerStore, point: str) -> tuple[bytes, Contents]:
    target = io.BytesIO()
    contents = store.export(point, target.write)
    return target.getvalue(), contents


def taken_in(store: LayerStore, archive: bytes, caps: Caps = CAPS, expected: str | None = None) -> Snapshot:
    return store.take_in(io.BytesIO(archive), caps, expected=expected)[0]


@pytest.fixture
def store(tmp_path: Path) -> LayerStore:
    return LayerStore(str(tmp_path / "store"))


@pytest.fixture
def filled(store: LayerStore) -> str:
    """A snapshot of two layers with a bit of everything."""
    stack = store.create()
    lower = Path(store.stacking(stack.id, "").upper)
    (lower / "kept" / "deep").mkdir(parents=True)
    (lower / "gone").write_text("gone")
    (lower / "kept" / "below").write_text("below")
    store.take_snapshot(stack.id)
    upper = Path(store.stacking(stack.id, "").upper)
    os.mknod(upper / "gone", stat.S_IFCHR, 0)
    (upper / "one").write_text("content")
    (upper / "one").chmod(0o751)
    os.setxattr(upper / "one", "user.binary", b"\0=\n\xff")
    os.utime(upper / "one", ns=(1, -1_500_000_000))
    os.link(upper / "one", upper / "two")
    (upper / ("long-" + "n" * 200)).symlink_to("t" * 300)
    (upper / "\udcff\udcfe").write_text("no text")
    with (upper / "sparse").open("wb") as file:
        for offset in (1 << 20, 1 << 34):
            file.seek(offset)
            file.write(b"data")
        file.truncate(1 << 35)
    os.mkfifo(upper / "pipe")
    (upper / "closed").mkdir(mode=0o500)
    (upper / ".exec_history").write_text("what was done")
    return store.take_snapshot(stack.id, Wish(label="internal")).id


def test_what_comes_back_is_the_same(tmp_path: Path, store: LayerStore, filled: str) -> None:
    archive, contents = exported(store, filled)
    other = LayerStore(str(tmp_path / "other"))
    snapshot, found = other.take_in(io.BytesIO(archive), CAPS, expected=contents.sha256)
    with store.view(filled) as view, other.view(snapshot.id) as back:
        assert look_through(back) == look_through(view)
        assert back.find("one").status.st_ino == back.find("two").status.st_ino
        assert back.find("sparse").status.st_size == 1 << 35
        assert back.find("sparse").status.st_blocks <= view.find("sparse").status.st_blocks
    assert found == contents
    assert (snapshot.label, snapshot.reason) == ("internal", "imported")
    assert exported(other, snapshot.id) == (archive, contents), "and once more it is the same archive"
    other.close()


@pytest.mark.parametrize("seed", range(2))
def test_a_tree_that_programs_made_comes_back_the_same(tmp_path: Path, store: LayerStore, seed: int) -> None:
    require_overlay(tmp_path)
    stack = store.create()
    for turn in range(3):
        with at_work(store, stack.id, tmp_path / "merged") as place:
            disturb(place, random.Random(seed * 10 + turn))
        store.take_snapshot(stack.id)
    archive, contents = exported(store, stack.id)
    snapshot = taken_in(store, archive, expected=contents.sha256)
    with store.view(stack.id) as view, store.view(snapshot.id) as back:
        assert look_through(back) == look_through(view)


def test_any_tar_program_reads_it(tmp_path: Path, store: LayerStore, filled: str) -> None:
    archive, _ = exported(store, filled)
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        names = opened.getnames()
        assert names[0] == "coldframe.json"
        assert names[-1] == "manifest.jsonl"
        assert "files/\udcff\udcfe" in names
        assert opened.getmember("files/sparse").size == 1 << 35
    (tmp_path / "a.tar").write_bytes(archive)
    options = ["--extract", "--xattrs", "--file", str(tmp_path / "a.tar"), "--directory", str(tmp_path / "out")]
    (tmp_path / "out").mkdir()
    done = subprocess.run(["tar", *options, "--exclude=files/closed"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    top = tmp_path / "out" / "files"
    assert (top / "one").samefile(top / "two")
    assert os.getxattr(top / "one", "user.binary") == b"\0=\n\xff"
    assert (top / "sparse").stat().st_blocks < 1000
    assert not (top / "gone").exists()


def test_root_who_unpacks_one_gets_no_program_of_roots_from_it(tmp_path: Path, store: LayerStore) -> None:
    stack = store.create()
    upper = Path(store.stacking(stack.id, "").upper)
    (upper / "folder").mkdir()
    (upper / "folder").chmod(0o2775)
    (upper / "program").write_text("content")
    (upper / "program").chmod(0o6755)
    archive, contents = exported(store, store.take_snapshot(stack.id).id)
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        modes = {name: opened.getmember(f"files/{name}").mode for name in ("folder", "program")}
    assert modes == {"folder": 0o2775, "program": 0o755}
    taken_in(store, archive, expected=contents.sha256)


def test_cut_off_anywhere_it_is_refused_and_nothing_stays(tmp_path: Path, store: LayerStore, filled: str) -> None:
    archive, _ = exported(store, filled)
    chance = random.Random(3)
    for length in [0, 1, 511, 512, len(archive) - 512, len(archive) - 1, *chance.sample(range(len(archive)), 20)]:
        with pytest.raises(SnapshotCorrupt):
            taken_in(store, archive[:length])
    assert os.listdir(tmp_path / "store" / "drafts") == os.listdir(tmp_path / "store" / "gone") == []


def test_altered_anywhere_it_is_refused_and_nothing_stays(tmp_path: Path, store: LayerStore, filled: str) -> None:
    archive, contents = exported(store, filled)
    before = len(store.snapshots())
    chance = random.Random(4)
    for _ in range(80):
        at = chance.randrange(len(archive))
        altered = archive[:at] + bytes([archive[at] ^ (1 << chance.randrange(8))]) + archive[at + 1 :]
        try:
            store.remove_snapshot(taken_in(store, altered, expected=contents.sha256).id)
        except SnapshotCorrupt:
            continue
        assert _means_nothing(archive, at), f"a changed byte at {at} was taken"
    assert len(store.snapshots()) == before
    assert os.listdir(tmp_path / "store" / "drafts") == []


def _means_nothing(archive: bytes, at: int) -> bool:
    """Padding, fields of a header that no reader needs, and the label, which is no part of the manifest."""
    head_bytes = archive.index(b"files\0")
    return at < head_bytes or archive[at - at % 512 :][:512].rstrip(b"\0") == b"" or archive[at] == 0


def test_another_archive_than_expected_is_refused(store: LayerStore, filled: str) -> None:
    archive, _ = exported(store, filled)
    with pytest.raises(SnapshotCorrupt, match="expected"):
        taken_in(store, archive, expected=hashlib.sha256(b"another").hexdigest())


def hostile(*members: Member) -> bytes:
    head = b'{"coldframe": 1, "label": ""}'
    parts = [(Member(b"coldframe.json", FILE, size=len(head), ranges=[(0, len(head))]), head)]
    parts.append((Member(b"files", DIRECTORY, 0o755), b""))
    parts += [(member, b"x" * member.data_bytes) for member in members]
    return b"".join(tape.head_of(one) + data + tape.padding(len(data)) for one, data in parts) + tape.END


HOSTILE: dict[str, bytes] = {
    "up": hostile(Member(b"files/../x", FILE)),
    "up inside": hostile(Member(b"files/a", DIRECTORY), Member(b"files/a/../../x", FILE)),
    "absolute": hostile(Member(b"/etc/x", FILE)),
    "absolute below": hostile(Member(b"files//etc/x", FILE)),
    "beside": hostile(Member(b"elsewhere/x", FILE)),
    "dot": hostile(Member(b"files/./x", FILE)),
    "too long": hostile(Member(b"files/" + b"n" * 300, FILE)),
    "twice": hostile(Member(b"files/x", FILE), Member(b"files/x", FILE)),
    "top twice": hostile(Member(b"files", DIRECTORY)),
    "no parent": hostile(Member(b"files/a/x", FILE)),
    "through a link": hostile(
        Member(b"files/a", SYMBOLIC_LINK, target=b"/tmp"), Member(b"files/a/x", FILE, size=1, ranges=[(0, 1)])
    ),
    "link replaced": hostile(Member(b"files/a", SYMBOLIC_LINK, target=b"/tmp"), Member(b"files/a", DIRECTORY)),
    "below a file": hostile(Member(b"files/a", FILE), Member(b"files/a/x", FILE)),
    "link out": hostile(Member(b"files/x", HARD_LINK, target=b"/etc/passwd")),
    "link up": hostile(Member(b"files/x", HARD_LINK, target=b"files/../../../etc/passwd")),
    "link to a link": hostile(
        Member(b"files/a", SYMBOLIC_LINK, target=b"/etc/passwd"), Member(b"files/x", HARD_LINK, target=b"files/a")
    ),
    "character device": hostile(Member(b"files/x", b"3")),
    "block device": hostile(Member(b"files/x", b"4")),
    "old long name": hostile(Member(b"files/x", b"L")),
    "global header": hostile(Member(b"files/x", b"g")),
    "overlay attribute": hostile(Member(b"files/x", DIRECTORY, attributes={b"user.overlay.opaque": b"y"})),
    "capability": hostile(Member(b"files/x", FILE, attributes={b"security.capability": b"\1" * 20})),
    "access list": hostile(Member(b"files/x", FILE, attributes={b"system.posix_acl_access": b"\2\0\0\0"})),
    "attribute without a name": hostile(Member(b"files/x", FILE, attributes={b"user.": b""})),
    "attribute with a NUL": hostile(Member(b"files/x", FILE, attributes={b"user.a\0b": b""})),
    "attribute of a link": hostile(Member(b"files/x", SYMBOLIC_LINK, target=b"a", attributes={b"user.a": b""})),
    "large attribute": hostile(Member(b"files/x", FILE, attributes={b"user.a": bytes(70_000)})),
    "endless link": hostile(Member(b"files/x", SYMBOLIC_LINK, target=b"t" * 5000)),
    "no manifest": hostile(Member(b"files/x", FILE)),
    "impossible size": hostile(Member(b"files/x", FILE, size=1 << 60)),
    "negative range": hostile(Member(b"files/x", FILE, size=10, ranges=[(5, 4)])),
    "ranges that overlap": hostile(Member(b"files/x", FILE, size=100, ranges=[(0, 50), (40, 60)])),
    "empty link": hostile(Member(b"files/x", SYMBOLIC_LINK)),
    "nested beginning": tape.head_of(Member(b"coldframe.json", FILE, size=60_000, ranges=[(0, 60_000)]))
    + b"[" * 60_000
    + tape.padding(60_000)
    + tape.END,
    "no export": b"PK\3\4" + bytes(2000),
    "empty": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_and_nothing_stays(tmp_path: Path, store: LayerStore, name: str) -> None:
    with pytest.raises(SnapshotCorrupt):
        taken_in(store, HOSTILE[name])
    assert store.snapshots() == []
    for folder in ("drafts", "trees", "gone"):
        assert os.listdir(tmp_path / "store" / folder) == []
    assert sorted(os.listdir(tmp_path)) == ["store"]


@pytest.mark.parametrize(
    ("archive", "caps"),
    [
        (hostile(*(Member(b"files/%d" % number, FILE) for number in range(50))), Caps(1000, 40)),
        (hostile(Member(b"files/x", FILE, size=5000, ranges=[(0, 5000)])), Caps(4999, 40)),
    ],
    ids=["files", "bytes"],
)
def test_an_archive_that_brings_too_much_is_stopped(
    tmp_path: Path, store: LayerStore, archive: bytes, caps: Caps
) -> None:
    with pytest.raises(LimitReached) as refused:
        taken_in(store, archive, caps)
    assert refused.value.facts["limit"] in (40, 4999)
    assert os.listdir(tmp_path / "store" / "drafts") == []


def test_names_and_attributes_that_are_held_are_bounded(store: LayerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coldframe.host.layers.archive._MOST_HELD_BYTES", 5000)
    names = hostile(*(Member(b"files/%0200d" % number, FILE) for number in range(30)))
    attributes = [Member(b"files/%d" % number, DIRECTORY, attributes={b"user.a": bytes(400)}) for number in range(30)]
    for content in (names, hostile(*attributes)):
        with pytest.raises(LimitReached, match="names and attributes"):
            taken_in(store, content)


def test_headers_cannot_take_memory_or_time(store: LayerStore) -> None:
    large = tape._header(b"pax/x", b"x", 0o644, 1 << 33, 0, b"")
    many = b"".join(b"7 %c=%c\n" % (65 + number % 26, 65 + number % 26) for number in range(100_000))
    repeated = tape._header(b"pax/x", b"x", 0o644, len(many), 0, b"") + many + tape.padding(len(many))
    for header in (large, repeated):
        with pytest.raises(SnapshotCorrupt):
            taken_in(store, hostile()[:-1024] + header + bytes(1024))


def test_the_digest_of_a_file_does_not_depend_on_where_its_holes_are() -> None:
    chance = random.Random(5)
    content = bytearray(1 << 20)
    for _ in range(6):
        at = chance.randrange(len(content) - 5000)
        content[at : at + 5000] = chance.randbytes(5000)

    def digest(block: int) -> str:
        found = ContentDigest()
        for start in range(0, len(content), block):
            if any(piece := bytes(content[start : start + block])):
                found.add(piece, start)
        return found.finish(len(content))

    assert len({digest(block) for block in (512, 4096, 65536, 1 << 20)}) == 1
    whole = ContentDigest()
    whole.add(b"no zeros", 0)
    assert whole.finish(8) == hashlib.sha256(b"no zeros").hexdigest()
