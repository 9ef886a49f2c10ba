"""The target of bodies that SDKs of E2B send: envelopes of streams, forms of several parts, input of processes."""

import asyncio
import base64
import json
import random
import struct
from collections.abc import AsyncIterator
from typing import Any

from coldframe.contract.errors import ColdframeError
from coldframe.fronts.e2b.connect_protocol import ConnectError, Envelopes, connect_error
from coldframe.fronts.e2b.multipart import Parts, boundary_of
from coldframe.fronts.e2b.process import asked_of
from tests.fuzz.target import Fault, spoil, within_processor_time

WORDS = (
    "--b", "\r\n", "\r\n--b", "\r\n--b--", "--b--\r\n", "Content-Disposition: form-data", '; name="file"', '; filename="a"',
    "; filename*=utf-8''%C3%A4", "; filename=", '"', "\\", "%22", "%0D", ";", ":", "\0", "\r", "\n", " ", "é", "{}", '{"process":', '{"cmd":"x"}',
    '"args":[', '"envs":{', '"pty":{"size":{"cols":', "80", "-1", "1e400", "null", "true", "]", "}", "[" * 300, '"stdin":', "9" * 30,
)  # fmt: skip
FORM = (
    '--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\nContent-Type: text/plain\r\n\r\none\r\n--b\r\n'
    'Content-Disposition: form-data; name="file"; filename="b/c"\r\n\r\n\r\n--b--\r\n'
)
START = '{"process":{"cmd":"/bin/bash","args":["-l","-c","x"],"envs":{"A":"1"},"cwd":"/tmp"},"pty":{"size":{"cols":80,"rows":24}}}'


class E2bBodies:
    """Whatever arrives, in whatever pieces, is read as the same, or refused in words of the protocol."""

    name = "e2b-bodies"

    def make(self, random: random.Random) -> str:
        """Its first line says what it is, and where the pieces are cut."""
        kind, seed = random.choice((("form", FORM), ("stream", START), ("start", START)))
        return f"{kind} {random.randrange(1, 40)}\n{spoil(random, seed, WORDS)}"

    def check(self, value: Any) -> None:
        head, _, text = value.partition("\n")
        kind, _, size = head.partition(" ")
        step = int(size) if size.isdigit() and int(size) > 0 else 1
        data = text.encode("utf-8", "surrogatepass")
        try:
            with within_processor_time():
                if kind == "start":
                    self._start(text)
                elif _read(kind, data, step) != _read(kind, data, 1 << 20):
                    raise Fault("the same bytes in other pieces are read as something else")
        except Fault:
            raise
        except BaseException as error:
            raise Fault(f"{type(error).__name__}: {error}") from error

    def _start(self, text: str) -> None:
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            return
        if isinstance(message, dict):
            try:
                json.dumps(asked_of(message))
            except ConnectError:
                pass


def _read(kind: str, data: bytes, step: int) -> list[Any]:
    return asyncio.run(_form(data, step) if kind == "form" else _stream(data, step))


async def _form(data: bytes, step: int) -> list[Any]:
    async def body() -> AsyncIterator[bytes]:
        for at in range(0, len(data), step):
            yield data[at : at + step]

    found: list[Any] = []
    try:
        parts = Parts(body(), boundary_of("multipart/form-data; boundary=b"))
        while (head := await parts.next()) is not None:
            content = b"".join([piece async for piece in parts.content()])
            found.append([*head, base64.b64encode(content).decode()])
    except ColdframeError as error:
        return [error.code]  # what was read before depends on the pieces: nothing of a body that is refused counts
    return found


async def _stream(data: bytes, step: int) -> list[Any]:
    whole = struct.pack(">BI", 0, len(data)) + data + data[:9]
    pieces = [whole[at : at + step] for at in range(0, len(whole), step)]

    async def receive() -> dict[str, Any]:
        body = pieces.pop(0) if pieces else b""
        return {"type": "http.request", "body": body, "more_body": bool(pieces)}

    found: list[Any] = []
    envelopes = Envelopes(receive)
    try:
        while (message := await envelopes.next()) is not None:
            found.append(json.dumps(message, sort_keys=True, default=str))
    except (ConnectError, ColdframeError) as error:
        found.append(connect_error(error).code)
    return found
