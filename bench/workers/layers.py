"""What snapshot, fork, reset and live copy cost the store of layers by itself, by the number of files.

Nothing is mounted and no sandbox runs: it is the part of row P2 that is the store's. Files are made once for each
number; what is timed begins when they are on disk.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coldframe.host.layers.store import LayerStore

FILE_BYTES = 400
CHANGED_BYTES = 40 * 1024 * 1024


def fill(top: str, files: int, size: int) -> None:
    """Files of random content, 200 to a directory."""
    content = os.urandom(size)
    for number in range(files):
        folder = os.path.join(top, f"folder-{number // 200}")
        if number % 200 == 0:
            os.mkdir(folder)
        Path(folder, str(number)).write_bytes(content)


@contextmanager
def stopwatch(kept: list[float]) -> Iterator[None]:
    """Adds the milliseconds between entering and leaving it."""
    begun = time.perf_counter()
    yield
    kept.append(1000 * (time.perf_counter() - begun))


async def layers(request: dict[str, Any]) -> dict[str, float]:
    """Medians, each of its own sealed layer; and the live copy, as the time for which a sandbox would be frozen."""
    figures: dict[str, float] = {}
    sizes, repetitions = [int(size) for size in request["sizes"]], int(request["repetitions"])
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="cf-bench-") as folder:
            for name, value in _steps(folder, size, repetitions).items():
                figures[f"{name} at {size}"] = value
    for name in ("snapshot", "fork", "reset"):
        figures[name] = max(figures[f"{name} at {size}"] for size in sizes)
    figures["ratio"] = max(
        figures[f"{name} at {sizes[-1]}"] / figures[f"{name} at {sizes[0]}"] for name in ("snapshot", "fork", "reset")
    )
    with tempfile.TemporaryDirectory(prefix="cf-bench-") as folder:
        for files in (10, 1000):
            figures[f"copy of {files}"] = _copied(os.path.join(folder, str(files)), files, repetitions)
    return figures


def _steps(folder: str, files: int, repetitions: int) -> dict[str, float]:
    store = LayerStore(folder)
    stack = store.create()
    upper = store.stacking(stack.id, "").upper
    fill(upper, files, FILE_BYTES)
    os.sync()
    found: dict[str, list[float]] = {"snapshot": [], "fork": [], "reset": []}
    with stopwatch(found["snapshot"]):
        snapshot = store.take_snapshot(stack.id)
    for _ in range(repetitions):
        # The same files again as an upper layer that nobody has sealed: moved, so that they are not made anew.
        fork = store.fork(snapshot.id)
        refilled = store.stacking(fork.id, "").upper
        for name in os.listdir(upper):
            os.rename(os.path.join(upper, name), os.path.join(refilled, name))
        upper = refilled
        os.sync()
        with stopwatch(found["snapshot"]):
            snapshot = store.take_snapshot(fork.id)
        with stopwatch(found["fork"]):
            store.fork(snapshot.id)
        Path(store.stacking(fork.id, "").upper, "spoilt").write_text("spoilt")
        with stopwatch(found["reset"]):
            store.reset(fork.id, snapshot.id)
    store.close()
    return {name: statistics.median(values) for name, values in found.items()}


def _copied(folder: str, files: int, repetitions: int) -> float:
    store = LayerStore(folder)
    stack = store.create()
    fill(store.stacking(stack.id, "").upper, files, CHANGED_BYTES // files)
    frozen_ms: list[float] = []
    for _ in range(repetitions):
        snapshot = store.copy_snapshot(stack.id, stopwatch(frozen_ms))
        store.remove_snapshot(snapshot.id)
        store.collect()
        os.sync()
    store.close()
    return statistics.median(frozen_ms)
