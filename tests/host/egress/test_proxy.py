"""Where the host's network has a proxy, it is asked for the addresses that were judged; what else it is asked is on record."""

import asyncio
import http.client
import json
import socket
import ssl
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

import pytest

from coldframe.contract.errors import InvalidArgument
from coldframe.contract.policy import Outcome
from coldframe.host.egress.broker import Broker
from coldframe.host.egress.contact import EgressContact
from coldframe.host.egress.intercept import Interception
from coldframe.host.egress.proxy import Proxies, Proxy, read_proxies
from coldframe.policy.network_rules import Scheme
from tests.host.egress.brokered import Brokered, with_link
from tests.host.egress.connect_proxy import USER
from tests.host.egress.intercepted import Scene, error_of, get
from tests.host.egress.test_broker import ORIGIN, Log, code_of, network
from tests.host.egress.world import FAR, HIDDEN, INNER, OTHER, PROXY_PORT, SITE, SSH, World, in_world
from tests.host.machines import as_root_and_ordinary

RULES = (
    f"{{id: site, to: [{SITE}, {INNER}, {OTHER}, {HIDDEN}], ports: [443]}}",
    f"{{id: read, to: [{SITE}, {INNER}, {OTHER}, {HIDDEN}], ports: [8443], mode: intercept}}",
    f"{{id: plain, to: {SSH}, scheme: tcp, mode: raw, ports: [9000]}}",
    f"{{id: http, to: {SITE}, ports: [8080], scheme: http}}",
)
ENVIRONMENT = dict.fromkeys(("HTTPS_PROXY", "http_proxy"), f"http://{USER}@{FAR}:{PROXY_PORT}")


def with_proxy(steps: Callable[[Scene], Any], *, who: str = "root", proxies: Proxies | None = None) -> None:
    async def whole(world: World) -> None:
        log = Log()
        interception = Interception(trust=ssl.create_default_context(cafile=world.certificates.authority))
        broker = Broker(network(*RULES), log.journal(), resolve=world.resolve, intercept=interception)
        broker.proxies = proxies or read_proxies(ENVIRONMENT)
        broker.open(ORIGIN, world.box.arrivals)
        try:
            await steps(Scene(world, broker, log, interception))
        finally:
            await broker.close()

    in_world(who, whole)


async def asked() -> list[str]:
    """What the proxy was asked for."""

    def ask() -> list[str]:
        client = http.client.HTTPConnection(FAR, PROXY_PORT, timeout=30)
        client.request("GET", "/")
        return json.loads(client.getresponse().read())  # type: ignore[no-any-return]

    return await asyncio.to_thread(ask)


def unverified(name: str) -> bytes:
    """An answer of the server itself, in mode `sni`."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((name, 443), timeout=30) as plain:
        with context.wrap_socket(plain, server_hostname=name) as client:
            client.sendall(b"GET /x HTTP/1.1\r\n\r\n")
            heard = b""
            while part := client.recv(65536):
                heard += part
            return heard


# -- through it ------------------------------------------------------------------------------------


@as_root_and_ordinary
def test_it_is_asked_for_the_address_that_was_judged_and_the_record_names_it(who: str) -> None:
    async def steps(scene: Scene) -> None:
        assert b"answer to GET /x" in await scene.inside(lambda: unverified(SITE))
        assert (await scene.inside(lambda: get("/v1/text")))[1] == b"some text"
        assert (await scene.inside(lambda: get("/v1/text", port=8080)))[1] == b"some text"
        found = await scene.log.of(3)
        assert await asked() == [f"93.184.215.14:{port}" for port in (443, 8443, 8080)]
        assert {(one.dialled, one.via) for one in found} == {("93.184.215.14", f"{FAR}:{PROXY_PORT}")}
        assert [one.mode for one in found] == ["sni", "intercept", "intercept"]

    with_proxy(steps, who=who)


def test_a_name_that_this_machine_cannot_resolve_is_left_to_the_proxy_and_the_record_says_so() -> None:
    async def steps(scene: Scene) -> None:
        def twice() -> list[bytes]:
            client = http.client.HTTPSConnection(HIDDEN, 8443, timeout=30, context=ssl.create_default_context())
            found = []
            for _ in range(2):
                client.request("GET", "/v1/text")
                found.append(client.getresponse().read())
            return found

        assert await scene.inside(twice) == [b"some text"] * 2
        contact = await scene.contact()
        assert (contact.dialled, contact.via) == (None, f"{FAR}:{PROXY_PORT}")
        assert await asked() == [f"{HIDDEN}:8443"]

    with_proxy(steps)


def test_what_may_not_be_dialled_is_not_asked_for_and_what_is_no_http_goes_without() -> None:
    async def steps(scene: Scene) -> None:
        def raw() -> bytes:
            with socket.create_connection((SSH, 9000), timeout=30) as client:
                client.sendall(b"x")
                client.shutdown(socket.SHUT_WR)
                return client.makefile("rb").read()

        assert await scene.inside(lambda: code_of(lambda: unverified(INNER))) == "ECONNRESET"
        assert await scene.inside(raw) == b"xend"
        inner, plain = (await scene.log.of(2))[-2:]
        assert (inner.outcome, inner.rule_id, inner.dialled) == (Outcome.DENY, "floor:address", None)
        assert (plain.dialled, plain.via) == ("93.184.215.16", None)
        assert await asked() == []

    with_proxy(steps)


@pytest.mark.parametrize(
    ("name", "proxies", "reason"),
    [
        pytest.param(
            OTHER, read_proxies(ENVIRONMENT), "answered 403 for 93.184.215.15: it does not allow it", id="403"
        ),
        pytest.param(SITE, Proxies(https=Proxy(FAR, PROXY_PORT)), "answered 407", id="no credentials"),
        pytest.param(SITE, Proxies(https=Proxy(FAR, 7)), "cannot be reached: 93.184.216.2", id="nobody there"),
        pytest.param(SITE, Proxies(https=Proxy(FAR, 9000)), "no answer that can be read", id="no proxy"),
    ],
)
def test_how_it_fails_is_told_to_the_program_and_on_record(name: str, proxies: Proxies, reason: str) -> None:
    async def steps(scene: Scene) -> None:
        status, code, _ = error_of(answer := await scene.inside(lambda: get("/v1/text", name=name)))
        assert (status, code) == (502, "SERVER_FAILED") and reason in answer[1].decode()
        contact = await scene.contact()
        assert reason in (contact.ended or "") and USER not in repr(contact)

    with_proxy(steps, proxies=proxies)


def test_what_the_list_of_exceptions_names_goes_without() -> None:
    async def steps(scene: Scene) -> None:
        assert (await scene.inside(lambda: get("/v1/text")))[0] == 200
        assert (await scene.contact()).via is None
        assert await asked() == []

    with_proxy(steps, proxies=read_proxies({**ENVIRONMENT, "NO_PROXY": ".example.com"}))


@as_root_and_ordinary
def test_the_process_of_the_broker_goes_by_it_as_well(who: str) -> None:
    async def steps(made: Brokered) -> None:
        assert b"answer to GET /x" in await made.inside(lambda: unverified(SITE))
        ended = (await made.lines_until("ended", 1))[-1].contact
        assert isinstance(ended, EgressContact)
        assert (ended.dialled, ended.via) == ("93.184.215.14", f"{FAR}:{PROXY_PORT}")
        assert await asked() == ["93.184.215.14:443"]

    with_link(steps, rules=(RULES[0],), who=who, proxies=read_proxies(ENVIRONMENT))


# -- what variables say ----------------------------------------------------------------------------


def test_proxies_are_read_from_the_usual_variables() -> None:
    found = read_proxies(
        {"https_proxy": "http://u%40x:p%3A@proxy.corp:3128/", "HTTPS_PROXY": "http://other", "ALL_PROXY": "plain:81"}
    )
    assert found.https == Proxy("proxy.corp", 3128, "Basic dUB4OnA6")
    assert found.http == Proxy("plain", 81)
    assert "dUB4" not in repr(found)
    assert read_proxies({"HTTPS_PROXY": "http://[fd00::1]"}).https == Proxy("fd00::1", 80)
    assert read_proxies({}) == Proxies()


@pytest.mark.parametrize(
    "text",
    [
        "socks5://proxy:1080",
        "https://proxy",
        "http://proxy/path",
        "http://",
        "http://proxy:no",
        "http://[",
        "http://x:99999",
    ],
)
def test_a_proxy_that_cannot_be_used_is_refused_and_its_password_not_told(text: str) -> None:
    with pytest.raises(InvalidArgument) as failure:
        read_proxies({"HTTPS_PROXY": text.replace("//", "//me:hidden@", 1)})
    assert "hidden" not in f"{failure.value}{failure.value.hint}"


@pytest.mark.parametrize(
    ("entry", "destination", "port", "is_direct"),
    [
        ("*", "any.example.com", 443, True),
        ("example.com", "example.com", 443, True),
        ("example.com", "api.example.com", 443, True),
        ("example.com", "badexample.com", 443, False),
        (".example.com", "api.example.com", 443, True),
        ("*.example.com", "api.example.com", 443, True),
        ("api.example.com:8443", "api.example.com", 443, False),
        ("api.example.com:443", "api.example.com", 443, True),
        ("10.0.0.0/8", ip_address("10.1.2.3"), 443, True),
        ("10.0.0.0/8", ip_address("11.1.2.3"), 443, False),
        ("10.1.2.3", ip_address("10.1.2.3"), 443, True),
        ("fd00::/8", ip_address("fd00::1"), 443, True),
        ("[fd00::1]:443", ip_address("fd00::1"), 443, True),
        ("example.com", ip_address("10.1.2.3"), 443, False),
        ("10.1.2.3", "api.example.com", 443, False),
        (".", "api.example.com", 443, False),
    ],
)
def test_exceptions_are_names_addresses_and_ranges(entry: str, destination: Any, port: int, is_direct: bool) -> None:
    proxies = read_proxies({"HTTPS_PROXY": "http://proxy", "NO_PROXY": f" ,{entry.upper()}, other.org"})
    assert (proxies.choose(destination, port, Scheme.HTTPS) is None) == is_direct
    assert proxies.choose(destination, port, Scheme.TCP) is None
