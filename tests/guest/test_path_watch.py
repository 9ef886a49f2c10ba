"""A watch tells what happened, once and in order, and says where something is missing."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.paths import MOST_WATCH_EVENTS, MOST_WATCHED, MOST_WATCHES, WATCH_KEPT_S
from coldframe.guest import path_watch
from coldframe.guest.files import FileWriter
from coldframe.guest.loop import Loop
from coldframe.guest.path_watch import PathWatches
from coldframe.guest.paths import BoxRoot
from tests.guest.workspace import failure_of, noted_or_skip


class Watched:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.root = BoxRoot(os.open(path, os.O_PATH | os.O_DIRECTORY))
        self.loop = Loop()
        self.watches = PathWatches(self.loop)
        self._count = 0

    def begin(self, path: str = "/", **asked: Any) -> str:
        self._count += 1
        watch_id = f"wch_{self._count}"
        self.watches.begin(self.root, {"watch_id": watch_id, "path": path, **asked})
        return watch_id

    def told(self, watch_id: str) -> list[tuple[str, str]]:
        return [(one["kind"], one["name"]) for one in self.take(watch_id)["events"]]

    def take(self, watch_id: str) -> dict[str, Any]:
        return self.watches.find(watch_id).take()

    def write(self, path: str, content: bytes) -> None:
        """As the keeper writes."""
        writer = FileWriter(self.root, {"path": path})
        writer.write(content)
        writer.commit()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    here = os.getcwd()
    made = Watched(tmp_path)
    yield made
    for watch_id in list(made.watches._watches):
        made.watches.end(watch_id)
    os.close(made.root)
    os.chdir(here)


def test_the_bounds_are_those_of_the_contract() -> None:
    """The guest knows nothing of the contract, so they are written down twice."""
    found = (path_watch.MOST_WATCHES, path_watch.MOST_WATCHED, path_watch.MOST_EVENTS, path_watch.KEPT_S)
    assert found == (MOST_WATCHES, MOST_WATCHED, MOST_WATCH_EVENTS, WATCH_KEPT_S)


def test_what_the_keeper_writes_is_told_as_what_it_means(watched: Watched) -> None:
    watch_id = watched.begin()
    watched.write("/new", b"1")
    assert watched.told(watch_id) == [("create", "new"), ("chmod", "new"), ("write", "new")]
    watched.write("/new", b"2")
    assert watched.told(watch_id) == [("write", "new")]
    (watched.path / "new").unlink()
    watched.write("/new", b"3")
    assert watched.told(watch_id) == [("remove", "new"), ("create", "new"), ("chmod", "new"), ("write", "new")]
    with pytest.raises(Exception, match="another digest"):
        writer = FileWriter(watched.root, {"path": "/never", "sha256": "0" * 64})
        writer.write(b"x")
        writer.commit()
    assert watched.told(watch_id) == [], "a draft was told"


def test_a_directory_that_is_moved_is_known_by_its_new_name_alone(watched: Watched) -> None:
    (watched.path / "a" / "b").mkdir(parents=True)
    watch_id = watched.begin(recursive=True)
    (watched.path / "a").rename(watched.path / "z")
    assert watched.told(watch_id)[:2] == [("rename", "a"), ("create", "z")]
    (watched.path / "z" / "b" / "c").write_text("x")
    assert watched.told(watch_id) == [("create", "z/b/c"), ("write", "z/b/c")]
    outside = watched.path.parent / f"{watched.path.name}-outside"
    (watched.path / "z").rename(outside)
    (outside / "b" / "unseen").write_text("x")
    assert watched.told(watch_id) == [("rename", "z")]


def test_what_is_put_into_a_directory_before_it_is_watched_is_told_and_nothing_twice(watched: Watched) -> None:
    watch_id = watched.begin(recursive=True)
    (watched.path / "a" / "b").mkdir(parents=True)
    (watched.path / "a" / "b" / "c").write_text("x")
    told = watched.told(watch_id)
    assert [one for one in told if one[0] == "create"] == [("create", "a"), ("create", "a/b"), ("create", "a/b/c")]
    (watched.path / "a" / "b" / "c").write_text("y")
    assert set(watched.told(watch_id)) == {("write", "a/b/c")}


def test_the_end_of_the_directory_is_told_also_where_another_takes_its_name(watched: Watched) -> None:
    (watched.path / "d").mkdir()
    watch_id = watched.begin("/d")
    (watched.path / "d").rmdir()
    (watched.path / "d").mkdir()
    (watched.path / "d" / "other").touch()
    found = watched.take(watch_id)
    assert ([one["kind"] for one in found["events"]], found["ended"]) == (["remove"], True)
    assert watched.take(watch_id)["events"] == []


def test_more_than_is_kept_is_dropped_and_said_once(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_watch, "MOST_EVENTS", 10)
    watch_id = watched.begin()
    for number in range(20):
        (watched.path / str(number)).touch()
    found = watched.take(watch_id)
    assert (len(found["events"]), found["overflowed"]) == (10, True)
    (watched.path / "after").touch()
    found = watched.take(watch_id)
    assert (found["overflowed"], found["events"][0]["name"]) == (False, "after")


def test_whoever_writes_faster_than_is_read_holds_up_nothing_else(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_watch, "BUFFER_BYTES", 1024)  # some 30 events
    watch_id = watched.begin()
    for number in range(1000):
        (watched.path / str(number)).touch()
    watch, seen = watched.watches.find(watch_id), []

    def on_event() -> None:
        seen.append(len(watch._events))
        watched.loop.stop()  # it ends the turn of the loop that it is in

    watch.on_event = on_event
    watched.loop.run()
    assert (len(seen), seen[0] < 100) == (1, True), "one turn of the loop read more than a buffer"
    found, answers = [], 0
    while len(found) < 1000:
        told = watched.told(watch_id)
        assert told, "something is missing"
        found += [name for kind, name in told if kind == "create"]
        answers += 1
    assert found == [str(number) for number in range(1000)]
    assert answers > 1, "one answer read all that there was"


def test_notes_of_many_files_do_not_make_an_answer_as_large_as_the_box_wants(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_watch, "MOST_NOTES_BYTES", 3000)
    watch_id = watched.begin(with_info=True)
    for number in range(10):
        (watched.path / str(number)).touch()
        noted_or_skip(watched.path / str(number), {"n": b"x" * 1000})
    infos = {one["name"]: one["info"] for one in watched.take(watch_id)["events"] if one["kind"] == "create"}
    assert (len(infos), infos["0"] is not None, infos["9"]) == (10, True, None)
    for number in (0, 1) * 50:
        (watched.path / str(number)).write_text("x")
    events = watched.take(watch_id)["events"]
    assert sum(one["info"] is not None for one in events) == 3, "notes of one file are told as often as it has events"


def test_more_directories_than_are_watched_are_said_to_be_missing(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_watch, "MOST_WATCHED", 5)
    for number in range(10):
        (watched.path / str(number)).mkdir()
    watch_id = watched.begin(recursive=True)
    assert watched.take(watch_id)["overflowed"]


def test_watches_are_counted_and_those_that_nobody_asks_about_go(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = watched.begin()
    for _ in range(MOST_WATCHES - 1):
        watched.begin()
    assert failure_of(watched.begin).code == "LIMIT"
    assert watched.watches.begin(watched.root, {"watch_id": first, "path": "/"})["watch_id"] == first, "begun twice"
    now = watched.loop.time()
    monkeypatch.setattr(watched.loop, "time", lambda: now + WATCH_KEPT_S + 1)
    watched.begin()
    assert failure_of(lambda: watched.take(first)).code == "NOT_FOUND"


@pytest.mark.parametrize("watch_id", ["", "wch_", "wch_../x", "wch_" + "a" * 41, None, 7])
def test_an_id_that_is_none_is_refused(watched: Watched, watch_id: Any) -> None:
    refused = failure_of(lambda: watched.watches.begin(watched.root, {"watch_id": watch_id, "path": "/"}))
    assert refused.code == "INVALID_ARGUMENT"


def test_a_directory_with_more_names_than_are_kept_is_watched_all_the_same(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_watch, "MOST_NAMES", 10)
    for number in range(30):
        (watched.path / str(number)).touch()
    watch_id = watched.begin()
    assert watched.take(watch_id)["overflowed"], "whether a name is new is not known for all of them"
    (watched.path / "more").touch()
    assert ("create", "more") in watched.told(watch_id)
