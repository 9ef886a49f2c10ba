"""`coldframe preview`: ports of sandboxes in a browser."""

from typing import TYPE_CHECKING, Annotated

import typer

from coldframe.cli.output import Chosen, note, plain, show, show_json, show_table

if TYPE_CHECKING:
    from coldframe.contract.preview import PreviewInfo

app = typer.Typer(help="Share ports of sandboxes, open them, and look at what serves there.", no_args_is_help=True)
SandboxId = Annotated[str, typer.Argument(metavar="SANDBOX", help="Id of the sandbox.")]
PreviewId = Annotated[str, typer.Argument(metavar="PREVIEW", help="Id of the preview.")]
Variables = Annotated[list[str] | None, typer.Option("--env", "-e", metavar="NAME=VALUE", help="Given to the command.")]


@app.command()
def create(
    sandbox: SandboxId,
    port: Annotated[int, typer.Argument(metavar="PORT", help="On which it listens, or will.")],
    *,
    start: Annotated[str | None, typer.Option(help="A line for bash that serves there; it is started now.")] = None,
    setup: Annotated[list[str] | None, typer.Option(help="A line that is run before, as `npm ci`.")] = None,
    cwd: Annotated[str, typer.Option(help="Directory, relative to the workspace.")] = "",
    env: Variables = None,
    name: Annotated[str | None, typer.Option(help="For people.")] = None,
    public: Annotated[bool, typer.Option("--public", help="Whoever knows the address may open it.")] = False,
    up_to: Annotated[str | None, typer.Option(help="The highest label that it may show.")] = None,
    expires_in_s: Annotated[float | None, typer.Option("--expires-in", help="Seconds until it is over.")] = None,
    record: Annotated[
        bool | None, typer.Option("--record/--no-record", help="Keep from what it is made, so that it can be rebuilt.")
    ] = None,
    health_path: Annotated[str, typer.Option(help="What is asked for to see whether it serves.")] = "/",
    ready_timeout_s: Annotated[float, typer.Option(help="How long it may take until it answers.")] = 60.0,
    answer_timeout_s: Annotated[
        float, typer.Option(help="How long a visitor waits for the beginning of an answer.")
    ] = 60.0,
) -> None:
    """Share a port of a sandbox, and start what serves on it."""
    from coldframe.cli.connection import connect

    with connect() as client:
        made = client.previews.create(
            sandbox,
            port,
            name=name,
            public=public,
            up_to=up_to,
            expires_in_s=expires_in_s,
            start=start,
            cwd=cwd,
            env=_variables(env),
            setup=setup or (),
            record=record,
            health_path=health_path,
            ready_timeout_s=ready_timeout_s,
            answer_timeout_s=answer_timeout_s,
        )
    lines = [f"{made.preview_id}: {made.url or made.address} ({_state(made)})"]
    if made.token is not None:
        lines.append(f"token: {made.token}")
        lines.append(f"next: coldframe preview open {made.preview_id}: a link that opens it in one browser, once")
    show(made, "\n".join(lines))


@app.command("list")
def list_(
    sandbox: Annotated[str | None, typer.Argument(metavar="[SANDBOX]", help="Only those it serves.")] = None,
) -> None:
    """List previews, newest first."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.previews.list(sandbox)
    rows = [
        (
            one.preview_id,
            one.sandbox_id,
            one.port,
            one.url or one.address,
            _access(one),
            one.command or "",
            one.created_by,
        )
        for one in found
    ]
    show_table(found, ("preview", "sandbox", "port", "address", "for", "command", "made by"), rows, empty="no previews")


@app.command("show")
def show_(preview: PreviewId) -> None:
    """Show how it stands now, and why."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.previews.get(preview)
    if Chosen.as_json:
        show_json(found)
        return
    status = found.status
    told = {key: value for key, value in plain(found).items() if key not in ("status", "inputs") and value is not None}
    told["can be rebuilt"] = "yes" if found.inputs is not None else "no"
    if status is not None:
        told |= {"state": status.state, "code": status.code or "none", "cause": status.cause or "none"}
        if status.exit_code is not None:
            told["exit code"] = status.exit_code
    rows = [(str(what).replace("_", " "), value) for what, value in told.items()]
    show_table(rows, ("what", "is"), rows, empty="")
    if status is not None and status.code is not None:
        for line in status.log_lines:
            note(line)
        for action in status.status.next_actions if status.status is not None else ():
            note(f"next: {action['op']}: {action['effect']}")


@app.command("open")
def open_(
    preview: PreviewId,
    *,
    browser: Annotated[bool, typer.Option("--browser", help="Open it in a browser here.")] = False,
    role: Annotated[str, typer.Option(help="`member`, or `viewer`: it only looks.")] = "member",
    expires_in_s: Annotated[
        float | None, typer.Option("--expires-in", help="Seconds for which its browser is let in.")
    ] = None,
) -> None:
    """Print a link that opens it in one browser, once, within ten minutes."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.previews.link(preview, role=role, expires_in_s=expires_in_s)
    show(found, found.url)
    if browser:
        typer.launch(found.url)


@app.command()
def log(
    preview: PreviewId, *, lines: Annotated[int, typer.Option("-n", "--lines", help="How many, from the end.")] = 50
) -> None:
    """Print the end of what it has printed."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.previews.log(preview, lines=lines)
    show({"lines": list(found)}, "\n".join(found))


@app.command()
def change(
    preview: PreviewId,
    *,
    public: Annotated[bool | None, typer.Option("--public/--private", help="For whom it is.")] = None,
    up_to: Annotated[str | None, typer.Option(help="The highest label that it may show.")] = None,
    expires_in_s: Annotated[
        float | None, typer.Option("--expires-in", help="Seconds from now until it is over.")
    ] = None,
    end_links: Annotated[
        bool, typer.Option("--end-links", help="Links given before, and who came in by one, are let in no more.")
    ] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Record what it is made from, so that it can be rebuilt.")
    ] = False,
) -> None:
    """Share it otherwise. Whoever would not be let in now is sent away at once."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.previews.change(
            preview, public=public, up_to=up_to, expires_in_s=expires_in_s, end_links=end_links, record=record
        )
    show(found, f"{found.preview_id}: {_access(found)}")


@app.command()
def revoke(preview: PreviewId) -> None:
    """Take it back: nobody gets in any more. What serves goes on."""
    from coldframe.cli.connection import connect

    with connect() as client:
        show(client.previews.revoke(preview), f"{preview} was taken back")


@app.command()
def stop(preview: PreviewId) -> None:
    """End what serves. The address stays, and says so."""
    from coldframe.cli.connection import connect

    with connect() as client:
        show(client.previews.stop(preview), f"{preview} is stopped")


@app.command()
def restart(preview: PreviewId, *, env: Variables = None) -> None:
    """Wake its sandbox, and start what serves again, under the same address."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.previews.restart(preview, env=_variables(env))
    show(found, f"{found.preview_id}: {found.url or found.address} ({_state(found)})")


@app.command()
def rebuild(
    preview: PreviewId,
    *,
    sandbox: Annotated[str | None, typer.Option(help="One that began from the same; else one is made.")] = None,
    agent: Annotated[str | None, typer.Option(help="Agent of the new one; else it has a temporary workspace.")] = None,
    env: Variables = None,
) -> None:
    """Make it again on another sandbox from what is on record, and have the address lead there."""
    from coldframe.cli.connection import connect

    with connect() as client:
        made = client.previews.rebuild(preview, sandbox_id=sandbox, agent_id=agent, env=_variables(env))
    same = {True: "answers the same bytes", False: "answers other bytes", None: "what it answered is not on record"}
    show(made, f"{made.preview_id}: {made.url or made.address} on {made.sandbox_id}: {same[made.body_same]}")


def _variables(given: list[str] | None) -> dict[str, str]:
    found = {}
    for one in given or ():
        name, equals, value = one.partition("=")
        if not equals:
            raise typer.BadParameter(f"`{one}` is no NAME=VALUE")
        found[name] = value
    return found


def _access(one: "PreviewInfo") -> str:
    if one.revoked_at is not None:
        return "nobody any more"
    who = "everybody" if one.public else "links and token"
    return f"{who}, up to {one.up_to.value}"


def _state(one: "PreviewInfo") -> str:
    return "not known" if one.status is None else one.status.state
