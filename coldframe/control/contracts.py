"""The contract document of a sandbox, put together from its spec, the measured report and the gate's own answers.

Versions are numbered and hashed and never change; a new one is issued when something in it differs, as after
a change of the rules. It is issued first in the transaction that brings the sandbox to `running`, so it is
there before the first command. What is not built or not measured is said in a line of its own.

Lines are put together as plain JSON and checked once, as a whole: a document has about two hundred of them, and every
creation of a sandbox waits for one.
"""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter

from coldframe.contract.caller import Caller
from coldframe.contract.document import NOT_VERIFIED, ContractDocument
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.policy import Label, Role
from coldframe.contract.sandbox import SandboxInfo, SandboxSpec
from coldframe.control.call_records import USER, limit_numbers
from coldframe.control.judgement import allowed_operations, digest_of
from coldframe.control.ledger import Ledger
from coldframe.control.rulebook import Rulebook
from coldframe.control.store import Store, metadata
from coldframe.policy.rules import RuleSet
from coldframe.tools.registry import HOME, STREAM_CAP_BYTES, all_tools

contracts = sa.Table(
    "contracts",
    metadata,
    sa.Column("sandbox_id", sa.Text, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("document", sa.Text, nullable=False),
)

Line = dict[str, Any]
"""A ContractLine, as JSON."""
Lines = list[Line]

_LATEST = "SELECT document FROM contracts WHERE sandbox_id = ? ORDER BY version DESC LIMIT 1"
_INSERT = "INSERT INTO contracts (sandbox_id, version, sha256, document) VALUES (?, ?, ?, ?)"
_TIME = TypeAdapter(datetime)
MOST_ASKED = 256
"""Permissions that are kept: one for each kind of sandbox under each rule set."""
_KEPT: dict[str, tuple[str, str, str]] = {
    "commits": ("Saved repositories in the workspace", "kept", "kept"),
    "tree": ("Files of the workspace, uncommitted ones included", "kept", "kept"),
    "dependencies": ("Packages installed inside the workspace", "kept", "kept"),
    "system": ("System files outside the workspace", "read-only, never changed", "read-only, never changed"),
    "temporary": ("Temporary files and shared memory", "kept while the sandbox runs", "lost"),
    "processes": ("Processes left running by a command", "kept while the sandbox runs", "lost"),
    "records": ("Output of commands, receipts, ledger", "kept", "kept"),
}
"""Item: what it is, what becomes of it when a command or the server ends, and when the sandbox ends."""


class Contracts:
    """Issues and keeps the documents."""

    def __init__(self, store: Store, ledger: Ledger, rulebook: Rulebook, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._ledger = ledger
        self._rulebook = rulebook
        self._clock = clock
        self._asked: dict[tuple[str, str | None, SandboxSpec], Lines] = {}

    def issue(self, info: SandboxInfo, report: IsolationReport) -> ContractDocument:
        """Return the newest version, made anew if it no longer says what is true.

        Raises:
            PolicyUnavailable: there are no rules, so the permissions are undefined and no contract can be.
        """
        sections = _sections(info, report, self._permissions(info))
        with self._store.transaction() as connection:
            rows = self._store.read(_LATEST, (info.sandbox_id,))
            newest = json.loads(rows[0][0]) if rows else None
            if newest is not None and all(
                _settled(newest[name]) == _settled(lines) for name, lines in sections.items()
            ):
                return ContractDocument.model_validate(newest)
            content = {
                "contract": "contract/v1",
                "sandbox_id": info.sandbox_id,
                "version": 1 if newest is None else newest["version"] + 1,
                "issued_at": _TIME.dump_python(self._clock(), mode="json"),
                **sections,
            }
            document = ContractDocument.model_validate({**content, "sha256": digest_of(content)})
            self._store.raw.execute(
                _INSERT, (info.sandbox_id, document.version, document.sha256, document.model_dump_json())
            )
            self._ledger.append(
                "contract.issued",
                info.sandbox_id,
                {
                    "sandbox_id": info.sandbox_id,
                    "agent_id": info.agent_id,
                    "version": document.version,
                    "sha256": document.sha256,
                },
                connection=connection,
            )
        return document

    def _permissions(self, info: SandboxInfo) -> Lines:
        """What an agent's token may do. Asked once for all sandboxes of the kind, unless a rule asks which one it is."""
        rules = self._rulebook.current
        clean = info.model_copy(
            update={"workspace_label": Label.PUBLIC, "state": info.state.model_copy(update={"state": "running"})}
        )
        if "sandbox_id" in rules.text or "session_id" in rules.text:
            return _asked(clean, rules)
        key = (rules.sha256, info.agent_id, info.spec)
        if key not in self._asked:
            if len(self._asked) >= MOST_ASKED:
                self._asked.clear()
            self._asked[key] = _asked(clean, rules)
        return self._asked[key]


def _asked(info: SandboxInfo, rules: RuleSet) -> Lines:
    nobody = "contract"
    agent = Caller(token_id=nobody, role=Role.AGENT, agent_id=info.agent_id or "background", surface="embedded")
    lines = [
        _line("permissions.rules", "The rules in force, by digest.", rules.sha256, "record:policy.changed"),
        _line(
            "permissions.unlisted",
            "An operation that is not listed is denied. Answers are for an agent's token in a PUBLIC session.",
            "deny",
            "gate",
        ),
    ]
    for one in allowed_operations(agent, info, Label.PUBLIC, rules):
        text = f"{one.operation}: {one.answer}" + (f" ({one.condition})" if one.condition else "")
        lines.append(
            _line(f"permissions.{one.operation}", text + ".", {"answer": one.answer, "rule_id": one.rule_id}, "gate")
        )
    return lines


def _settled(lines: Lines) -> Lines:
    """Without what differs from one measurement to the next although the same holds: its time and its wording."""
    kept = []
    for line in lines:
        value = line["value"]
        if isinstance(value, dict):
            value = {name: one for name, one in value.items() if name not in ("evidence", "verified_at")}
        measured = str(line["verified_by"]).startswith("measured:")
        kept.append({**line, "value": value, "verified_by": "measured" if measured else line["verified_by"]})
    return kept


def document_digest(document: ContractDocument) -> str:
    """Return the SHA-256 of the canonical JSON of everything but `sha256`."""
    return digest_of(document.model_dump(mode="json", exclude={"sha256"}))


def _line(line_id: str, text: str, value: Any, verified_by: str = NOT_VERIFIED) -> Line:
    return {"id": line_id, "text": text, "value": value, "verified_by": verified_by}


def _number(value: float) -> int | str:
    return int(value) if value == int(value) else repr(value)


def _sections(info: SandboxInfo, report: IsolationReport, permissions: Lines) -> dict[str, Lines]:
    return {
        "inputs": _inputs(info),
        "execution": _execution(info, report),
        "outputs": _outputs(),
        "persistence": _persistence(info),
        "isolation": _isolation(report),
        "permissions": permissions,
        "exposure": _exposure(info),
        "effective_reach": _reach(report),
        "not_prevented": _not_prevented(report),
        "lifecycle": _lifecycle(info),
        "retention": [
            _line("retention.records", "Records and outputs are kept until the installation is removed.", "unlimited"),
            _line("retention.timer", "No retention timer exists in this version.", None),
        ],
        "backup": [_line("backup.none", "Nothing is backed up by the product; back the data directory up.", None)],
        "cost": [_line("cost.none", "Nothing is metered or charged in this version.", None)],
    }


def _inputs(info: SandboxInfo) -> Lines:
    workspace = "a temporary workspace of this session" if info.spec.background else f"agent `{info.agent_id}`"
    return [
        _line("inputs.workspace", f"The workspace is that of {workspace}.", info.agent_id, "record:sandbox.created"),
        _line("inputs.files", "Files come in through tool calls and uploads alone.", "tools", "gate"),
        _line("inputs.environment", "Commands get a clean environment and stdin at its end.", "clean"),
        _line("inputs.declared", "No inputs were declared beyond that.", []),
    ]


def _execution(info: SandboxInfo, report: IsolationReport) -> Lines:
    spec = info.spec
    strengths = {limit.kind: limit for limit in report.limits}
    lines = [
        _line("execution.template", "System files are this machine's own, read-only.", spec.template),
        _line("execution.template_digest", "The template has no digest: it is the live system of the host.", None),
        _line("execution.profile", "What the sandbox is for.", spec.profile),
        _line("execution.user", "Commands run as this user.", USER),
        _line("execution.home", "The workspace is mounted here.", HOME),
        _line("execution.tools", "What can be asked for.", list(all_tools()), "gate"),
        _line("execution.usable_when", "Usable once the state is `running`.", "running"),
        _line("execution.runtimes", "Runtimes are listed on request, and not fixed.", None),
        _line("execution.leftovers", "Processes that outlive their command.", spec.leftovers),
        _line(
            "execution.requires", "Properties without which it would have been refused.", list(spec.requires), "host"
        ),
    ]
    for name, number in limit_numbers(spec.limits).items():
        kind = name.rpartition("_")[0] if name.endswith(("_ms", "_mib", "_milli")) else name
        measured = strengths.get(kind)
        verified = NOT_VERIFIED if measured is None else f"probe:limit:{kind}"
        how = "not reported by the host" if measured is None else f"{measured.strength}, by {measured.enforced_by}"
        lines.append(_line(f"execution.limits.{name}", f"Limit {name}: {how}.", number, verified))
    return lines


def _outputs() -> Lines:
    return [
        _line("outputs.streams", "stdout and stderr are kept whole on disk, by command.", "whole", "record:call.ended"),
        _line(
            "outputs.answer_bytes", "One answer holds at most this of each stream; more is streamed.", STREAM_CAP_BYTES
        ),
        _line("outputs.files", "Files that commands change are recorded with digests.", "receipt", "record:call.ended"),
        _line("outputs.declared", "No output patterns were declared.", []),
        _line("outputs.labels", "Every result carries a label.", [label.value for label in Label], "gate"),
    ]


def _persistence(info: SandboxInfo) -> Lines:
    lines = []
    for name, (what, running, ended) in _KEPT.items():
        if info.spec.background and name in ("commits", "tree", "dependencies"):
            ended = "lost: the workspace is this session's"
        value = {"command_ends": running, "server_restarts": running, "sandbox_ends": ended}
        lines.append(_line(f"persistence.{name}", f"{what}: {running}; when the sandbox ends: {ended}.", value))
    return lines


def _isolation(report: IsolationReport) -> Lines:
    verified = f"measured:{report.measured_at.isoformat()}"
    lines = [
        _line("isolation.level", "How the box is separated.", report.level, verified),
        _line("isolation.kernel", "The kernel is shared with the host.", report.kernel, verified),
        _line("isolation.kernel_release", "Its release.", report.kernel_release, verified),
    ]
    for one in report.properties:
        lines.append(
            _line(
                f"isolation.control.{one.name}",
                f"{one.name}: {one.state}, by {one.mechanism}.",
                {
                    "enforced": one.state == "enforced",
                    "state": one.state,
                    "enforced_by": one.mechanism,
                    "evidence": one.evidence,
                    "verified_at": report.measured_at.isoformat(),
                    "bound": one.bound,
                    "caveat": one.caveat,
                },
                f"probe:{one.name}",
            )
        )
    for limit in report.limits:
        lines.append(
            _line(
                f"isolation.limit.{limit.kind}",
                f"{limit.kind} is limited: {limit.strength}, by {limit.enforced_by}.",
                {
                    "limit": _number(limit.limit),
                    "unit": limit.unit,
                    "enforced": limit.strength == "hard",
                    "strength": limit.strength,
                    "enforced_by": limit.enforced_by,
                    "bound": limit.bound,
                    "supported": limit.supported,
                    "reason": limit.reason,
                    "verified_at": report.measured_at.isoformat(),
                },
                f"probe:limit:{limit.kind}",
            )
        )
    shown = report.model_dump(
        mode="json", include={"mounts", "devices", "interfaces", "first_process", "namespaces", "boundary_weakened"}
    )
    own = [one for one in shown["interfaces"] if one["held_by"] == "product" or one["kind"] == "network"]
    lines += [
        _line(
            "isolation.first_process", "The first process, as the kernel shows it.", shown["first_process"], verified
        ),
        _line("isolation.namespaces", "The namespaces of the box.", shown["namespaces"], verified),
        _line("isolation.devices", "Every device node inside.", shown["devices"], verified),
        _line("isolation.interfaces", "What opens to the box, beside its own sockets.", own, verified),
        _line(
            "isolation.boundary_weakened",
            "Mounts that are not this level's own.",
            shown["boundary_weakened"],
            verified,
        ),
    ]
    for value in shown["mounts"]:
        target, access = value["target"], "writable" if value["writable"] else "read-only"
        lines.append(_line(f"isolation.mount.{target}", f"{target} is {access}.", value, verified))
    return lines


def _exposure(info: SandboxInfo) -> Lines:
    return [
        _line("exposure.inside", "Inside: the workspace, /tmp, and the host's system files read-only.", "inside"),
        _line("exposure.brokered", "Brokered: nothing; there is no egress broker in this version.", []),
        _line("exposure.outside", "Outside: network, other sandboxes, host processes and files.", "outside"),
        _line("exposure.network", "Connections outward are refused and recorded.", info.spec.network),
    ]


def _reach(report: IsolationReport) -> Lines:
    writable = sorted(mount.target for mount in report.mounts if mount.writable)
    verified = f"measured:{report.measured_at.isoformat()}" if report.mounts else NOT_VERIFIED
    return [
        _line("effective_reach.writable", "Places that code in the box can write.", writable, verified),
        _line("effective_reach.network", "Addresses that code in the box can reach outside.", []),
        _line("effective_reach.credentials", "Credentials handed to the box.", []),
    ]


def _not_prevented(report: IsolationReport) -> Lines:
    lines = [
        _line(f"not_prevented.level.{number}", sentence, None, "document:isolation")
        for number, sentence in enumerate(report.sentences, start=1)
    ]
    for one in report.properties:
        if one.state != "enforced":
            text = f"{one.name} is {one.state}." + (f" {one.caveat}" if one.caveat else "")
            lines.append(_line(f"not_prevented.{one.name}", text, one.state, f"probe:{one.name}"))
    lines.append(
        _line("not_prevented.own_files", "Code in the box can destroy or spoil all files of its own workspace.", None)
    )
    lines.append(_line("not_prevented.deny_list", "A list of commands is advice; the walls are the boundary.", None))
    return lines


def _lifecycle(info: SandboxInfo) -> Lines:
    return [
        _line("lifecycle.timers", "No timer ends or pauses the sandbox.", None),
        _line("lifecycle.on_timeout", "A command over its time is ended with its whole tree.", "end_command"),
        _line("lifecycle.end", "It ends by `sandbox.terminate`, or is `lost` if its keeper or the machine ends.", None),
        _line("lifecycle.server", "A restart of the server leaves it and its commands running.", "kept"),
        _line("lifecycle.background", "The workspace is temporary.", info.spec.background),
    ]
