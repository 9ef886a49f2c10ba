"""What boxes have as /etc is one copy of the machine's settings, and is made anew before the next box if they change."""

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coldframe.host import settings
from coldframe.host.isolation.namespaces import HOST_SETTINGS, LINKS, SETTINGS
from coldframe.host.machine import Machine
from coldframe.host.settings import HostSettings
from tests.host.machines import as_root_and_ordinary, needs_bubblewrap, new_box, on_a_machine, run


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody may enter, which those of pytest are not."""
    with tempfile.TemporaryDirectory(prefix="cf-settings-", dir="/tmp") as folder:
        os.chmod(folder, 0o711)
        yield Path(folder)


@pytest.fixture
def etc(place: Path) -> Path:
    """A machine's settings: a file, a directory, and links that lead elsewhere, by one step and by two."""
    etc = place / "etc"
    (etc / "ssl" / "certs" / "below").mkdir(parents=True)
    (etc / "ssl" / "certs" / "a.pem").write_text("a")
    (etc / "ssl" / "certs" / "below" / "b.pem").write_text("b")
    (etc / "ssl" / "certs" / "link.pem").symlink_to("a.pem")
    (etc / "services").write_text("http 80")
    (etc.parent / "services by another name").hardlink_to(etc / "services")
    (etc.parent / "b by another name").hardlink_to(etc / "ssl" / "certs" / "below" / "b.pem")
    (etc / "ours").write_text("not asked for")
    (place / "zones").mkdir()
    (place / "zones" / "UTC").write_text("UTC")
    (place / "zones" / "GMT").write_text("GMT")
    (etc / "localtime").symlink_to(place / "zones" / "UTC")
    (place / "elsewhere").write_text("kept elsewhere")
    (place / "between").symlink_to("elsewhere")
    (etc / "magic").symlink_to("../between")
    (place / "copies").mkdir()
    return etc


def _settings(etc: Path) -> HostSettings:
    names = ("ssl/certs", "services", "localtime", "magic", "missing", "absent/missing")
    return HostSettings(str(etc.parent / "copies"), root=str(etc), paths=[f"{etc}/{name}" for name in names])


def _current(held: HostSettings) -> Path:
    current = held.current()
    assert current is not None
    return Path(current)


def test_the_copy_holds_what_was_asked_for_and_what_is_made_up(etc: Path) -> None:
    copy = _current(_settings(etc))
    found = {str(path.relative_to(copy)) for path in copy.rglob("*") if not path.is_dir()}
    made_up = {path.removeprefix("/etc/") for path in (*SETTINGS, *LINKS)}
    certs = {f"ssl/certs/{name}" for name in ("a.pem", "below/b.pem", "link.pem")}
    assert found == {"services", "localtime", "magic", *certs, *made_up}
    assert (copy / "services").read_text() == "http 80"
    assert (copy / "magic").read_text() == "kept elsewhere"
    assert (copy / "localtime").read_text() == "UTC"
    assert os.readlink(copy / "ssl/certs/link.pem") == "a.pem"
    assert (copy / "passwd").read_text() == SETTINGS["/etc/passwd"]
    assert {path: os.readlink(copy / path.removeprefix("/etc/")) for path in LINKS} == LINKS


def test_files_keep_the_time_of_their_change_so_that_what_was_made_of_them_still_counts(etc: Path) -> None:
    """Python compiles `sitecustomize` of /etc at each start if it seems to be newer than what it was compiled to."""
    os.utime(etc / "services", ns=(1_700_000_000_123_456_789, 1_700_000_000_123_456_789))
    copy = _current(_settings(etc))
    assert (copy / "services").stat().st_mtime_ns == 1_700_000_000_123_456_789
    assert (copy / "magic").stat().st_mtime_ns == (etc.parent / "elsewhere").stat().st_mtime_ns


def test_boxes_can_read_it_whatever_the_umask(etc: Path) -> None:
    former = os.umask(0o077)
    try:
        copy = _current(_settings(etc))
    finally:
        os.umask(former)
    assert {path.stat().st_mode & 0o777 for path in copy.rglob("*") if path.is_dir()} == {0o755}
    files = [path for path in copy.rglob("*") if path.is_file() and not path.is_symlink()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o444}


def test_what_others_may_not_read_is_not_given_to_boxes(etc: Path) -> None:
    (etc / "services").chmod(0o640)
    (etc / "ssl" / "certs" / "a.pem").chmod(0o600)
    (etc / "ssl" / "certs" / "below").chmod(0o700)
    copy = _current(_settings(etc))
    assert not (copy / "services").exists()
    assert os.listdir(copy / "ssl" / "certs") == ["link.pem"]


@pytest.mark.parametrize("closed", ["etc/ssl/certs", "etc/ssl", "zones"])
def test_what_others_may_not_reach_is_not_given_to_boxes_until_they_may(etc: Path, closed: str) -> None:
    """Whatever its own mode: the copy lies where everybody can go."""
    folder = etc.parent / closed
    folder.chmod(0o750)
    held = _settings(etc)
    copy = _current(held)
    missing = copy / ("localtime" if closed == "zones" else "ssl")
    assert not missing.exists()
    assert (copy / "services").exists()
    folder.chmod(0o755)
    assert (_current(held) / missing.name).exists()


def test_a_link_is_followed_as_the_kernel_does(etc: Path) -> None:
    (etc.parent / "far" / "below").mkdir(parents=True)
    (etc.parent / "far" / "UTC").write_text("far")
    (etc.parent / "UTC").write_text("near")
    (etc / "there").symlink_to("../far/below")
    (etc / "localtime").unlink()
    (etc / "localtime").symlink_to("there/../UTC")
    held = _settings(etc)
    assert (_current(held) / "localtime").read_text() == (etc / "localtime").read_text() == "far"
    (etc.parent / "far" / "UTC").write_text("far again")
    assert (_current(held) / "localtime").read_text() == "far again"


def test_what_changes_while_it_is_copied_is_no_copy(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = settings._content

    def content_and_change(source: str) -> bytes:
        found = content(source)
        (etc / "services").write_text("http 81")
        return found

    held = _settings(etc)
    with monkeypatch.context() as patch:
        patch.setattr(settings, "_content", content_and_change)
        assert held.current() is None
    assert os.listdir(etc.parent / "copies") == []
    assert (_current(held) / "services").read_text() == "http 81"


@pytest.mark.parametrize(
    "change",
    [
        lambda etc: (etc / "services").write_text("http 81"),
        lambda etc: (etc / "new").write_text("http 80") and (etc / "new").rename(etc / "services"),
        lambda etc: (etc / "services").unlink(),
        lambda etc: (etc / "services").chmod(0o600),
        lambda etc: (etc / "missing").write_text("there now"),
        lambda etc: (etc / "ssl" / "certs" / "below" / "b.pem").write_text("c"),
        lambda etc: (etc / "ssl" / "certs" / "c.pem").write_text("c"),
        lambda etc: (etc / "ssl" / "certs").rename(etc / "ssl" / "old"),
        lambda etc: shutil.rmtree(etc / "ssl" / "certs"),
        lambda etc: (etc.parent / "elsewhere").write_text("else"),
        lambda etc: (etc.parent / "between").unlink() or (etc.parent / "between").symlink_to("zones/UTC"),
        lambda etc: (etc / "localtime").unlink() or (etc / "localtime").symlink_to("../zones/GMT"),
        lambda etc: (etc.parent / "zones" / "UTC").write_text("changed"),
        lambda etc: (etc / "absent").mkdir() or (etc / "absent" / "missing").write_text("there"),
        lambda etc: (etc / "ssl").rename(etc / "moved") and (etc / "ssl").symlink_to("moved"),
        lambda etc: (etc.parent / "services by another name").write_text("http 81"),
        lambda etc: (etc.parent / "b by another name").write_text("c"),
    ],
)
def test_every_change_of_a_source_is_in_the_next_copy_and_not_in_the_former(
    etc: Path, change: Callable[[Path], object]
) -> None:
    held = _settings(etc)
    former = _current(held)
    assert _current(held) == former
    change(etc)
    now = _current(held)
    assert now != former
    assert (former / "services").read_text() == "http 80"
    names = ("services", "missing", "magic", "localtime", "absent/missing", "ssl/certs/below/b.pem", "ssl/certs/c.pem")
    for name in names:
        source = etc / name
        readable = source.exists() and source.stat().st_mode & 0o004
        assert (now / name).exists() == bool(readable), name
        if readable:
            assert (now / name).read_text() == source.read_text()


def test_what_was_not_asked_for_changes_nothing_and_the_next_start_uses_the_copy_again(
    etc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "UNSURE_NS", 0)
    held = _settings(etc)
    copy = _current(held)
    (etc / "ours").write_text("changed")
    assert _current(held) == copy
    before = copy.stat().st_ctime_ns
    held.close()
    again = _current(_settings(etc))
    assert again == copy
    assert copy.stat().st_ctime_ns == before
    with monkeypatch.context() as patch:  # a copy may outlive a power failure by its name alone
        patch.setattr(settings, "_boot", lambda: "another")
        assert _current(_settings(etc)) != copy
    monkeypatch.undo()
    assert _current(_settings(etc)) != copy  # what has just changed could have changed since


def test_a_copy_that_is_being_made_is_not_removed(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = _settings(etc)
    removing = threading.Thread(target=held.remove_unused, args=(set(),))
    copy = settings._copy

    def copy_and_begin_to_remove(*arguments: Any) -> None:
        copy(*arguments)
        removing.start()
        removing.join(0.05)

    monkeypatch.setattr(settings, "_copy", copy_and_begin_to_remove)
    made = _current(held)
    removing.join()
    assert (made / "services").read_text() == "http 80"


def test_copies_that_no_box_has_are_removed(etc: Path) -> None:
    held = _settings(etc)
    copies = []
    for number in range(3):
        (etc / "services").write_text(f"http {number}")
        copies.append(str(_current(held)))
    held.remove_unused({copies[1]})
    assert {str(path) for path in (etc.parent / "copies").iterdir()} == set(copies[1:])
    shutil.rmtree(copies[2])
    assert _current(held).is_dir()


def test_without_a_watch_there_is_no_copy(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoWatch:
        def inotify_init1(self, _: int) -> int:
            return -1

    monkeypatch.setattr(settings, "_libc", NoWatch())
    assert _settings(etc).current() is None
    assert os.listdir(etc.parent / "copies") == []


@needs_bubblewrap
@as_root_and_ordinary
@pytest.mark.parametrize("copied", [True, False])
def test_a_box_has_the_settings_of_the_machine_with_a_copy_and_without(who: str, copied: bool) -> None:
    async def steps(machine: Machine) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if not copied:
                patch.setattr(HostSettings, "current", lambda _: None)
            box = await new_box(machine)
        shown = await run(
            box, "grep -c ' /etc' /proc/self/mountinfo; cd /etc; ls; cat passwd services ld.so.cache | cksum"
        )
        assert shown.stderr == ""
        mounts, *names, sum_of_box = shown.stdout.splitlines()
        assert (mounts == "1") == copied
        there = [path for path in HOST_SETTINGS if os.path.exists(path)]
        assert set(names) == {path.split("/")[2] for path in (*there, *SETTINGS, *LINKS)}
        browsers = await run(box, f"readlink {' '.join(LINKS)}; cat {next(iter(LINKS))}/*")
        assert browsers.stdout.splitlines() == list(LINKS.values())
        assert "No such file" in browsers.stderr  # without a way out
        data = SETTINGS["/etc/passwd"].encode()
        data += b"".join(Path(f"/etc/{name}").read_bytes() for name in ("services", "ld.so.cache"))
        assert sum_of_box.split()[1] == str(len(data))
        refused = await run(box, "echo x > /etc/passwd; touch /etc/new; chmod 777 /etc/hosts; rm -r /etc/alternatives")
        assert refused.stderr.count("Read-only file system") >= 4
        report = await (await machine.life("box")).report()
        assert {one.source for one in report.mounts if one.target.startswith("/etc")} == {"settings"}
        assert report.boundary_weakened == ()

    on_a_machine(steps, who=who)


@needs_bubblewrap
@as_root_and_ordinary
def test_a_sweep_keeps_the_settings_of_boxes_that_live(who: str) -> None:
    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        other = os.path.join(machine._data, "settings", "other")
        os.mkdir(other)
        machine._settings._current = None
        await machine.sweep(keep_boxes={"box"}, keep_sessions={"session-box"})
        assert not os.path.exists(other)
        assert (await run(box, "head -c 4 /etc/passwd")).stdout == "root"

    on_a_machine(steps, who=who)
