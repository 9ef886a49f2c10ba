"""The sections of a contract: what each line says, from the spec, what was measured, and what can be reached.

Without a measurement they are those of a plan: what only a sandbox that is there can show is observed later.
"""

import re

from coldframe.contract.document import NOT_VERIFIED, OBSERVED
from coldframe.contract.isolation import WALLS, IsolationReport
from coldframe.contract.persistence import EVENTS, fate, is_there, items_of, lifetime_of, owner_of
from coldframe.contract.policy import Label
from coldframe.contract.profile import has
from coldframe.contract.sandbox import SandboxInfo, SandboxSpec
from coldframe.control.call_records import USER, limit_numbers
from coldframe.control.contract_lines import Lines, line
from coldframe.control.exposure import credential_value
from coldframe.control.network_terms import NetworkTerms
from coldframe.tools.registry import HOME, STREAM_CAP_BYTES, all_tools

_UNIT = re.compile(r"_(ms|mib|milli|mib_s)$")
"""Of a limit in records, at the end of its name."""


def _number(value: float) -> int | str:
    return int(value) if value == int(value) else repr(value)


def fixed_sections(info: SandboxInfo, permissions: Lines) -> dict[str, Lines]:
    """By nothing but what the sandbox was asked to be, its agent and the rules."""
    return {
        "inputs": _inputs(info),
        "outputs": _outputs(info),
        "persistence": _persistence(info),
        "permissions": permissions,
        "lifecycle": _lifecycle(info),
        "retention": [
            line("retention.records", "Records are kept until the installation is removed.", "unlimited"),
            line(
                "retention.timer",
                "Output of commands is kept as long as the operator says with `results_keep_s`, without it like records;"
                " a sandbox that is stopped is terminated after `stopped_keep_s`.",
                None,
            ),
            line(
                "retention.on_result",
                "Everything but what is on record is deleted when its result was fetched, or nothing is.",
                info.spec.on_result,
                "record:result.deleted",
            ),
        ],
        "backup": [line("backup.none", "Nothing is backed up by the product; back the data directory up.", None)],
        "cost": [line("cost.none", "Nothing is metered or charged in this version.", None)],
    }


def measured_sections(
    info: SandboxInfo, report: IsolationReport | None, terms: NetworkTerms | None
) -> dict[str, Lines]:
    """By what was measured and can be reached too; without a measurement, for a plan."""
    return {
        "execution": _execution(info, report),
        "isolation": _planned_isolation(info) if report is None else _isolation(report),
        "effective_reach": _reach(report, terms),
        "not_prevented": _not_prevented(report, terms),
    }


def _inputs(info: SandboxInfo) -> Lines:
    workspace = "a temporary workspace of this session" if info.spec.background else f"agent `{info.agent_id}`"
    return [
        line("inputs.workspace", f"The workspace is that of {workspace}.", info.agent_id, "record:sandbox.created"),
        line(
            "inputs.snapshot",
            "A new workspace begins as this snapshot; null for an empty one.",
            info.spec.snapshot,
            "host",
        ),
        line(
            "inputs.files",
            "Files come in through tool calls and uploads alone; `inputs` of the sandbox lists each version of each.",
            "tools",
            "record:call.ended",
        ),
        line(
            "inputs.volumes",
            "Volumes that it has: directories with a life of their own, whose label its session takes on, and which no "
            "snapshot of it holds.",
            [one.model_dump(mode="json") for one in info.spec.volumes],
            "record:volume.attached",
        ),
        line("inputs.environment", "Commands get a clean environment and stdin at its end.", "clean"),
        line(
            "inputs.declared",
            "Files that its workspace begins with; empty for none.",
            [
                {"path": one.path, "bytes": one.bytes, "sha256": one.sha256, "source": one.source}
                for one in info.spec.inputs
            ],
            "record:sandbox.created",
        ),
    ]


def _execution(info: SandboxInfo, report: IsolationReport | None) -> Lines:
    spec = info.spec
    strengths = {} if report is None else {limit.kind: limit for limit in report.limits}
    unmeasured = "not reported by the host" if report is not None else f"how it is kept is {OBSERVED}"
    lines = [
        *_system(spec, report),
        line("execution.profile", "What the sandbox is for.", spec.profile),
        line("execution.home", "The workspace is mounted here.", HOME),
        line("execution.tools", "What can be asked for.", list(all_tools()), "gate"),
        line("execution.usable_when", "Usable once the state is `running`.", "running"),
        line("execution.runtimes", "Runtimes are listed on request, and not fixed.", None),
        line(
            "execution.only_programs",
            "Only these programs can be started; null for all of the machine.",
            None if spec.runtimes is None else list(spec.runtimes),
            "probe:programs",
        ),
        line(
            "execution.denied_programs",
            "Programs that can be neither read nor started.",
            list(spec.denied_programs),
            "probe:denied_programs" if spec.denied_programs else NOT_VERIFIED,
        ),
        line("execution.leftovers", "Processes that outlive their command.", spec.leftovers),
        line(
            "execution.command_idle_s",
            "Longest silence of a command that asks for no limit of its own, in seconds; null for any.",
            None if spec.command_idle_s is None else _number(spec.command_idle_s),
            "record:call.ended",
        ),
        line("execution.track_files", "What a command did to files is recorded.", spec.track_files),
        line(
            "execution.on_missing",
            "Where a limit can be kept by best effort only: run and say so, or refuse.",
            spec.on_missing,
            "host",
        ),
        line("execution.requires", "Properties without which it would have been refused.", list(spec.requires), "host"),
    ]
    for name, number in limit_numbers(spec.limits).items():
        kind = _UNIT.sub("", name)
        measured = strengths.get(kind)
        verified = NOT_VERIFIED if measured is None else f"probe:limit:{kind}"
        how = unmeasured if measured is None else f"{measured.strength}, by {measured.enforced_by}"
        lines.append(line(f"execution.limits.{name}", f"Limit {name}: {how}.", number, verified))
    return lines


def _outputs(info: SandboxInfo) -> Lines:
    return [
        line("outputs.streams", "stdout and stderr are kept whole on disk, by command.", "whole", "record:call.ended"),
        line(
            "outputs.answer_bytes", "One answer holds at most this of each stream; more is streamed.", STREAM_CAP_BYTES
        ),
        line("outputs.files", "Files that commands change are recorded with digests.", "receipt", "record:call.ended"),
        line(
            "outputs.declared",
            "Files that it was declared to make, beside those that its commands declare.",
            list(info.spec.outputs),
            "record:sandbox.created",
        ),
        line("outputs.labels", "Every result carries a label.", [label.value for label in Label], "gate"),
    ]


def _system(spec: SandboxSpec, report: IsolationReport | None) -> Lines:
    if spec.profile != "computer":
        return [
            line("execution.template", "System files are this machine's own, read-only.", spec.template),
            line("execution.template_digest", "The template has no digest: it is the live system of the host.", None),
            line("execution.user", "Commands run as this user.", USER),
        ]
    digest = None if report is None else report.template_sha256
    return [
        line(
            "execution.template",
            "The system is the workspace's own: this template, and what was changed in it since.",
            spec.template,
            "host",
        ),
        line(
            "execution.template_digest",
            "Of all files of the template that it began from.",
            digest,
            OBSERVED if report is None else "probe:system_private",
        ),
        line("execution.user", "Commands run as this user unless they ask for another.", USER),
        line(
            "execution.users",
            "Whom commands can ask for; `root` is root of this sandbox alone.",
            [USER, "root"],
            "gate",
        ),
    ]


def _persistence(info: SandboxInfo) -> Lines:
    lines = []
    profile = info.spec.profile
    for name, item in items_of(profile).items():
        if not is_there(
            name, profile=info.spec.profile, has_network=info.network is not None, has_volumes=bool(info.spec.volumes)
        ):
            why = {
                "grants": ": none without a network",
                "volume": ": this sandbox has none",
                "preview": ": its profile shares no ports",
            }
            what = f"{item.what}{why.get(name, '')}"
            lines.append(line(f"persistence.{name}", f"{what}.", {"exists": False}, "document:lifecycle"))
            continue
        background = info.spec.background
        fates = {
            event: fate(name, event, background=background, ephemeral=info.spec.ephemeral, profile=profile)
            for event in EVENTS
        }
        gone = " or ".join(f"{one} when {event.replace('_', ' ')}" for event, one in fates.items() if one != "kept")
        value = {
            "exists": True,
            "owner": owner_of(name, background=background, profile=profile),
            "places": [one.at for one in info.spec.volumes] if name == "volume" else list(item.places),
            "lifetime": lifetime_of(name, background=background, profile=profile),
            "events": fates,
        }
        text = f"{item.what}: kept{f', but {gone}' if gone else ''}."
        lines.append(line(f"persistence.{name}", text, value, f"test:persistence.{name}"))
    return lines


def _planned_isolation(info: SandboxInfo) -> Lines:
    walls = [*WALLS, *(["programs"] if info.spec.runtimes is not None else [])]
    walls += ["denied_programs"] if info.spec.denied_programs else []
    asked = [name for name in info.spec.requires if ":" not in name and name not in walls]
    lines = [
        line("isolation.level", "How the box is separated.", info.spec.isolation, OBSERVED),
        line("isolation.kernel", "The kernel is shared with the host.", "shared", "document:isolation"),
    ]
    if info.spec.profile == "computer":
        walls = []  # which there are, the level and the template say
    if info.spec.volumes:
        walls.append("volumes")
    for name in (*walls, *asked):
        value = {"enforced": True, "state": "enforced"}
        lines.append(
            line(f"isolation.control.{name}", f"{name}: enforced, or nothing is made.", value, f"probe:{name}")
        )
    shown = {
        "control": "Further walls.",
        "limit": "How each limit is kept.",
        "kernel_release": "The release of the kernel.",
        "pause_kinds": "How it can be paused here.",
        "first_process": "The first process, as the kernel shows it.",
        "namespaces": "The namespaces of the box.",
        "devices": "Every device node inside.",
        "interfaces": "What opens to the box, beside its own sockets.",
        "mount": "Every place that is mounted inside.",
        "boundary_weakened": "Mounts that are not this level's own.",
    }
    return [*lines, *(line(f"isolation.{name}", text, None, OBSERVED) for name, text in shown.items())]


def _isolation(report: IsolationReport) -> Lines:
    measured_at = report.measured_at.isoformat()
    verified = f"measured:{measured_at}"
    lines = [
        line("isolation.level", "How the box is separated.", report.level, verified),
        line("isolation.kernel", "The kernel is shared with the host.", report.kernel, verified),
        line("isolation.kernel_release", "Its release.", report.kernel_release, verified),
        line("isolation.pause_kinds", "How it can be paused here.", list(report.pause_kinds), verified),
    ]
    for one in report.properties:
        lines.append(
            line(
                f"isolation.control.{one.name}",
                f"{one.name}: {one.state}, by {one.mechanism}.",
                {
                    "enforced": one.state == "enforced",
                    "state": one.state,
                    "enforced_by": one.mechanism,
                    "evidence": one.evidence,
                    "verified_at": measured_at,
                    "bound": one.bound,
                    "caveat": one.caveat,
                },
                f"probe:{one.name}",
            )
        )
    for limit in report.limits:
        lines.append(
            line(
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
                    "verified_at": measured_at,
                },
                f"probe:limit:{limit.kind}",
            )
        )
    shown = report.model_dump(
        mode="json", include={"mounts", "devices", "interfaces", "first_process", "namespaces", "boundary_weakened"}
    )
    own = [one for one in shown["interfaces"] if one["held_by"] == "product" or one["kind"] == "network"]
    lines += [
        line("isolation.first_process", "The first process, as the kernel shows it.", shown["first_process"], verified),
        line("isolation.namespaces", "The namespaces of the box.", shown["namespaces"], verified),
        line("isolation.devices", "Every device node inside.", shown["devices"], verified),
        line("isolation.interfaces", "What opens to the box, beside its own sockets.", own, verified),
        line(
            "isolation.boundary_weakened",
            "Mounts that are not this level's own.",
            shown["boundary_weakened"],
            verified,
        ),
    ]
    for value in shown["mounts"]:
        target, access = value["target"], "writable" if value["writable"] else "read-only"
        lines.append(line(f"isolation.mount.{target}", f"{target} is {access}.", value, verified))
    return lines


def _reach(report: IsolationReport | None, terms: NetworkTerms | None) -> Lines:
    writable, verified = None, OBSERVED
    if report is not None:
        writable = sorted(mount.target for mount in report.mounts if mount.writable)
        verified = f"measured:{report.measured_at.isoformat()}" if report.mounts else NOT_VERIFIED
    reached = [] if terms is None else [one.name for one in terms.endpoints]
    lines = [
        line("effective_reach.writable", "Places that code in the box can write.", writable, verified),
        line("effective_reach.network", "Destinations outside that code in the box can reach.", reached),
        line(
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
            line(
                f"effective_reach.credential.{credential.name}",
                f"{text}; {credential.access}.",
                credential_value(given),
                "record:secret.used",
            )
        )
    for one in terms.endpoints:
        value = {"service": one.name, "identity": None, "grants": list(one.grants)}
        text = f"{one.name} {one.how}, as nobody."
        lines.append(line(f"effective_reach.network.{one.name}", text, value, "record:network.contact"))
    if terms.registries:
        text = "Packages, read from the registries that the clients of this machine are set to; nothing is sent there."
        lines.append(
            line("effective_reach.network.packages", text, {"methods": ["GET", "HEAD"]}, "record:network.contact")
        )
    if terms.more:
        lines.append(
            line("effective_reach.network.more", "Further destinations are in the rules in force.", terms.more)
        )
    return lines


def _not_prevented(report: IsolationReport | None, terms: NetworkTerms | None) -> Lines:
    lines = _unpromised(report)
    lines.append(
        line("not_prevented.own_files", "Code in the box can destroy or spoil all files of its own workspace.", None)
    )
    lines.append(line("not_prevented.deny_list", "A list of commands is advice; the walls are the boundary.", None))
    lines.append(line("not_prevented.wrong_code", "Code that is wrong runs like any other, and may end with 0.", None))
    for endpoint in () if terms is None else terms.endpoints:
        text = (
            f"Code in the box can send what it has, and may have, to {endpoint.name} {endpoint.how}; that is recorded."
        )
        lines.append(line(f"not_prevented.network.{endpoint.name}", text, endpoint.name, "record:network.contact"))
    for credential, *_ in () if terms is None else terms.credentials:
        text = (
            f"Code in the box can use credential `{credential.name}` for whatever it allows ({credential.access}: "
            f"{', '.join(credential.methods)} of {', '.join(credential.paths)} at {credential.base}); each use is recorded."
        )
        lines.append(line(f"not_prevented.credential.{credential.name}", text, credential.name, "record:secret.used"))
    if terms is not None and terms.more:
        lines.append(line("not_prevented.network.more", "So it can to further destinations of the rules.", terms.more))
    return lines


def _unpromised(report: IsolationReport | None) -> Lines:
    """What the level cannot promise, and what does not hold here."""
    if report is None:
        return [
            line("not_prevented.level", "What the level cannot promise on this machine.", None, OBSERVED),
            line("not_prevented.control", "Walls that do not hold here, and that nothing asked for.", None, OBSERVED),
        ]
    lines = [
        line(f"not_prevented.level.{number}", sentence, None, "document:isolation")
        for number, sentence in enumerate(report.sentences, start=1)
    ]
    for one in report.properties:
        if one.state != "enforced":
            text = f"{one.name} is {one.state}." + (f" {one.caveat}" if one.caveat else "")
            lines.append(line(f"not_prevented.control.{one.name}", text, one.state, f"probe:{one.name}"))
    return lines


def _lifecycle(info: SandboxInfo) -> Lines:
    sessions = (
        "Directory and variables of a shell go on in commands that name the same `shell_session`, until it stops; those"
        " of any other command end with it."
    )
    return [
        line(
            "lifecycle.timers",
            "After so many seconds without activity, and after so many in all, a timer acts.",
            {
                "idle_timeout_s": None if info.spec.idle_timeout_s is None else _number(info.spec.idle_timeout_s),
                "max_age_s": None if info.spec.max_age_s is None else _number(info.spec.max_age_s),
            },
            "record:sandbox.expiring",
        ),
        line("lifecycle.on_timeout", "What a timer does to the sandbox.", info.spec.on_timeout),
        line("lifecycle.command", "A command over its time is ended with its whole tree.", "end_command"),
        line("lifecycle.end", "It ends by `sandbox.terminate`, or is `lost` if its keeper or the machine ends.", None),
        line(
            "lifecycle.stop",
            "`sandbox.stop` ends its processes, `sandbox.start` builds it again on the same workspace and session.",
            None,
        ),
        line("lifecycle.server", "A restart of the server leaves it and its commands running.", "kept"),
        line("lifecycle.background", "The workspace is temporary.", info.spec.background),
        *([line("lifecycle.shell_sessions", sessions, None)] if has(info.spec.profile, "shell") else []),
    ]
