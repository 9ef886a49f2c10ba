"""Credentials: secrets that sandboxes can use and never see, what each may be used for, and how often it was.

Programs have a handle in its place. The broker swaps one for the other in the request that was judged, at the edge.
"""

import re
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from coldframe.contract.model import Model
from coldframe.contract.policy import Label, Role
from coldframe.contract.sandbox import AgentId

HANDLE_MARK = "cfh_"
HANDLE_CHARACTERS = 48
"""Hexadecimal ones behind the mark: 192 random bits."""
HANDLE = re.compile(rb"cfh_[0-9a-f]{48}")
SECRET = "{secret}"  # noqa: S105  a mark
"""Stands for the secret in the template of a header."""
LEAST_SECRET_CHARACTERS, MOST_SECRET_CHARACTERS = 8, 4096
"""A shorter one could not be taken out of answers without taking out other things."""
EVERYBODY = "*"

_HEADER = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}): ([\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?)")
_PRINTABLE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_NEVER_HEADERS = frozenset(
    {
        *("host", "connection", "content-length", "transfer-encoding", "upgrade", "te", "trailer", "expect", "range"),
        *("keep-alive", "proxy-authorization", "proxy-connection", "accept-encoding", "content-encoding", "cookie2"),
    }
)
_NEVER_VARIABLES = re.compile(
    r"(?:LD_|GLIBC_|MALLOC_|PYTHON|NODE_|BASH|COLDFRAME_|SSL_|GIT_SSL).*|PATH|HOME|USER|SHELL|TERM|IFS|ENV|PWD|LANG|TMPDIR"
)


def _base(value: str) -> str:
    found = re.fullmatch(r"https://([^/:?#@\[\]]+)(?::([0-9]{1,5}))?(/(?:(?![?#])[!-~])*)?", value)
    if found is None:
        raise ValueError("is no address as `https://api.example.com/v1`: secrets go over https to names only")
    port = int(found[2] or 443)
    if not 0 < port < 65536:
        raise ValueError("names a port that is none")
    return value.rstrip("/")


def _header(value: str) -> str:
    name, text = split_header(value)
    if name in _NEVER_HEADERS:
        raise ValueError(f"`{name}` is no header for a secret")
    if text.count(SECRET) != 1:
        raise ValueError(f"holds `{SECRET}` exactly once")
    return value


def split_header(template: str) -> tuple[str, str]:
    """Name in small letters, and the value with the mark. Raises ValueError."""
    found = _HEADER.fullmatch(template)
    if found is None:
        raise ValueError(f"is no header as `Authorization: Bearer {SECRET}`")
    return found[1].lower(), found[2]


def _secret(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if not LEAST_SECRET_CHARACTERS <= len(text) <= MOST_SECRET_CHARACTERS or _PRINTABLE.fullmatch(text) is None:
        raise ValueError(
            f"has {LEAST_SECRET_CHARACTERS} to {MOST_SECRET_CHARACTERS} printable ASCII characters, with no blank at its ends"
        )
    if HANDLE.search(text.encode()) is not None:
        raise ValueError("is the handle of a credential, and no secret")
    return value


def _variable(value: str) -> str:
    if _NEVER_VARIABLES.fullmatch(value) is not None:
        raise ValueError("changes how programs run; choose another name")
    return value


def _path(value: str) -> str:
    if re.fullmatch(r"/(?:[A-Za-z0-9._~!$&'()+,=:@*-]|/|%[0-9A-F]{2})*", value) is None or "//" in value:
        raise ValueError("is no pattern of a path as `/items/*` or `/**`")
    if "***" in value or re.search(r"/\.{1,2}(?:/|$)", value):
        raise ValueError("is no pattern of a path: `*` stands within one segment, `**` for any")
    return value


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,63}$")]
Secret = Annotated[SecretStr, AfterValidator(_secret)]
Method = Annotated[str, Field(pattern=r"^[A-Z][A-Z-]{0,31}$")]
PathPattern = Annotated[str, Field(max_length=512), AfterValidator(_path)]


class CredentialTerms(Model):
    """What a credential may be used for. All of it has to fit."""

    name: Name
    base: Annotated[str, Field(max_length=512), AfterValidator(_base)]
    """Address of the service: `https://api.example.com/v1`. Nothing outside of it ever gets the secret."""
    header: Annotated[str, AfterValidator(_header)] = f"Authorization: Bearer {SECRET}"
    """Where it stands in a request. `Authorization: Basic {secret}` is the password of any user, `Basic alice:{secret}` of
    this one, and in `Basic {secret}:` it stands for the user."""
    variable: Annotated[str, Field(pattern=r"^[A-Z_][A-Z0-9_]{0,63}$"), AfterValidator(_variable)]
    """Of the environment of commands, which holds the handle."""
    methods: Annotated[tuple[Method, ...], Field(min_length=1, max_length=32)] = ("GET",)
    """`HEAD` goes with `GET`."""
    paths: Annotated[tuple[PathPattern, ...], Field(min_length=1, max_length=64)] = ("/**",)
    """Below the base. `*` stands for anything within one segment, `**` for anything."""
    agents: Annotated[tuple[AgentId | Literal["*"], ...], Field(max_length=256)] = ()
    """Whose sandboxes may use it; `*` for those of all agents, which a background sandbox is none of. Of an agent that is
    deleted the name is taken out. Nobody's, if neither agents nor roles are named."""
    roles: tuple[Role, ...] = ()
    """Sandboxes that somebody of this role has made may use it too, background ones included."""
    label: Label = Label.PUBLIC
    """Of what the service answers, at least."""
    budget: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """How many requests; None for any number."""
    expires_at: datetime | None = None
    purpose: Annotated[str, Field(max_length=500)] = ""
    production: bool = False

    @property
    def access(self) -> str:
        """What it gives, in words."""
        writes = not set(self.methods) <= {"GET", "HEAD", "OPTIONS"}
        return f"{'write' if writes else 'read'} access{' to production' if self.production else ''}"


class NewCredential(CredentialTerms):
    """A credential as it is added. The secret goes in here and is never given out."""

    secret: Secret
    confirm: str = ""
    """For a credential of production: what it gives, in the very words that the refusal without it names."""


class NewSecret(Model):
    """Takes the place of the one before, in every sandbox at once."""

    secret: Secret


class CredentialInfo(Model):
    """A credential, without its secret."""

    credential_id: str
    terms: CredentialTerms
    uses: int
    created_at: datetime
    added_by: str
    """Surface and token, as `cli:tok_…`."""
    rotated_at: datetime | None = None
    revoked_at: datetime | None = None
    state: Literal["usable", "used_up", "expired", "revoked"]


class HandleInfo(Model):
    """What a sandbox has in place of a secret. Worth nothing outside of it."""

    credential: str
    variable: str
    handle: str


class CredentialUse(Model):
    """One request that got the secret, or would have."""

    seq: int
    """Of the ledger."""
    at: datetime
    outcome: Literal["used", "refused"]
    code: str | None
    """Of a refusal."""
    reason: str
    host: str
    port: int
    method: str
    path: str
    sandbox_id: str
    session_id: str | None
    agent_id: str | None
    command_id: str | None
