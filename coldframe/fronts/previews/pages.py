"""What a visitor is told in place of an answer: a page for people, JSON for programs, and for SDKs of E2B their own words."""

import html
import http
import json

from coldframe.contract.errors import ColdframeError
from coldframe.control.preview_access import OF_LEASE
from coldframe.fronts.edge.relay_heads import NOT_INDEXED, Names, RequestHead
from coldframe.fronts.edge.routing import host_name

ENTER = "/.coldframe/enter"
AGAIN_S = 3
"""How soon a page looks again for something that may come by itself."""
_COMES = frozenset({"PREVIEW_STARTING", "PREVIEW_NOT_LISTENING", "PREVIEW_ASLEEP"})
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:12vh auto;padding:0 1.5rem;color:#1c2321;background:#f7f8f6}"
    "h1{font-size:1.4rem;font-weight:600}p{margin:.6rem 0}code,pre{font:13px/1.5 ui-monospace,monospace}"
    "pre{background:#1c2321;color:#e4e9e2;padding:1rem;border-radius:6px;overflow:auto;max-height:40vh;white-space:pre-wrap}"
    "small{color:#5d6763}input,button{font:inherit;padding:.4rem .7rem}@media(prefers-color-scheme:dark)"
    "{body{background:#161b19;color:#e4e9e2}small{color:#98a39d}}"
)
_TITLES = {
    "NOT_FOUND": "Nothing is shared here",
    "PREVIEW_STARTING": "It is starting",
    "PREVIEW_NOT_LISTENING": "Nothing is listening",
    "PREVIEW_UNHEALTHY": "It does not answer",
    "PREVIEW_PROCESS_EXITED": "The server has ended",
    "PREVIEW_OUT_OF_MEMORY": "The server ran out of memory",
    "PREVIEW_PORT_MOVED": "The server is on another port",
    "PREVIEW_STOPPED": "It was stopped",
    "PREVIEW_ASLEEP": "The sandbox is asleep",
    "PREVIEW_ENDED": "The sandbox has ended",
    "PREVIEW_LOCKED": "This preview is private",
    "PREVIEW_GONE": "This preview is over",
    "PREVIEW_LABEL": "This may not be shown",
    "GRANT_MISSING": "You may only look here",
}


def page_of(error: ColdframeError, head: RequestHead | None, names: Names) -> bytes:
    """The whole answer. It closes the connection: what comes behind such a request is not looked at."""
    status, extra = error.status, [NOT_INDEXED.decode()]
    label = host_name(names.host).partition(".")[0]
    by_e2b = (head is not None and head.get(b"e2b-sandbox-port") is not None) or str(
        error.facts.get("preview_id")
    ).startswith(OF_LEASE)
    if error.code == "NOT_FOUND":
        status = 502  # as E2B does, whose SDKs tell by this and the words below that a sandbox is gone
    if by_e2b and error.code.startswith("PREVIEW_") and status == 503:
        status = 502
    if error.code == "PREVIEW_LOCKED":
        if by_e2b or (head is not None and head.get(b"e2b-traffic-access-token") is not None):
            status = 403
        else:
            extra.append("www-authenticate: Bearer\r\n")
    if error.code in _COMES:
        extra.append(f"retry-after: {AGAIN_S}\r\n")
    if _is_browser(head):
        body, kind = _html(error, label).encode(), "text/html; charset=utf-8"
        extra.append("content-security-policy: default-src 'none'; style-src 'unsafe-inline'; form-action 'self'\r\n")
    else:
        body, kind = json.dumps(_json(error, head, label, status)).encode() + b"\n", "application/json"
    try:
        reason = http.HTTPStatus(status).phrase
    except ValueError:
        reason = ""
    start = (
        f"HTTP/1.1 {status} {reason}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
        f"coldframe-code: {error.code}\r\ncache-control: no-store\r\nx-content-type-options: nosniff\r\n"
        f"{''.join(extra)}connection: close\r\n\r\n"
    )
    return start.encode("latin-1") + (b"" if head is not None and head.method == b"HEAD" else body)


def _is_browser(head: RequestHead | None) -> bool:
    return head is not None and b"text/html" in (head.get(b"accept") or b"").lower()


def _json(error: ColdframeError, head: RequestHead | None, label: str, status: int) -> dict[str, object]:
    """Our own form, and beside it what an SDK of E2B reads."""
    port, _, sandbox = label.partition("-")
    if head is not None and (named := head.get(b"e2b-sandbox-id")) is not None:
        sandbox = named.decode("latin-1").partition("-")[0]
        port = (head.get(b"e2b-sandbox-port") or b"").decode("latin-1")
    message = error.message
    if error.code in ("NOT_FOUND", "PREVIEW_ENDED", "PREVIEW_ASLEEP"):
        message = "The sandbox was not found"
    elif error.code in ("PREVIEW_NOT_LISTENING", "PREVIEW_PROCESS_EXITED", "PREVIEW_STOPPED", "PREVIEW_OUT_OF_MEMORY"):
        message = "The sandbox is running but port is not open"
    elif error.code == "PREVIEW_LOCKED" and status == 403:
        message = "Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' is missing or invalid"
    told: dict[str, object] = {"sandboxId": sandbox, "message": message, "code": status, "error": error.to_wire()}
    if port.isdigit():
        told["port"] = int(port)
    return told


def _commands(error: ColdframeError) -> list[tuple[str, dict[str, object], str]]:
    """What whoever may can do about what has ended: there is nothing to wait for, and the page is all that is left to find it by."""
    if error.code != "PREVIEW_ENDED":
        return []
    about = [
        one for one in error.next_actions if one["op"].startswith("preview.") and set(one["args"]) == {"preview_id"}
    ]
    return [(one["op"].removeprefix("preview."), dict(one["args"]), one["effect"]) for one in about]


def _html(error: ColdframeError, label: str) -> str:
    title = _TITLES.get(error.code, "It does not serve now")
    again = f'<meta http-equiv="refresh" content="{AGAIN_S}">' if error.code in _COMES else ""
    parts = [f"<p>{html.escape(error.message)}</p>"]
    if error.code == "PREVIEW_LOCKED":
        parts.append(
            f'<form method="post" action="{ENTER}"><p><input type="password" name="token" placeholder="token" '
            'autocomplete="off" required autofocus> <button>Open</button></p></form>'
        )
    exit_code = error.facts.get("exit_code")
    if exit_code is not None:
        parts.append(f"<p>Exit code {html.escape(str(exit_code))}</p>")
    parts.append(f"<p><small>{html.escape(error.advice)}</small></p>")
    parts += [
        f"<p><small><code>coldframe preview {op} {html.escape(str(args['preview_id']))}</code> {html.escape(effect)}</small></p>"
        for op, args, effect in _commands(error)
    ]
    lines = error.facts.get("log_lines")
    if isinstance(lines, list) and lines and error.code != "PREVIEW_LOCKED":
        parts.append(f"<pre>{html.escape(chr(10).join(map(str, lines)))}</pre>")
    parts.append(f"<p><small><code>{html.escape(error.code)}</code> · {html.escape(label)}</small></p>")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>{again}'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body><h1>{title}</h1>{''.join(parts)}</body></html>"
    )
