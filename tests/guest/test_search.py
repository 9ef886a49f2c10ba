"""Promise: a search finds what `grep -rn` finds, in bounded time, and names everything it passed over."""

import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from coldframe.contract.files import SearchFiles
from coldframe.guest import search
from tests.guest.workspace import Workspace, failure_of, unprivileged

WORDS = [
    "needle",
    "Needle",
    "x.y",
    "a:b",
    "12:needle",
    "-n",
    "tail ",
    "\tneedle",
    "ünï",
    "",
    "a+b",
    "nee",
    "dle\r",
    "caf\udce9",
]


def make_corpus(path: Path, *, files: int = 60) -> None:
    dice = random.Random(7)
    for number in range(files):
        directory = path / dice.choice(["", "src", "src/deep", "a b", "log:1", "-d"])
        directory.mkdir(parents=True, exist_ok=True)
        lines = [" ".join(dice.choices(WORDS, k=dice.randint(0, 6))) for _ in range(dice.randint(0, 40))]
        text = "\n".join(lines) + dice.choice(["", "\n", "\n\n"])
        (directory / f"{number}:{number}.txt").write_bytes(text.encode("utf-8", "surrogateescape"))


def grep(path: Path, *options: str) -> list[tuple[str, int, str]]:
    done = subprocess.run(
        ["grep", "-rnZ", "--binary-files=text", *options, "."],
        cwd=path,
        capture_output=True,
        env={"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]},
    )
    found = []
    for line in done.stdout.split(b"\n")[:-1]:
        name, rest = line.split(b"\0", 1)
        number, text = rest.split(b":", 1)
        found.append(
            (name[2:].decode("utf-8", "surrogateescape"), int(number), text.decode("utf-8", "surrogateescape"))
        )
    return sorted(found)


@pytest.mark.req("T1.35")
@pytest.mark.parametrize(
    ("pattern", "regex", "ignore_case", "options"),
    [
        ("needle", True, False, ["-e", "needle"]),
        ("needle", False, False, ["-F", "-e", "needle"]),
        ("needle", True, True, ["-i", "-e", "needle"]),
        ("x.y", False, False, ["-F", "-e", "x.y"]),
        ("x.y", True, False, ["-E", "-e", "x.y"]),
        ("^(nee|a:b) (x.y|needle)", True, False, ["-E", "-e", "^(nee|a:b) (x.y|needle)"]),
        ("a+b", False, True, ["-F", "-i", "-e", "a+b"]),
        ("-n", True, False, ["-e", "-n"]),
        ("tail $", True, False, ["-E", "-e", "tail $"]),
        ("^$", True, False, ["-E", "-e", "^$"]),
        ("ünï", False, False, ["-F", "-e", "ünï"]),
    ],
)
def test_matches_equal_those_of_grep(
    workspace: Workspace, pattern: str, regex: bool, ignore_case: bool, options: list[str]
) -> None:
    make_corpus(workspace.path)
    answer = workspace.search(pattern, regex=regex, ignore_case=ignore_case, max_matches=100_000)
    assert answer.complete
    assert answer.files_searched == 60
    found = [(match.path, match.line, match.text) for match in answer.matches]
    expected = grep(workspace.path, *options)
    assert len(expected) > 5
    assert found == expected


def test_bytes_that_are_no_text_are_found_and_given_back(workspace: Workspace) -> None:
    (workspace.path / "f").write_bytes(b"caf\xe9 needle\xff\n")
    for pattern in ("caf\udce9", "needle"):
        assert [match.text for match in workspace.search(pattern, regex=False).matches] == ["caf\udce9 needle\udcff"]


def test_colons_in_paths_and_texts_stay_where_they_belong(workspace: Workspace) -> None:
    (workspace.path / "log_20260519:0606:30.txt").write_text("needle here\n")
    (workspace.path / "t.txt").write_text("x.py:12:needle\n")
    assert [(m.path, m.line) for m in workspace.search("needle").matches] == [
        ("log_20260519:0606:30.txt", 1),
        ("t.txt", 1),
    ]


@pytest.mark.req("T1.35")
def test_what_is_passed_over_is_counted_or_named(workspace: Workspace) -> None:
    (workspace.path / "binary").write_bytes(b"needle\0")
    (workspace.path / "src.py").write_text("needle\n")
    os.mkfifo(workspace.path / "fifo")
    os.symlink("src.py", workspace.path / "link")
    os.symlink("..", workspace.path / "loop")
    with open(workspace.path / "large", "wb") as large:
        large.write(b"needle\n")
        large.truncate(search.LARGE_BYTES + 1)
    for store in sorted(search.STORES):
        (workspace.path / "sub" / os.fsdecode(store)).mkdir(parents=True)
        (workspace.path / "sub" / os.fsdecode(store) / "f").write_text("needle\n")
    answer = workspace.search("needle")
    assert [match.path for match in answer.matches] == ["src.py"]
    assert (answer.files_searched, answer.binary_skipped, answer.special_skipped) == (1, 1, 1)
    assert answer.large_skipped == ("large",)
    assert answer.directories_skipped == tuple(f"sub/{os.fsdecode(store)}" for store in sorted(search.STORES))
    assert len(workspace.search("needle", include_hidden_stores=True).matches) == 1 + len(search.STORES)
    assert [match.path for match in workspace.search("needle", path="sub/.git").matches] == ["sub/.git/f"]


def test_unreadable_places_are_told_and_the_rest_is_searched(workspace: Workspace) -> None:
    (workspace.path / "no").mkdir()
    (workspace.path / "nofile").write_text("needle")
    (workspace.path / "yes").write_text("needle")
    os.chmod(workspace.path / "no", 0)
    os.chmod(workspace.path / "nofile", 0)
    answer = unprivileged(workspace.path, lambda: workspace.search("needle").model_dump())
    assert [match["path"] for match in answer["matches"]] == ["yes"]
    assert sorted(answer["errors"]) == [("no", "permission denied"), ("nofile", "permission denied")]


def test_long_lines_are_clipped_around_the_match(workspace: Workspace) -> None:
    (workspace.path / "bundle.min.js").write_text("pre needle" + "x" * 3_000_000)
    (workspace.path / "end.js").write_text("x" * 3_000_000 + "needle")
    (workspace.path / "z.txt").write_text("needle two\n")
    begun = time.process_time()
    matches = workspace.search("needle").matches
    assert time.process_time() - begun < 3
    assert [(match.path, match.clipped) for match in matches] == [
        ("bundle.min.js", True),
        ("end.js", True),
        ("z.txt", False),
    ]
    assert all("needle" in match.text and len(match.text) <= search.LINE_CHARACTERS for match in matches)


@pytest.mark.parametrize(
    ("glob", "found"),
    [
        ("*.py", {"a.py", "src/b.py", "src/deep/c.py"}),
        ("src/*.py", {"src/b.py"}),
        ("src/**", {"src/b.py", "src/deep/c.py", "src/d.[x]"}),
        ("**/*.py", {"a.py", "src/b.py", "src/deep/c.py"}),
        ("src/**/*.py", {"src/b.py", "src/deep/c.py"}),
        ("*.{py,txt}", {"a.py", "src/b.py", "src/deep/c.py", "e.txt"}),
        ("[ab].py", {"a.py", "src/b.py"}),
        ("[!ab].py", {"src/deep/c.py"}),
        ("?.txt", {"e.txt"}),
        ("d.[[]x]", {"src/d.[x]"}),
        ("nothing", set()),
    ],
)
def test_a_glob_chooses_the_files(workspace: Workspace, glob: str, found: set[str]) -> None:
    (workspace.path / "src" / "deep").mkdir(parents=True)
    for path in ("a.py", "src/b.py", "src/deep/c.py", "src/d.[x]", "e.txt"):
        (workspace.path / path).write_text("needle")
    answer = workspace.search("needle", glob=glob)
    assert {match.path for match in answer.matches} == found
    assert answer.files_searched == len(found)


def test_a_path_glob_may_start_at_the_directory_searched(workspace: Workspace) -> None:
    (workspace.path / "a" / "b").mkdir(parents=True)
    (workspace.path / "a" / "b" / "f.py").write_text("needle")
    for glob in ("b/*.py", "a/b/*.py", "./b/*.py"):
        assert len(workspace.search("needle", path="a", glob=glob).matches) == 1


def test_a_single_file_can_be_searched(workspace: Workspace) -> None:
    (workspace.path / "f").write_text("a\nneedle\n")
    os.mkfifo(workspace.path / "fifo")
    assert [(m.path, m.line) for m in workspace.search("needle", path="f").matches] == [("f", 2)]
    assert workspace.search("needle", path="fifo").special_skipped == 1
    assert workspace.code_of(SearchFiles(pattern="x", path="nothing")) == "FILE_NOT_FOUND"


@pytest.mark.parametrize(
    ("pattern", "position"),
    [("(", 0), ("a[", 1), ("", 0), ("a\nb", 1), ("(" * 6000, 0), ("*", 0), ("a{99999999999}", 0)],
)
def test_a_pattern_that_means_nothing_is_refused_with_the_place(
    workspace: Workspace, pattern: str, position: int
) -> None:
    failure = failure_of(lambda: workspace.search(pattern))
    assert (failure.code, failure.facts["position"]) == ("INVALID_PATTERN", position)


def test_signs_of_a_pattern_can_be_searched_literally(workspace: Workspace) -> None:
    (workspace.path / "f").write_text("a[\n(\n*\n")
    assert [workspace.search(pattern, regex=False).matches[0].line for pattern in ("a[", "(", "*")] == [1, 2, 3]


def test_a_match_never_spans_lines(workspace: Workspace) -> None:
    (workspace.path / "f").write_text("a\nb\n")
    assert workspace.search(r"a\sb").matches == workspace.search(r"a\nb").matches == ()


def test_limits_on_matches_are_told(workspace: Workspace) -> None:
    (workspace.path / "f").write_text("x\n" * 5)
    assert workspace.search("x", max_matches=5).complete
    answer = workspace.search("x", max_matches=4)
    assert (len(answer.matches), answer.complete, answer.truncated_because) == (4, False, "max_matches")


def test_a_used_up_budget_gives_a_partial_answer(workspace: Workspace) -> None:
    make_corpus(workspace.path)
    (workspace.path / "zz").write_text(("b" * 500 + "\n") * 20_000)
    begun = time.process_time()
    answer = workspace.search("(b*)*c", budget_s=0.3)
    assert time.process_time() - begun < 2
    assert (answer.complete, answer.truncated_because) == (False, "time")


@pytest.mark.req("T1.36")
def test_a_catastrophic_pattern_is_stopped_and_named(workspace: Workspace) -> None:
    (workspace.path / "f").write_text("fine\n" + "a" * 5000 + "b\n")
    begun = time.process_time()
    failure = failure_of(lambda: workspace.search("(a+)+$"))
    assert time.process_time() - begun < 2
    assert (failure.code, failure.facts) == ("PATTERN_TOO_SLOW", {"path": "f", "line": 2})
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)
    assert signal.getsignal(signal.SIGVTALRM) == signal.SIG_DFL


def test_a_search_in_a_thread_does_without_the_timer(workspace: Workspace) -> None:
    (workspace.path / "f").write_text("needle")
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(len(workspace.search("needle").matches)))
    thread.start()
    thread.join()
    assert found == [1]
