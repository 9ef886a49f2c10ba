"""What holds a box, measured from outside and tried from inside; and that no setting lets it down."""

import os

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox, ask
from coldframe.contract.errors import ColdframeError
from coldframe.contract.sandbox import Limits
from tests.installation import wait_until


def test_the_report_finds_every_required_wall_enforced(sandbox: SyncSandbox) -> None:
    report = sandbox.report()
    assert report.level == "namespaces"
    assert report.kernel == "shared"
    required = [wall for wall in report.properties if wall.required]
    assert len(required) >= 8
    assert [wall.name for wall in required if wall.state != "enforced"] == []
    for kind in ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup"):
        assert report.namespaces[kind] != os.stat(f"/proc/self/ns/{kind}").st_ino
    assert any("kernel" in sentence for sentence in report.sentences)


def test_the_payload_has_no_right_and_is_filtered(sandbox: SyncSandbox) -> None:
    status = sandbox.run_command("cat /proc/self/status").stdout or ""
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    assert (sandbox.run_command("cat /proc/1/status").stdout or "").count("Seccomp:\t2") == 1


def owner_of(command_line: str) -> int | None:
    """Host uid of the process with exactly this command line."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    if file.read().replace(b"\0", b" ").strip().decode() == command_line:
                        return os.stat(f"/proc/{entry}").st_uid
            except OSError:
                continue
    return None


def test_no_process_of_a_box_is_root_outside(sandbox: SyncSandbox) -> None:
    """Seen from the host: whoever runs the server, the payload is somebody else's uid, and never 0."""
    marker = f"sleep 98765.{os.getpid()}"  # nobody else's, also not of the same test beside this one
    started = sandbox.run_command(marker.split(), background=True)
    try:
        owner = wait_until(lambda: owner_of(marker), "the command shows in the process list")
        assert owner != 0
        if os.getuid() == 0:
            assert owner >= 1_000_000
    finally:
        sandbox.signal(started.command_id, cancel=True)


def test_nothing_outside_the_workspace_can_be_written(sandbox: SyncSandbox) -> None:
    script = """
for path in / /usr /usr/bin /etc /etc/passwd /opt /opt/coldframe/bin /home /var /dev /proc/sys/kernel/core_pattern \
  /proc/sysrq-trigger /sys /boot /root /lib /bin; do
  if [ -d "$path" ]; then target="$path/.cf-probe"; else target="$path"; fi
  if (echo x > "$target") 2>/dev/null; then echo "BREACH $target"; fi
done
mkdir /newtop 2>/dev/null && echo BREACH newtop
for path in "$HOME" /tmp /var/tmp /dev/shm; do echo x > "$path/.cf-probe" || echo "LOST $path"; done
true
"""
    answer = sandbox.run_command(script)
    assert answer.stdout == "", answer.stderr


def test_a_box_has_a_boot_id_of_its_own(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    """The machine's would tell boxes that they are neighbours."""
    path = "/proc/sys/kernel/random/boot_id"
    with open(path, encoding="ascii") as source:
        seen = [source.read()]
    for one in (sandbox, client.sandboxes.create(background=True)):
        script = f"cat {path}; (echo x > {path}) 2>/dev/null && echo BREACH; cat {path}"
        first, again = (one.run_command(script).stdout or "").splitlines(keepends=True)
        assert first == again and first not in seen and len(first) == len(seen[0])
        seen.append(first)


@pytest.mark.without_way_out
def test_everything_outward_is_refused_at_once_and_recorded(sandbox: SyncSandbox) -> None:
    sandbox.write_file(
        "reach.py",
        "import socket\n"
        "for family, address in ((socket.AF_INET, ('203.0.113.9', 443)), (socket.AF_INET6, ('2001:db8::1', 80))):\n"
        "    try:\n        socket.socket(family).connect(address)\n        print('BREACH')\n"
        "    except OSError as error:\n        print(type(error).__name__)\n"
        "try:\n    socket.getaddrinfo('leak.example.com', 80)\n    print('BREACH')\n"
        "except OSError as error:\n    print(type(error).__name__)\n",
    )
    answer = sandbox.run_command(["python3", "reach.py"], timeout_s=20)
    assert (answer.stdout or "").split() == ["ConnectionRefusedError", "ConnectionRefusedError", "gaierror"]
    reached = {(contact.protocol, contact.address, contact.port) for contact in answer.contacts}
    assert {("tcp", "203.0.113.9", 443), ("tcp", "2001:db8::1", 80)} <= reached
    assert "leak.example.com" in {contact.name for contact in answer.contacts}
    assert {contact.verdict for contact in answer.contacts} == {"refused"}


def test_loopback_inside_is_free(sandbox: SyncSandbox) -> None:
    answer = sandbox.run_command(
        "python3 -m http.server 8123 --bind 127.0.0.1 >/dev/null 2>&1 & pid=$!;"
        " until curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8123/; do sleep 0.05; done; kill $pid",
        timeout_s=30,
    )
    assert (answer.stdout or "").endswith("200")
    assert answer.contacts == ()


def test_an_abstract_or_path_socket_of_the_host_is_out_of_reach(sandbox: SyncSandbox) -> None:
    import socket

    name = f"coldframe-test-abstract-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        answer = sandbox.run_command(
            ["python3", "-c", f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')"]
        )
    assert answer.exit_code == 1
    assert "ConnectionRefusedError" in (answer.stderr or "")
    assert sandbox.run_command("find / -xdev -type s 2>/dev/null").stdout == ""


@pytest.mark.req("T1.91")
@pytest.mark.without_way_out
def test_no_setting_relaxes_a_boundary(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    """A rule that allows, a variable, an argument, a stronger wish: ineffective or refused."""
    rules = "version: 1\nrules:\n  - id: allow-all\n    hook: PRE_TOOL_CALL\n    when: {tool: run_command}\n    then: allow\n    reason: test\n"
    kept = client.policy.show().text
    client.policy.load(rules)
    try:
        with pytest.raises(ColdframeError) as refused:
            sandbox.run_command("sudo true")
        assert refused.value.code == "DENIED_BY_RULE"
        assert sandbox.run_command("echo x > /etc/x").exit_code != 0
        assert sandbox.run_command("curl -s http://203.0.113.9/").exit_code == 7
    finally:
        client.policy.load(kept)
    for variable in ("COLDFRAME_UNSAFE", "LD_PRELOAD", "BASH_ENV"):
        assert sandbox.run_command("echo x > /usr/x", env={variable: "1"}).exit_code != 0
    for wish in (
        {"isolation": "none"},
        {"network": "bridge"},
        {"profile": "computer", "template": "host"},
        {"privileged": True},
    ):
        with pytest.raises(ColdframeError) as failure:
            ask(client._transport, "POST", "/v1/sandboxes", payload={"agent_id": "wish", **wish})
        assert failure.value.code == "INVALID_ARGUMENT"


def test_a_memory_bomb_hits_its_own_box_only(client: SyncColdframe, agent_id: str) -> None:
    with client.sandboxes.create(agent_id=agent_id, limits=Limits(memory_mib=128)) as sandbox:
        answer = sandbox.run_command(["python3", "-c", "b = b'x' * 10**9; print('BREACH')"], timeout_s=60)
        assert answer.exit_code != 0
        assert "BREACH" not in (answer.stdout or "")
        assert answer.limit is not None
        assert answer.limit.kind == "memory"
        assert sandbox.run_command("echo alive").stdout == "alive\n"


def test_a_fork_bomb_is_contained_and_gone_afterwards(client: SyncColdframe, agent_id: str) -> None:
    with client.sandboxes.create(agent_id=agent_id, limits=Limits(pids=40)) as sandbox:
        sandbox.write_file(
            "bomb.py",
            "import os, time\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        time.sleep(0.1)\n",
        )
        answer = sandbox.run_command(["python3", "bomb.py"], timeout_s=3)
        assert answer.timed_out
        assert not sandbox.processes()
        assert sandbox.run_command("echo alive").stdout == "alive\n"
