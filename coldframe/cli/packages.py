"""`coldframe network packages`: what a sandbox was handed over from package registries, and from where."""

from typing import TYPE_CHECKING, Annotated

import typer

from coldframe.cli.output import show_table

if TYPE_CHECKING:
    from coldframe.client.sync import SyncSandbox
    from coldframe.contract.network import LoggedContact, NetworkPackage

PAGE = 1000


def packages(
    sandbox: Annotated[str, typer.Argument(metavar="SANDBOX", help="Id of the sandbox, also of one that has ended.")],
) -> None:
    """List files of packages that a sandbox was handed over, each once, with the command that first asked for it."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = _find(client.sandboxes.get(sandbox))
    columns = ("kind", "name", "version", "file", "digest", "source", "from", "command")
    rows = [(*one.model_dump().values(), where.contact.name, where.contact.command_id) for one, where in found]
    plain = [
        {**one.model_dump(mode="json"), "from": where.contact.name, "command_id": where.contact.command_id}
        for one, where in found
    ]
    show_table(plain, columns, rows, empty="no packages")


def _find(sandbox: "SyncSandbox") -> "list[tuple[NetworkPackage, LoggedContact]]":
    found: dict[tuple[str, str], tuple[NetworkPackage, LoggedContact]] = {}
    after: int | None = 0
    while after is not None:
        page = sandbox.network_log(after=after, limit=PAGE, outcome="allow")
        for contact in page.contacts:
            for request in contact.contact.requests:
                if request.package is not None and request.package.file:
                    found.setdefault((request.package.file, request.package.digest), (request.package, contact))
        after = page.next_after
    return list(found.values())
