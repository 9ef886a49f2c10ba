"""Reads from sockets and writes to them so that nobody keeps the event loop for himself.

asyncio's own calls return without a turn of the loop if they can act at once. A box that always has something to say, or
always takes what it is sent, would otherwise stop everybody: other boxes, the host daemon, and its own deadlines.
"""

import asyncio
import itertools
import socket

CALLS_AT_ONCE = 8
"""Of the whole process, between two turns of the loop, of which each second one asks the kernel for more (`readiness.py`)."""

_calls = itertools.count(1)


async def give_way() -> None:
    """Let others have their turn, if it is time. Before a step and not after it, so that a cancellation loses nothing."""
    if next(_calls) % CALLS_AT_ONCE == 0:
        await asyncio.sleep(0)


async def receive(connection: socket.socket, most_bytes: int) -> bytes:
    """What there is, once there is something; none at the end. Raises OSError."""
    await give_way()
    return await asyncio.get_running_loop().sock_recv(connection, most_bytes)


async def send_all(connection: socket.socket, data: bytes) -> None:
    """Returns once the kernel has it. Raises OSError."""
    await give_way()
    await asyncio.get_running_loop().sock_sendall(connection, data)
