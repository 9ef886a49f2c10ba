"""Profiles: which one a piece of work needs, the way to a larger one, and what somebody who evaluates a sandbox asks."""

from typing import TYPE_CHECKING, Annotated

import typer

from coldframe.cli.output import show, show_table

if TYPE_CHECKING:
    from coldframe.contract.profile import Requirements

SandboxId = Annotated[str, typer.Argument(metavar="SANDBOX", help="Id of the sandbox.")]
Needs = Annotated[
    list[str] | None,
    typer.Argument(metavar="NEED", help="What it needs, as files or human_review, or not NAME for a condition."),
]


def recommend(needs: Needs = None) -> None:
    """Say which profile is enough for a piece of work, and why no smaller one is."""
    from coldframe.contract.profile import recommend_profile

    found = recommend_profile(_requirements(needs or []))
    lines = [found.profile, *(f"  {one.requirement}: {one.text} ({one.profile})" for one in found.reasons)]
    show(found, "\n".join(lines))


def _requirements(needs: list[str]) -> "Requirements":
    from coldframe.contract.errors import InvalidArgument
    from coldframe.contract.profile import Requirements

    said: dict[str, bool] = {}
    words = iter(needs)
    for word in words:
        answer = word != "not"
        name = (word if answer else next(words, "")).replace("-", "_")
        if name not in Requirements.model_fields:
            raise InvalidArgument(
                f"`{name}` is nothing that is asked about",
                hint=f"use {', '.join(Requirements.model_fields)}, each also behind `not`",
                argument="need",
            )
        said[name] = answer
    return Requirements(**said)


def profiles() -> None:
    """List the four profiles with what each can do."""
    from coldframe.contract.profile import CAPABILITIES, PROFILES, has, list_profiles

    rows = [
        (name, *("yes" if row.exists and has(one, name) else "" for one in PROFILES))
        for name, row in CAPABILITIES.items()
    ]
    show_table(list_profiles(), ("capability", *PROFILES), rows, empty="no profiles")


def describe(sandbox: SandboxId) -> None:
    """Say what the agent can do in a sandbox, what remains of it, and how reliably people can look at it or take it back."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.sandboxes.get(sandbox).describe()
    lines = [f"{found.sandbox_id}: {found.profile}, {found.state}, label {found.label}"]
    for title, part in (
        ("What can the agent do?", found.can),
        ("Which state remains?", found.remains),
        ("How reliably can people look at the result?", found.inspect),
        ("How reliably can people take it back?", found.reset),
    ):
        lines += ["", title, *(f"  {one.text}  [{one.verified_by}]" for one in part)]
    show(found, "\n".join(lines))


def promote(
    sandbox: SandboxId,
    *,
    to: Annotated[str, typer.Option(help="sandbox, workspace or computer.")],
    agent: Annotated[str | None, typer.Option(help="New agent whose workspace its temporary one becomes.")] = None,
    template: Annotated[str | None, typer.Option(help="What the system of a computer begins from.")] = None,
) -> None:
    """Let a sandbox go on in a larger profile: the same id, files and record. There is no way back."""
    from coldframe.cli.connection import connect
    from coldframe.contract.errors import InvalidArgument
    from coldframe.contract.profile import PROFILES

    if to not in PROFILES:
        raise InvalidArgument(f"`{to}` is no profile", hint=f"use {', '.join(PROFILES)}", argument="to")
    with connect() as client:
        done = client.sandboxes.get(sandbox).promote(to, agent_id=agent, template=template)
    lines = [f"{done.sandbox_id} is a {done.spec.profile}, and {done.state.state}"]
    if done.from_profile == done.spec.profile:
        lines = [f"{done.sandbox_id} is a {done.spec.profile} already"]
    lines += [f"  lost: {one.what}" for one in done.lost]
    show(done, "\n".join(lines))


def summary(sandbox: SandboxId) -> None:
    """Show what whoever goes on with the work needs first, in a few kilobytes."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.sandboxes.get(sandbox).summary()
    lines = [f"{found.sandbox_id}: {found.profile}, {found.state}, label {found.label}"]
    lines += ["files"] + [
        f"  {one.path}" + (f" ({one.files} files)" if one.files is not None else f" {one.bytes}") for one in found.tree
    ]
    lines += ["changed"] * bool(found.recent_changes)
    lines += [
        f"  {one.at:%Y-%m-%d %H:%M:%S} {one.change} {one.path} ({one.receipt_id})" for one in found.recent_changes
    ]
    lines += ["running"] * bool(found.running)
    lines += [f"  {one.command_id} {one.command}" + "".join(f" :{port}" for port in one.ports) for one in found.running]
    lines += ["failed"] * bool(found.failed)
    for one in found.failed:
        since = ", and passed since" if one.passed_since else ""
        lines.append(f"  {one.command_id} {one.command}: {one.ended} {one.exit_code}{since}")
        lines += [f"    {line}" for line in one.last_output.splitlines()[-8:]]
    lines += ["packages that have changed"] * bool(found.drift)
    lines += [
        f"  {one.manager} {one.name}: {one.before or 'none'} -> {one.after or 'none'} since the {one.against}"
        for one in found.drift
    ]
    if found.notes is not None:
        lines += [found.notes.path, *(f"  {line}" for line in found.notes.text.splitlines())]
    lines += [f"left out: {one}" for one in found.left_out]
    show(found, "\n".join(lines))


def overview(sandbox: SandboxId) -> None:
    """Show the workspace that a sandbox is or was on: files, Git, activity, builds, logs, previews, and how to go on."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.sandboxes.get(sandbox).overview()
    lines = [f"{found.agent_id or found.sandbox_id}: {len(found.sandboxes)} sandboxes, label {found.label}"]
    for section in found.sections:
        lines += ["", section.name if section.reason is None else f"{section.name}: {section.reason}"]
        for one in section.entries:
            when = "" if one.at is None else f"{one.at:%Y-%m-%d %H:%M:%S} "
            lines.append(f"  {when}{one.title} ({one.receipt_id or 'no receipt yet'})")
    lines += ["", *(f"next: {one.name}: {one.effect}" for one in found.actions)]
    show(found, "\n".join(lines))
