"""What is installed for a sandbox: each package with where else it is (cache, template, snapshot), and what has drifted since.

The look is judged and recorded like a listing of files. Which command has installed a package follows from the record of what
each has changed in the workspace, and from what was handed over to it by registries.
"""

import contextlib
import re
from collections import defaultdict
from functools import partial
from typing import Literal, NamedTuple

from pydantic import StrictStr

from coldframe.contract.caller import Caller
from coldframe.contract.errors import ColdframeError, HostUnreachable, NotFound, WrongState, from_wire
from coldframe.contract.packages import (
    MANAGERS,
    FoundPackage,
    ListPackages,
    PackageChange,
    PackageDrift,
    PackageManager,
    PackageRow,
    PackagesFound,
    PackageView,
)
from coldframe.contract.persistence import HOME
from coldframe.contract.policy import Label
from coldframe.contract.ports import Host
from coldframe.contract.sandbox import SandboxInfo
from coldframe.contract.snapshot import Point, SnapshotPoint, SystemPoint, WorkspacePoint
from coldframe.control.at_rest import AtRest, View
from coldframe.control.contacts import Contacts
from coldframe.control.gate import Gate
from coldframe.control.ledger import Ledger
from coldframe.control.network import Network
from coldframe.control.rights import require
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.snapshots import Snapshots
from coldframe.control.templates import Templates
from coldframe.policy.labels import join
from coldframe.tools.registry import Answer, Arguments, CallFacts, Ran, ToolCall, ToolSpec

MOST_LOOKS = 4
MOST_CALLS = 10_000
"""At the end of the record of a sandbox, that are looked through."""
_METADATA = re.compile(r"(?:^|/)([^/]+)\.dist-info/METADATA$")
_FOR_USER = re.compile(r"\.local/lib/(?:python[0-9.]+/site-packages|node_modules)/")
"""Where `pip install` and `npm install --global` of who is not root put what their programs then find before the system's."""
_NPM = re.compile(r"(?:^|/)node_modules/((?:@[^/]+/)?[^/@.][^/]*)/package\.json$")
_Key = tuple[PackageManager, str]


class LookArguments(Arguments):
    snapshot_id: StrictStr | None = None

    def facts(self) -> CallFacts:
        return CallFacts(path="")


class LookAnswer(Answer):
    now: PackagesFound
    system: PackagesFound | None = None
    kept: PackagesFound | None = None
    kept_system: PackagesFound | None = None


class _Fetched(NamedTuple):
    digest: str
    command_id: str | None


class Packages:
    """Of every sandbox whose files are there."""

    def __init__(
        self,
        ledger: Ledger,
        sandboxes: Sandboxes,
        snapshots: Snapshots,
        templates: Templates,
        gate: Gate,
        host: Host,
        network: Network,
        contacts: Contacts,
    ) -> None:
        self._ledger = ledger
        self._sandboxes = sandboxes
        self._snapshots = snapshots
        self._templates = templates
        self._gate = gate
        self._host = host
        self._network = network
        self._contacts = contacts

    async def view(self, caller: Caller, sandbox_id: str, snapshot_id: str | None = None) -> PackageView:
        """All that are installed, or were. Without *snapshot_id* it is compared with the newest snapshot of its workspace.

        Raises:
            GrantMissing, NotFound: not the caller's, or no such snapshot.
            WrongState: its files are not there.
            Refused: a rule is against listing them.
        """
        require(caller, "command.read")
        info = self._sandboxes.get(caller, sandbox_id)
        self._sandboxes.require_readable(info)
        kept = self._snapshot_of(caller, info, snapshot_id)
        found, label = await self._look(caller, info, kept)
        unseen = info.spec.profile == "computer" and found.system is None
        if unseen:  # an ordinary user's is read from inside alone: nothing is told of what nobody looked at
            found = found.model_copy(update={"kept_system": None})
        template = {} if unseen else await self._in_template(caller, info)
        fetched = await self._handed_over(sandbox_id)
        commands = self._commands(sandbox_id)
        rows = _rows(found, template, {key: one.command_id for key, one in fetched.items()} | commands)
        held = await self._host.cached_packages([one.digest for one in fetched.values()])
        rows = [
            row.model_copy(update={"cached": one.digest in held})
            if (one := fetched.get((row.manager, row.name, row.installed or row.in_snapshot or ""))) is not None
            else row
            for row in rows
        ]
        looked = [one for one in (found.now, found.system, found.kept, found.kept_system) if one is not None]
        return PackageView(
            packages=tuple(rows),
            template_sha256=info.template_sha256,
            snapshot_id=kept,
            since_template=() if found.system is None else _since_template(template, found.system, found.now),
            since_snapshot=_since(found) if kept is not None else (),
            complete=not unseen and all(one.complete for one in looked),
            label=label,
        )

    def _snapshot_of(self, caller: Caller, info: SandboxInfo, snapshot_id: str | None) -> str | None:
        if snapshot_id is not None:
            return self._snapshots.ready(caller, snapshot_id).snapshot_id
        found = self._snapshots.list(caller, agent_id=info.agent_id) if info.agent_id is not None else []
        if info.agent_id is None:
            found = self._snapshots.list(caller, sandbox_id=info.sandbox_id)
        return next((one.snapshot_id for one in found if one.state == "ready"), None)

    # -- looking ---------------------------------------------------------------------------------------------------------

    async def _look(self, caller: Caller, info: SandboxInfo, kept: str | None) -> tuple[LookAnswer, Label]:
        workspace = self._snapshots.workspace_of(info)
        for _ in range(MOST_LOOKS):
            label = self._label(caller, info, kept)
            view = View(
                AtRest(self._host.snapshots, info.sandbox_id, workspace),
                label,
                () if kept is None else (kept,),
                self._spec(info, workspace),
            )
            result = await self._gate.look(
                caller, info.sandbox_id, "list_directory", {"snapshot_id": kept}, partial(_same, view)
            )
            if result.error is not None:
                raise from_wire(result.error)
            if join(label, self._label(caller, info, kept)) is label:
                break
        return LookAnswer.model_validate(result.value), result.label

    def _label(self, caller: Caller, info: SandboxInfo, kept: str | None) -> Label:
        label = self._sandboxes.find(info.sandbox_id).workspace_label
        return label if kept is None else join(label, self._snapshots.ready(caller, kept).label)

    def _spec(self, info: SandboxInfo, workspace: WorkspacePoint) -> ToolSpec:
        async def ask(point: Point) -> PackagesFound:
            return await self._host.snapshots.ask(point, ListPackages())

        async def ask_system(of: WorkspacePoint | SnapshotPoint) -> PackagesFound | None:
            if info.spec.profile != "computer":
                return None
            try:
                return await ask(SystemPoint(of=of))
            except NotFound:  # it has none
                return None

        async def ask_live() -> PackagesFound | None:
            """One that is in use is seen by its own box alone."""
            if info.spec.profile == "computer" and info.state.state in ("running", "paused"):
                return await self._sandboxes.system_packages(info)
            return await ask_system(workspace)

        async def run(call: ToolCall[LookArguments]) -> Ran:
            kept = None if call.arguments.snapshot_id is None else SnapshotPoint(snapshot_id=call.arguments.snapshot_id)
            told = LookAnswer(
                now=await ask(workspace),
                system=await ask_live(),
                kept=None if kept is None else await ask(kept),
                kept_system=None if kept is None else await ask_system(kept),
            )
            names = [
                f"{one.name} {one.version}\n"
                for part in (told.now, told.system, told.kept, told.kept_system)
                if part is not None
                for one in part.packages
            ]
            output = "".join(names).encode()
            return Ran(told, output=lambda: output, output_bytes=len(output))

        return ToolSpec("list_directory", "", LookArguments, LookAnswer, writes=False, run=run)

    async def _in_template(self, caller: Caller, info: SandboxInfo) -> dict[_Key, list[str]]:
        if info.template_sha256 is None:
            return {}
        try:
            details = await self._templates.get(caller, f"sha256:{info.template_sha256.removeprefix('sha256:')}")
        except ColdframeError:  # withdrawn from the machine since
            return {}
        found: dict[_Key, list[str]] = defaultdict(list)
        for one in details.packages:
            found[one.manager, one.name].append(one.version)
        return found

    async def drift(self, caller: Caller, sandbox_id: str) -> tuple[tuple[PackageDrift, ...], Label] | None:
        """What differs from its template and from its newest snapshot, the template first, with the label of what is told; None
        where there is neither. Raises as `view` does, and WrongState if not all could be looked at."""
        info = self._sandboxes.get(caller, sandbox_id)
        if info.template_sha256 is None and self._snapshot_of(caller, info, None) is None:
            return None
        view = await self.view(caller, sandbox_id)
        if not view.complete:
            raise WrongState("not all that is installed could be looked at", sandbox_id=sandbox_id)
        lines: list[PackageDrift] = []
        against: Literal["template", "snapshot"]
        for against, changes in (("template", view.since_template), ("snapshot", view.since_snapshot)):
            lines += [PackageDrift(against=against, **one.model_dump()) for one in changes]
        return tuple(lines), view.label

    async def handed_over(self, caller: Caller, sandbox_id: str) -> dict[tuple[PackageManager, str, str], str]:
        """Digests of what registries have given a sandbox, by manager, name and version. Raises GrantMissing, NotFound."""
        self._sandboxes.get(caller, sandbox_id)
        return {key: found.digest for key, found in (await self._handed_over(sandbox_id)).items()}

    async def _handed_over(self, sandbox_id: str) -> dict[tuple[PackageManager, str, str], _Fetched]:
        """By registries to this sandbox."""
        found: dict[tuple[PackageManager, str, str], _Fetched] = {}
        with contextlib.suppress(HostUnreachable):
            await self._network.catch_up(sandbox_id)
        async for package, command_id in self._contacts.packages_of(sandbox_id):
            manager = MANAGERS.get(package.kind)
            if manager is not None and package.file and package.digest:
                name = package.name if manager != "pip" else re.sub(r"[-_.]+", "-", package.name).lower()
                found.setdefault((manager, name, package.version), _Fetched(package.digest, command_id))
        return found

    def _commands(self, sandbox_id: str) -> dict[tuple[PackageManager, str, str], str | None]:
        """Which command wrote the record of a package last, by what each has changed. Versions are in the names of pip's
        records, and in no name of npm's: those are found under an empty one."""
        found: dict[tuple[PackageManager, str, str], str | None] = {}
        self._ledger.settle()
        for entry in self._ledger.newest(sandbox_id, "call.ended", limit=MOST_CALLS):
            files, command_id = entry.body.get("files"), entry.body.get("command_id")
            if not isinstance(files, dict) or command_id is None:
                continue
            for change in files.get("changes") or ():
                if change["change"] not in ("created", "changed"):
                    continue
                if match := _METADATA.search(change["path"]):
                    name, _, version = match.group(1).partition("-")
                    found["pip", re.sub(r"[-_.]+", "-", name).lower(), version] = str(command_id)
                elif match := _NPM.search(change["path"]):
                    found["npm", match.group(1), ""] = str(command_id)
        return found


def _same(view: View) -> View:
    return view


def _versions(*found: PackagesFound | None) -> dict[_Key, list[str]]:
    versions: dict[_Key, list[str]] = defaultdict(list)
    for part in found:
        for one in () if part is None else part.packages:
            versions[one.manager, one.name].append(one.version)
    return versions


def _changes(before: dict[_Key, list[str]], after: dict[_Key, list[str]]) -> tuple[PackageChange, ...]:
    """A line for each version that came, went, or took the place of another."""
    lines = []
    for key in sorted(before.keys() | after.keys()):
        gone, come = list(before.get(key, ())), []
        for version in after.get(key, ()):
            if version in gone:
                gone.remove(version)
            else:
                come.append(version)
        for n in range(max(len(gone), len(come))):
            lines.append(
                PackageChange(
                    manager=key[0],
                    name=key[1],
                    before=sorted(gone)[n] if n < len(gone) else None,
                    after=sorted(come)[n] if n < len(come) else None,
                )
            )
    return tuple(lines)


def _since_template(
    template: dict[_Key, list[str]], system: PackagesFound, workspace: PackagesFound
) -> tuple[PackageChange, ...]:
    """Of the system, and of what `user` has put before it: what a program finds is that."""
    there = _versions(system)
    lines = list(_changes(template, there))
    for one in workspace.packages:
        below = there.get((one.manager, one.name), [])
        if _FOR_USER.match(one.place) and one.version not in below and not _is_within(one):
            before = sorted(below)[-1] if below else None
            lines.append(PackageChange(manager=one.manager, name=one.name, before=before, after=one.version))
    return tuple(sorted(lines, key=lambda line: (line.manager, line.name)))


def _is_within(one: FoundPackage) -> bool:
    """What a package of npm has brought along for itself is nobody else's."""
    return one.place.count("node_modules/") > 1


def _since(found: LookAnswer) -> tuple[PackageChange, ...]:
    """A system that is in no snapshot says nothing of what was before."""
    has_both = found.kept_system is not None
    system = (found.kept_system, found.system) if has_both else (None, None)
    return _changes(_versions(found.kept, system[0]), _versions(found.now, system[1]))


def _rows(
    found: LookAnswer,
    template: dict[_Key, list[str]],
    commands: dict[tuple[PackageManager, str, str], str | None],
) -> list[PackageRow]:
    kept, rows = _versions(found.kept, found.kept_system), []
    left = {key: list(versions) for key, versions in kept.items()}
    in_template = {key: list(versions) for key, versions in template.items()}
    for part, top in ((found.system, ""), (found.now, HOME)):  # the system's are the template's before the workspace's
        for one in () if part is None else part.packages:
            key: _Key = (one.manager, one.name)
            rows.append(
                PackageRow(
                    manager=one.manager,
                    name=one.name,
                    installed=one.version,
                    in_template=_taken(in_template, key, one.version) or _same_or_first(template, key, one.version),
                    in_snapshot=_taken(left, key, one.version),
                    bytes=one.bytes,
                    place=f"{top}/{one.place}",
                    installed_at=one.installed_at,
                    command_id=_command(commands, one),
                )
            )
    for key in sorted(left.keys() | in_template.keys()):
        versions = [*left.get(key, ())], [*in_template.get(key, ())]
        for n in range(max(map(len, versions))):
            rows.append(
                PackageRow(
                    manager=key[0],
                    name=key[1],
                    in_snapshot=versions[0][n] if n < len(versions[0]) else None,
                    in_template=versions[1][n] if n < len(versions[1]) else None,
                )
            )
    return sorted(rows, key=lambda row: (row.manager, row.name, row.place or "~"))


def _same_or_first(there: dict[_Key, list[str]], key: _Key, version: str) -> str | None:
    """Of one that is there beside the one that the template has: it is told all the same what that is."""
    versions = there.get(key)
    return None if not versions else version if version in versions else versions[0]


def _taken(there: dict[_Key, list[str]], key: _Key, version: str) -> str | None:
    """The version there, the same one if it is among them; each belongs to one row."""
    versions = there.get(key)
    if not versions:
        return None
    return versions.pop(versions.index(version) if version in versions else 0)


def _command(commands: dict[tuple[PackageManager, str, str], str | None], one: FoundPackage) -> str | None:
    for version in (one.version, ""):
        if (found := commands.get((one.manager, one.name, version))) is not None:
            return found
    return None
