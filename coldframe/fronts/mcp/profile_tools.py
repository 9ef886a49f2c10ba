"""Profiles: which one a piece of work needs, the way to a larger one, and where the work in a sandbox stands."""

from coldframe.contract.description import Description
from coldframe.contract.model import Model
from coldframe.contract.overview import WorkspaceOverview
from coldframe.contract.profile import Profile, Recommendation, Requirements
from coldframe.contract.profile import recommend_profile as recommend
from coldframe.contract.promotion import PromotionRequest
from coldframe.contract.sandbox import AgentId, Loss
from coldframe.contract.summary import WorkspaceSummary
from coldframe.contract.template import TemplateRef
from coldframe.fronts.mcp.choice import choose_sandbox
from coldframe.fronts.mcp.offers import Asked, offer
from coldframe.fronts.mcp.workspace_tools import WhichSandbox


@offer(arguments=WhichSandbox, answer=WorkspaceSummary, right="command.read", reads=True)
async def workspace_summary(asked: Asked, which: WhichSandbox) -> WorkspaceSummary:
    """What whoever goes on with the work in a sandbox needs first, in at most 8 KiB: files, recent changes, commands that run or
    have failed with the end of their output, open ports, notes, essentials of the contract."""
    sandbox_id = choose_sandbox(asked.control, asked.caller, which.sandbox_id, which.workspace)
    return await asked.control.summaries.summarize(asked.caller, sandbox_id)


@offer(arguments=WhichSandbox, answer=WorkspaceOverview, right="command.read", reads=True)
async def workspace_overview(asked: Asked, which: WhichSandbox) -> WorkspaceOverview:
    """The workspace of a sandbox that runs or has ended, in seven sections: files, Git, activity, builds, logs, previews, deployment. Each
    entry has its receipt, links, and what can be done from there. A `workspace` on which nothing runs will do."""
    return await asked.control.overviews.overview(asked.caller, _last(asked, which))


def _last(asked: Asked, which: WhichSandbox) -> str:
    if which.sandbox_id is None and which.workspace is not None:
        found = asked.control.sandboxes.list(asked.caller, agent_id=which.workspace, limit=1)
        if found:
            return found[0].sandbox_id
    return choose_sandbox(asked.control, asked.caller, which.sandbox_id, which.workspace)


@offer(arguments=WhichSandbox, answer=Description, right="command.read", reads=True)
async def describe_sandbox(asked: Asked, which: WhichSandbox) -> Description:
    """What can be done in a sandbox, which state remains of it, and how reliably people can look at the result or take it back;
    each statement with what vouches for it."""
    sandbox_id = choose_sandbox(asked.control, asked.caller, which.sandbox_id, which.workspace)
    return await asked.control.descriptions.describe(asked.caller, sandbox_id)


@offer(arguments=Requirements, answer=Recommendation, right="sandbox.read", reads=True)
async def recommend_profile(_: Asked, requirements: Requirements) -> Recommendation:
    """The smallest profile of a sandbox that is enough for a piece of work, and why no smaller one is."""
    return recommend(requirements)


class WhichPromotion(WhichSandbox):
    to: Profile
    agent_id: AgentId | None = None
    """Whose workspace its temporary one becomes: a new agent."""
    template: TemplateRef | None = None
    """What the system of a `computer` begins from."""


class Promoted(Model):
    sandbox_id: str
    profile: Profile
    from_profile: Profile
    state: str
    workspace: str | None
    lost: tuple[Loss, ...]
    snapshot_id: str | None


@offer(arguments=WhichPromotion, answer=Promoted, right="sandbox.promote", repeats=True)
async def promote_sandbox(asked: Asked, which: WhichPromotion) -> Promoted:
    """Let a sandbox go on in a larger profile under the same id, with its files and its record. There is no way back."""
    sandbox_id = choose_sandbox(asked.control, asked.caller, which.sandbox_id, which.workspace)
    wish = PromotionRequest(to=which.to, agent_id=which.agent_id, template=which.template)
    done = await asked.control.promotions.promote(asked.caller, sandbox_id, wish)
    return Promoted(
        sandbox_id=sandbox_id,
        profile=done.spec.profile,
        from_profile=done.from_profile,
        state=done.state.state,
        workspace=done.agent_id,
        lost=done.lost,
        snapshot_id=done.snapshot_id,
    )
