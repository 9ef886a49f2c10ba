"""The way out of a sandbox against a direct one, from one program to one server: `python -m bench.workers.egress` prints JSON.

A room without a way out of its own (`tests/reachable.py`) holds an installation, the server, and both programs: one inside a
sandbox, whose packets the broker takes, and one outside, on the same wire to the same server. They take turns, so what
disturbs the machine hits both. Peers have no address of their own inside and go by their proxy, as they tell programs to.
"""

import contextlib
import json
import os
import shlex
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping

from bench.systems import NPM, PYPI
from bench.workers.wire import timed
from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.host.egress.contact import EgressContact
from coldframe.host.egress.lineage import Event, _Record
from tests.host.egress.brokered import Brokered, with_link
from tests.host.egress.site import PIECE
from tests.host.egress.world import ADDRESSES, SITE
from tests.installation import Installation
from tests.reachable import alone

PORT = 8443
PATIENCE_S = 120.0
"""Of one answer."""
RULES = f"""version: 1
network:
  profiles:
    seen: {{rules: [{{id: seen, to: {SITE}, ports: {PORT}}}]}}
    read: {{rules: [{{id: read, to: {SITE}, ports: {PORT}, methods: [GET]}}]}}
  use: {{"agent:seen": seen, "agent:read": read}}
"""
PROGRAM = """
import json, os, socket, ssl, sys, threading, time
from urllib.parse import urlsplit

what, place, name, port, count, authority = sys.argv[1:]
proxy = urlsplit(os.environ.get("HTTPS_PROXY", ""))
context = ssl.create_default_context(cafile=authority or None)

def ready(plain):
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as clients of HTTP do
    return plain

def connect():
    if not proxy.hostname:
        return ready(socket.create_connection((place, int(port)), timeout=60))
    plain = ready(socket.create_connection((proxy.hostname, proxy.port), timeout=60))
    more = ""
    if proxy.username:
        import base64
        more = "Proxy-Authorization: Basic " + base64.b64encode(f"{proxy.username}:{proxy.password}".encode()).decode() + "\\r\\n"
    plain.sendall(f"CONNECT {name}:{port} HTTP/1.1\\r\\nHost: {name}:{port}\\r\\n{more}\\r\\n".encode())
    answer = b""
    while b"\\r\\n\\r\\n" not in answer:
        answer += plain.recv(1) or exit("the proxy ended")
    assert b" 200 " in answer.split(b"\\r\\n")[0], answer
    return plain

def get(path):
    began = time.perf_counter()
    with connect() as plain, context.wrap_socket(plain, server_hostname=name) as client:
        client.sendall(f"GET {path} HTTP/1.1\\r\\nHost: {name}:{port}\\r\\nConnection: close\\r\\n\\r\\n".encode())
        size, first = 0, b""
        while part := client.recv(1 << 18):
            first = first or part
            size += len(part)
    assert first.startswith(b"HTTP/1.1 200 "), first[:100]
    return size, time.perf_counter() - began

if what == "get":
    print(json.dumps([get("/v1/text")[1] for _ in range(int(count))]))
elif what == "bulk":
    size, seconds = get(f"/v1/large?pieces={count}")
    print(json.dumps([size / seconds]))
else:
    done = []
    def one():
        try:
            get("/v1/text")
            done.append(1)
        except Exception:
            done.append(0)
    threads = [threading.Thread(target=one) for _ in range(int(count))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(json.dumps(done))
"""
Way = Callable[[str, int], list[float]]
"""What the program says of so many."""


def figures(rounds: int, gets: int, bulk_mib: int, at_once: int, peers: str) -> dict[str, float]:
    return alone(lambda installation: _measure(installation, rounds, gets, bulk_mib, at_once, peers))


def _measure(
    installation: Installation, rounds: int, gets: int, bulk_mib: int, at_once: int, peers: str
) -> dict[str, float]:
    signal.alarm(0)  # the patience of tests, which this is none of
    with open("/etc/hosts", "a", encoding="ascii") as names:  # that of the room; peers ask without a dot at the end
        names.write(f"{ADDRESSES[SITE][0]} {SITE}\n")
    with (
        SyncColdframe(installation.url, installation.token) as client,
        tempfile.TemporaryDirectory(prefix="cf-egress-", dir="/tmp") as folder,
        contextlib.ExitStack() as stack,
    ):
        client.policy.load(RULES)
        ways: dict[str, Way] = {"direct": _direct}
        for name, agent in (("sni", "seen"), ("intercept", "read")):
            ways[name] = _inside(stack.enter_context(client.sandboxes.create(agent)))
        ways |= dict(_peers(peers, folder))
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name, way in ways.items():
                found = way("get", gets)
                seconds[name] += found if number else []
        for number in range(max(2, rounds // 3)):
            for name, way in ways.items():
                found = way("bulk", bulk_mib * (1 << 20) // len(PIECE))
                rates[name] += found if number else []
        answer = {name: 1000 * statistics.median(values) for name, values in seconds.items()}
        answer |= {f"{name} ratio": answer[name] / answer["direct"] for name in ways if name != "direct"}
        for name, values in rates.items():
            answer[f"{name} MiB/s"] = statistics.median(values) / (1 << 20)
        for name in ("sni", "intercept"):
            # As a share of what is the least that is asked for, whichever of both is lower.
            answer[f"{name} bulk"] = answer[f"{name} MiB/s"] / min(400.0, 0.4 * answer["direct MiB/s"])
            done = ways[name]("many", at_once)
            answer[f"{name} failed"] = at_once - sum(done)
        return answer


def _direct(what: str, count: int) -> list[float]:
    return _read(
        subprocess.run(_command(what, count, ADDRESSES[SITE][0]), capture_output=True, text=True, timeout=PATIENCE_S)
    )


def _inside(sandbox: SyncSandbox) -> Way:
    def ask(what: str, count: int) -> list[float]:
        done = sandbox.run_command(_command(what, count, SITE))
        if done.exit_code != 0:
            raise RuntimeError(str(done.stderr)[-500:])
        return list(map(float, json.loads(str(done.stdout))))

    return ask


def _command(what: str, count: int, place: str) -> list[str]:
    return ["python3", "-c", PROGRAM, what, place, SITE, str(PORT), str(count), ""]


def _read(done: "subprocess.CompletedProcess[str]") -> list[float]:
    if done.returncode != 0 or not done.stdout.strip():
        raise RuntimeError(done.stderr[-500:])
    return list(map(float, json.loads(done.stdout.strip().splitlines()[-1])))


# -- peers -----------------------------------------------------------------------------------------


def _peers(folder: str, work: str) -> Iterator[tuple[str, Way]]:
    """Those that are installed and work here; a peer that does not is left out, and says why."""
    settings = os.path.join(work, "settings.json")
    with open(settings, "w", encoding="ascii") as file:
        json.dump({
            "network": {"allowedDomains": [SITE], "deniedDomains": []},
            "filesystem": {"denyRead": [], "allowWrite": [work], "denyWrite": []},
        }, file)  # fmt: skip
    programs: Mapping[str, list[str]] = {
        "srt-python": [os.path.join(folder, "srt-python", "bin", "python"), "-m", "sandbox_runtime.cli"],
        "srt-npm": [os.path.join(folder, "srt-npm", "node_modules", ".bin", "srt")],
    }
    for name, program in programs.items():
        if not os.path.exists(program[0]):
            sys.stderr.write(f"{name}: {PYPI.get(name, NPM.get(name))} is not here\n")
            continue

        def ask(what: str, count: int, program: list[str] = program) -> list[float]:
            line = shlex.join(_command(what, count, SITE))
            return _read(
                subprocess.run(
                    [*program, "--settings", settings, "-c", line], capture_output=True, text=True, timeout=PATIENCE_S
                )
            )

        try:
            ask("get", 1)
        except (OSError, RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
            sys.stderr.write(f"{name}: {error}\n")
            continue
        yield name, ask


# -- what recording costs --------------------------------------------------------------------------


def record_cost(rounds: int, gets: int) -> float:
    """Per cent of one GET in mode `sni` that writing its record takes: with it and without it, in turn."""
    answers, tell = os.pipe()

    async def steps(made: Brokered) -> None:
        write = made.lineage._append
        seconds: dict[bool, list[float]] = {True: [], False: []}

        def leave_out(record: _Record, event: Event, contact: EgressContact | None) -> int:
            record.seq += 1
            return 0

        for number in range(rounds + 1):
            for writes in (True, False):
                made.lineage._append = write if writes else leave_out  # type: ignore[method-assign]
                found = await made.inside(lambda: _gets(gets))
                seconds[writes] += found if number else []
        with_it, without = (statistics.median(seconds[writes]) for writes in (True, False))
        os.write(tell, json.dumps(100 * (with_it / without - 1)).encode())

    with_link(steps, rules=(f"{{id: seen, to: {SITE}, ports: {PORT}}}",))
    os.close(tell)
    with os.fdopen(answers, "rb") as told:
        return float(json.loads(told.read()))


def _gets(count: int) -> list[float]:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    seconds = []
    for _ in range(count):
        with timed() as watch:
            with socket.create_connection((SITE, PORT), timeout=60) as plain:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with context.wrap_socket(plain, server_hostname=SITE) as client:
                    client.sendall(f"GET /v1/text HTTP/1.1\r\nHost: {SITE}\r\nConnection: close\r\n\r\n".encode())
                    while client.recv(1 << 16):
                        pass
        seconds.append(watch.seconds)
    return seconds


if __name__ == "__main__":
    rounds, gets, bulk_mib, at_once = map(int, sys.argv[1:5])
    found = figures(rounds, gets, bulk_mib, at_once, sys.argv[5])
    print(json.dumps({**found, "record": record_cost(rounds, gets)}))
