"""What an agent does, as loads on which faults are let loose: each says when it works, and comes to an end by itself.

A load that is a command writes its process id to `begun-KEY`, waits for `go-KEY`, and works then. The others are calls.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import ColdframeError, from_wire

IMPORTED_BYTES = 8 << 20
AT_ONCE = 8
GATE = "echo $$ > begun-{key}; while [ ! -e go-{key} ]; do sleep 0.05; done; "
COMMANDS = {
    "repair": "echo 'def twice(n): return n + n + 1' > {key}.py; sed -i 's/ + 1//' {key}.py; "
    "python3 -c 'import importlib; assert importlib.import_module(\"{key}\").twice(2) == 4'",
    "build": "mkdir -p src-{key}; for n in 1 2 3 4 5 6 7 8; do echo 'x = [n for n in range(9)]' > src-{key}/m$n.py; done; "
    "python3 -m compileall -q -o 1 src-{key}",
    "test": "mkdir -p tests-{key}; cd tests-{key}; printf 'import unittest\\nclass T(unittest.TestCase):\\n def test_it(self):"
    " self.assertEqual(1, 1)\\n' > test_it.py; python3 -m unittest -q test_it",
    "server": "python3 -c 'import http.server as h, threading, urllib.request as u\n"
    's = h.HTTPServer(("127.0.0.1", 8099), h.SimpleHTTPRequestHandler)\n'
    "threading.Thread(target=s.serve_forever, daemon=True).start()\n"
    'u.urlopen("http://127.0.0.1:8099/").read()\'',
    "long job": "for n in $(seq 20); do echo $n; sleep 0.05; done",
}
WAITING = {
    "install": "it needs a registry, and is tried where there is one, in test_registries.py",
    "browser": "browsers in a sandbox are tried where there is one (tests/promises/test_browsers.py)",
    "preview": "what visitors are told then is tried in tests/previews/test_states.py; `server` is its part in the box",
    "interpreter": "cells are tried under faults of their own, in tests/cells/test_faults.py",
    "deploy": "there is no deployment yet",
}
"""Loads of the list that are not here, and why."""


class Told(NamedTuple):
    """How one call of a load came out."""

    state: str
    code: str | None
    retryable: bool
    actions: int
    """How many things it says can be done next."""


def told_of(error: ColdframeError) -> Told:
    return Told("refused", error.wire_code or error.code, error.retry_now == "later", len(error.next_actions))


def told_of_command(sandbox: SyncSandbox, command_id: str) -> Told:
    status = sandbox.command(command_id).status
    assert status is not None
    return Told(status.state, status.code, status.retryable, len(status.next_actions))


def run_load(client: SyncColdframe, sandbox_id: str, load: str, key: str, own: Mapping[str, str]) -> list[Told]:
    """Do all of it, and say how each call came out."""
    commands = {load: GATE + line for load, line in COMMANDS.items()} | dict(own)
    try:
        sandbox = client.sandboxes.get(sandbox_id)
        return CALLS[load](sandbox, key) if load in CALLS else [_run(sandbox, commands[load], key, key)]
    except ColdframeError as error:
        return [told_of(error)]


def _run(sandbox: SyncSandbox, line: str, key: str, call_key: str) -> Told:
    arguments = {"command": line.replace("{key}", key), "background": True}
    try:
        started = sandbox.call("run_command", arguments, idempotency_key=call_key)
        if started.error is not None:
            return told_of(from_wire(started.error))
        command_id = str(started.value["command_id"])
        sandbox.job(command_id).wait()
        return told_of_command(sandbox, command_id)
    except ColdframeError as error:
        return told_of(error)


def _parallel(sandbox: SyncSandbox, key: str) -> list[Told]:
    line = GATE + "head -c 100000 /dev/zero | sha256sum"
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda number: _run(sandbox, line, key, f"{key}-{number}"), range(AT_ONCE)))


def _import(sandbox: SyncSandbox, key: str) -> list[Told]:
    sandbox.upload(f"begun-{key}", b"x" * IMPORTED_BYTES)
    return [Told("done", None, False, 0)]


def _snapshot(sandbox: SyncSandbox, key: str) -> list[Told]:
    sandbox.write_file(f"begun-{key}", "kept")
    sandbox.take_snapshot(key, idempotency_key=key)
    return [Told("done", None, False, 0)]


CALLS: dict[str, Callable[[SyncSandbox, str], list[Told]]] = {
    "parallel": _parallel,
    "import": _import,
    "snapshot": _snapshot,
}
LOADS = (*COMMANDS, *CALLS)
GATED = (*COMMANDS, "parallel")
"""Those that wait for `go-KEY`."""
