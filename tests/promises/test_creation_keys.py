"""A sandbox that is asked for under an idempotency key is made once, however often the connection breaks."""

import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from coldframe.client.sync import SyncColdframe
from coldframe.contract.errors import ColdframeError
from coldframe.contract.sandbox import Limits, SandboxSpec
from tests.host.machines import needs_bubblewrap
from tests.installation import Installation
from tests.promises.raw import own_installation, rest

pytestmark = needs_bubblewrap
SEED = 731
CUTS = 16


def creation(installation: Installation, payload: dict[str, object], key: str, token: str) -> bytes:
    """The bytes of a request for a sandbox."""
    body = json.dumps(payload).encode()
    head = (
        f"POST /v1/sandboxes HTTP/1.1\r\nHost: {urlsplit(installation.url).netloc}\r\nAuthorization: Bearer {token}\r\n"
        f"Idempotency-Key: {key}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def connection(installation: Installation) -> socket.socket:
    place = urlsplit(installation.url)
    return socket.create_connection((str(place.hostname), place.port or 80), timeout=30)


@contextmanager
def asked(installation: Installation, payload: dict[str, object], key: str, token: str) -> Iterator[None]:
    """The server has been sent the whole request and holds the connection; nobody reads the answer."""
    with connection(installation) as peer:
        peer.sendall(creation(installation, payload, key, token))
        yield


def vanish(installation: Installation, payload: dict[str, object], key: str, chance: random.Random) -> str:
    """Ask for a sandbox and cut the connection somewhere. Returns where."""
    request = creation(installation, payload, key, installation.token)
    where = chance.choice(["request", "wait", "wait", "answer"])
    with connection(installation) as peer:
        peer.sendall(request[: chance.randrange(len(request))] if where == "request" else request)
        if where == "wait":
            time.sleep(chance.uniform(0, 0.05))  # where it is cut is meant to differ; nothing waits for it
        elif where == "answer":
            peer.recv(chance.randrange(1, 100))
    return where


@pytest.mark.req("T3.73")
def test_a_creation_cut_anywhere_and_asked_again_makes_one_sandbox(
    installation: Installation, client: SyncColdframe
) -> None:
    chance = random.Random(SEED)
    places, made = set(), {}
    for number in range(CUTS):
        agent_id = f"cut-{number}"
        places.add(vanish(installation, {"agent_id": agent_id}, f"create-{agent_id}", chance))
        sandbox = client.sandboxes.create(spec=SandboxSpec(agent_id=agent_id), idempotency_key=f"create-{agent_id}")
        made[agent_id] = sandbox.id
        again = client.sandboxes.create(spec=SandboxSpec(agent_id=agent_id), idempotency_key=f"create-{agent_id}")
        assert again.id == sandbox.id
    assert {"request", "wait"} <= places
    there = [one.info for one in client.sandboxes.list() if one.info.agent_id in made]
    assert {one.agent_id: one.sandbox_id for one in there} == made
    assert len(there) == CUTS
    for sandbox_id in made.values():
        client.sandboxes.get(sandbox_id).terminate()


@pytest.mark.req("T3.73", "T4.59")
def test_the_same_key_at_the_same_time_is_one_sandbox_and_another_wish_under_it_a_conflict(
    installation: Installation, client: SyncColdframe, agent_id: str
) -> None:
    answers: list[str] = []

    def ask() -> None:
        with SyncColdframe(installation.url, installation.token) as own:
            answers.append(own.sandboxes.create(agent_id, idempotency_key="together").id)

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 20 and len(set(answers)) == 1
    with pytest.raises(ColdframeError) as refused:
        client.sandboxes.create(agent_id, limits=Limits(pids=50), idempotency_key="together")
    assert refused.value.code == "CONFLICT"
    assert (
        rest(installation, "POST", "/v1/sandboxes", {"agent_id": agent_id}, Idempotency_Key="two words").status == 400
    )
    assert len([one for one in client.sandboxes.list() if one.info.agent_id == agent_id]) == 1
    client.sandboxes.get(answers[0]).terminate()
    ended = client.sandboxes.create(agent_id, idempotency_key="together")
    assert (ended.id, ended.info.state.state) == (answers[0], "terminated")


@pytest.mark.req("T3.73")
def test_a_creation_that_failed_gives_its_key_back(client: SyncColdframe, agent_id: str) -> None:
    absent = SandboxSpec(agent_id=agent_id, requires=("gpu",))
    for _ in range(2):
        with pytest.raises(ColdframeError) as refused:
            client.sandboxes.create(spec=absent, idempotency_key="absent")
        assert refused.value.code == "ISOLATION_UNAVAILABLE"
    with client.sandboxes.create(agent_id, idempotency_key="absent") as made:
        assert made.run_command("echo made").stdout == "made\n"


@pytest.mark.req("T3.73")
def test_a_key_holds_over_a_restart_and_a_creation_cut_off_by_it_did_nothing() -> None:
    with own_installation() as own:
        token = own.token  # a key belongs to a token, and a new start makes another for local clients
        with SyncColdframe(own.url, token) as client:
            kept = client.sandboxes.create("kept", idempotency_key="kept").id
        with asked(own, {"agent_id": "cut"}, "cut", token):
            own.kill()
        own.start()
        with SyncColdframe(own.url, token) as client:
            assert client.sandboxes.create("kept", idempotency_key="kept").id == kept
            made = client.sandboxes.create("cut", idempotency_key="cut")
            assert made.run_command("echo made").stdout == "made\n"
            running = [one for one in client.sandboxes.list() if one.info.state.state == "running"]
            assert sorted(str(one.info.agent_id) for one in running) == ["cut", "kept"]
