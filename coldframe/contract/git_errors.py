"""What keeps a Git operation from being done, each with what its caller needs to go on."""

from typing import ClassVar

from coldframe.contract.error_families import Family, Missing, Retry, Unfit


class GitConflict(Unfit):
    """Both sides changed the same: files are in conflict, and nothing is committed until they are resolved."""

    code = "GIT_CONFLICT"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "conflict"
    hint = "edit the `files`, then commit them; or give the merge up with `abort`"
    offer = ("git.status", "lists the files in conflict, and how they are", {})


class GitFailed(Unfit):
    """Git ran in the sandbox and ended with an error."""

    code = "GIT_FAILED"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "conflict"
    hint = "`output` is what Git said of it; the receipt has all of it"
    offer = ("git.status", "shows how the repository stands", {})


class GitUnreadable(Unfit):
    """The repository is damaged, kept in a form that is not read, or leads out of the workspace."""

    code = "GIT_UNREADABLE"
    status = 409
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "conflict"
    hint = "run `git fsck` in the sandbox; what Git itself can read there can be asked for by a command"
    offer = ("tool.call", "runs Git in the sandbox as a command", {"tool": "run_command"})


class GitNoRepository(Missing):
    """There is no Git repository at that path of the workspace, or above it."""

    code = "GIT_NO_REPOSITORY"
    status = 404
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "input"
    hint = "name the directory of one, or begin one with `git.init` or `git.clone`"
    offer = ("git.init", "begins one", {})


class GitUnknownRevision(Missing):
    """No branch, tag or commit of the repository is meant by that name."""

    code = "GIT_UNKNOWN_REVISION"
    status = 404
    retry: ClassVar[Retry] = "after_change"
    family: ClassVar[Family] = "input"
    hint = "name a branch, a tag, or a commit by the begin of its id; `~N` and `^N` may stand behind it"
    offer = ("git.refs", "lists branches and tags", {})
