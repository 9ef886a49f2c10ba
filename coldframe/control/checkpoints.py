"""The head of the ledger, kept apart from the database and signed: what makes a lost tail visible.

In one directory:

- ``head``: one line of fixed length, rewritten in place after every commit and never synced: the last
  entry, the last checkpoint, and a keyed BLAKE2 mark over both.
- ``checkpoints.jsonl``: appended and synced every 256 entries, after durable entries and on close: seq and
  hash of an entry, number and digest of the checkpoint before, and an Ed25519 signature.
- ``signing.key`` (0600) and ``signing.pub``: made once, PEM, so that any other tool can check a signature.
  The key of the mark is derived from the private key.

The limit: whoever can read the key can write a consistent history anew. Copies of `checkpoints.jsonl` and
`signing.pub` on another machine close that.
"""

import base64
import binascii
import hashlib
import hmac
import json
import os
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from coldframe.contract.canonical import canonical
from coldframe.contract.errors import LedgerUnavailable

ZERO = "0" * 64
"""Stands where there is nothing before: before the first entry and the first checkpoint."""
_HEAD_MAGIC = "coldframe-head-1"
_TAIL_BYTES = 4096
"""Longer than any checkpoint line, so that the last one is found without reading the file."""


class Head(NamedTuple):
    """Content of the head file."""

    seq: int
    hash: str
    checkpoint: int
    """Number of the last checkpoint; 0 for none."""
    checkpoint_digest: str


START = Head(0, ZERO, 0, ZERO)


@dataclass(frozen=True)
class Checkpoint:
    """One line of `checkpoints.jsonl`."""

    number: int
    seq: int
    hash: str
    at: str
    previous: str
    """SHA-256 of the line before, without its line end."""
    signature: bytes
    digest: str
    """SHA-256 of this line, without its line end."""

    @property
    def signed(self) -> bytes:
        return _signed_part(self.number, self.seq, self.hash, self.at, self.previous)


def _signed_part(number: int, seq: int, digest: str, at: str, previous: str) -> bytes:
    return canonical({"at": at, "hash": digest, "number": number, "previous": previous, "seq": seq}).encode()


def read_checkpoint(line: bytes) -> Checkpoint:
    """Take one line apart. Raises ValueError if it is no checkpoint; the signature is not checked here."""
    try:
        fields = json.loads(line)
        found = Checkpoint(
            number=int(fields["number"]),
            seq=int(fields["seq"]),
            hash=str(fields["hash"]),
            at=str(fields["at"]),
            previous=str(fields["previous"]),
            signature=base64.b64decode(fields["signature"], validate=True),
            digest=hashlib.sha256(line).hexdigest(),
        )
    except (KeyError, TypeError, ValueError, binascii.Error, RecursionError) as error:
        raise ValueError(f"no checkpoint: {error}") from error
    return found


_DAMAGED = (AttributeError, TypeError, ValueError)
"""What a damaged key, or one of another kind, raises beside what is imported late: `UnsupportedAlgorithm`, and
`InternalError` for a key whose form is right and which OpenSSL cannot set up."""


class Seal:
    """The key of one ledger: makes and checks marks. Without a private key it can only check signatures."""

    def __init__(self, private_pem: bytes | None, public_pem: bytes | None) -> None:
        self._private_pem = private_pem
        self._public_pem = public_pem
        self._signer: Any = None
        self._checker: Any = None
        self._mac_key = hashlib.sha256(b"coldframe ledger head\n" + private_pem).digest() if private_pem else None

    @property
    def checks_head(self) -> bool:
        return self._mac_key is not None

    def mac(self, text: str) -> str:
        if self._mac_key is None:
            raise RuntimeError("the private key is not at hand")
        # Keyed BLAKE2 is a MAC by design, and takes a quarter of the time that HMAC-SHA-256 does.
        return hashlib.blake2b(text.encode(), key=self._mac_key, digest_size=32).hexdigest()

    def sign(self, data: bytes) -> bytes:
        if self._signer is None:
            # Imported on the first signature: 20 ms that a short run may never need.
            from cryptography.exceptions import InternalError, UnsupportedAlgorithm
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
            from cryptography.hazmat.primitives.serialization import load_pem_private_key

            if self._private_pem is None:
                raise RuntimeError("the private key is not at hand")
            try:
                key = load_pem_private_key(self._private_pem, None)
            except (InternalError, UnsupportedAlgorithm, *_DAMAGED) as error:
                raise LedgerUnavailable(
                    "the signing key of the ledger cannot be read", hint="put `signing.key` back from a backup"
                ) from error
            if not isinstance(key, Ed25519PrivateKey):
                raise LedgerUnavailable("the signing key of the ledger is no Ed25519 key")
            self._signer = key
        signature: bytes = self._signer.sign(data)
        return signature

    def is_signed(self, data: bytes, signature: bytes) -> bool:
        """Whether the key made that signature. A key that is missing, damaged or of another kind has signed nothing."""
        from cryptography.exceptions import InternalError, InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

        try:
            if self._checker is None:
                if self._private_pem is not None:
                    # The private key decides if both are there: the public file could have been exchanged alone.
                    self._checker = load_pem_private_key(self._private_pem, None).public_key()
                elif self._public_pem is not None:
                    self._checker = load_pem_public_key(self._public_pem)
                else:
                    return False
            self._checker.verify(signature, data)
        except (InternalError, InvalidSignature, UnsupportedAlgorithm, *_DAMAGED):
            return False
        return True


def read_seal(directory: str) -> Seal:
    """The keys as far as they can be read."""
    return Seal(_read(os.path.join(directory, "signing.key")), _read(os.path.join(directory, "signing.pub")))


def make_seal(directory: str) -> Seal:
    """Make the key pair. Fails if there is one."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for name, content, mode in (("signing.pub", public, 0o644), ("signing.key", private, 0o600)):
        place = os.path.join(directory, name)
        # Through a second name, so that a crash leaves a whole file or none.
        descriptor = os.open(place + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            os.write(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(place + ".new", place)
    return Seal(private, public)


def has_seal(directory: str) -> bool:
    return os.path.exists(os.path.join(directory, "signing.key"))


def read_head(directory: str, seal: Seal) -> Head | None:
    """The head, or None if there is none. Raises ValueError if it does not bear its mark."""
    data = _read(os.path.join(directory, "head"))
    if not data:
        return None
    try:
        text = data.decode("ascii").removesuffix("\n")
        magic, seq, digest, number, checkpoint_digest, mac = text.split(" ")
        head = Head(int(seq), digest, int(number), checkpoint_digest)
    except ValueError:
        raise ValueError("the head file is no head") from None
    if magic != _HEAD_MAGIC or (seal.checks_head and not hmac.compare_digest(mac, seal.mac(_head_text(head)))):
        raise ValueError("the head file does not bear its mark")
    return head


def read_checkpoint_lines(directory: str) -> list[bytes]:
    """All lines, without line ends; an unfinished last one too."""
    data = _read(os.path.join(directory, "checkpoints.jsonl")) or b""
    return data.removesuffix(b"\n").split(b"\n") if data else []


def _head_text(head: Head) -> str:
    return f"{_HEAD_MAGIC} {head.seq:020d} {head.hash} {head.checkpoint:012d} {head.checkpoint_digest}"


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except PermissionError:
        return None


class Checkpoints:
    """The writing side, held by the ledger of the running server."""

    def __init__(self, directory: str, seal: Seal, head: Head) -> None:
        """Continue after *head*, or after the last readable checkpoint if that is further."""
        self._seal = seal
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._head_fd = os.open(os.path.join(directory, "head"), flags, 0o600)
        self._lines_fd = os.open(os.path.join(directory, "checkpoints.jsonl"), flags, 0o600)
        self.head = head
        size = os.fstat(self._lines_fd).st_size
        tail = os.pread(self._lines_fd, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        whole, _, torn = tail.rpartition(b"\n")
        self._lines_bytes = size
        if whole:
            try:
                last = read_checkpoint(whole.rpartition(b"\n")[2])
            except ValueError:
                last = None
            if last is not None and last.number >= head.checkpoint:
                # A crash between line and head leaves the head one checkpoint behind.
                self.head = head._replace(checkpoint=last.number, checkpoint_digest=last.digest)
                self._lines_bytes = size - len(torn)
        elif head.checkpoint == 0:
            self._lines_bytes = size - len(torn)
        if self._lines_bytes < size:
            # The unfinished line of a power cut: nothing vouched for by the head is in it.
            os.ftruncate(self._lines_fd, self._lines_bytes)
        elif torn:
            # Something that the head vouches for was cut; keep what is left as evidence, on a line of its own.
            os.pwrite(self._lines_fd, b"\n", size)
            self._lines_bytes = size + 1

    def move(self, seq: int, digest: str) -> None:
        """Set the head. One write in place of less than a disk sector; raises OSError if it fails."""
        head = self.head._replace(seq=seq, hash=digest)
        text = _head_text(head)
        os.pwrite(self._head_fd, f"{text} {self._seal.mac(text)}\n".encode(), 0)
        self.head = head

    def sign(self, at: datetime) -> None:
        """Append a checkpoint of the head and sync it. Raises OSError if it fails, and leaves nothing half-written."""
        head, number = self.head, self.head.checkpoint + 1
        when = at.isoformat()
        signature = self._seal.sign(_signed_part(number, head.seq, head.hash, when, head.checkpoint_digest))
        line = canonical(
            {
                "at": when,
                "hash": head.hash,
                "number": number,
                "previous": head.checkpoint_digest,
                "seq": head.seq,
                "signature": base64.b64encode(signature).decode(),
            }
        ).encode()
        try:
            written = os.pwrite(self._lines_fd, line + b"\n", self._lines_bytes)
            if written != len(line) + 1:
                raise OSError(f"only {written} bytes of a checkpoint could be written")
            os.fdatasync(self._lines_fd)
        except OSError:
            os.ftruncate(self._lines_fd, self._lines_bytes)
            raise
        self._lines_bytes += len(line) + 1
        self.head = head._replace(checkpoint=number, checkpoint_digest=hashlib.sha256(line).hexdigest())
        self.move(head.seq, head.hash)
        os.fdatasync(self._head_fd)

    def close(self) -> None:
        os.close(self._head_fd)
        os.close(self._lines_fd)
