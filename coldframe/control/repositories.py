"""Git repositories of workspaces: looked at as data, in any state in which files can be read, and changed by Git in the sandbox.

What changes one is a command like any other: `git` with its arguments, started in the box through the gate, so that rules, labels, the
network and the record are those of that command. Hooks, filters and whatever else a repository names run there, or nowhere.
"""

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from coldframe.contract.caller import Caller
from coldframe.contract.errors import (
    ColdframeError,
    GitConflict,
    GitFailed,
    GitUnreadable,
    GuestLost,
    InvalidArgument,
    from_wire,
    next_action,
)
from coldframe.contract.git import (
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
    Question,
)
from coldframe.contract.policy import Label, Role
from coldframe.contract.sandbox import SandboxInfo
from coldframe.contract.tool import ToolResult
from coldframe.control.call_records import ids_of
from coldframe.control.gate import Gate
from coldframe.control.makers import Makers
from coldframe.control.rights import may
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.tokens import Tokens
from coldframe.policy.labels import join

V = TypeVar("V", bound=GitPlace)
_QUESTIONS: Mapping[type[GitPlace], Question] = {
    GitStatusView: "status",
    GitLogView: "log",
    GitShowView: "show",
    GitDiffView: "diff",
    GitRefsView: "refs",
    GitRepositoriesView: "repositories",
}
MOST_OUTPUT_CHARACTERS = 8192
MOST_FILES = 1000
MOST_PATH_BYTES = 512 * 1024
"""Of the paths in one command; Linux takes some MiB, less what else there is."""
TRAILER = "On-behalf-of"
DOMAIN = "agents.invalid"
"""Of the addresses of authors: it leads nowhere, and never will."""
_SAFE = (
    "git",
    *("-c", "core.fsmonitor=false"),
    *("-c", "core.sshCommand=ssh"),
    *("-c", "core.pager=cat"),
    *("-c", "protocol.ext.allow=never"),
    *("-c", "gc.autoDetach=false"),
    *("-c", "maintenance.autoDetach=false"),
    "--literal-pathspecs",
)
"""What a repository could name for these is of no use to an operation; hooks and filters are. What is tidied up ends with the
operation, and changes nothing behind the back of the next."""
_NO_HOOKS = ("-c", "core.hooksPath=/dev/null")
_HELPER = '!f() { test "$1" = get && printf "username=x-access-token\\npassword=%s\\n" "$NAME"; }; f'


class _Step(NamedTuple):
    """One command of Git."""

    words: tuple[str, ...]
    before: tuple[str, ...] = ()
    """Settings that stand before its name."""
    stdin: str | None = None


class _Ran(NamedTuple):
    result: ToolResult

    @property
    def output(self) -> str:
        value = self.result.value
        return (value.get("stdout") or "") + (value.get("stderr") or "")


class Repositories:
    """Those of all workspaces."""

    def __init__(self, gate: Gate, sandboxes: Sandboxes, makers: Makers, tokens: Tokens) -> None:
        self._gate = gate
        self._sandboxes = sandboxes
        self._makers = makers
        self._tokens = tokens

    async def look(
        self,
        caller: Caller,
        sandbox_id: str,
        view: type[V],
        *,
        session_id: str | None = None,
        snapshot_id: str | None = None,
        **asked: Any,
    ) -> V:
        """What is asked of one, by the kind of the answer, as a call that reads files. Nothing is started for it, so the sandbox may
        have ended long ago.

        Raises:
            GitNoRepository, GitUnknownRevision, GitUnreadable: it cannot be told.
            And what a call of the gate raises.
        """
        return (await self._looked(caller, sandbox_id, view, session_id, snapshot_id, asked))[0]

    async def _looked(
        self,
        caller: Caller,
        sandbox_id: str,
        view: type[V],
        session_id: str | None,
        snapshot_id: str | None,
        asked: Mapping[str, Any],
    ) -> tuple[V, tuple[str, ...]]:
        """With the folders other than its `.git` that it is kept in."""
        question = _QUESTIONS[view]
        given = {"question": question} | {name: value for name, value in asked.items() if value is not None}
        result = await self._read(caller, sandbox_id, given, session_id, snapshot_id)
        if result.error is not None:
            error = from_wire(result.error)
            top = error.facts.get("repository")
            if isinstance(error, InvalidArgument) and isinstance(top, str):
                # The one that was named is a part of it, or it is kept elsewhere; judged is what is read.
                given |= {"path": top, "kept_in": error.facts.get("kept_in", [])}
                result = await self._read(caller, sandbox_id, given, session_id, snapshot_id)
        if result.error is not None:
            error = from_wire(result.error)
            error.facts.setdefault("receipt_id", result.receipt_id)
            raise error
        told = result.value
        if told[question] is None:
            raise GuestLost("the sandbox did not say what was asked of its repository")
        place = {name: told[name] for name in ("repository", "branch", "head")}
        found = view(
            **place,
            **told[question],
            sandbox_id=result.sandbox_id,
            label=result.label,
            receipt_id=result.receipt_id,
        )
        return found, tuple(told["kept_in"])

    async def _read(
        self, caller: Caller, sandbox_id: str, given: dict[str, Any], session_id: str | None, snapshot_id: str | None
    ) -> ToolResult:
        return await self._gate.call(
            caller, sandbox_id, "read_repository", dict(given), session_id=session_id, snapshot_id=snapshot_id
        )

    # -- what changes one ----------------------------------------------------------------------

    async def init(self, caller: Caller, sandbox_id: str, asked: GitInit, session_id: str | None = None) -> GitDone:
        """Begin one. What is one already stays as it is."""
        step = _Step(("init", "--quiet", f"--initial-branch={asked.branch}", "--", asked.path or "."))
        return await self._do(caller, sandbox_id, "init", asked, [step], session_id, at="", begins=True)

    async def clone(self, caller: Caller, sandbox_id: str, asked: GitClone, session_id: str | None = None) -> GitDone:
        """Fetch one from elsewhere, as far as the network of the sandbox leads there. Submodules only if they are wanted."""
        place = asked.path or _named_after(asked.url)
        words = ["clone", "--quiet", "--recurse-submodules" if asked.submodules else "--no-recurse-submodules"]
        words += [f"--branch={asked.branch}"] if asked.branch is not None else []
        words += [f"--depth={asked.depth}"] if asked.depth is not None else []
        step = _Step((*words, "--", asked.url, place), _credential(asked.credential_variable))
        asked = asked.model_copy(update={"path": place})
        return await self._do(caller, sandbox_id, "clone", asked, [step], session_id, at="", begins=True)

    async def commit(
        self, caller: Caller, sandbox_id: str, asked: GitCommitRequest, session_id: str | None = None
    ) -> GitDone:
        """Record what is staged, after adding what is named. Its author is the agent, and the person on whose behalf it works
        stands below the message.

        Raises:
            GitConflict: files are in conflict still.
            GitFailed: there is nothing to commit, or a hook was against it.
        """
        info = self._sandboxes.get(caller, sandbox_id)
        words = ["commit", "--quiet", "--file=-"]
        words += ["--all"] if asked.all else []
        words += ["--allow-empty"] if asked.allow_empty else []
        words += ["--amend"] if asked.amend else []
        message = with_trailer(asked.message, self._person(caller, info))
        steps = [_Step(("add", "--all", "--", *some)) for some in _portions(asked.paths)]
        steps.append(_Step(tuple(words), _hooks(run=asked.hooks), stdin=message))
        return await self._do(caller, sandbox_id, "commit", asked, steps, session_id)

    async def branch(
        self, caller: Caller, sandbox_id: str, asked: GitBranchRequest, session_id: str | None = None
    ) -> GitDone:
        """Make a branch, or delete one."""
        if asked.delete:
            words = ["branch", "--quiet", "-D" if asked.force else "-d", "--", asked.name]
        else:
            words = ["branch", "--quiet", *(["--force"] if asked.force else []), "--", asked.name]
            words += [asked.start] if asked.start is not None else []
        return await self._do(caller, sandbox_id, "branch", asked, [_Step(tuple(words))], session_id)

    async def switch(self, caller: Caller, sandbox_id: str, asked: GitSwitch, session_id: str | None = None) -> GitDone:
        """Check out another branch, or a commit. Changes that would be lost keep it from being done."""
        words = ["switch", "--quiet", *(["--create"] if asked.create else ["--detach"] if asked.detach else [])]
        words += [asked.to, *([asked.start] if asked.create and asked.start is not None else [])]
        return await self._do(caller, sandbox_id, "switch", asked, [_Step(tuple(words))], session_id)

    async def merge(self, caller: Caller, sandbox_id: str, asked: GitMerge, session_id: str | None = None) -> GitDone:
        """Join another history to the branch that is checked out, or give that up.

        Raises:
            GitConflict: `files` were changed on both sides; the merge is under way until they are committed, or it is given up.
        """
        if asked.revision is None:
            step = _Step(("merge", "--abort"))
        else:
            info = self._sandboxes.get(caller, sandbox_id)
            how = {"allow": "--ff", "only": "--ff-only", "never": "--no-ff"}[asked.fast_forward]
            message = with_trailer(asked.message or f"Merge {asked.revision}", self._person(caller, info))
            words = ("merge", "--quiet", how, "--file=/dev/stdin", asked.revision)
            step = _Step(words, _hooks(run=asked.hooks), stdin=message)
        return await self._do(caller, sandbox_id, "merge", asked, [step], session_id)

    async def restore(
        self, caller: Caller, sandbox_id: str, asked: GitRestore, session_id: str | None = None
    ) -> GitDone:
        """Have files be again as a commit, or what is staged, has them."""
        words = ["restore", "--quiet"]
        words += [f"--source={asked.source}"] if asked.source is not None else []
        words += ["--staged"] if asked.staged else []
        words += ["--worktree"] if asked.worktree else []
        steps = [_Step((*words, "--", *some)) for some in _portions(asked.paths)]
        return await self._do(caller, sandbox_id, "restore", asked, steps, session_id)

    async def tag(
        self, caller: Caller, sandbox_id: str, asked: GitTagRequest, session_id: str | None = None
    ) -> GitDone:
        """Give a commit a name that stays, or take one away."""
        stdin = None
        words = ["tag", *(["--force"] if asked.force else [])]
        if asked.delete:
            words = ["tag", "-d"]
        elif asked.message is not None:
            info = self._sandboxes.get(caller, sandbox_id)
            words += ["--annotate", "--file=-"]
            stdin = with_trailer(asked.message, self._person(caller, info))
        words += ["--", asked.name, *([asked.revision] if asked.revision is not None and not asked.delete else [])]
        return await self._do(caller, sandbox_id, "tag", asked, [_Step(tuple(words), stdin=stdin)], session_id)

    async def fetch(self, caller: Caller, sandbox_id: str, asked: GitFetch, session_id: str | None = None) -> GitDone:
        """Get what a remote has, as far as the network of the sandbox leads there. Nothing that is checked out changes."""
        words = ["fetch", "--quiet", "--no-recurse-submodules", *(["--tags"] if asked.tags else [])]
        words += ["--prune"] if asked.prune else []
        words += [f"--depth={asked.depth}"] if asked.depth is not None else []
        step = _Step((*words, "--", asked.remote, *asked.branches), _credential(asked.credential_variable))
        return await self._do(caller, sandbox_id, "fetch", asked, [step], session_id)

    async def push(self, caller: Caller, sandbox_id: str, asked: GitPush, session_id: str | None = None) -> GitDone:
        """Send a branch to a remote, as far as the network of the sandbox leads there."""
        words = ["push", "--porcelain", "--no-recurse-submodules", *(["--set-upstream"] if asked.set_upstream else [])]
        words += ["--force-with-lease"] if asked.force_with_lease else []
        names = ["HEAD" if asked.branch is None else f"refs/heads/{asked.branch}"]
        names += [f"refs/tags/{one}" for one in asked.tags]
        before = (*_credential(asked.credential_variable), *_hooks(run=asked.hooks))
        step = _Step((*words, "--", asked.remote, *names), before)
        return await self._do(caller, sandbox_id, "push", asked, [step], session_id)

    # -- how -----------------------------------------------------------------------------------

    async def _do(
        self,
        caller: Caller,
        sandbox_id: str,
        operation: str,
        asked: GitRequest,
        steps: Sequence[_Step],
        session_id: str | None,
        *,
        at: str | None = None,
        begins: bool = False,
    ) -> GitDone:
        """Run the commands one after the other, and tell how the repository stands then."""
        info = self._sandboxes.get(caller, sandbox_id)
        looks = not begins and may(caller, "tool.call")  # else it is the first command that is refused, and recorded so
        before, kept_in = await self._now(caller, sandbox_id, asked.path, session_id) if looks else (None, ())
        if before is not None and at is None:
            at = "" if before.repository == "." else before.repository  # which paths count from
        ran: list[_Ran] = []
        for step in steps:
            arguments = {
                "command": [*_SAFE, *step.before, *step.words],
                "cwd": asked.path if at is None else at,
                "env": _identity(info),
                **({} if step.stdin is None else {"stdin": step.stdin}),
                **({} if asked.timeout_s is None else {"timeout_s": asked.timeout_s}),
            }
            result = await self._gate.call(caller, sandbox_id, "run_command", arguments, session_id=session_id)
            if result.error is not None:
                raise from_wire(result.error)
            ran.append(_Ran(result))
            if result.value["exit_code"] != 0:
                raise await self._failure(caller, sandbox_id, operation, asked.path, ran, session_id)
        after, _ = await self._now(caller, sandbox_id, asked.path, session_id, is_done=True)
        notes = await self._notes(caller, sandbox_id, asked.path, session_id) if operation == "clone" else ()
        if kept_in:
            notes = (*notes, f"it is kept in {', '.join(f'`{one}`' for one in kept_in)}, which this has changed")
        labels = [one.result.label for one in ran] + ([] if after is None else [after.label])
        commits = () if after is None else after.commits
        return GitDone(
            sandbox_id=sandbox_id,
            operation=operation,
            repository=asked.path or "." if after is None else after.repository,
            branch=None if after is None else after.branch,
            head=None if after is None else after.head,
            before=None if before is None else before.head,
            commit=commits[0] if commits else None,
            output="".join(one.output for one in ran)[-MOST_OUTPUT_CHARACTERS:],
            command_ids=_command_ids(ran),
            receipt_ids=_receipt_ids(ran),
            label=join(Label.PUBLIC, *labels),
            notes=notes,
        )

    async def _now(
        self, caller: Caller, sandbox_id: str, path: str, session_id: str | None, *, is_done: bool = False
    ) -> tuple[GitLogView | None, tuple[str, ...]]:
        """With what it is kept in; None for one that only Git itself can read, and where it *is_done* whatever keeps it from being told: nobody is to take
        what was done for what was not."""
        try:
            asked = {"path": path, "limit": 1}
            return await self._looked(caller, sandbox_id, GitLogView, session_id, None, asked)
        except GitUnreadable as error:
            if not is_done and error.facts.get("is_placed") is False:
                raise  # what would be changed is not what was named
            return None, ()
        except ColdframeError:
            if not is_done:
                raise
            return None, ()

    async def _notes(self, caller: Caller, sandbox_id: str, path: str, session_id: str | None) -> tuple[str, ...]:
        try:
            status = await self.look(caller, sandbox_id, GitStatusView, path=path, limit=1, session_id=session_id)
        except ColdframeError as error:
            return (f"how it stands cannot be told: {error.message}",)
        notes = []
        absent = [one.path for one in status.submodules if one.checked_out is None]
        if absent:
            notes.append(
                f"{len(absent)} submodules were not fetched, as `{absent[0]}`: clone with `submodules` for that"
            )
        if status.lfs_pointers_total:
            notes.append(
                f"{status.lfs_pointers_total} files are pointers (LFS), as `{status.lfs_pointers[0]}`: their content lies"
                " elsewhere, and `git lfs pull` gets it where that program is"
            )
        if status.shallow:
            notes.append("its history is cut off")
        return tuple(notes)

    async def _failure(
        self,
        caller: Caller,
        sandbox_id: str,
        operation: str,
        path: str,
        ran: list[_Ran],
        session_id: str | None,
    ) -> GitFailed | GitConflict:
        last = ran[-1]
        output = last.output[-MOST_OUTPUT_CHARACTERS:]
        facts: dict[str, Any] = {
            "operation": operation,
            "path": path,
            "exit_code": last.result.value["exit_code"],
            "output": output,
            "command_ids": list(_command_ids(ran)),
            "receipt_ids": list(_receipt_ids(ran)),
        }
        if operation in ("merge", "commit", "switch"):
            files = await self._conflicts(caller, sandbox_id, path, session_id)
            if files:
                told = ", ".join(f"`{one}`" for one in files[:3])
                return GitConflict(
                    f"{len(files)} files are in conflict, as {told}" if len(files) > 1 else f"{told} is in conflict",
                    next_actions=[
                        next_action("git.status", "tells how each of them is", sandbox_id=sandbox_id, path=path),
                        next_action(
                            "git.commit", "ends the merge, once they are edited", sandbox_id=sandbox_id, path=path
                        ),
                        next_action("git.merge", "gives it up", sandbox_id=sandbox_id, path=path, abort=True),
                    ],
                    files=files,
                    **facts,
                )
        refused = [
            f"{one.get('name') or one['address']}:{one['port']}"
            for one in last.result.value.get("contacts") or ()
            if one["verdict"] == "refused" and one["port"] != 53  # look-ups go along with them
        ]
        told = _told(output)
        if refused:
            facts["refused"] = sorted(set(refused))
            told = f"the network of this sandbox does not lead to {facts['refused'][0]}"
        elif last.result.value["ended"] != "exited":
            told = f"it was ended: {last.result.value['ended']}"
        return GitFailed(
            f"`git {operation}` failed: {told}",
            next_actions=[
                next_action("git.status", "shows how the repository stands", sandbox_id=sandbox_id, path=path),
                next_action("receipt.get", "has all of it", receipt_id=last.result.receipt_id),
            ],
            **facts,
        )

    async def _conflicts(self, caller: Caller, sandbox_id: str, path: str, session_id: str | None) -> list[str]:
        try:
            status = await self.look(
                caller, sandbox_id, GitStatusView, path=path, limit=MOST_FILES, session_id=session_id
            )
        except ColdframeError:
            return []  # what Git said is told
        return list(status.conflicts)

    def _person(self, caller: Caller, info: SandboxInfo) -> str | None:
        """On whose behalf it is done: whoever asks, or, where that is the agent, whoever made its sandbox."""
        token_id: str | None = caller.token_id
        if caller.role is Role.AGENT:
            maker = self._makers.find(info.sandbox_id)
            token_id = None if maker is None else maker.partition(":")[2]
        return None if token_id is None else self._tokens.name_of(token_id)


def with_trailer(message: str, person: str | None) -> str:
    """The message of a commit with the person below, as Git keeps such lines: behind an empty line, or among others."""
    text = message.rstrip()
    if person is None:
        return f"{text}\n"
    line = f"{TRAILER}: {' '.join(person.split())}"
    last = text.rpartition("\n\n")[2]
    lines = last.split("\n") if "\n\n" in text else []
    if line in lines:
        return f"{text}\n"
    is_among = bool(lines) and all(re.match(r"[A-Za-z0-9-]+: \S", one) for one in lines)
    return f"{text}\n{line}\n" if is_among else f"{text}\n\n{line}\n"


def _portions(paths: Sequence[str]) -> list[tuple[str, ...]]:
    """As many at a time as go into the arguments of one command, where rules see them."""
    found: list[list[str]] = []
    left = 0
    for path in paths:
        left -= len(path.encode("utf-8", "surrogatepass")) + 1
        if left < 0 or not found:
            found.append([])
            left = MOST_PATH_BYTES
        found[-1].append(path)
    return [tuple(one) for one in found]


def _identity(info: SandboxInfo) -> dict[str, str]:
    name = info.agent_id or info.sandbox_id
    address = f"{name}@{DOMAIN}"
    return {
        "GIT_AUTHOR_NAME": name,
        "GIT_AUTHOR_EMAIL": address,
        "GIT_COMMITTER_NAME": name,
        "GIT_COMMITTER_EMAIL": address,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_EDITOR": "true",
    }


def _credential(variable: str | None) -> tuple[str, ...]:
    """Has Git send the handle in that variable as its password. The secret itself is nowhere in the sandbox."""
    if variable is None:
        return ()
    helper = _HELPER.replace("NAME", variable)
    return ("-c", "credential.helper=", "-c", f"credential.helper={helper}")


def _hooks(*, run: bool) -> tuple[str, ...]:
    return () if run else _NO_HOOKS


def _named_after(address: str) -> str:
    last = posixpath.basename(address.rstrip("/").replace(":", "/")).removesuffix(".git")
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}", last):
        raise InvalidArgument(
            "the address ends in no name for a directory", hint="say where to with `path`", argument="path"
        )
    return last


def _told(output: str) -> str:
    """The line that says most of what went wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    found = next((line for line in lines if re.match(r"(?:fatal|error|!)[: \t]", line)), lines[-1] if lines else "")
    return re.sub(r"^(?:fatal|error): ", "", found)[:300].rstrip(".") or "it said nothing"


def _command_ids(ran: Sequence[_Ran]) -> tuple[str, ...]:
    return tuple(str(one.result.value["command_id"]) for one in ran)


def _receipt_ids(ran: Sequence[_Ran]) -> tuple[str, ...]:
    return tuple(one.result.receipt_id or ids_of(one.result.call_id).receipt_id for one in ran)
