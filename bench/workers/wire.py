"""What all workers share: a line of JSON in, a line of JSON out. Standard library only; runs in any Python from 3.11.

A worker opens its system, says what it can do, then does one action per request and answers with seconds, measured
around the system's own API alone. A wrong or cut answer is a `Wrong`: a failure, never a time.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

KIB = bytes(range(256)) * 4
BULK_BYTES = 50_000_000
STREAM_BYTES = 100_000_000
STREAM_COMMAND = ["head", "-c", str(STREAM_BYTES), "/dev/zero"]
PYTHON_COMMAND = ["python3", "-c", "print(1)"]
RATE_SANDBOXES = 16
BULK = bytes(range(250)) * (BULK_BYTES // 250)
Action = Callable[[dict[str, Any]], Awaitable[Any]]


class Wrong(Exception):
    """The answer was not what the command says it has to be."""


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise Wrong(what)


class Watch:
    """Seconds of one block."""

    seconds = 0.0


@contextlib.contextmanager
def timed() -> Iterator[Watch]:
    watch = Watch()
    begun = time.perf_counter()
    yield watch
    watch.seconds = time.perf_counter() - begun


async def at_once(parts: Iterable[Awaitable[object]]) -> float:
    """Seconds until the last of them is done. Raises Wrong if any failed."""
    with timed() as watch:
        ended = await asyncio.gather(*parts, return_exceptions=True)
    failed = [str(error) for error in ended if isinstance(error, BaseException)]
    expect(not failed, f"{len(failed)} of {len(ended)} failed: {failed[:1]}")
    return watch.seconds


def serve(opened: Callable[[], contextlib.AbstractAsyncContextManager[dict[str, Action]]]) -> None:
    """Open the system, then answer requests `{"do": ACTION, ...}` until end of file, then close it."""
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)  # what a system prints is not an answer

    def say(**answer: Any) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    async def run() -> None:
        try:
            async with opened() as actions:
                say(can=sorted(actions))
                for line in requests:  # nothing else has to go on between two requests
                    request = json.loads(line)
                    try:
                        say(value=await actions[request["do"]](request))
                    except Exception as error:  # noqa: BLE001  the edge of a request
                        say(error=f"{type(error).__name__}: {error}"[:300])
        except Exception as error:  # noqa: BLE001  a system that does not open is named, not hidden
            say(error=f"{type(error).__name__}: {error}"[:300])
            sys.exit(1)

    asyncio.run(run())


def plain(function: Callable[[], float]) -> Action:
    """An action without arguments that blocks."""

    async def act(_: dict[str, Any]) -> float:
        return function()

    return act
