"""One connection at the edge, as the HTTP server speaks it.

`Edge` answers whole requests. What takes the connection itself, as a relay to a port of a sandbox with its web sockets
does, is handed it here: `take_over` is asked with the head of each request before anything is made of it.
"""

from collections.abc import Callable
from typing import Any

from coldframe.fronts.corked import CorkedProtocol

KEEP_ALIVE_S = 660
"""SDKs keep an idle connection for 300 s, and proxies up to 600 s: one closed earlier here breaks under a request."""

TakeOver = Callable[["EdgeProtocol", dict[str, Any]], bool]


def take_nothing(_: "EdgeProtocol", __: dict[str, Any]) -> bool:
    """Every request goes to the application."""
    return False


class EdgeProtocol(CorkedProtocol):
    """To be named as `http` to uvicorn."""
