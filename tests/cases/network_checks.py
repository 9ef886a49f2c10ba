"""Checks of the network cases: run in a room in which local sites stand for the world (`tests/reachable.py`)."""

import json
import socket
import threading
from datetime import UTC, datetime, timedelta

from coldframe.client.api import Coldframe
from coldframe.contract.errors import RulesInvalid
from coldframe.contract.network import NetworkContact
from tests.cases.checks import Lab, check
from tests.cases.runner import Bench
from tests.host.egress.world import INNER, NEAR, OTHER, SITE

CERTIFIED = 20
"""Sandboxes, one after the other."""
SOON_S = 3.0
"""A refusal that takes longer looks like a network that is down."""

FETCH = """
const show = error => console.log('ERR', (error.cause || error).code || error.message);
fetch(process.argv[1]).then(async r => console.log(r.status, await r.text())).catch(show);
"""
GET = """
require('http').get(process.argv[1], r => {
  let text = ''; r.on('data', d => text += d); r.on('end', () => console.log(r.statusCode, text));
}).on('error', error => console.log('ERR', error.code));
"""
DIALLER = """
import java.io.*; import java.net.*;
public class Dialler {
  public static void main(String[] to) {
    long begun = System.nanoTime();
    try (Socket one = new Socket()) {
      one.connect(new InetSocketAddress(InetAddress.getByName(to[0]), Integer.parseInt(to[1])), 10000);
      one.getOutputStream().write(("GET / HTTP/1.1\\r\\nHost: " + to[0] + "\\r\\nConnection: close\\r\\n\\r\\n").getBytes());
      String first = new BufferedReader(new InputStreamReader(one.getInputStream())).readLine();
      System.out.println(first == null ? "cut off" : first);
    } catch (IOException error) { System.out.println("cut off: " + error); }
    System.out.println("within " + (System.nanoTime() - begun) / 1000000000L);
  }
}
"""
DIAL = """
import socket, sys
one = socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)
one.sendall(b"x")
if not one.recv(1): sys.exit(9)
"""


async def contacts(lab: Lab, bench: Bench) -> list[NetworkContact]:
    page = await lab.sandbox_of(bench).network_log(limit=1000)
    return [one.contact for one in page.contacts]


async def use_rules(lab: Lab, *rules: str) -> None:
    """These hold for every sandbox of the room from now on. Raises RulesInvalid."""
    lines = [
        "version: 1",
        "network:",
        "  profiles:",
        f"    own: {{rules: [{', '.join(rules)}]}}",
        "  use: {'*': own}",
        "",
    ]
    async with Coldframe(lab.installation.url, lab.installation.token) as client:
        await client.policy.load("\n".join(lines))


def listener() -> tuple[socket.socket, list[object], int]:
    """A service of the host on all of its addresses, and whom it heard."""
    server, heard = socket.create_server(("0.0.0.0", 0)), []

    def serve() -> None:
        while True:
            try:
                peer, whom = server.accept()
            except OSError:
                return
            heard.append(whom)
            peer.sendall(b"x")
            peer.close()

    threading.Thread(target=serve, daemon=True).start()
    return server, heard, server.getsockname()[1]


@check("B099")
async def certificates_made_by_the_product_hold_at_once(lab: Lab) -> None:
    """Each sandbox has an authority of its own, so its first request is the first of all."""
    await use_rules(lab, f"{{id: read, to: {SITE}, methods: [GET]}}")
    begin = f"openssl s_client -connect {SITE}:443 -servername {SITE} -showcerts </dev/null 2>/dev/null"
    for _ in range(CERTIFIED):
        bench = await lab.bench()
        view = await bench.run(f"curl -sS -m 20 https://{SITE}/ && echo && {begin} | openssl x509 -noout -startdate")
        assert view.out.startswith("answer to GET / "), view
        start = datetime.strptime(view.out.strip().splitlines()[-1], "notBefore=%b %d %H:%M:%S %Y GMT").replace(
            tzinfo=UTC
        )
        assert start < datetime.now(UTC) - timedelta(minutes=5), f"it begins only now: {view.out}"
        await lab.end(bench)


@check("B111")
async def clients_that_know_no_proxy_are_governed_all_the_same(lab: Lab) -> None:
    await use_rules(
        lab,
        f"{{id: web, to: {SITE}, scheme: [http, https]}}",
        f"{{id: only-reading, to: {OTHER}, scheme: http, paths: [/v1]}}",
    )
    bench = await lab.bench()
    for program in (FETCH, GET):
        allowed = await bench.run(["node", "-e", program, f"http://{SITE}/"])
        assert allowed.out.startswith("200 answer to GET / "), allowed
        denied = await bench.run(["node", "-e", program, f"http://{OTHER}/secret"])
        assert denied.out.startswith("403 "), denied
        assert "only-reading" in denied.out or "network:default" in denied.out, "the answer does not name the rule"
        unknown = await bench.run(["node", "-e", program, "http://denied.example.org/"])
        assert unknown.out.startswith("ERR ") and unknown.dur < 20, unknown
    secured = await bench.run(["node", "-e", FETCH, f"https://{SITE}/"])
    assert secured.out.startswith("200 "), f"its own list of roots is not the one of the sandbox: {secured}"
    seen = await contacts(lab, bench)
    assert {(one.name, one.port) for one in seen if one.outcome == "allow"} >= {(SITE, 80), (SITE, 443)}, seen
    assert any(one.name == "denied.example.org" and one.outcome == "deny" for one in seen), seen


@check("B113")
async def clients_with_a_dialler_of_their_own_are_cut_off_at_once_and_on_record(lab: Lab) -> None:
    await use_rules(lab, f"{{id: web, to: {SITE}, scheme: [http, https]}}")
    bench = await lab.bench()
    raw = await bench.run(["python3", "-c", DIAL, "203.0.113.7", "443"])
    assert raw.code not in (0, None) and raw.dur < SOON_S + 2, raw
    assert "timed out" not in raw.err, "by a long silence"
    (contact,) = [one for one in await contacts(lab, bench) if one.address == "203.0.113.7"]
    assert (contact.port, contact.outcome, contact.command_id) == (443, "deny", raw.value["command_id"]), contact
    await bench.ask("write_file", path="Dialler.java", content=DIALLER)
    built = await bench.run("javac Dialler.java", timeout_s=120)
    if built.code != 0:
        return  # this machine has no compiler for it; the raw socket above says the same
    for name, port, starts in ((SITE, "80", "HTTP/1.1 200"), (SITE, "8081", "cut off"), (OTHER, "80", "cut off")):
        dialled = await bench.run(["java", "-cp", ".", "Dialler", name, port], timeout_s=60)
        assert dialled.out.startswith(starts), dialled
        assert int(dialled.out.split()[-1]) <= SOON_S, f"not at once: {dialled}"
    assert any(one.name == OTHER and one.outcome == "deny" for one in await contacts(lab, bench))


@check("B115")
async def a_rule_that_could_never_hold_is_refused_when_it_is_loaded(lab: Lab) -> None:
    for rule, names in (
        ("{id: own, to: 127.0.0.0/8, scheme: tcp, mode: raw, ports: 80}", "127.0.0.0/8"),
        ("{id: cloud, to: 169.254.169.254, scheme: http}", "169.254.169.254"),
        ("{id: typo, allowedDomain: api.example.com}", "allowedDomain"),
    ):
        try:
            await use_rules(lab, rule)
        except RulesInvalid as refused:
            assert names in f"{refused} {refused.facts}", refused
        else:
            raise AssertionError(f"accepted: {rule}")
    await use_rules(lab)
    bench = await lab.bench()
    assert (await bench.run(["python3", "-c", DIAL, SITE, "80"])).code not in (0, None), (
        "an empty list allows something"
    )
    async with Coldframe(lab.installation.url, lab.installation.token) as client:
        trials = {trial.name: trial.held for trial in (await client.doctor()).trials}
    assert trials["broker_denies"] is True, "a live self-test shows that what is denied is denied"


@check("B117")
async def an_allowed_name_that_resolves_to_what_must_not_be_reached(lab: Lab) -> None:
    """The same with answers that change from question to question: X6 to X8 of `tests/security/network.jsonl`."""
    await use_rules(lab, f"{{id: rebound, to: {INNER}, scheme: [http, https]}}")
    bench = await lab.bench()
    for port in ("80", "443"):
        refused = await bench.run(["curl", "-ksS", "-m", "9", f"http{'s' * (port == '443')}://{INNER}/"])
        assert refused.code not in (0, None) or "floor:address" in refused.out, refused
    seen = [one for one in await contacts(lab, bench) if one.name == INNER]
    rules = {(one.port, rule) for one in seen for rule in (one.rule_id, *(each.rule_id for each in one.requests))}
    assert {(80, "floor:address"), (443, "floor:address")} <= rules, seen
    assert all(one.dialled is None for one in seen), seen


ASK_ITSELF = "curl -sS -m 9 http://127.0.0.1:8123/"


@check("B119")
async def to_listen_is_not_to_reach(lab: Lab) -> None:
    """Previews are another matter; that a server of the sandbox is reached from within it shows that listening works."""
    await use_rules(lab)
    bench, other = await lab.bench(), await lab.bench()
    for one in (bench, other):
        started = await one.run("python3 -m http.server 8123 --bind 0.0.0.0 >/dev/null 2>&1 & echo")
        assert started.code == 0, started
        served = await one.run(f"for i in $(seq 200); do {ASK_ITSELF} && exit; sleep 0.1; done")
        assert "Directory listing" in served.out, served
    server, heard, port = listener()
    try:
        for host in ("127.0.0.1", NEAR, "localhost"):
            reached = await bench.run(["python3", "-c", DIAL, host, str(port)])
            assert reached.code not in (0, None), f"{host} was reached"
        assert heard == []
    finally:
        server.close()
    # Each sandbox has a loopback of its own: what answers there is itself.
    await other.run("touch of-the-other")
    assert "of-the-other" in (await other.run(ASK_ITSELF)).out
    assert "of-the-other" not in (await bench.run(ASK_ITSELF)).out


@check("B121")
async def a_query_arrives_byte_for_byte(lab: Lab) -> None:
    """Through the broker, which reads requests and writes them anew."""
    await use_rules(lab, f"{{id: read, to: {SITE}, scheme: http, ports: 8080, paths: [/v1], methods: [GET]}}")
    bench = await lab.bench()
    targets = [
        "/v1/text?path=/workspace/a%20b&x=1&x=2",
        "/v1/text?empty=&=also&&x",
        "/v1/text?",
        "/v1/text?q=%2F%2f+%e2%82%ac;a=b?c/../d",
        f"/v1/text?long={'0123456789abcdef' * 1024}",
    ]
    send = (
        "import http.client, json, sys\n"
        f"for target in json.load(sys.stdin):\n    one = http.client.HTTPConnection({SITE!r}, 8080, timeout=20)\n"
        "    one.request('GET', target)\n    print(one.getresponse().status)\n"
    )
    answered = await bench.run(["python3", "-c", send], stdin=json.dumps(targets))
    assert answered.out.split() == ["200"] * len(targets), answered
    seen = json.loads((await bench.run(["curl", "-sS", "-m", "20", f"http://{SITE}:8080/v1/seen"])).out)
    assert [line.split(" ")[1] for line in seen[-len(targets) :]] == targets, seen
