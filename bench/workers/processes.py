"""Floors and peers that are one program started per command: nothing at all, a fresh bwrap, runc.

All of them get the same: a program with arguments, its whole output read back into Python. `posix_spawn` with own
pipes and not `subprocess`, since that is the fastest way from Python and therefore the fair floor.
"""

import asyncio
import contextlib
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from bench.workers.wire import (
    BULK,
    BULK_BYTES,
    KIB,
    PYTHON_COMMAND,
    RATE_SANDBOXES,
    STREAM_BYTES,
    STREAM_COMMAND,
    Action,
    expect,
    plain,
    timed,
)

ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
F_SETPIPE_SZ = 1031
PIPE_BYTES = 1024 * 1024


def spawn(command: list[str], *, data: bytes | None = None) -> tuple[int, bytes]:
    """Run to the end. Returns exit code and standard output."""
    import fcntl

    read, write = os.pipe2(os.O_CLOEXEC)
    fcntl.fcntl(read, F_SETPIPE_SZ, PIPE_BYTES)
    actions: list[tuple[int, ...]] = [(os.POSIX_SPAWN_DUP2, write, 1)]
    feeder = None
    if data is not None:
        source, sink = os.pipe2(os.O_CLOEXEC)
        fcntl.fcntl(sink, F_SETPIPE_SZ, PIPE_BYTES)
        actions.append((os.POSIX_SPAWN_DUP2, source, 0))
    pid = os.posix_spawnp(command[0], command, ENVIRONMENT, file_actions=actions)
    os.close(write)
    if data is not None:
        os.close(source)
        feeder = threading.Thread(target=_feed, args=(sink, data))
        feeder.start()
    pieces = []
    while piece := os.read(read, PIPE_BYTES):
        pieces.append(piece)
    os.close(read)
    if feeder is not None:
        feeder.join()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), b"".join(pieces)


def _feed(sink: int, data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(sink, view) :]
    finally:
        os.close(sink)


def timed_spawn(command: list[str], wanted: bytes | int, *, data: bytes | None = None) -> float:
    with timed() as watch:
        code, output = spawn(command, data=data)
    expect(code == 0, f"exit code {code}")
    expect(output == wanted if isinstance(wanted, bytes) else len(output) == wanted, f"{len(output)} bytes of output")
    return watch.seconds


def start_and_end(command: list[str]) -> float:
    """Seconds to end something that was started: kill and wait."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    with timed() as watch:
        process.kill()
        process.wait()
    return watch.seconds


async def burst(count: int, one: Callable[[], float]) -> float:
    """Seconds for *count* at once, in threads: as a program would that has only a blocking way to start."""
    loop = asyncio.get_running_loop()
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(count) as pool:
        with timed() as watch:
            await asyncio.gather(*(loop.run_in_executor(pool, one) for _ in range(count)))
    return watch.seconds


def command_actions(wrap: Callable[[list[str]], list[str]]) -> dict[str, Action]:
    """What can be done with nothing but a way to run a command; files go through `cat`, as users of such tools do."""

    def stdin_write(name: str, data: bytes) -> float:
        return timed_spawn(wrap(["sh", "-c", f"cat > {name}"]), b"", data=data)

    def stdout_read(name: str, data: bytes) -> float:
        return timed_spawn(wrap(["cat", name]), data)

    async def rate(request: dict[str, Any]) -> float:
        each = int(request["commands"]) // RATE_SANDBOXES

        def some() -> float:
            return sum(timed_spawn(wrap(["true"]), b"") for _ in range(each))

        return await burst(RATE_SANDBOXES, some)

    return {
        "exec_true": plain(lambda: timed_spawn(wrap(["true"]), b"")),
        "exec_python": plain(lambda: timed_spawn(wrap(PYTHON_COMMAND), b"1\n")),
        "write_1k": plain(lambda: stdin_write("kib", KIB)),
        "read_1k": plain(lambda: stdout_read("kib", KIB)),
        "write_50m": plain(lambda: stdin_write("bulk", BULK)),
        "read_50m": plain(lambda: stdout_read("bulk", BULK)),
        "stream": plain(lambda: timed_spawn(wrap(STREAM_COMMAND), STREAM_BYTES)),
        "rate": rate,
    }


# -- nothing at all ---------------------------------------------------------------------------------------------------


def two_spawners(each: int) -> float:
    with timed() as watch:
        children = []
        for _ in range(2):
            pid = os.fork()
            if pid == 0:
                for _ in range(each):
                    os.waitpid(os.posix_spawnp("true", ["true"], ENVIRONMENT), 0)
                os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
    return watch.seconds


class Shell:
    """One bash on a pipe, as a session without anything around it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT, bufsize=0
        )

    def run_true(self) -> float:
        source, sink = self._process.stdout, self._process.stdin
        expect(source is not None and sink is not None, "there is no pipe")
        with timed() as watch:
            sink.write(b"true; echo $?\n")  # type: ignore[union-attr]
            told = source.readline()  # type: ignore[union-attr]
        expect(told == b"0\n", f"it said {told!r}")
        return watch.seconds

    def close(self) -> None:
        self._process.communicate()


@contextlib.asynccontextmanager
async def open_plain(path: str, **_: str) -> AsyncIterator[dict[str, Action]]:
    os.chdir(path)

    def write(name: str, data: bytes) -> float:
        with timed() as watch:
            with open(name + ".new", "wb") as file:
                file.write(data)
            os.replace(name + ".new", name)
        return watch.seconds

    def read(name: str, size: int) -> float:
        with timed() as watch:
            with open(name, "rb") as file:
                data = file.read()
        expect(len(data) == size, f"{len(data)} bytes")
        return watch.seconds

    async def rate(request: dict[str, Any]) -> float:
        """As many as two processes can that do nothing else."""
        return two_spawners(int(request["commands"]) // 2)

    async def search(request: dict[str, Any]) -> float:
        """One thread of ripgrep, if it is there, else of grep."""
        tree = make_tree(int(request["files"]))
        program = request["rg"]
        command = [program, "-j1", "--no-messages", "-F"] if program else ["grep", "-rF"]
        with timed() as watch:
            code, output = spawn([*command, "needle", tree])
        expect(code == 0 and output.count(b"\n") == TREE_MATCHES, f"{output.count(bytes([10]))} matches")
        return watch.seconds

    shell = Shell()
    yield {
        **command_actions(list),
        "session_true": plain(shell.run_true),
        "write_1k": plain(lambda: write("kib", KIB)),
        "read_1k": plain(lambda: read("kib", len(KIB))),
        "write_50m": plain(lambda: write("bulk", BULK)),
        "read_50m": plain(lambda: read("bulk", BULK_BYTES)),
        "rate": rate,
        "destroy": plain(lambda: start_and_end(["sleep", "1000"])),
        "search": search,
        "start": plain(lambda: timed_spawn(["python3", "-c", "pass"], b"")),
    }
    shell.close()


TREE_MATCHES = 20
TREE_SCRIPT = """
import os, sys
files, matches = int(sys.argv[1]), int(sys.argv[2])
every = files // matches
for number in range(files):
    folder = f"tree{files}/d{number // 100}"
    if number % 100 == 0:
        os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/f{number}.txt", "w") as file:
        file.write("some words that are looked through\\n" * 20)
        if number % every == 0 and number // every < matches:
            file.write("here is the needle\\n")
"""


def make_tree(files: int) -> str:
    if not os.path.isdir(f"tree{files}"):
        subprocess.run(["python3", "-c", TREE_SCRIPT, str(files), str(TREE_MATCHES)], check=True)
    return f"tree{files}"


# -- bubblewrap -------------------------------------------------------------------------------------------------------


def bwrap_command(path: str, command: list[str]) -> list[str]:
    """The least that gives a comparable view: own namespaces, read-only system, one writable folder."""
    links = [
        part
        for name in ("bin", "lib", "lib64", "sbin")
        if os.path.islink(f"/{name}")
        for part in ("--symlink", f"usr/{name}", f"/{name}")
    ]
    return [
        *("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr", *links),
        *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
        *("--bind", path, "/home/user", "--chdir", "/home/user"),
        *command,
    ]


@contextlib.asynccontextmanager
async def open_bwrap(path: str, **_: str) -> AsyncIterator[dict[str, Action]]:
    def wrap(command: list[str]) -> list[str]:
        return bwrap_command(path, command)

    def echo() -> float:
        return timed_spawn(wrap(["echo", "ok"]), b"ok\n")

    async def many(request: dict[str, Any]) -> float:
        return await burst(int(request["count"]), echo)

    yield {**command_actions(wrap), "tti": plain(echo), "burst": many}


# -- runc -------------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def open_runc(path: str, *, program: str, **_: str) -> AsyncIterator[dict[str, Action]]:
    from bench.workers.bundle import make_bundle

    bundle = make_bundle(path)
    state = os.path.join(path, "state")
    numbers = iter(range(1_000_000))
    runc = [program, "--root", state]

    def create() -> str:
        name = f"cf-bench-{os.getpid()}-{next(numbers)}"
        # Not `spawn`: the container keeps the standard output that it is given.
        quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1)]
        pid = os.posix_spawn(
            program, [*runc, "run", "--detach", "--bundle", bundle, name], ENVIRONMENT, file_actions=quiet
        )
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        expect(code == 0, f"runc run ended with {code}")
        return name

    def delete(name: str) -> float:
        with timed() as watch:
            code, _ = spawn([*runc, "delete", "--force", name])
        expect(code == 0, f"runc delete ended with {code}")
        return watch.seconds

    def echo(name: str) -> None:
        code, output = spawn([*runc, "exec", name, "echo", "ok"])
        expect(code == 0 and output == b"ok\n", f"exit code {code}")

    def create_and_echo() -> float:
        with timed() as watch:
            name = create()
            echo(name)
        delete(name)
        return watch.seconds

    def create_and_delete() -> float:
        return delete(create())

    async def many(request: dict[str, Any]) -> float:
        made: list[str] = []

        def one() -> float:
            made.append(create())
            echo(made[-1])
            return 0.0

        try:
            return await burst(int(request["count"]), one)
        finally:
            for name in made:
                delete(name)

    live = create()
    try:
        yield {
            **command_actions(lambda command: [*runc, "exec", live, *command]),
            "tti": plain(create_and_echo),
            "burst": many,
            "destroy": plain(create_and_delete),
        }
    finally:
        delete(live)
