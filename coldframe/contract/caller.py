"""Who makes a call."""

from datetime import datetime
from typing import Literal

from coldframe.contract.model import Model
from coldframe.contract.policy import Role


class Caller(Model):
    """An authenticated caller. Surfaces make one per request; the gate trusts nothing else about identity."""

    token_id: str
    role: Role
    agent_id: str | None = None
    """The one agent an `agent` token stands for; None for people."""
    surface: Literal["rest", "cli", "sdk", "embedded", "mcp", "e2b", "console"] = "rest"

    @property
    def name(self) -> str:
        return f"{self.surface}:{self.token_id}"


class TokenInfo(Model):
    """A token without its secret."""

    token_id: str
    name: str
    role: Role
    agent_id: str | None = None
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
