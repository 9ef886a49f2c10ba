"""`coldframe git`: repositories of a workspace, looked at in any state and changed where a sandbox runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from coldframe.cli.output import Chosen, note, printable, show, show_json, show_table

if TYPE_CHECKING:
    from coldframe.client.sync import Git
    from coldframe.contract.git import GitDiff, GitDone, GitPlace

app = typer.Typer(
    help="Git in the workspace of a sandbox. What only looks runs nothing, and works when it has ended.",
    no_args_is_help=True,
)
SandboxId = Annotated[str, typer.Argument(metavar="SANDBOX", help="Id of the sandbox.")]
At = Annotated[
    str, typer.Option("-C", "--path", metavar="DIR", help="A directory of the repository, in the workspace.")
]
Paths = Annotated[list[str] | None, typer.Argument(metavar="[PATH]...", help="Only these, from the top of it.")]
Snapshot = Annotated[str | None, typer.Option(help="As it is in that snapshot.")]
Limit = Annotated[int, typer.Option("-n", "--limit", help="How many at most.")]
Handle = Annotated[
    str | None,
    typer.Option("--credential", metavar="VARIABLE", help="Of the environment; holds the handle of a credential."),
]
NoHooks = Annotated[bool, typer.Option("--no-hooks", help="Run none of the hooks of the repository.")]
_LETTERS = {None: " ", "added": "A", "modified": "M", "deleted": "D", "untracked": "?"}


@contextmanager
def _git(sandbox: str) -> "Iterator[Git]":
    from coldframe.cli.connection import connect

    with connect() as client:
        yield client.sandboxes.get(sandbox).git


@app.command()
def status(sandbox: SandboxId, *, path: At = "", snapshot: Snapshot = None, limit: Limit = 1000) -> None:
    """Show what is not as the last commit has it."""
    with _git(sandbox) as git:
        found = git.status(path, limit=limit, snapshot=snapshot)
    if Chosen.as_json:
        show_json(found)
        return
    told = found
    note(f"{found.repository}: {_place(found)}")
    if told.under_way is not None:
        note(f"a {told.under_way.replace('_', ' ')} is under way")
    if told.upstream is not None and told.ahead is not None:
        note(f"{told.ahead} ahead of {told.upstream}, {told.behind} behind")
    rows = [
        ("UU" if one.conflict else _LETTERS[one.staged] + _LETTERS[one.unstaged], one.path, one.conflict or "")
        for one in told.changes
    ]
    show_table(told.changes, ("", "file", "conflict"), rows, empty="nothing is changed")


@app.command()
def log(
    sandbox: SandboxId,
    paths: Paths = None,
    *,
    revision: Annotated[str | None, typer.Option(help="A branch, a tag or a commit.")] = None,
    path: At = "",
    skip: Annotated[int, typer.Option(help="Leave out so many.")] = 0,
    limit: Limit = 20,
    snapshot: Snapshot = None,
) -> None:
    """List commits, newest first."""
    with _git(sandbox) as git:
        found = git.log(path, revision=revision, paths=paths or (), skip=skip, limit=limit, snapshot=snapshot)
    if Chosen.as_json:
        show_json(found)
        return
    rows = [(one.id[:10], one.author, one.authored_at, one.message.partition("\n")[0]) for one in found.commits]
    show_table(found.commits, ("commit", "author", "when", "message"), rows, empty="no commits")


@app.command("show")
def show_(
    sandbox: SandboxId,
    revision: Annotated[str | None, typer.Argument(metavar="[REVISION]")] = None,
    *,
    path: At = "",
    limit: Limit = 1000,
    snapshot: Snapshot = None,
) -> None:
    """Show one commit, and what it changed."""
    with _git(sandbox) as git:
        found = git.show(revision, path, limit=limit, snapshot=snapshot)
    commit = found.commit
    head = f"commit {commit.id}\nAuthor: {commit.author} <{commit.author_email}>\nDate:   {commit.authored_at}\n\n"
    show(found, printable(head + commit.message.rstrip() + "\n\n") + _patch(found.diff))


@app.command()
def diff(
    sandbox: SandboxId,
    paths: Paths = None,
    *,
    before: Annotated[str | None, typer.Option(help="A revision; else what is staged.")] = None,
    after: Annotated[str | None, typer.Option(help="A revision; else the working tree.")] = None,
    staged: Annotated[bool, typer.Option("--staged", help="What is to be committed next.")] = False,
    path: At = "",
    limit: Limit = 1000,
    snapshot: Snapshot = None,
) -> None:
    """Show in which lines two states differ."""
    with _git(sandbox) as git:
        found = git.diff(
            path, before=before, after=after, staged=staged, paths=paths or (), limit=limit, snapshot=snapshot
        )
    show(found, _patch(found))


@app.command()
def refs(sandbox: SandboxId, *, path: At = "", limit: Limit = 1000, snapshot: Snapshot = None) -> None:
    """List branches, tags and remotes."""
    with _git(sandbox) as git:
        found = git.refs(path, limit=limit, snapshot=snapshot)
    if Chosen.as_json:
        show_json(found)
        return
    rows = [("branch", one.name, one.commit[:10], one.upstream or "") for one in found.branches]
    rows += [("tag", one.name, one.commit[:10], "") for one in found.tags]
    rows += [("remote branch", one.name, one.commit[:10], "") for one in found.remote_branches]
    rows += [("remote", one.name, "", one.url) for one in found.remotes]
    show_table(rows, ("kind", "name", "commit", "goes with"), rows, empty="no names")


@app.command()
def repositories(sandbox: SandboxId, *, limit: Limit = 200, snapshot: Snapshot = None) -> None:
    """List the repositories of the workspace."""
    with _git(sandbox) as git:
        found = git.repositories(limit=limit, snapshot=snapshot)
    rows = [(one.path, one.branch or "", (one.head or "")[:10], one.reason or "") for one in found.repositories]
    show_table(found.repositories, ("repository", "branch", "commit", "problem"), rows, empty="no repositories")


@app.command()
def init(
    sandbox: SandboxId,
    path: Annotated[str, typer.Argument(metavar="[DIR]")] = "",
    *,
    branch: Annotated[str, typer.Option("-b", "--branch", help="Which the first commit will be on.")] = "main",
) -> None:
    """Begin a repository."""
    with _git(sandbox) as git:
        _told(git.init(path, branch=branch))


@app.command()
def clone(
    sandbox: SandboxId,
    url: Annotated[str, typer.Argument(metavar="URL")],
    path: Annotated[str, typer.Argument(metavar="[DIR]")] = "",
    *,
    branch: Annotated[str | None, typer.Option("-b", "--branch")] = None,
    depth: Annotated[int | None, typer.Option(help="Commits of history.")] = None,
    submodules: Annotated[bool, typer.Option("--submodules", help="Fetch them, too.")] = False,
    credential: Handle = None,
) -> None:
    """Fetch a repository, as far as the network of the sandbox leads there."""
    with _git(sandbox) as git:
        _told(git.clone(url, path, branch=branch, depth=depth, submodules=submodules, credential_variable=credential))


@app.command()
def commit(
    sandbox: SandboxId,
    paths: Annotated[list[str] | None, typer.Argument(metavar="[PATH]...", help="Added first; `.` for all.")] = None,
    *,
    message: Annotated[str, typer.Option("-m", "--message", help="What it is, and why.")],
    all_: Annotated[bool, typer.Option("-a", "--all", help="Add every change of files that Git knows.")] = False,
    allow_empty: Annotated[bool, typer.Option("--allow-empty")] = False,
    amend: Annotated[bool, typer.Option("--amend", help="In place of the last one.")] = False,
    no_hooks: NoHooks = False,
    path: At = "",
) -> None:
    """Record what is staged. The agent is its author."""
    with _git(sandbox) as git:
        done = git.commit(
            message, path, paths=paths or (), all=all_, allow_empty=allow_empty, amend=amend, hooks=not no_hooks
        )
    _told(done)


@app.command()
def branch(
    sandbox: SandboxId,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    start: Annotated[str | None, typer.Argument(metavar="[REVISION]")] = None,
    *,
    delete: Annotated[bool, typer.Option("-d", "--delete")] = False,
    force: Annotated[bool, typer.Option("-f", "--force")] = False,
    path: At = "",
) -> None:
    """Make a branch, or delete one."""
    with _git(sandbox) as git:
        _told(git.branch(name, path, start=start, delete=delete, force=force))


@app.command()
def switch(
    sandbox: SandboxId,
    to: Annotated[str, typer.Argument(metavar="BRANCH")],
    start: Annotated[str | None, typer.Argument(metavar="[REVISION]", help="Where a new one begins.")] = None,
    *,
    create: Annotated[bool, typer.Option("-c", "--create", help="Make it.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="To a commit, without a branch.")] = False,
    path: At = "",
) -> None:
    """Check out another branch, or a commit."""
    with _git(sandbox) as git:
        _told(git.switch(to, path, create=create, start=start, detach=detach))


@app.command()
def merge(
    sandbox: SandboxId,
    revision: Annotated[str | None, typer.Argument(metavar="[REVISION]")] = None,
    *,
    message: Annotated[str | None, typer.Option("-m", "--message")] = None,
    fast_forward: Annotated[Literal["allow", "only", "never"], typer.Option(help="Without a commit of its own.")] = (
        "allow"
    ),
    abort: Annotated[bool, typer.Option("--abort", help="Give up the one that is under way.")] = False,
    no_hooks: NoHooks = False,
    path: At = "",
) -> None:
    """Join another history to the branch that is checked out."""
    with _git(sandbox) as git:
        _told(git.merge(revision, path, message=message, fast_forward=fast_forward, abort=abort, hooks=not no_hooks))


@app.command()
def restore(
    sandbox: SandboxId,
    paths: Annotated[list[str], typer.Argument(metavar="PATH...")],
    *,
    source: Annotated[str | None, typer.Option(help="A revision; else what is staged.")] = None,
    staged: Annotated[bool, typer.Option("--staged", help="What is to be committed next, too.")] = False,
    keep_files: Annotated[bool, typer.Option("--keep-files", help="Leave the files as they are.")] = False,
    path: At = "",
) -> None:
    """Have files be again as a commit has them. What they had is lost."""
    with _git(sandbox) as git:
        _told(git.restore(paths, path, source=source, staged=staged, worktree=not keep_files))


@app.command()
def tag(
    sandbox: SandboxId,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    revision: Annotated[str | None, typer.Argument(metavar="[REVISION]")] = None,
    *,
    message: Annotated[str | None, typer.Option("-m", "--message")] = None,
    delete: Annotated[bool, typer.Option("-d", "--delete")] = False,
    force: Annotated[bool, typer.Option("-f", "--force")] = False,
    path: At = "",
) -> None:
    """Give a commit a name that stays, or take one away."""
    with _git(sandbox) as git:
        _told(git.tag(name, path, revision=revision, message=message, delete=delete, force=force))


@app.command()
def fetch(
    sandbox: SandboxId,
    remote: Annotated[str, typer.Argument(metavar="[REMOTE]")] = "origin",
    branches: Annotated[list[str] | None, typer.Argument(metavar="[BRANCH]...")] = None,
    *,
    tags: Annotated[bool, typer.Option("--tags")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Forget what the remote has no more.")] = False,
    depth: Annotated[int | None, typer.Option(help="Commits of history.")] = None,
    credential: Handle = None,
    path: At = "",
) -> None:
    """Get what a remote has, as far as the network of the sandbox leads there."""
    with _git(sandbox) as git:
        done = git.fetch(
            path,
            remote=remote,
            branches=branches or (),
            tags=tags,
            prune=prune,
            depth=depth,
            credential_variable=credential,
        )
    _told(done)


@app.command()
def push(
    sandbox: SandboxId,
    remote: Annotated[str, typer.Argument(metavar="[REMOTE]")] = "origin",
    branch: Annotated[str | None, typer.Argument(metavar="[BRANCH]", help="Else the one checked out.")] = None,
    *,
    tags: Annotated[list[str] | None, typer.Option("--tag", metavar="NAME", help="Sent, too.")] = None,
    set_upstream: Annotated[bool, typer.Option("-u", "--set-upstream")] = False,
    force_with_lease: Annotated[bool, typer.Option("--force-with-lease")] = False,
    credential: Handle = None,
    no_hooks: NoHooks = False,
    path: At = "",
) -> None:
    """Send a branch to a remote, as far as the network of the sandbox leads there."""
    with _git(sandbox) as git:
        done = git.push(
            path,
            remote=remote,
            branch=branch,
            tags=tags or (),
            set_upstream=set_upstream,
            force_with_lease=force_with_lease,
            credential_variable=credential,
            hooks=not no_hooks,
        )
    _told(done)


def _told(done: "GitDone") -> None:
    for line in done.notes:
        note(line)
    show(done, f"{done.repository}: {_place(done)}")


def _place(found: "GitDone | GitPlace") -> str:
    where = found.branch or "no branch"
    return f"{where} at {found.head[:10]}" if found.head is not None else f"{where}, nothing is committed yet"


def _patch(diff: "GitDiff") -> str:
    """As a unified diff, with what is not compared told in its place."""
    lines = []
    for one in diff.files:
        lines.append(f"--- {'/dev/null' if one.old_mode is None else 'a/' + one.path}")
        lines.append(f"+++ {'/dev/null' if one.new_mode is None else 'b/' + one.path}")
        if one.binary or one.reason is not None or one.kind == "submodule":
            what = one.reason or ("it is a submodule" if one.kind == "submodule" else "it is no text")
            lines.append(f"({one.change}: {what})")
        for hunk in one.hunks:
            lines.append(f"@@ -{hunk.old_start},{hunk.old_lines} +{hunk.new_start},{hunk.new_lines} @@")
            lines += hunk.lines
    if not diff.complete:
        lines.append(f"({diff.total} files differ; not all of it is shown)")
    return printable("\n".join(lines))
