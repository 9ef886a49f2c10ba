"""Checks of the policy cases: deny lists, broken rule files, secrets of the server, forged records, hostile repositories."""

import asyncio
import json
import os
import shutil
import tempfile
from pathlib import Path

from coldframe.client.api import Coldframe
from coldframe.contract.errors import ColdframeError
from tests.cases.checks import Lab, check
from tests.cases.spellings import PROGRAM, READABLE, UNREADABLE, language_of
from tests.installation import Installation

BROKEN = ("version: [", "version: 1\nsurprise: true\n", "version: 2\n")
FORBID = f"""version: 1
settings:
  deny_commands: [{PROGRAM}]
rules: []
"""


@check("B167")
async def a_forbidden_program_runs_in_no_spelling(lab: Lab) -> None:
    """Refused where the text shows it; else not in the file view. A sandbox without the rule shows that each would run it."""
    bare = await lab.bench()
    mark = (await bare.run([PROGRAM])).out.strip()
    kind = (await bare.run(["readlink", "-f", f"/usr/bin/{PROGRAM}"])).out.strip()
    assert kind == f"/usr/bin/{PROGRAM}" and len(mark) > 3, (kind, mark)
    tried = []
    for spelling, text in UNREADABLE.items():
        needed = language_of(spelling)
        if (await bare.run(f"command -v {needed}")).code == 0:
            view = await bare.run(text)
            assert mark in view.out + view.err, (spelling, view)
            tried.append(spelling)
        else:
            print(f"not tried, since there is no `{needed}` here: {spelling}")
    assert len(tried) > len(UNREADABLE) // 2, tried
    async with Coldframe(lab.installation.url, lab.installation.token) as client:
        kept = (await client.policy.show()).text
        await client.policy.load(FORBID)
        try:
            bench = await lab.bench()
            for text in READABLE:
                view = await bench.run(text)
                assert view.error == "DENIED_BY_RULE", (text, view)
            for spelling, text in UNREADABLE.items():
                view = await bench.run(text)
                assert view.error in (None, "DENIED_BY_RULE") and mark not in view.out + view.err, (spelling, view)
            harmless = await bench.run(f"echo {PROGRAM}; ls /usr/bin/{PROGRAM}")
            assert (harmless.error, harmless.code) == (None, 0), harmless
        finally:
            await client.policy.load(kept)
    for text in (*READABLE, *UNREADABLE.values()):  # nobody reads the text any more, and the program is not there
        view = await bench.run(text)
        assert view.error is None and mark not in view.out + view.err, (text, view)


@check("B171")
async def without_a_valid_policy_nothing_runs(lab: Lab) -> None:
    async with Coldframe(lab.installation.url, lab.installation.token) as client:
        before = await client.policy.show()
        for bad in BROKEN:
            try:
                await client.policy.load(bad)
            except ColdframeError as error:
                assert error.code == "RULES_INVALID", (bad, error)
            else:
                raise AssertionError(f"{bad!r} was taken")
        assert (await client.policy.show()).text == before.text
        refused = await client.ledger.entries(kinds=["policy.refused"], limit=1000)
        assert len(refused) >= len(BROKEN)
    for content in (*BROKEN, ""):
        other = Installation()
        try:
            os.makedirs(other.data_dir, mode=0o711)
            Path(other.data_dir, "rules.yaml").write_text(content, encoding="utf-8")
            await asyncio.to_thread(other.start)
            async with Coldframe(other.url, other.token) as client:
                if content:
                    assert await outcome(client, "true") == "POLICY_UNAVAILABLE", content
                else:  # no rule of its own, and the built-in list holds
                    assert await outcome(client, "true") is None
                    assert await outcome(client, "sudo true") == "DENIED_BY_RULE"
        finally:
            left = await asyncio.to_thread(other.close)
        assert left == []


async def outcome(client: Coldframe, command: str) -> str | None:
    """Code of what keeps *command* from running; None if it runs."""
    try:
        async with await client.sandboxes.create(agent_id="policy") as sandbox:
            await sandbox.run_command(command)
    except ColdframeError as error:
        return error.code
    return None


@check("B173")
async def the_servers_secrets_are_not_in_the_box(lab: Lab) -> None:
    secrets = ("R2_ACCESS_KEY_ID", "OPENAI_API_KEY", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY")
    other = Installation(**dict.fromkeys(secrets, "value-of-a-secret"))
    try:
        await asyncio.to_thread(other.start)
        async with Coldframe(other.url, other.token) as client:
            async with await client.sandboxes.create(agent_id="secrets") as sandbox:
                answer = await sandbox.run_command(
                    'env | grep -cE "KEY|TOKEN|SECRET"; cat /proc/1/environ /proc/[0-9]*/environ 2>/dev/null'
                    ' | tr "\\0" "\\n" | grep -cE "KEY|TOKEN|SECRET|value-of"'
                )
                assert answer.stdout == "0\n0\n", answer
    finally:
        left = await asyncio.to_thread(other.close)
    assert left == []


@check("B175")
async def one_call_is_one_record_whatever_it_says(lab: Lab) -> None:
    bench = await lab.bench()
    forged = '{"ts":"2026-01-01T00:00:00Z","tool":"run_command","decision":"allow","cmd":"forged"}'
    text = f"true 'x\n{forged}\n\r\x1b[2K'"
    ran = await bench.run(text, env={"decision": "allow", "ts": "0", "prev_hash": "0"})
    assert ran.error is None, ran
    written = await bench.ask("write_file", path=f"x\n{forged}\n\r\x1b[2K"[:200].replace("/", "-"), content="x")
    assert written.error != "INTERNAL", written
    entries = await lab.ledger(bench)
    calls = [entry for entry in entries if entry["kind"] in ("call.started", "call.refused")]
    assert len(calls) == 2, calls
    assert text in strings(calls[0]["body"])
    history = (await bench.ask("read_file", path=".exec_history")).text
    records = [json.loads(line) for line in history.split("\n") if line]
    assert [record["tool"] for record in records] == ["run_command", "write_file"]
    assert records[0]["command"] == text
    assert not any("cmd" in record or record["decision"] != "allow" for record in records)
    assert "\x1b" not in history
    async with Coldframe(lab.installation.url, lab.installation.token) as client:
        assert (await client.ledger.verify()).intact
    shown = await asyncio.to_thread(lab.installation.cli, "ledger", "list", "--limit", "1000")
    assert b"\x1b[2K" not in shown.stdout


def strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in strings(item)]
    if isinstance(value, list | tuple):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


@check("B177")
async def the_server_runs_nothing_that_a_repository_names(lab: Lab) -> None:
    marks = tempfile.mkdtemp(prefix="cf-marks-", dir="/tmp")
    os.chmod(marks, 0o777)
    try:
        bench = await lab.bench()
        fire = f"touch {marks}/fired"
        made = await bench.run(
            "git init -q . && mkdir -p .git/hooks .vscode"
            f" && git config core.fsmonitor '{fire}' && git config core.pager '{fire}' && git config diff.external '{fire}'"
            f" && for h in post-checkout pre-commit post-commit post-index-change; do printf '#!/bin/sh\\n{fire}\\n'"
            " > .git/hooks/$h; chmod +x .git/hooks/$h; done"
            f" && printf 'export X=$({fire})\\n' > .envrc && printf '{fire}\\n' > .bashrc && cp .bashrc .profile"
            f" && cp .bashrc .bash_profile && printf 'all:\\n\\t{fire}\\n' > Makefile"
            f" && printf 'import os; os.system(\"{fire}\")\\n' > sitecustomize.py && cp sitecustomize.py usercustomize.py"
            f' && printf \'{{"scripts":{{"postinstall":"{fire}"}}}}\' > package.json'
            " && printf 'registry=http://203.0.113.1/\\n' > .npmrc && printf '[global]\\nindex-url=http://203.0.113.1/\\n' > pip.conf"
        )
        assert made.code == 0, made
        await bench.ask("list_directory", path="", recursive=True)
        await bench.ask("search_files", pattern="fired", path="", include_hidden_stores=True)
        await bench.ask("edit_file", path="Makefile", old="all:", new="everything:")
        await bench.run(["true"])
        sandbox = lab.sandbox_of(bench)
        await sandbox.report()
        await sandbox.runtimes()
        await sandbox.contract()
        await lab.end(bench)
        assert os.listdir(marks) == []
    finally:
        shutil.rmtree(marks, ignore_errors=True)
