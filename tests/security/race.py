"""An attacker in the box swaps directories with links that lead out, a million times, while the tools work on paths through them.

`python -m tests.security.race` runs it against an installation and prints what came of it as JSON; `… race control`
does the same to a program that looks before it opens, which must lose. Started through the wrapper and by nothing else.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from coldframe.client.sandbox import Sandbox
from coldframe.contract.sandbox import Limits, SandboxSpec
from tests.security.arena import Ground
from tests.security.scene import WORKSPACE

SWAPS = 1_000_000
"""Of directories, at least; those of a file come on top."""
ROUNDS = 40
"""Of the tools, at least: 200 calls of each of them. The attacker goes on as long."""
OUTSIDE = "/tmp/outside"
"""A folder of the box beside the workspace, which its user may read and write: only the tools keep out of it."""
MARK = "what-stands-outside"
MINE = "mine\n"
CONTROL_WITHIN_S = 60.0
ATTACKER = """
import ctypes, os, sys
rename = ctypes.CDLL(None, use_errno=True).renameat2
wanted, file, target = int(sys.argv[1]), os.fsencode(sys.argv[2]), sys.argv[3]
folders = [os.fsencode(name) for name in sys.argv[4:]]
pairs = [(name, name + b'.link') for name in folders]
print('begun', flush=True)
swaps = 0
while swaps < wanted or not os.path.exists('enough'):
    for one, two in pairs:
        if rename(-100, one, -100, two, 2):  # AT_FDCWD, RENAME_EXCHANGE
            sys.exit(f'{one}: error {ctypes.get_errno()}')
        swaps += 1
    rename(-100, file, -100, file + b'.link', 2)
    if swaps % 1000 < len(pairs) and not os.path.islink(file) and not os.path.islink(file + b'.link'):
        os.unlink(file + b'.link')  # a write has replaced the link itself, as it should
        os.symlink(target, file + b'.link')
print('swaps', swaps)
"""


class Race:
    """The tools' side: counts what each call came to and keeps what should never have been seen."""

    def __init__(self, ground: Ground, sandbox: Sandbox) -> None:
        self._ground = ground
        self._sandbox = sandbox
        values = ground.landscape.values
        self.targets = {
            "beside": (OUTSIDE, "secret.txt"),
            "above": (f"../..{OUTSIDE}", "secret.txt"),
            "host": (values["host_dir"], os.path.basename(values["open_file"])),
            "neighbour": (values["other_ws"], "secret-b"),
        }
        """Directory of the workspace: where its link leads, and a name that is there and here."""
        self.outcomes: dict[str, Counter[str]] = {}
        self.breaches: list[str] = []
        self.written: set[str] = set()

    async def prepare(self) -> None:
        await self._sandbox.write_file("attacker.py", ATTACKER)
        await self._run(
            f"mkdir {OUTSIDE} && echo {MARK} > {OUTSIDE}/secret.txt && ln -s {OUTSIDE}/secret.txt file.link"
        )
        await self._sandbox.write_file("file", MINE)
        for name, (target, inner) in self.targets.items():
            await self._sandbox.write_file(f"{name}/{inner}", MINE)
            await self._run(f"ln -s {target} {name}.link")

    async def run(self) -> str:
        """Work until the attacker has ended. Returns what it printed."""
        command = ["python3", "attacker.py", str(SWAPS), "file", f"{OUTSIDE}/secret.txt", *self.targets]
        started = await self._sandbox.run_command(command, background=True)
        number = 0
        while (await self._sandbox.command(started.command_id)).state == "running":
            number += 1
            if number == ROUNDS:
                await self._sandbox.write_file("enough", "")
            for name, (_, inner) in self.targets.items():
                await self._work_on(name, f"{name}/{inner}", f"{name}/new-{number}")
            await self._work_on("", "file", None)
        ended = (await self._sandbox.command(started.command_id)).result
        output = (await self._sandbox.output(started.command_id)).data.decode()
        return output if ended is not None and ended.exit_code == 0 else f"the attacker failed: {ended}"

    async def _work_on(self, folder: str, path: str, fresh: str | None) -> None:
        calls: list[tuple[str, dict[str, Any]]] = [
            ("read_file", {"path": path}),
            ("write_file", {"path": path, "content": MINE}),
            ("edit_file", {"path": path, "edits": [{"old": "mine", "new": "mine"}]}),
            ("edit_file", {"path": path, "edits": [{"old": "stands", "new": "stood"}]}),
            ("list_directory", {"path": folder, "recursive": True}),
            ("search_files", {"path": folder, "pattern": "stands|canary|neighbour-"}),
        ]
        if fresh is not None:
            calls.append(("write_file", {"path": fresh, "content": MINE}))
        for tool, arguments in calls:
            result = await self._sandbox.call(tool, arguments)
            code = "done" if result.error is None else str(result.error["code"])
            self.outcomes.setdefault(tool, Counter())[code] += 1
            self._look_at(tool, arguments, result.value, str(result.error))
            if code == "done" and arguments.get("path") == fresh:
                self.written.add(str(fresh))

    def _look_at(self, tool: str, arguments: dict[str, Any], value: dict[str, Any], error: str) -> None:
        told = json.dumps(value) + error
        if MARK in told or self._ground.landscape.secrets_in(told):
            self.breaches.append(f"{tool} {arguments} showed what stands outside")
        if tool == "read_file" and value and value["content"] != MINE:
            self.breaches.append(f"{tool} {arguments} read {value['content']!r}")
        if tool == "search_files" and [match for match in value.get("matches", ()) if match["path"] != "attacker.py"]:
            self.breaches.append(f"{tool} {arguments} found {value['matches']}")
        if tool == "edit_file" and "stands" in str(arguments["edits"]) and value:
            self.breaches.append(f"{tool} {arguments} changed what stands outside")

    async def look_outside(self, before: dict[str, str]) -> None:
        """What the links lead to is as it was, and each write that was answered is in the workspace."""
        beside = await self._run(f"ls -A {OUTSIDE}; cat {OUTSIDE}/secret.txt")
        if beside != f"secret.txt\n{MARK}\n":
            self.breaches.append(f"{OUTSIDE} holds {beside!r}")
        after = self._ground.landscape.state()
        self.breaches += [f"{path} of the host differs" for path in after if after[path] != before.get(path)]
        neighbour = await self._ground.neighbour.run_command("ls -A; cat secret-b")
        if "new-" in str(neighbour.stdout) or not str(neighbour.stdout).endswith(self._ground.landscape.canary_b):
            self.breaches.append(f"the neighbour has {neighbour.stdout!r}")
        # Not in `name` or not in `name.link`, depending on where the last swap left the directory.
        there = {path.replace(".link/", "/") for path in (await self._run("ls -d */new-*")).split()}
        if lost := self.written - there:
            self.breaches.append(f"{len(lost)} answered writes are not in the workspace: {sorted(lost)[:3]}")

    async def _run(self, command: str) -> str:
        ran = await self._sandbox.run_command(command)
        if ran.exit_code != 0:
            raise RuntimeError(f"`{command}` ends with {ran.exit_code}: {ran.stderr}")
        return ran.stdout or ""


@asynccontextmanager
async def _ground() -> AsyncIterator[Ground]:
    ground = Ground()
    try:
        await ground.start()
        yield ground
    finally:
        if left := await ground.close():
            print("\n".join(left), file=sys.stderr)


async def against_the_tools() -> dict[str, Any]:
    async with _ground() as ground:
        spec = SandboxSpec(agent_id="racer", track_files=False, limits=Limits(cpu_s=3600, wall_s=3600))
        async with await ground.client.sandboxes.create(spec=spec) as sandbox:
            race = Race(ground, sandbox)
            await race.prepare()
            before = ground.landscape.state()
            said = await race.run()
            await race.look_outside(before)
            return {
                "attacker": said,
                "outcomes": race.outcomes,
                "breaches": race.breaches[:20],
                "wrote": len(race.written),
            }


def against_a_program_that_looks_first() -> dict[str, Any]:
    """It asks where the path leads, finds it within the workspace, and opens it."""
    with tempfile.TemporaryDirectory() as folder:
        home, outside = Path(os.path.realpath(folder), "home"), Path(os.path.realpath(folder), "outside")
        for place, text in ((home / "p", MINE), (outside, MARK)):
            place.mkdir(parents=True)
            (place / "secret.txt").write_text(text)
        (home / "p.link").symlink_to(outside)
        (home / "attacker.py").write_text(ATTACKER)
        (home / "file").write_text(MINE)
        (home / "file.link").symlink_to(outside / "secret.txt")
        attacker = os.fork()
        if attacker == 0:
            os.chdir(home)
            os.execv(
                sys.executable, [sys.executable, "attacker.py", str(10**9), "file", str(outside / "secret.txt"), "p"]
            )
        seen, until = "", time.monotonic() + CONTROL_WITHIN_S
        try:
            while seen != MARK and time.monotonic() < until:
                path = home / "p" / "secret.txt"
                try:
                    if Path(os.path.realpath(path)).is_relative_to(home):
                        seen = path.read_text()
                except OSError:
                    continue
        finally:
            os.kill(attacker, 9)
            os.waitpid(attacker, 0)
        return {"breaches": ["it read what stands outside"] if seen == MARK else []}


if __name__ == "__main__":
    assert WORKSPACE.count("/") == 2, "the relative link is made for this"
    if sys.argv[1:] == ["control"]:
        print(json.dumps(against_a_program_that_looks_first()))
    else:
        print(json.dumps(asyncio.run(against_the_tools())))
