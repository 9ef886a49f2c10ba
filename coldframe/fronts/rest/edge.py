"""Where the edge is, and what to trust there."""

from starlette.requests import Request

from coldframe.contract.edge import EdgeInfo
from coldframe.contract.errors import Unavailable
from coldframe.fronts.rest.json_routes import JsonRoute


async def get_edge(request: Request) -> EdgeInfo:
    """Port, domains and certificate of the edge, by which SDKs of E2B and browsers reach sandboxes."""
    found: EdgeInfo | None = request.app.edge()
    if found is None:
        raise Unavailable("this installation has no edge", hint="start it with `coldframe up`")
    return found


ROUTES = (JsonRoute("GET", "/v1/edge", get_edge, EdgeInfo),)
