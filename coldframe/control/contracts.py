"""The contract document of a sandbox, put together from its spec, the measured report and the gate's own answers.

Versions are numbered and hashed and never change; a new one is issued when something in it differs, as after
a change of the rules, and says what it comes from by what is on record since the version before. It is issued first in the
transaction that brings the sandbox to `running`, so it is there before the first command. What is not built or not measured
is said in a line of its own.

Lines are put together as plain JSON, and what is equal for all sandboxes of a kind is kept as text: a document has about
two hundred lines, and every creation of a sandbox waits for one. It is checked as a whole when somebody reads it.
"""

import hashlib
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from coldframe.contract.caller import Caller
from coldframe.contract.canonical import canonical
from coldframe.contract.credential import CredentialInfo
from coldframe.contract.document import SECTIONS, ContractDocument, ContractPlan
from coldframe.contract.errors import NotFound, next_action
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.policy import Label, Role
from coldframe.contract.sandbox import SandboxInfo
from coldframe.control.contract_lines import Lines, differences, timeless
from coldframe.control.contract_lines import line as _line
from coldframe.control.contract_sections import fixed_sections, measured_sections
from coldframe.control.contract_versions import ContractVersions
from coldframe.control.exposure import exposure
from coldframe.control.judgement import allowed_operations, digest_of
from coldframe.control.ledger import Ledger, format_time
from coldframe.control.network_terms import GivenCredential, NetworkTerms, find_terms, reaches
from coldframe.control.rulebook import Rulebook
from coldframe.control.store import Store
from coldframe.policy.rules import RuleSet

_RULES = "permissions.rules"
_TIME = TypeAdapter(datetime)
_CAUSES = ("policy.changed", "credential.added", "credential.rotated", "credential.revoked", "credential.agent_removed")
_OWN_CAUSES = ("isolation.changed", "sandbox.promoted", "sandbox.started")
"""Those that concern one sandbox."""
MOST_CAUSES = 20
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
        self._versions = ContractVersions(store)
        self._ledger = ledger
        self._rulebook = rulebook
        self._clock = clock
        self._kept: dict[tuple[object, ...], _Fixed] = {}
        self.usable_credentials: Callable[[SandboxInfo, Role | None], list[CredentialInfo]] = lambda _, __: []
        """Those that are given to a sandbox, or would be to one that somebody of that role makes."""

    def issue(self, info: SandboxInfo, report: IsolationReport) -> str:
        """Return the newest version as JSON, made anew if it no longer says what is true.

        Raises:
            PolicyUnavailable: there are no rules, so the permissions are undefined and no contract can be.
        """
        fixed, measured = self._fixed(info), self._measured(info, report)
        with self._store.transaction() as connection:
            newest = self._versions.newest(info.sandbox_id)
            version, change, sections = 1, {}, {**fixed.sections, **measured}
            if newest is not None:
                if all(_is_settled(newest[name], lines) for name, lines in sections.items()):
                    return canonical(newest)
                version += int(newest["version"])
                change = {"change": self._change(info, newest, sections)}
            head = {
                **change,
                "contract": "contract/v1",
                "sandbox_id": info.sandbox_id,
                "version": version,
                "issued_at": _TIME.dump_python(self._clock(), mode="json"),
            }
            texts = fixed.texts | {name: canonical(value) for name, value in (*head.items(), *measured.items())}
            content = ",".join(f'"{name}":{texts[name]}' for name in sorted(texts))
            sha256 = hashlib.sha256(f"{{{content}}}".encode()).hexdigest()
            document = f'{{{content},"sha256":"{sha256}"}}'
            self._versions.add({**head, **sections, "sha256": sha256}, document)
            body = {"sandbox_id": info.sandbox_id, "agent_id": info.agent_id, "version": version, "sha256": sha256}
            self._ledger.append("contract.issued", info.sandbox_id, body, connection=connection)
        return document

    def is_of_the_rules_in_force(self, info: SandboxInfo) -> bool:
        """Whether the newest version was made under them; true as well while there are none, and none can be made."""
        rules, newest = self._rulebook.in_force, self._versions.newest(info.sandbox_id)
        if rules is None or newest is None:
            return rules is None
        return any((line["id"], line["value"]) == (_RULES, rules.sha256) for line in newest["permissions"])

    def version(self, info: SandboxInfo, version: int) -> ContractDocument:
        """One as it was issued. Raises NotFound."""
        found = self._versions.find(info.sandbox_id, version)
        if found is None:
            raise NotFound(
                f"the contract of sandbox `{info.sandbox_id}` has no version {version}",
                next_actions=[next_action("sandbox.contract", "gives the newest", sandbox_id=info.sandbox_id)],
                sandbox_id=info.sandbox_id,
            )
        return ContractDocument.model_validate(found)

    def planned(self, info: SandboxInfo, role: Role) -> ContractPlan:
        """The contract that a sandbox made by somebody of that *role* would have, with no time in it.

        Raises:
            PolicyUnavailable: there are no rules.
        """
        sections = {**self._fixed(info).sections, **self._measured(info, None, role)}
        lines = {name: [{**one, "value": timeless(one["value"])} for one in sections[name]] for name in SECTIONS}
        content = {"contract": "contract-plan/v1", **lines}
        return ContractPlan.model_validate({**content, "sha256": digest_of(content)})

    def _measured(
        self, info: SandboxInfo, report: IsolationReport | None, role: Role | None = None
    ) -> dict[str, Lines]:
        terms = self._terms(info, role)
        found = measured_sections(info, report, terms)
        found["exposure"] = exposure(info, report, terms, self._rulebook.since)
        return found

    def _change(self, info: SandboxInfo, newest: dict[str, Any], sections: dict[str, Lines]) -> dict[str, Any]:
        """A ContractChange, as JSON. Without causes if nothing but time has passed: a credential has expired."""
        changed = [
            one
            for name, lines in sections.items()
            if newest[name] != lines
            for one in differences(_settled(newest[name]), _settled(lines))
        ]
        issued = self._ledger.last(info.sandbox_id, "contract.issued", before=sys.maxsize)
        after = 0 if issued is None else issued.seq
        found = [
            *self._ledger.entries(after=after, limit=MOST_CAUSES, kinds=_CAUSES),
            *self._ledger.entries(after=after, limit=MOST_CAUSES, kinds=_OWN_CAUSES, sandbox_id=info.sandbox_id),
        ]
        told = {one["id"].rpartition(".credential.")[2] for one in changed}
        causes = [
            {
                "seq": one.seq,
                "at": format_time(one.at),
                "kind": one.kind,
                "by": one.body.get("caller") or ("host" if one.kind == "isolation.changed" else "server"),
                "reason": one.body.get("reason", ""),
            }
            for one in sorted(found, key=lambda entry: entry.seq)
            if "credential" not in one.body or one.body["credential"] in told
        ]
        return {"causes": causes, "lines": changed}

    def _terms(self, info: SandboxInfo, role: Role | None) -> NetworkTerms | None:
        """What it can reach, by the rules now, and as whom; None for a sandbox without network. *role*: of whoever would make
        it."""
        if info.network is None:
            return None
        rules = self._rulebook.current.network
        given = (one for one in self.usable_credentials(info, role) if one.state == "usable")
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
        if info.spec.contract_sha256 is not None:  # which stands in no line
            info = info.model_copy(update={"spec": info.spec.model_copy(update={"contract_sha256": None})})
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
    sections = fixed_sections(info, _asked(clean, rules))
    return _Fixed(sections, {name: canonical(lines) for name, lines in sections.items()})


def _asked(info: SandboxInfo, rules: RuleSet) -> Lines:
    nobody = "contract"
    agent = Caller(token_id=nobody, role=Role.AGENT, agent_id=info.agent_id or "background", surface="embedded")
    lines = [
        _line(_RULES, "The rules in force, by digest.", rules.sha256, "record:policy.changed"),
        _line(
            "permissions.unlisted",
            "An operation that is not listed is denied. Answers are for an agent's token in a PUBLIC session.",
            "deny",
            "gate",
        ),
    ]
    lines.append(
        _line(
            "permissions.ceiling",
            "The highest label that its session and workspace may have and anything still be let through; null for what the rules say.",
            info.spec.ceiling,
            "gate",
        )
    )
    for one in allowed_operations(agent, info, Label.PUBLIC, rules):
        text = f"{one.operation}: {one.answer}" + (f" ({one.condition})" if one.condition else "")
        lines.append(
            _line(f"permissions.{one.operation}", text + ".", {"answer": one.answer, "rule_id": one.rule_id}, "gate")
        )
    return lines


def _is_settled(before: Lines, now: Lines) -> bool:
    """Whether they say the same; most sections are equal to the letter, which is a hundredth of the work."""
    return before == now or _settled(before) == _settled(now)


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
