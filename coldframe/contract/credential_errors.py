"""Why a credential is not put to use."""

from typing import ClassVar

from coldframe.contract.error_families import (
    Family,
    Missing,
    Refused,
    Retry,
    Unavailable,
)


class CredentialBudget(Refused):
    """The credential was used as often as it may be."""

    code = "CREDENTIAL_BUDGET"
    status = 403
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "budget"
    hint = "an owner or admin can add another credential with a budget of its own"
    offer = ("credential.read", "shows what is left of it", {})


class CredentialExpired(Refused):
    """The time for which the credential was given is over."""

    code = "CREDENTIAL_EXPIRED"
    status = 403
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "permission"
    hint = "an owner or admin can add another credential"
    offer = ("credential.read", "shows when it ended", {})


class CredentialRevoked(Refused):
    """Somebody took the credential back."""

    code = "CREDENTIAL_REVOKED"
    status = 403
    retry: ClassVar[Retry] = "never"
    family: ClassVar[Family] = "permission"
    hint = "do it without; an owner or admin took it back"
    offer = ("credential.read", "shows when it was taken back", {})


class CredentialMissing(Missing):
    """A credential or variable that it was made with is not to be had. Nothing was taken in its place."""

    code = "CREDENTIAL_MISSING"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "permission"
    hint = "have an admin add the credential that is named, or give the variable with `env`"
    offer = ("credential.read", "lists the credentials", {})


class CredentialUnreadable(Unavailable):
    """The key under which secrets are kept is missing, or is not the one they were written with."""

    code = "CREDENTIAL_UNREADABLE"
    status = 503
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "infrastructure"
    hint = "put the file `credentials.key` back as it was, or revoke the credentials and add them again"
    offer = ("credential.read", "lists the credentials", {})
