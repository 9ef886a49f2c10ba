"""Descriptors that a keeper makes inside its box and hands over, each asked for on a connection of its own.

A descriptor belongs to the read with which it arrives, and the shared connections of a `Link` are read by the event loop,
which drops what comes beside bytes. Whoever asks looks at what was handed over before it is used: the keeper stands at the
edge of a hostile place.
"""

import asyncio
import os
import socket
from typing import Any

from coldframe.contract.errors import GuestLost
from coldframe.guest.frames import PREFIX, BadFrame, decode_head, encode, lengths
from coldframe.host.link import LinkLost, connect_soon, told

ANSWER_S = 10.0
_ANSWER_BYTES = 64 * 1024


async def ask_for_descriptor(
    directory: str, question: dict[str, Any], *, answer_s: float | None = ANSWER_S
) -> tuple[dict[str, Any], int]:
    """The answer of the keeper of the box whose directory is *directory*, and the descriptor, which is the caller's to close.

    Raises:
        GuestLost: it did not answer in time, or gave a malformed answer.
        ColdframeError: the error that it told.
    """
    peer = await connect_soon(directory)
    try:
        peer.send(encode(question))  # a new socket has room for it
        async with asyncio.timeout(answer_s):
            return await _receive(peer)
    except TimeoutError:
        raise GuestLost("the keeper of this sandbox did not answer in time", timeout_s=answer_s) from None
    except BadFrame as error:
        raise GuestLost("the keeper of this sandbox gave a malformed answer") from error
    except OSError as error:
        raise LinkLost("the keeper of this sandbox ended") from error
    finally:
        peer.close()


async def _receive(peer: socket.socket) -> tuple[dict[str, Any], int]:
    frame, files = b"", list[int]()
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
        answer = head.get("answer")
        if len(files) != 1 or not isinstance(answer, dict):
            raise BadFrame("no descriptor came along")
        return answer, files.pop()
    finally:
        for file in files:
            os.close(file)


def _is_whole(frame: bytes) -> bool:
    if len(frame) > _ANSWER_BYTES:
        raise BadFrame("the answer is too long")
    return len(frame) >= PREFIX.size and len(frame) >= PREFIX.size + sum(lengths(frame[: PREFIX.size]))


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
