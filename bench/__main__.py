"""`python -m bench`: measure, print Markdown, and say how it went by the exit code.

Exit codes: 0 measured, whatever the goals say; 1 Coldframe failed or left something behind; 2 the call is wrong.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.driver import Compared, Effort, Failed, Measured, Worker, compare, measure
from bench.report import Conditions, as_json, markdown
from bench.rows import COMPARISONS, CURVES, LONE, PRODUCT
from bench.system_calls import reason_against
from bench.systems import Missing, System, default_folder, find_systems, install, ripgrep

DESCRIPTION = "Measure Coldframe beside what this machine can do at best, and beside its peers. Prints Markdown."
ALONE = System("alone", "Coldframe by itself", "product", (sys.executable, "-m", "bench.workers", "alone"))


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parse(arguments)
    if chosen.curves:
        chosen.rows |= CURVES
    if chosen.install_peers:
        failed = install(chosen.peers)
        for sentence in failed:
            say(f"not installed: {sentence}")
        return 1 if failed else 0
    comparisons = [row for row in COMPARISONS if not chosen.rows or row.id in chosen.rows]
    lone = [row for row in LONE if not chosen.rows or {figure.id for figure in row.figures} & chosen.rows]
    known = {row.id for row in COMPARISONS} | {figure.id for row in LONE for figure in row.figures}
    if unknown := chosen.rows - known:
        say(f"no row {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
        return 2
    descriptor, log = tempfile.mkstemp(prefix="cf-bench-", suffix=".log")
    os.close(descriptor)
    load, begun = os.getloadavg()[0], time.monotonic()
    systems, missing = find_systems(chosen.peers)
    if chosen.without_peers:
        missing += [Missing(s.name, "left out by --without-peers") for s in systems if s.kind in ("server", "bare")]
        systems = [system for system in systems if system.kind not in ("server", "bare")]
    compared: list[Compared] = []
    measured: list[Measured] = []
    faults: list[str] = []
    searcher = ripgrep(chosen.peers)
    if (reason := reason_against()) is not None:
        missing += [Missing(figure.id, reason) for row in lone if row.action == "gates" for figure in row.figures]
        lone = [row for row in lone if row.action != "gates"]
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell has them ignored, for a job in the background
        signal.signal(number, signal.default_int_handler)
    effort = Effort(chosen.quick, chosen.rounds, chosen.tries, chosen.long)
    cut_short = False
    try:
        with ExitStack() as closing:
            workers = open_workers(systems if comparisons else [], chosen.peers, log, missing, faults, closing)
            for row in comparisons:
                say(f"{row.id}: {row.title}")
                compared.append(compare(row, workers, effort, extra={"rg": searcher}, say=say))
        with ExitStack() as closing:
            for worker in open_workers([ALONE] if lone else [], chosen.peers, log, missing, faults, closing):
                for lonely in lone:
                    say(", ".join(figure.id for figure in lonely.figures))
                    measured.append(measure(lonely, worker, effort, extra={"peers": chosen.peers}))
    except KeyboardInterrupt:
        cut_short = True
        say("cut short")
    names = {name for name, _ in missing}
    here = [system for system in systems if system.name not in names]
    conditions = Conditions(
        load,
        os.getloadavg()[0],
        time.monotonic() - begun,
        chosen.quick,
        "ripgrep with one thread" if searcher else "grep, since ripgrep is missing",
        cut_short,
    )
    everything = as_json(compared, measured, here, missing, conditions)
    if chosen.save:
        with open(chosen.save, "w", encoding="utf-8") as file:
            json.dump(everything, file, indent=1)
    if chosen.json:
        json.dump(everything, sys.stdout)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(markdown(compared, measured, here, missing, conditions))
    faults += [f"{one.row.id}: {one.series[PRODUCT].failures[0]}" for one in compared if _failed(one)]
    faults += [f"{one.row.action}: {one.failure}" for one in measured if one.failure]
    faults += [f"`{name}` did not open" for name in (PRODUCT, ALONE.name) if name in names]
    for fault in faults:
        say(fault)
    if faults:
        say(f"the workers' own words: {log}")
    else:
        Path(log).unlink(missing_ok=True)
    return 1 if faults else 0


def open_workers(
    systems: Sequence[System],
    peers: str,
    log: str,
    missing: list[Missing],
    faults: list[str],
    closing: ExitStack,
) -> list[Worker]:
    """One worker for each system that opens; the others become *missing*. All end with *closing*."""
    workers = []
    for system in systems:
        try:
            worker = Worker(system, peers, log)
        except Failed as error:
            missing.append(Missing(system.name, f"does not open: {error}"))
        else:
            workers.append(worker)
            closing.callback(close, worker, faults)
    return workers


def _failed(one: Compared) -> bool:
    return PRODUCT in one.series and bool(one.series[PRODUCT].failures)


def close(worker: Worker, faults: list[str]) -> None:
    said = worker.close()
    if said is not None:
        faults.append(f"{worker.system.name}: {said}")


def say(sentence: str) -> None:
    sys.stderr.write(f"bench: {sentence}\n")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = argparse.ArgumentParser(prog="coldframe bench", description=DESCRIPTION)
    options.add_argument("--quick", action="store_true", help="few rounds, to see that it works; nothing to judge by")
    options.add_argument(
        "--rows", type=lambda text: frozenset(text.split(",")), default=frozenset(), help="only these, as L1,L3,D1"
    )
    options.add_argument("--curves", action="store_true", help="the rows that show how figures grow, with their tables")
    options.add_argument(
        "--long", action="store_true", help="the long form of a row that has one: hours for all of them"
    )
    options.add_argument("--rounds", type=int, default=Effort().most_rounds, help="at most so many rounds for a row")
    options.add_argument("--tries", type=int, default=Effort().tries, help="times to do a row whose floor is restless")
    options.add_argument("--json", action="store_true", help="print JSON with every single time, not Markdown")
    options.add_argument("--save", metavar="PATH", help="write that JSON there as well")
    options.add_argument("--peers", metavar="DIR", default=default_folder(), help="where the peers are installed")
    options.add_argument("--install-peers", action="store_true", help="install the peers there, and end")
    options.add_argument("--without-peers", action="store_true", help="floors and isolating peers only")
    return options.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
