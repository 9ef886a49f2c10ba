"""What `coldframe e2b env` prints is what the SDK needs: a program that is given nothing else finds the installation."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2b.edge_served import EdgeServed

PROGRAM = """
from e2b import Sandbox
with Sandbox.create(timeout=60) as sandbox:
    assert sandbox.is_running()
    print(sandbox.sandbox_id, sandbox.get_host(8000))
"""


def printed(edge: EdgeServed, home: Path, *arguments: str, fails: bool = False) -> dict[str, str]:
    environment = {
        "PATH": os.environ["PATH"],
        "XDG_CONFIG_HOME": str(home),
        "COLDFRAME_URL": edge.served.url,
        "COLDFRAME_TOKEN": edge.served.owner_token,
        "COLDFRAME_DATA_DIR": str(home / "data"),
    }
    line = [sys.executable, "-m", "coldframe.cli", "e2b", "env", *arguments]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode != 0) is fails, done.stderr
    found = [shlex.split(one) for one in done.stdout.splitlines()]
    assert all(one[0] == "export" for one in found)
    return dict(one[1].split("=", 1) for one in found)


@pytest.mark.req("T4.83")
def test_a_program_that_is_given_what_is_printed_finds_the_installation(edge: EdgeServed, tmp_path: Path) -> None:
    edge.served.edge = edge.info
    told = printed(edge, tmp_path, "--role", "admin")
    assert told.keys() == {"E2B_API_KEY", "E2B_API_URL", "E2B_SANDBOX_URL"}
    environment: dict[str, Any] = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **told}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    label, host = done.stdout.split()
    assert host == f"8000-{label}.localhost:{edge.port}"
    assert (tmp_path / "coldframe" / "e2b.json").stat().st_mode & 0o777 == 0o600


def test_the_key_is_kept_until_it_is_revoked_or_another_is_wanted(edge: EdgeServed, tmp_path: Path) -> None:
    edge.served.edge = edge.info
    first = printed(edge, tmp_path)["E2B_API_KEY"]
    assert printed(edge, tmp_path)["E2B_API_KEY"] == first
    second = printed(edge, tmp_path, "--new-key")["E2B_API_KEY"]
    assert second != first
    with edge.served.sync_client() as client:
        for token in client.tokens.list():
            if token.name == "e2b" and token.role == "member":
                client.tokens.revoke(token.token_id)
    assert printed(edge, tmp_path)["E2B_API_KEY"] not in (first, second)


def test_the_domain_mode_names_a_domain_and_whom_to_trust(edge: EdgeServed, tmp_path: Path) -> None:
    edge.served.edge = edge.info
    told = printed(edge, tmp_path, "--mode", "domain")
    assert told["E2B_DOMAIN"] == f"sandboxes.test:{edge.port}"
    assert Path(told["NODE_EXTRA_CA_CERTS"]).read_text() == edge.authority.certificate
    assert Path(told["SSL_CERT_FILE"]).read_text().endswith(edge.authority.certificate)
    assert (
        printed(edge, tmp_path, "--mode", "domain", "--domain", "localhost")["E2B_DOMAIN"] == f"localhost:{edge.port}"
    )
    printed(edge, tmp_path, "--mode", "domain", "--domain", "evil.example", fails=True)
    printed(edge, tmp_path, "--mode", "nothing", fails=True)
