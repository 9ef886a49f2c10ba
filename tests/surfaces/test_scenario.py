"""The life of a sandbox in twenty-five steps, by every surface: each gives the same answers, and leaves the same behind."""

import asyncio
import base64
import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest

from coldframe.client.api import Coldframe
from coldframe.client.sync import SyncColdframe
from coldframe.contract.errors import ColdframeError
from tests.installation import Installation
from tests.promises.raw import rest
from tests.surfaces.conftest import Lines, Script

pytestmark = pytest.mark.req("T4.83")
STEPS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("create", {}),
    ("write", {"path": "src/app.py", "content": "print('one')\n"}),
    ("write", {"path": "notes.txt", "content": "a\nb\n"}),
    ("run", {"command": "python3 src/app.py"}),
    ("edit", {"path": "src/app.py", "old": "one", "new": "two"}),
    ("run", {"command": "python3 src/app.py; echo failed >&2; exit 4"}),
    ("edit", {"path": "src/app.py", "old": "absent", "new": "x"}),
    ("read", {"path": "src/app.py"}),
    ("read", {"path": "no-such-file"}),
    ("list", {"path": ""}),
    ("search", {"pattern": "two"}),
    ("upload", {"path": "data.bin", "content_base64": base64.b64encode(bytes(range(256))).decode()}),
    ("download", {"path": "data.bin"}),
    ("snapshot", {"name": "before"}),
    ("remove", {"path": "notes.txt"}),
    ("remove", {"path": "src"}),
    ("start", {"command": "echo begun; sleep 100"}),
    ("cancel", {}),
    ("reset", {}),
    ("list", {"path": ""}),
    ("pause", {}),
    ("resume", {}),
    ("stop", {}),
    ("run", {"command": "true"}),
    ("terminate", {}),
)
"""What is asked for. `cancel` is about what was started, `reset` about what was taken."""
Told = list[Any]


class Rest:
    """Without any client: what the API itself answers."""

    def __init__(self, installation: Installation, script: Script, cli: Lines) -> None:
        self._installation = installation
        self.sandbox_id = ""
        self._job = self._snapshot = ""

    def _ask(self, method: str, path: str, payload: object = None, **headers: str) -> Any:
        answer = rest(self._installation, method, path, payload, **headers)
        if answer.code is not None:
            raise ColdframeError(answer.code)
        return answer

    def _tool(self, tool: str, **arguments: object) -> Any:
        return self._ask("POST", f"/v1/sandboxes/{self.sandbox_id}/tools/{tool}", arguments).json["value"]

    def step(self, name: str, given: dict[str, Any], agent: str) -> Any:
        one = f"/v1/sandboxes/{self.sandbox_id}"
        if name == "create":
            made = self._ask("POST", "/v1/sandboxes", {"agent_id": agent}).json
            self.sandbox_id = made["sandbox_id"]
            return made["state"]["state"]
        if name == "write":
            return self._tool("write_file", **given)["sha256"]
        if name == "edit":
            return self._tool("edit_file", **given)["sha256"]
        if name == "run":
            ran = self._tool("run_command", **given)
            return [ran["exit_code"], ran["stdout"], ran["stderr"]]
        if name == "read":
            return self._tool("read_file", **given)["content"]
        if name == "list":
            return sorted(entry["path"] for entry in self._tool("list_directory", **given)["entries"])
        if name == "search":
            return [[match["path"], match["line"]] for match in self._tool("search_files", **given)["matches"]]
        if name == "upload":
            content = base64.b64decode(given["content_base64"])
            return self._ask("PUT", f"{one}/files/{given['path']}", content).json["value"]["sha256"]
        if name == "download":
            return self._ask("GET", f"{one}/files/{given['path']}").body.hex()
        if name == "snapshot":
            self._snapshot = self._ask("POST", f"{one}/snapshots", given).json["snapshot_id"]
            return "taken"
        if name == "remove":
            self._ask("DELETE", f"{one}/files/{given['path']}")
            return "removed"
        if name == "start":
            self._job = self._tool("run_command", background=True, **given)["command_id"]
            return "started"
        if name == "cancel":
            self._ask("POST", f"{one}/commands/{self._job}/signal", {"cancel": True})
            ended = self._ask("GET", f"{one}/commands/{self._job}?wait_s=30").json
            return [ended["result"]["cancelled"], ended["status"]["code"]]
        if name == "reset":
            return self._ask("POST", f"{one}/reset", {"to": self._snapshot}).json["state"]["state"]
        if name == "terminate":
            return self._ask("DELETE", one).json["state"]["state"]
        return self._ask("POST", f"{one}/{name}", {} if name == "pause" else None).json["state"]["state"]


class Python:
    """Either client: what the one without blocking gives is waited for."""

    make: Callable[..., Any] = SyncColdframe

    def __init__(self, installation: Installation, script: Script, cli: Lines) -> None:
        self._client = self.make(installation.url, installation.token)
        self._sandbox: Any = None
        self._job: Any = None
        self._snapshot = ""

    @property
    def sandbox_id(self) -> str:
        return str(self._sandbox.id)

    async def close(self) -> None:
        await told((getattr(self._client, "aclose", None) or self._client.close)())

    async def step(self, name: str, given: dict[str, Any], agent: str) -> Any:
        box = self._sandbox
        if name == "create":
            self._sandbox = await told(self._client.sandboxes.create(agent))
            return self._sandbox.info.state.state
        if name == "write":
            return (await told(box.write_file(**given))).sha256
        if name == "edit":
            return (await told(box.edit_file(**given))).sha256
        if name == "run":
            ran = await told(box.run_command(**given))
            return [ran.exit_code, ran.stdout, ran.stderr]
        if name == "read":
            return (await told(box.read_file(**given))).content
        if name == "list":
            return sorted(entry.path for entry in (await told(box.list_directory(**given))).entries)
        if name == "search":
            return [[match.path, match.line] for match in (await told(box.search_files(**given))).matches]
        if name == "upload":
            return (await told(box.upload(given["path"], base64.b64decode(given["content_base64"])))).sha256
        if name == "download":
            parts = box.download(given["path"])
            return b"".join([part async for part in parts] if hasattr(parts, "__aiter__") else parts).hex()
        if name == "snapshot":
            self._snapshot = (await told(box.take_snapshot(given["name"]))).snapshot_id
            return "taken"
        if name == "remove":
            await told(box.remove_file(given["path"]))
            return "removed"
        if name == "start":
            self._job = await told(box.start(given["command"]))
            return "started"
        if name == "cancel":
            await told(self._job.cancel())
            ended = await told(self._job.wait())
            return [ended.result.cancelled, ended.status.code]
        if name == "reset":
            return (await told(box.reset(self._snapshot))).state.state
        return (await told(getattr(box, name)())).state.state


class PythonWithoutBlocking(Python):
    make = Coldframe


async def told(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


class CommandLine:
    """The program, with `--json`."""

    def __init__(self, installation: Installation, script: Script, cli: Lines) -> None:
        self._cli = cli
        self.sandbox_id = ""
        self._job = self._snapshot = ""

    def _run(self, *words: str, **options: Any) -> Any:
        done = self._cli("--json", *words, **options)
        text = done.stderr.decode().strip().splitlines()
        if text and text[-1].startswith('{"error"'):
            raise ColdframeError(json.loads(text[-1])["error"]["code"])
        return done

    def _told(self, *words: str, **options: Any) -> Any:
        return json.loads(self._run(*words, **options).stdout)

    def step(self, name: str, given: dict[str, Any], agent: str) -> Any:
        box, path = self.sandbox_id, given.get("path", "")
        if name == "create":
            made = self._told("sandbox", "create", "--agent", agent)
            self.sandbox_id = made["sandbox_id"]
            return made["state"]["state"]
        if name in ("write", "upload"):
            content = given["content"].encode() if name == "write" else base64.b64decode(given["content_base64"])
            return self._told("files", "put", box, "-", path, input=content)["sha256"]
        if name == "edit":
            return self._told("files", "edit", box, path, given["old"], given["new"])["sha256"]
        if name == "run":
            done = self._cli("exec", box, "-c", given["command"])
            if done.stderr.startswith(b"error: "):
                self._run("exec", box, "-c", given["command"])
            return [done.returncode, done.stdout.decode(), done.stderr.decode()]
        if name == "read":
            return self._run("files", "cat", box, path).stdout.decode()
        if name == "list":
            listed = self._told("files", "ls", box)
            return sorted(entry["path"] for entry in (listed["entries"] if isinstance(listed, dict) else listed))
        if name == "search":
            found = self._told("files", "search", box, given["pattern"])
            return [
                [match["path"], match["line"]] for match in (found["matches"] if isinstance(found, dict) else found)
            ]
        if name == "download":
            return self._run("files", "cat", box, path).stdout.hex()
        if name == "snapshot":
            self._snapshot = self._told("snapshot", "take", box, "--name", given["name"])["snapshot_id"]
            return "taken"
        if name == "remove":
            self._run("files", "rm", box, path)
            return "removed"
        if name == "start":
            self._job = self._told("job", "start", box, "-c", given["command"])["value"]["command_id"]
            return "started"
        if name == "cancel":
            self._run("job", "stop", box, self._job)
            self._cli("job", "wait", box, self._job)
            ended = self._told("job", "show", box, self._job)
            return [ended["result"]["cancelled"], ended["status"]["code"]]
        if name == "reset":
            return self._told("sandbox", "reset", box, "--to", self._snapshot)["state"]["state"]
        return self._told("sandbox", name, box)["state"]["state"]


def walk(surface: Any, agent: str) -> Told:
    """The answer of each step, or the code of its error."""

    async def every_step() -> Told:
        answers: Told = []
        for name, given in STEPS:
            try:
                answers.append([name, await told(surface.step(name, given, agent))])
            except ColdframeError as error:
                answers.append([name, {"code": error.code if error.code != "INTERNAL" else error.message}])
        if isinstance(surface, Python):
            await surface.close()
        return answers

    return asyncio.run(every_step())


class TypeScript:
    def __init__(self, installation: Installation, script: Script, cli: Lines) -> None:
        self._script = script
        self.sandbox_id = ""

    def walk(self, agent: str) -> Told:
        done = self._script("scenario", steps=STEPS, agent=agent)
        self.sandbox_id = done["sandbox_id"]
        answers: Told = done["answers"]
        return answers


def left_behind(client: SyncColdframe, sandbox_id: str, agent: str) -> dict[str, Any]:
    """What is there afterwards, as the ledger and the stores know it."""
    entries = client.ledger.entries(limit=1000, kinds=["call.ended", "call.refused"], sandbox_id=sandbox_id)
    snapshots = client.snapshots.list(sandbox_id=sandbox_id)
    return {
        "state": client.sandboxes.get(sandbox_id).info.state.state,
        "label": client.agents.get(agent).workspace_label,
        "commands": [one.state for one in client.sandboxes.get(sandbox_id).commands()],
        "snapshots": sorted((one.name, one.reason) for one in snapshots if one.name == "before"),
        "changed": [
            sorted((change["path"], change["change"]) for change in (entry.body.get("files") or {}).get("changes", []))
            for entry in entries
            if entry.body.get("tool") in ("write_file", "edit_file") and entry.kind == "call.ended"
        ],
    }


@pytest.fixture(scope="module")
def known(installation: Installation, script: Script, cli: Lines, client: SyncColdframe) -> tuple[Told, dict[str, Any]]:
    surface = Rest(installation, script, cli)
    answers = walk(surface, "by-rest")
    assert len(answers) == len(STEPS) == 25
    assert [answer["code"] for _, answer in answers if isinstance(answer, dict)] == [
        "EDIT_NOT_FOUND",
        "FILE_NOT_FOUND",
        "IS_A_DIRECTORY",
        "WRONG_STATE",
    ]
    assert answers[19][1] == sorted([*answers[9][1], "data.bin"]) and answers[-1] == ["terminate", "terminated"]
    return answers, left_behind(client, surface.sandbox_id, "by-rest")


@pytest.mark.parametrize("make", [Python, PythonWithoutBlocking, TypeScript, CommandLine], ids=lambda one: one.__name__)
def test_each_surface_gives_the_answers_and_the_end_that_rest_gives(
    installation: Installation,
    script: Script,
    cli: Lines,
    client: SyncColdframe,
    known: tuple[Told, dict[str, Any]],
    make: Callable[[Installation, Script, Lines], Any],
) -> None:
    surface, agent = make(installation, script, cli), f"by-{make.__name__.lower()}"
    answers = surface.walk(agent) if isinstance(surface, TypeScript) else walk(surface, agent)
    assert answers == known[0]
    assert left_behind(client, surface.sandbox_id, agent) == known[1]
