"""The figures as Markdown tables for people and as JSON for programs."""

import os
import platform
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from bench.driver import MOST_SCATTER, Compared, Measured, Series
from bench.rows import FLOOR, PRODUCT, Comparison, Figure, Goal
from bench.systems import Missing, System

NOTHING = "–"
_SIZED = re.compile(r"(.*?) ?(?:at|after) (\d+)")


class Conditions(NamedTuple):
    """Where and how a run was done."""

    load_before: float
    load_after: float
    seconds: float
    quick: bool
    searcher: str
    cut_short: bool


class Verdict(NamedTuple):
    goal: str
    reached: str
    holds: bool | None
    """None where what the goal refers to was not measured."""


def value_of(row: Comparison, seconds: float) -> float:
    return row.amount / seconds if row.amount else 1000 * seconds


def number(value: float) -> str:
    """Three digits that matter."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3f}"


def judge(row: Comparison, series: dict[str, Series], goal: Goal) -> Verdict:
    sign = "≤" if goal.kind == "most" else "≥"
    limit = number(goal.limit)
    wanted = f"{sign} {limit}× {goal.against}" if goal.against else f"{sign} {limit} {row.unit}"
    if goal.of != "median":
        wanted = f"{goal.of} {wanted}"
    mine, other = series.get(PRODUCT), series.get(goal.against)
    if mine is None or not mine.seconds or (goal.against and (other is None or not other.seconds)):
        return Verdict(wanted, "not measured", None)
    reached = value_of(row, mine.median if goal.of == "median" else mine.percentile(0.99))
    if other is not None:
        reached /= value_of(row, other.median)
    return _verdict(goal, wanted, reached, "×" if goal.against else f" {row.unit}")


def judge_figure(figure: Figure, value: float, goal: Goal) -> Verdict:
    sign = "≤" if goal.kind == "most" else "≥"
    unit = figure.unit if figure.unit == "×" or not figure.unit else f" {figure.unit}"
    return _verdict(goal, f"{sign} {number(goal.limit)}{unit}", value, unit)


def _verdict(goal: Goal, wanted: str, reached: float, unit: str) -> Verdict:
    holds = reached <= goal.limit if goal.kind == "most" else reached >= goal.limit
    text = f"{number(reached)}{unit}"
    if not holds and reached > 0:
        off = reached / goal.limit if goal.kind == "most" else goal.limit / reached
        text += f", short by {number(off)}×"
    return Verdict(wanted, text, holds)


def mark(holds: bool | None) -> str:
    return NOTHING if holds is None else "yes" if holds else "**no**"


def best_peer(row: Comparison, series: dict[str, Series]) -> str | None:
    """The fastest system that is neither ours nor the bare floor."""
    peers = {name: one.median for name, one in series.items() if one.seconds and name not in (FLOOR, PRODUCT)}
    return min(peers, key=lambda name: peers[name]) if peers else None


def markdown(
    compared: Sequence[Compared],
    measured: Sequence[Measured],
    systems: Sequence[System],
    missing: Sequence[Missing],
    conditions: Conditions,
) -> str:
    parts = [_conditions(systems, missing, conditions)]
    if compared:
        parts += [_own_table(compared), _goal_table(compared), _all_table(compared, systems)]
    if measured:
        parts.append(_figure_table(measured))
        parts += [table for one in measured if (table := _curve_table(one))]
    failures = _failures(compared, measured)
    if failures:
        parts.append(failures)
    return "\n\n".join(parts) + "\n"


def _conditions(systems: Sequence[System], missing: Sequence[Missing], conditions: Conditions) -> str:
    user = "root" if os.geteuid() == 0 else "an ordinary user"
    where = f"Python {platform.python_version()}, Linux {platform.release().split('-')[0]}, {os.cpu_count()} cores"
    load = f"load {conditions.load_before:.1f} before and {conditions.load_after:.1f} after"
    quick = ", quick: fewer rounds and smaller sizes than the rows say, nothing to judge by" if conditions.quick else ""
    cut = ", cut short: rows are missing" if conditions.cut_short else ""
    lines = [f"{where}, as {user}; {load}, {conditions.seconds:.0f} s in all{quick}{cut}.", ""]
    lines += [f"- `{system.name}`: {system.what}" for system in systems]
    lines += [f"- `{name}`: **not measured**, {reason}" for name, reason in missing]
    lines.append(f"- S1's floor is {conditions.searcher}")
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _own_table(compared: Sequence[Compared]) -> str:
    rows = []
    for row, series, tries, scatter in ((c.row, c.series, c.tries, c.scatter) for c in compared):
        mine, floor = series.get(PRODUCT), series.get(row.floor)
        cells = [row.id, row.title, row.unit]
        if mine is None or not mine.seconds:
            rows.append([*cells, *([NOTHING] * 4), "0 %", NOTHING, NOTHING])
            continue
        mid, p95, p99 = mine.median, mine.percentile(0.95), mine.percentile(0.99)
        spread = " / ".join(number(value_of(row, seconds)) for seconds in (mid, p95, p99))
        at_floor = ratio_to_floor = NOTHING
        if floor is not None and floor.seconds:
            at_floor = f"{number(value_of(row, floor.median))} ({row.floor})"
            ratio_to_floor = number(value_of(row, mid) / value_of(row, floor.median)) + "×"
            if scatter > MOST_SCATTER:
                ratio_to_floor += f" (void: floor p95 {scatter:.1f} medians, {tries} tries)"
        peer = best_peer(row, series)
        against = NOTHING
        if peer is not None:
            against = f"{number(value_of(row, mid) / value_of(row, series[peer].median))}× {peer}"
        rows.append(
            [*cells, str(len(mine.seconds)), at_floor, spread, f"{100 * mine.success:.0f} %", ratio_to_floor, against]
        )
    head = ("row", "what", "unit", "n", "floor", "Coldframe median / p95 / p99", "success", "× floor", "× best peer")
    return _table(head, rows)


def _goal_table(compared: Sequence[Compared]) -> str:
    rows = []
    for one in compared:
        for goal in one.row.goals:
            verdict = judge(one.row, one.series, goal)
            rows.append([one.row.id, verdict.goal, verdict.reached, mark(verdict.holds)])
    return _table(("row", "goal", "reached", "holds"), rows)


def _all_table(compared: Sequence[Compared], systems: Sequence[System]) -> str:
    rows = []
    for one in compared:
        cells = [f"{one.row.id}, {one.row.unit}"]
        for system in systems:
            series = one.series.get(system.name)
            if series is None:
                cells.append(NOTHING)
            elif not series.seconds:
                cells.append("fails")
            else:
                text = number(value_of(one.row, series.median))
                cells.append(text if series.success == 1 else f"{text} ({100 * series.success:.0f} %)")
        rows.append(cells)
    return "Medians of all systems. – : it has no such thing.\n\n" + _table(
        ("row", *(system.name for system in systems)), rows
    )


def _figure_table(measured: Sequence[Measured]) -> str:
    rows = []
    for one in measured:
        for figure in one.row.figures:
            value = one.figures.get(figure.key)
            if value is None:
                rows.append([figure.id, figure.title, "not measured", NOTHING, NOTHING])
                continue
            verdicts = [judge_figure(figure, value, goal) for goal in figure.goals]
            rows.append(
                [
                    figure.id,
                    figure.title,
                    verdicts[0].reached if verdicts else f"{number(value)} {figure.unit}".strip(),
                    verdicts[0].goal if verdicts else NOTHING,
                    mark(verdicts[0].holds) if verdicts else NOTHING,
                ]
            )
        keys = {figure.key for figure in one.row.figures}
        rest = {k: v for k, v in one.figures.items() if k not in keys and not _SIZED.fullmatch(k)}
        if rest:
            rows.append(["", ", ".join(f"{name} {number(value)}" for name, value in rest.items()), "", "", ""])
    return _table(("row", "what", "reached", "goal", "holds"), rows)


def _curve_table(one: Measured) -> str:
    """What was taken at several sizes, a column for each; empty where nothing was."""
    sized = {
        (found[1] or one.row.action, int(found[2])): value
        for k, value in one.figures.items()
        if (found := _SIZED.fullmatch(k))
    }
    if not sized:
        return ""
    sizes = sorted({size for _, size in sized})
    names = list(dict.fromkeys(name for name, _ in sized))
    rows = [
        [name, *(number(sized[name, size]) if (name, size) in sized else NOTHING for size in sizes)] for name in names
    ]
    return f"{one.row.figures[0].id}, by size:\n\n" + _table([one.row.action, *(f"{size:,}" for size in sizes)], rows)


def _failures(compared: Sequence[Compared], measured: Sequence[Measured]) -> str:
    lines = []
    for one in compared:
        for name, series in one.series.items():
            if series.failures:
                tried = len(series.failures) + len(series.seconds)
                lines.append(
                    f"- {one.row.id}, `{name}`: {len(series.failures)} of {tried} failed: {series.failures[0]}"
                )
    lines += [f"- {one.row.figures[0].id}: {one.failure}" for one in measured if one.failure]
    return "Failures:\n\n" + "\n".join(lines) if lines else ""


def as_json(
    compared: Sequence[Compared],
    measured: Sequence[Measured],
    systems: Sequence[System],
    missing: Sequence[Missing],
    conditions: Conditions,
) -> dict[str, Any]:
    """Everything that was measured, each single time included, in seconds."""
    return {
        "conditions": {
            **conditions._asdict(),
            "python": platform.python_version(),
            "kernel": platform.release(),
            "cores": os.cpu_count(),
            "root": os.geteuid() == 0,
        },
        "systems": {system.name: {"what": system.what, "kind": system.kind} for system in systems},
        "missing": dict(missing),
        "rows": [
            {
                "id": one.row.id,
                "title": one.row.title,
                "unit": one.row.unit,
                "floor": one.row.floor,
                "tries": one.tries,
                "floor_p95_in_medians": one.scatter,
                "void": one.scatter > MOST_SCATTER,
                "goals": [judge(one.row, one.series, goal)._asdict() for goal in one.row.goals],
                "systems": {
                    name: {
                        "median": value_of(one.row, series.median) if series.seconds else None,
                        "p95": value_of(one.row, series.percentile(0.95)) if series.seconds else None,
                        "p99": value_of(one.row, series.percentile(0.99)) if series.seconds else None,
                        "success": series.success,
                        "failures": series.failures,
                        "seconds": series.seconds,
                    }
                    for name, series in one.series.items()
                },
            }
            for one in compared
        ],
        "figures": [
            {
                "action": one.row.action,
                "failure": one.failure,
                "figures": one.figures,
                "goals": {
                    figure.id: [judge_figure(figure, one.figures[figure.key], goal)._asdict() for goal in figure.goals]
                    for figure in one.row.figures
                    if figure.key in one.figures
                },
            }
            for one in measured
        ],
    }
