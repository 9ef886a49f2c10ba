"""The TypeScript types are those of the API: a program compiles against them, strictly, and what it was promised comes."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fronts.served import Served, serve_fake

HERE = Path(__file__).parent / "js"
TSC = HERE / "node_modules" / ".bin" / "tsc"
pytestmark = [
    pytest.mark.once,
    pytest.mark.req("T4.83"),
    pytest.mark.skipif(not TSC.exists(), reason="the TypeScript compiler is not installed: `scripts/setup --tests`"),
    pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed"),
]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serve_fake(str(tmp_path / "data")) as served:
        yield served


def test_a_program_compiles_against_them_and_gets_what_they_say(served: Served, tmp_path: Path) -> None:
    out = tmp_path / "out"
    compiled = subprocess.run(
        [TSC, "--project", HERE, "--outDir", out], capture_output=True, text=True, check=False, timeout=100
    )
    assert compiled.returncode == 0, compiled.stdout
    (out / "node_modules").symlink_to(HERE / "node_modules")
    (out / "package.json").write_text('{"type": "module"}')
    environment = {"PATH": os.environ["PATH"], "COLDFRAME_URL": served.url, "COLDFRAME_TOKEN": served.owner_token}
    ran = subprocess.run(
        ["node", next(out.rglob("use.mjs"))], capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert (told["state"], told["label"], told["code"]) == ("running", "PUBLIC", "NOT_FOUND")
    assert "command_id" in told["value"]
