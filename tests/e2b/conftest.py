"""The official SDK against our edge, in both ways that it can be told where that is."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2b import Sandbox

from coldframe.fronts.edge.authority import EdgeAuthority
from tests.e2b.edge_served import DOMAIN, EdgeServed, Mode, edge_served
from tests.e2b.real import RealEdge, real_edge
from tests.fronts.served import Served, serve_fake
from tests.installation import Installation


@pytest.fixture(scope="package", autouse=True)
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of all edges of these tests: an SDK reads once in the life of a process whom it trusts."""
    folder = tmp_path_factory.mktemp("authority")
    (folder / "certificate.pem").write_text(EdgeAuthority(str(folder), (DOMAIN,)).certificate)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("E2B_API_KEY", "E2B_DOMAIN", "E2B_API_URL", "E2B_SANDBOX_URL", "E2B_DEBUG"):
            patch.delenv(name, raising=False)
        patch.setenv("SSL_CERT_FILE", str(folder / "certificate.pem"))
        patch.setattr(socket, "getaddrinfo", _leads_here)
        yield folder


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_fake(str(tmp_path_factory.mktemp("data"))) as served:
        yield served


@pytest.fixture(scope="module")
def edge(served: Served, authority: Path) -> Iterator[EdgeServed]:
    with edge_served(served, authority) as edge:
        yield edge


@pytest.fixture(params=["url", "domain"])
def mode(request: pytest.FixtureRequest) -> Mode:
    """In mode `domain` names below `localhost` are asked for, by TLS."""
    chosen: Mode = request.param
    return chosen


_look_up = socket.getaddrinfo


def _leads_here(host: Any, *arguments: Any, **more: Any) -> Any:
    """Names below `localhost`, which not every resolver knows."""
    text = host.decode() if isinstance(host, bytes) else host
    is_ours = isinstance(text, str) and text.endswith(f".{DOMAIN}")
    return _look_up("127.0.0.1" if is_ours else host, *arguments, **more)


@pytest.fixture
def params(edge: EdgeServed, mode: Mode) -> dict[str, Any]:
    return edge.params(mode)


@pytest.fixture(scope="session")
def real(installation: Installation) -> RealEdge:
    return real_edge(installation)


@pytest.fixture
def box(real: RealEdge) -> Iterator[Sandbox]:
    """One with real walls."""
    made = Sandbox.create(timeout=300, **real.params)
    yield made
    made.kill(**real.params)
