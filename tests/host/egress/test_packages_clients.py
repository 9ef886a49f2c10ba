"""Plain package clients install through the broker's view of registries, and nothing of them or of the box goes further."""

import json
from pathlib import Path

import pytest

from coldframe.contract.policy import Label
from tests.host.egress.packaged import DEMO, PIP, Scene, find_program, needs_cc, needs_npm, with_packages
from tests.host.egress.registries import PORT
from tests.host.egress.test_broker import ORIGIN
from tests.host.egress.world import SITE
from tests.host.machines import as_root_and_ordinary

# -- plain clients ---------------------------------------------------------------------------------


@as_root_and_ordinary
def test_pip_installs_a_wheel_and_what_it_needs_and_both_are_on_record(who: str) -> None:
    async def steps(scene: Scene) -> None:
        code, said = await scene.run(f"{PIP} colddemo && {DEMO}")
        assert code == 0 and "base and demo" in said, said
        files = {one.file: one for one in scene.handed_over()}
        assert {"colddemo-1.0-py3-none-any.whl", "coldbase-1.0-py3-none-any.whl"} <= files.keys()
        one = files["colddemo-1.0-py3-none-any.whl"]
        assert (one.kind, one.name, one.version, one.source) == ("python", "colddemo", "1.0", "registry")
        assert one.digest.startswith("sha256:") and len(one.digest) == 71
        assert {contact.name for contact in await scene.log.of(1)} == {SITE}
        asked = await scene.site()
        for first, headers in asked:
            assert first.startswith("GET ") and "?" not in first
            own = {"authorization"} if first.startswith("GET /private/") else set()
            assert headers.keys() <= {"host", "accept", "accept-encoding", "user-agent", "if-none-match"} | own, headers
            assert headers["user-agent"] == "coldframe"

    with_packages(steps, who=who)


@needs_cc
def test_pip_builds_a_source_distribution_with_native_code() -> None:
    async def steps(scene: Scene) -> None:
        check = "python3 -c 'import sys; sys.path.insert(0, \"site\"); import coldnative; print(coldnative.answer())'"
        code, said = await scene.run(f"/usr/bin/{PIP} coldnative && /usr/bin/{check}")
        assert code == 0 and said.endswith("42\n"), said
        assert [one.file for one in scene.handed_over()] == ["coldnative-2.0.tar.gz"]

    with_packages(steps)


@needs_npm
@as_root_and_ordinary
def test_npm_installs_a_tree_with_an_install_script_and_again_from_its_lock_file(who: str) -> None:
    async def steps(scene: Scene) -> None:
        use = "node -e \"console.log(require('leftbox'))\" && cat node_modules/leftbox/POSTINSTALL.txt"
        begin = "mkdir app && cd app && npm init -y > /dev/null"
        code, said = await scene.run(f"{begin} && npm install leftbox @cold/inner && {use}")
        assert code == 0 and said.endswith("left of right\nran"), said
        lock = json.loads((Path(scene.folder) / "home/app/package-lock.json").read_text())
        for name, one in lock["packages"].items():
            if name:
                package = name.removeprefix("node_modules/")
                assert one["resolved"].startswith(f"https://{SITE}:{PORT}/npm/{package}/-/")
                assert one["integrity"].startswith("sha512-")
        versions = {(one.name, one.version) for one in scene.handed_over()}
        assert versions == {("leftbox", "1.0.0"), ("rightbox", "2.1.0"), ("@cold/inner", "0.1.0")}
        await scene.site(forget=True)
        again = f"cd app && rm -rf node_modules ~/.npm && npm ci && {use}"
        code, said = await scene.run(again)
        assert code == 0 and said.endswith("left of right\nran"), said
        assert await scene.paths() == []
        assert {one.source for one in scene.handed_over()[-3:]} == {"cache"}

    with_packages(steps, who=who)


def test_deno_adds_a_package_and_uses_it() -> None:
    async def steps(scene: Scene) -> None:
        use = "echo 'import left from \"rightbox\"; console.log(left)' > main.ts && deno run -A main.ts"
        code, said = await scene.run(f"mkdir d && cd d && echo '{{}}' > deno.json && deno add npm:rightbox && {use}")
        assert code == 0 and said.endswith("right\n"), said
        assert [one.file for one in scene.handed_over()] == ["rightbox-2.1.0.tgz"]

    if find_program("deno") is None:
        pytest.skip("deno is not installed")
    with_packages(steps)


# -- what does not pass ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/simple/colddemo/?secret=1"),
        ("GET", "/simple/colddemo/x/y"),
        ("GET", "/simple/"),
        ("GET", "/simple/not%20a%20name/"),
        ("GET", "/npm/-/v1/search"),
        ("GET", "/npm/-/npm/v1/security/advisories/bulk"),
        ("GET", "/elsewhere"),
        ("POST", "/npm/-/npm/v1/security/audits"),
        ("PUT", "/npm/leftbox"),
        ("DELETE", "/simple/colddemo/colddemo-1.0-py3-none-any.whl"),
    ],
)
def test_what_is_no_package_is_refused_on_record_and_asked_of_nobody(method: str, path: str) -> None:
    async def steps(scene: Scene) -> None:
        status, _, body = await scene.ask(path, method=method)
        assert status in (403, 404, 405) and b"DENIED_BY_RULE" in body, (status, body)
        assert await scene.paths() == []
        (denied,) = scene.denied()
        assert denied.rule_id.startswith(("packages:", "network:"))

    with_packages(steps)


def test_nothing_that_a_client_says_about_itself_goes_to_the_registry() -> None:
    async def steps(scene: Scene) -> None:
        status, *_ = await scene.ask(
            "/simple/colddemo/",
            cookie="session=1",
            authorization="Bearer of-the-box",
            user_agent="pip/1 {my secret}",
            referer="https://inner.example.com/",
            x_token="secret",
            accept_language="de",
            accept="*/*; secret=1",
        )
        assert status == 200
        ((_, headers),) = await scene.site()
        assert "secret" not in json.dumps(headers) and headers.keys() == {
            "host",
            "accept",
            "accept-encoding",
            "user-agent",
        }

    with_packages(steps)


def test_a_session_above_public_asks_for_no_package_unless_a_rule_clears_the_registry() -> None:
    cleared = f"{{id: mirror, to: {SITE}, ports: [{PORT}], methods: [GET, HEAD], paths: [/simple/], label: INTERNAL}}"
    rules = f"profiles: {{own: {{base: packages, rules: [{cleared}]}}}}\nuse: {{'*': own}}\n"

    async def steps(scene: Scene) -> None:
        scene.broker.raise_taint(ORIGIN.sandbox_id, Label.INTERNAL)
        assert (await scene.ask("/simple/colddemo/"))[0] == 200
        status, _, body = await scene.ask("/npm/rightbox")
        assert status == 403 and "cleared for PUBLIC" in json.loads(body)["error"]
        assert await scene.paths() == ["/simple/colddemo/"]
        scene.broker.raise_taint(ORIGIN.sandbox_id, Label.CONFIDENTIAL)
        code, said = await scene.run(f"{PIP} colddemo")
        assert code != 0 and "code=DENIED_BY_RULE; rule=floor:write-down" in said, said

    with_packages(steps, rules=rules)


def test_pip_is_told_which_rule_denies_a_package_whatever_the_rule_is_called() -> None:
    deny = f"{{id: keine größe, to: {SITE}, paths: [/simple/colddemo], then: deny}}"

    async def steps(scene: Scene) -> None:
        _, said = await scene.run(f"{PIP} colddemo")
        assert "rule=keine%20gr%C3%B6%C3%9Fe" in said, said
        status, _, body = await scene.ask("/simple/colddemo/")
        assert status == 403 and json.loads(body)["error"]["rule"] == "keine größe"

    with_packages(steps, rules=f"profiles: {{own: {{base: packages, rules: [{deny}]}}}}\nuse: {{'*': own}}\n")
