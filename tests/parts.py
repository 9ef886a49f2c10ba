"""All that `scripts/test` runs, in parts beside one another; what a part says is shown whole as soon as it has ended.

One process of pytest with all that its tests start keeps three quarters of a processor busy, since boxes wait for timers and
the kernel. So one part more runs than there are processors. A part is whole directories, whose tests share installations,
and needs nothing of another part: every installation has a directory, ports and a mark of its own, and looks for
left-overs by that mark alone. What measures by the machine, `ALONE`, runs by itself before all others.

An interrupt is passed on to the parts that run, each of which ends what it started, and is waited for.
"""

import asyncio
import compileall
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[1]
ALONE = ("bench", "host/test_workspace_disks.py")
"""The first counts system calls, of which there are more on a busy machine. Disks of the second stay busy while there is a
copy of the machine's table of mounts anywhere, as tests of other parts make."""
BOXLESS = ("architecture", "client", "contract", "control", "docs", "fronts", "policy", "tools")
LARGE = ("promises", "host", "security", "e2b")
"""Each is a part; the longest first, since what is left over at the end runs beside nothing. The last one is a process of its own
because what an SDK trusts is read once in a process."""
OPTIONS = {"promises": ("--ready-boxes", "2")}
"""As users have it; for an ordinary user each box is built when a test asks for it."""
ORDINARY = (("security", "cases"), ("promises",))
"""Again as an ordinary user, if root runs this: the walls have to stand for users without any privilege as well. In another
order than root's, so that what uses up the machine does not do so twice at a time."""
NOBODY = 65534
BECOME = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all")
MOST_AT_ONCE = 4
INTERRUPTED = 130


class Part(NamedTuple):
    name: str
    command: Sequence[str]
    folder: Path = CHECKOUT
    environment: Mapping[str, str] | None = None


class Ended(NamedTuple):
    part: Part
    code: int
    seconds: float
    output: str

    @property
    def faults(self) -> list[str]:
        """What the part itself names as failed."""
        return [line for line in self.output.splitlines() if line.startswith(("FAILED ", "ERROR ", "check: failed"))]

    @property
    def line(self) -> str:
        lines = self.output.splitlines() or [""]
        last = next((line for line in reversed(lines) if line.startswith("=")), lines[-1]).strip("= ")
        outcome = "passed" if self.code == 0 else f"FAILED ({self.code})"
        return f"{self.seconds // 60:3.0f}:{self.seconds % 60:02.0f}  {outcome:<10}  {self.part.name}: {last}"


class Suite:
    """Runs parts and remembers how each ended."""

    def __init__(self, at_once: int) -> None:
        self.ended: list[Ended] = []
        self._places = asyncio.Semaphore(at_once)

    async def run(self, parts: Sequence[Part]) -> None:
        """Begin them in their order, and wait for all of them; cancelled, interrupt those that run."""
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(self._run(part))

    async def _run(self, part: Part) -> None:
        async with self._places:
            say(f"begins: {part.name}")
            begun = time.monotonic()
            with tempfile.TemporaryFile() as output:
                # A session of its own, so that a terminal's interrupt comes once, from here: a second one would cut off
                # the tests' own clearing up.
                process = await asyncio.create_subprocess_exec(
                    *part.command,
                    cwd=part.folder,
                    env=part.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
                try:
                    await process.wait()
                except asyncio.CancelledError:
                    with contextlib.suppress(ProcessLookupError):
                        process.send_signal(signal.SIGINT)
                    await process.wait()
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)  # children that a test had forked and was waiting for
                    raise
                finally:
                    output.seek(0)
                    text = output.read().decode(errors="replace")
                    code = process.returncode
                    self.ended.append(Ended(part, -1 if code is None else code, time.monotonic() - begun, text))
                    show(self.ended[-1])


def say(text: str) -> None:
    print(f"test: {text}", flush=True)


def show(ended: Ended) -> None:
    print(f"\n{f' {ended.part.name} ':#^120}\n{ended.output}", flush=True)


def part_of(name: str, directories: Sequence[str], *options: str) -> Part:
    """A run of pytest as the current user. Without a cache, which parts would write at the same time."""
    paths = [f"tests/{directory}" for directory in directories]
    return Part(name, (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, *paths))


def own_parts() -> list[Part]:
    """As the current user: together every test that there is, but `ALONE`."""
    apart = (*LARGE, *BOXLESS, *ALONE)
    rest = part_of("the rest", (), *(f"--ignore=tests/{directory}" for directory in apart))
    large = []
    for one in LARGE:
        apart_from = (f"--ignore=tests/{two}" for two in ALONE if two.startswith(one))
        large.append(part_of(one, (one,), *OPTIONS.get(one, ()), *apart_from))
    return [*large, rest, part_of("without boxes", BOXLESS)]


@contextlib.contextmanager
def ordinary_parts() -> Iterator[list[Part]]:
    """The same walls for uid 65534; none, with a word, where that is not possible."""
    if os.geteuid() != 0:
        say("a second run as an ordinary user is not needed, this is one")
        yield []
        return
    if shutil.which(BECOME[0]) is None:
        say("the second run as an ordinary user is SKIPPED: there is no setpriv on this machine")
        yield []
        return
    shelter = Path(tempfile.mkdtemp(prefix="cf-ordinary-", dir="/tmp"))
    try:
        shelter.chmod(0o711)
        home = shelter / "home"
        home.mkdir(0o700)
        os.chown(home, NOBODY, NOBODY)
        where, python = checkout_for_others(shelter)
        environment = {
            "PATH": os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin"),
            "LANG": "C.UTF-8",
            "HOME": str(home),
            "TMPDIR": "/tmp",
            "PYTHONPATH": str(where),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(home / "hypothesis"),
        }
        parts = []
        for directories in ORDINARY:
            part = part_of(f"{', '.join(directories)} as an ordinary user", directories, "-m", "not once")
            as_nobody = (*BECOME, python, *part.command[1:])
            parts.append(part._replace(command=as_nobody, folder=where, environment=environment))
        yield parts
    finally:
        shutil.rmtree(shelter, ignore_errors=True)


def checkout_for_others(shelter: Path) -> tuple[Path, str]:
    """The checkout and its Python; copies of them in *shelter*, if the checkout lies where others cannot go."""
    tried = 'cd "$1" && test -r pyproject.toml && "$2" -c ""'
    command = (*BECOME, "sh", "-c", tried, "-", str(CHECKOUT), sys.executable)
    if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0:
        return CHECKOUT, sys.executable
    where = shelter / "checkout"
    where.mkdir()
    names = (".venv", "coldframe", "docs", "tests", "scripts", "bench", "pyproject.toml")
    paths = [*(CHECKOUT / name for name in names), *CHECKOUT.glob("*.md")]
    subprocess.run(["cp", "-a", *map(str, paths), str(where)], check=True)
    subprocess.run(["chmod", "-R", "a+rX", str(where)], check=True)
    return where, str(where / ".venv" / "bin" / "python")


async def run_all(first: Sequence[Part], others: Sequence[Part], at_once: int) -> int:
    """Run *first* by itself and *others* beside one another; the exit code, with everything that failed said last."""
    suite, begun = Suite(at_once), time.monotonic()
    this = asyncio.current_task()
    assert this is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, this.cancel)
    interrupted = False
    try:
        await suite.run(first)
        await suite.run(others)
    except asyncio.CancelledError:
        interrupted = True
    print()
    for ended in suite.ended:
        say(ended.line)
    for ended in suite.ended:
        for fault in ended.faults:
            say(f"{ended.part.name}: {fault}")
    failed = [ended.part.name for ended in suite.ended if ended.code != 0]
    whole = f"{len(suite.ended)} parts in {(time.monotonic() - begun) / 60:.1f} minutes"
    say(f"INTERRUPTED after {whole}" if interrupted else f"{whole}; FAILED: {', '.join(failed) or 'none'}")
    return INTERRUPTED if interrupted else 1 if failed else 0


def main() -> int:
    # What tests start is told to write no bytecode, and would compile all of it each time.
    compileall.compile_dir(CHECKOUT / "coldframe", quiet=2)
    at_once = min(len(os.sched_getaffinity(0)) + 1, MOST_AT_ONCE)
    check = Part("check", ("scripts/check",))
    with ordinary_parts() as ordinary:
        own = own_parts()
        # In turn: parts of the same user share the kernel's accounts of that user.
        others = [part for pair in zip(own, ordinary, strict=False) for part in pair]
        others += [*own[len(ordinary) :], *ordinary[len(own) :], check]
        return asyncio.run(run_all([part_of("alone", ALONE)], others, at_once))


if __name__ == "__main__":
    sys.exit(main())
