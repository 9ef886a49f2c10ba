"""One client that works while everything is killed under it, and knows afterwards what must be true.

Every call has an idempotency key and is repeated under that key until its outcome is known. What a call
appends to the counter file is its own key, so that the file tells how often it ran.
"""

import contextlib
import hashlib
import json
import random
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import (
    ColdframeError,
    FileMissing,
    PauseKindUnsupported,
    Unavailable,
    WrongState,
)
from coldframe.contract.pipeline import PipelineInfo
from coldframe.contract.tool import ToolResult
from tests.chaos.cuts import call_and_vanish
from tests.chaos.patience import ask_until_told
from tests.installation import Installation


@dataclass
class Done:
    """A call whose outcome is known: a result, or the code of an error."""

    sandbox_id: str
    key: str
    result: ToolResult | None
    code: str | None


class Worker:
    def __init__(self, installation: Installation, number: int, seed: int) -> None:
        self.agent_id = f"chaos-{number}"
        self.faults: list[str] = []
        self.calls = Counter[str]()
        self.sandboxes: list[str] = []
        self.lost: set[str] = set()
        self._installation = installation
        self._random = random.Random(f"{seed}-{number}")
        self._prefix = f"{seed}-{number}"
        self._count = 0
        self._sandbox_id: str | None = None
        self._counted: dict[str, tuple[int, int]] = {}
        """Key to how often it may stand in the counter file: at least, at most."""
        self._outputs: list[tuple[str, str, bytes]] = []
        self._backgrounds: list[tuple[str, str, str]] = []
        self._ended: set[str] = set()
        self._stopped: set[str] = set()
        """Sandboxes that were, or may have been: what ran in them was ended then, whoever was hit afterwards."""
        self._files: dict[str, set[str | None]] = {}
        """Path to the contents it may have; None for absent."""

    # -- while it storms ---------------------------------------------------------------------------------------------

    def work(self, until: threading.Event) -> None:
        try:
            while not until.is_set():
                self._one()
        except AssertionError as error:
            self.faults.append(f"{self.agent_id}: {error}")

    def _one(self) -> None:
        acts = [
            *(self._count_once, self._cut_once, self._print, self._write, self._overwrite, self._background),
            *(self._rest, self._pipeline),
        ]
        self._random.choice(acts)()

    def _key(self) -> str:
        self._count += 1
        return f"{self._prefix}-{self._count}"

    def _count_once(self) -> None:
        key, pause = self._key(), self._random.choice(["", "sleep 0.05; ", "sleep 0.3; "])
        done = self._call(key, "run_command", {"command": f"{pause}echo {key} >> counter; {pause}echo {key}"})
        self._counted[key] = self._times(done)
        if done.result is not None and done.result.value.get("exit_code") == 0:
            self._expect(done.result.value.get("stdout") == f"{key}\n", f"call {key} printed another's output")

    def _cut_once(self) -> None:
        """The same call twice under one key: over a connection that breaks, then over one that does not."""
        key = self._key()
        arguments = {"command": f"echo {key} >> counter; sleep 0.05; echo {key}"}
        sandbox_id = self._sandbox_id
        if sandbox_id is not None:
            with contextlib.suppress(OSError, ValueError, KeyError):
                url, token = self._installation.url, self._installation.token
                call_and_vanish(url, token, sandbox_id, "run_command", arguments, key=key, chance=self._random)
        done = self._call(key, "run_command", arguments)
        # Where the second call was refused, because the sandbox is lost meanwhile, the first may have run.
        self._counted[key] = (0, 1) if done.result is None else self._times(done)

    def _times(self, done: Done) -> tuple[int, int]:
        if done.result is not None and done.result.value.get("exit_code") == 0:
            return 1, 1
        return (0, 1) if done.result is not None or done.code == "GUEST_LOST" else (0, 0)

    def _print(self) -> None:
        key, lines = self._key(), self._random.choice([10, 5_000, 100_000])
        done = self._call(key, "run_command", {"command": f"seq {lines}"})
        if done.result is not None and done.result.value.get("exit_code") == 0:
            want = b"".join(b"%d\n" % i for i in range(1, lines + 1))
            got = str(done.result.value.get("stdout")).encode()
            self._expect(got == want, f"call {key} gave {len(got)} bytes of {len(want)}")
            self._outputs.append((done.sandbox_id, str(done.result.value["command_id"]), want))

    def _write(self) -> None:
        key = self._key()
        self._put(key, f"file-{key}", {None})

    def _overwrite(self) -> None:
        key = self._key()
        self._put(key, "same", self._files.get("same", {None}))

    def _put(self, key: str, path: str, before: set[str | None]) -> None:
        content = (hashlib.sha256(key.encode()).hexdigest() + "\n") * self._random.choice([1, 100, 30_000])
        done = self._call(key, "write_file", {"path": path, "content": content})
        if done.result is not None and done.result.error is None:
            self._files[path] = {content}
        else:
            self._files[path] = before | {content}

    def _background(self) -> None:
        key, status = self._key(), self._random.randrange(10)
        line = f"for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done; echo {key} >> counter; exit {status}"
        done = self._call(key, "run_command", {"command": line, "background": True})
        self._counted[key] = (0, 1) if done.result is not None or done.code == "GUEST_LOST" else (0, 0)
        if done.result is not None and done.result.error is None:
            self._backgrounds.append((done.sandbox_id, key, str(done.result.value["command_id"])))

    def _rest(self) -> None:
        """Paused and resumed, or stopped and started again."""
        if self._sandbox_id is None:
            return
        away, back = self._random.choice([("pause", "resume"), ("stop", "start_again")])
        self.calls[away] += 1
        if away == "stop":
            self._stopped.add(self._sandbox_id)
        if self._bring(away, "paused" if away == "pause" else "stopped"):
            self._bring(back, "running")

    def _bring(self, act: str, state: str) -> bool:
        """Into that state; False if it has ended, or there are no pauses here."""

        def bring(client: SyncColdframe) -> None:
            sandbox = client.sandboxes.get(str(self._sandbox_id))
            getattr(sandbox, act)()
            told = sandbox.refresh().state.state
            if told != state:
                raise Unavailable(f"it is {told}")

        try:
            ask_until_told(self._installation, f"{self.agent_id}: {act}", bring)
        except PauseKindUnsupported:
            return False
        except ColdframeError as error:
            self._give_up(error, act)
            return False
        return True

    def _pipeline(self) -> None:
        """Two steps, run again once if one of them did not succeed."""
        key, sandbox_id = self._key(), self._sandbox_id
        if sandbox_id is None:
            return
        self.calls["pipeline"] += 1
        names = [f"{key}-one", f"{key}-two"]
        steps = [{"name": name, "command": f"sleep 0.2; echo {name} >> counter"} for name in names]
        self._counted |= dict.fromkeys(names, (0, 1))

        def run(client: SyncColdframe) -> PipelineInfo:
            started = client.sandboxes.get(sandbox_id).start_pipeline(steps, idempotency_key=key)
            return started.wait()

        def run_again(client: SyncColdframe) -> PipelineInfo:
            pipeline = client.sandboxes.get(sandbox_id).pipeline(info.pipeline_id)
            if pipeline.info().steps == info.steps:  # else a rerun before was heard
                pipeline.rerun()
            return pipeline.wait()

        try:
            info = ask_until_told(self._installation, f"pipeline {key}", run)
            self._count_steps(info)
            if info.state == "failed" and self._random.random() < 0.5:
                self._counted |= {
                    name: (least, most + 1) for name, (least, most) in self._counted.items() if name in names
                }
                info = ask_until_told(self._installation, f"pipeline {key}", run_again)
                self._count_steps(info)
        except ColdframeError as error:
            self._give_up(error, f"pipeline {key}")

    def _count_steps(self, info: PipelineInfo) -> None:
        self._expect(info.state in ("succeeded", "failed"), f"pipeline {info.pipeline_id} is told to be {info.state}")
        for step in info.steps:
            self._counted[step.name] = (1 if step.state == "succeeded" else 0, step.attempt)

    # -- calls -------------------------------------------------------------------------------------------------------

    def _call(self, key: str, tool: str, arguments: dict[str, Any]) -> Done:
        self.calls[tool] += 1
        asked: list[str] = []

        def call(client: SyncColdframe) -> ToolResult:
            if not asked:
                asked.append(self._sandbox(client))
            return client.sandboxes.get(asked[0]).call(tool, arguments, idempotency_key=key)

        try:
            result = ask_until_told(self._installation, f"call {key}", call)
        except ColdframeError as error:
            self._give_up(error, f"call {key}")
            return Done("".join(asked), key, None, error.code)
        if result.error is not None and result.error.get("code") == "GUEST_LOST":
            return Done(asked[0], key, None, "GUEST_LOST")
        return Done(asked[0], key, result, None)

    def _give_up(self, error: ColdframeError, what: str) -> None:
        """The next act begins with another sandbox, if that is what the answer says."""
        if not isinstance(error, WrongState) and error.code != "GUEST_LOST":
            raise AssertionError(f"{what} ended with {error.code}: {error.message}") from error
        sandbox_id, self._sandbox_id = self._sandbox_id, None
        if sandbox_id is not None:  # it may run still, and its place is wanted
            end = f"{self.agent_id}: the end of {sandbox_id}"
            ask_until_told(self._installation, end, lambda client: client.sandboxes.get(sandbox_id).terminate())
            self._ended.add(sandbox_id)

    def _sandbox(self, client: SyncColdframe) -> str:
        if self._sandbox_id is None:
            key = f"{self._prefix}-create-{len(self.sandboxes)}"
            self._sandbox_id = client.sandboxes.create(agent_id=self.agent_id, idempotency_key=key).id
            self.sandboxes.append(self._sandbox_id)
        return self._sandbox_id

    def _expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.faults.append(f"{self.agent_id}: {what}")

    # -- afterwards --------------------------------------------------------------------------------------------------

    def judge(self, client: SyncColdframe, killed: set[str]) -> None:
        """With a calm installation: everything this worker was told is still so. *killed* lost their keeper."""
        self._judge_states(client, killed)
        with client.sandboxes.create(agent_id=self.agent_id) as sandbox:
            self._judge_counts(sandbox)
            self._judge_files(sandbox)
            self._judge_history(client, sandbox)
        for sandbox_id, command_id, want in self._outputs:
            window = client.sandboxes.get(sandbox_id).output(command_id)
            self._expect(window.data == want, f"output of {command_id} is {len(window.data)} bytes of {len(want)}")

    def _judge_states(self, client: SyncColdframe, killed: set[str]) -> None:
        for sandbox_id in self.sandboxes:
            state = client.sandboxes.get(sandbox_id).info.state.state
            want = {"lost"} if sandbox_id in killed else {"running"}
            if sandbox_id in self._ended:
                want = {"terminated"} | (want & {"lost"})
            if sandbox_id in self._stopped:  # a keeper that was hit may have been that of a box before
                want |= {"running", "stopped"} if sandbox_id in killed else set()
            self._expect(state in want, f"sandbox {sandbox_id} is told to be {state}, it is {' or '.join(want)}")
        for sandbox_id, key, command_id in self._backgrounds:
            info = client.sandboxes.get(sandbox_id).command(command_id)
            told = ("lost", "ended") if sandbox_id in killed | self._stopped else ("ended",)
            self._expect(info.state in told, f"background call {key} is told to be {info.state}")
        for sandbox_id in self.sandboxes:
            client.sandboxes.get(sandbox_id).terminate()  # its place is wanted

    def _judge_counts(self, sandbox: SyncSandbox) -> None:
        try:
            lines = (sandbox.read_file("counter").content or "").split()
        except FileMissing:
            lines = []
        times = Counter(lines)
        for key, (least, most) in self._counted.items():
            self._expect(least <= times[key] <= most, f"call {key} ran {times[key]} times, not {least} to {most}")
        unknown = set(times) - set(self._counted)
        self._expect(not unknown, f"nobody knows of {sorted(unknown)[:3]}")

    def _judge_files(self, sandbox: SyncSandbox) -> None:
        for path, contents in self._files.items():
            content: str | None
            try:
                content = sandbox.read_file(path).content
            except FileMissing:
                content = None
            self._expect(content in contents, f"`{path}` has a content that nobody wrote")

    def _judge_history(self, client: SyncColdframe, sandbox: SyncSandbox) -> None:
        """Every attempt that the ledger closed for this agent stands in its history, in order."""
        closed = [
            entry.seq
            for entry in all_entries(client)
            if entry.kind in ("call.ended", "call.refused", "call.interrupted")
            and entry.body.get("agent_id") == self.agent_id
        ]
        content = sandbox.read_file(".exec_history").content or ""
        shown = [json.loads(line)["sequence"] for line in content.splitlines()]
        missing = [seq for seq in closed if seq <= max(shown, default=0) and seq not in set(shown)]
        self._expect(not missing, f"the history lacks entries {missing[:5]}")
        self._expect(shown == sorted(shown), "the history is out of order")


def all_entries(client: SyncColdframe) -> list[Any]:
    found: list[Any] = []
    while True:
        batch = client.ledger.entries(after=found[-1].seq if found else 0, limit=1000)
        if not batch:
            return found
        found += batch
