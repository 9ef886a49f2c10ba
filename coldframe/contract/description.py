"""What somebody who evaluates an environment asks: what can the agent do, what remains, how reliably can people look at the result
or take it back. Every statement is from live data, and names what vouches for it."""

from datetime import datetime
from typing import Any

from pydantic import Field

from coldframe.contract.model import Model
from coldframe.contract.policy import Label
from coldframe.contract.profile import Profile


class Statement(Model):
    id: str
    """Stable, as `can.shell`."""
    text: str
    """One sentence for people."""
    value: Any = None
    """The same for programs."""
    verified_by: str
    """What it is known by: `gate` as it would answer now, `probe:NAME`, `record:KIND` of the ledger, `table:profiles`, or
    `test:PATH`; `not verified` where nothing vouches for it."""


Statements = tuple[Statement, ...]


class Description(Model):
    sandbox_id: str
    profile: Profile
    state: str
    at: datetime
    label: Label
    """Of what is told here."""
    can: Statements = Field(min_length=1)
    """What can the agent do?"""
    remains: Statements = Field(min_length=1)
    """Which state remains?"""
    inspect: Statements = Field(min_length=1)
    """How reliably can people look at the result?"""
    reset: Statements = Field(min_length=1)
    """How reliably can people take it back?"""
