"""Builds: what went in, all that was printed, what came out, and how two of them differ."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.build import Build, BuildSpec, RebuildRequest
from coldframe.contract.errors import Conflict, GrantMissing, InputMissing, InvalidArgument, NotFound, WrongState
from coldframe.contract.pipeline import PipelineStep, StepInfo
from coldframe.contract.result import result_digest
from coldframe.contract.sandbox import SandboxInfo
from coldframe.control.build_logs import _head
from tests.control.bench import AGENT, OTHER, OWNER, UNTIL_GO, VIEWER, WITHHOLD, Bench, opened, until

SAMPLE = """mkdir -p dist && cat lib/*.txt > dist/all.txt && wc -c < dist/all.txt > dist/size.txt && echo made"""


def spec(*phases: tuple[str, str], artifacts: tuple[str, ...] = (), **more: Any) -> BuildSpec:
    steps = [{"name": name, "command": command} for name, command in phases]
    return BuildSpec.model_validate({"phases": steps, "artifacts": artifacts, **more})


DETERMINISTIC = spec(("check", "test -e lib/a.txt"), ("make", SAMPLE), artifacts=("dist/*.txt",))


async def built(bench: Bench, info: SandboxInfo, wanted: BuildSpec, **more: Any) -> Build:
    begun = await bench.control.builds.start(OWNER, info.sandbox_id, wanted, **more)
    done = await bench.control.builds.get(OWNER, begun.build_id, wait_s=20)
    assert done.state != "running"
    return done


async def with_sources(bench: Bench, agent_id: str = "ada") -> SandboxInfo:
    info = await bench.sandbox(agent_id)
    for path, content in (("lib/a.txt", "one\n"), ("lib/b.txt", "two\n"), ("package.json", '{"name": "x"}\n')):
        await bench.call(info, "write_file", OWNER, path=path, content=content)
    return info


async def log_of(bench: Bench, build: Build, **window: Any) -> bytes:
    return (await bench.control.build_logs.read(OWNER, build.build_id, **window)).data


@pytest.mark.req("T3.77")
def test_a_build_tells_what_went_in_what_ran_and_what_came_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await with_sources(bench)
            done = await built(bench, info, DETERMINISTIC)
            assert (done.state, done.code, done.agent_id) == ("succeeded", None, "ada")
            first = bench.control.receipts.get(OWNER, done.receipts[0])
            assert len(done.receipts) == 2
            assert [one.path for one in done.inputs.files] == ["package.json"]
            assert done.inputs.files[0].sha256 == hashlib.sha256(b'{"name": "x"}\n').hexdigest()
            assert done.inputs.template == info.spec.template
            assert first.command == "test -e lib/a.txt"
            expected = {"dist/all.txt": b"one\ntwo\n", "dist/size.txt": b"8\n"}
            told = {one.path: one.sha256 for one in done.artifacts}
            assert told == {path: hashlib.sha256(data).hexdigest() for path, data in expected.items()}
            sums = [(path, len(data), hashlib.sha256(data).hexdigest()) for path, data in expected.items()]
            assert done.artifacts_sha256 == result_digest(sums)
            assert done.dependencies_complete
            kinds = bench.kinds(subject=done.build_id)
            assert kinds == ["build.started", "build.ended"]
            kept = await bench.control.builds.get(VIEWER, done.build_id)
            assert kept.artifacts == done.artifacts

    asyncio.run(scenario())


@pytest.mark.req("T3.77")
def test_a_build_that_fails_keeps_its_whole_log_and_starts_no_phase_after(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            noisy = "seq 1 20000; echo late >&2; exit 3"
            done = await built(bench, info, spec(("one", "echo first"), ("two", noisy), ("three", "touch never")))
            assert (done.state, done.code, done.message) == ("failed", None, "`two`: ended with exit code 3")
            assert [one.state for one in done.phases] == ["succeeded", "failed", "skipped"]
            lines = (await log_of(bench, done)).decode().splitlines()
            assert lines[:3] == ["== one: echo first", "first", f"== two: {noisy}"]
            assert lines[3:20003] == [str(number) for number in range(1, 20001)]
            assert lines[20003:] == ["late", "== three: touch never", "`two` did not succeed"]
            whole, parts, offset = await log_of(bench, done), [], 0
            while True:
                window = await bench.control.build_logs.read(OWNER, done.build_id, offset=offset, length=7001)
                assert (window.total_bytes, window.ended) == (len(whole), True)
                parts.append(window.data)
                if window.next_offset is None:
                    break
                offset = window.next_offset
            assert b"".join(parts) == whole
            assert await log_of(bench, done, phase="one") == b"first\n"
            with pytest.raises(NotFound):
                await log_of(bench, done, phase="four")

    asyncio.run(scenario())


@pytest.mark.req("T3.77")
def test_the_same_tree_and_template_come_to_the_same_artifacts_and_what_differed_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await with_sources(bench)
            first = await built(bench, info, DETERMINISTIC)
            begun = await bench.control.builds.rebuild(OWNER, first.build_id, RebuildRequest())
            again = await bench.control.builds.get(OWNER, begun.build_id, wait_s=20)
            assert (again.state, again.rebuild_of) == ("succeeded", first.build_id)
            assert again.inputs.tree_sha256 == first.inputs.tree_sha256
            assert again.artifacts_sha256 == first.artifacts_sha256
            same = await bench.control.builds.compare(OWNER, first.build_id, again.build_id)
            assert (same.differs, same.reproduced) == ((), True)
            await until(lambda: bench.control.sandboxes.find(again.sandbox_id).state.state == "terminated")
            assert b"made" in await log_of(bench, again)

            await bench.call(info, "write_file", OWNER, path="lib/b.txt", content="TWO\n")
            other = await built(bench, info, DETERMINISTIC)
            told = await bench.control.builds.compare(OWNER, first.build_id, other.build_id)
            assert (told.differs, told.reproduced) == (("input", "output"), None)
            changed = {one.path for one in told.input_changes if one.change == "changed"}
            assert "lib/b.txt" in changed
            assert [one.path for one in told.artifacts] == ["dist/all.txt"]

            louder = spec(("check", "test -e lib/a.txt"), ("make", SAMPLE + "; echo more"), artifacts=("dist/*.txt",))
            third = await built(bench, info, louder)
            told = await bench.control.builds.compare(OWNER, other.build_id, third.build_id)
            assert told.commands == ("make",)
            assert "output" not in told.differs

    asyncio.run(scenario())


@pytest.mark.req("T3.77")
def test_packages_that_came_went_or_were_replaced_are_told_between_two_builds(tmp_path: Path) -> None:
    def install(name: str, version: str) -> str:
        place = f".local/lib/python3.11/site-packages/{name}-{version}.dist-info"
        return f"mkdir -p {place} && printf 'Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n' > {place}/METADATA"

    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            first = await built(bench, info, spec(("get", install("alpha", "1.0") + ";" + install("beta", "2.0"))))
            second = await built(bench, info, spec(("get", "rm -r .local;" + install("alpha", "1.1"))))
            if not first.dependencies:
                pytest.skip("this host tells of no packages")
            told = await bench.control.builds.compare(OWNER, first.build_id, second.build_id)
            assert [(one.name, one.before, one.after) for one in told.dependencies] == [
                ("alpha", "1.0", "1.1"),
                ("beta", "2.0", None),
            ]

    asyncio.run(scenario())


@pytest.mark.req("T3.77")
def test_what_was_declared_and_is_not_there_fails_the_build(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            done = await built(bench, info, spec(("make", "touch a.bin"), artifacts=("a.bin", "b.bin")))
            assert (done.state, done.code, done.missing) == ("failed", "OUTPUT_MISSING", ("b.bin",))
            assert [one.path for one in done.artifacts] == ["a.bin"]

    asyncio.run(scenario())


@pytest.mark.req("T3.77")
def test_a_build_goes_on_over_a_crash_of_the_server_and_is_told_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            wanted = spec(("wait", f"echo x >> runs; {UNTIL_GO}; echo done > out"), artifacts=("out",))
            begun = await bench.control.builds.start(OWNER, info.sandbox_id, wanted, idempotency_key="k")
            pipelines = bench.control.pipelines

            def runs() -> bool:
                return pipelines.known(begun.pipeline_id).steps[0].state == "running"

            await until(runs)
            bench.kill()
            await bench.start()
            assert (await bench.control.builds.get(OWNER, begun.build_id)).state == "running"
            again = await bench.control.builds.start(OWNER, info.sandbox_id, wanted, idempotency_key="k")
            assert again.build_id == begun.build_id
            with pytest.raises(Conflict):
                await bench.control.builds.start(OWNER, info.sandbox_id, DETERMINISTIC, idempotency_key="k")
            bench.go()
            done = await bench.control.builds.get(OWNER, begun.build_id, wait_s=20)
            assert (done.state, [one.path for one in done.artifacts]) == ("succeeded", ["out"])
            assert (tmp_path / "workspace" / "ada" / "runs").read_text() == "x\n"
            assert bench.kinds(subject=begun.build_id) == ["build.started", "build.ended"]

    asyncio.run(scenario())


@pytest.mark.req("T3.77")
def test_a_build_is_cancelled_and_one_whose_inputs_are_gone_is_not_made_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            begun = await bench.control.builds.start(OWNER, info.sandbox_id, spec(("wait", UNTIL_GO), ("next", "true")))
            with pytest.raises(WrongState):
                await bench.control.builds.compare(OWNER, begun.build_id, begun.build_id)
            await bench.control.builds.cancel(OWNER, begun.build_id)
            done = await bench.control.builds.get(OWNER, begun.build_id, wait_s=20)
            assert done.state == "cancelled"
            await bench.control.snapshots.remove(OWNER, done.inputs.snapshot_id)
            before = len(bench.control.sandboxes.list(OWNER))
            with pytest.raises(InputMissing) as refused:
                await bench.control.builds.rebuild(OWNER, done.build_id, RebuildRequest())
            assert refused.value.facts["input"] == "snapshot"
            assert len(bench.control.sandboxes.list(OWNER)) == before

    asyncio.run(scenario())


@pytest.mark.req("T3.77")
def test_an_agent_builds_in_its_own_workspace_and_sees_no_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info, other = await bench.sandbox(), await bench.sandbox("bob")
            own = await bench.control.builds.start(AGENT, info.sandbox_id, spec(("one", "true")))
            theirs = await built(bench, other, spec(("one", "true")))
            assert [one.build_id for one in bench.control.builds.list(AGENT)] == [own.build_id]
            assert bench.control.builds.list(AGENT, agent_id="bob") == []
            for act in (
                bench.control.builds.get(AGENT, theirs.build_id),
                bench.control.builds.cancel(AGENT, theirs.build_id),
                bench.control.builds.start(OTHER, info.sandbox_id, spec(("one", "true"))),
                bench.control.builds.compare(AGENT, own.build_id, theirs.build_id),
            ):
                with pytest.raises(NotFound):
                    await act
            for refused in (
                bench.control.builds.rebuild(AGENT, own.build_id, RebuildRequest()),
                bench.control.builds.start(VIEWER, info.sandbox_id, spec(("one", "true"))),
                bench.control.builds.cancel(VIEWER, own.build_id),
            ):
                with pytest.raises(GrantMissing):
                    await refused
            await bench.control.builds.get(OWNER, own.build_id, wait_s=20)
            assert [one.build_id for one in bench.control.builds.list(OWNER)] == [theirs.build_id, own.build_id]
            page = bench.control.builds.list(OWNER, after=theirs.build_id)
            assert [one.build_id for one in page] == [own.build_id]

    asyncio.run(scenario())


@pytest.mark.req("T3.77")
def test_what_a_rule_withholds_of_a_command_is_withheld_of_its_build(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, rules=WITHHOLD) as bench:
            info = await bench.sandbox()
            done = await built(bench, info, spec(("one", "echo TOP-SECRET | tee out"), artifacts=("out",)))
            assert [one.path for one in done.artifacts] == ["out"]
            seen = await bench.control.builds.get(VIEWER, done.build_id)
            assert (seen.withheld, seen.artifacts, seen.artifacts_sha256) == (True, (), None)

    asyncio.run(scenario())


@pytest.mark.req("T3.77")
def test_what_is_withheld_or_not_known_of_one_build_is_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, rules=WITHHOLD) as bench:
            info = await bench.sandbox()
            hidden = await built(bench, info, spec(("one", "echo TOP-SECRET | tee out"), artifacts=("out",)))
            plain = await built(bench, info, spec(("one", "echo plain | tee out"), artifacts=("out",)))
            for before, after in ((hidden, plain), (plain, hidden)):
                told = await bench.control.builds.compare(AGENT, before.build_id, after.build_id)
                assert (told.withheld, told.artifacts, told.dependencies, told.reproduced) == (True, (), (), None)
                assert not {"output", "dependency"} & set(told.differs)
            whole = await bench.control.builds.compare(OWNER, hidden.build_id, plain.build_id)
            assert (whole.withheld, [one.path for one in whole.artifacts]) == (False, ["out"])

            place = ".local/lib/python3.11/site-packages/alpha-1.0.dist-info"
            wheel = "printf 'Metadata-Version: 2.1\\nName: alpha\\nVersion: 1.0\\n'"
            known = await built(bench, info, spec(("get", f"mkdir -p {place} && {wheel} > {place}/METADATA")))

            async def lost(*_: Any) -> Any:
                raise WrongState("it cannot be looked at")

            monkeypatch.setattr(bench.control.packages, "view", lost)
            unknown = await built(bench, info, spec(("get", "true")))
            assert unknown.dependencies_problem == "it cannot be looked at"
            told = await bench.control.builds.compare(OWNER, known.build_id, unknown.build_id)
            assert (told.dependencies_complete, told.dependencies) == (False, ())
            assert "dependency" not in told.differs

    asyncio.run(scenario())


@pytest.mark.req("T3.77")
def test_a_request_that_fails_takes_nothing_from_another_under_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            builds, find, waits = bench.control.builds, bench.control.builds._inputs.tree, list[asyncio.Event]()

            async def tree(snapshot_id: str) -> str | None:
                turn = asyncio.Event()
                waits.append(turn)
                if len(waits) == 1:
                    await turn.wait()
                    return None  # too many files: the first of them fails
                found = await find(snapshot_id)
                waits[0].set()
                await asyncio.sleep(0)
                return found

            monkeypatch.setattr(builds._inputs, "tree", tree)
            wanted = spec(("one", "true"))
            both = [
                asyncio.create_task(builds.start(OWNER, info.sandbox_id, wanted, idempotency_key="same"))
                for _ in range(2)
            ]
            await until(lambda: bool(waits))
            for _ in range(200):
                await asyncio.sleep(0)
            waits[0].set()
            results = await asyncio.gather(*both, return_exceptions=True)
            assert isinstance(results[0], WrongState)
            kept = {one.snapshot_id for one in bench.control.snapshots.list(OWNER, sandbox_id=info.sandbox_id)}
            made = [one for one in results if isinstance(one, Build)]
            assert all(one.inputs.snapshot_id in kept for one in made)

    asyncio.run(scenario())


def test_the_line_before_a_phase_stays_as_it_is_until_the_phase_is_over() -> None:
    step = PipelineStep(name="one", command="true")
    assert _head(step, StepInfo(name="one", state="running", attempt=1)) == b"== one: true\n"
    over = _head(step, StepInfo(name="one", state="skipped", attempt=0, message="`two` did not succeed"))
    assert over == b"== one: true\n`two` did not succeed\n"


@pytest.mark.req("T3.77")
def test_the_overview_of_an_agent_that_was_made_again_has_nothing_of_the_earlier_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            old = await bench.sandbox()
            first = await built(bench, old, spec(("one", "true")))
            await bench.control.lifecycle.terminate(OWNER, old.sandbox_id)
            await bench.control.agents.delete("ada", caller=OWNER)
            new = await bench.sandbox()
            second = await built(bench, new, spec(("two", "true")))
            beside = await bench.sandbox()
            for info, build, those in (
                (old, first, [old]),
                (new, second, [new, beside]),
                (beside, second, [new, beside]),
            ):
                told = await bench.control.overviews.overview(OWNER, info.sandbox_id)
                builds = next(one for one in told.sections if one.name == "builds")
                assert [one.links["build"] for one in builds.entries] == [f"/v1/builds/{build.build_id}"]
                assert set(told.sandboxes) == {one.sandbox_id for one in those}
                assert ("start_on_workspace" in {one.name for one in told.actions}) == (info is not old)

    asyncio.run(scenario())


def test_a_build_without_sound_phases_is_refused() -> None:
    with pytest.raises(ValueError, match="two steps"):
        spec(("one", "true"), ("one", "true"))
    with pytest.raises(ValueError, match="at least 1 item"):
        spec()


def test_a_window_of_a_log_has_bounds(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            done = await built(bench, info, spec(("one", "true")))
            for wrong in ({"offset": -1}, {"length": 0}):
                with pytest.raises(InvalidArgument):
                    await log_of(bench, done, **wrong)

    asyncio.run(scenario())
