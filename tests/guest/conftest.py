"""The workspace that the tests of the guest's file verbs work in."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guest.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    (tmp_path / "workspace").mkdir()
    made = Workspace(tmp_path / "workspace")
    yield made
    made.close()
