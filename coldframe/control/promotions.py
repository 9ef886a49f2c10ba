"""Promotions: a sandbox goes on in a larger profile, under the same id, with its files, receipts, session and label.

There is no way back, since a smaller profile could not hold what is there by then. Where its box has to be another one it is stopped
for that, and what ran in it is told as lost; a temporary workspace that becomes that of an agent goes there as a snapshot. If the
larger one cannot be built it is what it was before.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from coldframe.contract.caller import Caller
from coldframe.contract.errors import ColdframeError, DemotionRefused, InvalidArgument, WrongState, next_action
from coldframe.contract.policy import Label
from coldframe.contract.profile import CAPABILITIES, PROFILES, has
from coldframe.contract.promotion import Promotion, PromotionRequest
from coldframe.contract.sandbox import ENDED, WITH_BOX, Loss, SandboxInfo, SandboxSpec
from coldframe.contract.snapshot import SnapshotInfo
from coldframe.contract.template import DEFAULT_TEMPLATE
from coldframe.control.acts import Acts
from coldframe.control.agents import Agents
from coldframe.control.judged_acts import JudgedActs
from coldframe.control.ledger import Ledger
from coldframe.control.lifecycle import Lifecycle
from coldframe.control.sandbox_specs import Longest, check_spec
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.sessions import Sessions
from coldframe.control.snapshots import Snapshots
from coldframe.control.store import Store
from coldframe.control.templates import Templates

MOST_STOPS = 3
"""Times that somebody may start it again meanwhile."""


class Promotions:
    """The act. Its right is `sandbox.promote`, and rules know it as `promote_sandbox`."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        agents: Agents,
        sandboxes: Sandboxes,
        sessions: Sessions,
        snapshots: Snapshots,
        templates: Templates,
        lifecycle: Lifecycle,
        judged: JudgedActs,
        longest: Longest,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._agents = agents
        self._sandboxes = sandboxes
        self._sessions = sessions
        self._snapshots = snapshots
        self._templates = templates
        self._lifecycle = lifecycle
        self._judged = judged
        self._longest = longest
        self._acts = Acts()
        self.kernels: Callable[[str], list[str]] = lambda _: []
        """Names of the contexts of code cells in a sandbox whose variables are kept now."""
        self.moved: Callable[[str], None] = lambda _: None
        """Told of each whose files are those of an agent from now on."""

    async def close(self) -> None:
        """Wait for what was begun, if it does not take too long."""
        await self._acts.close()

    async def promote(self, caller: Caller, sandbox_id: str, asked: PromotionRequest) -> Promotion:
        """Let it go on in a larger profile. One that is that already is left as it is.

        Raises:
            GrantMissing, NotFound: not the caller's, or no such template.
            DemotionRefused: that profile is smaller.
            InvalidArgument: it lacks an agent, or has one. Conflict: that agent is not new.
            Refused: a rule is against it.
            WrongState: it has ended, or is on its way somewhere.
            And what `start` raises; it is what it was then, and runs again if it did.
        """
        self._judged.require_grant(caller, "sandbox.promote", "promote_sandbox", sandbox_id)
        info = self._sandboxes.get(caller, sandbox_id)
        if info.state.state in (*ENDED, "queued", "starting"):
            self._sandboxes.require_running(info)
        self._sandboxes.require_its_agent(info)
        spec = self._larger(info, asked)
        if spec is None:
            return _told(info, info.spec.profile)
        check_spec(caller, spec, self._longest)
        _, told = self._judged.allow(caller, info, "promote_sandbox", asked.model_dump(mode="json"))
        if spec.template != info.spec.template:
            await self._templates.settled(
                spec, self._snapshots.workspace_of(info)
            )  # refused before anything is stopped
        return await self._acts.whole(self._promote(caller, info, spec, told))

    def _larger(self, info: SandboxInfo, asked: PromotionRequest) -> SandboxSpec | None:
        """What it shall be; None if it is that."""
        before = self._sandboxes.asked(info.sandbox_id)
        if PROFILES.index(asked.to) < PROFILES.index(before.profile):
            raise _demotion(info, asked)
        if before.agent_id is not None and asked.agent_id not in (None, before.agent_id):
            raise InvalidArgument(
                f"sandbox `{info.sandbox_id}` is on the workspace of agent `{before.agent_id}` already",
                hint="leave `agent_id` out, or fork it to another agent",
                argument="agent_id",
            )
        agent_id = before.agent_id or asked.agent_id
        if asked.to == "workspace" and agent_id is None:
            raise InvalidArgument(
                "a workspace is that of an agent", hint="name a new one with `agent_id`", argument="agent_id"
            )
        if asked.to in ("interpreter", "sandbox") and agent_id is not None:
            raise InvalidArgument(
                f"a sandbox of the profile `{asked.to}` has no agent", hint="leave it out", argument="agent_id"
            )
        if asked.template is not None and asked.to != "computer":
            raise InvalidArgument(
                f"a sandbox of the profile `{asked.to}` has the system of the machine",
                hint="promote it to `computer`",
                argument="template",
            )
        if before.profile == asked.to and before.agent_id == agent_id:
            return None
        if before.on_result == "delete":
            raise WrongState(
                f"all of sandbox `{info.sandbox_id}` is deleted when its result was fetched, as it was made for",
                hint="fork it, or create another one",
                sandbox_id=info.sandbox_id,
            )
        template = before.template
        if asked.to == "computer" and before.profile != "computer":
            template = asked.template or DEFAULT_TEMPLATE
        return SandboxSpec.model_validate(
            {
                **before.model_dump(exclude={"contract_sha256"}),
                "profile": asked.to,
                "template": template,
                "agent_id": agent_id,
                "background": agent_id is None,
                "ephemeral": before.ephemeral and agent_id is None and asked.to == "sandbox",
                "inputs": before.inputs if agent_id is None else (),  # the workspace goes there as a snapshot
            }
        )

    async def _promote(self, caller: Caller, info: SandboxInfo, spec: SandboxSpec, told: dict[str, Any]) -> Promotion:
        before = self._sandboxes.asked(info.sandbox_id)
        if spec.template == before.template and spec.agent_id == before.agent_id:
            return await self._in_place(caller, info, before, spec, told)
        ran = info.state.state in WITH_BOX
        lost = self._variables(info)
        step = _Step(caller, info.sandbox_id, before, spec, told)
        taken: SnapshotInfo | None = None
        try:
            for _ in range(MOST_STOPS):
                lost += (await self._lifecycle.stop_for_promotion(caller, info.sandbox_id)).lost
                if spec.agent_id != before.agent_id:
                    taken = await self._snapshots.take_for_promotion(caller.name, info.sandbox_id)
                if await self._become(step, taken, lost):
                    break
            else:
                raise WrongState(
                    f"sandbox `{info.sandbox_id}` is started again all the time", sandbox_id=info.sandbox_id
                )
            await self._lifecycle.start(caller, info.sandbox_id)
        except BaseException as error:
            await self._go_back(step, error, ran=ran)
            raise
        if not ran:  # what it begins with is in place now
            with contextlib.suppress(ColdframeError):
                await self._lifecycle.stop(caller, info.sandbox_id)
        if taken is not None:
            with contextlib.suppress(ColdframeError):  # the temporary workspace, or else the next sweep has it
                await self._sandboxes.sweep()
        now = self._sandboxes.get(caller, info.sandbox_id)
        return _told(now, before.profile, lost, None if taken is None else taken.snapshot_id)

    async def _in_place(
        self, caller: Caller, info: SandboxInfo, before: SandboxSpec, spec: SandboxSpec, told: dict[str, Any]
    ) -> Promotion:
        """Its box is the one that it needs: everything in it goes on, variables of kernels included."""
        step = _Step(caller, info.sandbox_id, before, spec, told)
        async with self._sandboxes.turn(info.sandbox_id):
            with self._store.transaction() as connection:
                self._sandboxes.become(info.sandbox_id, spec)
                self._record(step, None, (), connection)
        await self._sandboxes.contract(caller, info.sandbox_id)
        return _told(self._sandboxes.get(caller, info.sandbox_id), before.profile)

    async def _become(self, step: "_Step", taken: SnapshotInfo | None, lost: tuple[Loss, ...]) -> bool:
        """False if somebody has started it meanwhile."""
        async with self._sandboxes.turn(step.sandbox_id):
            info = self._sandboxes.find(step.sandbox_id)
            if info.state.state != "stopped":
                return False
            spec = step.after
            if taken is not None and spec.agent_id is not None:
                await self._agents.ensure(spec.agent_id, caller=step.caller, begins=taken.label)
                spec = spec.model_copy(update={"snapshot": taken.snapshot_id})
                step.made_agent, step.snapshot_id = spec.agent_id, taken.snapshot_id
            with self._store.transaction() as connection:
                self._sandboxes.become(step.sandbox_id, spec)
                self._sessions.hand_over(step.sandbox_id, spec.agent_id)
                label = info.workspace_label if taken is None else taken.label
                self._sandboxes.raise_workspace_label(
                    self._sandboxes.find(step.sandbox_id), label, connection=connection
                )
                self._record(step, taken, lost, connection)
            self.moved(step.sandbox_id)
        return True

    def _record(
        self, step: "_Step", taken: SnapshotInfo | None, lost: tuple[Loss, ...], connection: sa.Connection
    ) -> None:
        body = {
            **step.body(),
            "session_id": self._sandboxes.first_session(step.sandbox_id),
            "snapshot_id": None if taken is None else taken.snapshot_id,
            "label": (Label.PUBLIC if taken is None else taken.label).value,
            "lost": [one.model_dump(mode="json", exclude={"what"}) for one in lost],
            **step.told,
        }
        self._ledger.append("sandbox.promoted", step.sandbox_id, body, connection=connection)

    async def _go_back(self, step: "_Step", error: BaseException, *, ran: bool) -> None:
        """It is what it was: the same spec, agent and files."""
        async with self._sandboxes.turn(step.sandbox_id):
            info = self._sandboxes.find(step.sandbox_id)
            if info.state.state not in (*ENDED, "stopped"):
                return  # it goes on, as what it was made
            spec = step.before
            if step.snapshot_id is not None:  # somebody's sweep may have taken what was nobody's for a moment
                spec = spec.model_copy(update={"snapshot": step.snapshot_id})
            with self._store.transaction() as connection:
                self._sandboxes.become(step.sandbox_id, spec)
                self._sessions.hand_over(step.sandbox_id, spec.agent_id)
                code = error.code if isinstance(error, ColdframeError) else type(error).__name__
                body = {**step.body(), "agent_id": step.before.agent_id, "code": code, "message": str(error)}
                self._ledger.append("sandbox.promotion_failed", step.sandbox_id, body, connection=connection)
            self.moved(step.sandbox_id)
        if step.made_agent is not None:
            with contextlib.suppress(ColdframeError):
                await self._agents.unmake(step.made_agent, caller=step.caller)
        if ran:
            with contextlib.suppress(ColdframeError):  # it stays stopped, and says why
                await self._lifecycle.start(step.caller, step.sandbox_id)

    def _variables(self, info: SandboxInfo) -> tuple[Loss, ...]:
        names = self.kernels(info.sandbox_id)
        if not names:
            return ()
        text = f"Variables of the kernels of {', '.join(f'`{name}`' for name in names)}."
        return (Loss(item="variables", what=text, count=len(names)),)


@dataclass
class _Step:
    """What becomes of one."""

    caller: Caller
    sandbox_id: str
    before: SandboxSpec
    after: SandboxSpec
    told: dict[str, Any]
    made_agent: str | None = None
    snapshot_id: str | None = None
    """Of the files that it goes on with."""

    def body(self) -> dict[str, Any]:
        return {
            "sandbox_id": self.sandbox_id,
            "agent_id": self.after.agent_id,
            "caller": self.caller.name,
            "from": self.before.profile,
            "to": self.after.profile,
            "template": self.after.template,
        }


def _told(info: SandboxInfo, before: str, lost: tuple[Loss, ...] = (), snapshot_id: str | None = None) -> Promotion:
    return Promotion(**dict(info), from_profile=before, lost=lost, snapshot_id=snapshot_id)  # type: ignore[arg-type]


def _demotion(info: SandboxInfo, asked: PromotionRequest) -> DemotionRefused:
    profile = info.spec.profile
    missing = [name for name in CAPABILITIES if has(profile, name) and not has(asked.to, name)]
    return DemotionRefused(
        f"sandbox `{info.sandbox_id}` is a `{profile}`, and a `{asked.to}` could not hold what it has",
        next_actions=[next_action("sandbox.create", f"makes one of the profile `{asked.to}`", profile=asked.to)],
        sandbox_id=info.sandbox_id,
        profile=profile,
        to=asked.to,
        missing=missing,
    )
