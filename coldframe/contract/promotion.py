"""A sandbox that goes on in a larger profile, under the same id."""

from coldframe.contract.model import Model
from coldframe.contract.profile import Profile
from coldframe.contract.sandbox import AgentId, Loss, SandboxInfo
from coldframe.contract.template import TemplateRef


class PromotionRequest(Model):
    to: Profile
    agent_id: AgentId | None = None
    """Whose workspace its temporary one becomes: a new agent. A `workspace` needs one, a `computer` can have one."""
    template: TemplateRef | None = None
    """What the system of a `computer` begins from; `debian` where nothing is said."""


class Promotion(SandboxInfo):
    """The sandbox as it is now, and what the way there took away."""

    from_profile: Profile
    """What it was before; the same as now where nothing was to be done."""
    lost: tuple[Loss, ...] = ()
    """Its files are never among them."""
    snapshot_id: str | None = None
    """Of its files on the way, kept for a day; None where they stayed in place."""
