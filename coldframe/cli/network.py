"""`coldframe network`: whom sandboxes reached, and tried to reach."""

import re
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from coldframe.cli import cache
from coldframe.cli.output import Chosen, plain, printable, show_json, show_table
from coldframe.cli.packages import packages

if TYPE_CHECKING:
    from coldframe.client.sync import SyncSandbox
    from coldframe.contract.network import DeniedSum, LoggedContact, NetworkContact, NetworkRequest

app = typer.Typer(help="See whom sandboxes reached and tried to reach.", no_args_is_help=True)
app.add_typer(cache.app, name="cache")
app.command()(packages)
PAGE = 1000
_AGO = re.compile(r"([0-9]{1,6})([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
Host = Annotated[str | None, typer.Option(help="Only this name or address, or *.NAME for all names below it.")]
Since = Annotated[str | None, typer.Option(help="From then on: a time, or how long ago, as 90m, 12h, 7d.")]
Lookups = Annotated[bool, typer.Option("--lookups", help="Also names that were looked up and answered.")]
Denied = Annotated[bool, typer.Option("--denied", help="Only what was denied.")]
Long = Annotated[bool, typer.Option("--long", help="Also command, process and rule of each, and all bytes.")]
_SHORT = ("began", "verdict", "where", "how", "out/in", "end", "program")
_LONG = ("number", "began", "verdict", "where", "how", "out/in", "end", "rule", "command", "program")


@app.command()
def log(
    sandbox: Annotated[str, typer.Argument(metavar="SANDBOX", help="Id of the sandbox, also of one that has ended.")],
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the sandbox has ended.")] = False,
    denied: Denied = False,
    host: Host = None,
    command: Annotated[str | None, typer.Option(help="Only contacts of this command.")] = None,
    lookups: Lookups = False,
    long: Long = False,
    after: Annotated[int, typer.Option(help="Only contacts after this number.")] = 0,
    limit: Annotated[int | None, typer.Option(help="At most so many; all without it.")] = None,
) -> None:
    """List the contacts of a sandbox, allowed and denied, in the order in which they came on record."""
    from coldframe.cli.connection import connect

    outcome: Literal["deny"] | None = "deny" if denied else None
    with connect() as client:
        found = client.sandboxes.get(sandbox)
        if follow:
            _follow(found, outcome, host, command, lookups=lookups, is_long=long)
            return
        contacts: list[LoggedContact] = []
        sums: tuple[DeniedSum, ...] = ()
        while limit is None or len(contacts) < limit:
            size = PAGE if limit is None else min(PAGE, limit - len(contacts))
            page = found.network_log(
                after=after, limit=size, outcome=outcome, host=host, command_id=command, lookups=lookups
            )
            contacts += page.contacts
            sums = page.denied_sums
            if page.next_after is None:
                break
            after = page.next_after
    if Chosen.as_json:
        show_json({"contacts": plain(contacts), "denied_sums": plain(sums)})
        return
    _show(contacts, is_long=long)
    for one in sums:
        where = f"{one.wanted} port {one.port}" if one.wanted else "others"
        sys.stdout.write(
            printable(f"and {one.times} more of {where}, denied by {one.rule_id or 'several rules'}") + "\n"
        )


@app.command()
def search(
    *,
    host: Host = None,
    since: Since = None,
    denied: Denied = False,
    agent: Annotated[str | None, typer.Option(help="Only this agent.")] = None,
    lookups: Lookups = False,
    long: Long = False,
    after: Annotated[int, typer.Option(help="Only contacts after this number.")] = 0,
    limit: Annotated[int, typer.Option(help="At most so many.")] = 100,
) -> None:
    """List contacts of all sandboxes."""
    from coldframe.cli.connection import connect

    with connect() as client:
        page = client.network.search(
            host=host,
            since=moment(since),
            outcome="deny" if denied else None,
            agent_id=agent,
            after=after,
            limit=min(limit, PAGE),
            lookups=lookups,
        )
    _show(list(page.contacts), with_sandbox=True, is_long=long)


@app.command()
def sandboxes(
    host: Annotated[str, typer.Argument(metavar="HOST", help="A name, an address, or *.NAME.")],
    *,
    since: Since = None,
    denied: Denied = False,
    limit: Annotated[int, typer.Option(help="At most so many.")] = 100,
) -> None:
    """List the sandboxes that reached HOST or tried to, whoever was there last first."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.network.sandboxes(
            host=host, since=moment(since), outcome="deny" if denied else None, limit=min(limit, PAGE)
        )
    rows = [(r.sandbox_id, r.agent_id or "(background)", r.allowed, r.denied, r.first_at, r.last_at) for r in found]
    show_table(found, ("sandbox", "agent", "allowed", "denied", "first", "last"), rows, empty="no sandboxes")


def moment(text: str | None) -> str | None:
    """A time as the server takes it. Raises InvalidArgument."""
    from datetime import UTC, timedelta

    from coldframe.contract.errors import InvalidArgument

    if text is None:
        return None
    if ago := _AGO.fullmatch(text):
        return (datetime.now(UTC) - timedelta(seconds=int(ago[1]) * _SECONDS[ago[2]])).isoformat()
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"`{text}` is no time", hint="give one as 2026-05-04T12:00Z, or how long ago, as 7d", argument="since"
        ) from None
    return at.astimezone().isoformat()


def _follow(
    sandbox: "SyncSandbox",
    outcome: Literal["deny"] | None,
    host: str | None,
    command: str | None,
    *,
    lookups: bool,
    is_long: bool,
) -> None:
    for one in sandbox.follow_network(outcome=outcome, host=host, command_id=command, lookups=lookups):
        row = _long_row(one) if is_long else _row(one)
        text = one.model_dump_json() if Chosen.as_json else printable("  ".join(str(cell) for cell in row if cell))
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def _show(contacts: "list[LoggedContact]", *, with_sandbox: bool = False, is_long: bool = False) -> None:
    columns = (*(("sandbox",) if with_sandbox else ()), *(_LONG if is_long else _SHORT))
    rows = [
        (*((one.sandbox_id,) if with_sandbox else ()), *(_long_row(one) if is_long else _row(one))) for one in contacts
    ]
    show_table(contacts, columns, rows, empty="no contacts")


def _row(one: "LoggedContact") -> tuple[str, ...]:
    """What fits on a line. Of one that was denied the rule says more than its end."""
    contact = one.contact
    is_allowed = contact.outcome.value == "allow"
    return (
        _time(contact.began_at),
        contact.outcome.value,
        _where(contact),
        _how(contact),
        f"{_size(contact.sent_bytes)}/{_size(contact.received_bytes)}",
        contact.ended or "open" if is_allowed else f"by {contact.rule_id}",
        (contact.program or "").rpartition("/")[2],
    )


def _long_row(one: "LoggedContact") -> tuple[object, ...]:
    contact = one.contact
    return (
        one.number,
        contact.began_at.astimezone().isoformat(timespec="milliseconds"),
        contact.outcome.value,
        _where(contact),
        _how(contact),
        f"{contact.sent_bytes}/{contact.received_bytes}",
        contact.ended or "open",
        contact.rule_id,
        contact.command_id or "",
        (contact.program or "") if contact.pid is None else f"{contact.program} ({contact.pid})",
    )


def _time(at: datetime) -> str:
    """On the wall clock; the day where it is not today."""
    at = at.astimezone()
    return f"{at:%H:%M:%S}" if at.date() == datetime.now().astimezone().date() else f"{at:%Y-%m-%d %H:%M:%S}"


def _where(contact: "NetworkContact") -> str:
    if contact.name is None and ":" in contact.address:
        return f"[{contact.address}]:{contact.port}"
    return f"{contact.name or contact.address}:{contact.port}"


def _how(contact: "NetworkContact") -> str:
    requests = ", ".join(f"{r.method} {r.path}{_left_out(r)}" for r in contact.requests[:3])
    more = f" and {len(contact.requests) - 3} more" if len(contact.requests) > 3 else ""
    times = f" x{contact.times}" if contact.times > 1 else ""
    return (requests + more or _looked_up(contact) or contact.scheme or contact.protocol) + times


def _size(count: int) -> str:
    """In three digits or so: 999, 1.2K, 34K, 5.6M."""
    size, unit = float(count), ""
    for larger in "KMGT":
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.1f}{unit}" if unit and size < 10 else f"{size:.0f}{unit}"


def _left_out(request: "NetworkRequest") -> str:
    return " (query omitted)" if "query" in request.omitted else ""


def _looked_up(contact: "NetworkContact") -> str:
    return "" if contact.lookup is None else f"look-up {contact.lookup.kind}: {contact.lookup.answer}"
