"""What cannot be captured is an error and no weaker capture; what is handed over is looked at before it is used."""

import json
import os
import shutil
import socket
from collections.abc import Callable
from contextlib import closing

import pytest

from coldframe.host import confine, routes
from coldframe.host.egress import arrivals, capture, nftables
from tests.host import boxes
from tests.host.egress import captured
from tests.host.egress.captured import namespace
from tests.host.egress.test_capture import V4, V6, code_of, family_of, with_rules, without_rules
from tests.host.forked import in_child
from tests.host.machines import as_root_and_ordinary


def failure_of(before: Callable[[], None], ports: tuple[int, ...] = ()) -> tuple[str, int]:
    """The error of a capture, and how many descriptors it left."""

    def child() -> tuple[str, int]:
        boxes.become_ordinary()
        confine.unshare("user", "net")
        before()
        opened = len(os.listdir("/proc/self/fd"))
        try:
            capture.capture_traffic(ports, own_ip=captured.OWN)
        except capture.CaptureFailed as error:
            return str(error), len(os.listdir("/proc/self/fd")) - opened
        return "nothing failed", 0

    return in_child(child)


def with_rules_that(change: Callable[[str, bytes], bool]) -> Callable[[], None]:
    """Only the rules for which it is true."""

    def before() -> None:
        rules = nftables.rules
        nftables.rules = lambda own_address: (one for one in rules(own_address) if change(*one))

    return before


@with_rules
@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (lambda chain, rule: not (chain == "divert" and b"redir" in rule), "in trial did not arrive"),
        (lambda chain, rule: b"log" not in rule, "a refused packet was not seen"),
        (lambda chain, rule: chain != "refuse", ""),
    ],
)
def test_rules_that_do_not_do_what_they_should_are_no_capture(
    missing: Callable[[str, bytes], bool], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "_PATIENCE_MS", 200)
    failed, left = failure_of(with_rules_that(missing))
    assert failed.startswith("could not capture the traffic of the box: ")
    assert failed.endswith(message)
    assert left == 0


def test_more_ports_than_can_be_named_are_refused_without_nftables() -> None:
    failed, left = failure_of(without_rules, tuple(range(1000, 1065)))
    assert failed == "could not capture the traffic of the box: without nftables at most 64 ports can be named, not 65"
    assert left == 0
    assert failure_of(without_rules, tuple(range(1000, 1064))) == ("nothing failed", 0)


def test_without_the_right_to_it_nothing_is_captured() -> None:
    failed, left = failure_of(confine.drop_all_capabilities)
    assert failed == "could not bring `lo` up: Operation not permitted"
    assert left == 0


def test_a_port_that_is_taken_is_an_error_and_not_a_weaker_capture() -> None:
    kept = []

    def taken() -> None:
        routes.capture_everything()
        kept.append(socket.create_server(("127.0.0.1", nftables.RESOLVER_PORT)))

    failed, left = failure_of(taken)
    assert failed == "could not capture the traffic of the box: Address already in use"
    assert left == 0


# --- handing over ---


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"[]",
        b"nonsense",
        b"[" * 50_000,
        b'{"mechanism": "other", "reason": "", "ports": [], "sockets": [1, 1, 0]}',
        b'{"mechanism": "anyip", "reason": 7, "ports": [], "sockets": [1, 1, 0]}',
        b'{"mechanism": "anyip", "reason": "", "ports": [], "sockets": [2, 1, 0]}',
        b'{"mechanism": "anyip", "reason": "", "ports": [], "sockets": [1, 2, -1]}',
        b'{"mechanism": "anyip", "reason": "", "ports": [], "sockets": [2, 0, 0]}',
        b'{"mechanism": "anyip", "reason": "", "ports": [], "sockets": [1e999, 1, 0]}',
        b'{"mechanism": "anyip", "reason": "", "ports": [70000], "sockets": [1, 1, 0]}',
        b'{"mechanism": "anyip", "reason": "", "ports": ["80"], "sockets": [1, 1, 0]}',
        b'{"mechanism": "anyip", "reason": "", "ports": [], "sockets": [1, 1, 0]}' + b" " * 70_000,
    ],
)
def test_a_damaged_message_is_refused_and_its_descriptors_are_closed(message: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as server:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            before = len(os.listdir("/proc/self/fd"))
            socket.send_fds(theirs, [message], [server.fileno(), datagrams.fileno()])
            with pytest.raises(capture.CaptureFailed):
                arrivals.receive(ours)
            assert len(os.listdir("/proc/self/fd")) == before


def test_only_sockets_that_serve_are_taken() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    message = {"mechanism": "anyip", "reason": "", "ports": [], "sockets": [1, 0, 0]}
    null = os.open("/dev/null", os.O_RDWR)
    with ours, theirs, socket.socket() as unbound, socket.create_server(("127.0.0.1", 0)) as server:
        before = len(os.listdir("/proc/self/fd"))
        for number in (null, unbound.fileno(), ours.fileno()):
            socket.send_fds(theirs, [json.dumps(message).encode()], [number])
            with pytest.raises(capture.CaptureFailed):
                arrivals.receive(ours)
        assert len(os.listdir("/proc/self/fd")) == before
        socket.send_fds(theirs, [json.dumps(message).encode()], [server.fileno()])
        received = arrivals.receive(ours)
        assert not os.get_inheritable(received.connections[0].fileno())
        assert received.connections[0].getsockname() == server.getsockname()
        received.close()
    os.close(null)


def test_a_listener_of_another_protocol_is_not_taken() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    message = {"mechanism": "anyip", "reason": "", "ports": [], "sockets": [0, 1, 0]}
    try:
        other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_UDPLITE)
    except OSError:
        pytest.skip("this kernel has no other datagrams than those of UDP")
    with ours, theirs, other:
        socket.send_fds(theirs, [json.dumps(message).encode()], [other.fileno()])
        with pytest.raises(capture.CaptureFailed):
            arrivals.receive(ours)


@pytest.mark.parametrize("kind", [socket.SOCK_SEQPACKET, socket.SOCK_STREAM])
def test_what_is_handed_over_arrives_as_it_was(kind: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    with namespace("ordinary", ports=tuple(range(2000, 2064)), before=without_rules) as inside, ours, theirs:
        theirs.sendall(b"a word before")
        assert ours.recv(13) == b"a word before"
        arrivals.hand_over(inside.arrivals, theirs)
        with closing(arrivals.receive(ours)) as again:
            assert again[:3] == inside.arrivals[:3]
            for one, other in zip(again.sockets(), inside.arrivals.sockets(), strict=True):
                assert (one.family, one.type, one.getsockname()) == (other.family, other.type, other.getsockname())


@pytest.mark.skipif(shutil.which(boxes.BWRAP) is None, reason="needs bubblewrap")
@as_root_and_ordinary
def test_a_keeper_captures_the_traffic_of_a_real_box(who: str) -> None:
    """Where /proc is the box's, and tells the keeper nothing about itself."""

    def keeper() -> tuple[object, ...]:
        made = []
        boxes.become_ordinary()
        confine.join_namespaces(
            first, while_privileged=lambda: made.append(capture.capture_traffic((443,), own_ip=captured.OWN))
        )
        boxes.give_up_all_rights()
        came, seen = made[0]

        def client() -> list[str | None]:
            codes = [code_of(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", (V4, 9)))]
            for address in (V4, V6):
                with socket.socket(family_of(address), socket.SOCK_STREAM) as one:
                    one.settimeout(10)
                    codes.append(code_of(lambda: one.connect((address, 443))))  # noqa: B023
            return codes

        codes = in_child(client)
        wanted = []
        for listener in came.connections:
            connection, _ = listener.accept()
            wanted.append(tuple(arrivals.original_destination(connection, came.mechanism)))
        return came.mechanism, codes, wanted, seen.read_ready()[0]

    with boxes.bare_box() as first:
        mechanism, codes, wanted, refused = in_child(keeper)
    assert wanted == [(V4, 443), (V6, 443)]
    assert codes[1:] == [None, None]
    if mechanism == "nftables":
        assert codes[0] == "EPERM"
    assert refused == [("udp", V4, 9, None)]
