"""Attacks run once for all tests that look at their verdicts, and only those whose tests were chosen."""

import os
from pathlib import Path

import pytest

from tests.security.arena import Row
from tests.security.attacks import Run, load_rows, own_rows, run_rows, table
from tests.security.controls import CONTROLS
from tests.security.wrapper import Who, why_not

HERE = Path(__file__).parent
_RUN = pytest.StashKey[tuple[Who, Run]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "attacks(*groups): looks at the verdicts of these groups, so their rows are run")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "attack" in metafunc.fixturenames:
        paths = metafunc.config.getoption("--attacks")
        rows = own_rows() + [row for index, path in enumerate(paths) for row in load_rows(path, origin=f"{index}-")]
        metafunc.parametrize("attack", rows, ids=[row["key"] for row in rows])
    if "control_group" in metafunc.fixturenames:
        metafunc.parametrize("control_group", CONTROLS)


@pytest.fixture(scope="session")
def in_a_wrapper() -> None:
    """Skip with the reason where no disposable wrapper can be made: attacks run in nothing else."""
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def who(request: pytest.FixtureRequest) -> Who:
    """Whose installation is attacked."""
    chosen: Who | None = request.config.getoption("--attacks-as")
    return chosen or ("root" if os.geteuid() == 0 else "ordinary")


@pytest.fixture(scope="session")
def run(request: pytest.FixtureRequest, in_a_wrapper: None, who: Who) -> Run:
    """All rows that a chosen test is about, tried in one installation."""
    chosen: dict[str, Row] = {}
    for item in request.session.items:
        parameters = getattr(item, "callspec", None)
        if parameters is not None and "attack" in parameters.params and item.path.parent == HERE:
            row = parameters.params["attack"]  # of our own tests: others may call a parameter the same
            chosen[row["key"]] = row
        elif (wanted := item.get_closest_marker("attacks")) is not None:
            chosen |= {row["key"]: row for row in own_rows() if row["group"] in wanted.args}
    done = run_rows(chosen.values(), who=who)
    request.config.stash[_RUN] = (who, done)
    return done


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    stored = config.stash.get(_RUN, None)
    if stored is None:
        return
    who, done = stored
    terminalreporter.section(f"attacks on the walls, installation of {'root' if who == 'root' else 'an ordinary user'}")
    for line in table(done.verdicts.values()):
        terminalreporter.write_line(line)
