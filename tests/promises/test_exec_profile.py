"""What the exec environment is, beside the plugin sandbox: one workspace to write in, generous time, loops without end, files that stay."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import ColdframeError, GrantMissing
from coldframe.contract.policy import Role
from coldframe.contract.sandbox import Limits
from tests.chaos.victims import Victims, kill
from tests.installation import Installation
from tests.promises.governed import token_of
from tests.promises.raw import all_entries, own_installation
from tests.promises.test_loop import USE_GREETING, need, wheel

CANARY = "canary-of-a-person-3e77"
PRIVATE_MOUNTS = {"/tmp", "/var/tmp", "/dev/shm", "/run"}
NINE_MINUTES_S = 540
PROBE = """
import json, os, socket, subprocess, sys, time
from pathlib import Path

def told(act):
    try:
        return act()
    except OSError as error:
        return type(error).__name__

def reach(family, address):
    with socket.socket(family) as one:
        one.settimeout(20)
        one.connect(address)
        return 'connected'

def installed():
    done = subprocess.run([sys.executable, '-m', 'pip', 'install', '--no-index', '--find-links', 'wheels', 'greeting-cf'],
                          capture_output=True)
    return done.returncode

def fetched():
    done = subprocess.run([sys.executable, '-m', 'pip', 'install', '--retries', '0', '--no-cache-dir', 'greeting-from-far'],
                          capture_output=True)
    return done.returncode

if sys.argv[1] == 'sleep':
    print('begun', flush=True)
    time.sleep(60)
    print('slept')
    sys.exit()
first = Path('note-of-an-earlier-run')
server = socket.create_server(('127.0.0.1', 0))
print(json.dumps({
    'earlier': told(first.read_text),
    'write': told(lambda: first.write_text('written')),
    'host write': told(lambda: Path(sys.argv[1]).write_text('x')),
    'host read': told(Path(sys.argv[1]).read_text),
    'system write': told(lambda: Path('/usr/cf-probe').write_text('x')),
    'passwords': told(Path('/etc/shadow').read_text),
    'reach': told(lambda: reach(socket.AF_INET, ('203.0.113.9', 443))),
    'loopback': told(lambda: reach(socket.AF_INET, server.getsockname())),
    'install': installed(),
    'fetch': fetched(),
}))
"""
WRITABLE = """
import json, os, stat
folders_found, files_found = [], []
for place, folders, files in os.walk('/'):
    if place == '/proc':
        folders[:], files = ['sys'], []
    probe = os.path.join(place, '.cf-probe')
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.unlink(probe)
        folders_found.append(place)
    except OSError:
        pass
    for name in files:
        path = os.path.join(place, name)
        if stat.S_ISREG(os.lstat(path).st_mode) and os.access(path, os.W_OK):
            files_found.append(path)
print(json.dumps([folders_found, files_found]))
"""


@pytest.fixture
def personal_file() -> Iterator[str]:
    """A file of the person who runs the installation, outside of it, readable by everybody."""
    with tempfile.TemporaryDirectory(prefix="cf-person-") as folder:
        os.chmod(folder, 0o755)
        path = os.path.join(folder, "diary.txt")
        Path(path).write_text(CANARY, encoding="ascii")
        yield path


@pytest.mark.req("T1.03")
@pytest.mark.without_way_out
def test_one_probe_program_meets_the_profile_of_the_exec_environment(sandbox: SyncSandbox, personal_file: str) -> None:
    """The same program is for the plugin sandbox, with another column."""
    need(sandbox, "python3", "-m", "pip", "--version")
    sandbox.upload("wheels/greeting_cf-1.0-py3-none-any.whl", wheel())
    sandbox.write_file("probe.py", PROBE)
    column = {
        "write": len("written"),
        "host write": "FileNotFoundError",
        "host read": "FileNotFoundError",
        "system write": "OSError",
        "passwords": "FileNotFoundError",
        "reach": "ConnectionRefusedError",
        "loopback": "connected",
        "install": 0,
        "fetch": 1,
    }
    for earlier in ("FileNotFoundError", "written"):  # the second run reads the file of the first
        ran = sandbox.run_command(["python3", "probe.py", personal_file])
        assert ran.exit_code == 0, ran.stderr
        assert json.loads(ran.stdout or "") == {"earlier": earlier, **column}
        assert ("tcp", "203.0.113.9", 443) in {(one.protocol, one.address, one.port) for one in ran.contacts}
        assert {one.verdict for one in ran.contacts} == {"refused"}
    # Its sleep is ended by a limit of the call's own; without one it has the time it wants, see below.
    slept = sandbox.run_command(["python3", "probe.py", "sleep"], timeout_s=1)
    assert (slept.timed_out, slept.stdout) == (True, "begun\n")
    assert sandbox.run_command(["python3", "-c", USE_GREETING]).stdout == "from a wheel\n"
    assert Path(personal_file).read_text(encoding="ascii") == CANARY


@pytest.mark.req("T1.04")
def test_only_the_workspace_and_its_private_mounts_can_be_written(sandbox: SyncSandbox, client: SyncColdframe) -> None:
    sandbox.write_file("writable.py", WRITABLE)
    ran = sandbox.run_command(["python3", "writable.py"])
    folders, files = json.loads(ran.stdout or "[]")
    home = {folder for folder in folders if folder == "/home/user" or folder.startswith("/home/user/")}
    assert {"/home/user", "/home/user/scratch"} <= home
    assert set(folders) - home == PRIVATE_MOUNTS
    assert files == ["/home/user/writable.py"]
    told = next(line["value"] for line in sandbox.contract()["effective_reach"] if line["id"].endswith(".writable"))
    assert {"/home/user", *PRIVATE_MOUNTS} == {one for one in told if one != "/proc" and not is_device(one)}
    # Private: what one sandbox leaves there another of the same agent does not find, and the host does not either.
    marks = [f"{place}/cf-private-{sandbox.id}" for place in sorted(PRIVATE_MOUNTS)]
    assert sandbox.run_command(["touch", *marks]).exit_code == 0
    assert [mark for mark in marks if os.path.lexists(mark)] == []
    with client.sandboxes.create(agent_id=sandbox.info.agent_id) as second:
        assert second.run_command(["ls", *marks]).stdout == ""
        assert second.read_file("writable.py").content == WRITABLE
    # They have no disk behind them but count as memory of the sandbox.
    types = sandbox.run_command(["stat", "--file-system", "--format=%T", *sorted(PRIVATE_MOUNTS)]).stdout
    assert types == "tmpfs\n" * len(PRIVATE_MOUNTS)


def is_device(target: str) -> bool:
    return target.startswith("/dev/") and target != "/dev/shm"


@pytest.mark.req("T1.04")
def test_nothing_of_the_people_of_the_host_is_in_view(
    sandbox: SyncSandbox, installation: Installation, personal_file: str
) -> None:
    """Not the folder of the person who runs it, nor the installation's own, nor the host's temporary files and users."""
    diary = os.path.join(installation.home, "diary.txt")
    Path(diary).write_text(CANARY, encoding="ascii")
    places = [
        personal_file,
        diary,
        installation.folder,
        os.path.expanduser("~"),
        "/root",
        "/etc/shadow",
        "/mnt",
        "/srv",
    ]
    for path in places:
        assert sandbox.run_command(["stat", path]).exit_code == 1, path
    found = sandbox.run_command(
        f"grep -rIlsF {CANARY[:-1]}[7] / --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr"
        f"; find / -name '*diary*' -not -path '/proc/*' -not -path '/usr/*' 2>/dev/null; ls /home"
    )
    assert found.stdout == "user\n"
    users = sandbox.run_command(["cut", "-d:", "-f1", "/etc/passwd"]).stdout or ""
    assert set(users.split()) <= {"root", "user", "nobody"}
    os.unlink(diary)


# -- time ----------------------------------------------------------------------------------------------------------


@pytest.mark.req("T1.07")
def test_the_default_limit_leaves_a_job_more_than_nine_minutes_and_is_told(sandbox: SyncSandbox) -> None:
    """That such a job really ends as it should is tried by the test below, on demand."""
    told = {line["id"]: line["value"] for line in sandbox.contract()["execution"]}
    assert told["execution.limits.wall_ms"] > NINE_MINUTES_S * 1000
    assert next(one.limit for one in sandbox.report().limits if one.kind == "wall") > NINE_MINUTES_S
    assert sandbox.info.spec.limits.wall_s > NINE_MINUTES_S
    assert sandbox.run_command("echo done", timeout_s=NINE_MINUTES_S).stdout == "done\n"
    with pytest.raises(ColdframeError) as refused:
        sandbox.run_command("echo done", timeout_s=told["execution.limits.wall_ms"] / 1000 + 1)
    assert "600" in refused.value.message and refused.value.facts["argument"] == "timeout_s"


@pytest.mark.req("T1.07")
@pytest.mark.timeout(NINE_MINUTES_S + 120)
@pytest.mark.skipif("COLDFRAME_SLOW" not in os.environ, reason="takes nine minutes; COLDFRAME_SLOW=1 runs it")
def test_a_job_of_nine_minutes_that_says_nothing_runs_to_its_end(sandbox: SyncSandbox) -> None:
    """In one call that waits for it, so that no silence on the way is taken for an end."""
    ran = sandbox.run_command(f"sleep {NINE_MINUTES_S}; echo done; exit 7")
    assert (ran.stdout, ran.exit_code, ran.limit) == ("done\n", 7, None)
    assert (ran.duration_ms or 0) >= NINE_MINUTES_S * 1000


@pytest.mark.req("T1.07")
def test_the_time_of_one_call_is_honoured(client: SyncColdframe, agent_id: str) -> None:
    with client.sandboxes.create(agent_id=agent_id, limits=Limits(wall_s=7200)) as sandbox:
        assert sandbox.run_command("echo fine", timeout_s=7000).exit_code == 0  # more than the default, by an owner
        for timeout_s in (0.4, 1):
            ended = sandbox.run_command("echo begun; sleep 60; echo slept", timeout_s=timeout_s)
            assert (ended.timed_out, ended.stdout) == (True, "begun\n")
            assert ended.limit is not None and (ended.limit.kind, ended.limit.limit) == ("wall", timeout_s)
        assert sandbox.run_command("sleep 1.2; echo slept").stdout == "slept\n"


@pytest.mark.req("T1.07")
def test_the_time_of_one_agent_is_honoured_and_no_other_ones(owner: SyncColdframe, agent_id: str) -> None:
    owner.policy.load(f"version: 1\nsettings: {{limits: {{{agent_id}: {{wall_s: 1}}}}}}\n")
    with (
        owner.sandboxes.create(agent_id=agent_id) as short,
        owner.sandboxes.create(agent_id=f"{agent_id}-other", limits=Limits(wall_s=900)) as other,
    ):
        ended = short.run_command("echo begun; sleep 60")
        assert (ended.timed_out, ended.stdout) == (True, "begun\n")
        assert ended.limit is not None and (ended.limit.kind, ended.limit.limit) == ("wall", 1.0)
        with pytest.raises(ColdframeError):
            short.run_command("true", timeout_s=2)
        assert other.run_command("sleep 1.2; echo slept").stdout == "slept\n"
        assert other.run_command("echo fine", timeout_s=800).exit_code == 0
        assert (short.refresh().spec.limits.wall_s, other.refresh().spec.limits.wall_s) == (1, 900)


@pytest.mark.req("T1.07")
def test_more_time_than_the_default_is_for_an_admin_to_give(
    governed: Installation, owner: SyncColdframe, agent_id: str
) -> None:
    with SyncColdframe(governed.url, token_of(owner, Role.MEMBER)) as member, pytest.raises(GrantMissing):
        member.sandboxes.create(agent_id=agent_id, limits=Limits(wall_s=601))
    with (
        SyncColdframe(governed.url, token_of(owner, Role.ADMIN)) as admin,
        admin.sandboxes.create(agent_id=agent_id, limits=Limits(wall_s=86_400)) as sandbox,
    ):
        assert sandbox.run_command("echo fine", timeout_s=86_400).stdout == "fine\n"


# -- loops and what stays ------------------------------------------------------------------------------------------

RUNS = 500


@pytest.mark.req("T1.08")
def test_five_hundred_runs_in_one_session_are_all_carried_out(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    session = sandbox.info.session_id
    for number in range(1, RUNS + 1):
        ran = sandbox.run_command(f"echo run {number} >> runs; wc -l < runs")
        assert (ran.exit_code, ran.stdout) == (0, f"{number}\n")
    assert sandbox.refresh().session_id == session
    ended = [one for one in all_entries(client, sandbox_id=sandbox.id) if one.kind == "call.ended"]
    assert len(ended) == RUNS and {one.body["exit_code"] for one in ended} == {0}


@pytest.mark.req("T1.09")
def test_a_file_and_an_installed_dependency_are_there_after_a_restart_and_in_a_new_session() -> None:
    with own_installation() as home:
        with SyncColdframe(home.url, home.token) as client:
            sandbox = client.sandboxes.create(agent_id="keeps")
            need(sandbox, "python3", "-m", "pip", "--version")
            sandbox.upload("wheels/greeting_cf-1.0-py3-none-any.whl", wheel())
            done = sandbox.run_command("python3 -m pip install --no-index --find-links wheels greeting-cf")
            assert done.exit_code == 0, done.stderr
            sandbox.run_command("rm -r wheels; echo data > kept")
        home.stop()
        home.start()
        with SyncColdframe(home.url, home.token) as client:
            with client.sandboxes.create(agent_id="keeps") as second:
                assert second.info.session_id != sandbox.info.session_id
                check_kept(second)
            check_kept(client.sandboxes.get(sandbox.id))  # the old session goes on as well
        seen = Victims(home)
        for process in (*seen.servers, *seen.daemons, *seen.zygotes, *seen.keepers.values()):
            kill(process)
        home.kill()
        home.start()
        with SyncColdframe(home.url, home.token) as client, client.sandboxes.create(agent_id="keeps") as third:
            check_kept(third)


def check_kept(sandbox: SyncSandbox) -> None:
    assert sandbox.read_file("kept").content == "data\n"
    assert sandbox.run_command(["python3", "-c", USE_GREETING]).stdout == "from a wheel\n"
