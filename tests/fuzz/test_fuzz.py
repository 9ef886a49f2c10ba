"""What others wrote is refused with a typed error or taken as it is, whatever it is: kept inputs, then new ones.

The numbers are chosen for a few seconds each; `scripts/fuzz` goes on as long as it is told to.
"""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import rest
from tests.fuzz.target import KEPT, hunt
from tests.fuzz.targets import HARMLESS_ONLY, TARGETS, opened
from tests.fuzz.texts import RULE_WORDS, SHELL_WORDS, Rules, Shell
from tests.host import boxes
from tests.host.forked import in_child
from tests.host.machines import needs_bubblewrap
from tests.installation import Installation

SEED = 20260
EXAMPLES = {
    "rules": 1500,
    "shell": 600,
    "frames": 400,
    "paths": 100,
    "keeper": 50,
    "daemon": 50,
    "tampering": 100,
    "recipes": 800,
    "archives": 300,
    "relays": 5000,
    "diagnoses": 800,
    "mcp": 400,
    "e2b-bodies": 500,
    "e2b-builds": 500,
}
calm = settings(
    max_examples=150, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
pieces = st.one_of(st.text(max_size=20), st.characters(), st.sampled_from(["\ud800", "\0", "\ufeff"]))


def tried(name: str) -> None:
    with opened(name) as target:
        hunt(target, SEED, EXAMPLES[name])


def test_every_target_has_its_numbers_and_every_kept_input_a_target() -> None:
    assert set(EXAMPLES) == set(TARGETS)
    assert {path.name for path in KEPT.iterdir()} <= set(TARGETS)


@pytest.mark.parametrize(
    "name",
    [
        "rules",
        "shell",
        "frames",
        "tampering",
        "recipes",
        "archives",
        "diagnoses",
        "mcp",
        "e2b-bodies",
        "e2b-builds",
        "relays",
    ],
)
def test_what_is_read_or_checked_never_fails_otherwise_than_it_says(name: str) -> None:
    tried(name)


@needs_bubblewrap
@pytest.mark.parametrize("name", HARMLESS_ONLY)
def test_what_is_asked_of_the_machine_does_no_harm_and_ends_nothing(name: str) -> None:
    def as_nobody() -> None:
        boxes.become_ordinary()
        tried(name)

    in_child(as_nobody) if os.getuid() == 0 else tried(name)


@calm
@given(st.lists(st.one_of(st.sampled_from(RULE_WORDS), pieces), max_size=30).map("".join))
def test_no_text_fails_the_rule_loader(text: str) -> None:
    Rules().check(text)


@calm
@given(st.lists(st.one_of(st.sampled_from(SHELL_WORDS), pieces), max_size=30))
def test_no_text_and_no_words_fail_the_shell_reader(words: list[str]) -> None:
    Shell().check("".join(words))
    Shell().check(words)


@calm
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=20))
def test_deep_documents_fail_the_rule_loader_no_more_than_flat_ones(tree: object) -> None:
    import yaml

    Rules().check(yaml.safe_dump({"version": 1, "rules": tree}))


@pytest.mark.skipif(not rest.is_there(), reason="schemathesis is not installed")
def test_no_request_makes_the_server_fail_and_answers_are_as_published(installation: Installation) -> None:
    found = rest.fuzz_rest(installation, seed=1, examples=2)
    assert not found, found


def test_kept_inputs_are_data(tmp_path: Path) -> None:
    assert all(path.suffix == ".json" for folder in KEPT.iterdir() for path in folder.iterdir())
