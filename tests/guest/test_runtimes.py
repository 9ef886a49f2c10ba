"""Promise: a box tells which runtimes it has; what is absent, broken, hanging or planted is never an error."""

import os
import sys
import time
from pathlib import Path

import pytest

from coldframe.contract.files import ListRuntimes, Runtime
from coldframe.guest import runtimes
from coldframe.guest.runtimes import ask_version, find_runtimes
from tests.guest.workspace import Workspace


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def found(path: str, ask: runtimes.AskVersion) -> dict[str, Runtime]:
    return {each["name"]: Runtime.model_validate(each) for each in find_runtimes(path, ask)}


def test_the_runtimes_of_this_machine_are_found_with_their_versions(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(runtimes, "is_sealed", lambda _: False)  # as in a system of the box's own
    assert {each.version for each in workspace.ask(ListRuntimes()).runtimes} == {None}
    monkeypatch.setattr(runtimes, "is_sealed", lambda program: program.startswith("/usr/"))
    listed = {each.name: each for each in workspace.ask(ListRuntimes()).runtimes}
    assert list(listed) == list(runtimes.RUNTIMES)
    assert listed["bash"].version is not None
    assert listed["sh"].present
    assert listed["python3"].path == "/usr/bin/python3"


def test_what_is_absent_is_told_as_absent() -> None:
    for path in ("/nonexistent", "", "relative/bin", "\0"):
        assert not any(each.present for each in found(path, ask_version).values())


def test_the_package_manager_is_named_only_where_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "WRITABLE_PLACES", ("/nowhere/",))
    program(tmp_path / "node", "echo v20.1.0")
    program(tmp_path / "python3", "echo Python 3.11.2")
    program(tmp_path / "pip", "echo pip 23.0 from somewhere")
    (tmp_path / "git").write_text("not executable")
    (tmp_path / "gcc").mkdir()
    listed = found(str(tmp_path), ask_version)
    assert (listed["node"].version, listed["node"].package_manager) == ("20.1.0", None)
    assert (listed["python3"].version, listed["python3"].package_manager) == ("3.11.2", "pip")
    assert not listed["git"].present
    assert not listed["gcc"].present


def test_a_planted_program_is_not_started(tmp_path: Path) -> None:
    program(tmp_path / "node", f"touch {tmp_path}/started; echo 1.2")
    os.symlink(tmp_path / "node", tmp_path / "deno")
    asked: list[str] = []
    listed = found(str(tmp_path), lambda path, timeout_s: asked.append(path) or b"9.9")  # type: ignore[func-returns-value]
    assert (listed["node"].present, listed["node"].version) == (True, None)
    assert listed["deno"].present
    assert asked == []


def test_a_program_that_fails_or_hangs_costs_its_timeout_and_leaves_nobody(tmp_path: Path) -> None:
    assert ask_version(program(tmp_path / "fails", "exit 3"), 5) == b""
    assert ask_version(str(tmp_path / "missing"), 5) == b""
    assert ask_version(program(tmp_path / "late", "echo 1.2"), 0) == b""
    assert ask_version(program(tmp_path / "hangs", f"sleep 1000 & echo $! > {tmp_path}/pid; wait"), 2) == b""
    sleeper = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while os.path.exists(f"/proc/{sleeper}") and "Z" not in Path(f"/proc/{sleeper}/stat").read_text():
        assert time.monotonic() < deadline
    assert len(ask_version(program(tmp_path / "chatty", "while :; do echo 1.2; done"), 5)) < 3 * runtimes.OUTPUT_BYTES


def test_a_program_gets_no_environment_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "secret")
    assert b"secret" not in ask_version(program(tmp_path / "env", "env; ls -l /proc/self/fd"), 5)
    assert ask_version(sys.executable, 5).startswith(b"Python 3.")
