"""Catches all that a box sends: sockets made inside its network namespace, and handed out to the broker of the host.

Runs in the keeper, while it has CAP_NET_ADMIN, CAP_NET_BIND_SERVICE and CAP_NET_RAW over the namespace and before
anything of the box does. The namespace has no interface but `lo` and gets none, so whatever fails here, or is removed
later, leaves a box without a way out. There is no helper inside, no socket file, no address of the host.

Two mechanisms, told by `Arrivals.mechanism`; which one is found by trying:

- `nftables`: every TCP connection, to any address but those of the box itself, arrives at one listener per family;
  look-ups to any name server arrive at the resolver; the rest is refused to its sender at once (see `nftables.py`).
- `anyip`, where the kernel refuses those rules (`Arrivals.reason`): every address is the box's own (`host/routes.py`), a
  listener of ours stands on each port that was named, and one name server answers. Any other port is refused, as in a
  box without network. The ports are taken from the box: it cannot serve on them, and its own connections to them on
  loopback arrive here too.

Then it is tried: a connection and a look-up of each family have to arrive with their addresses, and a packet of
another kind has to be refused and seen. A kernel that takes the rules and does not follow them is no case for the second
mechanism but an end.

Sockets of the nftables mechanism are bound to loopback, never to the wildcard: a reply of the resolver would leave with
another source than it was asked at. They share their address with nobody (no SO_REUSEADDR, no SO_REUSEPORT): with it on
both sides the box could take look-ups over. A connection is accepted before it is judged, so one that is denied sees a
reset and not a refusal. Their queue lives in the kernel: what comes while no broker is there waits for the next one, to
whom the keeper, which keeps them, hands them again.
"""

import errno
import os
import select
import socket
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager

from coldframe.guest import contacts, refusals
from coldframe.host import routes
from coldframe.host.confine import ConfineError
from coldframe.host.egress import nftables
from coldframe.host.egress.arrivals import (
    NETLINK_SOCK_DIAG,
    Arrivals,
    CaptureFailed,
    Destination,
    original_destination,
)

MOST_PORTS = 64
"""Of `anyip`: two listeners each, and one message carries 253 descriptors."""
BACKLOG = 4096
"""Connections that wait for a broker, per listener; the kernel of the host may allow fewer."""

_STEP = "capture the traffic of the box"
_PATIENCE_MS = 5000
_LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
_WILDCARD = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}  # noqa: S104 - of a namespace that nobody reaches
_NOWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses for documentation: where a trial goes."""
_DISCARD_PORT = 9


def capture_traffic(ports: Collection[int], *, own_ip: str) -> tuple[Arrivals, refusals.Refusals]:
    """Catch what leaves this network namespace, which nothing else uses yet, and see what is refused in it.

    *own_ip* is an IPv4 address that the box gets for itself, and at which the resolver answers under either
    mechanism. *ports* are those that there will be without nftables; with it they do not matter.

    Raises:
        CaptureFailed: as a part of it or its trial did not succeed; every socket is closed.
    """
    with _failing(), ExitStack() as opened:
        routes.capture_everything()
        routes.give_address(own_ip)
        try:
            arrivals, seen = _by_rules(opened, own_ip)
        except nftables.NotOffered as refusal:
            opened.close()
            arrivals, seen = _by_listeners(opened, ports, own_ip, str(refusal))
        _try_out(arrivals, seen, own_ip)
        opened.pop_all()
        return arrivals, seen


@contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except CaptureFailed:
        raise
    except ConfineError as error:
        raise CaptureFailed(error.step, error.reason) from error
    except OSError as error:
        raise CaptureFailed(_STEP, error.strerror or str(error)) from error


def _by_rules(opened: ExitStack, own_ip: str) -> tuple[Arrivals, refusals.Refusals]:
    seen = refusals.Refusals(opened.enter_context(nftables.open_log()), refusals.logged_attempt)
    resolver, gate = nftables.RESOLVER_PORT, nftables.GATE_PORT
    loopback = [(family, _LOOPBACK[family]) for family in _families()]
    arrivals = Arrivals(
        mechanism="nftables",
        reason="",
        ports=(),
        connections=tuple(_listener(opened, family, address, gate) for family, address in loopback),
        look_ups=tuple(_datagrams(opened, family, address, resolver) for family, address in loopback),
        long_look_ups=tuple(_listener(opened, family, address, resolver) for family, address in loopback),
        diagnosis=_diagnosis(opened),
    )
    nftables.install(own_ip)
    nftables.set_timeouts()  # a convenience: without it nothing gets out that should not
    return arrivals, seen


def _by_listeners(
    opened: ExitStack, ports: Collection[int], own_ip: str, reason: str
) -> tuple[Arrivals, refusals.Refusals]:
    named = sorted(set(ports) - {nftables.RESOLVER_PORT})
    if len(named) > MOST_PORTS:
        raise CaptureFailed(_STEP, f"without nftables at most {MOST_PORTS} ports can be named, not {len(named)}")
    served = refusals.Served(frozenset(named), own_ip)
    seen = refusals.Refusals(opened.enter_context(contacts.open_capture()), served.attempt)
    servers = {family: [_LOOPBACK[family]] for family in _families()}
    if own_ip not in servers[socket.AF_INET]:
        servers[socket.AF_INET].append(own_ip)
    resolvers = [(family, address, nftables.RESOLVER_PORT) for family in servers for address in servers[family]]
    arrivals = Arrivals(
        mechanism="anyip",
        reason=reason,
        ports=tuple(named),
        connections=tuple(_listener(opened, family, _WILDCARD[family], port) for family in servers for port in named),
        look_ups=tuple(_datagrams(opened, *resolver) for resolver in resolvers),
        long_look_ups=tuple(_listener(opened, *resolver) for resolver in resolvers),
        diagnosis=_diagnosis(opened),
    )
    return arrivals, seen


def _families() -> list[socket.AddressFamily]:
    """Those that can be used here, found by trying: /proc tells a keeper nothing about itself once it has joined."""
    with ExitStack() as tried:
        try:
            _bound(tried, socket.AF_INET6, socket.SOCK_DGRAM, _LOOPBACK[socket.AF_INET6], 0)
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
            return [socket.AF_INET]
    return [socket.AF_INET, socket.AF_INET6]


def _bound(opened: ExitStack, family: int, kind: int, address: str, port: int) -> socket.socket:
    one = opened.enter_context(socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC))
    if family == socket.AF_INET6:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    one.bind((address, port))
    return one


def _listener(opened: ExitStack, family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    one = _bound(opened, family, socket.SOCK_STREAM, address, port)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    one.listen(BACKLOG)
    return one


def _datagrams(opened: ExitStack, family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    return _bound(opened, family, socket.SOCK_DGRAM, address, port)


def _diagnosis(opened: ExitStack) -> tuple[socket.socket, ...]:
    """None where the kernel has no such thing: then nobody tells who holds a connection."""
    kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    try:
        one = socket.socket(socket.AF_NETLINK, kind, NETLINK_SOCK_DIAG)
        opened.enter_context(one).bind((0, 0))
    except OSError:
        return ()
    return (one,)


def _try_out(arrivals: Arrivals, seen: refusals.Refusals, own_ip: str) -> None:
    _try_look_up(arrivals, socket.AF_INET, own_ip)
    for family in _families():
        if arrivals.mechanism == "nftables":
            _try_connection(arrivals, Destination(_NOWHERE[family], 443), family)
            _try_look_up(arrivals, family, _NOWHERE[family])
            _try_refusal(seen, family)
        else:
            for port in arrivals.ports:
                _try_connection(arrivals, Destination(_NOWHERE[family], port), family)
            _try_look_up(arrivals, family, _LOOPBACK[family])
    seen.read_ready()


def _try_connection(arrivals: Arrivals, destination: Destination, family: socket.AddressFamily) -> None:
    with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as client:
        code = client.connect_ex(destination)
        if code not in (0, errno.EINPROGRESS):
            raise CaptureFailed(_STEP, f"a connection in trial was refused: {os.strerror(code)}")
        with _first_ready(arrivals.connections, "a connection").accept()[0] as arrived:
            told = original_destination(arrived, arrivals.mechanism)
    if told != destination:
        raise CaptureFailed(_STEP, f"a connection to `{destination}` arrived as one to `{told}`")


def _try_look_up(arrivals: Arrivals, family: socket.AddressFamily, address: str) -> None:
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as client:
        client.sendto(b"trial", (address, 53))
        resolver = _first_ready(arrivals.look_ups, "a look-up")
        question, whom = resolver.recvfrom(512)
        resolver.sendto(question, whom)
        reply, source = _first_ready((client,), "the reply to a look-up").recvfrom(512)
    if reply != b"trial" or source[:2] != (address, 53):
        raise CaptureFailed(_STEP, f"the reply to a look-up at `{address}` came from `{source[0]}`")


def _try_refusal(seen: refusals.Refusals, family: socket.AddressFamily) -> None:
    target = Destination(_NOWHERE[family], _DISCARD_PORT)
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as client:
        try:
            client.sendto(b"trial", target)
        except PermissionError:
            expected = contacts.Attempt("udp", *target, None)
            if seen.read_ready()[0] == [expected]:
                return
            raise CaptureFailed(_STEP, "a refused packet was not seen") from None
    raise CaptureFailed(_STEP, "a packet that must be refused was not")


def _first_ready(sockets: tuple[socket.socket, ...], sent: str) -> socket.socket:
    ready = select.poll()
    by_number = {one.fileno(): one for one in sockets}
    for number in by_number:
        ready.register(number, select.POLLIN)
    for number, _ in ready.poll(_PATIENCE_MS):
        return by_number[number]
    raise CaptureFailed(_STEP, f"{sent} in trial did not arrive")
