"""The record of each command: one file `ID.record` of JSON lines, written by the keeper alone.

    {"at":"…","command_line":"…"}    before the command is forked
    {"event":"ended","result":{…}}   its end, before anybody hears of it, in the words in which they will

A line counts only with its newline, so what was cut off by a full disk or a crash is not there. Readers take
a record as hostile: its directory belongs to the sandbox user.
"""

import json
import os
import stat
from collections.abc import Callable
from typing import Any, NamedTuple

from coldframe.guest.frames import MAX_HEAD_BYTES, write_json
from coldframe.guest.ready_files import make_file

MOST_BYTES = MAX_HEAD_BYTES
"""Largest record that is read back: whatever could be told can be read again. File changes alone may be 100 MiB, since
each byte of a name may take six."""
MOST_ID_CHARACTERS = 80

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def is_id(value: object) -> bool:
    """Whether it has the form of the ids that control makes. They become names of files, so nothing else is taken."""
    return (
        isinstance(value, str)
        and len(value) <= MOST_ID_CHARACTERS
        and value.isascii()
        and value.replace("_", "").replace("-", "").isalnum()
    )


class Record(NamedTuple):
    start: dict[str, Any] | None
    end: dict[str, Any] | None
    """None while the command runs, or if its end could not be written."""


def record_name(command_id: str) -> str:
    return f"{command_id}.record"


def open_record(
    directory: int, command_id: str, start: dict[str, Any], *, make: Callable[[str], int] | None = None
) -> int:
    """Make the record with its first line; a descriptor for `end_record`. *make* gives a new file there by its name.

    Raises:
        FileExistsError: there is one.
        OSError: it cannot be kept; then nothing is left of it.
    """
    name = record_name(command_id)
    file = make_file(directory, name) if make is None else make(name)
    try:
        _write_line(file, start)
    except OSError:
        os.close(file)
        os.unlink(name, dir_fd=directory)
        raise
    return file


def end_record(file: int, end: dict[str, Any] | bytes) -> None:
    """Write the last line, which may be JSON already, and close. Raises OSError if it could not be kept; closed it is in any case."""
    try:
        _write_line(file, end)
    finally:
        os.close(file)


def read_record(directory: int | str, command_id: str) -> Record | None:
    """What is kept of a command below a directory (a descriptor or a path); None without a sound first line."""
    name = record_name(command_id)
    try:
        if isinstance(directory, int):
            file = os.open(name, _READ, dir_fd=directory)
        else:
            file = os.open(os.path.join(directory, name), _READ)
    except FileNotFoundError:
        return None
    with os.fdopen(file, "rb") as source:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        lines = source.read(MOST_BYTES).split(b"\n")[:-1]
    start, end = ([_parse(line) for line in lines[:2]] + [None, None])[:2]
    return None if start is None else Record(start, end)


def _write_line(file: int, body: dict[str, Any] | bytes) -> None:
    rest = memoryview((body if isinstance(body, bytes) else write_json(body)) + b"\n")
    while rest:
        rest = rest[os.write(file, rest) :]


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None
