"""What a sandbox reached and tried to reach is on record whole, in bounded room, and can be read after a crash."""

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from coldframe.contract.policy import Label, Outcome
from coldframe.host.egress import lineage as lineage_file
from coldframe.host.egress.contact import EgressContact, EgressRequest
from coldframe.host.egress.lineage import Line, Lineage, LineageLost

NOW = datetime(2030, 1, 2, 3, 4, 5, 678901, UTC)


@pytest.fixture
def kept(tmp_path: Path) -> Lineage:
    return opened(tmp_path)


def opened(folder: Path) -> Lineage:
    made = Lineage(str(folder), clock=lambda: NOW)
    made.open("sb-1")
    return made


def begun(number: int = 1) -> EgressContact:
    return EgressContact(
        f"run-{number}",
        "sb-1",
        "tcp",
        "198.18.1.0",
        443,
        NOW,
        name="api.example.com",
        scheme="https",
        mode="sni",
        outcome=Outcome.ALLOW,
        rule_id="site",
        reason="said in `a rule` – ü",
        label=Label.INTERNAL,
    )


def ended(number: int = 1) -> EgressContact:
    return replace(begun(number), ended="closed", ended_at=NOW, sent_bytes=7, received_bytes=9, dialled="192.0.2.1")


def denied(name: str = "no.example.com", port: int = 53) -> EgressContact:
    made = EgressContact("run-0", "sb-1", "udp", "", port, NOW, name=name, rule_id="network:default")
    return replace(made, ended="denied", ended_at=NOW)


def events(lines: list[Line]) -> list[str]:
    return [line.event for line in lines]


def test_a_contact_is_read_as_it_was_written(kept: Lineage) -> None:
    kept.begin(begun())
    kept.end(ended())
    kept.end(denied())
    page = kept.read("sb-1")
    assert page.lines == [
        Line(1, "begun", NOW, begun()),
        Line(2, "ended", NOW, ended()),
        Line(3, "denied", NOW, denied()),
    ]
    assert (page.more, page.sums, page.is_torn) == (False, [], False)


def test_it_is_read_from_where_one_has_stopped(kept: Lineage) -> None:
    for number in range(5):
        kept.begin(begun(number))
    first = kept.read("sb-1", limit=2)
    assert ([line.seq for line in first.lines], first.more) == ([1, 2], True)
    rest = kept.read("sb-1", after=2)
    assert ([line.seq for line in rest.lines], rest.more) == ([3, 4, 5], False)
    assert kept.read("sb-1", after=5).lines == [] == kept.read("sb-2").lines


def test_requests_are_lines_of_their_own(kept: Lineage) -> None:
    allowed = EgressRequest("GET", "/x", Outcome.ALLOW, "r", NOW)
    with pytest.raises(LineageLost):
        kept.request(begun(), allowed)
    kept.begin(begun())
    kept.request(begun(), allowed)
    for _ in range(20):
        kept.request(begun(), replace(allowed, outcome=Outcome.DENY, rule_id="d"))
    page = kept.read("sb-1")
    assert events(page.lines) == ["begun", *["request"] * 11]
    assert page.lines[1].contact == replace(begun(), requests=[allowed])
    assert [(one.wanted, one.rule_id, one.times) for one in page.sums] == [("api.example.com", "d", 10)]


def test_a_connection_begins_on_record_with_the_first_request_that_is_allowed(kept: Lineage) -> None:
    denied_request = EgressRequest("PUT", "/x", Outcome.DENY, "d", NOW)
    allowed = EgressRequest("GET", "/x", Outcome.ALLOW, "r", NOW)
    kept.begin(replace(begun(), outcome=Outcome.DENY, rule_id="d"))
    kept.request(begun(), denied_request)
    kept.request(begun(), allowed)
    kept.end(replace(ended(), requests=[denied_request, allowed]))
    lines = kept.read("sb-1").lines
    assert events(lines) == ["request", "begun", "request", "ended"]
    told = lines[1].contact
    assert told is not None and (told.outcome, told.rule_id) == (Outcome.ALLOW, "r")


def test_connections_whose_requests_are_all_denied_take_bounded_room(kept: Lineage) -> None:
    request = EgressRequest("PUT", "/x", Outcome.DENY, "d", NOW)
    for number in range(100):
        contact = replace(begun(number), outcome=Outcome.DENY, rule_id="d")
        kept.begin(contact)
        kept.request(contact, request)
        kept.end(replace(contact, requests=[request], ended="denied", ended_at=NOW))
    page = kept.read("sb-1")
    assert events(page.lines) == ["request"] * 10
    assert [(one.rule_id, one.times) for one in page.sums] == [("d", 90)]
    # What was denied for another reason than its requests is counted with that.
    kept.begin(replace(begun(200), outcome=Outcome.DENY, rule_id="d"))
    kept.end(replace(ended(200), outcome=Outcome.ALLOW, rule_id="network:journal"))
    last = kept.read("sb-1").lines[-1]
    assert last.event == "denied" and last.contact is not None and last.contact.outcome is Outcome.DENY


# -- bounds ----------------------------------------------------------------------------------------


def test_attempts_that_were_added_up_before_are_counted_each(kept: Lineage) -> None:
    kept.end(denied())
    kept.end(replace(denied(), times=500))
    kept.end(denied())
    page = kept.read("sb-1")
    assert events(page.lines) == ["denied"] * 2
    assert [one.times for one in page.sums] == [500]


def test_equal_denied_attempts_are_added_up_after_the_first(kept: Lineage, tmp_path: Path) -> None:
    for _ in range(1000):
        kept.end(denied())
    kept.end(denied(port=54))
    page = kept.read("sb-1")
    assert events(page.lines) == ["denied"] * 11
    (added,) = page.sums
    assert (added.protocol, added.wanted, added.port, added.rule_id) == ("udp", "no.example.com", 53, "network:default")
    assert (added.times, added.first_at, added.last_at) == (990, NOW.isoformat(), NOW.isoformat())


def test_a_million_names_take_bounded_room_and_none_is_uncounted(
    kept: Lineage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage_file, "MOST_SUMS", 20)
    for number in range(500):
        kept.end(denied(f"n{number}.example.com"))
    page = kept.read("sb-1")
    assert len(page.lines) == 20 and len(page.sums) == 21
    assert len(page.lines) + sum(one.times for one in page.sums) == 500
    assert page.sums[-1].times == 460 and page.sums[-1].wanted == ""
    monkeypatch.setattr(lineage_file, "DENIED_BYTES", 0)
    kept.end(denied("n0.example.com"))
    assert len(kept.read("sb-1").lines) == 20
    kept.begin(begun())


def test_a_full_record_lets_nothing_begin(kept: Lineage, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.begin(begun())
    monkeypatch.setattr(lineage_file, "MOST_BYTES", 10)
    with pytest.raises(LineageLost, match="full"):
        kept.begin(begun(2))
    assert kept.end(ended())
    assert events(kept.read("sb-1").lines) == ["begun", "ended"]


def test_texts_are_cut(kept: Lineage) -> None:
    kept.end(replace(denied(), reason="x" * 100_000))
    (line,) = kept.read("sb-1").lines
    assert line.contact is not None and len(line.contact.reason) == 1024


# -- faults ----------------------------------------------------------------------------------------


def full_disk(after_bytes: int, write: Callable[[int, bytes], int] = os.write) -> Callable[[int, bytes], int]:
    def some(file: int, data: bytes) -> int:
        if after_bytes == 0:
            raise OSError(errno.ENOSPC, "no space left on device")
        return write(file, data[:after_bytes])

    return some


@pytest.mark.parametrize("after_bytes", [0, 1, 40])
def test_a_full_disk_denies_and_owes_the_end(kept: Lineage, monkeypatch: pytest.MonkeyPatch, after_bytes: int) -> None:
    kept.begin(begun())
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full_disk(after_bytes))
        with pytest.raises(LineageLost):
            kept.begin(begun(2))
        assert not kept.end(ended())
        kept.end(denied())
        with pytest.raises(LineageLost):
            kept.begin(begun(3))
    assert events(kept.read("sb-1").lines) == ["begun"]
    kept.begin(begun(4))
    page = kept.read("sb-1")
    assert [(line.seq, line.event) for line in page.lines] == [(1, "begun"), (2, "ended"), (3, "begun")]
    assert [one.times for one in page.sums] == [1]


def test_what_a_crash_has_torn_is_dropped_and_told(kept: Lineage, tmp_path: Path) -> None:
    kept.begin(begun())
    kept.begin(begun(2))
    whole = (tmp_path / "sb-1.jsonl").read_bytes()
    for length in range(whole.index(b"\n") + 2, len(whole)):
        (tmp_path / "sb-1.jsonl").write_bytes(whole[:length])
        page = Lineage(str(tmp_path)).read("sb-1")
        assert (events(page.lines), page.is_torn) == (["begun"], True)
    later = Lineage(str(tmp_path), clock=lambda: NOW)
    assert not later.open("sb-1")
    page = later.read("sb-1")
    assert [(line.seq, line.event) for line in page.lines] == [(1, "begun"), (2, "torn"), (3, "ended")]
    assert page.lines[2].contact == replace(begun(), ended="the host daemon ended", ended_at=NOW, is_partial=True)
    assert not page.is_torn and later.open("sb-1")
    later.begin(begun(3))
    assert events(later.read("sb-1", after=3).lines) == ["begun"]


def test_counts_go_on_after_a_restart(kept: Lineage, tmp_path: Path) -> None:
    for _ in range(8):
        kept.end(denied())
    later = opened(tmp_path)
    for _ in range(8):
        later.end(denied())
    assert (len(later.read("sb-1").lines), [one.times for one in later.read("sb-1").sums]) == (10, [6])
    last = opened(tmp_path)
    last.end(denied())
    assert (len(last.read("sb-1").lines), [one.times for one in last.read("sb-1").sums]) == (10, [7])


def test_denied_requests_go_on_being_counted_after_a_restart(kept: Lineage, tmp_path: Path) -> None:
    request = EgressRequest("PUT", "/x", Outcome.DENY, "d", NOW)
    kept.begin(begun())
    for _ in range(8):
        kept.request(begun(), request)
    later = opened(tmp_path)
    later.begin(begun(2))
    for _ in range(8):
        later.request(begun(2), request)
    page = later.read("sb-1")
    assert events(page.lines).count("request") == 10 and [one.times for one in page.sums] == [6]


def test_a_line_that_somebody_has_damaged_hides_no_other(kept: Lineage, tmp_path: Path) -> None:
    for number in range(3):
        kept.begin(begun(number))
    lines = (tmp_path / "sb-1.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "sb-1.jsonl").write_bytes(lines[0] + b"\xff\n" + b'{"seq":1,"event":"begun","at":"x"\n' + lines[2])
    (tmp_path / "sb-1.json").write_bytes(b"[{")
    later = opened(tmp_path)
    assert events(later.read("sb-1").lines) == ["begun", "begun", "ended", "ended"]


def test_it_is_for_its_owner_alone_and_a_box_names_no_path(kept: Lineage, tmp_path: Path) -> None:
    assert stat.S_IMODE(os.stat(tmp_path / "sb-1.jsonl").st_mode) == 0o600
    for name in ("", "../x", "a/b", ".", "x" * 200):
        with pytest.raises(ValueError, match="malformed"):
            kept.open(name)


def test_nothing_is_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    kept = opened(tmp_path)
    kept.begin(begun())
    kept.close("sb-1")
    kept.close("sb-1")
    assert not kept.end(ended())
    with pytest.raises(LineageLost):
        kept.begin(begun(2))
    kept.open("sb-1")
    kept.close_all()
    assert len(os.listdir("/proc/self/fd")) == before


def test_pages_are_bounded_in_bytes_and_go_on_where_the_last_one_ended(
    kept: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage_file, "PAGE_BYTES", 2000)
    for number in range(1, 21):
        kept.begin(begun(number))
    seen: list[int] = []
    pages = 0
    while True:
        page = kept.read("sb-1", seen[-1] if seen else 0)
        seen += [line.seq for line in page.lines]
        pages += 1
        if not page.more:
            break
    assert seen == list(range(1, 21))
    assert pages > 3
    kept.begin(begun(21))
    assert [line.seq for line in kept.read("sb-1", 20).lines] == [21]
    assert [line.seq for line in kept.read("sb-1", 3, limit=2).lines] == [4, 5]  # and back again


def test_who_listens_hears_of_all_that_is_put_on_record(tmp_path: Path) -> None:
    heard: list[str] = []
    kept = Lineage(str(tmp_path), clock=lambda: NOW, on_change=heard.append)
    kept.open("sb-1")
    assert heard == []
    kept.begin(begun())
    kept.end(ended())
    assert heard == ["sb-1"] * 2
    for _ in range(lineage_file.WRITTEN_EACH + 1):
        kept.end(denied())
    assert len(heard) == 2 + lineage_file.WRITTEN_EACH + 1


def test_what_a_crash_left_open_of_a_box_that_is_no_more_is_ended_once(tmp_path: Path) -> None:
    opened(tmp_path).begin(begun())
    kept = Lineage(str(tmp_path), clock=lambda: NOW)
    kept.settle("sb-1")
    kept.settle("sb-1")
    kept.settle("sb-2")
    assert events(kept.read("sb-1").lines) == ["begun", "ended"]
    assert sorted(os.listdir(tmp_path)) == ["sb-1.jsonl"]


def test_a_record_that_is_forgotten_is_gone(kept: Lineage, tmp_path: Path) -> None:
    for _ in range(lineage_file.WRITTEN_EACH + 1):
        kept.end(denied())
    kept.flush()
    assert len(os.listdir(tmp_path)) == 2
    kept.forget("sb-1")
    kept.forget("sb-1")
    assert os.listdir(tmp_path) == []
    assert kept.read("sb-1").lines == []
