"""A computer has volumes as any sandbox has, for its user and its root, and shares them with sandboxes that are none."""

import pytest

from coldframe.client.sync import SyncColdframe
from tests.installation import Installation

pytestmark = pytest.mark.timeout(
    900
)  # whoever comes first waits for the template to be built, the last for its removal


@pytest.mark.req("T3.44")
def test_root_and_user_of_a_computer_share_a_volume_with_a_sandbox_that_is_none(installed: Installation) -> None:
    with SyncColdframe(installed.url, installed.token) as client:
        share(client)


def share(client: SyncColdframe) -> None:
    client.volumes.create("shared", size_mib=16)
    volumes = [{"name": "shared", "at": "/home/user/data", "mode": "rw"}]
    with client.sandboxes.create("computer", template="debian", volumes=volumes) as computer:
        assert computer.run_command("echo user > data/a; chmod 777 data").exit_code == 0
        done = computer.run_command(
            "id -u; cat data/a; echo root >> data/a; echo new > data/b; ls -l data", user="root"
        )
        assert done.stdout.startswith("0\nuser\n"), done
        assert computer.run_command("cat data/a data/b").stdout == "user\nroot\nnew\n"
        beside = [{"name": "shared", "at": "/mnt/shared"}]
        with client.sandboxes.create("other", volumes=beside) as other:
            assert other.run_command("cat /mnt/shared/a /mnt/shared/b").stdout == "user\nroot\nnew\n"
            assert other.run_command("echo x >> /mnt/shared/a").exit_code != 0
        with client.sandboxes.create("second", template="debian", volumes=beside) as second:
            assert second.run_command("stat -c %U /mnt/shared/a; cat /mnt/shared/b").stdout == "user\nnew\n"
            refused = second.run_command("echo x >> /mnt/shared/a", user="root")
            assert "Read-only file system" in refused.stderr
    for agent_id in ("computer", "second"):
        client.agents.delete(agent_id)
    assert b"".join(client.volumes.download("shared", "a")) == b"user\nroot\n"
    client.volumes.remove("shared")
