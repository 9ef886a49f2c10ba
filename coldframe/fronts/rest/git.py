"""Git repositories of a workspace: looked at in any state in which files can be read, changed where a sandbox runs."""

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

from pydantic import Field
from starlette.requests import Request

from coldframe.contract.caller import Caller
from coldframe.contract.git import (
    MOST_LISTED,
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
from coldframe.contract.model import Model
from coldframe.control.repositories import Repositories
from coldframe.fronts.rest.json_routes import JsonRoute
from coldframe.fronts.rest.request import caller_of, control_of, session_of

V = TypeVar("V", bound=GitPlace)
A = TypeVar("A", bound=GitRequest)
AskedPaths = Annotated[tuple[Annotated[InnerPath, Field(max_length=1000)], ...], Field(max_length=30)]
"""In an address, of which the HTTP server reads 64 KiB."""


class Looked(Model):
    path: RepositoryPath = ""
    """A directory in it; empty for the workspace itself."""
    snapshot: str | None = None
    """As it is in that."""
    limit: Annotated[int, Field(ge=1, le=10_000)] = MOST_LISTED


class LookedLog(Looked):
    revision: Revision | None = None
    paths: AskedPaths = ()
    skip: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    limit: Annotated[int, Field(ge=1, le=10_000)] = 100


class LookedShow(Looked):
    revision: Revision | None = None
    paths: AskedPaths = ()


class LookedDiff(Looked):
    before: Revision | None = None
    after: Revision | None = None
    staged: bool = False
    paths: AskedPaths = ()


async def git_status(request: Request, looked: Looked) -> GitStatusView:
    """What is not as the last commit has it, and what is under way. Nothing of Git is run."""
    return await _look(request, GitStatusView, looked)


async def git_log(request: Request, looked: LookedLog) -> GitLogView:
    """Commits, newest first. Nothing of Git is run."""
    return await _look(request, GitLogView, looked)


async def git_show(request: Request, looked: LookedShow) -> GitShowView:
    """One commit, with what it changed against its first parent. Nothing of Git is run."""
    return await _look(request, GitShowView, looked)


async def git_diff(request: Request, looked: LookedDiff) -> GitDiffView:
    """What differs between two of: a revision, what is staged, the working tree. Nothing of Git is run."""
    return await _look(request, GitDiffView, looked)


async def git_refs(request: Request, looked: Looked) -> GitRefsView:
    """Branches, tags and remotes. Nothing of Git is run."""
    return await _look(request, GitRefsView, looked)


async def git_repositories(request: Request, looked: Looked) -> GitRepositoriesView:
    """The repositories of the workspace. Nothing of Git is run."""
    return await _look(request, GitRepositoriesView, looked)


async def git_init(request: Request, asked: GitInit) -> GitDone:
    """Begin a repository."""
    return await _change(request, _repositories(request).init, asked)


async def git_clone(request: Request, asked: GitClone) -> GitDone:
    """Fetch a repository from elsewhere, as far as the network of the sandbox leads there."""
    return await _change(request, _repositories(request).clone, asked)


async def git_commit(request: Request, asked: GitCommitRequest) -> GitDone:
    """Record what is staged, after adding what is named. Its author is the agent."""
    return await _change(request, _repositories(request).commit, asked)


async def git_branch(request: Request, asked: GitBranchRequest) -> GitDone:
    """Make a branch, or delete one."""
    return await _change(request, _repositories(request).branch, asked)


async def git_switch(request: Request, asked: GitSwitch) -> GitDone:
    """Check out another branch, or a commit."""
    return await _change(request, _repositories(request).switch, asked)


async def git_merge(request: Request, asked: GitMerge) -> GitDone:
    """Join another history to the branch that is checked out, or give that up."""
    return await _change(request, _repositories(request).merge, asked)


async def git_restore(request: Request, asked: GitRestore) -> GitDone:
    """Have files be again as a commit, or what is staged, has them."""
    return await _change(request, _repositories(request).restore, asked)


async def git_tag(request: Request, asked: GitTagRequest) -> GitDone:
    """Give a commit a name that stays, or take one away."""
    return await _change(request, _repositories(request).tag, asked)


async def git_fetch(request: Request, asked: GitFetch) -> GitDone:
    """Get what a remote has. Nothing that is checked out changes."""
    return await _change(request, _repositories(request).fetch, asked)


async def git_push(request: Request, asked: GitPush) -> GitDone:
    """Send a branch to a remote."""
    return await _change(request, _repositories(request).push, asked)


async def _look(request: Request, view: type[V], looked: Looked) -> V:
    asked = looked.model_dump(exclude={"snapshot"})
    return await _repositories(request).look(
        caller_of(request),
        _sandbox(request),
        view,
        session_id=session_of(request),
        snapshot_id=looked.snapshot,
        **asked,
    )


async def _change(
    request: Request, change: Callable[[Caller, str, A, str | None], Awaitable[GitDone]], asked: A
) -> GitDone:
    return await change(caller_of(request), _sandbox(request), asked, session_of(request))


def _repositories(request: Request) -> Repositories:
    return control_of(request).repositories


def _sandbox(request: Request) -> str:
    return str(request.path_params["sandbox_id"])


_GIT = "/v1/sandboxes/{sandbox_id}/git/"
_SESSION = (("Coldframe-Session", "The session that it belongs to."),)
ROUTES = (
    JsonRoute("GET", _GIT + "status", git_status, GitStatusView, query=Looked, headers=_SESSION),
    JsonRoute("GET", _GIT + "log", git_log, GitLogView, query=LookedLog, headers=_SESSION),
    JsonRoute("GET", _GIT + "show", git_show, GitShowView, query=LookedShow, headers=_SESSION),
    JsonRoute("GET", _GIT + "diff", git_diff, GitDiffView, query=LookedDiff, headers=_SESSION),
    JsonRoute("GET", _GIT + "refs", git_refs, GitRefsView, query=Looked, headers=_SESSION),
    JsonRoute("GET", _GIT + "repositories", git_repositories, GitRepositoriesView, query=Looked, headers=_SESSION),
    JsonRoute("POST", _GIT + "init", git_init, GitDone, body=GitInit, headers=_SESSION),
    JsonRoute("POST", _GIT + "clone", git_clone, GitDone, body=GitClone, headers=_SESSION),
    JsonRoute("POST", _GIT + "commit", git_commit, GitDone, body=GitCommitRequest, headers=_SESSION),
    JsonRoute("POST", _GIT + "branch", git_branch, GitDone, body=GitBranchRequest, headers=_SESSION),
    JsonRoute("POST", _GIT + "switch", git_switch, GitDone, body=GitSwitch, headers=_SESSION),
    JsonRoute("POST", _GIT + "merge", git_merge, GitDone, body=GitMerge, headers=_SESSION),
    JsonRoute("POST", _GIT + "restore", git_restore, GitDone, body=GitRestore, headers=_SESSION),
    JsonRoute("POST", _GIT + "tag", git_tag, GitDone, body=GitTagRequest, headers=_SESSION),
    JsonRoute("POST", _GIT + "fetch", git_fetch, GitDone, body=GitFetch, headers=_SESSION),
    JsonRoute("POST", _GIT + "push", git_push, GitDone, body=GitPush, headers=_SESSION),
)
