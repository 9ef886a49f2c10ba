"""Access tokens: each stands for whoever was given it, in one sandbox and nowhere else.

Protocols in which a client speaks to a sandbox under an address of its own give it a token for that. It is worked out
from a key of this installation, the sandbox and the token of its holder, so it is the same when it is asked for again, and
worth nothing once that token is revoked. What is kept is its digest, by which its holder is found.
"""

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from typing import NamedTuple

import sqlalchemy as sa

from coldframe.contract.caller import Caller
from coldframe.contract.errors import ColdframeError, CredentialUnreadable, NotFound, Unauthenticated
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.store import Store, metadata
from coldframe.control.tokens import Surface, Tokens

KEY_BYTES = 32

access_table = sa.Table(
    "access_tokens",
    metadata,
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    sa.Column("sandbox_id", sa.Text, nullable=False),
    sa.Column("token_id", sa.Text, nullable=False),
)
sa.Index("access_tokens_of_sandbox", access_table.c.sandbox_id, access_table.c.token_id, unique=True)


class Access(NamedTuple):
    """What a token opens, for whom."""

    sandbox_id: str
    caller: Caller


class AccessTokens:
    """Those of this installation. *key_path* is made at the first use."""

    def __init__(self, store: Store, tokens: Tokens, sandboxes: Sandboxes, key_path: str) -> None:
        self._store = store
        self._tokens = tokens
        self._sandboxes = sandboxes
        self._key_path = key_path
        self._key: bytes | None = None

    def give(self, caller: Caller, sandbox_id: str) -> str:
        """The one of *caller* in that sandbox, 64 hexadecimal digits.

        Raises:
            GrantMissing, NotFound: not the caller's.
            CredentialUnreadable: the key cannot be read.
        """
        self._sandboxes.get(caller, sandbox_id)
        token = self._made("access", sandbox_id, caller.token_id)
        row = (_digest(token), sandbox_id, caller.token_id)
        with self._store.transaction():
            self._store.raw.execute(
                "INSERT OR REPLACE INTO access_tokens (digest, sandbox_id, token_id) VALUES (?, ?, ?)", row
            )
        return token

    def open(self, token: str, sandbox_id: str | None, *, surface: Surface = "e2b") -> Access:
        """Who holds *token*, and of which sandbox it is. With *sandbox_id* it has to be of that one.

        Raises:
            Unauthenticated: unknown, of another sandbox, or its holder is let in no more; the same for all of them.
        """
        rows = self._store.read("SELECT sandbox_id, token_id FROM access_tokens WHERE digest = ?", (_digest(token),))
        if not rows or (sandbox_id is not None and rows[0][0] != sandbox_id):
            raise Unauthenticated("the access token is not valid")
        return self._access(str(rows[0][0]), str(rows[0][1]), surface)

    def find(self, fits: Callable[[str], bool], sandbox_id: str | None, *, surface: Surface = "e2b") -> Access:
        """Whose token *fits*, as for a signature that was made with one: of that sandbox, or of all that have not ended.

        Raises Unauthenticated: nobody's.
        """
        where, values = ("sandbox_id = ?", (sandbox_id,)) if sandbox_id is not None else ("1", ())
        rows = self._store.read(
            "SELECT access_tokens.sandbox_id, token_id FROM access_tokens JOIN sandboxes USING (sandbox_id) "  # noqa: S608
            f"WHERE {where} AND json_extract(state, '$.state') NOT IN ('failed', 'lost', 'terminated')",
            values,
        )
        for found, token_id in rows:
            if fits(self._made("access", found, token_id)):
                return self._access(str(found), str(token_id), surface)
        raise Unauthenticated("the signature is not valid")

    def traffic_token(self, sandbox_id: str) -> str:
        """What opens the ports of a sandbox whose ports are not for everybody."""
        return self._made("traffic", sandbox_id, "")

    def sign(self, what: str, subject: str, token_id: str) -> str:
        """What shows that a token for something else than a sandbox was given by this installation to that holder."""
        return self._made(what, subject, token_id)

    def _access(self, sandbox_id: str, token_id: str, surface: Surface) -> Access:
        caller = self._tokens.caller_of(token_id, surface=surface)
        try:
            self._sandboxes.get(caller, sandbox_id)
        except NotFound:
            raise Unauthenticated("the access token is not valid") from None
        return Access(sandbox_id, caller)

    def _made(self, what: str, sandbox_id: str, token_id: str) -> str:
        if self._key is None:
            self._key = _kept_key(self._key_path)
        return hmac.new(self._key, f"{what}\n{sandbox_id}\n{token_id}".encode(), hashlib.sha256).hexdigest()


def _kept_key(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            key = file.read()
    except FileNotFoundError:
        key = secrets.token_bytes(KEY_BYTES)
        _write_key(path, key)
    except OSError as error:
        raise _unreadable(path, error.strerror or "cannot be read") from None
    if len(key) != KEY_BYTES:
        raise _unreadable(path, "holds no key")
    return key


def _write_key(path: str, key: bytes) -> None:
    try:
        file = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(file, key)
            os.fsync(file)
        finally:
            os.close(file)
        os.rename(path + ".new", path)
    except OSError as error:
        raise _unreadable(path, error.strerror or "cannot be written") from None


def _unreadable(path: str, why: str) -> ColdframeError:
    return CredentialUnreadable(
        f"the key `{path}` of access tokens: {why}",
        hint="put it back from a backup, or remove it: then all access tokens are new ones",
        path=path,
    )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
