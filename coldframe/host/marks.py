"""The marks of boxes: who keeps each, on disk, so that a restart finds what is its own and touches nothing else.

boxes/SANDBOX/     keeper.sock, keeper.json (ending.json while it is removed), records/ (see guest/main.py);
                   handover.sock of a box with a way out
"""

import contextlib
import json
import os
from dataclasses import dataclass, field
from typing import Any

from coldframe.contract.errors import InvalidArgument
from coldframe.guest.records import is_id
from coldframe.host.link import SOCKET_NAME
from coldframe.host.processes import is_exiting, process_start

KEPT, ENDING = "keeper.json", "ending.json"
"""The mark of a box, and its name from when the box is gone until all that belonged to it is."""
HANDOVER_NAME = "handover.sock"
"""Where the keeper gives the sockets of the box's way out to the user of this process, and to nobody else."""
RECORDS = "records"
GRAVE = ".gone-"
"""In the names of what is being removed."""


@dataclass(frozen=True)
class KeeperMark:
    """Who keeps a box, told so that a reused process id is not mistaken for it."""

    pid: int
    started: str
    created_at: str
    owner: str | None
    session_id: str
    uid: int
    init: int
    init_started: str
    limits: dict[str, Any]
    groups: dict[str, str]
    """Directory of the box's control group in each hierarchy: a later daemon may itself live in another group."""

    runtimes: list[str] | None = None
    """The only runtimes of the box; None for all programs of the machine."""
    denied: list[str] = field(default_factory=list)
    """Programs by name that are covered in it, whether or not there are any of these."""
    settings: str | None = None
    """Directory that it has as its /etc; None if that was put together for it alone."""
    template: str | None = None
    """Digest of the template of its own system; None for that of the host."""
    volumes: list[dict[str, Any]] = field(default_factory=list)
    """Fields of a `VolumeAttachment` of each."""
    network: dict[str, Any] | None = None
    """Of a box with a way out what is needed to serve it again (see ways_out.py)."""

    def runs(self) -> bool:
        """Whether the box does, by its first process: all others end with that."""
        return process_start(self.init) == self.init_started

    def alive(self) -> bool:
        return process_start(self.pid) == self.started

    def serves(self) -> bool:
        """Less than alive: whoever saw the keeper's sockets close is not told that it runs."""
        return self.alive() and not is_exiting(self.pid)


class Marks:
    """Those of one installation, below its `boxes/`."""

    def __init__(self, boxes: str) -> None:
        self._boxes = boxes

    def directory(self, sandbox_id: str) -> str:
        if not is_id(sandbox_id):
            raise InvalidArgument("malformed sandbox id")
        return os.path.join(self._boxes, sandbox_id)

    def read(self, sandbox_id: str, file: str = KEPT) -> KeeperMark | None:
        try:
            with open(os.path.join(self.directory(sandbox_id), file), encoding="utf-8") as source:
                return KeeperMark(**json.load(source))
        except (OSError, ValueError, TypeError):
            return None

    def is_there(self, sandbox_id: str) -> bool:
        """Whether it has a mark that can be read, of a box or of one that is being removed."""
        return self.read(sandbox_id) is not None or self.read(sandbox_id, ENDING) is not None

    def write(self, sandbox_id: str, mark: KeeperMark) -> None:
        path = os.path.join(self.directory(sandbox_id), KEPT)
        with open(f"{path}.new", "w", encoding="utf-8") as target:
            target.write(json.dumps(mark.__dict__))
        os.rename(f"{path}.new", path)

    def names(self) -> list[str]:
        """Of all boxes that have a directory. Whatever else lies there (`lost+found`) is nobody's."""
        return sorted(name for name in os.listdir(self._boxes) if is_id(name))

    def all(self) -> list[tuple[str, KeeperMark]]:
        """Of the boxes that nobody has ended, by sandbox id."""
        found = []
        for name in self.names():
            mark = self.read(name)
            if mark is not None:
                found.append((name, mark))
        return found

    def half_ended(self) -> list[str]:
        """Boxes whose end was answered and not finished."""
        return [name for name in self.names() if os.path.exists(os.path.join(self._boxes, name, ENDING))]

    def begin_ending(self, sandbox_id: str) -> None:
        """From now on it is no box any more."""
        directory = self.directory(sandbox_id)
        with contextlib.suppress(FileNotFoundError):
            os.rename(os.path.join(directory, KEPT), os.path.join(directory, ENDING))
            os.unlink(os.path.join(directory, SOCKET_NAME))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, HANDOVER_NAME))

    def remove(self, sandbox_id: str) -> None:
        """Remove what tells of a live box, and keep its records."""
        for name in (SOCKET_NAME, HANDOVER_NAME, KEPT, f"{KEPT}.new", ENDING):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.directory(sandbox_id), name))
