"""The contract document of a sandbox: what holds, what holds it, and what does not hold, line by line.

Every line has an id, a value and the probe or place that vouches for it. A section may not be empty: where
something is not known or not there, a line says so. A plan is the contract of a sandbox that is not there: what only the
made one can show stands in it as observed later, and it has no time in it, so that the same terms have the same digest.
"""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from coldframe.contract.model import Model

NOT_VERIFIED = "not verified"
OBSERVED = "observed at creation"
"""In a plan: what is known when the sandbox is there."""


class ContractLine(Model):
    id: str
    """Stable within `contract/v1`, as `execution.limits.memory`."""
    text: str
    """One sentence for people."""
    value: Any = None
    """The same for programs; JSON without floats."""
    verified_by: str
    """Probe, test or record, as `probe:seccomp`; `not verified` where nothing vouches for it."""


Section = tuple[ContractLine, ...]


def _section(description: str) -> Any:
    return Field(min_length=1, description=description)


class Sections(Model):
    """What both have."""

    inputs: Section = _section("what goes in")
    execution: Section = _section("what is executed, by whom, within which limits")
    outputs: Section = _section("what comes out")
    persistence: Section = _section("what remains, event by event")
    isolation: Section = _section("level, kernel, and each wall as it was measured")
    permissions: Section = _section("what the agent may do, as the gate answers it")
    exposure: Section = _section("what is inside, brokered and outside")
    effective_reach: Section = _section("what code in the box can reach")
    not_prevented: Section = _section("what this sandbox does not prevent")
    lifecycle: Section = _section("timers and what ends it")
    retention: Section = _section("how long records are kept")
    backup: Section = _section("what is backed up")
    cost: Section = _section("what it costs")


SECTIONS: tuple[str, ...] = tuple(Sections.model_fields)


class LineChange(Model):
    """One line that differs between two versions, or between a plan and what there would be."""

    id: str
    before: Any = None
    """Its value; None too for a line that was not there."""
    after: Any = None


class ContractCause(Model):
    """What is on record since the version before, of the kind that changes contracts."""

    seq: int
    """Of the entry in the ledger."""
    at: datetime
    kind: str
    """As `policy.changed`."""
    by: str
    """Who asked for it; `host` for what was measured."""
    reason: str = ""


class ContractChange(Model):
    """Where a version differs from the one before it, and what that comes from."""

    causes: tuple[ContractCause, ...]
    lines: tuple[LineChange, ...]


class ContractDocument(Sections):
    """One version of one sandbox's contract; a version never changes. `sha256` is over the canonical JSON of
    the rest."""

    contract: Literal["contract/v1"] = "contract/v1"
    sandbox_id: str
    version: int = Field(ge=1)
    sha256: str
    issued_at: datetime
    change: ContractChange | None = Field(default=None, exclude_if=lambda change: change is None)
    """Not in a first version."""


class ContractPlan(Sections):
    """The contract that a sandbox would have now. `sha256` is over the canonical JSON of the rest; creation takes it as
    `contract_sha256`."""

    contract: Literal["contract-plan/v1"] = "contract-plan/v1"
    sha256: str
