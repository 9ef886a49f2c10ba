"""The REST surface under schemathesis: no 5xx, and every answer as the published schema has it.

Runs its command line against a running installation, so that nothing of it is loaded into the tests. Sandbox and
agent are real ones, which the calls reach; what would end them, or build boxes without end, is left out.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from coldframe.client.sync import SyncColdframe
from tests.installation import Installation

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
LEFT_OUT = ("/v1/sandboxes", "/v1/doctor", "/v1/sessions/{session_id}/reset")


def is_there() -> bool:
    return importlib.util.find_spec("schemathesis") is not None


def fuzz_rest(installation: Installation, *, seed: int, examples: int) -> str:
    """Returns what was found wrong, empty if nothing was."""
    with SyncColdframe(installation.url, installation.token) as client:
        with client.sandboxes.create(agent_id="rest-fuzz") as sandbox, tempfile.TemporaryDirectory() as folder:
            sandbox.write_file("a", "x")
            settings = Path(folder, "schemathesis.toml")
            settings.write_text(
                "[parameters]\n"
                f'"path.sandbox_id" = "{sandbox.id}"\n'
                '"path.agent_id" = "rest-fuzz"\n'
                f'"path.session_id" = "{sandbox.info.session_id}"\n'
            )
            return _run(installation, folder, seed=seed, examples=examples)


def _run(installation: Installation, folder: str, *, seed: int, examples: int) -> str:
    left_out = [word for path in LEFT_OUT for word in ("--exclude-path", path)]
    line = [sys.executable, "-m", "schemathesis.cli", "--config-file", f"{folder}/schemathesis.toml"]
    line += ["run", f"{installation.url}/openapi.json", "--header", f"Authorization: Bearer {installation.token}"]
    line += ["--max-examples", str(examples), "--seed", str(seed), "--phases", "examples,coverage,fuzzing"]
    line += ["--checks", ",".join(CHECKS), "--suppress-health-check", "all", "--warnings", "off", "--no-color"]
    line += ["--continue-on-failure", "--request-timeout", "60", "--exclude-method", "DELETE", *left_out]
    done = subprocess.run(
        line,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": folder, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout[-8000:]
