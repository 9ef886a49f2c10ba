"""What is documented is there, and what is there is documented."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from coldframe.config import Settings
from coldframe.contract.errors import catalogue
from coldframe.contract.policy import Hook
from coldframe.tools.registry import all_tools

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "SECURITY.md", "PROMISES.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
TEXT = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
PROSE = "\n".join(text for name, text in TEXT.items() if name != "docs/requirements.md")


@pytest.mark.parametrize("script", ["errors_page", "profiles_page", "requirements_report", "typescript_sdk"])
def test_a_generated_page_is_what_its_script_writes(script: str) -> None:
    done = subprocess.run([sys.executable, f"scripts/{script}", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", sorted(catalogue()))
def test_every_error_code_has_a_heading(code: str) -> None:
    assert f"\n## {code}\n" in TEXT["docs/errors.md"]


@pytest.mark.parametrize("name", sorted(all_tools()))
def test_every_tool_has_a_row(name: str) -> None:
    assert f"| `{name}` |" in TEXT["docs/using.md"]


@pytest.mark.parametrize("hook", [hook.value for hook in Hook])
def test_every_hook_is_explained(hook: str) -> None:
    assert hook in TEXT["docs/policy.md"]


@pytest.mark.parametrize("setting", sorted(Settings.model_fields))
def test_every_setting_has_a_row(setting: str) -> None:
    assert f"| `{setting}` |" in TEXT["docs/using.md"]


def commands_below(command: Any, words: tuple[str, ...]) -> Iterator[str]:
    """Asked by what it has and not by its class: typer brings a click of its own, or uses the one that is there."""
    if hasattr(command, "commands"):
        for name, child in command.commands.items():
            if not child.hidden:
                yield from commands_below(child, (*words, name))
    else:
        yield " ".join(words)


def test_every_command_of_the_command_line_is_shown() -> None:
    from coldframe.cli.app import app

    root = typer.main.get_command(app)
    lines = list(commands_below(root, ("coldframe",)))
    assert len(lines) > 50 and [line for line in lines if line not in TEXT["docs/using.md"]] == []


def test_every_command_shown_exists() -> None:
    from coldframe.cli.app import app

    known = set(commands_below(typer.main.get_command(app), ("coldframe",)))
    groups = {" ".join(line.split()[:length]) for line in known for length in (1, 2, 3)}
    shown = {
        match.group(0).strip() for match in re.finditer(r"(?<![\w/.-])coldframe( [a-z][a-z-]*){1,2}(?=[\s`|])", PROSE)
    }
    unknown = [line for line in shown if line not in known | groups and line.rsplit(" ", 1)[0] not in known]
    assert [line for line in unknown if line.split()[1] in {group.split()[1] for group in groups if " " in group}] == []


def test_every_relative_link_leads_somewhere() -> None:
    broken = []
    for name, text in TEXT.items():
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if "://" not in target and not (ROOT / name).parent.joinpath(target).exists():
                broken.append(f"{name}: {target}")
    assert broken == []


def test_every_promise_names_a_test_that_exists_or_says_that_there_is_none() -> None:
    rows = [line for line in TEXT["PROMISES.md"].splitlines() if re.match(r"\| \d+\.\d+ \|", line)]
    assert rows
    assert len({row.split("|")[1] for row in rows}) == len(rows), "two promises have one number"
    for row in rows:
        proof = row.strip().strip("|").split("|")[-1]
        names = re.findall(r"`(tests/[^`]+)`", proof)
        assert names or "not yet tested" in proof, row
        for name in names:
            path, _, function = name.partition("::")
            assert (ROOT / path).exists(), row
            assert not function or f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), row


def test_every_requirement_row_is_listed_once() -> None:
    expected = {"T1": 114, "T2": 86, "T3": 83, "T4": 87, "TP": 19}
    found = re.findall(r"^\| (T[1-4P])\.(\d+) \|", TEXT["docs/requirements.md"], re.MULTILINE)
    for name, count in expected.items():
        assert [int(number) for listed, number in found if listed == name] == list(range(1, count + 1))
