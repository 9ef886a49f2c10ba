"""The base system `debian`, built by the real program from the real package sources of this host."""

import json
import os
import shutil
import stat
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import pytest

from coldframe.contract.errors import IsolationUnavailable, NotFound, Unavailable
from coldframe.host import sandbox_users, workspaces
from coldframe.host.removal import remove_in_range
from coldframe.host.templates import debian
from coldframe.host.templates.id_range import FIRST_UID, IdRange, given_ids, hand_over, own_range, start_in_range
from coldframe.host.templates.store import Template, Templates

pytestmark = pytest.mark.timeout(900)  # whoever comes first waits for the build, and for a mirror
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: this user has no subordinate ids")
RANGE = IdRange(FIRST_UID, FIRST_UID)


def in_range(*program: str) -> subprocess.CompletedProcess[bytes]:
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = start_in_range(RANGE, program, output=output.fileno(), errors=errors.fileno())
        code = process.wait()
        for stream in (output, errors):
            stream.seek(0)
        return subprocess.CompletedProcess(program, code, output.read(), errors.read())


@as_root
def test_a_system_is_built_whole_and_is_nobodys_on_the_host(template: Template) -> None:
    root = Path(template.root)
    assert {"python3", "git", "apt", "ca-certificates"} <= {one.name for one in template.packages}
    assert "user:x:1000:1000::/home/user:/bin/bash" in (root / "etc/passwd").read_text().splitlines()
    assert not (root / "etc/machine-id").exists() and not (root / "etc/resolv.conf").exists()
    owners = {os.lstat(os.path.join(folder, name)).st_uid for folder, _, names in os.walk(root) for name in names}
    assert min(owners) == FIRST_UID and max(owners) < FIRST_UID + RANGE.size
    assert (root / "home/user").stat().st_uid == FIRST_UID + debian.USER_ID
    assert stat.S_IMODE(root.parent.stat().st_mode) == 0o710  # its set-uid programs are for nobody on the host
    stranger = {"user": 65534, "group": 65534, "extra_groups": []}
    assert subprocess.run(["test", "-e", root / "usr/bin/env"], **stranger).returncode == 1  # type: ignore[call-overload]
    assert b"exit 101" in (root / "usr/sbin/policy-rc.d").read_bytes()
    told = json.loads((root.parent / "manifest.json").read_text())
    assert [tuple(one) for one in told["packages"]] == list(template.packages)


@as_root
def test_it_is_listed_found_by_its_digest_and_a_changed_byte_is_seen(data: Path, template: Template) -> None:
    store = Templates(str(data))
    assert store.list() == [template] == [store.get(template.digest)]
    assert store.verify(template.digest)
    changed = Path(template.root, "usr/bin/env")
    before = changed.read_bytes()
    with changed.open("r+b") as program:
        program.seek(len(before) - 1)
        program.write(bytes([before[-1] ^ 1]))
    assert not store.verify(template.digest)
    changed.write_bytes(before)
    assert store.verify(template.digest)
    for absent in ("0" * 64, "../templates", ""):
        with pytest.raises(NotFound):
            store.get(absent)


@as_root
def test_a_build_that_is_broken_off_or_killed_leaves_nothing(data: Path, template: Template) -> None:
    store = Templates(str(data))
    with pytest.raises(Unavailable, match="mmdebstrap"):
        store.build_debian(log=lambda _: None, is_wanted=lambda: False)
    with pytest.raises(Unavailable, match="no-such-package"):
        store.build_debian(log=lambda _: None, extra=("no-such-package",))
    assert os.listdir(data / "templates") == [template.digest]
    with store._draft(RANGE) as draft:
        os.mkdir(f"{draft}/root")
        store.sweep()  # one that is at work is let be
        assert os.path.isdir(f"{draft}/root")
    left = data / "templates" / ".new-killed"
    (left / "root").mkdir(parents=True)
    (left / "root" / "file").write_text("half")
    store.sweep()
    assert os.listdir(data / "templates") == [template.digest]


@as_root
def test_one_that_is_removed_is_gone(tmp_path: Path) -> None:
    store = Templates(str(tmp_path))
    place = tmp_path / "templates" / ("a" * 64)
    (place / "root" / "etc").mkdir(parents=True)
    told = {"name": "debian", "created_at": "2026-01-01T00:00:00+00:00", "release": "x", "packages": [], "ids": RANGE}
    (place / "manifest.json").write_text(json.dumps(told))
    clear = store.bury("a" * 64)
    assert store.list() == [] and store.digests() == set()  # its name is gone first
    clear()
    assert os.listdir(tmp_path / "templates") == [] and store.list() == []


@as_root
def test_what_builds_is_root_over_its_range_and_nobody_else(data: Path) -> None:
    assert in_range("id", "-u").stdout == b"0\n"
    assert in_range("cat", "/etc/shadow").returncode != 0
    assert in_range("sh", "-c", "echo $$").stdout == b"1\n"
    made = data / "made"
    made.mkdir()
    hand_over(str(made), RANGE)
    assert in_range("sh", "-c", f"echo x > {made}/own && chown 12:34 {made}/own").returncode == 0
    assert ((made / "own").stat().st_uid, (made / "own").stat().st_gid) == (FIRST_UID + 12, FIRST_UID + 34)
    assert in_range("chown", "65536:0", str(made / "own")).returncode != 0
    remove_in_range(str(made), RANGE)
    assert not made.exists()


@as_root
def test_all_that_it_starts_ends_with_it() -> None:
    reading, writing = os.pipe()
    process = start_in_range(RANGE, ["sh", "-c", "sleep 1000 & sleep 1000"], output=writing, errors=writing)
    os.close(writing)
    process.kill()
    process.wait()
    with open(reading, "rb") as held:
        assert held.read() == b""  # comes back once nobody holds the other end


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_ids_that_a_user_of_the_host_may_become_are_nobodys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, none = tmp_path / "subuid", tmp_path / "none"
    file.write_text(f"root:1000000:1000000000\nthirtieth:{FIRST_UID - 100_000}:100001\n")
    with pytest.raises(IsolationUnavailable, match="thirtieth"):
        own_range(subuid=str(none), subgid=str(file))
    first = sandbox_users.FIRST_UID
    file.write_text(f"root:1000000:1000000000\none:{first - 9}:10\nother:{sandbox_users.range_of(first + 1)}:1\n")
    assert own_range(subuid=str(file), subgid=str(none)) == RANGE
    monkeypatch.setattr(workspaces, "given_ids", partial(given_ids, subuid=str(file), subgid=str(none)))
    for name in ("workspace", "background"):
        (tmp_path / name).mkdir()
    assert workspaces.Workspaces(str(tmp_path)).reserve_user() == first + 2


def test_what_is_missing_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 65533)
    nothing = tmp_path / "subuid"
    nothing.write_text("somebody:100000:65536\n65533:1:10\n")
    with pytest.raises(IsolationUnavailable) as refused:
        own_range(subuid=str(nothing), subgid=str(nothing))
    assert "usermod --add-subuids" in refused.value.advice
    nothing.write_text("65533:300000:65536\n")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(IsolationUnavailable, match="newuidmap"):
        own_range(subuid=str(nothing), subgid=str(nothing))
    monkeypatch.setattr(shutil, "which", lambda name: name)
    assert own_range(subuid=str(nothing), subgid=str(nothing)) == IdRange(300_000, 300_000)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(IsolationUnavailable, match="mmdebstrap") as missing:
        debian.build(str(tmp_path), RANGE, log=lambda _: None)
    assert "apt-get install mmdebstrap" in missing.value.advice


def test_the_sources_of_a_debian_host_are_taken_and_of_another_none(tmp_path: Path) -> None:
    (tmp_path / "apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "apt/sources.list").write_text("# nothing\n")
    (tmp_path / "apt/sources.list.d/mirror.sources").write_text("Types: deb\nURIs: http://mirror.test/debian\n")
    (tmp_path / "apt/sources.list.d/old.sources.bak").write_text("URIs: http://other.test/\n")
    (tmp_path / "os-release").write_text('ID=debian\nVERSION_CODENAME="trixie"\n')
    assert debian.sources(str(tmp_path)) == ("trixie", [str(tmp_path / "apt/sources.list.d/mirror.sources")])
    (tmp_path / "os-release").write_text("ID=ubuntu\nVERSION_CODENAME=noble\n")
    assert debian.sources(str(tmp_path)) == (debian.RELEASE, [])


@pytest.mark.parametrize("what", ["link", "link above", "pipe", "directory", "nothing"])
def test_a_list_of_packages_that_leads_elsewhere_is_not_read(tmp_path: Path, what: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "status").write_text("Package: a\nVersion: 1\nStatus: install ok installed\n")
    place = tmp_path / "root" / "var" / "lib" / "dpkg"
    place.parent.mkdir(parents=True)
    if what == "link above":
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.mkdir()
    if what == "link":
        (place / "status").symlink_to(tmp_path / "elsewhere" / "status")
    elif what == "pipe":
        os.mkfifo(place / "status")
    elif what == "directory":
        (place / "status").mkdir()
    with pytest.raises(Unavailable, match="does not tell its packages"):
        debian.packages(str(tmp_path / "root"))
