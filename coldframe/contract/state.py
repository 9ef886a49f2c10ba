"""The state object: what is the matter and what can be done, in the same shape for sandboxes and commands."""

from datetime import datetime
from typing import Any

from coldframe.contract.model import Model


class StateObject(Model):
    state: str
    since: datetime
    code: str | None = None
    """Code of the failure catalogue (docs/errors.md); None while nothing is wrong."""
    family: str | None = None
    message: str = ""
    retryable: bool = False
    next_actions: tuple[dict[str, Any], ...] = ()
    reached: dict[str, datetime] = {}
    """When it came to each state that it has been in, the last time. Of sandboxes."""
    evidence: tuple[str, ...] = ()
    """Ids to look at: the command's raw streams, for one."""
