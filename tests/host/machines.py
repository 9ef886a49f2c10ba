"""A real machine on a directory of its own, for one test: boxes, keepers and all, and proof that nothing of it is left."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple

import pytest

from coldframe.contract.command import CommandResult, CommandSpec, Ended, OutputChunk, TerminalSize
from coldframe.contract.ports import Box
from coldframe.contract.sandbox import Limits, SandboxSpec
from coldframe.host import confine
from coldframe.host.machine import Machine
from coldframe.host.removal import remove_tree
from tests.host import boxes
from tests.host.forked import in_child, wait_until

needs_bubblewrap = pytest.mark.skipif(shutil.which(boxes.BWRAP) is None, reason="needs bubblewrap")
as_root_and_ordinary = pytest.mark.parametrize(
    "who",
    [
        pytest.param("root", marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root")),
        pytest.param("ordinary", marks=pytest.mark.once),
    ],
)
"""Root has control groups and a user per workspace; an ordinary user has neither."""


class Outcome(NamedTuple):
    result: CommandResult
    stdout: str
    stderr: str


def on_a_machine(
    steps: Callable[[Machine], Awaitable[None]],
    *,
    who: str = "root",
    embedded: bool = True,
    soft_files: int = 0,
    apart: bool = False,
) -> None:
    """Run *steps* on a new machine; then end and remove everything, and fail if a process of it lives on.

    *soft_files* sets the soft limit of open files that the machine's process starts with. *apart*, where these tests may mount: on
    a file system where nobody else writes or deletes.
    """
    if apart and os.geteuid() == 0:
        mounted = tempfile.mkdtemp(prefix="cf-apart-", dir="/tmp")
        try:
            in_child(lambda: _on_its_own_disk(steps, mounted, who, embedded))
        finally:
            os.rmdir(mounted)
    elif who == "ordinary":
        in_child(lambda: (boxes.become_ordinary(), _on_a_machine(steps, embedded, soft_files))[1])
    elif soft_files:
        in_child(lambda: _on_a_machine(steps, embedded, soft_files))
    else:
        _on_a_machine(steps, embedded, 0)


def _on_its_own_disk(steps: Callable[[Machine], Awaitable[None]], mounted: str, who: str, embedded: bool) -> None:
    """In a child, with whose mounts this one goes."""
    confine.unshare("mnt")
    confine.mount(None, "/", None, confine.MS_REC | confine.MS_PRIVATE)
    confine.mount("apart", mounted, "tmpfs", confine.MS_NOSUID | confine.MS_NODEV, "mode=1777,size=4g")
    if who == "ordinary":
        boxes.become_ordinary()
    _on_a_machine(steps, embedded, 0, above=mounted)


def _on_a_machine(
    steps: Callable[[Machine], Awaitable[None]], embedded: bool, soft_files: int, *, above: str = "/tmp"
) -> None:
    if soft_files:
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (soft_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    folder = tempfile.mkdtemp(prefix="cf-machine-", dir=above)
    os.chmod(folder, 0o711)

    async def whole() -> None:
        machine = Machine(os.path.join(folder, "data"), embedded=embedded)
        try:
            await steps(machine)
        finally:
            await machine.sweep(keep_boxes=set(), keep_sessions=set())
            await machine.close()

    try:
        asyncio.run(whole())
        wait_until(lambda: not processes_below(folder))
    finally:
        remove_tree(folder)


def processes_below(folder: str) -> list[int]:
    """Processes that have a mount of *folder*: those of its boxes, and keepers."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/mountinfo", encoding="utf-8", errors="replace") as mounts:
                    if f"{os.path.basename(folder)}/" in mounts.read():
                        found.append(int(entry))
            except OSError:
                continue
    return found


async def new_box(machine: Machine, name: str = "box", *, agent: str = "agent", limits: Limits | None = None) -> Box:
    spec = SandboxSpec(agent_id=agent, limits=limits or Limits(), on_missing="degrade")
    await machine.create(name, spec, session_id=f"session-{name}")
    return await machine.box(name)


_numbers = iter(range(1, 1_000_000))


async def run(
    box: Box,
    shell: str = "",
    *,
    argv: tuple[str, ...] | None = None,
    timeout_s: float = 30.0,
    stdin: bytes = b"",
    terminal: TerminalSize | None = None,
    command_id: str = "",
    patience_s: float = 60.0,
    user: Literal["user", "root"] = "user",
) -> Outcome:
    """Run to the end; TimeoutError if no end is told within *patience_s*."""
    written = {"stdout": b"", "stderr": b""}
    spec = CommandSpec(
        command_id=command_id or f"command-{next(_numbers)}",
        shell=None if argv else shell,
        argv=argv,
        timeout_s=timeout_s,
        stdin=stdin,
        terminal=terminal,
        user=user,
    )
    result = None
    async with asyncio.timeout(patience_s):
        async for event in box.run(spec):
            if isinstance(event, OutputChunk):
                written[event.stream] += event.data
            elif isinstance(event, Ended):
                result = event.result
    assert result is not None
    return Outcome(result, written["stdout"].decode(errors="replace"), written["stderr"].decode(errors="replace"))


async def until(condition: Callable[[], Awaitable[bool]], what: str, *, timeout_s: float = 10.0) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            while not await condition():  # noqa: ASYNC110 - the condition is of the world outside
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {timeout_s:g} s: {what}") from None
