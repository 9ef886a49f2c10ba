"""No path leads from a sandbox to a privileged service, and the sockets of the host serve nobody else."""

import asyncio
import json
import os
import re
import socket
import stat
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from coldframe.client.sync import SyncSandbox
from coldframe.contract.errors import ColdframeError, GuestLost
from coldframe.guest.frames import encode
from coldframe.guest.verbs import VERBS
from coldframe.host import keeper as _  # noqa: F401  which has all verbs
from coldframe.host.link import Link
from tests.host.forked import in_child
from tests.host.machines import needs_bubblewrap
from tests.installation import CHECKOUT, Installation
from tests.promises.raw import rest

pytestmark = needs_bubblewrap
STRANGER = 65533
WELL_KNOWN = (22, 53, 80, 111, 443, 631, 2375, 2376, 3306, 5432, 5985, 6443, 8080, 8443, 9090, 10250, 27017)

SCAN = r"""
import json, os, socket, stat
asked = json.load(open("asked.json"))
found = []
for folder, folders, files in os.walk("/", onerror=lambda _: None):
    folders[:] = [name for name in folders if os.path.join(folder, name) not in ("/proc", "/usr")]
    for name in files:
        path = os.path.join(folder, name)
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            found.append("path socket " + path)
for line in open("/proc/net/unix").read().splitlines()[1:]:
    if len(line.split()) > 7:
        found.append("unix socket " + line.split()[7])
for name in asked["abstract"]:
    try:
        socket.socket(socket.AF_UNIX).connect("\0" + name)
        found.append("abstract socket " + name)
    except OSError:
        pass
for address in asked["addresses"]:
    for port in asked["ports"]:
        one = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        one.settimeout(2)
        if one.connect_ex((address, port)) == 0:
            found.append(f"tcp {address} {port}")
        one.close()
for entry in os.listdir("/proc"):
    if entry.isdigit() and int(entry) != os.getpid():
        try:
            for number in os.listdir(f"/proc/{entry}/fd"):
                found.append(f"descriptor of {entry}: " + os.readlink(f"/proc/{entry}/fd/{number}"))
        except OSError:
            pass
for number in range(0, 1024):
    try:
        mode, where = os.fstat(number).st_mode, os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        continue
    if not (where == "/dev/null" or stat.S_ISFIFO(mode) and number < 3):
        found.append(f"inherited descriptor {number}: {where}")
for name in os.environ:
    if name.startswith(("DBUS", "XDG_RUNTIME", "DOCKER", "SSH_AUTH", "COLDFRAME_TOKEN", "COLDFRAME_URL", "KUBE")):
        found.append("variable " + name)
for path in ("/run/dbus", "/var/run/dbus", "/run/docker.sock", "/run/systemd", "/dev/kvm", "/dev/mem", "/dev/fuse",
             "/dev/net/tun", "/dev/vsock", "/sys/fs/cgroup", "/proc/1/root/etc/shadow"):
    if os.path.exists(path):
        found.append("path " + path)
print(json.dumps(found))
"""


def host_addresses() -> set[str]:
    """Addresses of this host: of the routing table, of its names, and those that mean the host to a container."""
    found = {"127.0.0.1", "127.0.1.1", "::1", "10.0.2.2", "169.254.169.254", "172.17.0.1", "192.168.122.1"}
    for line in Path("/proc/net/fib_trie").read_text().splitlines():
        found |= set(re.findall(r"\d+\.\d+\.\d+\.\d+", line))
    for line in Path("/proc/net/if_inet6").read_text().splitlines() if os.path.exists("/proc/net/if_inet6") else ():
        found.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line.split()[0])))
    return {one for one in found if not one.endswith((".0", ".255"))}


@pytest.mark.req("T3.26")
@pytest.mark.without_way_out
def test_a_scan_from_inside_finds_no_way_to_a_service_of_the_host(
    installation: Installation, sandbox: SyncSandbox
) -> None:
    name = f"coldframe-endpoint-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as abstract, socket.create_server(("0.0.0.0", 0)) as service:
        abstract.bind(f"\0{name}")
        abstract.listen()
        api = urlsplit(installation.url).port
        asked = {
            "abstract": [name, "/tmp/.X11-unix/X0", "/org/freedesktop/systemd1/private"],
            "addresses": sorted(host_addresses()),
            "ports": sorted({*WELL_KNOWN, int(api or 0), service.getsockname()[1]}),
        }
        sandbox.write_file("scan.py", SCAN)
        sandbox.write_file("asked.json", json.dumps(asked))
        done = sandbox.run_command(["python3", "scan.py"], timeout_s=120)
    assert done.exit_code == 0, done.stderr
    assert json.loads(str(done.stdout)) == []


@pytest.mark.req("T3.26")
def test_the_api_answers_nothing_without_a_token(installation: Installation, sandbox: SyncSandbox) -> None:
    paths = json.loads(rest(installation, "GET", "/openapi.json").body)["paths"]
    asked = 0
    for path, methods in paths.items():
        for method in methods:
            real = re.sub(r"\{sandbox_id\}", sandbox.id, re.sub(r"\{(?!sandbox_id)[^}]+\}", "x", path))
            answer = rest(installation, method.upper(), real, b"", token="none")
            if path != "/v1/health":
                assert (answer.status, answer.code) == (401, "UNAUTHENTICATED"), (method, path)
                asked += 1
    assert asked > 30


def sockets_of(installation: Installation, sandbox: SyncSandbox) -> list[str]:
    return [
        os.path.join(installation.data_dir, "host", "daemon.sock"),
        os.path.join(installation.data_dir, "boxes", sandbox.id, "keeper.sock"),
    ]


@pytest.mark.req("T3.26")
def test_the_sockets_of_the_host_are_their_owners_alone(installation: Installation, sandbox: SyncSandbox) -> None:
    for path in sockets_of(installation, sandbox):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600, path


@pytest.mark.req("T3.26")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_another_user_of_the_host_is_refused_even_where_the_file_would_let_it(
    installation: Installation, sandbox: SyncSandbox
) -> None:
    def ask(path: str) -> str:
        os.setgroups([])
        os.setresgid(STRANGER, STRANGER, STRANGER)
        os.setresuid(STRANGER, STRANGER, STRANGER)
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(10)
            try:
                peer.connect(path)
                peer.sendall(encode({"verb": "ping"}))
                return "answered" if peer.recv(1) else "closed"
            except PermissionError:
                return "refused"
            except OSError as error:
                return f"closed: {error}"

    daemon, keeper = sockets_of(installation, sandbox)
    assert in_child(lambda: ask(keeper)) == "refused"
    assert in_child(lambda: ask(daemon)) == "refused"
    folder = os.path.dirname(daemon)
    before = stat.S_IMODE(os.stat(folder).st_mode)
    os.chmod(folder, 0o711)
    os.chmod(daemon, 0o666)
    try:
        assert in_child(lambda: ask(daemon)).startswith("closed")
    finally:
        os.chmod(daemon, 0o600)
        os.chmod(folder, before)
    assert sandbox.run_command("echo alive").stdout == "alive\n"


@pytest.mark.req("T3.26")
def test_a_box_is_served_by_its_published_operations_alone(installation: Installation, sandbox: SyncSandbox) -> None:
    text = (CHECKOUT / "docs" / "isolation.md").read_text(encoding="utf-8").partition("## What a box can talk to")[2]
    operations = re.findall(r"`(\w+)`", text.partition("Its operations are ")[2].partition(";")[0])
    verbs = re.findall(r"`(\w+)`", text.partition("takes the verbs ")[2].partition(". Everything")[0])
    assert len(operations) == 11 and VERBS.keys() <= set(verbs) and len(verbs) == len(VERBS) + 13
    link = Link(os.path.join(installation.data_dir, "boxes", sandbox.id))

    async def told(head: dict[str, Any]) -> str:
        try:
            await link.request(head)
        except ColdframeError as error:
            return str(error)
        return "answered"

    async def ask_all() -> None:
        for word in ("exec", "mount", "spawn", "setns", "unlink", "eval", "shutdown", "__class__", "", "ask "):
            assert "unknown operation" in await told({"op": word})
            assert "unknown verb" in await told({"op": "ask", "verb": word})
        for verb in verbs:
            assert "unknown verb" not in await told({"op": "ask", "verb": verb}), verb
        for operation in ("report", "contacts"):
            assert await told({"op": operation}) == "answered"
        link.close()

    try:
        asyncio.run(ask_all())
    except (PermissionError, GuestLost) as error:
        pytest.skip(f"the socket is the server's alone: {error}")
    assert sandbox.run_command("echo alive").stdout == "alive\n"
