"""A client that takes its workspace back and forth: snapshots of what runs or is paused, resets to them, forks.

One file says where the workspace stands. Of each moment it is known which contents that may have: one, where every call
was answered, and more where a sandbox was lost in the middle of one.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from coldframe.client.sync import SyncColdframe
from coldframe.contract.errors import ColdframeError, FileMissing
from tests.chaos.patience import ask_until_told
from tests.installation import Installation

T = TypeVar("T")
MARK = "mark"
MOST_KNOWN = 8
"""Snapshots that are kept; the oldest is removed for one more."""


class Rewinder:
    def __init__(self, installation: Installation, number: int, seed: int) -> None:
        self.agent_id = f"rewinder-{number}"
        self.faults: list[str] = []
        self.calls = Counter[str]()
        self.sandboxes: list[str] = []
        self._installation = installation
        self._random = random.Random(f"{seed}-rewinder-{number}")
        self._count = 0
        self._sandbox_id: str | None = None
        self._contents: set[str | None] = {None}
        self._snapshots: dict[str, set[str | None]] = {}
        self._ended: set[str] = set()

    # -- while it storms ---------------------------------------------------------------------------------------------

    def work(self, until: threading.Event) -> None:
        acts = [
            self._write,
            self._write,
            self._take,
            self._take,
            self._reset,
            self._fork,
            self._read,
            self._take_paused,
        ]
        try:
            while not until.is_set():
                act = self._random.choice(acts)
                try:
                    act()
                except ColdframeError as error:
                    if error.code not in ("WRONG_STATE", "GUEST_LOST", "PAUSE_KIND_UNSUPPORTED"):
                        raise AssertionError(f"{act.__name__} ended with {error.code}: {error.message}") from error
                    self._end()
        except AssertionError as error:
            self.faults.append(f"{self.agent_id}: {error}")

    def _write(self) -> None:
        key, sandbox_id = self._key("write"), self._sandbox()
        before, self._contents = self._contents, self._contents | {key}
        arguments = {"path": MARK, "content": key}
        result = self._ask(
            key, lambda client: client.sandboxes.get(sandbox_id).call("write_file", arguments, idempotency_key=key)
        )
        if result.error is None:
            self._contents = {key}
        elif result.error.get("code") == "GUEST_LOST":
            self._end()
        else:
            self._contents = before
            self.faults.append(f"{self.agent_id}: {key} was refused: {result.error}")

    def _take(self) -> None:
        key, sandbox_id = self._key("snapshot"), self._sandbox()
        taken = self._ask(key, lambda client: client.sandboxes.get(sandbox_id).take_snapshot(key, idempotency_key=key))
        self._snapshots[taken.snapshot_id] = set(self._contents)
        if len(self._snapshots) > MOST_KNOWN:
            oldest = next(iter(self._snapshots))
            del self._snapshots[oldest]
            try:
                self._ask("removal", lambda client: client.snapshots.remove(oldest))
            except ColdframeError as error:
                if error.code != "NOT_FOUND":  # a removal before was done, and nobody was told
                    raise AssertionError(f"removal of {oldest} ended with {error.code}: {error.message}") from error

    def _take_paused(self) -> None:
        sandbox_id = self._sandbox()
        self.calls["pause"] += 1
        self._ask("pause", lambda client: client.sandboxes.get(sandbox_id).pause())
        self._take()
        self._ask("resume", lambda client: client.sandboxes.get(sandbox_id).resume())

    def _reset(self) -> None:
        if not self._snapshots:
            return
        key, sandbox_id = self._key("reset"), self._sandbox()
        to, discard = self._random.choice(list(self._snapshots)), self._random.random() < 0.5
        self._contents = self._contents | self._snapshots[to]
        done = self._ask(
            key, lambda client: client.sandboxes.get(sandbox_id).reset(to, discard=discard, idempotency_key=key)
        )
        self._contents = set(self._snapshots[to])
        if done.state.state == "stopped":  # the host was away when it was to run again
            self._ask("start", lambda client: client.sandboxes.get(sandbox_id).start_again())

    def _fork(self) -> None:
        key, sandbox_id = self._key("fork"), self._sandbox()
        fork = self._ask(
            key, lambda client: client.sandboxes.get(sandbox_id).fork(background=True, idempotency_key=key).id
        )
        try:
            self._expect(self._ask("look", lambda client: _mark_of(client, fork)), "a fork")
        except ColdframeError as error:
            if error.code not in ("WRONG_STATE", "GUEST_LOST", "NOT_FOUND"):  # its box was hit, and its files with it
                raise
        self._ask("end", lambda client: client.sandboxes.get(fork).terminate())

    def _read(self) -> None:
        sandbox_id = self._sandbox()
        content = self._ask("look", lambda client: _mark_of(client, sandbox_id))
        self._expect(content, "the workspace")
        self._contents = {content}

    # -- calls -------------------------------------------------------------------------------------------------------

    def _key(self, what: str) -> str:
        self._count += 1
        self.calls[what] += 1
        return f"{self.agent_id}-{what}-{self._count}"

    def _ask(self, what: str, act: Callable[[SyncColdframe], T]) -> T:
        return ask_until_told(self._installation, f"{self.agent_id}: {what}", act)

    def _sandbox(self) -> str:
        if self._sandbox_id is None:
            key = self._key("create")
            self._sandbox_id = self._ask(
                key, lambda client: client.sandboxes.create(self.agent_id, idempotency_key=key).id
            )
            self.sandboxes.append(self._sandbox_id)
        return self._sandbox_id

    def _end(self) -> None:
        """It cannot do what was asked; the next act makes another one on the same workspace."""
        sandbox_id, self._sandbox_id = self._sandbox_id, None
        if sandbox_id is not None:
            self._ask("end", lambda client: client.sandboxes.get(sandbox_id).terminate())
            self._ended.add(sandbox_id)

    def _expect(self, content: str | None, what: str) -> None:
        if content not in self._contents:
            self.faults.append(f"{self.agent_id}: {what} stands at {content}, not at one of {self._contents}")

    # -- afterwards --------------------------------------------------------------------------------------------------

    def judge(self, client: SyncColdframe, killed: set[str]) -> None:
        """With a calm installation: the workspace stands where it may, every snapshot is there and reads as it was taken."""
        for sandbox_id in self.sandboxes:
            state = client.sandboxes.get(sandbox_id).info.state.state
            want = {"terminated" if sandbox_id in self._ended else "running"} | (
                {"lost"} if sandbox_id in killed else set()
            )
            if state not in want:
                self.faults.append(f"{self.agent_id}: sandbox {sandbox_id} is told to be {state}")
            if state == "running":
                client.sandboxes.get(sandbox_id).stop()
        listed = {snapshot.snapshot_id for snapshot in client.snapshots.list(agent_id=self.agent_id)}
        with client.sandboxes.create(agent_id=self.agent_id) as sandbox:
            self._expect(_mark_of(client, sandbox.id), "the workspace")
            for snapshot_id, contents in self._snapshots.items():
                if snapshot_id not in listed:
                    self.faults.append(f"{self.agent_id}: snapshot {snapshot_id} is gone")
                    continue
                try:
                    found = sandbox.read_file(MARK, snapshot=snapshot_id).content
                except FileMissing:
                    found = None
                if found not in contents:
                    self.faults.append(f"{self.agent_id}: snapshot {snapshot_id} has {found}, not one of {contents}")


def _mark_of(client: SyncColdframe, sandbox_id: str) -> str | None:
    try:
        return client.sandboxes.get(sandbox_id).read_file(MARK).content
    except FileMissing:
        return None
