"""REST without our own client, so that no kindness of it is what is tested; and installations that a test may change."""

import contextlib
import http.client
import json
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from coldframe.client.sync import SyncColdframe
from coldframe.contract.ledger import LedgerEntry
from tests.installation import Installation

TIMEOUT_S = 60.0
PAGE = 1000
"""Entries of the ledger; as many as are given out at a time."""


class Answer(NamedTuple):
    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        """The error code, or None."""
        if self.status < 400:
            return None
        content = self.json
        return str((content.get("error") or content).get("code"))


def rest(
    installation: Installation,
    method: str,
    path: str,
    payload: object = None,
    *,
    token: str | None = None,
    **headers: str,
) -> Answer:
    """One request over a connection of its own. *payload* is sent as JSON; bytes, and parts of them, as they are.

    `Accept_x` is `Accept-x`.
    """
    connection = http.client.HTTPConnection(urlsplit(installation.url).netloc, timeout=TIMEOUT_S)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    body: bytes | Iterator[bytes] | None
    if payload is None or isinstance(payload, (bytes, Iterator)):
        body = payload
    else:
        body = json.dumps(payload).encode()
        names["Content-Type"] = "application/json"
    try:
        connection.request(method, path, body, {"Authorization": f"Bearer {token or installation.token}", **names})
        answer = connection.getresponse()
        return Answer(answer.status, answer.read())
    finally:
        connection.close()


def call(
    installation: Installation,
    sandbox_id: str,
    tool: str,
    arguments: object,
    *,
    token: str | None = None,
    **headers: str,
) -> Answer:
    return rest(installation, "POST", f"/v1/sandboxes/{sandbox_id}/tools/{tool}", arguments, token=token, **headers)


def all_entries(client: SyncColdframe, *, after: int = 0, **query: Any) -> list[LedgerEntry]:
    """Every entry after a number, over as many pages as it takes."""
    found: list[LedgerEntry] = []
    while True:
        page = client.ledger.entries(after=found[-1].seq if found else after, limit=PAGE, **query)
        found += page
        if len(page) < PAGE:
            return found


@contextlib.contextmanager
def own_installation(**environment: str) -> Iterator[Installation]:
    """A running one for the caller alone, which may change its rules, stop it and damage it."""
    started = Installation(**environment)
    try:
        started.start()
        yield started
    finally:
        left = started.close()
    assert not left, "the installation left behind:\n" + "\n".join(left)
