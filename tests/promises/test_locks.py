"""A lock of production is followed to the letter: its versions, its digests, and what is told where it cannot be."""

import base64
import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from tests.installation import Installation
from tests.promises.test_diagnoses import PORT, REGISTRY

APPLICATION = 24
"""Packages that the application for Node has, a second version of one of them included."""

NPM_SETTINGS = f"registry=http://127.0.0.1:{PORT}/\naudit=false\nfund=false\nupdate-notifier=false\nfetch-retries=0\n"
"""Without retries: what has other bytes would be asked for again, with pauses of a minute."""


def wheel(name: str, version: str, requires: str = "") -> bytes:
    content, folder = io.BytesIO(), f"{name}-{version}.dist-info"
    with zipfile.ZipFile(content, "w") as packed:
        packed.writestr(zipfile.ZipInfo(f"{name}.py"), f"version = '{version}'\n")
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        metadata += f"Requires-Dist: {requires}\n" if requires else ""
        packed.writestr(zipfile.ZipInfo(f"{folder}/METADATA"), metadata)
        told = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        packed.writestr(zipfile.ZipInfo(f"{folder}/WHEEL"), told)
        packed.writestr(zipfile.ZipInfo(f"{folder}/RECORD"), "")
    return content.getvalue()


def tarball(manifest: dict[str, Any]) -> bytes:
    content = io.BytesIO()
    code = f"module.exports = '{manifest['name']} {manifest['version']}'\n"
    with tarfile.open(fileobj=content, mode="w") as packed:
        for name, text in (("package.json", json.dumps(manifest)), ("index.js", code)):
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(text)
            packed.addfile(member, io.BytesIO(text.encode()))
    return gzip.compress(content.getvalue(), mtime=0)  # the same bytes at any time


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Compare:
    """`coldframe env compare` of a lock that is written on the user's side."""

    def __init__(self, installation: Installation, sandbox: SyncSandbox, path: Path) -> None:
        self._installation = installation
        self._sandbox = sandbox
        self._path = path

    def __call__(self, lock: str) -> list[dict[str, str]]:
        self._path.write_text(lock)
        done = self._installation.cli("--json", "env", "compare", str(self._path), self._sandbox.id)
        lines: list[dict[str, str]] = json.loads(done.stdout)
        assert done.returncode == (1 if lines else 0), done
        return lines


@pytest.fixture
def sandbox(client: SyncColdframe, agent_id: str) -> Iterator[SyncSandbox]:
    with client.sandboxes.create(agent_id) as sandbox:
        yield sandbox


@pytest.mark.req("T4.19")
def test_a_lock_of_python_is_followed_with_its_digests_and_no_other_version_comes(
    installation: Installation, sandbox: SyncSandbox, tmp_path: Path
) -> None:
    if sandbox.run_command("python3 -m pip --version").exit_code != 0:
        pytest.skip("there is no pip on this machine")
    compare = Compare(installation, sandbox, tmp_path / "production.lock")
    wheels = {(name, version): wheel(name, version) for name in ("lefta", "leftb") for version in ("1.0", "1.1", "1.2")}
    wheels["leftc", "2.0"] = wheel("leftc", "2.0", requires="lefta")
    for (name, version), data in wheels.items():
        sandbox.upload(f"wheels/{name}-{version}-py3-none-any.whl", data)

    def lock(**versions: str) -> str:
        lines = [
            f"{name}=={version} \\\n    --hash=sha256:{sha256(wheels.get((name, version), b''))}\n"
            for name, version in versions.items()
        ]
        return "# of production\n" + "".join(lines)

    pip = "python3 -m pip --python .venv/bin/python install --no-index --find-links wheels --disable-pip-version-check"
    made = sandbox.run_command("python3 -m venv --without-pip .venv")
    assert made.exit_code == 0, made
    wanted = lock(lefta="1.1", leftb="1.0", leftc="2.0")
    sandbox.write_file("production.lock", wanted)
    done = sandbox.run_command(f"{pip} -r production.lock")
    assert done.exit_code == 0, done
    assert compare(wanted) == []
    line = {"manager": "pip", "name": "leftb", "locked": "1.2", "installed": "1.0"}
    assert compare(lock(lefta="1.1", leftb="1.2", leftc="2.0")) == [line]
    # Other bytes under the same name and version are refused, and what is there stays.
    sandbox.upload("wheels/leftb-1.2-py3-none-any.whl", wheels["leftb", "1.2"] + b"\0")
    sandbox.write_file("production.lock", lock(lefta="1.1", leftb="1.2", leftc="2.0"))
    refused = sandbox.run_command(f"{pip} -r production.lock")
    assert refused.exit_code != 0 and "DO NOT MATCH THE HASHES" in (refused.stderr or ""), refused
    assert compare(wanted) == []
    # A version that is not to be had is told with those next to it, and none comes in its place.
    sandbox.write_file("production.lock", lock(lefta="1.1", leftb="1.1.5", leftc="2.0"))
    missing = sandbox.run_command(f"{pip} -r production.lock")
    assert missing.exit_code != 0 and missing.diagnosis is not None, missing
    assert (missing.diagnosis.code, missing.diagnosis.wanted) == ("DEPENDENCY_MISSING", "leftb==1.1.5")
    assert missing.diagnosis.nearest == ("1.0", "1.1", "1.2")
    assert missing.diagnosis.suggested_action.args["command"][-1] == "leftb==1.1"
    assert compare(wanted) == []


@pytest.mark.req("T4.18", "T4.19")
def test_a_whole_application_of_node_is_installed_as_its_lock_says(
    installation: Installation, sandbox: SyncSandbox, tmp_path: Path
) -> None:
    if sandbox.run_command("npm --version").exit_code != 0:
        pytest.skip("npm is not on this machine")
    compare = Compare(installation, sandbox, tmp_path / "package-lock.json")
    packages = application()
    for manifest in packages.values():
        name, version = manifest["name"], manifest["version"]
        sandbox.upload(f"registry/{name}-{version}.tgz", tarball(manifest))
    for name in {one["name"] for one in packages.values()}:
        known = {
            one["version"]: {
                **one,
                "dist": {
                    "tarball": f"http://127.0.0.1:{PORT}/{name}-{one['version']}.tgz",
                    "integrity": integrity(one),
                },
            }
            for one in packages.values()
            if one["name"] == name
        }
        told = {"name": name, "dist-tags": {"latest": max(known)}, "versions": known}
        sandbox.write_file(f"registry/{name}", json.dumps(told))
    sandbox.write_file("registry.py", REGISTRY)
    sandbox.write_file(".npmrc", NPM_SETTINGS)
    lock = lock_of(packages)
    sandbox.write_file("package.json", json.dumps(lock["packages"][""]))
    sandbox.write_file("package-lock.json", json.dumps(lock))
    serving = sandbox.start(["python3", "registry.py"])
    serves = "until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 4873))' 2>/dev/null; do sleep 0.1; done"
    assert sandbox.run_command(serves, timeout_s=60).exit_code == 0
    done = sandbox.run_command("npm ci", timeout_s=200)
    assert done.exit_code == 0, done
    ran = sandbox.run_command("node -p \"require('part1') + ', ' + require('part22')\"")
    assert ran.stdout == "part1 2.0.0, part22 1.0.22\n", ran
    rows = [one for one in sandbox.packages().packages if one.manager == "npm" and one.installed is not None]
    assert len(rows) == APPLICATION and {one.command_id for one in rows} == {done.command_id}
    assert compare(json.dumps(lock)) == []
    packages["node_modules/part7"]["version"] = "1.0.8"
    line = {"manager": "npm", "name": "part7", "locked": "1.0.8", "installed": "1.0.7"}
    assert compare(json.dumps(lock_of(packages))) == [line]
    # Other bytes under the same name and version are refused.
    sandbox.run_command("rm -rf node_modules .npm")
    sandbox.upload("registry/part7-1.0.7.tgz", tarball({"name": "part7", "version": "1.0.7", "other": True}))
    refused = sandbox.run_command("npm ci", timeout_s=200)
    assert refused.exit_code != 0 and "EINTEGRITY" in (refused.stderr or ""), refused
    missing = sandbox.run_command("npm install part3@9.9.9", timeout_s=200)
    assert missing.diagnosis is not None, missing
    assert (missing.diagnosis.ecosystem, missing.diagnosis.name, missing.diagnosis.wanted) == (
        *("node_version", "part3"),
        "9.9.9",
    )
    serving.cancel()


def application() -> dict[str, dict[str, Any]]:
    """By where each lies: a chain of parts, and one of them in two versions."""
    found: dict[str, dict[str, Any]] = {}
    for number in range(2, APPLICATION):
        manifest: dict[str, Any] = {"name": f"part{number}", "version": f"1.0.{number}", "main": "index.js"}
        if number + 1 < APPLICATION:
            manifest["dependencies"] = {f"part{number + 1}": f"1.0.{number + 1}"}
        found[f"node_modules/part{number}"] = manifest
    found["node_modules/part1"] = {"name": "part1", "version": "2.0.0", "main": "index.js"}
    found["node_modules/part2"]["dependencies"]["part1"] = "1.0.0"
    found["node_modules/part2/node_modules/part1"] = {"name": "part1", "version": "1.0.0", "main": "index.js"}
    return found


def integrity(manifest: dict[str, Any]) -> str:
    return f"sha512-{base64.b64encode(hashlib.sha512(tarball(manifest)).digest()).decode()}"


def lock_of(packages: dict[str, dict[str, Any]]) -> dict[str, Any]:
    top = {"name": "application", "version": "1.0.0", "dependencies": {"part1": "2.0.0", "part2": "1.0.2"}}
    locked = {
        place: {
            "version": one["version"],
            "resolved": f"http://127.0.0.1:{PORT}/{one['name']}-{one['version']}.tgz",
            "integrity": integrity(one),
            **({"dependencies": one["dependencies"]} if "dependencies" in one else {}),
        }
        for place, one in sorted(packages.items())
    }
    return {"name": "application", "version": "1.0.0", "lockfileVersion": 3, "packages": {"": top, **locked}}
