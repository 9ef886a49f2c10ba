"""The certificate authority of the edge, made at its first use: it is asked for the names of this installation alone.

That is no limit written into its certificate: domains may change, and clients would have to trust another one then. So
whoever has the key can speak for any name to those who trust it.

Key and certificate stay below `<data>/control/edge/`, which nobody else can read; clients get the certificate by
`coldframe e2b env` or from `GET /v1/edge`. A name is answered with a certificate of its own, since clients refuse a
wildcard right below a name of one label, as `*.localhost`. The private keys of these are in memory only.
"""

import os
import ssl
from collections import OrderedDict
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coldframe.contract.errors import Unavailable

AUTHORITY_LIFE = timedelta(days=3650)
LEAF_LIFE = timedelta(days=30)
BEFORE = timedelta(days=1)
MOST_LEAVES = 256
_FILE = "authority.pem"
_PEM = serialization.Encoding.PEM


class EdgeAuthority:
    """Makes the context that a connection is answered in. One of an installation."""

    def __init__(
        self, directory: str, domains: Collection[str], *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """Raises Unavailable: what is kept cannot be read, or nothing can be kept there."""
        self._domains = tuple(domains)
        self._clock = clock
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._leaves: OrderedDict[str, tuple[datetime, ssl.SSLContext]] = OrderedDict()
        try:
            self._key, self._certificate = _kept(directory, clock())
        except (OSError, ValueError, TypeError) as error:
            raise Unavailable(
                f"the certificate authority of the edge cannot be had: {error}",
                hint=f"put `{_FILE}` back from a backup, or remove it, and have clients trust the new one",
            ) from error

    @property
    def certificate(self) -> str:
        """As PEM."""
        return self._certificate.public_bytes(_PEM).decode()

    def context(self) -> ssl.SSLContext:
        """For whoever connects; another one takes its place as soon as the client has said which name it wants."""
        context = self._named("")
        context.sni_callback = self._choose
        return context

    def _choose(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        wanted = (name or "").lower().rstrip(".")
        if wanted and not any(wanted == one or wanted.endswith(f".{one}") for one in self._domains):
            return None  # answered by the first one, which no client takes for that name
        connection.context = self._named(wanted)
        return None

    def _named(self, name: str) -> ssl.SSLContext:
        now = self._clock()
        found = self._leaves.get(name)
        if found is not None and now < found[0]:
            self._leaves.move_to_end(name)
            return found[1]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        secret = self._leaf_key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        file = os.memfd_create("leaf", os.MFD_CLOEXEC)  # `ssl` takes certificates from files only
        try:
            os.write(file, self._leaf(name, now).public_bytes(_PEM) + secret)
            context.load_cert_chain(f"/proc/self/fd/{file}")
        finally:
            os.close(file)
        self._leaves[name] = now + LEAF_LIFE / 2, context
        self._leaves.move_to_end(name)
        while len(self._leaves) > MOST_LEAVES:
            self._leaves.popitem(last=False)
        return context

    def _leaf(self, name: str, now: datetime) -> x509.Certificate:
        names: list[x509.GeneralName] = [x509.DNSName(name)] if name else []
        for domain in self._domains:
            names += [x509.DNSName(one) for one in (domain, f"*.{domain}") if one != name]
        names += [x509.IPAddress(ip_address(one)) for one in ("127.0.0.1", "::1")]
        made = _begin(x509.Name([]), self._certificate.subject, self._leaf_key.public_key(), now, LEAF_LIFE)
        made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=True)
        made = made.add_extension(_usage(signs_certificates=False), critical=True)
        made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return made.add_extension(issuer, critical=False).sign(self._key, hashes.SHA256())


def _kept(directory: str, now: datetime) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    os.makedirs(directory, mode=0o700, exist_ok=True)
    path = os.path.join(directory, _FILE)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        content = _make(now)
        draft = path + ".new"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as written:
            written.write(content)
            written.flush()
            os.fsync(written.fileno())
        os.rename(draft, path)
    key = serialization.load_pem_private_key(content, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("its key is on no elliptic curve")
    return key, x509.load_pem_x509_certificate(content)


def _make(now: datetime) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    mark = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Coldframe edge {mark.digest.hex()[:16]}")])
    made = _begin(name, name, key.public_key(), now, AUTHORITY_LIFE)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    made = made.add_extension(_usage(signs_certificates=True), critical=True).add_extension(mark, critical=False)
    certificate = made.sign(key, hashes.SHA256())
    private = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private + certificate.public_bytes(_PEM)


def _begin(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number(), now - BEFORE, now + life)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
