"""What the control API of E2B says of templates and their builds, from what is known of them here."""

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from coldframe.contract.errors import NotFound
from coldframe.contract.template import BuildInfo, BuildLogEntry, TemplateRecord
from coldframe.control.announced_builds import Announced
from coldframe.fronts.e2b.routes import ENVD_VERSION
from coldframe.fronts.e2b.template_names import id_of
from coldframe.fronts.e2b.template_recipes import step_name

DEFAULT_CPUS, DEFAULT_MEMORY_MIB = 2, 1024
STATES = {"building": "building", "ready": "ready", "failed": "error", "cancelled": "error"}
LEVELS = {"stdout": "info", "stderr": "warn", "build": "info"}
_OF_BUILD, _OF_DIGEST = "e2b000004000", "e2b000005000"
"""How the ids begin that SDKs read as UUIDs."""


def uuid_of(build_id: str | None, digest: str | None = None) -> str:
    """A build's id in the form that SDKs want; one that was built by `coldframe setup` has one by its digest."""
    if build_id is not None:
        return str(uuid.UUID(_OF_BUILD + build_id.removeprefix("bld_")))
    return str(uuid.UUID(_OF_DIGEST + (digest or "")[:20]))


def build_id_of(text: str) -> str:
    """Ours. Raises NotFound."""
    try:
        digits = uuid.UUID(text).hex
    except ValueError:
        digits = ""
    if not digits.startswith(_OF_BUILD):
        raise NotFound(f"no build `{text[:80]}`")
    return f"bld_{digits.removeprefix(_OF_BUILD)}"


def template_body(versions: Sequence[TemplateRecord], sizes: tuple[int, int] | None, used: int) -> dict[str, Any]:
    """One name; *versions* are its versions, the newest first."""
    newest, oldest = versions[0], versions[-1]
    cpus, memory_mib = sizes or (DEFAULT_CPUS, DEFAULT_MEMORY_MIB)
    return {
        "templateID": id_of(newest.name),
        "buildID": uuid_of(newest.build_id, newest.digest),
        "cpuCount": cpus,
        "memoryMB": memory_mib,
        "diskSizeMB": -(-newest.bytes // 1_048_576),
        "public": False,
        "aliases": [newest.name],
        "names": [newest.name],
        "createdAt": told_time(oldest.created_at),
        "updatedAt": told_time(newest.created_at),
        "createdBy": None,
        "lastSpawnedAt": None,
        "spawnCount": used,
        "buildCount": len(versions),
        "envdVersion": ENVD_VERSION,
        "buildStatus": "ready",
    }


def version_body(one: TemplateRecord, sizes: tuple[int, int] | None) -> dict[str, Any]:
    """One version, as a build that is over."""
    cpus, memory_mib = sizes or (DEFAULT_CPUS, DEFAULT_MEMORY_MIB)
    return {
        "buildID": uuid_of(one.build_id, one.digest),
        "status": "ready",
        "createdAt": told_time(one.created_at),
        "updatedAt": told_time(one.created_at),
        "finishedAt": told_time(one.created_at),
        "cpuCount": cpus,
        "memoryMB": memory_mib,
        "diskSizeMB": -(-one.bytes // 1_048_576),
        "envdVersion": ENVD_VERSION,
    }


def build_body(announced: Announced, info: BuildInfo | None) -> dict[str, Any]:
    """One build that has not come to a version."""
    updated = announced.at if info is None else info.ended_at or info.started_at
    body: dict[str, Any] = {
        "buildID": uuid_of(announced.build_id),
        "status": "waiting" if info is None else STATES[info.state],
        "createdAt": told_time(announced.at),
        "updatedAt": told_time(updated),
        "cpuCount": announced.cpus,
        "memoryMB": announced.memory_mib,
    }
    if info is not None and info.ended_at is not None:
        body["finishedAt"] = told_time(info.ended_at)
    return body


def log_body(entry: BuildLogEntry, numbers: tuple[int, ...] | None) -> dict[str, Any]:
    return {
        "timestamp": told_time(entry.at),
        "message": entry.text,
        "level": LEVELS[entry.stream],
        "step": step_name(numbers, entry.step),
    }


def reason_body(info: BuildInfo, numbers: tuple[int, ...] | None) -> dict[str, Any] | None:
    """Why a build has come to nothing; None unless it has."""
    if info.state == "cancelled":
        return {"message": "the build was cancelled", "step": step_name(numbers, 0), "logEntries": []}
    if info.error is None:
        return None
    facts = info.error.get("facts", {})
    log = facts.get("log") or []
    log = log.splitlines() if isinstance(log, str) else [str(line) for line in log]
    message = str(info.error["message"])
    if log:  # the last line that it said is mostly the reason
        message += f": {log[-1]}"
    at = told_time(info.ended_at or info.started_at)
    step = step_name(numbers, info.failed_step or 0)
    entries = [{"timestamp": at, "message": line, "level": "error", "step": step} for line in log]
    return {"message": message, "step": step, "logEntries": entries}


def told_time(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")
