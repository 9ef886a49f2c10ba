"""`coldframe build`: commands on a workspace, with what went in, all they printed, and what came out."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from coldframe.cli.output import EXIT_NOT_NOW, Chosen, note, show, show_json, show_table, write_bytes

if TYPE_CHECKING:
    from coldframe.client.sync import Builds
    from coldframe.contract.build import Build, BuildSpec

app = typer.Typer(help="Builds of a workspace: started, looked at, made again, compared.", no_args_is_help=True)
SandboxId = Annotated[str, typer.Argument(metavar="SANDBOX", help="Id of the sandbox.")]
BuildId = Annotated[str, typer.Argument(metavar="BUILD", help="Id of the build.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for its end, and end with 1 unless it succeeded.")]
EXIT_FAILED = 1
"""Of what waits, as of a program that fails."""


@app.command()
def start(
    sandbox: SandboxId,
    lines: Annotated[
        list[str] | None, typer.Argument(metavar="[LINE]...", help="Each a phase: a line for bash.")
    ] = None,
    *,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", help="YAML or JSON with `phases`, each a `name` and a `command`; `-` for input."),
    ] = None,
    artifact: Annotated[
        list[str] | None, typer.Option("--artifact", "-a", metavar="PATTERN", help="Files that it shall make.")
    ] = None,
    name: Annotated[str, typer.Option(help="For people.")] = "",
    inputs_kept_s: Annotated[
        float | None, typer.Option("--keep-inputs", help="Seconds that what went in is kept; by default for ever.")
    ] = None,
    wait: Wait = False,
) -> int:
    """Start a build, and print its id."""
    from coldframe.cli.connection import connect
    from coldframe.contract.errors import InvalidArgument

    if (file is None) == (not lines):
        raise InvalidArgument("give lines, or a file with `--file`", argument="lines")
    with connect() as client:
        if file is None:
            begun = client.builds.start(
                sandbox, lines or (), artifacts=artifact or (), name=name, inputs_kept_s=inputs_kept_s
            )
        else:
            spec = _read_spec(file)
            begun = client.builds.start(
                sandbox,
                spec.phases,
                artifacts=(*spec.artifacts, *(artifact or ())),
                name=name or spec.name,
                inputs_kept_s=inputs_kept_s if spec.inputs_kept_s is None else spec.inputs_kept_s,
            )
        if not wait:
            show(begun, begun.build_id)
            return 0
        note(f"{begun.build_id} runs")
        return _followed(client.builds, begun.build_id)


@app.command("list")
def list_(
    *,
    sandbox: Annotated[str | None, typer.Option(help="Only those of this sandbox.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only those of this agent's workspace.")] = None,
    after: Annotated[str | None, typer.Option(help="Only those older than this build.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many.")] = 100,
) -> None:
    """List builds, newest first, those of ended sandboxes too."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.builds.list(sandbox_id=sandbox, agent_id=agent, after=after, limit=limit)
    rows = [
        (one.build_id, one.state, one.code, one.agent_id, one.started_at, one.tree_sha256[:12], one.name)
        for one in found
    ]
    show_table(found, ("build", "state", "code", "agent", "started", "tree", "name"), rows, empty="no builds")


@app.command("show")
def show_(build: BuildId) -> None:
    """Show how a build stands: what went in, its phases, what came out."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.builds.get(build)
    _show(found)


@app.command()
def wait(
    build: BuildId,
    *,
    timeout_s: Annotated[float | None, typer.Option(help="Longest time to wait, in seconds.")] = None,
) -> int:
    """Wait for its end; ends with 0 if it succeeded, 1 if not, 6 if it runs on after the time."""
    from coldframe.cli.connection import connect

    with connect() as client:
        return _followed(client.builds, build, timeout_s)


@app.command()
def log(
    build: BuildId,
    *,
    phase: Annotated[str | None, typer.Option(help="What this phase has printed, and nothing else.")] = None,
) -> None:
    """Print its whole log, as it is now."""
    from coldframe.cli.connection import connect

    with connect() as client:
        for part in client.builds.log_parts(build, phase=phase):
            write_bytes(1, part)


@app.command()
def rebuild(
    build: BuildId,
    *,
    agent: Annotated[str | None, typer.Option(help="New workspace for it; by default a temporary sandbox.")] = None,
    keep_sandbox: Annotated[bool, typer.Option("--keep-sandbox", help="Leave a temporary one as it is.")] = False,
    wait: Wait = False,
) -> int:
    """Make it again in a new sandbox, from what went into it and nothing else."""
    from coldframe.cli.connection import connect

    with connect() as client:
        begun = client.builds.rebuild(build, agent_id=agent, keep_sandbox=keep_sandbox)
        if not wait:
            show(begun, begun.build_id)
            return 0
        note(f"{begun.build_id} runs in {begun.sandbox_id}")
        return _followed(client.builds, begun.build_id)


@app.command()
def cancel(build: BuildId) -> None:
    """Start no further phase, and end the one that runs."""
    from coldframe.cli.connection import connect

    with connect() as client:
        client.builds.cancel(build)
        found = client.builds.wait(build)
    _show(found)


@app.command()
def compare(
    before: Annotated[str, typer.Argument(metavar="BUILD", help="Id of one build.")],
    after: Annotated[str, typer.Argument(metavar="OTHER", help="Id of another one.")],
) -> None:
    """Show in what two builds differ."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.builds.compare(before, after)
    if Chosen.as_json:
        show_json(found)
        return
    lines = [f"differs: {', '.join(found.differs) or 'nothing'}"]
    lines += [f"commands: phase {name}" for name in found.commands]
    if found.template[0] != found.template[1]:
        lines.append(f"template: {found.template[0] or 'host'} -> {found.template[1] or 'host'}")
    lines += [f"input: {one.change} {one.path}" for one in found.input_changes]
    if not found.input_changes_complete:
        lines.append("input: not all changes are told")
    lines += [
        f"dependency: {one.manager} {one.name} {one.before or 'none'} -> {one.after or 'none'}"
        for one in found.dependencies
    ]
    lines += [f"output: {one.path} {_short(one.before)} -> {_short(one.after)}" for one in found.artifacts]
    if found.reproduced is not None:
        lines.append("reproduced: " + ("yes, byte for byte" if found.reproduced else "no, from the same input"))
    show(found, "\n".join(lines))


def _short(digest: str | None) -> str:
    return "none" if digest is None else digest[:12]


def _followed(builds: "Builds", build_id: str, timeout_s: float | None = None) -> int:
    found = builds.wait(build_id, timeout_s)
    _show(found)
    if found.state == "running":
        return EXIT_NOT_NOW
    return 0 if found.state == "succeeded" else EXIT_FAILED


def _show(build: "Build") -> None:
    if Chosen.as_json:
        show_json(build)
        return
    rows = [(one.name, one.state, one.exit_code, one.command_id, one.message) for one in build.phases]
    show_table(build.phases, ("phase", "state", "exit code", "job", "why"), rows, empty="no phases")
    where = build.inputs.template_sha256 or "that of the machine"
    lines = [f"input: tree {build.tree_sha256}, template {build.inputs.template} ({where})"]
    lines += [f"input: {one.path} {one.sha256}" for one in build.inputs.files]
    lines += [f"artifact: {one.path} {one.sha256} ({one.bytes} bytes)" for one in build.artifacts]
    lines += [f"missing: {pattern}" for pattern in build.missing]
    if build.state != "running":
        lines.append(f"dependencies: {len(build.dependencies)}{'' if build.dependencies_complete else ', not all'}")
    why = f": {build.message}" if build.message else ""
    lines.append(f"{build.build_id} {build.name}".rstrip() + f": {build.state}{why}")
    if build.state == "failed":
        lines.append(f"next: coldframe build log {build.build_id}: shows all that was printed")
    show(build, "\n".join(lines))


def _read_spec(path: str) -> "BuildSpec":
    """What the file says. Raises InvalidArgument."""
    import yaml
    from pydantic import ValidationError

    from coldframe.contract.build import BuildSpec
    from coldframe.contract.errors import InvalidArgument

    try:
        if path == "-":
            content = yaml.safe_load(sys.stdin.read())
        else:
            with open(path, encoding="utf-8") as file:
                content = yaml.safe_load(file)
        return BuildSpec.model_validate(content)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"`{path}` is neither YAML nor JSON: {error}", argument="file") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidArgument(
            f"`{path}` is no build: {where + ': ' if where else ''}{first['msg']}",
            hint="write `phases:`, a list in which each has a `name` and a `command`",
            argument="file",
        ) from None
