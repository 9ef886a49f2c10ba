"""One base system for all tests of systems, built by the real program from the real package sources of this host."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldframe.contract.errors import Unavailable
from coldframe.host.templates import debian
from coldframe.host.templates.store import Template, Templates

_UNREACHED = ("Could not resolve", "Could not connect", "Unable to connect")


@pytest.fixture(scope="session")
def data() -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix="cf-templates-")
    os.chmod(folder, 0o711)
    yield Path(folder)
    subprocess.run(["rm", "-rf", folder], check=True)  # ten thousand files: much faster than in Python


@pytest.fixture(scope="session")
def template(data: Path) -> Template:
    if shutil.which(debian.PROGRAM) is None:
        pytest.skip(f"{debian.PROGRAM} is not installed")
    said: list[str] = []
    try:
        return Templates(str(data)).build_debian(log=said.append)
    except Unavailable as error:
        if any(sign in line for line in said for sign in _UNREACHED):
            pytest.skip(f"the package sources of this host cannot be reached: {error}")
        raise
