"""Native runtimes of the machine, found in one call and chosen by name."""

import pytest

from coldframe.client.sync import SyncSandbox
from coldframe.contract.errors import ColdframeError


@pytest.fixture
def present(sandbox: SyncSandbox) -> set[str]:
    return {runtime.name for runtime in sandbox.runtimes() if runtime.present}


def need(present: set[str], name: str) -> None:
    if name not in present:
        pytest.skip(f"{name} is not installed on this machine")


@pytest.mark.req("T1.70")
def test_programs_run_natively_and_the_contract_says_in_what(sandbox: SyncSandbox) -> None:
    script = "import ctypes, os; print(ctypes.CDLL(None).getpid() == os.getpid(), os.uname().release)"
    with open("/proc/sys/kernel/osrelease", encoding="ascii") as release:
        kernel = release.read().strip()
    assert sandbox.run_command(["python3", "-c", script]).stdout == f"True {kernel}\n"
    isolation = {line["id"]: line["value"] for line in sandbox.contract()["isolation"]}
    assert "namespaces" in str(isolation)
    assert "shared" in str(isolation)


@pytest.mark.req("T1.71")
def test_deno_runs_typescript_without_shell_or_configuration(sandbox: SyncSandbox, present: set[str]) -> None:
    need(present, "deno")
    sandbox.write_file("main.ts", "const n: number = 41;\nconsole.log(n + 1);\n")
    answer = sandbox.run_command(["deno", "run", "main.ts"])
    assert (answer.exit_code, answer.stdout) == (0, "42\n"), answer.stderr
    sandbox.write_file("wrong.ts", "const n: number = 'text';\n")
    wrong = sandbox.run_command(["deno", "check", "wrong.ts"])
    assert wrong.exit_code != 0
    assert "not assignable" in (wrong.stderr or "")


@pytest.mark.req("T1.72")
def test_node_runs_both_kinds_of_module(sandbox: SyncSandbox, present: set[str]) -> None:
    need(present, "node")
    sandbox.write_file("node_modules/greeter/package.json", '{"name": "greeter", "main": "index.js"}')
    sandbox.write_file("node_modules/greeter/index.js", "module.exports = () => 'hello'\n")
    sandbox.write_file("esm.mjs", "import greet from 'greeter'\nconsole.log(greet(), 'esm')\n")
    sandbox.write_file("cjs.cjs", "console.log(require('greeter')(), 'cjs')\n")
    assert sandbox.run_command("node esm.mjs && node cjs.cjs").stdout == "hello esm\nhello cjs\n"


@pytest.mark.req("T1.73")
def test_python_runs_scripts_modules_and_environments(sandbox: SyncSandbox) -> None:
    sandbox.write_file("pkg/__main__.py", "print('module')\n")
    sandbox.write_file("script.py", "print('script')\n")
    answer = sandbox.run_command(
        "python script.py && python3 -m pkg && python3 -m venv --without-pip v && v/bin/python -c 'import sys; print(sys.prefix)'"
    )
    assert answer.stdout == "script\nmodule\n/home/user/v\n", answer.stderr


@pytest.mark.req("T1.74")
def test_sh_and_bash_both_run(sandbox: SyncSandbox) -> None:
    assert sandbox.run_command(["sh", "-c", "echo $0"]).stdout == "sh\n"
    assert sandbox.run_command(["bash", "-c", "a=(1 2 3); echo ${a[@]:1} <(true)"]).stdout.startswith("2 3 /dev/fd/")  # type: ignore[union-attr]


@pytest.mark.req("T1.75")
def test_one_call_lists_every_runtime(sandbox: SyncSandbox) -> None:
    runtimes = {runtime.name: runtime for runtime in sandbox.runtimes()}
    assert {"python3", "node", "deno", "bash", "sh", "ruby"} <= set(runtimes)
    python = runtimes["python3"]
    assert python.present
    assert python.allowed
    assert python.path == sandbox.run_command("command -v python3").stdout.strip()  # type: ignore[union-attr]
    assert python.version in sandbox.run_command("python3 --version").stdout  # type: ignore[operator]
    for runtime in runtimes.values():
        found = sandbox.run_command(["sh", "-c", f"command -v {runtime.name}"]).exit_code == 0
        assert runtime.present == found


@pytest.mark.req("T4.22")
def test_what_is_there_is_told_with_version_and_manager_and_what_is_not_with_how_to_get_it(
    sandbox: SyncSandbox,
) -> None:
    place = "/home/user/.local/bin"
    path = (sandbox.run_command("echo $PATH").stdout or "").strip().split(":")
    planted = place in path
    if planted:  # somebody inside may have changed it, so nobody starts it to look
        sandbox.write_file(".local/bin/uv", "#!/bin/sh\ntouch /home/user/ran\necho uv 9.8.7\n")
        sandbox.run_command(f"chmod +x {place}/uv")
    found = {one.name: one for one in sandbox.runtimes()}
    wanted = {"python3", "pip", "uv", "node", "npm", "pnpm", "deno", "gcc", "cc", "make", "sh", "bash", "apt-get"}
    assert wanted <= set(found)
    assert "ran" not in {one.name for one in sandbox.list_directory().entries}
    for one in found.values():
        assert (one.code == "NOT_AVAILABLE") is not one.present
        assert one.recipe is None or not one.present
    assert found["python3"].recipe is None and found["python3"].version is not None
    for name in ("node", "gcc", "ruby"):
        if not found[name].present:
            assert "apt-get install" in (found[name].recipe or "")
    measured = {one.name: one for one in sandbox.runtimes(measure=True)}
    if planted:
        assert (found["uv"].version, measured["uv"].version) == (None, "9.8.7")
    assert measured["python3"].version == found["python3"].version


@pytest.mark.req("T1.76")
def test_a_runtime_is_chosen_by_name_and_recorded(sandbox: SyncSandbox) -> None:
    answer = sandbox.run_command(["-c", "print('chosen')"], runtime="python")
    assert answer.stdout == "chosen\n"
    assert '"runtime":"python"' in (sandbox.read_file(".exec_history").content or "").replace(" ", "")
    with pytest.raises(ColdframeError):
        sandbox.run_command(["x"], runtime="cobol")
