"""Clients for the tests: the official library over both transports and in both eras, and requests byte by byte."""

import http.client
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx2
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

CHECKOUT = Path(__file__).resolve().parents[2]
CURRENT, PREVIOUS = "2026-07-28", "2025-11-25"
REVISIONS = (CURRENT, PREVIOUS)
TRANSPORTS = ("http", "stdio")
TIMEOUT_S = 30.0


@asynccontextmanager
async def connected(
    url: str, token: str, *, revision: str = CURRENT, transport: str = "http", **options: Any
) -> AsyncIterator[Client]:
    """The official client, connected, and speaking *revision*."""
    mode: Any = {"mode": "legacy"} if revision == PREVIOUS else {"mode": "auto"}
    if transport == "http":
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=TIMEOUT_S) as carrier:
            async with Client(streamable_http_client(f"{url}/mcp", http_client=carrier), **mode, **options) as client:
                yield client
        return
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "coldframe.cli", "--url", url, "mcp"],
        cwd=CHECKOUT,
        env={"COLDFRAME_TOKEN": token, "PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT)},
    )
    async with Client(stdio_client(server), **mode, **options) as client:
        yield client


class Asked(Protocol):
    """A server that can be asked, and whose owner's token is known."""

    url: str
    owner_token: str

    def request(
        self,
        method: str,
        path: str,
        *,
        token: str | None = None,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
    ) -> tuple[int, dict[str, str], bytes]: ...


class Server:
    """One that is known by its address alone."""

    def __init__(self, url: str, owner_token: str) -> None:
        self.url, self.owner_token = url, owner_token

    def request(
        self,
        method: str,
        path: str,
        *,
        token: str | None = None,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        whole = {"Authorization": f"Bearer {token or self.owner_token}", **(headers or {})}
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=100)
        try:
            connection.request(method, path, body=body, headers=whole)
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()


class Raw:
    """Requests as they go over the wire, headers and all."""

    def __init__(self, served: Asked, token: str | None = None, *, revision: str = CURRENT) -> None:
        self.served = served
        self.token = token
        self.revision = revision
        self.session: str | None = None
        self._last_id = 0

    def post(
        self, content: object, *, headers: Mapping[str, str] | None = None, path: str = "/mcp"
    ) -> tuple[int, dict[str, str], Any]:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        whole = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if self.session is not None:
            whole |= {"Mcp-Session-Id": self.session, "Mcp-Protocol-Version": self.revision}
        answer = self.served.request("POST", path, token=self.token, body=body, headers={**whole, **(headers or {})})
        status, answer_headers, answer_body = answer
        is_json = answer_headers.get("content-type", "").startswith("application/json")
        return status, answer_headers, json.loads(answer_body) if is_json else answer_body

    def ask(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        capabilities: Mapping[str, Any] | None = None,
    ) -> tuple[int, Any]:
        """One request in the words of the revision; (status, message)."""
        message, all_headers = self.worded(method, params, meta, capabilities)
        status, answer_headers, answer = self.post(message, headers={**all_headers, **(headers or {})})
        if method == "initialize":
            self.session = answer_headers.get("mcp-session-id")
        return status, answer

    def worded(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        capabilities: Mapping[str, Any] | None = None,
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """A request and the headers that belong to it."""
        self._last_id += 1
        all_params = dict(params or {})
        all_headers: dict[str, str] = {}
        if self.revision == CURRENT:
            all_params["_meta"] = {
                "io.modelcontextprotocol/protocolVersion": CURRENT,
                "io.modelcontextprotocol/clientCapabilities": dict(capabilities or {}),
                **(meta or {}),
            }
            all_headers = {"Mcp-Protocol-Version": CURRENT, "Mcp-Method": method}
            named = all_params.get("uri" if method == "resources/read" else "name")
            if method in ("tools/call", "resources/read") and isinstance(named, str):
                all_headers["Mcp-Name"] = named
        elif meta:
            all_params["_meta"] = dict(meta)
        return {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": all_params}, all_headers

    @contextmanager
    def stream(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        capabilities: Mapping[str, Any] | None = None,
    ) -> Iterator[Iterator[dict[str, Any]]]:
        """The messages of an answer as they come; leaving it closes the connection. `GET` for the stream of the session."""
        headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        token = self.served.owner_token if self.token is None else self.token
        headers["Authorization"] = f"Bearer {token}"
        if self.session is not None:
            headers |= {"Mcp-Session-Id": self.session, "Mcp-Protocol-Version": self.revision}
        body = None
        if method != "GET":
            message, more = self.worded(method, params, meta, capabilities)
            body, headers = json.dumps(message), {**headers, **more}
        connection = http.client.HTTPConnection(self.served.url.removeprefix("http://"), timeout=TIMEOUT_S)
        connection.request("GET" if body is None else "POST", "/mcp", body=body, headers=headers)
        try:
            yield self._messages(connection)
        finally:
            if connection.sock is not None:
                connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _messages(self, connection: http.client.HTTPConnection) -> Iterator[dict[str, Any]]:
        answer = connection.getresponse()
        if not str(answer.getheader("Content-Type")).startswith("text/event-stream"):
            yield json.loads(answer.read())
            return
        for line in answer:
            if line.startswith(b"data:"):
                yield json.loads(line[5:])

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The result of a tool."""
        _, answer = self.ask("tools/call", {"name": tool, "arguments": arguments})
        result: dict[str, Any] = answer["result"]
        return result

    def value(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """What a tool gave, which did not fail."""
        result = self.call(tool, **arguments)
        assert not result.get("isError"), result["structuredContent"]
        value: dict[str, Any] = result["structuredContent"]
        return value

    def code(self, tool: str, **arguments: Any) -> str:
        """Of the error that a tool answered."""
        result = self.call(tool, **arguments)
        assert result["isError"] is True, result
        return str(result["structuredContent"]["error"]["code"])

    def initialize(self) -> dict[str, Any]:
        client = {"name": "test", "version": "1"}
        params = {"protocolVersion": self.revision, "capabilities": {}, "clientInfo": client}
        status, answer = self.ask("initialize", params)
        assert status == 200
        self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        result: dict[str, Any] = answer["result"]
        return result
