"""How a command stands, as a state object with its code of the failure catalogue and what can be done."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

from coldframe.contract.command import Activity, CommandInfo, CommandResult, EndedWith
from coldframe.contract.diagnosis import Diagnosis
from coldframe.contract.errors import NextAction, ResultExpired, next_action
from coldframe.contract.outputs import DeclaredOutputs
from coldframe.contract.state import StateObject

_LIMIT_CODES = {
    "wall": "TIMED_OUT_WALL",
    "idle": "TIMED_OUT_IDLE",
    "cpu": "LIMIT_CPU",
    "memory": "LIMIT_MEMORY",
    "pids": "LIMIT_PIDS",
    "disk": "LIMIT_DISK",
    "output": "LIMIT_OUTPUT",
}
COMMAND_CODES = {
    **dict.fromkeys(_LIMIT_CODES.values(), "limit"),
    "CANCELLED": "state",
    "NOT_STARTED": "input",
    "PROCESS_LOST": "infrastructure",
    "EXPIRED": "state",
    "OUTPUT_MISSING": "input",
    "REGISTRY_UNREACHABLE": "infrastructure",
    "DEPENDENCY_MISSING": "input",
}
"""Code to family of everything that may be the matter with a command."""
_PASSING = ("PROCESS_LOST", "CANCELLED", "TIMED_OUT_WALL", "TIMED_OUT_IDLE", "REGISTRY_UNREACHABLE")
"""What may be otherwise the next time, with nothing changed."""


def command_status(
    command_id: str,
    state: Literal["running", "ended", "lost"],
    result: CommandResult | None,
    activity: Activity | None = None,
    outputs: DeclaredOutputs | None = None,
) -> StateObject:
    """Say how a command stands. A program that failed by itself is no fault: exited, without a code."""
    output = next_action("command.output", "gives what it wrote until then", command_id=command_id)
    again = next_action("run_command", "runs it again")
    if state == "running":
        actions = [
            next_action("command.follow", "yields its output from any chunk on", command_id=command_id),
            next_action("command.signal", "sends a signal", command_id=command_id),
            next_action("command.extend", "gives it more or less time", command_id=command_id),
            next_action("command.cancel", "ends it: TERM, then KILL", command_id=command_id),
        ]
        if activity is not None and activity.stdin is not None and activity.stdin.open:
            send = next_action("command.send_stdin", "sends it input", command_id=command_id)
            actions.insert(0 if activity.waiting_for == "stdin" else 1, send)
        return _state("running", result, None, _what_it_does(activity), actions, command_id)
    if state == "ended" and result is None:
        look = next_action("command.get", "gives its result", command_id=command_id)
        return _state("ended", None, None, "", [look, output], command_id)
    if result is None or result.ended == "lost":
        message = "the process below it ended without telling how"
        if result is not None and result.ended_with is not None:
            message = _with_sandbox(result.ended_with)
        return _state("lost", result, "PROCESS_LOST", message, [output, again], command_id)
    limit = result.limit
    if limit is not None and not (result.cancelled and limit.kind == "pids"):  # whoever ended it knows better
        used = "" if limit.used is None else f", used {limit.used:g}"
        message = f"ended by its {limit.kind} limit of {limit.limit:g} {limit.unit}{used}"
        if limit.kind == "pids":
            message = f"failed while its sandbox had all of the {limit.limit:g} processes that it may have"
        raised = next_action("run_command", "runs it again with a higher limit", kind=limit.kind)
        ended = "timed_out" if limit.kind in ("wall", "idle") else "limit"
        return _state(ended, result, _LIMIT_CODES[limit.kind], message, [output, raised], command_id)
    if result.cancelled:
        message = "ended because a caller asked" if result.ended_with is None else _with_sandbox(result.ended_with)
        return _state("cancelled", result, "CANCELLED", message, [output, again], command_id)
    if result.ended == "not_started":
        look = next_action("sandbox.runtimes", "lists the programs there are")
        return _state("not_started", result, "NOT_STARTED", result.start_error or "", [look], command_id)
    if outputs is not None and outputs.code is not None:
        names = [*outputs.missing, *(one.path for one in outputs.refused)]
        message = f"it was to make {', '.join(names[:5])}{' and more' if len(names) > 5 else ''}"
        return _state(result.ended, result, outputs.code, message, [output, again], command_id)
    crashed = [again] if result.ended == "signalled" else []
    return _state(result.ended, result, None, "", [output, *crashed], command_id)


def paused_message(paused_s: float, timers: Iterable[str | None]) -> str:
    """Of a command that stood still with its sandbox, and went on."""
    told = {"as was asked" if one is None else _TIMERS[one]: None for one in timers}
    return f"its sandbox was paused for {paused_s:.0f} s, {' and '.join(told)}" if told else ""


_TIMERS = {
    "idle": "by its timer, since nothing was done in it for `idle_timeout_s`",
    "age": "by its timer, since it had reached `max_age_s`",
    "lease": "by its timer, since the time it was given for was over",
}


def _with_sandbox(end: EndedWith) -> str:
    how = "stopped" if end.act == "stop" else "terminated"
    return f"its sandbox was {how}, {'as was asked' if end.timer is None else _TIMERS[end.timer]}"


_WAITS = {
    "stdin": "waits for input",
    "lock": "waits for a lock that another process holds",
    "child": "waits for a process that does not go on",
    "none": "computes, or is stopped, and waits for nobody",
}


def _what_it_does(activity: Activity | None) -> str:
    if activity is None or activity.waiting_for is None or not activity.stalled:
        return ""
    return f"stalled: {_WAITS[activity.waiting_for]}, silent for {activity.silent_for_s:.0f} s"


def _state(
    state: str,
    result: CommandResult | None,
    code: str | None,
    message: str,
    actions: list[NextAction],
    command_id: str,
) -> StateObject:
    since = datetime.now(UTC) if result is None else result.ended_at
    return StateObject(
        state=state,
        since=since,
        code=code,
        family=None if code is None else COMMAND_CODES[code],
        message=message,
        retryable=code in _PASSING,
        next_actions=tuple(actions),
        evidence=(command_id,),
    )


def may_be_for_want_of_packages(info: CommandInfo) -> bool:
    """Whether it failed by itself and nobody has said why, so that it is worth looking what registries answered it."""
    status, result = info.status, info.result
    if status is None or result is None or status.code is not None:
        return False
    return status.state == "exited" and result.exit_code != 0


def without_registries(info: CommandInfo, reasons: tuple[str, ...]) -> CommandInfo:
    """*info* of one that failed after registries could not be reached for it."""
    status = info.status
    if not reasons or status is None or info.result is None:
        return info
    log = next_action("sandbox.network_log", "lists what it reached and what became of it", command_id=info.command_id)
    again = next_action("run_command", "runs it again")
    told = _state("exited", info.result, "REGISTRY_UNREACHABLE", "; ".join(reasons), [log, again], info.command_id)
    return info.model_copy(update={"status": told})


def with_diagnosis(info: CommandInfo, diagnosis: Diagnosis | None) -> CommandInfo:
    """*info* of one whose output says what is missing. How it ended stays as it is, and so does what is known better."""
    status = info.status
    if diagnosis is None or status is None:
        return info
    suggested = diagnosis.suggested_action
    more: dict[str, object] = {"next_actions": (suggested.model_dump(mode="json"), *status.next_actions)}
    if status.code is None:
        message = f"{diagnosis.ecosystem.replace('_', ' ')} `{diagnosis.name}` is missing: {diagnosis.evidence}"
        more |= {"code": diagnosis.code, "family": COMMAND_CODES[diagnosis.code], "message": message}
    return info.model_copy(update={"diagnosis": diagnosis, "status": status.model_copy(update=more)})


def with_expiry(info: CommandInfo, error: ResultExpired, since: datetime) -> CommandInfo:
    """*info* of one whose result and output were kept for their time."""
    status = StateObject(
        state="expired",
        since=since,
        code=error.code,
        family=COMMAND_CODES[error.code],
        message=error.message,
        next_actions=tuple(error.next_actions),
        evidence=(info.command_id, str(error.facts["receipt_id"])),
    )
    return info.model_copy(update={"status": status})


def with_status(info: CommandInfo, *, began: bool = True) -> CommandInfo:
    """*info* with how it stands; *began* is False for one that was recorded and then never begun."""
    if began:
        status = command_status(info.command_id, info.state, info.result, info.activity, info.outputs)
    else:
        again = next_action("run_command", "runs it, under the same idempotency key if it had one")
        message = "it had not begun when server or sandbox ended"
        status = _state("not_started", None, "NOT_STARTED", message, [again], info.command_id)
        status = status.model_copy(update={"retryable": True})
    return info.model_copy(update={"status": status})
