"""What all tests share: a real installation, started once, and proof that it leaves nothing behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import tests.installation
from coldframe.client.sync import SyncColdframe
from tests.installation import Installation
from tests.reachable import Reachable, reachable

pytest.register_assert_rewrite("tests.cases.checks")
WAY_OUT = """version: 1
network:
  profiles:
    nowhere: {rules: [{id: nowhere, to: nowhere.example.invalid}]}
  use: {"*": nowhere}
"""
OWN_CASES = Path(__file__).parent / "cases" / "field-failures.jsonl"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cases",
        action="append",
        default=[],
        metavar="PATH",
        help="another file of field-failure cases to run besides the project's own (may be repeated)",
    )
    parser.addoption(
        "--attacks",
        action="append",
        default=[],
        metavar="PATH",
        help="another file of attacks on the walls to run besides the project's own (may be repeated)",
    )
    parser.addoption(
        "--attacks-as",
        choices=("root", "ordinary"),
        default=None,
        help="whom the attacked installation runs as; by default the user who runs the tests",
    )

    parser.addoption(
        "--way-out",
        action="store_true",
        help="give every sandbox of the shared installation a way out, which leads to one name that does not exist",
    )
    parser.addoption(
        "--ready-boxes",
        default="0",
        metavar="NUMBER",
        help="have so many boxes wait in every installation that does not ask for its own number; the product has 2",
    )


def pytest_configure(config: pytest.Config) -> None:
    tests.installation.ready_boxes = config.getoption("--ready-boxes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--way-out"):
        skip = pytest.mark.skip(reason="is about a sandbox without a way out")
        for item in items:
            if item.get_closest_marker("without_way_out"):
                item.add_marker(skip)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "field_failure" in metafunc.fixturenames:
        from tests.cases.runner import load_cases

        paths = [str(OWN_CASES), *metafunc.config.getoption("--cases")]
        cases = [case for path in paths for case in load_cases(path)]
        metafunc.parametrize("field_failure", cases, ids=[str(case["id"]) for case in cases])


@pytest.fixture(scope="session")
def installation(request: pytest.FixtureRequest) -> Iterator[Installation]:
    """One running installation for the whole session. Tests make their own agents and sandboxes in it."""
    started = Installation()
    try:
        started.start()
        if request.config.getoption("--way-out"):
            with SyncColdframe(started.url, started.token) as client:
                client.policy.load(WAY_OUT)
    except BaseException:
        started.close()
        raise
    yield started
    left = started.close()
    assert not left, "the installation left behind:\n" + "\n".join(left)


@pytest.fixture(scope="session")
def room() -> Iterator[Reachable]:
    """One installation for the whole session whose boxes reach local sites. Each test loads the rules that it is about."""
    with reachable() as started:
        yield started
