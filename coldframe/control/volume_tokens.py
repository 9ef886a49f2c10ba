"""Tokens of volumes: each stands for whoever was given it, at the files of one volume and nowhere else.

Protocols whose clients reach the files of a volume without their key give them one. It says which volume and whose it is, and
is worth nothing once the token of its holder is; nothing is kept of it.
"""

import hmac
import re
from typing import NamedTuple

from coldframe.contract.caller import Caller
from coldframe.contract.errors import Unauthenticated
from coldframe.control.access_tokens import AccessTokens
from coldframe.control.tokens import Surface, Tokens

_WHAT = "volume"
_TOKEN = re.compile(r"cfv_([0-9a-f]{20})_([0-9a-f]{16})_([0-9a-f]{64})")


class VolumeAccess(NamedTuple):
    """What a token opens, for whom."""

    volume_id: str
    caller: Caller


class VolumeTokens:
    """Those of this installation."""

    def __init__(self, access_tokens: AccessTokens, tokens: Tokens) -> None:
        self._access_tokens = access_tokens
        self._tokens = tokens

    def give(self, caller: Caller, volume_id: str) -> str:
        """The one of *caller*, the same whenever it is asked for. Raises CredentialUnreadable."""
        signed = self._access_tokens.sign(_WHAT, volume_id, caller.token_id)
        return f"cfv_{volume_id.removeprefix('vol_')}_{caller.token_id.removeprefix('tok_')}_{signed}"

    def open(self, token: str, *, surface: Surface = "e2b") -> VolumeAccess:
        """Raises Unauthenticated: no such token, or its holder is let in no more."""
        found = _TOKEN.fullmatch(token)
        if found is None:
            raise Unauthenticated("the token of the volume is not valid")
        volume_id, token_id = f"vol_{found[1]}", f"tok_{found[2]}"
        if not hmac.compare_digest(self._access_tokens.sign(_WHAT, volume_id, token_id), found[3]):
            raise Unauthenticated("the token of the volume is not valid")
        return VolumeAccess(volume_id, self._tokens.caller_of(token_id, surface=surface))
