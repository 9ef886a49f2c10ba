"""The door of a private preview: a link of one use, or its token, for a cookie of that one name.

The link leads away at once, so that nothing of it stays in the address or goes along as referrer.
"""

from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from coldframe.contract.errors import ColdframeError, NotFound, PreviewLocked
from coldframe.control.preview_access import PreviewAccess
from coldframe.fronts.answers import NO_SNIFF
from coldframe.fronts.edge.relay_heads import COOKIE, Names, RequestHead
from coldframe.fronts.edge.routing import Target, label_of
from coldframe.fronts.previews.pages import ENTER, page_of
from coldframe.fronts.streams import read_body

MOST_FORM_BYTES = 4096


def make_door(access: PreviewAccess) -> ASGIApp:
    """Answers for what is below `/.coldframe/` at the address of a preview."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            response = await _enter(access, request)
        except ColdframeError as error:
            response = _told(error, request)
        await response(scope, receive, send)

    return serve


async def _enter(access: PreviewAccess, request: Request) -> Response:
    target: Target = request.scope["state"]["target"]
    if request.url.path != ENTER or not target.by_host or target.sandbox_id is None:
        raise NotFound("there is nothing at this path")
    host = request.headers.get("host", "")
    origin = request.headers.get("origin")
    if request.method == "POST":
        if origin is not None and origin != f"{request.scope.get('scheme', 'http')}://{host}":
            raise PreviewLocked("a form of another page opens nothing here")
        form = parse_qs((await read_body(request, MOST_FORM_BYTES)).decode("ascii", "replace"))
        secret = (form.get("token") or [""])[0]
    elif request.method == "GET":
        secret = request.query_params.get("link", "")
    else:
        return Response(status_code=405, headers=NO_SNIFF | {"Allow": "GET, POST"})
    visitor = request.client.host if request.client is not None else "unknown"
    cookie, life_s = access.exchange(label_of(target.sandbox_id), target.port, secret.strip(), visitor)
    secure = "; Secure" if request.scope.get("scheme") == "https" else ""
    return Response(
        status_code=303,
        headers=NO_SNIFF
        | {
            "Location": "/",
            "Referrer-Policy": "no-referrer",
            "X-Robots-Tag": "noindex, nofollow",
            "Set-Cookie": f"{COOKIE}={cookie}; Path=/; Max-Age={life_s}; HttpOnly; SameSite=Lax{secure}",
        },
    )


def _told(error: ColdframeError, request: Request) -> Response:
    """As the relay tells it."""
    headers = [(name, value) for name, value in request.scope["headers"]]
    method = request.method.encode()
    head = RequestHead(method, b"/", 1, headers, "none", 0, wants_tunnel=False, keeps=False)
    scheme = str(request.scope.get("scheme", "http"))
    whole = page_of(error, head, Names(scheme, request.headers.get("host", ""), 0))
    start, _, body = whole.partition(b"\r\n\r\n")
    lines = start.split(b"\r\n")
    told = dict(line.decode("latin-1").split(": ", 1) for line in lines[1:])
    told.pop("content-length", None)
    told.pop("connection", None)
    return Response(body, int(lines[0].split(b" ")[1]), told)
