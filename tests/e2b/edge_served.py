"""The edge over real sockets, with TLS and without, upon an installation with a fake machine."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import uvicorn

from coldframe.contract.edge import EdgeInfo
from coldframe.contract.policy import Role
from coldframe.fronts.e2b import make_apps
from coldframe.fronts.edge import Edge
from coldframe.fronts.edge.authority import EdgeAuthority
from coldframe.fronts.edge.listener import EdgeListener
from coldframe.fronts.edge.protocol import KEEP_ALIVE_S, EdgeProtocol
from tests.fronts.served import Served

DOMAIN = "localhost"
Mode = Literal["url", "domain"]


class EdgeServed:
    """Where it answers, and what a client has to know."""

    def __init__(self, served: Served, authority: Path) -> None:
        """*authority*: the folder that the certificate authority is kept in."""
        self.served = served
        self._authority = authority
        self.port = 0
        self.key = ""
        self.authority: EdgeAuthority

    async def start(self) -> None:
        self.key, _ = self.served.control.tokens.create(Role.OWNER, "e2b", form="e2b")
        edge = Edge(lambda: make_apps(self.served.control), domains=(DOMAIN, "sandboxes.test"))
        self.authority = EdgeAuthority(str(self._authority), edge.domains)
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(64)
        self.port = self._listener.getsockname()[1]
        self.info = EdgeInfo(port=self.port, domains=edge.domains, certificate=self.authority.certificate)
        config = uvicorn.Config(
            edge, http=EdgeProtocol, loop="none", ws="none", lifespan="off", access_log=False, log_level="critical"
        )
        config.timeout_keep_alive = KEEP_ALIVE_S
        config.load()
        self._state = uvicorn.Server(config).server_state
        self._connections = EdgeListener(
            self._listener, lambda: EdgeProtocol(config, self._state, {}), self.authority.context
        )
        self._connections.start()

    async def stop(self) -> None:
        self._connections.close()
        self._listener.close()
        for connection in tuple(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=5)

    def params(self, mode: Mode, key: str | None = None) -> dict[str, Any]:
        """As the SDK takes them."""
        key = key or self.key
        if mode == "domain":
            return {"api_key": key, "domain": f"{DOMAIN}:{self.port}"}
        address = f"http://localhost:{self.port}"
        return {"api_key": key, "api_url": address, "sandbox_url": address}

    def key_of(self, role: Role, agent_id: str | None = None) -> str:
        async def make() -> str:
            return self.served.control.tokens.create(role, f"e2b {role}", agent_id=agent_id, form="e2b")[0]

        return self.served.call(make())


@contextlib.contextmanager
def edge_served(served: Served, authority: Path) -> Iterator[EdgeServed]:
    edge = EdgeServed(served, authority)
    served.call(edge.start())
    try:
        yield edge
    finally:
        served.call(edge.stop())
