"""Bodies of several parts (`multipart/form-data`), taken apart as they arrive: no part is held.

What each part is called and where it is to go stands in its head; its content is passed on in pieces. Parts come one after
the other, so whoever reads has to read each to its end.
"""

import re
from collections.abc import AsyncIterator
from email.message import Message
from typing import NamedTuple
from urllib.parse import unquote

from coldframe.contract.errors import InvalidArgument

MOST_HEAD_BYTES = 16 * 1024
MOST_PARTS = 10_000
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{1,200}")


class PartHead(NamedTuple):
    name: str
    filename: str | None
    content_type: str


def boundary_of(content_type: str) -> bytes:
    """Raises InvalidArgument."""
    head = Message()
    head["content-type"] = content_type
    found = head.get_param("boundary")
    if not isinstance(found, str) or not _BOUNDARY.fullmatch(found):
        raise InvalidArgument("the body of several parts has no `boundary`", argument="Content-Type")
    return found.encode()


class Parts:
    """The parts of one body."""

    def __init__(self, body: AsyncIterator[bytes], boundary: bytes) -> None:
        self._body = body
        self._mark = b"\r\n--" + boundary
        self._held = bytearray(b"\r\n")  # the first mark may be the beginning of the body
        self._count = 0
        self._within = False

    async def next(self) -> PartHead | None:
        """The head of the next part; None at the end. What was not read of the one before is passed over.

        Raises InvalidArgument: it is no such body, or it broke off.
        """
        if self._within:
            async for _ in self.content():
                pass
        elif self._count == 0:
            await self._skip_preamble()
        if await self._ends():
            return None
        self._count += 1
        if self._count > MOST_PARTS:
            raise InvalidArgument(f"there are more than {MOST_PARTS} parts", hint="send some of them alone")
        self._within = True
        return _head(await self._until(b"\r\n\r\n"))

    async def content(self) -> AsyncIterator[bytes]:
        """The content of the part whose head was read last, in pieces."""
        while self._within:
            at = self._held.find(self._mark)
            if at >= 0:
                piece = bytes(self._held[:at])
                del self._held[: at + len(self._mark)]
                self._within = False
            else:
                keep = len(self._mark) - 1
                piece = bytes(self._held[: max(0, len(self._held) - keep)])
                del self._held[: len(piece)]
                if not piece:
                    await self._more()
            if piece:
                yield piece

    async def _skip_preamble(self) -> None:
        while (at := self._held.find(self._mark)) < 0:
            if len(self._held) > MOST_HEAD_BYTES:
                raise InvalidArgument("the body does not begin with its boundary", argument="body")
            await self._more()
        if at > MOST_HEAD_BYTES:  # whatever the pieces that it came in
            raise InvalidArgument("the body does not begin with its boundary", argument="body")
        del self._held[: at + len(self._mark)]

    async def _ends(self) -> bool:
        """Behind a mark: whether it was the last."""
        while len(self._held) < 2:
            await self._more()
        if self._held[:2] == b"--":
            return True
        line = await self._until(b"\r\n")
        if line.strip(b" \t"):
            raise InvalidArgument("a boundary in the body is followed by something else", argument="body")
        self._held[:0] = b"\r\n"  # a part may have no head at all
        return False

    async def _until(self, end: bytes) -> bytes:
        while (at := self._held.find(end)) < 0:
            if len(self._held) > MOST_HEAD_BYTES:
                raise InvalidArgument("the head of a part is too long", argument="body")
            await self._more()
        if at > MOST_HEAD_BYTES:
            raise InvalidArgument("the head of a part is too long", argument="body")
        found = bytes(self._held[:at])
        del self._held[: at + len(end)]
        return found

    async def _more(self) -> None:
        try:
            self._held += await anext(self._body)
        except StopAsyncIteration:
            raise InvalidArgument("the body broke off before its last boundary", argument="body") from None


def _head(text: bytes) -> PartHead:
    fields: dict[str, str] = {}
    for line in text.decode("utf-8", "surrogateescape").split("\r\n"):
        name, colon, value = line.partition(":")
        if colon:
            fields[name.strip().lower()] = value.strip()
    disposition = fields.get("content-disposition", "")
    return PartHead(
        _parameter(disposition, "name") or "", _parameter(disposition, "filename"), fields.get("content-type", "")
    )


def _parameter(field: str, name: str) -> str | None:
    """As browsers and SDKs write it: quotes and line ends percent-encoded or with a backslash; `name*` as RFC 5987 has it."""
    coded = re.search(rf";\s*{name}\*=(?:utf-8|UTF-8)'[^']*'([^;]*)", field)
    if coded:
        return unquote(coded.group(1).strip())
    found = re.search(rf';\s*{name}="((?:[^"\\]|\\.)*)"', field) or re.search(rf";\s*{name}=([^;\s]*)", field)
    if found is None:
        return None
    text = re.sub(r"\\([\"\\])", r"\1", found.group(1))
    return text.replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n").replace("%0d", "\r").replace("%0a", "\n")
