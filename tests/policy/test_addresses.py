"""Promise: only public addresses are dialled by default, whatever form they come in."""

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldframe.policy.addresses import (
    OPENABLE,
    AddressKind,
    judge_address,
    looks_like_address,
    read_address,
    refused_in,
)

VECTORS = [
    (line.split()[0], AddressKind(line.split()[1]))
    for line in (Path(__file__).parent / "addresses.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
ADDRESSES = st.one_of(
    st.ip_addresses(),
    st.builds(
        lambda prefix, low: IPv6Address((prefix << 32) | low),
        st.sampled_from([0, 0xFFFF, 0x64FF9B << 64, 0x64FF9B0001 << 56]),
        st.integers(0, 2**32 - 1),
    ),
)


@pytest.mark.parametrize(("text", "kind"), VECTORS, ids=[text for text, _ in VECTORS])
def test_every_address_of_the_table_has_its_kind(text: str, kind: AddressKind) -> None:
    assert judge_address(ip_address(text)).kind is kind


def test_the_table_has_every_kind_but_the_machines_own() -> None:
    assert {kind for _, kind in VECTORS} == set(AddressKind) - {AddressKind.OWN}


@pytest.mark.parametrize("address", ["8.8.8.8", "::ffff:8.8.8.8", "64:ff9b::808:808", "2606:4700::1"])
def test_an_address_of_this_machine_is_refused_though_it_is_public(address: str) -> None:
    own = {IPv4Address("8.8.8.8"), IPv6Address("2606:4700::1")}
    assert judge_address(ip_address(address), own=own).kind is AddressKind.OWN
    assert judge_address(ip_address(address)).is_public


def test_a_mapped_address_is_dialled_as_what_it_carries() -> None:
    assert judge_address(ip_address("::ffff:8.8.8.8")).dialled == IPv4Address("8.8.8.8")
    assert judge_address(ip_address("64:ff9b::808:808")).dialled == ip_address("64:ff9b::808:808")


def test_no_kind_of_secrets_or_of_this_machine_can_be_opened() -> None:
    assert {AddressKind.PRIVATE, AddressKind.UNIQUE_LOCAL, AddressKind.SHARED} == OPENABLE


@settings(max_examples=300, deadline=None)
@given(ADDRESSES)
def test_what_the_library_calls_special_is_never_public(address: IPv4Address | IPv6Address) -> None:
    verdict = judge_address(address)
    assert not (verdict.is_public and (address.is_multicast or address.is_loopback or address.is_link_local))
    if verdict.is_public and verdict.dialled == address and not verdict.carried:
        assert address.is_global or address in ip_network("192.88.99.0/24")


@settings(max_examples=300, deadline=None)
@given(ADDRESSES)
def test_what_is_public_carries_nothing_that_is_not(address: IPv4Address | IPv6Address) -> None:
    verdict = judge_address(address)
    if verdict.is_public:
        assert all(judge_address(each).is_public for each in verdict.carried)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.ip_addresses(), st.sampled_from([ip_address(text) for text, _ in VECTORS])), st.integers(0, 128))
def test_a_range_can_be_opened_only_if_each_address_of_it_can(address: IPv4Address | IPv6Address, bits: int) -> None:
    network = ip_network((address.packed, min(bits, address.max_prefixlen)), strict=False)
    if refused_in(network) is None:
        inside = [network[0], network[-1], *(ip_address(text) for text, _ in VECTORS if "%" not in text)]
        for one in inside:
            verdict = judge_address(one)
            # What carries another address is found when it is dialled.
            if one.version == network.version and one in network and not verdict.carried:
                assert verdict.kind in OPENABLE | {AddressKind.PUBLIC}


@pytest.mark.parametrize(
    ("network", "kind"),
    [
        ("127.0.0.0/8", "loopback"),
        ("169.254.169.254", "metadata"),
        ("0.0.0.0/0", "unspecified"),
        ("::/0", "unspecified"),
        ("100.64.0.0/10", "metadata"),
        ("fd00::/8", "metadata"),
        ("2000::/3", "tunnel"),
        ("::ffff:10.0.0.0/104", "reserved"),
        ("64:ff9b::/96", "reserved"),
        ("fe80::/10", "metadata"),
        ("fe80::/64", "metadata"),
        ("febf::/16", "link-local"),
        ("10.0.0.0/8", None),
        ("100.64.0.0/16", None),
        ("fd12::/16", None),
        ("2a00::/16", None),
    ],
)
def test_a_range_that_reaches_what_no_rule_opens_is_named(network: str, kind: str | None) -> None:
    found = refused_in(ip_network(network))
    assert (found is None) == (kind is None)
    if kind is not None:
        assert found is not None
        assert found not in OPENABLE | {AddressKind.PUBLIC}


ODD = [
    "127.1", "0x7f.0.0.1", "0x7f000001", "2130706433", "017700000001", "0177.0.0.1", "127.0.0.1.", "127.0.0.01",
    "0x7f.1", "1.2.3", "0", "0x", "00", "1", "[::1]", "::1", "fe80::1%lo", "1.2.3.4.5", "a.b.0x1", "example.123",
    "0XA9FEA9FE", "169.254.43518",
]  # fmt: skip


@pytest.mark.parametrize("text", ODD)
def test_what_some_program_takes_for_an_address_looks_like_one(text: str) -> None:
    assert looks_like_address(text)


@pytest.mark.parametrize("text", ["a.example", "1.example", "0x7f.example", "1e1.x1", "127-0-0-1.example", "xn--p1ai"])
def test_a_name_does_not_look_like_an_address(text: str) -> None:
    assert not looks_like_address(text)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="0123456789abcdefxX.o", max_size=20))
def test_whatever_the_c_library_takes_for_an_address_looks_like_one(text: str) -> None:
    try:
        socket.inet_aton(text)
    except (OSError, ValueError):
        return
    assert looks_like_address(text)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60) | st.from_regex(r"[0-9a-f:.%/]{1,40}", fullmatch=True))
def test_reading_an_address_gives_an_address_or_nothing(text: str) -> None:
    address = read_address(text)
    if address is not None:
        assert looks_like_address(text)
        assert read_address(str(address)) == address


@pytest.mark.parametrize("text", ["fe80::1%lo", "10.0.0.0/8", "[::1]", "127.1", "010.0.0.1", "1.2.3.4 ", "１.2.3.4"])
def test_odd_texts_are_read_as_no_address(text: str) -> None:
    assert read_address(text) is None
