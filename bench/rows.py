"""What is measured, against what, and what it should come to. The goals were set from a prototype and from the peers.

A comparison runs the same work on several systems in turn; a lone row measures Coldframe by itself. Where a floor is
named it is what the machine can do at best: the row's ratio to it is what carries over to another machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bench.workers.wire import BULK_BYTES, STREAM_BYTES

FLOOR = "plain"
PRODUCT = "coldframe"
MEGA = 1_000_000
BURST = 50
RATE_COMMANDS = 320
Systems = frozenset[str]
ALL: Systems = frozenset()
BESIDE_THE_FLOOR: Systems = frozenset({FLOOR, PRODUCT})


@dataclass(frozen=True)
class Goal:
    """*limit* for the figure itself, or for its ratio to the median of the system *against*."""

    kind: Literal["most", "least"]
    limit: float
    against: str = ""
    of: Literal["median", "p99"] = "median"


def most(limit: float, against: str = "", *, of: Literal["median", "p99"] = "median") -> Goal:
    return Goal("most", limit, against, of)


def least(limit: float, against: str = "") -> Goal:
    return Goal("least", limit, against)


@dataclass(frozen=True)
class Comparison:
    """The same action on several systems, one after the other in each round."""

    id: str
    title: str
    action: str
    floor: str
    rounds: int
    quick_rounds: int
    goals: tuple[Goal, ...]
    unit: str = "ms"
    amount: float = 0.0
    """What one action moves or does, for a rate; 0 for a time."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    quick_parameters: Mapping[str, Any] = field(default_factory=dict)
    before: str = ""
    """An action that every system does once before, unmeasured."""
    product_action: str = ""
    """What Coldframe does in place of *action*."""
    only: Systems = ALL
    """The systems that take part; empty for all that can."""


@dataclass(frozen=True)
class Figure:
    id: str
    key: str
    title: str
    unit: str
    goals: tuple[Goal, ...] = ()


@dataclass(frozen=True)
class Lone:
    """One action of Coldframe alone that answers with several figures."""

    action: str
    figures: tuple[Figure, ...]
    parameters: Mapping[str, Any]
    quick_parameters: Mapping[str, Any]
    long_parameters: Mapping[str, Any] = field(default_factory=dict)
    """What of it takes too long for a run of everything."""


def _throughput(row: str, title: str, action: str, moved_bytes: int, *goals: Goal, before: str = "") -> Comparison:
    return Comparison(row, title, action, FLOOR, 10, 2, goals, unit="MB/s", amount=moved_bytes / MEGA, before=before)


def _burst(row: str, title: str, count: int, quick_count: int, *goals: Goal, only: Systems = ALL) -> Comparison:
    return Comparison(
        row,
        title,
        "burst",
        "bwrap",
        3,
        1,
        goals,
        parameters={"count": count},
        quick_parameters={"count": quick_count},
        only=only,
    )


def _search(row: str, files: int, quick_files: int, rounds: int) -> Comparison:
    return Comparison(
        row,
        f"search a literal in {files:,} files",
        "search",
        FLOOR,
        rounds,
        1,
        (most(1.3, FLOOR),),
        parameters={"files": files},
        quick_parameters={"files": quick_files},
    )


COMPARISONS = (
    Comparison(
        "L1",
        "`true` in a live sandbox, blocking SDK",
        "exec_true",
        FLOOR,
        200,
        8,
        (most(1.8, FLOOR), most(4, FLOOR, of="p99"), most(0.45, "swe-rex"), most(0.45, "bwrap")),
    ),
    Comparison(
        "L1a",
        "the same through the asynchronous SDK",
        "exec_true",
        FLOOR,
        200,
        8,
        (most(2.3, FLOOR),),
        product_action="exec_true_async",
        only=BESIDE_THE_FLOOR,
    ),
    Comparison(
        "L2",
        "create a sandbox whose box stands ready, and `echo` in it",
        "tti",
        "bwrap",
        30,
        3,
        (most(5), most(15, of="p99"), most(0.8, "bwrap")),
        product_action="tti_ready",
    ),
    Comparison(
        "L3",
        "create a sandbox, cold, and `echo` in it",
        "tti",
        "bwrap",
        30,
        3,
        (most(3, "bwrap"), most(1.1, "bwrap")),
    ),
    Comparison(
        "L4",
        "`python3 -c 'print(1)'`",
        "exec_python",
        FLOOR,
        40,
        3,
        (most(1.1, FLOOR), most(0.8, "swe-rex")),
    ),
    Comparison(
        "L5",
        "`true` in a shell session that keeps directory and variables",
        "session_true",
        FLOOR,
        100,
        5,
        (most(0.6), most(0.01, "swe-rex")),
    ),
    Comparison("F1w", "write a file of 1 KB", "write_1k", FLOOR, 100, 5, (most(1.0), most(0.3, "swe-rex"))),
    Comparison(
        "F1r", "read a file of 1 KB", "read_1k", FLOOR, 100, 5, (most(0.6), most(0.3, "swe-rex")), before="write_1k"
    ),
    _throughput("F2w", "write a file of 50 MB", "write_50m", BULK_BYTES, least(0.5, FLOOR), least(5, "swe-rex")),
    _throughput(
        "F2r",
        "read a file of 50 MB",
        "read_50m",
        BULK_BYTES,
        least(0.3, FLOOR),
        least(1.8, "swe-rex"),
        before="write_50m",
    ),
    _throughput(
        "F3", "100 MB of output, whole and in order", "stream", STREAM_BYTES, least(0.7, FLOOR), least(5, "swe-rex")
    ),
    Comparison(
        "T1",
        "`true`, 16 in flight over 16 sandboxes",
        "rate",
        FLOOR,
        5,
        1,
        (least(0.6, FLOOR),),
        unit="1/s",
        amount=RATE_COMMANDS,
        parameters={"commands": RATE_COMMANDS},
    ),
    _burst(
        "T2",
        f"{BURST} sandboxes created at once, `echo` in each",
        BURST,
        5,
        most(1.0, "bwrap"),
        most(1 / 60, "swe-rex"),
    ),
    _burst("T2b", "100 sandboxes at once", 100, 10, most(1.0, "bwrap"), only=frozenset({"bwrap", PRODUCT})),
    Comparison("X1", "end a sandbox: the answer", "destroy", FLOOR, 15, 2, (most(3.0),)),
    Comparison(
        "X1g",
        "end a sandbox: processes and control groups gone",
        "destroy",
        FLOOR,
        15,
        2,
        (most(100.0),),
        product_action="destroy_gone",
        only=BESIDE_THE_FLOOR,
    ),
    _search("S1", 10_000, 1_000, rounds=5),
    _search("S1b", 100_000, 2_000, rounds=3),
)

LONE = (
    Lone(
        "gates",
        (
            Figure("G-calls", "calls", "system calls of one `true`, all processes together", "", (most(160),)),
            Figure("G-commits", "commits", "database commits of one `true`", "", (most(1),)),
        ),
        {"commands": 100},
        {"commands": 30},
    ),
    Lone(
        "stream_memory",
        (Figure("F3m", "growth", "growth of the server while 100 MB of output pass", "MiB", (most(8.0),)),),
        {"repetitions": 3},
        {"repetitions": 1},
    ),
    Lone(
        "policy_cost",
        (
            Figure("A1", "difference", "`true` with 1,000 rules less the same with none", "ms", (most(0.15),)),
            Figure("A1w", "with", "`true` with 1,000 rules", "ms"),
        ),
        {"rules": 1000, "repetitions": 200},
        {"rules": 1000, "repetitions": 8},
    ),
    Lone(
        "sdk_cost",
        (
            Figure("C1", "difference", "a ping through the SDK less the same on a bare socket", "ms", (most(0.3),)),
            Figure("C1i", "import", "import of the SDK, without httpx", "ms", (most(80),)),
        ),
        {"repetitions": 300},
        {"repetitions": 20},
    ),
    Lone(
        "start",
        (
            Figure("C2", "answer", "`coldframe up` to the first answer, data directory there", "ms", (most(400),)),
            Figure("C2c", "create", "`coldframe up` to the first sandbox, data directory there", "ms", (most(450),)),
            Figure("C2n", "answer, new", "the same to the first answer, new data directory", "ms"),
        ),
        {"repetitions": 10},
        {"repetitions": 1},
    ),
    Lone(
        "idle",
        (
            Figure("D1", "available", "memory that an idle sandbox takes from the machine", "MiB", (most(1.0),)),
            Figure("D1p", "proportional", "the same as proportional set size of all processes", "MiB"),
            Figure("D2", "processor", "processor time of all processes while idle", "%", (most(0.5),)),
        ),
        {"sandboxes": 200, "settle_s": 3, "idle_s": 30},
        {"sandboxes": 5, "settle_s": 1, "idle_s": 2},
    ),
    Lone(
        "audit",
        (
            Figure("G5a", "append ratio", "append to the ledger with 1,000,000 rows against 1,000", "×", (most(1.5),)),
            Figure("G5q", "query", "entries of one sandbox out of 1,000,000", "ms", (most(2.0),)),
            Figure("G5v", "verify", "verification of the whole chain", "rows/s", (least(500_000),)),
        ),
        {"sizes": [1_000, 10_000, 100_000, 1_000_000]},
        {"sizes": [1_000, 5_000]},
    ),
    Lone(
        "layers",
        (
            Figure("P2s", "snapshot", "the store's part of a snapshot, slowest of the sizes", "ms", (most(15),)),
            Figure("P2f", "fork", "the same of a fork", "ms", (most(15),)),
            Figure("P2r", "reset", "the same of a reset", "ms", (most(15),)),
            Figure("G4p", "ratio", "the same at 100,000 files against 1,000", "×", (most(1.5),)),
            Figure("P2l", "copy of 10", "live copy of 40 MiB in 10 changed files", "ms", (most(60),)),
            Figure("P2m", "copy of 1000", "live copy of 40 MiB in 1,000 changed files", "ms"),
        ),
        {"sizes": [1_000, 10_000, 100_000], "repetitions": 15},
        {"sizes": [100, 1_000], "repetitions": 2},
    ),
    Lone(
        "snapshots",
        (
            Figure(
                "P2", "snapshot", "snapshot of a stopped sandbox over HTTP, slowest of the sizes", "ms", (most(15),)
            ),
            Figure("P2b", "first", "the first one of a workspace", "ms", (most(15),)),
            Figure("P2c", "reset", "reset of a stopped sandbox", "ms", (most(15),)),
            Figure("P2d", "fork", "create with a snapshot, its box included", "ms"),
            Figure("P2e", "live", "snapshot of one that runs, one file changed", "ms"),
            Figure("G4q", "ratio", "the same at 100,000 files against 1,000", "×", (most(1.5),)),
        ),
        {"sizes": [1_000, 10_000, 100_000], "repetitions": 9},
        {"sizes": [100, 1_000], "repetitions": 2},
    ),
    Lone(
        "first_after_idle",
        (
            Figure("L6", "pause", "resume and `true` against `true` after `true`", "×", (most(2.0),)),
            Figure("L6i", "idle", "`true` after a minute without anything, against the same", "×", (most(2.0),)),
        ),
        {"repetitions": 50, "idles": 2, "idle_s": 60},
        {"repetitions": 4, "idles": 1, "idle_s": 1},
        {"idles": 10},
    ),
    Lone(
        "staggered",
        (
            Figure("T3", "spread", "100 creations 50 ms apart: p99 against the median", "×", (most(3.0),)),
            Figure("T3m", "median", "the same: median of creation and `echo`", "ms"),
            Figure("T3b", "against bwrap", "the same against bubblewrap at the same moments", "×"),
        ),
        {"count": 100, "gap_s": 0.05},
        {"count": 6, "gap_s": 0.05},
        {"count": 1000},
    ),
    Lone(
        "disk",
        (
            Figure("D3", "sandbox", "disk of a fresh sandbox, without records", "KB", (most(100),)),
            Figure("D3s", "snapshot", "disk of a snapshot of unchanged files, without records", "KB", (most(50),)),
        ),
        {"count": 20},
        {"count": 3},
    ),
    Lone(
        "live",
        (
            Figure("G1", "exec ratio", "`true` beside 300 sandboxes against alone", "×", (most(1.3),)),
            Figure("G1c", "create ratio", "creation and `echo` beside as many, the same", "×", (most(1.5),)),
            Figure("G1p", "plain ratio", "the floor of it, a plain program", "×"),
        ),
        {"sizes": [1, 10, 100, 300], "repetitions": 40},
        {"sizes": [1, 4], "repetitions": 3},
        {"sizes": [1, 10, 100, 300, 1000]},
    ),
    Lone(
        "lists",
        (
            Figure("G2", "page", "first 50 sandboxes of all that ever were, in process", "ms", (most(3.0),)),
            Figure("G2r", "page ratio", "the same against the fewest", "×", (most(2.0),)),
            Figure("G2l", "running ratio", "the first 50 that run, the same", "×", (most(2.0),)),
        ),
        {"sizes": [100, 1_000, 3_000], "repetitions": 40},
        {"sizes": [60, 120], "repetitions": 3},
        {"sizes": [100, 1_000, 10_000]},
    ),
    Lone(
        "files",
        (
            Figure("G4w", "write ratio", "writing 1 KB beside 100,000 files against 1,000", "×", (most(1.5),)),
            Figure("G4r", "read ratio", "reading it", "×", (most(1.5),)),
            Figure("G4l", "list ratio", "the first 50 names of that directory", "×", (most(1.5),)),
        ),
        {"sizes": [1_000, 10_000, 100_000], "repetitions": 30},
        {"sizes": [60, 200], "repetitions": 3},
    ),
    Lone(
        "soak",
        (
            Figure("G6", "left", "what is left over of 500 sandboxes (10,000 with `--long`)", "", (most(0),)),
            Figure("G6m", "growth", "growth of the server meanwhile", "MiB", (most(5.0),)),
        ),
        {"cycles": 500},
        {"cycles": 8},
        {"cycles": 10_000},
    ),
    Lone(
        "history",
        (Figure("G3", "ratio", "`true` after 10,000 commands against the first, same sandbox", "×", (most(1.1),)),),
        {"sizes": [0, 1_000, 10_000], "repetitions": 100},
        {"sizes": [0, 100], "repetitions": 8},
    ),
    Lone(
        "pause",
        (
            Figure("P1", "pause", "pause a sandbox with a server in it, over HTTP", "ms", (most(3.0),)),
            Figure("P1r", "resume", "resume it", "ms", (most(3.0),)),
            Figure("P1h", "pause, many", "pause one with 100 processes", "ms", (most(5.0),)),
            Figure("P1hr", "resume, many", "resume it", "ms", (most(5.0),)),
        ),
        {"processes": 100, "repetitions": 100},
        {"processes": 20, "repetitions": 8},
    ),
    Lone(
        "cells",
        (
            Figure("K1", "warm", "`1 + 1` in Python on a kernel that lives, over the SDK", "ms", (most(1.0),)),
            Figure("K1b", "shell", "`echo 2` in bash, the same way", "ms"),
            Figure("K2", "cold", "a new sandbox, and its first `1 + 1` in Python", "ms", (most(12.0),)),
            Figure("K2f", "first", "that cell alone, with the start of its kernel", "ms"),
        ),
        {"repetitions": 300, "sandboxes": 20},
        {"repetitions": 8, "sandboxes": 2},
    ),
    Lone(
        "mcp",
        (
            Figure("M1", "call", "`true` over MCP, by a request on a kept connection", "ms", (most(3.0),)),
            Figure("M1o", "official", "the same through the official client in Python", "ms"),
            Figure("M1c", "connect", "connect with the official client", "ms", (most(20.0),)),
        ),
        {"repetitions": 200, "connects": 20},
        {"repetitions": 8, "connects": 2},
    ),
    Lone(
        "previews",
        (
            Figure("V1", "more", "a small GET through a preview, more than direct", "ms", (most(0.3),)),
            Figure("V1d", "direct", "the same direct", "ms"),
            Figure("V1b", "down", "a large body from a server through a preview", "MiB/s"),
            Figure("V1br", "down enough", "that against 300 MiB/s or half of direct, the lower", "×", (least(1),)),
            Figure("V1u", "up", "a large body to a server through a preview", "MiB/s"),
            Figure("V1ur", "up enough", "that against 300 MiB/s or half of direct, the lower", "×", (least(1),)),
        ),
        {"repetitions": 500, "bulk_mib": 256},
        {"repetitions": 8, "bulk_mib": 16},
    ),
    Lone(
        "egress",
        (
            Figure(
                "E1", "sni ratio", "connect, TLS and GET from a sandbox, mode `sni`, against direct", "×", (most(2.2),)
            ),
            Figure("E1i", "intercept ratio", "the same in mode `intercept`", "×", (most(2.6),)),
            Figure("E1d", "direct", "the same direct", "ms"),
            Figure(
                "E1b", "sni bulk", "bulk in mode `sni` against 400 MiB/s or 0.4 direct, the lower", "×", (least(1),)
            ),
            Figure("E1bi", "intercept bulk", "the same in mode `intercept`", "×", (least(1),)),
            Figure("E1f", "sni failed", "failures of 200 connections at once", "", (most(0),)),
            Figure("E1fi", "intercept failed", "the same in mode `intercept`", "", (most(0),)),
            Figure("E1l", "record", "share of writing the record in one GET", "%", (most(5),)),
        ),
        {"rounds": 10, "gets": 30, "bulk_mib": 128, "at_once": 200},
        {"rounds": 2, "gets": 8, "bulk_mib": 16, "at_once": 50},
    ),
)

CURVES = frozenset({"G1", "G2", "G3", "G4w", "G4p", "G4q", "G5a"})
"""One figure of each row that is measured at several sizes."""
