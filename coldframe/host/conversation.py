"""What the machine and a keeper that is being built say to each other: one socket, one message at a time."""

import array
import json
import os
import socket
from typing import Any

from coldframe.host.birth import MAX_ORDER_BYTES

BUILD_TIMEOUT_S = 30.0
"""For each thing that the keeper has to say."""
MAX_FILES = 32
"""Descriptors that come with one message."""


class KeeperEnded(ValueError):
    """A keeper that is being built ended without a word."""


def conversation() -> tuple[socket.socket, socket.socket]:
    """The machine's end and that of a keeper."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mine.settimeout(BUILD_TIMEOUT_S)
    for end, option in ((mine, socket.SO_RCVBUF), (theirs, socket.SO_SNDBUF)):
        end.setsockopt(socket.SOL_SOCKET, option, 4 << 20)
    return mine, theirs


def fitting(order: bytes) -> bytes:
    """Raises ValueError for an order that is too long."""
    if len(order) > MAX_ORDER_BYTES:
        raise ValueError(
            f"the order of its keeper takes {len(order)} bytes of at most {MAX_ORDER_BYTES}: "
            "deny fewer programs one by one"
        )
    return order


def receive(channel: socket.socket) -> tuple[bytes, int, list[int]]:
    """For a keeper or its zygote: one message, with its flags and descriptors; empty at the end of file."""
    files = array.array("i")
    room = socket.CMSG_SPACE(MAX_FILES * files.itemsize)
    message, ancillary, flags, _ = channel.recvmsg(MAX_ORDER_BYTES, room)
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
    for file in files:
        os.set_inheritable(file, False)
    return message, flags, list(files)


def require_whole(flags: int) -> None:
    """Raises ValueError for a message that did not come so."""
    if flags & socket.MSG_TRUNC:
        raise ValueError(f"it is longer than {MAX_ORDER_BYTES} bytes")
    if flags & socket.MSG_CTRUNC:
        raise ValueError("its descriptors did not all arrive")


def heard(answer: socket.socket) -> dict[str, Any]:
    """One message of a keeper that is being built.

    Raises:
        ValueError: it failed, in its words; KeeperEnded if it has none.
    """
    try:
        message = answer.recv(16 << 20)
    except ConnectionResetError:  # told once; what it said before is still there
        message = answer.recv(16 << 20)
    if not message:
        raise KeeperEnded("the keeper ended while it built the box")
    said = json.loads(message)
    if "failed" in said:
        raise ValueError(said["failed"])
    return dict(said)
