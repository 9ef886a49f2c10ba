"""What of the lines of a history is there already: after a crash they are given once more, and must not be there twice."""

import json
import os

LOOK_BACK_BYTES = 8 * 1024 * 1024
"""How far back lines are looked for that may be there; far more than are given again after a crash."""
_LAST_LINE_BYTES = 16 * 1024


def unseen(file: int, lines: bytes) -> bytes:
    """Return what is to be appended to the history that is open for reading as *file*, so that it has all of *lines*.

    Lines are the same if every byte is: a ledger that was begun anew counts from 1 again. Half a line at the end, as
    a full disk leaves it, is closed first.
    """
    end = _tail(file, _LAST_LINE_BYTES)
    whole, _, torn = end.rpartition(b"\n")
    new = lines
    given = lines.splitlines(keepends=True)
    if given and _sequence(given[0]) <= _sequence(whole.rpartition(b"\n")[2]):
        there = set(_tail(file, LOOK_BACK_BYTES).splitlines(keepends=True))
        new = b"".join(line for line in given if line not in there)
    return b"\n" + new if torn and new else new


def _tail(file: int, size: int) -> bytes:
    start = max(0, os.fstat(file).st_size - size)
    return os.pread(file, size, start)


def _sequence(line: bytes) -> float:
    """The sequence number of one line. What cannot be read may be any: infinity in a history, which makes one look."""
    if not line:
        return -1
    try:
        return int(json.loads(line)["sequence"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return float("inf")
