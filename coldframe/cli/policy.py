"""`coldframe policy`: the rules in force, loading others, and what they would say."""

import json
import sys
from typing import Annotated

import typer

from coldframe.cli.output import Chosen, note, show, show_json, write_bytes

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
def load(file: RuleFile) -> None:
    """Put a rule file into force. One that is not valid changes nothing."""
    from coldframe.cli.connection import connect

    text = _read(file)
    with connect() as client:
        rules = client.policy.load(text)
    show(rules, f"in force, sha256 {rules.sha256}")


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


def _read(file: str) -> str:
    from coldframe.contract.errors import InvalidArgument

    try:
        if file == "-":
            return sys.stdin.buffer.read().decode()
        with open(file, encoding="utf-8") as source:
            return source.read()
    except UnicodeDecodeError:
        raise InvalidArgument(f"`{file}` is not UTF-8 text", argument="file") from None
