"""A Git repository of the workspace as it stands, and its history, read as data.

No program is run for it, no setting, hook, attribute or filter of the repository is followed, and no link: so it can be looked at
where nothing runs any more, and whoever made the repository has nothing executed by that. What Git would know by such settings
is told as `git_work` says.
"""

import heapq
import os
import time
from typing import Any

from coldframe.guest.facts import text_of, time_of
from coldframe.guest.git_diffs import hunks_of, is_binary, lines_of, runs_of
from coldframe.guest.git_index import GITLINK, SYMLINK, TREE, Unreadable
from coldframe.guest.git_objects import MOST_OBJECT_BYTES, Objects
from coldframe.guest.git_refs import Commit, Refs, UnknownRevision, commit_of, peeled
from coldframe.guest.git_work import Side, Work, pointer_of
from coldframe.guest.unsaved import GIT, Late, Repository, Search, join
from coldframe.guest.verbs import Answer, Failure, verb

MOST_COMMITS = 100_000
"""That a walk goes through."""
COMPARED_BYTES = 2 * 1024 * 1024
"""Of one file whose lines are compared."""
COMPARED_LINES = 100_000
TOLD_BYTES = 1024 * 1024
"""Of lines in one answer."""
MOST_APART = 20_000
"""Commits of one side that are counted against the other."""
MESSAGES_BYTES = 2 * 1024 * 1024
READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW


@verb("read_repository", slow=True)
def read_repository(root: int, request: dict[str, Any], content: bytes) -> Answer:
    """Answer a ReadRepository."""
    budget_s = float(request["budget_s"])
    reader = _Reader(root, request, time.monotonic() + budget_s)
    question = str(request["question"])
    try:
        return {"question": question, **reader.open_and_answer(question)}, b""
    except UnknownRevision as error:
        raise Failure("GIT_UNKNOWN_REVISION", f"`{reader.named[:200]}` means no commit: {error}") from error
    except Unreadable as error:
        where = text_of(reader.top) or "."
        facts = {"path": where, "is_placed": reader.is_placed}
        raise Failure("GIT_UNREADABLE", f"the repository `{where}` cannot be read: {error}", **facts) from error
    except MemoryError as error:
        raise Failure("GIT_UNREADABLE", "the repository takes too much memory to read") from error
    except Late as error:
        raise Failure(
            "TOO_LARGE", f"the repository takes longer than {budget_s:g} s to read; ask for a part of it"
        ) from error
    finally:
        reader.close()


class _Reader:
    def __init__(self, root: int, request: dict[str, Any], deadline: float) -> None:
        self._root = root
        self._request = request
        self._deadline = deadline
        self._search = Search(root, 0, deadline)
        self._objects: Objects | None = None
        self._told = 0
        self.named = ""
        self.top = b""
        self.is_placed = False
        """It is known where it is kept."""

    def close(self) -> None:
        if self._objects is not None:
            self._objects.close()

    def open_and_answer(self, question: str) -> dict[str, Any]:
        if question == "repositories":
            nowhere = {"repository": ".", "branch": None, "head": None}
            return {**nowhere, "repositories": self._repositories(int(self._request["limit"]))}
        repository = self._find(os.fsencode(str(self._request.get("path") or "")))
        self.top, self.is_placed = repository.top, True
        self._refs = Refs(self._root, repository.folder, repository.common, self._check_time)
        branch, commit = self._refs.head()
        self._head = commit
        width = len(commit) if commit is not None else 20
        self._work = Work(self._search, repository, width, self._check_time, with_index=question in ("status", "diff"))
        self._objects = self._work.objects
        found: dict[str, Any] = {
            "repository": text_of(repository.top) or ".",
            "kept_in": [text_of(one) for one in dict.fromkeys(repository[1:]) if one != join(repository.top, GIT)],
            "head": None if commit is None else commit.hex(),
            "branch": None if branch is None else text_of(branch.removeprefix(b"refs/heads/")),
        }
        answers = {
            "status": self._status,
            "log": self._log,
            "show": self._show,
            "diff": self._diff,
            "refs": self._names,
        }
        if question not in answers:
            raise Failure("INVALID_ARGUMENT", "a repository is not asked that")
        return {**found, question: answers[question]()}

    def _repositories(self, most: int) -> dict[str, Any]:
        found: list[dict[str, Any]] = []
        complete = True
        try:
            for top in self._search.tops(most + 1):
                told = self._told_of(top)
                if told is not None:
                    found.append(told)
        except Late:
            complete = False
        return {"repositories": found[:most], "complete": complete and len(found) <= most}

    def _told_of(self, top: bytes) -> dict[str, Any] | None:
        """None for what is called `.git` there and is none."""
        told: dict[str, Any] = {"path": text_of(top) or ".", "branch": None, "head": None, "reason": None}
        try:
            repository = self._search.opened(top)
            if repository is None:
                return None
            branch, head = Refs(self._root, repository.folder, repository.common, self._check_time).head()
        except Unreadable as error:
            return {**told, "reason": str(error)}
        told["branch"] = None if branch is None else text_of(branch.removeprefix(b"refs/heads/"))
        told["head"] = None if head is None else head.hex()
        return told

    def _find(self, path: bytes) -> Repository:
        """The nearest one at or above."""
        place = path.strip(b"/")
        while True:
            self.top = place
            repository = self._search.opened(place) if self._search.has_git(place) else None
            if repository is not None:
                return repository
            if not place:
                shown = text_of(path) or "."
                raise Failure("GIT_NO_REPOSITORY", f"there is no Git repository at or above `{shown}`", path=shown)
            place = place.rpartition(b"/")[0]

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise Late

    def _resolve(self, revision: str) -> bytes:
        assert self._objects is not None
        self.named = revision
        return self._refs.resolve(os.fsencode(revision), self._objects)

    def _commit(self, revision: str) -> Commit:
        assert self._objects is not None
        return commit_of(self._objects, self._resolve(revision))

    # -- questions -----------------------------------------------------------------------------

    def _status(self) -> dict[str, Any]:
        told = self._work.status(self._tree_of(self._head), int(self._request["limit"]))
        return {**told, **self._against_upstream()}

    def _against_upstream(self) -> dict[str, Any]:
        branch = self._refs.head()[0]
        pair = self._refs.settings().upstreams.get((branch or b"").removeprefix(b"refs/heads/"))
        if branch is None or pair is None:
            return {"upstream": None, "ahead": None, "behind": None}
        remote, merge = pair
        there = merge if remote == b"." else b"refs/remotes/" + remote + b"/" + merge.removeprefix(b"refs/heads/")
        other = self._refs.find(there)
        found: dict[str, Any] = {
            "upstream": text_of(there.removeprefix(b"refs/remotes/")),
            "ahead": None,
            "behind": None,
        }
        if other is not None and self._head is not None:
            ahead, behind = self._apart(self._head, other)
            found.update(ahead=ahead, behind=behind)
        return found

    def _apart(self, one: bytes, other: bytes) -> tuple[int | None, int | None]:
        """Commits that each alone has, by time; not told where they are too many."""
        assert self._objects is not None
        seen: dict[bytes, int] = {one: 1}
        seen[other] = seen.get(other, 0) | 2
        waiting = [(-commit_of(self._objects, each).time, each) for each in {one, other}]
        heapq.heapify(waiting)
        while waiting and any(seen[each] != 3 for _, each in waiting):
            self._check_time()
            if len(seen) > MOST_APART:
                return None, None
            _, at = heapq.heappop(waiting)
            for parent in self._parents(commit_of(self._objects, at)):
                before = seen.get(parent, 0)
                seen[parent] = before | seen[at]
                if seen[parent] != before:
                    heapq.heappush(waiting, (-commit_of(self._objects, parent).time, parent))
        sides = list(seen.values())
        return sides.count(1), sides.count(2)

    def _parents(self, commit: Commit) -> tuple[bytes, ...]:
        """None at the border of a history that was not fetched whole."""
        return () if commit.id in self._work.shallow else commit.parents

    def _log(self) -> dict[str, Any]:
        assert self._objects is not None
        limit, skip = int(self._request["limit"]), int(self._request["skip"])
        paths = self._paths()
        revision = self._request.get("revision")
        if revision is None and self._head is None:
            return {"commits": [], "complete": True, "shallow": bool(self._work.shallow)}
        first = self._commit(revision or "HEAD")
        waiting, seen, order = [(-first.time, 0, first)], {first.id}, 0
        found: list[dict[str, Any]] = []
        size, walked = 0, 0
        while waiting and len(found) < limit and size < MESSAGES_BYTES and walked < MOST_COMMITS:
            self._check_time()
            walked += 1
            commit = heapq.heappop(waiting)[2]
            parents = [commit_of(self._objects, one) for one in self._parents(commit)]
            for parent in parents:
                if parent.id not in seen:
                    seen.add(parent.id)
                    order += 1
                    heapq.heappush(waiting, (-parent.time, order, parent))
            if paths and not self._touches(commit, parents, paths):
                continue
            if skip:
                skip -= 1
                continue
            found.append(shown(commit, 16 * 1024))
            size += len(commit.message[: 16 * 1024])
        return {"commits": found, "complete": not waiting, "shallow": bool(self._work.shallow)}

    def _paths(self) -> list[bytes]:
        given = [os.path.normpath(os.fsencode(one)).strip(b"/") for one in self._request["paths"]]
        return [b"" if one == b"." else one for one in given]

    def _touches(self, commit: Commit, parents: list[Commit], paths: list[bytes]) -> bool:
        assert self._objects is not None
        mine = [self._objects.entry_at(commit.tree, path) for path in paths]
        if not parents:
            return any(one is not None for one in mine)
        return all(mine != [self._objects.entry_at(one.tree, path) for path in paths] for one in parents)

    def _show(self) -> dict[str, Any]:
        assert self._objects is not None
        commit = self._commit(self._request.get("revision") or "HEAD")
        parents = self._parents(commit)
        before = commit_of(self._objects, parents[0]).tree if parents else None
        return {"commit": shown(commit, 64 * 1024), "diff": self._of_trees(before, commit.tree)}

    def _diff(self) -> dict[str, Any]:
        asked = self._request
        before, after = asked.get("before"), asked.get("after")
        if after is not None:
            return self._of_trees(self._tree_named(before or "HEAD"), self._tree_named(after))
        if asked["staged"]:
            tree = self._tree_of(self._head) if before is None else self._tree_named(before)
            return self._of_sides(self._work.of_tree(tree), self._work.of_index())
        tree_side = self._work.of_index() if before is None else self._work.of_tree(self._tree_named(before))
        return self._of_sides(tree_side, self._work.of_files())

    def _tree_named(self, revision: str) -> bytes:
        assert self._objects is not None
        found = peeled(self._objects, self._resolve(revision))
        return found if self._objects.read(found)[0] == b"tree" else commit_of(self._objects, found).tree

    def _tree_of(self, commit: bytes | None) -> bytes | None:
        assert self._objects is not None
        return None if commit is None else self._objects.tree_of(commit)

    def _of_sides(self, before: dict[bytes, Side], after: dict[bytes, Side]) -> dict[str, Any]:
        differ = {
            path: (before.get(path), after.get(path))
            for path in sorted(before.keys() | after.keys())
            if before.get(path) != after.get(path)
        }
        return self._compared(differ)

    def _of_trees(self, before: bytes | None, after: bytes | None) -> dict[str, Any]:
        assert self._objects is not None
        found = self._objects.changed(before, after)
        return self._compared(
            {
                path: (None if one is None else Side(*one), None if other is None else Side(*other))
                for path, (one, other) in sorted(found.items())
            }
        )

    def _names(self) -> dict[str, Any]:
        assert self._objects is not None
        settings = self._refs.settings()
        branches, tags, remote_branches = [], [], []
        for name, object_id in sorted(self._refs.all().items()):
            self._check_time()
            if name.startswith(b"refs/heads/"):
                branch = name[11:]
                upstream = settings.upstreams.get(branch)
                after = None
                if upstream is not None:
                    after = b"/".join((upstream[0], upstream[1].removeprefix(b"refs/heads/")))
                branches.append({**_named(branch, object_id), "upstream": None if after is None else text_of(after)})
            elif name.startswith(b"refs/tags/"):
                at = peeled(self._objects, object_id)
                tags.append({**_named(name[10:], at), "annotated": at != object_id})
            elif name.startswith(b"refs/remotes/") and not name.endswith(b"/HEAD"):
                remote_branches.append(_named(name[13:], object_id))
        limit = int(self._request["limit"])
        return {
            "branches": branches[:limit],
            "tags": tags[:limit],
            "remote_branches": remote_branches[:limit],
            "remotes": [{"name": text_of(n), "url": text_of(u[:2000])} for n, u in sorted(settings.remotes.items())][
                :100
            ],
            "complete": max(map(len, (branches, tags, remote_branches))) <= limit,
        }

    # -- contents ------------------------------------------------------------------------------

    def _compared(self, differ: dict[bytes, tuple[Side | None, Side | None]]) -> dict[str, Any]:
        paths = self._paths()
        wanted = {
            path: pair
            for path, pair in differ.items()
            if not paths or any(path == one or path.startswith(one + b"/") or not one for one in paths)
        }
        most = int(self._request["limit"])
        files = []
        for path, (before, after) in list(wanted.items())[:most]:
            self._check_time()
            files.append(self._file(path, before, after))
        complete = len(files) == len(wanted) and all(one["complete"] for one in files)
        return {
            "files": files,
            "total": len(wanted),
            "additions": sum(one["additions"] or 0 for one in files),
            "deletions": sum(one["deletions"] or 0 for one in files),
            "complete": complete,
        }

    def _file(self, path: bytes, before: Side | None, after: Side | None) -> dict[str, Any]:
        modes = [None if side is None else side.mode for side in (before, after)]
        change = "added" if before is None else "deleted" if after is None else "modified"
        found: dict[str, Any] = {
            "path": text_of(path),
            "change": change,
            "old_mode": modes[0],
            "new_mode": modes[1],
            "old_id": None if before is None or before.id is None else before.id.hex(),
            "new_id": None if after is None or after.id is None else after.id.hex(),
            "kind": _kind(modes[1] if modes[1] is not None else modes[0]),
            "binary": False,
            "lfs": False,
            "old_bytes": None,
            "new_bytes": None,
            "additions": None,
            "deletions": None,
            "hunks": [],
            "complete": True,
            "reason": None,
        }
        if GITLINK in modes:
            return found
        contents: list[bytes] = []
        for name, side in (("old_bytes", before), ("new_bytes", after)):
            content, size = self._content(path, side)
            found[name] = size
            if content is None:
                found.update(complete=False, reason=f"it is larger than {COMPARED_BYTES} bytes")
            contents.append(content or b"")
        found["lfs"] = any(pointer_of(one) is not None for one in contents)
        found["binary"] = any(map(is_binary, contents))
        if found["binary"] or not found["complete"]:
            return found
        old, new = (lines_of(one) for one in contents)
        if max(len(old), len(new)) > COMPARED_LINES:
            found.update(complete=False, reason=f"it has more than {COMPARED_LINES} lines")
            return found
        runs = runs_of(old, new, self._check_time)
        found["additions"] = sum(run.d - run.c for run in runs)
        found["deletions"] = sum(run.b - run.a for run in runs)
        found["hunks"], whole = hunks_of(old, new, runs, text_of, TOLD_BYTES - self._told)
        self._told += sum(len(line) for hunk in found["hunks"] for line in hunk["lines"])
        if not whole:
            found.update(complete=False, reason="the answer would be too long; ask for this path alone")
        return found

    def _content(self, path: bytes, side: Side | None) -> tuple[bytes | None, int | None]:
        """None for the content of what is too large; its size is told as far as it is known."""
        assert self._objects is not None
        if side is None:
            return b"", None
        if side.id is None:
            return self._work.content_of(path, side.mode, COMPARED_BYTES)
        size = self._objects.size_of(side.id)
        if size is not None and size > MOST_OBJECT_BYTES:
            return None, size
        content = self._objects.read(side.id)[1]
        return (content if len(content) <= COMPARED_BYTES else None), len(content)


def shown(commit: Commit, most_bytes: int) -> dict[str, Any]:
    """A commit with its times as text."""
    told = commit.told(most_bytes=most_bytes)
    for name in ("authored_at", "committed_at"):
        told[name] = time_of(told[name] * 10**9)
    return told


def _named(name: bytes, object_id: bytes) -> dict[str, Any]:
    return {"name": text_of(name), "commit": object_id.hex()}


def _kind(mode: int | None) -> str:
    return {SYMLINK: "symlink", GITLINK: "submodule", TREE: "folder"}.get(mode or 0, "file")
