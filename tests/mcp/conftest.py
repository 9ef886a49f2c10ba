"""One installation with a fake machine for all tests of a file, and sandboxes in it."""

from collections.abc import Iterator

import pytest

from coldframe.contract.policy import Role
from tests.fronts.served import Served, serve_fake
from tests.mcp.speaking import REVISIONS, Raw


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_fake(str(tmp_path_factory.mktemp("data"))) as served:
        yield served


@pytest.fixture(params=REVISIONS)
def raw(served: Served, request: pytest.FixtureRequest) -> Raw:
    """The owner, in either era."""
    client = Raw(served, served.token(Role.OWNER), revision=request.param)
    if request.param == REVISIONS[1]:
        client.initialize()
    return client


@pytest.fixture
def sandbox_id(served: Served) -> Iterator[str]:
    with served.sync_client() as client, client.sandboxes.create(background=True) as sandbox:
        yield sandbox.id
