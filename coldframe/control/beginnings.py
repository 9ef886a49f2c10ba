"""The sandbox that begins as another one did: by what is on record of that, and with nothing similar in place of what is gone."""

from coldframe.contract.sandbox import SandboxSpec
from coldframe.contract.template import HOST


def spec_as_then(
    old: SandboxSpec,
    *,
    agent_id: str | None,
    snapshot_id: str,
    template: str,
    template_sha256: str | None,
    network: str | None,
) -> SandboxSpec:
    """What a new sandbox has to be; a temporary one without *agent_id*."""
    if template != HOST and template_sha256 is not None:
        template = "sha256:" + template_sha256.removeprefix("sha256:")
    temporary = agent_id is None
    profile = old.profile
    if profile in ("sandbox", "workspace"):
        profile = "sandbox" if temporary else "workspace"
    wanted = old.model_copy(
        update={
            "agent_id": agent_id,
            "background": temporary,
            "ephemeral": old.ephemeral and temporary,
            "profile": profile,
            "template": template,
            "snapshot": snapshot_id,
            "inputs": (),  # they are in the snapshot
            "network": network,
            "on_result": old.on_result if temporary else "keep",
            "contract_sha256": None,  # it is that of another one
        }
    )
    return SandboxSpec.model_validate(wanted.model_dump())
