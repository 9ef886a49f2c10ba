"""`coldframe ledger`: what was decided and done. Works on the data directory where no server runs."""

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from coldframe.cli.output import Chosen, note, printable, show, show_json, show_table, write_bytes

if TYPE_CHECKING:
    from coldframe.contract.ledger import LedgerEntry, LedgerVerdict
    from coldframe.contract.receipt_difference import FileHunks
    from coldframe.control.ledger import Ledger

app = typer.Typer(help="Look at the ledger, verify it, export it.", no_args_is_help=True)
PAGE = 1000


@app.command("list")
def list_(
    *,
    after: Annotated[int, typer.Option(help="Only entries after this number.")] = 0,
    limit: Annotated[int, typer.Option(help="At most so many.")] = 100,
    kind: Annotated[list[str] | None, typer.Option(help="Only this kind, as call.ended; as often as needed.")] = None,
    sandbox: Annotated[str | None, typer.Option(help="Only this sandbox.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only this agent.")] = None,
) -> None:
    """List entries in order."""
    entries = _entries(after=after, limit=limit, kinds=kind or [], sandbox_id=sandbox, agent_id=agent)
    rows = [(e.seq, e.at, e.kind, e.subject, _gist(e)) for e in entries]
    show_table(entries, ("seq", "at", "kind", "subject", "what"), rows, empty="no entries")


@app.command()
def history(
    *,
    sandbox: Annotated[str | None, typer.Option(help="Only this sandbox.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only this agent.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many entries are read.")] = PAGE,
) -> None:
    """List calls: what was asked, what was decided, how it ended."""
    kinds = ["call.started", "call.ended", "call.refused", "call.interrupted"]
    entries = _entries(after=0, limit=limit, kinds=kinds, sandbox_id=sandbox, agent_id=agent)
    rows = [(e.at, e.body.get("tool"), e.kind.removeprefix("call."), _gist(e), e.subject) for e in entries]
    show_table(entries, ("at", "tool", "state", "what", "call"), rows, empty="no calls")


@app.command()
def receipt(
    receipt_id: Annotated[str, typer.Argument(metavar="RECEIPT", help="Id of the receipt, which each result has.")],
) -> None:
    """Show what one call really did, with digests to check it by."""
    from coldframe.cli.connection import connect

    with connect() as client:
        show_json(client.receipt(receipt_id))


@app.command()
def diff(
    before: Annotated[str, typer.Argument(metavar="RECEIPT", help="Id of one receipt.")],
    after: Annotated[str, typer.Argument(metavar="OTHER", help="Id of another one of the same sandbox.")],
    path: Annotated[str | None, typer.Argument(metavar="[PATH]", help="This file, line by line.")] = None,
    *,
    patch: Annotated[bool, typer.Option("--patch", "-p", help="Every file line by line.")] = False,
) -> None:
    """Show what differs between the moments after two calls: which files, or their lines."""
    from coldframe.cli.connection import connect

    with connect() as client:
        if path is not None:
            hunks = client.compare_receipts_file(before, after, path)
            show(hunks, _told_hunks(hunks))
            return
        found = client.compare_receipts(before, after)
        if patch:
            many = [client.compare_receipts_file(before, after, one.path) for one in found.files]
            show(many, "\n".join(map(_told_hunks, many)))
        else:
            rows = [
                (one.change, one.path, (one.sha256_before or "")[:12], (one.sha256_after or "")[:12], len(one.receipts))
                for one in found.files
            ]
            show_table(found.files, ("change", "path", "before", "after", "calls"), rows, empty="no file differs")
    for problem in found.problems:
        note(f"not all is known: {problem}")


def _told_hunks(file: "FileHunks") -> str:
    head = f"--- {file.path if file.sha256_before else '/dev/null'}\n+++ {file.path if file.sha256_after else '/dev/null'}\n"
    if file.unavailable:
        return f"{head}what it held {' and '.join(file.unavailable)} is not kept: only the digests are on record"
    if file.binary:
        return f"{head}it is no text"
    told = [
        f"@@ -{one.start_before},{one.lines_before} +{one.start_after},{one.lines_after} @@\n{one.text}"
        for one in file.hunks
    ]
    return (head + "".join(told)).rstrip("\n")


@app.command()
def verify() -> int:
    """Recompute the whole chain and compare it with the checkpoints kept apart. Ends with 6 if it is not intact."""
    from coldframe.cli.connection import connect_if_running

    client = connect_if_running()
    if client is not None:
        with client:
            verdict = client.ledger.verify()
    else:
        verdict = _verify_offline()
    if Chosen.as_json:
        show_json(verdict)
    else:
        head = (
            f"{verdict.entries} entries, {verdict.checkpoints} checkpoints, head {verdict.head_seq} {verdict.head_hash}"
        )
        show(verdict, ("intact: " if verdict.intact else "NOT INTACT: ") + head)
        for fault in verdict.faults:
            sys.stdout.write(printable(f"  {fault.kind} at {fault.seq}: {fault.message}") + "\n")
    return 0 if verdict.intact else 6


def _verify_offline() -> "LedgerVerdict":
    """From the files alone: nothing is opened for writing, so this works on a copy and beside anything."""
    from coldframe.cli.connection import ledger_files
    from coldframe.control.verification import verify_directory

    return verify_directory(*ledger_files())


@app.command()
def export() -> None:
    """Write the whole ledger to standard output, as JSON lines."""
    from coldframe.cli.connection import connect_if_running

    client = connect_if_running()
    if client is not None:
        with client:
            for part in client.ledger.export():
                write_bytes(1, part)
        return
    with _offline() as ledger:
        for line in ledger.export():
            write_bytes(1, line)


def _entries(
    *, after: int, limit: int, kinds: list[str], sandbox_id: str | None, agent_id: str | None
) -> "list[LedgerEntry]":
    from coldframe.cli.connection import connect_if_running

    client = connect_if_running()
    if client is None:
        with _offline() as ledger:
            return ledger.entries(after=after, limit=limit, kinds=kinds, sandbox_id=sandbox_id, agent_id=agent_id)
    found: list[LedgerEntry] = []
    with client:
        while len(found) < limit:
            page = client.ledger.entries(
                after=found[-1].seq if found else after,
                limit=min(PAGE, limit - len(found)),
                kinds=kinds,
                sandbox_id=sandbox_id,
                agent_id=agent_id,
            )
            found += page
            if not page:
                break
    return found


@contextlib.contextmanager
def _offline() -> "Iterator[Ledger]":
    from coldframe.cli.connection import open_ledger

    with open_ledger() as ledger:
        yield ledger


def _gist(entry: "LedgerEntry") -> str:
    """The part of an entry that a person looks for first."""
    body = entry.body
    for key in ("command", "path", "message", "reason"):
        found = (
            body.get(key) or (body.get("context") or {}).get(key)
            if isinstance(body.get("context"), dict)
            else body.get(key)
        )
        if isinstance(found, str) and found:
            return found if len(found) <= 120 else found[:117] + "..."
    if "exit_code" in body:
        return f"exit {body['exit_code']}"
    text = json.dumps(body, ensure_ascii=True)
    return text if len(text) <= 120 else text[:117] + "..."
