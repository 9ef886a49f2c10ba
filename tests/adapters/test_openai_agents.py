"""The E2B client that the OpenAI Agents SDK brings along works against this server as it is, as docs/adapters.md says."""

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.packages import framework
from tests.e2b.real import real_edge
from tests.installation import Installation

extension = framework("agents.extensions.sandbox.e2b")
manifests = framework("agents.sandbox.manifest")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.once, pytest.mark.req("T4.83")]


def test_its_sandbox_client_for_e2b_makes_uses_keeps_and_ends_a_sandbox(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = real_edge(installation)
    for name, variable in (("api_key", "E2B_API_KEY"), ("api_url", "E2B_API_URL"), ("sandbox_url", "E2B_SANDBOX_URL")):
        monkeypatch.setenv(variable, edge.params[name])

    async def session() -> list[Any]:
        client = extension.E2BSandboxClient()
        options = extension.E2BSandboxClientOptions(
            sandbox_type=extension.E2BSandboxType.E2B,
            template="base",
            timeout=120,
            on_timeout="kill",
            auto_resume=False,
        )
        made = await client.create(manifest=manifests.Manifest(root="/home/user/work"), options=options)
        try:
            await made.start()
            await made.write(Path("a.txt"), io.BytesIO(b"text"))
            ran = await made.exec("cat a.txt; echo loud >&2; exit 3", shell=True)
            listed = [Path(entry.path).name for entry in await made.ls(".")]
            kept = (await made.persist_workspace()).read()
            return [ran.exit_code, ran.stdout, ran.stderr, listed, len(kept) > 0, await made.running()]
        finally:
            await client.delete(made)

    assert asyncio.run(session()) == [3, b"text", b"loud\n", ["a.txt"], True, True]
