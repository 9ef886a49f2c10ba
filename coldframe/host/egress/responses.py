"""Answers to requests that were let through, framed anew on their way to the box, and our own to those that were not.

An answer is read by h11, which knows for which requests and statuses there is no body. What concerns only the
connection to the server is left out, also invitations to others that the box could not reach (`alt-svc`).
"""

import json
from http import HTTPStatus

import h11

from coldframe.host.egress.bodies import chunk
from coldframe.host.egress.handles import Scrubber, is_legible
from coldframe.host.egress.requests import MAX_HEAD_BYTES, RequestHead

HOP_BY_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"te", b"trailer"),
        *(b"transfer-encoding", b"upgrade", b"alt-svc"),
    }
)
MOST_INTERIM = 16
"""That a server may say before one answer (1xx)."""
BODILESS = (204, 304)
_WEBSOCKET = ((b"connection", b"upgrade"), (b"upgrade", b"websocket"))


class ResponseInvalid(Exception):
    """What the server sent is no answer to the request."""


class Response:
    """Takes bytes of the server as they come, and gives those that go to the box."""

    def __init__(self, head: RequestHead, *, is_old: bool, closes: bool, scrubber: Scrubber | None = None) -> None:
        """`is_old`: the box speaks HTTP/1.0; `closes`: its connection ends after this. All of it passes the *scrubber*."""
        self.status: int | None = None
        self.is_over = False
        self.closes = closes
        """Whether the box's connection has to end after this: that may be the only way to say where it ends."""
        self.has_switched = False
        """It is no HTTP any more, from `rest` on."""
        self.rest = b""
        self._is_old = is_old
        self._scrubber = scrubber
        self._method = head.method
        self._in_chunks = False
        self._interim = 0
        self._reader = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        upgrade = _WEBSOCKET if head.upgrade else ()
        self._reader.send(h11.Request(method=head.method, target=b"/", headers=[(b"host", b"."), *upgrade]))
        self._reader.send(h11.EndOfMessage())

    @property
    def leaves_open(self) -> bool:
        """Whether the server's connection is good for another request."""
        return self.is_over and self._reader.their_state is h11.DONE and self._reader.trailing_data == (b"", False)

    def feed(self, data: bytes) -> bytes:
        """What goes on; no bytes mean that the server has ended. Raises ResponseInvalid."""
        found: list[bytes] = []
        try:
            self._reader.receive_data(data)
            while not (self.is_over or self.has_switched):
                event = self._reader.next_event()
                if event is h11.NEED_DATA:
                    break
                found.append(self._pass_on(event))
        except (h11.RemoteProtocolError, RuntimeError):  # their texts quote what the server sent
            raise ResponseInvalid("it cannot be read as HTTP/1.1, or ends in the middle") from None
        return b"".join(found)

    def _pass_on(self, event: object) -> bytes:
        match event:
            case h11.InformationalResponse():
                return self._pass_interim(event)
            case h11.Response():
                self.status = event.status_code
                if self._scrubber is not None and not is_legible(list(event.headers)):
                    raise ResponseInvalid("it is packed, so that nobody can see whether it shows the credential")
                return self._write_head(event, self._frame(event))
            case h11.Data():
                data = bytes(event.data)
                return self._write_data(data if self._scrubber is None else self._scrubber.feed(data))
            case h11.EndOfMessage():
                self.is_over = True
                rest = b"" if self._scrubber is None else self._write_data(self._scrubber.finish())
                return rest + (chunk(b"") if self._in_chunks else b"")
        raise ResponseInvalid("it ended without an answer")

    def _write_data(self, data: bytes) -> bytes:
        return chunk(data) if self._in_chunks and data else data

    def _pass_interim(self, event: h11.InformationalResponse) -> bytes:
        if event.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            named = [value.strip().lower() for name, value in event.headers if name == b"upgrade"]
            if named != [b"websocket"]:
                raise ResponseInvalid("it goes on as something else than a websocket")
            self.status = event.status_code
            self.has_switched = True
            self.rest = self._reader.trailing_data[0]
            return self._write_head(event, _WEBSOCKET)
        self._interim += 1
        if self._interim > MOST_INTERIM:
            raise ResponseInvalid("it says too much before it")
        return b"" if self._is_old else self._write_head(event, ())

    def _frame(self, event: h11.Response) -> tuple[tuple[bytes, bytes], ...]:
        """Headers that say where the answer ends."""
        lengths = [(name, value) for name, value in event.headers if name == b"content-length"]
        is_chunked = any(name == b"transfer-encoding" for name, _ in event.headers)
        framing: tuple[tuple[bytes, bytes], ...] = ()
        if self._method == "HEAD" or event.status_code in BODILESS:
            if event.status_code != HTTPStatus.NO_CONTENT and not is_chunked:
                framing = tuple(lengths)
        elif lengths and not is_chunked and self._scrubber is None:
            framing = tuple(lengths)
        elif self._is_old:
            self.closes = True
        else:
            self._in_chunks = True
            framing = ((b"transfer-encoding", b"chunked"),)
        if self.closes:
            return (*framing, (b"connection", b"close"))
        return (*framing, (b"connection", b"keep-alive")) if self._is_old else framing

    def _write_head(
        self, event: h11.Response | h11.InformationalResponse, added: tuple[tuple[bytes, bytes], ...]
    ) -> bytes:
        options = {
            option.strip().lower()
            for name, value in event.headers
            if name == b"connection"
            for option in value.split(b",")
        }
        dropped = HOP_BY_HOP | options | {b"content-length"}
        kept = [(name, value) for name, value in event.headers if name not in dropped]
        reason = bytes(event.reason)
        if self._scrubber is not None:
            kept, reason = self._scrubber.scrub_headers(kept), self._scrubber.scrub(reason)
        lines = [b"HTTP/1.1 %d %b" % (event.status_code, reason)]
        lines += [name + b": " + value for name, value in (*kept, *added)]
        return b"\r\n".join(lines) + b"\r\n\r\n"


def explain(code: str, rule_id: str, reason: str) -> bytes:
    """Why something is not passed on, for programs: `code` is what to match on."""
    error = {"code": code, "message": reason, "rule": rule_id, "by": "coldframe"}
    return json.dumps({"error": error}).encode() + b"\n"


def refuse(status: HTTPStatus, code: str, rule_id: str, reason: str, *, closes: bool, bodiless: bool = False) -> bytes:
    """An answer of our own, by which a program sees why."""
    body = explain(code, rule_id, reason)
    head = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "cache-control: no-store",
        *(["connection: close"] if closes else []),
    ]
    return "\r\n".join(head).encode("ascii") + b"\r\n\r\n" + (b"" if bodiless else body)
