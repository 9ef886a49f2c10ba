"""Recipes carried out on a real machine: steps in boxes, sealed layers, what is kept of them, and what is refused."""

import asyncio
import contextlib
import hashlib
import io
import os
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest

from coldframe.contract.command import CommandSpec
from coldframe.contract.errors import (
    BuildFailed,
    DependencyMissing,
    InvalidArgument,
    NotFound,
    TemplateChanged,
    WrongState,
)
from coldframe.contract.sandbox import SandboxSpec
from coldframe.contract.snapshot import SnapshotWish, WorkspacePoint
from coldframe.contract.template import (
    AptStep,
    BuildEvent,
    BuildLine,
    BuildOrder,
    EnvStep,
    FilesStep,
    PipStep,
    Recipe,
    RecipeFile,
    RunStep,
    Step,
    StepEnd,
    TemplateFacts,
    packages_digest,
)
from coldframe.host.machine import Machine
from coldframe.host.templates import step_cache
from coldframe.host.templates.store import Template
from coldframe.policy.network_rules import PackageKind
from tests.host.machines import run
from tests.host.test_real_registries import reason_not_to

pytestmark = [
    pytest.mark.timeout(900),  # whoever comes first waits for the template to be built
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the users of a template have to be mapped"),
]


@pytest.fixture(scope="module")
def place(template: Template) -> Iterator[Path]:
    """A data directory with the base template, by second names of its files."""
    folder = Path(tempfile.mkdtemp(prefix="cf-building-"))
    folder.chmod(0o711)
    (folder / "templates").mkdir(mode=0o711)
    subprocess.run(["cp", "-al", os.path.dirname(template.root), folder / "templates"], check=True)
    yield folder
    subprocess.run(["rm", "-rf", folder], check=True)  # ten thousand files: much faster than in Python


def on_machine(place: Path, steps: Callable[[Machine], Awaitable[None]]) -> None:
    async def whole() -> None:
        machine = Machine(str(place), embedded=True)
        try:
            await steps(machine)
        finally:
            await machine.sweep(keep_boxes=set(), keep_sessions=set())
            await machine.close()

    asyncio.run(whole())


class Built:
    """What a build has told."""

    def __init__(self, events: list[BuildEvent]) -> None:
        self.lines = [(one.step, one.stream, one.text) for one in events if isinstance(one, BuildLine)]
        self.ends = [one.was_cached for one in events if isinstance(one, StepEnd)]
        assert isinstance(events[-1], TemplateFacts)
        self.template = events[-1]


def building(
    machine: Machine, template: Template | None, *steps: Step, name: str = "made", **more: Any
) -> AsyncIterator[BuildEvent]:
    options = {"no_cache": more.pop("no_cache", False)}
    recipe = Recipe(name=name, version="1", steps=steps, **more)
    base = None if template is None else template.digest
    return machine.templates.build(BuildOrder(build_id="bld_" + "0" * 20, recipe=recipe, base=base, **options))


async def built(machine: Machine, template: Template | None, *steps: Step, **more: Any) -> Built:
    return Built([event async for event in building(machine, template, *steps, **more)])


async def put(machine: Machine, content: bytes) -> str:
    async def pieces() -> AsyncIterator[bytes]:
        yield content

    digest = hashlib.sha256(content).hexdigest()
    await machine.templates.put_input(digest, pieces(), most_bytes=len(content))
    return digest


@contextlib.asynccontextmanager
async def sandbox(machine: Machine, template: str, agent: str) -> AsyncIterator[Callable[[str], Awaitable[str]]]:
    spec = SandboxSpec(agent_id=agent, template=template, profile="computer")
    await machine.create(agent, spec, session_id=f"session-{agent}")
    box = await machine.box(agent)

    async def said(shell: str) -> str:
        outcome = await run(box, shell)
        return outcome.stdout + outcome.stderr

    try:
        yield said
    finally:
        await machine.end_box(agent)
        await machine.snapshots.settle(WorkspacePoint(agent_id=agent))
        await machine.delete_workspace(agent)


def drafts(place: Path) -> list[str]:
    return [str(path) for path in (place / "templates").glob("**/.new-*")]


@pytest.mark.req("T4.68")
def test_a_template_is_made_step_by_step_and_sandboxes_begin_from_it(place: Path, template: Template) -> None:
    async def steps(machine: Machine) -> None:
        program = b"#!/bin/sh\necho placed $1\n"
        placed = RecipeFile(to="/opt/tools/placed", sha256=await put(machine, program), bytes=len(program), mode=0o755)
        recipe = (
            RunStep(
                command="useradd -m worker; rm /usr/bin/less; echo loud >&2; cp /bin/true /srv/s; chmod 4755 /srv/s"
            ),
            FilesStep(files=(placed,)),
            EnvStep(variables={"WHO": "me"}),
            RunStep(
                command="touch $EXTRA; echo $(pwd) $WHO", cwd="/srv/of-user", user="user", variables={"EXTRA": "x"}
            ),
            RunStep(command=("/opt/tools/placed", "by words"), cwd="/etc"),
            RunStep(command="rm /var/log/faillog /etc/motd; echo x > /var/log/new.log; echo canary > /etc/machine-id"),
        )
        first = await built(machine, template, *recipe)
        assert first.ends == [False] * 6
        assert (1, "stderr", "loud") in first.lines and (4, "stdout", "/srv/of-user me") in first.lines
        assert (5, "stdout", "placed by words") in first.lines
        found = first.template
        assert (found.base, found.origin, found.settings.env) == (template.digest, "recipe", {"WHO": "me"})
        same = (await built(machine, template, name="no-steps")).template
        assert packages_digest(found.packages) == packages_digest(same.packages) and same.bytes == 0
        assert 0 < found.bytes < 1_000_000
        async with sandbox(machine, "made:1", "first") as said:
            seen = "stat -c '%n %U %G %a' /srv/s /srv/of-user/x /opt/tools/placed /home/worker; id -u worker; grep -c canary /etc/machine-id"
            assert (await said(seen)).splitlines() == [
                "/srv/s root root 4755",
                "/srv/of-user/x user user 644",
                "/opt/tools/placed root root 755",
                "/home/worker worker worker 755",
                "1001",
                "0",
            ]
            gone = ("/usr/bin/less", "/var/log/faillog", "/var/log/new.log", "/etc/motd")
            assert await said(f"for one in {' '.join(gone)}; do test -e $one && echo $one; done; :") == ""
        async with sandbox(machine, f"sha256:{template.digest}", "plain") as said:
            assert await said("ls /srv /usr/bin/less") == "/usr/bin/less\n\n/srv:\n"
        again = await built(machine, template, *recipe)
        assert again.ends == [True, True, False, True, True, True] and again.template.digest == found.digest
        anew = await built(machine, template, *recipe, no_cache=True)
        assert not any(anew.ends) and anew.template.digest == found.digest
        other = await built(machine, template, recipe[0], RunStep(command="true"), name="other")
        assert other.ends == [True, False] and other.template.digest != found.digest
        upon = await built(
            machine, machine.templates.store.get(found.digest), RunStep(command="rm /srv/s"), name="upon"
        )
        async with sandbox(machine, "upon", "upon") as said:
            assert await said("ls /srv; /opt/tools/placed") == "of-user\nplaced\n"
        with pytest.raises(WrongState, match="other templates stand on it") as refused:
            await machine.templates.remove(found.digest)
        assert [one["op"] for one in refused.value.next_actions] == ["template.withdraw", "template.remove"]
        for one in (upon.template, first.template, other.template, same):
            await machine.templates.remove(one.digest)

    on_machine(place, steps)
    assert drafts(place) == []


@pytest.mark.req("T4.68")
def test_a_step_that_fails_is_named_with_its_log_and_those_before_are_kept(place: Path, template: Template) -> None:
    async def steps(machine: Machine) -> None:
        good = RunStep(command="echo kept > /srv/kept")
        with pytest.raises(BuildFailed, match=r"step 2 .* ended with 3") as failed:
            await built(machine, template, good, RunStep(command="echo the reason; exit 3; true"))
        assert (failed.value.facts["step"], failed.value.facts["log"]) == (2, ["the reason"])
        with pytest.raises(BuildFailed, match="longer than it may"):
            await built(machine, template, good, RunStep(command="sleep 1000", timeout_s=0.2))
        with pytest.raises(BuildFailed, match="ended with 127"):
            await built(machine, template, good, RunStep(command=("no-such-program",)))
        with pytest.raises(BuildFailed, match="ended with 1"):
            await built(machine, template, good, RunStep(command="false | true"))
        with pytest.raises(InvalidArgument, match="is not on the machine"):
            absent = RecipeFile(to="/etc/x", sha256="0" * 64, bytes=1)
            await built(machine, template, good, FilesStep(files=(absent,)))
        for to, reason in (
            ("/bin/x", "a link"),
            ("/home/user/x", "no place of a template"),
            ("/etc/passwd/x", "a file"),
        ):
            here = RecipeFile(to=to, sha256=await put(machine, b"x"), bytes=1)
            with pytest.raises(InvalidArgument, match=reason):
                await built(machine, template, FilesStep(files=(here,)))
        assert (await built(machine, template, good)).ends == [True]
        with pytest.raises(NotFound):
            await built(machine, template._replace(digest="0" * 64), good)

    on_machine(place, steps)
    assert drafts(place) == []


@pytest.mark.req("T4.68")
def test_a_build_that_is_cancelled_or_killed_leaves_whole_layers_alone(place: Path, template: Template) -> None:
    recipe = (RunStep(command="echo one > /srv/one"), RunStep(command="echo there; sleep 1000"))

    async def until_there(machine: Machine) -> AsyncIterator[None]:
        async with aclosing(cast(Any, building(machine, template, *recipe))) as events:
            async for event in events:
                if isinstance(event, BuildLine) and event.text == "there":
                    yield

    async def cancelled(machine: Machine) -> None:
        async with aclosing(cast(Any, until_there(machine))) as reached:
            await anext(reached)
            assert len(await machine.boxes()) == 1 and len(drafts(place)) == 1
            await machine.sweep(keep_boxes=set(), keep_sessions=set())
            assert len(await machine.boxes()) == 1 and len(drafts(place)) == 1
        assert await machine.boxes() == [] and drafts(place) == []

    on_machine(place, cancelled)
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:

        async def go_on(machine: Machine) -> None:
            async for _ in until_there(machine):
                os.write(tell, b".")

        try:
            on_machine(place, go_on)
        finally:
            os._exit(1)
    os.close(tell)
    assert os.read(told, 1) == b"."
    os.close(told)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(drafts(place)) == 1

    async def afterwards(machine: Machine) -> None:
        await machine.sweep(keep_boxes=set(), keep_sessions=set())
        assert await machine.boxes() == [] and drafts(place) == []
        assert (await built(machine, template, recipe[0])).ends == [True]

    on_machine(place, afterwards)


@pytest.mark.req("T4.68")
def test_nothing_starts_from_a_template_of_which_a_byte_was_changed(place: Path, template: Template) -> None:
    async def steps(machine: Machine) -> None:
        made = (await built(machine, template, RunStep(command="echo right > /srv/canary"), name="canary")).template
        found = machine.templates.store.get(made.digest)
        (layer,) = found.layers
        canary = Path(layer, "srv/canary")
        os.utime(canary, ns=(0, 0))  # not what was noted, and the same to the byte
        async with sandbox(machine, "canary", "touched") as said:
            assert await said("cat /srv/canary") == "right\n"
        before = canary.stat()
        canary.write_text("wrong\n")
        os.utime(canary, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises(TemplateChanged):
            await machine.templates.verify(made.digest)
        spec = SandboxSpec(agent_id="refused", template=f"sha256:{made.digest}", profile="computer")
        with pytest.raises(TemplateChanged, match="not what was built"):
            await machine.create("refused", spec, session_id="session")
        assert await machine.boxes() == []
        with pytest.raises(TemplateChanged):
            await built(machine, machine.templates.store.get(made.digest), RunStep(command="true"), name="upon-it")
        await machine.delete_workspace("refused")
        anew = await built(machine, template, RunStep(command="echo right > /srv/canary"), name="canary")
        assert anew.ends == [False] and anew.template.digest == made.digest
        assert machine.templates.store.layers.verify(Path(layer).parent.name, found.ids)
        await machine.templates.remove(made.digest)

    on_machine(place, steps)


@pytest.mark.req("T4.68")
def test_what_a_workspace_stands_on_stays_and_what_nobody_needs_goes(
    place: Path, template: Template, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = place / "templates" / "layers"

    async def steps(machine: Machine) -> None:
        made = (await built(machine, template, RunStep(command="echo x > /srv/in-use"), name="in-use")).template
        other = (await built(machine, template, RunStep(command="echo x > /srv/unused"), name="unused")).template
        assert len(machine.templates.store.get(made.digest).layers) == 1
        async with sandbox(machine, "in-use", "holder") as said:
            with pytest.raises(WrongState, match="workspace/holder") as refused:
                await machine.templates.remove(made.digest)
            assert refused.value.facts["used_by"] == ["workspace/holder"]
            assert refused.value.next_actions[0]["op"] == "template.withdraw"
            await machine.templates.remove(other.digest)
            assert {"in-use", "unused"} & {one.name for one in machine.templates.store.list()} == {"in-use"}
            monkeypatch.setattr(step_cache, "KEPT_S", -1.0)
            kept = machine.templates.store.get(made.digest).layers
            await machine.templates.collect()
            there = {str(path / "files") for path in layers.iterdir()}
            assert set(kept) <= there and not [path for path in there if os.path.exists(f"{path}/srv/unused")]
            assert await said("cat /srv/in-use") == "x\n"
        await machine.templates.remove(made.digest)
        await machine.templates.remove(made.digest)
        assert not [path for path in layers.iterdir() if (path / "files/srv/in-use").exists()]

    on_machine(place, steps)


@pytest.mark.once
@pytest.mark.req("T4.21", "T4.68")
def test_what_is_built_again_with_its_lock_has_the_same_packages_or_fails(place: Path, template: Template) -> None:
    if reason := reason_not_to(PackageKind.PYTHON):
        pytest.skip(reason)

    async def steps(machine: Machine) -> None:
        await machine.use_network_rules("version: 1\n")
        step = PipStep(packages=("six<1.17",))
        first = (await built(machine, template, step)).template
        (six,) = [one for one in first.packages if one.name == "six"]
        assert (six.manager, six.version) == ("pip", "1.16.0")
        again = await built(machine, template, PipStep(packages=("six",)), locked=first.packages)
        assert again.template.packages == first.packages and again.template.digest == first.digest
        async with sandbox(machine, f"sha256:{first.digest}", "ready") as said:  # which has no network
            assert await said("python3 -c 'import six; print(six.__version__)'") == "1.16.0\n"
        only_pip = (six.model_copy(update={"name": "Six"}),)  # as a file of pip may have it
        partly = await built(machine, template, PipStep(packages=("six",)), locked=only_pip)
        assert partly.template.packages == first.packages
        wrong = tuple(one if one != six else one.model_copy(update={"version": "1.16.99"}) for one in first.packages)
        with pytest.raises(DependencyMissing) as missing:
            await built(machine, template, PipStep(packages=("six==1.16.99",)), locked=wrong)
        assert missing.value.facts["package"] == "six" and "1.16.0" in cast(
            Sequence[str], missing.value.facts["nearest"]
        )
        with pytest.raises(DependencyMissing, match="six"):
            await built(machine, template, locked=first.packages)
        await machine.templates.remove(first.digest)

    on_machine(place, steps)


@pytest.mark.once
@pytest.mark.req("T4.18")
def test_a_template_with_packages_of_apt_is_the_same_when_it_is_built_again(place: Path, template: Template) -> None:
    if reason := reason_not_to(PackageKind.DEBIAN):
        pytest.skip(reason)

    async def steps(machine: Machine) -> None:
        await machine.use_network_rules("version: 1\n")
        first = (await built(machine, template, AptStep(packages=("hello",)))).template
        (hello,) = [one for one in first.packages if one.name == "hello"]
        locked = {"locked": first.packages, "no_cache": True}
        again = (await built(machine, template, AptStep(packages=("hello",)), **locked)).template
        assert again.digest == first.digest
        with pytest.raises(DependencyMissing) as missing:
            await built(machine, template, AptStep(packages=("hello=0.1-1",)))
        assert missing.value.facts["nearest"] == [hello.version]
        async with sandbox(machine, f"sha256:{first.digest}", "greeter") as said:
            assert (
                await said("hello; ls /var/lib/apt/lists/*Packages /var/cache/apt/*.bin 2>/dev/null")
                == "Hello, world!\n"
            )
        await machine.templates.remove(first.digest)

    on_machine(place, steps)


@pytest.mark.req("T4.68")
def test_the_system_of_a_snapshot_becomes_a_template_without_who_it_was_known_by(
    place: Path, template: Template
) -> None:
    async def steps(machine: Machine) -> None:
        async with sandbox(machine, f"sha256:{template.digest}", "origin") as _:
            box = await machine.box("origin")
            line = "useradd -m worker; echo canary > /etc/ssh_key; mkdir -p /etc/ssh; echo canary > /etc/ssh/ssh_host_rsa_key;"
            spec = CommandSpec(command_id="change", shell=line + "rm /usr/bin/less; echo canary > ~/mine", user="root")
            assert [event async for event in box.run(spec)]
            known_by = (await run(box, "cat /etc/machine-id")).stdout
            taken = await machine.snapshots.take(WorkspacePoint(agent_id="origin"), SnapshotWish(name="taken"))
            made = await built(
                machine, None, RunStep(command="echo more > /srv/more"), snapshot=taken.snapshot_id, name="taken"
            )
            assert (made.template.origin, made.template.base) == ("snapshot", template.digest)
        async with sandbox(machine, "taken:1", "taker") as said:
            assert (
                await said("id -u worker; cat /srv/more /etc/ssh_key; ls /etc/ssh; ls ~/mine 2>/dev/null")
                == "1001\nmore\ncanary\n"
            )
            assert await said("test -e /usr/bin/less || cat /etc/machine-id") not in ("", known_by)
        with pytest.raises(WrongState, match="snapshot"):
            await machine.templates.remove(template.digest)
        await machine.templates.remove(made.template.digest)
        await machine.snapshots.remove(taken.snapshot_id)
        with pytest.raises(NotFound):
            await built(machine, None, snapshot=taken.snapshot_id)

    on_machine(place, steps)


def archive_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return target.getvalue()


def headers(*members: tuple[tarfile.TarInfo, bytes]) -> Iterator[bytes]:
    """Of entries, with what they hold, and nothing around them."""
    for member, content in members:
        member.size = len(content)
        yield member.tobuf() + content + bytes(-len(content) % 512)


def entry(name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", **more: Any) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.mode = 0o755
    for key, value in more.items():
        setattr(member, key, value)
    return member, content


def folder(name: str, **more: Any) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, tarfile.DIRTYPE, **more)


def small_system() -> list[tuple[tarfile.TarInfo, bytes]]:
    """bash of this machine and what it needs, and nothing else."""
    said = subprocess.run(["ldd", "/bin/bash"], capture_output=True, text=True, check=True).stdout
    files = ["/bin/bash", *(word for line in said.splitlines() for word in line.split() if word.startswith("/"))]
    names = {os.path.join("usr", path.removeprefix("/usr/").lstrip("/")): path for path in files}
    folders = {"usr", "etc"} | {str(above) for name in names for above in Path(name).parents if str(above) != "."}
    return [
        *(folder(name) for name in sorted(folders)),
        *(
            entry(name, tarfile.SYMTYPE, linkname=f"usr/{name}")
            for name in ("bin", "lib", "lib64")
            if f"usr/{name}" in folders
        ),
        *(entry(name, content=Path(path).read_bytes()) for name, path in names.items()),
        entry("etc/passwd", content=b"root:x:0:0::/root:/bin/bash"),
        entry("etc/group", content=b"root:x:0:\n"),
    ]


@pytest.mark.req("T4.68")
def test_a_system_from_an_archive_runs_with_its_own_users(place: Path) -> None:
    async def steps(machine: Machine) -> None:
        sparse = entry("./srv/zeros", content=bytes(3_000_000), uid=65535, gid=7)
        whole = archive_of(*small_system(), folder("./srv", mode=0o700, uid=33), sparse, folder("root", mode=0o700))
        digest = await put(machine, whole)
        made = await built(machine, None, RunStep(command="echo more > /more"), archive=digest, name="small")
        assert (made.template.base, made.template.origin) == (None, "archive")
        assert made.template.packages == ()
        async with sandbox(machine, "small", "small") as said:
            assert await said("echo $UID $(< /more); test -r /srv/zeros || echo closed") == "1000 more\nclosed\n"
            assert await said("while read line; do echo $line; done < /etc/passwd") == (
                "root:x:0:0::/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\n"
            )
        again = await built(machine, None, RunStep(command="echo more > /more"), archive=digest, name="small")
        assert again.template.digest == made.template.digest and again.ends == [True]
        await machine.templates.remove(made.template.digest)

    on_machine(place, steps)


HOSTILE = {
    "leaves": ([entry("../canary")], "leaves its place"),
    "absolute": ([entry("/canary")], "leaves its place"),
    "inside out": ([folder("a"), entry("a/../../canary")], "leaves its place"),
    "below a link": ([entry("a", tarfile.SYMTYPE, linkname="/"), entry("a/canary")], "no directory"),
    "no parent": ([entry("a/b")], "before that"),
    "device": ([entry("null", tarfile.CHRTYPE, devmajor=1, devminor=3)], "device"),
    "disk": ([entry("disk", tarfile.BLKTYPE, devmajor=8)], "device"),
    "link out": ([entry("a", tarfile.LNKTYPE, linkname="/etc/passwd")], "leaves its place"),
    "link to a link": (
        [entry("b", tarfile.SYMTYPE, linkname="/"), entry("a", tarfile.LNKTYPE, linkname="b")],
        "no file",
    ),
    "twice": ([entry("a"), entry("a")], "twice"),
    "a link made a file": ([entry("a", tarfile.SYMTYPE, linkname="/canary"), entry("a", content=b"x")], "twice"),
    "deep": ([folder("/".join("a" * n)) for n in range(1, 130)], "too deep"),
    "too many users": ([entry("a", uid=65_536)], "users are 0 to 65535"),
    "no system": ([folder("etc")], "/bin/bash"),
    "bash that is nowhere": ([folder("bin"), entry("bin/bash", tarfile.SYMTYPE, linkname="bash")], "/bin/bash"),
    "users that are a link": (
        [folder("bin"), entry("bin/bash"), folder("etc"), entry("etc/passwd", tarfile.SYMTYPE, linkname="/etc/shadow")],
        "no system",
    ),
}


def test_an_archive_that_would_reach_out_is_refused_and_nothing_is_left(place: Path) -> None:
    async def steps(machine: Machine) -> None:
        told: dict[str, str] = {}
        for what, (members, _) in HOSTILE.items():
            with pytest.raises(InvalidArgument) as refused:
                await built(machine, None, archive=await put(machine, archive_of(*members)))
            told[what] = str(refused.value)
        assert {what for what, (_, reason) in HOSTILE.items() if reason not in told[what]} == set(), told
        long_header = tarfile.TarInfo("x")
        long_header.pax_headers = {"comment": "x" * 3_000_000}
        for damaged in (
            b"",
            b"no archive at all" * 100,
            archive_of(*small_system())[:-200_000],
            b"".join(headers(*small_system())),  # without an end
            b"".join([*headers(*small_system()), b"x" * 512, *headers(entry("etc/more")), bytes(1024)]),
            long_header.tobuf(format=tarfile.PAX_FORMAT),
        ):
            with pytest.raises(InvalidArgument, match="no root file system"):
                await built(machine, None, archive=await put(machine, damaged))

    on_machine(place, steps)
    assert drafts(place) == []
