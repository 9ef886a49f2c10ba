"""Stands at the edge: says which requests are for a port of a sandbox, and lets them in or not.

A cookie lets a request in only if it comes from a page of the same preview, or is a visit that somebody has chosen: pages
of other previews and sites have browsers that would send it along.
"""

from coldframe.contract.errors import ColdframeError
from coldframe.control.preview_access import PreviewAccess, Shown
from coldframe.fronts.edge.relay import PageOf, Passage
from coldframe.fronts.edge.relay_heads import PREVIEW_TOKEN, TRAFFIC_TOKEN, Names, RequestHead, cookie_of, is_ours
from coldframe.fronts.edge.routing import Asked, Target, find_target, label_of
from coldframe.fronts.previews.pages import page_of

OWN_PATHS = b"/.coldframe/"
"""Of the front of previews itself; a server in a box is not asked for them."""
_CHOSEN = frozenset({b"none", b"same-origin"})
_SAFE = frozenset({b"GET", b"HEAD", b"OPTIONS"})


class PreviewPorter:
    """Implements `Porter`."""

    def __init__(self, access: PreviewAccess, domains: tuple[str, ...], names: frozenset[str]) -> None:
        self._access = access
        self._domains = domains
        self._names = names

    @property
    def page_of(self) -> PageOf:
        return page_of

    def find(self, head: RequestHead, names: Names) -> bool:
        target = self._target(head, names)
        if target.kind != "preview":
            return False
        return not (target.by_host and head.target.startswith(OWN_PATHS))

    def admit(self, head: RequestHead, names: Names, visitor: str) -> tuple[Passage, Names]:
        target = self._target(head, names)
        assert target.sandbox_id is not None
        shown = Shown(
            visitor,
            cookie=cookie_of(head.headers) if target.by_host else None,
            tokens=_tokens(head),
            is_own_page=_is_own_page(head, names),
            only_looks=head.method in _SAFE and not head.wants_tunnel,
        )
        label_id = label_of(target.sandbox_id)
        admitted = self._access.admit(label_id, target.port, shown)
        port, masked = admitted.key[1], admitted.row.terms.get("host")
        return admitted, names._replace(
            port=port, masked=None if masked is None else masked.replace("${PORT}", str(port))
        )

    def _target(self, head: RequestHead, names: Names) -> Target:
        def text(name: bytes) -> str | None:
            value = head.get(name)
            return None if value is None else value.decode("latin-1")

        bearer = (text(b"authorization") or "").lower().startswith("bearer ")
        path = head.target.partition(b"?")[0].decode("latin-1")
        has_key = head.get(b"x-api-key") is not None or bearer
        asked = Asked(names.host, path, text(b"e2b-sandbox-id"), text(b"e2b-sandbox-port"), has_key=has_key)
        try:
            return find_target(asked, self._domains, self._names)
        except ColdframeError:
            return Target("control")  # which says the same again, in its own form


def _tokens(head: RequestHead) -> tuple[str, ...]:
    found = [value for name, value in head.headers if name in (TRAFFIC_TOKEN, PREVIEW_TOKEN)]
    authorization = head.get(b"authorization")
    if authorization is not None and is_ours(authorization):
        found.append(authorization.partition(b" ")[2].strip())
    return tuple(one.decode("latin-1") for one in found)


def _is_own_page(head: RequestHead, names: Names) -> bool:
    origin, site = head.get(b"origin"), head.get(b"sec-fetch-site")
    if origin is not None and origin != names.outer:
        return False
    if origin is None and head.wants_tunnel:
        return False  # a browser says it
    if site is None or site in _CHOSEN:
        return True
    return (
        head.method in _SAFE and head.get(b"sec-fetch-mode") == b"navigate" and head.get(b"sec-fetch-dest") != b"embed"
    )
