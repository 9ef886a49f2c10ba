"""Real packages from the real registries, through the broker, in a real box: where they can be reached, else skipped.

Which they are is what the clients of this machine are set to, so no name of a host stands here.
"""

import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable

import pytest

from coldframe.contract.network import NetworkAccess, NetworkPackage
from coldframe.contract.policy import Label, Role
from coldframe.contract.sandbox import SandboxSpec
from coldframe.host.machine import Machine
from coldframe.host.registries import read_registry_settings
from coldframe.policy.network_rules import PackageKind
from tests.host.egress.packaged import find_program
from tests.host.machines import Outcome, needs_bubblewrap, on_a_machine, run
from tests.host.test_packages import packages_of

PATIENCE_S = 100
RULES = "version: 1\nnetwork:\n  use: {'*': packages}\n"
Run = Callable[[str], Awaitable[Outcome]]


def reason_not_to(kind: PackageKind) -> str:
    """Why no registry of the kind can be asked; empty if it can."""
    settings = read_registry_settings(os.environ, os.path.expanduser("~"))
    found = [one for one in settings.all if one.kind is kind]
    if not found:
        return f"the clients of this machine have no registry for {kind} that boxes can be given"
    package = {PackageKind.PYTHON: "six/", PackageKind.NPM: "esbuild", PackageKind.DEBIAN: ""}[kind]
    try:
        with urllib.request.urlopen(found[0].address + package, timeout=10):
            return ""
    except (OSError, urllib.error.URLError) as error:
        return f"the registry for {kind} cannot be reached from here: {error}"


def in_a_real_box(steps: Callable[[Run], Awaitable[None]]) -> list[NetworkPackage]:
    """What was handed over meanwhile."""
    found: list[NetworkPackage] = []

    async def whole(machine: Machine) -> None:
        await machine.use_network_rules(RULES)
        access = NetworkAccess(asked=None, role=Role.AGENT, taint=Label.PUBLIC)
        await machine.create("box", SandboxSpec(agent_id="agent"), session_id="session", network=access)
        box = await machine.box("box")
        await steps(lambda shell: run(box, shell, timeout_s=PATIENCE_S - 10, patience_s=PATIENCE_S))
        found.extend(packages_of((await machine.network_records("box", limit=100_000)).records))

    on_a_machine(whole)
    return found


def needs(kind: PackageKind, program: str) -> None:
    reason = f"{program} is not installed" if find_program(program) is None else reason_not_to(kind)
    if reason:
        print(reason)
        pytest.skip(reason)


@needs_bubblewrap
@pytest.mark.req("T1.59", "T1.06")
def test_numpy_is_installed_by_wheel_and_a_small_package_is_built_from_its_source() -> None:
    needs(PackageKind.PYTHON, "pip")

    async def steps(run: Run) -> None:
        done = await run("pip install numpy 2>&1")
        assert done.result.exit_code == 0, done.stdout
        done = await run("python3 -c 'import numpy; print(numpy.arange(4).sum())'")
        assert done.stdout == "6\n", done
        done = await run("pip install --no-binary markupsafe markupsafe 2>&1")
        assert done.result.exit_code == 0, done.stdout
        done = await run("python3 -c 'import markupsafe; print(markupsafe.escape(\"<\"))'")
        assert done.stdout == "&lt;\n", done

    found = in_a_real_box(steps)
    files = [one.file for one in found]
    assert any(one.startswith("numpy-") and one.endswith(".whl") for one in files)
    assert any(one.lower().startswith("markupsafe-") and one.endswith(".tar.gz") for one in files)
    assert all(one.version and one.digest.startswith("sha256:") for one in found if one.file)


@needs_bubblewrap
@pytest.mark.req("T1.58", "T1.06")
def test_npm_installs_a_package_whose_install_script_runs() -> None:
    needs(PackageKind.NPM, "npm")

    async def steps(run: Run) -> None:
        begin = "mkdir app && cd app && npm init -y >/dev/null && npm install esbuild 2>&1"
        done = await run(f"{begin} && echo 'let a: number = 1' | npx esbuild --loader=ts")
        assert done.result.exit_code == 0 and "let a = 1;" in done.stdout, done.stdout
        done = await run("cd app && rm -rf node_modules ~/.npm && npm ci 2>&1 && npx esbuild --version")
        assert done.result.exit_code == 0, done.stdout

    found = in_a_real_box(steps)
    assert {"registry", "cache"} <= {one.source for one in found}
    assert all(one.digest.startswith("sha512:") for one in found if one.file)


@needs_bubblewrap
@pytest.mark.req("T4.18")
def test_a_whole_application_is_installed_by_its_lock_and_a_binary_is_checked_by_its_digest_and_run() -> None:
    needs(PackageKind.NPM, "npm")

    async def steps(run: Run) -> None:
        begin = "mkdir app && cd app && npm init -y >/dev/null && npm install express@4 @esbuild/linux-x64@0.21 2>&1"
        done = await run(begin)
        assert done.result.exit_code == 0, done.stdout
        done = await run("cd app && rm -rf node_modules ~/.npm && npm ci 2>&1")
        assert done.result.exit_code == 0, done.stdout
        serve = "require('express')().get('/', (_, a) => a.send('hi')).listen(8080, '127.0.0.1', async () => {"
        ask = "console.log(await (await fetch('http://127.0.0.1:8080/')).text()); process.exit() })"
        done = await run(f'cd app && node -e "{serve}{ask}"')
        assert done.stdout == "hi\n", done
        # As a file of its own, the digest of which is in the lock.
        digest = "require('crypto').createHash('sha512').update(require('fs').readFileSync(process.argv[1])).digest('base64')"
        locked = "require('./package-lock.json').packages['node_modules/@esbuild/linux-x64'].integrity"
        done = await run(
            "cd app && packed=$(npm pack @esbuild/linux-x64@$(node -p \"require('@esbuild/linux-x64/package.json').version\"))"
            f' && test "sha512-$(node -p "{digest}" $packed)" = "$(node -p "{locked}")"'
            " && tar xf $packed && echo 'let a: number = 1' | ./package/bin/esbuild --loader=ts"
        )
        assert done.result.exit_code == 0 and "let a = 1;" in done.stdout, done

    found = in_a_real_box(steps)
    assert len({one.name for one in found if one.file}) >= 20
    assert all(one.digest.startswith("sha512:") for one in found if one.file)


@needs_bubblewrap
@pytest.mark.req("T1.60", "T1.06")
def test_deno_adds_a_package_and_uses_it() -> None:
    needs(PackageKind.NPM, "deno")

    async def steps(run: Run) -> None:
        test = "import pad from 'left-pad'; Deno.test('it', () => { if (pad('1', 3, '0') !== '001') throw 1; });"
        begin = f"mkdir d && cd d && echo '{{}}' > deno.json && deno add npm:left-pad && echo \"{test}\" > it_test.ts"
        done = await run(f"{begin} && deno test 2>&1")
        assert done.result.exit_code == 0 and "1 passed" in done.stdout, done.stdout

    assert [one.name for one in in_a_real_box(steps) if one.file] == ["left-pad"]


if shutil.which("node") is None:
    del test_npm_installs_a_package_whose_install_script_runs
    del test_a_whole_application_is_installed_by_its_lock_and_a_binary_is_checked_by_its_digest_and_run
