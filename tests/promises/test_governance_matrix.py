"""Who may do what, and which hook stands before what: whole tables, tried on a running installation."""

from typing import Any

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.policy import Hook
from coldframe.policy.fields import SCHEMA
from tests.fronts.test_permissions import CREDENTIAL, ENDING, MATRIX
from tests.installation import Installation
from tests.promises.governed import EVERY_TOOL, NO_RULES, head, tokens_of
from tests.promises.raw import Answer, all_entries, call, rest

pytestmark = pytest.mark.once  # rights are the server's, which has none of root's
OF_CALLS = (Hook.PRE_TOOL_CALL, Hook.POST_TOOL_RESPONSE)
"""The others fire for what leaves a sandbox: `test_brokered_credentials.py`."""


@pytest.mark.req("T1.88")
def test_each_of_the_six_tools_can_be_stopped_at_either_hook(
    governed: Installation, owner: SyncColdframe, box: SyncSandbox
) -> None:
    assert {info.name for info in owner.tools()} == set(EVERY_TOOL)
    for hook in OF_CALLS:
        for stopped in EVERY_TOOL:
            owner.policy.load(
                f"version: 1\nrules:\n  - {{id: stop, hook: {hook}, when: {{tool: {stopped}}}, then: deny}}\n"
            )
            for tool, arguments in EVERY_TOOL.items():
                since = head(owner)
                answer = call(governed, box.id, tool, arguments)
                entries = all_entries(owner, after=since)
                outcomes = [(one.body["decision"]["hook"], one.body["decision"]["outcome"]) for one in entries]
                if tool != stopped:
                    assert answer.status == 200, (hook, tool, answer.body)
                    assert outcomes == [("PRE_TOOL_CALL", "allow"), ("POST_TOOL_RESPONSE", "allow")]
                else:
                    assert answer.json["error"]["facts"]["rule"] == "stop"
                    assert "value" not in answer.json and b"one" not in answer.body
                    before = [] if hook is Hook.PRE_TOOL_CALL else [("PRE_TOOL_CALL", "allow")]
                    assert outcomes == [*before, (hook.value, "deny")]


# The row asks for more hooks than there are so far; each comes with its own firing site, and then is seen here.
def test_every_hook_of_calls_fires_and_its_context_is_the_documented_one(
    governed: Installation, owner: SyncColdframe, box: SyncSandbox
) -> None:
    since = head(owner)
    for tool, arguments in EVERY_TOOL.items():
        assert call(governed, box.id, tool, arguments).status == 200
    seen = {one.body["decision"]["hook"]: one.body["context"] for one in all_entries(owner, after=since)}
    assert set(seen) == {hook.value for hook in OF_CALLS} and set(SCHEMA) == set(Hook)
    # A rule may ask for every field of the schema, and no other.
    samples = {"label": "PUBLIC", "number": 1, "flag": True, "output": {"contains": "x"}, "program": "ls"}
    for hook, fields in SCHEMA.items():
        for name, spec in fields.items():
            assert spec.meaning
            value = spec.choices[0] if spec.choices else samples.get(spec.kind, "x")
            owner.policy.load(
                f"version: 1\nrules:\n  - {{id: probe, hook: {hook}, when: {{{name}: {json_like(value)}}}, then: allow}}\n"
            )
            assert call(governed, box.id, "run_command", {"command": "true"}).status == 200, (hook, name)
        text = f"version: 1\nrules:\n  - {{id: probe, hook: {hook}, when: {{approved: true}}, then: deny}}\n"
        assert rest(governed, "PUT", "/v1/policy", text.encode()).code == "RULES_INVALID"


def json_like(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else "{contains: x}" if isinstance(value, dict) else str(value)


@pytest.mark.req("TP.17")
def test_every_route_with_a_real_token_of_every_role(
    governed: Installation, owner: SyncColdframe, box: SyncSandbox, agent_id: str
) -> None:
    """The table is that of the REST front; here it meets a real server, a real box and tokens made for it."""
    ran, taken = box.run_command("true"), box.take_snapshot()
    tokens = tokens_of(owner, agent_id)
    session = owner.sandboxes.get(box.id).info.session_id
    schema = rest(governed, "GET", "/openapi.json").json
    routes = {(method.upper(), path) for path, methods in schema["paths"].items() for method in methods}
    generic = ("POST", "/v1/sandboxes/{sandbox_id}/tools/{tool}")
    assert {route for route in routes if "/tools/" not in route[1]} | {generic} == set(MATRIX)
    made = []
    for (method, template), (payload, allowed) in MATRIX.items():
        for role, token in tokens.items():
            absent = role in allowed and (method, template) in ENDING
            names = {
                "{sandbox_id}": "sbx_none" if absent else box.id,
                "{snapshot_id}": "0" * 16 if absent else taken.snapshot_id,
                "{before}": taken.snapshot_id,
                "{after}": box.id,
                "{agent_id}": "none" if absent else agent_id,
                "{session_id}": session,
                "{command_id}": ran.command_id,
                "{receipt_id}": str(ran.result.receipt_id),
                "{token_id}": "tok_none" if absent else owner.tokens.list()[0].token_id,
                "{tool}": "run_command",
                "{path}": "scratch/a.txt",
                "{name}": "none",
                "{seq}": "1",
                "{sha256}": "0" * 64,
                "{watch_id}": "wch_0",
                "{template}": "none",
            }
            path = template
            for mark, value in names.items():
                path = path.replace(mark, value)
            body: object = payload
            if isinstance(payload, dict):
                replaced = {"sandbox_id": box.id, "agent_id": agent_id}
                body = {name: replaced.get(name, value) for name, value in payload.items()}
            elif method == "PUT":
                body = NO_RULES.encode() if path == "/v1/policy" else b"x"
            since = head(owner)
            answer = rest(governed, method, path, body, token=token)
            what = (method, path, role.value, answer.status, answer.body[:200])
            if role in allowed:
                assert answer.status not in (401, 500, 503) and answer.code != "GRANT_MISSING", what
                if (method, template) in (("POST", "/v1/sandboxes"), ("POST", "/v1/sandboxes/{sandbox_id}/fork")):
                    made.append(answer.json["sandbox_id"])
            else:
                assert (answer.status, answer.code) == (403, "GRANT_MISSING"), what
                assert {one.kind for one in all_entries(owner, after=since)} <= {
                    "act.refused",
                    "call.refused",
                    "policy.refused",
                }, what
    for sandbox_id in made:
        owner.sandboxes.get(sandbox_id).terminate()
    for route in MATRIX:
        if route[1] not in ("/v1/health",) and "{" not in route[1]:
            assert rest(governed, *route, token="cf_nobody").status == 401, route


# -- the list of what is allowed is what happens -------------------------------------------------------------------

TOOL_OPERATIONS: dict[str, tuple[str, dict[str, object]]] = {
    "tool.write_file": ("write_file", {"path": "scratch/a.txt", "content": "a"}),
    "tool.read_file": ("read_file", {"path": "scratch/a.txt"}),
    "tool.edit_file": ("edit_file", {"path": "scratch/a.txt", "old": "a", "new": "b"}),
    "tool.list_directory": ("list_directory", {"path": "scratch"}),
    "tool.search_files": ("search_files", {"pattern": "a", "path": "scratch"}),
    "tool.run_command": ("run_command", {"command": ["true"]}),
    "tool.run_command:shell": ("run_command", {"command": "true"}),
    "tool.run_command:opaque": ("run_command", {"command": 'eval "$x"'}),
    "tool.run_command:privilege": ("run_command", {"command": "sudo true"}),
    "tool.run_command:destroy": ("run_command", {"command": "rm -rf /"}),
    "tool.run_command:device": ("run_command", {"command": "mkfs.ext4 /dev/sda"}),
    "tool.run_command:power": ("run_command", {"command": "shutdown now"}),
}
OPERATIONS: dict[str, tuple[str, str, object]] = {
    "agent.clean": ("POST", "/v1/agents/AGENT/scratch/clean", None),
    "agent.create": ("POST", "/v1/agents", {"agent_id": "AGENT"}),
    "agent.delete": ("DELETE", "/v1/agents/none", None),
    "agent.read": ("GET", "/v1/agents", None),
    "artifact.correct": ("POST", "/v1/sandboxes/SANDBOX/artifacts/kind", {"name": "none", "kind": None}),
    "artifact.read": ("GET", "/v1/sandboxes/SANDBOX/artifacts", None),
    "build.cancel": ("POST", "/v1/builds/none/cancel", None),
    "build.read": ("GET", "/v1/builds", None),
    "build.rebuild": ("POST", "/v1/builds/none/rebuild", {}),
    "build.start": ("POST", "/v1/sandboxes/none/builds", {"phases": [{"name": "one", "command": "true"}]}),
    "command.read": ("GET", "/v1/sandboxes/SANDBOX/commands", None),
    "command.signal": ("POST", "/v1/sandboxes/SANDBOX/commands/COMMAND/signal", {"signal": 15}),
    "credential.add": ("POST", "/v1/credentials", CREDENTIAL),
    "credential.read": ("GET", "/v1/credentials", None),
    "credential.revoke": ("DELETE", "/v1/credentials/none", None),
    "credential.rotate": ("POST", "/v1/credentials/none/rotate", {"secret": "0123456789"}),
    "host.doctor": ("GET", "/v1/doctor", None),
    "label.set": ("PUT", "/v1/agents/AGENT/label", {"label": "PUBLIC", "reason": "table"}),
    "ledger.read": ("GET", "/v1/ledger/entries?limit=1", None),
    "ledger.verify": ("GET", "/v1/ledger/verify", None),
    "lineage.read": ("GET", "/v1/lineage?limit=1", None),
    "network.read": ("GET", "/v1/sandboxes/SANDBOX/network", None),
    "network.search": ("GET", "/v1/network", None),
    "policy.load": ("PUT", "/v1/policy", b"RULES"),
    "policy.read": ("GET", "/v1/policy", None),
    "preview.create": ("POST", "/v1/sandboxes/SANDBOX/previews", {"port": 9}),
    "preview.link": ("POST", "/v1/previews/none/link", None),
    "preview.publish": ("POST", "/v1/sandboxes/SANDBOX/previews", {"port": 10, "public": True}),
    "preview.read": ("GET", "/v1/previews", None),
    "preview.rebuild": ("POST", "/v1/previews/none/rebuild", {}),
    "preview.restart": ("POST", "/v1/previews/none/restart", {}),
    "preview.revoke": ("DELETE", "/v1/previews/none", None),
    "preview.stop": ("POST", "/v1/previews/none/stop", None),
    "preview.visit": ("GET", "/v1/sandboxes/SANDBOX/previews", None),
    "receipt.read": ("GET", "/v1/receipts/RECEIPT", None),
    "receipt.replay": ("POST", "/v1/receipts/RECEIPT/replay", {}),
    "sandbox.create": ("POST", "/v1/sandboxes", {"agent_id": "AGENT"}),
    "sandbox.extend": ("POST", "/v1/sandboxes/sbx_none/extend", {"for_s": 1}),
    "sandbox.pause": ("POST", "/v1/sandboxes/sbx_none/pause", {}),
    "sandbox.promote": ("POST", "/v1/sandboxes/sbx_none/promote", {"to": "computer"}),
    "sandbox.read": ("GET", "/v1/sandboxes/SANDBOX", None),
    "sandbox.reset": ("POST", "/v1/sandboxes/SANDBOX/reset", {"to": "empty", "dry_run": True}),
    "sandbox.resume": ("POST", "/v1/sandboxes/sbx_none/resume", None),
    "sandbox.start": ("POST", "/v1/sandboxes/sbx_none/start", None),
    "sandbox.stop": ("POST", "/v1/sandboxes/sbx_none/stop", None),
    "sandbox.terminate": ("DELETE", "/v1/sandboxes/sbx_none", None),
    "session.read": ("GET", "/v1/sessions/SESSION", None),
    "session.reset": ("POST", "/v1/sessions/SESSION/reset", None),
    "snapshot.export": ("GET", "/v1/snapshots/0000000000000000/archive", None),
    "snapshot.import": ("POST", "/v1/snapshots", b"no archive"),
    "snapshot.read": ("GET", "/v1/snapshots", None),
    "snapshot.remove": ("DELETE", "/v1/snapshots/0000000000000000", None),
    "snapshot.rename": ("PUT", "/v1/snapshots/0000000000000000/name", {"name": "table"}),
    "snapshot.take": ("POST", "/v1/sandboxes/SANDBOX/snapshots", {}),
    "template.build": ("POST", "/v1/template-inputs/missing", {"sha256": []}),
    "template.mark": ("POST", "/v1/templates/none:1/mark", {"check": "true"}),
    "template.read": ("GET", "/v1/templates", None),
    "template.remove": ("DELETE", "/v1/templates/none:1", None),
    "template.verify": ("POST", "/v1/templates/none:1/verify", None),
    "template.withdraw": ("POST", "/v1/templates/none:1/withdraw", {"why": "table"}),
    "token.create": ("POST", "/v1/tokens", {"role": "viewer", "name": "table"}),
    "token.list": ("GET", "/v1/tokens", None),
    "token.revoke": ("DELETE", "/v1/tokens/tok_none", None),
    "volume.attach": ("POST", "/v1/sandboxes", {"agent_id": "AGENT", "volumes": [{"name": "none"}]}),
    "volume.create": ("POST", "/v1/volumes", {"name": "table"}),
    "volume.grant": ("POST", "/v1/volumes/none/grants", {"agent_id": "table"}),
    "volume.look": ("GET", "/v1/volumes/none/files", None),
    "volume.read": ("GET", "/v1/volumes", None),
    "volume.remove": ("DELETE", "/v1/volumes/none", None),
    "volume.write": ("DELETE", "/v1/volumes/none/files/a", None),
    "webhook.add": ("POST", "/v1/webhooks", {"url": "nowhere at all"}),
    "webhook.read": ("GET", "/v1/webhooks", None),
    "webhook.remove": ("DELETE", "/v1/webhooks/none", None),
}
RULE_SETS = {
    "none": NO_RULES,
    "strict": "version: 1\nsettings: {strict_parsing: true}\n",
    "asking": "version: 1\nrules:\n  - {id: ask-true, hook: PRE_TOOL_CALL, when: {program: 'true'}, then: ask}\n",
    "reading": "version: 1\nsettings: {disabled_tools: {agent: [write_file, edit_file], member: ['*']}}\n",
    "listed": "version: 1\nsettings: {allow_programs: ['ls']}\n",
    "tainted": "version: 1\nrules:\n  - {id: clean-only, hook: PRE_TOOL_CALL, when: {taint: {at_least: INTERNAL}}, then: deny}\n",
}
SWITCHED_OFF = {
    ("reading", "agent"): {"write_file", "edit_file"},
    ("reading", "member"): {one.removeprefix("tool.").partition(":")[0] for one in TOOL_OPERATIONS},
}
"""Tools that are switched off, and so not listed, by rule set and role."""
TAINTING = "version: 1\nrules:\n  - {id: taint, hook: PRE_TOOL_CALL, when: {tool: list_directory}, label: INTERNAL}\n"


def told(answer: Answer) -> str:
    """What a real call came to, in the words of the list."""
    if answer.code in ("GRANT_MISSING", "DENIED_BY_RULE", "NOT_IN_PROFILE"):
        return "deny"
    return "ask" if answer.code == "PENDING_APPROVAL" else "allow"


@pytest.mark.req("T3.08")
def test_the_list_of_allowed_operations_is_what_happens(
    governed: Installation, owner: SyncColdframe, box: SyncSandbox, agent_id: str
) -> None:
    """40 operations × 6 rule sets × 5 roles, each really asked for; there is one profile so far."""
    tokens = tokens_of(owner, agent_id)
    ran = box.run_command("true")
    session = owner.sandboxes.get(box.id).info.session_id
    mismatches, asked = [], 0
    for name, text in RULE_SETS.items():
        if name == "tainted":
            owner.policy.load(TAINTING)
            box.list_directory()
        owner.policy.load(text)
        for role, token in tokens.items():
            marks: dict[str, Any] = {"AGENT": agent_id, "SANDBOX": box.id, "SESSION": session}
            marks |= {"COMMAND": ran.command_id, "RECEIPT": ran.result.receipt_id}
            answer = rest(governed, "GET", f"/v1/sandboxes/{box.id}/allowed", token=token)
            listed = {one["operation"]: one["answer"] for one in answer.json}
            # `tool.call` and `file.read` are the rights to call tools at all; what comes of it is said tool by tool.
            off = SWITCHED_OFF.get((name, role), set())
            expected = {one for one in TOOL_OPERATIONS if one.removeprefix("tool.").partition(":")[0] not in off}
            assert set(listed) - {"tool.call", "file.read"} == set(OPERATIONS) | expected
            real = {
                operation: told(call(governed, box.id, *what, token=token))
                for operation, what in TOOL_OPERATIONS.items()
            }
            for operation, (method, path, payload) in OPERATIONS.items() if name == "none" else ():
                for mark, value in marks.items():
                    path = path.replace(mark, value)
                body = text.encode() if payload == b"RULES" else payload
                if isinstance(body, dict):
                    body = {key: marks.get(str(value), value) for key, value in body.items()}
                answer = rest(governed, method, path, body, token=token)
                assert answer.status < 500, (operation, answer.body)
                real[operation] = told(answer)
                if operation == "sandbox.create" and answer.status < 300:
                    owner.sandboxes.get(answer.json["sandbox_id"]).terminate()
            asked += len(real)
            mismatches += [
                (name, role, one, listed.get(one), real[one]) for one in real if listed.get(one, "deny") != real[one]
            ]
            unlisted = call(governed, box.id, "delete_everything", {}, token=token)
            assert unlisted.code in ("UNKNOWN_TOOL", "GRANT_MISSING")
    assert mismatches == []
    assert asked == 5 * (6 * len(TOOL_OPERATIONS) + len(OPERATIONS))
