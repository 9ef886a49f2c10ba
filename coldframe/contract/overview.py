"""A durable workspace in one look: its files, its history, what was done in it, and what can be done from there, also when whatever
ran has ended long ago."""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from coldframe.contract.model import Model
from coldframe.contract.policy import Label

SectionName = Literal["files", "git", "activity", "builds", "logs", "previews", "deployment"]


class OverviewAction(Model):
    """What can be done from here, as a request of the REST API."""

    name: str
    effect: str
    method: Literal["POST"] = "POST"
    path: str
    body: dict[str, Any] = Field(default_factory=dict)
    then: tuple["OverviewAction", ...] = ()
    """What comes after it, with `{sandbox_id}` of its answer in the path."""


class OverviewEntry(Model):
    title: str
    at: datetime | None
    sandbox_id: str | None
    receipt_id: str | None
    """Of the call that it comes from; None while that has not ended."""
    facts: dict[str, str | int | float | bool | list[str] | None] = Field(default_factory=dict)
    links: dict[str, str] = Field(default_factory=dict)
    """Paths of the REST API that answer GET, by what they show. What is not kept any more has none."""
    actions: tuple[OverviewAction, ...] = ()


class OverviewSection(Model):
    name: SectionName
    available: bool
    reason: str | None = None
    """Why it is not there, or not whole."""
    entries: tuple[OverviewEntry, ...] = ()
    """Newest first."""
    complete: bool = True
    """False: there are older ones."""


class WorkspaceOverview(Model):
    sandbox_id: str
    agent_id: str | None
    """Whose workspace it is; None for a temporary one, which ends with its sandbox."""
    state: str
    """Of the sandbox that was asked for; the workspace outlives it."""
    at: datetime
    label: Label
    sandboxes: tuple[str, ...]
    """Those of this workspace whose record is told here, newest first."""
    sections: tuple[OverviewSection, ...]
    """All seven, in the order of their names above."""
    actions: tuple[OverviewAction, ...] = ()
    """To go on with the work."""
