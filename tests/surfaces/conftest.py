"""One sandbox for the tests of a file, and what does there what it is given: a program in JavaScript, and the command line."""

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from tests.installation import Installation

HERE = Path(__file__).parent
Script = Callable[..., Any]


@pytest.fixture(scope="session")
def script(installation: Installation) -> Script:
    """Runs `js/NAME.mjs`, with what it is given on its standard input, and returns what it writes."""

    def run(name: str, *, token: str | None = None, **given: object) -> Any:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": installation.home,
            "COLDFRAME_URL": installation.url,
            "COLDFRAME_TOKEN": token or installation.token,
        }
        done = subprocess.run(
            ["node", HERE / "js" / f"{name}.mjs"],
            input=json.dumps(given).encode(),
            capture_output=True,
            env=environment,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    if shutil.which("node") is None:
        pytest.skip("Node is not installed")
    return run


class Lines:
    """The command line, without the time that each process of it takes to begin."""

    def __init__(self, installation: Installation) -> None:
        environment = {
            **installation.environment,
            "COLDFRAME_URL": installation.url,
            "COLDFRAME_TOKEN": installation.token,
        }
        line = [sys.executable, "-m", "tests.surfaces.lines"]
        self._process = subprocess.Popen(
            line, cwd=installation.checkout, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __call__(self, *words: str, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:  # noqa: A002  as of a process
        assert self._process.stdin is not None and self._process.stdout is not None
        asked = {"words": words, "input": base64.b64encode(input).decode()}
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()
        told = json.loads(self._process.stdout.readline())
        out, err = (base64.b64decode(one) for one in told["streams"])
        return subprocess.CompletedProcess(words, told["code"], out, err)

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="session")
def cli(installation: Installation) -> Iterator[Lines]:
    lines = Lines(installation)
    yield lines
    lines.close()


@pytest.fixture(scope="module")
def client(installation: Installation) -> Iterator[SyncColdframe]:
    with SyncColdframe(installation.url, installation.token) as client:
        yield client


@pytest.fixture(scope="module")
def sandbox(client: SyncColdframe, request: pytest.FixtureRequest) -> Iterator[SyncSandbox]:
    with client.sandboxes.create(request.module.__name__.rpartition("_")[2] + "-surfaces") as made:
        yield made
