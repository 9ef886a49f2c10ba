"""What a person or a program gets to see, and the exit code that goes with an error."""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coldframe.contract.errors import ColdframeError

EXIT_INTERNAL = 1
EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_NOT_FOUND = 4
EXIT_UNAVAILABLE = 5
EXIT_NOT_NOW = 6
EXIT_CODES = """Exit codes: 0 done · 1 a fault of ours · 2 the call is wrong · 3 refused · 4 not found ·
5 not available · 6 not possible now (conflict, state, limit). `run` and `exec` end with the code of the
command itself, 128 + N if signal N ended it."""


COMMANDS = {
    "host.doctor": "coldframe doctor",
    "policy.show": "coldframe policy show",
    "token.create": "coldframe token create",
    "agent.delete": "coldframe agent delete {agent_id}",
    "sandbox.list": "coldframe sandbox list",
    "sandbox.create": "coldframe sandbox create",
    "sandbox.get": "coldframe sandbox show {sandbox_id}",
    "sandbox.pause": "coldframe sandbox pause {sandbox_id}",
    "sandbox.resume": "coldframe sandbox resume {sandbox_id}",
    "sandbox.stop": "coldframe sandbox stop {sandbox_id}",
    "sandbox.start": "coldframe sandbox start {sandbox_id}",
    "sandbox.reset": "coldframe sandbox reset {sandbox_id}",
    "snapshot.list": "coldframe snapshot list",
    "template.list": "coldframe template list",
    "template.log": "coldframe template log {build_id}",
    "template.show": "coldframe template show {template}",
    "volume.list": "coldframe volume list",
    "volume.show": "coldframe volume show {volume}",
    "sandbox.extend": "coldframe sandbox extend {sandbox_id}",
    "sandbox.terminate": "coldframe sandbox terminate {sandbox_id}",
    "sandbox.contract": "coldframe contract show {sandbox_id}",
    "contract.plan": "coldframe contract plan {spec}",
    "sandbox.allowed": "coldframe sandbox allowed {sandbox_id}",
    "sandbox.runtimes": "coldframe sandbox runtimes {sandbox_id}",
    "command.get": "coldframe job show {sandbox_id} {command_id}",
    "command.output": "coldframe job logs {sandbox_id} {command_id}",
    "command.follow": "coldframe job logs -f {sandbox_id} {command_id}",
    "command.send_stdin": "coldframe job stdin {sandbox_id} {command_id}",
    "command.signal": "coldframe job signal {sandbox_id} {command_id}",
    "command.extend": "coldframe job extend {sandbox_id} {command_id}",
    "command.cancel": "coldframe job stop {sandbox_id} {command_id}",
    "pipeline.rerun": "coldframe pipeline rerun {sandbox_id} {pipeline_id} --changed {changed}",
    "git.status": "coldframe git status {sandbox_id} --path {path}",
    "git.merge": "coldframe git merge {sandbox_id} --path {path}",
    "git.commit": "coldframe git commit {sandbox_id} --path {path} -m MESSAGE PATH",
    "build.get": "coldframe build show {build_id}",
    "ledger.verify": "coldframe ledger verify",
    "credential.read": "coldframe credential show {name}",
}
"""What a person types for an operation that is offered; the others are for programs."""


class _Named(dict[str, object]):
    """Arguments of an operation; one that is not told is to be filled in by who reads."""

    def __missing__(self, key: str) -> str:
        return {"command_id": "JOB"}.get(key, key.removesuffix("_id").upper())


class Chosen:
    """What the options before the subcommand said; one for the process."""

    as_json: bool = False
    url: str | None = None
    token: str | None = None
    data_dir: str | None = None


def exit_code_of(error: "ColdframeError") -> int:
    if error.status in (400, 413, 422):
        return EXIT_USAGE
    if error.status in (401, 403) or error.code == "PENDING_APPROVAL":
        return EXIT_REFUSED
    if error.status == 404:
        return EXIT_NOT_FOUND
    if error.status in (409, 507):
        return EXIT_NOT_NOW
    return EXIT_UNAVAILABLE if error.status == 503 else EXIT_INTERNAL


def show_error(error: "ColdframeError") -> None:
    """Code, message, hint and next actions on standard error; with --json the wire form."""
    if Chosen.as_json:
        sys.stderr.write(json.dumps({"error": error.to_wire()}, default=str) + "\n")
        return
    sys.stderr.write(f"error: {printable(error.message)} [{error.wire_code or error.code}]\n")
    sys.stderr.write(f"hint: {printable(error.advice)}\n")
    for line in next_lines(error.next_actions, **{k: v for k, v in error.facts.items() if isinstance(v, str)}):
        sys.stderr.write(line + "\n")


def next_lines(actions: Iterable[Mapping[str, Any]], **known: str) -> list[str]:
    """What a person can do next, a line each. *known* are arguments that the actions leave out."""
    lines = []
    for action in actions:
        command = COMMANDS.get(str(action.get("op")))
        if command is not None:
            given = action.get("args", {})
            line = command.format_map(_Named({**known, **given}))
            line += "".join(f" --{name.replace('_', '-')}" for name, value in given.items() if value is True)
            lines.append(f"next: {printable(line)}: {printable(str(action.get('effect')))}")
    return lines


def printable(text: str) -> str:
    """Text that cannot drive the terminal: control characters of hostile names become visible."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def plain(value: Any) -> Any:
    """Models as JSON-ready data."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def show_json(value: Any) -> None:
    json.dump(plain(value), sys.stdout, indent=None if not sys.stdout.isatty() else 2, ensure_ascii=True)
    sys.stdout.write("\n")


def show(value: Any, sentence: str) -> None:
    """*value* for a program, *sentence* for a person."""
    if Chosen.as_json:
        show_json(value)
    else:
        sys.stdout.write(printable(sentence) + "\n")


def show_table(values: Sequence[Any], columns: Iterable[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """*values* for a program, the table for a person."""
    if Chosen.as_json:
        show_json(values)
        return
    if not values:
        sys.stdout.write(empty + "\n")
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(_cell(value))) for value in row))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _cell(value: object) -> str:
    """Times as on the wall clock, to the second: the whole of it is in the JSON."""
    if isinstance(value, datetime):
        return f"{value.astimezone():%Y-%m-%d %H:%M:%S}"
    return "" if value is None else str(value)


def note(sentence: str) -> None:
    """Progress for a person; nothing for a program."""
    if not Chosen.as_json:
        sys.stderr.write(printable(sentence) + "\n")


def write_bytes(stream: int, data: bytes) -> None:
    """Write all of *data* to a descriptor, byte for byte."""
    view = memoryview(data)
    while view:
        view = view[os.write(stream, view) :]
