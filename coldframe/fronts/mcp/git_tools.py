"""Git in a workspace: what is told of a repository is read as data, what changes one is Git in the sandbox."""

from typing import Annotated, TypeVar

from pydantic import Field

from coldframe.contract.git import (
    MOST_LISTED,
    MOST_PATHS,
    GitBranchRequest,
    GitClone,
    GitCommitRequest,
    GitDiffView,
    GitDone,
    GitFetch,
    GitInit,
    GitLogView,
    GitMerge,
    GitPlace,
    GitPush,
    GitRefsView,
    GitRepositoriesView,
    GitRequest,
    GitRestore,
    GitShowView,
    GitStatusView,
    GitSwitch,
    GitTagRequest,
    InnerPath,
    RepositoryPath,
    Revision,
)
from coldframe.fronts.mcp.choice import choose_sandbox
from coldframe.fronts.mcp.offers import Asked, offer
from coldframe.fronts.mcp.workspace_tools import WhichSandbox

V = TypeVar("V", bound=GitPlace)
R = TypeVar("R", bound=GitRequest)
_RIGHT = "tool.call"
_WHERE = set(WhichSandbox.model_fields)


class WhichRepository(WhichSandbox):
    path: RepositoryPath = ""
    """A directory of it, relative to the workspace; empty for the workspace itself."""
    snapshot: Annotated[str | None, Field(max_length=100)] = None
    """As it is in that."""
    limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] = 200
    """Most files, or names, to tell."""


class WhichCommits(WhichRepository):
    revision: Revision | None = None
    """None for what is checked out."""
    paths: Annotated[tuple[InnerPath, ...], Field(max_length=MOST_PATHS)] = ()
    """Only commits that changed one of these."""
    skip: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] = 20


class WhichCommit(WhichRepository):
    revision: Revision | None = None
    paths: Annotated[tuple[InnerPath, ...], Field(max_length=MOST_PATHS)] = ()


class WhichDifference(WhichRepository):
    before: Revision | None = None
    after: Revision | None = None
    staged: bool = False
    paths: Annotated[tuple[InnerPath, ...], Field(max_length=MOST_PATHS)] = ()


class Init(WhichSandbox, GitInit): ...


class Clone(WhichSandbox, GitClone): ...


class Commit(WhichSandbox, GitCommitRequest): ...


class Branch(WhichSandbox, GitBranchRequest): ...


class Switch(WhichSandbox, GitSwitch): ...


class Merge(WhichSandbox, GitMerge): ...


class Restore(WhichSandbox, GitRestore): ...


class Tag(WhichSandbox, GitTagRequest): ...


class Fetch(WhichSandbox, GitFetch): ...


class Push(WhichSandbox, GitPush): ...


@offer(arguments=WhichRepository, answer=GitStatusView, right="file.read", reads=True)
async def git_status(asked: Asked, which: WhichRepository) -> GitStatusView:
    """What of a repository is not as its last commit has it: staged, changed, untracked, in conflict; and what is under way. Nothing
    is run for it, so it is told of a sandbox that has ended, too."""
    return await _look(asked, GitStatusView, which)


@offer(arguments=WhichCommits, answer=GitLogView, right="file.read", reads=True)
async def git_log(asked: Asked, which: WhichCommits) -> GitLogView:
    """Commits of a repository, newest first, with author, message and trailers."""
    return await _look(asked, GitLogView, which)


@offer(arguments=WhichCommit, answer=GitShowView, right="file.read", reads=True)
async def git_show(asked: Asked, which: WhichCommit) -> GitShowView:
    """One commit, with the hunks in which it differs from its first parent."""
    return await _look(asked, GitShowView, which)


@offer(arguments=WhichDifference, answer=GitDiffView, right="file.read", reads=True)
async def git_diff(asked: Asked, which: WhichDifference) -> GitDiffView:
    """The hunks in which the working tree differs from what is staged, or, with `staged`, that from HEAD; or two revisions differ."""
    return await _look(asked, GitDiffView, which)


@offer(arguments=WhichRepository, answer=GitRefsView, right="file.read", reads=True)
async def git_refs(asked: Asked, which: WhichRepository) -> GitRefsView:
    """Branches, tags and remotes of a repository."""
    return await _look(asked, GitRefsView, which)


@offer(arguments=WhichRepository, answer=GitRepositoriesView, right="file.read", reads=True)
async def git_repositories(asked: Asked, which: WhichRepository) -> GitRepositoriesView:
    """The Git repositories of a workspace, with branch and commit of each."""
    return await _look(asked, GitRepositoriesView, which)


@offer(arguments=Init, answer=GitDone, right=_RIGHT, repeats=True)
async def git_init(asked: Asked, wanted: Init) -> GitDone:
    """Begin a repository in a directory of the workspace."""
    return await asked.control.repositories.init(asked.caller, _chosen(asked, wanted), _of(GitInit, wanted))


@offer(arguments=Clone, answer=GitDone, right=_RIGHT)
async def git_clone(asked: Asked, wanted: Clone) -> GitDone:
    """Fetch a repository from elsewhere, as far as the network of the sandbox leads there. `notes` say what is not whole."""
    return await asked.control.repositories.clone(asked.caller, _chosen(asked, wanted), _of(GitClone, wanted))


@offer(arguments=Commit, answer=GitDone, right=_RIGHT)
async def git_commit(asked: Asked, wanted: Commit) -> GitDone:
    """Record what is staged, after adding `paths` (`.` for everything). The agent is its author; on whose behalf stands below the
    message."""
    return await asked.control.repositories.commit(asked.caller, _chosen(asked, wanted), _of(GitCommitRequest, wanted))


@offer(arguments=Branch, answer=GitDone, right=_RIGHT, destroys=True)
async def git_branch(asked: Asked, wanted: Branch) -> GitDone:
    """Make a branch, or delete one."""
    return await asked.control.repositories.branch(asked.caller, _chosen(asked, wanted), _of(GitBranchRequest, wanted))


@offer(arguments=Switch, answer=GitDone, right=_RIGHT)
async def git_switch(asked: Asked, wanted: Switch) -> GitDone:
    """Check out another branch, which `create` makes, or with `detach` a commit. Changes that would be lost keep it from being done."""
    return await asked.control.repositories.switch(asked.caller, _chosen(asked, wanted), _of(GitSwitch, wanted))


@offer(arguments=Merge, answer=GitDone, right=_RIGHT)
async def git_merge(asked: Asked, wanted: Merge) -> GitDone:
    """Join a branch or commit to the branch that is checked out. `GIT_CONFLICT` names the `files` that both changed: edit them and commit
    them, or give it up with `abort`."""
    return await asked.control.repositories.merge(asked.caller, _chosen(asked, wanted), _of(GitMerge, wanted))


@offer(arguments=Restore, answer=GitDone, right=_RIGHT, destroys=True)
async def git_restore(asked: Asked, wanted: Restore) -> GitDone:
    """Have files be again as a commit, or what is staged, has them. What they had is lost."""
    return await asked.control.repositories.restore(asked.caller, _chosen(asked, wanted), _of(GitRestore, wanted))


@offer(arguments=Tag, answer=GitDone, right=_RIGHT, destroys=True)
async def git_tag(asked: Asked, wanted: Tag) -> GitDone:
    """Give a commit a name that stays, or take one away."""
    return await asked.control.repositories.tag(asked.caller, _chosen(asked, wanted), _of(GitTagRequest, wanted))


@offer(arguments=Fetch, answer=GitDone, right=_RIGHT, repeats=True)
async def git_fetch(asked: Asked, wanted: Fetch) -> GitDone:
    """Get what a remote has, as far as the network of the sandbox leads there. Nothing that is checked out changes."""
    return await asked.control.repositories.fetch(asked.caller, _chosen(asked, wanted), _of(GitFetch, wanted))


@offer(arguments=Push, answer=GitDone, right=_RIGHT, destroys=True)
async def git_push(asked: Asked, wanted: Push) -> GitDone:
    """Send a branch to a remote, as far as the network of the sandbox leads there."""
    return await asked.control.repositories.push(asked.caller, _chosen(asked, wanted), _of(GitPush, wanted))


async def _look(asked: Asked, view: type[V], which: WhichRepository) -> V:
    wanted = which.model_dump(exclude=_WHERE | {"snapshot"})
    return await asked.control.repositories.look(
        asked.caller, _chosen(asked, which), view, snapshot_id=which.snapshot, **wanted
    )


def _of(kind: type[R], wanted: WhichSandbox) -> R:
    return kind.model_validate(wanted.model_dump(exclude=_WHERE))


def _chosen(asked: Asked, which: WhichSandbox) -> str:
    return choose_sandbox(asked.control, asked.caller, which.sandbox_id, which.workspace)
