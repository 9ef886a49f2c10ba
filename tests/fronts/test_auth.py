"""Nobody gets in without a token, and no web page of another site gets in at all."""

import pytest

from coldframe.contract.policy import Role
from tests.fronts.served import Served


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Basic dXNlcjpwYXNz", "Bearer cf_wrong", "Bearer cf_" + "a" * 5000]
)
def test_without_a_valid_token_every_route_answers_401(served: Served, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    for path in ("/v1/sandboxes", "/v1/tools", "/v1/no-such-route", "/"):
        status, answer_headers, body = served.request("GET", path, token="", headers=headers)
        assert status == 401 and b"UNAUTHENTICATED" in body
        assert answer_headers["www-authenticate"] == "Bearer"


def test_health_and_schema_are_open(served: Served) -> None:
    assert served.json("GET", "/v1/health", token="")[1]["status"] == "ok"
    assert served.json("GET", "/openapi.json", token="")[0] == 200


def test_a_revoked_token_is_worthless_at_once(served: Served) -> None:
    with served.sync_client() as client:
        secret, info = client.tokens.create("viewer", "short")
        assert served.json("GET", "/v1/sandboxes", token=secret)[0] == 200
        client.tokens.revoke(info.token_id)
    assert served.json("GET", "/v1/sandboxes", token=secret)[0] == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "169.254.169.254", ""])
def test_a_foreign_host_name_is_refused(served: Served, host: str) -> None:
    assert served.request("GET", "/v1/health", headers={"Host": host})[0] in (400, 403)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_a_foreign_origin_is_refused_and_no_header_allows_one(served: Served, origin: str) -> None:
    for method in ("GET", "OPTIONS", "POST"):
        status, headers, _ = served.request(method, "/v1/sandboxes", headers={"Origin": origin})
        assert status == 403
        assert not any(name.startswith("access-control-") for name in headers)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_what_a_page_can_send_without_asking_carries_no_token(served: Served, content_type: str) -> None:
    cookie = {"Cookie": f"token={served.owner_token}; Authorization=Bearer {served.owner_token}"}
    for path in ("/v1/agents", f"/v1/agents?token={served.owner_token}&access_token={served.owner_token}"):
        status, answer_headers, _ = served.request(
            "POST", path, token="", body=b'{"agent_id":"page"}', headers={"Content-Type": content_type, **cookie}
        )
        assert status == 401 and "set-cookie" not in answer_headers
    assert served.json("GET", "/v1/agents/page")[0] == 404


def test_answers_are_never_sniffed_or_stored(served: Served) -> None:
    _, headers, _ = served.request("GET", "/v1/tools")
    assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"


def test_an_agent_sees_its_own_things_only(served: Served) -> None:
    with served.sync_client() as owner, served.sync_client(Role.AGENT, "ants") as ants:
        with owner.sandboxes.create("ants") as own, owner.sandboxes.create("bees") as other:
            assert [one.id for one in ants.sandboxes.list()] == [own.id]
            assert [one.agent_id for one in ants.agents.list()] == ["ants"]
            token = served.token(Role.AGENT, "ants")
            for path in (
                f"/v1/sandboxes/{other.id}",
                f"/v1/sandboxes/{other.id}/report",
                f"/v1/sandboxes/{other.id}/contract",
                f"/v1/sandboxes/{other.id}/allowed",
                f"/v1/sandboxes/{other.id}/contacts",
                f"/v1/sandboxes/{other.id}/processes",
                f"/v1/sandboxes/{other.id}/runtimes",
                f"/v1/sandboxes/{other.id}/commands",
                f"/v1/sandboxes/{other.id}/files/a",
                f"/v1/sessions/{other.info.session_id}",
                "/v1/agents/bees",
            ):
                assert served.json("GET", path, token=token)[0] == 404, path
