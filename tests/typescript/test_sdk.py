"""The SDK for JavaScript and TypeScript: its modules run as they are, in Node and in Deno, and are what their declarations say."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fronts.served import Served, serve_fake

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent / "js"
TSC = HERE / "node_modules" / ".bin" / "tsc"
DENO = shutil.which("deno") or os.path.join(os.path.dirname(sys.executable), "deno")
RUNTIMES = {
    "node": ["node"],
    "deno": [DENO, "run", "--quiet", "--no-lock", "--allow-env", "--allow-net", "--allow-read"],
}
pytestmark = [pytest.mark.once, pytest.mark.req("T4.83")]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_fake(str(tmp_path_factory.mktemp("data"))) as served:
        yield served


def run(runtime: str, module: Path, cache: Path, given: str = "", **environment: str) -> str:
    program = RUNTIMES[runtime]
    if shutil.which(program[0]) is None:
        pytest.skip(f"{runtime} is not installed")
    done = subprocess.run(
        [*program, str(module)],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={"PATH": os.environ["PATH"], "DENO_DIR": str(cache), "HOME": str(cache), "NO_COLOR": "1", **environment},
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)


def test_each_method_asks_for_the_operation_that_it_is_listed_for(tmp_path: Path) -> None:
    listed = tomllib.loads((ROOT / "docs" / "operations.toml").read_text())
    named = {key: entry.get("ts", entry["sdk"]).rpartition(".") for key, entry in listed.items() if "sdk" in entry}
    calls = [(camel(group), camel(name)) for group, _, name in named.values()]
    found = json.loads(run("node", HERE / "methods.mjs", tmp_path, json.dumps(calls)))
    for key, (group, _, name) in named.items():
        pattern = re.sub(r"\\{\w+\\}", ".+", re.escape(key))
        asked = found[f"{camel(group)}.{camel(name)}"]
        assert [one for one in asked if re.fullmatch(pattern, one)], (key, asked)


@pytest.mark.req("T3.72", "T4.27")
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_broken_connections_refusals_and_hostile_names(runtime: str, tmp_path: Path) -> None:
    assert run(runtime, HERE / "breaks.mjs", tmp_path) == "all well\n"


@pytest.mark.skipif(not TSC.exists(), reason="the TypeScript compiler is not installed: `scripts/setup --tests`")
@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
def test_a_typed_program_compiles_strictly_and_runs_in_both(served: Served, tmp_path: Path) -> None:
    compiled = subprocess.run(
        [TSC, "--project", HERE / "tsconfig.sdk.json", "--outDir", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert compiled.returncode == 0, compiled.stdout
    program = tmp_path / "sdk.mjs"
    # Types are gone; what is left finds the modules where they are.
    text = next(tmp_path.rglob("sdk.mjs")).read_text()
    program.write_text(re.sub(r"'[./]+/typescript/", f"'{ROOT}/typescript/", text))
    (tmp_path / "package.json").write_text('{"type": "module"}')
    for runtime in RUNTIMES:
        environment = {"COLDFRAME_URL": served.url, "COLDFRAME_TOKEN": served.owner_token}
        told = json.loads(run(runtime, program, tmp_path / "cache", **environment))
        assert told == {
            "label": "PUBLIC",
            "read": list(b"text"),
            "stdout": "hello\n",
            "code": 0,
            "shown": "hello\n",
            "back": [0, 255],
            "known": "never",
            "refused": "NOT_FOUND",
            "state": "terminated",
        }


def test_a_client_finds_the_installation_as_that_of_python_does(tmp_path: Path) -> None:
    module = tmp_path / "location.mjs"
    module.write_text(
        f"import {{ findLocation }} from '{ROOT}/typescript/location.js'\n"
        "console.log(JSON.stringify([findLocation(), findLocation('http://other:1/'), findLocation(undefined, 'mine')]))\n"
    )
    data = tmp_path / "data"
    (data / "control").mkdir(parents=True)
    (data / "control" / "client.json").write_text('{"url": "http://here:2/", "token": "of-the-file"}')
    told = json.loads(run("node", module, tmp_path, COLDFRAME_DATA_DIR=str(data)))
    assert told == [
        {"url": "http://here:2", "token": "of-the-file"},
        {"url": "http://other:1"},  # its token is for the address in the same file alone
        {"url": "http://here:2", "token": "mine"},
    ]
