"""What the `host:` steps of an attack file mean, by their words: files, processes, the other sandbox, limits.

Steps about what the product itself does are in `product_steps.py`. Prose that neither knows is said to be for a person.

A step raises Breach if the attack won, Bound if the isolation report says that this wall is not hard here, and NotHere if
the product has no such part yet; whatever else the row holds is judged all the same.
"""

import asyncio
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from coldframe.contract.isolation import IsolationReport, LimitReport
from tests.installation import Installation
from tests.security.scene import Bound, Breach, NotHere, Scene

Run = Callable[[Scene, re.Match[str]], Awaitable[None]]
MOST_COMMANDS = 100
"""The corpus asks for thousands of quick commands; each is the same once more."""
DAEMON_GROWTH_BYTES = 64 << 20
MOST_GROWTH_BYTES = 192 << 20
"""What an answer may hold of one stream, copied once while it grows, and as much again for all else. Less than what is printed."""


@dataclass(frozen=True)
class HostStep:
    pattern: re.Pattern[str]
    run: Run
    during: bool
    """Runs while the `sh:` step before it does."""
    sh_timeout_s: float | None
    """Time limit of the `sh:` step before it."""


STEPS: list[HostStep] = []


def step(pattern: str, *, during: bool = False, sh_timeout_s: float | None = None) -> Callable[[Run], Run]:
    def register(run: Run) -> Run:
        STEPS.append(HostStep(re.compile(pattern), run, during, sh_timeout_s))
        return run

    return register


def find_step(text: str) -> tuple[HostStep, re.Match[str]] | None:
    """The first step whose pattern occurs in *text*."""
    for candidate in STEPS:
        if found := candidate.pattern.search(text):
            return candidate, found
    return None


# -- files, processes ----------------------------------------------------------------------------------------------


@step(r"^test -e (\S+) && echo BREACH")
async def a_file_must_not_be_there(scene: Scene, found: re.Match[str]) -> None:
    if os.path.lexists(found[1]):
        raise Breach(f"{found[1]} is on the host")


@step(r"^look at the host$")
async def the_general_checks_are_enough(scene: Scene, found: re.Match[str]) -> None:
    """Files, services, processes and neighbour are looked at after every row."""


@step(r"^kill -0 (\d+) ")
async def a_process_must_live(scene: Scene, found: re.Match[str]) -> None:
    try:
        os.kill(int(found[1]), 0)
    except ProcessLookupError:
        raise Breach(f"process {found[1]} of the host is gone") from None


@step(r"meanwhile run (\d+) trivial commands; then compare the checksum", during=True)
async def programs_stay_while_commands_start(scene: Scene, found: re.Match[str]) -> None:
    programs = [
        os.path.realpath(path) for path in ("/usr/bin/bwrap", "/usr/bin/python3", "/usr/bin/sleep", "/bin/bash")
    ]
    before = [hashlib.sha256(Path(path).read_bytes()).digest() for path in programs]
    for _ in range(min(int(found[1]), MOST_COMMANDS)):
        await scene.run(["true"])
    if before != [hashlib.sha256(Path(path).read_bytes()).digest() for path in programs]:
        raise Breach("a program of the host changed")


@step(r"^run another command in the sandbox")
async def another_command_runs(scene: Scene, found: re.Match[str]) -> None:
    await scene.answers_still()


@step(r"^(?=\w+ .*\becho BREACH\b)(?!in sandbox)(.*)$")
async def a_line_of_shell_on_the_host(scene: Scene, found: re.Match[str]) -> None:
    if shutil.which(found[1].split()[0]) is None:
        raise NotHere(f"a step for a person: {found[1]}")
    ended = await asyncio.to_thread(
        subprocess.run,
        ["bash", "-c", found[1]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )
    if "BREACH" in ended.stdout:
        raise Breach(f"on the host: {ended.stdout.strip()[:300]}")


@step(r"^(nothing|no file|host files?|the host|the checksum).* (unchanged|as before|untouched|not changed)")
async def the_general_checks_say_so(scene: Scene, found: re.Match[str]) -> None:
    """As above."""


# -- the other sandbox ---------------------------------------------------------------------------------------------


@step(r"^in sandbox B: (.*)")
async def a_command_in_the_other_sandbox(scene: Scene, found: re.Match[str]) -> None:
    answer = await scene.run(found[1], on=scene.place.neighbour)
    if "BREACH" in answer.stdout:
        raise Breach(f"in the other sandbox: {answer.stdout.strip()}")


@step(r"processor time .* sandbox B runs", during=True, sh_timeout_s=4)
async def the_other_sandbox_runs_while_processors_burn(scene: Scene, found: re.Match[str]) -> None:
    answer = await scene.run(["true"], on=scene.place.neighbour)
    if answer.value.get("exit_code") != 0:
        raise Breach(f"the other sandbox did not run: {answer.text[:300]}")
    scene.notes.append("no cap on the rate was asked for: the time limit ended it")


@step(r"sandbox B can write and sync", during=True, sh_timeout_s=5)
async def the_other_sandbox_writes_meanwhile(scene: Scene, found: re.Match[str]) -> None:
    answer = await scene.run("dd if=/dev/zero of=io-b bs=1M count=1 conv=fsync; rm io-b", on=scene.place.neighbour)
    if answer.value.get("exit_code") != 0:
        raise Breach(f"the other sandbox did not write: {answer.text[:300]}")
    scene.notes.append("the rate of input and output is not limited on this host")


# -- limits --------------------------------------------------------------------------------------------------------


def limit_of(report: IsolationReport, kind: str) -> LimitReport:
    return next(limit for limit in report.limits if limit.kind == kind)


@step(r"^the result says out of memory|^as before$", sh_timeout_s=60)
async def the_memory_limit_ends_it(scene: Scene, found: re.Match[str]) -> None:
    limit = limit_of(await scene.sandbox.report(), "memory")
    answer = scene.answers[-1]
    peak = answer.value.get("peak_memory_bytes")
    if limit.strength != "hard":
        raise Bound(f"memory: {limit.strength}, {limit.enforced_by}; {limit.bound}")
    hit = answer.value.get("limit") or {}
    if "MemoryError" in str(answer.value.get("stderr")):
        scene.notes.append("the kernel refused the allocation at once")
    elif not answer.value.get("out_of_memory") and hit.get("kind") != "memory":
        raise Breach(f"the result does not say out of memory: {answer.text[:500]}")
    if peak is not None and peak > scene.limits.memory_mib * 2**20 * 1.1:
        raise Breach(f"{peak} bytes were used of {scene.limits.memory_mib} MiB")


@step(r"^free space of the host", sh_timeout_s=30)
async def the_disk_limit_holds(scene: Scene, found: re.Match[str]) -> None:
    limit = limit_of(await scene.sandbox.report(), "disk")
    size = sum(
        os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(files_of(scene)) for name in names
    )
    hit = scene.answers[-1].value.get("limit") or {}
    scene.notes.append(f"{size >> 20} MiB of {limit.limit:g} were written; ended by: {hit.get('kind') or 'nothing'}")
    await scene.run("rm -f fill")
    if limit.strength == "hard" and size > limit.limit * 2**20:
        raise Breach(f"{size} bytes were written past a hard limit of {limit.limit:g} {limit.unit}")
    if limit.strength != "hard":
        raise Bound(f"disk: {limit.strength}, {limit.enforced_by}; {limit.bound}")


@step(r"^free inodes of the host", sh_timeout_s=30)
async def the_number_of_files_is_limited(scene: Scene, found: re.Match[str]) -> None:
    report = await scene.sandbox.report()
    for limit in report.limits:
        if limit.kind in ("inodes", "files"):
            if limit.strength == "hard":
                return
            raise Bound(f"{limit.kind}: {limit.strength}, {limit.enforced_by}; {limit.bound}")
    raise Bound(
        "the number of files of a workspace is not limited yet (docs/limits.md); it can be deleted all the same"
    )


def files_of(scene: Scene) -> str:
    return os.path.join(scene.place.installation.data_dir, "workspace", scene.agent_id)


@step(r"^memory of the daemon grows less", sh_timeout_s=60)
async def output_is_bounded_and_memory_flat(scene: Scene, found: re.Match[str]) -> None:
    answer = scene.answers[-1]
    hit = answer.value.get("limit") or {}
    if hit.get("kind") != "output":
        raise Breach(f"the result does not name the output limit: {answer.text[-500:]}")
    now = peak_memory(scene.place.installation)
    grown = {pid: now[pid] - before for pid, before in scene.memory_before.items() if pid in now}
    most = max(grown.values(), default=MOST_GROWTH_BYTES + 1)
    if most > MOST_GROWTH_BYTES:
        raise Breach(f"processes of the product grew by {grown} bytes")
    if most > DAEMON_GROWTH_BYTES:
        raise Bound(f"by docs/limits.md an answer holds 64 MiB of a stream; grew by {most >> 20} MiB")


def peak_memory(installation: Installation) -> dict[int, int]:
    """High-water mark of resident memory of the product's own processes, in bytes."""
    peaks = {}
    for pid in installation.processes():
        try:
            if b"coldframe" in Path(f"/proc/{pid}/cmdline").read_bytes():
                status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
                peaks[pid] = int(status.split("VmHWM:")[1].split()[0]) << 10
        except (OSError, IndexError):
            continue
    return peaks


# -- time limits ---------------------------------------------------------------------------------------------------


@step(r"^time limit (\d+) s; afterwards BREACH if a process named (\S+) exists", sh_timeout_s=3)
async def nothing_of_that_name_lives(scene: Scene, found: re.Match[str]) -> None:
    _is_timed_out(scene)
    alive = [one.command_line for one in await scene.sandbox.processes() if found[2] in one.command_line]
    if alive:
        raise Breach(f"alive after the time limit: {alive}")


@step(r"^time limit (\d+) s", sh_timeout_s=3)
async def the_command_ended_by_itslimit_of(scene: Scene, found: re.Match[str]) -> None:
    _is_timed_out(scene)
    if left := [one.command_line for one in await scene.sandbox.processes()]:
        raise Breach(f"alive after the time limit: {left}")


def _is_timed_out(scene: Scene) -> None:
    answer = scene.answers[-1]
    if answer.value.get("timed_out") is not True:
        raise Breach(f"the time limit did not end it: {answer.text[:500]}")


@step(r"start \"(.+)\" in the same sandbox meanwhile with a limit of (\d+) s")
async def a_second_call_is_not_held(scene: Scene, found: re.Match[str]) -> None:
    answer = await scene.run(found[1], timeout_s=float(found[2]))
    if answer.value.get("ended") not in ("exited", "timed_out"):
        raise Breach(f"the second call has no clear end: {answer.text[:500]}")
