"""Which command is behind a process of the box, by its number there, and how far its output was handed out.

Kept in memory: after a restart of the server a process that runs is found by asking the box, and its output is told from
then on.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from coldframe.contract.command import CommandInfo
from coldframe.contract.errors import NotFound
from coldframe.fronts.e2b.box_user import Place

MOST_KNOWN = 10_000


@dataclass
class Process:
    """One that was begun, as its client knows it."""

    sandbox_id: str
    command_id: str
    pid: int
    config: dict[str, Any]
    tag: str | None
    is_terminal: bool
    delivered: int = -1
    """Number of the last piece of output that some stream has told."""
    since: datetime | None = None
    """Output from before is not told, where nobody knows what was."""
    sent: int | None = 0
    """Bytes of input so far; None where that is not known."""
    sending: asyncio.Lock = field(default_factory=asyncio.Lock)


class ProcessesKnown:
    """Those of all sandboxes; of the same number in one sandbox the latest counts."""

    def __init__(self) -> None:
        self._by_pid: OrderedDict[tuple[str, int], Process] = OrderedDict()

    def add(self, process: Process) -> None:
        self._by_pid.pop((process.sandbox_id, process.pid), None)
        self._by_pid[process.sandbox_id, process.pid] = process
        while len(self._by_pid) > MOST_KNOWN:
            self._by_pid.popitem(last=False)

    async def find(self, place: Place, selector: object, *, runs: bool) -> Process:
        """The one that a client means by its number or tag. *runs*: it has to run still.

        Raises NotFound.
        """
        pid, tag = _selected(selector)
        known = self._known(place.sandbox_id, pid, tag)
        if known is not None:
            info = await place.control.outputs.command(place.caller, place.sandbox_id, known.command_id)
            if info.state == "running" or not runs:
                return known
        elif pid is not None:
            for info in await self.running(place):
                if info.pid == pid:
                    return self._taken_up(place, info)
        what = f"tag {tag}" if pid is None else f"pid {pid}"
        raise NotFound(f"process with {what} not found", hint="list processes to see those that run")

    async def running(self, place: Place) -> list[CommandInfo]:
        found = await place.control.outputs.commands(place.caller, place.sandbox_id)
        return [one for one in found if one.state == "running" and one.pid is not None]

    def described(self, place: Place, info: CommandInfo) -> tuple[dict[str, Any], str | None]:
        """What it was begun with, and its tag."""
        known = self._by_pid.get((place.sandbox_id, info.pid or 0))
        if known is not None and known.command_id == info.command_id:
            return known.config, known.tag
        return {"cmd": "/bin/bash", "args": ["-l", "-c", info.command_line]}, None

    def _known(self, sandbox_id: str, pid: int | None, tag: str | None) -> Process | None:
        if pid is not None:
            return self._by_pid.get((sandbox_id, pid))
        return next(
            (one for one in reversed(self._by_pid.values()) if one.sandbox_id == sandbox_id and one.tag == tag), None
        )

    def _taken_up(self, place: Place, info: CommandInfo) -> Process:
        config, _ = self.described(place, info)
        is_terminal = info.command_line in ("/bin/bash -i -l", "bash -i -l")
        process = Process(place.sandbox_id, info.command_id, info.pid or 0, config, None, is_terminal)
        process.since, process.sent = place.control.clock(), None
        self.add(process)
        return process


def _selected(selector: object) -> tuple[int | None, str | None]:
    if isinstance(selector, dict):
        pid, tag = selector.get("pid"), selector.get("tag")
        if isinstance(pid, int) and not isinstance(pid, bool):
            return pid, None
        if isinstance(tag, str) and tag:
            return None, tag
    raise NotFound("the process is named neither by `pid` nor by `tag`", hint="name one")
