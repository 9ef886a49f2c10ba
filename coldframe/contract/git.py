"""Git repositories of a workspace: how they stand, what they have on record, and what is done in them.

What is told of a repository is read as data, with nothing of Git run and no setting of the repository followed. What changes one
is Git in the sandbox, as a command.
"""

import re
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from coldframe.contract.files import Request
from coldframe.contract.model import Model
from coldframe.contract.policy import Label

MOST_LISTED = 1000
MOST_PATHS = 1000
BUDGET_S = 15.0
Question = Literal["status", "log", "show", "diff", "refs", "repositories"]
GitKind = Literal["file", "symlink", "submodule", "folder"]
_OUTSIDE = re.compile(r"(?:^|/)\.\.(?:/|$)|^/|\0")
_ADDRESS = re.compile(
    r"(?:https?|ssh|git)://[^\s\x00-][^\s\x00]*|[A-Za-z0-9_][A-Za-z0-9._-]*@[A-Za-z0-9][A-Za-z0-9._-]*:[^\s\x00-]\S*"
)
_PASSWORD = re.compile(r"[a-z]+://[^/]*:[^/]*@")
_NAME = re.compile(r"[^\x00-\x20~^:?*\[\\\x7f]+")


def _inner(path: str) -> str:
    if _OUTSIDE.search(path):
        raise ValueError("is no path within the repository")
    return path


def _name(name: str) -> str:
    parts = name.split("/")
    bad = ".." in name or "@{" in name or name == "@" or name.startswith("-") or name.endswith((".lock", "."))
    if bad or not _NAME.fullmatch(name) or any(not part or part.startswith(".") for part in parts):
        raise ValueError("is no name that Git takes for a branch, tag or remote")
    return name


def _revision(revision: str) -> str:
    if revision.startswith("-") or re.search(r"[\x00-\x20\x7f:]|\.\.", revision):
        raise ValueError("is no revision: name a branch, a tag or a commit")
    return revision


def _address(address: str) -> str:
    is_place = not (_OUTSIDE.search(address) or address.startswith("-") or "::" in address or "://" in address)
    if not is_place and not _ADDRESS.fullmatch(address):
        raise ValueError(
            "is no address: it begins with https://, http://, ssh:// or git://, or is a path of the workspace"
        )
    if _PASSWORD.match(address):
        raise ValueError(
            "holds a password, which would stay on record: name the variable with it by `credential_variable`"
        )
    return address


InnerPath = Annotated[str, StringConstraints(max_length=4096), AfterValidator(_inner)]
"""Relative to the top of the repository."""
GitName = Annotated[str, StringConstraints(min_length=1, max_length=240), AfterValidator(_name)]
Revision = Annotated[str, StringConstraints(min_length=1, max_length=300), AfterValidator(_revision)]
"""A branch, a tag, or a commit by the begin of its id, with `~N` and `^N` behind it."""
Address = Annotated[str, StringConstraints(min_length=1, max_length=2000), AfterValidator(_address)]
RepositoryPath = Annotated[str, StringConstraints(max_length=4096), AfterValidator(_inner)]
"""A directory of the workspace; the repository is the one there, or the nearest above. Empty for the workspace itself."""
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]


class GitCommit(Model):
    id: str
    parents: tuple[str, ...]
    author: str
    author_email: str
    authored_at: datetime
    zone: str
    """Of its author, as `+0200`."""
    committer: str
    committer_email: str
    committed_at: datetime
    message: str
    message_complete: bool
    trailers: tuple[str, ...]
    """Lines like `On-behalf-of: NAME` at the end of the message."""


class GitChange(Model):
    """A file that is not as the last commit has it."""

    path: str
    staged: Literal["added", "modified", "deleted"] | None
    """Added to what is to be committed next."""
    unstaged: Literal["modified", "deleted", "untracked", "added"] | None
    """Not added to that. `added`: only its name is."""
    conflict: (
        Literal[
            "both_modified",
            "both_added",
            "both_deleted",
            "added_by_us",
            "added_by_them",
            "deleted_by_us",
            "deleted_by_them",
        ]
        | None
    )
    kind: GitKind


class GitSubmodule(Model):
    path: str
    commit: str
    """That the repository names."""
    checked_out: str | None
    """That it is at; None where it was not fetched."""


class GitStatus(Model):
    changes: tuple[GitChange, ...]
    total: int
    complete: bool
    clean: bool
    conflicts: tuple[str, ...]
    under_way: Literal["merge", "rebase", "cherry_pick", "revert", "bisect"] | None
    submodules: tuple[GitSubmodule, ...]
    """The first hundred."""
    lfs_pointers: tuple[str, ...]
    """Files of which a pointer (LFS) lies there in place of the content; the first hundred."""
    lfs_pointers_total: int
    shallow: bool
    """Its history was not fetched whole."""
    upstream: str | None
    ahead: int | None
    """Commits that its upstream does not have; None where there is none, or they are too many to be counted."""
    behind: int | None


class GitLog(Model):
    commits: tuple[GitCommit, ...]
    """Newest first."""
    complete: bool
    shallow: bool


class GitHunk(Model):
    old_start: int
    old_lines: int
    new_start: int
    new_lines: int
    lines: tuple[str, ...]
    """Each with ` `, `-` or `+` before it, as in a unified diff."""


class GitFileDiff(Model):
    path: str
    change: Literal["added", "modified", "deleted"]
    """A file that was moved is told as one that was deleted and one that was added."""
    kind: GitKind
    old_mode: int | None
    new_mode: int | None
    old_id: str | None
    new_id: str | None
    """None for what lies in the working tree."""
    binary: bool
    lfs: bool
    """What is compared are pointers (LFS), whose contents lie elsewhere."""
    old_bytes: int | None
    new_bytes: int | None
    additions: int | None
    """Lines; None where they are not compared."""
    deletions: int | None
    hunks: tuple[GitHunk, ...]
    complete: bool
    reason: str | None
    """Why not all of it is here."""


class GitDiff(Model):
    files: tuple[GitFileDiff, ...]
    total: int
    additions: int
    deletions: int
    complete: bool


class GitShown(Model):
    commit: GitCommit
    diff: GitDiff
    """Against its first parent."""


class GitBranch(Model):
    name: str
    commit: str
    upstream: str | None = None


class GitTag(Model):
    name: str
    commit: str
    annotated: bool


class GitRemote(Model):
    name: str
    url: str
    """Without a user or password that stands in it."""


class GitRefs(Model):
    branches: tuple[GitBranch, ...]
    tags: tuple[GitTag, ...]
    remote_branches: tuple[GitBranch, ...]
    remotes: tuple[GitRemote, ...]
    complete: bool


class GitRepository(Model):
    path: str
    """Top of its working tree, in the workspace; `.` for the workspace itself."""
    branch: str | None
    head: str | None
    reason: str | None = None
    """Why it cannot be read."""


class GitRepositories(Model):
    repositories: tuple[GitRepository, ...]
    complete: bool


class RepositoryAnswer(Model):
    """One of its last six, by what was asked. Of `repositories` no single one is told of before."""

    question: Question
    repository: str
    """Top of its working tree, in the workspace; `.` for the workspace itself."""
    branch: str | None
    """That is checked out; None where HEAD is a commit itself."""
    head: str | None
    """The commit that is checked out; None if there is none yet."""
    kept_in: tuple[str, ...] = ()
    """Folders of the workspace other than its `.git` that it is kept in: of a submodule or a linked working tree."""
    status: GitStatus | None = None
    log: GitLog | None = None
    show: GitShown | None = None
    diff: GitDiff | None = None
    refs: GitRefs | None = None
    repositories: GitRepositories | None = None


class ReadRepository(Request[RepositoryAnswer]):
    """How a repository stands, or what it has on record. Nothing of Git is run for it."""

    verb: str = "read_repository"
    question: Question
    path: str = ""
    revision: str | None = None
    """Of `log` and `show`; None for HEAD."""
    before: str | None = None
    """Of `diff`; None for what is staged, or, with `staged` or `after`, for HEAD."""
    after: str | None = None
    """None for the working tree."""
    staged: bool = False
    """In place of the working tree what is to be committed next."""
    paths: tuple[str, ...] = ()
    """Only these and what is below them."""
    skip: int = Field(default=0, ge=0)
    limit: int = Field(default=MOST_LISTED, ge=1, le=10_000)
    budget_s: float = Field(default=BUDGET_S, gt=0, le=25)


class GitPlace(Model):
    """Of which repository something is told, and on whose record that stands."""

    sandbox_id: str
    repository: str
    """Top of its working tree, in the workspace; `.` for the workspace itself."""
    branch: str | None
    """That is checked out; None where HEAD is a commit itself."""
    head: str | None
    """The commit that is checked out; None if there is none yet."""
    label: Label
    """Of what can be seen in it."""
    receipt_id: str | None
    """Of the look."""


class GitStatusView(GitPlace, GitStatus): ...


class GitLogView(GitPlace, GitLog): ...


class GitShowView(GitPlace, GitShown): ...


class GitDiffView(GitPlace, GitDiff): ...


class GitRefsView(GitPlace, GitRefs): ...


class GitRepositoriesView(GitPlace, GitRepositories):
    """Those of the workspace; `repository`, `branch` and `head` are of none."""


# -- what is done ---------------------------------------------------------------------------------------------------------


class GitRequest(Model):
    """What all of them have."""

    path: RepositoryPath = ""
    timeout_s: float | None = Field(default=None, gt=0)
    """Of the command, in seconds; by default that of the sandbox."""


class GitInit(GitRequest):
    branch: GitName = "main"
    """Which the first commit will be on."""


class _Remote(GitRequest):
    credential_variable: VariableName | None = None
    """The variable of the environment that holds the handle of a credential; Git sends it as a password over https. The
    broker puts the secret in its place."""


class GitClone(_Remote):
    """`path` is the directory that it comes to; empty for one named after the address."""

    url: Address
    branch: GitName | None = None
    depth: int | None = Field(default=None, ge=1, le=1_000_000)
    """Commits of history; all of it by default."""
    submodules: bool = False


class GitCommitRequest(GitRequest):
    message: str = Field(min_length=1, max_length=64 * 1024)
    paths: tuple[InnerPath, ...] = Field(default=(), max_length=MOST_PATHS)
    """Added first, new files and removed ones too; `.` for everything."""
    all: bool = False
    """Add every change of files that Git knows."""
    allow_empty: bool = False
    amend: bool = False
    """In place of the last commit."""
    hooks: bool = True
    """Run those of the repository, in the sandbox."""


class GitBranchRequest(GitRequest):
    name: GitName
    start: Revision | None = None
    """None for HEAD."""
    delete: bool = False
    force: bool = False
    """Also if commits would be on no branch, or the branch is there already."""


class GitSwitch(GitRequest):
    to: Revision
    create: bool = False
    start: Revision | None = None
    detach: bool = False
    """To a commit, without a branch."""


class GitMerge(GitRequest):
    revision: Revision | None = None
    message: str | None = Field(default=None, min_length=1, max_length=64 * 1024)
    fast_forward: Literal["allow", "only", "never"] = "allow"
    abort: bool = False
    """Give up the merge that is under way, with what was resolved of it."""
    hooks: bool = True

    @model_validator(mode="after")
    def _either(self) -> "GitMerge":
        if self.abort is (self.revision is not None):
            raise ValueError("say which `revision` to merge, or `abort`")
        return self


class GitRestore(GitRequest):
    paths: tuple[InnerPath, ...] = Field(min_length=1, max_length=MOST_PATHS)
    source: Revision | None = None
    """None for what is staged, or with `staged` for HEAD."""
    staged: bool = False
    """What is to be committed next."""
    worktree: bool = True
    """The files themselves; what they had is lost."""

    @model_validator(mode="after")
    def _something(self) -> "GitRestore":
        if not self.staged and not self.worktree:
            raise ValueError("restore files with `worktree`, what is staged with `staged`, or both")
        return self


class GitTagRequest(GitRequest):
    name: GitName
    revision: Revision | None = None
    message: str | None = Field(default=None, min_length=1, max_length=64 * 1024)
    """With it the tag has an author and a date of its own."""
    delete: bool = False
    force: bool = False


class GitFetch(_Remote):
    remote: GitName = "origin"
    branches: tuple[GitName, ...] = Field(default=(), max_length=100)
    """All by default."""
    tags: bool = False
    prune: bool = False
    """Forget branches that the remote has no more."""
    depth: int | None = Field(default=None, ge=1, le=1_000_000)


class GitPush(_Remote):
    remote: GitName = "origin"
    branch: GitName | None = None
    """None for the one that is checked out."""
    tags: tuple[GitName, ...] = Field(default=(), max_length=100)
    set_upstream: bool = False
    force_with_lease: bool = False
    """Also if commits there get lost, unless somebody has put others there since the last fetch."""
    hooks: bool = True


class GitDone(Model):
    """What an operation came to."""

    sandbox_id: str
    operation: str
    repository: str
    branch: str | None
    head: str | None
    before: str | None
    """The commit that was checked out before; None where there was none, or no repository yet."""
    commit: GitCommit | None
    """That is checked out now."""
    output: str
    """What Git printed, at most its last 8 KiB."""
    command_ids: tuple[str, ...]
    receipt_ids: tuple[str, ...]
    """Of the commands of Git, in order."""
    label: Label
    notes: tuple[str, ...] = ()
    """What is not whole: submodules that were not fetched, files that are pointers (LFS), a history that was cut."""
