"""`coldframe template`: build, follow, look at, mark, withdraw and remove the systems that sandboxes begin from."""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from coldframe.cli.output import Chosen, note, plain, printable, show, show_json, show_table

if TYPE_CHECKING:
    from coldframe.assembly import Running
    from coldframe.client.gathered import Gathered
    from coldframe.client.sync import SyncColdframe, TemplateBuild
    from coldframe.contract.template import BuildInfo, BuildLogEntry, ReadyCheck, TemplateRecord, TemplateTag

app = typer.Typer(help="Build, look at, mark, withdraw and remove templates.", no_args_is_help=True)
Ref = Annotated[
    str, typer.Argument(metavar="TEMPLATE", help="`name` for the newest, `name:version`, or `sha256:DIGEST`.")
]
EXIT_FAILED = 1
"""Of a build, as of a program that fails."""


@app.command()
def build(
    recipe: Annotated[
        str | None,
        typer.Argument(metavar="[RECIPE]", help="File in TOML or JSON, or the name of one that comes with Coldframe."),
    ] = None,
    *,
    dockerfile: Annotated[str | None, typer.Option(metavar="FILE", help="Build what a Dockerfile says.")] = None,
    archive: Annotated[
        str | None, typer.Option(metavar="TAR", help="Build what a tar of a root file system holds.")
    ] = None,
    snapshot: Annotated[
        str | None, typer.Option(metavar="SNAPSHOT", help="Build what a snapshot has of a system of its own.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Its name; a recipe may say it itself.")] = None,
    version: Annotated[str | None, typer.Option(help="Its version; by default the next number.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="A tag; may be given again.")] = None,
    context: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="What a Dockerfile copies from; by default where it lies.")
    ] = None,
    build_arg: Annotated[
        list[str] | None, typer.Option("--build-arg", metavar="NAME=VALUE", help="Of a Dockerfile; may be given again.")
    ] = None,
    ready_command: Annotated[
        str | None, typer.Option(help="Of a Dockerfile: its start command serves when this ends with 0.")
    ] = None,
    ready_port: Annotated[
        int | None, typer.Option(help="Of a Dockerfile: the port that its start command serves.")
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Carry out every step anew.")] = False,
    background: Annotated[
        bool, typer.Option("--background", help="Print the id of the build, and do not wait.")
    ] = False,
) -> int:
    """Build a template, and show its log as it comes. Ends with 1 if it failed. Ctrl-C leaves the build; `cancel` ends it."""
    from coldframe.cli.connection import connect
    from coldframe.contract.errors import InvalidArgument

    if sum(one is not None for one in (recipe, dockerfile, archive, snapshot)) != 1:
        raise InvalidArgument("give one of RECIPE, --dockerfile, --archive and --snapshot", argument="recipe")
    if recipe is None and name is None:
        raise InvalidArgument("give it a name with --name", argument="name")
    with connect() as client:
        if recipe is not None:
            gathered = _recipe_of(recipe)
        elif dockerfile is not None:
            gathered = _dockerfile_of(
                client, dockerfile, name or "", context, build_arg or [], ready_command, ready_port
            )
        elif archive is not None:
            gathered = _archive_of(archive, name or "")
        else:
            gathered = _snapshot_of(snapshot or "", name or "")
        gathered = _named(gathered, name, version, tag)
        begun = client.templates.build(gathered, no_cache=no_cache)
        if background:
            show(begun.info(), begun.id)
            return 0
        note(
            f"{begun.id} builds; it goes on if this ends, and is followed again by: coldframe template log {begun.id} --follow"
        )
        return _followed(begun)


@app.command()
def log(
    build_id: Annotated[str, typer.Argument(metavar="BUILD", help="Id of the build; it may be over.")],
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on to its end.")] = False,
    after_seq: Annotated[int, typer.Option(help="Only what comes after this line.")] = 0,
) -> int:
    """Show what a build has said. With --json one line of JSON for each."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.templates.get_build(build_id)
        if follow:
            return _followed(found, after_seq=after_seq)
        last_seq = found.info().last_seq
        if last_seq <= after_seq:
            return 0
        for entry in found.follow(after_seq=after_seq):
            _print_line(entry)
            if entry.seq >= last_seq:
                break
    return 0


@app.command()
def builds(*, name: Annotated[str | None, typer.Option(help="Only of this name.")] = None) -> None:
    """List the newest hundred builds."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.templates.builds(name=name)
    rows = [
        (i.build_id, i.state, f"{i.name}:{i.version}", f"{i.steps_done} of {i.steps}", i.started_at, i.started_by)
        for i in found
    ]
    show_table(found, ("build", "state", "template", "steps", "started", "by"), rows, empty="no builds")


@app.command()
def cancel(build_id: Annotated[str, typer.Argument(metavar="BUILD", help="Id of the build.")]) -> None:
    """End a build. The steps that are whole are kept for the next one."""
    from coldframe.cli.connection import connect

    with connect() as client:
        info = client.templates.get_build(build_id).cancel()
    show(info, f"{build_id} is {info.state}")


@app.command("list")
def list_(*, name: Annotated[str | None, typer.Option(help="Only of this name.")] = None) -> None:
    """List templates, newest first."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.templates.list(name=name)
    rows = [
        (
            f"{i.name}:{i.version}",
            _standing(i),
            ", ".join(i.tags),
            i.package_count,
            i.bytes,
            i.created_at,
            i.digest[:12],
        )
        for i in found
    ]
    columns = ("template", "state", "tags", "packages", "bytes", "created", "digest")
    show_table(found, columns, rows, empty="no templates; `coldframe setup` builds the first")


@app.command("show")
def show_(
    template: Ref,
    *,
    packages: Annotated[bool, typer.Option("--packages", help="List what it has installed.")] = False,
) -> None:
    """Show what is known of a template. With --json its packages, and the recipe that builds just that again."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.templates.get(template)
    if Chosen.as_json:
        show_json(found)
        return
    if packages:
        rows = [(one.manager, one.name, one.version, one.architecture) for one in found.packages]
        show_table(found.packages, ("by", "package", "version", "for"), rows, empty="no packages")
        return
    shown = {key: value for key, value in plain(found).items() if key not in ("packages", "recipe")}
    facts = _facts("", shown)
    show_table(facts, ("what", "is"), facts, empty="")


def _facts(above: str, value: object) -> list[tuple[str, object]]:
    """One row for each thing that is known, however deep it lies; what there is nothing of has none."""
    if isinstance(value, dict):
        return [
            row for key, below in value.items() for row in _facts(f"{above} {key.replace('_', ' ')}".strip(), below)
        ]
    if isinstance(value, list):
        if any(isinstance(one, dict) for one in value):
            return [row for number, one in enumerate(value, 1) for row in _facts(f"{above} {number}", one)]
        value = ", ".join(map(str, value))
    return [] if value in (None, "") else [(above, value)]


@app.command()
def verify(template: Ref) -> None:
    """Read all of a template, and tell whether it is what was built."""
    from coldframe.cli.connection import connect

    note(f"reading {template}")
    with connect() as client:
        found = client.templates.verify(template)
    show(found, f"{found.name}:{found.version} is what was built: {found.digest}")


@app.command()
def mark(
    template: Ref,
    *,
    check: Annotated[str, typer.Option(help="A line for bash that ends with 0 in a fresh sandbox of it.")],
    timeout_s: Annotated[float, typer.Option(help="Longest time of the check, in seconds.")] = 300.0,
    network: Annotated[str | None, typer.Option(help="Network profile of that sandbox.")] = None,
) -> None:
    """Mark a template as known good, if a check passes."""
    from coldframe.cli.connection import connect

    note(f"checking {template}")
    with connect() as client:
        found = client.templates.mark(template, check, timeout_s=timeout_s, network=network)
    show(found, f"{found.name}:{found.version} is known good")


@app.command()
def withdraw(
    template: Ref, *, why: Annotated[str, typer.Option(help="What is wrong with it; everybody who asks is told.")]
) -> None:
    """Let nothing new start from a template. Sandboxes that run on it go on, and are told."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.templates.withdraw(template, why)
    show(found, f"{found.name}:{found.version} is withdrawn")


Tags = Annotated[list[str], typer.Argument(metavar="TAG...")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Of a template, without a version.")]


@app.command()
def tag(template: Ref, tags: Tags) -> None:
    """Have tags stand for a version from now on: `name:tag` names it until the tag is moved."""
    from coldframe.cli.connection import connect

    with connect() as client:
        _show_tags(client.templates.tag(template, *tags))


@app.command()
def untag(name: Name, tags: Tags) -> None:
    """Take tags of a template away."""
    from coldframe.cli.connection import connect

    with connect() as client:
        _show_tags(client.templates.untag(name, *tags))


@app.command(name="tags")
def list_tags(name: Name) -> None:
    """List the tags of a template."""
    from coldframe.cli.connection import connect

    with connect() as client:
        _show_tags(client.templates.tags(name))


def _show_tags(found: "list[TemplateTag]") -> None:
    rows = [(one.tag, one.version, f"{one.at:%Y-%m-%d %H:%M}", one.by) for one in found]
    show_table(found, ("tag", "version", "moved", "by"), rows, empty="no tags")


@app.command()
def remove(template: Ref) -> None:
    """Forget a template that nothing stands on. Its version stays taken."""
    from coldframe.cli.connection import connect

    with connect() as client:
        client.templates.remove(template)
    show({"ok": True}, f"removed {template}")


def check_ready_made(name: str) -> None:
    """Raises InvalidArgument: no recipe of that name comes with Coldframe."""
    from coldframe.contract.errors import InvalidArgument
    from coldframe.contract.recipes import ready_made_names

    if name not in ready_made_names():
        raise InvalidArgument(
            f"no recipe `{name[:80]}` comes with Coldframe",
            hint=f"there are debian, {', '.join(ready_made_names())}; build your own with `coldframe template build`",
            argument="template",
        )


def set_up(name: str, *, anew: bool) -> int:
    """Build one that comes with Coldframe, through the server of this installation, or without one if none runs."""
    from coldframe.cli.connection import connect_if_running

    gathered = _recipe_of(name)
    client = connect_if_running()
    if client is None:
        return _set_up_alone(gathered, anew=anew)
    with client:
        return _set_up_with(client, gathered, anew=anew)


def _set_up_with(client: "SyncColdframe", gathered: "Gathered", *, anew: bool) -> int:
    found = client.templates.list(name=gathered.recipe.name)
    known = [one for one in found if one.state == "ready" and one.withdrawn is None]
    if known and not anew:
        return _show_ready(known[0], known[0].name, known[0].version, known[0].digest)
    note(f"building the template `{gathered.recipe.name}`")
    return _followed(client.templates.build(gathered, no_cache=anew))


def _set_up_alone(gathered: "Gathered", *, anew: bool) -> int:
    """With a server that runs for as long as the build: sandboxes that were left by an earlier one go on, as after any start."""
    import json
    import signal
    import threading

    from coldframe.assembly import serve
    from coldframe.client.sync import SyncColdframe
    from coldframe.config import load_settings
    from coldframe.contract.errors import Unavailable

    outcome: list[int | BaseException] = []
    is_over = threading.Event()

    def build(url: str, client_file: str) -> None:
        try:
            with open(client_file, encoding="utf-8") as file:
                token = str(json.load(file)["token"])
            with SyncColdframe(url, token) as client:
                outcome.append(_set_up_with(client, gathered, anew=anew))
        except BaseException as error:  # noqa: BLE001  told by the thread that waits for this one
            outcome.append(error)
        if not is_over.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    def started(running: "Running") -> None:
        threading.Thread(target=build, args=(running.url, running.client_file), daemon=True).start()

    serve(load_settings(data_dir=Chosen.data_dir, port=0), started=started)
    is_over.set()
    if not outcome:
        raise Unavailable("the build was broken off; the steps that were whole are kept", hint="run it again")
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def _recipe_of(given: str) -> "Gathered":
    from coldframe.client.recipes import gather, read_recipe
    from coldframe.contract.recipes import parse_recipe, ready_made

    text = ready_made(given)
    if text is not None and not os.path.exists(given):
        return gather(parse_recipe(text, source=given), os.getcwd())
    return read_recipe(given)


def _dockerfile_of(
    client: "SyncColdframe",
    path: str,
    name: str,
    context: str | None,
    build_args: list[str],
    ready_command: str | None,
    ready_port: int | None,
) -> "Gathered":
    from coldframe.client.recipes import read_dockerfile
    from coldframe.contract.errors import InvalidArgument

    arguments: dict[str, str] = {}
    for one in build_args:
        key, has_value, value = one.partition("=")
        if not has_value:
            raise InvalidArgument(f"`{one[:80]}` is no NAME=VALUE", argument="build_arg")
        arguments[key] = value
    return read_dockerfile(
        path,
        name=name,
        context=None if context is None else os.path.abspath(context),
        build_args=arguments,
        env_of=lambda base: client.templates.get(base).settings.env,
        ready=_ready_of(ready_command, ready_port),
    )


def _ready_of(command: str | None, port: int | None) -> "ReadyCheck | None":
    from pydantic import ValidationError

    from coldframe.contract.errors import InvalidArgument
    from coldframe.contract.template import ReadyCheck

    if command is None and port is None:
        return None
    try:
        return ReadyCheck(command=command, port=port)
    except ValidationError as error:
        message = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise InvalidArgument(f"the ready check is none: {message}", argument="ready_port") from None


def _archive_of(path: str, name: str) -> "Gathered":
    from coldframe.client.recipes import of_archive

    return of_archive(path, name=name)


def _snapshot_of(snapshot: str, name: str) -> "Gathered":
    from coldframe.client.gathered import Gathered
    from coldframe.contract.recipes import Draft

    return Gathered(Draft({"name": name, "snapshot": snapshot}, ()).recipe(()), {})


def _named(gathered: "Gathered", name: str | None, version: str | None, tags: list[str] | None) -> "Gathered":
    from coldframe.contract.recipes import Draft

    fields = dict(gathered.recipe)
    steps = fields.pop("steps")
    given = {"name": name, "version": version, "tags": tuple(tags) if tags else None}
    fields |= {key: value for key, value in given.items() if value is not None}
    return gathered._replace(recipe=Draft(fields, ()).recipe(steps))


def _followed(build: "TemplateBuild", *, after_seq: int = 0) -> int:

    for entry in build.follow(after_seq=after_seq):
        _print_line(entry)
    return _show_end(build.info())


def _show_ready(value: object, name: str, version: str | None, digest: str | None) -> int:
    show(
        value,
        f"{name}:{version} is ready: {digest}\n"
        f"next: coldframe sandbox create --template {name}:{version} --agent AGENT",
    )
    return 0


def _show_end(info: "BuildInfo") -> int:
    from coldframe.contract.errors import from_wire

    if info.state == "ready":
        return _show_ready(info, info.name, info.version, info.digest)
    if info.error is not None:
        raise from_wire(info.error)
    show(info, f"the build is {info.state}")
    return EXIT_FAILED


def _print_line(entry: "BuildLogEntry") -> None:
    if Chosen.as_json:
        show_json(entry)
    else:
        step = f"[{entry.step}] " if entry.step else ""
        sys.stdout.write(printable(f"{step}{entry.text}") + "\n")
    sys.stdout.flush()


def _standing(one: "TemplateRecord") -> str:
    if one.withdrawn is not None:
        return "withdrawn"
    return "known good" if one.known_good is not None and one.state == "ready" else one.state
