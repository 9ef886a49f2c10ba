"""Costs of a command that no load of the machine moves: its system calls, its database commits, and page faults.

The limits are what is reached; they only ever go down. The goals stand beside them and in docs/benchmarks.md.
"""

import os
from collections.abc import Iterator

import pytest

from bench.system_calls import Counted, count, reason_against
from coldframe.guest import rows
from tests.installation import Installation

COMMANDS = 60
MOST_CALLS = 150.0
"""System calls of one `true` in server, daemon, keeper and payload together. Goal: 160."""
MOST_COMMITS = 1.05
"""Database commits of one command; the goal, 1, is reached. The end of one that nothing follows soon has its own: of the
last, and of up to two that a loaded machine delays."""
MOST_FAULTS = 40.0
"""Page faults of a keeper for one command, where it starts it without a copy of its memory: 2 are reached, a fork takes 460."""
LEAST_COMMITS = 0.95
"""A command without a commit is a command without a record; up to three may be cut off where tracing ends."""


@pytest.fixture(scope="module")
def counted() -> Iterator[Counted]:
    if reason := reason_against():
        pytest.skip(reason)
    installation = Installation()
    try:
        installation.start()
        yield count(installation, COMMANDS)
    finally:
        left = installation.close()
    assert not left, "the installation left behind:\n" + "\n".join(left)


def test_a_command_needs_no_more_system_calls_than_it_did(counted: Counted) -> None:
    parts = {part: round(calls / counted.commands, 1) for part, calls in counted.calls.items()}
    assert counted.calls_per_command <= MOST_CALLS, f"per command: {parts}"


def test_every_part_is_seen_at_work(counted: Counted) -> None:
    """Otherwise the sum would be small because somebody was not looked at."""
    for part in ("server", "keeper", "payload"):
        assert counted.calls.get(part, 0) >= 10 * counted.commands, counted.calls


@pytest.mark.skipif(os.uname().machine not in rows.CODE, reason="commands are forked on this machine")
def test_a_command_is_started_without_a_copy_of_the_keepers_memory(counted: Counted) -> None:
    assert counted.faults_per_command <= MOST_FAULTS


def test_a_command_is_recorded_with_no_more_commits_than_it_was(counted: Counted) -> None:
    assert LEAST_COMMITS <= counted.commits_per_command <= MOST_COMMITS
