"""Connections to ports of a box, made by its keeper and handed over: the far end of `guest/dial.py`.

Each is asked for on a connection of its own, since a descriptor belongs to the read with which it arrives, and the
shared connections of a `Link` are read by the event loop, which drops what comes beside bytes. What is handed over is
looked at before it is used: the keeper stands at the edge of a hostile place, and a descriptor of another kind, or
connected to another place, would be read and written here as if it were the server of the box.
"""

import asyncio
import os
import socket

from coldframe.contract.errors import GuestLost, InvalidArgument, WrongState
from coldframe.guest.frames import PREFIX, BadFrame, decode_head, encode, lengths
from coldframe.host.link import LinkLost, connect_soon, told

ANSWER_S = 10.0
"""The keeper tells itself before that time that a server takes no connection."""
_ANSWER_BYTES = 64 * 1024
_LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


async def connect_inside(directory: str, port: int) -> socket.socket:
    """As `BoxLife.connect`, for the box whose directory is *directory*."""
    peer = await connect_soon(directory)
    try:
        peer.send(encode({"op": "connect", "port": port}))  # a new socket has room for it
        async with asyncio.timeout(ANSWER_S):
            return await _receive(peer, port)
    except InvalidArgument as error:
        if not error.message.startswith("unknown operation"):
            raise
        raise WrongState(
            "the sandbox is kept by an earlier version, which shares no ports", hint="stop it and start it again"
        ) from error
    except TimeoutError:
        raise GuestLost("the keeper of this sandbox did not answer in time", timeout_s=ANSWER_S) from None
    except OSError as error:
        raise LinkLost("the keeper of this sandbox ended") from error
    finally:
        peer.close()


async def _receive(peer: socket.socket, port: int) -> socket.socket:
    frame, files = b"", list[int]()
    found: socket.socket | None = None
    try:
        while not _is_whole(frame):
            await _readable(peer)
            try:
                part, came, _, _ = socket.recv_fds(peer, _ANSWER_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                continue
            files += came
            if len(files) > 1:  # before there are more of them than a process may have
                raise BadFrame("more than one descriptor came along")
            if not part:
                raise LinkLost("the keeper of this sandbox ended")
            frame += part
        head = decode_head(frame[PREFIX.size : PREFIX.size + lengths(frame[: PREFIX.size])[0]])
        if isinstance(failure := head.get("error"), dict):
            raise told(failure)
        if len(files) != 1:
            raise BadFrame("no descriptor came along")
        found = socket.socket(fileno=files[0])
        files.clear()  # it is the socket's own now
        _check(found, port)
        found.setblocking(False)
        answer, found = found, None
        return answer
    except (BadFrame, OSError) as error:
        raise GuestLost("the keeper of this sandbox gave a malformed answer") from error
    finally:
        if found is not None:
            found.close()
        for file in files:
            os.close(file)


def _is_whole(frame: bytes) -> bool:
    if len(frame) > _ANSWER_BYTES:
        raise BadFrame("the answer is too long")
    return len(frame) >= PREFIX.size and len(frame) >= PREFIX.size + sum(lengths(frame[: PREFIX.size]))


def _check(one: socket.socket, port: int) -> None:
    address = _LOOPBACK.get(one.family)
    if address is None or one.type != socket.SOCK_STREAM:
        raise BadFrame("the descriptor is no stream socket")
    there = one.getpeername()
    if there[:2] != (address, port):
        raise BadFrame("the descriptor is connected to another place")


async def _readable(peer: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(peer.fileno(), _set, ready)
    try:
        await ready
    finally:
        loop.remove_reader(peer.fileno())


def _set(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)
