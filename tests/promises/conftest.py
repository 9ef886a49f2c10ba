"""Promises are tried through the public SDK against a real server, on every isolation level that is offered."""

import itertools
from collections.abc import Iterator

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.policy import Role
from tests.installation import Installation
from tests.promises.governed import NO_RULES, token_of
from tests.promises.raw import own_installation

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


@pytest.fixture(scope="session")
def governed() -> Iterator[Installation]:
    """Another installation, whose rules the tests change."""
    with own_installation() as started:
        yield started


@pytest.fixture
def owner(governed: Installation) -> Iterator[SyncColdframe]:
    """Its owner. Each test finds it without rules of its own, and it is left so."""
    with SyncColdframe(governed.url, governed.token) as client:
        client.policy.load(NO_RULES)
        yield client
        client.policy.load(NO_RULES)


@pytest.fixture
def box(owner: SyncColdframe, agent_id: str) -> Iterator[SyncSandbox]:
    """A sandbox in it, with the file that the calls of `EVERY_TOOL` are about."""
    with owner.sandboxes.create(agent_id=agent_id) as sandbox:
        sandbox.write_file("a.txt", "one\n")
        yield sandbox


@pytest.fixture
def agent_token(owner: SyncColdframe, box: SyncSandbox, agent_id: str) -> str:
    return token_of(owner, Role.AGENT, agent_id)
