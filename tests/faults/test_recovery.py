"""A client that knows nothing of faults goes on by what it is told: `retryable`, and operations with their arguments.

It recovers from every fault that passes. Where a program failed by itself it asks a person, with the question as text.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import ColdframeError, from_wire
from coldframe.contract.sandbox import SandboxSpec
from tests.chaos.patience import connected
from tests.faults.faults import FAULTS, LIMITS
from tests.faults.jumping import JumpingInstallation
from tests.installation import wait_until

MOST_ATTEMPTS = 40
PASSES_AFTER = 2
"""Attempts."""
LINES = {
    "disk full": "head -c 8M /dev/zero > made-$KEY && echo done",
    "memory": "python3 -c 'made = bytearray(60 << 20)' && echo done",
    "cpu": "python3 -c 'sum(range(300000))' && echo done",
    "pids": "exec python3 -c 'import os; [os.fork() or os._exit(0) for n in range(8)]; print(\"done\")'",
    "port taken": "python3 -c 'import socket; socket.create_server((\"127.0.0.1\", 8099))' && echo done",
    "egress denied": "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 443), 2)' && echo done",
    "application crash": "[ -e passed ] || kill -SEGV $$; echo done",
    "guest lost": "echo done",
    "product killed": "echo done",
    "clock jump of 1 h": "echo done",
}
"""What is to be done, and is in the way of each fault."""
ASKS = {"port taken", "egress denied"}
"""A program that failed by itself: nobody but who wrote it knows what to do."""


class GenericClient:
    """Does one command, in whatever sandbox that takes. `operations` are what a name of an operation means to it."""

    def __init__(self, installation: JumpingInstallation, sandbox_id: str, spec: SandboxSpec) -> None:
        self._installation = installation
        self._spec = spec
        self.sandbox_id = sandbox_id
        self.attempts = 0
        self._number = 0
        self._operations: dict[str, Callable[[SyncColdframe, dict[str, Any]], object]] = {
            "sandbox.create": self._create,
            "sandbox.start": lambda client, given: self._sandbox(client, given).start_again(),
            "sandbox.resume": lambda client, given: self._sandbox(client, given).resume(),
            "sandbox.get": lambda client, given: self._sandbox(client, given),
            "run_command": lambda client, given: self._begin_anew(),
            "tool.call": lambda client, given: None,
        }

    def work(self, line: str, key: str, passing: Callable[[int], None]) -> str:
        """Empty once it is done, or else what a person is asked."""
        while self.attempts < MOST_ATTEMPTS:
            self.attempts += 1
            passing(self.attempts)
            told = self._attempt(line, key)
            if told is None:
                return ""
            if not told["retryable"] and not self._act(told["next_actions"]):
                return f"{told['state']}: {told['message'] or told['output']}"
            time.sleep(0.2)
        return "it does not come to an end"

    def _attempt(self, line: str, key: str) -> dict[str, Any] | None:
        try:
            with connected(self._installation) as client:
                sandbox = client.sandboxes.get(self.sandbox_id)
                result = sandbox.call("run_command", {"command": line}, idempotency_key=f"{key}-{self._number}")
                if result.error is not None:
                    raise from_wire(result.error)
                status = sandbox.command(str(result.value["command_id"])).status
                assert status is not None
                if status.state == "exited" and result.value["exit_code"] == 0:
                    return None
                if status.retryable:
                    self._begin_anew()
                output = f"{result.value['stdout']}{result.value['stderr']} (exit code {result.value['exit_code']})"
                return {**status.model_dump(), "output": output}
        except ColdframeError as error:
            wire = error.to_wire()
            return {**wire, "state": wire["code"], "retryable": wire["retry"] == "later", "output": ""}
        except (OSError, ValueError, KeyError):  # no server has written yet where it listens
            return {"state": "unreachable", "retryable": True, "next_actions": [], "message": "", "output": ""}

    def _act(self, actions: list[dict[str, Any]]) -> bool:
        """Do the first thing that is offered and that changes something; False if nothing is."""
        for action in actions:
            if action["op"] in self._operations:
                with contextlib.suppress(OSError, ValueError, KeyError), connected(self._installation) as client:
                    self._operations[action["op"]](client, action["args"])
                return True
        return False

    def _begin_anew(self) -> None:
        """Another call, not the outcome of the last one again."""
        self._number += 1

    def _sandbox(self, client: SyncColdframe, given: dict[str, Any]) -> SyncSandbox:
        return client.sandboxes.get(str(given.get("sandbox_id", self.sandbox_id)))

    def _create(self, client: SyncColdframe, given: dict[str, Any]) -> None:
        self.sandbox_id = client.sandboxes.create(spec=self._spec).id
        self._begin_anew()


@pytest.mark.once
@pytest.mark.timeout(300)
@pytest.mark.req("T3.72")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_client_that_knows_nothing_of_faults_recovers_or_asks_a_person(
    killable: JumpingInstallation, fault: str
) -> None:
    key = f"recover-{fault}".replace(" ", "-")
    spec = SandboxSpec(agent_id=key, limits=LIMITS, idle_timeout_s=1200)  # less than the clock jumps
    with connected(killable) as client:
        sandbox = client.sandboxes.create(spec=spec)
        sandbox.write_file(f"begun-{key}", "0\n")  # of whom the crash is to be
        # Not every kernel does in version 2, and nobody does of a limit of a user.
        tells_refused_forks = ("pids", "cgroup v1, read back") in [
            (one.kind, one.enforced_by) for one in sandbox.report().limits
        ]
        with contextlib.ExitStack() as while_it_lasts:
            while_it_lasts.enter_context(FAULTS[fault](killable, sandbox, key, fault))

            def pass_away(attempts: int) -> None:
                if attempts > PASSES_AFTER and fault not in ASKS:
                    while_it_lasts.close()
                    sandbox.write_file("passed", "")  # and what crashed is well now

            generic = GenericClient(killable, sandbox.id, spec)
            question = generic.work(LINES[fault].replace("$KEY", key), key, pass_away)
    with connected(killable) as client:
        for sandbox_id in {sandbox.id, generic.sandbox_id}:
            client.sandboxes.get(sandbox_id).terminate()
    if fault in ASKS or (fault == "pids" and question and not tells_refused_forks):
        assert question and generic.attempts == 1, (question, generic.attempts)
        assert len(question) > len("exited: "), question
    else:
        assert question == ""


@pytest.mark.req("T3.38")
def test_two_hours_later_another_client_finds_files_packages_server_and_named_session(
    killable: JumpingInstallation,
) -> None:
    with connected(killable) as client:
        sandbox = client.sandboxes.create("exchanges", profile="workspace")
        assert sandbox.run_command("mkdir -p node_modules/own && echo 7 > node_modules/own/index.js").exit_code == 0
        sandbox.write_file("file", "kept")
        sandbox.run_command("export WORD=known", shell_session="talk")
        server = sandbox.start("echo $$; exec python3 -m http.server 8099 --bind 127.0.0.1")
        pid = int(wait_until(server.output, "it runs"))
        text = {line["id"]: line["text"] for line in sandbox.contract()["lifecycle"]}["lifecycle.shell_sessions"]
        assert "name the same `shell_session`" in text
    try:
        killable.jump(7200)
        with connected(killable) as client:
            again = client.sandboxes.get(sandbox.id)
            assert again.read_file("file").content == "kept"
            assert again.read_file("node_modules/own/index.js").content == "7\n"
            fetch = "until curl -s http://127.0.0.1:8099/file; do sleep 0.05; done"
            assert again.run_command(fetch, timeout_s=60).stdout == "kept"
            assert [one.pid for one in again.processes()] == [pid]
            assert again.run_command("echo -$WORD-", shell_session="talk").stdout == "-known-\n"
            assert again.run_command("echo -$WORD-").stdout == "--\n"
            again.terminate()
    finally:
        killable.jump(0)
