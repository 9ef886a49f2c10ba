"""One installation for all of it, which may be killed and started again."""

from collections.abc import Iterator

import pytest

from tests.chaos.storm import KillableInstallation


@pytest.fixture(scope="session")
def killable() -> Iterator[KillableInstallation]:
    started = KillableInstallation()
    try:
        started.start()
        assert started.token
        yield started
    finally:
        left = started.close()
    assert not left, "the installation left behind:\n" + "\n".join(left)
