"""The root command: options common to all, subcommands, and the one place where errors become exit codes."""

import errno
import itertools
import sys
from typing import Annotated

import typer

from coldframe.cli import (
    agents,
    artifacts,
    bench,
    builds,
    code,
    contracts,
    credentials,
    e2b,
    environments,
    files,
    git,
    installation,
    jobs,
    ledger,
    lineage,
    mcp,
    network,
    pipelines,
    policy,
    previews,
    profiles,
    replays,
    running,
    sandboxes,
    snapshots,
    templates,
    volumes,
    webhooks,
)
from coldframe.cli.output import EXIT_CODES, EXIT_INTERNAL, Chosen, exit_code_of, show_error

app = typer.Typer(
    name="coldframe",
    help="A self-hosted computer for AI agents: isolated, governed, recorded.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("setup")(installation.setup)
app.command("up")(installation.up)
app.command("doctor")(installation.doctor)
app.command("pool")(installation.pool)
app.command("bench", context_settings=bench.PASS_ON)(bench.bench)
app.command("run", context_settings=running.PASS_ALL)(running.run)
app.command("exec")(running.exec_)
app.command("run-code")(code.run_code)
app.command("artifacts")(artifacts.artifacts)
app.command("replay")(replays.replay)
app.command("recommend")(profiles.recommend)
app.command("profiles")(profiles.profiles)
app.command("describe")(profiles.describe)
sandboxes.app.command("correct")(artifacts.correct)
sandboxes.app.command("promote")(profiles.promote)
sandboxes.app.command("summary")(profiles.summary)
sandboxes.app.command("overview")(profiles.overview)
app.add_typer(sandboxes.app, name="sandbox")
app.add_typer(code.app, name="code")
app.add_typer(contracts.app, name="contract")
app.add_typer(snapshots.app, name="snapshot")
app.add_typer(templates.app, name="template")
app.add_typer(volumes.app, name="volume")
app.add_typer(previews.app, name="preview")
app.add_typer(jobs.app, name="job")
app.add_typer(pipelines.app, name="pipeline")
app.add_typer(builds.app, name="build")
app.add_typer(environments.app, name="env")
app.add_typer(e2b.app, name="e2b")
app.add_typer(files.app, name="files")
app.add_typer(git.app, name="git")
app.add_typer(network.app, name="network")
app.add_typer(ledger.app, name="ledger")
app.add_typer(lineage.app, name="lineage")
app.add_typer(policy.app, name="policy")
app.add_typer(agents.tokens, name="token")
app.add_typer(credentials.app, name="credential")
app.add_typer(agents.agents, name="agent")
app.add_typer(agents.sessions, name="session")
app.add_typer(webhooks.app, name="webhook")
app.add_typer(mcp.app, name="mcp")


def _show_version(asked: bool) -> None:
    if asked:
        from coldframe import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    *,
    json: Annotated[
        bool, typer.Option("--json", help="Machine-readable output, errors too; anywhere on the line.")
    ] = False,
    url: Annotated[str | None, typer.Option(help="Server; by default the local installation. [COLDFRAME_URL]")] = None,
    token: Annotated[str | None, typer.Option(help="Token. Better given as COLDFRAME_TOKEN.")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Data directory. [COLDFRAME_DATA_DIR]")] = None,
    version: Annotated[  # eager: before it is looked whether there is a command
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version and end.")
    ] = False,
) -> None:
    del version
    Chosen.as_json = Chosen.as_json or json
    Chosen.url, Chosen.token, Chosen.data_dir = url, token, data_dir


GLOBAL_OPTIONS = frozenset({"--url", "--token", "--data-dir"})


def main() -> None:
    """Run the command line and end the process."""
    arguments = _globals_first(sys.argv[1:])
    try:
        code = app(args=arguments, prog_name="coldframe", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except typer.Exit as done:
        sys.exit(done.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:
        _end_quietly()
    except Exception as error:  # noqa: BLE001  the edge of the program
        sys.exit(_report(error))


def _globals_first(arguments: list[str]) -> list[str]:
    """Take the options of the whole program to the front, wherever they stand before a `--`."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    first: list[str] = []
    rest: list[str] = []
    left = iter(own)
    for argument in left:
        name, has_value, _ = argument.partition("=")
        if argument == "--json":
            Chosen.as_json = True  # from the first word on, so that a usage error is JSON too
        elif name in GLOBAL_OPTIONS:
            first += [argument] if has_value else [argument, *itertools.islice(left, 1)]
        else:
            rest.append(argument)
    return [*first, *rest, *arguments[len(own) :]]


OF_A_NAME = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EEXIST}
)
"""What is wrong with a path that was given, and not with this machine."""


def _report(error: Exception) -> int:
    from coldframe.contract.errors import ColdframeError, Internal, InvalidArgument, next_action

    if isinstance(error, ColdframeError):
        show_error(error)
        return exit_code_of(error)
    if hasattr(error, "format_message"):  # typer's own usage errors
        message = str(error.format_message()).rstrip(".").replace("'", "`")
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "coldframe"
        hint = f"see `{command} --help`"
        if message.startswith("No such option"):
            hint += "; put `--` before a command that has options of its own"
        offer = next_action("cli.help", "lists commands and options", command=command)
        show_error(InvalidArgument(message[:1].lower() + message[1:], hint=hint, next_actions=[offer]))
        return 2
    if isinstance(error, OSError):
        from coldframe.contract.errors import Unavailable

        name = f"`{error.filename}`: " if error.filename else ""
        if error.filename and error.errno in OF_A_NAME:
            show_error(
                InvalidArgument(
                    f"{name}{(error.strerror or str(error)).lower()}",
                    hint="name a path that is there and that you may use",
                )
            )
            return 2
        show_error(Unavailable(f"{name}{(error.strerror or str(error)).lower()}", hint="correct this, then try again"))
        return 5
    import logging

    logging.getLogger("coldframe.cli").debug("the command line failed", exc_info=error)
    show_error(Internal(f"{type(error).__name__}: {error}", hint="set COLDFRAME_LOG_LEVEL=debug and report this"))
    return EXIT_INTERNAL


def _end_quietly() -> None:
    """The reader of our output went away: end as any filter does."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(141)
