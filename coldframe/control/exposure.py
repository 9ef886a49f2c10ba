"""What a contract says is inside a sandbox, what it can use without seeing it, and what is outside: for files, network
destinations and credentials.

Each item that is not outside says by what it was granted, for which reason, when, and until when. What is inside of
files is what was measured as mounted; covered places and single devices stand in the lines of the isolation report.
"""

from datetime import datetime
from typing import Any

from coldframe.contract.document import NOT_VERIFIED, OBSERVED
from coldframe.contract.isolation import IsolationReport, MountInfo
from coldframe.contract.sandbox import SandboxInfo
from coldframe.control.contract_lines import Line, Lines, line
from coldframe.control.network_terms import GivenCredential, NetworkTerms

WITH_THE_SANDBOX = "with the sandbox"
"""When a grant expires that nothing ends before. None in its place: when whoever gave it takes it back."""
_LEVEL = "isolation level"
_CREATION = "creation of the sandbox"
_INSIDE: dict[str, tuple[str, str]] = {
    "workspace": (_CREATION, "files that the agent works on"),
    "volume": (_CREATION, "a volume that it was asked to have, which other sandboxes may have as well"),
    "history": (_CREATION, "what ran in the workspace before, for the agent to read"),
    "system": (_LEVEL, "programs and libraries of the host, for commands to run"),
    "layer": (_LEVEL, "the system of the workspace: a template, and what was changed in it"),
    "settings": (_LEVEL, "settings of the system that everybody of the host may read"),
    "memory": (_LEVEL, "temporary files and shared memory of this sandbox alone"),
    "kernel": (_LEVEL, "what the kernel shows of the processes of this sandbox"),
    "tool": (_LEVEL, "a program of the host that is offered to commands"),
    "frame": (_LEVEL, "empty directories and devices, which the other places are mounted on"),
    "other": ("nothing that this level mounts", "unknown: this weakens the boundary"),
}
"""By what stands behind a mount (`frame`: memory that cannot be written): what granted it, and why."""
_OUTSIDE = {
    "files": "all other files: of the host and its users, of this installation, of other agents and sandboxes",
    "network": "all other destinations, services of the host on its loopback included",
    "credentials": "all others, and the secrets of those that can be used",
}


def exposure(
    info: SandboxInfo, report: IsolationReport | None, terms: NetworkTerms | None, rules_since: datetime | None
) -> Lines:
    """*terms*: what it can reach, None without a network; *rules_since*: when the rules that say so came into force.
    Without a measurement, for a plan."""
    since = None if rules_since is None else rules_since.isoformat()
    files = (
        [line("exposure.file", "Inside: what is mounted.", None, OBSERVED)] if report is None else _files(info, report)
    )
    own = {"exposure": "inside", **_grant(_LEVEL, "programs of the sandbox talk to each other", info.created_at)}
    text = "Inside: its own loopback, which is not that of the host."
    loopback = line("exposure.network.loopback", text, own, "probe:net_namespace")
    brokered = [] if terms is None else [*_network(info, terms, since), *map(_credential_line, terms.credentials)]
    inside = None if report is None else [_item(one) for one in (*files, loopback)]
    what = "what stands in the lines of the network, by the egress broker" if brokered else "nothing"
    return [
        line(
            "exposure.inside",
            "Inside: the files of the lines below, and the loopback. No credential ever is.",
            inside,
            NOT_VERIFIED if report is not None else OBSERVED,
        ),
        line("exposure.brokered", f"Brokered: {what}.", [_item(one) for one in brokered]),
        line("exposure.outside", "Outside: everything else of files, network and credentials.", _OUTSIDE),
        *files,
        _profiles(info, terms),
        loopback,
        *brokered,
    ]


def credential_value(given: GivenCredential) -> dict[str, Any]:
    terms = given.terms
    return {
        "exposure": "brokered",
        "service": terms.base,
        "identity": terms.name,
        "methods": list(terms.methods),
        "paths": list(terms.paths),
        "access": terms.access,
        "production": terms.production,
        "budget": terms.budget,
        "granted_by": given.granted_by,
        "reason": terms.purpose,
        "granted_at": given.granted_at.isoformat(),
        "expires": None if terms.expires_at is None else terms.expires_at.isoformat(),
    }


def _item(one: Line) -> str:
    """`exposure.file./usr` as `file:/usr`."""
    _, kind, name = one["id"].split(".", 2)
    return f"{kind}:{name}"


def _grant(granted_by: str, reason: str, at: datetime) -> dict[str, Any]:
    return {"granted_by": granted_by, "reason": reason, "granted_at": at.isoformat(), "expires": WITH_THE_SANDBOX}


def _files(info: SandboxInfo, report: IsolationReport) -> Lines:
    lines = []
    verified = f"measured:{report.measured_at.isoformat()}"
    for mount in report.mounts:
        if mount.source in ("mask", "device") or _is_part(mount):
            continue
        is_frame = mount.source == "memory" and not mount.writable
        granted_by, reason = _INSIDE["frame" if is_frame else mount.source]
        granted_by = f"{_LEVEL} {report.level}" if granted_by == _LEVEL else granted_by
        access = "read-write" if mount.writable else "read"
        value = {"exposure": "inside", "access": access, **_grant(granted_by, reason, info.created_at)}
        lines.append(line(f"exposure.file.{mount.target}", f"Inside: {mount.target}, {access}.", value, verified))
    return lines


def _is_part(mount: MountInfo) -> bool:
    """A place of /proc that cannot be changed even where /proc can."""
    return mount.source == "kernel" and not mount.writable and mount.target.startswith("/proc/")


def _profiles(info: SandboxInfo, terms: NetworkTerms | None) -> Line:
    if terms is None:
        return line("exposure.network", "Connections outward are refused and recorded.", "none")
    profiles = list(info.network or ())
    agree = f"Profiles that have to agree: {', '.join(profiles)}."
    text = f"{agree} Whatever else goes outward is refused; all is recorded."
    return line("exposure.network", text, profiles, "record:network.contact")


def _network(info: SandboxInfo, terms: NetworkTerms, since: str | None) -> Lines:
    lines = []
    for one in terms.endpoints:
        value = {"exposure": "brokered", "grants": [{**grant, "granted_at": since} for grant in one.grants]}
        text = f"Brokered: {one.name} {one.how}."
        lines.append(line(f"exposure.network.{one.name}", text, value, "record:network.contact"))
    if terms.registries:
        grant = {
            "granted_by": f"network profile {', '.join(info.network or ())}",
            "reason": "packages of the registries that this machine is set to",
            "granted_at": since,
            "expires": None,
        }
        value = {"exposure": "brokered", "grants": [grant]}
        text = "Brokered: packages, read from the registries that this machine is set to."
        lines.append(line("exposure.network.packages", text, value, "record:network.contact"))
    return lines


def _credential_line(given: GivenCredential) -> Line:
    terms = given.terms
    text = f"Brokered: commands have a handle in `{terms.variable}`, the secret is put in at the edge."
    return line(f"exposure.credential.{terms.name}", text, credential_value(given), "record:secret.used")
