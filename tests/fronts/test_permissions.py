"""The permission matrix: every route that changes something, and every reading one, with every role (TP.17)."""

import json
from collections.abc import Iterator

import pytest

from coldframe.client.sync import SyncColdframe
from coldframe.contract.policy import Role
from tests.fronts.served import Served

OWNER, AGENT = {Role.OWNER}, {Role.AGENT}
ADMINS = OWNER | {Role.ADMIN}
WORKERS = ADMINS | {Role.MEMBER}
PEOPLE = WORKERS | {Role.VIEWER}
ALL = PEOPLE | AGENT
# Operation: body, and who may. Written down here a second time on purpose: the product's own table is what is tested.
CREDENTIAL = {
    "name": "matrix",
    "base": "https://api.example.com",
    "variable": "MATRIX",
    "agents": ["nobody"],
    "secret": "0123456789",
}
MATRIX: dict[tuple[str, str], tuple[object, set[Role]]] = {
    ("POST", "/v1/sandboxes"): ({"agent_id": "matrix"}, WORKERS),
    ("POST", "/v1/sandboxes/terminate"): ({"agent_id": "matrix", "dry_run": True}, WORKERS),
    ("DELETE", "/v1/sandboxes/{sandbox_id}"): (None, WORKERS),
    ("POST", "/v1/sandboxes/{sandbox_id}/pause"): ({"kind": "memory"}, WORKERS),
    ("POST", "/v1/sandboxes/{sandbox_id}/promote"): ({"to": "workspace"}, WORKERS),
    ("GET", "/v1/sandboxes/{sandbox_id}/description"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/summary"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/overview"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/git/status"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/git/log"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/git/show"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/git/diff"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/git/refs"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/git/repositories"): (None, ALL),
    ("POST", "/v1/sandboxes/{sandbox_id}/git/init"): ({"path": "made"}, WORKERS | AGENT),
    ("POST", "/v1/sandboxes/{sandbox_id}/git/clone"): ({"url": "none"}, WORKERS | AGENT),
    ("POST", "/v1/sandboxes/{sandbox_id}/git/commit"): ({"message": "matrix"}, WORKERS | AGENT),
    ("POST", "/v1/sandboxes/{sandbox_id}/git/branch"): ({"name": "matrix"}, WORKERS | AGENT),
    ("POST", "/v1/sandboxes/{sandbox_id}/git/switch"): ({"to": "matrix"}, WORKERS | AGENT),
    ("POST", "/v1/sandboxes/{sandbox_id}/git/merge"): ({"abort": True}, WORKERS | AGENT),
    ("POST", "/v1/sandboxes/{sandbox_id}/git/restore"): ({"paths": ["a"]}, WORKERS | AGENT),
    ("POST", "/v1/sandboxes/{sandbox_id}/git/tag"): ({"name": "matrix"}, WORKERS | AGENT),
    ("POST", "/v1/sandboxes/{sandbox_id}/git/fetch"): ({}, WORKERS | AGENT),
    ("POST", "/v1/sandboxes/{sandbox_id}/git/push"): ({}, WORKERS | AGENT),
    ("GET", "/v1/profiles"): (None, ALL),
    ("POST", "/v1/profiles/recommend"): ({"files": True}, ALL),
    ("POST", "/v1/sandboxes/{sandbox_id}/resume"): (None, WORKERS),
    ("POST", "/v1/sandboxes/{sandbox_id}/stop"): (None, WORKERS),
    ("POST", "/v1/sandboxes/{sandbox_id}/start"): (None, WORKERS),
    ("POST", "/v1/sandboxes/{sandbox_id}/extend"): ({"for_s": 9}, WORKERS),
    ("POST", "/v1/sandboxes/{sandbox_id}/snapshots"): ({"name": "matrix"}, WORKERS | AGENT),
    ("POST", "/v1/sandboxes/{sandbox_id}/reset"): ({"to": "empty", "dry_run": True}, WORKERS),
    ("POST", "/v1/sandboxes/{sandbox_id}/fork"): ({"background": True}, WORKERS),
    ("GET", "/v1/snapshots"): (None, ALL),
    ("POST", "/v1/snapshots"): (None, WORKERS),
    ("GET", "/v1/snapshots/{snapshot_id}"): (None, ALL),
    ("PUT", "/v1/snapshots/{snapshot_id}/name"): ({"name": "matrix"}, WORKERS | AGENT),
    ("DELETE", "/v1/snapshots/{snapshot_id}"): (None, WORKERS),
    ("GET", "/v1/snapshots/{snapshot_id}/archive"): (None, ADMINS),
    ("POST", "/v1/template-inputs/missing"): ({"sha256": []}, WORKERS),
    ("PUT", "/v1/template-inputs/{sha256}"): (None, WORKERS),
    ("POST", "/v1/template-builds"): ({"recipe": {"name": "matrix", "base": "none"}}, WORKERS),
    ("GET", "/v1/template-builds"): (None, ALL),
    ("GET", "/v1/template-builds/{build_id}"): (None, ALL),
    ("GET", "/v1/template-builds/{build_id}/log"): (None, ALL),
    ("POST", "/v1/template-builds/{build_id}/cancel"): (None, WORKERS),
    ("GET", "/v1/templates"): (None, ALL),
    ("GET", "/v1/templates/{template}"): (None, ALL),
    ("DELETE", "/v1/templates/{template}"): (None, ADMINS),
    ("GET", "/v1/templates/{template}/tags"): (None, ALL),
    ("POST", "/v1/templates/{template}/tags"): ({"tags": ["matrix"]}, WORKERS),
    ("POST", "/v1/templates/{template}/untag"): ({"tags": ["matrix"]}, WORKERS),
    ("POST", "/v1/templates/{template}/verify"): (None, WORKERS),
    ("POST", "/v1/templates/{template}/mark"): ({"check": "true"}, WORKERS),
    ("POST", "/v1/templates/{template}/withdraw"): ({"why": "matrix"}, ADMINS),
    ("POST", "/v1/sandboxes/{sandbox_id}/previews"): ({"port": 8000}, WORKERS | AGENT),
    ("GET", "/v1/sandboxes/{sandbox_id}/previews"): (None, ALL),
    ("GET", "/v1/previews"): (None, ALL),
    ("GET", "/v1/previews/{preview_id}"): (None, ALL),
    ("PATCH", "/v1/previews/{preview_id}"): ({}, WORKERS | AGENT),
    ("DELETE", "/v1/previews/{preview_id}"): (None, WORKERS | AGENT),
    ("POST", "/v1/previews/{preview_id}/link"): (None, WORKERS | AGENT),
    ("POST", "/v1/previews/{preview_id}/stop"): (None, WORKERS | AGENT),
    ("POST", "/v1/previews/{preview_id}/restart"): ({}, WORKERS | AGENT),
    ("POST", "/v1/previews/{preview_id}/rebuild"): ({}, WORKERS),
    ("GET", "/v1/previews/{preview_id}/log"): (None, ALL),
    ("POST", "/v1/sandboxes/{sandbox_id}/builds"): (
        {"phases": [{"name": "one", "command": "true"}]},
        WORKERS | AGENT,
    ),
    ("GET", "/v1/sandboxes/{sandbox_id}/artifacts"): (None, ALL),
    ("POST", "/v1/sandboxes/{sandbox_id}/artifacts/kind"): ({"name": "none", "kind": "log"}, WORKERS),
    ("GET", "/v1/receipts/{receipt_id}/diff/{other_id}"): (None, ALL),
    ("GET", "/v1/receipts/{receipt_id}/hunks/{other_id}"): (None, ALL),
    ("GET", "/v1/builds"): (None, ALL),
    ("GET", "/v1/builds/{build_id}"): (None, ALL),
    ("POST", "/v1/builds/{build_id}/cancel"): (None, WORKERS | AGENT),
    ("POST", "/v1/builds/{build_id}/rebuild"): ({}, WORKERS),
    ("GET", "/v1/builds/{build_id}/compare/{other_id}"): (None, ALL),
    ("GET", "/v1/builds/{build_id}/log"): (None, ALL),
    ("POST", "/v1/volumes"): ({"name": "matrix"}, WORKERS),
    ("GET", "/v1/volumes"): (None, ALL),
    ("GET", "/v1/volumes/{name}"): (None, ALL),
    ("DELETE", "/v1/volumes/{name}"): (None, ADMINS),
    ("POST", "/v1/volumes/{name}/grants"): ({"agent_id": "matrix"}, ADMINS),
    ("DELETE", "/v1/volumes/{name}/grants/{agent_id}"): (None, ADMINS),
    ("GET", "/v1/volumes/{name}/files"): (None, WORKERS),
    ("GET", "/v1/volumes/{name}/files/{path}"): (None, WORKERS),
    ("PUT", "/v1/volumes/{name}/files/{path}"): (None, WORKERS),
    ("DELETE", "/v1/volumes/{name}/files/{path}"): (None, WORKERS),
    ("GET", "/v1/compare/{before}/{after}"): (None, ALL),
    ("GET", "/v1/compare/{before}/{after}/files/{path}"): (None, ALL),
    ("POST", "/v1/sandboxes/{sandbox_id}/tools/{tool}"): ({"command": "true"}, WORKERS | AGENT),
    ("PUT", "/v1/sandboxes/{sandbox_id}/files/{path}"): (None, WORKERS | AGENT),
    ("DELETE", "/v1/sandboxes/{sandbox_id}/files/{path}"): (None, WORKERS | AGENT),
    ("POST", "/v1/sandboxes/{sandbox_id}/commands/{command_id}/signal"): ({"signal": 15}, WORKERS | AGENT),
    ("POST", "/v1/sandboxes/{sandbox_id}/commands/{command_id}/resize"): ({"columns": 9, "rows": 9}, WORKERS | AGENT),
    ("POST", "/v1/sandboxes/{sandbox_id}/commands/{command_id}/stdin"): (None, WORKERS | AGENT),
    ("POST", "/v1/sandboxes/{sandbox_id}/commands/{command_id}/limits"): ({"timeout_s": 9}, WORKERS | AGENT),
    ("POST", "/v1/sandboxes/{sandbox_id}/pipelines"): (
        {"steps": [{"name": "a", "command": "true"}]},
        WORKERS | AGENT,
    ),
    ("POST", "/v1/sandboxes/{sandbox_id}/pipelines/{pipeline_id}/rerun"): ({}, WORKERS | AGENT),
    ("POST", "/v1/sandboxes/{sandbox_id}/pipelines/{pipeline_id}/cancel"): (None, WORKERS | AGENT),
    ("GET", "/v1/sandboxes/{sandbox_id}/pipelines"): (None, ALL),
    ("POST", "/v1/sandboxes/{sandbox_id}/cells"): ({"code": "1", "context_id": f"ctx_{20 * '0'}"}, WORKERS | AGENT),
    ("GET", "/v1/sandboxes/{sandbox_id}/cells/{cell_id}"): (None, ALL),
    ("POST", "/v1/sandboxes/{sandbox_id}/cells/{cell_id}/interrupt"): (None, WORKERS | AGENT),
    ("GET", "/v1/sandboxes/{sandbox_id}/contexts"): (None, ALL),
    ("POST", "/v1/sandboxes/{sandbox_id}/contexts"): ({"language": "bash"}, WORKERS | AGENT),
    ("POST", "/v1/sandboxes/{sandbox_id}/contexts/{context_id}/restart"): (None, WORKERS | AGENT),
    ("DELETE", "/v1/sandboxes/{sandbox_id}/contexts/{context_id}"): (None, WORKERS | AGENT),
    ("POST", "/v1/sandboxes/{sandbox_id}/attachments"): (None, WORKERS | AGENT),
    ("POST", "/v1/once"): ({"code": "1", "again": f"once_{24 * '0'}"}, WORKERS | AGENT),
    ("GET", "/v1/once/{once_id}"): (None, ALL),
    ("DELETE", "/v1/once/{once_id}"): (None, WORKERS | AGENT),
    ("GET", "/v1/once/{once_id}/outputs/{path}"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/pipelines/{pipeline_id}"): (None, ALL),
    ("POST", "/v1/agents"): ({"agent_id": "matrix"}, WORKERS),
    ("DELETE", "/v1/agents/{agent_id}"): (None, ADMINS),
    ("PUT", "/v1/agents/{agent_id}/label"): ({"label": "INTERNAL", "reason": "test"}, ADMINS),
    ("POST", "/v1/agents/{agent_id}/scratch/clean"): (None, WORKERS),
    ("POST", "/v1/sessions/{session_id}/reset"): (None, OWNER),
    ("PUT", "/v1/policy"): (None, ADMINS),
    ("POST", "/v1/policy/check"): (
        {"sandbox_id": "SANDBOX", "tool": "run_command", "arguments": {"command": "ls"}},
        PEOPLE,
    ),
    ("POST", "/v1/tokens"): ({"role": "viewer", "name": "matrix"}, ADMINS),
    ("DELETE", "/v1/tokens/{token_id}"): (None, ADMINS),
    ("GET", "/v1/tokens"): (None, ADMINS),
    ("GET", "/v1/policy"): (None, PEOPLE),
    ("GET", "/v1/policy/log"): (None, PEOPLE),
    ("GET", "/v1/policy/versions/{sha256}"): (None, PEOPLE),
    ("GET", "/v1/policy/replay/{seq}"): (None, PEOPLE),
    ("GET", "/v1/ledger/entries"): (None, PEOPLE),
    ("GET", "/v1/ledger/verify"): (None, PEOPLE),
    ("GET", "/v1/ledger/export"): (None, PEOPLE),
    ("GET", "/v1/lineage"): (None, PEOPLE),
    ("GET", "/v1/lineage/{item_id}"): (None, PEOPLE),
    ("GET", "/v1/lineage/{item_id}/trace"): (None, PEOPLE),
    ("GET", "/v1/doctor"): (None, PEOPLE),
    ("GET", "/v1/pool"): (None, PEOPLE),
    ("GET", "/v1/errors"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/result"): (None, PEOPLE),
    ("POST", "/v1/sandboxes/{sandbox_id}/result"): (None, WORKERS),
    ("POST", "/v1/sandboxes/{sandbox_id}/result/confirm"): ({"sha256": "0" * 64}, WORKERS),
    ("GET", "/v1/receipts/{receipt_id}"): (None, ALL),
    ("POST", "/v1/receipts/{receipt_id}/replay"): ({}, WORKERS),
    ("GET", "/v1/webhooks"): (None, ADMINS),
    ("POST", "/v1/webhooks"): ({"url": "https://example.invalid/"}, ADMINS),
    ("GET", "/v1/webhooks/{webhook_id}"): (None, ADMINS),
    ("DELETE", "/v1/webhooks/{webhook_id}"): (None, ADMINS),
    ("POST", "/v1/webhooks/{webhook_id}/resume"): (None, ADMINS),
    ("GET", "/v1/sessions/{session_id}"): (None, ALL),
    ("GET", "/v1/agents"): (None, ALL),
    ("GET", "/v1/agents/{agent_id}"): (None, ALL),
    ("GET", "/v1/sandboxes"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/contract"): (None, ALL),
    ("POST", "/v1/contracts/plan"): ({"agent_id": "matrix"}, WORKERS),
    ("GET", "/v1/sandboxes/{sandbox_id}/persistence"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/where"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/inputs"): (None, PEOPLE),
    ("GET", "/v1/sandboxes/{sandbox_id}/outputs"): (None, PEOPLE),
    ("GET", "/v1/sandboxes/{sandbox_id}/report"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/allowed"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/contacts"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/network"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/network/events"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/credentials"): (None, ALL),
    ("GET", "/v1/credentials"): (None, PEOPLE),
    ("POST", "/v1/credentials"): (CREDENTIAL, ADMINS),
    ("GET", "/v1/credentials/{name}"): (None, PEOPLE),
    ("DELETE", "/v1/credentials/{name}"): (None, ADMINS),
    ("POST", "/v1/credentials/{name}/rotate"): ({"secret": "0123456789"}, ADMINS),
    ("GET", "/v1/credentials/{name}/uses"): (None, PEOPLE),
    ("GET", "/v1/network"): (None, PEOPLE),
    ("GET", "/v1/network/sandboxes"): (None, PEOPLE),
    ("GET", "/v1/sandboxes/{sandbox_id}/processes"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/ports"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/watches/{watch_id}"): (None, WORKERS | AGENT),
    ("GET", "/v1/sandboxes/{sandbox_id}/watches/{watch_id}/events"): (None, WORKERS | AGENT),
    ("DELETE", "/v1/sandboxes/{sandbox_id}/watches/{watch_id}"): (None, WORKERS | AGENT),
    ("GET", "/v1/sandboxes/{sandbox_id}/shells"): (None, ALL),
    ("DELETE", "/v1/sandboxes/{sandbox_id}/shells/{name}"): (None, WORKERS | AGENT),
    ("GET", "/v1/sandboxes/{sandbox_id}/runtimes"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/packages"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/snapshots/plan"): (None, WORKERS | AGENT),
    ("GET", "/v1/sandboxes/{sandbox_id}/commands"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/commands/{command_id}"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/commands/{command_id}/output"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/commands/{command_id}/events"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/files/{path}"): (None, ALL),
    ("GET", "/v1/tools"): (None, ALL),
    ("GET", "/v1/health"): (None, ALL),
    ("GET", "/v1/edge"): (None, ALL),
}
ENDING = {
    ("POST", "/v1/sandboxes/{sandbox_id}/contexts"),
    ("POST", "/v1/sandboxes/{sandbox_id}/pipelines"),
    ("POST", "/v1/sandboxes/{sandbox_id}/builds"),
    ("DELETE", "/v1/sandboxes/{sandbox_id}"),
    ("POST", "/v1/sandboxes/{sandbox_id}/pause"),
    ("POST", "/v1/sandboxes/{sandbox_id}/stop"),
    ("DELETE", "/v1/agents/{agent_id}"),
    ("DELETE", "/v1/snapshots/{snapshot_id}"),
    ("DELETE", "/v1/tokens/{token_id}"),
}
"""Those who may are tried on what is not there, so that the rest of the matrix keeps its ground."""


@pytest.mark.req("TP.17")
def test_no_route_is_missing_from_the_matrix(served: Served) -> None:
    schema = served.json("GET", "/openapi.json")[1]
    routes = {(method.upper(), path) for path, methods in schema["paths"].items() for method in methods}
    tools = {route for route in routes if "/tools/" in route[1]} - {("POST", "/v1/sandboxes/{sandbox_id}/tools/{tool}")}
    assert routes - tools == set(MATRIX)


@pytest.fixture(scope="module")
def ground(served: Served) -> Iterator[dict[str, str]]:
    """One of everything that a route can name."""
    with served.sync_client() as owner, owner.sandboxes.create("matrix") as sandbox:
        ran = sandbox.run_command("true")
        taken = sandbox.take_snapshot()
        yield {
            "{snapshot_id}": taken.snapshot_id,
            "{before}": taken.snapshot_id,
            "{after}": sandbox.id,
            "{sandbox_id}": sandbox.id,
            "{agent_id}": "matrix",
            "{session_id}": sandbox.info.session_id,
            "{command_id}": ran.command_id,
            "{receipt_id}": str(ran.result.receipt_id),
            "{token_id}": owner.tokens.list()[0].token_id,
            "{template}": "none:1",
            "{build_id}": "bld_none",
            "{sha256}": "0" * 64,
            "{watch_id}": "wch_0",
            "{preview_id}": "prv_none",
            "{other_id}": "bld_none",
            "{tool}": "run_command",
            "{path}": "scratch/a.txt",
            "{name}": "none",
            "{seq}": "1",
        }


def last_entry(owner: SyncColdframe, after: int) -> int:
    while page := owner.ledger.entries(after=after, limit=1000):
        after = page[-1].seq
    return after


@pytest.mark.req("TP.17")
@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("route", list(MATRIX), ids=" ".join)
def test_a_role_may_what_the_matrix_says_and_nothing_else(
    served: Served, ground: dict[str, str], role: Role, route: tuple[str, str]
) -> None:
    method, path = route
    body, allowed = MATRIX[route]
    names = dict(ground)
    if role in allowed and route in ENDING:
        names |= {"{sandbox_id}": "sbx_none", "{agent_id}": "none", "{token_id}": "tok_none"}
        names["{snapshot_id}"] = "0" * 16
    for mark, value in names.items():
        path = path.replace(mark, value)
    token = served.token(role, "matrix" if role is Role.AGENT else None)
    with served.sync_client() as owner:
        before = last_entry(owner, 0)
        content = b""
        if path == "/v1/policy" and method == "PUT":
            content = owner.policy.show().text.encode()
        elif isinstance(body, dict):
            content = json.dumps(body).replace("SANDBOX", ground["{sandbox_id}"]).encode()
        headers = {"Content-Type": "application/json"}
        status, _, text = served.request(method, path, token=token, body=content, headers=headers)
        if role in allowed:
            assert status not in (401, 500, 503) and not (status == 403 and b"GRANT_MISSING" in text), text
        else:
            assert status == 403 and b"GRANT_MISSING" in text, text
            done = {entry.kind for entry in owner.ledger.entries(after=before)}
            assert done <= {"call.refused", "policy.refused", "act.refused"}, done


@pytest.mark.req("TP.17")
def test_an_agent_token_holds_none_of_the_rights_of_people() -> None:
    people_only = [route for route, (_, roles) in MATRIX.items() if Role.AGENT not in roles]
    assert ("POST", "/v1/tokens") in people_only and ("PUT", "/v1/policy") in people_only
    assert ("PUT", "/v1/agents/{agent_id}/label") in people_only
    assert ("POST", "/v1/sessions/{session_id}/reset") in people_only
