"""Web hooks: addresses of people that events are announced to, signed, until they are taken."""

import hashlib
import hmac
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool

from coldframe.contract.model import Model
from coldframe.contract.policy import Label

WebhookEvent = Literal[
    "command.ended",
    "build.ended",
    "pipeline.ended",
    "template.built",
    "sandbox.created",
    "sandbox.paused",
    "sandbox.resumed",
    "sandbox.stopped",
    "sandbox.started",
    "sandbox.terminated",
    "sandbox.lost",
]
MOST_URL_CHARACTERS = 2048
SIGNATURE = "Coldframe-Signature"
"""Header of each delivery: `t=SECONDS,v1=HEX`."""


class NewWebhook(Model):
    url: Annotated[str, Field(min_length=8, max_length=MOST_URL_CHARACTERS)]
    """`https://` or `http://`, with a name or an address; POST requests go there."""
    events: Annotated[tuple[WebhookEvent, ...], Field(min_length=1)] = ("command.ended",)
    label: Label = Label.PUBLIC
    """Highest label of what the receiver may be told; of what has a higher one only that it happened is told."""
    sandbox_id: Annotated[str, Field(max_length=80)] | None = None
    """Only what happens in this one."""
    agent_id: Annotated[str, Field(max_length=80)] | None = None
    """Only what this agent's sandboxes do."""
    min_duration_s: Annotated[float, Field(ge=0, le=1e7)] = 0
    """Only commands that took so long."""
    allow_private: StrictBool = False
    """Deliver to private addresses and to this machine as well; for an owner to say."""


class WebhookInfo(Model):
    webhook_id: str
    terms: NewWebhook
    created_at: datetime
    created_by: str
    state: Literal["active", "failing", "dead"]
    """`failing`: the last attempt did, and more are made. `dead`: for a day of attempts none has come through, and none is made until
    somebody resumes it."""
    delivered_at: datetime | None = None
    """When an event was taken last."""
    failing_since: datetime | None = None
    attempts: int = 0
    """In vain, for the event that is next."""
    last_error: str | None = None
    """Why the last attempt failed; of one that is `active`, what is in the way here."""


class MadeWebhook(Model):
    webhook: WebhookInfo
    secret: str
    """That deliveries are signed with; shown this once."""


class Announcement(Model):
    """What is sent. It has no output and no words of commands."""

    id: str
    """The same at each attempt, so that what comes twice is known. Numbers rise."""
    type: WebhookEvent
    at: datetime
    webhook_id: str
    label: Label
    withheld: bool = False
    """It is labelled higher than the receiver may be told: `facts` are left out."""
    sandbox_id: str | None = None
    agent_id: str | None = None
    command_id: str | None = None
    subject: str
    """What it is about: the call, build, pipeline or sandbox."""
    facts: dict[str, Any] = Field(default_factory=dict)
    """Of a command `ended`, `exit_code`, `signal`, `out_of_memory`, `limit`, `duration_ms`; of a build `state` and `code`."""


def sign(secret: str, body: bytes, at_s: int) -> str:
    """The value of the header: HMAC-SHA256 of the time, a point, and the body."""
    digest = hmac.new(secret.encode(), b"%d." % at_s + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


def is_signed(secret: str, body: bytes, signature: str, *, now_s: float, tolerance_s: float = 300) -> bool:
    """Whether a delivery is ours and of now, for a receiver in Python."""
    parts = dict(part.partition("=")[::2] for part in signature.split(","))
    if not parts.get("t", "").isdigit() or abs(now_s - int(parts["t"])) > tolerance_s:
        return False
    return hmac.compare_digest(sign(secret, body, int(parts["t"])).encode(), signature.encode())
