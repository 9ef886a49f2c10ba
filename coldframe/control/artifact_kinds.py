"""Of what kind an artifact is, by where it is from and how it is called. The first rule that fits decides.

Nothing of a file is read for it: origin is what the ledger says of the call, and a name is the word of whoever chose it. So a
person may say otherwise, and that holds.
"""

import re
from typing import NamedTuple

from coldframe.contract.artifact import ArtifactKind, ArtifactOrigin

SOURCE_NAMES = frozenset(
    {
        "dockerfile",
        "containerfile",
        "makefile",
        "cmakelists.txt",
        "justfile",
        "procfile",
        "rakefile",
        "gemfile",
        "license",
    }
    | {
        "readme",
        "readme.md",
        "notes.md",
        ".gitignore",
        ".editorconfig",
        ".dockerignore",
        "go.mod",
        "go.sum",
        "cargo.lock",
    }
)
SOURCE_ENDINGS = frozenset(
    {
        "py",
        "pyi",
        "js",
        "mjs",
        "cjs",
        "jsx",
        "ts",
        "mts",
        "tsx",
        "vue",
        "svelte",
        "css",
        "scss",
        "less",
        "html",
        "htm",
        "php",
    }
    | {
        "c",
        "h",
        "cc",
        "cpp",
        "hpp",
        "cxx",
        "rs",
        "go",
        "java",
        "kt",
        "kts",
        "swift",
        "scala",
        "rb",
        "pl",
        "lua",
        "r",
        "jl",
    }
    | {
        "sh",
        "bash",
        "zsh",
        "fish",
        "ps1",
        "sql",
        "graphql",
        "proto",
        "md",
        "rst",
        "toml",
        "yaml",
        "yml",
        "ini",
        "cfg",
        "ipynb",
    }
    | {
        "cs",
        "fs",
        "ex",
        "exs",
        "erl",
        "hs",
        "ml",
        "clj",
        "dart",
        "zig",
        "nix",
        "tf",
        "bat",
        "mk",
        "cmake",
        "gradle",
        "patch",
    }
)
PICTURES = frozenset({"png", "jpg", "jpeg", "webp", "gif", "bmp"})
SHOT_PARTS = frozenset({"screenshots", "screenshot", "screens"})
TEST_PARTS = frozenset(
    {
        "test-results",
        "test_results",
        "test-reports",
        "playwright-report",
        "coverage",
        "htmlcov",
        ".nyc_output",
        "allure-results",
    }
    | {"junit", "cypress"}
)
LOG_PARTS = frozenset({"logs", "log"})
PACKAGE_PARTS = frozenset({"node_modules", ".venv", "venv", "site-packages", "dist-packages", "bower_components"})
INPUT_PARTS = frozenset({"downloads", "inputs"})
OUTPUT_PARTS = frozenset(
    {"dist", "build", "out", "output", "outputs", "target", "_build", "_site", ".next", "results", "reports", "figures"}
    | {"__pycache__", ".cache", ".pytest_cache", ".mypy_cache", ".ruff_cache"}
)
_SHOT = re.compile(r"screen[-_ ]?(?:shot|capture|grab)", re.IGNORECASE)
_TEST = re.compile(
    r"(?:^|[-_.])junit[^/]*\.xml$|^test[-_](?:report|result)s?\b|^TEST-.*\.xml$|\.tap$|^\.coverage|^coverage\.|^lcov\.info$|"
    r"\.lcov$|\.trx$",
    re.IGNORECASE,
)
_LOG = re.compile(r"\.log(?:\.\d+)?(?:\.gz)?$|^nohup\.out$|^npm-debug|\.stderr$|\.stdout$", re.IGNORECASE)
_CHECKED_OUT = re.compile(
    r"\bgit\s+(?:-\S+\s+\S+\s+)*(?:clone|pull|checkout|switch|restore|merge|am|apply|cherry-pick|rebase|stash)\b"
)
_SCAFFOLD = re.compile(
    r"\b(?:npm|pnpm|yarn|bun)\s+(?:create|init)\b|\bnpx\s+\S*create|\bcargo\s+(?:new|init)\b|\bgo\s+mod\s+init\b|"
    r"\bstart(?:project|app)\b|\bcookiecutter\b|\b(?:uv|poetry)\s+(?:init|new)\b|\bdjango-admin\b"
)
_WRITTEN_BY_SHELL = re.compile(r"<<|\b(?:echo|printf|tee|sed|patch|cp|mv|ed|perl|install)\b")


class Facts(NamedTuple):
    """What is on record of a file."""

    path: str
    origin: ArtifactOrigin
    command: str = ""
    said_source: str | None = None
    was_source: bool = False
    """It was source before the call that changed it last."""
    declared: str | None = None
    """If it was declared as an output, what it turned out to be: `file`, `picture`, `test_report`."""


class Judged(NamedTuple):
    kind: ArtifactKind
    rule: str


def judge(facts: Facts) -> Judged:
    *folders, name = facts.path.lower().split("/")
    parts = frozenset(folders)
    ending = name.rpartition(".")[2] if "." in name else ""
    is_code = name in SOURCE_NAMES or ending in SOURCE_ENDINGS
    by_call = facts.origin in ("written", "uploaded")
    if facts.said_source is not None:
        return Judged("input", "origin: whoever uploaded it said where it is from")
    if parts & PACKAGE_PARTS:
        return Judged("input", "path: packages that were installed")
    if by_call and is_code and not parts & (INPUT_PARTS | TEST_PARTS):
        return Judged("source", "origin: code or text that a call wrote")
    if ending in PICTURES and (parts & (SHOT_PARTS | TEST_PARTS) or _SHOT.search(name)):
        return Judged("screenshot", "path: a picture that is called or kept as one of a screen")
    if facts.declared == "test_report" or _TEST.search(name) or parts & TEST_PARTS:
        return Judged("test", "path: reports and other things that tests leave")
    if _LOG.search(name) or (parts & LOG_PARTS and not is_code):
        return Judged("log", "path: a log")
    if parts & INPUT_PARTS:
        return Judged("input", "path: kept where inputs are")
    if facts.declared is not None:
        return Judged("output", "origin: declared as an output")
    if facts.origin == "uploaded":
        return Judged("input", "origin: a person uploaded it")
    if parts & OUTPUT_PARTS:
        return Judged("output", "path: kept where outputs are")
    if facts.origin == "written":
        return Judged("source", "origin: a call wrote it")
    if is_code and facts.was_source:
        return Judged("source", "origin: changed by a command, and source before")
    if is_code and (_CHECKED_OUT.search(facts.command) or _SCAFFOLD.search(facts.command)):
        return Judged("source", "origin: checked out or set up by a command")
    if facts.origin == "downloaded":
        return Judged("input", "origin: a command that reached out made it")
    if is_code and _WRITTEN_BY_SHELL.search(facts.command):
        return Judged("source", "origin: code or text that a line of the shell wrote")
    return Judged("output", "origin: a command made it")


def judge_stream() -> Judged:
    return Judged("log", "origin: a command has printed it")
