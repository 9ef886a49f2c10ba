"""`coldframe policy`: the rules in force, loading others, and what they would say."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from coldframe.cli.output import Chosen, note, printable, show, show_json, show_table, write_bytes

if TYPE_CHECKING:
    from coldframe.client.sync import SyncColdframe
    from coldframe.contract.policy import PolicyChange

app = typer.Typer(help="Show, validate, load and try rules.", no_args_is_help=True)
RuleFile = Annotated[str, typer.Argument(metavar="FILE", help="Rule file (YAML), or - for standard input.")]


@app.command("show")
def show_() -> None:
    """Show the rules in force, as they were written."""
    from coldframe.cli.connection import connect

    with connect() as client:
        rules = client.policy.show()
    if Chosen.as_json:
        show_json(rules)
    else:
        write_bytes(1, rules.text.encode())
        note(f"sha256 {rules.sha256}")


@app.command()
def validate(file: RuleFile) -> None:
    """Say whether a rule file is valid, and at which line it is not. Needs no server and changes nothing."""
    from coldframe.policy.rules import load_rules

    rules = load_rules(_read(file))
    show({"valid": True, "sha256": rules.sha256}, f"valid, sha256 {rules.sha256}")


@app.command()
def load(
    file: RuleFile, *, reason: Annotated[str | None, typer.Option(help="Why; it is kept with the change.")] = None
) -> None:
    """Put a rule file into force. One that is not valid changes nothing."""
    from coldframe.cli.connection import connect

    text = _read(file)
    with connect() as client:
        rules = client.policy.load(text, reason=reason)
    show(rules, f"in force, sha256 {rules.sha256}")


@app.command()
def log() -> None:
    """List how the rules have changed, the first first: who, when, why, and from which version to which."""
    from coldframe.cli.connection import connect

    with connect() as client:
        changes = _changes(client)
    columns = ("number", "at", "by", "from", "to", "why")
    rows = [(c.seq, c.at, c.caller or c.origin, _short(c.sha256_before), _short(c.sha256), c.reason) for c in changes]
    show_table(changes, columns, rows, empty="no changes")


@app.command()
def diff(
    before: Annotated[str | None, typer.Argument(help="Digest of a version, or its beginning.")] = None,
    after: Annotated[str | None, typer.Argument(help="The same of another; that in force without it.")] = None,
) -> None:
    """Show what differs between two versions of the rules; without arguments, what the last change has changed."""
    from difflib import unified_diff

    from coldframe.cli.connection import connect
    from coldframe.contract.errors import NotFound

    with connect() as client:
        changes = _changes(client)
        if not changes:
            raise NotFound("the rules were never changed")
        second = _find(changes, after) if after is not None else changes[-1].sha256
        first = _find(changes, before) if before is not None else changes[-1].sha256_before
        old = "" if first is None else client.policy.version(first).text
        new = client.policy.version(second).text
    lines = list(unified_diff(old.splitlines(), new.splitlines(), _short(first), _short(second), lineterm=""))
    show(
        {"sha256_before": first, "sha256_after": second, "diff": lines},
        "\n".join(printable(line) for line in lines) or "no difference",
    )


@app.command()
def check(
    sandbox: Annotated[str, typer.Argument(metavar="SANDBOX", help="Id of the sandbox.")],
    tool: Annotated[str, typer.Argument(help="Name of the tool, as run_command.")],
    arguments: Annotated[str, typer.Argument(help='Its arguments as JSON, as {"command": "ls"}.')],
) -> int:
    """Say what the gate would answer to a call now; nothing is run. Ends with 3 unless it is allowed."""
    from coldframe.cli.connection import connect
    from coldframe.contract.errors import InvalidArgument

    try:
        content = json.loads(arguments)
    except ValueError as error:
        raise InvalidArgument(f"the arguments are not JSON: {error}", argument="arguments") from None
    if not isinstance(content, dict):
        raise InvalidArgument("the arguments are not a JSON object", argument="arguments")
    with connect() as client:
        decision = client.policy.check(sandbox, tool, content)
    show(decision, f"{decision['outcome']} by {decision['rule_id']}: {decision['reason']}")
    return 0 if decision["outcome"] == "allow" else 3


@app.command()
def replay(seq: Annotated[int, typer.Argument(help="Number of the ledger entry.")]) -> int:
    """Decide a recorded call again from its stored context and rules. Ends with 6 if the answer differs."""
    from coldframe.cli.connection import connect

    with connect() as client:
        answer = client.policy.replay(seq)
    stored, again = answer["stored"], answer["recomputed"]
    show(
        answer,
        f"{'same' if answer['same'] else 'DIFFERENT'}: {stored['outcome']} by {stored['rule_id']}, "
        f"again {again['outcome']} by {again['rule_id']}",
    )
    return 0 if answer["same"] else 6


def _changes(client: "SyncColdframe") -> "list[PolicyChange]":
    found: list[PolicyChange] = []
    while more := client.policy.log(after=found[-1].seq if found else 0):
        found += more
    return found


def _find(changes: "list[PolicyChange]", beginning: str) -> str:
    """The digest that begins like that. Raises NotFound, InvalidArgument."""
    from coldframe.contract.errors import InvalidArgument, NotFound

    known = {one for change in changes for one in (change.sha256_before, change.sha256) if one is not None}
    found = [one for one in known if one.startswith(beginning.lower())]
    if not found:
        raise NotFound(
            f"no version of the rules begins with `{beginning[:80]}`", hint="list them with `coldframe policy log`"
        )
    if len(found) > 1:
        raise InvalidArgument(f"`{beginning[:80]}` begins more than one version of the rules", hint="give more of it")
    return found[0]


def _short(sha256: str | None) -> str:
    return "" if sha256 is None else sha256[:12]


def _read(file: str) -> str:
    from coldframe.contract.errors import InvalidArgument

    try:
        if file == "-":
            return sys.stdin.buffer.read().decode()
        with open(file, encoding="utf-8") as source:
            return source.read()
    except UnicodeDecodeError:
        raise InvalidArgument(f"`{file}` is not UTF-8 text", argument="file") from None
