"""The workspace is where code is written, run, understood and put right: by an agent that has the six tools and no more.

The same scripted agent works through the SDK, through REST without our client, through the command line and over MCP.
"""

import base64
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from typing import Any, Protocol

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.policy import Role
from tests.installation import Installation
from tests.mcp.speaking import Raw, Server
from tests.promises.raw import all_entries, call, rest

SPEC = """import unittest
from slug import slug


class Spec(unittest.TestCase):
    def test_words(self):
        self.assertEqual(slug("Hello World"), "hello-world")

    def test_signs(self):
        self.assertEqual(slug("a, b & c"), "a-b-c")

    def test_empty(self):
        with self.assertRaises(ValueError):
            slug("!!!")


if __name__ == "__main__":
    unittest.main()
"""
FIRST = 'def slug(text):\n    return text.replace(" ", "-")\n'
FIXES = (
    # What the run printed, and what the agent then replaces by what.
    ("'Hello-World' != 'hello-world'", 'text.replace(" ", "-")', 'text.lower().replace(" ", "-")'),
    (
        "'a,-b-&-c' != 'a-b-c'",
        '    return text.lower().replace(" ", "-")',
        '    import re\n    return "-".join(re.findall(r"[a-z0-9]+", text.lower()))',
    ),
    (
        "ValueError not raised",
        '    return "-".join(re.findall(r"[a-z0-9]+", text.lower()))',
        (
            '    words = re.findall(r"[a-z0-9]+", text.lower())\n'
            "    if not words:\n        raise ValueError(text)\n"
            '    return "-".join(words)'
        ),
    ),
)


class Surface(Protocol):
    """The six tools, as one surface offers them."""

    def listed(self, path: str) -> list[str]: ...
    def read(self, path: str) -> str: ...
    def write(self, path: str, content: str) -> None: ...
    def edit(self, path: str, old: str, new: str) -> None: ...
    def search(self, pattern: str) -> list[str]: ...
    def run(self, *command: str) -> tuple[int, str]: ...


class BySdk:
    def __init__(self, sandbox: SyncSandbox) -> None:
        self._sandbox = sandbox

    def listed(self, path: str) -> list[str]:
        return [entry.path for entry in self._sandbox.list_directory(path).entries]

    def read(self, path: str) -> str:
        return self._sandbox.read_file(path).content or ""

    def write(self, path: str, content: str) -> None:
        self._sandbox.write_file(path, content)

    def edit(self, path: str, old: str, new: str) -> None:
        self._sandbox.edit_file(path, old, new)

    def search(self, pattern: str) -> list[str]:
        return [match.path for match in self._sandbox.search_files(pattern).matches]

    def run(self, *command: str) -> tuple[int, str]:
        answer = self._sandbox.run_command(command)
        assert answer.exit_code is not None
        return answer.exit_code, (answer.stdout or "") + (answer.stderr or "")


class ByRest:
    def __init__(self, installation: Installation, sandbox_id: str) -> None:
        self._installation, self._sandbox_id = installation, sandbox_id

    def _value(self, tool: str, **arguments: object) -> dict[str, Any]:
        answer = call(self._installation, self._sandbox_id, tool, arguments)
        assert answer.status == 200, answer.body
        value: dict[str, Any] = answer.json["value"]
        return value

    def listed(self, path: str) -> list[str]:
        return [entry["path"] for entry in self._value("list_directory", path=path)["entries"]]

    def read(self, path: str) -> str:
        return str(self._value("read_file", path=path)["content"])

    def write(self, path: str, content: str) -> None:
        self._value("write_file", path=path, content=content)

    def edit(self, path: str, old: str, new: str) -> None:
        self._value("edit_file", path=path, old=old, new=new)

    def search(self, pattern: str) -> list[str]:
        return [match["path"] for match in self._value("search_files", pattern=pattern)["matches"]]

    def run(self, *command: str) -> tuple[int, str]:
        value = self._value("run_command", command=command)
        return int(value["exit_code"]), value["stdout"] + value["stderr"]


class ByCommandLine:
    def __init__(self, installation: Installation, sandbox_id: str) -> None:
        self._installation, self._sandbox_id = installation, sandbox_id

    def _files(self, verb: str, *arguments: str, **options: Any) -> bytes:
        done = self._installation.cli("files", verb, self._sandbox_id, *arguments, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def listed(self, path: str) -> list[str]:
        return [entry["path"] for entry in json.loads(self._files("ls", path, "--json"))]

    def read(self, path: str) -> str:
        return self._files("cat", path).decode()

    def write(self, path: str, content: str) -> None:
        self._files("put", "-", path, input=content.encode())

    def edit(self, path: str, old: str, new: str) -> None:
        self._files("edit", path, "--", old, new)

    def search(self, pattern: str) -> list[str]:
        return [match["path"] for match in json.loads(self._files("search", pattern, "--json"))["matches"]]

    def run(self, *command: str) -> tuple[int, str]:
        done = self._installation.cli("exec", self._sandbox_id, "--", *command)
        return done.returncode, (done.stdout + done.stderr).decode()


class ByMcp:
    def __init__(self, installation: Installation, sandbox_id: str) -> None:
        self._client, self._sandbox_id = Raw(Server(installation.url, installation.token)), sandbox_id

    def _value(self, tool: str, **arguments: object) -> dict[str, Any]:
        return self._client.value(tool, sandbox_id=self._sandbox_id, **arguments)

    def listed(self, path: str) -> list[str]:
        return [entry["path"] for entry in self._value("list_directory", path=path)["entries"]]

    def read(self, path: str) -> str:
        return str(self._value("read_file", path=path)["content"])

    def write(self, path: str, content: str) -> None:
        self._value("write_file", path=path, content=content)

    def edit(self, path: str, old: str, new: str) -> None:
        self._value("edit_file", path=path, old=old, new=new)

    def search(self, pattern: str) -> list[str]:
        return [match["path"] for match in self._value("search_files", pattern=pattern)["matches"]]

    def run(self, *command: str) -> tuple[int, str]:
        value = self._value("run_command", command=command)
        return int(value["exit_code"]), value["stdout"] + value["stderr"]


SURFACES: dict[str, Callable[[Installation, SyncSandbox], Surface]] = {
    "sdk": lambda installation, sandbox: BySdk(sandbox),
    "rest": lambda installation, sandbox: ByRest(installation, sandbox.id),
    "cli": lambda installation, sandbox: ByCommandLine(installation, sandbox.id),
    "mcp": lambda installation, sandbox: ByMcp(installation, sandbox.id),
}


@pytest.mark.req("T1.01")
@pytest.mark.parametrize("surface", list(SURFACES))
def test_an_agent_works_from_a_failing_spec_to_a_passing_one(
    installation: Installation, client: SyncColdframe, sandbox: SyncSandbox, surface: str
) -> None:
    agent = SURFACES[surface](installation, sandbox)
    agent.write("project/test_slug.py", SPEC)
    assert agent.listed("project") == ["project/test_slug.py"]
    assert agent.search("from slug import") == ["project/test_slug.py"]
    assert "class Spec" in agent.read("project/test_slug.py")
    codes = []
    code, seen = agent.run("python3", "project/test_slug.py")
    codes.append(code)
    assert "No module named 'slug'" in seen
    agent.write("project/slug.py", FIRST)
    while (ran := agent.run("python3", "project/test_slug.py"))[0] != 0:
        codes.append(ran[0])
        assert len(codes) < 10
        old, new = next(
            (old, new) for sign, old, new in FIXES if sign in ran[1] and old in agent.read("project/slug.py")
        )
        agent.edit("project/slug.py", old, new)
    assert codes == [1, 1, 1, 1]
    tools = [entry.body["tool"] for entry in all_entries(client, kinds=["call.ended"], sandbox_id=sandbox.id)]
    assert set(tools) == {"write_file", "list_directory", "search_files", "read_file", "edit_file", "run_command"}
    assert (tools.count("run_command"), tools.count("edit_file")) == (5, 3)


@pytest.mark.req("T1.13")
def test_an_agents_tools_reach_its_own_workspace_only(
    installation: Installation, client: SyncColdframe, sandbox: SyncSandbox, agent_id: str
) -> None:
    sandbox.write_file("mine.txt", "canary-71c2\n")
    other = f"{agent_id}-other"
    with client.sandboxes.create(agent_id=other) as own:
        token, _ = client.tokens.create(Role.AGENT, "other", agent_id=other)
        attempts: dict[str, dict[str, object]] = {
            "list_directory": {"path": ""},
            "read_file": {"path": "mine.txt"},
            "write_file": {"path": "mine.txt", "content": "taken"},
            "edit_file": {"path": "mine.txt", "old": "canary", "new": "taken"},
            "search_files": {"pattern": "canary"},
            "run_command": {"command": "cat mine.txt"},
        }
        for tool, arguments in attempts.items():
            foreign = call(installation, sandbox.id, tool, arguments, token=token)
            assert (foreign.status, foreign.code) == (404, "NOT_FOUND"), tool
            mine = call(installation, own.id, tool, arguments, token=token)
            assert b"canary-71c2" not in mine.body, tool
        listed = rest(installation, "GET", "/v1/sandboxes", token=token).json
        assert [one["sandbox_id"] for one in listed] == [own.id]
    assert sandbox.read_file("mine.txt").content == "canary-71c2\n"


# Packages by each runtime's own tool. From a folder and a file: registries come with the egress broker, and with
# network `none` there is nothing to ask.


def wheel() -> bytes:
    """A wheel of one module, made by hand from the format's description."""
    files = {
        "greeting_cf.py": b"def greet():\n    return 'from a wheel'\n",
        "greeting_cf-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: greeting-cf\nVersion: 1.0\n",
        "greeting_cf-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in files.items()
    )
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr("greeting_cf-1.0.dist-info/RECORD", record + "greeting_cf-1.0.dist-info/RECORD,,\n")
    return content.getvalue()


def npm_package() -> bytes:
    manifest = {
        "name": "greeter-cf",
        "version": "1.0.0",
        "main": "index.js",
        "scripts": {"install": "node -e \"require('fs').writeFileSync('built.txt', 'built')\""},
    }
    files = {
        "package/package.json": json.dumps(manifest).encode(),
        "package/index.js": b"module.exports = () => 'from a tarball, ' + require('fs').readFileSync(__dirname + '/built.txt')\n",
    }
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return content.getvalue()


def need(sandbox: SyncSandbox, *probe: str) -> None:
    done = sandbox.run_command(probe)
    if done.exit_code != 0:
        pytest.skip(
            f"`{' '.join(probe)}` ends with {done.exit_code} on this machine: {done.stderr or done.start_error}"
        )


USE_GREETING = "import greeting_cf; print(greeting_cf.greet())"


@pytest.mark.req("T1.77")
def test_pip_installs_a_wheel_into_a_directory(sandbox: SyncSandbox) -> None:
    need(sandbox, "python3", "-m", "pip", "--version")
    sandbox.upload("wheels/greeting_cf-1.0-py3-none-any.whl", wheel())
    done = sandbox.run_command("python3 -m pip install --no-index --find-links wheels --target site greeting-cf")
    assert done.exit_code == 0, done.stderr
    ran = sandbox.run_command(["python3", "-c", USE_GREETING], env={"PYTHONPATH": "site"})
    assert ran.stdout == "from a wheel\n"


@pytest.mark.req("T1.77")
def test_pip_of_an_environment_installs_a_wheel(sandbox: SyncSandbox) -> None:
    need(sandbox, "python3", "-m", "venv", "env")
    sandbox.upload("wheels/greeting_cf-1.0-py3-none-any.whl", wheel())
    done = sandbox.run_command("env/bin/pip install --no-index --find-links wheels greeting-cf")
    assert done.exit_code == 0, done.stderr
    assert sandbox.run_command(["env/bin/python", "-c", USE_GREETING]).stdout == "from a wheel\n"
    assert sandbox.run_command("env/bin/pip uninstall -y greeting-cf").exit_code == 0
    assert sandbox.run_command(["env/bin/python", "-c", USE_GREETING]).exit_code == 1


@pytest.mark.req("T1.77")
def test_npm_installs_a_package_and_runs_its_install_script(sandbox: SyncSandbox) -> None:
    need(sandbox, "npm", "--version")
    sandbox.upload("greeter-cf-1.0.0.tgz", npm_package())
    sandbox.write_file("package.json", '{"name": "app", "private": true}')
    done = sandbox.run_command("npm install --offline --no-audit --no-fund ./greeter-cf-1.0.0.tgz")
    assert done.exit_code == 0, done.stderr
    ran = sandbox.run_command(["node", "-p", "require('greeter-cf')()"])
    assert ran.stdout == "from a tarball, built\n", ran.stderr


@pytest.mark.req("T1.77")
def test_deno_imports_a_module_of_the_workspace(sandbox: SyncSandbox) -> None:
    need(sandbox, "deno", "--version")
    sandbox.write_file("lib/greeter.ts", "export const greet = (name: string): string => `hello ${name}`;\n")
    sandbox.write_file("deno.json", '{"imports": {"greeter": "./lib/greeter.ts"}}')
    sandbox.write_file("main.ts", "import { greet } from 'greeter';\nconsole.log(greet('deno'));\n")
    done = sandbox.run_command(["deno", "run", "main.ts"])
    assert (done.exit_code, done.stdout) == (0, "hello deno\n"), done.stderr
