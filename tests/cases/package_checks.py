"""Checks of the package cases: users, owners and tools that want more rights than a sandbox gives."""

import asyncio
import os
import subprocess
import tempfile
from pathlib import Path

from tests.cases.checks import Lab, NotThereYet, check
from tests.cases.runner import Bench

AT_ONCE_S = 10.0


async def fails_at_once(bench: Bench, command: str) -> None:
    """Refused by the gate with a reason; and where the gate does not see it, by the walls, with a few lines."""
    view = await bench.run(command, timeout_s=30)
    assert view.error == "DENIED_BY_RULE" or view.code not in (0, None), view
    assert view.text or view.err.strip(), f"it says nothing: {view}"
    await bench.ask("write_file", path="from-a-file.sh", content=command)
    view = await bench.run(["sh", "from-a-file.sh"], timeout_s=30)
    assert view.code not in (0, None) and view.dur < AT_ONCE_S, view
    assert 1 <= len(view.err.strip().splitlines()) <= 6, view


@check("B133")
async def tools_that_change_users_fail_at_once_and_say_why(lab: Lab) -> None:
    bench = await lab.bench()
    for command in (
        "groupadd -r cfg1",
        "useradd -r cfu1",
        "install -o root -g root -m 640 /dev/null /tmp/of",
        "apt-get install -y --no-download openssh-client",
    ):
        await fails_at_once(bench, command)
    raise NotThereYet(
        "a template here, as whose root they work: tests/host/templates",
        tried="these tools fail at once with a clear line",
    )


@check("B139")
async def a_repository_of_somebody_else_belongs_to_the_sandbox_once_it_is_there(lab: Lab) -> None:
    """What is uploaded is written as the sandbox's user. Directories of the host are never mounted."""
    bench = await lab.bench()
    with tempfile.TemporaryDirectory() as folder:
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.invalid", "-C", folder]
        Path(folder, "file").write_text("content\n", encoding="ascii")
        for arguments in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "first"]):
            await asyncio.to_thread(subprocess.run, [*git, *arguments], check=True, env={**os.environ, "HOME": folder})
        for above, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(above, name)
                await lab.upload(bench, f"uploaded/{os.path.relpath(path, folder)}", Path(path).read_bytes())
    await bench.run("mkdir -p uploaded/.git/refs/tags uploaded/.git/objects/info")  # empty directories carry no bytes
    status = await bench.run("git -C uploaded status --porcelain && git -C uploaded log --format=%s")
    assert (status.code, status.out) == (0, "first\n"), status
    owners = await bench.run("find uploaded -printf '%u\\n' | sort -u")
    assert owners.out == (await bench.run("id -un")).out, owners
    assert "safe.directory" not in (await bench.run("git config --list --show-origin")).out


@check("B141")
async def a_sandbox_in_the_sandbox_fails_at_once_with_a_clear_line(lab: Lab) -> None:
    bench = await lab.bench()
    for command in (
        "unshare -Ur true",
        "bwrap --ro-bind / / --unshare-user true",
        "docker info",
        "podman info",
        "sudo -n true",
        "chroot / true",
    ):
        await fails_at_once(bench, command)
    report = await lab.sandbox_of(bench).report()
    assert any(wall.name == "seccomp" and wall.state == "enforced" for wall in report.properties), report
