"""What all tests share: a real installation, started once, and proof that it leaves nothing behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.installation import Installation

pytest.register_assert_rewrite("tests.cases.checks")
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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "field_failure" in metafunc.fixturenames:
        from tests.cases.runner import load_cases

        paths = [str(OWN_CASES), *metafunc.config.getoption("--cases")]
        cases = [case for path in paths for case in load_cases(path)]
        metafunc.parametrize("field_failure", cases, ids=[str(case["id"]) for case in cases])


@pytest.fixture(scope="session")
def installation() -> Iterator[Installation]:
    """One running installation for the whole session. Tests make their own agents and sandboxes in it."""
    started = Installation()
    try:
        started.start()
    except BaseException:
        started.close()
        raise
    yield started
    left = started.close()
    assert not left, "the installation left behind:\n" + "\n".join(left)
