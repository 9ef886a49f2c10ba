"""The control API of E2B over real HTTP, upon an installation with a fake machine."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from coldframe.contract.policy import Role
from coldframe.fronts.e2b.control import ControlApi
from tests.fronts.served import Served


class Api:
    """Where it answers, and a key for it."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.url = ""
        self.key = ""

    async def start(self) -> None:
        self.key, _ = self.served.control.tokens.create(Role.OWNER, "e2b", form="e2b")
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            ControlApi(self.served.control),
            loop="none",
            ws="none",
            lifespan="off",
            access_log=False,
            log_level="critical",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._serving = asyncio.ensure_future(self._server.serve(sockets=[listener]))

    async def stop(self) -> None:
        self._server.should_exit = True
        await self._serving

    @property
    def params(self) -> dict[str, str]:
        """As the SDK takes them."""
        return {"api_key": self.key, "api_url": self.url}


@contextlib.contextmanager
def control_api(served: Served) -> Iterator[Api]:
    api = Api(served)
    served.call(api.start())
    try:
        yield api
    finally:
        served.call(api.stop())
