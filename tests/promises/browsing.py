"""Chromium in a sandbox, led by a program beside it: for tests of what a real browser reaches.

One browser makes many visits, since its start costs more than all of them. It is led through pipes, so that no port is
opened for that, and with none but the flags that the box itself gives it.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from coldframe.client.models import CommandAnswer
from coldframe.client.sync import SyncSandbox

needs_chromium = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="there is no Chromium; `scripts/setup --tests` installs it or says why not"
)
needs_firefox = pytest.mark.skipif(
    shutil.which("firefox-esr") is None, reason="there is no Firefox, and nothing else needs it"
)
PATIENCE_S = 60


class Visit(NamedTuple):
    """How one page came out."""

    status: int | None
    """Of its answer; None if there was none."""
    issuer: str | None
    """Of the certificate that it came with."""
    error: str
    """What the browser shows in place of the page, `net::ERR_…`."""
    value: Any
    """Of the script that was run in it."""


def browse(box: SyncSandbox, *visits: str | tuple[str, str], env: Mapping[str, str] | None = None) -> list[Visit]:
    """Visit addresses one after the other; with a second text, that script's value is awaited in the page."""
    done = lead_browser(box, *visits, env=env)
    assert done.exit_code == 0, f"{done.stdout}\n{done.stderr}"
    return visits_of(str(done.stdout))


def lead_browser(
    box: SyncSandbox,
    *visits: str | tuple[str, str],
    flags: Sequence[str] = (),
    background: bool = False,
    env: Mapping[str, str] | None = None,
) -> CommandAnswer:
    """The same as a command; its output is for `visits_of`, a line that is there once all has been visited."""
    box.write_file("browse.py", DRIVER)
    wanted = [visit if isinstance(visit, tuple) else (visit, "") for visit in visits]
    words = ["python3", "browse.py", *flags]
    return box.run_command(words, stdin=json.dumps(wanted), env=env, timeout_s=PATIENCE_S, background=background)


def visits_of(output: str) -> list[Visit]:
    return [Visit(*row) for row in json.loads(output)]


DRIVER = r"""
import json, os, subprocess, sys

their_in, our_out = os.pipe()
our_in, their_out = os.pipe()

def wire():
    first, second = os.dup(their_in), os.dup(their_out)
    for target, source in ((3, first), (4, second)):
        os.dup2(source, target)

words = ["chromium", "--headless", "--remote-debugging-pipe", *sys.argv[1:], "about:blank"]
browser = subprocess.Popen(words, preexec_fn=wire, pass_fds=(3, 4), stdin=subprocess.DEVNULL, stderr=open("browser.log", "wb"))
os.close(their_in)
os.close(their_out)
answers = os.fdopen(our_in, "rb")
number, session, waiting = 0, None, []

def hear():
    message = b""
    while not message.endswith(b"\0"):
        byte = answers.read(1)
        if not byte:
            sys.exit("the browser is gone:\n" + open("browser.log").read()[-3000:])
        message += byte
    return json.loads(message[:-1])

def ask(method, **parameters):
    global number
    number += 1
    order = {"id": number, "method": method, "params": parameters}
    if session:
        order["sessionId"] = session
    os.write(our_out, json.dumps(order).encode() + b"\0")
    while (message := hear()).get("id") != number:
        waiting.append(message)
    if "error" in message:
        sys.exit(f"{method}: {message['error']}")
    return message["result"]

def visit(url, script):
    waiting.clear()
    went = ask("Page.navigate", url=url)
    status, issuer, loaded = None, None, False
    while not loaded:
        message = waiting.pop(0) if waiting else hear()
        about = message.get("params", {})
        if message.get("method") == "Network.responseReceived" and about["type"] == "Document":
            status = about["response"]["status"]
            issuer = about["response"].get("securityDetails", {}).get("issuer")
        loaded = message.get("method") == "Page.loadEventFired"
    value = None
    if script:
        said = ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in said:
            sys.exit(f"the script failed: {said['exceptionDetails']}")
        value = said["result"].get("value")
    return [status, issuer, went.get("errorText", ""), value]

target = ask("Target.createTarget", url="about:blank")["targetId"]
session = ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
ask("Page.enable")
ask("Network.enable")
print(json.dumps([visit(url, script) for url, script in json.load(sys.stdin)]), flush=True)
session = None
ask("Browser.close")
browser.wait()
"""
