"""Packages of a sandbox with a system of its own: what is told of them while it runs, when it is stopped, and of what was taken."""

import os

import pytest

from coldframe.client.sync import SyncColdframe
from tests.installation import Installation

pytestmark = pytest.mark.timeout(
    900
)  # whoever comes first waits for the template to be built, the last for its removal
STATUS = """
Package: coldframe-demo
Status: install ok installed
Version: 1.0
"""


def test_packages_of_a_system_are_told_while_it_runs_and_when_it_does_not(installed: Installation) -> None:
    with (
        SyncColdframe(installed.url, installed.token) as client,
        client.sandboxes.create("packed", template="debian") as sandbox,
    ):
        before = sandbox.packages()
        there = {(one.manager, one.name): one for one in before.packages}
        assert there["apt", "dpkg"].installed == there["apt", "dpkg"].in_template is not None
        assert there["apt", "dpkg"].place == "/var/lib/dpkg/status"
        assert before.complete and before.since_template == ()
        line = f"printf '%s' '{STATUS}' >> /var/lib/dpkg/status && mkdir -p /home/user/node_modules/left && cd /home/user/node_modules/left"
        done = sandbox.run_command(
            f'{line} && echo \'{{"name": "left", "version": "2.0"}}\' > package.json', user="root"
        )
        assert done.exit_code == 0, done
        for state in ("running", "stopped"):
            if state == "stopped":
                sandbox.stop()
            now = sandbox.packages()
            # Nobody else sees the files of an ordinary user's system: that is told, and nothing is told of it.
            seen = state == "running" or os.stat(installed.data_dir).st_uid == 0
            assert now.complete == seen, state
            drift = [(one.manager, one.name, one.before, one.after) for one in now.since_template]
            assert drift == ([("apt", "coldframe-demo", None, "1.0")] if seen else []), state
            assert seen or all(one.manager != "apt" for one in now.packages)
            # What is mounted is no part of the system: the workspace is told of once.
            assert [one.place for one in now.packages if one.name == "left"] == ["/home/user/node_modules/left"], state
