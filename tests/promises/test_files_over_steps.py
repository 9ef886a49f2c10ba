"""Files of every kind outlast many steps, another client, a pause, a stop, and the product killed under them."""

import base64
import hashlib
import json
import os
import random
import threading
import zlib
from collections.abc import Iterator

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import ColdframeError, PauseKindUnsupported
from tests.installation import Installation

STEPS = 50
KILLS = 100 if os.environ.get("COLDFRAME_SLOW") == "1" else 6
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
KINDS: dict[str, tuple[bytes, str]] = {
    "data/downloaded.bin": (zlib.compress(bytes(range(256)) * 8_000, 0), "640"),
    "src/generated.py": ("def answer() -> int:\n    return 42  # grün\n".encode(), "644"),
    "tests/fixture.json": (json.dumps({"rows": list(range(1000))}).encode(), "444"),
    "build/artifact": (b"\x7fELF" + bytes(5_000), "755"),
    "shots/screen.png": (PNG, "600"),
    "reports/report.html": (b"<h1>All well</h1>\r\n" * 500, "664"),
    "logs/run.log": (b"".join(b"%d step\n" % n for n in range(20_000)), "622"),
}


@pytest.fixture
def own_installation() -> Iterator[Installation]:
    """One that may be killed."""
    started = Installation()
    try:
        started.start()
        yield started
    finally:
        left = started.close()
    assert not left, "the installation left behind:\n" + "\n".join(left)


def facts(sandbox: SyncSandbox) -> str:
    names = " ".join(KINDS)
    answer = sandbox.run_command(f"sha256sum {names} && stat -c '%n %a %s %Y.%y' {names}")
    assert answer.exit_code == 0, answer.stderr
    return answer.stdout or ""


def pause(sandbox: SyncSandbox) -> None:
    """With its memory if this user has what that takes, else without, which is told."""
    if "memory" in sandbox.report().pause_kinds:
        sandbox.pause()
        return
    with pytest.raises(PauseKindUnsupported) as refused:
        sandbox.pause()
    print(f"paused without its memory, since {refused.value.message}")
    sandbox.pause("files")


@pytest.mark.req("T4.13")
def test_seven_kinds_of_files_outlast_fifty_steps_and_a_killed_product(own_installation: Installation) -> None:
    with SyncColdframe(own_installation.url, own_installation.token) as client:
        sandbox = client.sandboxes.create(agent_id="keeper")
        for path, (content, mode) in KINDS.items():
            sandbox.upload(path, content)
            sandbox.run_command(
                f"chmod {mode} {path}; touch -d '2020-02-0{len(path) % 9 + 1} 03:04:05.678901234 UTC' {path}"
            )
        made = facts(sandbox)
        for path, (content, _) in KINDS.items():
            assert f"{hashlib.sha256(content).hexdigest()}  {path}\n" in made
    for step in range(STEPS):
        if step % 10 == 9:
            own_installation.kill()
            own_installation.start()
        with SyncColdframe(own_installation.url, own_installation.token) as client:
            sandbox = client.sandboxes.get(sandbox.id)
            if step == 15:
                pause(sandbox)
                sandbox.resume()
            if step == 25:
                sandbox.stop()
                sandbox.start_again()
            assert sandbox.run_command(f"mkdir -p work; echo {step} >> work/steps; wc -l < work/steps").stdout == (
                f"{step + 1}\n"
            )
    with SyncColdframe(own_installation.url, own_installation.token) as client:
        sandbox = client.sandboxes.get(sandbox.id)
        assert facts(sandbox) == made
        for path, (content, _) in KINDS.items():
            assert b"".join(sandbox.download(path)) == content


@pytest.mark.once
@pytest.mark.timeout(1800)
@pytest.mark.req("T4.13")
def test_a_write_that_was_acknowledged_is_there_after_each_kill(own_installation: Installation) -> None:
    """The storm of tests/chaos does the same for longer, with everything else going on."""
    chance = random.Random(413)
    acknowledged: dict[str, bytes] = {}
    with SyncColdframe(own_installation.url, own_installation.token) as client:
        sandbox_id = client.sandboxes.create(agent_id="writer").id
    for kill in range(KILLS):
        enough = threading.Event()
        wanted = chance.randrange(1, 12)

        def write(kill: int = kill, wanted: int = wanted, enough: threading.Event = enough) -> None:
            try:
                with SyncColdframe(own_installation.url, own_installation.token) as client:
                    sandbox = client.sandboxes.get(sandbox_id)
                    for number in range(10_000):
                        content = f"{kill}-{number}\n".encode() * chance.choice([1, 1000, 50_000])
                        path = f"written/{kill}-{number}" if number % 3 else "written/same"
                        sandbox.upload(path, content)
                        acknowledged[path] = content
                        if number >= wanted:
                            enough.set()
            except (ColdframeError, OSError):
                pass
            finally:
                enough.set()

        writer = threading.Thread(target=write)
        writer.start()
        assert enough.wait(60)
        own_installation.kill()
        writer.join(60)
        assert not writer.is_alive()
        own_installation.start()
        with SyncColdframe(own_installation.url, own_installation.token) as client:
            sandbox = client.sandboxes.get(sandbox_id)
            for path, content in acknowledged.items():
                found = b"".join(sandbox.download(path))
                if path != "written/same":  # the write that the kill met may have replaced this one: by a whole content
                    assert found == content, path
                else:
                    line = found.partition(b"\n")[0]
                    assert line.partition(b"-")[0] and found == (line + b"\n") * found.count(b"\n")
            left = [
                entry.path for entry in sandbox.list_directory("written").entries if "coldframe-write" in entry.path
            ]
            assert left == []
