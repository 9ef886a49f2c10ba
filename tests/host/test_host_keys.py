"""A system with a secure shell server has a key of its own, which OpenSSH takes, and nothing else is touched for it."""

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coldframe.host.isolation.host_keys import NAME, give_host_key, new_key, public_of

OWNER = os.geteuid(), os.getegid()


def give(root: Path) -> list[str]:
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        give_host_key(top, OWNER)
    finally:
        os.close(top)
    return sorted(os.listdir(root / "etc" / "ssh"))


def system(root: Path) -> Path:
    (root / "etc" / "ssh").mkdir(parents=True)
    (root / "etc" / "ssh" / "sshd_config").touch()
    return root


@pytest.mark.req("T4.69")
def test_two_systems_have_keys_of_their_own_which_stay(tmp_path: Path) -> None:
    one, other = system(tmp_path / "one"), system(tmp_path / "other")
    made = [give(root) for root in (one, other)]
    assert made == [[NAME, f"{NAME}.pub", "sshd_config"]] * 2
    keys = [(root / "etc" / "ssh" / NAME).read_bytes() for root in (one, other)]
    assert keys[0] != keys[1]
    assert (one / "etc" / "ssh" / NAME).stat().st_mode & 0o777 == 0o600
    give(one)
    assert (one / "etc" / "ssh" / NAME).read_bytes() == keys[0]
    for root, key in zip((one, other), keys, strict=True):
        read = serialization.load_ssh_private_key(key, None)
        public = read.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        assert (root / "etc" / "ssh" / f"{NAME}.pub").read_bytes() == public + b"\n"
    if shutil.which("ssh-keygen") is not None:
        told = subprocess.run(
            ["ssh-keygen", "-y", "-f", one / "etc" / "ssh" / NAME], capture_output=True, check=True, timeout=60
        )
        assert told.stdout.split()[:2] == (one / "etc" / "ssh" / f"{NAME}.pub").read_bytes().split()


def test_the_public_half_is_that_of_the_standard() -> None:
    for seed in (bytes(32), bytes(range(32)), b"\xff" * 32, *(os.urandom(32) for _ in range(20))):
        public = Ed25519PrivateKey.from_private_bytes(seed).public_key()
        raw = public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        assert public_of(seed) == raw and new_key(seed)[1].startswith(b"ssh-ed25519 ")


def test_nothing_is_made_where_there_is_no_server_or_a_key_or_a_link(tmp_path: Path) -> None:
    bare = system(tmp_path / "bare")
    (bare / "etc" / "ssh" / "sshd_config").unlink()
    keyed = system(tmp_path / "keyed")
    (keyed / "etc" / "ssh" / "ssh_host_rsa_key").write_text("its own")
    assert (give(bare), give(keyed)) == ([], ["ssh_host_rsa_key", "sshd_config"])
    linked, elsewhere = tmp_path / "linked", system(tmp_path / "elsewhere")
    (linked / "etc").mkdir(parents=True)
    (linked / "etc" / "ssh").symlink_to(elsewhere / "etc" / "ssh")
    assert give(linked) == ["sshd_config"]
    trapped = system(tmp_path / "trapped")
    aim = tmp_path / "aim"
    (trapped / "etc" / "ssh" / f"{NAME}.pub").symlink_to(aim)
    give(trapped)
    assert not aim.exists() and not (trapped / "etc" / "ssh" / f"{NAME}.pub").is_symlink()


def test_what_cannot_be_made_whole_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk, at each start again."""
    root = system(tmp_path / "one")

    def refuse(file: int, *_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuse)
        assert give(root) == ["sshd_config"]
    assert give(root) == [NAME, f"{NAME}.pub", "sshd_config"]
