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
from tests import ordinary
from tests.installation import Installation
from tests.promises.raw import own_installation

UNREACHED = ("Could not resolve", "Could not connect", "Unable to connect")


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
    if os.geteuid() != 0 and (reason := ordinary.why_not()):
        pytest.skip(f"this user can build no template: {reason}")
    said: list[str] = []
    try:
        return Templates(str(data)).build_debian(log=said.append)
    except Unavailable as error:
        if any(sign in line for line in said for sign in UNREACHED):
            pytest.skip(f"the package sources of this host cannot be reached: {error}")
        raise


@pytest.fixture(scope="package", params=["root", "ordinary user"])
def installed(request: pytest.FixtureRequest) -> Iterator[Installation]:
    """Both have to hold the same. An ordinary user's template is built by `coldframe setup`, as that user."""
    if request.param == "root":
        if os.geteuid() != 0:
            pytest.skip("needs root")
        template: Template = request.getfixturevalue("template")
        with own_installation() as started:
            place = Path(started.data_dir, "templates")
            place.mkdir(mode=0o711, exist_ok=True)
            subprocess.run(["cp", "-al", os.path.dirname(template.root), str(place)], check=True)
            yield started
            started.end_sandboxes()
            subprocess.run(["rm", "-rf", str(place)], check=True)  # much faster than the removal of what agents made
        return
    if reason := ordinary.why_not():
        pytest.skip(f"no ordinary user with subordinate ids can be had: {reason}")
    if shutil.which(debian.PROGRAM) is None:
        pytest.skip(f"{debian.PROGRAM} is not installed")
    with ordinary.ordinary_installation() as started:
        started.start()
        built = started.cli("--json", "setup", "--data-dir", started.data_dir, timeout_s=800)
        if built.returncode != 0 and any(sign.encode() in built.stderr for sign in UNREACHED):
            pytest.skip("the package sources of this host cannot be reached")
        assert built.returncode == 0, built
        yield started
        started.end_sandboxes()
        subprocess.run(["rm", "-rf", str(Path(started.data_dir, "templates"))], check=os.geteuid() == 0)
