"""A short task runs on durable files without changing them: only what was asked for comes back."""

import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from coldframe.client.sync import SyncColdframe
from tests.installation import Installation

TASK = "cat state; echo changed > state; rm kept; mkdir made; echo $0 > report.html; sleep 0.2; cat state"


@pytest.mark.req("T3.37")
def test_a_short_task_on_durable_files_leaves_only_what_was_asked_for(installation: Installation) -> None:
    def task(name: str, *words: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "coldframe.cli", "--data-dir", installation.data_dir, "run", "--agent", "durable"]
        line += ["--copy", *words, "--", "bash", "-c", TASK, name]
        return subprocess.run(line, capture_output=True, text=True, check=False, env=installation.environment)

    with SyncColdframe(installation.url, installation.token) as client:

        def files() -> dict[str, str]:
            with client.sandboxes.create("durable") as seen:
                listed = seen.list_directory("", recursive=True).entries
                names = [one.path for one in listed if one.type == "file" and one.path != ".exec_history"]
                return {name: hashlib.sha256(b"".join(seen.download(name))).hexdigest() for name in names}

        with client.sandboxes.create("durable") as sandbox:
            sandbox.write_file("state", "as it was\n")
            sandbox.write_file("kept", "kept\n")
        before = files()
        first = task("first", "--put-back", "report.html")
        assert (first.returncode, first.stdout) == (0, "as it was\nchanged\n"), first.stderr
        assert files() == {**before, "report.html": hashlib.sha256(b"first\n").hexdigest()}
        with ThreadPoolExecutor(2) as at_once:
            done = list(at_once.map(task, ("second", "third")))
        assert [one.stdout for one in done] == ["as it was\nchanged\n"] * 2, [one.stderr for one in done]
        assert files() == {**before, "report.html": hashlib.sha256(b"first\n").hexdigest()}
        missing = task("fourth", "--put-back", "nowhere")
        assert missing.returncode != 0 and "nowhere" in missing.stderr
        assert client.sandboxes.list(state=["running", "stopped", "paused"]) == []
        assert client.snapshots.list(agent_id="durable") == []
        client.agents.delete("durable")
