"""`coldframe code`: cells of code in contexts that keep their variables, and one-shot runs on files."""

import base64
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from coldframe.cli.output import Chosen, note, show, show_json, show_table, write_bytes

if TYPE_CHECKING:
    from coldframe.client.models import CellOutcome
    from coldframe.contract.cell import CellAnswer

app = typer.Typer(
    help="Code cells: Python, JavaScript, TypeScript and bash that keep their variables.", no_args_is_help=True
)
SandboxId = Annotated[str, typer.Argument(metavar="SANDBOX", help="Id of the sandbox.")]
ContextId = Annotated[str, typer.Argument(metavar="CONTEXT", help="Id of the context.")]
Language = Annotated[
    str | None, typer.Option("-l", "--language", help="python, javascript, typescript, bash or r; by default python.")
]
Save = Annotated[
    str | None, typer.Option(metavar="FOLDER", help="Save images and other results there; by default the current one.")
]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="Id of the run, which `run-code --keep` tells.")]
EXIT_FAILED = 1
"""Of code that raised an error, as of a program that fails."""
_ENDINGS = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/svg+xml": "svg",
    "application/pdf": "pdf",
    "text/html": "html",
}


@app.command()
def run(
    sandbox: SandboxId,
    code: Annotated[str, typer.Argument(metavar="CODE", help="The code; `-` for standard input.")],
    *,
    language: Language = None,
    context: Annotated[str | None, typer.Option(help="A context of its own, in place of that of the language.")] = None,
    timeout_s: Annotated[float | None, typer.Option(help="Wall time in seconds.")] = None,
    save: Save = None,
) -> int:
    """Run code where earlier cells have left their variables. Ends with 1 if it raised an error."""
    from coldframe.cli.connection import connect

    text = sys.stdin.read() if code == "-" else code
    with connect() as client:
        outcome = client.sandboxes.get(sandbox).run_code(text, language=language, context=context, timeout_s=timeout_s)
    return show_outcome(outcome, save)


@app.command()
def contexts(sandbox: SandboxId) -> None:
    """List the contexts of a sandbox."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.sandboxes.get(sandbox).contexts()
    rows = [(one.context_id, one.language, one.cwd, one.state, one.queued or "", one.command_id) for one in found]
    show_table(found, ("context", "language", "directory", "state", "queued", "job"), rows, empty="no contexts")


@app.command("open")
def open_(
    sandbox: SandboxId,
    *,
    language: Language = None,
    cwd: Annotated[str, typer.Option(help="Directory; by default the workspace.")] = "",
) -> None:
    """Make a context of its own variables, and print its id."""
    from coldframe.cli.connection import connect

    with connect() as client:
        info = client.sandboxes.get(sandbox).open_context(language or "python", cwd=cwd)
    show(info, info.context_id)


@app.command()
def restart(sandbox: SandboxId, context: ContextId) -> None:
    """Begin anew: all that cells have defined is gone."""
    from coldframe.cli.connection import connect

    with connect() as client:
        info = client.sandboxes.get(sandbox).restart_context(context)
    show(info, f"{info.context_id} begins anew")


@app.command()
def close(sandbox: SandboxId, context: ContextId) -> None:
    """End the kernel of a context, and forget it."""
    from coldframe.cli.connection import connect

    with connect() as client:
        client.sandboxes.get(sandbox).close_context(context)
    show({"context_id": context, "closed": True}, f"{context} is closed")


@app.command("show")
def show_cell(
    sandbox: SandboxId,
    cell: Annotated[str, typer.Argument(metavar="CELL", help="Id of the cell.")],
    *,
    wait_s: Annotated[float, typer.Option("--wait", help="Wait for its end so many seconds.")] = 0,
    save: Save = None,
) -> int:
    """Show what a cell of before came to."""
    from coldframe.cli.connection import connect

    with connect() as client:
        outcome = client.sandboxes.get(sandbox).cell(cell, wait_s=wait_s)
    return show_outcome(outcome, save)


@app.command()
def interrupt(sandbox: SandboxId, cell: Annotated[str, typer.Argument(metavar="CELL", help="Id of the cell.")]) -> None:
    """Stop a cell that runs."""
    from coldframe.cli.connection import connect

    with connect() as client:
        client.sandboxes.get(sandbox).interrupt_cell(cell)
    show({"cell_id": cell, "interrupted": True}, f"{cell} is interrupted")


@app.command()
def once(run: RunId) -> None:
    """Show what is on record of code that was run once, and which of its outputs are kept."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.once(run)
    lines = [f"{found.once_id}: {found.language} at {found.at}, digest {found.code_sha256}, receipt {found.receipt_id}"]
    lines += [f"  from {one.path}, {one.bytes} bytes, {one.sha256}" for one in found.inputs]
    lines += [f"  made {one.path}, {one.bytes} bytes, {one.sha256}" for one in found.outputs]
    show(found, "\n".join(lines))


@app.command()
def output(run: RunId, path: Annotated[str, typer.Argument(metavar="PATH", help="Of the output.")]) -> None:
    """Write a kept output of code that was run once to standard output."""
    from coldframe.cli.connection import connect

    with connect() as client:
        write_bytes(1, client.once_output(run, path))


@app.command()
def forget(run: RunId) -> None:
    """Remove the kept outputs of code that was run once. What the ledger says of it stays."""
    from coldframe.cli.connection import connect

    with connect() as client:
        client.forget_once(run)
    show({"once_id": run, "forgotten": True}, f"the outputs of {run} are removed")


@app.command()
def install(
    *, anew: Annotated[bool, typer.Option(help="Install them again, in the versions of today.")] = False
) -> None:
    """Install the packages for code cells that this machine lends its sandboxes (0.3 GB)."""
    from coldframe.host import interpreter

    found = interpreter.install(note, anew=anew)
    show(found, f"{len(found['packages'])} packages for Python {found['python']}, digest {found['sha256']}")


@app.command()
def packages() -> None:
    """List the packages for code cells that this machine lends its sandboxes."""
    from coldframe.contract.errors import NotFound
    from coldframe.host import interpreter

    found = interpreter.listing()
    if found is None:
        raise NotFound("no packages for code cells are installed", hint="run `coldframe code install`")
    lines = [f"{one['name']} {one['version']}" for one in found["packages"]]
    show(found, "\n".join([f"for Python {found['python']}, digest {found['sha256']}", *lines]))


def run_code(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The code; `-` for standard input.")],
    *,
    files: Annotated[
        list[str] | None,
        typer.Option("--file", "-f", metavar="PATH", help="Given to it as `inputs/NAME`; as often as needed."),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option("--output", "-o", metavar="PATTERN", help="Files that it makes, to be saved; as often as needed."),
    ] = None,
    language: Language = None,
    timeout_s: Annotated[float | None, typer.Option(help="Wall time in seconds.")] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep what goes in and comes out, under the id of the run.")
    ] = False,
    save: Save = None,
) -> int:
    """Run code once in a sandbox of its own that is gone afterwards: files in; a chart, a table or files out."""
    from coldframe.cli.connection import connect

    def read(path: str) -> bytes:
        if path == "-":
            return sys.stdin.buffer.read()
        with open(path, "rb") as opened:
            return opened.read()

    given = {os.path.basename(path): read(path) for path in files or ()}
    with connect() as client:
        done = client.execute_once(
            read(file).decode(),
            given,
            language=language,
            outputs=tuple(outputs or ()),
            timeout_s=timeout_s,
            keep="io" if keep else "nothing",
        )
    code = show_outcome(done.outcome, save, whole=done)
    for one in done.outputs:
        path = os.path.join(save or ".", os.path.basename(one.path))
        with open(path, "wb") as saved:
            saved.write(one.content)
        note(f"saved {path}")
    if keep:
        note(f"kept as {done.once_id}")
    return code


def show_outcome(outcome: "CellOutcome | CellAnswer", folder: str | None, *, whole: object = None) -> int:
    """What a cell came to; results that are no text are saved as files."""
    failed = outcome.error is not None or outcome.status not in ("ok", "error")
    if Chosen.as_json:
        show_json(outcome if whole is None else whole)
        return EXIT_FAILED if failed else 0
    sys.stdout.write(outcome.stdout)
    sys.stderr.write(outcome.stderr)
    for number, result in enumerate(outcome.results, 1):
        kind = next((one for one in _ENDINGS if one in result.data), None)
        if kind is not None:
            value = str(result.data[kind])
            is_binary = kind in ("image/png", "image/jpeg", "application/pdf")
            path = os.path.join(folder or ".", f"{outcome.cell_id}-{number}.{_ENDINGS[kind]}")
            with open(path, "wb") as file:
                file.write(base64.b64decode(value) if is_binary else value.encode())
            note(f"saved {path}")
        if result.text is not None and (kind is None or kind == "text/html"):
            sys.stdout.write(result.text + "\n")
        for artifact in result.artifacts.values():
            note(f"kept as {artifact.path}, {artifact.bytes} bytes")
    if outcome.error is not None:
        sys.stderr.write(outcome.error.traceback or f"{outcome.error.name}: {outcome.error.value}")
        sys.stderr.write("\n")
    if outcome.message is not None:
        note(f"{outcome.code}: {outcome.message}")
    return EXIT_FAILED if failed else 0
