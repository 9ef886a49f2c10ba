"""A coding agent takes an application from its repository to a page that a reviewer looks at a day later."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from coldframe.client.sync import SyncColdframe
from coldframe.contract.policy import Role
from tests import application
from tests.faults.jumping import JumpingInstallation
from tests.host.egress.registries import PORT
from tests.host.egress.world import OTHER, SITE
from tests.installation import wait_until
from tests.previews.visiting import Visitor
from tests.promises.browsing import DRIVER, needs_chromium, visits_of
from tests.reachable import alone_with

RULES = f"""version: 1
network:
  profiles:
    work:
      base: packages
      rules: [{{id: repositories, to: {OTHER}, ports: {PORT}}}]
  use: {{"*": work}}
"""
DAY_S = 86_400
MOST_S = 2.0
WATCHES = """new Promise(go => {
  const seen = () => document.querySelector("p").textContent === "Sum: 120.00" && go(Date.now())
  new MutationObserver(seen).observe(document.querySelector("p"), {childList: true, characterData: true, subtree: true})
  fetch("/opened", {method: "POST"})
})"""


@needs_chromium
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
@pytest.mark.req("T4.12")
def test_from_the_clone_to_the_review_in_nine_receipts(tmp_path: Path) -> None:
    def steps(installation: JumpingInstallation) -> None:
        with SyncColdframe(installation.url, installation.token) as owner:
            owner.policy.load(RULES)
            owner.agents.create("coder")
            token, _ = owner.tokens.create(Role.AGENT, "codes", agent_id="coder")
            with SyncColdframe(installation.url, token) as agent:
                done = work(owner, agent, owner.sandboxes.create("coder").id, tmp_path)
            installation.jump(DAY_S)
            reviewer, _ = owner.tokens.create(Role.MEMBER, "reviews")
            with SyncColdframe(installation.url, reviewer) as other:
                review(other, reviewer, done)
                server = other.sandboxes.get(done["sandbox"]).job(done["server"])
                server.cancel()
                server.wait()  # a receipt tells of what has ended
                tools = [other.receipt(receipt_id)["tool"] for receipt_id in done["receipts"]]
                assert tools == [*["run_command"] * 3, "read_file", "edit_file", *["run_command"] * 3, "edit_file"]

    alone_with(lambda: JumpingInstallation(NPM_CONFIG_REGISTRY=f"https://{SITE}:{PORT}/npm/"), steps)


def work(owner: SyncColdframe, agent: SyncColdframe, sandbox_id: str, folder: Path) -> dict[str, Any]:
    sandbox = agent.sandboxes.get(sandbox_id)
    receipts: list[str] = []

    def call(tool: str, **arguments: object) -> Any:
        answer = sandbox.call(tool, arguments)
        assert answer.error is None, answer.error
        assert answer.receipt_id is not None
        receipts.append(answer.receipt_id)
        return answer.value

    cloned = call(
        "run_command", command=f"git clone -q https://{OTHER}:{PORT}/git/app.git app && git -C app ls-files | wc -l"
    )
    assert (cloned["exit_code"], cloned["stdout"].strip()) == (0, "14"), cloned["stderr"]
    begun = owner.sandboxes.get(sandbox_id).take_snapshot("as it was cloned").snapshot_id
    installed = call("run_command", command="npm ci --no-audit --no-fund", cwd="app")
    assert installed["exit_code"] == 0, installed["stdout"] + installed["stderr"]
    tested = call("run_command", command="npm test > test.log 2>&1", cwd="app")
    assert tested["exit_code"] == 1
    log = call("read_file", path="app/test.log")["content"]
    assert [re.search(rf"# {word} (\d+)", log)[1] for word in ("tests", "fail")] == ["5", "1"]  # type: ignore[index]
    assert f"not ok 3 - {application.FAILING}" in log or f"✖ {application.FAILING}" in log
    call("edit_file", path="app/src/total.js", old=application.WRONG, new=application.RIGHT)
    again = call("run_command", command=f"node --test --test-name-pattern='^{application.FAILING}$'", cwd="app")
    assert again["exit_code"] == 0, again
    assert re.search(r"# pass 1\b", again["stdout"])
    server = call("run_command", command="exec npm run dev", cwd="app", background=True)
    preview = agent.previews.create(sandbox.id, application.PORT)
    visitor = Visitor(preview)
    wait_until(lambda: visitor.ask("/healthz").status == 200, "it serves")
    shown = call("run_command", command=f"curl -s http://localhost:{application.PORT}/text")
    assert shown["stdout"] == "Total: 120.00"
    assert b"<p>Total: 120.00</p>" in visitor.ask("/").body

    def output() -> bytes:
        return bytes(sandbox.output(server["command_id"]).data)

    page = open_page(folder, agent.previews.link(preview.preview_id).url)
    try:
        wait_until(lambda: {b"/opened", b"/live"} <= set(output().split()), "the page is open", timeout_s=40)
        began = time.time()
        call("edit_file", path="app/src/label.js", old="Total", new="Sum")
        told, errors = page.communicate(timeout=30)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(page.pid, signal.SIGKILL)
        page.wait()
    assert page.returncode == 0, errors
    assert 0 <= visits_of(told)[0].value / 1000 - began <= MOST_S
    assert len(set(receipts)) == 9
    return {
        "sandbox": sandbox.id,
        "preview": preview,
        "receipts": receipts,
        "begun": begun,
        "server": server["command_id"],
    }


def open_page(folder: Path, link: str) -> "subprocess.Popen[str]":
    driver = folder / "driver.py"
    driver.write_text(DRIVER, encoding="utf-8")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder / 'profile'}"]
    page = subprocess.Popen(
        [sys.executable, str(driver), *flags],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # the browser is ended with it
    )
    assert page.stdin is not None
    page.stdin.write(json.dumps([(link, WATCHES)]))
    page.stdin.close()
    page.stdin = None
    return page


def review(other: SyncColdframe, token: str, done: dict[str, Any]) -> None:
    """With nothing but a token: the difference, the logs and the page."""
    sandbox = other.sandboxes.get(done["sandbox"])
    changed = {one.path: one for one in other.snapshots.compare(done["begun"], sandbox.id).changes}
    assert {"app/src/total.js", "app/src/label.js"} <= set(changed)
    difference = other.snapshots.compare_file(done["begun"], sandbox.id, "app/src/total.js")
    assert application.RIGHT in difference.model_dump_json()
    assert "serves" in sandbox.output(done["server"]).data.decode()
    answer = Visitor(done["preview"]).ask("/", headers={"Authorization": f"Bearer {token}"}, as_visitor=False)
    assert b"<p>Sum: 120.00</p>" in answer.body
