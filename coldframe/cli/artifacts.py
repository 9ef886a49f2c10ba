"""`coldframe artifacts`: what work in a sandbox has left, by kind."""

from typing import TYPE_CHECKING, Annotated

import typer

from coldframe.cli.output import note, show, show_table

if TYPE_CHECKING:
    from coldframe.contract.artifact import Artifact, ArtifactKind

SandboxId = Annotated[str, typer.Argument(metavar="SANDBOX", help="Id of the sandbox; it may have ended.")]
KINDS = "source, output, test, log, screenshot or input"


def artifacts(
    sandbox: SandboxId,
    *,
    kind: Annotated[list[str] | None, typer.Option("--kind", "-k", help=f"Only those of this kind: {KINDS}.")] = None,
) -> None:
    """List what the work in a sandbox has left, by kind, each with origin and digest."""
    from coldframe.cli.connection import connect

    kinds = tuple(_kind(one) for one in kind or ())
    found: list[Artifact] = []
    complete = True
    with connect() as client:
        one, after = client.sandboxes.get(sandbox), None
        while True:
            page = one.artifacts(*kinds, after=after)
            found += page.artifacts
            complete, after = page.complete, page.next_after
            if after is None:
                break
    rows = [(one.kind, one.name, one.origin, one.bytes, (one.sha256 or "")[:12], one.rule) for one in found]
    show_table(found, ("kind", "name", "origin", "bytes", "sha256", "rule"), rows, empty="no artifacts")
    if not complete:
        note("there are more than were looked through: these are the newest")
    if page.withheld:
        note(f"what {page.withheld} calls have left was withheld by a rule")


def correct(
    sandbox: SandboxId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `coldframe artifacts` tells it.")],
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"{KINDS}; `rules` takes back what was said.")],
) -> None:
    """Say of what kind an artifact is, where the rules are wrong. It is recorded."""
    from coldframe.cli.connection import connect

    with connect() as client:
        done = client.sandboxes.get(sandbox).correct_artifact(name, None if kind == "rules" else _kind(kind))
    show(done, f"{done.name}: {done.kind} ({done.rule})")


def _kind(text: str) -> "ArtifactKind":
    from typing import cast, get_args

    from coldframe.contract.artifact import ArtifactKind
    from coldframe.contract.errors import InvalidArgument

    if text not in get_args(ArtifactKind):
        raise InvalidArgument(f"`{text[:80]}` is no kind of artifact", hint=f"write {KINDS}", argument="kind")
    return cast("ArtifactKind", text)
