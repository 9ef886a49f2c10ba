"""Lines of a contract document, as plain JSON: a document has about two hundred, and every creation of a sandbox waits for one.

Two sets of lines are told apart by their ids and values; wording and who vouches for a line are no difference.
"""

from typing import Any

from coldframe.contract.document import NOT_VERIFIED, OBSERVED

Line = dict[str, Any]
"""A ContractLine, as JSON."""
Lines = list[Line]


def line(line_id: str, text: str, value: Any, verified_by: str = NOT_VERIFIED) -> Line:
    return {"id": line_id, "text": text, "value": value, "verified_by": verified_by}


def differences(before: Lines, after: Lines) -> Lines:
    """What differs, as LineChange in JSON, in the order of the ids."""
    old, new = {one["id"]: one["value"] for one in before}, {one["id"]: one["value"] for one in after}
    return [_change(name, old.get(name), new.get(name)) for name in sorted(old | new) if _differs(name, old, new)]


def drift(plan: Lines, made: Lines) -> Lines:
    """Where the lines of a sandbox are not what a plan has promised: those that are observed at creation, and what stands
    below them, may be anything, and a value may say more than was planned."""
    open_ids = {one["id"] for one in plan if one["verified_by"] == OBSERVED}
    old = {one["id"]: one["value"] for one in plan if one["id"] not in open_ids}
    new = {
        one["id"]: _within(old.get(one["id"]), timeless(one["value"]))
        for one in made
        if one["id"] in old or not any(one["id"] == name or one["id"].startswith(f"{name}.") for name in open_ids)
    }
    return [_change(name, old.get(name), new.get(name)) for name in sorted(old | new) if _differs(name, old, new)]


def timeless(value: Any) -> Any:
    """Without the times at which things were granted."""
    if isinstance(value, dict):
        return {name: timeless(one) for name, one in value.items() if name != "granted_at"}
    return [timeless(one) for one in value] if isinstance(value, list) else value


def _within(planned: Any, value: Any) -> Any:
    """Of an object only the parts that were planned."""
    if isinstance(planned, dict) and isinstance(value, dict):
        return {name: one for name, one in value.items() if name in planned}
    return value


def _differs(name: str, old: dict[str, Any], new: dict[str, Any]) -> bool:
    return (name in old) is not (name in new) or old.get(name) != new.get(name)


def _change(name: str, before: Any, after: Any) -> Line:
    return {"id": name, "before": before, "after": after}
