"""A client that rents a sandbox for one result: waits for its turn, has a job work, fetches what was made, and has all deleted.

Until it has confirmed the digest of what it fetched, nothing of the result may go but with the box that held it.
"""

import hashlib
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from coldframe.client.sync import SyncColdframe
from coldframe.contract.errors import ColdframeError
from coldframe.contract.result import result_digest
from coldframe.contract.sandbox import SandboxSpec
from tests.chaos.patience import ask_until_told
from tests.installation import Installation

SPEC = SandboxSpec(background=True, outputs=("made/*",), max_age_s=3000, on_timeout="terminate", on_result="delete")
TURN_S = 80.0
MOST_OFFERED = 1
"""What is never confirmed, and so takes a place for good."""
GONE = ("WRONG_STATE", "GUEST_LOST", "NOT_FOUND", "EXPIRED", "FILE_NOT_FOUND")
T = TypeVar("T")


class Renter:
    def __init__(self, installation: Installation, number: int, seed: int) -> None:
        self.name = f"renter-{number}"
        self.faults: list[str] = []
        self.calls = Counter[str]()
        self._installation = installation
        self._random = random.Random(f"{seed}-renter-{number}")
        self._count = 0
        self._done: set[str] = set()
        self._offered: dict[str, str] = {}
        """Sandbox to the digest that was offered and not confirmed."""

    # -- while it storms ---------------------------------------------------------------------------------------------

    def work(self, until: threading.Event) -> None:
        try:
            while not until.is_set():
                self._rent()
        except AssertionError as error:
            self.faults.append(f"{self.name}: {error}")

    def _rent(self) -> None:
        self._count += 1
        key = f"{self.name}-{self._count}"
        sandbox_id = self._ask(
            "create",
            lambda client: client.sandboxes.create(spec=SPEC, queue_s=TURN_S, idempotency_key=key).id,
        )
        try:
            waited = self._ask("turn", lambda client: client.sandboxes.get(sandbox_id).info.state.state)
            self.calls["queued"] += waited == "queued"
            state = self._ask("turn", lambda client: client.sandboxes.get(sandbox_id).wait_for_turn().state.state)
            if state == "running":
                self._work(sandbox_id, key)
        except ColdframeError as error:
            if error.code not in GONE:
                raise AssertionError(f"{key} ended with {error.code}: {error.message}") from error
        if sandbox_id not in self._done and sandbox_id not in self._offered:
            self._ask("end", lambda client: client.sandboxes.get(sandbox_id).terminate())

    def _work(self, sandbox_id: str, key: str) -> None:
        command = f"mkdir -p made && echo {key} > made/one && seq {self._random.choice([1, 1000, 50_000])} > made/two"
        arguments = {"command": command, "background": True}
        started = self._ask(
            "job",
            lambda client: client.sandboxes.get(sandbox_id).call(
                "run_command", arguments, idempotency_key=f"{key}-job"
            ),
        )
        command_id = str(started.value.get("command_id"))
        if started.error is not None:
            return
        self._ask("job", lambda client: client.sandboxes.get(sandbox_id).job(command_id).wait())
        made = self._ask("job", lambda client: client.sandboxes.get(sandbox_id).command(command_id))
        if made.state != "ended" or made.result is None or made.result.exit_code != 0:
            return
        offered = self._ask("offer", lambda client: client.sandboxes.get(sandbox_id).offer_result())
        digest = self._ask("fetch", lambda client: _fetched(client, sandbox_id, [one.path for one in offered.files]))
        self._expect(digest == offered.sha256, f"what was fetched of {key} is not what was offered")
        if len(self._offered) < MOST_OFFERED:
            self._offered[sandbox_id] = digest
            return
        deleted = self._ask("confirm", lambda client: client.sandboxes.get(sandbox_id).confirm_result(digest))
        self._expect(deleted.state == "deleted", f"the result of {key} is {deleted.state} although it was confirmed")
        self._done.add(sandbox_id)

    def _ask(self, what: str, act: Callable[[SyncColdframe], T]) -> T:
        self.calls[what] += 1
        return ask_until_told(self._installation, f"{self.name}: {what}", act)

    def _expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.faults.append(f"{self.name}: {what}")

    # -- afterwards --------------------------------------------------------------------------------------------------

    def judge(self, client: SyncColdframe, killed: set[str]) -> None:
        """What was confirmed is gone, and what was only offered can be fetched still, unless its box was hit."""
        for sandbox_id in self._done:
            sandbox = client.sandboxes.get(sandbox_id)
            told = (sandbox.info.state.state, sandbox.result().state)
            self._expect(told == ("terminated", "deleted"), f"{sandbox_id}, which was confirmed, is {told}")
        for sandbox_id, digest in self._offered.items():
            sandbox = client.sandboxes.get(sandbox_id)
            state, result = sandbox.info.state.state, sandbox.result()
            if sandbox_id in killed and state == "lost":
                continue
            self._expect(
                (state, result.state) == ("running", "awaiting_fetch"),
                f"{sandbox_id}, of which nobody has confirmed the result, is {state}, its result {result.state}",
            )
            if state == "running":
                found = _fetched(client, sandbox_id, [one.path for one in result.files])
                self._expect(found == digest, f"the result of {sandbox_id} is another one than was offered")
                sandbox.terminate()


def _fetched(client: SyncColdframe, sandbox_id: str, paths: list[str]) -> str:
    contents = {path: b"".join(client.sandboxes.get(sandbox_id).download(path)) for path in paths}
    return result_digest((path, len(data), hashlib.sha256(data).hexdigest()) for path, data in contents.items())
