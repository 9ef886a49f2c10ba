"""The control API of E2B where its SDK does not show enough: pages, logs, names of snapshots, and what a crash leaves."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from coldframe.contract.policy import Role
from coldframe.contract.snapshot import SnapshotRequest
from coldframe.control.creation import Creation
from coldframe.control.leases import Lease
from tests.e2b.control_api import Api, control_api
from tests.fronts.served import Served, serve_fake

pytestmark = pytest.mark.req("T4.83")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_fake(str(tmp_path_factory.mktemp("data"))) as served:
        yield served


@pytest.fixture(scope="module")
def api(served: Served) -> Iterator[Api]:
    with control_api(served) as api:
        yield api


def asked(api: Api, method: str, path: str, body: Any = None, *, key: str | None = None) -> tuple[int, Any, str | None]:
    """Status, body, and the token of the next page."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(api.url + path, content, {"X-API-KEY": key or api.key}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None, answer.headers["X-Next-Token"]
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read()), None


def made(api: Api, **more: Any) -> str:
    status, body, _ = asked(api, "POST", "/v2/sandboxes", {"templateID": "base", **more})
    assert status == 201, body
    return str(body["sandboxID"])


def kill(api: Api, *sandbox_ids: str) -> None:
    for one in sandbox_ids:
        assert asked(api, "DELETE", f"/sandboxes/{one}")[0] == 204


def key_of(api: Api, role: Role, agent_id: str | None = None) -> str:
    async def make() -> str:
        return api.served.control.tokens.create(role, f"e2b {role}", agent_id=agent_id, form="e2b")[0]

    return api.served.call(make())


@pytest.mark.parametrize("order", ["desc", "asc"])
def test_pages_go_on_where_the_last_of_one_is_gone(api: Api, order: str) -> None:
    ids = [made(api) for _ in range(4)]
    in_order = ids if order == "asc" else ids[::-1]
    _, page, token = asked(api, "GET", f"/v2/sandboxes?limit=2&order={order}")
    assert [one["sandboxID"] for one in page] == in_order[:2]
    kill(api, in_order[1])
    status, page, after = asked(api, "GET", f"/v2/sandboxes?limit=2&order={order}&nextToken={token}")
    assert (status, [one["sandboxID"] for one in page], after) == (200, in_order[2:], None)
    kill(api, *(one for one in ids if one != in_order[1]))
    status, page, after = asked(api, "GET", f"/v2/sandboxes?limit=2&order={order}&nextToken={token}")
    assert (status, page, after) == (200, [], None)
    for wrong in ("nonsense", "aWQ"):
        assert asked(api, "GET", f"/v2/sandboxes?nextToken={wrong}")[0] == 400


def test_pages_of_snapshots_go_on_where_the_last_of_one_is_gone(api: Api) -> None:
    sandbox = made(api)
    taken = [asked(api, "POST", f"/sandboxes/{sandbox}/snapshots", {})[1]["snapshotID"] for _ in range(3)]
    path = f"/snapshots?sandboxID={sandbox}&limit=1"
    _, page, token = asked(api, "GET", path)
    assert [one["snapshotID"] for one in page] == [taken[2]]
    assert asked(api, "DELETE", f"/templates/{quote(taken[2], safe='')}")[0] == 204
    _, page, _ = asked(api, "GET", f"{path}&nextToken={token}")
    assert [one["snapshotID"] for one in page] == [taken[1]]
    kill(api, sandbox)


def test_logs_have_as_many_as_are_asked_for_from_a_moment_on_or_back(
    api: Api, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coldframe.fronts.e2b.metrics.LOOKED_AT_ONCE", 3)
    sandbox = made(api)
    for seconds in range(400, 410):
        assert asked(api, "POST", f"/sandboxes/{sandbox}/timeout", {"timeout": seconds})[0] == 204
    path = f"/v2/sandboxes/{sandbox}/logs"

    def seqs(query: str) -> list[int]:
        return [int(one["fields"]["seq"]) for one in asked(api, "GET", f"{path}?{query}")[1]["logs"]]

    everything = seqs("")
    assert everything == sorted(everything)
    assert len(everything) > 10
    assert seqs("direction=backward") == everything[::-1]
    assert seqs("direction=backward&limit=4") == everything[::-1][:4]
    entry = served.control.ledger.entry(everything[-5])
    assert entry is not None
    at_ms = int(entry.at.timestamp() * 1000)
    assert set(everything[-4:]) <= set(seqs(f"cursor={at_ms}&limit=8"))
    assert everything[0] not in seqs(f"cursor={at_ms}&limit=1000")
    assert everything[0] in seqs(f"cursor={at_ms}&direction=backward")
    assert everything[-1] not in seqs(f"cursor={at_ms}&direction=backward&limit=2")
    assert len(seqs("search=lease_changed&limit=9")) == 9
    _, body, _ = asked(api, "GET", f"/sandboxes/{sandbox}/logs?start={at_ms}&limit=2")
    assert len(body["logs"]) == 2
    kill(api, sandbox)


def test_a_name_that_an_agent_gives_to_a_snapshot_means_it_to_nobody_else(api: Api, served: Served) -> None:
    sandbox = made(api, metadata={"coldframe.agent": "mallory"})
    agent, path = key_of(api, Role.AGENT, "mallory"), f"/sandboxes/{sandbox}/snapshots"
    for name in ("base", "base:default", "Base:other", "code-interpreter-v1"):
        status, body, _ = asked(api, "POST", path, {"name": name}, key=agent)
        assert (status, "name of a template" in body["message"]) == (400, True)

    async def take() -> str:  # in the ways of ours, which know nothing of these names
        control = served.control
        caller = control.tokens.authenticate(agent, surface="rest")
        taken = await control.snapshots.take(caller, f"sbx_{sandbox}", SnapshotRequest(name="base:default"))
        return taken.snapshot_id

    snapshot = served.call(take())
    other = made(api)
    assert served.control.sandboxes.find(f"sbx_{other}").spec.snapshot is None
    assert asked(api, "DELETE", "/templates/base")[0] == 404
    status, body, _ = asked(api, "POST", path, {"name": "mine"}, key=agent)
    assert (status, body["names"]) == (201, ["mine:default"])
    assert asked(api, "POST", "/v2/sandboxes", {"templateID": "mine"})[0] == 404
    assert asked(api, "DELETE", "/templates/mine")[0] == 404
    assert asked(api, "DELETE", f"/templates/{snapshot}")[0] == 204
    kill(api, sandbox, other)


def test_a_snapshot_is_found_by_the_name_that_it_was_given(api: Api, served: Served) -> None:
    sandbox = made(api)
    _, taken, _ = asked(api, "POST", f"/sandboxes/{sandbox}/snapshots", {"name": "point"})
    snapshot_id = taken["snapshotID"].partition(":")[0]
    for text in ("point", "point:default", snapshot_id, f"{snapshot_id}:default"):
        status, body, _ = asked(api, "POST", "/v2/sandboxes", {"templateID": text})
        assert status == 201
        assert served.control.sandboxes.find(f"sbx_{body['sandboxID']}").spec.snapshot == snapshot_id
        kill(api, body["sandboxID"])
    assert asked(api, "DELETE", "/templates/point")[0] == 204
    assert asked(api, "POST", "/v2/sandboxes", {"templateID": "point"})[0] == 404
    kill(api, sandbox)


def test_connecting_leaves_one_without_an_end_without_one(api: Api, served: Served) -> None:
    with served.sync_client() as client:
        own = client.sandboxes.create("lasting").info.sandbox_id
        path = f"/sandboxes/{own.removeprefix('sbx_')}"
        assert asked(api, "POST", f"{path}/connect", {"timeout": 300})[0] == 200
        assert asked(api, "POST", f"{path}/connect", {"timeout": 300})[0] == 200
        assert asked(api, "POST", f"{path}/pause", {})[0] == 204
        assert asked(api, "POST", f"{path}/connect", {"timeout": 300})[0] == 201
        lease = served.control.leases.find(own)
        assert lease is not None
        assert lease.ends_at is None
        assert asked(api, "POST", f"{path}/timeout", {"timeout": 300})[0] == 204
        lease = served.control.leases.find(own)
        assert lease is not None
        assert lease.ends_at is not None
        kill(api, own.removeprefix("sbx_"))


def test_a_fork_has_its_lease_from_when_it_is_on_record(
    api: Api, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = made(api, metadata={"user": "ada"})
    seen: list[Lease] = []
    build = Creation.build

    async def look(self: Creation, sandbox_id: str, *arguments: Any, **more: Any) -> Any:
        lease = served.control.leases.find(sandbox_id)
        assert lease is not None  # what a crash would leave
        seen.append(lease)
        return await build(self, sandbox_id, *arguments, **more)

    monkeypatch.setattr(Creation, "build", look)
    status, forks, _ = asked(api, "POST", f"/sandboxes/{sandbox}/fork", {"count": 2, "timeout": 120})
    assert status == 201
    ids = [one["sandbox"]["sandboxID"] for one in forks]
    assert [f"sbx_{one}" for one in ids] == [lease.sandbox_id for lease in seen]
    assert all(lease.ends_at is not None and lease.terms.metadata == {"user": "ada"} for lease in seen)
    variables = seen[0].terms.environment
    assert variables["E2B_SANDBOX_ID"] == ids[0]
    kill(api, sandbox, *ids)


def test_a_key_of_a_member_does_not_open_the_network_of_an_owners_sandbox(api: Api, served: Served) -> None:
    network = {"denyOut": ["0.0.0.0/0"], "allowOut": ["api.example.com", "docs.example.com"]}
    sandbox = made(api, network=network)
    member, path = key_of(api, Role.MEMBER), f"/sandboxes/{sandbox}/network"
    status, body, _ = asked(api, "PUT", path, {}, key=member)
    assert (status, body["error_code"]) == (403, "GRANT_MISSING")
    narrower = {"denyOut": ["0.0.0.0/0"], "allowOut": ["api.example.com"]}
    assert asked(api, "PUT", path, narrower, key=member)[0] == 204
    assert asked(api, "PUT", path, network, key=member)[0] == 403
    assert asked(api, "PUT", path, {})[0] == 204
    kill(api, sandbox)
