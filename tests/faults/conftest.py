"""One installation for all of it, which may be killed and started again."""

from collections.abc import Iterator

import pytest

from tests.faults.jumping import JumpingInstallation

took_s: dict[str, float] = {}
"""By load and fault: from when the fault was there to the end of the load."""
SHOWN = 10
GOAL_S = 10.0


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A measurement and no test, since it depends on the machine."""
    slowest = sorted(took_s.items(), key=lambda pair: -pair[1])
    if slowest:
        within = sum(seconds <= GOAL_S for seconds in took_s.values())
        terminalreporter.write_line(
            f"{within} of {len(slowest)} loads ended within {GOAL_S:g} s of their fault; the slowest:"
        )
        for pair, seconds in slowest[:SHOWN]:
            terminalreporter.write_line(f"  {seconds:6.1f} s  {pair}")


@pytest.fixture(scope="session")
def killable() -> Iterator[JumpingInstallation]:
    started = JumpingInstallation()
    try:
        started.start()
        assert started.token
        yield started
    finally:
        left = started.close()
    assert not left, "the installation left behind:\n" + "\n".join(left)
