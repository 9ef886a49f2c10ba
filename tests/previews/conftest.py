"""Previews are tried against a real server with real boxes."""

import itertools
from collections.abc import Iterator

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from tests.installation import Installation
from tests.previews.visiting import Visitor, serve

_numbers = itertools.count(1)


@pytest.fixture
def client(installation: Installation) -> Iterator[SyncColdframe]:
    with SyncColdframe(installation.url, installation.token) as client:
        yield client


@pytest.fixture
def sandbox(client: SyncColdframe) -> Iterator[SyncSandbox]:
    with client.sandboxes.create(agent_id=f"preview-{next(_numbers)}") as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def served(installation: Installation) -> Iterator[Visitor]:
    """The server of `app.py` in a sandbox, for tests that change nothing of it."""
    with (
        SyncColdframe(installation.url, installation.token) as client,
        client.sandboxes.create(agent_id=f"preview-{next(_numbers)}") as sandbox,
    ):
        yield Visitor(serve(client, sandbox, 8000))


@pytest.fixture
def still(sandbox: SyncSandbox) -> SyncSandbox:
    """A sandbox whose processes can be held still, as a snapshot of it and a pause need."""
    if "memory" not in sandbox.report().pause_kinds:
        pytest.skip("this user has no control group that can be frozen")
    return sandbox
