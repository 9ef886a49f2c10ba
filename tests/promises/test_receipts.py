"""The contract says beforehand what holds, the receipt says afterwards what was done; both can be checked by anybody."""

import hashlib
import json
from typing import Any

import jsonschema
import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.sandbox import Limits, SandboxSpec
from tests.installation import Installation
from tests.promises.raw import call, own_installation, rest


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def canonical_sha256(content: dict[str, Any], without: str) -> str:
    """SHA-256 of the documented canonical JSON of everything but one field."""
    rest_of_it = {name: value for name, value in content.items() if name != without}
    return sha256(json.dumps(rest_of_it, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode())


WORK = """
import os, subprocess, sys
print('to stdout \\u00e9')
sys.stdout.flush()
os.write(2, b'to stderr \\xff')
open('made.txt', 'w').write('made')
open('grown.txt', 'a').write(' and more')
os.remove('gone.txt')
os.utime('touched.txt', (1, 1))
os.chmod('moded.txt', 0o600)
os.mkdir('folder')
subprocess.Popen(['sh', '-c', 'sleep 0.05; echo from a child > child.txt'])
sys.exit(3)
"""


@pytest.mark.req("T3.14")
def test_all_that_a_receipt_says_is_recomputed_from_stored_bytes(
    installation: Installation, client: SyncColdframe, sandbox: SyncSandbox
) -> None:
    before = {
        "grown.txt": b"little",
        "gone.txt": b"old",
        "touched.txt": b"same",
        "moded.txt": b"same",
        "other.txt": b"x",
    }
    for name, data in before.items():
        sandbox.upload(name, data)
    answer = sandbox.run_command(["python3", "-c", WORK])
    receipt = client.receipt(str(answer.result.receipt_id))
    assert receipt == rest(installation, "GET", f"/v1/receipts/{answer.result.receipt_id}").json
    assert receipt["digest"] == canonical_sha256(receipt, "digest")
    assert (receipt["exit_code"], receipt["signal"], receipt["ended"]) == (3, None, "exited")
    for stream in ("stdout", "stderr"):
        kept = rest(
            installation, "GET", f"/v1/sandboxes/{sandbox.id}/commands/{answer.command_id}/output?stream={stream}"
        )
        assert (receipt[stream]["bytes"], receipt[stream]["sha256"]) == (len(kept.body), sha256(kept.body))
    assert receipt["stderr"]["invalid_utf8"] and not receipt["stdout"]["invalid_utf8"]
    changes = {one["path"]: one for one in receipt["files"]["changes"]}
    assert {path: one["change"] for path, one in changes.items()} == {
        "made.txt": "created",
        "child.txt": "created",
        "folder": "created",
        "grown.txt": "changed",
        "gone.txt": "deleted",
        "touched.txt": "metadata",
        "moded.txt": "metadata",
    }
    for path, one in changes.items():
        if one["kind"] == "file":
            assert one["sha256_before"] == (sha256(before[path]) if path in before else None), path
            now = None if path == "gone.txt" else sha256(b"".join(sandbox.download(path)))
            assert one["sha256_after"] == now, path
    assert receipt["tree_sha256_before"] != receipt["tree_sha256_after"]
    again = sandbox.run_command("true")
    assert again.files is not None and again.files.tree_sha256_before == receipt["tree_sha256_after"]
    assert again.files.changes == ()


@pytest.mark.req("T3.14")
def test_a_program_that_prints_a_receipt_changes_none(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    genuine = client.receipt(str(sandbox.run_command("exit 4").result.receipt_id))
    forged = {
        **genuine,
        "exit_code": 0,
        "command": "true",
        "label": "PUBLIC",
        "files": {"recorded": True, "changes": []},
    }
    text = json.dumps({"event": "ended", "receipt": forged})
    sandbox.upload("receipt.json", text)
    command = "cat receipt.json; cat receipt.json >&2; cp receipt.json rcp.json; exit 4"
    receipt = client.receipt(str(sandbox.run_command(command).result.receipt_id))
    assert (receipt["command"], receipt["exit_code"], receipt["ended"]) == (command, 4, "exited")
    assert (
        receipt["stdout"]
        == receipt["stderr"]
        == {"bytes": len(text), "sha256": sha256(text.encode()), "invalid_utf8": False}
    )
    assert [one["path"] for one in receipt["files"]["changes"]] == ["rcp.json"]
    assert (receipt["receipt_id"] != genuine["receipt_id"]) and receipt["digest"] == canonical_sha256(receipt, "digest")
    assert client.receipt(genuine["receipt_id"]) == genuine


@pytest.mark.req("T3.15")
@pytest.mark.without_way_out
def test_the_contract_is_there_before_the_first_command_and_the_same_everywhere(
    installation: Installation, client: SyncColdframe, sandbox: SyncSandbox
) -> None:
    """Through REST, SDK and command line; MCP and the console join with their fronts."""
    assert sandbox.commands() == []
    answer = rest(installation, "GET", f"/v1/sandboxes/{sandbox.id}/contract").json
    assert answer["contract"] == "contract/v1"
    schema = rest(installation, "GET", "/openapi.json").json
    reference = {"$ref": "#/components/schemas/ContractDocument", "components": schema["components"]}
    jsonschema.Draft202012Validator(reference).validate(answer)
    for section in ("inputs", "execution", "outputs", "persistence", "permissions", "isolation", "not_prevented"):
        assert answer[section], section
        assert all(line["id"].startswith(section) and line["verified_by"] for line in answer[section])
    assert sandbox.contract() == answer
    assert json.loads(installation.cli("contract", "show", sandbox.id, "--json").stdout) == answer
    assert answer["sha256"].encode() in installation.cli("contract", "show", sandbox.id).stdout
    assert answer["sha256"] == canonical_sha256(answer, "sha256")
    receipt = client.receipt(str(sandbox.run_command("true").result.receipt_id))
    assert (receipt["contract_version"], receipt["contract_sha256"]) == (1, answer["sha256"])
    for undefined in (
        {"template": "../none"},
        {"isolation": "none"},
        {"network": "bridge"},
        {"limits": {"pids": None}},
        {"extra": 1},
    ):
        refused = rest(installation, "POST", "/v1/sandboxes", {"agent_id": "undefined", **undefined})
        assert (refused.status, refused.code) == (400, "INVALID_ARGUMENT"), undefined
    refused = rest(installation, "POST", "/v1/sandboxes", {"agent_id": "undefined", "template": "nobody-built-it"})
    assert (refused.status, refused.code) == (404, "NOT_FOUND")


ALWAYS_OWN = {
    "receipt_id", "call_id", "previous_receipt_id", "digest", "ledger_seqs", "decision", "result_decision", "started_at",
    "ended_at", "duration_us", "cpu_us", "peak_memory_bytes",
}  # fmt: skip
"""What differs between any two runs: names, places in the ledger, and measurements."""


# There is one user, one template (the machine's own system, which has no digest) and one isolation level as yet, so
# that these three cannot be varied.
@pytest.mark.req("T3.17")
def test_each_input_shows_in_its_own_field_of_the_receipt_and_in_no_other() -> None:
    base: dict[str, Any] = {"command": "cat; echo ${GREETING:-none}; pwd; true"}
    varied: dict[str, tuple[dict[str, Any], set[str]]] = {
        "text": ({"command": base["command"] + " "}, {"command", "arguments_sha256"}),
        "argv": ({"command": ["true"]}, {"command", "argv", "arguments_sha256", "stdout", "outputs"}),
        "cwd": ({"cwd": "scratch"}, {"cwd", "arguments_sha256", "stdout", "outputs"}),
        "environment": ({"env": {"GREETING": "hi"}}, {"inputs.environment", "arguments_sha256", "stdout", "outputs"}),
        "stdin": (
            {"stdin": "typed\n"},
            {"inputs.stdin_bytes", "inputs.stdin_sha256", "arguments_sha256", "stdout", "outputs"},
        ),
        "runtime": (
            {"command": "1", "runtime": "python3"},
            {
                "command",
                "argv",
                "runtime",
                "inputs.runtime_path",
                "inputs.runtime_version",
                "arguments_sha256",
                "stdout",
                "outputs",
            },
        ),
    }
    with own_installation() as home, SyncColdframe(home.url, home.token) as client:

        def receipt(sandbox: SyncSandbox, arguments: dict[str, Any]) -> dict[str, Any]:
            answer = call(home, sandbox.id, "run_command", arguments)
            assert answer.status == 200, answer.body
            return client.receipt(answer.json["receipt_id"])

        def differing(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
            names = {name for name in one if name != "inputs" and one[name] != other[name]}
            names |= {f"inputs.{name}" for name in one["inputs"] if one["inputs"][name] != other["inputs"][name]}
            return names - ALWAYS_OWN

        with client.sandboxes.create(agent_id="varied") as sandbox:
            first = receipt(sandbox, base)
            assert differing(first, receipt(sandbox, base)) == set()
            for name, (change, fields) in varied.items():
                other = receipt(sandbox, {**base, **change})
                assert differing(first, other) == fields, name
            # Decision: other rules in force, same call. The contract names them, so it has a new version.
            client.policy.load("version: 1\n# the same in other words\n")
            other = receipt(sandbox, base)
            assert differing(first, other) == {"contract_version", "contract_sha256"}
            assert other["decision"]["rules_sha256"] != first["decision"]["rules_sha256"]
            assert other["decision"]["context_sha256"] == first["decision"]["context_sha256"]
            sandbox.write_file("new.txt", "x")
            tree = receipt(sandbox, base)
            assert differing(other, tree) == {"tree_sha256_before", "tree_sha256_after", "files"}
            # Environment values stand as digests only.
            digest = receipt(sandbox, {**base, "env": {"GREETING": "hi"}})["inputs"]["environment"]
            assert digest == {"GREETING": sha256(b"hi")}
            # A second person does it again, from the receipt alone.
            again = receipt(sandbox, {"command": tree["command"], "cwd": tree["cwd"]})
            assert (again["stdout"], again["tree_sha256_after"]) == (tree["stdout"], tree["tree_sha256_after"])
        spec = SandboxSpec(agent_id="varied", limits=Limits(wall_s=60.0))
        with client.sandboxes.create(spec=spec) as limited:
            fields = differing(tree, receipt(limited, base))
            assert fields == {"inputs.limits", "sandbox_id", "session_id", "contract_version", "contract_sha256"}
            assert client.policy.show().text
