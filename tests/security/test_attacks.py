"""No attack on the walls wins: each row of the attack files is tried against a real installation in a disposable wrapper.

With a wall taken away the attack does win, or the row proves nothing. `pytest tests/security --attacks FILE` tries another
file of the same form as well. See docs/attacks.md.
"""

import json

import pytest

from tests.policy.corpus import benign
from tests.security.arena import Row, steps_of
from tests.security.attacks import GOOD, NOT_WHOLE, Run, Verdict, load_rows, own_rows, run_rows, table
from tests.security.controls import CONTROLS, NOT_HERE, OWN_FILES, WITH_OUTSIDE
from tests.security.wrapper import Who, in_wrapper

pytestmark = pytest.mark.timeout(1800)  # the first test waits for all rows

VECTORS_OUTSIDE = 60


def verdict_of(run: Run, key: str) -> Verdict:
    assert key in run.verdicts, f"no verdict: {run.trouble or run.left}"
    return run.verdicts[key]


def test_an_attack_does_not_win(attack: Row, run: Run) -> None:
    verdict = verdict_of(run, attack["key"])
    if verdict.verdict in NOT_WHOLE:
        pytest.skip(f"{attack['key']} {attack['title']}: {verdict.said}")
    assert verdict.verdict in GOOD, f"{attack['run']}\n{attack['expect']}\n{verdict.verdict}: {verdict.said}"


def test_a_control_without_its_wall_loses(control_group: str, in_a_wrapper: None) -> None:
    """The same kind of attack on a plain program: it must win, or a verdict of that group says nothing."""
    ended = in_wrapper(
        ["-m", "tests.security.controls", control_group],
        who="ordinary",
        timeout_s=300,
        control_groups=False,
        outside=control_group in WITH_OUTSIDE,
    )
    assert ended.stdout.strip() == "BREACH", f"the attack did not win: {ended.stdout}\n{ended.stderr}"


OPENED = {
    "private": (
        "host: rules that open too much: within 192.168.0.0/16\n"
        "host: rebind.example.com resolves to 192.168.77.5\nsh: curl -ksS -m 9 https://rebind.example.com/; true"
    ),
    "everything": "host: rules that open too much: use open\nsh: curl -ksS -m 9 https://{denied_host}/; true",
}


def test_with_rules_that_open_too_much_the_same_attacks_win(in_a_wrapper: None, who: Who) -> None:
    """It is the rules that hold them, and the harness sees what they let out."""
    rows = [
        {"id": key, "key": key, "group": "network", "title": key, "run": run, "expect": "BREACH"}
        for key, run in OPENED.items()
    ]
    run = run_rows(rows, who=who)
    assert {key: verdict.verdict for key, verdict in run.verdicts.items()} == dict.fromkeys(OPENED, "breach"), run
    assert "192.168.77.5" in run.verdicts["private"].said
    assert "93.184.215.66 port 443" in run.verdicts["everything"].said


def test_every_group_has_a_control_or_says_why_not() -> None:
    groups = {row["group"] for row in own_rows()}
    assert groups == CONTROLS.keys() | NOT_HERE.keys()


@pytest.mark.attacks("file-escape")
def test_the_installation_leaves_nothing_and_its_ledger_is_whole(run: Run) -> None:
    assert run.trouble == ""
    assert run.left == []
    assert run.ledger_intact


@pytest.mark.req("T1.92")
@pytest.mark.attacks("write-outside", "file-escape", "file-api")
def test_no_vector_writes_outside_the_workspace(run: Run) -> None:
    rows = [row for path in OWN_FILES for row in load_rows(path) if row["group"] == "write-outside"]
    assert sum(kind != "host" for row in rows for kind, _ in steps_of(row["run"])) >= VECTORS_OUTSIDE
    assert not_held(run, "write-outside") == []
    assert not_held(run, "file-escape", "file-api", also=NOT_WHOLE) == []


@pytest.mark.req("T1.49", "T1.98")
@pytest.mark.attacks("neighbour", "other-sandbox", "mount-device")
def test_no_command_reaches_another_agents_workspace(run: Run) -> None:
    assert not_held(run, "neighbour", "other-sandbox", "mount-device") == []


@pytest.mark.attacks("deny-list")
def test_however_it_is_spelled_it_is_refused_or_without_effect(run: Run) -> None:
    assert not_held(run, "deny-list") == []


@pytest.mark.req("T1.96")
@pytest.mark.attacks("deny-list")
def test_harmless_commands_run(run: Run) -> None:
    commands = benign()
    assert len(commands) >= 200
    named = {"rm -rf ./build", "rm -rf /workspace/x", "echo sudo", 'grep "rm -rf /" file', "python sudoku.py"}
    assert named <= set(commands)
    assert verdict_of(run, "deny-list-B1").verdict == "held", verdict_of(run, "deny-list-B1").said


def not_held(run: Run, *groups: str, also: frozenset[str] = frozenset()) -> list[str]:
    assert run.trouble == ""
    found = [verdict for verdict in run.verdicts.values() if verdict.group in groups]
    assert {verdict.group for verdict in found} == set(groups)
    return table(verdict for verdict in found if verdict.verdict not in {"held"} | also)


def test_steps_are_told_apart_by_their_prefix() -> None:
    assert steps_of('cmd: echo a\n{"cmd":"forged"}\nhost: look') == [
        ("cmd", 'echo a\n{"cmd":"forged"}'),
        ("host", "look"),
    ]


def test_every_row_of_the_project_is_whole() -> None:
    rows = [row for path in OWN_FILES for row in load_rows(path)]
    assert len({row["key"] for row in rows}) == len(rows)
    for row in rows:
        assert {"id", "group", "title", "run", "expect"} <= row.keys()
        assert steps_of(row["run"]), json.dumps(row)
