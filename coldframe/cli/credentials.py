"""`coldframe credential`: secrets that sandboxes use and never see."""

import sys
from typing import Annotated

import typer

from coldframe.cli.output import Chosen, note, show, show_json, show_table

app = typer.Typer(help="Keep secrets that sandboxes can use and never see.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="Name of the credential.")]


def _read_secret() -> str:
    """From standard input where it is no terminal, else by a prompt: an argument would be in the list of processes."""
    if sys.stdin.isatty():
        import getpass

        return getpass.getpass("secret: ")
    return sys.stdin.read().removesuffix("\n")


@app.command()
def add(
    name: Name,
    *,
    base: Annotated[str, typer.Option(help="Address of the service: https://api.example.com/v1.")],
    variable: Annotated[str, typer.Option(help="Environment variable of commands that gets the handle.")],
    agent: Annotated[
        list[str] | None, typer.Option(help="Agent that may use it, or * for all agents; repeatable.")
    ] = None,
    role: Annotated[list[str] | None, typer.Option(help="Or sandboxes made by this role; repeatable.")] = None,
    header: Annotated[
        str, typer.Option(help="Where it goes; `Authorization: Basic {secret}` for a password.")
    ] = "Authorization: Bearer {secret}",
    method: Annotated[list[str] | None, typer.Option(help="Method; repeatable. GET without it.")] = None,
    path: Annotated[list[str] | None, typer.Option(help="Pattern of a path below the base; repeatable.")] = None,
    label: Annotated[str, typer.Option(help="Label of what the service answers.")] = "PUBLIC",
    budget: Annotated[int | None, typer.Option(help="How many requests.")] = None,
    expires_at: Annotated[str | None, typer.Option(help="Time in ISO 8601, with its zone.")] = None,
    purpose: Annotated[str, typer.Option(help="What it is for; rules and records show it.")] = "",
    production: Annotated[bool, typer.Option("--production", help="It is one of production; confirm.")] = False,
    confirm: Annotated[str, typer.Option(help="The words that the question for production asks for.")] = "",
) -> None:
    """Add a credential; its secret is read from standard input, or asked for."""
    from coldframe.cli.connection import connect
    from coldframe.contract.errors import InvalidArgument

    terms: dict[str, object] = {
        "name": name,
        "base": base,
        "variable": variable,
        "agents": agent or [],
        "roles": role or [],
        "header": header,
        "methods": method or ["GET"],
        "paths": path or ["/**"],
        "label": label,
        "budget": budget,
        "expires_at": expires_at,
        "purpose": purpose,
        "production": production,
    }
    interactive = sys.stdin.isatty()
    secret = _read_secret()
    with connect() as client:
        try:
            info = client.credentials.add(terms, secret, confirm=confirm)
        except InvalidArgument as error:
            words = error.facts.get("confirm")
            if not isinstance(words, str) or confirm or not interactive:
                raise
            given = typer.prompt(f"This gives {words} (`{base}`). Type `{words}` to confirm")
            info = client.credentials.add(terms, secret, confirm=given)
    show(info, f"{info.terms.name}: {info.terms.access} to {info.terms.base} as `{info.terms.variable}`")


@app.command("list")
def list_credentials() -> None:
    """List credentials, without their secrets."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.credentials.list()
    rows = [
        (
            *(one.terms.name, one.state, one.terms.access, one.terms.base, one.terms.variable),
            f"{one.uses}/{one.terms.budget or '-'}",
            one.terms.expires_at,
        )
        for one in found
    ]
    columns = ("name", "state", "gives", "service", "variable", "uses", "expires")
    show_table(found, columns, rows, empty="no credentials")


@app.command("show")
def show_credential(
    name: Name,
    *,
    uses: Annotated[bool, typer.Option("--uses", help="List what it was used for.")] = False,
    after: Annotated[int, typer.Option(help="With --uses: only entries after this one.")] = 0,
    limit: Annotated[int, typer.Option(help="With --uses: at most so many.")] = 100,
) -> None:
    """Show what a credential may be used for, or what it was used for; never the secret."""
    from coldframe.cli.connection import connect

    with connect() as client:
        if uses:
            found = client.credentials.uses(name, after=after, limit=limit)
            rows = [
                (one.seq, one.at, one.outcome, one.code, one.method, f"{one.host}:{one.port}{one.path}", one.command_id)
                for one in found
            ]
            columns = ("entry", "at", "outcome", "code", "method", "request", "command")
            show_table(found, columns, rows, empty="not used so far")
            return
        info = client.credentials.get(name)
    if Chosen.as_json:
        show_json(info)
        return
    for key, value in info.model_dump(mode="json").items():
        for part, text in value.items() if isinstance(value, dict) else ((key, value),):
            show(info, f"{part}: {', '.join(map(str, text)) if isinstance(text, list) else text}")


@app.command()
def rotate(name: Name) -> None:
    """Put another secret in its place, at once and without a restart; it is read as with `add`."""
    from coldframe.cli.connection import connect

    secret = _read_secret()
    with connect() as client:
        info = client.credentials.rotate(name, secret)
    show(info, f"{name} is rotated")


@app.command()
def revoke(name: Name) -> None:
    """Take a credential back at once; its secret is removed."""
    from coldframe.cli.connection import connect

    with connect() as client:
        info = client.credentials.revoke(name)
    show(info, f"{name} is revoked")
    note("what was under way with it is broken off")
