"""The words of the Model Context Protocol, as far as this server speaks it.

Two eras: up to 2025-11-25 a client shakes hands and then belongs to a session; from 2026-07-28 on every request says for
itself which revision it speaks and what its client can do, and there is no session.
"""

from typing import Any, Final, Literal

CURRENT: Final = "2026-07-28"
PREVIOUS: Final = "2025-11-25"
HANDSHAKE_REVISIONS: Final = ("2025-03-26", "2025-06-18", PREVIOUS)
"""Those that begin with `initialize`, oldest first."""
REVISIONS: Final = (*HANDSHAKE_REVISIONS, CURRENT)
WITHOUT_HEADER: Final = "2025-03-26"
"""What a client speaks that does not say it, as the protocol has it."""

Era = Literal["handshake", "stateless"]
RequestId = str | int

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
RESOURCE_NOT_FOUND: Final = -32002
"""In the era of handshakes; later it is INVALID_PARAMS."""
HEADER_MISMATCH: Final = -32020
CAPABILITY_MISSING: Final = -32021
REVISION_UNSUPPORTED: Final = -32022
CANCELLED: Final = -32800

HTTP_STATUS: Final = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    CAPABILITY_MISSING: 400,
    REVISION_UNSUPPORTED: 400,
    METHOD_NOT_FOUND: 404,
}
"""Of errors in the stateless era. All others are 200, as everything is that a session is told."""

META_REVISION: Final = "io.modelcontextprotocol/protocolVersion"
META_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
META_SERVER: Final = "io.modelcontextprotocol/serverInfo"
META_SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"
TASKS: Final = "io.modelcontextprotocol/tasks"

HEADER_REVISION: Final = "mcp-protocol-version"
HEADER_METHOD: Final = "mcp-method"
HEADER_NAME: Final = "mcp-name"
HEADER_SESSION: Final = "mcp-session-id"
NAMED_BY: Final = {"tools/call": "name", "resources/read": "uri"}
"""Methods whose header repeats a parameter, and which."""


class RpcError(Exception):
    """An error of the protocol: the request itself is wrong. What a tool cannot do is an answer, and none of these."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    def to_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {"code": self.code, "message": self.message}
        return wire if self.data is None else {**wire, "data": self.data}


def response(request_id: RequestId | None, result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def failure(request_id: RequestId | None, error: RpcError) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "error": error.to_wire()}


def notification(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def unsupported(requested: object) -> RpcError:
    return RpcError(
        REVISION_UNSUPPORTED,
        f"protocol version `{str(requested)[:40]}` is not spoken here",
        {"supported": list(REVISIONS), "requested": str(requested)[:40]},
    )
