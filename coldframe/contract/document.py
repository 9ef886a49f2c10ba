"""The contract document of a sandbox: what holds, what holds it, and what does not hold, line by line.

Every line has an id, a value and the probe or place that vouches for it. A section may not be empty: where
something is not known or not there, a line says so.
"""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from coldframe.contract.model import Model

NOT_VERIFIED = "not verified"


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


class ContractDocument(Model):
    """One version of one sandbox's contract; a version never changes. `sha256` is over the canonical JSON of
    the rest."""

    contract: Literal["contract/v1"] = "contract/v1"
    sandbox_id: str
    version: int = Field(ge=1)
    sha256: str
    issued_at: datetime
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
