"""`coldframe agent` and `coldframe token`: who works here, and what they may."""

from typing import Annotated

import typer

from coldframe.cli.output import Chosen, note, show, show_json, show_table

agents = typer.Typer(help="Create, list and delete agents with their workspaces.", no_args_is_help=True)
sessions = typer.Typer(help="Look at the session of a sandbox, and lower its label.", no_args_is_help=True)
tokens = typer.Typer(help="Create, list and revoke tokens.", no_args_is_help=True)
SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="Id of the session.")]
AgentId = Annotated[str, typer.Argument(metavar="AGENT", help="Lower-case letters, digits and hyphens.")]


@agents.command("create")
def create_agent(agent: AgentId) -> None:
    """Make an agent with its workspace."""
    from coldframe.cli.connection import connect

    with connect() as client:
        info = client.agents.create(agent)
    show(info, f"{info.agent_id}, workspace label {info.workspace_label}")


@agents.command("list")
def list_agents() -> None:
    """List agents."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.agents.list()
    rows = [(a.agent_id, a.workspace_label, a.created_at, a.deleted_at) for a in found]
    show_table(found, ("agent", "label", "created", "deleted"), rows, empty="no agents")


@agents.command("show")
def show_agent(agent: AgentId) -> None:
    """Show an agent and the label of its workspace."""
    from coldframe.cli.connection import connect

    with connect() as client:
        info = client.agents.get(agent)
    ended = f", deleted {info.deleted_at}" if info.deleted_at is not None else ""
    show(info, f"{info.agent_id}, workspace label {info.workspace_label}, since {info.created_at}{ended}")


@agents.command("delete")
def delete_agent(
    agent: AgentId, *, yes: Annotated[bool, typer.Option("--yes", help="Do not ask. Needed with --json.")] = False
) -> None:
    """Delete an agent and its workspace for good. What the ledger says of it stays."""
    from coldframe.cli.connection import connect
    from coldframe.contract.errors import InvalidArgument

    if not yes:
        if Chosen.as_json:
            raise InvalidArgument("deleting a workspace needs `--yes`", hint="repeat with --yes")
        typer.confirm(f"delete the workspace of {agent} for good?", abort=True, err=True)
    with connect() as client:
        client.agents.delete(agent)
    show({"agent_id": agent, "deleted": True}, f"{agent} is deleted")


@agents.command("label")
def label_agent(
    agent: AgentId,
    label: Annotated[str, typer.Argument(help="PUBLIC, INTERNAL, CONFIDENTIAL or RESTRICTED.")],
    *,
    reason: Annotated[str, typer.Option(help="Why; recorded.")],
) -> None:
    """Set the label of a workspace, also downward. Owner and admin only."""
    from coldframe.cli.connection import connect

    with connect() as client:
        info = client.agents.set_label(agent, label, reason=reason)
    show(info, f"{info.agent_id}: {info.workspace_label}")


@agents.command("clean-scratch")
def clean_scratch(agent: AgentId) -> None:
    """Empty the scratch directory of an agent's workspace and touch nothing else."""
    from coldframe.cli.connection import connect

    with connect() as client:
        client.agents.clean_scratch(agent)
    show({"agent_id": agent, "cleaned": True}, f"scratch of {agent} is empty")


@sessions.command("show")
def show_session(session: SessionId) -> None:
    """Show what a session has seen: its label only rises."""
    from coldframe.cli.connection import connect

    with connect() as client:
        info = client.sessions.get(session)
    ended = f", closed {info.closed_at}" if info.closed_at is not None else ""
    show(info, f"{info.session_id} of {info.sandbox_id}: {info.taint}, since {info.opened_at}{ended}")


@sessions.command("reset")
def reset_session(session: SessionId) -> None:
    """Close a session and begin another one in its sandbox, at PUBLIC. The workspace keeps its label; owner only."""
    from coldframe.cli.connection import connect

    with connect() as client:
        info = client.sessions.reset(session)
    show(info, f"{info.session_id} of {info.sandbox_id}: {info.taint}")


@tokens.command("create")
def create_token(
    *,
    role: Annotated[str, typer.Option(help="owner, admin, member, viewer or agent.")],
    name: Annotated[str, typer.Option(help="What it is for.")],
    agent: Annotated[str | None, typer.Option(help="The one agent that an agent token stands for.")] = None,
    expires_at: Annotated[str | None, typer.Option(help="Time in ISO 8601, with its zone.")] = None,
    e2b: Annotated[bool, typer.Option("--e2b", help="A key that SDKs of E2B take; see docs/e2b.md.")] = False,
) -> None:
    """Make a token. Its secret is shown this once."""
    from coldframe.cli.connection import connect

    with connect() as client:
        secret, info = client.tokens.create(
            role, name, agent_id=agent, expires_at=expires_at, form="e2b" if e2b else "native"
        )
    if Chosen.as_json:
        show_json({"secret": secret, "token": info.model_dump(mode="json")})
    else:
        show(info, secret)
        note(f"{info.token_id}, {info.role}; the secret is not shown again")


@tokens.command("list")
def list_tokens() -> None:
    """List tokens, without their secrets."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.tokens.list()
    rows = [(t.token_id, t.name, t.role, t.agent_id, t.created_at, t.expires_at, t.revoked_at) for t in found]
    show_table(found, ("token", "name", "role", "agent", "created", "expires", "revoked"), rows, empty="no tokens")


@tokens.command("revoke")
def revoke_token(token: Annotated[str, typer.Argument(metavar="TOKEN_ID", help="Id of the token.")]) -> None:
    """Make a token worthless at once."""
    from coldframe.cli.connection import connect

    with connect() as client:
        client.tokens.revoke(token)
    show({"token_id": token, "revoked": True}, f"{token} is revoked")
