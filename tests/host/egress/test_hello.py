"""Promise: the name in a client's first message is read as every server reads it, or the message is refused."""

import contextlib
import datetime
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from coldframe.host.egress.hello import (
    MAX_HELLO_BYTES,
    MAX_RECORDS,
    Ech,
    Hello,
    HelloFault,
    HelloInvalid,
    HelloReader,
    SecondHelloReader,
    asks_again,
    same_site,
)
from tests.host.egress.hellos import NAME, client_context, counted, encrypted, message, named, real, records

ANSWER_S = 30.0


def read(data: bytes) -> Hello | None:
    return HelloReader().feed(data)


def whole(data: bytes) -> Hello:
    hello = read(data)
    assert hello is not None
    return hello


def fault(data: bytes) -> HelloFault:
    with pytest.raises(HelloInvalid) as caught:
        read(data)
    return caught.value.fault


def test_the_hello_of_pythons_ssl_is_read() -> None:
    data = real(alpn=["h2", "http/1.1"])
    hello = whole(data)
    assert hello.server_name == NAME
    assert hello.alpn == (b"h2", b"http/1.1")
    assert 0x0304 in hello.versions
    assert (hello.ech, hello.early_data) == (Ech.ABSENT, False)
    assert hello.raw == data


def test_a_hello_without_a_name_has_none() -> None:
    assert whole(real(None)).server_name is None
    assert whole(records(message(None))).server_name is None
    assert whole(records(message([]))).versions == (0x0303,)


def test_an_older_client_is_read() -> None:
    context = client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    hello = whole(real(context=context))
    assert (hello.server_name, hello.versions) == (NAME, (0x0303,))


CLIENTS: dict[str, tuple[str, Callable[[int], list[str]]]] = {
    "curl": ("curl", lambda port: ["-sk", "--connect-to", f"::127.0.0.1:{port}", f"https://{NAME}/"]),
    "openssl": ("openssl", lambda port: ["s_client", "-connect", f"127.0.0.1:{port}", "-servername", NAME]),
    "openssl, TLS 1.2": (
        "openssl",
        lambda port: ["s_client", "-tls1_2", "-connect", f"127.0.0.1:{port}", "-servername", NAME],
    ),
    "node": (
        "node",
        lambda port: [
            "-e",
            f"require('tls').connect({{host: '127.0.0.1', port: {port}, servername: '{NAME}'}}).on('error', () => 0)",
        ],
    ),
    "deno": (
        "deno",
        lambda port: [
            *("eval", "--no-config", "--no-remote"),
            f"""const conn = await Deno.connect({{hostname: '127.0.0.1', port: {port}}});
            await (await Deno.startTls(conn, {{hostname: '{NAME}'}})).handshake().catch(() => 0)""",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("client", CLIENTS)
def test_the_hello_of_a_real_client_is_read(client: str, tmp_path: Path) -> None:
    name, arguments = CLIENTS[client]
    beside = Path(sys.executable).with_name(name)
    program = str(beside) if beside.exists() else shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not here")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(ANSWER_S)
        process = subprocess.Popen(
            [program, *arguments(server.getsockname()[1])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "DENO_DIR": str(tmp_path)},
        )
        try:
            peer, _ = server.accept()
            with peer:
                peer.settimeout(ANSWER_S)
                reader, hello = HelloReader(), None
                while hello is None and (data := peer.recv(100)):
                    hello = reader.feed(data)
        finally:
            process.kill()
            process.wait()
    assert hello is not None
    assert hello.server_name == NAME
    assert hello.ech is Ech.ABSENT


@pytest.mark.parametrize("size", [1, 2, 5, 7, 100])
def test_it_makes_no_difference_how_the_bytes_come(size: int) -> None:
    data = real() + b"\x17\x03\x03\x00\x02xx"
    reader, found = HelloReader(), None
    for place in range(0, len(data), size):
        assert found is None or place > len(found.raw) - size
        if found is None:
            found = reader.feed(data[place : place + size])
    assert found == whole(data)


def test_a_message_may_be_cut_into_records() -> None:
    data = message([named(NAME)])
    for lengths in ((1,), (3, 1, 5), (4,), tuple([1] * (MAX_RECORDS - 1))):
        cut = records(data, *lengths)
        hello = whole(cut)
        assert (hello.server_name, hello.raw) == (NAME, cut)
    assert fault(records(data, *[1] * MAX_RECORDS)) is HelloFault.RECORD


def test_what_comes_behind_the_message_is_kept() -> None:
    reader = HelloReader()
    hello = reader.feed(records(message([named(NAME), (42, b"")])) + b"\x17\x03\x03\x00\x01e")
    assert hello is not None
    assert hello.early_data
    assert reader.rest == b"\x17\x03\x03\x00\x01e"


def test_the_kinds_of_encrypted_hello_are_told_apart() -> None:
    assert whole(records(message([named(NAME), encrypted()]))).ech is Ech.OUTER
    assert whole(records(message([named(NAME), encrypted(1)]))).ech is Ech.INNER
    for old in (0xFE08, 0xFE0C, 0xFFCE):
        assert whole(records(message([named(NAME), (old, b"whatever")]))).ech is Ech.OLD
    for wrong in (encrypted(2), encrypted(payload=b""), (0xFE0D, b""), (0xFE0D, b"\x01x"), (0xFD00, b"\x02\0\0")):
        assert fault(records(message([named(NAME), wrong]))) is HelloFault.MALFORMED


NAMES = {
    "two": named(NAME, "evil.example"),
    "twice the same": named(NAME, NAME),
    "other kind": named(NAME, kind=1),
    "address": named("127.0.0.1"),
    "IPv6 address": named("::1"),
    "dot at the end": named(NAME + "."),
    "zero byte": named(NAME + "\0.evil.example"),
    "no ASCII": named("bücher.example"),
    "single label": named("localhost"),
    "line": named("a.example\r\nX: y"),
    "star": named("*.example.com"),
}


@pytest.mark.parametrize("case", NAMES)
def test_not_exactly_one_host_name_is_refused(case: str) -> None:
    assert fault(records(message([NAMES[case]]))) is HelloFault.NAME


def test_a_name_is_read_in_lower_case() -> None:
    assert whole(records(message([named("API.Example.COM")]))).server_name == NAME


FAULTS = {
    "plain text": (b"GET / HTTP/1.1\r\n", HelloFault.NOT_TLS),
    "one letter": (b"G", HelloFault.NOT_TLS),
    "ssh": (b"SSH-2.0-x\r\n", HelloFault.NOT_TLS),
    "ssl2": (b"\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10", HelloFault.SSL2),
    "alert": (b"\x15\x03\x01\x00\x02\x02\x28", HelloFault.NOT_TLS),
    "record of version 2": (b"\x16\x02\x00", HelloFault.NOT_TLS),
    "empty record": (b"\x16\x03\x01\x00\x00", HelloFault.RECORD),
    "too long record": (b"\x16\x03\x01\x40\x01", HelloFault.RECORD),
    "other message": (records(b"\x02" + counted(b"x" * 40, 3)), HelloFault.NOT_HELLO),
    "other message, early": (records(b"\x02" + counted(b"x" * 40, 3))[:6], HelloFault.NOT_HELLO),
    "interrupted": (records(message([named(NAME)]))[:5] + b"x", HelloFault.NOT_HELLO),
    "alert between": (
        records(message([named(NAME)])[:20]) + b"\x15\x03\x03\x00\x02\x01\x00",
        HelloFault.RECORD,
    ),
    "ssl3": (records(message([named(NAME)], version=0x0300)), HelloFault.VERSION),
    "later version": (records(message([named(NAME)], version=0x0304)), HelloFault.VERSION),
    "name twice": (records(message([named(NAME), named("evil.example")])), HelloFault.DUPLICATE),
    "unknown twice": (records(message([named(NAME), (0x0A0A, b""), (0x0A0A, b"")])), HelloFault.DUPLICATE),
    "behind the extensions": (records(message([named(NAME)], more=b"x")), HelloFault.MALFORMED),
    "another message in the record": (records(message([named(NAME)]) * 2), HelloFault.MALFORMED),
    "empty list of names": (records(message([(0, b"\0\0")])), HelloFault.MALFORMED),
    "empty name": (records(message([named("")])), HelloFault.MALFORMED),
    "empty extension of names": (records(message([(0, b"")])), HelloFault.MALFORMED),
    "behind the names": (records(message([(0, named(NAME)[1] + b"x")])), HelloFault.MALFORMED),
    "empty protocol": (records(message([(16, b"\0\2\0\0")])), HelloFault.MALFORMED),
    "half a version": (records(message([(43, b"\3\3\4\3")])), HelloFault.MALFORMED),
    "declared too large": (records(b"\x01\x00\x40\x01" + b"x" * 30), HelloFault.TOO_LARGE),
    "declared much too large": (records(b"\x01\xff\xff\xff"), HelloFault.TOO_LARGE),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_is_refused_and_told(case: str) -> None:
    data, expected = FAULTS[case]
    assert fault(data) is expected


def test_a_hello_may_be_as_large_as_a_record_and_no_larger() -> None:
    padding = MAX_HELLO_BYTES - len(message([named(NAME), (21, b"")])) + 4
    assert whole(records(message([named(NAME), (21, bytes(padding))]), 9000)).server_name == NAME
    assert fault(records(message([named(NAME), (21, bytes(padding + 1))]), 9000)) is HelloFault.TOO_LARGE


def test_every_beginning_of_a_hello_waits_for_more() -> None:
    for data in (real(), records(message([named(NAME)]), 1, 1, 20)):
        for end in range(len(data)):
            assert read(data[:end]) is None


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_waited_for(data: bytes) -> None:
    for start in (b"", b"\x16\x03\x01", b"\x16\x03\x01\x00\x80\x01\x00\x00\x7c\x03\x03"):
        with contextlib.suppress(HelloInvalid):
            read(start + data)


REAL = real(alpn=["h2"])


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, len(REAL) - 1), st.binary(max_size=4), st.integers(0, 4), st.lists(st.integers(1, 300), max_size=9)
)
def test_a_damaged_hello_names_what_stands_in_it_or_is_refused(
    place: int, put: bytes, removed: int, steps: list[int]
) -> None:
    data = REAL[:place] + put + REAL[place + removed :]

    def outcome(pieces: list[bytes]) -> object:
        reader = HelloReader()
        try:
            for piece in pieces:
                if (hello := reader.feed(piece)) is not None:
                    return hello
        except HelloInvalid as error:
            return error.fault
        return None

    pieces, rest = [], data
    for step in steps:
        pieces.append(rest[:step])
        rest = rest[step:]
    found = outcome([data])
    assert outcome([*pieces, rest]) == found
    if isinstance(found, Hello) and found.server_name is not None:
        assert found.server_name.encode() in data.lower()
        assert data.startswith(found.raw)


@pytest.fixture(scope="module")
def server_context(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """A server that wants another key than clients offer at first, so that it asks again."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    start = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    certificate = x509.CertificateBuilder(
        name, name, key.public_key(), 1, start, start + datetime.timedelta(days=36500)
    ).sign(key, hashes.SHA256())
    path = tmp_path_factory.mktemp("server") / "pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


def exchange(context: ssl.SSLContext) -> tuple[bytes, bytes, bytes]:
    """First hello, the server's answer, and what the client says to that."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context().wrap_bio(to_client, to_server, server_hostname=NAME)
    received = ssl.MemoryBIO()
    answer = ssl.MemoryBIO()
    server = context.wrap_bio(received, answer, server_side=True)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    first = to_server.read()
    received.write(first)
    with contextlib.suppress(ssl.SSLWantReadError):
        server.do_handshake()
    answered = answer.read()
    to_client.write(answered)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return first, answered, to_server.read()


def test_a_server_that_asks_again_is_noticed_and_gets_the_same_name(server_context: ssl.SSLContext) -> None:
    assert asks_again(exchange(server_context)[1]) is False
    server_context.set_ecdh_curve("secp384r1")
    first, answer, second = exchange(server_context)
    assert asks_again(answer) is True
    assert [asks_again(answer[:end]) for end in range(43)] == [None] * 43
    hello = whole(first)
    reader = SecondHelloReader(hello)
    assert [reader.feed(second[place : place + 1]) for place in range(len(second))].count(True) == 1


def test_an_answer_that_cannot_be_told_counts_as_asking_again() -> None:
    assert asks_again(b"") is None
    assert asks_again(b"\x15\x03\x03\x00\x02\x02\x28") is False
    assert asks_again(b"HTTP/1.1 400") is False
    assert asks_again(b"\x16\x03\x03\x00\x01\x02") is True
    assert asks_again(b"\x16\x03\x03\x00\x50\x0b") is False


FIRST = whole(records(message([named(NAME), (42, b"")])))
MIDDLEBOX = b"\x14\x03\x03\x00\x01\x01"
EARLY = b"\x17\x03\x03\x00\x05early"


@pytest.mark.parametrize("before", [b"", MIDDLEBOX, EARLY, MIDDLEBOX + EARLY * 3, EARLY + MIDDLEBOX])
def test_a_second_hello_for_another_site_is_refused(before: bytes) -> None:
    assert SecondHelloReader(FIRST).feed(before + records(message([named(NAME)]), 1)) is True
    for other in ([named("evil.example")], [], [named(NAME), encrypted()], [named(NAME, "evil.example")]):
        with pytest.raises(HelloInvalid):
            SecondHelloReader(FIRST).feed(before + records(message(other), 3))
        reader = SecondHelloReader(FIRST)
        with pytest.raises(HelloInvalid):
            for byte in before + records(message(other)):
                assert reader.feed(bytes([byte])) is False


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(1, 50))
def test_any_bytes_in_place_of_a_second_hello_are_not_passed_on(data: bytes, step: int) -> None:
    reader = SecondHelloReader(FIRST)
    with contextlib.suppress(HelloInvalid):
        for place in range(0, len(data), step):
            assert reader.feed(data[place : place + step]) is False


def test_two_hellos_are_for_the_same_site_only_with_the_same_name_and_form() -> None:
    assert same_site(FIRST, whole(real()))
    assert not same_site(FIRST, whole(real("other.example.com")))
    assert not same_site(FIRST, whole(records(message([named(NAME), encrypted()]))))
