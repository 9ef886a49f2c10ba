"""The contract document of a sandbox, put together from its spec, the measured report and the gate's own answers.

Versions are numbered and hashed and never change; a new one is issued when something in it differs, as after
a change of the rules. It is issued first in the transaction that brings the sandbox to `running`, so it is
there before the first command. What is not built or not measured is said in a line of its own.

Lines are put together as plain JSON, and what is equal for all sandboxes of a kind is kept as text: a document has about
two hundred lines, and every creation of a sandbox waits for one. It is checked as a whole when somebody reads it.
"""

import hashlib
import json
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from pydantic import TypeAdapter

from coldframe.contract.caller import Caller
from coldframe.contract.credential import CredentialInfo
from coldframe.contract.document import NOT_VERIFIED, ContractDocument
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.persistence import EVENTS, ITEMS, is_kept
from coldframe.contract.policy import Label, Role
from coldframe.contract.sandbox import SandboxInfo
from coldframe.control.call_records import USER, limit_numbers
from coldframe.control.checkpoints import canonical
from coldframe.control.contract_lines import Lines
from coldframe.control.contract_lines import line as _line
from coldframe.control.exposure import credential_value, exposure
from coldframe.control.judgement import allowed_operations, digest_of
from coldframe.control.ledger import Ledger
from coldframe.control.network_terms import GivenCredential, NetworkTerms, find_terms, reaches
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

_LATEST = "SELECT document FROM contracts WHERE sandbox_id = ? ORDER BY version DESC LIMIT 1"
_INSERT = "INSERT INTO contracts (sandbox_id, version, sha256, document) VALUES (?, ?, ?, ?)"
_TIME = TypeAdapter(datetime)
MOST_KEPT = 256
"""Parts of documents that are kept: one for each kind of sandbox under each rule set."""


class _Fixed(NamedTuple):
    """The sections that no measurement changes."""

    sections: dict[str, Lines]
    texts: dict[str, str]
    """The same as canonical JSON."""


class Contracts:
    """Issues and keeps the documents."""

    def __init__(self, store: Store, ledger: Ledger, rulebook: Rulebook, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._ledger = ledger
        self._rulebook = rulebook
        self._clock = clock
        self._kept: dict[tuple[object, ...], _Fixed] = {}
        self.usable_credentials: Callable[[SandboxInfo], list[CredentialInfo]] = lambda _: []
        """Those that are given to a sandbox."""

    def issue(self, info: SandboxInfo, report: IsolationReport) -> str:
        """Return the newest version as JSON, made anew if it no longer says what is true.

        Raises:
            PolicyUnavailable: there are no rules, so the permissions are undefined and no contract can be.
        """
        terms = self._terms(info)
        fixed, measured = self._fixed(info), _measured_sections(info, report, terms)
        measured["exposure"] = exposure(info, report, terms, self._rulebook.since)
        with self._store.transaction() as connection:
            rows = self._store.read(_LATEST, (info.sandbox_id,))
            version = 1
            if rows:
                newest, sections = json.loads(rows[0][0]), {**fixed.sections, **measured}
                if all(_settled(newest[name]) == _settled(lines) for name, lines in sections.items()):
                    return str(rows[0][0])
                version += int(newest["version"])
            head = {
                "contract": "contract/v1",
                "sandbox_id": info.sandbox_id,
                "version": version,
                "issued_at": _TIME.dump_python(self._clock(), mode="json"),
            }
            texts = fixed.texts | {name: canonical(value) for name, value in (*head.items(), *measured.items())}
            content = ",".join(f'"{name}":{texts[name]}' for name in sorted(texts))
            sha256 = hashlib.sha256(f"{{{content}}}".encode()).hexdigest()
            document = f'{{{content},"sha256":"{sha256}"}}'
            self._store.raw.execute(_INSERT, (info.sandbox_id, version, sha256, document))
            body = {"sandbox_id": info.sandbox_id, "agent_id": info.agent_id, "version": version, "sha256": sha256}
            self._ledger.append("contract.issued", info.sandbox_id, body, connection=connection)
        return document

    def _terms(self, info: SandboxInfo) -> NetworkTerms | None:
        """What it can reach, by the rules now, and as whom; None for a sandbox without network."""
        if info.network is None:
            return None
        rules = self._rulebook.current.network
        given = (one for one in self.usable_credentials(info) if one.state == "usable")
        accepted = tuple(
            GivenCredential(one.terms, one.added_by, one.created_at)
            for one in given
            if reaches(rules, info.network, one.terms.base)
        )
        return find_terms(rules, info.network)._replace(credentials=accepted)

    def _fixed(self, info: SandboxInfo) -> _Fixed:
        """What holds for all sandboxes of the kind is put together once, unless a rule asks which one it is."""
        rules = self._rulebook.current
        if "sandbox_id" in rules.text or "session_id" in rules.text:
            return _make_fixed(info, rules)
        key = (rules.sha256, info.agent_id, info.spec, info.network)
        if key not in self._kept:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[key] = _make_fixed(info, rules)
        return self._kept[key]


def _make_fixed(info: SandboxInfo, rules: RuleSet) -> _Fixed:
    """For an agent's token, in a sandbox that runs and a workspace where nothing has been seen yet."""
    clean = info.model_copy(
        update={"workspace_label": Label.PUBLIC, "state": info.state.model_copy(update={"state": "running"})}
    )
    sections = _fixed_sections(info, _asked(clean, rules))
    return _Fixed(sections, {name: canonical(lines) for name, lines in sections.items()})


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


def _number(value: float) -> int | str:
    return int(value) if value == int(value) else repr(value)


def _fixed_sections(info: SandboxInfo, permissions: Lines) -> dict[str, Lines]:
    """By nothing but what the sandbox was asked to be, its agent and the rules."""
    return {
        "inputs": _inputs(info),
        "outputs": _outputs(),
        "persistence": _persistence(info),
        "permissions": permissions,
        "lifecycle": _lifecycle(info),
        "retention": [
            _line("retention.records", "Records and outputs are kept until the installation is removed.", "unlimited"),
            _line("retention.timer", "No retention timer exists in this version.", None),
        ],
        "backup": [_line("backup.none", "Nothing is backed up by the product; back the data directory up.", None)],
        "cost": [_line("cost.none", "Nothing is metered or charged in this version.", None)],
    }


def _measured_sections(info: SandboxInfo, report: IsolationReport, terms: NetworkTerms | None) -> dict[str, Lines]:
    return {
        "execution": _execution(info, report),
        "isolation": _isolation(report),
        "effective_reach": _reach(report, terms),
        "not_prevented": _not_prevented(report, terms),
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
    for name, item in ITEMS.items():
        kept = {event: is_kept(name, event, background=info.spec.background) for event in EVENTS}
        gone = " or ".join(event.replace("_", " ") for event, survives in kept.items() if not survives)
        text = f"{item.what}: kept, but lost when {gone}." if gone else f"{item.what}: kept."
        value = {event: "kept" if survives else "lost" for event, survives in kept.items()}
        lines.append(_line(f"persistence.{name}", text, value, f"test:persistence.{name}"))
    return lines


def _isolation(report: IsolationReport) -> Lines:
    verified = f"measured:{report.measured_at.isoformat()}"
    lines = [
        _line("isolation.level", "How the box is separated.", report.level, verified),
        _line("isolation.kernel", "The kernel is shared with the host.", report.kernel, verified),
        _line("isolation.kernel_release", "Its release.", report.kernel_release, verified),
        _line("isolation.pause_kinds", "How it can be paused here.", list(report.pause_kinds), verified),
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


def _reach(report: IsolationReport, terms: NetworkTerms | None) -> Lines:
    writable = sorted(mount.target for mount in report.mounts if mount.writable)
    verified = f"measured:{report.measured_at.isoformat()}" if report.mounts else NOT_VERIFIED
    reached = [] if terms is None else [one.name for one in terms.endpoints]
    lines = [
        _line("effective_reach.writable", "Places that code in the box can write.", writable, verified),
        _line("effective_reach.network", "Destinations outside that code in the box can reach.", reached),
        _line(
            "effective_reach.credentials",
            "Credentials that it can use, without having them.",
            [] if terms is None else [one.terms.name for one in terms.credentials],
        ),
    ]
    if terms is None:
        return lines
    for given in terms.credentials:
        credential = given.terms
        text = f"{credential.base} as `{credential.name}`: {', '.join(credential.methods)} of {', '.join(credential.paths)}"
        lines.append(
            _line(
                f"effective_reach.credential.{credential.name}",
                f"{text}; {credential.access}.",
                credential_value(given),
                "record:secret.used",
            )
        )
    for one in terms.endpoints:
        value = {"service": one.name, "identity": None, "grants": list(one.grants)}
        text = f"{one.name} {one.how}, as nobody."
        lines.append(_line(f"effective_reach.network.{one.name}", text, value, "record:network.contact"))
    if terms.registries:
        text = "Packages, read from the registries that the clients of this machine are set to; nothing is sent there."
        lines.append(
            _line("effective_reach.network.packages", text, {"methods": ["GET", "HEAD"]}, "record:network.contact")
        )
    if terms.more:
        lines.append(
            _line("effective_reach.network.more", "Further destinations are in the rules in force.", terms.more)
        )
    return lines


def _not_prevented(report: IsolationReport, terms: NetworkTerms | None) -> Lines:
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
    lines.append(_line("not_prevented.wrong_code", "Code that is wrong runs like any other, and may end with 0.", None))
    for endpoint in () if terms is None else terms.endpoints:
        text = (
            f"Code in the box can send what it has, and may have, to {endpoint.name} {endpoint.how}; that is recorded."
        )
        lines.append(_line(f"not_prevented.network.{endpoint.name}", text, endpoint.name, "record:network.contact"))
    for credential, *_ in () if terms is None else terms.credentials:
        text = (
            f"Code in the box can use credential `{credential.name}` for whatever it allows ({credential.access}: "
            f"{', '.join(credential.methods)} of {', '.join(credential.paths)} at {credential.base}); each use is recorded."
        )
        lines.append(_line(f"not_prevented.credential.{credential.name}", text, credential.name, "record:secret.used"))
    if terms is not None and terms.more:
        lines.append(_line("not_prevented.network.more", "So it can to further destinations of the rules.", terms.more))
    return lines


def _lifecycle(info: SandboxInfo) -> Lines:
    return [
        _line(
            "lifecycle.timers",
            "After so many seconds without activity, and after so many in all, a timer acts.",
            {
                "idle_timeout_s": None if info.spec.idle_timeout_s is None else _number(info.spec.idle_timeout_s),
                "max_age_s": None if info.spec.max_age_s is None else _number(info.spec.max_age_s),
            },
            "record:sandbox.expiring",
        ),
        _line("lifecycle.on_timeout", "What a timer does to the sandbox.", info.spec.on_timeout),
        _line("lifecycle.command", "A command over its time is ended with its whole tree.", "end_command"),
        _line("lifecycle.end", "It ends by `sandbox.terminate`, or is `lost` if its keeper or the machine ends.", None),
        _line(
            "lifecycle.stop",
            "`sandbox.stop` ends its processes, `sandbox.start` builds it again on the same workspace and session.",
            None,
        ),
        _line("lifecycle.server", "A restart of the server leaves it and its commands running.", "kept"),
        _line("lifecycle.background", "The workspace is temporary.", info.spec.background),
    ]
