"""A real browser in a sandbox reaches what the rules say, as every other program does, and finds no way of its own."""

import json
import socket
import urllib.request
from datetime import UTC, datetime
from urllib.parse import urlsplit

import pytest

from coldframe.client.sync import SyncColdframe
from coldframe.contract.network import NetworkContact
from coldframe.contract.policy import Outcome
from tests.host.egress.world import ADDRESSES, COLLECTED_PORTS, FAR, SITE
from tests.installation import wait_until
from tests.promises.browsing import browse, lead_browser, needs_chromium, needs_firefox, visits_of
from tests.promises.test_network_reach import (
    CLOSING,
    DESTINATIONS,
    OPEN_PROXY,
    PRESETS,
    contacts,
    each_preset,
    refused,
    rules,
)
from tests.reachable import Reachable

ADDRESS = ADDRESSES[SITE][0]
RULES = """version: 1
network:
  profiles:
    web:
      rules:
        - {id: unread, to: api.example.com, ports: [443, 8443]}
        - {id: read, to: other.example.com, ports: [8443, 9443], mode: intercept}
        - {id: secret, to: other.example.com, ports: 8443, paths: [/v1/secret], then: deny, reason: not for you}
    less:
      rules:
        - {id: little, to: api.example.com}
  use:
    "agent:browser": web
"""


@needs_chromium
@pytest.mark.req("T4.70", "T1.99")
@each_preset
def test_each_preset_lets_a_browser_reach_what_it_says_with_and_without_a_proxy_set(
    room: Reachable, profile: str
) -> None:
    def steps(client: SyncColdframe) -> None:
        client.policy.load(rules(everybody=profile))
        with client.sandboxes.create(f"browser-{profile}") as box:
            done = lead_browser(box, *DESTINATIONS)
            visits = dict(zip(DESTINATIONS, visits_of(str(done.stdout)), strict=True))
            assert tuple(url for url, visit in visits.items() if visit.status == 200) == PRESETS[profile]
            for url, visit in visits.items():
                if visit.status != 200:  # an error page of its own, or the refusal of the broker
                    assert visit.error.startswith("net::ERR_") or visit.status == 403, url
            assert {one.name for one in contacts(box) if _was_reached(one)} == {
                urlsplit(url).hostname for url in PRESETS[profile]
            }
            assert {"nobody.example.org", ADDRESS, "169.254.169.254", "10.9.9.9"} <= refused(box, [done])
            if PRESETS[profile]:  # it heeds the variables, and asks a proxy that it may not reach
                few = browse(box, DESTINATIONS[0], DESTINATIONS[6], env=OPEN_PROXY)
                assert [one.status for one in few] == [None, None]
                assert {one.outcome for one in contacts(box, host=FAR)} == {Outcome.DENY}

    room.use(steps)


@needs_chromium
@pytest.mark.req("T4.70")
@pytest.mark.once
def test_pages_come_with_a_certificate_that_the_browser_takes_whether_requests_are_read_or_not(
    room: Reachable,
) -> None:
    def steps(client: SyncColdframe) -> None:
        client.policy.load(RULES)
        with client.sandboxes.create("browser") as box:
            unread, read, by_http2, secret = browse(
                box,
                "https://api.example.com/",
                "https://other.example.com:8443/v1/text",
                (
                    "https://other.example.com:9443/v1/what",
                    "performance.getEntriesByType('navigation')[0].nextHopProtocol",
                ),
                ("https://other.example.com:8443/v1/secret", "document.body.innerText"),
            )
            assert (unread.status, unread.issuer) == (200, "authority of a test")
            assert (read.status, by_http2.status, by_http2.value) == (200, 200, "h2")
            assert read.issuer is not None
            assert read.issuer == by_http2.issuer == secret.issuer
            assert read.issuer.startswith("Coldframe sandbox authority")
            assert secret.status == 403
            assert json.loads(secret.value)["error"]["rule"] == "secret"
            modes = {(one.name, one.port): one.mode for one in contacts(box) if one.outcome is Outcome.ALLOW}
            assert modes == {
                ("api.example.com", 443): "sni",
                ("other.example.com", 8443): "intercept",
                ("other.example.com", 9443): "intercept",
            }
            paths = [request.path for one in contacts(box, host="other.example.com") for request in one.requests]
            assert {"/v1/text", "/v1/what", "/v1/secret"} <= set(paths)

    room.use(steps)


PAGE = """(async () => {
  const fetched = (url, how) => fetch(url, how).then(async one => [one.status, await one.text()], one => one.name);
  const said = url => new Promise(go => {
    const line = new WebSocket(url);
    line.onopen = () => line.send("hello");
    line.onmessage = one => go(one.data);
    line.onerror = () => go("refused");
  });
  return {
    text: await fetched("/v1/text"),
    secret: (await fetched("/v1/secret"))[0],
    elsewhere: await fetched("https://ssh.example.com/", {mode: "no-cors"}),
    read: await said("wss://other.example.com:8443/v1/chat"),
    unread: await said("wss://api.example.com:8443/v1/chat"),
    forbidden: await said("wss://ssh.example.com:8443/v1/chat"),
  };
})()"""


@needs_chromium
@pytest.mark.req("T4.70")
@pytest.mark.once
def test_what_a_page_fetches_and_its_websockets_are_judged_like_the_page(room: Reachable) -> None:
    def steps(client: SyncColdframe) -> None:
        client.policy.load(RULES)
        with client.sandboxes.create("browser") as box:
            (visit,) = browse(box, ("https://other.example.com:8443/v1/text", PAGE))
            assert visit.value == {
                "text": [200, "some text"],
                "secret": 403,
                "elsewhere": "TypeError",
                "read": "hello",
                "unread": "hello",
                "forbidden": "refused",
            }
            assert {one.outcome for one in contacts(box, host="ssh.example.com")} == {Outcome.DENY}
            paths = [request.path for one in contacts(box, host="other.example.com") for request in one.requests]
            assert {"/v1/text", "/v1/secret", "/v1/chat"} <= set(paths)

    room.use(steps)


@needs_chromium
@pytest.mark.req("T4.70")
@pytest.mark.once
def test_a_change_of_the_rules_closes_a_websocket_that_it_forbids_and_holds_for_the_next_page(room: Reachable) -> None:
    script = """new Promise(go => {
      const line = new WebSocket("wss://other.example.com:8443/v1/chat");
      line.onopen = () => line.send("hello");
      line.onclose = async one => go([one.wasClean, await fetch("/v1/text").then(() => "reached", () => "refused")]);
    })"""

    def steps(client: SyncColdframe) -> None:
        client.policy.load(RULES)
        with client.sandboxes.create("browser") as box:

            def chat() -> NetworkContact | None:
                found = contacts(box, host="other.example.com")
                return next((one for one in found for request in one.requests if request.path == "/v1/chat"), None)

            begun = lead_browser(
                box,
                ("https://other.example.com:8443/v1/text", script),
                "https://api.example.com/",
                "https://other.example.com:8443/v1/text",
                background=True,
            )
            wait_until(chat, "the page talks", timeout_s=60)
            before = datetime.now(UTC)
            client.policy.load(RULES.replace(": web\n", ": less\n"))
            loaded = datetime.now(UTC)
            wait_until(lambda: b"\n" in box.output(begun.command_id).data, "all has been visited", timeout_s=60)
            page, allowed, forbidden = visits_of(box.output(begun.command_id).data.decode())
            assert page.value == [False, "refused"]
            assert (allowed.status, forbidden.status) == (200, None)
            assert forbidden.error.startswith("net::ERR_")
            closed = chat()
            assert closed is not None and closed.ended_at is not None
            assert closed.ended == "ended by a change of the rules"
            assert before <= closed.ended_at <= loaded + CLOSING

    room.use(steps)


WAYS_OUT = """(async () => {
  for (const kind of ["dns-prefetch", "preconnect"]) {
    const hint = document.createElement("link");
    hint.rel = kind, hint.href = `https://secret-${kind}.tunnel.example.org/`;
    document.head.append(hint);
  }
  const peer = new RTCPeerConnection({iceServers: [
    {urls: "stun:ADDRESS:3478"}, {urls: "turn:ADDRESS:3478?transport=tcp", username: "a", credential: "b"}]});
  peer.createDataChannel("secret");
  const candidates = [];
  peer.onicecandidate = one => one.candidate && candidates.push(one.candidate.candidate);
  const refused = new Promise(go => peer.onicecandidateerror = one => go(one.url));
  await peer.setLocalDescription(await peer.createOffer());
  return {
    quic: await new WebTransport("https://api.example.com/").ready.then(() => "open", one => one.name),
    resolver: await fetch("https://8.8.8.8/dns-query?dns=AAAB", {mode: "no-cors"}).then(() => "open", one => one.name),
    refused: (await refused).replace(/:.*/, ""),
    candidates,
  };
})()""".replace("ADDRESS", ADDRESS)


@needs_chromium
@pytest.mark.req("T4.70", "T1.99")
def test_a_browser_has_no_way_of_its_own_and_each_attempt_is_on_record(room: Reachable) -> None:
    """QUIC, WebRTC, look-ups ahead and other resolvers: what it would send past the broker comes to nobody."""

    def steps(client: SyncColdframe) -> None:
        client.policy.load(RULES)
        with client.sandboxes.create("browser") as box:
            flags = [
                "--allow-loopback-in-peer-connection",  # without it WebRTC finds no interface and tries nothing
                "--enable-quic",
                "--origin-to-force-quic-on=api.example.com:443",
            ]
            done = lead_browser(box, ("https://api.example.com/", WAYS_OUT), flags=flags)
            (visit,) = visits_of(str(done.stdout))
            assert visit.status == 200
            assert visit.value["refused"] in ("stun", "turn")
            assert visit.value["candidates"] == []
            assert (visit.value["quic"], visit.value["resolver"]) == ("WebTransportError", "TypeError")
            dropped = {(one.protocol, one.address, one.port) for one in done.contacts if one.verdict == "refused"}
            assert ("udp", ADDRESS, 3478) in dropped
            denied = {
                (one.protocol, one.name or one.address, one.port) for one in contacts(box) if not _was_reached(one)
            }
            assert {("tcp", ADDRESS, 3478), ("tcp", "8.8.8.8", 443)} <= denied
            assert {one.name for one in contacts(box) if _was_reached(one)} == {"api.example.com"}
            # the collector is awake: what this machine itself sends comes to it, and nothing else did
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as direct:
                for port in COLLECTED_PORTS:
                    direct.sendto(b"control", (ADDRESS, port))
            control = {f"{port} b'control'" for port in COLLECTED_PORTS}
            wait_until(lambda: control <= _collected(), "what was sent directly is collected")
            assert _collected() == control

    room.use(steps)


@needs_firefox
def test_firefox_takes_what_is_read_and_shows_its_names_where_nothing_is(room: Reachable) -> None:
    def steps(client: SyncColdframe) -> None:
        client.policy.load(RULES)
        with client.sandboxes.create("browser") as box:
            for url in ("https://api.example.com/", "https://other.example.com:8443/v1/text"):
                done = box.run_command(["firefox-esr", "--headless", "--screenshot", "seen.png", url], timeout_s=60)
                assert done.exit_code == 0, done.stderr
            asked = [request.path for one in contacts(box, host="other.example.com") for request in one.requests]
            assert "/v1/text" in asked
            assert any(_was_reached(one) and one.received_bytes for one in contacts(box, host="api.example.com"))

    room.use(steps)


def _collected() -> set[str]:
    with urllib.request.urlopen(f"http://{ADDRESS}:8080/v1/collected", timeout=20) as answer:
        return set(json.load(answer))


def _was_reached(contact: NetworkContact) -> bool:
    return contact.outcome is Outcome.ALLOW and contact.dialled is not None
