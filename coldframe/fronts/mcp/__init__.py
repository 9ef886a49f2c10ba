"""The Model Context Protocol at `/mcp`, in its current revision and those before it.

An own reading of the protocol, and not the official library: that takes 1.2 s to load and 2 ms of each call, as much again as
the server's own share of a command, and has no way to answer with a task. The official clients, in two languages, are what the
tests speak to it with.
"""

from coldframe.fronts.mcp.http import PATH, McpFront

__all__ = ["PATH", "McpFront"]
