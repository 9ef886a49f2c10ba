"""The controls: each group's attack with its wall taken away, in a wrapper of its own. It has to win there.

`python -m tests.security.controls GROUP` prints BREACH if it does. Started through the wrapper as an ordinary user and by
nothing else: these programs are meant to do harm, and here they do it to a copy.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from coldframe.host import confine
from tests.security.arena import Row, steps_of
from tests.security.landscape import NEIGHBOUR_PORT, Landscape
from tests.security.outside import DENIED, WILD, Outside

OWN_FILES = tuple(Path(__file__).with_name(f"{name}.jsonl") for name in ("attacks", "vectors", "network"))
CONTROLS: dict[str, Callable[[], bool]] = {}
WORKSPACE = "/tmp/workspace"


def control(group: str) -> Callable[[Callable[[], bool]], Callable[[], bool]]:
    def register(function: Callable[[], bool]) -> Callable[[], bool]:
        CONTROLS[group] = function
        return function

    return register


def row_of(row_id: int | str) -> Row:
    for path in OWN_FILES:
        for line in path.read_text(encoding="utf-8").splitlines():
            row: Row = json.loads(line)
            if row["id"] == row_id:
                return row
    raise KeyError(row_id)


def plain(
    row_id: int | str,
    landscape: Landscape,
    *,
    kind: str = "sh",
    environment: dict[str, str] | None = None,
    first: Callable[[], None] | None = None,
) -> str:
    """What the row's first script prints when it runs without a box, as a plain program."""
    return _script(row_id, landscape, 0, kind=kind, environment=environment, first=first)


def _script(
    row_id: int | str,
    landscape: Landscape,
    index: int,
    *,
    kind: str = "sh",
    environment: dict[str, str] | None = None,
    first: Callable[[], None] | None = None,
) -> str:
    script = [text for step, text in steps_of(row_of(row_id)["run"]) if step == kind][index]
    os.makedirs(WORKSPACE, exist_ok=True)
    return subprocess.run(
        ["bash", "-c", landscape.fill(script).replace("/workspace", WORKSPACE)],
        cwd=WORKSPACE,
        env={"PATH": os.environ["PATH"], "HOME": WORKSPACE, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=first,
        text=True,
        timeout=60,
        check=False,
    ).stdout


def _won(output: str) -> bool:
    return any(line.strip().startswith("BREACH") for line in output.splitlines())


@control("file-escape")
def without_a_view_of_its_own_the_canary_is_read() -> bool:
    return _won(plain(1, Landscape()))


@control("write-outside")
def without_a_view_of_its_own_the_host_is_written() -> bool:
    landscape = Landscape()
    before = landscape.state()
    plain("W3", landscape)
    return landscape.state() != before


@control("file-api")
def a_reader_that_follows_links_reads_the_canary() -> bool:
    landscape = Landscape()
    plain(17, landscape)
    return landscape.canary in Path(WORKSPACE, "link1").read_text(encoding="ascii")


@control("other-sandbox")
def with_the_same_loopback_the_neighbours_server_answers() -> bool:
    landscape = Landscape()
    server = _neighbour(landscape)
    try:
        return _won(plain(35, landscape))
    finally:
        server.kill()
        server.wait()


@control("neighbour")
def with_the_same_processes_the_neighbour_is_found() -> bool:
    landscape = Landscape()
    server = _neighbour(landscape)
    landscape.values["other_pid"] = str(server.pid)
    try:
        output = "".join(_script("N1", landscape, index) for index in (4, 5, 12))
        return output.count("BREACH") == 3
    finally:
        server.kill()
        server.wait()


def _neighbour(landscape: Landscape) -> "subprocess.Popen[bytes]":
    program = (
        "import socket,sys\n"
        f"server = socket.create_server(('127.0.0.1', {NEIGHBOUR_PORT}))\nprint(flush=True)\n"
        "while True:\n    peer, _ = server.accept()\n    peer.sendall(sys.argv[1].encode())\n    peer.close()\n"
    )
    server = subprocess.Popen([sys.executable, "-c", program, landscape.canary_b], stdout=subprocess.PIPE)
    assert server.stdout is not None
    server.stdout.readline()
    return server


@control("host-process")
def with_the_same_pids_the_process_is_killed() -> bool:
    landscape = Landscape()
    victim = landscape.victim(None)
    landscape.values["host_pid"] = str(victim.pid)
    plain(43, landscape)
    return victim.wait(30) == -signal.SIGKILL


@control("host-service")
def with_the_same_network_the_service_answers() -> bool:
    landscape = Landscape()
    return _won(plain(77, landscape)) and _won(plain(83, landscape)) and len(landscape.hits) >= 2


@control("resource")
def without_a_limit_the_memory_is_there() -> bool:
    return _won(plain("C1", Landscape()))


@control("timeout")
def a_kill_of_the_leader_alone_leaves_the_orphan() -> bool:
    script = next(text for step, text in steps_of(row_of(115)["run"]) if step == "sh")
    with subprocess.Popen(["bash", "-c", script], stdin=subprocess.DEVNULL) as leader:
        try:
            leader.wait(1)
        except subprocess.TimeoutExpired:
            leader.kill()
    return any(b"cf-marker-orphan" in _command_line(entry) for entry in os.listdir("/proc") if entry.isdigit())


def _command_line(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@control("kernel")
def without_a_filter_on_everybody_memory_can_be_written() -> bool:
    return _won(plain(133, Landscape()))


@control("mount-device")
def with_rights_of_its_own_it_mounts() -> bool:
    uid, gid = os.geteuid(), os.getegid()

    def all_rights() -> None:
        confine.unshare("user", "mnt")
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            Path(f"/proc/self/{name}").write_text(text, encoding="ascii")

    return _won(plain(137, Landscape(), first=all_rights))


@control("privilege")
def without_no_new_privs_it_shows() -> bool:
    landscape = Landscape()
    return _won(plain(143, landscape)) and _won(plain(145, landscape))


@control("env-leak")
def with_an_inherited_environment_the_secret_is_there() -> bool:
    landscape = Landscape()
    return _won(plain(149, landscape, environment={"VICTIM_SECRET": landscape.env_secret}))


@control("log-injection")
def a_log_of_plain_lines_is_forged() -> bool:
    command = next(text for step, text in steps_of(row_of(155)["run"]) if step == "cmd")
    log = f'{{"cmd": "before"}}\n{command}\n'  # one line for one command, as a naive log has it
    for line in log.splitlines():
        try:
            if json.loads(line).get("cmd") == "forged":
                return True
        except ValueError:
            continue
    return False


@control("deny-list")
def run_on_the_host_the_command_destroys() -> bool:
    """In the wrapper and without rights: what it can delete here are files of its own, in a copy."""
    landscape = Landscape()
    before = landscape.state()
    plain(165, landscape, kind="cmd")
    return landscape.state() != before and not os.path.exists(landscape.values["canary_file"])


@control("persistence")
def git_on_the_host_fires_the_hook() -> bool:
    landscape = Landscape()
    plain(213, landscape)
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.invalid"]
    subprocess.run(
        ["git", "-C", WORKSPACE, *identity, "commit", "-q", "--allow-empty", "-m", "x"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    return os.path.exists(f"{landscape.host_dir}/hook-fired")


@control("network")
def with_the_wire_as_it_is_everything_is_reached() -> bool:
    """Public addresses, private ones, that of metadata, and another name over an allowed connection."""
    outside, landscape = Outside(), Landscape()
    landscape.values |= outside.facts
    mark = outside.mark()
    won = [_won(plain(row_id, landscape)) for row_id in (53, 55, 59, "X1", "X9")]
    strays = " ".join(outside.since(mark).strays)
    return all(won) and all(address in strays for address in ("93.184.216.34", "192.168.77.5", "169.254.169.254"))


@control("dns")
def a_resolver_that_forwards_tells_names_to_everybody() -> bool:
    outside, landscape = Outside(), Landscape()
    mark = outside.mark()
    plain(89, landscape)
    plain("X31", landscape)
    asked = " ".join(outside.since(mark).questions)
    return f".{WILD} " in asked and f".{DENIED} " in asked and _won(plain("X35", landscape))


WRITER = """
import os
n = 0
while True:
    for name in ("first", "second"):
        with open("new", "w") as file:
            file.write(str(n))
        os.replace("new", name)
    n += 1
"""


@control("lifecycle")
def a_copy_made_file_by_file_of_what_is_written_mixes_two_moments() -> bool:
    def count(path: str) -> int:
        try:
            return int(Path(WORKSPACE, path).read_text(encoding="ascii"))
        except FileNotFoundError:
            return -1

    os.makedirs(WORKSPACE, exist_ok=True)
    writer = subprocess.Popen([sys.executable, "-c", WRITER], cwd=WORKSPACE)
    try:
        while (first := count("first")) < 0:
            pass
        while (second := count("second")) < first + 2:  # the copy of the one is made, and then that of the other
            pass
    finally:
        writer.kill()
        writer.wait()
    return second > first + 1


NOT_HERE = {
    "report": "its control is in the row: with bubblewrap shown again the sandbox is made",
}
"""Groups without a control, and why."""
WITH_OUTSIDE = frozenset({"network", "dns"})
"""Those that need somebody to reach."""


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(4, 1)  # dumpable again after the change of user: a plain program's memory is its own
    print("BREACH" if CONTROLS[sys.argv[1]]() else "HELD", flush=True)
    os._exit(0)
