"""Templates by the official SDK: built from its steps, found by names, ids and tags, and refused where nothing stands for them.

The machine is a fake one, which carries no step out; `tests/host/templates/test_template_homes.py` has what steps come to.
"""

import asyncio
import io
import json
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from e2b import Template, wait_for_port
from e2b.exceptions import BuildException
from e2b.template.types import TemplateBuildStatus

from coldframe.contract.template import EnvStep, ReadyCheck, RunStep, StartCommand, UnpackStep
from coldframe.control.template_archives import TemplateArchives
from tests.control.bench import OWNER
from tests.e2b.control_api import Api, control_api
from tests.fakes.templates import FakeTemplates
from tests.fronts.served import Served, serve_fake

pytestmark = pytest.mark.req("T4.68")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_fake(str(tmp_path_factory.mktemp("data"))) as served:
        served.host.templates.add_setup("debian")
        yield served


@pytest.fixture(scope="module")
def api(served: Served) -> Iterator[Api]:
    with control_api(served) as api:
        yield api


@pytest.fixture
def machine(served: Served) -> FakeTemplates:
    found = served.host.templates
    assert isinstance(found, FakeTemplates)
    return found


def build(api: Api, template: Any, name: str, **more: Any) -> Any:
    return Template.build(template, name, **api.params, **more)


def asked(api: Api, method: str, path: str, body: Any = None, *, key: str | None = None) -> tuple[int, Any]:
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(api.url + path, content, {"X-API-KEY": key or api.key}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_each_step_of_a_builder_becomes_one_of_a_recipe(api: Api, machine: FakeTemplates, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "main.py").write_text("print(1)")
    (tmp_path / "app" / "link").symlink_to("main.py")
    template = (
        Template(file_context_path=tmp_path)
        .from_base_image()
        .copy("app", "app", mode=0o755)
        .run_cmd("cat app/main.py")
        .set_envs({"MODE": "test", "WHERE": "$MODE:/opt"})
        .set_workdir("/srv/app")
        .set_user("root")
        .run_cmd("make")
        .run_cmd("whoami", user="worker")
        .set_start_cmd("python3 -m http.server 8000", wait_for_port(8000))
    )
    said: list[str] = []
    info = build(api, template, "shop:v1", tags=["stable"], on_build_logs=lambda entry: said.append(entry.message))
    recipe = machine.orders[-1].recipe
    copy, cat, env, make, whoami = recipe.steps
    assert isinstance(copy, UnpackStep)
    assert (copy.entries, copy.to, copy.owner, copy.mode) == ("app", "/home/user/app", "user", 0o755)
    with tarfile.open(fileobj=io.BytesIO(machine.inputs[copy.sha256])) as tar:
        assert sorted(tar.getnames()) == ["app", "app/link", "app/main.py"]
    assert cat == RunStep(command=("/bin/bash", "-c", "cat app/main.py"), user="user", cwd="/home/user")
    assert env == EnvStep(variables={"MODE": "test", "WHERE": "test:/opt"})
    assert make == RunStep(command=("/bin/bash", "-c", "make"), user="root", cwd="/srv/app")
    assert isinstance(whoami, RunStep)
    assert whoami.command[-2:] == ("worker", "whoami")
    assert isinstance(recipe.start, StartCommand)
    assert (recipe.start.command, recipe.start.user, recipe.start.cwd) == (
        "python3 -m http.server 8000",
        "root",
        "/srv/app",
    )
    assert isinstance(recipe.start.ready, ReadyCheck)
    assert recipe.home
    assert any("e2bdev/base is not fetched" in line for line in said)
    assert info.tags == ["v1", "stable"]
    assert Template.get_build_status(info, **api.params).status is TemplateBuildStatus.READY
    assert sorted(tag.tag for tag in Template.get_tags("shop", **api.params)) == ["stable", "v1"]


def test_files_that_were_sent_are_not_sent_again(api: Api, machine: FakeTemplates, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    said: list[str] = []
    for name in ("sent-once:1a", "sent-once:2a"):
        template = Template(file_context_path=tmp_path).from_template("debian").copy("a", "/opt/")
        build(api, template, name, on_build_logs=lambda entry: said.append(entry.message))
    assert len([line for line in said if line.startswith("Uploaded")]) == 1
    assert len([line for line in said if line.startswith("Skipping")]) == 1
    first, second = (order.recipe.steps[0] for order in machine.orders[-2:])
    assert isinstance(first, UnpackStep)
    assert first == second
    assert first.to == "/opt/"


def test_a_build_that_fails_names_the_step_of_the_builder_and_its_last_words(api: Api) -> None:
    template = Template().from_template("debian").set_workdir("/opt").run_cmd("true").run_cmd("fail")
    with pytest.raises(BuildException) as told:
        build(api, template, "broken")
    assert str(told.value) == "step 2 ended with exit code 3: it does not work"
    _, listed = asked(api, "GET", "/templates/broken")
    place = f"/templates/broken/builds/{listed['builds'][0]['buildID']}"
    status = asked(api, "GET", place + "/status?logsOffset=1&limit=50")[1]
    assert (status["status"], status["reason"]["step"]) == ("error", "3"), (
        "the third of the builder, where a folder is one"
    )
    assert status["logEntries"][0]["message"].startswith("step 1")
    with pytest.raises(BuildException, match="unauthenticated: invalid username: 'No Body'"):
        build(api, template.run_cmd("whoami", user="No Body"), "broken")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"fromImage": "alpine:3"}, "images of registries are not fetched"),
        ({"fromImage": "node:22"}, "coldframe setup --template node"),
        ({"fromImage": "debian:12", "fromImageRegistry": {"type": "registry", "username": "a"}}, "no credentials"),
        ({"fromTemplate": "nowhere"}, "no template `nowhere`"),
        ({}, "begins from either"),
        ({"fromTemplate": "debian", "gpu": 1}, "`gpu` is not supported"),
        ({"fromTemplate": "debian", "steps": [{"type": "HEALTHCHECK", "args": ["x"]}]}, "step 1: `HEALTHCHECK`"),
        (
            {"fromTemplate": "debian", "steps": [{"type": "COPY", "args": ["a", "b"], "filesHash": "0" * 64}]},
            "were not sent",
        ),
        ({"fromTemplate": "debian", "steps": [{"type": "COPY", "args": ["../a", "b"]}]}, "leads out"),
        ({"fromTemplate": "debian", "steps": [{"type": "ENV", "args": ["A", "$(id)"]}]}, "has more than"),
        ({"fromTemplate": "debian", "steps": [{"type": "ENV", "args": ["A"]}]}, "needs a value"),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_reason(api: Api, body: dict[str, Any], said: str) -> None:
    _, answer = asked(api, "POST", "/v3/templates", {"name": "refused"})
    status, told = asked(api, "POST", f"/v2/templates/{answer['templateID']}/builds/{answer['buildID']}", body)
    assert status in (400, 404)
    assert said in told["message"]
    assert not Template.exists("refused", **api.params)


def test_tags_move_and_a_name_is_the_default_one_or_the_newest(api: Api, served: Served) -> None:
    for tag in ("one", "two"):
        build(api, Template().from_template("debian").run_cmd(f"echo {tag}"), f"moving:{tag}")
    moved = Template.assign_tags("moving:one", ["production", "moving:stable"], **api.params)
    assert moved.tags == ["production", "stable"]
    told = {one.tag: one.build_id for one in Template.get_tags("moving", **api.params)}
    assert told["production"] == told["stable"] == told["one"] != told["two"]
    Template.assign_tags("moving:two", "production", **api.params)
    told = {one.tag: one.build_id for one in Template.get_tags("moving", **api.params)}
    assert told["production"] == told["two"]
    Template.remove_tags("moving", ["production", "nothing"], **api.params)
    assert "production" not in {one.tag for one in Template.get_tags("moving", **api.params)}
    for wrong in (":tag", "moving:", "other:tag", "with space"):
        with pytest.raises(Exception, match=r"400|404"):
            Template.assign_tags("moving:one", wrong, **api.params)
    with pytest.raises(Exception, match="404"):
        Template.get_tags("nowhere", **api.params)
    with served.sync_client() as client:
        assert client.templates.get("moving").digest != client.templates.get("moving:one").digest
        entries = client.ledger.entries()
        moves = [
            entry.body["tag"] for entry in entries if entry.kind == "template.tagged" and entry.body["name"] == "moving"
        ]
        assert moves[-5:] == ["one", "two", "production", "stable", "production"]


def test_templates_are_listed_looked_at_and_removed(api: Api) -> None:
    build(api, Template().from_template("debian").run_cmd("echo gone"), "gone", cpu_count=3, memory_mb=768)
    listed = {one["names"][0]: one for one in asked(api, "GET", "/templates")[1]}
    assert (listed["gone"]["cpuCount"], listed["gone"]["memoryMB"], listed["gone"]["buildCount"]) == (3, 768, 1)
    assert [one["names"] for one in asked(api, "GET", "/default-templates")[1]] == [["debian"]]
    place = f"/templates/{listed['gone']['templateID']}"
    status, whole = asked(api, "GET", place)
    assert (status, [one["status"] for one in whole["builds"]]) == (200, ["ready"])
    assert asked(api, "GET", place + "/tags/count")[1] == {"total": 1}
    assert asked(api, "GET", place + "/tags/exists?tag=default")[1] == {"exists": True, "normalizedTag": "default"}
    assert asked(api, "PATCH", place, {"public": False}) == (200, {"names": ["gone"]})
    assert asked(api, "PATCH", place, {"public": True})[0] == 403
    logs = asked(api, "GET", f"{place}/builds/{whole['builds'][0]['buildID']}/logs?direction=backward&limit=2")[1][
        "logs"
    ]
    assert len(logs) == 2
    assert asked(api, "DELETE", place)[0] == 204
    assert not Template.exists("gone", **api.params)
    assert Template.exists("base", **api.params)
    assert asked(api, "GET", "/templates/%2e%2e%2fgone")[0] == 400


def test_a_link_for_files_holds_for_those_files_alone(api: Api, tmp_path: Path) -> None:
    _, answer = asked(api, "POST", "/v3/templates", {"name": "links"})
    status, told = asked(api, "GET", f"/templates/{answer['templateID']}/files/{'a' * 64}")
    assert (status, told["present"]) == (201, False)

    def put(url: str) -> int:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, b"content", method="PUT"), timeout=20) as sent:
                return int(sent.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert put(told["url"].replace("a" * 64, "b" * 64)) == 401
    assert put(told["url"].rpartition("=")[0] + "=" + "0" * 64) == 401
    assert put(told["url"].partition("?")[0]) == 401
    assert put(told["url"]) == 200
    assert asked(api, "GET", f"/templates/{answer['templateID']}/files/{'a' * 64}")[1]["present"] is True


def test_a_link_for_files_ends_with_the_key_of_whoever_asked_for_it(api: Api, served: Served) -> None:
    async def member() -> tuple[str, str]:
        from coldframe.contract.policy import Role

        secret, info = served.control.tokens.create(Role.MEMBER, "builds once", form="e2b")
        return secret, info.token_id

    async def revoke() -> None:
        served.control.tokens.revoke(token_id, caller=OWNER)

    key, token_id = served.call(member())
    _, answer = asked(api, "POST", "/v3/templates", {"name": "left"}, key=key)
    place = f"/templates/{answer['templateID']}/files/{'c' * 64}"
    url = asked(api, "GET", place, key=key)[1]["url"]
    served.call(revoke())
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(urllib.request.Request(url, b"content", method="PUT"), timeout=20)
    assert asked(api, "GET", place)[1]["present"] is False


def test_uploads_that_come_at_once_right_after_a_start_do_not_take_each_other_away(tmp_path: Path) -> None:
    archives = TemplateArchives(str(tmp_path / "archives"), *[cast("Any", None)] * 3, clock=lambda: datetime.now(UTC))
    (tmp_path / "archives").mkdir()
    (tmp_path / "archives" / "left").write_text("by a server that was killed")

    async def begin(number: int) -> None:
        await archives._sweep()
        (tmp_path / "archives" / str(number)).touch()

    async def begin_all() -> None:
        await asyncio.gather(*map(begin, range(8)))

    asyncio.run(begin_all())
    assert sorted(one.name for one in (tmp_path / "archives").iterdir()) == [str(number) for number in range(8)]


def test_who_may_not_build_is_told(api: Api, served: Served) -> None:
    async def viewer() -> str:
        from coldframe.contract.policy import Role

        return served.control.tokens.create(Role.VIEWER, "looks", form="e2b")[0]

    key = served.call(viewer())
    assert asked(api, "POST", "/v3/templates", {"name": "mine"}, key=key)[0] == 403
    assert asked(api, "GET", "/templates", key=key)[0] == 200
    assert asked(api, "GET", "/templates", key="e2b_" + "0" * 64)[0] == 401


NOTHING_HERE = """version: 1
rules:
  - {id: no-builds, hook: PRE_TOOL_CALL, when: {tool: [build_template, tag_template]}, then: deny, reason: nothing is built here}
"""


def test_rules_are_asked_about_builds_and_tags_that_come_this_way(api: Api, served: Served) -> None:
    build(api, Template().from_template("debian").run_cmd("echo ruled"), "ruled:one")
    with served.sync_client() as client:
        before = client.policy.show().text
        client.policy.load(NOTHING_HERE)
        try:
            with pytest.raises(BuildException, match=r"403.*nothing is built here"):
                build(api, Template().from_template("debian").run_cmd("echo more"), "ruled:two")
            with pytest.raises(Exception, match=r"403.*nothing is built here"):
                Template.assign_tags("ruled:one", "two", **api.params)
            with pytest.raises(Exception, match=r"403.*nothing is built here"):
                Template.remove_tags("ruled", ["one"], **api.params)
        finally:
            client.policy.load(before)
        refused = [entry.body["act"] for entry in client.ledger.entries() if entry.kind == "act.refused"]
        assert refused[-3:] == ["build_template", "tag_template", "tag_template"]
        assert client.policy.show().text == before
