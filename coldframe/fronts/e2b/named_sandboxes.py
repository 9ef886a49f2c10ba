"""Sandboxes as E2B tells of them: by what ids they go, in which of its two states they are, and what is said of each."""

import os
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from coldframe.contract.errors import ColdframeError, NotFound
from coldframe.contract.sandbox import SandboxInfo
from coldframe.control.leases import Lease, LeaseTerms
from coldframe.control.rights import may
from coldframe.fronts.e2b.routes import CLIENT_ID, ENVD_VERSION, E2bCall
from coldframe.fronts.edge.routing import label_of, sandbox_of

RUNNING, PAUSED = "running", "paused"
STATES: dict[str, str] = {
    "queued": RUNNING,
    "starting": RUNNING,
    "running": RUNNING,
    "pausing": RUNNING,
    "resuming": RUNNING,
    "paused": PAUSED,
    "stopped": PAUSED,
}
"""States of ours that are one of E2B's; in all others a sandbox is gone for it."""
FOR_EVER = timedelta(days=3650)
"""Told as the end of one that has none: the field is required."""


class Named(NamedTuple):
    """A sandbox with its lease. One that was made by other ways has none, until somebody connects to it."""

    info: SandboxInfo
    lease: Lease | None

    @property
    def state(self) -> str:
        return STATES[self.info.state.state]

    @property
    def terms(self) -> LeaseTerms:
        return LeaseTerms() if self.lease is None else self.lease.terms


def find_named(call: E2bCall, text: str | None = None) -> Named:
    """The sandbox of the path, or the one of that id. Raises NotFound: there is none, or it has ended; GrantMissing."""
    name = call.values["sandbox_id"] if text is None else text
    try:
        info = call.control.sandboxes.get(call.caller, sandbox_of(name))
    except NotFound:
        raise no_sandbox(name) from None
    if info.state.state not in STATES:
        raise no_sandbox(name)
    return Named(info, call.control.leases.find(info.sandbox_id))


def no_sandbox(name: str) -> ColdframeError:
    return NotFound(f"the sandbox `{name[:80]}` was not found", hint="list sandboxes to see those that there are")


def shown(call: E2bCall, named: Named) -> dict[str, Any]:
    """As lists have it."""
    info, terms = named.info, named.terms
    limits = info.spec.limits
    return {
        **named_template(terms, info),
        "sandboxID": label_of(info.sandbox_id),
        "clientID": CLIENT_ID,
        "startedAt": _time(info.created_at),
        "endAt": _time(ends_at(call, named)),
        "cpuCount": cpu_count(info),
        "memoryMB": limits.memory_mib,
        "diskSizeMB": limits.disk_mib,
        "metadata": terms.metadata,
        "state": named.state,
        "envdVersion": ENVD_VERSION,
        "volumeMounts": [{"name": one.name, "path": one.at} for one in info.spec.volumes],
    }


def shown_whole(call: E2bCall, named: Named) -> dict[str, Any]:
    """With what is told of one alone."""
    terms = named.terms
    on_timeout = "kill" if terms.at_end == "terminate" else "pause"
    told = {
        **shown(call, named),
        "domain": call.domain,
        # SDKs before 2.10 connect by this alone.
        "envdAccessToken": call.control.access_tokens.give(call.caller, named.info.sandbox_id),
        "allowInternetAccess": named.info.network is not None,
        "lifecycle": {"autoResume": terms.resumes_by_itself, "onTimeout": on_timeout},
    }
    if "network" in terms.asked:
        told["network"] = terms.asked["network"]
    if named.state == PAUSED:
        told["pauseMode"] = "memory" if named.info.state.state == "paused" else "filesystem"
    return told


def opened(call: E2bCall, named: Named) -> dict[str, Any]:
    """What is needed to use it, as creation and connection answer."""
    info, terms = named.info, named.terms
    told = {
        **named_template(terms, info),
        "sandboxID": label_of(info.sandbox_id),
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "domain": call.domain,
        "envdAccessToken": call.control.access_tokens.give(call.caller, info.sandbox_id),
    }
    if terms.needs_token and may(call.caller, "tool.call"):  # with it some calls are made as the holder of the lease
        told["trafficAccessToken"] = call.control.access_tokens.traffic_token(info.sandbox_id)
    return told


def named_template(terms: LeaseTerms, info: SandboxInfo) -> dict[str, Any]:
    template = terms.asked.get("templateID") or info.spec.template
    alias = terms.asked.get("alias")
    return {"templateID": template, **({"alias": alias} if alias else {})}


def ends_at(call: E2bCall, named: Named) -> datetime:
    """As its timers have it now. One that is paused has none running, so it is what it was."""
    due = call.control.timers.due(named.info)
    if due is not None:
        return due.at
    if named.lease is not None and named.lease.ends_at is not None:
        return named.lease.ends_at
    return call.control.clock() + FOR_EVER


def cpu_count(info: SandboxInfo) -> int:
    most = os.cpu_count() or 1
    return max(1, min(most, round(info.spec.limits.cpus))) if info.spec.limits.cpus else most


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
