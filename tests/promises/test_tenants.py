"""Tenants on one installation: a noisy one takes nothing from a quiet one, and who comes next finds nothing of the last.

How much slower the quiet one gets is not asserted, since that is the machine's as much as ours: `scripts/neighbours`
measures it. `COLDFRAME_REUSE_CYCLES=200` is the whole length of the reuse test.
"""

import os

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.policy import Role
from coldframe.contract.sandbox import Limits
from tests.host.machines import needs_bubblewrap
from tests.installation import Installation
from tests.promises.browsing import PATIENCE_S, lead_browser, needs_chromium, visits_of
from tests.promises.governed import token_of
from tests.promises.noise import NoisyTenant
from tests.promises.raw import all_entries, own_installation

pytestmark = needs_bubblewrap
CYCLES = int(os.environ.get("COLDFRAME_REUSE_CYCLES", "10"))


@pytest.mark.timeout(300)
@pytest.mark.req("T3.60")
def test_a_noisy_tenant_meets_limits_and_a_quiet_one_loses_nothing() -> None:
    with own_installation() as own, SyncColdframe(own.url, own.token) as client:
        blue = client.sandboxes.create(agent_id="blue")
        red = NoisyTenant(own.url, own.token)
        red.start()
        calls = 0
        while red.active or calls < 40:
            written = blue.write_file("own", f"{calls}\n")
            answer = blue.run_command(["cat", "own"])
            assert written.bytes_written > 0
            assert (answer.stdout, answer.exit_code, answer.limit) == (f"{calls}\n", 0, None)
            assert answer.leftovers == () and answer.contacts == ()
            calls += 1
        red.finish()
        assert red.untyped == []
        outcomes: dict[str, set[str]] = {}
        for one in red.met:
            outcomes.setdefault(one.what, set()).add(one.outcome)
        assert outcomes["busy"] <= {"limit:cpu", "limit:wall"}  # there may be no CPU to use up
        assert outcomes["memory"] == {"limit:memory"}
        assert outcomes["disk"] == {"limit:disk"}
        assert outcomes["log"] == {"limit:output"}
        assert outcomes["fork"] <= {"limit:wall", "limit:cpu", "limit:pids", "limit:memory"}  # whichever it meets first
        assert outcomes["wishes"] == {"ISOLATION_UNAVAILABLE"}
        assert outcomes["streams"] == {"done"}
        # What was counted for blue is what blue did, and the host is still its owner's.
        entries = all_entries(client)
        mine = [one for one in entries if one.kind == "call.started" and one.body["sandbox_id"] == blue.id]
        assert len(mine) == 2 * calls
        ended = [one.body for one in entries if one.kind == "call.ended" and one.body["sandbox_id"] == blue.id]
        assert sum(int(one["cpu_us"] or 0) for one in ended) < calls * 1_000_000
        assert {one.path for one in blue.list_directory().entries} == {
            *(".exec_history", "scratch", "integrations", "skills", "own")
        }
        assert blue.processes() == []
        assert client.health()
        assert [one.id for one in client.sandboxes.list() if one.info.state.state == "running"] == [blue.id]


QUEUED = int(os.environ.get("COLDFRAME_QUEUED", "30"))
"""Of the noisy tenant; 500 is the whole number."""


@pytest.mark.timeout(600)
@pytest.mark.req("T3.60")
def test_who_lines_up_by_the_hundred_holds_up_nobody_else() -> None:
    with own_installation(COLDFRAME_MAX_RUNNING="2") as own, SyncColdframe(own.url, own.token) as client:
        reds, blues = (token_of(client, Role.MEMBER) for _ in range(2))
        with SyncColdframe(own.url, reds) as red, SyncColdframe(own.url, blues) as blue:
            running = [red.sandboxes.create(background=True) for _ in range(2)]
            lined_up = [red.sandboxes.create(background=True, queue_s=600) for _ in range(QUEUED)]
            late = blue.sandboxes.create(background=True, queue_s=600)
            queued = {one.id for one in client.sandboxes.list(state=["queued"])}
            assert queued == {one.id for one in (*lined_up, late)}
            running[0].terminate()
            late.wait_for_turn()  # by the first place that is free, with all the others before it in time
            assert late.run_command("echo its turn").stdout == "its turn\n"
            assert {one.id for one in client.sandboxes.list(state=["queued"])} == {one.id for one in lined_up}
            running[1].terminate()
            assert lined_up[0].wait_for_turn().state.state == "running"  # red's own, in the order of red
            for one in reversed(lined_up):
                one.terminate()
            late.terminate()


PLANT = r"""
import os, socket, sys, time
canary = sys.argv[1]
held = [canary * 1000 for _ in range(50)]
for path in ("/tmp/left", "/var/tmp/left", "/dev/shm/left", "/run/left", os.path.expanduser("~/left"), "/tmp/deleted"):
    try:
        with open(path, "w") as file:
            file.write(canary * 10000)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        pass
os.remove("/tmp/deleted")
os.environ["CANARY"] = canary
server = socket.create_server(("127.0.0.1", 8155))
hidden = socket.socket(socket.AF_UNIX)
hidden.bind("\0" + canary)
hidden.listen()
print("planted", flush=True)
time.sleep(1000)
"""
SEARCH = r"""
import mmap, os, socket, sys
canary, found = sys.argv[1].encode(), []
own = {os.getpid(), os.getppid()}
def look(path, kind):
    try:
        with open(path, "rb") as file:
            if canary in file.read(1 << 24):
                found.append(f"{kind} {path}")
    except OSError:
        pass
for top in ("/tmp", "/var/tmp", "/dev/shm", "/run", os.path.expanduser("~")):
    for folder, folders, files in os.walk(top):
        for name in files:
            if os.path.join(folder, name) != os.path.expanduser("~/.exec_history"):
                look(os.path.join(folder, name), "file")
            if name == "left":
                found.append(f"file {folder}/{name}")
for entry in os.listdir("/proc"):
    if entry.isdigit() and int(entry) not in own:
        for name in ("cmdline", "environ", "maps"):
            look(f"/proc/{entry}/{name}", "process")
for name in ("hostname", "domainname", "core_pattern"):
    look(f"/proc/sys/kernel/{name}", "kernel variable")
if canary.decode() in "".join(f"{key}={value}" for key, value in os.environ.items()):
    found.append("environment")
if socket.socket().connect_ex(("127.0.0.1", 8155)) == 0:
    found.append("port")
look("/proc/net/unix", "abstract socket")
memory = mmap.mmap(-1, 48 << 20)
if memory[:].strip(b"\0"):
    found.append("memory that is not empty")
with open("fresh", "wb") as file:
    os.posix_fallocate(file.fileno(), 0, 8 << 20)
with open("fresh", "rb") as file:
    if file.read().strip(b"\0"):
        found.append("disk blocks that are not empty")
os.remove("fresh")
print("\n".join(found))
"""


def plant(sandbox: SyncSandbox, canary: str) -> None:
    started = sandbox.run_command(["python3", "-c", PLANT, canary], background=True, env={"CANARY": canary})
    for event in sandbox.follow(started.command_id):
        if b"planted" in getattr(event, "data", b""):
            return
    raise AssertionError(sandbox.output(started.command_id, "stderr").data.decode())


PAGE = "http://127.0.0.1:8156/"
VISITS = {
    "plant": (PAGE, "localStorage.left = '{canary}'; document.cookie = 'left={canary};max-age=9999'; 'planted'"),
    "look": (PAGE, "(localStorage.left ?? '') + '|' + document.cookie"),
}


def visit(box: SyncSandbox, what: str, canary: str) -> str:
    """In a browser with the profile of the box's user, on a page that is at the same address in every box."""
    box.write_file("index.html", "<title>a page</title>")
    serving = box.run_command(["python3", "-m", "http.server", "8156", "--bind", "127.0.0.1"], background=True)
    waiting = "until echo > /dev/tcp/127.0.0.1/8156; do sleep 0.05; done 2>/dev/null"
    assert box.run_command(waiting, timeout_s=PATIENCE_S).exit_code == 0
    url, script = VISITS[what]
    done = lead_browser(box, (url, script.format(canary=canary)), flags=["--user-data-dir=/home/user/.config/chromium"])
    assert done.exit_code == 0, f"{done.stdout}\n{done.stderr}"
    box.signal(serving.command_id, cancel=True)
    return str(visits_of(str(done.stdout))[0].value)


@needs_chromium
@pytest.mark.req("T3.62")
@pytest.mark.parametrize("temporary", [True, False])
def test_who_comes_next_finds_nothing_in_the_profile_of_a_browser(client: SyncColdframe, temporary: bool) -> None:
    canary = f"canary-{os.urandom(8).hex()}"
    with client.sandboxes.create(None if temporary else "profile-red", background=temporary) as red:
        assert visit(red, "plant", canary) == "planted"
        assert visit(red, "look", canary) == f"{canary}|left={canary}"  # the profile has it, for its own user
        found = red.run_command(["grep", "-rlaF", canary, ".config/chromium"])
        assert found.exit_code == 0, "it lies in files of the profile"
    with client.sandboxes.create(None if temporary else "profile-blue", background=temporary) as blue:
        assert blue.run_command("ls -A ~/.config ~/.cache 2>/dev/null").stdout == ""
        assert visit(blue, "look", canary) == "|"
        looked = blue.run_command(["python3", "-c", SEARCH, canary])
        assert (looked.stdout, looked.exit_code) == ("\n", 0), looked


@pytest.mark.timeout(1800)
@pytest.mark.req("T3.62")
def test_who_comes_next_finds_nothing_of_who_was_there_before(
    client: SyncColdframe, installation: Installation
) -> None:
    """Durable and temporary workspaces in turn, so that host users and slots are used again."""
    limits = Limits(memory_mib=256)
    boxes, seen = set(), set()
    for number in range(CYCLES):
        canary = f"canary-{number}-{os.urandom(8).hex()}"
        temporary = number % 2 == 0
        red = client.sandboxes.create(None if temporary else "reuse-red", background=temporary, limits=limits)
        plant(red, canary)
        red.terminate()
        with client.sandboxes.create(None if temporary else "reuse-blue", background=temporary, limits=limits) as blue:
            looked = blue.run_command(["python3", "-c", SEARCH, canary[:-1]])
            assert (looked.stdout, looked.exit_code) == ("\n", 0), looked
            assert blue.processes() == []
            seen |= {red.id, blue.id}
        boxes |= {red.info.session_id, blue.info.session_id}
    assert len(seen) == len(boxes) == 2 * CYCLES
