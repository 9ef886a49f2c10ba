"""Git repositories of a sandbox: looked at as data, also where nothing runs any more, and changed by Git in the sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

from coldframe.client import models
from coldframe.client.replies import read_answer
from coldframe.client.transport import Transport, ask

if TYPE_CHECKING:
    from coldframe.contract.git import GitPlace

View = TypeVar("View", bound="GitPlace")


class Git:
    """Those of one sandbox. *path* is a directory in the repository, relative to the workspace; empty for the workspace itself."""

    def __init__(self, transport: Transport, path: str) -> None:
        self._transport = transport
        self._path = f"{path}/git"

    # What is told, with nothing of Git run for it.

    async def status(self, path: str = "", *, limit: int = 1000, snapshot: str | None = None) -> models.GitStatusView:
        """What is not as the last commit has it, and what is under way.

        Raises:
            GitNoRepository: there is none at *path* or above it.
            GitUnreadable: it is damaged, or of a form that is not read.
        """
        return await self._look(models.GitStatusView, "status", {"path": path, "limit": limit, "snapshot": snapshot})

    async def log(
        self,
        path: str = "",
        *,
        revision: str | None = None,
        paths: Sequence[str] = (),
        skip: int = 0,
        limit: int = 100,
        snapshot: str | None = None,
    ) -> models.GitLogView:
        """Commits, newest first, of *revision* or of what is checked out; with *paths* those that changed one of them.

        Raises:
            GitUnknownRevision: that is no branch, tag or commit.
        """
        asked = {"path": path, "revision": revision, "skip": skip, "limit": limit, "snapshot": snapshot}
        return await self._look(models.GitLogView, "log", asked, paths)

    async def show(
        self,
        revision: str | None = None,
        path: str = "",
        *,
        paths: Sequence[str] = (),
        limit: int = 1000,
        snapshot: str | None = None,
    ) -> models.GitShowView:
        """One commit, with what it changed against its first parent."""
        asked = {"path": path, "revision": revision, "limit": limit, "snapshot": snapshot}
        return await self._look(models.GitShowView, "show", asked, paths)

    async def diff(
        self,
        path: str = "",
        *,
        before: str | None = None,
        after: str | None = None,
        staged: bool = False,
        paths: Sequence[str] = (),
        limit: int = 1000,
        snapshot: str | None = None,
    ) -> models.GitDiffView:
        """What differs between what is staged and the working tree; with *staged* between HEAD and what is staged; from
        *before* to the working tree, or to *after*."""
        asked = {
            "path": path,
            "before": before,
            "after": after,
            "staged": "true" if staged else None,
            "limit": limit,
            "snapshot": snapshot,
        }
        return await self._look(models.GitDiffView, "diff", asked, paths)

    async def refs(self, path: str = "", *, limit: int = 1000, snapshot: str | None = None) -> models.GitRefsView:
        """Branches, tags and remotes."""
        return await self._look(models.GitRefsView, "refs", {"path": path, "limit": limit, "snapshot": snapshot})

    async def repositories(self, *, limit: int = 200, snapshot: str | None = None) -> models.GitRepositoriesView:
        """Those of the workspace, with branch and commit of each."""
        return await self._look(models.GitRepositoriesView, "repositories", {"limit": limit, "snapshot": snapshot})

    # What is done, by Git in the sandbox.

    async def init(self, path: str = "", *, branch: str = "main") -> models.GitDone:
        """Begin a repository."""
        return await self._do("init", {"path": path, "branch": branch})

    async def clone(
        self,
        url: str,
        path: str = "",
        *,
        branch: str | None = None,
        depth: int | None = None,
        submodules: bool = False,
        credential_variable: str | None = None,
        timeout_s: float | None = None,
    ) -> models.GitDone:
        """Fetch one from elsewhere to *path*, as far as the network of the sandbox leads there. *credential_variable* holds the
        handle of a credential, which Git sends as its password.

        Raises:
            GitFailed: `facts["refused"]` says where the network does not lead, `facts["output"]` what Git said.
        """
        asked = {
            "url": url,
            "path": path,
            "branch": branch,
            "depth": depth,
            "submodules": submodules,
            "credential_variable": credential_variable,
            "timeout_s": timeout_s,
        }
        return await self._do("clone", asked)

    async def commit(
        self,
        message: str,
        path: str = "",
        *,
        paths: Sequence[str] = (),
        all: bool = False,  # noqa: A002  # as Git calls it
        allow_empty: bool = False,
        amend: bool = False,
        hooks: bool = True,
    ) -> models.GitDone:
        """Record what is staged, after adding *paths* (`.` for everything), or with *all* every file that Git knows. The author
        is the agent; the person on whose behalf it works stands below the message.

        Raises:
            GitConflict: `facts["files"]` are in conflict still.
            GitFailed: there is nothing to commit, or a hook was against it.
        """
        asked = {
            "message": message,
            "path": path,
            "paths": list(paths),
            "all": all,
            "allow_empty": allow_empty,
            "amend": amend,
            "hooks": hooks,
        }
        return await self._do("commit", asked)

    async def branch(
        self, name: str, path: str = "", *, start: str | None = None, delete: bool = False, force: bool = False
    ) -> models.GitDone:
        """Make a branch, or delete one."""
        return await self._do("branch", {"name": name, "path": path, "start": start, "delete": delete, "force": force})

    async def switch(
        self, to: str, path: str = "", *, create: bool = False, start: str | None = None, detach: bool = False
    ) -> models.GitDone:
        """Check out another branch, which *create* makes, or with *detach* a commit."""
        return await self._do("switch", {"to": to, "path": path, "create": create, "start": start, "detach": detach})

    async def merge(
        self,
        revision: str | None = None,
        path: str = "",
        *,
        message: str | None = None,
        fast_forward: Literal["allow", "only", "never"] = "allow",
        abort: bool = False,
        hooks: bool = True,
    ) -> models.GitDone:
        """Join *revision* to the branch that is checked out, or give that up with *abort*.

        Raises:
            GitConflict: `facts["files"]` were changed on both sides; edit and commit them, or give it up.
        """
        asked = {
            "revision": revision,
            "path": path,
            "message": message,
            "fast_forward": fast_forward,
            "abort": abort,
            "hooks": hooks,
        }
        return await self._do("merge", asked)

    async def restore(
        self,
        paths: Sequence[str],
        path: str = "",
        *,
        source: str | None = None,
        staged: bool = False,
        worktree: bool = True,
    ) -> models.GitDone:
        """Have *paths* be again as *source* has them, or what is staged. What they had is lost."""
        asked = {"paths": list(paths), "path": path, "source": source, "staged": staged, "worktree": worktree}
        return await self._do("restore", asked)

    async def tag(
        self,
        name: str,
        path: str = "",
        *,
        revision: str | None = None,
        message: str | None = None,
        delete: bool = False,
        force: bool = False,
    ) -> models.GitDone:
        """Give a commit a name that stays, or take one away."""
        asked = {
            "name": name,
            "path": path,
            "revision": revision,
            "message": message,
            "delete": delete,
            "force": force,
        }
        return await self._do("tag", asked)

    async def fetch(
        self,
        path: str = "",
        *,
        remote: str = "origin",
        branches: Sequence[str] = (),
        tags: bool = False,
        prune: bool = False,
        depth: int | None = None,
        credential_variable: str | None = None,
        timeout_s: float | None = None,
    ) -> models.GitDone:
        """Get what a remote has. Raises what `clone` does."""
        asked = {
            "path": path,
            "remote": remote,
            "branches": list(branches),
            "tags": tags,
            "prune": prune,
            "depth": depth,
            "credential_variable": credential_variable,
            "timeout_s": timeout_s,
        }
        return await self._do("fetch", asked)

    async def push(
        self,
        path: str = "",
        *,
        remote: str = "origin",
        branch: str | None = None,
        tags: Sequence[str] = (),
        set_upstream: bool = False,
        force_with_lease: bool = False,
        credential_variable: str | None = None,
        hooks: bool = True,
        timeout_s: float | None = None,
    ) -> models.GitDone:
        """Send *branch*, or the one that is checked out, to a remote. Raises what `clone` does."""
        asked = {
            "path": path,
            "remote": remote,
            "branch": branch,
            "tags": list(tags),
            "set_upstream": set_upstream,
            "force_with_lease": force_with_lease,
            "credential_variable": credential_variable,
            "hooks": hooks,
            "timeout_s": timeout_s,
        }
        return await self._do("push", asked)

    async def _look(
        self, view: type[View], question: str, asked: Mapping[str, object], paths: Sequence[str] = ()
    ) -> View:
        query = {name: value for name, value in asked.items() if value is not None}
        if paths:
            query["paths"] = list(paths)
        reply = await ask(self._transport, "GET", f"{self._path}/{question}", query=query)
        return read_answer(view, reply.body)

    async def _do(self, operation: str, asked: Mapping[str, object]) -> models.GitDone:
        payload = {name: value for name, value in asked.items() if value is not None}
        reply = await ask(self._transport, "POST", f"{self._path}/{operation}", payload=payload)
        return read_answer(models.GitDone, reply.body)
