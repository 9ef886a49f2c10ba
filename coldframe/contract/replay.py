"""A call that is carried out again from what it began from, and what came of it the second time."""

from typing import Literal

from pydantic import Field

from coldframe.contract.model import Model
from coldframe.contract.policy import Label


class ReplayRequest(Model):
    """What a receipt holds by its digest alone, and whoever wants it done again has to bring."""

    environment: dict[str, str] = Field(default_factory=dict)
    """Value of each variable that the call added; refused unless each has the digest that the receipt names."""
    stdin_base64: str | None = None
    """What the call was given as input, likewise."""


class ReplayBasis(Model):
    """What the call began from, and where that was had from now."""

    previous_receipt_id: str | None
    """The act before it in its sandbox."""
    tree_sha256_before: str
    """Digest of the workspace that both times were begun from."""
    begun_from: Literal["snapshot", "workspace"]
    """`workspace`: no snapshot holds that state, but the workspace is as it was then."""
    snapshot_id: str
    """The copy of a workspace is gone after the replay."""


class Difference(Model):
    """One thing that came out otherwise."""

    what: str
    """`ended`, `exit_code`, `signal`, `limit`, `stdout`, `stderr`, `tree`, `file:PATH`, or `test:NAME` of a report among the outputs."""
    original: str | int | None
    """The value; SHA-256 of a stream, tree or file, `deleted`, `metadata` or the kind of what is no file; `failed`; None: it was not there."""
    replay: str | int | None
    line: int | None = None
    """Of a stream: the first line, counted from 1, that differs; None where that could not be looked at."""


class Replay(Model):
    """Both times, held against each other. Times, processor time and memory are not."""

    receipt_id: str
    replay_receipt_id: str
    """Of the call in the fresh sandbox, which has ended since; its output is kept like that of every other call."""
    sandbox_id: str
    """The fresh one."""
    basis: ReplayBasis
    same: bool
    """Nothing differs."""
    differences: tuple[Difference, ...]
    """At most MOST_DIFFERENCES."""
    complete: bool
    """These are all."""
    unlike: tuple[str, ...]
    """What around the call was not the same, and may be why something differs: `network` (a replay has none), `volumes` (nor
    these), `system` (of its own, which no tree digest covers), `template`, `runtime`, `degraded`."""
    label: Label
    """Of what is told here."""
    ledger_seq: int
