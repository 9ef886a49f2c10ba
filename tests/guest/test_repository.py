"""Held here: a repository is told as Git tells it, for repositories that Git makes, and a hostile one runs nothing."""

import hashlib
import os
import random
import subprocess
from pathlib import Path

import pytest

from coldframe.contract.git import GitDiff, GitLog, GitStatus, ReadRepository, RepositoryAnswer
from tests.guest.test_unsaved import ENVIRONMENT, begun, git
from tests.guest.workspace import Workspace


def asked(workspace: Workspace, question: str, **more: object) -> RepositoryAnswer:
    answer = workspace.ask(ReadRepository.model_validate({"question": question, "path": "repo", **more}))
    assert isinstance(answer, RepositoryAnswer)
    return answer


def status_of(workspace: Workspace) -> GitStatus:
    status = asked(workspace, "status").status
    assert status is not None
    return status


def log_of(workspace: Workspace, **more: object) -> GitLog:
    log = asked(workspace, "log", **more).log
    assert log is not None
    return log


def diff_of(workspace: Workspace, **more: object) -> GitDiff:
    diff = asked(workspace, "diff", **more).diff
    assert diff is not None
    return diff


def as_git_tells(place: Path) -> set[tuple[str, str, str]]:
    told = git(place, "status", "--porcelain", "-uall", "-z", "--no-renames").split("\0")
    return {(line[3:], line[0], line[1]) for line in told if line}


WORDS = {None: " ", "added": "A", "modified": "M", "deleted": "D"}


def as_told(status: GitStatus) -> set[tuple[str, str, str]]:
    found = set()
    for one in status.changes:
        if one.unstaged == "untracked" and one.staged is None:
            found.add((one.path, "?", "?"))
        elif one.unstaged != "untracked":
            found.add((one.path, WORDS[one.staged], WORDS[one.unstaged]))
    return found


def patch_of(diff: GitDiff) -> str:
    """As `git apply` takes it."""
    text = ""
    for one in diff.files:
        old, new = one.old_mode, one.new_mode
        text += f"diff --git a/{one.path} b/{one.path}\n"
        if one.change == "added":
            text += f"new file mode {new:06o}\n"
        elif one.change == "deleted":
            text += f"deleted file mode {old:06o}\n"
        elif old != new:
            text += f"old mode {old:06o}\nnew mode {new:06o}\n"
        if one.hunks:
            text += f"--- {'/dev/null' if old is None else 'a/' + one.path}\n"
            text += f"+++ {'/dev/null' if new is None else 'b/' + one.path}\n"
        for hunk in one.hunks:
            text += f"@@ -{hunk.old_start},{hunk.old_lines} +{hunk.new_start},{hunk.new_lines} @@\n"
            text += "".join(f"{line}\n" for line in hunk.lines)
    return text


@pytest.mark.req("T3.75")
def test_status_is_what_git_tells_of_each_kind_of_change(workspace: Workspace) -> None:
    place = begun(workspace.path / "repo")
    assert status_of(workspace).clean
    (place / "a").write_text("b" * len((place / "a").read_bytes()))
    (place / "sub/c").unlink()
    git(place, "rm", "-q", "sub/deep/d")
    (place / "b").chmod(0o755)
    (place / "new").write_text("x")
    (place / "added").write_text("x")
    git(place, "add", "added", "b")
    (place / "b").write_text("again")
    (place / ".gitignore").write_text("*.o\n")
    (place / "x.o").write_text("left out")
    assert as_told(status_of(workspace)) == as_git_tells(place)
    git(place, "add", "-A")
    assert as_told(status_of(workspace)) == as_git_tells(place)
    git(place, "commit", "-qm", "all")
    assert status_of(workspace).clean


@pytest.mark.req("T3.75")
def test_a_merge_in_conflict_is_told_with_how_each_file_is(workspace: Workspace) -> None:
    place = begun(workspace.path / "repo")
    git(place, "switch", "-qc", "other")
    (place / "a").write_text("theirs\n")
    git(place, "rm", "-q", "b")
    (place / "both").write_text("theirs\n")
    git(place, "add", ".")
    git(place, "commit", "-qm", "theirs")
    git(place, "switch", "-q", "-")
    (place / "a").write_text("ours\n")
    (place / "b").write_text("ours\n")
    (place / "both").write_text("ours\n")
    git(place, "add", ".")
    git(place, "commit", "-qm", "ours")
    done = subprocess.run(["git", "merge", "-q", "other"], cwd=place, env=ENVIRONMENT, capture_output=True, check=False)
    assert done.returncode == 1
    status = status_of(workspace)
    assert status.under_way == "merge" and status.conflicts == ("a", "b", "both")
    assert {(one.path, one.conflict) for one in status.changes} == {
        ("a", "both_modified"),
        ("b", "deleted_by_them"),
        ("both", "both_added"),
    }


@pytest.mark.req("T3.75")
@pytest.mark.parametrize("packed", [False, True])
def test_the_log_has_all_commits_of_a_history_with_merges(workspace: Workspace, *, packed: bool) -> None:
    place = begun(workspace.path / "repo")
    names = random.Random(7)
    for number in range(12):
        if number % 4 == 1:
            git(place, "switch", "-qc", f"side-{number}", "HEAD~1")
        (place / f"f{number}").write_text("x")
        git(place, "add", ".")
        git(place, "commit", "-qm", f"commit {number}\n\nOn-behalf-of: someone-{names.randint(0, 9)}")
        if number % 4 == 1:
            git(place, "switch", "-q", "-")
            git(place, "merge", "-q", "--no-edit", "-m", f"merge {number}", f"side-{number}")
    git(place, "tag", "-am", "a tag", "v1")
    if packed:
        git(place, "gc", "-q")
    ids = git(place, "rev-list", "HEAD").split()
    log = log_of(workspace)
    assert {one.id for one in log.commits} == set(ids) and log.complete
    order = [one.id for one in log.commits]
    assert all(order.index(one.id) < order.index(parent) for one in log.commits for parent in one.parents)
    assert log.commits[0].id == ids[0] and len(log_of(workspace, limit=3).commits) == 3
    assert log_of(workspace, limit=3, skip=3).commits == log.commits[3:6]
    assert {one.id for one in log_of(workspace, paths=["f3"]).commits} == set(
        git(place, "rev-list", "HEAD", "--", "f3").split()
    )
    for name in ("v1", "HEAD~2", "HEAD^", ids[4][:9], "side-1", ids[3], "refs/heads/side-5", "v1^0"):
        meant = git(place, "rev-parse", name + "^{commit}").strip()
        assert log_of(workspace, revision=name, limit=1).commits[0].id == meant, name
    said = git(place, "log", "-1", "--format=%an|%ae|%B", "HEAD~0").strip()
    assert f"{log.commits[0].author}|{log.commits[0].author_email}|{log.commits[0].message}".strip() == said
    refs = asked(workspace, "refs").refs
    assert refs is not None and {one.name: one.commit for one in refs.branches} == {
        line.split()[1]: line.split()[0]
        for line in git(place, "for-each-ref", "--format=%(objectname) %(refname:short)", "refs/heads").splitlines()
    }
    assert [(one.name, one.commit, one.annotated) for one in refs.tags] == [("v1", ids[0], True)]
    for name in ("nothing", "HEAD~99", "HEAD^5", "v1:a"):
        assert workspace.refusal(ReadRepository(question="log", path="repo", revision=name)).code == (
            "GIT_UNKNOWN_REVISION"
        )


@pytest.mark.req("T3.75")
def test_a_diff_leads_from_the_one_to_the_other(workspace: Workspace, tmp_path: Path) -> None:
    """`git apply` makes of the one side the other, so what is told is whole and true."""
    place = begun(workspace.path / "repo")
    random_ = random.Random(3)
    for _ in range(6):
        lines = (place / "a").read_text().splitlines(keepends=True)
        for _ in range(random_.randint(1, 8)):
            at = random_.randrange(len(lines))
            lines[at : at + random_.randint(0, 3)] = [f"{random_.randint(0, 5)}\n"] * random_.randint(0, 3)
        (place / "a").write_text("".join(lines) + random_.choice(["", "no end"]))
        (place / "b").chmod(random_.choice([0o644, 0o755]))
        (place / "new").write_text("fresh\n" * random_.randint(1, 5))
        if (place / "sub/c").exists():
            (place / "sub/c").unlink()
        git(place, "add", "-N", ".")
        copy = tmp_path / "copy"
        for staged, patch in ((False, diff_of(workspace, before="HEAD")), (True, None)):
            if staged:
                git(place, "add", "-A")
                patch = diff_of(workspace, staged=True)
            subprocess.run(["rm", "-rf", copy], check=True)
            git(tmp_path, "clone", "-q", str(place), str(copy))
            assert patch is not None and patch.complete
            git(copy, "apply", "--index", "--allow-empty", stdin=patch_of(patch))
            for path in ("a", "new"):
                assert (copy / path).read_bytes() == (place / path).read_bytes()
            assert not (copy / "sub/c").exists()
        git(place, "commit", "-qm", "next")
        shown = asked(workspace, "show").show
        assert shown is not None
        told = git(place, "show", "--numstat", "--no-renames", "--format=", "HEAD").split("\n")
        numbers = {line.split("\t")[2]: tuple(line.split("\t")[:2]) for line in told if line}
        assert {one.path for one in shown.diff.files} >= set(numbers)
        assert diff_of(workspace, before="HEAD~1", after="HEAD") == shown.diff


@pytest.mark.req("T3.75")
def test_large_many_and_foreign_things_are_told_or_refused_with_their_reason(workspace: Workspace) -> None:
    place = begun(workspace.path / "repo")
    inner = begun(workspace.path / "inner")
    git(place, "submodule", "--quiet", "add", str(inner), "module")
    (place / "large").write_bytes(os.urandom(1 << 20) * 40)
    content = b"what lies elsewhere\n" * 100
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{hashlib.sha256(content).hexdigest()}\nsize {len(content)}\n"
    (place / ".gitattributes").write_text("*.bin filter=lfs diff=lfs merge=lfs -text\n")
    for name in ("here.bin", "gone.bin"):
        (place / name).write_text(pointer)
    many = place / "many"
    many.mkdir()
    for number in range(1000):
        (many / f"{number:05}").write_bytes(b"%d\n" % number)
    git(place, "add", ".")
    git(place, "commit", "-qm", "much")
    (place / "here.bin").write_bytes(content)
    status = status_of(workspace)
    assert status.clean, status.changes[:3]
    assert status.lfs_pointers == ("gone.bin",)
    assert [(one.path, one.checked_out == one.commit) for one in status.submodules] == [("module", True)]
    shown = asked(workspace, "show", paths=["large", "module", "here.bin", ".gitmodules"]).show
    assert shown is not None
    files = {one.path: one for one in shown.diff.files}
    assert (
        files["large"].new_bytes == 40 << 20 and not files["large"].complete and "larger" in str(files["large"].reason)
    )
    assert files["module"].kind == "submodule" and files["here.bin"].lfs and files[".gitmodules"].additions == 3
    assert asked(workspace, "show", limit=10).show.diff.total == 1006  # type: ignore[union-attr]
    (place / "here.bin").write_bytes(content[:-1] + b"!")
    git(place / "module", "commit", "-q", "--allow-empty", "-m", "on")
    assert {one.path for one in status_of(workspace).changes} == {"here.bin", "module"}


@pytest.mark.req("T3.75")
def test_places_without_a_repository_and_broken_ones_are_refused_with_their_reason(workspace: Workspace) -> None:
    (workspace.path / "repo").mkdir()
    assert workspace.refusal(ReadRepository(question="status", path="repo")).code == "GIT_NO_REPOSITORY"
    place = begun(workspace.path / "repo")
    assert asked(workspace, "status", path="repo/sub/deep").repository == "repo"
    head = git(place, "rev-parse", "HEAD").strip()
    (place / ".git/objects" / head[:2] / head[2:]).unlink()
    refusal = workspace.refusal(ReadRepository(question="log", path="repo"))
    assert refusal.code == "GIT_UNREADABLE" and "missing" in refusal.message
    os.rename(place / ".git", workspace.path / "elsewhere")
    (place / ".git").symlink_to("../elsewhere")
    assert workspace.refusal(ReadRepository(question="log", path="repo")).code == "GIT_UNREADABLE"
    (place / ".git").unlink()
    (place / ".git").write_text("gitdir: /etc\n")
    assert workspace.refusal(ReadRepository(question="log", path="repo")).code == "GIT_UNREADABLE"


def test_odd_lines_and_passwords_of_a_hostile_repository_are_read_as_nothing(workspace: Workspace) -> None:
    (workspace.path / "repo").mkdir()
    place = begun(workspace.path / "repo")
    (place / ".git/shallow").write_text("a" * 41 + "\n")
    assert not log_of(workspace).shallow
    for name, address, told in (
        ("one", "https://bob:p@ss@host/r", "https://host/r"),
        ("two", "helper::https://u:p@host/r", "helper::https://host/r"),
    ):
        git(place, "remote", "add", name, address)
        refs = asked(workspace, "refs").refs
        assert refs is not None and {one.name: one.url for one in refs.remotes}[name] == told


@pytest.mark.req("T3.47")
@pytest.mark.req("T3.75")
def test_a_hostile_repository_runs_nothing_and_shows_no_file_outside(workspace: Workspace, tmp_path: Path) -> None:
    place = begun(workspace.path / "repo")
    canary = tmp_path / "ran"
    secret = tmp_path / "secret"
    secret.write_text("canary-of-outside\n")
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho ran >> {canary}\ncat\n")
    program.chmod(0o755)
    for name in ("pre-commit", "post-checkout", "post-index-change", "reference-transaction", "fsmonitor-watchman"):
        hook = place / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        os.symlink(program, hook)
    for key, value in {
        "core.fsmonitor": str(program),
        "core.pager": str(program),
        "core.sshCommand": str(program),
        "core.hooksPath": str(tmp_path),
        "diff.external": str(program),
        "diff.evil.textconv": str(program),
        "diff.evil.command": str(program),
        "filter.evil.clean": str(program),
        "filter.evil.smudge": str(program),
        "filter.evil.process": str(program),
        "core.attributesFile": str(secret),
        "core.excludesFile": str(secret),
        "include.path": str(secret),
        "remote.origin.url": "https://user:hidden@example.test/repo",
    }.items():
        git(place, "config", key, value)
    (place / ".gitattributes").write_text("* diff=evil filter=evil\n")
    (place / "a").write_text("changed\n")
    (place / "out").symlink_to(secret)
    (place / "sub/c").unlink()
    (place / "sub/c").symlink_to(secret)
    answers = [
        asked(workspace, question, **more)
        for question, more in (
            ("status", {}),
            ("log", {"paths": ["a"]}),
            ("show", {}),
            ("diff", {}),
            ("diff", {"before": "HEAD"}),
            ("refs", {}),
        )
    ]
    told = "".join(answer.model_dump_json() for answer in answers)
    assert not canary.exists()
    assert "canary-of-outside" not in told and "hidden" not in told and "https://example.test/repo" in told
