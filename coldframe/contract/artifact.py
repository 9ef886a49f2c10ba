"""Artifacts: the concrete things that work in a sandbox has left, each with what it is, where it is from and its digest."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from coldframe.contract.model import Model
from coldframe.contract.policy import Label

ArtifactKind = Literal["source", "output", "test", "log", "screenshot", "input"]
"""`source`: written for the work itself. `output`: generated. `test`: what tests have left. `log`: what was printed, or written
down while something ran. `screenshot`: pictures of a screen. `input`: downloaded, uploaded, or installed."""
ArtifactOrigin = Literal["written", "uploaded", "downloaded", "made", "printed"]
"""`written` by a tool call, `uploaded` by a person, `downloaded` by a command that reached out and was let, `made` by another
command, `printed` by one."""


class Artifact(Model):
    name: str
    """Path in the workspace, or `COMMAND/stdout` and `COMMAND/stderr` of what a command has printed."""
    kind: ArtifactKind
    rule: str
    """Why it is of that kind: the rule by origin or path, or who has said so."""
    corrected_by: str | None = None
    """Who has said of what kind it is; None if the rules did."""
    origin: ArtifactOrigin
    sha256: str | None
    """None if it was not taken."""
    bytes: int | None = None
    type: str | None = None
    """By its name, as `image/png`; of a declared output by its first bytes."""
    sandbox_id: str
    call_id: str
    """The call that wrote it last."""
    receipt_id: str
    command_id: str | None = None
    tool: str
    by: str
    """Surface and token of whoever made that call."""
    at: datetime
    said_source: str | None = None
    """Where it is from, as whoever uploaded it said."""
    endpoints: tuple[str, ...] = ()
    """Whom the command reached, for what it has downloaded; the first ten."""
    label: Label
    """Of the call that made it."""


class ArtifactCount(Model):
    kind: ArtifactKind
    number: int


class ArtifactPage(Model):
    """In order of their names; what commands have printed comes last."""

    artifacts: tuple[Artifact, ...]
    counts: tuple[ArtifactCount, ...]
    """Of all, whatever kind was asked for."""
    next_after: str | None = None
    """Ask again with it for what follows; None at the end."""
    complete: bool
    """False if there are more calls or files than are looked through: the newest are."""
    withheld: int = 0
    """Calls whose result a rule has withheld: what they left is not told to the caller."""


class ArtifactCorrection(Model):
    """A person says of what kind something is."""

    name: Annotated[str, Field(min_length=1, max_length=4096)]
    kind: ArtifactKind | None
    """None takes back what was said before."""
