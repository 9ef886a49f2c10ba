"""Held here: of each package it is told whether it is installed, cached, in the template and in a snapshot, and what drifted."""

import asyncio
import itertools
import json
from pathlib import Path

import pytest

from coldframe.contract.errors import NotFound
from coldframe.contract.network import NetworkPackage
from coldframe.contract.packages import PackageChange, PackageManager
from coldframe.contract.sandbox import SandboxInfo
from coldframe.contract.snapshot import SnapshotRequest
from coldframe.contract.template import Package
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
            assert (await bench.control.packages.view(VIEWER, info.sandbox_id)).packages == view.packages

    asyncio.run(scenario())


@pytest.mark.req("T4.24")
def test_each_package_of_a_system_is_told_in_every_combination_of_four_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fourteen of each manager: of sixteen combinations two are of packages that are nowhere but in the cache, or nowhere."""

    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            cases = [one for one in itertools.product((True, False), repeat=4) if one[0] or one[2] or one[3]]
            managers: tuple[PackageManager, ...] = ("pip", "npm")
            system = bench.root / "system" / "ada" / "usr" / "local"
            system.mkdir(parents=True)
            handed: list[tuple[NetworkPackage, str | None]] = []
            expected: dict[tuple[PackageManager, str], tuple[str | None, bool | None, str | None, str | None]] = {}
            templated: list[Package] = []
            gone: list[Path] = []
            later: list[tuple[str, str, str]] = []
            for manager in managers:
                for number, (installed, cached, template, kept) in enumerate(cases):
                    name, version = f"{manager}-package-{number}", f"1.{number}"
                    if cached:
                        digest = f"sha256:{len(handed):064x}"
                        kind = {"pip": "python", "npm": "npm"}[manager]
                        bench.host.cached.add(digest)
                        package = NetworkPackage(kind=kind, name=name, version=version, file=name, digest=digest)
                        handed.append((package, f"cmd_{number}"))
                    if template:
                        templated.append(Package(manager=manager, name=name, version=version))
                    if kept:
                        folder = install(system, manager, name, version)
                        gone += [] if installed else [folder]
                    elif installed:
                        later.append((manager, name, version))
                    # What only the template has was handed over to whoever built that, and to nobody here.
                    told = cached if cached and (installed or kept) else None
                    expected[manager, name] = tuple(  # type: ignore[assignment]
                        told if one is None else version if one else None for one in (installed, None, template, kept)
                    )
            info = await templated_sandbox(bench, *templated)
            taken = await bench.control.snapshots.take(OWNER, info.sandbox_id, SnapshotRequest())
            for folder in gone:
                remove(folder)
            for one in later:
                install(system, *one)

            async def packages_of(_: str) -> object:
                for one in handed:
                    yield one

            monkeypatch.setattr(bench.control.packages._contacts, "packages_of", packages_of)
            view = await bench.control.packages.view(OWNER, info.sandbox_id)
            found = {
                (one.manager, one.name): (one.installed, one.cached, one.in_template, one.in_snapshot)
                for one in view.packages
            }
            assert len(view.packages) == len(expected) == 28 and found == expected
            assert (view.complete, view.snapshot_id) == (True, taken.snapshot_id)
            since = {(one.manager, one.name): (one.before, one.after) for one in view.since_template}
            assert since == {key: (old, new) for key, (new, _, old, _) in expected.items() if old != new}

    asyncio.run(scenario())


@pytest.mark.req("T4.24")
def test_what_the_user_puts_in_front_of_a_template_is_drift_and_told_to_whoever_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            system = bench.root / "system" / "ada" / "usr" / "local"
            install(system, "pip", "leftbox", "1.0")
            install(system, "pip", "other", "2.0")
            install(system / "lib", "npm", "rightbox", "3.0")
            info = await templated_sandbox(
                bench,
                Package(manager="pip", name="leftbox", version="1.0"),
                Package(manager="pip", name="other", version="2.0"),
                Package(manager="npm", name="rightbox", version="3.0"),
            )
            assert (await bench.control.packages.view(OWNER, info.sandbox_id)).since_template == ()
            assert (await bench.control.summaries.summarize(OWNER, info.sandbox_id)).drift == ()
            home = bench.root / "workspace" / "ada"
            folder = install(home, "pip", "leftbox", "1.1")
            (home / ".local/lib/python3.11").mkdir(parents=True)
            folder.parent.rename(home / ".local/lib/python3.11/site-packages")  # `pip install -U` of who is not root
            own = install(home / ".local/lib", "npm", "rightbox", "3.0")
            install(own, "npm", "inner", "0.1")
            install(home / "project", "npm", "leftbox", "7.0")
            line = PackageChange(manager="pip", name="leftbox", before="1.0", after="1.1")
            view = await bench.control.packages.view(OWNER, info.sandbox_id)
            assert view.since_template == (line,)
            rows = sorted(
                (one.installed or "", one.in_template or "")
                for one in view.packages
                if one.manager == "pip" and one.name == "leftbox"
            )
            assert rows == [("1.0", "1.0"), ("1.1", "1.0")], "the template's beside the workspace's"
            taken = await bench.control.snapshots.take(OWNER, info.sandbox_id, SnapshotRequest())
            install(home / "project", "npm", "fresh", "1.0")
            await bench.control.lifecycle.stop(OWNER, info.sandbox_id)
            await bench.control.lifecycle.start(OWNER, info.sandbox_id)
            told = await bench.control.summaries.summarize(OWNER, info.sandbox_id)
            assert [(one.against, one.name, one.before, one.after) for one in told.drift] == [
                ("template", "leftbox", "1.0", "1.1"),
                ("snapshot", "fresh", None, "1.0"),
            ]
            assert taken.snapshot_id and told.left_out == ()

    asyncio.run(scenario())


async def templated_sandbox(bench: Bench, *packages: Package) -> SandboxInfo:
    """With a system of its own, of a template that has these."""
    facts = bench.host.templates.add_setup()
    bench.host.templates.known[facts.digest] = facts.model_copy(update={"packages": packages})
    return await bench.sandbox("ada", profile="computer", template="debian")


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
