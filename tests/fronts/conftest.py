"""One installation with a fake machine for all tests of a file."""

from collections.abc import Iterator

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from tests.fronts.served import Served, serve_fake


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_fake(str(tmp_path_factory.mktemp("data"))) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[SyncColdframe]:
    with served.sync_client() as client:
        yield client


@pytest.fixture
def sandbox(client: SyncColdframe) -> Iterator[SyncSandbox]:
    with client.sandboxes.create("builder") as sandbox:
        yield sandbox
