"""In a computer files are touched as its user or as its root, and either may what a command of the same user may."""

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import ColdframeError, FileMissing, NotRegular, PermissionDenied
from tests.installation import Installation

pytestmark = pytest.mark.timeout(
    900
)  # whoever comes first waits for the template to be built, the last for its removal


@pytest.mark.req("T1.29")
def test_root_of_a_computer_writes_where_its_user_may_not(installed: Installation) -> None:
    with SyncColdframe(installed.url, installed.token) as client:
        with client.sandboxes.create("computer-paths", template="debian") as computer:
            as_user_and_as_root(computer)
            nothing_of_the_keeper(computer)
        client.agents.delete("computer-paths")


def as_user_and_as_root(computer: SyncSandbox) -> None:
    files = computer.files
    for path in ("/etc/motd.d/a", "/root/a", "/opt/a"):
        with pytest.raises((PermissionDenied, FileMissing)):
            files.write(path, "x")
        written = files.write(path, "by root\n", user="root", metadata={"by": "root"})
        assert (written.path, written.created) == (path, True)
        entry = files.stat(path, user="root")
        assert (entry.owner, entry.group, entry.uid, entry.metadata) == ("root", "root", 0, {"by": "root"})
        assert computer.run_command(["cat", path], user="root").stdout == "by root\n"
    with pytest.raises(PermissionDenied):
        files.read("/root/a")
    assert files.read("/root/a", user="root").content == "by root\n"
    assert "a" in [one.name for one in files.list("/root", user="root").entries]
    assert files.make_directory("/srv/deep/er", user="root").entry.owner == "root"
    assert files.move("/opt/a", "/srv/deep/a", user="root").path == "/srv/deep/a"
    with pytest.raises(PermissionDenied):
        files.remove("/srv/deep/a")
    files.remove("/srv/deep", recursive=True, user="root")
    files.write("mine", "1")
    files.write("mine", "2", user="root")
    entry = files.stat("mine")
    assert (entry.owner, files.read("mine").content) == ("user", "2"), "an owner is kept by whoever writes"
    files.write("roots", "1", user="root")
    assert files.stat("roots").owner == "root"
    done = computer.call("run_anywhere", {"command": "pwd; id -u", "cwd": "/root", "user": "root"})
    assert done.value["stdout"] == "/root\n0\n"
    refused = computer.call("run_anywhere", {"command": "pwd", "cwd": "/root"})
    assert (refused.value["ended"], "Permission denied" in refused.value["start_error"]) == ("not_started", True)


def nothing_of_the_keeper(computer: SyncSandbox) -> None:
    """A child that becomes root is a process of the box, and holds what the keeper holds: its own /proc is closed to it."""
    for path in (
        "/proc/self/environ",
        "/proc/self/mem",
        "/proc/self/fd/3",
        "/proc/thread-self/maps",
        "/proc/1/root/etc",
    ):
        for name in (path, "/tmp/by"):
            computer.run_command(["ln", "-sfn", path, "/tmp/by"])
            for ask in (computer.files.read, computer.files.list):
                with pytest.raises((NotRegular, FileMissing, PermissionDenied, ColdframeError)):
                    ask(name, user="root")
            with pytest.raises(ColdframeError):
                computer.files.write(name, "x", user="root")
