"""A certificate authority of one sandbox, whose certificates its programs are shown in mode `intercept`.

Each sandbox has its own, so what a box could do with one (nothing: it never sees the key) would end at that box. The
key is made by the host daemon, which gives it to each broker that serves the box, so that one that is started again goes on
with it, and to the keeper of the box, which keeps it for a host daemon that is started again; it lives in the memory of
these alone. Certificates begin a day ago, since clocks differ, and hold for a few days.

`ssl` takes certificates from files only: they go through a file in memory that nobody else can open.
"""

import os
import secrets
import ssl
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coldframe.policy.addresses import Address

MOST_LEAVES = 64
"""Kept of one sandbox; a further one takes the place of the one that was not used the longest."""
BEFORE = timedelta(days=1)
"""How far back a certificate begins."""
LEAF_LIFE = timedelta(days=3)
AUTHORITY_LIFE = timedelta(days=397)

_PEM = serialization.Encoding.PEM
_MAX_COMMON_NAME = 64


class Authority:
    """Makes the context in which a program of the sandbox is answered as the destination."""

    def __init__(self, saved: str = "", *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """*saved*: what `saved` said of another one, to be the same. Raises ValueError if it is none."""
        self._clock = clock
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._leaves: OrderedDict[tuple[str, bool], tuple[datetime, ssl.SSLContext]] = OrderedDict()
        if saved:
            key = serialization.load_pem_private_key(saved.encode(), None)
            if not isinstance(key, ec.EllipticCurvePrivateKey):
                raise ValueError("the key of an authority is on an elliptic curve")
            self._key, self._certificate = key, x509.load_pem_x509_certificate(saved.encode())
            self._subject = self._certificate.subject
            return
        self._key = ec.generate_private_key(ec.SECP256R1())
        # Its own name, so that a program which knows an earlier one as well does not take one for the other.
        self._subject = _named(f"Coldframe sandbox authority {secrets.token_hex(8)}")
        self._certificate = self._make_own()

    @property
    def certificate(self) -> bytes:
        """As PEM."""
        return self._certificate.public_bytes(_PEM)

    @property
    def saved(self) -> str:
        """Key and certificate as PEM, for another one that is to be the same."""
        return (_write_key(self._key) + self.certificate).decode()

    def bundle(self, host_roots: bytes) -> bytes:
        """What programs of the box are to trust, as PEM: the roots of the host, and this."""
        return host_roots.rstrip() + b"\n" * bool(host_roots.strip()) + self.certificate

    def context(self, destination: str | Address, *, speaks_http2: bool = True) -> ssl.SSLContext:
        """To answer as the destination. Raises OSError if there is no room for a file in memory."""
        name, now = (str(destination), speaks_http2), self._clock()
        found = self._leaves.get(name)
        if found is not None and now < found[0]:
            self._leaves.move_to_end(name)
            return found[1]
        context = self._make_context(destination, now)
        context.set_alpn_protocols(["h2", "http/1.1"] if speaks_http2 else ["http/1.1"])
        self._leaves[name] = (now + LEAF_LIFE / 2, context)
        self._leaves.move_to_end(name)
        while len(self._leaves) > MOST_LEAVES:
            self._leaves.popitem(last=False)
        return context

    def _make_context(self, destination: str | Address, now: datetime) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        secret = _write_key(self._leaf_key)
        file = os.memfd_create("leaf", os.MFD_CLOEXEC)
        try:
            os.write(file, self._make_leaf(destination, now).public_bytes(_PEM) + secret)
            context.load_cert_chain(f"/proc/self/fd/{file}")
        finally:
            os.close(file)
        return context

    def _make_leaf(self, destination: str | Address, now: datetime) -> x509.Certificate:
        name = str(destination)
        subject = _named(name) if len(name) <= _MAX_COMMON_NAME else x509.Name([])
        other = x509.DNSName(name) if isinstance(destination, str) else x509.IPAddress(destination)
        public = self._leaf_key.public_key()
        made = self._begin(subject, public, now, LEAF_LIFE)
        made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        made = made.add_extension(x509.SubjectAlternativeName([other]), critical=not list(subject))
        made = made.add_extension(_usage(signs_certificates=False), critical=True)
        made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return made.add_extension(issuer, critical=False).sign(self._key, hashes.SHA256())

    def _make_own(self) -> x509.Certificate:
        public = self._key.public_key()
        made = self._begin(self._subject, public, self._clock(), AUTHORITY_LIFE)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        made = made.add_extension(_usage(signs_certificates=True), critical=True)
        return made.sign(self._key, hashes.SHA256())

    def _begin(
        self, subject: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime, life: timedelta
    ) -> x509.CertificateBuilder:
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(self._subject).public_key(public)
        made = made.serial_number(x509.random_serial_number()).not_valid_before(now - BEFORE)
        made = made.not_valid_after(now + life)
        return made.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)


def _write_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
