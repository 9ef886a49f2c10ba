"""What a template has for `/home/user`, where temporary workspaces begin; and the whole way that builders of E2B go."""

from pathlib import Path

import pytest
from e2b import Sandbox, Template

from coldframe.client.sync import SyncColdframe
from tests.e2b.real import real_edge
from tests.host.templates.test_shared_templates import begun, build, builds, client, output, plain
from tests.installation import Installation

__all__ = ["builds", "client"]
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.once,
    pytest.mark.usefixtures("builds"),
    pytest.mark.req("T4.68"),
]
HOMELY = """
name = "homely"
network = "none"
home = true
run = ["mkdir -p /home/user/proj && echo built > /home/user/proj/out"]
[start]
command = "touch /tmp/begun"
ready = { command = "test -e /tmp/begun && sleep 1", timeout_s = 60 }
may_end = true
"""


def test_a_temporary_workspace_begins_with_it_once(client: SyncColdframe) -> None:
    build(client, plain(HOMELY))
    with begun(client, "homely") as sandbox:
        assert output(sandbox, "cat proj/out; stat -c %U proj proj/out") == "built\nuser\nuser\n"
        output(sandbox, "rm -r proj")
        sandbox.stop()
        sandbox.start_again()
        assert output(sandbox, "ls") == ""
    with client.sandboxes.create("homely-agent", template="homely") as sandbox:
        assert output(sandbox, "ls -d proj || true").strip() == ""
        assert output(sandbox, "cat /var/lib/coldframe/home/proj/out") == "built\n"
    client.agents.delete("homely-agent")


def test_a_template_of_the_sdk_of_e2b_is_what_its_sandboxes_begin_from(
    client: SyncColdframe, installed: Installation, tmp_path: Path
) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "main.txt").write_text("copied")
    (tmp_path / "app" / "link").symlink_to("main.txt")
    edge = real_edge(installed)
    params = {"api_key": edge.key, "api_url": edge.url}
    template = (
        Template(file_context_path=tmp_path)
        .from_template("debian")
        .copy("app", "app")
        .run_cmd("cat app/link > app/seen")
        .set_envs({"MODE": "of-the-template"})
        .run_cmd("useradd --create-home worker", user="root")
        .run_cmd("whoami > /srv/who || whoami > /tmp/who; whoami", user="worker")
        .set_start_cmd("touch /tmp/started", "test -e /tmp/started")
    )
    Template.build(template, "shop:v1", memory_mb=512, cpu_count=1, **params)
    box = Sandbox.create("shop:v1", timeout=120, **edge.params)
    try:
        told = box.commands.run("cat app/seen; readlink app/link; echo $MODE; ls /tmp/started; id -un worker").stdout
        assert told.splitlines() == ["copiedmain.txt", "of-the-template", "/tmp/started", "worker"]
        info = box.get_info(**params)
        assert (info.name, info.memory_mb) == ("shop", 512)
    finally:
        box.kill(**params)
