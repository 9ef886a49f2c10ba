"""Descriptors of the histories of workspaces, handed over by the daemon and kept: a line then costs one write.

The daemon opens and checks the file, and appends what it is asked with (`workspaces.py`). In a box the file is mounted
read-only, so that what runs there can neither change nor replace it. A descriptor outlives its file, so it is dropped
with the workspace.
"""

import asyncio
import os
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from coldframe.contract.errors import HostUnreachable, Internal, from_wire
from coldframe.guest.frames import PREFIX, BadFrame, decode_head, encode, lengths
from coldframe.host.link import CONNECT_TIMEOUT_S, LinkLost, connect

MOST_OPEN = 128
"""The one used longest ago is closed; it is asked for again when it is needed."""
_ANSWER_BYTES = 64 * 1024

_Home = tuple[str, str | None]


class HistoryFiles:
    """One per host daemon."""

    def __init__(self, directory: str, socket_name: str) -> None:
        self._directory = directory
        self._socket_name = socket_name
        self._open: OrderedDict[_Home, int] = OrderedDict()
        self._drops = 0
        self._asking: dict[asyncio.Future[int | None], str] = {}
        """Requests under way, and whose."""
        self._going: set[str] = set()
        """Owners whose workspace is being removed."""

    async def append(self, owner: str, session_id: str | None, lines: bytes) -> None:
        """Write whole *lines*; nothing if the workspace is gone. Waits for nothing but the first time.

        After a failure the daemon is asked anew, and leaves out what is there already.

        Raises:
            HostUnreachable: the daemon does not answer, and has not been asked before.
            Internal: something else than the history stands in its place, or the file system does not take the lines.
        """
        try:
            await self._append((owner, session_id), lines)
        except BaseException:
            self.drop(lambda *_: True)
            raise

    async def _append(self, home: _Home, lines: bytes) -> None:
        file = self._open.get(home)
        if file is not None:
            self._open.move_to_end(home)
            _write(file, lines)
            return
        if home[0] in self._going:
            return
        drops = self._drops
        asked = asyncio.ensure_future(asyncio.to_thread(self._ask, *home, lines))
        self._asking[asked] = home[0]
        asked.add_done_callback(self._asking.pop)
        try:
            file = await asyncio.shield(asked)
        except asyncio.CancelledError:
            asked.add_done_callback(_close_unused)
            raise
        if file is None:
            return
        # Whatever was removed meanwhile may have been this one; and another call may have asked as well.
        if drops != self._drops or home in self._open:
            os.close(file)
            return
        self._open[home] = file
        if len(self._open) > MOST_OPEN:
            os.close(self._open.popitem(last=False)[1])

    @asynccontextmanager
    async def removed(self, owner: str) -> AsyncIterator[None]:
        """Within, the workspace of *owner* is removed: nothing that was given before reaches the next one of that name."""
        self._going.add(owner)
        try:
            if asking := [one for one, whose in self._asking.items() if whose == owner]:
                await asyncio.wait(asking)
            yield
        finally:
            self._going.discard(owner)
            self.drop(lambda whose, _: whose == owner)

    def drop(self, is_gone: Callable[[str, str | None], bool]) -> None:
        """Close those of the owners and sessions that *is_gone* names."""
        self._drops += 1
        for home in [home for home in self._open if is_gone(*home)]:
            os.close(self._open.pop(home))

    def _ask(self, owner: str, session_id: str | None, lines: bytes) -> int | None:
        """In a thread, on a connection of its own: a stream of asyncio cannot take descriptors."""
        files: list[int] = []
        try:
            with connect(self._directory, self._socket_name) as peer:
                peer.settimeout(CONNECT_TIMEOUT_S)
                peer.sendall(encode({"verb": "append_history", "owner": owner, "session_id": session_id}, lines))
                frame, files, _, _ = socket.recv_fds(peer, _ANSWER_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
                while len(frame) < PREFIX.size or len(frame) < PREFIX.size + sum(lengths(frame[: PREFIX.size])):
                    more = peer.recv(_ANSWER_BYTES)
                    if not more:
                        raise ConnectionError("the answer is not whole")
                    frame += more
            head = decode_head(frame[PREFIX.size : PREFIX.size + lengths(frame[: PREFIX.size])[0]])
            if "error" in head:
                raise from_wire(head["error"])
            return files.pop() if files else None
        except (OSError, LinkLost, BadFrame) as error:
            raise HostUnreachable("the host daemon does not answer", hint="start it with `coldframe up`") from error
        finally:
            for file in files:
                os.close(file)


def _write(file: int, lines: bytes) -> None:
    rest = memoryview(lines)
    try:
        while rest:
            rest = rest[os.write(file, rest) :]
    except OSError as error:
        raise Internal(f"the history could not be written: {error}") from error


def _close_unused(asked: "asyncio.Future[int | None]") -> None:
    if not asked.cancelled() and asked.exception() is None and (file := asked.result()) is not None:
        os.close(file)
