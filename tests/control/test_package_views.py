"""Held here: of each package it is told whether it is installed, cached, in the template and in a snapshot, and what drifted."""

import asyncio
import itertools
import json
from pathlib import Path

import pytest

from coldframe.contract.errors import GrantMissing, NotFound
from coldframe.contract.network import NetworkPackage
from coldframe.contract.packages import PackageChange, PackageManager
from coldframe.contract.sandbox import SandboxInfo
from coldframe.contract.snapshot import SnapshotRequest
from tests.control.bench import OTHER, OWNER, VIEWER, Bench, opened

SITE = ".venv/lib/python3.11/site-packages"


def install(place: Path, manager: str, name: str, version: str) -> Path:
    """As the manager leaves it."""
    if manager == "pip":
        folder = place / SITE / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: not this\n")
        (folder / "RECORD").write_text(f"{name}/__init__.py,sha256=x,120\n{name}/more.py,,30\n")
        return folder
    folder = place / "node_modules" / name
    folder.mkdir(parents=True)
    (folder / "package.json").write_text(json.dumps({"name": name, "version": version}))
    return folder


def remove(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


@pytest.mark.req("T4.24")
def test_each_of_twelve_packages_is_told_where_it_is_and_what_drifted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every combination of installed, cached and in a snapshot that there can be, for two managers, six each."""

    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox("ada")
            place = bench.root / "workspace" / "ada"
            # One that is nowhere is no row.
            cases = [case for case in itertools.product((True, False), repeat=3) if case[0] or case[2]]
            handed: list[tuple[NetworkPackage, str | None]] = []
            expected: dict[tuple[PackageManager, str], tuple[str | None, bool | None, str | None]] = {}
            folders: dict[tuple[str, str], Path] = {}
            managers: tuple[PackageManager, ...] = ("pip", "npm")
            for manager in managers:
                for number, (installed, cached, kept) in enumerate(cases):
                    name, version = f"{manager}-package-{number}", f"1.{number}"
                    expected[manager, name] = (version if installed else None, cached, version if kept else None)
                    kind = {"pip": "python", "npm": "npm"}[manager]
                    digest = f"sha256:{len(handed):064x}"
                    if cached:
                        bench.host.cached.add(digest)
                    package = NetworkPackage(kind=kind, name=name, version=version, file=f"{name}.whl", digest=digest)
                    handed.append((package, f"cmd_{number}"))
                    if kept:
                        folders[manager, name] = install(place, manager, name, version)
            snapshot = await bench.control.snapshots.take(OWNER, info.sandbox_id, SnapshotRequest())
            for (manager, name), (now, _, before) in expected.items():
                if before is None:
                    install(place, manager, name, str(now))
                elif now is None:
                    remove(folders[manager, name])

            async def packages_of(_: str) -> object:
                for one in handed:
                    yield one

            monkeypatch.setattr(bench.control.packages._contacts, "packages_of", packages_of)
            view = await bench.control.packages.view(OWNER, info.sandbox_id)
            found = {(one.manager, one.name): (one.installed, one.cached, one.in_snapshot) for one in view.packages}
            assert len(expected) == 12 and found == expected
            assert all(one.in_template is None for one in view.packages)
            assert (view.complete, view.snapshot_id) == (True, snapshot.snapshot_id)
            for one in view.packages:
                assert (one.installed_at is not None, one.place is not None) == (one.installed is not None,) * 2
                assert one.installed is None or one.command_id == f"cmd_{one.name.rpartition('-')[2]}"
                assert one.bytes == (None if one.installed is None else 150 if one.manager == "pip" else one.bytes)
            drift = {(one.manager, one.name): (one.before, one.after) for one in view.since_snapshot}
            assert drift == {key: (old, new) for key, (new, _, old) in expected.items() if old != new}
            with pytest.raises(GrantMissing):
                await bench.control.packages.view(VIEWER, info.sandbox_id)

    asyncio.run(scenario())


@pytest.mark.req("T4.24")
def test_an_upgrade_is_exactly_one_line_of_drift_and_the_command_that_made_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox("ada")
            place = bench.root / "workspace" / "ada"
            old = install(place, "pip", "leftbox", "1.0")
            install(place, "pip", "other", "2.0")
            install(place, "npm", "@scope/rightbox", "3.0")
            install(place / "node_modules/@scope/rightbox", "npm", "inner", "4.0")
            taken = await bench.control.snapshots.take(OWNER, info.sandbox_id, SnapshotRequest())
            assert await drift(bench, info) == ()
            remove(old)
            install(place, "pip", "leftbox", "1.1")
            line = PackageChange(manager="pip", name="leftbox", before="1.0", after="1.1")
            assert await drift(bench, info) == (line,)
            await bench.control.lifecycle.stop(OWNER, info.sandbox_id)  # what is at rest is looked at likewise
            view = await bench.control.packages.view(OWNER, info.sandbox_id, taken.snapshot_id)
            assert view.since_snapshot == (line,)
            assert {one.name for one in view.packages} == {"leftbox", "other", "@scope/rightbox", "inner"}
            (row,) = [one for one in view.packages if one.name == "leftbox"]
            assert (row.installed, row.in_snapshot, row.cached) == ("1.1", "1.0", None)
            await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)
            with pytest.raises(NotFound):
                await bench.control.packages.view(OTHER, info.sandbox_id)

    asyncio.run(scenario())


def test_a_package_is_told_with_the_command_that_wrote_it_last_however_many_there_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coldframe.control.packages.MOST_CALLS", 3)

    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox("ada")
            install(bench.root / "workspace" / "ada", "npm", "leftbox", "1.0")
            for number in range(6):
                changes = [{"path": "node_modules/leftbox/package.json", "change": "changed"}]
                body = {"sandbox_id": info.sandbox_id, "command_id": f"cmd_{number}", "files": {"changes": changes}}
                bench.control.ledger.append("call.ended", f"call_{number}", {**body, "call_id": f"call_{number}"})
            view = await bench.control.packages.view(OWNER, info.sandbox_id)
            assert [one.command_id for one in view.packages] == ["cmd_5"]

    asyncio.run(scenario())


async def drift(bench: Bench, info: SandboxInfo) -> tuple[PackageChange, ...]:
    return (await bench.control.packages.view(OWNER, info.sandbox_id)).since_snapshot
