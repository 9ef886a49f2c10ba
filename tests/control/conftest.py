"""What the tests of this folder share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control.keeping import Keeping


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[Keeping]:
    kept = Keeping(tmp_path)
    yield kept
    kept.close()
