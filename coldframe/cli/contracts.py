"""`coldframe contract`: what holds for a sandbox, and what would. `coldframe contract ID` is short for `show ID`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from coldframe.cli.output import Chosen, note, show, show_json, show_table

if TYPE_CHECKING:
    from coldframe.contract.outputs import FoundOutput


class _ShowsById(typer.core.TyperGroup):
    """Takes the id of a sandbox where a command is due for `show` of that; no command begins as such an id does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0].startswith("sbx_"):
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_ShowsById,
    help="What holds for a sandbox, and what would. An id in place of a command shows that one's.",
    no_args_is_help=True,
)
SandboxId = Annotated[str, typer.Argument(metavar="SANDBOX", help="Id of the sandbox.")]


@app.command("show")
def show_(
    sandbox: SandboxId,
    *,
    version: Annotated[int | None, typer.Option(help="An earlier version, as it was issued.")] = None,
) -> None:
    """Show the contract: inputs, execution, outputs, what remains, what is not prevented."""
    from coldframe.cli.connection import connect

    with connect() as client:
        document = client.sandboxes.get(sandbox).contract(version=version)
    if Chosen.as_json:
        show_json(document)
        return
    lines = [f"contract {document['contract']} version {document['version']} {document['sha256']}"]
    if change := document.get("change"):
        lines += [f"  by {one['by']} at {one['at']}: {one['kind']} {one['reason']}" for one in change["causes"]]
        lines += [f"  {one['id']}: {one['before']} -> {one['after']}" for one in change["lines"]]
    show(document, "\n".join([*lines, *_sections(document)]))


@app.command()
def table(sandbox: SandboxId) -> None:
    """List what remains when: each item, whose it is, where it is seen, how much there is now, and what takes it away."""
    from coldframe.cli.connection import connect

    with connect() as client:
        items = client.sandboxes.get(sandbox).persistence()
    rows = []
    for one in items:
        gone = ", ".join(f"{event.replace('_', ' ')} ({fate})" for event, fate in one.events.items() if fate != "kept")
        more = "" if one.complete else "+"
        count = "" if one.count is None else f"{one.count}{more}"
        size = "" if one.bytes is None else f"{one.bytes}{more}"
        lifetime = one.lifetime if one.exists else "(not here)"
        rows.append((one.item, one.owner, " ".join(one.places), count, size, lifetime, gone))
    columns = ("item", "whose", "seen at", "count", "bytes", "lives", "gone when")
    show_table(items, columns, rows, empty="nothing")


@app.command()
def inputs(sandbox: SandboxId) -> None:
    """List what went in: each version with its source, its digest, and the time it held."""
    from coldframe.cli.connection import connect

    with connect() as client:
        page = client.sandboxes.get(sandbox).inputs()
    if Chosen.as_json:
        show_json(page)
        return
    columns = ("type", "name", "version", "source", "bytes", "sha256", "label", "mode", "by", "from", "until")
    rows = [
        (
            *(one.type, one.name, one.version, one.said_source or one.source, one.bytes, (one.sha256 or "")[:12]),
            *(one.label, one.mode, one.granted_by, one.valid_from, one.valid_until),
        )
        for one in page.inputs
    ]
    show_table(page.inputs, columns, rows, empty="nothing")
    if not page.complete:
        note("there are more versions of files; these are the newest")


@app.command()
def outputs(sandbox: SandboxId) -> None:
    """List what there is of the outputs that a sandbox was made for, and what was made beside them."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.sandboxes.get(sandbox).outputs()
    rows: list[tuple[object, ...]] = [(one.path, one.bytes, _what(one), one.sha256) for one in found.found]
    rows += [(one, "", "test failed", "") for one in found.failed_tests]
    rows += [(one, "", "missing", "") for one in found.missing]
    rows += [(one.path, "", f"refused: {one.reason}", "") for one in found.refused]
    rows += [(one, "", "not declared", "") for one in found.undeclared]
    if Chosen.as_json:
        show_json(found)
    else:
        show_table(rows, ("path", "bytes", "type", "sha256"), rows, empty="nothing was declared or made")


@app.command()
def where(
    sandbox: SandboxId, path: Annotated[str, typer.Argument(help="A path inside; a relative one is of the workspace.")]
) -> None:
    """Say what a place inside belongs to, and how long it lives."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.sandboxes.get(sandbox).where(path)
    access = "can be written" if found.writable else "read-only"
    text = (
        f"{found.path}: {found.item}, of the {found.owner}, {found.lifetime}; {access}, mounted at {found.mounted_at}"
    )
    show(found, text)


@app.command()
def plan(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="File (YAML or JSON), or - for standard input.")],
) -> None:
    """Show the contract that a sandbox would have. Nothing is started.

    `coldframe sandbox create --spec SPEC --contract DIGEST` makes it only if it still has that contract.
    """
    from coldframe.cli.connection import connect
    from coldframe.cli.sandboxes import read_spec

    with connect() as client:
        planned = client.sandboxes.plan(read_spec(spec))
    if Chosen.as_json:
        show_json(planned)
        return
    show(planned, "\n".join([f"plan {planned['contract']} {planned['sha256']}", *_sections(planned)]))


def _what(one: "FoundOutput") -> str:
    if one.report is not None:
        return f"{one.type}, {one.report.failed} of {one.report.total} tests failed"
    return one.type if one.width is None else f"{one.type} {one.width}x{one.height}"


def _sections(document: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, section in document.items():
        if isinstance(section, list):
            lines.append(f"\n{name.replace('_', ' ')}")
            lines += [f"  {line['text']}  [{line['verified_by']}]" for line in section]
    return lines
