"""`coldframe mcp`: the server for clients of the Model Context Protocol that start a program, and how to tell them of it."""

import contextlib
import json
import os
import shlex
import sys
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

if TYPE_CHECKING:
    from coldframe.contract.caller import Caller
    from coldframe.control.control import Control

app = typer.Typer(
    help="The Model Context Protocol on standard input and output, passed on to the server.",
    invoke_without_command=True,
)
NAME = "coldframe"
LIVING = ("queued", "starting", "running", "pausing", "paused", "resuming", "stopping", "stopped")


@app.callback()
def mcp(context: typer.Context) -> None:
    """Serve one client on standard input and output. It acts with the token of this user, or with COLDFRAME_TOKEN. Where no server
    runs and none is named, sandboxes that it makes are its own and end with it."""
    if context.invoked_subcommand is None:
        _serve()


def _serve() -> None:
    import asyncio

    output = os.dup(1)
    os.dup2(2, 1)  # whatever else prints does not come between the messages
    try:
        asyncio.run(_pass_on(output))
    except BrokenPipeError:
        os._exit(141)
    sys.stderr.flush()
    os._exit(0)  # a thread may still wait for input


async def _pass_on(output: int) -> None:
    from coldframe.cli.connection import settings
    from coldframe.cli.output import Chosen
    from coldframe.client.location import find_location
    from coldframe.client.mcp_bridge import Bridge, lines_of, write_to
    from coldframe.client.transport import Transport
    from coldframe.contract.errors import Unavailable

    location = find_location(Chosen.url, Chosen.token, data_dir=settings().data_dir)
    server = Transport(location.url, location.token)
    if Chosen.url is None and "COLDFRAME_URL" not in os.environ:
        try:
            await server.request("GET", "/v1/health")
        except Unavailable:
            await _serve_within(output)
            return
    await Bridge(server, write_to(output)).run(lines_of(0))


async def _serve_within(output: int) -> None:
    from coldframe.assembly import embedded
    from coldframe.cli.connection import settings
    from coldframe.client.mcp_bridge import Bridge, lines_of, write_to
    from coldframe.contract.caller import Caller
    from coldframe.contract.policy import Role
    from coldframe.fronts.mcp import McpFront
    from coldframe.fronts.mcp.within import Within

    chosen = settings()
    caller = Caller(token_id="embedded", role=Role.OWNER, surface="embedded")  # noqa: S106
    typer.echo("no server runs: sandboxes that this program makes end with it", err=True)
    async with embedded(chosen) as control:
        front = McpFront(control, operator_refuses=chosen.on_missing == "refuse")
        async with ending_its_own(control, caller):
            await Bridge(Within(front, caller), write_to(output)).run(lines_of(0))


@contextlib.asynccontextmanager
async def ending_its_own(control: "Control", caller: "Caller") -> AsyncIterator[None]:
    """End what was made meanwhile, and stop what was started. What a server before left is as it was: its files are somebody's."""
    from coldframe.contract.errors import ColdframeError

    before = {one.sandbox_id: one.state.state for one in control.sandboxes.list(caller, states=LIVING)}
    try:
        yield
    finally:
        for one in control.sandboxes.list(caller, states=LIVING):
            with contextlib.suppress(ColdframeError):  # the others are to end as well
                if one.sandbox_id not in before:
                    await control.lifecycle.terminate(caller, one.sandbox_id)
                elif before[one.sandbox_id] == "stopped" != one.state.state:
                    await control.lifecycle.stop(caller, one.sandbox_id)


class Client(NamedTuple):
    """How one client is told of a server: by a command to type, or by a file to put something into."""

    stdio: Callable[[list[str]], str]
    http: Callable[[str], str] | None
    where: str


def _entry(words: list[str]) -> dict[str, object]:
    return {"command": words[0], "args": words[1:]}


def _file_entry(words: list[str]) -> str:
    return json.dumps({"mcpServers": {NAME: _entry(words)}})


def _file_http(url: str) -> str:
    header = {"Authorization": "Bearer ${COLDFRAME_TOKEN}"}
    return json.dumps({"mcpServers": {NAME: {"type": "http", "url": url, "headers": header}}})


_BEARER = '"Authorization: Bearer $COLDFRAME_TOKEN"'
CLIENTS: dict[str, Client] = {
    "claude-code": Client(
        lambda words: f"claude mcp add {NAME} -- {shlex.join(words)}",
        lambda url: f"claude mcp add --transport http {NAME} {url} --header {_BEARER}",
        "type",
    ),
    "claude-desktop": Client(_file_entry, None, "claude_desktop_config.json"),
    "codex": Client(
        lambda words: f"codex mcp add {NAME} -- {shlex.join(words)}",
        lambda url: f"codex mcp add {NAME} --url {url} --bearer-token-env-var COLDFRAME_TOKEN",
        "type",
    ),
    "cursor": Client(_file_entry, _file_http, "~/.cursor/mcp.json"),
    "gemini": Client(
        lambda words: f"gemini mcp add {NAME} {shlex.join(words)}",
        lambda url: f"gemini mcp add --transport http --header {_BEARER} {NAME} {url}",
        "type",
    ),
    "inspector": Client(
        lambda words: f"npx @modelcontextprotocol/inspector --cli {shlex.join(words)} --method tools/list",
        lambda url: (
            f"npx @modelcontextprotocol/inspector --cli {url} --transport http --method tools/list --header {_BEARER}"
        ),
        "type",
    ),
    "vscode": Client(
        lambda words: f"code --add-mcp {shlex.quote(json.dumps({'name': NAME, **_entry(words)}))}",
        lambda url: "code --add-mcp " + shlex.quote(json.dumps({"name": NAME, "type": "http", "url": url})),
        "type",
    ),
    "windsurf": Client(_file_entry, None, "~/.codeium/windsurf/mcp_config.json"),
}


@app.command("config")
def config(
    client: Annotated[str, typer.Argument(help=f"One of {', '.join(CLIENTS)}.")],
    *,
    http: Annotated[bool, typer.Option("--http", help="Connect to the server's address, without a program.")] = False,
) -> None:
    """Print the one line that tells a client of this server: a command to type, or what to put into its file. A client that
    connects by HTTP sends the token in COLDFRAME_TOKEN, which is not printed."""
    from coldframe.cli.connection import settings
    from coldframe.cli.output import Chosen
    from coldframe.client.location import find_location
    from coldframe.contract.errors import InvalidArgument

    known = CLIENTS.get(client)
    if known is None:
        raise InvalidArgument(
            f"`{client[:80]}` is no client that is known here",
            hint=f"known are {', '.join(CLIENTS)}; any other one starts `coldframe mcp`",
            argument="client",
        )
    if http and known.http is None:
        raise InvalidArgument(f"`{client}` starts a program; leave `--http` out", argument="http")
    if http and known.http is not None:
        line = known.http(find_location(Chosen.url, None, data_dir=settings().data_dir).url + "/mcp")
    else:
        line = known.stdio(_own_command())
    if Chosen.as_json:
        typer.echo(json.dumps({"client": client, "where": known.where, "line": line}))
        return
    if known.where != "type":
        typer.echo(f"into {known.where}:", err=True)
    typer.echo(line)


def _own_command() -> list[str]:
    from coldframe.cli.output import Chosen

    program = os.path.abspath(sys.argv[0])
    words = (
        [program]
        if os.access(program, os.X_OK) and not program.endswith(".py")
        else [sys.executable, "-m", "coldframe.cli"]
    )
    for option, value in (
        ("--url", Chosen.url or os.environ.get("COLDFRAME_URL")),
        ("--data-dir", Chosen.data_dir or os.environ.get("COLDFRAME_DATA_DIR")),
    ):
        if value:  # clients start programs with an environment of their own
            words += [option, value]
    return [*words, "mcp"]
