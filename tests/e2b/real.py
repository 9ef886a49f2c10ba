"""The edge of a real installation, for what needs boxes: as an SDK of E2B is told of it by its environment."""

import json
import urllib.request
from typing import Any, NamedTuple

from coldframe.client.sync import SyncColdframe
from tests.installation import Installation


class RealEdge(NamedTuple):
    installation: Installation
    key: str
    port: int

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}"

    @property
    def params(self) -> dict[str, Any]:
        """As the SDK takes them."""
        return {"api_key": self.key, "api_url": self.url, "sandbox_url": self.url}

    def client(self) -> SyncColdframe:
        return SyncColdframe(self.installation.url, self.installation.token)


def real_edge(installation: Installation) -> RealEdge:
    with SyncColdframe(installation.url, installation.token) as client:
        key, _ = client.tokens.create("owner", "e2b", form="e2b")
    asked = urllib.request.Request(
        f"{installation.url}/v1/edge", headers={"Authorization": f"Bearer {installation.token}"}
    )
    with urllib.request.urlopen(asked, timeout=30) as answer:
        port = json.load(answer)["port"]
    return RealEdge(installation, key, port)
