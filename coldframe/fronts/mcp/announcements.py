"""Telling clients that commands have ended: on the stream of whoever listens, once for each that was asked for."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from coldframe.control.call_records import ids_of
from coldframe.control.control import Control
from coldframe.fronts.mcp.protocol import notification

LOOK_AGAIN_S = 30.0
PAUSE_S = 0.5
"""Between two looks for an end that nobody in this process waits for."""
Tell = Callable[[dict[str, Any]], Awaitable[None]]


async def announce_end(control: Control, uri: str, command_id: str, meta: dict[str, Any], tell: Tell) -> None:
    """Return when it was told that the resource *uri*, which is about *command_id*, has changed for the last time. One that
    has ended long ago is told of at once, so that nobody who was away misses it; `coldframe/seq` names the end."""
    seq = await _end_of(control, command_id)
    await tell(notification("notifications/resources/updated", {"uri": uri, "_meta": {**meta, "coldframe/seq": seq}}))


async def _end_of(control: Control, command_id: str) -> int:
    loop = asyncio.get_running_loop()
    while True:
        course = control.ledger.course(ids_of(command_id).call_id)
        end = course.get("call.ended") or course.get("call.interrupted")
        if end is not None:
            return end.seq
        began = loop.time()
        await control.gate.await_end(command_id, LOOK_AGAIN_S)
        if loop.time() - began < PAUSE_S:
            await asyncio.sleep(PAUSE_S)
