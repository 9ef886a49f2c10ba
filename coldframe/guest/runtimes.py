"""Which languages and tools a box has: looked for along PATH, asked for their version, never an error.

A program is asked only where the system keeps programs, and where nobody inside can change them. Any other one is
reported without a version: it may be anything, and is started by commands alone.
"""

import os
import re
import select
import signal
import stat
import time
from collections.abc import Callable
from typing import Any

from coldframe.guest.facts import text_of
from coldframe.guest.verbs import Answer, verb

RUNTIMES = {
    "python3": "pip",
    "python": "pip",
    "node": "npm",
    "deno": "deno",
    "bash": None,
    "sh": None,
    "perl": "cpan",
    "ruby": "gem",
    "git": None,
    "npm": "npm",
    "pip": "pip",
    "gcc": None,
    "cc": None,
    "make": None,
    "uv": "uv",
    "pnpm": "pnpm",
    "apt-get": "apt-get",
}
"""Name, and the package manager that goes with it where that is on PATH too."""

USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
WRITABLE_PLACES = ("/home/", "/tmp/", "/var/tmp/", "/dev/", "/run/")  # noqa: S108  named, not used
VERSION_TIMEOUT_S = 3.0
VERSIONS_TIMEOUT_S = 10.0
"""For all together; what is not reached by then has no version."""
OUTPUT_BYTES = 4096

AskVersion = Callable[[str, float], bytes]
"""(program, timeout in seconds) -> what `program --version` writes; empty if it fails."""

_VERSION = re.compile(rb"\d+(?:\.\d+)+")


@verb("list_runtimes", slow=True)
def list_runtimes(root: int, request: dict[str, Any], content: bytes) -> Answer:
    """Answer a ListRuntimes. The keeper may add `path_env`, the PATH that commands get."""
    path = request.get("path_env") or os.environ.get("PATH") or USUAL_PATH
    return {"runtimes": find_runtimes(path, _ask_sealed)}, b""


def _ask_sealed(program: str, timeout_s: float) -> bytes:
    return ask_version(program, timeout_s) if is_sealed(program) else b""


def is_sealed(program: str) -> bool:
    """Whether it lies where nobody inside can change it: a system of the box's own is its root's."""
    return bool(os.statvfs(program).f_flag & os.ST_RDONLY)


def find_runtimes(path: str, ask: AskVersion) -> list[dict[str, Any]]:
    """One Runtime for each known name, present or not."""
    directories = [directory for directory in path.split(":") if directory.startswith("/")]
    deadline = time.monotonic() + VERSIONS_TIMEOUT_S
    found = []
    for name, package_manager in RUNTIMES.items():
        program = _find(name, directories)
        version = None
        # What is started is the file that was judged: a link may point elsewhere a moment later.
        real = None if program is None else os.path.realpath(program)
        if real is not None and not real.startswith(WRITABLE_PLACES):
            version = _read_version(ask(real, min(VERSION_TIMEOUT_S, deadline - time.monotonic())))
        if program is None or (package_manager and _find(package_manager, directories) is None):
            package_manager = None
        shown = None if program is None else text_of(os.fsencode(program))
        found.append(
            {
                "name": name,
                "present": program is not None,
                "version": version,
                "path": shown,
                "package_manager": package_manager,
            }
        )
    return found


def _find(name: str, directories: list[str]) -> str | None:
    for directory in directories:
        program = f"{directory.rstrip('/')}/{name}"
        try:
            if stat.S_ISREG(os.stat(program).st_mode) and os.access(program, os.X_OK, effective_ids=True):
                return program
        except (OSError, ValueError):
            continue
    return None


def _read_version(output: bytes) -> str | None:
    match = _VERSION.search(output)
    return None if match is None else match.group().decode()


def ask_version(program: str, timeout_s: float) -> bytes:
    """Run `program --version` in a session of its own, with nothing to read, and kill all of it at the end."""
    if timeout_s <= 0:
        return b""
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        try:
            pid = os.posix_spawn(
                program,
                [program, "--version"],
                {"PATH": USUAL_PATH, "HOME": "/nonexistent", "LC_ALL": "C", "DENO_NO_UPDATE_CHECK": "1"},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, write, 1),
                    (os.POSIX_SPAWN_DUP2, write, 2),
                ],
                setsid=True,
                setsigdef=[signal.SIGPIPE],
            )
        except OSError:
            return b""
        finally:
            os.close(write)
        try:
            return _read_until(read, time.monotonic() + timeout_s)
        finally:
            try:
                os.killpg(pid, signal.SIGKILL)
            except OSError:
                pass  # it ended, and its session with it
            os.waitpid(pid, 0)
    finally:
        os.close(read)


def _read_until(read: int, deadline: float) -> bytes:
    output = b""
    waiting = select.poll()
    waiting.register(read, select.POLLIN)
    while len(output) < OUTPUT_BYTES:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not waiting.poll(left_s * 1000):
            return b""
        piece = os.read(read, OUTPUT_BYTES)
        if not piece:
            break
        output += piece
    return output
