"""What is measured of Coldframe alone: idle cost, growth, the price of policy, the SDK, the start.

Every action makes an installation of its own and answers with named figures. Milliseconds, MiB or per cent, as named.
"""

import asyncio
import compileall
import contextlib
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from bench.system_calls import count, parts_of, reason_against
from bench.workers import growth, remains, waiting
from bench.workers.cells import cells
from bench.workers.layers import layers
from bench.workers.mcp import mcp
from bench.workers.previews import previews
from bench.workers.product import AGENT, connected, end, installed, run_true
from bench.workers.snapshots import snapshots
from bench.workers.wire import STREAM_BYTES, STREAM_COMMAND, Action, Wrong, expect, timed
from coldframe.client.api import Coldframe
from coldframe.client.sync import SyncColdframe
from coldframe.contract.command import OutputChunk
from tests.installation import CHECKOUT, Installation

Figures = dict[str, float]
LINES_AT_ONCE = 4
SEARCHED_ENTRIES = 50
UNCOUNTED = 5


@contextlib.asynccontextmanager
async def open_alone(**_: str) -> AsyncIterator[dict[str, Action]]:
    # As an installation from a package has it; without this a start would be mostly compiling.
    compileall.compile_dir(CHECKOUT / "coldframe", quiet=1)
    yield {
        "gates": gates,
        "idle": idle,
        "stream_memory": stream_memory,
        "policy_cost": policy_cost,
        "history": history,
        "pause": pause,
        "audit": audit,
        "sdk_cost": sdk_cost,
        "start": start,
        "egress": egress,
        "cells": cells,
        "mcp": mcp,
        "previews": previews,
        "layers": layers,
        "snapshots": snapshots,
        "first_after_idle": waiting.first_after_idle,
        "staggered": waiting.staggered,
        "disk": remains.disk,
        "soak": remains.soak,
        "live": growth.live,
        "lists": growth.lists,
        "files": growth.files,
    }


def milliseconds(values: list[float]) -> float:
    return 1000 * statistics.median(values)


def alternated(
    repetitions: int, one: Callable[[], float], other: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Seconds of both, done in turn. The first of each are not counted."""
    pairs = [(one(), other()) for _ in range(repetitions + UNCOUNTED)]
    ones, others = zip(*pairs[UNCOUNTED:], strict=True)
    return list(ones), list(others)


async def gates(request: dict[str, Any]) -> Figures:
    """System calls and commits of one command; deterministic."""
    if reason := reason_against():
        raise Wrong(reason)
    with installed() as installation:
        counted = count(installation, int(request["commands"]))
    parts = {f"{part} calls": calls / counted.commands for part, calls in counted.calls.items()}
    return {"calls": counted.calls_per_command, "commits": counted.commits_per_command, **parts}


async def egress(request: dict[str, Any]) -> Figures:
    """The way out, in a process of its own: it goes into a room without any other."""
    asked = [str(request[name]) for name in ("rounds", "gets", "bulk_mib", "at_once")]
    program = [sys.executable, "-m", "bench.workers.egress", *asked, str(request["peers"])]
    done = await asyncio.to_thread(subprocess.run, program, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
    expect(done.returncode == 0, f"it ended with {done.returncode}")
    return dict(json.loads(done.stdout))


# -- idle -------------------------------------------------------------------------------------------------------------


async def idle(request: dict[str, Any]) -> Figures:
    """Memory and processor time of *sandboxes* that do nothing, server and daemon included."""
    wanted = int(request["sandboxes"])
    before_kib = available_kib()
    with installed() as installation:
        async with Coldframe(installation.url, installation.token) as client:
            made = []
            for _ in range(wanted):
                sandbox = await client.sandboxes.create(agent_id=AGENT)
                expect((await sandbox.run_command(["true"])).exit_code == 0, "`true` failed")
                made.append(sandbox)
            await asyncio.sleep(float(request["settle_s"]))
            lost_kib = before_kib - available_kib()
            pids = installation.processes()
            proportional_kib = sum(map(proportional_set_kib, pids))
            begun, used = time.monotonic(), sum(map(processor_s, pids))
            await asyncio.sleep(float(request["idle_s"]))
            percent = 100 * (sum(map(processor_s, pids)) - used) / (time.monotonic() - begun)
            for sandbox in made:
                await sandbox.terminate()
    return {
        "available": lost_kib / 1024 / wanted,
        "proportional": proportional_kib / 1024 / wanted,
        "processor": percent,
        "processes": float(len(pids)),
    }


def available_kib() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))


def proportional_set_kib(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("Pss:")), 0)
    except OSError:  # ended meanwhile, or another user's
        return 0


def processor_s(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def stream_memory(request: dict[str, Any]) -> Figures:
    """How much the server grows while it passes 100 MB of output through."""
    with connected() as (installation, client):
        server = next(pid for pid, part in parts_of(installation).items() if part == "server")
        with client.sandboxes.create(agent_id=AGENT) as sandbox:
            run_true(sandbox)
            before = status_mib(server, "VmRSS")
            for _ in range(int(request["repetitions"])):
                size = sum(len(e.data) for e in sandbox.run(STREAM_COMMAND) if isinstance(e, OutputChunk))
                expect(size == STREAM_BYTES, f"{size} bytes")
            return {"growth": status_mib(server, "VmHWM") - before}


def status_mib(pid: int, name: str) -> float:
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(f"{name}:")) / 1024


# -- policy -----------------------------------------------------------------------------------------------------------

RULE = """\
  - id: rule-{number}
    hook: PRE_TOOL_CALL
    when: {{tool: run_command, program: {{glob: "forbidden-{number}-*"}}}}
    then: deny
"""


async def policy_cost(request: dict[str, Any]) -> Figures:
    """The same command with 1,000 rules that all have to be looked at, and with an empty rule file; interleaved."""
    rules = "version: 1\nrules:\n" + "".join(RULE.format(number=n) for n in range(int(request["rules"])))
    with connected() as (_, full), connected() as (_, empty):
        full.policy.load(rules)
        empty.policy.load("version: 1\n")
        with full.sandboxes.create(agent_id=AGENT) as judged, empty.sandboxes.create(agent_id=AGENT) as free:
            times = alternated(int(request["repetitions"]), lambda: run_true(judged), lambda: run_true(free))
    has, lacks = map(milliseconds, times)
    return {"with": has, "without": lacks, "difference": has - lacks}


# -- growth -----------------------------------------------------------------------------------------------------------


async def history(request: dict[str, Any]) -> Figures:
    """`true` after so many commands in the same sandbox."""
    figures: Figures = {}
    repetitions = int(request["repetitions"])
    done = 0
    with connected() as (installation, client):
        async with Coldframe(installation.url, installation.token) as concurrent:
            with client.sandboxes.create(agent_id=AGENT) as sandbox:
                same = await concurrent.sandboxes.get(sandbox.id)

                async def fill(commands: int) -> None:
                    for _ in range(commands):
                        await same.run_command(["true"])

                for _ in range(UNCOUNTED):
                    run_true(sandbox)
                for wanted in request["sizes"]:
                    missing = max(0, int(wanted) - done)
                    await asyncio.gather(*(fill(missing // LINES_AT_ONCE) for _ in range(LINES_AT_ONCE)))
                    figures[f"after {wanted}"] = milliseconds([run_true(sandbox) for _ in range(repetitions)])
                    done = int(wanted) + repetitions
    first, last = (figures[f"after {size}"] for size in (request["sizes"][0], request["sizes"][-1]))
    return {**figures, "ratio": last / first}


async def pause(request: dict[str, Any]) -> Figures:
    """Over HTTP, with one process and with many, all of them asleep as servers are."""
    figures: Figures = {}
    with connected() as (_, client):
        for processes, name in ((1, ""), (int(request["processes"]), ", many")):
            with client.sandboxes.create(agent_id=AGENT) as sandbox:
                sandbox.run_command(f"for i in $(seq {processes}); do sleep 10000 & done")
                paused: list[float] = []
                resumed: list[float] = []
                for number in range(UNCOUNTED + int(request["repetitions"])):
                    for act, times in ((sandbox.pause, paused), (sandbox.resume, resumed)):
                        with timed() as watch:
                            act()
                        if number >= UNCOUNTED:
                            times.append(watch.seconds)
                figures[f"pause{name}"], figures[f"resume{name}"] = milliseconds(paused), milliseconds(resumed)
    return figures


async def audit(request: dict[str, Any]) -> Figures:
    """The ledger itself, in this process: so many rows do not come over HTTP in any reasonable time."""
    from coldframe.control.ledger import Ledger
    from coldframe.control.store import Store

    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix="cf-bench-") as path:
        store = Store(os.path.join(path, "coldframe.db"))
        ledger = Ledger(store, os.path.join(path, "ledger"), lambda: datetime.now(UTC))
        try:
            rows = 0

            def append() -> float:
                nonlocal rows
                rows += 1
                body = {
                    "sandbox_id": f"sb_{rows % 100:08d}",
                    "agent_id": "bench",
                    "session_id": f"se_{rows % 100:08d}",
                    "call_id": f"call_{rows:012d}",
                    "tool": "run_command",
                    "arguments": {"command": ["true"]},
                    "exit_code": 0,
                    "sha256": "0" * 64,
                }
                with timed() as watch:
                    ledger.append("call.ended", f"call_{rows:012d}", body)
                return watch.seconds

            sizes = [int(size) for size in request["sizes"]]
            for size in sizes:
                while rows < size - 500:
                    with store.transaction():  # the way there is not what is measured
                        for _ in range(min(1000, size - 500 - rows)):
                            append()
                figures[f"append at {size}"] = milliseconds([append() for _ in range(500)])
                asked = []
                for _ in range(30):
                    with timed() as watch:
                        found = ledger.entries(after=max(0, rows - 100 * SEARCHED_ENTRIES), sandbox_id="sb_00000007")
                    expect(len(found) >= min(10, rows // 100), f"{len(found)} entries")
                    asked.append(watch.seconds)
                figures[f"query at {size}"] = milliseconds(asked)
                with timed() as watch:
                    verdict = ledger.verify()
                expect(verdict.intact, "the ledger does not verify")
                figures[f"verify at {size}"] = rows / watch.seconds
        finally:
            ledger.close()
            store.close()
    return {
        **figures,
        "append ratio": figures[f"append at {sizes[-1]}"] / figures[f"append at {sizes[0]}"],
        "query": figures[f"query at {sizes[-1]}"],
        "verify": figures[f"verify at {sizes[-1]}"],
    }


# -- the SDK and the start --------------------------------------------------------------------------------------------

IMPORT = """
import sys, time
begun = time.perf_counter()
import coldframe
coldframe.SyncColdframe
print(1000 * (time.perf_counter() - begun), int("httpx" in sys.modules))
"""


async def sdk_cost(request: dict[str, Any]) -> Figures:
    """A ping through the SDK against the same over a bare connection; the time to import the SDK."""
    repetitions = int(request["repetitions"])
    with connected() as (installation, client):
        address = urlsplit(installation.url)
        bare = http.client.HTTPConnection(address.hostname or "", address.port)
        bare.connect()
        socket = bare.sock
        ping = f"GET /v1/health HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode()

        def through_sdk() -> float:
            with timed() as watch:
                client.health()
            return watch.seconds

        def through_socket() -> float:
            with timed() as watch:
                socket.sendall(ping)
                answer = b""
                while not answer.endswith(b"}"):  # head and body come apart
                    answer += socket.recv(65536)
            expect(answer.startswith(b"HTTP/1.1 200"), answer[:40].decode("latin-1"))
            return watch.seconds

        sdk, raw = map(milliseconds, alternated(repetitions, through_sdk, through_socket))
        bare.close()
        imports = [_import_once(installation.environment) for _ in range(max(3, repetitions // 20))]
    return {"sdk": sdk, "raw": raw, "difference": sdk - raw, "import": milliseconds(imports)}


def _import_once(environment: dict[str, str]) -> float:
    said = subprocess.run([sys.executable, "-c", IMPORT], env=environment, capture_output=True, check=True)
    took, has_httpx = said.stdout.split()
    expect(has_httpx == b"0", "the SDK imports httpx")
    return float(took) / 1000


async def start(request: dict[str, Any]) -> Figures:
    """From the command to the first answer and to the first sandbox: on a new data directory, and on one that is there."""
    answered: list[float] = []
    created: list[float] = []
    installation = Installation()
    try:
        for _ in range(int(request["repetitions"]) + 1):
            first_answer, first_sandbox = _start_once(installation)
            answered.append(first_answer)
            created.append(first_sandbox)
    finally:
        end(installation)
    return {
        "answer": milliseconds(answered[1:]),
        "create": milliseconds(created[1:]),
        "answer, new": 1000 * answered[0],
        "create, new": 1000 * created[0],
    }


def _start_once(installation: Installation) -> tuple[float, float]:
    begun = time.perf_counter()
    with open(installation.log_path, "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "coldframe.cli", "--json", "up", "--data-dir", installation.data_dir, "--port", "0"],
            env={**installation.environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        if process.stdout is None:
            raise RuntimeError("the pipe is missing")
        line = process.stdout.readline()
        expect(bool(line), "`coldframe up` ended")
        with SyncColdframe(json.loads(line)["url"], installation.token) as client:
            client.health()
            first_answer = time.perf_counter() - begun
            sandbox = client.sandboxes.create(agent_id=AGENT)
            first_sandbox = time.perf_counter() - begun
            sandbox.terminate()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()
    return first_answer, first_sandbox
