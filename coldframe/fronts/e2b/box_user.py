"""Whom a call of the data plane is made for, and what its paths mean there."""

import base64
import binascii
import posixpath
from typing import NamedTuple

from starlette.requests import Request

from coldframe.contract.caller import Caller
from coldframe.contract.command import BoxUserName
from coldframe.contract.errors import Unauthenticated
from coldframe.control.control import Control
from coldframe.tools.registry import HOME

_HOMES: dict[str, str] = {"user": HOME, "root": "/root"}


class BoxUser(NamedTuple):
    name: BoxUserName

    @property
    def home(self) -> str:
        return _HOMES[self.name]

    def place(self, path: str) -> str:
        """An absolute path, of one as it may be given: from the user's home on, or with `~` for that."""
        if path == "~" or path.startswith("~/"):
            path = self.home + path[1:]
        return "/" + posixpath.normpath(posixpath.join(self.home, path)).lstrip("/")


def named_user(name: str) -> BoxUser:
    """Raises Unauthenticated: a box has no other users for calls."""
    if name in ("", "user"):
        return BoxUser("user")
    if name == "root":
        return BoxUser("root")
    raise Unauthenticated(f"invalid username: `{name[:80]}`", hint="calls are made as `user` or `root`")


def user_of(request: Request) -> BoxUser:
    """The one that basic authentication names; the password says nothing. Raises Unauthenticated."""
    scheme, _, coded = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return BoxUser("user")
    try:
        name = base64.b64decode(coded.strip(), validate=True).decode().partition(":")[0]
    except (binascii.Error, UnicodeDecodeError):
        raise Unauthenticated("the user cannot be read", hint="send it as basic authentication") from None
    return named_user(name)


class Place(NamedTuple):
    """One sandbox, and who calls."""

    control: Control
    caller: Caller
    sandbox_id: str
