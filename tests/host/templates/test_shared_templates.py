"""Templates as a team uses them, through server, daemon and real boxes: built, followed, started from, marked, withdrawn."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coldframe.client.gathered import Gathered
from coldframe.client.recipes import gather, of_archive, read_dockerfile
from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import (
    BuildFailed,
    IsolationUnavailable,
    StartNotReady,
    TemplateChanged,
    TemplateWithdrawn,
    WrongState,
    from_wire,
)
from coldframe.contract.recipes import parse_recipe
from coldframe.contract.template import BuildInfo
from tests.installation import Installation, wait_until

pytestmark = [pytest.mark.timeout(900), pytest.mark.once]
STARTS = 20
AGENT = "docker-user"
WEB = """
name = "web"
network = "none"
run = ["mkdir -p /opt/web && echo born > /opt/web/born", "test $GREETING = hello && id -u > /opt/web/who"]
[env]
GREETING = "hello"
[[files]]
from = "site"
to = "/srv/site"
[start]
command = "exec python3 -m http.server 8123 --directory /srv/site"
ready = { port = 8123, timeout_s = 60 }
"""


@pytest.fixture
def client(installed: Installation) -> Iterator[SyncColdframe]:
    with SyncColdframe(installed.url, installed.token) as client:
        known = {one.digest for one in client.templates.list()}
        yield client
        installed.end_sandboxes()
        for taken in client.snapshots.list(agent_id=AGENT):
            client.snapshots.remove(taken.snapshot_id)
        wait_until(lambda: no_agent(client), "its workspace is free for deletion", timeout_s=60)
        while made := [one for one in client.templates.list() if one.digest not in known]:
            based = {one.base for one in made}
            for one in made:
                if one.digest not in based:
                    client.templates.remove(f"{one.name}:{one.version}")


def no_agent(client: SyncColdframe) -> bool:
    """Whether it is gone; it is not to be deleted while a snapshot of it is settled."""
    if any(one.agent_id == AGENT for one in client.agents.list()):
        with contextlib.suppress(WrongState):
            client.agents.delete(AGENT)
            return True
        return False
    return True


@pytest.fixture
def builds(installed: Installation) -> None:
    if os.stat(installed.data_dir).st_uid != 0:
        pytest.skip("templates are built by a host daemon that is root")


def build(client: SyncColdframe, what: Gathered) -> BuildInfo:
    info = client.templates.build(what).wait(600)
    if info.error is not None:
        raise from_wire(info.error)
    assert info.state == "ready"
    return info


def begun(client: SyncColdframe, template: str, **more: Any) -> SyncSandbox:
    return client.sandboxes.create(background=True, template=template, **more)


def output(sandbox: SyncSandbox, command: str) -> str:
    done = sandbox.run_command(command)
    assert done.exit_code == 0, done.stderr
    return str(done.stdout)


def plain(text: str) -> Gathered:
    return gather(parse_recipe(text), "/nowhere")


def test_without_root_a_build_is_refused_and_says_why(client: SyncColdframe, installed: Installation) -> None:
    if os.stat(installed.data_dir).st_uid == 0:
        pytest.skip("the host daemon is root here")
    with pytest.raises(IsolationUnavailable, match="root"):
        build(client, plain('name = "app"\nnetwork = "none"\nrun = ["true"]\n'))


@pytest.mark.usefixtures("builds")
@pytest.mark.req("T4.68")
def test_a_recipe_is_built_followed_started_rebuilt_marked_and_withdrawn(client: SyncColdframe, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("a page\n")
    handle = client.templates.build(gather(parse_recipe(WEB), str(tmp_path)))
    lines = list(handle.follow())
    assert list(client.templates.get_build(handle.id).follow(after_seq=3)) == lines[3:]  # by somebody else, later
    first = handle.info()
    assert (first.state, first.version, first.steps_done) == ("ready", "1", 4), first.error

    sandbox = begun(client, "web:1")
    assert output(sandbox, "cat /opt/web/who; echo $GREETING; curl -s http://127.0.0.1:8123/") == "0\nhello\na page\n"
    assert sandbox.info.template_sha256 == first.digest
    receipt_id = sandbox.run_command("true").result.receipt_id
    assert receipt_id is not None
    receipt = client.receipt(receipt_id)
    assert (receipt["inputs"]["template"], receipt["inputs"]["template_sha256"]) == ("web:1", first.digest)
    contract = {one["id"]: one["value"] for one in sandbox.contract()["execution"]}
    assert (contract["execution.template"], contract["execution.template_digest"]) == ("web:1", first.digest)

    again = client.templates.get("web:1").recipe
    assert again is not None and again.locked
    second = build(client, Gathered(again.model_copy(update={"version": "locked"}), {}))
    assert second.digest == first.digest
    assert client.templates.get("web:locked").packages_sha256 == client.templates.get("web:1").packages_sha256

    assert client.templates.verify("web:1").digest == first.digest
    marked = client.templates.mark("web:1", "test -s /opt/web/born")
    assert marked.known_good is not None and marked.known_good.check == "test -s /opt/web/born"
    client.templates.withdraw("web:1", "the page is old")
    assert "the page is old" in sandbox.refresh().warnings[0]
    with pytest.raises(TemplateWithdrawn, match="the page is old"):
        begun(client, "web:1")


@pytest.mark.usefixtures("builds")
@pytest.mark.req("T4.68")
def test_every_start_has_the_same_packages_as_the_template_says(client: SyncColdframe) -> None:
    build(client, plain('name = "even"\nnetwork = "none"\nrun = ["echo x > /opt/x"]\n'))
    told = sorted((one.name, one.version) for one in client.templates.get("even").packages if one.manager == "apt")
    found = set()
    for _ in range(STARTS):
        sandbox = begun(client, "even")
        listed = output(sandbox, "dpkg-query --show --showformat '${Package} ${Version}\\n'")
        assert sorted(tuple(line.split()) for line in listed.splitlines()) == told
        found.add(hashlib.sha256(listed.encode()).hexdigest())
        sandbox.terminate()
    assert len(found) == 1


@pytest.mark.usefixtures("builds")
@pytest.mark.req("T4.68")
def test_a_step_that_fails_is_named_and_a_start_that_is_not_ready_leaves_no_sandbox(client: SyncColdframe) -> None:
    with pytest.raises(BuildFailed) as failed:
        build(client, plain('name = "bad"\nnetwork = "none"\nrun = ["true", "echo the reason >&2; exit 3"]\n'))
    assert failed.value.facts["step"] == 2 and "the reason" in str(failed.value.facts["log"])
    build(
        client,
        plain(
            'name = "late"\nnetwork = "none"\n[start]\ncommand = "echo not serving; exec sleep 600"\n'
            "ready = { port = 8124, timeout_s = 1 }\n"
        ),
    )
    with pytest.raises(StartNotReady) as late:
        begun(client, "late")
    assert late.value.facts["log"] == "not serving\n"
    assert not client.sandboxes.list(state=["running"])


@pytest.mark.usefixtures("builds")
@pytest.mark.req("T4.68")
def test_changed_bytes_start_nothing(client: SyncColdframe, installed: Installation) -> None:
    made = build(client, plain('name = "whole"\nnetwork = "none"\nrun = ["echo right > /opt/word"]\n'))
    (word,) = Path(installed.data_dir, "templates", "layers").glob("*/files/opt/word")
    word.write_text("wrong\n")
    with pytest.raises(TemplateChanged):
        client.templates.verify("whole")
    with pytest.raises(TemplateChanged):
        begun(client, f"sha256:{made.digest}")


@pytest.mark.usefixtures("builds")
@pytest.mark.req("T4.68")
def test_a_dockerfile_and_a_snapshot_become_templates(
    client: SyncColdframe, installed: Installation, tmp_path: Path
) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\necho tool\n")
    (tmp_path / "tool").chmod(0o700)
    (tmp_path / "Dockerfile").write_text(
        "FROM debian\nARG WORD=none\nWORKDIR /opt/app\nCOPY tool bin/\nENV PATH=/opt/app/bin:$PATH\n"
        'RUN <<EOF\nprintf "%s\\n" "$WORD" > word\nEOF\nUSER user\n'
    )
    docker = read_dockerfile(str(tmp_path / "Dockerfile"), name="docked", build_args={"WORD": "given"})
    draft = docker.recipe.model_copy(update={"network": "none"})
    build(client, docker._replace(recipe=draft))
    sandbox = client.sandboxes.create(AGENT, template="docked")
    assert output(sandbox, "tool; cat /opt/app/word") == "tool\ngiven\n"
    assert sandbox.run_command("echo more > /opt/more", user="root").exit_code == 0
    taken = sandbox.take_snapshot()
    done = installed.cli("--json", "template", "build", "--snapshot", taken.snapshot_id, "--name", "kept")
    assert done.returncode == 0, done
    assert json.loads(done.stdout.splitlines()[-1])["state"] == "ready"
    assert output(begun(client, "kept"), "tool; cat /opt/more") == "tool\nmore\n"


@pytest.mark.usefixtures("builds")
def test_what_is_no_archive_of_a_system_is_refused(client: SyncColdframe, tmp_path: Path) -> None:
    (tmp_path / "no.tar").write_bytes(os.urandom(1 << 16))
    info = client.templates.build(of_archive(str(tmp_path / "no.tar"), name="none")).wait(60)
    assert info.state == "failed" and info.error is not None and info.error["code"] == "INVALID_ARGUMENT"


HELLOS = {
    "python": "python3 -c 'print(6 * 7)'",
    "node": "node -e 'console.log(6 * 7)'",
    "deno": "NO_COLOR=1 deno eval 'console.log(6 * 7)'",
    "c": """printf '#include <stdio.h>\\nint main() {printf("%%d\\\\n", 6 * 7);}\\n' > a.c && gcc a.c -o a && ./a""",
    "shell": "echo $((6 * 7))",
}
TESTED = {
    "python": "printf 'def test_it():\\n    assert 6 * 7 == 42\\n' > test_it.py && pytest -q test_it.py",
    "node": """printf 'require("node:test")("it", () => require("assert")(6 * 7 == 42))\\n' > it.test.js && node --test""",
    "deno": """printf 'Deno.test("it", () => { if (6 * 7 !== 42) throw 1 })\\n' > it_test.ts && deno test -q it_test.ts""",
    "c": "printf 'check: a\\n\\t./a | grep -qx 42\\n' > Makefile && make check",
}
INSTALLED = {
    "python": "python3 -m venv v && v/bin/pip install -q six==1.16.0 && v/bin/python -c 'import six'",
    "uv": "uv venv -q --no-cache u && uv pip install -q --no-cache --python u/bin/python six==1.16.0 && u/bin/python -c 'import six'",
    "node": "npm install --silent left-pad@1.3.0 && node -e 'require(\"left-pad\")'",
    "pnpm": "mkdir p && cd p && pnpm add --silent left-pad@1.3.0 && node -e 'require(\"left-pad\")'",
    "deno": "mkdir d && cd d && deno eval -q 'import pad from \"npm:left-pad@1.3.0\"; console.log(pad(1, 3))'",
}


@pytest.mark.usefixtures("builds")
@pytest.mark.req("T4.22")
@pytest.mark.skipif("COLDFRAME_SLOW" not in os.environ, reason="takes minutes; COLDFRAME_SLOW=1 runs it")
@pytest.mark.parametrize("name", ["app", "code", "code-interpreter", "data", "node", "python"])
def test_those_that_come_with_the_product_do_what_they_are_for(
    client: SyncColdframe, installed: Installation, name: str
) -> None:
    done = installed.cli("--json", "setup", "--template", name, timeout_s=800)
    assert done.returncode == 0, done
    sandbox = begun(client, name, network="packages")
    if name == "python":
        libraries = "numpy, pandas, matplotlib.pyplot, ipykernel"
        assert output(sandbox, f"python3 -c 'import {libraries}; print(numpy.arange(3).sum())'") == "3\n"
        return
    if name == "code-interpreter":
        assert sandbox.run_code("sum(1:3)", language="r").text == "[1] 6"
        assert sandbox.run_code("import pandas, matplotlib.pyplot, sklearn; 6").text == "6"
        return
    if name == "data":
        libraries = "ipykernel, matplotlib.pyplot, numpy, openpyxl, pandas, pyarrow"
        assert output(sandbox, f"python3 -c 'import {libraries}; print(numpy.arange(3).sum())'") == "3\n"
        return
    if name == "app":
        output(sandbox, "python3 -m venv v && pnpm --version && curl --version && sqlite3 :memory: 'select 1'")
    if name in ("app", "node"):
        assert output(sandbox, HELLOS["node"]) == "42\n"
        return
    for command in HELLOS.values():
        assert output(sandbox, command) == "42\n"
    for command in (*TESTED.values(), *INSTALLED.values()):
        output(sandbox, command)
    output(sandbox, "git init -q r && git -C r status --short")


@pytest.mark.usefixtures("builds")
@pytest.mark.req("T4.71")
def test_whom_a_step_tried_to_reach_is_in_the_ledger(client: SyncColdframe, installed: Installation) -> None:
    text = 'name = "curious"\nnetwork = "packages"\nrun = ["true", "bash -c \': > /dev/tcp/192.0.2.1/443\' || true"]\n'
    made = build(client, plain(text))
    (entry,) = client.ledger.entries(subject=made.build_id, kinds=["template.denied"])
    assert (entry.body["build_id"], entry.body["step"]) == (made.build_id, 2)
    assert (entry.body["address"], entry.body["port"], entry.body["outcome"]) == ("192.0.2.1", 443, "deny")
    lineage = Path(installed.data_dir, "host", "lineage")
    assert not list(lineage.glob("build-*")), "what is in the ledger is kept nowhere else"
