"""ClientHellos for tests: real ones of Python's ssl, and hand-made ones with any fault."""

import contextlib
import ssl
from collections.abc import Sequence

NAME = "api.example.com"
Extension = tuple[int, bytes]


def counted(data: bytes, width: int) -> bytes:
    """Bytes behind their length."""
    return len(data).to_bytes(width, "big") + data


def named(*names: str | bytes, kind: int = 0) -> Extension:
    """The extension with host names."""
    texts = [name.encode() if isinstance(name, str) else name for name in names]
    return 0, counted(b"".join(bytes([kind]) + counted(text, 2) for text in texts), 2)


def encrypted(kind: int = 0, payload: bytes = b"x" * 144) -> Extension:
    """The extension of Encrypted Client Hello, as it stands in the open or inside."""
    return 0xFE0D, b"\x01" if kind == 1 else bytes([kind]) + b"\0\1\0\1\x07" + counted(b"k" * 32, 2) + counted(
        payload, 2
    )


def message(extensions: Sequence[Extension] | None, *, version: int = 0x0303, more: bytes = b"") -> bytes:
    """A ClientHello with its head."""
    body = version.to_bytes(2, "big") + bytes(range(32)) + counted(b"s" * 32, 1) + counted(b"\x13\x01", 2) + b"\1\0"
    if extensions is not None:
        body += counted(b"".join(kind.to_bytes(2, "big") + counted(data, 2) for kind, data in extensions), 2)
    return b"\x01" + counted(body + more, 3)


def records(data: bytes, *lengths: int, kind: int = 22) -> bytes:
    """Bytes cut into records: of the lengths given, and the rest in one."""
    found, place = b"", 0
    for length in (*lengths, len(data) - sum(lengths)):
        found += bytes([kind]) + b"\3\1" + counted(data[place : place + length], 2)
        place += length
    return found


def real(name: str | None = NAME, *, alpn: Sequence[str] = (), context: ssl.SSLContext | None = None) -> bytes:
    """What Python's ssl sends first."""
    client, sent = talking(name, alpn=alpn, context=context)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


def talking(
    name: str | None, *, alpn: Sequence[str] = (), context: ssl.SSLContext | None = None
) -> tuple[ssl.SSLObject, ssl.MemoryBIO]:
    """A client, and where its bytes come out; what it should read is never given."""
    if context is None:
        context = client_context()
    if alpn:
        context.set_alpn_protocols(list(alpn))
    sent = ssl.MemoryBIO()
    return context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name), sent


def client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
