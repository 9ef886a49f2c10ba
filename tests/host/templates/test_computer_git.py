"""Git in a sandbox with a system of its own: the Git of that system does it, and has its messages as anywhere."""

import pytest

from coldframe.client.sync import SyncColdframe
from tests.installation import Installation

pytestmark = pytest.mark.timeout(
    900
)  # whoever comes first waits for the template to be built, the last for its removal


@pytest.mark.req("T3.75")
def test_long_messages_of_commits_merges_and_tags_reach_the_git_of_a_system(installed: Installation) -> None:
    message = "Join\n\n" + "ü" * 65_000
    with (
        SyncColdframe(installed.url, installed.token) as client,
        client.sandboxes.create("computer-git", template="debian") as computer,
    ):
        git = computer.git
        git.init("repo")
        git.commit("One", "repo", allow_empty=True)
        git.switch("topic", "repo", create=True)
        git.commit(message, "repo", allow_empty=True)
        git.switch("main", "repo")
        merged = git.merge("topic", "repo", message=message, fast_forward="never")
        assert merged.commit is not None and len(merged.commit.parents) == 2
        git.tag("v1", "repo", message=message)
        for asked in ("log -1 --format=%B main", "log -1 --format=%B topic", "tag -l --format=%(contents) v1"):
            kept = computer.run_command(["git", *asked.split()], cwd="repo").stdout
            assert str(kept).startswith(message), asked
