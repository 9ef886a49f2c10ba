"""Head and body of an answer go out in one write, and nothing is held back longer than a turn of the event loop."""

import asyncio
import socket
from collections.abc import Sequence
from typing import Any, cast

import pytest

from coldframe.fronts.corked import HELD_BYTES, JOINED_BYTES, CorkedTransport
from tests.fronts.served import Served


class Wire:
    """What a transport is told."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.seen.append(data)

    def writelines(self, pieces: Sequence[bytes]) -> None:
        self.seen.append(list(pieces))

    def close(self) -> None:
        self.closing = True
        self.seen.append("closed")

    def is_closing(self) -> bool:
        return self.closing


def corked() -> tuple[CorkedTransport, Wire]:
    wire = Wire()
    return CorkedTransport(cast("Any", wire), asyncio.get_running_loop()), wire


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def test_what_is_written_in_one_turn_goes_out_together_and_in_order() -> None:
    async def run() -> list[object]:
        transport, wire = corked()
        transport.write(b"head")
        transport.write(b"body")
        transport.write(b"next head")
        await turn()
        transport.write(b"lone")
        await turn()
        return wire.seen

    assert asyncio.run(run()) == [b"headbody", b"next head", b"lone"]


def test_a_long_body_is_not_copied_and_a_long_first_piece_not_kept_waiting() -> None:
    body, first = b"b" * (JOINED_BYTES + 1), b"f" * (HELD_BYTES + 1)

    async def run() -> list[object]:
        transport, wire = corked()
        transport.write(b"head")
        transport.write(body)
        transport.write(first)
        return wire.seen

    seen = asyncio.run(run())
    assert seen == [[b"head", body], first]
    assert seen[0][1] is body and seen[1] is first  # type: ignore[index]


def test_closing_lets_go_first_and_nothing_is_written_to_what_is_closed() -> None:
    async def run() -> tuple[list[object], list[object]]:
        transport, wire = corked()
        transport.write(b"head")
        transport.close()
        other, gone = corked()
        other.write(b"head")
        gone.close()
        await turn()
        return wire.seen, gone.seen

    assert asyncio.run(run()) == ([b"head", "closed"], ["closed"])


@pytest.mark.parametrize("path", ["/v1/health", "/v1/nothing"])
def test_a_short_answer_comes_in_one_piece(served: Served, path: str) -> None:
    address = served.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1])), timeout=10) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        answer = connection.recv(65536)
    assert answer.endswith(b"}")
