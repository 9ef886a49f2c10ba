"""Overviews of workspaces: files, Git, activity, builds, logs, previews and deployment side by side, each linked to its receipt.

All of it is on record, or is read of files at rest: nothing is started for it, so it is the same when whatever ran has ended. What is
read of files goes through the gate as calls of their tools.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple
from urllib.parse import quote

from coldframe.contract.caller import Caller
from coldframe.contract.command import CommandInfo
from coldframe.contract.errors import ColdframeError, from_wire
from coldframe.contract.git import GitLogView, GitRepositoriesView, GitRepository
from coldframe.contract.ledger import CallEnded, CallStarted, LedgerEntry
from coldframe.contract.overview import (
    OverviewAction,
    OverviewEntry,
    OverviewSection,
    WorkspaceOverview,
)
from coldframe.contract.policy import Outcome, Role
from coldframe.contract.preview import PreviewInfo
from coldframe.contract.sandbox import ENDED, SandboxInfo
from coldframe.control.builds import Builds
from coldframe.control.call_records import ids_of
from coldframe.control.gate import Gate
from coldframe.control.ledger import Ledger
from coldframe.control.outputs import Outputs
from coldframe.control.previews import Previews
from coldframe.control.repositories import Repositories
from coldframe.control.rights import may, require
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.snapshots import Snapshots
from coldframe.policy.labels import join

MOST_SANDBOXES = 10
"""Of the same workspace, the newest, whose record is looked at."""
MOST_CALLS = 60
"""Of each, the newest."""
MOST_ENTRIES = 25
"""Of each section."""
MOST_FILES = 20_000
MOST_REPOSITORIES = 10
MOST_TITLE = 200
NO_DEPLOYMENT = "this version deploys nothing: a deployment needs a person's approval, which is not there yet; a preview shows the work meanwhile"


class _Call(NamedTuple):
    """One that has ended, and whose receipt the caller may see."""

    started: CallStarted
    end: LedgerEntry
    receipt_id: str


class Overviews:
    """Starts nothing but what reads files."""

    def __init__(
        self,
        ledger: Ledger,
        sandboxes: Sandboxes,
        gate: Gate,
        outputs: Outputs,
        repositories: Repositories,
        builds: Builds,
        previews: Previews,
        snapshots: Snapshots,
        clock: Callable[[], datetime],
    ) -> None:
        self._ledger = ledger
        self._sandboxes = sandboxes
        self._gate = gate
        self._outputs = outputs
        self._repositories = repositories
        self._builds = builds
        self._previews = previews
        self._snapshots = snapshots
        self._clock = clock

    async def overview(self, caller: Caller, sandbox_id: str) -> WorkspaceOverview:
        """As it is now, of the workspace that a sandbox is or was on. A part that the caller may not have is empty, and says so.

        Raises:
            GrantMissing, NotFound: not the caller's.
        """
        require(caller, "command.read")
        info = self._sandboxes.get(caller, sandbox_id)
        beside = self._beside(caller, info)
        self._ledger.settle()
        calls = sorted(self._calls(caller, beside), key=lambda one: one.end.seq, reverse=True)
        git, actions = await self._git(caller, info, calls)
        sections = (
            await self._files(caller, info, calls),
            git,
            _section("activity", [_entry_of(one) for one in calls]),
            await self._builds_of(caller, info),
            await self._logs(caller, beside),
            await self._previews_of(caller, beside),
            OverviewSection(name="deployment", available=False, reason=NO_DEPLOYMENT),
        )
        now = self._sandboxes.get(caller, sandbox_id)
        return WorkspaceOverview(
            sandbox_id=sandbox_id,
            agent_id=info.agent_id,
            state=now.state.state,
            at=self._clock(),
            label=join(now.workspace_label, self._sandboxes.session(now).taint),
            sandboxes=tuple(one.sandbox_id for one in beside),
            sections=sections,
            actions=(*actions, *self._from_snapshots(caller, info)) if may(caller, "sandbox.create") else (),
        )

    def _beside(self, caller: Caller, info: SandboxInfo) -> list[SandboxInfo]:
        """Those that are or were on the same workspace, newest first, and it among them in any case."""
        if info.agent_id is None or not self._sandboxes.has_its_agent(info):  # one that was made again has another
            return [info]
        found = self._sandboxes.list(caller, agent_id=info.agent_id, limit=MOST_SANDBOXES)
        mine = [one for one in found if self._sandboxes.has_its_agent(one)]
        return mine if any(one.sandbox_id == info.sandbox_id for one in mine) else [info, *mine[: MOST_SANDBOXES - 1]]

    def _calls(self, caller: Caller, beside: list[SandboxInfo]) -> Iterator[_Call]:
        for info in beside:
            for end in self._ledger.newest(info.sandbox_id, "call.ended", limit=MOST_CALLS):
                begin = self._ledger.course(end.subject).get("call.started")
                if begin is not None and not _is_withheld(caller, end):
                    yield _Call(CallStarted.model_validate(begin.body), end, ids_of(end.subject).receipt_id)

    def _may_see(self, caller: Caller, receipt_id: str) -> bool:
        end = self._ledger.course(ids_of(receipt_id).call_id).get("call.ended")
        return end is not None and not _is_withheld(caller, end)

    # -- sections ------------------------------------------------------------------------------

    async def _files(self, caller: Caller, info: SandboxInfo, calls: list[_Call]) -> OverviewSection:
        try:
            there = await self._there(caller, info)
        except ColdframeError as error:
            return OverviewSection(name="files", available=False, reason=f"{error.code}: {error.message}")
        found: dict[str, OverviewEntry] = {}
        for call in calls:
            files = call.end.body.get("files") or {}
            for change in files.get("changes", ()):
                path = str(change["path"])
                if path in found or change["kind"] != "file" or "/.git/" in f"/{path}":
                    continue
                content = f"/v1/sandboxes/{info.sandbox_id}/files/{quote(path)}"
                links = {"content": content} if path in there else {}
                found[path] = _entry_of(call, title=path, facts={"change": str(change["change"])}, more=links)
        return _section("files", list(found.values()))

    async def _there(self, caller: Caller, info: SandboxInfo) -> frozenset[str]:
        asked = {"path": "", "recursive": True, "max_entries": MOST_FILES}
        result = await self._gate.call(caller, info.sandbox_id, "list_directory", asked)
        if result.error is not None:
            raise from_wire(result.error)
        return frozenset(one["path"] for one in result.value["entries"] if one["type"] == "file")

    async def _git(
        self, caller: Caller, info: SandboxInfo, calls: list[_Call]
    ) -> tuple[OverviewSection, list[OverviewAction]]:
        """Repositories as they stand, then what Git was run for; and ways to go on from the last commit of each."""
        operations = [_entry_of(call) for call in calls if _is_git(call.started)]
        try:
            found = await self._repositories.look(caller, info.sandbox_id, GitRepositoriesView, limit=MOST_REPOSITORIES)
        except ColdframeError as error:
            whole = _section("git", operations)
            return whole.model_copy(update={"reason": f"{error.code}: {error.message}"}), []
        entries, actions = [], []
        for one in found.repositories:
            entry = await self._repository(caller, info, one, found)
            entries.append(entry)
            if one.head is not None and info.agent_id is not None and self._sandboxes.has_its_agent(info):
                actions.append(_on_commit(info.agent_id, one.path, one.head))
        return _section("git", [*entries, *operations]), actions

    async def _repository(
        self, caller: Caller, info: SandboxInfo, one: GitRepository, found: GitRepositoriesView
    ) -> OverviewEntry:
        place = "" if one.path == "." else one.path
        below = f"/v1/sandboxes/{info.sandbox_id}/git"
        links = {"receipt": f"/v1/receipts/{found.receipt_id}"}
        facts: dict[str, str | int | float | bool | list[str] | None] = {"branch": one.branch, "commit": one.head}
        at, receipt_id = None, found.receipt_id
        try:
            log = await self._repositories.look(caller, info.sandbox_id, GitLogView, path=place, limit=1)
            links |= {name: f"{below}/{name}?path={quote(place, safe='')}" for name in ("status", "log", "refs")}
            if log.commits:
                links["commit"] = f"{below}/show?path={quote(place, safe='')}&revision={log.commits[0].id}"
                facts |= {"message": _short(log.commits[0].message), "author": log.commits[0].author}
                at = log.commits[0].committed_at
        except ColdframeError as error:
            facts["problem"] = error.message
        return OverviewEntry(
            title=f"repository {one.path}",
            at=at,
            sandbox_id=info.sandbox_id,
            receipt_id=receipt_id,
            facts=facts,
            links=links,
        )

    async def _builds_of(self, caller: Caller, info: SandboxInfo) -> OverviewSection:
        is_shared = info.agent_id is not None and self._sandboxes.has_its_agent(info)
        whose = {"agent_id": info.agent_id} if is_shared else {"sandbox_id": info.sandbox_id}
        try:
            found = self._builds.list(caller, **whose, limit=MOST_ENTRIES + 1)
            # Those of an earlier agent of that name are older than all of this one, so that none of these is cut off.
            found = [one for one in found if not is_shared or self._is_on_its_workspace(one.sandbox_id)]
        except ColdframeError as error:
            return OverviewSection(name="builds", available=False, reason=f"{error.code}: {error.message}")
        entries = []
        for one in found:
            build = await self._builds.get(caller, one.build_id)
            receipts = [each for each in build.receipts if self._may_see(caller, each)]
            links = {"build": f"/v1/builds/{one.build_id}"}
            if receipts:
                links["receipt"] = f"/v1/receipts/{receipts[-1]}"
            if receipts and await self._has_output(caller, build.sandbox_id, ids_of(receipts[-1]).command_id):
                links["log"] = f"/v1/builds/{one.build_id}/log"
            entries.append(
                OverviewEntry(
                    title=one.name or one.build_id,
                    at=one.started_at,
                    sandbox_id=one.sandbox_id,
                    receipt_id=receipts[-1] if receipts else None,
                    facts={
                        "state": one.state,
                        "code": one.code,
                        "tree_sha256": one.tree_sha256,
                        "artifacts_sha256": one.artifacts_sha256,
                    },
                    links=links,
                    actions=(
                        _act("rebuild", "makes it again from what went in", f"/v1/builds/{one.build_id}/rebuild"),
                    ),
                )
            )
        return _section("builds", entries)

    def _is_of_its_agent(self, sandbox_id: str | None) -> bool:
        return sandbox_id is not None and self._is_on_its_workspace(sandbox_id)

    def _is_on_its_workspace(self, sandbox_id: str) -> bool:
        return self._sandboxes.has_its_agent(self._sandboxes.find(sandbox_id))

    async def _logs(self, caller: Caller, beside: list[SandboxInfo]) -> OverviewSection:
        """Commands with what they printed, and which of them failed."""
        found: list[tuple[str, CommandInfo]] = []
        for info in beside:
            listed = await self._outputs.commands(caller, info.sandbox_id, newest=MOST_ENTRIES)
            found += [(info.sandbox_id, one) for one in listed]
        found.sort(key=lambda pair: (pair[1].started_at is not None, pair[1].started_at), reverse=True)
        entries = []
        for sandbox_id, one in found[: MOST_ENTRIES + 1]:
            entries.append(await self._log_entry(caller, sandbox_id, one))
        return _section("logs", entries)

    async def _log_entry(self, caller: Caller, sandbox_id: str, one: CommandInfo) -> OverviewEntry:
        path = f"/v1/sandboxes/{sandbox_id}/commands/{one.command_id}"
        ids = ids_of(one.command_id)
        end = self._ledger.course(ids.call_id).get("call.ended")
        receipt_id = None if end is None or _is_withheld(caller, end) else ids.receipt_id
        links = {"command": path}
        facts: dict[str, str | int | float | bool | list[str] | None] = {"state": one.state}
        reports = []
        if end is not None and receipt_id is not None:
            links["receipt"] = f"/v1/receipts/{receipt_id}"
            ended = CallEnded.model_validate(end.body)
            facts |= {"ended": ended.ended, "exit_code": ended.exit_code}
            found = () if ended.outputs is None else ended.outputs.found
            reports = [each.report for each in found if each.report is not None]
        if reports:
            facts["failed_tests"] = [failure.full_name for report in reports for failure in report.failures][
                :MOST_ENTRIES
            ]
        if await self._has_output(caller, sandbox_id, one.command_id):
            links |= {stream: f"{path}/output?stream={stream}" for stream in ("stdout", "stderr")}
        elif one.status is not None and one.status.code is not None:
            facts["problem"] = one.status.code
        return OverviewEntry(
            title=_short(one.command_line),
            at=one.started_at,
            sandbox_id=sandbox_id,
            receipt_id=receipt_id,
            facts=facts,
            links=links,
        )

    async def _has_output(self, caller: Caller, sandbox_id: str, command_id: str) -> bool:
        try:
            await self._outputs.output(caller, sandbox_id, command_id, "both", 0, 1)
        except ColdframeError:
            return False
        return True

    async def _previews_of(self, caller: Caller, beside: list[SandboxInfo]) -> OverviewSection:
        if not may(caller, "preview.read"):
            return OverviewSection(name="previews", available=False, reason="the token may not see previews")
        found = [one for info in beside for one in self._previews.list(caller, info.sandbox_id)]
        found.sort(key=lambda one: one.created_at, reverse=True)
        return _section("previews", [await self._preview(caller, one) for one in found[: MOST_ENTRIES + 1]])

    async def _preview(self, caller: Caller, one: PreviewInfo) -> OverviewEntry:
        path = f"/v1/previews/{one.preview_id}"
        links = {"preview": path}
        receipt_id = None if one.command_id is None else ids_of(one.command_id).receipt_id
        if receipt_id is not None and self._may_see(caller, receipt_id):
            links["receipt"] = f"/v1/receipts/{receipt_id}"
        else:
            receipt_id = None
        facts: dict[str, str | int | float | bool | list[str] | None] = {"port": one.port, "url": one.url}
        try:
            await self._previews.log(caller, one.preview_id, 1)
            links["log"] = f"{path}/log"
        except ColdframeError as error:
            facts["problem"] = error.code
        try:
            status = (await self._previews.get(caller, one.preview_id)).status
            facts["state"] = None if status is None else status.state
            facts["code"] = None if status is None else status.code
        except ColdframeError as error:
            facts["problem"] = error.code
        return OverviewEntry(
            title=one.name or one.command or f"port {one.port}",
            at=one.created_at,
            sandbox_id=one.sandbox_id,
            receipt_id=receipt_id,
            facts=facts,
            links=links,
            actions=tuple(self._controls(caller, one, path)),
        )

    def _controls(self, caller: Caller, one: PreviewInfo, path: str) -> Iterator[OverviewAction]:
        if one.revoked_at is not None:
            return
        has_ended = self._sandboxes.find(one.sandbox_id).state.state in ENDED
        if not has_ended and one.command_id is not None:
            if may(caller, "preview.stop"):
                yield _act("stop", "ends what serves; the address stays", f"{path}/stop")
            if may(caller, "preview.restart"):
                yield _act("start", "wakes its sandbox, and starts what serves", f"{path}/restart")
        if one.inputs is not None and may(caller, "preview.rebuild"):
            yield _act("rebuild", "makes it again on another sandbox from what is on record", f"{path}/rebuild")

    def _from_snapshots(self, caller: Caller, info: SandboxInfo) -> Iterator[OverviewAction]:
        if info.agent_id is not None and self._sandboxes.has_its_agent(info):
            body = {"agent_id": info.agent_id}
            yield _act("start_on_workspace", "makes a sandbox on this workspace, as it is now", "/v1/sandboxes", body)
        if not may(caller, "snapshot.read"):
            return
        found = [one for one in self._snapshots.list(caller, agent_id=info.agent_id) if one.state == "ready"]
        # Of a name that is another agent's now, or nobody's, only its own: the others' files are not those of this workspace.
        is_shared = info.agent_id is not None and self._sandboxes.has_its_agent(info)
        mine = [
            one
            for one in found
            if one.sandbox_id == info.sandbox_id or (is_shared and self._is_of_its_agent(one.sandbox_id))
        ]
        if mine:
            newest = max(mine, key=lambda one: one.created_at)
            yield _act(
                "start_on_snapshot",
                f"makes a sandbox with the files of snapshot `{newest.name or newest.snapshot_id}`",
                "/v1/sandboxes",
                {"background": True, "snapshot": newest.snapshot_id},
            )


def _is_withheld(caller: Caller, end: LedgerEntry) -> bool:
    """Whether its receipt is kept from the caller, since a rule was against its result."""
    decision = end.body.get("decision") or {}
    return decision.get("outcome") != Outcome.ALLOW.value and caller.role not in (Role.OWNER, Role.ADMIN)


def _section(name: str, entries: list[OverviewEntry]) -> OverviewSection:
    return OverviewSection.model_validate(
        {
            "name": name,
            "available": True,
            "entries": entries[:MOST_ENTRIES],
            "complete": len(entries) <= MOST_ENTRIES,
        }
    )


def _entry_of(
    call: _Call,
    *,
    title: str | None = None,
    facts: dict[str, str | int | float | bool | list[str] | None] | None = None,
    more: dict[str, str] | None = None,
) -> OverviewEntry:
    started, body = call.started, call.end.body
    told = {"tool": started.tool, "caller": started.caller, "session_id": started.session_id}
    outcome = {name: body[name] for name in ("exit_code", "error_code") if body.get(name) is not None}
    return OverviewEntry(
        title=title or _title_of(started),
        at=call.end.at,
        sandbox_id=started.sandbox_id,
        receipt_id=call.receipt_id,
        facts={**told, **outcome, **(facts or {})},
        links={"receipt": f"/v1/receipts/{call.receipt_id}", **(more or {})},
    )


def _title_of(started: CallStarted) -> str:
    context = started.context
    what = context.command if context.command is not None else context.path
    return _short(f"{started.tool} {what}".strip() if what else started.tool)


def _is_git(started: CallStarted) -> bool:
    reading = started.context.reading
    return reading is not None and any(one.name == "git" for one in reading.programs)


def _on_commit(agent_id: str, repository: str, head: str) -> OverviewAction:
    """The last commit beside the workspace as it is, so that nothing in that is lost."""
    place = "" if repository == "." else repository
    copy = f"{place or 'workspace'}-{head[:10]}"
    address = f"./{place}" if place else "."
    steps = (
        _act(
            "clone",
            "checks the commit out beside",
            "/v1/sandboxes/{sandbox_id}/git/clone",
            {"url": address, "path": copy},
        ),
        _act(
            "switch", "goes to it", "/v1/sandboxes/{sandbox_id}/git/switch", {"path": copy, "to": head, "detach": True}
        ),
    )
    action = _act(
        "start_on_commit",
        f"makes a sandbox on this workspace, with commit {head[:10]} of `{repository}` in `{copy}`",
        "/v1/sandboxes",
        {"agent_id": agent_id},
    )
    return action.model_copy(update={"then": steps})


def _act(name: str, effect: str, path: str, body: Mapping[str, object] | None = None) -> OverviewAction:
    return OverviewAction(name=name, effect=effect, path=path, body=dict(body or {}))


def _short(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= MOST_TITLE else f"{line[:MOST_TITLE]}…"
