"""Connections to ports of a box, made by its keeper and handed over: the far end of `guest/dial.py`.

What is handed over is looked at before it is used: a descriptor of another kind, or connected to another place, would be
read and written here as if it were the server of the box.
"""

import os
import socket

from coldframe.contract.errors import GuestLost, InvalidArgument, WrongState
from coldframe.guest.frames import BadFrame
from coldframe.host.descriptors import ask_for_descriptor

_LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


async def connect_inside(directory: str, port: int) -> socket.socket:
    """As `BoxLife.connect`, for the box whose directory is *directory*. The keeper tells itself in time that a server takes none."""
    try:
        _, file = await ask_for_descriptor(directory, {"op": "connect", "port": port})
    except InvalidArgument as error:
        if not error.message.startswith("unknown operation"):
            raise
        raise WrongState(
            "the sandbox is kept by an earlier version, which shares no ports", hint="stop it and start it again"
        ) from error
    try:
        found = socket.socket(fileno=file)
    except OSError as error:
        os.close(file)
        raise GuestLost("the keeper of this sandbox gave a malformed answer") from error
    try:
        _check(found, port)
        found.setblocking(False)
    except (BadFrame, OSError) as error:
        found.close()
        raise GuestLost("the keeper of this sandbox gave a malformed answer") from error
    return found


def _check(one: socket.socket, port: int) -> None:
    address = _LOOPBACK.get(one.family)
    if address is None or one.type != socket.SOCK_STREAM:
        raise BadFrame("the descriptor is no stream socket")
    there = one.getpeername()
    if there[:2] != (address, port):
        raise BadFrame("the descriptor is connected to another place")
