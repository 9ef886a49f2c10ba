"""A small world that a broker can dial: another network namespace on the other end of one wire, and nothing behind it.

The broker of a test runs in a process with one virtual wire to it, the box in a captured namespace of its own. Addresses
look public; no packet can leave, since neither side has another interface.
"""

import asyncio
import ctypes
import os
import signal
import socket
import ssl
import struct
import tempfile
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import ip_address
from typing import NamedTuple, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from coldframe.host import confine
from coldframe.policy.addresses import Address
from tests.host import boxes
from tests.host.egress.captured import OWN, Namespace, namespace
from tests.host.egress.connect_proxy import ConnectProxy
from tests.host.egress.http2_site import Http2Site
from tests.host.egress.registries import PackageSite
from tests.host.egress.site import Site
from tests.host.egress.wire import bring_up, make_wire
from tests.host.forked import in_child

T = TypeVar("T")
SITE, OTHER, SSH, INNER, UNKNOWN = (
    *("api.example.com", "other.example.com", "ssh.example.com"),
    *("inner.example.com", "nobody.example.org"),
)
ADDRESSES = {
    SITE: ["93.184.215.14"],
    OTHER: ["93.184.215.15"],
    SSH: ["93.184.215.16"],
    INNER: ["169.254.169.254", "10.9.9.9", "127.0.0.1", "93.184.216.1"],
}
"""What names resolve to. The last one of `INNER` is the broker's own."""
HIDDEN = "hidden.example.com"
"""Which only the proxy of this world can resolve."""
BANNER = b"SSH-2.0-a server that speaks first\r\n"
RESOLVER = {"/etc/resolv.conf": f"nameserver {OWN}\n"}

_PATIENCE_S = 60
_PR_SET_DUMPABLE = 4


class Certificates(NamedTuple):
    """Files: an authority, and a server's certificate with its key, for all names of this world."""

    authority: str
    chain: str


class World(NamedTuple):
    box: Namespace
    certificates: Certificates

    async def resolve(self, name: str) -> list[Address]:
        if name not in ADDRESSES:
            raise OSError(socket.EAI_NONAME, "no such name")
        return [ip_address(text) for text in ADDRESSES[name]]

    async def inside(self, function: Callable[[], T], *, files: dict[str, str] | None = None) -> T:
        """What *function* returned in a program of the box, which asks the broker for names."""
        running = self.box.start(function, files=RESOLVER if files is None else files)
        return await asyncio.to_thread(running.result)


def in_world(who: str, steps: Callable[[World], Awaitable[None]], *, patience_s: float | None = None) -> None:
    """Run *steps* in a process that has the wire; whatever it started is gone afterwards."""

    def whole() -> None:
        if who == "ordinary":
            boxes.become_ordinary()
        leave_network()
        with (
            tempfile.TemporaryDirectory(prefix="cf-world-", dir="/tmp") as folder,
            namespace(who) as box,
        ):
            os.chmod(folder, 0o755)
            certificates = make_certificates(folder)
            stop = start_far_side(certificates)
            try:
                asyncio.run(_within_patience(steps(World(box, certificates)), patience_s or _PATIENCE_S))
            finally:
                stop()

    in_child(whole)


async def _within_patience(work: Awaitable[None], patience_s: float) -> None:
    async with asyncio.timeout(patience_s):
        await work


def leave_network() -> None:
    if os.geteuid() == 0:
        confine.unshare("net")
        return
    uid, gid = os.getuid(), os.getgid()
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # else /proc/self is still root's
    confine.unshare("user", "net")
    # By another number: who is not mapped here, root for one, is shown as 65534, which is no other than `nobody`.
    for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {uid} 1"), ("gid_map", f"1000 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


# -- the wire --------------------------------------------------------------------------------------

NEAR, FAR, PROXY_PORT = "93.184.216.1", "93.184.216.2", 3128
COLLECTED_PORTS = (53, 443, 3478)
"""Where datagrams to the first site are collected: look-ups, QUIC, STUN."""


# -- what is there ---------------------------------------------------------------------------------


def start_far_side(certificates: Certificates) -> Callable[[], None]:
    """Servers in a process of their own; returns what ends it."""
    near_pid = os.getpid()
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(ready)
            confine.unshare("net")
            make_wire(near_pid)
            bring_up("lo", dict.fromkeys((text for name in (SITE, OTHER, SSH) for text in ADDRESSES[name]), 32))
            bring_up("far", {FAR: 24}, NEAR)
            asyncio.run(_serve(certificates, lambda: os.write(tell, b"ready")))
        except BaseException:
            os.write(tell, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(0)
    os.close(tell)

    def stop() -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    with os.fdopen(ready, "rb") as pipe:
        told = pipe.read(5)
        if told != b"ready":
            stop()
            raise AssertionError((told + pipe.read()).decode())
    bring_up("lo", {})
    bring_up("near", {NEAR: 24}, FAR)
    return stop


async def _serve(certificates: Certificates, tell: Callable[[], object]) -> None:
    def secured(curve: str | None = None, protocol: str | None = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if protocol is not None:
            context.set_alpn_protocols([protocol])
        context.load_cert_chain(certificates.chain)
        if curve is not None:
            context.set_ecdh_curve(curve)
        return context

    await asyncio.start_server(_answer_request, None, 80, family=socket.AF_INET)
    await asyncio.start_server(_answer_request, None, 443, family=socket.AF_INET, ssl=secured())
    # Few clients offer a key for this curve at once, so the server has to ask again.
    await asyncio.start_server(_answer_request, None, 444, family=socket.AF_INET, ssl=secured("secp521r1"))
    site = Site(os.path.dirname(certificates.chain))
    await asyncio.start_server(site.serve, None, 8080, family=socket.AF_INET)
    await asyncio.start_server(site.serve, None, 8443, family=socket.AF_INET, ssl=secured())
    for port in COLLECTED_PORTS:
        await asyncio.get_running_loop().create_datagram_endpoint(
            partial(_Collector, site.collected, port), local_addr=(ADDRESSES[SITE][0], port)
        )
    await PackageSite().listen(secured)
    await asyncio.start_server(Http2Site().serve, None, 9443, family=socket.AF_INET, ssl=secured(protocol="h2"))
    await asyncio.start_server(_speak_first, None, 22, family=socket.AF_INET)
    await asyncio.start_server(_echo, None, 9000, family=socket.AF_INET, limit=1 << 20)
    await asyncio.start_server(_break, None, 9001, family=socket.AF_INET)
    await asyncio.start_server(ConnectProxy().serve, None, PROXY_PORT, family=socket.AF_INET)
    tell()
    await asyncio.Event().wait()


class _Collector(asyncio.DatagramProtocol):
    """Takes what programs send past the ways that are looked at."""

    def __init__(self, collected: list[str], port: int) -> None:
        self._collected, self._port = collected, port

    def datagram_received(self, data: bytes, addr: object) -> None:
        self._collected.append(f"{self._port} {data[:100]!r}")


async def _answer_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        head = await reader.readuntil(b"\r\n\r\n")
        body = b"answer to " + head.partition(b"\r\n")[0]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
        await writer.drain()
    writer.close()


async def _speak_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(BANNER)
    await _echo(reader, writer)


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 18):
            writer.write(data)
            await writer.drain()
        writer.write(b"end")
        await writer.drain()
    writer.close()


async def _break(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"half an ")
    await writer.drain()
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def make_certificates(folder: str) -> Certificates:
    now = datetime.now(UTC)
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of a test")])

    def builder(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
        made = made.serial_number(x509.random_serial_number())
        return made.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))

    root = builder(issuer, authority_key.public_key())
    root = root.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    leaf = builder(x509.Name([]), key.public_key()).add_extension(
        x509.SubjectAlternativeName([x509.DNSName(name) for name in (SITE, OTHER, HIDDEN)]), critical=True
    )
    signed_root, signed = (one.sign(authority_key, hashes.SHA256()) for one in (root, leaf))
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    found = Certificates(os.path.join(folder, "authority.pem"), os.path.join(folder, "server.pem"))
    for path, data in (
        (found.authority, signed_root.public_bytes(pem)),
        (found.chain, signed.public_bytes(pem) + secret),
    ):
        with open(path, "wb") as file:
            file.write(data)
    return found
