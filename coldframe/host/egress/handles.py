"""Puts a secret in place of its handle in the one header that it belongs to, and takes it out of what comes back.

Nothing here knows of a version of HTTP: headers are pairs with names in small letters, bodies are bytes as they come.
Handles are looked for in the values of headers alone, and in what `Authorization: Basic` encodes. Anywhere else, in an
address or a body, they stay what they are, which is worth nothing to anybody.

What comes back is searched for the secret as it is and in the forms in which servers show what they were sent. That
keeps a service that answers with a request's own headers from giving the secret away; it is no wall against a service
that means to.
"""

import base64
import binascii
import html
import json
import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote

from coldframe.contract.credential import HANDLE, SECRET

MOST_HEADER_BYTES = 512
"""Of a header that holds a handle, beside that. Longer ones are of no form that a credential could have."""

_AUTHORIZATION, _BASIC = b"authorization", b"basic "
_ENCODINGS = b"accept-encoding"
_ILLEGIBLE = frozenset({_ENCODINGS, b"range", b"if-range"})
"""Ask for an answer in which a secret would not show: packed, or cut in the middle of it."""
_MARK = SECRET.encode()

Headers = tuple[tuple[bytes, bytes], ...]


class HandleMisused(Exception):
    """Why a request with a handle is not passed on, whatever the credential says."""


class Found(NamedTuple):
    """The handle of a request."""

    handle: str
    header: str
    """`name: value` with `{secret}` in its place; what `Basic` encodes is decoded."""
    place: int
    """Of the header among all."""
    is_basic: bool


def find_handle(headers: Headers) -> Found | None:
    """The only handle of a request; None if there is none. Raises HandleMisused."""
    found: Found | None = None
    for place, (name, value) in enumerate(headers):
        decoded = _decode_basic(name, value)
        text = value if decoded is None else decoded
        handles = HANDLE.findall(text)
        if not handles:
            continue
        if found is not None or len(handles) > 1:
            raise HandleMisused("it holds more than one handle of a credential")
        shown = text.replace(handles[0], _MARK)
        if len(name) + len(shown) > MOST_HEADER_BYTES or not shown.isascii() or not shown.decode("ascii").isprintable():
            raise HandleMisused("the header with the handle of a credential has another form than any credential")
        if sum(other == name for other, _ in headers) > 1:
            raise HandleMisused(f"there is a second header `{name.decode('ascii')}` beside the one with a handle")
        prefix = "" if decoded is None else "Basic "
        header = f"{name.decode('ascii')}: {prefix}{shown.decode('ascii')}"
        found = Found(handles[0].decode("ascii"), header, place, decoded is not None)
    return found


class Swap:
    """One request's handle and secret. Not to be shown or kept longer than that."""

    __slots__ = ("_found", "_secret")

    def __init__(self, found: Found, secret: str) -> None:
        self._found = found
        self._secret = secret

    def put_in(self, headers: Headers) -> Headers:
        """The headers in which the handle was found, with the secret. What comes back is to be legible."""
        handle, secret = self._found.handle.encode(), self._secret.encode()
        changed: list[tuple[bytes, bytes]] = []
        for place, (name, value) in enumerate(headers):
            if place == self._found.place:
                decoded = _decode_basic(name, value) if self._found.is_basic else None
                value = (
                    value.replace(handle, secret)
                    if decoded is None
                    else b"Basic " + base64.b64encode(decoded.replace(handle, secret))
                )
            changed.append((name, value))
        return ask_legibly(changed)

    def scrubber(self) -> "Scrubber":
        """For the answer."""
        return Scrubber(self.forms())

    def forms(self) -> dict[bytes, bytes]:
        """In which the secret may come back, and what takes the place of each."""
        handle = self._found.handle
        forms = {form: handle.encode() for form in _forms(self._secret)}
        pair = self._found.header.partition(": Basic ")[2] if self._found.is_basic else SECRET
        for text in dict.fromkeys((pair, SECRET)):
            plain, shown = text.replace(SECRET, self._secret).encode(), text.replace(SECRET, handle).encode()
            forms[base64.b64encode(plain)] = base64.b64encode(shown)
            forms[base64.urlsafe_b64encode(plain)] = base64.urlsafe_b64encode(shown)
        return forms


class SentSecrets:
    """Those that were sent for one connection of a box: a server may show them in any answer that it gives there later."""

    __slots__ = ("_forms",)

    def __init__(self) -> None:
        self._forms: dict[bytes, bytes] = {}
        """Made anew with each: whoever goes by it sees that there are more."""

    def __bool__(self) -> bool:
        return bool(self._forms)

    def add(self, swap: Swap) -> None:
        if not swap.forms().items() <= self._forms.items():
            self._forms = {**self._forms, **swap.forms()}

    def scrubber(self) -> "Scrubber | None":
        """For one answer; None if there is nothing to look for."""
        return Scrubber(self._forms) if self._forms else None

    def renewed(self, scrubber: "Scrubber | None") -> "Scrubber | None":
        """That of an answer that goes on; another one if more was sent meanwhile, which has what that one holds back."""
        if scrubber is None or scrubber.forms is not self._forms:
            renewed = self.scrubber()
            if renewed is not None and scrubber is not None:
                renewed.hold(scrubber.finish())
            return renewed
        return scrubber


class Scrubber:
    """Takes secrets out of bytes that come in pieces, over their borders too."""

    __slots__ = ("_held", "_pattern", "forms")

    def __init__(self, forms: dict[bytes, bytes]) -> None:
        """*forms*: what takes the place of each."""
        self.forms = forms
        self._pattern = re.compile(b"|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True)))
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What can be passed on; what may be the beginning of a secret waits for more."""
        data = self._held + data
        kept = 0
        parts: list[bytes] = []
        for found in self._pattern.finditer(data):
            parts += (data[kept : found.start()], self.forms[found.group()])
            kept = found.end()
        start = self._start_of_rest(data, kept)
        parts.append(data[kept:start])
        self._held = data[start:]
        return b"".join(parts)

    def hold(self, data: bytes) -> None:
        """What comes is behind this."""
        self._held += data

    def finish(self) -> bytes:
        """What was held back: the end has come, so it was no secret."""
        held, self._held = self._held, b""
        return held

    def scrub(self, whole: bytes) -> bytes:
        return self._pattern.sub(lambda found: self.forms[found.group()], whole)

    def scrub_headers(self, headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        return [(self.scrub(name), self.scrub(value)) for name, value in headers]

    def _start_of_rest(self, data: bytes, kept: int) -> int:
        """Where the longest end begins that could be the beginning of a form."""
        first = len(data)
        for form in self.forms:
            at = max(kept, len(data) - len(form) + 1)
            while (at := data.find(form[:1], at)) >= 0 and at < first:
                if form.startswith(data[at:]):
                    first = at
                    break
                at += 1
        return first


def ask_legibly(headers: Sequence[tuple[bytes, bytes]]) -> Headers:
    """The headers of a request whose answer has to show a secret if it holds one."""
    return (*(pair for pair in headers if pair[0] not in _ILLEGIBLE), (_ENCODINGS, b"identity"))


def is_legible(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether the body behind these headers of an answer is as it was written, and not packed."""
    encodings = [value.strip().lower() for name, value in headers if name == b"content-encoding"]
    return all(one in (b"", b"identity") for one in encodings)


def _decode_basic(name: bytes, value: bytes) -> bytes | None:
    """What is encoded in it; None if it is nothing of the kind."""
    if name != _AUTHORIZATION or value[: len(_BASIC)].lower() != _BASIC:
        return None
    try:
        return base64.b64decode(value[len(_BASIC) :].strip(), validate=True)
    except (binascii.Error, ValueError):
        return None


def _forms(secret: str) -> list[bytes]:
    """As it is, and as JSON, addresses and HTML write it."""
    quoted = [quote(secret, safe=""), quote(secret)]
    written = json.dumps(secret)[1:-1]
    texts = [secret, *quoted, *(re.sub("%..", lambda found: found.group().lower(), one) for one in quoted)]
    return [
        text.encode() for text in dict.fromkeys([*texts, written, written.replace("/", "\\/"), html.escape(secret)])
    ]
