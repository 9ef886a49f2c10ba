"""The permission matrix: every route that changes something, and every reading one, with every role (TP.17)."""

import pytest

from coldframe.contract.policy import Role
from tests.fronts.served import Served

OWNER, AGENT = {Role.OWNER}, {Role.AGENT}
ADMINS = OWNER | {Role.ADMIN}
WORKERS = ADMINS | {Role.MEMBER}
PEOPLE = WORKERS | {Role.VIEWER}
ALL = PEOPLE | AGENT
# Operation: body, and who may. Written down here a second time on purpose: the product's own table is what is tested.
MATRIX: dict[tuple[str, str], tuple[object, set[Role]]] = {
    ("POST", "/v1/sandboxes"): ({"agent_id": "matrix"}, WORKERS),
    ("DELETE", "/v1/sandboxes/{sandbox_id}"): (None, WORKERS),
    ("POST", "/v1/sandboxes/{sandbox_id}/tools/{tool}"): ({"command": "true"}, WORKERS | AGENT),
    ("PUT", "/v1/sandboxes/{sandbox_id}/files/{path}"): (None, WORKERS | AGENT),
    ("POST", "/v1/sandboxes/{sandbox_id}/commands/{command_id}/signal"): ({"signal": 15}, WORKERS | AGENT),
    ("POST", "/v1/sandboxes/{sandbox_id}/commands/{command_id}/resize"): ({"columns": 9, "rows": 9}, WORKERS | AGENT),
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
    ("GET", "/v1/policy/replay/{seq}"): (None, PEOPLE),
    ("GET", "/v1/ledger/entries"): (None, PEOPLE),
    ("GET", "/v1/ledger/verify"): (None, PEOPLE),
    ("GET", "/v1/ledger/export"): (None, PEOPLE),
    ("GET", "/v1/doctor"): (None, PEOPLE),
    ("GET", "/v1/receipts/{receipt_id}"): (None, ALL),
    ("GET", "/v1/sessions/{session_id}"): (None, ALL),
    ("GET", "/v1/agents"): (None, ALL),
    ("GET", "/v1/agents/{agent_id}"): (None, ALL),
    ("GET", "/v1/sandboxes"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/contract"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/report"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/allowed"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/contacts"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/processes"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/runtimes"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/commands"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/commands/{command_id}"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/commands/{command_id}/output"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/commands/{command_id}/events"): (None, ALL),
    ("GET", "/v1/sandboxes/{sandbox_id}/files/{path}"): (None, WORKERS | AGENT),
    ("GET", "/v1/tools"): (None, ALL),
    ("GET", "/v1/health"): (None, ALL),
}
ENDING = {
    ("DELETE", "/v1/sandboxes/{sandbox_id}"),
    ("DELETE", "/v1/agents/{agent_id}"),
    ("DELETE", "/v1/tokens/{token_id}"),
}
"""Those who may are tried on what is not there, so that the rest of the matrix keeps its ground."""


@pytest.mark.req("TP.17")
def test_no_route_is_missing_from_the_matrix(served: Served) -> None:
    schema = served.json("GET", "/openapi.json")[1]
    routes = {(method.upper(), path) for path, methods in schema["paths"].items() for method in methods}
    tools = {route for route in routes if "/tools/" in route[1]} - {("POST", "/v1/sandboxes/{sandbox_id}/tools/{tool}")}
    assert routes - tools == set(MATRIX)


@pytest.mark.req("TP.17")
@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("route", list(MATRIX), ids=" ".join)
def test_a_role_may_what_the_matrix_says_and_nothing_else(served: Served, role: Role, route: tuple[str, str]) -> None:
    method, template = route
    body, allowed = MATRIX[route]
    with served.sync_client() as owner, owner.sandboxes.create("matrix") as sandbox:
        ran = sandbox.run_command("true")
        names = {
            "{sandbox_id}": sandbox.id,
            "{agent_id}": "matrix",
            "{session_id}": sandbox.info.session_id,
            "{command_id}": ran.command_id,
            "{receipt_id}": str(ran.result.receipt_id),
            "{token_id}": owner.tokens.list()[0].token_id if role not in allowed else "tok_none",
            "{tool}": "run_command",
            "{path}": "scratch/a.txt",
            "{seq}": "1",
        }
        if role in allowed and route in ENDING:
            names |= {"{sandbox_id}": "sbx_none", "{agent_id}": "none"}
        path = template
        for mark, value in names.items():
            path = path.replace(mark, value)
        if isinstance(body, dict) and "sandbox_id" in body:
            body = body | {"sandbox_id": sandbox.id}
        token = served.token(role, "matrix" if role is Role.AGENT else None)
        last = owner.ledger.entries(limit=1000)[-1].seq
        while page := owner.ledger.entries(after=last, limit=1000):
            last = page[-1].seq
        if method == "PUT" and body is None:
            content = owner.policy.show().text.encode() if path == "/v1/policy" else b"x"
            status, _, text = served.request(method, path, token=token, body=content)
        elif template.endswith(("/export", "/output", "/events", "/files/{path}")):
            status, _, text = served.request(method, path, token=token)
        else:
            status, answer = served.json(method, path, body, token=token)
            text = str(answer).encode()
        if role in allowed:
            assert status not in (401, 500, 503) and not (status == 403 and b"GRANT_MISSING" in text), text
        else:
            assert status == 403 and b"GRANT_MISSING" in text, text
            done = [entry.kind for entry in owner.ledger.entries(after=last)]
            assert set(done) <= {"call.refused"}, done
