"""Fronts that share the listener of the REST API, each below a path of its own and made when somebody first asks for it."""

from collections.abc import Callable, Mapping

from starlette.types import ASGIApp, Receive, Scope, Send


class Mounted:
    """*app*, but for requests to the paths of others. Behind the door: whoever comes here was let in."""

    def __init__(self, app: ASGIApp, others: Mapping[str, Callable[[], ASGIApp]]) -> None:
        self._app = app
        self._others = others
        self._made: dict[str, ASGIApp] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path not in self._others:
            await self._app(scope, receive, send)
            return
        if path not in self._made:
            self._made[path] = self._others[path]()
        await self._made[path](scope, receive, send)
