"""Held here: templates are built by whoever may, on record, under versions that never come to name anything else; sandboxes
have the one that they ask for; what is withdrawn is started no more; and no crash leaves a build in between."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.errors import (
    BuildFailed,
    Conflict,
    DeniedByRule,
    GrantMissing,
    InvalidArgument,
    NotFound,
    StartNotReady,
    TemplateChanged,
    TemplateCheckFailed,
    TemplateWithdrawn,
    WrongState,
    from_wire,
)
from coldframe.contract.sandbox import SandboxSpec
from coldframe.contract.snapshot import (
    ResetRequest,
    SnapshotFacts,
    SnapshotRequest,
    SnapshotSystem,
    SnapshotWish,
    WorkspacePoint,
)
from coldframe.contract.template import BuildInfo, BuildRequest, Recipe
from tests.control.bench import AGENT, OWNER, VIEWER, Bench, opened, until

NO_BUILDS = """version: 1
rules:
  - id: no-builds
    hook: PRE_TOOL_CALL
    when: {tool: build_template}
    then: deny
    reason: nothing is built here
"""


def recipe(*steps: dict[str, Any], name: str = "app", **more: Any) -> Recipe:
    return Recipe.model_validate({"name": name, "steps": steps, **more})


def run(command: str) -> dict[str, Any]:
    return {"kind": "run", "command": command}


def pip(*packages: str) -> dict[str, Any]:
    return {"kind": "pip", "packages": packages}


async def begin(bench: Bench, made: Recipe, caller: Any = OWNER, **more: Any) -> BuildInfo:
    return await bench.control.template_builds.begin(caller, BuildRequest(recipe=made), **more)


async def build(bench: Bench, made: Recipe) -> BuildInfo:
    begun = await begin(bench, made)
    ended = await bench.control.template_builds.get(OWNER, begun.build_id, wait_s=30)
    assert ended.state == "ready", ended.error
    return ended


async def once(data: bytes) -> AsyncIterator[bytes]:
    yield data


@pytest.mark.req("T4.68")
def test_one_is_built_named_numbered_and_on_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            base = bench.host.templates.add_setup()
            first = await build(bench, recipe(run("one"), tags=("ci",)))
            second = await build(bench, recipe(run("two")))
            assert (first.version, second.version, first.steps, first.steps_done) == ("1", "2", 1, 1)
            assert bench.host.templates.orders[0].base == base.digest
            found = await bench.control.templates.list(VIEWER)
            assert [(one.name, one.version) for one in found] == [
                ("app", "2"),
                ("app", "1"),
                ("debian", base.digest[:12]),
            ]
            assert found[1].tags == ("ci",) and found[1].digest == first.digest and found[1].created_by == OWNER.name
            newest = await bench.control.templates.get(OWNER, "app")
            assert newest.version == "2" and newest.recipe is not None
            assert newest.recipe.locked == newest.packages != ()  # built from it again, it has the same packages
            kinds = ("template.found", "template.build_started", "template.built")
            entries = bench.entries(kinds=kinds)
            assert [one.kind for one in entries] == [kinds[0], *kinds[1:], *kinds[1:]]
            assert entries[2].body["digest"] == first.digest and entries[1].body["decision"]["outcome"] == "allow"

    asyncio.run(scenario())


@pytest.mark.req("T4.68")
def test_a_version_never_comes_to_name_anything_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.host.templates.add_setup()
            await build(bench, recipe(run("one"), version="1.0"))
            with pytest.raises(Conflict):
                await begin(bench, recipe(run("two"), version="1.0"))
            waiting = await begin(bench, recipe(run("wait"), version="1.1"))
            with pytest.raises(Conflict):
                await begin(bench, recipe(run("two"), version="1.1"))
            bench.host.templates.go.set()
            await bench.control.template_builds.get(OWNER, waiting.build_id, wait_s=30)
            await bench.control.templates.remove(OWNER, "app:1.0")
            await bench.control.templates.remove(OWNER, "app:1.0")
            with pytest.raises(NotFound):
                await bench.control.templates.get(OWNER, "app:1.0")
            with pytest.raises(NotFound):
                await bench.control.templates.remove(OWNER, "app:9")
            with pytest.raises(Conflict):
                await begin(bench, recipe(run("two"), version="1.0"))
            for name in ("debian", "app"):
                with pytest.raises((InvalidArgument, Conflict)):
                    await begin(bench, recipe(name=name, version="1.1"))

    asyncio.run(scenario())


@pytest.mark.req("T4.68")
def test_the_log_is_followed_by_several_without_loss_or_repetition(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.host.templates.add_setup()
            builds = bench.control.template_builds
            begun = await begin(bench, recipe(run("say 1500"), run("wait"), run("say 10")))

            async def follow(limit: int, after: int = 0) -> list[str]:
                seen: list[str] = []
                while True:
                    page = await builds.log(VIEWER, begun.build_id, after_seq=after, limit=limit, wait_s=30)
                    assert [one.seq for one in page.entries] == [*range(after + 1, after + 1 + len(page.entries))]
                    seen += [one.text for one in page.entries]
                    after += len(page.entries)
                    if page.build.state != "building" and after == page.build.last_seq:
                        return seen
                    if any("wait" in one.text for one in page.entries):
                        bench.host.templates.go.set()

            first, second = await asyncio.gather(follow(7), follow(1000))
            assert first == second == await follow(100)
            assert [text for text in first if text.startswith("line")] == [
                *(f"line {index}" for index in range(1500)),
                *(f"line {index}" for index in range(10)),
            ]
            assert await follow(100, after=1500) == first[1500:]

    asyncio.run(scenario())


@pytest.mark.req("T4.68")
def test_a_step_that_fails_is_named_with_its_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.host.templates.add_setup()
            begun = await begin(bench, recipe(run("one"), run("fail"), run("three")))
            ended = await bench.control.template_builds.get(OWNER, begun.build_id, wait_s=30)
            assert (ended.state, ended.failed_step, ended.steps_done) == ("failed", 2, 1)
            assert ended.error is not None
            error = from_wire(ended.error)
            assert isinstance(error, BuildFailed) and error.facts["log"] == "it does not work\n"
            log = await bench.control.template_builds.log(OWNER, begun.build_id)
            assert ("stderr", "it does not work", 2) in [(one.stream, one.text, one.step) for one in log.entries]
            assert bench.entries(kinds=("template.build_failed",))[-1].body["step"] == 2
            with pytest.raises(NotFound):
                await bench.control.templates.get(OWNER, "app")
            again = await build(bench, recipe(run("one")))  # its version was not used up
            assert again.version == "1"

    asyncio.run(scenario())


def test_a_build_is_cancelled_and_one_that_a_crash_broke_off_has_failed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.host.templates.add_setup()
            builds = bench.control.template_builds
            begun = await begin(bench, recipe(run("one")))
            assert (await builds.cancel(OWNER, begun.build_id)).state == "cancelled"  # before it could do anything
            begun = await begin(bench, recipe(run("wait")))
            assert (await builds.log(OWNER, begun.build_id, wait_s=30)).entries
            with pytest.raises(GrantMissing):
                await builds.cancel(VIEWER, begun.build_id)
            bench.host.templates.may_end.clear()
            cancels = []
            for _ in range(3):  # whoever cancels it again waits as well, until nothing of it is left
                cancels.append(asyncio.ensure_future(builds.cancel(OWNER, begun.build_id)))
                await asyncio.wait(cancels, timeout=0.1)
            assert bench.host.templates.left == 0 and not any(cancel.done() for cancel in cancels)
            bench.host.templates.may_end.set()
            assert {(await cancel).state for cancel in cancels} == {"cancelled"}
            ended = await builds.cancel(OWNER, begun.build_id)
            assert ended.state == (await builds.cancel(OWNER, begun.build_id)).state == "cancelled"
            assert bench.host.templates.left == 1
            begun = await begin(bench, recipe(run("wait")))
            bench.kill()
            await bench.start()
            ended = await bench.control.template_builds.get(OWNER, begun.build_id)
            assert ended.state == "failed" and ended.error is not None
            assert ended.error["code"] == "TEMPLATE_BUILD_FAILED"

    asyncio.run(scenario())


def test_one_that_is_there_before_its_build_has_ended_is_named_by_the_build(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            made = bench.host.templates
            made.add_setup()
            made.may_tell.clear()
            begun = await begin(bench, recipe(run("one"), version="1.0"))
            await made.made.wait()
            assert [one.name for one in await bench.control.templates.list(OWNER)] == ["debian"]
            made.may_tell.set()
            ended = await bench.control.template_builds.get(OWNER, begun.build_id, wait_s=30)
            assert ended.state == "ready" and ended.version == "1.0"
            made.made.clear()
            made.may_tell.clear()
            begun = await begin(bench, recipe(run("two"), version="1.1"))
            await made.made.wait()
            bench.kill()  # then nobody will name it but the next start, as what was found there
            await bench.start()
            found = await bench.control.templates.list(OWNER, name="app")
            assert {one.version: one.created_by for one in found} == {"1.0": OWNER.name, "1.1": OWNER.name}

    asyncio.run(scenario())


def test_what_a_killed_daemon_was_carrying_out_is_removed_when_it_is_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.host.templates.add_setup()
            await bench.host.create("build-left", SandboxSpec(background=True), session_id="build-left")
            begun = await begin(bench, recipe(run("vanish")))
            ended = await bench.control.template_builds.get(OWNER, begun.build_id, wait_s=30)
            assert ended.state == "failed" and ended.error is not None and ended.error["code"] == "HOST_UNREACHABLE"
            await until(lambda: "build-left" not in bench.host._boxes)

    asyncio.run(scenario())


def test_the_same_key_is_the_same_build(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.host.templates.add_setup()
            first = await begin(bench, recipe(run("one")), idempotency_key="k")
            again = await begin(bench, recipe(run("one")), idempotency_key="k")
            assert again.build_id == first.build_id and len(bench.control.template_builds.list(OWNER)) == 1
            with pytest.raises(Conflict):
                await begin(bench, recipe(run("two")), idempotency_key="k")

    asyncio.run(scenario())


def test_files_have_to_be_there_under_their_digest(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.host.templates.add_setup()
            builds, data = bench.control.template_builds, b"content"
            digest = hashlib.sha256(data).hexdigest()
            made = recipe({"kind": "files", "files": [{"to": "/opt/a", "sha256": digest, "bytes": len(data)}]})
            assert await builds.missing(OWNER, (digest,)) == (digest,)
            with pytest.raises(InvalidArgument) as refused:
                await begin(bench, made)
            assert refused.value.facts["missing"] == [digest]
            with pytest.raises(InvalidArgument):
                await builds.put(OWNER, digest, once(b"other"))
            assert await builds.put(OWNER, digest, once(data)) == len(data)
            assert (await build(bench, made)).state == "ready"

    asyncio.run(scenario())


@pytest.mark.parametrize("caller", [VIEWER, AGENT], ids=["viewer", "agent"])
def test_who_may_not_build_mark_or_withdraw_is_refused(tmp_path: Path, caller: Any) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.host.templates.add_setup()
            await build(bench, recipe(run("one")))
            templates = bench.control.templates
            assert len(await templates.list(caller)) == 2
            for act in (
                begin(bench, recipe(run("two")), caller),
                bench.control.template_builds.missing(caller, ()),
                bench.control.template_builds.put(caller, "0" * 64, once(b"")),
                bench.control.template_checks.mark_known_good(caller, "app", "true", timeout_s=5),
                templates.withdraw(caller, "app", "no"),
                templates.remove(caller, "app:1"),
                templates.verify(caller, "app"),
            ):
                with pytest.raises(GrantMissing):
                    await act

    asyncio.run(scenario())


def test_a_rule_can_refuse_builds(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, NO_BUILDS) as bench:
            bench.host.templates.add_setup()
            with pytest.raises(DeniedByRule):
                await begin(bench, recipe(run("one")))
            assert bench.entries(kinds=("act.refused",))[-1].body["act"] == "build_template"

    asyncio.run(scenario())


@pytest.mark.req("T4.68")
@pytest.mark.req("T3.16", "T3.17")
def test_a_sandbox_has_the_template_that_it_asks_for_by_name_version_or_digest(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.host.templates.add_setup()
            old = await build(bench, recipe({"kind": "env", "variables": {"SHADE": "old"}}))
            new = await build(bench, recipe({"kind": "env", "variables": {"SHADE": "new"}}))
            for ref, digest, shade in (
                ("app", new.digest, "new"),
                ("app:1", old.digest, "old"),
                (f"sha256:{old.digest}", old.digest, "old"),
            ):
                info = await bench.control.creation.create(OWNER, SandboxSpec(background=True, template=ref))
                assert info.template_sha256 == digest and info.spec.template == ref
                result = await bench.call(info, "run_command", OWNER, command="printf %s $SHADE")
                assert result.value["stdout"] == shade
                receipt = bench.control.receipts.get(OWNER, result.receipt_id or "")
                assert receipt.inputs is not None
                assert (receipt.inputs.template, receipt.inputs.template_sha256) == (ref, digest)
                (given,) = [
                    one
                    for one in (await bench.control.inputs.list(OWNER, info.sandbox_id)).inputs
                    if one.type == "template"
                ]
                assert (given.name, given.sha256) == (ref, digest)
                await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)
            with pytest.raises(NotFound):
                await bench.control.creation.create(OWNER, SandboxSpec(background=True, template="app:7"))
            with pytest.raises(NotFound):
                await bench.control.creation.create(OWNER, SandboxSpec(background=True, template="sha256:" + "0" * 64))

    asyncio.run(scenario())


def test_a_workspace_goes_on_with_the_template_that_it_began_with(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.host.templates.add_setup()
            old = await build(bench, recipe(run("old")))
            info = await bench.sandbox(template="app")
            await bench.control.lifecycle.stop(OWNER, info.sandbox_id)
            new = await build(bench, recipe(run("new")))
            assert (await bench.control.lifecycle.start(OWNER, info.sandbox_id)).template_sha256 == old.digest
            await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)
            again = await bench.sandbox(template="app")
            assert again.template_sha256 == old.digest != new.digest
            await bench.control.lifecycle.terminate(OWNER, again.sandbox_id)
            for other in ("app:2", "debian"):
                with pytest.raises(WrongState, match="began from `app:1`"):
                    await bench.sandbox(template=other)
            with pytest.raises(WrongState):
                await bench.control.templates.remove(OWNER, "app:1")

    asyncio.run(scenario())


def test_what_begins_with_the_system_of_a_snapshot_stands_on_its_template_or_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.host.templates.add_setup()
            old = await build(bench, recipe(run("old")))
            info = await bench.sandbox(template="app")
            genuine = bench.host.snapshots.take

            async def take(workspace: WorkspacePoint, wish: SnapshotWish) -> SnapshotFacts:
                facts = await genuine(workspace, wish)
                system = SnapshotSystem(template_sha256=old.digest or "")
                changed = facts.model_copy(update={"system": system})
                bench.host.snapshots.facts[facts.snapshot_id] = changed
                return changed

            bench.host.snapshots.take = take  # type: ignore[method-assign]
            taken = await bench.control.snapshots.take(OWNER, info.sandbox_id, SnapshotRequest())
            new = await build(bench, recipe(run("new")))
            for number, ref in enumerate(("app", "app:1", f"sha256:{old.digest}")):
                spec = SandboxSpec(agent_id=f"fork-{number}", template=ref, snapshot=taken.snapshot_id)
                fork = await bench.control.creation.create(OWNER, spec)
                assert fork.template_sha256 == old.digest
            for ref in ("app:2", "debian", f"sha256:{new.digest}"):
                spec = SandboxSpec(agent_id="refused", template=ref, snapshot=taken.snapshot_id)
                with pytest.raises(WrongState, match="began from `app:1`"):
                    await bench.control.creation.create(OWNER, spec)
            spec = SandboxSpec(agent_id="plain", snapshot=taken.snapshot_id)
            assert (await bench.control.creation.create(OWNER, spec)).template_sha256 is None
            other = await bench.control.creation.create(OWNER, SandboxSpec(agent_id="other", template="app:2"))
            with pytest.raises(WrongState, match="began from `app:1`"):  # it could not start again
                asked = ResetRequest(to=taken.snapshot_id)
                await bench.control.resets.reset(OWNER, other.sandbox_id, asked)
            assert bench.control.sandboxes.find(other.sandbox_id).state.state == "running"

    asyncio.run(scenario())


@pytest.mark.req("T4.68")
def test_one_that_is_withdrawn_starts_nothing_new_and_those_that_run_are_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.host.templates.add_setup()
            await build(bench, recipe(run("old")))
            await build(bench, recipe(run("new")))
            info = await bench.sandbox(template="app")
            marked = await bench.control.templates.withdraw(OWNER, "app:2", "it has a hole")
            again = await bench.control.templates.withdraw(OWNER, "app:2", "another reason")
            assert marked.withdrawn == again.withdrawn and marked.withdrawn is not None
            assert bench.entries(kinds=("template.withdrawn",))[-1].body["sandbox_ids"] == [info.sandbox_id]
            shown = bench.control.timers.shown(bench.control.sandboxes.get(OWNER, info.sandbox_id))
            assert len(shown.warnings) == 1 and "it has a hole" in shown.warnings[0]
            result = await bench.call(info, "run_command", OWNER, command="echo on")
            assert result.value["stdout"] == "on\n"  # what runs goes on
            await bench.control.lifecycle.stop(OWNER, info.sandbox_id)
            for act in (
                bench.control.lifecycle.start(OWNER, info.sandbox_id),
                bench.control.creation.create(OWNER, SandboxSpec(background=True, template="app:2")),
                begin(bench, recipe(run("on it"), name="next", base="app:2")),
            ):
                with pytest.raises(TemplateWithdrawn, match="it has a hole"):
                    await act
            other = await bench.control.creation.create(OWNER, SandboxSpec(background=True, template="app"))
            assert other.template_sha256 == (await bench.control.templates.get(OWNER, "app:1")).digest

    asyncio.run(scenario())


@pytest.mark.req("T4.68")
def test_what_is_said_of_one_holds_of_it_when_it_is_found_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            facts = bench.host.templates.add_setup()
            await bench.control.templates.withdraw(OWNER, "debian", "it is old")
            await bench.control.templates.remove(OWNER, "debian")
            bench.host.templates.known[facts.digest] = facts  # built again, and of the same content
            with pytest.raises(TemplateWithdrawn):
                await bench.sandbox(template="debian")

    asyncio.run(scenario())


def test_a_start_looks_into_no_template_that_is_known(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.host.templates.add_setup()
            for number in range(3):
                await build(bench, recipe(run(f"step {number}")))
            await bench.sandbox(template="app:1")
            bench.host.templates.looked.clear()
            await bench.sandbox("other", template="app:2")
            await bench.control.templates.list(OWNER)
            assert bench.host.templates.looked == []

    asyncio.run(scenario())


def test_known_good_is_a_person_a_check_that_passed_and_a_date(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.host.templates.add_setup()
            await build(bench, recipe(run("one")))
            checks = bench.control.template_checks
            with pytest.raises(TemplateCheckFailed) as failed:
                await checks.mark_known_good(OWNER, "app", "echo no; exit 3", timeout_s=30)
            assert (failed.value.facts["exit_code"], failed.value.facts["stdout"]) == (3, "no\n")
            assert (await bench.control.templates.get(OWNER, "app")).known_good is None
            marked = await checks.mark_known_good(OWNER, "app", "true", timeout_s=30)
            assert marked.known_good is not None
            assert (marked.known_good.by, marked.known_good.check) == (OWNER.name, "true")
            assert not bench.control.sandboxes.living()
            body = bench.entries(kinds=("template.marked",))[-1].body
            assert body["caller"] == OWNER.name and body["command_id"] == marked.known_good.command_id

    asyncio.run(scenario())


def test_one_that_somebody_has_changed_is_told_and_on_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            facts = bench.host.templates.add_setup()
            assert (await bench.control.templates.verify(OWNER, "debian")).digest == facts.digest
            bench.host.templates.changed.add(facts.digest)
            with pytest.raises(TemplateChanged):
                await bench.control.templates.verify(OWNER, "debian")
            assert bench.entries(kinds=("template.changed",))[-1].subject == facts.digest
            del bench.host.templates.known[facts.digest]
            assert [one.state for one in await bench.control.templates.list(OWNER)] == ["lost"]

    asyncio.run(scenario())


@pytest.mark.req("T4.68")
def test_what_a_template_starts_is_a_job_and_creation_answers_when_it_is_ready(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.host.templates.add_setup()
            start = {"command": "touch up; echo serving; exec sleep 600", "ready": {"command": "test -e up"}}
            await build(bench, recipe(run("one"), start=start))
            info = await bench.control.creation.create(OWNER, SandboxSpec(background=True, template="app"))
            found = await bench.control.outputs.commands(OWNER, info.sandbox_id)
            assert [(one.state, one.result is None) for one in found][:1] == [("running", True)]
            assert len(found) == 2  # the command, and one check however often it was tried
            await bench.control.lifecycle.stop(OWNER, info.sandbox_id)
            await bench.control.lifecycle.start(OWNER, info.sandbox_id)
            again = await bench.control.outputs.commands(OWNER, info.sandbox_id)
            assert sum(one.state == "running" for one in again) == 1 and len(again) == 4
            await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("command", "ready", "said"),
    [
        ("echo broken; exit 4", {"command": "false"}, "exit code 4"),
        ("echo broken; exec sleep 600", {"command": "false", "timeout_s": 0.5}, "not ready within 0.5 s"),
    ],
    ids=["ended", "late"],
)
@pytest.mark.req("T4.68")
def test_a_sandbox_whose_start_does_not_become_ready_is_not_made(
    tmp_path: Path, command: str, ready: dict[str, Any], said: str
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.host.templates.add_setup()
            await build(bench, recipe(run("one"), start={"command": command, "ready": ready}))
            with pytest.raises(StartNotReady, match=said) as failed:
                await bench.control.creation.create(OWNER, SandboxSpec(background=True, template="app"))
            assert failed.value.facts["log"] == "broken\n"
            assert not bench.control.sandboxes.living()

    asyncio.run(scenario())


@pytest.mark.req("T4.68")
def test_tags_are_names_that_move_and_versions_are_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.host.templates.add_setup()
            one, two = await build(bench, recipe(run("one"))), await build(bench, recipe(run("two")))
            tags, templates = bench.control.template_tags, bench.control.templates
            await tags.assign(OWNER, "app:1", ("production", "stable"))
            assert (await templates.get(OWNER, "app:production")).digest == one.digest
            await tags.assign(OWNER, "app:2", ("production",))
            assert (await templates.get(OWNER, "app:production")).digest == two.digest
            assert [(tag.tag, tag.version) for tag in tags.list(VIEWER, "app")] == [
                ("production", "2"),
                ("stable", "1"),
            ]
            with pytest.raises(Conflict):
                await tags.assign(OWNER, "app:2", ("1",))
            with pytest.raises(Conflict):
                await begin(bench, recipe(run("three"), version="stable"))
            with pytest.raises(WrongState, match="is a tag"):
                await templates.remove(OWNER, "app:stable")
            with pytest.raises(GrantMissing):
                await tags.assign(VIEWER, "app:1", ("mine",))
            with pytest.raises(NotFound):
                await tags.assign(OWNER, "app:3", ("mine",))
            await templates.remove(OWNER, "app:1")
            with pytest.raises(NotFound):
                await templates.get(OWNER, "app:stable")
            await tags.remove(OWNER, "app", ("production", "never"))
            assert tags.list(OWNER, "app") == []
            kinds = [entry.kind for entry in bench.control.ledger.entries() if "tagged" in entry.kind]
            assert kinds == ["template.tagged"] * 3 + ["template.untagged"]

    asyncio.run(scenario())


@pytest.mark.req("T4.68")
def test_what_is_announced_is_built_once_with_its_tags(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.host.templates.add_setup()
            announced = bench.control.announced_builds
            waiting = announced.announce(OWNER, "app", ("v1", "latest"), cpus=2, memory_mib=512)
            assert announced.get(VIEWER, waiting.build_id).steps is None
            request = BuildRequest(recipe=recipe(run("one")), notes=("said first",))
            for _ in range(2):
                info = await announced.begin(OWNER, waiting.build_id, request, (3,))
                assert info.build_id == waiting.build_id
            await bench.control.template_builds.get(OWNER, waiting.build_id, wait_s=30)
            assert [tag.tag for tag in bench.control.template_tags.list(OWNER, "app")] == ["latest", "v1"]
            assert announced.get(OWNER, waiting.build_id).steps == (3,)
            assert announced.sizes(waiting.build_id) == (2, 512)
            log = await bench.control.template_builds.log(OWNER, waiting.build_id)
            assert log.entries[0].text == "said first"
            with pytest.raises(Conflict):
                await announced.begin(OWNER, waiting.build_id, BuildRequest(recipe=recipe(run("two"))), (1,))
            with pytest.raises(NotFound):
                await announced.begin(OWNER, "bld_" + "0" * 20, request, ())
            with pytest.raises(GrantMissing):
                announced.announce(VIEWER, "app", (), cpus=1, memory_mib=128)

    asyncio.run(scenario())


@pytest.mark.req("T4.68")
def test_what_was_announced_and_came_to_nothing_is_forgotten_after_a_day(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.host.templates.add_setup()
            announced, builds, day = bench.control.announced_builds, bench.control.template_builds, timedelta(days=1)

            async def made(name: str, step: dict[str, Any]) -> str:
                one = announced.announce(OWNER, name, (), cpus=2, memory_mib=512)
                wanted = BuildRequest(recipe=recipe(step, name=name))
                await announced.begin(OWNER, one.build_id, wanted, (1,))
                await builds.get(OWNER, one.build_id, wait_s=30)
                return one.build_id

            whole, removed = await made("whole", run("one")), await made("removed", run("one"))
            failed = await made("failed", run("fail"))
            (one,) = await bench.control.templates.list(OWNER, name="removed")
            await bench.control.templates.remove(OWNER, f"{one.name}:{one.version}")
            waiting = announced.announce(OWNER, "waiting", (), cpus=1, memory_mib=128).build_id
            bench.pass_time(day * 2)
            announced.announce(OWNER, "next", (), cpus=1, memory_mib=128)
            assert sorted(announced.names(OWNER)) == ["next", "whole"]
            assert announced.sizes(whole) == (2, 512)
            assert [announced.sizes(gone) for gone in (removed, failed, waiting)] == [None] * 3

    asyncio.run(scenario())
