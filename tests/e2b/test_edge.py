"""The edge port over real sockets: TLS and plain on one port, no foreign names and origins, and each sandbox kept from the others."""

import http.client
import json
import socket
import ssl
from typing import Any

import pytest

from coldframe.contract.policy import Role
from coldframe.contract.sandbox import SandboxSpec
from coldframe.fronts.e2b import filesystem
from coldframe.fronts.edge.listener import MOST_SILENT
from tests.control.bench import OWNER
from tests.e2b.edge_served import EdgeServed
from tests.installation import wait_until


def ask(
    edge: EdgeServed,
    path: str,
    *,
    method: str = "GET",
    host: str = "localhost",
    body: str | None = None,
    **headers: str,
) -> tuple[int, Any]:
    """With `_` for `-` in names of headers."""
    connection = http.client.HTTPConnection("127.0.0.1", edge.port, timeout=30)
    try:
        sent = {"Host": host, **{name.replace("_", "-"): value for name, value in headers.items()}}
        connection.request(method, path, body=body, headers=sent)
        answer = connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if content else None
    finally:
        connection.close()


def made(edge: EdgeServed) -> str:
    """Id of a new sandbox, as E2B has it."""
    status, told = ask(edge, "/v2/sandboxes", method="POST", body='{"templateID": "base"}', X_API_KEY=edge.key)
    assert status == 201
    return str(told["sandboxID"])


@pytest.mark.parametrize(
    "name", ["localhost", "api.localhost", "8080-0123456789abcdef0123.localhost", "a.sandboxes.test"]
)
def test_every_name_of_the_edge_has_a_certificate_of_its_authority(edge: EdgeServed, name: str) -> None:
    context = ssl.create_default_context(cadata=edge.authority.certificate)
    with socket.create_connection(("127.0.0.1", edge.port), timeout=30) as plain:
        with context.wrap_socket(plain, server_hostname=name) as connection:
            connection.sendall(f"GET /health HTTP/1.1\r\nHost: localhost:{edge.port}\r\n\r\n".encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 204")
    with socket.create_connection(("127.0.0.1", edge.port), timeout=30) as plain:
        with pytest.raises(ssl.SSLCertVerificationError):
            context.wrap_socket(plain, server_hostname=f"{name}.evil.example")


def test_a_connection_that_says_nothing_holds_up_no_other_and_makes_room_for_new_ones(edge: EdgeServed) -> None:
    silent = [socket.create_connection(("127.0.0.1", edge.port)) for _ in range(20)]
    assert ask(edge, "/health") == (204, None)
    assert MOST_SILENT > 20
    for one in silent:
        one.close()
    assert ask(edge, "/health") == (204, None)


def test_a_broken_handshake_ends_that_connection_alone(edge: EdgeServed) -> None:
    with socket.create_connection(("127.0.0.1", edge.port), timeout=30) as connection:
        connection.sendall(b"\x16\x03\x01\x00\x05nope!")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass
    assert ask(edge, "/health") == (204, None)


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "169.254.169.254", ""])
def test_a_name_that_was_rebound_gets_nothing(edge: EdgeServed, host: str) -> None:
    status, told = ask(edge, "/sandboxes", host=host, X_API_KEY=edge.key)
    assert (status, told["error"]["code"]) == (403, "REFUSED")


def test_two_host_headers_are_refused(edge: EdgeServed) -> None:
    with socket.create_connection(("127.0.0.1", edge.port), timeout=30) as connection:
        connection.sendall(b"GET /sandboxes HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://8080-0123456789abcdef0123.localhost"])
def test_a_page_of_another_origin_gets_nothing_from_the_apis(edge: EdgeServed, origin: str) -> None:
    label = made(edge)
    for path, headers in (("/v2/sandboxes", {"X_API_KEY": edge.key}), ("/health", {"E2b_Sandbox_Id": label})):
        status, told = ask(edge, path, Origin=origin, **headers)
        assert (status, told["error"]["code"]) == (403, "REFUSED")


def test_calls_without_a_key_or_with_a_wrong_one_are_told_how_to_get_one(edge: EdgeServed) -> None:
    for headers in ({}, {"X_API_KEY": "e2b_00"}, {"Authorization": "Bearer nothing"}):
        status, told = ask(edge, "/v2/sandboxes", **headers)
        assert (status, told["code"], told["error_code"]) == (401, 401, "UNAUTHENTICATED")
    assert ask(edge, "/v2/sandboxes", Authorization=f"Bearer {edge.key}")[0] == 200


def test_control_calls_with_headers_of_a_sandbox_go_to_the_control_api_if_they_have_a_key(edge: EdgeServed) -> None:
    label = made(edge)
    named = {"E2b_Sandbox_Id": label, "E2b_Sandbox_Port": "49983", "X_API_KEY": edge.key}
    status, told = ask(edge, f"/sandboxes/{label}/connect", method="POST", body='{"timeout": 60}', **named)
    assert (status, told["sandboxID"]) == (200, label)
    status, told = ask(edge, f"/sandboxes/{label}-00000000", X_API_KEY=edge.key)
    assert (status, told["sandboxID"]) == (200, label)


def test_the_access_token_of_one_sandbox_opens_no_other(edge: EdgeServed) -> None:
    first, second = made(edge), made(edge)
    tokens = [
        ask(edge, f"/v2/sandboxes/{one}/connect", method="POST", X_API_KEY=edge.key)[1]["envdAccessToken"]
        for one in (first, second)
    ]
    assert ask(edge, "/health", E2b_Sandbox_Id=first, X_Access_Token=tokens[0])[0] == 204
    assert ask(edge, "/health", X_Access_Token=tokens[0])[0] == 204  # the token alone tells which it is
    for headers in (
        {"E2b_Sandbox_Id": first, "X_Access_Token": tokens[1]},
        {"E2b_Sandbox_Id": first, "X_Access_Token": "0" * 64},
    ):
        assert ask(edge, "/health", **headers)[0] == 401
    host = f"49983-{second}.localhost:{edge.port}"
    assert ask(edge, "/health", host=host, E2b_Sandbox_Id=first, X_Access_Token=tokens[1])[0] == 204
    assert ask(edge, "/health", host=host, E2b_Sandbox_Id=first, X_Access_Token=tokens[0])[0] == 401


def test_whoever_may_only_look_gets_neither_variables_nor_a_way_to_act_as_the_holder(edge: EdgeServed) -> None:
    body = '{"templateID": "base", "envVars": {"SECRET": "s"}, "network": {"allowPublicTraffic": false}}'
    status, told = ask(edge, "/v2/sandboxes", method="POST", body=body, X_API_KEY=edge.key)
    assert (status, "trafficAccessToken" in told) == (201, True)
    label = str(told["sandboxID"])

    def opened(role: Role) -> tuple[dict[str, Any], int, Any]:
        key = edge.key_of(role)
        _, found = ask(edge, f"/v2/sandboxes/{label}/connect", method="POST", body='{"timeout": 60}', X_API_KEY=key)
        return found, *ask(edge, "/envs", E2b_Sandbox_Id=label, X_Access_Token=found["envdAccessToken"])

    found, status, envs = opened(Role.MEMBER)
    assert ("trafficAccessToken" in found, status, envs["SECRET"]) == (True, 200, "s")
    found, status, envs = opened(Role.VIEWER)
    assert ("trafficAccessToken" in found, status) == (False, 403)
    assert "SECRET" not in envs


def test_a_directory_is_told_whole_in_as_many_pages_as_it_takes(
    edge: EdgeServed, monkeypatch: pytest.MonkeyPatch
) -> None:
    label = made(edge)
    access = ask(edge, f"/v2/sandboxes/{label}/connect", method="POST", body="{}", X_API_KEY=edge.key)[1]

    def told(method: str, **message: Any) -> tuple[int, Any]:
        headers = {"E2b_Sandbox_Id": label, "X_Access_Token": access["envdAccessToken"]}
        path, body = f"/filesystem.Filesystem/{method}", json.dumps(message)
        return ask(edge, path, method="POST", body=body, Content_Type="application/json", **headers)

    for number in range(12):
        assert told("MakeDir", path=f"/tmp/many/{number:02}/below")[0] == 200
    monkeypatch.setattr(filesystem, "MOST_ON_PAGE", 5)
    status, found = told("ListDir", path="/tmp/many", depth=1)
    assert (status, [one["name"] for one in found["entries"]]) == (200, [f"{number:02}" for number in range(12)])
    monkeypatch.setattr(filesystem, "MOST_PAGES", 2)
    status, found = told("ListDir", path="/tmp/many", depth=1)
    assert (status, found["code"]) == (429, "resource_exhausted")
    status, found = told("ListDir", path="/tmp/many", depth=2)
    assert (status, len(found["entries"])) == (200, 24)


def test_a_sandbox_that_is_gone_is_told_in_the_words_of_e2b(edge: EdgeServed) -> None:
    label = made(edge)
    host = f"49983-{label}.localhost"
    assert ask(edge, f"/sandboxes/{label}", method="DELETE", X_API_KEY=edge.key) == (204, None)
    for one in (host, "49983-00000000000000000000.localhost", "49983-notoneofours.localhost"):
        status, told = ask(edge, "/health", host=one)
        assert (status, told["message"], told["code"]) == (502, "The sandbox was not found", 502)
    assert ask(edge, "/files?path=a", host=host, X_Access_Token="0" * 64)[0] == 502
    status, told = ask(edge, f"/sandboxes/{label}", X_API_KEY=edge.key)
    assert (status, told["code"]) == (404, 404)


def test_a_sandbox_made_in_other_ways_can_be_connected_to_and_goes_on_until_a_time_is_said(edge: EdgeServed) -> None:
    control = edge.served.control
    info = edge.served.call(control.creation.create(OWNER, SandboxSpec(agent_id="connected")))
    label = info.sandbox_id.removeprefix("sbx_")
    listed = {one["sandboxID"] for one in ask(edge, "/v2/sandboxes?limit=1000", X_API_KEY=edge.key)[1]}
    assert label not in listed
    assert ask(edge, f"/sandboxes/{label}", X_API_KEY=edge.key)[1]["state"] == "running"
    ask(edge, f"/sandboxes/{label}/timeout", method="POST", body='{"timeout": 0}', X_API_KEY=edge.key)
    wait_until(lambda: ask(edge, f"/sandboxes/{label}", X_API_KEY=edge.key)[1]["state"] == "paused", "its time is over")
    assert control.sandboxes.find(info.sandbox_id).state.state == "stopped"  # with the files of its agent


def test_bodies_that_are_none_are_client_errors(edge: EdgeServed) -> None:
    for body in (
        "{",
        "[]",
        '{"templateID": 5}',
        '{"templateID": "base", "timeout": "x"}',
        '{"templateID": "base", "envVars": 1}',
    ):
        status, told = ask(edge, "/v2/sandboxes", method="POST", body=body, X_API_KEY=edge.key)
        assert (status, told["code"]) == (400, 400), body
    for path in (
        "/v2/sandboxes?limit=x",
        "/v2/sandboxes?nextToken=%25",
        "/v2/sandboxes?state=odd",
        "/snapshots?limit=0",
    ):
        assert ask(edge, path, X_API_KEY=edge.key)[0] == 400, path
    assert ask(edge, "/v9/nothing", X_API_KEY=edge.key)[0] == 404


def test_a_key_of_a_request_makes_one_sandbox(edge: EdgeServed) -> None:
    told = [
        ask(
            edge,
            "/v2/sandboxes",
            method="POST",
            body='{"templateID": "base", "network": {"denyOut": ["0.0.0.0/0"], "allowOut": ["a.example.com"]}}',
            X_API_KEY=edge.key,
            Idempotency_Key="once-1",
        )
        for _ in range(2)
    ]
    assert told[0][0] == told[1][0] == 201
    assert told[0][1]["sandboxID"] == told[1][1]["sandboxID"]


RULES = """version: 1
network:
  profiles: {crm: {rules: [{id: crm, to: crm.example.com}]}}
  use: {"role:member": crm}
"""


def test_a_sandbox_has_the_network_that_the_rules_give_and_without_one_a_member_has_none(edge: EdgeServed) -> None:
    control = edge.served.control
    before = control.rulebook.text

    def network_of(key: str, more: str = "") -> tuple[str, ...] | None:
        body = f'{{"templateID": "base"{more}}}'
        status, told = ask(edge, "/v2/sandboxes", method="POST", body=body, X_API_KEY=key)
        assert status == 201, told
        info = control.sandboxes.find(f"sbx_{told['sandboxID']}")
        access = ask(edge, f"/sandboxes/{told['sandboxID']}", X_API_KEY=key)[1]["allowInternetAccess"]
        assert access is (info.network is not None)
        return info.network

    member, narrow = edge.key_of(Role.MEMBER), ', "network": {"denyOut": ["0.0.0.0/0"], "allowOut": ["a.example.com"]}'
    assert (network_of(edge.key), network_of(member)) == (("open",), None)
    body = f'{{"templateID": "base"{narrow}}}'
    assert ask(edge, "/v2/sandboxes", method="POST", body=body, X_API_KEY=member)[0] == 403
    edge.served.call(control.rulebook.load(RULES, caller=OWNER))
    try:
        assert (network_of(edge.key), network_of(member)) == (("open",), ("crm",))
        found = network_of(member, narrow)
        assert found is not None
        assert (len(found), found[1]) == (2, "crm")
    finally:
        edge.served.call(control.rulebook.load(before, caller=OWNER))
