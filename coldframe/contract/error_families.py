"""What all errors have in common, and the families that they fall into. See `errors.py` for all of them."""

from typing import Any, ClassVar, Literal, get_args

Fact = str | int | float | bool | None | list[Any] | dict[str, Any]
Retry = Literal["never", "later", "after_approval", "after_change"]
RETRIES: tuple[Retry, ...] = get_args(Retry)
Family = Literal["isolation", "permission", "limit", "budget", "input", "state", "conflict", "infrastructure"]


class NextAction(dict[str, Any]):
    """One thing the caller can do now: ``op`` (a public operation), ``args``, ``effect`` (a sentence)."""


def next_action(op: str, effect: str, **args: Fact) -> NextAction:
    return NextAction(op=op, args=args, effect=effect)


class ColdframeError(Exception):
    """Base of all; also what an unknown code from the wire becomes."""

    code: ClassVar[str] = "INTERNAL"
    status: ClassVar[int] = 500
    retry: ClassVar[Retry] = "never"
    family: ClassVar[Family] = "infrastructure"
    hint: ClassVar[str] = "report this with the server log around this time"
    """What to do next, in words, if the raise site has nothing better."""
    offer: ClassVar[tuple[str, str, dict[str, Fact]]] = ("host.doctor", "tells what is missing on this machine", {})
    """The same as one operation: its name, its effect, its arguments."""

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        next_actions: list[NextAction] | None = None,
        retry: Retry | None = None,
        **facts: Fact,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.facts: dict[str, Fact] = facts
        self.advice = hint or self.hint
        operation, effect, arguments = self.offer
        self.next_actions: list[NextAction] = next_actions or [next_action(operation, effect, **arguments)]
        self.retry_now: Retry = retry or self.retry
        """Where this one time says more than the code does, as of a state that will not pass by itself."""
        self.wire_code: str | None = None
        """Code as received, where this process has no class for it."""

    def to_wire(self) -> dict[str, Any]:
        """The JSON form that every surface gives."""
        return {
            "code": self.wire_code or self.code,
            "message": self.message,
            "family": self.family,
            "retry": self.retry_now,
            "hint": self.advice,
            "facts": self.facts,
            "next_actions": [dict(action) for action in self.next_actions],
        }


class InvalidArgument(ColdframeError):
    """An argument is missing, unknown, of the wrong type or out of range."""

    code = "INVALID_ARGUMENT"
    status = 400
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "input"
    hint = "correct the argument named in the message; `GET /v1/tools` gives the schemas"
    offer = ("tools.list", "shows the arguments of every tool", {})


class Unauthenticated(ColdframeError):
    """No token, or one that is unknown, expired or revoked."""

    code = "UNAUTHENTICATED"
    status = 401
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "permission"
    hint = "send `Authorization: Bearer TOKEN`; `coldframe token create` makes one"
    offer = ("token.create", "makes a token (owner or admin)", {})


class Refused(ColdframeError):
    """Nothing was done, and the same call will be refused again."""

    code = "REFUSED"
    status = 403
    retry: ClassVar[Retry] = "never"
    family: ClassVar[Family] = "permission"
    hint = "ask the owner of this installation"
    offer = ("sandbox.allowed", "lists what may be done", {})


class Missing(ColdframeError):
    """Something that the call names is not there."""

    code = "NOT_FOUND"
    status = 404
    retry: ClassVar[Retry] = "never"
    family: ClassVar[Family] = "input"
    hint = "list what exists and correct the name"
    offer = ("sandbox.list", "lists what there is", {})


class Unfit(ColdframeError):
    """The object is there, but not fit for this call."""

    code = "UNFIT"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "conflict"
    hint = "look at the object and correct the call"
    offer = ("sandbox.get", "shows the state now", {})


class LimitReached(ColdframeError):
    """A resource limit stopped the call."""

    code = "LIMIT"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "limit"
    hint = "free some of the resource named, or have an admin raise the limit"
    offer = ("sandbox.contract", "shows the limits", {})


class Unavailable(ColdframeError):
    """A part of the installation is not there."""

    code = "UNAVAILABLE"
    status = 503
    retry: ClassVar[Retry] = "later"
    family: ClassVar[Family] = "infrastructure"
    hint = "try again; `coldframe doctor` tells what is missing"
    offer = ("host.doctor", "tells what is missing on this machine", {})
