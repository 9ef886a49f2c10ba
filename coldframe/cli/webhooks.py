"""`coldframe webhook`: addresses that events are announced to."""

from typing import Annotated

import typer

from coldframe.cli.output import Chosen, note, show, show_json, show_table

app = typer.Typer(help="Announce events, as the end of commands, to addresses of yours.", no_args_is_help=True)
WebhookId = Annotated[str, typer.Argument(metavar="WEBHOOK", help="Id of the web hook.")]


@app.command()
def add(
    url: Annotated[str, typer.Argument(help="Where POST requests go.")],
    *,
    event: Annotated[
        list[str] | None, typer.Option(help="As command.ended, which is the default; as often as needed.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="Highest label of what may be told there.")] = None,
    sandbox: Annotated[str | None, typer.Option(help="Only of this sandbox.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only of this agent.")] = None,
    min_s: Annotated[float | None, typer.Option(help="Only commands that took so many seconds.")] = None,
    allow_private: Annotated[
        bool, typer.Option("--allow-private", help="To private addresses and this machine as well; owner only.")
    ] = False,
) -> None:
    """Announce events to an address from now on. The secret that they are signed with is shown this once."""
    from coldframe.cli.connection import connect

    with connect() as client:
        made = client.webhooks.add(
            url,
            events=event or ("command.ended",),
            label=label,
            sandbox_id=sandbox,
            agent_id=agent,
            min_duration_s=min_s,
            allow_private=allow_private,
        )
    if Chosen.as_json:
        show_json(made)
    else:
        show(made, made.secret)
        note(f"{made.webhook.webhook_id}; the secret is not shown again")


@app.command("list")
def list_() -> None:
    """List web hooks, and how it goes there."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.webhooks.list()
    rows = [(w.webhook_id, w.state, w.terms.url, " ".join(w.terms.events), w.delivered_at, w.last_error) for w in found]
    show_table(found, ("web hook", "state", "url", "events", "delivered", "error"), rows, empty="no web hooks")


@app.command("show")
def show_webhook(webhook: WebhookId) -> None:
    """Show a web hook, and how it goes there."""
    from coldframe.cli.connection import connect

    with connect() as client:
        info = client.webhooks.get(webhook)
    lines = [f"{info.webhook_id} is {info.state}: {', '.join(info.terms.events)} to {info.terms.url}"]
    if info.failing_since is not None:
        lines.append(f"  {info.attempts} attempts since {info.failing_since}: {info.last_error}")
    elif info.last_error is not None:
        lines.append(f"  {info.last_error}")
    if info.delivered_at is not None:
        lines.append(f"  delivered last at {info.delivered_at}")
    show(info, "\n".join(lines))


@app.command()
def resume(webhook: WebhookId) -> None:
    """Try one that fails, or is dead, again at once. It goes on where it was."""
    from coldframe.cli.connection import connect

    with connect() as client:
        info = client.webhooks.resume(webhook)
    show(info, f"{webhook} is {info.state}")


@app.command()
def remove(webhook: WebhookId) -> None:
    """Announce nothing more there."""
    from coldframe.cli.connection import connect

    with connect() as client:
        client.webhooks.remove(webhook)
    show({"webhook_id": webhook, "removed": True}, f"{webhook} is removed")
