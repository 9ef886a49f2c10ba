"""What is handed over of packages is what was published, told to those alone who may have it, whatever a registry does."""

import asyncio
import json
import os
import shlex
from collections import Counter
from pathlib import Path

import pytest

from coldframe.contract.policy import Label, Outcome
from coldframe.host.egress.packages import download, fetch
from coldframe.host.egress.packages import view as view_of_packages
from coldframe.host.egress.packages.cache import CacheUsage, purge_cache
from coldframe.host.egress.requests import read_head
from tests.host.egress.packaged import ALL, DEMO, PIP, PRIVATE, SETTINGS, Scene, needs_npm, with_packages
from tests.host.egress.registries import PORT, SECRET
from tests.host.egress.test_broker import ORIGIN
from tests.host.egress.world import SITE

# -- credentials -----------------------------------------------------------------------------------


def test_a_credential_of_the_host_goes_to_its_registry_alone_and_is_not_seen_in_the_box() -> None:
    async def steps(scene: Scene) -> None:
        name = "/private/simple/coldprivate/coldprivate-1.0-py3-none-any.whl"
        status, _, body = await scene.ask(name)
        assert status == 200 and body.startswith(b"PK")
        shown = [(first.split(" ")[1], headers.get("authorization")) for first, headers in await scene.site()]
        assert shown == [
            ("/private/simple/coldprivate/", SECRET),
            ("/files/coldprivate/coldprivate-1.0-py3-none-any.whl", None),
        ]
        code, said = await scene.run("env; cat ../pip.conf ../npmrc")
        assert code == 0 and "of-the-host" not in said

    with_packages(steps)


@pytest.mark.req("T3.43")
def test_what_one_credential_fetched_is_told_to_nobody_without_it() -> None:
    async def steps(scene: Scene) -> None:
        assert (await scene.ask("/private/simple/coldprivate/"))[0] == 200
        scene.open_view(settings=SETTINGS._replace(credentials=()))
        status, _, body = await scene.ask("/private/simple/coldprivate/")
        assert status == 404 and b"NOT_FOUND" in body
        status, _, body = await scene.ask("/private/simple/coldprivate/coldprivate-1.0-py3-none-any.whl")
        assert status == 404

    with_packages(steps)


@pytest.mark.req("T3.43")
def test_a_box_that_may_not_have_a_private_package_is_told_the_same_whether_it_is_kept_or_not() -> None:
    deny = f"{{id: not-theirs, to: {SITE}, paths: [/private/simple/coldprivate], then: deny}}"
    rules = f"profiles: {{own: {{base: packages, rules: [{deny}]}}}}\nuse: {{'*': own}}\n"

    async def steps(scene: Scene) -> None:
        before = await scene.ask("/private/simple/coldprivate/")
        assert before[0] == 403
        view = scene.interception.packages
        assert view is not None
        head = read_head(b"GET /private/simple/coldprivate/ HTTP/1.1\r\nHost: x.example.com\r\n\r\n")
        (await view.answer(PRIVATE, head, box="another")).close()
        asked = await scene.paths()
        assert await scene.ask("/private/simple/coldprivate/") == before
        assert await scene.paths() == asked

    with_packages(steps, rules=rules)


@pytest.mark.req("T3.43")
@pytest.mark.parametrize("by", ["credential", "rule"])
def test_whether_a_private_package_is_kept_for_others_cannot_be_told_by_time(by: str) -> None:
    """As a program in the box measures it, in turns, so that whatever else the machine does meets both alike."""
    deny = f"{{id: not-theirs, to: {SITE}, paths: [/private/simple/], then: deny}}"
    rules = f"profiles: {{own: {{base: packages, rules: [{deny}]}}}}\nuse: {{'*': own}}\n" if by == "rule" else ALL
    kept, absent = "/private/simple/coldprivate/", "/private/simple/coldother/"

    async def steps(scene: Scene) -> None:
        view = scene.interception.packages
        assert view is not None
        head = read_head(f"GET {kept} HTTP/1.1\r\nHost: x.example.com\r\n\r\n".encode())
        (await view.answer(PRIVATE, head, box="another")).close()
        assert scene.usage().packages == 1
        if by == "credential":
            scene.open_view(settings=SETTINGS._replace(credentials=()))
        differences = []
        for _ in range(3):  # what is there shows each time
            await scene.site(forget=True)
            statuses, medians = await scene.time(kept, absent, turns=75)
            asked = Counter(await scene.paths())
            assert asked[kept] == asked[absent] == (75 if by == "credential" else 0)
            assert statuses[kept] == statuses[absent] == {404 if by == "credential" else 403}
            differences.append(abs(1 - medians[kept] / medians[absent]))
            if differences[-1] < 0.2:
                break
        assert min(differences) < 0.2, differences
        if by == "credential":  # and what is told from what is kept does show, so it would
            _, medians = await scene.time("/simple/colddemo/", absent, turns=25)
            assert medians["/simple/colddemo/"] < 0.8 * medians[absent]

    with_packages(steps, rules=rules)


# -- faults ----------------------------------------------------------------------------------------


@pytest.mark.req("T4.25")
@needs_npm
def test_a_lock_file_holds_against_a_registry_that_says_otherwise() -> None:
    async def steps(scene: Scene) -> None:
        assert (await scene.run("mkdir app && cd app && npm init -y && npm install rightbox"))[0] == 0
        path = Path(scene.folder) / "home/app/package-lock.json"
        lock = json.loads(path.read_text())
        lock["packages"]["node_modules/rightbox"]["integrity"] = "sha512-" + "A" * 86 + "=="
        path.write_text(json.dumps(lock))
        code, said = await scene.run("cd app && rm -rf node_modules ~/.npm && npm ci")
        assert code != 0 and "EINTEGRITY" in said, said

    with_packages(steps)


@pytest.mark.req("T4.25")
def test_with_the_registry_down_a_second_installation_works_from_what_is_kept_and_that_is_on_record() -> None:
    async def steps(scene: Scene) -> None:
        assert (await scene.run(f"{PIP} colddemo"))[0] == 0
        await scene.site(mode="down")
        scene.clock[0] += 3600
        code, said = await scene.run(f"{PIP} colddemo && {DEMO}", home="other")
        assert code == 0 and "base and demo" in said, said
        assert {one.source for one in scene.handed_over()[-4:]} == {"stale", "cache"}

    with_packages(steps)


@pytest.mark.req("T4.25")
@pytest.mark.parametrize("mode", ["down", "silent"])
def test_what_is_not_kept_of_a_registry_that_is_down_is_said_to_be_unreachable(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 2 * fetch.HEAD_S < 30  # in which it has to be said, for a listing and a file
    monkeypatch.setattr(fetch, "HEAD_S", 1.0)

    async def steps(scene: Scene) -> None:
        await scene.site(mode=mode)
        status, reason, body = await scene.ask("/simple/colddemo/")
        assert (status, reason) == (424, "REGISTRY_UNREACHABLE")
        assert (
            json.loads(body)["error"]["code"] == "REGISTRY_UNREACHABLE" and SITE in json.loads(body)["error"]["message"]
        )
        assert [one.reason.partition(":")[0] for one in scene.log.requests][-1] == "REGISTRY_UNREACHABLE"
        count = len(await scene.paths())
        assert (await scene.ask("/simple/coldbase/"))[0] == 424
        assert len(await scene.paths()) == count  # it rests meanwhile
        code, said = await scene.run(f"{PIP} coldbase")
        assert code != 0 and "REGISTRY_UNREACHABLE" in said, said

    with_packages(steps)


@needs_npm
def test_npm_says_that_the_registry_is_unreachable() -> None:
    async def steps(scene: Scene) -> None:
        await scene.site(mode="down")
        code, said = await scene.run("npm init -y > /dev/null; npm install leftbox")
        assert code != 0 and "REGISTRY_UNREACHABLE" in said, said

    with_packages(steps)


@pytest.mark.req("T4.25", "T3.43")
def test_bytes_that_are_not_those_that_were_published_are_refused_and_that_is_on_record() -> None:
    async def steps(scene: Scene) -> None:
        assert (await scene.ask("/simple/coldbase/"))[0] == 200
        await scene.site(mode="changed")
        status, _, body = await scene.ask("/simple/coldbase/coldbase-1.0-py3-none-any.whl")
        assert (status, json.loads(body)["error"]["code"]) == (403, "PACKAGE_CHANGED")
        denied = scene.denied()
        assert [one.rule_id for one in denied] == ["packages:digest"]
        scene.clock[0] += 3600  # the registry says another digest now, which is not followed
        status, *_ = await scene.ask("/simple/coldbase/")
        assert status == 200
        status, _, body = await scene.ask("/simple/coldbase/coldbase-1.0-py3-none-any.whl")
        assert status == 403 and b"PACKAGE_CHANGED" in body
        await scene.site(mode="well")
        assert (await scene.ask("/simple/coldbase/coldbase-1.0-py3-none-any.whl"))[0] == 200

    with_packages(steps)


@pytest.mark.parametrize("mode", ["stronger", "swapped"])
def test_a_registry_that_tells_a_stronger_digest_later_is_held_to_the_first_one(mode: str) -> None:
    async def steps(scene: Scene) -> None:
        for index in ("/simple/", "/private/simple/"):
            assert (await scene.ask(f"{index}coldbase/"))[0] == 200
        await scene.site(mode=mode)
        scene.clock[0] += view_of_packages.FRESH_S + 1
        code, said = await scene.run(f"{PIP} coldbase")
        if mode == "stronger":  # of the same bytes
            assert code == 0, said
        else:
            assert code != 0 and "PACKAGE_CHANGED" in said, said
            assert [one.rule_id for one in scene.denied()] == ["packages:digest"]

    with_packages(steps)


def test_the_first_digest_holds_for_both_forms_in_which_npm_tells_of_a_package() -> None:
    async def steps(scene: Scene) -> None:
        short = {"accept": "application/vnd.npm.install-v1+json"}
        first = json.loads((await scene.ask("/npm/rightbox", **short))[2])["versions"]["2.1.0"]["dist"]["integrity"]
        await scene.site(mode="changed")
        whole = json.loads((await scene.ask("/npm/rightbox"))[2])["versions"]["2.1.0"]["dist"]["integrity"]
        assert whole == first
        assert (await scene.ask("/npm/rightbox/-/rightbox-2.1.0.tgz"))[0] == 403

    with_packages(steps)


def test_where_a_registry_publishes_no_digest_the_first_bytes_hold() -> None:
    async def steps(scene: Scene) -> None:
        await scene.site(mode="undigested")
        name = "/simple/coldbase/coldbase-1.0-py3-none-any.whl"
        status, _, first = await scene.ask(name)
        assert status == 200
        listing = (await scene.ask("/simple/coldbase/"))[2].decode()
        assert "#sha256=" in listing
        for entry in os.scandir(os.path.join(scene.cache, "files")):
            os.unlink(entry)
        await scene.site(mode="changed")
        assert (await scene.ask(name))[0] == 403
        await scene.site(mode="undigested")
        assert (await scene.ask(name))[2] == first

    with_packages(steps)


@pytest.mark.req("T4.25")
def test_a_file_that_breaks_off_never_looks_whole_and_is_not_kept() -> None:
    async def steps(scene: Scene) -> None:
        await scene.site(mode="half")
        name = "/simple/coldlarge/coldlarge-1.0-py3-none-any.whl"
        status, _, body = await scene.ask(name)
        assert status == 424 and b"REGISTRY_UNREACHABLE" in body
        assert scene.usage().files == 0
        await scene.site(mode="well")
        assert (await scene.ask(name))[0] == 200

    with_packages(steps)


@pytest.mark.req("T4.25")
def test_a_slow_registry_is_seen_to_get_on_and_stops_when_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "SHOWN_AT_S", 0.3)

    async def steps(scene: Scene) -> None:
        await scene.site(mode="slow")
        name = f"https://{SITE}:{PORT}/simple/coldlarge/coldlarge-1.0-py3-none-any.whl"
        fetch = f"import urllib.request; a = urllib.request.urlopen('{name}'); print(len(a.read(2048)), a.length > 0)"
        code, said = await scene.run(f"python3 -c {shlex.quote(fetch)}")
        assert (code, said) == (0, "2048 True\n")
        (contact,) = await scene.log.of(1)
        assert 2048 <= contact.received_bytes < 1 << 20
        view = scene.interception.packages
        assert view is not None
        while view._downloads:  # noqa: ASYNC110 - it ends by itself
            await asyncio.sleep(0.01)
        assert not list(Path(scene.cache).rglob("new-*"))

    with_packages(steps)


@pytest.mark.req("T4.25")
def test_twenty_at_once_are_one_question_and_twenty_right_answers() -> None:
    async def steps(scene: Scene) -> None:
        name = f"https://{SITE}:{PORT}/simple/coldlarge/coldlarge-1.0-py3-none-any.whl"
        fetch = (
            "import concurrent.futures as c, hashlib, urllib.request as u\n"
            f"def one(_): return hashlib.sha256(u.urlopen('{name}').read()).hexdigest()\n"
            "with c.ThreadPoolExecutor(20) as pool: found = list(pool.map(one, range(20)))\n"
            "print(len(found), len(set(found)))"
        )
        code, said = await scene.run(f"python3 -c {shlex.quote(fetch)}")
        assert (code, said) == (0, "20 1\n")
        assert sorted(await scene.paths()) == [
            "/files/coldlarge/coldlarge-1.0-py3-none-any.whl",
            "/simple/coldlarge/",
        ]

    with_packages(steps)


def test_what_is_kept_and_was_damaged_is_fetched_again() -> None:
    async def steps(scene: Scene) -> None:
        name = "/simple/coldbase/coldbase-1.0-py3-none-any.whl"
        _, _, first = await scene.ask(name)
        (kept,) = os.scandir(os.path.join(scene.cache, "files"))
        Path(kept.path).write_bytes(first[: len(first) // 2])
        status, _, again = await scene.ask(name)
        assert (status, again) == (200, first)
        assert scene.handed_over()[-1].source == "registry"

    with_packages(steps)


@pytest.mark.req("T3.43")
def test_a_purged_cache_is_fetched_again_and_what_is_installed_stays() -> None:
    async def steps(scene: Scene) -> None:
        assert (await scene.run(f"{PIP} colddemo"))[0] == 0
        directory = os.open(scene.cache, os.O_RDONLY)
        assert purge_cache(directory).files >= 2
        os.close(directory)
        assert scene.usage().bytes == 0
        assert (await scene.run(DEMO))[0] == 0
        await scene.site(forget=True)
        assert (await scene.run(f"{PIP} colddemo", home="other"))[0] == 0
        assert len(await scene.paths()) >= 4

    with_packages(steps)


@pytest.mark.parametrize("mode", ["loop", "inward", "plain", "address", "bomb"])
def test_a_registry_that_leads_elsewhere_or_grows_without_end_is_no_registry(mode: str) -> None:
    async def steps(scene: Scene) -> None:
        await scene.site(mode=mode)
        status, _, body = await scene.ask("/simple/colddemo/")
        assert status == 424 and b"REGISTRY_UNREACHABLE" in body, body
        assert scene.usage() == CacheUsage(0, 0, 0)

    with_packages(steps)


def test_a_change_of_the_rules_ends_what_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "SHOWN_AT_S", 0.1)

    async def steps(scene: Scene) -> None:
        await scene.site(mode="slow")
        name = f"https://{SITE}:{PORT}/simple/coldlarge/coldlarge-1.0-py3-none-any.whl"
        fetch = f"import urllib.request as u; a = u.urlopen('{name}'); open('begun', 'w'); print(len(a.read()))"
        running = asyncio.ensure_future(scene.run(f"python3 -c {shlex.quote(fetch)} 2>&1"))
        while not (Path(scene.folder) / "home/begun").exists():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        scene.broker.raise_taint(ORIGIN.sandbox_id, Label.CONFIDENTIAL)
        code, said = await running
        assert code != 0, said
        (contact,) = await scene.log.of(1)
        assert (contact.rule_id, contact.outcome) == ("floor:write-down", Outcome.DENY)
        view = scene.interception.packages
        assert view is not None
        while view._downloads:  # noqa: ASYNC110 - it ends by itself
            await asyncio.sleep(0.01)

    with_packages(steps)


@pytest.mark.parametrize("mode", ["html", "redirect"])
def test_listings_in_html_and_redirects_are_followed(mode: str) -> None:
    async def steps(scene: Scene) -> None:
        await scene.site(mode=mode)
        code, said = await scene.run(f"{PIP} colddemo && {DEMO}")
        assert code == 0 and "base and demo" in said, said

    with_packages(steps)


def test_a_listing_is_fresh_for_a_while_and_then_asked_for_by_its_tag() -> None:
    async def steps(scene: Scene) -> None:
        for _ in range(3):
            assert (await scene.ask("/simple/colddemo/"))[0] == 200
        scene.clock[0] += view_of_packages.FRESH_S + 1
        assert (await scene.ask("/simple/colddemo/"))[0] == 200
        tags = [headers.get("if-none-match") for _, headers in await scene.site()]
        assert len(tags) == 2 and tags[0] is None and tags[1] is not None

    with_packages(steps)


def test_a_tag_that_cannot_be_sent_back_is_not_and_the_registry_is_asked_all_the_same() -> None:
    async def steps(scene: Scene) -> None:
        await scene.site(mode="odd-tag")
        for _ in range(2):
            assert (await scene.ask("/simple/colddemo/"))[0] == 200
            scene.clock[0] += view_of_packages.FRESH_S + 1
        for _, headers in await scene.site():
            assert not headers.keys() & {"if-none-match", "if-modified-since"}
        assert len(await scene.paths()) == 2

    with_packages(steps)


def test_a_program_asks_whether_its_own_copy_holds() -> None:
    async def steps(scene: Scene) -> None:
        script = (
            "import urllib.request as u, urllib.error as e\n"
            f"a = u.urlopen('https://{SITE}:{PORT}/npm/rightbox'); tag = a.headers['etag']\n"
            f"r = u.Request('https://{SITE}:{PORT}/npm/rightbox', headers={{'If-None-Match': tag}})\n"
            "try: u.urlopen(r)\n"
            "except e.HTTPError as error: print(error.code)"
        )
        assert await scene.run(f"python3 -c {shlex.quote(script)}") == (0, "304\n")
        status, _, body = await scene.ask("/npm/rightbox", method="HEAD")
        assert (status, body) == (200, b"")
        assert json.loads((await scene.ask("/npm/rightbox/latest"))[2])["version"] == "2.1.0"
        assert (await scene.ask("/npm/rightbox/9.9.9"))[0] == 404

    with_packages(steps)


def test_room_is_made_for_what_is_new() -> None:
    async def steps(scene: Scene) -> None:
        scene.open_view(most_bytes=1 << 20)
        await scene.ask("/simple/coldbase/coldbase-1.0-py3-none-any.whl")
        await scene.ask("/simple/coldlarge/coldlarge-1.0-py3-none-any.whl")
        assert scene.usage().bytes <= 1 << 20
        assert (await scene.ask("/simple/coldbase/coldbase-1.0-py3-none-any.whl"))[0] == 200

    with_packages(steps)
