"""What builders of other products expect of a build: archives copied as a Dockerfile copies, and a home that sandboxes begin with."""

import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldframe.contract.errors import BuildFailed
from coldframe.contract.template import HOME_STORE, Recipe, RunStep, Settings, UnpackStep, template_digest
from coldframe.host.machine import Machine
from coldframe.host.templates.store import Template
from tests.host.templates.test_building import built, on_machine, put, sandbox

pytestmark = [
    pytest.mark.timeout(900),  # whoever comes first waits for the template to be built
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the users of a template have to be mapped"),
]


@pytest.fixture(scope="module")
def place(template: Template) -> Iterator[Path]:
    """A data directory with the base template, by second names of its files."""
    folder = Path(tempfile.mkdtemp(prefix="cf-homes-"))
    folder.chmod(0o711)
    (folder / "templates").mkdir(mode=0o711)
    subprocess.run(["cp", "-al", os.path.dirname(template.root), folder / "templates"], check=True)
    yield folder
    subprocess.run(["rm", "-rf", folder], check=True)  # ten thousand files: much faster than in Python


def archive(*, pressed: bool = True) -> bytes:
    """`app/` with a program, a file in a folder, a link, and a file whose name a shell would part."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz" if pressed else "w") as tar:
        for name, content, mode in (
            ("app/run", b"#!/bin/sh\necho ran\n", 0o755),
            ("app/deep/data", b"data", 0o640),
            ("app/two words", b"2", 0o644),
        ):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            tar.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("app/link")
        link.type, link.linkname = tarfile.SYMTYPE, "deep/data"
        tar.addfile(link)
    return written.getvalue()


async def unpack(machine: Machine, entries: str, to: str, *, pressed: bool = True, **more: object) -> UnpackStep:
    content = archive(pressed=pressed)
    sent = {"sha256": await put(machine, content), "bytes": len(content)}
    return UnpackStep.model_validate({**sent, "entries": entries, "to": to, **more})


@pytest.mark.req("T4.68")
def test_entries_of_an_archive_are_copied_as_a_dockerfile_copies(place: Path, template: Template) -> None:
    async def steps(machine: Machine) -> None:
        recipe = (
            RunStep(command="mkdir /srv/there"),
            await unpack(machine, "app", "/opt/whole"),
            await unpack(machine, "app/*", "/opt/each", pressed=False, owner="user", mode=0o750),
            await unpack(machine, "app/run", "/srv/there"),
            await unpack(machine, "app/run", "/srv/made/"),
            await unpack(machine, "app/run", "/usr/local/bin/renamed"),
            await unpack(machine, "app/two words", "/opt/spaced"),
            RunStep(
                command="renamed; cat /opt/whole/link; echo; stat -c '%U %a %n' /opt/each/run /opt/whole/deep/data"
            ),
            RunStep(command="readlink /opt/each/link; cat /opt/spaced; echo; ls -A /srv/there /srv/made; ls -A /"),
        )
        said = [
            text
            for _, stream, text in (await built(machine, template, *recipe, name="unpacked")).lines
            if stream != "build"
        ]
        assert said[:4] == ["ran", "data", "user 750 /opt/each/run", "root 640 /opt/whole/deep/data"]
        assert said[4] == "deep/data"
        assert said[5:11] == ["2", "/srv/made:", "run", "", "/srv/there:", "run"]
        assert not [one for one in said if "coldframe-archive" in one], "nothing of the archive itself stays"

    on_machine(place, steps)


@pytest.mark.req("T4.68")
def test_what_is_not_in_an_archive_fails_the_build_and_says_what(place: Path, template: Template) -> None:
    async def steps(machine: Machine) -> None:
        with pytest.raises(BuildFailed) as told:
            await built(machine, template, await unpack(machine, "app/no*", "/opt"), name="missing")
        assert told.value.facts["step"] == 1
        assert told.value.facts["log"] == ["nothing in the archive is called 'app/no*'"]

    on_machine(place, steps)


@pytest.mark.req("T4.68")
def test_what_steps_leave_at_home_is_there_for_later_ones_and_for_sandboxes(place: Path, template: Template) -> None:
    async def steps(machine: Machine) -> None:
        recipe = (
            await unpack(machine, "app", "/home/user/app", owner="user"),
            RunStep(
                command="cat app/deep/data; rm -r app/deep; mkdir kept; touch -d 1990-01-01 kept/old",
                user="user",
                cwd="/home/user",
            ),
            RunStep(
                command="rm app/link; mkdir app/link; echo root > app/link/of-root; chmod 600 app/link/of-root",
                cwd="/home/user",
            ),
            RunStep(
                command="find . -mindepth 1 ! -name .exec_history -printf '%u %p\\n' | sort; cat app/link/of-root",
                user="user",
                cwd="/home/user",
            ),
        )
        made = await built(machine, template, *recipe, name="homely", home=True)
        said = [text for step, stream, text in made.lines if stream == "stdout" and step == 4]
        names = ["./app", "./app/link", "./app/link/of-root", "./app/run", "./app/two words", "./kept", "./kept/old"]
        assert said == [*(f"user {name}" for name in names), "root"]
        assert made.template.settings.home
        async with sandbox(machine, f"sha256:{made.template.digest}", "homely") as told:
            assert await told(f"ls {HOME_STORE}/kept") == "old\n"

    on_machine(place, steps)


@pytest.mark.req("T4.68")
def test_two_steps_that_leave_the_same_are_both_heeded(place: Path, template: Template) -> None:
    """The kernel mounts no directory twice in one view."""

    async def steps(machine: Machine) -> None:
        there = "echo same > /opt/same; touch -d @1600000000 /opt/same /opt"
        away = "rm /opt/same; touch -d @1600000000 /opt"
        made = await built(
            machine,
            template,
            RunStep(command=there),
            RunStep(command=away),
            RunStep(command=there),
            RunStep(command="cat /opt/same"),
            name="twice",
        )
        assert [text for step, stream, text in made.lines if (step, stream) == (4, "stdout")] == ["same"]
        async with sandbox(machine, f"sha256:{made.template.digest}", "twice") as told:
            assert await told("cat /opt/same") == "same\n"

    on_machine(place, steps)


def test_templates_of_before_keep_their_digests() -> None:
    """Also those of recipes that could not say yet what this version can."""
    told = {"env": {"A": "b"}, "start": {"command": "true"}}
    digest = template_digest(None, ("a" * 64,), Settings.model_validate(told))
    assert digest == "a3427b4728e8929441bdaf5036183c4fe5f403bfcbb26b1af6dc8c9d13d58eb6"
    recipe = Recipe.model_validate(
        {"name": "app", "base": "debian", "start": told["start"], "steps": [{"kind": "run", "command": "true"}]}
    )
    assert recipe.sha256 == "25e1f8174fc274e7b24915914e88d064456306c70e0ae889f0a96efb5d03ac5c"
