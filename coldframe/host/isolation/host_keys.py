"""The key by which a secure shell server is known: made anew for a system that has the server and no key of its own.

No template and no snapshot has one, since all that begins as it would have the same. Without one the server does not start.
Only a key is made here, and nothing is signed with it.

Standard library only: it runs in the keeper, before bubblewrap.
"""

import base64
import fnmatch
import hashlib
import os
import secrets
import stat
import struct
import textwrap
from contextlib import suppress

KIND = b"ssh-ed25519"
NAME = "ssh_host_ed25519_key"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FIELD = 2**255 - 19
_D = -121665 * pow(121666, -1, _FIELD) % _FIELD
_BASE_Y = 4 * pow(5, -1, _FIELD) % _FIELD
_BASE_X = 15112221349535400772501151409588531511454012693041857206046113283949847762202
_BASE = _BASE_X, _BASE_Y, 1, _BASE_X * _BASE_Y % _FIELD
_Point = tuple[int, int, int, int]


def give_host_key(top: int, owner: tuple[int, int]) -> None:
    """To the system below the descriptor *top*, whose root is *owner*, if it wants one."""
    with suppress(OSError):  # of which the box is no worse than without the server
        settings = os.open("etc", _DIRECTORY, dir_fd=top)
        try:
            folder = os.open("ssh", _DIRECTORY, dir_fd=settings)
        finally:
            os.close(settings)
        try:
            if _wants_key(folder):
                private, public = new_key(secrets.token_bytes(32))
                _write(folder, f"{NAME}.pub", public, 0o644, owner)
                _write(folder, NAME, private, 0o600, owner)
        finally:
            os.close(folder)


def new_key(seed: bytes) -> tuple[bytes, bytes]:
    """Both files, as OpenSSH has them."""
    public = public_of(seed)
    blob = _text(KIND) + _text(public)
    mark = secrets.token_bytes(4)
    inner = mark * 2 + blob + _text(seed + public) + _text(b"")
    inner += bytes(range(1, -len(inner) % 8 + 1))
    whole = b"openssh-key-v1\0" + _text(b"none") * 2 + _text(b"") + struct.pack(">I", 1) + _text(blob) + _text(inner)
    lines = "\n".join(textwrap.wrap(base64.b64encode(whole).decode("ascii"), 70))
    private = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{lines}\n-----END OPENSSH PRIVATE KEY-----\n"
    return private.encode("ascii"), KIND + b" " + base64.b64encode(blob) + b"\n"


def public_of(seed: bytes) -> bytes:
    """Of an Ed25519 key (RFC 8032, 5.1.5)."""
    scalar = int.from_bytes(hashlib.sha512(seed).digest()[:32], "little")
    scalar = scalar & ~7 & (1 << 255) - 1 | 1 << 254
    found: _Point = 0, 1, 1, 0
    power: _Point = _BASE
    while scalar:
        if scalar & 1:
            found = _sum(found, power)
        power, scalar = _sum(power, power), scalar >> 1
    inverse = pow(found[2], -1, _FIELD)
    x, y = found[0] * inverse % _FIELD, found[1] * inverse % _FIELD
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _sum(one: _Point, other: _Point) -> _Point:
    a = (one[1] - one[0]) * (other[1] - other[0]) % _FIELD
    b = (one[1] + one[0]) * (other[1] + other[0]) % _FIELD
    c = 2 * one[3] * other[3] * _D % _FIELD
    d = 2 * one[2] * other[2] % _FIELD
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _FIELD, g * h % _FIELD, f * g % _FIELD, e * h % _FIELD


def _wants_key(folder: int) -> bool:
    if not stat.S_ISREG(os.stat("sshd_config", dir_fd=folder, follow_symlinks=False).st_mode):
        return False
    return not any(fnmatch.fnmatchcase(name, "ssh_host_*_key") for name in os.listdir(folder))


def _text(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def _write(folder: int, name: str, content: bytes, mode: int, owner: tuple[int, int]) -> None:
    """In place of what has this name. The private one is written last, and whole."""
    draft = f".{name}.{secrets.token_hex(4)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(draft, flags, mode, dir_fd=folder), "wb") as made:
            made.write(content)
            os.fchmod(made.fileno(), mode)
            os.fchown(made.fileno(), *owner)
            made.flush()
            os.fsync(made.fileno())  # else a crash may leave a key of nothing, beside which none is made again
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=folder)
        raise
