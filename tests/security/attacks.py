"""Starts the arena in its wrapper, gathers the verdicts, and shows them as a table.

`python -m tests.security.attacks [--as ordinary] [FILE...]` does it from the command line; without files it takes the
project's own.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.policy.corpus import benign, denied
from tests.security.arena import Row
from tests.security.controls import OWN_FILES
from tests.security.wrapper import Who, in_wrapper, why_not

TIMEOUT_S = 1500.0
GOOD = frozenset({"held", "bound"})
NOT_WHOLE = frozenset({"part", "skipped"})


@dataclass(frozen=True)
class Verdict:
    key: str
    id: int | str
    group: str
    title: str
    verdict: str
    """held; bound: by best effort, as the isolation report says; part: what is there held, the rest is not there yet;
    skipped: nothing of it is there yet; breach; error: the harness failed."""
    said: str
    seconds: float


@dataclass(frozen=True)
class Run:
    verdicts: dict[str, Verdict]
    """By the row's key."""
    left: list[str]
    """What the installation left behind, control groups included."""
    ledger_intact: bool
    trouble: str
    """Why it did not come to its end; empty if it did."""


def load_rows(path: str | Path, *, origin: str = "") -> list[Row]:
    """The rows of a file, each with a key that is its own among all files."""
    with open(path, encoding="utf-8") as file:
        rows: list[Row] = [json.loads(line) for line in file if line.strip()]
    return [{**row, "key": f"{origin}{row['group']}-{row['id']}"} for row in rows]


def own_rows() -> list[Row]:
    """The project's rows, and the two corpora of the deny list as one row each."""
    return [row for path in OWN_FILES for row in load_rows(path)] + list(_corpora())


def _corpora() -> Iterator[Row]:
    commands = [command for _, command in denied()]
    for row_id, title, texts, expect in (
        ("D1", f"{len(commands)} spellings that the list knows", commands, "Denied before it starts"),
        ("B1", f"{len(benign())} harmless commands", benign(), "Runs: nothing of it is refused"),
    ):
        steps = [("cmd", text) for text in texts]
        yield {
            "id": row_id,
            "group": "deny-list",
            "title": title,
            "run": "",
            "steps": steps,
            "expect": expect,
            "key": f"deny-list-{row_id}",
        }


def run_rows(rows: Iterable[Row], *, who: Who, template: str | None = None) -> Run:
    """Run *rows* in one installation in one wrapper.

    With the directory of a *template* the sandbox of each row has a system of its own, and scripts run as its root.
    """
    wanted = list(rows)
    text = "".join(json.dumps(row) + "\n" for row in wanted)
    try:
        arena = ["-m", "tests.security.arena"] + ([] if template is None else [os.path.basename(template)])
        ended = in_wrapper(arena, who=who, timeout_s=TIMEOUT_S, stdin=text, outside=True, shown=template)
        output, trouble = ended.stdout, ""
        if ended.returncode != 0:
            trouble = f"the arena ended with {ended.returncode}:\n{ended.stderr[-6000:]}"
    except subprocess.TimeoutExpired as late:
        output = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
        trouble = f"the arena did not end within {TIMEOUT_S:g} s"
    verdicts: dict[str, Verdict] = {}
    facts: dict[str, Any] = {}
    for line in output.splitlines():
        if line.startswith("{") and line.endswith("}"):
            record = json.loads(line)
            if "verdict" in record:
                verdicts[record["key"]] = Verdict(**record)
            else:
                facts |= record
    left = [*facts.get("left", []), *_groups_left(facts.get("installation"))]
    return Run(verdicts, left, bool(facts.get("ledger_intact")), trouble)


def _groups_left(identity: str | None) -> list[str]:
    """Control groups are the host's own even in the wrapper: those of the ended installation are removed and told."""
    left = []
    if identity is not None:
        for folder, _, _ in os.walk("/sys/fs/cgroup", topdown=False):
            if f"coldframe-{identity}" in folder:
                left.append(f"control group: {folder}")
                try:
                    os.rmdir(folder)
                except OSError:
                    continue
    return left


def table(verdicts: Iterable[Verdict]) -> list[str]:
    """A line for each group, and one below it for each row of which there is more to say than that it held."""
    groups: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault(verdict.group, []).append(verdict)
    lines = []
    for group, rows in groups.items():
        kinds = sorted({row.verdict for row in rows})
        counts = ", ".join(f"{sum(row.verdict == kind for row in rows)} {kind}" for kind in kinds)
        lines.append(f"{group:<14} {len(rows):>3} rows: {counts}")
        for row in rows:
            if row.verdict != "held":
                said = " ".join(row.said.split())
                shown = said if row.verdict not in GOOD | NOT_WHOLE else said[:230]
                lines.append(f"  {row.verdict:<7} {row.id!s:>4}  {row.title}: {shown}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description="Try the walls, in a disposable wrapper.")
    parser.add_argument("--as", dest="who", choices=("root", "ordinary"))
    parser.add_argument("--all", action="store_true", help="a line for each row")
    parser.add_argument("files", nargs="*")
    wanted = parser.parse_args()
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 2
    rows = [row for path in wanted.files for row in load_rows(path)] if wanted.files else own_rows()
    begun = time.monotonic()
    run = run_rows(rows, who=wanted.who or ("root" if os.geteuid() == 0 else "ordinary"))
    if wanted.all:
        for one in run.verdicts.values():
            print(
                f"{one.verdict:<7} {one.group:<14} {one.id!s:>4} {one.seconds:>6.2f} s  {one.title}: {one.said[:300]}"
            )
    print("\n".join(table(run.verdicts.values())))
    print(f"{len(run.verdicts)} rows in {time.monotonic() - begun:.0f} s; left behind: {run.left or 'nothing'}")
    print(run.trouble, file=sys.stderr)
    bad = [one for one in run.verdicts.values() if one.verdict not in GOOD | NOT_WHOLE]
    return 1 if bad or run.trouble or run.left or not run.ledger_intact else 0


if __name__ == "__main__":
    sys.exit(main())
