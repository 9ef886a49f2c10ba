"""Runs a function in a child process, for what cannot be undone in the one that runs the tests; and looks at processes."""

import os
import pickle
import time
import traceback
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class ChildFailedError(Exception):
    """The child raised or died; the text is its traceback."""


def in_child(function: Callable[[], T]) -> T:
    """What `function` returned in a forked child; the child ends without any clean-up of pytest."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = (True, function())
        except BaseException:
            answer = (False, traceback.format_exc())
        os.close(reading)
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        try:
            good, value = pickle.load(pipe)  # not to the end of file: a grandchild may live on
        except EOFError:
            good, value = False, "ended without an answer"
    os.waitpid(pid, 0)
    if not good:
        raise ChildFailedError(value)
    return value


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 10.0) -> None:
    """Poll `condition` until it holds; fail loudly after the deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition did not come true")
        time.sleep(0.005)


def status_of(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/status", encoding="ascii") as source:
        return dict(line.rstrip("\n").split(":\t", 1) for line in source if ":\t" in line)


def is_gone(pid: int) -> bool:
    try:
        return status_of(pid)["State"].startswith("Z")
    except (OSError, KeyError):
        return True
