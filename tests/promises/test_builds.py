"""Builds in real boxes: what is on record of one, and that the same input comes to the same artifacts."""

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox

ARCHIVE = "tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf dist/app.tar -C src ."
"""The sample whose output is the same for the same files."""
PHASES = (
    {"name": "check", "command": "python3 -m py_compile src/app.py && rm -r src/__pycache__ && echo sound"},
    {"name": "pack", "command": f"mkdir -p dist && {ARCHIVE} && sha256sum dist/app.tar"},
)


def written(sandbox: SyncSandbox) -> None:
    sandbox.write_file("src/app.py", "print('Total: 120.00')\n")
    sandbox.write_file("src/data.txt", "1\n2\n")
    sandbox.write_file("requirements.txt", "tiny==1.0\n")


@pytest.mark.req("T3.77")
def test_the_deterministic_sample_comes_to_the_same_artifact_from_the_same_tree_and_template(
    client: SyncColdframe, sandbox: SyncSandbox
) -> None:
    written(sandbox)
    first = client.builds.wait(client.builds.start(sandbox.id, PHASES, artifacts=("dist/*.tar",)).build_id)
    assert first.state == "succeeded", (first, client.builds.log(first.build_id).data)
    assert [one.path for one in first.inputs.files] == ["requirements.txt"]
    again = client.builds.wait(client.builds.rebuild(first.build_id).build_id)
    assert again.sandbox_id != first.sandbox_id
    assert again.tree_sha256 == first.tree_sha256
    assert again.artifacts[0].sha256 == first.artifacts[0].sha256
    same = client.builds.compare(first.build_id, again.build_id)
    assert (same.differs, same.reproduced) == ((), True)
    before = client.receipt(first.receipts[0])["tree_sha256_before"]
    assert before == first.tree_sha256, "the tree is what the first command found"

    sandbox.write_file("src/data.txt", "1\n2\n3\n")
    other = client.builds.wait(client.builds.start(sandbox.id, PHASES, artifacts=("dist/*.tar",)).build_id)
    told = client.builds.compare(first.build_id, other.build_id)
    assert told.differs == ("input", "output")
    assert "src/data.txt" in {one.path for one in told.input_changes if one.change == "changed"}
    assert [one.path for one in told.artifacts] == ["dist/app.tar"]


@pytest.mark.req("T3.77")
def test_what_a_phase_installs_is_among_the_dependencies_and_told_between_builds(
    client: SyncColdframe, sandbox: SyncSandbox
) -> None:
    def install(version: str) -> str:
        place = f".local/lib/python3/site-packages/tiny-{version}.dist-info"
        return (
            f"rm -rf .local/lib; mkdir -p {place}; echo tiny > {place}/RECORD; "
            f"printf 'Metadata-Version: 2.1\\nName: tiny\\nVersion: {version}\\n' > {place}/METADATA"
        )

    builds = [client.builds.wait(client.builds.start(sandbox.id, [install(one)]).build_id) for one in ("1.0", "1.1")]
    assert [[(one.name, one.version) for one in build.dependencies] for build in builds] == [
        [("tiny", "1.0")],
        [("tiny", "1.1")],
    ]
    assert builds[0].dependencies_complete
    assert builds[0].dependencies[0].command_id == builds[0].phases[0].command_id
    told = client.builds.compare(builds[0].build_id, builds[1].build_id)
    assert "dependency" in told.differs
    assert [(one.name, one.before, one.after) for one in told.dependencies] == [("tiny", "1.0", "1.1")]


@pytest.mark.req("T3.77")
def test_a_build_that_failed_is_read_whole_when_its_sandbox_has_ended(client: SyncColdframe, agent_id: str) -> None:
    with client.sandboxes.create(agent_id=agent_id) as sandbox:
        phases = ["echo begins", "seq 1 200000; echo the reason >&2; exit 7", "echo never"]
        failed = client.builds.wait(client.builds.start(sandbox.id, phases).build_id)
    assert (failed.state, [one.state for one in failed.phases]) == ("failed", ["succeeded", "failed", "skipped"])
    assert failed.phases[1].exit_code == 7
    log = b"".join(client.builds.log_parts(failed.build_id))
    body = log.split(b"\n== phase-2: ")[1].split(b"\n", 1)[1].split(b"== phase-3: ")[0]
    assert body == b"".join(b"%d\n" % number for number in range(1, 200_001)) + b"the reason\n"
    assert client.builds.list(agent_id=agent_id)[0].build_id == failed.build_id
