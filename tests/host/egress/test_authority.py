"""What a program of a box is shown is signed for its sandbox alone, holds now, and its key is nowhere to be read."""

import os
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
from cryptography import x509

from coldframe.host.egress.authority import LEAF_LIFE, MOST_LEAVES, Authority
from coldframe.policy.addresses import Address

SITE = "api.example.com"


def shown(authority: Authority, destination: str | Address, *, bundle: bytes | None = None) -> x509.Certificate:
    """The certificate that a program gets which trusts the bundle, and verifies as strictly as it can."""
    ours, theirs = socket.socketpair()
    context = ssl.create_default_context(cadata=(authority.bundle(b"") if bundle is None else bundle).decode())
    context.verify_flags |= ssl.VERIFY_X509_STRICT

    def answer() -> None:
        try:
            authority.context(destination).wrap_socket(ours, server_side=True).close()
        except OSError:
            ours.close()

    serving = threading.Thread(target=answer)
    serving.start()
    try:
        with theirs, context.wrap_socket(theirs, server_hostname=str(destination)) as client:
            return x509.load_der_x509_certificate(client.getpeercert(binary_form=True) or b"")
    finally:
        serving.join()


@pytest.mark.parametrize(
    "destination",
    [SITE, "under_score.example.com", ".".join(["a" * 60] * 4), ip_address("8.8.8.8"), ip_address("2606:4700::1")],
    ids=str,
)
def test_a_destination_is_vouched_for_to_the_strictest_program(destination: str | Address) -> None:
    shown(Authority(), destination)


def test_a_certificate_that_was_just_made_holds_for_clocks_that_are_behind_and_not_for_long() -> None:
    now = datetime.now(UTC)
    leaf = shown(Authority(), SITE)
    own = x509.load_pem_x509_certificate(Authority().certificate)
    for one in (leaf, own):
        assert one.not_valid_before_utc < now - timedelta(hours=12)
    assert leaf.not_valid_after_utc < now + timedelta(days=4)


def test_who_has_what_was_saved_of_one_is_trusted_as_it() -> None:
    first = Authority()
    again = Authority(first.saved)
    assert again.certificate == first.certificate
    shown(again, SITE, bundle=first.bundle(b""))
    with pytest.raises(ValueError, match="PEM"):
        Authority("-----BEGIN NOTHING-----")


def test_a_certificate_is_made_once_and_anew_before_it_ends() -> None:
    now = datetime.now(UTC)
    authority = Authority(clock=lambda: now)
    first = authority.context(SITE)
    assert authority.context(SITE) is first
    now += LEAF_LIFE / 2 + timedelta(seconds=1)
    assert authority.context(SITE) is not first


def test_no_more_are_kept_than_the_limit_and_the_latest_ones_stay() -> None:
    authority = Authority()
    first = authority.context("n0.example.com")
    for number in range(1, MOST_LEAVES):
        authority.context(f"n{number}.example.com")
    assert authority.context("n0.example.com") is first
    authority.context("one-more.example.com")
    assert authority.context("n0.example.com") is first


def test_one_sandbox_does_not_trust_what_was_made_for_another() -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shown(Authority(), SITE, bundle=Authority().bundle(b""))


def test_a_bundle_has_the_roots_of_the_host_and_this_authority_and_no_key() -> None:
    host, authority = Authority(), Authority()
    bundle = authority.bundle(host.certificate.rstrip())  # as files often end
    assert len(x509.load_pem_x509_certificates(bundle)) == 2
    assert b"PRIVATE" not in bundle
    shown(host, SITE, bundle=bundle)
    shown(authority, SITE, bundle=bundle)


def test_making_certificates_leaves_no_file_open() -> None:
    authority = Authority()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(10):
        authority.context(f"n{number}.example.com")
    assert len(os.listdir("/proc/self/fd")) == before
