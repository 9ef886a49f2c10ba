"""What a client sends, checked before anything is made of it."""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from coldframe.fronts.mcp.protocol import (
    CURRENT,
    HANDSHAKE_REVISIONS,
    HEADER_METHOD,
    HEADER_MISMATCH,
    HEADER_NAME,
    HEADER_REVISION,
    INVALID_PARAMS,
    INVALID_REQUEST,
    META_CAPABILITIES,
    META_REVISION,
    NAMED_BY,
    TASKS,
    WITHOUT_HEADER,
    Era,
    RequestId,
    RpcError,
    unsupported,
)

MAX_METHOD_CHARACTERS = 100
MAX_ID_CHARACTERS = 200
_ENCODED = re.compile(r"=\?base64\?(.*)\?=")


class Incoming(NamedTuple):
    """One message: a request, or a notification if it has no id."""

    method: str
    params: dict[str, Any]
    request_id: RequestId | None
    is_request: bool
    era: Era
    revision: str
    can_poll: bool
    """The client knows what to do with a task in place of a result."""
    progress_token: RequestId | None

    @property
    def meta(self) -> dict[str, Any]:
        return _object(self.params.get("_meta"))


def read_message(content: object, headers: Mapping[str, str]) -> Incoming | None:
    """Check a decoded body against itself and the headers it came with. None for an answer of the client, of which it owes none.

    Raises RpcError.
    """
    if not isinstance(content, dict):
        raise RpcError(INVALID_REQUEST, "the body is not one request or notification")
    if "method" not in content and ("result" in content or "error" in content):
        return None
    method, params = content.get("method"), content.get("params", {})
    if content.get("jsonrpc") != "2.0" or not isinstance(method, str) or len(method) > MAX_METHOD_CHARACTERS:
        raise RpcError(INVALID_REQUEST, "the body is no JSON-RPC 2.0 message with a method")
    is_request = "id" in content
    if is_request and not _is_id(content["id"]):
        raise RpcError(INVALID_REQUEST, "the id is neither a number nor a text")
    if params is None:
        params = {}
    if not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, "the parameters are not an object")
    era, revision = _era_of(params, headers)
    meta = _object(params.get("_meta"))
    if era == "stateless" and is_request:
        _check_envelope(method, params, meta, headers)
    token = meta.get("progressToken")
    extensions = _object(_object(meta.get(META_CAPABILITIES)).get("extensions"))
    return Incoming(
        method=method,
        params=params,
        request_id=content.get("id"),
        is_request=is_request,
        era=era,
        revision=revision,
        can_poll=era == "stateless" and TASKS in extensions,
        progress_token=token if _is_id(token) else None,
    )


def _era_of(params: dict[str, Any], headers: Mapping[str, str]) -> tuple[Era, str]:
    header = headers.get(HEADER_REVISION)
    if header in HANDSHAKE_REVISIONS:
        return "handshake", header
    if header is None and META_REVISION not in _object(params.get("_meta")):
        return "handshake", WITHOUT_HEADER
    return "stateless", CURRENT


def _check_envelope(method: str, params: dict[str, Any], meta: dict[str, Any], headers: Mapping[str, str]) -> None:
    """In the order of the protocol: what is missing, what differs from the headers, what is not spoken."""
    missing = [key for key in (META_REVISION, META_CAPABILITIES) if key not in meta]
    if missing:
        raise RpcError(INVALID_PARAMS, f"`params._meta` lacks {' and '.join(missing)}")
    revision = meta[META_REVISION]
    if headers.get(HEADER_REVISION) != revision:
        raise RpcError(HEADER_MISMATCH, f"the header `{HEADER_REVISION}` and the body name different revisions")
    if headers.get(HEADER_METHOD) != method:
        raise RpcError(HEADER_MISMATCH, f"the header `{HEADER_METHOD}` and the body name different methods")
    named_by = NAMED_BY.get(method)
    named = None if named_by is None else params.get(named_by)
    if named is not None and _decoded(headers.get(HEADER_NAME)) != named:
        raise RpcError(HEADER_MISMATCH, f"the header `{HEADER_NAME}` and `{named_by}` of the body differ")
    if revision != CURRENT:
        raise unsupported(revision)


def _decoded(value: str | None) -> str | None:
    """A header that may be in base64. One that is broken is like none."""
    found = None if value is None else _ENCODED.fullmatch(value)
    if found is None:
        return value
    try:
        content = base64.b64decode(found[1], validate=True)
        return content.decode() if base64.b64encode(content).decode() == found[1] else None
    except (binascii.Error, UnicodeDecodeError):
        return None


def _is_id(value: object) -> bool:
    return (isinstance(value, str) and len(value) <= MAX_ID_CHARACTERS) or (
        isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    )


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
