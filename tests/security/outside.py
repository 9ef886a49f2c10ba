"""What lies beyond the "host" of the wrapper: every address there is, servers that believe everything, and a list of what came.

A process with one wire to the wrapper's network. All addresses that are not the wrapper's own are at its end, public,
private and metadata alike, so a packet that a wall lets out arrives, is answered, and is on the list. Names are resolved
here, by answers that a row may choose. Servers read leniently, as the worst of them do: they see in bytes what a smuggler
hopes for. `Outside` is the harness's way to ask what came.
"""

import asyncio
import json
import os
import shutil
import socket
import ssl
import struct
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any, NamedTuple, cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from coldframe.host import confine
from coldframe.host.outfit import HOST_BUNDLES
from tests.host.egress.wire import bring_up, make_wire, take_everything

SOCKET = "/run/outside.sock"
FOLDER = "/run/outside"
NEAR, FAR = "93.184.220.1", "93.184.220.2"
NEAR_6, FAR_6 = "2606:4700:dead::1", "2606:4700:dead::2"

ALLOWED, WILD, FRONT = "allowed.example.com", "wild.example.com", "front.example.com"
PLAIN, RAW, INNER, DENIED = "plain.example.com", "raw.example.com", "inner.example.com", "denied.example.net"
"""Of the rules in `RULES`: read, a wildcard, by the first message of TLS alone, http, raw, one that may be private; and none."""
ALLOWED_IP, WILD_IP, FRONT_IP, PLAIN_IP, RAW_IP, DENIED_IP = (f"93.184.215.{last}" for last in (14, 15, 16, 17, 18, 66))
LAN_IP, METADATA_IP = "192.168.77.5", "169.254.169.254"
DENIED_MARKER = "denied-page-5f1d"
ANSWERS: dict[str, list[str]] = {
    ALLOWED: [ALLOWED_IP],
    FRONT: [FRONT_IP],
    PLAIN: [PLAIN_IP],
    RAW: [RAW_IP],
    DENIED: [DENIED_IP],
    INNER: [LAN_IP],
}
TOLD = [(ALLOWED_IP, 443), (WILD_IP, 443), (FRONT_IP, 443), (PLAIN_IP, 80), (RAW_IP, 9000)]
"""Where rules let somebody through to. A packet to anywhere else has passed a wall."""

RULES = f"""version: 1
network:
  profiles:
    attacked:
      rules:
        - {{id: read, to: {ALLOWED}, methods: [GET, HEAD], paths: [/v1]}}
        - {{id: wild, to: "*.{WILD}"}}
        - {{id: front, to: {FRONT}}}
        - {{id: plain, to: {PLAIN}, scheme: http, methods: [GET, HEAD]}}
        - {{id: raw, to: {RAW}, scheme: tcp, mode: raw, ports: 9000}}
        - {{id: rebound, to: [rebind.example.com, cname.example.com, many.example.com], scheme: [https, http]}}
  use: {{"*": attacked}}
"""

_TCP, _UDP = 6, 17
_OUTGOING = 4
_ALL_PROTOCOLS = 3
_ICMP_6 = 58
_KEPT_BYTES = 1 << 16


# -- what the harness asks -------------------------------------------------------------------------


class Arrived(NamedTuple):
    """Since a mark."""

    strays: list[str]
    """Packets to anywhere but where rules lead, the name server's included."""
    questions: list[str]
    """`name type` of what the name server was asked."""
    requests: list[str]
    """Everything that arrived in a connection, as far as it was kept; after TLS where there was some."""
    sent_bytes: int
    """In packets."""


class Outside:
    """The harness's way there; blocking, and quick."""

    def __init__(self) -> None:
        self.facts = self._ask(do="facts")

    def mark(self) -> dict[str, int]:
        return dict(self._ask(do="mark"))

    def since(self, mark: dict[str, int]) -> Arrived:
        return Arrived(**self._ask(do="since", mark=mark))

    def answer(self, name: str, *turns: list[str], records: str = "") -> None:
        """What *name* resolves to from now on: the lists in turn, the last one again and again."""
        self._ask(do="answer", name=name, turns=list(turns), records=records)

    def _ask(self, **request: Any) -> Any:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(30)
            asking.connect(SOCKET)
            asking.sendall(json.dumps(request).encode() + b"\n")
            with asking.makefile("rb") as answer:
                return json.loads(answer.readline())


# -- the process -----------------------------------------------------------------------------------


class Collector:
    """All that arrives. Its packets are counted by a thread of their own, in the order of the wire."""

    def __init__(self) -> None:
        self.packets: list[tuple[str, int, int, int]] = []
        """Destination, protocol, port (or type), bytes."""
        self.questions: list[str] = []
        self.streams: list[bytearray] = []
        self.turns: dict[str, list[list[str]]] = {}
        self.records: dict[str, str] = {}

    def watch(self) -> None:
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ALL_PROTOCOLS))
        wire.bind(("far", _ALL_PROTOCOLS))
        threading.Thread(target=self._read, args=(wire,), daemon=True).start()

    def _read(self, wire: socket.socket) -> None:
        while True:
            packet, (_, _, direction, *_) = wire.recvfrom(1 << 16)
            if direction != _OUTGOING and packet:
                found = _read_packet(packet)
                if found is not None:
                    self.packets.append(found)

    def mark(self) -> dict[str, int]:
        return {"packets": len(self.packets), "questions": len(self.questions), "streams": len(self.streams)}

    def since(self, mark: dict[str, int]) -> dict[str, Any]:
        packets = self.packets[mark["packets"] :]
        strays = Counter(
            f"protocol {protocol} to {address} port {port}"
            for address, protocol, port, _ in packets
            if not _is_wanted(address, protocol, port)
        )
        return {
            "strays": [f"{count} packets of {what}" for what, count in strays.items()],
            "questions": self.questions[mark["questions"] :],
            "requests": [bytes(one).decode("latin-1") for one in self.streams[mark["streams"] :]],
            "sent_bytes": sum(size for _, _, _, size in packets),
        }

    def addresses(self, name: str) -> list[str] | None:
        if turns := self.turns.get(name):
            return turns.pop(0) if len(turns) > 1 else turns[0]
        if name.endswith(f".{WILD}"):
            return [WILD_IP]
        return ANSWERS.get(name)


def _is_wanted(address: str, protocol: int, port: int) -> bool:
    if (address, port) in ((FAR, 53), (FAR_6, 53)):
        return True
    return protocol == _TCP and (address, port) in TOLD


def _read_packet(packet: bytes) -> tuple[str, int, int, int] | None:
    version = packet[0] >> 4
    if version == 4 and len(packet) >= 20:
        destination, protocol, body = ip_address(packet[16:20]), packet[9], packet[(packet[0] & 15) * 4 :]
    elif version == 6 and len(packet) >= 40:
        destination, protocol, body = ip_address(packet[24:40]), packet[6], packet[40:]
        if protocol in (0, _ICMP_6) and (destination.is_multicast or body[:1] in b"\x87\x88"):
            return None  # the kernel looks for its neighbour
    else:
        return None
    if destination.is_multicast and version == 6:
        return None
    port = struct.unpack_from("!H", body, 2)[0] if protocol in (_TCP, _UDP) and len(body) >= 4 else 0
    return str(destination), protocol, port, len(packet)


def start_outside() -> str:
    """In the wrapper's first process: begin it. Returns why it could not be; nothing is as before then, but shut off."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(ready)
            confine.set_parent_death_signal()
            os.execv(sys.executable, [sys.executable, "-m", __name__, str(os.dup2(tell, 40))])
        finally:
            os._exit(126)
    os.close(tell)
    with os.fdopen(ready, "rb") as pipe:
        told = pipe.read()
    return "" if told == b"ready" else told.decode(errors="replace") or "it ended"


def main() -> None:
    tell = int(sys.argv[1])
    try:
        os.makedirs(FOLDER, exist_ok=True)
        chain = _make_trusted()
        _cover("/etc/resolv.conf", f"nameserver {FAR}\noptions timeout:2 attempts:2\n".encode())
        near = os.open("/proc/self/ns/net", os.O_RDONLY)
        near_pid = os.getppid()
        confine.unshare("net")
        make_wire(near_pid)
        bring_up("lo", {})
        bring_up("far", {FAR: 30, FAR_6: 126})
        take_everything()
        far = os.open("/proc/self/ns/net", os.O_RDONLY)
        confine.setns(near, "net")
        bring_up("near", {NEAR: 30, NEAR_6: 126}, FAR, FAR_6)
        confine.setns(far, "net")
        asyncio.run(_serve(chain, tell))
    except BaseException as error:
        os.write(tell, f"{type(error).__name__}: {error}".encode())
        raise


def _cover(path: str, content: bytes) -> None:
    own = os.path.join(FOLDER, os.path.basename(path))
    with open(own, "wb") as file:
        file.write(content)
    os.chmod(own, 0o644)
    target = os.path.realpath(path)
    if not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy(own, target)
    else:
        confine.bind(own, target)


def _make_trusted() -> str:
    """A certificate for all names, of an authority that the "host" trusts; the file of both with the key."""
    now = datetime.now(UTC)
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority outside")])
    names = [*ANSWERS, f"*.{WILD}", "rebind.example.com", "cname.example.com", "many.example.com", "*.example.com"]

    def builder(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
        made = made.serial_number(x509.random_serial_number())
        return made.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))

    root = builder(issuer, authority_key.public_key())
    root = root.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    leaf = builder(x509.Name([]), key.public_key()).add_extension(
        x509.SubjectAlternativeName([x509.DNSName(name) for name in dict.fromkeys(names)]), critical=True
    )
    pem = serialization.Encoding.PEM
    trusted = root.sign(authority_key, hashes.SHA256()).public_bytes(pem)
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    for bundle in dict.fromkeys(map(os.path.realpath, HOST_BUNDLES)):
        if os.path.isfile(bundle):
            with open(bundle, "rb") as file:
                _cover(bundle, file.read().rstrip() + b"\n" + trusted)
    path = os.path.join(FOLDER, "server.pem")
    with open(path, "wb") as chain:
        os.fchmod(chain.fileno(), 0o600)
        chain.write(leaf.sign(authority_key, hashes.SHA256()).public_bytes(pem) + secret)
    return path


async def _serve(chain: str, tell: int) -> None:
    collector = Collector()
    collector.watch()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    server = Server(collector)
    for port in (80, 8080, 9000, 25, 3128):
        await asyncio.start_server(server.answer, None, port)
    for port in (443, 8443):
        await asyncio.start_server(server.answer, None, port, ssl=context)
    await asyncio.start_server(lambda reader, writer: _long_look_up(collector, reader, writer), None, 53)
    loop = asyncio.get_running_loop()
    for address in (FAR, FAR_6):
        await loop.create_datagram_endpoint(lambda: _NameServer(collector), local_addr=(address, 53))
    await asyncio.start_unix_server(lambda reader, writer: _tell(collector, reader, writer), SOCKET)
    os.chmod(SOCKET, 0o666)
    os.write(tell, b"ready")
    os.close(tell)
    await asyncio.Event().wait()


async def _tell(collector: Collector, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    request = json.loads(await reader.readline())
    answer: Any = {}
    if request["do"] == "facts":
        answer = {"allowed_ip": ALLOWED_IP, "denied_marker": DENIED_MARKER}
    elif request["do"] == "mark":
        answer = collector.mark()
    elif request["do"] == "since":
        answer = collector.since(request["mark"])
    else:
        collector.turns[request["name"]] = request["turns"]
        collector.records[request["name"]] = request["records"]
    writer.write(json.dumps(answer).encode() + b"\n")
    await writer.drain()
    writer.close()


class Server:
    """Believes what it reads: every line that looks like the first of a request is one, whatever a length says."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept = bytearray()
        self._collector.streams.append(kept)
        own: str = writer.get_extra_info("sockname")[0]
        pending = b""
        with suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(1 << 16):
                kept += data[: _KEPT_BYTES - len(kept)]
                pending += data
                while b"\n\r\n" in pending or b"\n\n" in pending:
                    end = min(at for at in (pending.find(b"\n\r\n") + 3, pending.find(b"\n\n") + 2) if at > 2)
                    head, pending = pending[:end], pending[end:]
                    writer.write(self._reply(head, own))
                    await writer.drain()
                if own == RAW_IP and pending:
                    writer.write(pending)
                    pending = b""
                    await writer.drain()
        with suppress(ConnectionError, ssl.SSLError):
            writer.close()

    def _reply(self, head: bytes, own: str) -> bytes:
        first = head.split(b"\n", 1)[0].strip()
        method, _, rest = first.partition(b" ")
        target = rest.partition(b" ")[0]
        more = b""
        status = b"200 OK"
        if own == DENIED_IP or f"host: {DENIED}".encode() in head.lower():
            body = DENIED_MARKER.encode()
        elif target.startswith(b"/v1/echo"):
            body = head
        elif target.startswith(b"/v1/redirect?"):
            status, body = b"302 Found", b"elsewhere"
            more = b"Location: " + target.partition(b"?")[2] + b"\r\n"
        elif target.startswith(b"/v1/socket"):
            return b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhello"
        elif method == b"CONNECT":
            return b"HTTP/1.1 200 OK\r\n\r\n"
        else:
            body = b"ok " + first + b" at " + own.encode()
        if own in (LAN_IP, METADATA_IP, "::1") or ip_address(own).is_private:
            body = b"BREACH inner page of " + own.encode()
        length = b"Content-Length: %d\r\n" % len(body)
        return b"HTTP/1.1 " + status + b"\r\n" + length + more + b"\r\n" + (b"" if method == b"HEAD" else body)


# -- names -----------------------------------------------------------------------------------------


class _NameServer(asyncio.DatagramProtocol):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, whom: tuple[Any, ...]) -> None:
        self._transport.sendto(_reply_to(self._collector, data), whom)


async def _long_look_up(collector: Collector, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        (length,) = struct.unpack("!H", await reader.readexactly(2))
        reply = _reply_to(collector, await reader.readexactly(length))
        writer.write(struct.pack("!H", len(reply)) + reply)
        await writer.drain()
    writer.close()


def _reply_to(collector: Collector, question: bytes) -> bytes:
    labels, place = [], 12
    while question[place]:
        labels.append(question[place + 1 : place + 1 + question[place]].decode("latin-1"))
        place += 1 + question[place]
    (kind,) = struct.unpack_from("!H", question, place + 1)
    end = place + 5
    name = ".".join(labels).lower()
    collector.questions.append(f"{name} {kind}")
    # One list answers both families: what was asked for first takes the turn of the list.
    found = collector.addresses(name)
    records = b"".join(_records(found or (), kind, collector.records.get(name, "")))
    count = _count(records)
    head = struct.pack("!HHHHH", 0x8180 if found is not None else 0x8183, 1, count, 0, 0)
    return question[:2] + head + question[12:end] + records


def _records(addresses: list[str] | tuple[str, ...], kind: int, alias: str) -> Iterator[bytes]:
    owner = b"\xc0\x0c"
    if alias:
        target = b"".join(bytes([len(part)]) + part.encode() for part in alias.split(".")) + b"\0"
        yield owner + struct.pack("!HHIH", 5, 1, 0, len(target)) + target
        owner = target
    for address in addresses:
        binary = ip_address(address).packed
        if kind == (1 if len(binary) == 4 else 28):
            yield owner + struct.pack("!HHIH", kind, 1, 0, len(binary)) + binary


def _count(records: bytes) -> int:
    count = place = 0
    while place < len(records):
        while records[place] and records[place] < 0xC0:
            place += 1 + records[place]
        place += 1 + (records[place] >= 0xC0)
        place += 10 + struct.unpack_from("!H", records, place + 8)[0]
        count += 1
    return count


if __name__ == "__main__":
    main()
