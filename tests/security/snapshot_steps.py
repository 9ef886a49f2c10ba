"""`host:` steps about copies of a sandbox: what an attacker left in it goes into a snapshot and a fork as data, and nothing of others with it."""

import asyncio
import contextlib
import io
import os
import random
import re
import signal
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from coldframe.client.api import Coldframe
from coldframe.client.models import SnapshotInfo
from coldframe.client.sandbox import Sandbox
from coldframe.contract.errors import ColdframeError, WrongState
from coldframe.contract.sandbox import SandboxSpec
from tests.installation import Installation
from tests.promises.test_crashes import daemon_of
from tests.security.host_steps import step
from tests.security.scene import Breach, NotHere, Scene

T = TypeVar("T")
MOST_KEPT = 50
MOST_RESTARTS = 4
"""One less than a server gives its daemon."""
MOMENTS = random.Random(227)


def times(scene: Scene, wanted: str, usual: int) -> int:
    """All of them with COLDFRAME_SLOW."""
    if os.environ.get("COLDFRAME_SLOW") != "1":
        scene.notes.append(f"{usual} of {wanted} times")
        return min(usual, int(wanted))
    return int(wanted)


async def take(scene: Scene) -> SnapshotInfo:
    """NotHere: something runs in the sandbox, and this user has nothing that holds it still."""
    try:
        return await scene.sandbox.take_snapshot()
    except WrongState:
        if "memory" in (await scene.sandbox.report()).pause_kinds:
            raise
        raise NotHere("a control group that can be frozen") from None


@contextlib.asynccontextmanager
async def fork_of(scene: Scene, snapshot: SnapshotInfo) -> AsyncIterator[Sandbox]:
    spec = SandboxSpec(background=True, snapshot=snapshot.snapshot_id, network="none", on_missing="degrade")
    fork = await scene.place.client.sandboxes.create(spec=spec)
    try:
        yield fork
    finally:
        await fork.terminate(discard=True)


@step(r"^snapshot, then delete the sandbox")
async def deleting_works_whatever_the_modes(scene: Scene, found: re.Match[str]) -> None:
    taken = await take(scene)
    async with fork_of(scene, taken) as fork:
        shown = await scene.run("stat -c %a p/q; chmod 700 p/q; ls p/q/r", on=fork)
        if shown.stdout != "0\nf\n":
            raise Breach(f"the copy is not what was there: {shown.text[:300]}")
    await scene.place.client.snapshots.remove(taken.snapshot_id)
    await scene.close()  # looks for the residue itself
    await scene.open()


@step(r"^snapshot the sandbox, start a fork of the snapshot, list /workspace/(\S+);")
async def a_fork_shows_only_its_own(scene: Scene, found: re.Match[str]) -> None:
    taken = await take(scene)
    async with fork_of(scene, taken) as fork:
        for sandbox in (scene.sandbox, fork):
            listed = (await scene.run(["ls", "-A", found[1]], on=sandbox)).stdout
            foreign = set(os.listdir(scene.place.landscape.host_dir)) & set(listed.split())
            if foreign:
                raise Breach(f"{foreign} of the host shows in the workspace")
    await scene.place.client.snapshots.remove(taken.snapshot_id)


@step(r"^take (\d+) snapshots, start a fork from each")
async def a_database_that_is_written_is_whole_in_each_copy(scene: Scene, found: re.Match[str]) -> None:
    check = "import sqlite3; c = sqlite3.connect('t.db'); print(c.execute('pragma integrity_check').fetchone()[0], c.execute('select count(*) from t').fetchone()[0])"
    counts, still_ms = list[int](), list[float]()
    for _ in range(int(found[1])):
        taken = await take(scene)
        still_ms.append(taken.frozen_ms or 0.0)
        async with fork_of(scene, taken) as fork:
            said, _, count = (await scene.run(["python3", "-c", check], on=fork)).stdout.strip().partition(" ")
        if said != "ok":
            raise Breach(f"the database of a copy is broken: {said}")
        counts.append(int(count))
        await scene.place.client.snapshots.remove(taken.snapshot_id)
    if not 0 < counts[0] <= counts[-1] or not all(still_ms):
        raise Breach(f"rows {counts}, stood still for {still_ms} ms: the copies are not of what ran")
    scene.notes.append(f"stood still for {', '.join(f'{one:.0f}' for one in still_ms)} ms")


@step(r"^inject a credential, take a snapshot, search all layer files")
async def a_secret_is_in_no_layer(scene: Scene, found: re.Match[str]) -> None:
    """The credential that all sandboxes with a network have here."""
    client, secret = scene.place.client, scene.place.landscape.values["real_secret"]
    held = await client.sandboxes.create(spec=SandboxSpec(agent_id=scene.agent_id, on_missing="degrade"))
    try:
        if not await held.credentials():
            raise RuntimeError("it was not given the credential")
        await scene.run("env > seen; cat /proc/self/environ > seen-too", on=held)
        taken = await held.take_snapshot()
        for folder, _, files in os.walk(scene.place.installation.data_dir):
            for one in files:
                path = Path(folder, one)
                with contextlib.suppress(OSError):
                    if path.is_file() and not path.is_symlink() and secret.encode() in path.read_bytes():
                        raise Breach(f"the secret stands in {path}")
        await client.snapshots.remove(taken.snapshot_id)
    finally:
        await held.terminate(discard=True)


@step(r"^(\d+) times: write one file, snapshot$")
async def a_long_chain_of_snapshots_is_whole(scene: Scene, found: re.Match[str]) -> None:
    """More than an overlay takes layers. As many are kept as an agent may have a quarter of."""
    kept, snapshots = list[SnapshotInfo](), scene.place.client.snapshots
    try:
        for number in range(times(scene, found[1], 120)):
            await scene.call("write_file", {"path": f"chain/{number}", "content": f"{number}\n"})
            kept.append(await take(scene))
            if len(kept) > MOST_KEPT:
                await snapshots.remove(kept.pop(0).snapshot_id)
        for taken, count in ((kept[-1], number + 1), (kept[0], number + 2 - len(kept))):
            async with fork_of(scene, taken) as fork:
                shown = await scene.run("ls chain | sort -n; cat chain/* | sort -n", on=fork)
            if shown.stdout != "".join(f"{one}\n" for one in range(count)) * 2:
                raise Breach(f"a copy with {count} files has other ones: {shown.text[-300:]}")
    finally:
        for taken in kept:
            await snapshots.remove(taken.snapshot_id)


@step(r"^kill -9 the daemon during a snapshot, (\d+) times")
async def a_kill_leaves_before_or_after(scene: Scene, found: re.Match[str]) -> None:
    """In an installation of its own: what others do in theirs would be killed with it."""
    own = Installation()
    left = ["it was not closed"]
    try:
        await asyncio.to_thread(own.start)
        async with Coldframe(own.url, own.token) as client:
            sandbox = await client.sandboxes.create(spec=SandboxSpec(agent_id="killed", on_missing="degrade"))
            for number in range(times(scene, found[1], 8)):
                await _kill_once(own, client, sandbox, number)
                if number % MOST_RESTARTS == MOST_RESTARTS - 1:  # or it takes the daemon for broken, and starts no more
                    await asyncio.to_thread(own.stop)
                    await asyncio.to_thread(own.start, port=urlsplit(own.url).port or 0)
            await sandbox.terminate(discard=True)
            for one in await client.snapshots.list():
                await client.snapshots.remove(one.snapshot_id)
    finally:
        left = await asyncio.to_thread(own.close)
    if left:
        raise Breach(f"left behind: {left}")


async def _kill_once(own: Installation, client: Coldframe, sandbox: Sandbox, number: int) -> None:
    content = f"{number}\n" * 20_000
    await _patiently(lambda: sandbox.write_file("content", content))
    before = {one.snapshot_id for one in await client.snapshots.list()}
    taking = asyncio.ensure_future(sandbox.take_snapshot())
    await asyncio.sleep(MOMENTS.random() * 0.06)
    os.kill(await asyncio.to_thread(daemon_of, own), signal.SIGKILL)
    with contextlib.suppress(ColdframeError):
        await taking
    if (await _patiently(lambda: sandbox.read_file("content"))).data != content.encode():
        raise Breach("the workspace is not what it was")
    for one in await client.snapshots.list():
        if one.snapshot_id not in before:
            copied = await _patiently(partial(sandbox.read_file, "content", snapshot=one.snapshot_id))
            if copied.data != content.encode():
                raise Breach(f"snapshot {one.snapshot_id} has something else")


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Until the next daemon serves."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await ask()
            except ColdframeError as error:
                if error.code not in ("HOST_UNREACHABLE", "GUEST_LOST", "UNAVAILABLE"):
                    raise
                await asyncio.sleep(0.1)


@step(r"^export /workspace/(\S+) as an artifact")
async def everything_exported_is_the_sandboxs_own(scene: Scene, found: re.Match[str]) -> None:
    """File by file, and as an archive of the whole workspace, which is unpacked as whoever gets it would."""
    landscape = scene.place.landscape
    for entry in (await scene.sandbox.list_directory(found[1])).entries:
        content = b""
        try:
            async with asyncio.timeout(60):
                async for part in scene.sandbox.download(f"{found[1]}/{entry.name}", length=1 << 16):
                    content += part
        except ColdframeError as error:
            scene.notes.append(f"{entry.name}: {error.code}")
        if landscape.secrets_in(content.decode(errors="replace")):
            raise Breach(f"{entry.name} brought a secret out")
    taken = await take(scene)
    archive = io.BytesIO()
    async for part in scene.place.client.snapshots.export(taken.snapshot_id):
        archive.write(part)
    archive.seek(0)
    with tarfile.open(fileobj=archive) as opened:
        for member in opened:
            where = os.path.normpath(os.path.join("/", member.name))
            if ".." in member.name.split("/") or not where.startswith("/") or member.name.startswith("/"):
                raise Breach(f"the archive has {member.name!r}, which leads out")
            if member.isreg() and member.mode & 0o6000:
                raise Breach(f"{member.name!r} runs as whoever unpacks it")
            file = opened.extractfile(member) if member.isreg() else None
            if file is not None and landscape.secrets_in(file.read().decode(errors="replace")):
                raise Breach(f"{member.name!r} brought a secret out")
    await scene.place.client.snapshots.remove(taken.snapshot_id)
