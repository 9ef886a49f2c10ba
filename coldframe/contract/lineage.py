"""Where data came from and where it went: items, what each was made from, and whole traces of both.

An input is `known` where the record of a call names it, and `assumed` where the call could have taken it in and nobody can
tell. An assumed input is never left out, and never shown as known.
"""

from datetime import datetime
from typing import Literal

from pydantic import Field

from coldframe.contract.model import Model
from coldframe.contract.policy import Label, Outcome

LineageKind = Literal["contact", "file", "stdout", "stderr", "result", "changes", "input"]
Certainty = Literal["known", "assumed"]
Retention = Literal["kept", "with_sandbox", "superseded", "removed", "not_kept"]


class LineageOrigin(Model):
    """What the item came out of."""

    type: Literal["endpoint", "command", "tool", "workspace"]
    """`workspace`: it lay there, and no record says who wrote it."""
    name: str
    """Host, command id, name of the tool, or path."""
    endpoint: str | None = None
    """As `tcp:api.example.com:443`."""
    method: str | None = None
    """Of the requests, as `GET, POST`; of a connection that nobody reads, what was spoken."""
    record: str
    """Where more is said: id of the contact in the network log, or of the receipt."""


class LineageAccess(Model):
    by: str
    """The caller, as `rest:tok_…`; for a contact the program in the box, as far as it is known."""
    at: datetime
    how: str
    """The tool; for a contact how much of it was looked at."""


class LineageInput(Model):
    """One item that the call of this one took in."""

    item_id: str
    certainty: Certainty


class AssumedInputs(Model):
    """What else the call may have taken in: all items of a session, a workspace, or what its sandbox shared with others, before
    an entry of the ledger."""

    scope: Literal["session", "workspace", "volume", "snapshot"]
    name: str
    """Session id; agent id, or sandbox id for a temporary workspace; id of the volume or of the snapshot that was read."""
    before_seq: int


class Transformation(Model):
    type: str
    """The tool."""
    description: str
    """The command as it was asked for, as far as its 2,000th character; or the path that the tool was given."""
    at: datetime
    agent_id: str | None


class LineageItem(Model):
    """One thing that was reached, read, printed or written, as the ledger has it."""

    number: int
    """In the order in which items came on record. Pages go by it."""
    item_id: str
    """Made from what is on record, so that it stays the same whenever the index is built anew."""
    kind: LineageKind
    """`result`: what a tool handed out. `changes`: what a call may have written, where that could not be told.
    `input`: what was sent to a command while it ran."""
    sha256: str | None
    """Of the content: of a file or a stream as a whole, of what a tool handed out, of what was *sent* to an endpoint. None
    where nobody could tell."""
    bytes: int | None
    """Of a contact: those received."""
    origin: LineageOrigin
    accessed: LineageAccess
    label: Label
    """No lower than that of any input."""
    label_reason: str
    assigned_at: datetime
    outcome: Outcome = Outcome.ALLOW
    """Of a contact. What was denied gave nothing, and was tried."""
    session_id: str | None
    agent_id: str | None
    sandbox_id: str
    call_id: str | None
    """Of the call that made it, found it or made the contact; None for a contact of which that is not known."""
    command_id: str | None
    made_by: Certainty
    """`assumed` where something else that ran meanwhile could have written it."""
    inputs: tuple[LineageInput, ...] = ()
    """The first 100 that the record names."""
    assumed_inputs: tuple[AssumedInputs, ...] = ()
    transformations: tuple[Transformation, ...] = ()
    """What made this item of its inputs. Those before are with the inputs; a trace has all."""
    location: str | None
    """As `workspace:ada/scratch/a.txt` or `output:cmd_…/stdout`; None if the content is kept nowhere."""
    retention: Retention
    """Of the content; what is on record here stays. `kept`: as long as the workspace. `with_sandbox`: as long as the records
    of the sandbox."""
    ledger_seq: int
    """The entry that says so."""


class LineagePage(Model):
    items: tuple[LineageItem, ...]
    next_after: int | None = Field(description="What to ask for to read on; None if there is nothing more.")


class TracedItem(Model):
    generation: int
    """How many calls or contacts lie between, on the shortest way; 1 is the nearest."""
    certainty: Certainty
    """`known` if every step of some way is."""
    item: LineageItem


class LineageTrace(Model):
    """A page of a trace: backward newest first, forward oldest first."""

    traced: str
    direction: Literal["back", "forward"]
    items: tuple[TracedItem, ...]
    next_after: int | None
