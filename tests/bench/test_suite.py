"""The suite measures fairly: systems in turn, answers checked, failures counted, nothing left out without a word."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.driver import MOST_SCATTER, Effort, Failed, Measured, Series, Worker, compare
from bench.report import Conditions, as_json, best_peer, judge, markdown
from bench.rows import COMPARISONS, CURVES, FLOOR, LONE, PRODUCT, Comparison, least, most
from bench.systems import CHECKOUT, System, find_systems

WORKER = """
import json, sys
name, log, behaviour = sys.argv[1:4]
if behaviour == "refuses":
    print(json.dumps({"error": "not today"}), flush=True)
    sys.exit(1)
print(json.dumps({"can": ["work", "other"] if behaviour == "other" else ["work"]}), flush=True)
for number, line in enumerate(sys.stdin):
    request = json.loads(line)
    with open(log, "a") as file:
        file.write(f"{name} {request['do']}\\n")
    if behaviour == "wrong" or (behaviour == "once" and number == 2):
        print(json.dumps({"error": "Wrong: 7 bytes"}), flush=True)
    elif behaviour == "dies":
        sys.exit(3)
    else:
        print(json.dumps({"value": 9.0 if number == 0 else 0.001}), flush=True)
"""
ROW = Comparison("X", "some work", "work", FLOOR, 4, 2, (most(1.5, FLOOR),))
CONDITIONS = Conditions(0.0, 0.0, 1.0, False, "grep", False)


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.workers: list[Worker] = []
        self.script = folder / "worker.py"
        self.script.write_text(WORKER)

    def open(self, name: str, behaviour: str = "works") -> Worker:
        # the folder that the driver appends comes last and is not looked at
        command = (sys.executable, str(self.script), name, str(self.log), behaviour)
        kind = "floor" if name == FLOOR else "product" if name == PRODUCT else "bare"
        system = System(name, "a system", kind, command)  # type: ignore[arg-type]
        worker = Worker(system, str(self.folder), str(self.folder / "words"))
        self.workers.append(worker)
        return worker

    def asked(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for worker in made.workers:
        worker.close()


def quietly(_: str) -> None:
    return None


def test_systems_are_asked_in_turn_and_the_first_round_does_not_count(bench: Bench) -> None:
    workers = [bench.open(FLOOR), bench.open(PRODUCT)]
    result = compare(ROW, workers, Effort(), extra={}, say=quietly)
    assert bench.asked() == [f"{FLOOR} work", f"{PRODUCT} work"] * (1 + ROW.rounds)
    assert {name: series.seconds for name, series in result.series.items()} == {
        FLOOR: [0.001] * 4,
        PRODUCT: [0.001] * 4,
    }


def test_a_wrong_answer_is_a_failure_and_no_time(bench: Bench) -> None:
    series = compare(ROW, [bench.open(FLOOR), bench.open("peer", "once")], Effort(), extra={}, say=quietly).series
    assert series["peer"].seconds == [0.001] * 3
    assert series["peer"].failures == ["Wrong: 7 bytes"]
    assert series["peer"].success == 0.75


def test_who_only_fails_or_dies_is_named_with_what_it_said(bench: Bench) -> None:
    workers = [bench.open(FLOOR), bench.open("peer", "wrong"), bench.open("other", "dies")]
    result = compare(ROW, workers, Effort(), extra={}, say=quietly)
    text = markdown([result], [], [worker.system for worker in workers], [], CONDITIONS)
    assert "`peer`: 2 of 2 failed: Wrong: 7 bytes" in text
    assert "`other`: 2 of 2 failed: the worker ended" in text
    assert "| X, ms | 1.00 | fails | fails |" in text


def test_a_system_that_does_not_open_says_why(bench: Bench) -> None:
    with pytest.raises(Failed, match="not today"):
        bench.open("peer", "refuses")


def test_the_product_may_do_the_same_in_another_way(bench: Bench) -> None:
    row = Comparison("X", "some work", "work", FLOOR, 1, 1, (), product_action="other")
    compare(row, [bench.open(FLOOR), bench.open(PRODUCT, "other")], Effort(), extra={}, say=quietly)
    assert bench.asked()[:2] == [f"{FLOOR} work", f"{PRODUCT} other"]


def test_a_row_with_a_restless_floor_is_repeated_and_then_called_void(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Series, "percentile", lambda self, share: 10 * self.median)
    result = compare(ROW, [bench.open(FLOOR), bench.open(PRODUCT)], Effort(), extra={}, say=quietly)
    assert result.tries == 3
    assert result.scatter > MOST_SCATTER
    assert "void: floor p95 10.0 medians, 3 tries" in markdown([result], [], [], [], CONDITIONS)


def test_a_busy_machine_may_be_asked_for_less(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Series, "percentile", lambda self, share: 10 * self.median)
    result = compare(ROW, [bench.open(FLOOR)], Effort(most_rounds=2, tries=1), extra={}, say=quietly)
    assert result.tries == 1
    assert bench.asked() == [f"{FLOOR} work"] * 3


def test_goals_are_judged_by_the_ratio_and_say_by_how_much_they_are_missed() -> None:
    series = {FLOOR: Series([1.0]), PRODUCT: Series([3.0]), "peer": Series([4.0])}
    assert judge(ROW, series, most(1.5, FLOOR)) == ("≤ 1.50× plain", "3.00×, short by 2.00×", False)
    assert judge(ROW, series, most(0.8, "peer")) == ("≤ 0.80× peer", "0.75×", True)
    assert judge(ROW, series, most(1.5, "absent")).holds is None
    rate = Comparison("X", "", "work", FLOOR, 1, 1, (), unit="MB/s", amount=100.0)
    assert judge(rate, series, least(0.5, FLOOR)) == ("≥ 0.50× plain", "0.33×, short by 1.50×", False)
    assert best_peer(ROW, series) == "peer"


def test_every_peer_that_is_not_here_is_named_with_a_reason(tmp_path: Path) -> None:
    here, missing = find_systems(str(tmp_path))
    assert {system.name for system in here} | {name for name, _ in missing} == {
        *("plain", "bwrap", "coldframe", "runc", "srt-python", "swe-rex", "inspect-ai", "srt-npm")
    }
    assert all(reason for _, reason in missing)
    assert {"srt-python", "swe-rex", "inspect-ai"} <= {name for name, _ in missing}
    text = markdown([], [], here, missing, CONDITIONS)
    assert "`swe-rex`: **not measured**, swe-rex==1.4.0 is not here" in text
    assert as_json([], [], here, missing, CONDITIONS)["missing"] == dict(missing)


def test_no_two_rows_share_a_name() -> None:
    names = [row.id for row in COMPARISONS] + [figure.id for row in LONE for figure in row.figures]
    assert len(names) == len(set(names))


def test_a_run_goes_through_the_public_sdk_and_leaves_nothing(tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "coldframe.cli", "bench", "--quick", "--rows", "L1,F1r"),
            *("--without-peers", "--peers", str(tmp_path / "none"), "--save", str(saved)),
        ],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "| L1 | `true` in a live sandbox" in done.stdout
    assert "`swe-rex`: **not measured**" in done.stdout
    rows = {row["id"]: row["systems"] for row in json.loads(saved.read_text())["rows"]}
    assert rows["L1"]["coldframe"]["success"] == rows["F1r"]["coldframe"]["success"] == 1.0
    assert len(rows["L1"]["plain"]["seconds"]) == len(rows["L1"]["coldframe"]["seconds"]) == 8


def test_rows_of_growth_idleness_and_remains_answer_rightly_in_their_shortest_form(tmp_path: Path) -> None:
    rows = {"L5", "L6", "T3", "D3", "G1", "G2", "G4w", "G6"}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bench", "--quick", "--json", "--rows", ",".join(rows)),
            *("--without-peers", "--peers", str(tmp_path / "none")),
        ],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    (session,) = told["rows"]
    assert (session["id"], session["systems"]["coldframe"]["success"], session["systems"]["plain"]["success"]) == (
        *("L5", 1.0, 1.0),
    )
    figures = {one["action"]: one["figures"] for one in told["figures"]}
    assert set(figures) == {"first_after_idle", "staggered", "disk", "live", "lists", "files", "soak"}
    for row in LONE:
        if row.action in figures:
            pauses = "pause" in figures[row.action] or row.action != "first_after_idle"
            missing = {figure.key for figure in row.figures} - set(figures[row.action])
            assert missing <= (set() if pauses else {"pause"}), row.action
    assert figures["soak"]["left"] == 0, figures["soak"]
    assert figures["live"]["plain at 4"] > 0
    assert figures["disk"]["sandbox"] > 0


def test_what_was_taken_at_several_sizes_is_a_table_with_a_column_for_each() -> None:
    row = next(row for row in LONE if row.action == "live")
    figures = {"exec at 1": 1.0, "exec at 1000": 1.5, "create at 1000": 9.0, "exec ratio": 1.5}
    text = markdown([], [Measured(row, figures)], [], [], CONDITIONS)
    assert "| live | 1 | 1,000 |\n| --- | --- | --- |\n| exec | 1.00 | 1.50 |\n| create | – | 9.00 |" in text
    assert "exec at 1" not in text


def test_every_row_that_grows_is_a_curve_and_a_long_form_is_longer() -> None:
    sized = {row.figures[0].id for row in LONE if "sizes" in row.parameters}
    assert {figure.id for row in LONE for figure in row.figures} >= CURVES
    chosen = [row for row in LONE if {figure.id for figure in row.figures} & CURVES]
    assert {row.figures[0].id for row in chosen} == sized
    for row in LONE:
        assert set(row.long_parameters) <= set(row.parameters) == set(row.quick_parameters), row.action


def test_a_row_that_there_is_not_is_a_wrong_call() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "coldframe.cli", "bench", "--rows", "Z9"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no row Z9" in done.stderr


def test_an_installed_package_says_where_the_suite_is(tmp_path: Path) -> None:
    shutil.copytree(CHECKOUT / "coldframe", tmp_path / "coldframe", ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "coldframe.cli", "bench", "--quick"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5
    assert "part of the source tree" in done.stderr
