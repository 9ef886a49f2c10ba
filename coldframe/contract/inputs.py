"""What went into a sandbox: from where, in which version, who may read it, who put it there and for how long it held."""

from datetime import datetime
from typing import Literal

from coldframe.contract.model import Model
from coldframe.contract.policy import Label

MOST_INPUTS = 1000
"""That one answer tells."""


class InputEntry(Model):
    """One version of one input. A version never changes: what takes its place ends it, and stands behind it."""

    type: Literal["template", "workspace", "snapshot", "volume", "file", "credential", "packages"]
    name: str
    """Path of a file, name of a credential or volume, id of a snapshot or agent."""
    version: int = 1
    source: str
    """Where it is from, as the product knows it; of a file also what whoever wrote it said, in `said_source`."""
    said_source: str | None = None
    sha256: str | None = None
    """None for what is no sequence of bytes, or is not to be digested, as a secret."""
    bytes: int | None = None
    label: Label | None = None
    """Of a file the one that it was written with; None for what has none of its own."""
    mount: str | None = None
    """As seen inside; None for what is not in there."""
    mode: Literal["read", "read-write", "brokered"]
    readable_by: str
    granted_by: str
    call_id: str | None = None
    """The call that put it there."""
    valid_from: datetime
    valid_until: datetime | None = None
    """None while it holds."""
    ended_by: str | None = None
    """What ended it: `replaced`, `edited`, `changed by a command`, `deleted`, `reset`, and by which call."""


class InputsPage(Model):
    """Inputs by type, files in the order in which they were written."""

    inputs: tuple[InputEntry, ...]
    complete: bool
    """False if there are more versions of files than are told: the newest are."""
