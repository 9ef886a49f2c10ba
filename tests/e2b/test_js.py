"""The official SDK in JavaScript does what that in Python does, against boxes with real walls, in both ways to be told where they are."""

import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.e2b.edge_served import DOMAIN
from tests.e2b.real import RealEdge

JS = Path(__file__).parent / "js"
STEPS = ["create", "info", "list", "run", "input", "files", "watch", "terminal", "pause", "snapshot", "kill"]

pytestmark = [
    pytest.mark.req("T4.83"),
    pytest.mark.skipif(
        not (JS / "node_modules").is_dir() or shutil.which("node") is None,
        reason="the SDK in JavaScript is not installed: scripts/setup --tests",
    ),
]


@pytest.mark.parametrize("mode", ["url", "domain"])
def test_the_sdk_in_javascript_does_all_of_its_common_part(real: RealEdge, mode: str, tmp_path: Path) -> None:
    told = {"E2B_API_KEY": real.key, "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    if mode == "url":
        told |= {"E2B_API_URL": real.url, "E2B_SANDBOX_URL": real.url}
    else:
        asked = urllib.request.Request(
            f"{real.installation.url}/v1/edge", headers={"Authorization": f"Bearer {real.installation.token}"}
        )
        with urllib.request.urlopen(asked, timeout=30) as answer:
            (tmp_path / "authority.pem").write_text(json.load(answer)["certificate"])
        told |= {"E2B_DOMAIN": f"{DOMAIN}:{real.port}", "NODE_EXTRA_CA_CERTS": str(tmp_path / "authority.pem")}
    done = subprocess.run(
        ["node", str(JS / "flow.mjs")], cwd=JS, env=told, capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.stdout.split(), done.returncode) == (STEPS, 0), done.stderr
