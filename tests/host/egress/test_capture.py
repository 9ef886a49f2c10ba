"""All that leaves a box arrives at the broker with its true destination, or is refused at once; nothing else gets out."""

import errno
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable
from functools import partial

import pytest

from coldframe.guest import contacts
from coldframe.host import confine, routes
from coldframe.host.egress import arrivals, nftables
from tests.host import boxes
from tests.host.egress import captured
from tests.host.egress.captured import namespace
from tests.host.forked import in_child
from tests.host.machines import as_root_and_ordinary

V4, V6 = "203.0.113.9", "2001:db8::9"


def rules_are_offered() -> bool:
    def child() -> bool:
        boxes.become_ordinary()
        try:
            confine.unshare("user", "net")
            nftables.install(captured.OWN)
        except (confine.ConfineError, nftables.NotOffered):
            return False
        return True

    return in_child(child)


with_rules = pytest.mark.skipif(not rules_are_offered(), reason="needs a kernel with nftables")


def without_rules() -> None:
    """A kernel that does not know one of the expressions."""
    batch = nftables.batch

    def other(own_address: str) -> tuple[bytes, int]:
        told, answered = batch(own_address)
        return told.replace(b"redir\0", b"rodir\0"), answered

    nftables.batch = other


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def place(address: str, port: int) -> tuple[str | int, ...]:
    return socket.getaddrinfo(address, port, flags=socket.AI_NUMERICHOST)[0][4]


def told_by(address: str, port: int) -> str:
    """What a client that speaks to nobody's proxy is told at the other end."""
    with socket.socket(family_of(address), socket.SOCK_STREAM) as client:
        client.settimeout(10)
        client.connect(place(address, port))
        client.sendall(b"x")
        heard = b""
        while part := client.recv(4096):
            heard += part
    return heard.rpartition(b"\r\n\r\n")[2].decode()


def code_of(step: Callable[[], object]) -> str | None:
    try:
        step()
    except TimeoutError:
        return "nothing came"
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return None


@with_rules
@as_root_and_ordinary
def test_a_connection_to_any_address_and_port_arrives_with_its_destination(who: str) -> None:
    wanted = [(V4, 443), (V4, 1), (V4, 65535), ("10.0.0.1", 22), ("169.254.169.254", 80), ("255.255.255.254", 8080)]
    wanted += [(V6, 443), (V6, 1023), ("fe80::1%lo", 80), ("::2", 9), ("::ffff:203.0.113.9", 25), ("64:ff9b::1", 8443)]
    with namespace(who) as inside:
        assert (inside.arrivals.mechanism, inside.arrivals.reason, inside.arrivals.ports) == ("nftables", "", ())
        heard, served = inside.serve(inside.start(lambda: [told_by(*one) for one in wanted]))
        refused = inside.attempts()
    arrived = [(address.removeprefix("::ffff:").partition("%")[0], port) for address, port in wanted]
    assert served.destinations == arrived
    assert heard == [f"{address} {port}" for address, port in arrived]
    assert refused == []


@with_rules
@as_root_and_ordinary
@pytest.mark.parametrize("program", ["curl", "wget"])
def test_programs_that_know_no_proxy_arrive_by_address_and_by_name(who: str, program: str) -> None:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"needs {program}")
    line = {"curl": [path, "-sS", "--max-time", "20"], "wget": [path, "-qO-", "--timeout=20", "--tries=1"]}[program]
    targets = [f"http://{V4}:8081/", f"http://[{V6}]:8082/", "http://example.test:8083/"]

    def child() -> list[str]:
        environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
        done = [subprocess.run([*line, one], env=environment, capture_output=True, text=True) for one in targets]
        return [one.stdout + one.stderr for one in done]

    files = {"/etc/resolv.conf": "nameserver 9.9.9.9\noptions timeout:5 attempts:1\n"}
    with namespace(who) as inside:
        heard, served = inside.serve(inside.start(child, files=files))
        refused = inside.attempts()
    assert heard == [f"{V4} 8081", f"{V6} 8082", f"{captured.ANSWER} 8083"]
    assert set(served.questions) == {"example.test by udp"}
    assert refused == []


@with_rules
@as_root_and_ordinary
def test_a_look_up_at_any_name_server_is_answered_by_the_one_that_was_asked(who: str) -> None:
    servers = ["9.9.9.9", "127.0.0.1", "127.0.0.53", "198.18.0.1", V6, "::1", "fe80::1%lo"]

    def by_udp(server: str) -> tuple[bool, bytes]:
        with socket.socket(family_of(server), socket.SOCK_DGRAM) as client:
            client.settimeout(10)
            client.sendto(captured.dns_question("a.test"), place(server, 53))
            reply, source = client.recvfrom(512)
            return source == place(server, 53), reply

    def by_tcp(server: str) -> bytes:
        with socket.socket(family_of(server), socket.SOCK_STREAM) as client:
            client.settimeout(10)
            client.connect(place(server, 53))
            question = captured.dns_question("b.test")
            client.sendall(struct.pack("!H", len(question)) + question)
            return client.recv(512)[2:]

    with namespace(who) as inside:
        (datagrams, streams), served = inside.serve(
            inside.start(lambda: ([by_udp(one) for one in servers], [by_tcp(one) for one in servers]))
        )
        refused = inside.attempts()
    assert set(datagrams) == {(True, captured.dns_answer(captured.dns_question("a.test")))}
    assert set(streams) == {captured.dns_answer(captured.dns_question("b.test"))}
    assert served.questions == ["a.test by udp"] * len(servers) + ["b.test by tcp"] * len(servers)
    assert served.destinations == [] and refused == []


@with_rules
@as_root_and_ordinary
@pytest.mark.parametrize("server", ["9.9.9.9", "127.0.0.53", "2001:db8::53"])
def test_the_system_finds_names_with_any_name_server_in_its_settings(who: str, server: str) -> None:
    def child() -> tuple[str, int]:
        found = subprocess.run(["getent", "ahostsv4", "example.test"], capture_output=True, text=True, timeout=60)
        return found.stdout.split()[0], found.returncode

    files = {
        "/etc/resolv.conf": f"nameserver {server}\noptions timeout:5 attempts:1\n",
        "/etc/nsswitch.conf": "hosts: files dns\n",
    }
    with namespace(who) as inside:
        found, served = inside.serve(inside.start(child, files=files))
    assert found == (captured.ANSWER, 0)
    assert "example.test by udp" in served.questions


@with_rules
@as_root_and_ordinary
def test_datagrams_are_refused_at_once_and_seen_once_each(who: str) -> None:
    targets = [(V4, 443), (V4, 123), ("10.0.0.1", 5353), ("224.0.0.251", 5353), ("255.255.255.255", 67), (V6, 443)]
    targets += [("ff02::1", 5353), ("fe80::1%lo", 9)]

    def child() -> tuple[list[str | None], list[tuple[str | None, str | None]]]:
        codes, connected = [], []
        for address, port in targets:
            with socket.socket(family_of(address), socket.SOCK_DGRAM) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
                codes.append(code_of(lambda: client.sendto(b"x", place(address, port))))  # noqa: B023
        for address in (V4, V6):
            with socket.socket(family_of(address), socket.SOCK_DGRAM) as client:
                client.settimeout(10)
                client.connect((address, 8443))
                connected.append((code_of(lambda: client.send(b"x")), code_of(lambda: client.recv(9))))
        return codes, connected

    with namespace(who) as inside:
        codes, connected = inside.run(child)
        refused = inside.attempts()
        assert inside.seen.newly_dropped() == 0
    assert codes == ["EPERM"] * len(targets)
    assert connected == [("EPERM", "ECONNREFUSED")] * 2  # also who looks at the answer alone is told
    expected = [("udp", address.partition("%")[0], port, None) for address, port in targets]
    assert refused == [*expected, ("udp", V4, 8443, None), ("udp", V6, 8443, None)]


@with_rules
@as_root_and_ordinary
def test_other_protocols_do_not_leave_even_with_the_right_to_send_raw_packets(who: str) -> None:
    numbers = {"icmp": 1, "igmp": 2, "dccp": 33, "gre": 47, "esp": 50, "sctp": 132, "udp-lite": 136}

    def child() -> list[str | None]:
        codes = []
        for address in (V4, V6):
            for number in numbers.values():
                with socket.socket(family_of(address), socket.SOCK_RAW, number) as client:
                    codes.append(code_of(lambda: client.sendto(b"\x08\0\xf7\xff" + bytes(4), (address, 0))))  # noqa: B023
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as client:
            source, target = socket.inet_aton("127.0.0.1"), socket.inet_aton(V4)
            packet = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20, 1, 0, 64, 47, 0, source, target)
            codes.append(code_of(lambda: client.sendto(packet, (V4, 0))))
        return codes

    with namespace(who) as inside:
        codes = inside.run(child, raw=True)
        refused = inside.attempts()
    assert codes == ["EPERM"] * (2 * len(numbers) + 1)
    assert [one.address for one in refused] == [V4] * len(numbers) + [V6] * len(numbers) + [V4]
    assert {one.protocol for one in refused} == {"icmp", "other"}


@as_root_and_ordinary
def test_a_program_of_the_box_cannot_even_make_such_sockets(who: str) -> None:
    def child() -> list[str | None]:
        kinds = [(socket.SOCK_RAW, 1), (socket.SOCK_RAW, 255), (socket.SOCK_STREAM, 132), (socket.SOCK_SEQPACKET, 132)]
        kinds += [(6, 33), (socket.SOCK_DGRAM, 136)]
        return [
            code_of(lambda: socket.socket(family, kind, number))  # noqa: B023
            for family in (socket.AF_INET, socket.AF_INET6)
            for kind, number in kinds
        ]

    with namespace(who) as inside:
        assert set(inside.run(child)) <= {"EPERM", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT"}


@with_rules
@as_root_and_ordinary
def test_services_of_the_box_on_loopback_work_as_ever_and_are_no_attempts(who: str) -> None:
    def child() -> list[bytes]:
        heard = []
        for family, address in (
            (socket.AF_INET, "127.0.0.1"),
            (socket.AF_INET, "127.9.9.9"),
            (socket.AF_INET, captured.OWN),
            (socket.AF_INET6, "::1"),
        ):
            with socket.create_server((address, 0), family=family) as server:
                server.settimeout(10)
                with socket.create_connection(server.getsockname()[:2], 10) as client:
                    served, _ = server.accept()
                    with served:
                        client.sendall(b"there")
                        heard.append(served.recv(10))
                        served.sendall(b"and back")
                        heard.append(client.recv(10))
            with socket.socket(family, socket.SOCK_DGRAM) as one, socket.socket(family, socket.SOCK_DGRAM) as other:
                one.bind((address, 0))
                other.settimeout(10)
                one.settimeout(10)
                other.sendto(b"there", one.getsockname()[:2])
                word, whom = one.recvfrom(10)
                one.sendto(b"and back", whom)
                heard += [word, other.recv(10)]
        with (
            socket.create_server(("", 0)) as server,
            socket.create_connection(("0.0.0.0", server.getsockname()[1]), 10),
        ):
            server.settimeout(10)
            server.accept()[0].close()
        return heard

    with namespace(who) as inside:
        heard, served = inside.serve(inside.start(child))
        refused = inside.attempts()
    assert heard == [b"there", b"and back"] * 8
    assert served == ([], []) and refused == []


@with_rules
def test_what_a_box_sends_to_itself_takes_no_room_among_tracked_connections() -> None:
    counter = "/proc/sys/net/netfilter/nf_conntrack_count"
    if not os.path.exists(counter):
        pytest.skip("this kernel does not tell how many connections it tracks")

    def tracked() -> int:
        with open(counter, encoding="ascii") as file:
            return int(file.read())

    def child() -> tuple[int, int]:
        before = tracked()
        for family, address in (
            (socket.AF_INET, "127.0.0.1"),
            (socket.AF_INET, captured.OWN),
            (socket.AF_INET6, "::1"),
        ):
            with socket.create_server((address, 0), family=family) as server:
                for _ in range(20):
                    with socket.create_connection(server.getsockname()[:2], 10), server.accept()[0]:
                        continue
        after_own = tracked()
        told_by(V4, 443)
        return after_own - before, tracked() - after_own

    with namespace("ordinary") as inside:
        (own, outward), _ = inside.serve(inside.start(child))
    assert own <= 0 < outward


@as_root_and_ordinary
@pytest.mark.parametrize("before", [pytest.param(lambda: None, id="nftables"), pytest.param(without_rules, id="anyip")])
def test_a_program_that_learns_its_own_address_can_be_reached_there(who: str, before: Callable[[], None]) -> None:
    """As cluster software does: the source towards some address far away."""

    def child() -> tuple[str, bytes]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.connect(("8.8.8.8", 80))
            own = asking.getsockname()[0]
        with socket.create_server((own, 0)) as server:
            server.settimeout(10)
            with socket.create_connection(server.getsockname(), 10) as client:
                served, _ = server.accept()
                with served:
                    served.sendall(b"hello")
                    return own, client.recv(10)

    with namespace(who, before=before) as inside:
        assert inside.run(child) == (captured.OWN, b"hello")
        assert inside.attempts() == []


@with_rules
@as_root_and_ordinary
@pytest.mark.parametrize(
    ("family", "source"), [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")]
)
def test_connections_from_one_port_to_different_places_are_kept_apart(who: str, family: int, source: str) -> None:
    targets = [V4, "203.0.113.10", "10.0.0.1"] if family == socket.AF_INET else [V6, "2001:db8::10", "::7"]

    def child() -> list[str]:
        clients = []
        for address in targets:
            client = socket.socket(family, socket.SOCK_STREAM)
            client.settimeout(10)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            client.bind((source, 40_000))
            client.connect((address, 443))
            clients.append(client)
        heard = []
        for client in clients:
            client.sendall(b"x")
            heard.append(client.recv(4096).rpartition(b"\r\n\r\n")[2].decode())
        return heard

    with namespace(who) as inside:
        heard, served = inside.serve(inside.start(child))
    assert heard == [f"{address} 443" for address in targets]
    assert sorted(served.destinations) == sorted((address, 443) for address in targets)


@with_rules
@as_root_and_ordinary
def test_who_is_denied_sees_a_reset(who: str) -> None:
    def child() -> list[str | None]:
        codes = []
        for address in (V4, V6):
            with socket.socket(family_of(address), socket.SOCK_STREAM) as client:
                client.settimeout(10)
                client.connect((address, 443))
                client.sendall(captured.RESET)
                codes.append(code_of(lambda: client.recv(1)))
        return codes

    with namespace(who) as inside:
        codes, _ = inside.serve(inside.start(child))
    assert codes == ["ECONNRESET"] * 2


@with_rules
def test_a_connection_that_is_closed_on_one_side_is_known_as_long_as_an_open_one() -> None:
    """For its time to run out a test would have to wait; the kernel says how long it will."""
    settings = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_"
    if not os.path.exists(f"{settings}close_wait"):
        pytest.skip("this kernel does not tell how long it knows a connection")

    def child() -> dict[str, int]:
        told = {}
        for name in ("close_wait", "established", "time_wait", "syn_sent"):
            with open(settings + name, encoding="ascii") as file:
                told[name] = int(file.read())
        return told

    with namespace("ordinary") as inside:
        told = inside.run(child)
    if told["time_wait"] != nftables.TIMEOUTS_S[7]:
        pytest.skip("this kernel keeps its own times")
    assert told["close_wait"] == told["established"] > told["syn_sent"] > told["time_wait"]


@with_rules
@as_root_and_ordinary
def test_the_port_of_the_gate_answers_nobody_who_calls_it_itself(who: str) -> None:
    addresses = ["127.0.0.1", "127.0.0.2", "::1"]

    def child() -> list[str | None]:
        return [code_of(lambda: told_by(address, nftables.GATE_PORT)) for address in addresses]  # noqa: B023

    with namespace(who) as inside:
        codes, served = inside.serve(inside.start(child))
    assert codes == ["ECONNREFUSED"] * len(addresses)
    assert served.destinations == []


@with_rules
@as_root_and_ordinary
def test_a_server_of_the_box_takes_neither_a_look_up_nor_a_connection_over(who: str) -> None:
    def child() -> tuple[list[str | None], str]:
        codes = []
        for kind, port in ((socket.SOCK_DGRAM, nftables.RESOLVER_PORT), (socket.SOCK_STREAM, nftables.GATE_PORT)):
            with socket.socket(socket.AF_INET, kind) as thief:
                thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                codes.append(code_of(lambda: thief.bind(("127.0.0.1", port))))  # noqa: B023
        with socket.create_server((V4, 8443)) as server, socket.create_server(("", 8444)) as anywhere:
            told = told_by(V4, 8443) + ", " + told_by(V4, 8444)
            for one in (server, anywhere):
                one.setblocking(False)
                codes.append(code_of(one.accept))
        return codes, told

    with namespace(who) as inside:
        (codes, told), served = inside.serve(inside.start(child))
    assert codes[0] in ("EACCES", "EADDRINUSE") and codes[1] in ("EACCES", "EADDRINUSE")
    assert codes[2:] == ["EAGAIN", "EAGAIN"]
    assert told == f"{V4} 8443, {V4} 8444"
    assert served.destinations == [(V4, 8443), (V4, 8444)]


@as_root_and_ordinary
def test_there_is_no_way_out_and_a_program_cannot_make_one(who: str) -> None:
    def child() -> tuple[list[str], str, str]:
        interfaces = [name for _, name in socket.if_nameindex()]
        confine.drop_all_capabilities()
        outcomes = []
        for step in (partial(nftables.install, captured.OWN), routes.capture_everything):
            try:
                step()
                outcomes.append("done")
            except (nftables.NotOffered, confine.ConfineError) as error:
                outcomes.append(str(error))
        return interfaces, outcomes[0], outcomes[1]

    with namespace(who) as inside:
        interfaces, rules, route = inside.run(child, raw=True)
    assert interfaces == ["lo"]
    assert "Operation not permitted" in rules and "Operation not permitted" in route


@with_rules
@as_root_and_ordinary
def test_a_thousand_connections_leave_no_descriptor(who: str) -> None:
    def child() -> int:
        for number in range(1000):
            assert told_by(f"203.0.{number % 7}.{number % 200 + 1}", 1024 + number)
        return len(os.listdir("/proc/self/fd"))

    with namespace(who) as inside:
        before = len(os.listdir("/proc/self/fd"))
        running = inside.start(child)
        _, served = inside.serve(running)
        assert len(os.listdir("/proc/self/fd")) == before
        assert inside.attempts() == []
    assert len(served.destinations) == len(set(served.destinations)) == 1000


@with_rules
@as_root_and_ordinary
def test_connections_at_once_all_arrive_and_wait_for_a_broker_that_is_not_there(who: str) -> None:
    def child() -> set[str]:
        clients = [socket.create_connection((V4, 10_000 + number), 30) for number in range(200)]
        heard = set()
        for client in clients:
            client.sendall(b"x")
        for client in clients:
            with client:
                heard.add(client.recv(4096).rpartition(b"\r\n\r\n")[2].decode())
        return heard

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with namespace(who) as inside, ours, theirs:
        running = inside.start(child)
        arrivals.hand_over(inside.arrivals, theirs)  # as to a broker that ends before it takes anything
        arrivals.receive(ours).close()
        heard, _ = inside.serve(running)
    assert heard == {f"{V4} {10_000 + number}" for number in range(200)}


@with_rules
@as_root_and_ordinary
def test_a_flood_of_refusals_is_told_to_the_last_one(who: str) -> None:
    def child() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            for number in range(3000):
                assert code_of(lambda: client.sendto(b"x" * 1000, (V4, number + 1000))) == "EPERM"  # noqa: B023

    with namespace(who) as inside:
        inside.run(child)
        first, more = inside.seen.read_ready()
        assert len(first) <= contacts.BATCH and (more or len(first) < contacts.BATCH)
        assert len(first) + len(inside.attempts()) + inside.seen.newly_dropped() == 3000
        inside.run(lambda: code_of(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", (V4, 9))))
        assert inside.attempts() == [("udp", V4, 9, None)]
        assert inside.seen.newly_dropped() == 0


# --- without nftables ---


@as_root_and_ordinary
def test_without_nftables_named_ports_arrive_and_all_others_are_refused_and_seen(who: str) -> None:
    def child() -> tuple[list[str], list[str | None]]:
        heard = [told_by(V4, 443), told_by(V6, 443), told_by("10.0.0.1", 8080)]
        return heard, [code_of(lambda: told_by(address, 444)) for address in (V4, V6)]  # noqa: B023

    with namespace(who, ports=(443, 8080), before=without_rules) as inside:
        assert (inside.arrivals.mechanism, inside.arrivals.ports) == ("anyip", (443, 8080))
        assert inside.arrivals.reason == "No such file or directory"
        (heard, codes), served = inside.serve(inside.start(child))
        refused = inside.attempts()
    assert heard == [f"{V4} 443", f"{V6} 443", "10.0.0.1 8080"]
    assert served.destinations == [(V4, 443), (V6, 443), ("10.0.0.1", 8080)]
    assert codes == ["ECONNREFUSED"] * 2
    assert refused == [("tcp", V4, 444, None), ("tcp", V6, 444, None)]


@as_root_and_ordinary
def test_without_nftables_one_name_server_answers_and_what_else_is_sent_is_refused_and_seen(who: str) -> None:
    def datagram(address: str, port: int, content: bytes) -> str | None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(10)
            client.connect((address, port))
            client.send(content)
            return code_of(lambda: client.recv(512))

    def child() -> list[str | None]:
        question = captured.dns_question("a.test")
        servers = [captured.OWN, "127.0.0.1", "9.9.9.9"]
        return [*(datagram(one, 53, question) for one in servers), datagram(V4, 5353, b"x")]

    with namespace(who, before=without_rules) as inside:
        codes, served = inside.serve(inside.start(child))
        refused = inside.attempts()
    assert codes == [None, None, "ECONNREFUSED", "ECONNREFUSED"]
    assert served.questions == ["a.test by udp"] * 2
    assert refused == [("udp", "9.9.9.9", 53, "a.test"), ("udp", V4, 5353, None)]


@as_root_and_ordinary
def test_services_on_loopback_work_without_nftables_too(who: str) -> None:
    def child() -> bytes:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(10)
            with socket.create_connection(server.getsockname(), 10) as client:
                served, _ = server.accept()
                with served:
                    served.sendall(b"hello")
                    return client.recv(10)

    with namespace(who, before=without_rules) as inside:
        assert inside.run(child) == b"hello"
