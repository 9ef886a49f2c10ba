"""In a computer files are touched as its user or as its root, and either may what a command of the same user may."""

import urllib.parse
import urllib.request

import pytest
from e2b import Sandbox, SandboxException

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import ColdframeError, FileMissing, NotRegular, PermissionDenied
from coldframe.fronts.edge.routing import label_of
from tests.e2b.real import RealEdge, real_edge
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
            through_an_sdk_of_e2b(computer, real_edge(installed))
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


def through_an_sdk_of_e2b(computer: SyncSandbox, edge: RealEdge) -> None:
    """Content of any size for root goes to a process that has become root, whole or not at all."""
    box = Sandbox.connect(label_of(computer.id), **edge.params)
    data = bytes(range(256)) * 12_289
    box.files.write("/root/large.bin", data, user="root", metadata={"a": "b"})
    box.files.write("/root/streamed.bin", data, user="root", use_octet_stream=True)
    assert box.commands.run(
        "stat -c %U:%a large.bin; cmp large.bin streamed.bin && id -u", user="root", cwd="~"
    ).stdout == ("root:644\n0\n")
    assert bytes(box.files.read("large.bin", format="bytes", user="root")) == data
    assert box.files.get_info("large.bin", user="root").metadata == {"a": "b"}
    for path in ("/root/large.bin", "/root/none"):
        with pytest.raises(SandboxException):
            box.files.read(path)
        with pytest.raises(SandboxException):
            box.files.write(path, data)
    with pytest.raises(SandboxException):
        box.files.write("/proc/sys/kernel/hostname", "x", user="root")
    signed = box.download_url("large.bin", "root", 60)
    query = urllib.parse.urlsplit(signed).query
    with urllib.request.urlopen(f"{edge.url}/files?{query}", timeout=60) as answer:
        assert answer.read() == data
    with pytest.raises(SandboxException):
        box.commands.run("true", user="user", cwd="/root")
