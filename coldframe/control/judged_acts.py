"""Acts on whole workspaces, judged by the rules before they are done: PRE_TOOL_CALL is asked about them by their name.

A rule may name one (`tool: take_snapshot`), and one that names no tool is about these too. What the floor and the lists
say of commands does not concern them.
"""

from typing import Any

from coldframe.contract.caller import Caller
from coldframe.contract.errors import GrantMissing, NotInProfile
from coldframe.contract.policy import CallContext, Decision, Label, Outcome
from coldframe.contract.profile import require_act
from coldframe.contract.sandbox import SandboxInfo
from coldframe.contract.snapshot import SnapshotInfo
from coldframe.control.judgement import build_context, digest_of, judge_call, refusal_of
from coldframe.control.ledger import Ledger
from coldframe.control.rights import require
from coldframe.control.rulebook import Rulebook
from coldframe.control.sandboxes import Sandboxes
from coldframe.policy.labels import join
from coldframe.tools.registry import CallFacts


class JudgedActs:
    """Asks, and records what was refused."""

    def __init__(self, ledger: Ledger, rulebook: Rulebook, sandboxes: Sandboxes) -> None:
        self._ledger = ledger
        self._rulebook = rulebook
        self._sandboxes = sandboxes

    def require_grant(self, caller: Caller, operation: str, act: str, sandbox_id: str) -> None:
        """Raise GrantMissing, and record it, if *caller* may not do the act at all: an agent that tries is to be seen."""
        try:
            require(caller, operation)
        except GrantMissing as error:
            body = {
                "act": act,
                "sandbox_id": sandbox_id[:80],
                "agent_id": caller.agent_id,
                "caller": caller.name,
                "code": error.code,
            }
            error.facts.update(seq=self._ledger.append("act.refused", sandbox_id[:80], body).seq)
            raise

    def require_profile(self, caller: Caller, info: SandboxInfo, act: str) -> None:
        """Raise NotInProfile, and record it, if sandboxes of its profile take no such act."""
        try:
            require_act(info.spec.profile, act, sandbox_id=info.sandbox_id)
        except NotInProfile as error:
            body = {
                "act": act,
                "sandbox_id": info.sandbox_id,
                "agent_id": info.agent_id,
                "caller": caller.name,
                "code": error.code,
            }
            error.facts.update(seq=self._ledger.append("act.refused", info.sandbox_id, body).seq)
            raise

    def allow(
        self, caller: Caller, info: SandboxInfo, act: str, asked: dict[str, Any], *, label: Label = Label.PUBLIC
    ) -> tuple[Decision, dict[str, Any]]:
        """The decision, and what is to stand of it in the entry about the act, by which it can be made again. *label* is
        that of data which the act is about, beside what lies in the workspace.

        Raises:
            NotInProfile: sandboxes of its profile take no such act; recorded.
            Refused: a rule is against it; recorded.
            PolicyUnavailable: it cannot be judged.
        """
        self.require_profile(caller, info, act)
        session = self._sandboxes.session(info)
        seen = info.model_copy(update={"workspace_label": join(info.workspace_label, label)})
        context = build_context(
            caller, seen, session.session_id, session.taint, act, CallFacts(), digest_of({"act": act, **asked})
        )
        return self._told(caller, act, context, info.sandbox_id)

    def allow_with(self, caller: Caller, snapshot: SnapshotInfo, act: str) -> tuple[Decision, dict[str, Any]]:
        """The same for an act with a snapshot, which need not have been taken through a sandbox: an archive was brought
        in, and what a crash left was found. Its label stands for that of session and workspace then."""
        asked = {"snapshot_id": snapshot.snapshot_id}
        if snapshot.sandbox_id is not None:
            return self.allow(caller, self._sandboxes.find(snapshot.sandbox_id), act, asked, label=snapshot.label)
        context = _without_sandbox(
            caller, act, asked, agent_id=snapshot.agent_id, taint=snapshot.label, workspace_label=snapshot.label
        )
        return self._told(caller, act, context, snapshot.snapshot_id)

    def allow_alone(
        self, caller: Caller, act: str, asked: dict[str, Any], *, subject: str
    ) -> tuple[Decision, dict[str, Any]]:
        """The same for an act that concerns no sandbox, and data of nobody's. Raises Refused, PolicyUnavailable."""
        context = _without_sandbox(caller, act, asked, agent_id=caller.agent_id)
        return self._told(caller, act, context, subject)

    def allow_with_volume(
        self,
        caller: Caller,
        act: str,
        name: str,
        label: Label,
        *,
        agent_id: str | None = None,
        path: str = "",
        beside: Label = Label.PUBLIC,
    ) -> tuple[Decision, dict[str, Any]]:
        """The same for an act with a volume, whose label stands for that of a session. Rules see its name as the first part
        of `path`. *beside* is the label of the workspace of the agent that is to have it, if one is."""
        where = f"{name}/{path}" if path else name
        context = _without_sandbox(
            caller,
            act,
            {"path": where},
            agent_id=agent_id,
            taint=label,
            workspace_label=join(label, beside),
            path=where,
        )
        return self._told(caller, act, context, name)

    def _told(self, caller: Caller, act: str, context: CallContext, subject: str) -> tuple[Decision, dict[str, Any]]:
        decision = judge_call(context, self._rulebook.current)
        told = {"context": context.model_dump(mode="json"), "decision": decision.model_dump(mode="json")}
        if decision.outcome is not Outcome.ALLOW:
            error = refusal_of(decision)
            body = {
                "act": act,
                "sandbox_id": context.sandbox_id or None,
                "agent_id": None if context.agent_id == "background" else context.agent_id,
                "caller": caller.name,
                "code": error.code,
                **told,
            }
            entry = self._ledger.append("act.refused", subject, body)
            error.facts.update(rule=decision.rule_id, seq=entry.seq)
            raise error
        return decision, told


def _without_sandbox(
    caller: Caller,
    act: str,
    asked: dict[str, Any],
    *,
    agent_id: str | None,
    taint: Label = Label.PUBLIC,
    workspace_label: Label = Label.PUBLIC,
    path: str | None = None,
) -> CallContext:
    """What rules see of an act for which there is no sandbox, whose session and workspace are then those of what it is about."""
    return CallContext(
        tool=act,
        agent_id=agent_id or "background",
        session_id="",
        sandbox_id="",
        role=caller.role,
        caller=caller.name,
        profile="",
        taint=taint,
        workspace_label=workspace_label,
        path=path,
        arguments_sha256=digest_of({"act": act, **asked}),
    )
