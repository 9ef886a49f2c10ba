"""A file as a stream: recorded reads of one version of it, one after the other, so that what is sent never mixes two.

If the file changes meanwhile, the stream breaks instead of ending as if all were well.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from coldframe.contract.errors import Conflict, from_wire
from coldframe.contract.tool import ToolResult

WINDOW_BYTES = 2 * 1024 * 1024
"""Bytes of the first read of a download."""
LATER_WINDOW_BYTES = 8 * 1024 * 1024
"""Of those after it. Two of them are in memory; each is judged and recorded, which takes as long as to move a MiB."""
Read = Callable[[int, int, str | None], Awaitable[tuple[ToolResult, bytes]]]
"""From an offset, so many bytes, of that version: the result of the read, and what it let out."""


async def windows(
    read: Read, path: str, data: bytes, version: str, offset: int, wanted: int
) -> AsyncGenerator[bytes, None]:
    """One window after the other; the next is read while the one before, *data* first, goes out."""
    ahead: asyncio.Future[tuple[ToolResult, bytes]] | None = None
    try:
        while True:
            wanted -= len(data)
            offset += len(data)
            if wanted > 0:
                ahead = asyncio.ensure_future(read(offset, min(wanted, LATER_WINDOW_BYTES), version))
            yield data
            if ahead is None:
                return
            more, data = await ahead
            ahead = None
            if more.error is not None:
                raise from_wire(more.error)
            if not data:
                raise Conflict(f"`{path}` became shorter during the download")
    finally:
        if ahead is not None:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)
