"""Commands of the command line that only tell what another surface does: each gives that, and has its sentence for people."""

import json
from typing import Any

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.sandbox import SandboxSpec
from tests.surfaces.conftest import Lines

pytestmark = pytest.mark.req("T4.83")


def told(cli: Lines, *words: str, **options: Any) -> Any:
    done = cli("--json", *words, **options)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def said(cli: Lines, *words: str) -> str:
    done = cli(*words)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_agents_sessions_receipts_and_inputs(cli: Lines, client: SyncColdframe, sandbox: SyncSandbox) -> None:
    agent_id, session_id = str(sandbox.info.agent_id), sandbox.info.session_id
    assert told(cli, "agent", "show", agent_id) == client.agents.get(agent_id).model_dump(mode="json")
    assert "workspace label PUBLIC" in said(cli, "agent", "show", agent_id)
    assert told(cli, "session", "show", session_id)["sandbox_id"] == sandbox.id
    assert said(cli, "session", "show", session_id).startswith(f"{session_id} of {sandbox.id}: PUBLIC")
    receipt_id = str(sandbox.call("run_command", {"command": "exit 3"}).receipt_id)
    assert told(cli, "ledger", "receipt", receipt_id)["exit_code"] == 3
    attached = told(cli, "files", "attach", sandbox.id, "-", "--name", "given.txt", input=b"given\n")
    assert sandbox.read_file(attached["path"]).content == "given\n"
    unnamed = cli("--json", "files", "attach", sandbox.id, "-", input=b"")
    assert (unnamed.returncode, json.loads(unnamed.stderr)["error"]["code"]) == (2, "INVALID_ARGUMENT")
    assert told(cli, "sandbox", "credentials", sandbox.id) == []
    reset = told(cli, "session", "reset", session_id)
    assert reset["session_id"] != session_id and reset["taint"] == "PUBLIC"


def test_the_result_of_a_sandbox_that_goes_once_somebody_has_it(cli: Lines, client: SyncColdframe) -> None:
    spec = SandboxSpec(
        background=True, on_result="delete", outputs=("made.txt",), max_age_s=600, on_timeout="terminate"
    )
    sandbox = client.sandboxes.create(spec=spec)
    sandbox.write_file("made.txt", "made\n")
    assert told(cli, "sandbox", "result", sandbox.id)["state"] == "open"
    offered = told(cli, "sandbox", "offer-result", sandbox.id)
    assert (offered["state"], [one["path"] for one in offered["files"]]) == ("awaiting_fetch", ["made.txt"])
    assert "made.txt, 5 bytes" in said(cli, "sandbox", "result", sandbox.id)
    wrong = cli("--json", "sandbox", "confirm-result", sandbox.id, "0" * 64)
    assert (wrong.returncode, json.loads(wrong.stderr)["error"]["code"]) == (6, "CONFLICT")
    assert told(cli, "sandbox", "confirm-result", sandbox.id, offered["sha256"])["state"] in ("deleting", "deleted")


def test_web_hooks(cli: Lines, client: SyncColdframe) -> None:
    made = told(cli, "webhook", "add", "https://hooks.example.invalid/x", "--event", "build.ended", "--min-s", "5")
    webhook_id = made["webhook"]["webhook_id"]
    assert made["secret"].startswith("whsec_") and made["webhook"]["terms"]["events"] == ["build.ended"]
    assert webhook_id in [one["webhook_id"] for one in told(cli, "webhook", "list")]
    assert "is active: build.ended to https://hooks.example.invalid/x" in said(cli, "webhook", "show", webhook_id)
    resumed = cli("--json", "webhook", "resume", webhook_id)
    assert (resumed.returncode, json.loads(resumed.stderr)["error"]["code"]) == (6, "WRONG_STATE")
    assert told(cli, "webhook", "remove", webhook_id) == {"webhook_id": webhook_id, "removed": True}
    assert webhook_id not in [one.webhook_id for one in client.webhooks.list()]
