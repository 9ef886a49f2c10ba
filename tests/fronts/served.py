"""A whole installation for tests: real control, real HTTP over loopback, a fake machine below.

The server has a thread and an event loop of its own, so that tests are free to be asynchronous, blocking, or
to start the command line as a subprocess.
"""

import asyncio
import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import uvicorn

from coldframe.client.api import Coldframe
from coldframe.client.sync import SyncColdframe
from coldframe.contract.edge import EdgeInfo
from coldframe.contract.policy import Role
from coldframe.control.control import Control, build_control
from coldframe.fronts.corked import CorkedProtocol
from coldframe.fronts.rest import build_app
from tests.fakes.host import FakeHost

T = TypeVar("T")
TIMEOUT_S = 30.0


class Served:
    """Address, tokens by role, and the parts below for looking behind the surface."""

    def __init__(self, data_dir: str, make_host: Callable[[str], Any], ahead: timedelta = timedelta(0)) -> None:
        self.data_dir = data_dir
        self._make_host = make_host
        self._ahead = ahead
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="server", daemon=True)
        self.control: Control
        self.host: Any
        self.url = ""
        self.edge = EdgeInfo(port=4561, domains=("localhost",), certificate="")
        self.owner_token = ""
        self._tokens: dict[tuple[Role, str | None], str] = {}

    def start(self) -> None:
        self._thread.start()
        self.call(self._start())

    def stop(self) -> None:
        self.call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run *coroutine* on the server's own loop."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result(TIMEOUT_S)

    async def _start(self) -> None:
        os.makedirs(os.path.join(self.data_dir, "control"), exist_ok=True)
        self.host = self._make_host(self.data_dir)
        self.control = build_control(
            data_dir=self.data_dir, host=self.host, clock=lambda: datetime.now(UTC) + self._ahead, rules_path=None
        )
        await self.control.start()
        self.owner_token, _ = self.control.tokens.create(Role.OWNER, "test owner")
        self._tokens[Role.OWNER, None] = self.owner_token
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            build_app(self.control, edge=lambda: self.edge),
            loop="none",
            http=CorkedProtocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_level="critical",
            timeout_keep_alive=75,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._serving = asyncio.ensure_future(self._server.serve(sockets=[listener]))
        # The socket listens already, so nobody is refused; the server takes connections from its next turn on.

    async def _stop(self) -> None:
        self._server.should_exit = True
        await self._serving
        await self.control.close()
        await self.host.close()

    def token(self, role: Role, agent_id: str | None = None) -> str:
        """A token of that role; made once."""
        known = self._tokens.get((role, agent_id))
        if known is None:

            async def make() -> str:
                return self.control.tokens.create(role, f"test {role}", agent_id=agent_id)[0]

            known = self._tokens[role, agent_id] = self.call(make())
        return known

    def client(self, role: Role = Role.OWNER, agent_id: str | None = None) -> Coldframe:
        return Coldframe(self.url, self.token(role, agent_id))

    def sync_client(self, role: Role = Role.OWNER, agent_id: str | None = None) -> SyncColdframe:
        return SyncColdframe(self.url, self.token(role, agent_id))

    def request(
        self,
        method: str,
        path: str,
        *,
        token: str | None = None,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        """One plain HTTP request, by no client of ours. `token` defaults to the owner's; empty for none."""
        import http.client

        all_headers = dict(headers or {})
        secret = self.owner_token if token is None else token
        if secret:
            all_headers.setdefault("Authorization", f"Bearer {secret}")
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body=body, headers=all_headers)
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def json(self, method: str, path: str, payload: object = None, *, token: str | None = None) -> tuple[int, Any]:
        body = b"" if payload is None else json.dumps(payload).encode()
        status, _, answer = self.request(
            method, path, token=token, body=body, headers={"Content-Type": "application/json"}
        )
        return status, json.loads(answer)


@contextlib.contextmanager
def serve_fake(
    data_dir: str, make_host: Callable[[str], Any] = FakeHost, *, ahead: timedelta = timedelta(0)
) -> Iterator[Served]:
    """*ahead*: how far its clock is before that of the machine."""
    served = Served(data_dir, make_host, ahead)
    served.start()
    try:
        yield served
    finally:
        served.stop()
