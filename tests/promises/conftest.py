"""Promises are tried through the public SDK against a real server, on every isolation level that is offered."""

import itertools
from collections.abc import Iterator

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from tests.installation import Installation

_numbers = itertools.count(1)


@pytest.fixture
def client(installation: Installation) -> Iterator[SyncColdframe]:
    with SyncColdframe(installation.url, installation.token) as client:
        yield client


@pytest.fixture
def agent_id() -> str:
    """A new agent for each test, so that no test sees another's files."""
    return f"promise-{next(_numbers)}"


@pytest.fixture
def sandbox(client: SyncColdframe, agent_id: str) -> Iterator[SyncSandbox]:
    with client.sandboxes.create(agent_id=agent_id) as sandbox:
        yield sandbox
