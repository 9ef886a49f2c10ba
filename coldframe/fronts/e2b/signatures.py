"""Signed addresses of files: whoever made the signature held an access token of the sandbox."""

import base64
import hashlib
import hmac
from typing import NamedTuple

from starlette.requests import Request

from coldframe.contract.errors import Unauthenticated
from coldframe.control.access_tokens import Access
from coldframe.control.control import Control

LONGEST_TOLD = 100


class Signed(NamedTuple):
    """What an address says that it was signed for."""

    path: str
    operation: str
    """`read` or `write`."""
    username: str
    signature: str
    expires: str
    """Seconds since 1970; empty for never."""

    def fits(self, token: str) -> bool:
        text = f"{self.path}:{self.operation}:{self.username}:{token}"
        if self.expires:
            text += f":{self.expires}"
        made = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        return hmac.compare_digest(f"v1_{made}".encode(), self.signature.encode())


def access_by_signature(control: Control, request: Request, sandbox_id: str | None, operation: str) -> Access:
    """Who signed the address of *request*, and for which sandbox.

    Raises Unauthenticated: nobody, or its time is over.
    """
    query = request.query_params
    signature, expires = query.get("signature", ""), query.get("signature_expiration", "")
    if not signature:
        raise Unauthenticated("this needs an access token", hint="send it as `X-Access-Token`, or sign the address")
    signed = Signed(query.get("path", ""), operation, query.get("username", ""), signature, expires)
    access = control.access_tokens.find(signed.fits, sandbox_id)
    if expires:
        if not (expires.lstrip("-").isascii() and expires.lstrip("-").isdigit() and len(expires) <= 15):
            raise Unauthenticated("the signature has no time that can be read")
        if int(expires) < control.clock().timestamp():
            raise Unauthenticated("signature is already expired")
    return access
