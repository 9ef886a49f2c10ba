"""What a box with a way out is given besides: what its programs trust, and how they are told of it.

Programs trust one file: the roots of the host, and the sandbox's own authority (`egress/authority.py`), in whose name the
broker answers them where requests are read. It lies at a fixed place in the box, read-only, is named by the variables of
the usual clients, and covers the host's own bundle in the box's view, for programs that read that one whatever they are
told. Browsers have roots of their own and are told by their policies (`browser_policies.py`). Nothing is changed on the
host.

It travels to the keeper as one file in memory, since it holds the authority's key: the keeper keeps that for a host daemon
that is started again, and so it is never on disk. Standard library only.
"""

import json
import os
from typing import NamedTuple

from coldframe.host.browser_policies import policy_files
from coldframe.host.isolation.namespaces import NAMESERVER

TRUST = "/opt/coldframe/trust.pem"
HOST_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where distributions keep all roots in one file; the first that is there counts."""

ENVIRONMENT = dict.fromkeys(
    (
        "SSL_CERT_FILE",  # OpenSSL, Go, Rust, uv, Ruby
        "CURL_CA_BUNDLE",
        "REQUESTS_CA_BUNDLE",
        "PIP_CERT",
        "NODE_EXTRA_CA_CERTS",
        "NPM_CONFIG_CAFILE",
        "YARN_HTTPS_CA_FILE_PATH",
        "DENO_CERT",
        "GIT_SSL_CAINFO",
        "CARGO_HTTP_CAINFO",
        "AWS_CA_BUNDLE",
        "BUNDLE_SSL_CA_CERT",
        "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
        "HTTPLIB2_CA_CERTS",
        "NIX_SSL_CERT_FILE",
        "PERL_LWP_SSL_CA_FILE",
    ),
    TRUST,
)
"""Each client has a variable of its own; what has none reads one of these or the bundle of the system."""

RESOLVER = {"/etc/resolv.conf": f"nameserver {NAMESERVER}\noptions timeout:5 attempts:3\n"}
"""While a broker is started again a look-up waits for it; 15 s are more than that takes."""


class Outfit(NamedTuple):
    """Of one box."""

    files: dict[str, str]
    """Files of the box's root by their paths, read-only."""
    covers: dict[str, str]
    """Settings in place of those of all boxes, if those are there."""
    environment: dict[str, str]
    """Variables of every command, beside those of all boxes."""
    authority: str
    """As `Authority.saved`; for nobody in the box."""


def make_outfit(authority: str, certificate: str) -> Outfit:
    """*authority* with its key, and its *certificate*, as PEM. Reads the host's roots anew."""
    roots, place = host_roots()
    trusted = f"{roots.rstrip()}\n{certificate}" if roots else certificate
    covers = {**RESOLVER, **({place: trusted} if place else {})}
    return Outfit({TRUST: trusted, **policy_files(roots, certificate)}, covers, dict(ENVIRONMENT), authority)


def host_roots() -> tuple[str, str]:
    """The roots that this host trusts, as PEM, and where they are; nothing if there are none in one file."""
    for path in HOST_BUNDLES:
        try:
            with open(path, encoding="utf-8", errors="replace") as source:
                text = source.read()
        except OSError:
            continue
        if "BEGIN CERTIFICATE" in text:
            return text, path
    return "", ""


def pack(outfit: Outfit) -> int:
    """A file in memory that holds it. Raises OSError."""
    file = os.memfd_create("outfit", os.MFD_CLOEXEC)
    try:
        with open(file, "wb", closefd=False) as target:
            target.write(json.dumps(outfit._asdict()).encode())
    except BaseException:
        os.close(file)
        raise
    return file


def unpack(file: int) -> Outfit:
    """What `pack` packed; the file is closed. Raises OSError."""
    with open(file, "rb") as source:
        source.seek(0)
        return Outfit(**json.load(source))
