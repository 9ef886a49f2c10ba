"""`coldframe replay`: a command again, from what it began from, and what came out otherwise."""

import sys
from typing import Annotated

import typer

from coldframe.cli.output import Chosen, note, show_json, show_table

DIFFERS = 6
"""Exit code where something came out otherwise, so that a script need not read the answer."""


def replay(
    receipt: Annotated[str, typer.Argument(metavar="RECEIPT", help="Id of the receipt of a command.")],
    *,
    env: Annotated[
        list[str] | None,
        typer.Option("-e", "--env", help="NAME=VALUE of what the command was given, as often as needed."),
    ] = None,
    stdin: Annotated[
        bool, typer.Option("-i", "--stdin", help="Its input again, from standard input to its end.")
    ] = False,
) -> int:
    """Carry a command out again in a fresh sandbox that begins from what it began from, and compare.

    Ends with 0 if everything is the same, with 6 if something differs. The sandbox has no network and is ended afterwards.
    """
    from coldframe.cli.connection import connect
    from coldframe.contract.errors import InvalidArgument

    for one in env or ():
        if "=" not in one:
            raise InvalidArgument(f"`{one}` is not NAME=VALUE", argument="env")
    with connect() as client:
        done = client.replay(
            receipt,
            environment=dict(one.split("=", 1) for one in env or ()),
            stdin=sys.stdin.buffer.read() if stdin else b"",
        )
    code = 0 if done.same else DIFFERS
    if Chosen.as_json:
        show_json(done)
        return code
    begun = "a copy of the workspace" if done.basis.begun_from == "workspace" else f"snapshot {done.basis.snapshot_id}"
    note(f"{done.replay_receipt_id} in {done.sandbox_id}, from {begun}, tree {done.basis.tree_sha256_before[:12]}")
    if done.unlike:
        note(f"not the same around it: {', '.join(done.unlike)}")
    columns = ("what", "original", "replay", "first line that differs")
    rows = [(one.what, one.original, one.replay, one.line) for one in done.differences]
    show_table(done.differences, columns, rows, empty="the same")
    if not done.complete:
        note("there are more differences; these are the first")
    return code
