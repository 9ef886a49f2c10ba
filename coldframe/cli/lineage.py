"""`coldframe lineage`: what was reached, read, printed and written, and what was derived from what."""

from typing import TYPE_CHECKING, Annotated

import typer

from coldframe.cli.output import Chosen, plain, show_json, show_table

if TYPE_CHECKING:
    from coldframe.contract.lineage import LineageItem, TracedItem

app = typer.Typer(help="See where data came from, and where it went.", no_args_is_help=True)
PAGE = 1000
AnyId = Annotated[str, typer.Argument(metavar="ID", help="Id of an item, or of a call, command or receipt.")]


@app.command("list")
def list_(
    *,
    session: Annotated[str | None, typer.Option(help="Only this session.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only this agent.")] = None,
    sandbox: Annotated[str | None, typer.Option(help="Only this sandbox.")] = None,
    path: Annotated[str | None, typer.Option(help="Only this path, relative to the workspace.")] = None,
    digest: Annotated[str | None, typer.Option(help="Only content of this SHA-256.")] = None,
    endpoint: Annotated[str | None, typer.Option(help="Only this name or address, also as NAME:PORT.")] = None,
    label: Annotated[str | None, typer.Option(help="Only this label or a higher.")] = None,
    after: Annotated[int, typer.Option(help="Only items after this number.")] = 0,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
) -> None:
    """List items in the order in which they came on record."""
    from coldframe.cli.connection import connect

    items: list[LineageItem] = []
    with connect() as client:
        while len(items) < limit:
            page = client.lineage.list(
                session_id=session,
                agent_id=agent,
                sandbox_id=sandbox,
                path=path,
                sha256=digest,
                endpoint=endpoint,
                label=label,
                after=after,
                limit=min(PAGE, limit - len(items)),
            )
            items += page.items
            if page.next_after is None:
                break
            after = page.next_after
    show_table(items, ("item", *_COLUMNS), [(one.item_id, *_row(one)) for one in items], empty="no items")


@app.command("show")
def show_item(item: Annotated[str, typer.Argument(metavar="ITEM", help="Id of the item.")]) -> None:
    """Show one item: origin, label, inputs, and where it lies."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.lineage.get(item)
    rows = [(name.replace("_", " "), _text(value)) for name, value in found.model_dump(mode="json").items()]
    if Chosen.as_json:
        show_json(found)
    else:
        show_table(rows, ("what", "is"), rows, empty="")


@app.command()
def trace(
    any_id: AnyId,
    *,
    forward: Annotated[bool, typer.Option("--forward", help="Where it went, not where it came from.")] = False,
    known: Annotated[bool, typer.Option("--known", help="Only what the record names, step by step.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many; all without it.")] = None,
) -> None:
    """Trace what ID may have come from, or gone to, over all generations."""
    from coldframe.cli.connection import connect

    found: list[TracedItem] = []
    after: int | None = None
    with connect() as client:
        while limit is None or len(found) < limit:
            size = PAGE if limit is None else min(PAGE, limit - len(found))
            page = client.lineage.trace(any_id, "forward" if forward else "back", known=known, after=after, limit=size)
            found += page.items
            after = page.next_after
            if after is None:
                break
    if Chosen.as_json:
        show_json({"traced": any_id, "direction": page.direction, "items": plain(found)})
        return
    rows = [(one.generation, one.certainty, one.item.item_id, *_row(one.item)) for one in found]
    show_table(found, ("generation", "certainty", "item", *_COLUMNS), rows, empty="nothing")


_COLUMNS = ("at", "kind", "what", "label", "sha256")
"""What fits on one line; by whom and in which call is what `show` tells."""


def _row(item: "LineageItem") -> tuple[object, ...]:
    what = item.location or item.origin.endpoint or item.origin.name
    verdict = "" if item.outcome.value == "allow" else f" ({item.outcome.value})"
    return (
        item.accessed.at,
        item.kind + verdict,
        what,
        item.label.value,
        (item.sha256 or "")[:12],
    )


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(one)}" for name, one in value.items() if one is not None)
    if isinstance(value, list):
        return "\n".join(_text(one) for one in value)
    return "" if value is None else str(value)
