"""What the contract says about the network is what is found inside: brokered things work without being seen, the rest is
out of reach, and what is not prevented really happens and is on record."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from coldframe.client.sync import SyncColdframe
from tests.installation import Installation
from tests.promises.raw import all_entries
from tests.reachable import Reachable

RULES = """version: 1
network:
  profiles:
    given:
      rules:
        - {id: api, to: api.example.com, ports: [443, 80, 8080], scheme: [https, http]}
        - {id: echo, to: ssh.example.com, scheme: tcp, mode: raw, ports: 9000}
  use: {"*": given}
"""
EVERYTHING = 'version: 1\nnetwork: {use: {"*": open}}\n'
PROBE = """
import socket, sys
try:
    found = socket.getaddrinfo(sys.argv[1], int(sys.argv[2]), type=socket.SOCK_STREAM)
    print(found[0][4][0])
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 20) as link:
        link.sendall(b"GET / HTTP/1.1\\r\\nHost: %b\\r\\nConnection: close\\r\\n\\r\\n" % sys.argv[1].encode())
        link.shutdown(1)
        heard = b"".join(iter(lambda: link.recv(65536), b""))
        print("through" if heard and b'"by": "coldframe"' not in heard else "told that it is refused")
except OSError as error:
    print(f"refused {error.errno}")
"""


@pytest.mark.req("T3.53")
def test_what_is_brokered_works_without_being_seen_and_what_is_outside_is_denied(room: Reachable) -> None:
    brokered = [("api.example.com", 80), ("api.example.com", 8080), ("ssh.example.com", 9000)]
    outside = [
        *[("api.example.com", port) for port in (22, 81, 8443, 9000)],
        *[("ssh.example.com", port) for port in (22, 80, 443, 9001)],
        *[("other.example.com", port) for port in (80, 443, 8443)],
        *[(name, 80) for name in ("inner.example.com", "nobody.example.org", "localhost", "example.com", "com")],
        *[(f"93.184.215.{last}", 80) for last in (14, 15, 16)],
        *[("127.0.0.1", 80), ("10.0.0.1", 80), ("169.254.169.254", 80), ("::1", 80), ("93.184.216.1", 80)],
        *[("198.18.0.1", 80), ("0.0.0.0", 80), ("fd00:ec2::254", 80)],
    ]

    def steps(client: SyncColdframe) -> None:
        client.policy.load(RULES)
        with client.sandboxes.create("exposed") as box:
            box.write_file("probe.py", PROBE)
            lines = {line["id"]: line["value"] for line in box.contract()["exposure"]}
            assert lines["exposure.network"] == ["given"]
            assert {f"exposure.network.{name}" for name, _ in brokered} < set(lines)
            assert lines["exposure.network.api.example.com"]["exposure"] == "brokered"
            (grant,) = lines["exposure.network.api.example.com"]["grants"]
            assert {"granted_by", "reason", "granted_at", "expires"} < set(grant)
            for name, port in brokered:
                done = box.run_command(["python3", "probe.py", name, str(port)])
                address, answer = str(done.stdout).split("\n")[:2]
                assert answer == "through", (name, port)
                assert address.startswith(("198.18.", "198.19.", "fd63:6f6c:6466:")), address
            for name, port in outside:
                done = box.run_command(["python3", "probe.py", name, str(port)])
                assert "through" not in str(done.stdout), (name, port)
            real = box.run_command("grep -rs '93[.]184' /etc /proc/net /opt/coldframe 2>/dev/null; env").stdout
            assert "93.184" not in str(real)

    room.use(steps)


@contextlib.contextmanager
def _listeners() -> Iterator[list[socket.socket]]:
    """Services of the host that nobody of a box may talk to."""
    with contextlib.ExitStack() as opened:
        found = []
        for family, address in (
            (socket.AF_INET, ("127.0.0.1", 5432)),
            (socket.AF_INET6, ("::1", 5432)),
            (socket.AF_INET, ("93.184.216.1", 5432)),
            (socket.AF_UNIX, "\0canary-of-the-host"),
        ):
            listener = opened.enter_context(socket.socket(family, socket.SOCK_STREAM))
            if family != socket.AF_UNIX:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(16)
            listener.setblocking(False)
            found.append(listener)
        yield found


@pytest.mark.req("T3.07")
def test_services_of_the_host_are_out_of_reach_also_with_the_widest_network(room: Reachable) -> None:
    attempts = [
        *[("127.0.0.1", 5432), ("::1", 5432), ("localhost", 5432), ("93.184.216.1", 5432), ("inner.example.com", 5432)],
        *[("169.254.169.254", 80), ("10.9.9.9", 5432), ("0.0.0.0", 5432), ("::ffff:127.0.0.1", 5432)],
    ]

    def steps(installation: Installation) -> None:
        api = int(installation.url.rpartition(":")[2])
        with SyncColdframe(installation.url, installation.token) as client, _listeners() as listeners:
            client.policy.load(EVERYTHING)
            with client.sandboxes.create("neighbour") as box:
                box.write_file("probe.py", PROBE)
                for name, port in (*attempts, ("127.0.0.1", api)):
                    done = box.run_command(["python3", "probe.py", name, str(port)])
                    assert "through" not in str(done.stdout), (name, port)
                done = box.run_command("curl -sS --abstract-unix-socket canary-of-the-host http://x/")
                assert done.exit_code != 0
                for listener in listeners:
                    with pytest.raises(BlockingIOError):
                        listener.accept()
                denied = {(one.contact.name or one.contact.address) for one in box.network_log(outcome="deny").contacts}
                assert {"93.184.216.1", "169.254.169.254", "10.9.9.9", "inner.example.com"} <= denied

    room.run(steps)


@pytest.mark.req("T3.09")
def test_what_is_not_prevented_really_happens_and_is_on_record(room: Reachable) -> None:
    def steps(client: SyncColdframe) -> None:
        client.policy.load(RULES)
        with client.sandboxes.create("trusted") as box:
            lines = {line["id"] for line in box.contract()["not_prevented"]}
            assert {
                "not_prevented.wrong_code",
                "not_prevented.network.api.example.com",
                "not_prevented.network.ssh.example.com",
            } <= lines
            assert not [line for line in lines if "credential" in line]
            wrong = box.run_command("echo $((2 + 2 + 1))")
            assert (wrong.exit_code, wrong.stdout) == (0, "5\n")
            box.write_file("plan.txt", "x" * 50_000)
            url = "http://api.example.com:8080/v1/store"
            posted = box.run_command(["curl", "-sS", "--data-binary", "@plan.txt", url])
            assert '"bytes": 50000' in str(posted.stdout)
            log = box.network_log(command_id=posted.command_id).contacts
            (contact,) = [one.contact for one in log if one.contact.port == 8080]
            assert contact.sent_bytes > 50_000
            assert [(one.method, one.path) for one in contact.requests] == [("POST", "/v1/store")]
            kinds = {one.kind for one in all_entries(client, sandbox_id=box.id)}
            assert {"call.ended", "network.contact"} <= kinds

    room.use(steps)
