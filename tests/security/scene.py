"""One attack row while it runs: its sandbox, what it saw, and the words for how a wall did."""

import asyncio
import json
import os
import re
from dataclasses import dataclass, field
from typing import Any, Protocol

from coldframe.client.api import Coldframe
from coldframe.client.sandbox import Sandbox
from coldframe.contract.errors import ColdframeError, from_wire
from coldframe.contract.sandbox import Limits, SandboxSpec
from tests.installation import Installation
from tests.security.landscape import NEIGHBOUR, Landscape
from tests.security.outside import Outside
from tests.security.wrapper import Helper

ANSWER_WITHIN_S = 120.0
"""Past it a call counts as hung. Far above what any step may take, so that a busy machine changes no verdict."""
VIEW_BYTES = 200_000
WORKSPACE = "/home/user"
_BREACH = re.compile(r"^\s*BREACH\b.*$", re.MULTILINE)


class Breach(Exception):
    """The attack won."""


class NotHere(Exception):
    """This step needs a part of the product that is not there yet, or a right that the harness has not."""


class Bound(Exception):
    """The wall holds by best effort or not at all, and the isolation report or docs/limits.md says so, in these words."""


@dataclass
class Answer:
    """What one tool call answered."""

    value: dict[str, Any] = field(default_factory=dict)
    error: ColdframeError | None = None

    @property
    def stdout(self) -> str:
        return str(self.value.get("stdout") or "")

    @property
    def text(self) -> str:
        """All of it, as text to look for secrets in."""
        return json.dumps(self.value, ensure_ascii=False) + (str(self.error) if self.error else "")

    @property
    def code(self) -> str | None:
        return self.error.code if self.error else None


class Place(Protocol):
    """What all rows share."""

    installation: Installation
    landscape: Landscape
    helper: Helper
    neighbour: Sandbox
    outside: Outside | None
    """None where there is nothing but the wrapper."""

    @property
    def client(self) -> Coldframe: ...

    async def restart(self) -> None:
        """Stop the installation and start it again on the same port."""
        ...


class Scene:
    """A fresh agent and sandbox for one row."""

    def __init__(
        self,
        place: Place,
        name: str,
        *,
        limits: Limits,
        values: dict[str, str],
        network: str | None = "none",
        as_root: bool = False,
    ) -> None:
        """*network*: the profile that is asked for; None for all that the rules give. *as_root*: the attacker is root of a
        system of its own."""
        self.place = place
        self.agent_id = name
        self.limits = limits
        self.network = network
        self._own_system = {"template": "debian"} if as_root else {}
        self._attacker = {"user": "root"} if as_root else {}
        self.mark: dict[str, int] = {}
        """Of what had arrived outside when the row began."""
        self.values = values
        self.notes: list[str] = []
        self.answers: list[Answer] = []
        self.memory_before: dict[int, int] = {}
        """Peak memory of the product's processes before the row, where that is looked at."""
        self.sandbox: Sandbox
        self._root_outside: int | None = None

    async def open(self) -> None:
        self.sandbox = await self.place.client.sandboxes.create(
            spec=SandboxSpec.model_validate(
                {
                    "agent_id": self.agent_id,
                    "limits": self.limits,
                    "track_files": False,
                    "network": self.network,
                    **self._own_system,
                }
            )
        )
        report = await self.sandbox.report() if self._own_system else None
        first = None if report is None else report.first_process
        self._root_outside = first.uid_map[0][1] if first is not None else None

    async def reopen(self) -> None:
        """A new sandbox on the same workspace."""
        await self.sandbox.terminate()
        await self.open()

    async def close(self) -> None:
        """End the sandbox and delete the agent with its workspace, whatever the attack made of it."""
        await self.sandbox.terminate()
        await self.place.client.agents.delete(self.agent_id)
        left = os.path.join(self.place.installation.data_dir, "workspace", self.agent_id)
        if os.path.lexists(left):
            raise Breach("the deleted workspace is still there")

    @property
    def uid(self) -> int | None:
        """Host uid of the sandbox's payload."""
        if self._root_outside is not None:
            return self._root_outside
        try:
            return os.stat(os.path.join(self.place.installation.data_dir, "workspace", self.agent_id)).st_uid
        except OSError:
            return None

    async def call(self, tool: str, arguments: dict[str, Any], *, on: Sandbox | None = None) -> Answer:
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                result = await (on or self.sandbox).call(tool, arguments)
            answer = Answer(result.value, from_wire(result.error) if result.error else None)
        except TimeoutError:
            raise Breach(f"`{tool}` did not answer within {ANSWER_WITHIN_S:g} s") from None
        except ColdframeError as error:
            answer = Answer(error=error)
        return answer

    async def attack(self, tool: str, arguments: dict[str, Any]) -> Answer:
        """A call of the attacker: its answer is kept and must hold no secret."""
        answer = await self.call(tool, arguments)
        self.answers.append(answer)
        leaked = self.place.landscape.secrets_in(answer.text)
        if leaked:
            raise Breach(f"the answer of `{tool}` holds {', '.join(leaked)}")
        if answer.code == "INTERNAL":
            raise Breach(f"`{tool}` failed inside: {answer.error}")
        return answer

    async def shell(self, script: str, *, timeout_s: float, comes_to_end: bool = False) -> None:
        """Run *script* in the box. As a file: what a file holds the gate does not read, so the walls stand alone.

        With *comes_to_end* one that can say HELD has to: a mistake in it would show as a wall that holds.
        """
        number = len(self.answers)
        written = await self.call("write_file", {"path": f".attack-{number}", "content": script})
        if written.error is not None:
            raise Breach(f"the step could not be placed: {written.error}")
        answer = await self.attack(
            "run_command",
            {
                "command": ["bash", f".attack-{number}"],
                "timeout_s": timeout_s,
                "view": {"max_bytes": VIEW_BYTES},
                **self._attacker,
            },
        )
        if answer.error is not None:
            raise RuntimeError(f"the step did not run: {answer.error}")
        if won := _BREACH.search(answer.stdout):
            raise Breach(f"{won[0].strip()} {answer.value.get('stderr')!s:.300}".strip())
        if comes_to_end and "HELD" in script and "HELD" not in answer.stdout:
            raise RuntimeError(f"the script did not come to its end: {answer.text[-1000:]}")

    async def run(self, command: str | list[str], *, on: Sandbox | None = None, timeout_s: float = 60) -> Answer:
        """A command of the harness, not of the attacker."""
        arguments = {"command": command, "timeout_s": timeout_s, "view": {"max_bytes": VIEW_BYTES}}
        return await self.call("run_command", arguments, on=on)

    async def answers_still(self) -> None:
        """The sandbox works, or its state says that it does not and a new one on the same workspace works."""
        answer = await self.run("echo still-here")
        if answer.stdout == "still-here\n":
            return
        info = await self.sandbox.refresh()
        if info.state.state == "running":
            raise Breach(f"the sandbox answers no more and its state is `running`: {answer.text[:300]}")
        self.notes.append(f"the sandbox ended: {info.state.state}")
        await self.reopen()
        if (await self.run("echo still-here")).stdout != "still-here\n":
            raise Breach("no new sandbox can be had on the workspace")

    async def neighbour_still(self) -> None:
        """The other sandbox has its file, its server, and answers."""
        place = self.place
        answer = await self.run("cat secret-b && cat /dev/shm/cf-shared", on=place.neighbour)
        if answer.stdout != place.landscape.canary_b * 2:
            raise Breach(f"the neighbour `{NEIGHBOUR}` is not as it was: {answer.text[:300]}")
        processes = await place.neighbour.processes()
        if not any("cf-neighbour-server" in process.command_line for process in processes):
            raise Breach("the neighbour's server is gone")
