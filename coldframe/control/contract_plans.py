"""Contracts agreed to before there is a sandbox: planned, kept by digest, and held against what is made.

To plan starts nothing and changes nothing but the list of plans, of which the newest are kept for saying what has changed.
"""

import contextlib
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from coldframe.contract.caller import Caller
from coldframe.contract.document import SECTIONS, ContractPlan
from coldframe.contract.errors import ContractChanged, ContractDrift, NotFound
from coldframe.contract.policy import Label
from coldframe.contract.sandbox import SandboxInfo, SandboxSpec
from coldframe.contract.state import StateObject
from coldframe.control.agents import Agents
from coldframe.control.contract_lines import Lines, differences, drift
from coldframe.control.contracts import Contracts
from coldframe.control.ledger import format_time
from coldframe.control.networked import find_access, find_profiles
from coldframe.control.rulebook import Rulebook
from coldframe.control.sandbox_specs import Longest, check_spec, restricted, tightened, timed
from coldframe.control.store import Store, metadata

PLANNED = "planned"
"""Stands where a sandbox has its id."""
MOST_PLANS = 1000
MOST_CHANGES = 50
"""That an error tells."""

plans = sa.Table(
    "contract_plans",
    metadata,
    sa.Column("sha256", sa.Text, primary_key=True),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("planned_at", sa.Text, nullable=False, index=True),
)

_KEEP = "INSERT INTO contract_plans (sha256, document, planned_at) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET planned_at = ?"
_DROP = """DELETE FROM contract_plans WHERE planned_at <
(SELECT planned_at FROM contract_plans ORDER BY planned_at DESC LIMIT 1 OFFSET ?)"""
_ONE = "SELECT document FROM contract_plans WHERE sha256 = ?"


class ContractPlans:
    """What sandboxes would be, and who agreed to it by naming the digest."""

    def __init__(
        self,
        store: Store,
        agents: Agents,
        rulebook: Rulebook,
        contracts: Contracts,
        clock: Callable[[], datetime],
        *,
        longest: Longest,
    ) -> None:
        self._store = store
        self._agents = agents
        self._rulebook = rulebook
        self._contracts = contracts
        self._clock = clock
        self._longest = longest

    def plan(self, caller: Caller, spec: SandboxSpec) -> ContractPlan:
        """The contract of the sandbox that *caller* would get for *spec* now.

        Raises:
            GrantMissing, InvalidArgument, NotFound, DeniedByRule: as its creation would.
            PolicyUnavailable: there are no rules.
        """
        check_spec(caller, spec, self._longest)
        planned = self._planned(caller, restricted(timed(spec, self._longest), self._rulebook.current))
        now = format_time(self._clock())
        with self._store.transaction():
            self._store.raw.execute(_KEEP, (planned.sha256, planned.model_dump_json(), now, now))
            self._store.raw.execute(_DROP, (MOST_PLANS - 1,))
        return planned

    def agree(self, caller: Caller, spec: SandboxSpec) -> Callable[[str], None] | None:
        """What checks the contract that is issued for *spec*, which is as the rules leave it; None if nothing was agreed.

        What it returns raises ContractDrift.

        Raises:
            ContractChanged: this is not the contract that it would have now.
        """
        if spec.contract_sha256 is None:
            return None
        planned = self._planned(caller, spec)
        if planned.sha256 != spec.contract_sha256:
            raise self._changed(spec.contract_sha256, planned)

        def check(document: str) -> None:
            made = drift(_lines(planned.model_dump(mode="json")), _lines(json.loads(document)))
            if made:
                raise ContractDrift(
                    f"the contract of what was made differs from `{planned.sha256}` in {_names(made)}",
                    changes=made[:MOST_CHANGES],
                    changed=len(made),
                )

        return check

    def _changed(self, asked: str, planned: ContractPlan) -> ContractChanged:
        facts: dict[str, Any] = {"contract_sha256": planned.sha256, "asked_sha256": asked}
        kept = self._store.read(_ONE, (asked,))
        if not kept:
            return ContractChanged(
                f"no plan `{asked}` is kept here, and the contract would be `{planned.sha256}` now",
                hint="plan it, look at what it says, and create it with that digest",
                **facts,
            )
        changes = differences(_lines(json.loads(kept[0][0])), _lines(planned.model_dump(mode="json")))
        return ContractChanged(
            f"the contract would not be `{asked}` any more: it differs in {_names(changes)}",
            changes=changes[:MOST_CHANGES],
            changed=len(changes),
            **facts,
        )

    def _planned(self, caller: Caller, spec: SandboxSpec) -> ContractPlan:
        rules, label = self._rulebook.current, Label.PUBLIC
        created_at = self._clock()
        if spec.agent_id is not None:
            with contextlib.suppress(NotFound):
                label = self._agents.get(spec.agent_id).workspace_label
        access = find_access(rules.network, caller, PLANNED, spec, label)
        profiles = None
        if access is not None:
            profiles = find_profiles(rules.network, PLANNED, spec.agent_id, spec.network, caller.role.value)
        info = SandboxInfo(
            sandbox_id=PLANNED,
            agent_id=spec.agent_id,
            session_id=PLANNED,
            spec=tightened(spec, rules),
            state=StateObject(state="running", since=created_at),
            created_at=created_at,
            workspace_label=label,
            network=profiles,
        )
        return self._contracts.planned(info, caller.role)


def _lines(document: dict[str, Any]) -> Lines:
    return [one for name in SECTIONS for one in document[name]]


def _names(changes: Lines) -> str:
    names = [str(one["id"]) for one in changes]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
