"""Programs of this machine, for tests that need one to be a file of its own: in some distributions many are one file."""

import os

import pytest


def is_its_own(name: str) -> bool:
    path = f"/usr/bin/{name}"
    return os.path.realpath(path) == path and os.path.isfile(path) and os.stat(path).st_nlink == 1


def needs_its_own(*names: str) -> pytest.MarkDecorator:
    missing = [name for name in names if not is_its_own(name)]
    return pytest.mark.skipif(bool(missing), reason=f"no program of its own here: {', '.join(missing)}")
