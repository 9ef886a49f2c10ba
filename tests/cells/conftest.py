"""Sandboxes for code cells. The packages that kernels need are installed with the checkout; without them there is nothing to try."""

from collections.abc import Iterator

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.host import interpreter
from tests.e2b.real import RealEdge, real_edge
from tests.installation import Installation


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if interpreter.listing() is None:
        skip = pytest.mark.skip(reason="no packages for code cells: run `coldframe code install`")
        for item in items:
            if "tests/cells" in str(item.path):
                item.add_marker(skip)


@pytest.fixture(scope="package")
def client(installation: Installation) -> Iterator[SyncColdframe]:
    with SyncColdframe(installation.url, installation.token) as client:
        yield client


@pytest.fixture(scope="module")
def box(client: SyncColdframe) -> Iterator[SyncSandbox]:
    """One sandbox for the tests of a file, which share its kernels."""
    with client.sandboxes.create(background=True, network="none") as sandbox:
        yield sandbox


@pytest.fixture(scope="package")
def real(installation: Installation) -> RealEdge:
    return real_edge(installation)
