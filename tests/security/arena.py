"""Runs rows of attacks against a real installation, inside the disposable wrapper, and prints a verdict a line.

`python -m tests.security.arena` reads the rows from standard input, one JSON object a line; started by `attacks.py`
through the wrapper and by nothing else.
"""

import asyncio
import json
import os
import re
import sys
import time
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from coldframe.client.api import Coldframe
from coldframe.client.sandbox import Sandbox
from coldframe.contract.errors import ColdframeError
from coldframe.contract.sandbox import Limits, SandboxSpec
from tests.installation import Installation
from tests.security import network_steps, product_steps, snapshot_steps  # noqa: F401  their steps register themselves
from tests.security.host_steps import find_step, peak_memory
from tests.security.landscape import NEIGHBOUR, NEIGHBOUR_SERVER, Landscape, Unknown
from tests.security.network_steps import bind_credential
from tests.security.outside import RULES, SOCKET, Outside
from tests.security.scene import WORKSPACE, Answer, Bound, Breach, NotHere, Scene
from tests.security.wrapper import SHOWN, Helper

Row = dict[str, Any]
SH_TIMEOUT_S = 25.0
NETWORK_GROUPS = frozenset({"network", "dns"})
"""Their sandboxes have a way out; those of all other groups have none."""
MOST_SECONDS = 6
"""Longest `timeout N` inside a script: loops of the corpus show in seconds what they show in a minute."""
MOST_CALLS = 800
LIMITS = {
    "resource": Limits(memory_mib=512, output_mib=384, disk_mib=256, file_mib=2048, pids=256, open_files=4096),
    "network": Limits(open_files=4096),
}
WORKSPACES_MIB = 1024
WORKSPACES_INODES = 40_000
"""Size of the file system of the workspaces: what an attack on disk and files can take at most."""
MOST_SAID = 3
"""Of the steps of a long row, so many are told of in the table."""
COMMAND_TIMEOUT_S = 3.0
"""Long enough to destroy, if it could; a search through all of `/usr` for what may be deleted takes longer."""
AT_ONCE = 4
"""Harmless commands that run side by side."""
BENIGN_TIMEOUT_S = 2.0
"""Some wait for a network that is not there; what counts is that they were not refused."""
HUGE_COMMAND_BYTES = 50_000_000

_STEP = re.compile(r"^(sh|api|cmd|host): ?", re.MULTILINE)
_TIMEOUT = re.compile(r"\btimeout (\d+)\b")
_API = re.compile(r"^(\w+) (\{.*\})(?: (\d+) times)?$", re.DOTALL)


class Ground:
    """The installation, the host around it and the neighbour: what the rows share."""

    def __init__(self, template: str | None = None) -> None:
        """*template*: the digest of the one that SHOWN is, if attackers are root of a system of their own."""
        self.helper = Helper()
        self.template = template
        self.landscape = Landscape()
        self.installation = Installation(VICTIM_SECRET=self.landscape.env_secret)
        self._workspaces = Path(self.installation.data_dir, "workspace")
        self._workspaces.mkdir(parents=True, mode=0o711)
        for path in (self._workspaces, self._workspaces.parent):
            path.chmod(0o711)
        self.helper.ask("tmpfs", path=str(self._workspaces), mib=WORKSPACES_MIB, inodes=WORKSPACES_INODES)
        self._template = ""
        if template is not None:
            self._template = os.path.join(self.installation.data_dir, "templates", template)
            os.makedirs(self._template, mode=0o711)
            self.helper.ask("bind", source=SHOWN, path=self._template)
        self.neighbour: Sandbox
        self.outside = Outside() if os.path.exists(SOCKET) else None
        self._client: Coldframe | None = None

    @property
    def client(self) -> Coldframe:
        assert self._client is not None
        return self._client

    async def start(self) -> None:
        await asyncio.to_thread(self.installation.start)
        self._client = Coldframe(self.installation.url, self.installation.token)
        if self.outside is not None:
            await self._client.policy.load(RULES)
            self.landscape.values |= self.outside.facts | await bind_credential(self._client)
        self.neighbour = await self._client.sandboxes.create(
            spec=SandboxSpec(agent_id=NEIGHBOUR, track_files=False, limits=Limits(wall_s=3600, cpu_s=3600))
        )
        await self.neighbour.write_file("secret-b", self.landscape.canary_b)
        await self.neighbour.write_file("cf-neighbour-server.py", NEIGHBOUR_SERVER)
        started = await self.neighbour.run_command(
            ["python3", "-u", "cf-neighbour-server.py", self.landscape.canary_b], background=True, timeout_s=3600
        )
        async for event in self.neighbour.follow(started.command_id):
            if getattr(event, "event", None) == "output":
                break
        self.landscape.values |= {
            "other_ws": f"{self.installation.data_dir}/workspace/{NEIGHBOUR}",
            "other_pid": str(_process_that_runs(b"cf-neighbour-server")),
            "data_dir": self.installation.data_dir,
        }

    async def restart(self) -> None:
        port = urlsplit(self.installation.url).port or 0
        await self.client.aclose()
        await asyncio.to_thread(self.installation.stop)
        await asyncio.to_thread(self.installation.start, port=port)
        self._client = Coldframe(self.installation.url, self.installation.token)
        self.neighbour = await self._client.sandboxes.get(self.neighbour.id)

    async def close(self) -> list[str]:
        """End everything. Returns what the installation left behind."""
        if self._client is not None:
            await self._client.aclose()
            try:
                await asyncio.to_thread(self.installation.end_sandboxes)
            except (OSError, ColdframeError) as error:
                print(f"the sandboxes could not be ended: {error}\n{self.installation.log}", file=sys.stderr)
        await asyncio.to_thread(self.installation.stop)
        for path in (str(self._workspaces), *([self._template] if self._template else [])):
            self.helper.ask("uncover", path=path)  # as a mount it would count as left behind
        return await asyncio.to_thread(self.installation.close)


def _process_that_runs(text: bytes) -> int:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if text in Path(f"/proc/{entry}/cmdline").read_bytes():
                    return int(entry)
            except OSError:
                continue
    raise RuntimeError(f"no process runs {text.decode()}")


def steps_of(run: str) -> list[tuple[str, str]]:
    """Kind and text of each step; lines without a prefix belong to the step before."""
    marks = list(_STEP.finditer(run))
    ends = [mark.start() for mark in marks[1:]] + [len(run)]
    return [(mark[1], run[mark.end() : end].removesuffix("\n")) for mark, end in zip(marks, ends, strict=True)]


class Attempt:
    """One row, step by step."""

    def __init__(self, ground: Ground, row: Row, number: int) -> None:
        self._ground = ground
        self._row = row
        limits = LIMITS.get(row["group"], Limits())
        network = None if row["group"] in NETWORK_GROUPS else "none"
        self._scene = Scene(
            ground,
            f"attacker-{number}",
            limits=limits,
            values=ground.landscape.values,
            network=network,
            as_root=ground.template is not None,
        )
        self._missing: list[str] = []
        self._bounds: list[str] = []
        self._how: list[str] = []
        self._ran = 0
        self._seen_seq = 0
        self._at = ""

    async def judge(self) -> tuple[str, str]:
        """Verdict (held, bound, part, skipped, breach) and what is to be said about it."""
        ground, scene = self._ground, self._scene
        if ground.outside is not None:
            scene.mark = ground.outside.mark()
        elif self._row["group"] in NETWORK_GROUPS:
            raise Unknown("nothing could be put outside of the wrapper: see its standard error")
        before = ground.landscape.state()
        hits = len(ground.landscape.hits)
        await scene.open()
        if self._row["group"] == "resource":
            scene.memory_before = peak_memory(ground.installation)
        victim = ground.landscape.victim(scene.uid)
        ground.landscape.values["host_pid"] = str(victim.pid)
        try:
            try:
                await self._steps([tuple(step) for step in self._row.get("steps") or steps_of(self._row["run"])])
            except Breach as breach:
                raise Breach(f"{breach} ({self._at})" if self._at else str(breach)) from None
            self._host_is_untouched(before, hits)
            if victim.poll() is not None:
                raise Breach("a process of the host was ended")
            await scene.answers_still()
            await scene.neighbour_still()
        finally:
            victim.kill()
            victim.wait()
            assert victim.stdout is not None
            victim.stdout.close()
            await scene.close()
        self._host_is_untouched(before, hits)
        self._nothing_strayed()
        said = "; ".join([*self._how, *self._bounds, *scene.notes])
        if self._missing:
            verdict = "part" if self._ran else "skipped"
            return verdict, "; ".join([f"not there yet: {', '.join(self._missing)}", *([said] if said else [])])
        return ("bound" if self._bounds else "held"), said

    def _host_is_untouched(self, before: dict[str, str], hits: int) -> None:
        after = self._ground.landscape.state()
        if changed := [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)]:
            raise Breach(f"files of the host changed: {sorted(changed)[:5]}")
        if reached := self._ground.landscape.hits[hits:]:
            raise Breach(f"services of the host were reached: {reached[:5]}")

    def _nothing_strayed(self) -> None:
        """Outside arrived what rules lead to, and from a sandbox without a way out nothing."""
        if self._ground.outside is None:
            return
        arrived = self._ground.outside.since(self._scene.mark)
        if arrived.strays:
            raise Breach(f"outside arrived: {arrived.strays[:5]}")
        if self._row["group"] not in NETWORK_GROUPS and (came := arrived.questions + arrived.requests):
            raise Breach(f"outside arrived, although the sandbox has no way out: {came[:5]}")

    async def _steps(self, steps: list[tuple[str, str]]) -> None:
        index = 0
        while index < len(steps):
            kind, text = steps[index]
            self._at = f"step {index + 1}, {kind}: {text[:120]}" if len(steps) > MOST_SAID else ""
            following = steps[index + 1] if index + 1 < len(steps) and steps[index + 1][0] == "host" else None
            index += 1
            text = self._ground.landscape.fill(text)
            if kind == "host":
                await self._host(text)
            elif kind == "api":
                await self._api(text)
            elif kind == "cmd" and self._row["expect"].startswith("Runs"):
                harmless = [text, *(more for _, more in steps[index : index + AT_ONCE - 1])]
                index += len(harmless) - 1
                await asyncio.gather(*map(self._harmless, harmless))
            elif kind == "cmd":
                await self._command(text)
            elif self._shell_with(following):
                assert following is not None
                index += 1
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._shell(text, following[1]))
                    both.create_task(self._host(self._ground.landscape.fill(following[1])))
            else:
                await self._shell(text, following[1] if following else "")
            self._ran += kind != "host"

    @staticmethod
    def _shell_with(following: tuple[str, str] | None) -> bool:
        known = find_step(following[1]) if following is not None else None
        return known is not None and known[0].during

    async def _shell(self, text: str, following: str) -> None:
        script = text.replace("/workspace", WORKSPACE)
        script = _TIMEOUT.sub(lambda found: f"timeout {min(int(found[1]), MOST_SECONDS)}", script)
        known = find_step(following)
        limit = known[0].sh_timeout_s if known is not None else None
        await self._scene.shell(
            script, timeout_s=limit or SH_TIMEOUT_S, comes_to_end=self._row["group"] in NETWORK_GROUPS
        )

    async def _api(self, text: str) -> None:
        if text.startswith("run_command with a 50 MB command"):
            answer = await self._scene.attack("run_command", {"command": "#" * HUGE_COMMAND_BYTES})
            if answer.error is None:
                raise Breach("a command of 50 MB was accepted")
            self._how.append(f"refused: {answer.code}")
            return
        found = _API.match(text)
        if found is None:
            self._missing.append(f"a step for a person: {text}")
            return
        arguments = json.loads(found[2])
        if isinstance(arguments.get("path"), str):
            arguments["path"] = arguments["path"].replace("/workspace", WORKSPACE)
        repeat = min(int(found[3] or 1), MOST_CALLS)
        answers: list[Answer] = []
        while len(answers) < repeat:
            batch = min(4, repeat - len(answers))
            answers += await asyncio.gather(*(self._scene.attack(found[1], arguments) for _ in range(batch)))
        codes = sorted({answer.code or "answered" for answer in answers})
        self._say(f"{f'{repeat} times ' if repeat > 1 else ''}{found[1]}: {', '.join(codes)}")

    async def _command(self, text: str) -> None:
        """Under the default deny list: refused before it starts, or run and without effect on anything but its own."""
        scene = self._scene
        text = text.replace("/workspace", WORKSPACE)
        answer = await scene.attack(
            "run_command", {"command": text, "timeout_s": COMMAND_TIMEOUT_S, "leftovers": "end"}
        )
        entries = await self._ground.client.ledger.entries(
            sandbox_id=scene.sandbox.id, after=self._seen_seq, limit=1000
        )
        self._seen_seq = entries[-1].seq
        kinds = [entry.kind for entry in entries if entry.kind.startswith("call.")]
        if answer.code == "DENIED_BY_RULE":
            if kinds != ["call.refused"]:
                raise Breach(f"a refused command has other records: {kinds}")
            self._say(f"denied before it started: {answer.error and answer.error.facts.get('rule')}")
            return
        if self._row["expect"].startswith("Denied before it starts"):
            raise Breach(f"not denied: {text!r}: {answer.text[:300]}")
        if answer.error is not None:
            raise Breach(f"neither denied nor run: {text!r}: {answer.error}")
        if kinds != ["call.started", "call.ended"]:
            raise Breach(f"the command has other records: {kinds} {answer.text[:300]}")
        self._say(f"ran without effect on others, exit {answer.value.get('exit_code')}")

    async def _harmless(self, text: str) -> None:
        answer = await self._scene.attack(
            "run_command", {"command": text, "timeout_s": BENIGN_TIMEOUT_S, "leftovers": "end"}
        )
        if answer.error is not None:
            raise Breach(f"refused although it does no harm: {text!r}: {answer.error}")

    def _say(self, text: str) -> None:
        if len(self._how) < MOST_SAID:
            self._how.append(text)

    async def _host(self, text: str) -> None:
        known = find_step(text)
        if known is None:
            self._missing.append(f"a step for a person: {text}")
            return
        try:
            await known[0].run(self._scene, known[1])
            self._ran += 1
        except NotHere as reason:
            self._missing.append(str(reason))
        except Bound as bound:
            self._bounds.append(str(bound))


async def run_row(ground: Ground, row: Row, number: int) -> dict[str, Any]:
    begun = time.monotonic()
    try:
        verdict, said = await Attempt(ground, row, number).judge()
    except* Breach as group:
        verdict, said = "breach", "; ".join(str(one) for one in _leaves(group))
    except* Unknown as group:
        verdict, said = "skipped", "; ".join(str(one) for one in _leaves(group))
    except* (AssertionError, ColdframeError, OSError, RuntimeError) as group:
        verdict, said = "error", "; ".join(_told(one) for one in _leaves(group))
    return {
        "id": row["id"],
        "group": row["group"],
        "title": row["title"],
        "verdict": verdict,
        "said": said,
        "key": row["key"],
        "seconds": round(time.monotonic() - begun, 2),
    }


def _told(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {str(error)[-1500:]} (at {', '.join(f'{one.name}:{one.lineno}' for one in frames[-4:])})"


def _leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    found: list[BaseException] = []
    for one in group.exceptions:
        found += _leaves(one) if isinstance(one, BaseExceptionGroup) else [one]
    return found


async def main() -> None:
    ground = Ground(sys.argv[1] if len(sys.argv) > 1 else None)
    try:
        await ground.start()
        print(json.dumps({"installation": ground.installation.installation_id}), flush=True)
        for number, line in enumerate(sys.stdin, 1):
            print(json.dumps(await run_row(ground, json.loads(line), number)), flush=True)
        print(json.dumps({"ledger_intact": (await ground.client.ledger.verify()).intact}), flush=True)
    except BaseException:
        print(ground.installation.log, file=sys.stderr)
        raise
    finally:
        print(json.dumps({"left": await ground.close()}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
