"""Targets of HTTP requests (`/v1/items?x=1`) in the form that is both judged and sent on.

A path is decoded once, only where that changes nothing (letters, digits, `-._~`), and what two programs could read
differently is refused: dot segments, doubled slashes, backslashes, encoded control characters, and dots, slashes or
backslashes that are encoded twice. An encoded slash stays, since package clients need it (`/@scope%2Fname`); a path is
then matched in each way that a server may read it. The query is never changed.
"""

import re
from typing import NamedTuple

MAX_TARGET_BYTES = 32 * 1024
"""Longer than what common servers take (8 to 16 KiB)."""

_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_PRINTABLE = re.compile(r"[\x21-\x7e]+")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})?")
_TWICE = re.compile(r"%25(?:2[EF]|5C)", re.IGNORECASE)
_PARAMETERS = re.compile(r";[^/]*")


class TargetInvalid(Exception):
    """Why a target is refused."""


class Target(NamedTuple):
    """A target that was read."""

    path: str
    query: str | None
    """Without the question mark; None if there is none, which is not the same as an empty one."""

    @property
    def text(self) -> str:
        """What is sent."""
        return self.path if self.query is None else f"{self.path}?{self.query}"

    @property
    def readings(self) -> frozenset[str]:
        """The paths that servers may take this for: with encoded slashes or slashes, with or without parameters."""
        slashes = self.path.replace("%2F", "/")
        return frozenset(
            {self.path, slashes, _PARAMETERS.sub("", self.path), _PARAMETERS.sub("", slashes)},
        )


def read_target(text: str) -> Target:
    """Read a target in origin form, or raise TargetInvalid. Reading its `text` again gives the same."""
    if len(text) > MAX_TARGET_BYTES:
        raise TargetInvalid(f"it is longer than {MAX_TARGET_BYTES} bytes")
    if _PRINTABLE.fullmatch(text) is None or "#" in text:
        raise TargetInvalid("it has characters that do not belong in a target")
    if not text.startswith("/"):
        raise TargetInvalid("it is no path that begins with `/`")
    raw, mark, query = text.partition("?")
    path = _ESCAPE.sub(_decode, raw)
    if "\\" in path:
        raise TargetInvalid("its path has a backslash")
    if _TWICE.search(path):
        raise TargetInvalid("its path has a dot, slash or backslash that is encoded twice")
    target = Target(path, query if mark else None)
    for reading in target.readings:
        _require_plain(reading)
    return target


def is_below(path: str, prefix: str) -> bool:
    """Whether a path is `prefix` or lies below it; `/v1` is not above `/v1beta`."""
    return path == prefix or path.startswith(prefix if prefix.endswith("/") else prefix + "/")


def _decode(escape: re.Match[str]) -> str:
    digits = escape.group(1)
    if digits is None:
        raise TargetInvalid("its path has `%` without two hexadecimal digits")
    sign = chr(int(digits, 16))
    if sign in _UNRESERVED:
        return sign
    if sign in "\\\xc0\xc1" or sign < " " or sign == "\x7f":  # C0 and C1 begin an overlong dot or slash
        raise TargetInvalid("its path has an encoded backslash, control character or byte that no UTF-8 has")
    return f"%{digits.upper()}"


def _require_plain(path: str) -> None:
    segments = path.split("/")[1:]
    if any(segment in (".", "..") for segment in segments):
        raise TargetInvalid("its path has a dot segment")
    if any(segment == "" for segment in segments[:-1]):
        raise TargetInvalid("its path has an empty segment")
