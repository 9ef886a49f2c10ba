"""Keeps secrets in a form that is worth nothing without a key, which lies in a file of its own beside the database.

AES-GCM, bound to the id of what the secret belongs to, so that none can be put in place of another one. A copy of the
database alone gives nothing away; who can read both files has the secrets, as has root.
"""

import base64
import os
import secrets
import stat
from typing import TYPE_CHECKING

from coldframe.contract.errors import CredentialUnreadable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
_NONCE_BYTES = 12


class Vault:
    """Seals and opens. The key is read each time: it may have been put back meanwhile."""

    def __init__(self, path: str) -> None:
        self.path = path

    def seal(self, secret: str, about: str, *, may_make_key: bool) -> bytes:
        """*may_make_key*: nothing is sealed so far, so that a new key locks nobody out.

        Raises:
            CredentialUnreadable: there is no key, or none that can be used.
        """
        if may_make_key and not os.path.lexists(self.path):
            self._make_key()
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + _cipher(self._key()).encrypt(nonce, secret.encode(), about.encode())

    def open(self, sealed: bytes, about: str) -> str:
        """Raises CredentialUnreadable: there is no key, or another one."""
        from cryptography.exceptions import InvalidTag

        try:
            cipher = _cipher(self._key())
            return cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], about.encode()).decode()
        except InvalidTag:
            reason = f"`{self.path}` is not the key that the secret was written with"
            raise CredentialUnreadable(reason, path=self.path) from None

    def _key(self) -> bytes:
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            what = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
            raise CredentialUnreadable(f"the key `{self.path}` {what}", path=self.path) from None
        try:
            mode = stat.S_IMODE(os.fstat(file).st_mode)
            text = os.read(file, 1024)
        finally:
            os.close(file)
        if mode & 0o077:
            reason = f"the key `{self.path}` is open to others (mode {mode:03o})"
            raise CredentialUnreadable(reason, hint="make it readable by its owner alone: mode 600", path=self.path)
        try:
            key = base64.b64decode(text.strip(), validate=True)
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise CredentialUnreadable(f"`{self.path}` holds no key", path=self.path)
        return key

    def _make_key(self) -> None:
        text = base64.b64encode(secrets.token_bytes(KEY_BYTES)) + b"\n"
        made = f"{self.path}.new"
        try:
            file = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.fchmod(file, 0o600)
                os.write(file, text)
                os.fsync(file)
            finally:
                os.close(file)
            os.rename(made, self.path)
            folder = os.open(os.path.dirname(self.path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise CredentialUnreadable(
                f"the key `{self.path}` cannot be written ({error.strerror})", path=self.path
            ) from None


def _cipher(key: bytes) -> "AESGCM":
    # Imported where it is needed: 8 MiB and 20 ms.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)
