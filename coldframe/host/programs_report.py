"""What the isolation report says of the programs of a box: those that alone can start, and those that are denied."""

from collections.abc import Mapping, Sequence

from coldframe.contract.isolation import Property
from coldframe.host.box_view import REMEDY_BUG, View
from coldframe.host.isolation import denials
from coldframe.host.isolation.namespaces import TOOLS


def judge_programs(view: View, runtimes: Sequence[str]) -> Property:
    """Whether /usr is covered and everything else noexec, but the programs themselves and what they load."""
    allowed = {f"{TOOLS}/{name}" for name in runtimes}
    covered = next((place for place, one in reversed(list(enumerate(view.mounts))) if one.target == "/usr"), -1)
    cover = view.mounts[covered] if covered >= 0 else None
    uppermost = {one.target: place for place, one in enumerate(view.mounts)}  # the others are in nobody's view
    loose = [
        one.target
        for place, one in enumerate(view.mounts)
        if not one.noexec
        and uppermost[one.target] == place
        and one.target not in allowed
        and not (one.target.startswith("/usr") and (place < covered or not one.writable))
    ]
    wrong = []
    if cover is None or cover.filesystem != "tmpfs" or cover.writable or not cover.noexec:
        wrong.append("/usr is not covered")
    if loose:
        wrong.append(f"programs can be started from {', '.join(loose[:5])}")
    return Property(
        name="programs",
        state="absent" if wrong else "enforced",
        mechanism=f"nothing but {', '.join(runtimes) or 'nothing'} and its libraries is there; every other mount is noexec",
        evidence="; ".join(wrong) or f"/usr is a covering tmpfs, {len(view.mounts)} mounts looked at",
        required=True,
        caveat="a runtime told to load machine code (`deno run --allow-ffi`) runs it in its own process",
        remedy=REMEDY_BUG if wrong else None,
    )


def judge_denied(view: View, denied: Sequence[str], told: object, runtimes: Sequence[str] | None) -> Property:
    """Whether each denied program that this machine has now is covered in the box: the keeper tried, /proc shows the mounts.

    The machine is looked at again, since a program may have been installed, or put in place of a covered one, meanwhile.
    One that was removed is nowhere, and neither is its cover.
    """
    names, files, spared = (_texts(told, key) for key in ("names", "files", "spared"))
    uppermost = {one.target: one for one in view.mounts}
    wrong = [] if isinstance(told, Mapping) else ["the keeper said nothing of it"]
    there = [path for path, state in files.items() if state != denials.GONE]
    wrong += [f"{path}: {files[path]}" for path in there if files[path] != denials.COVERED]
    wrong += [
        f"{path} is no sealed mount"
        for path in there
        if path not in uppermost or uppermost[path].writable or not uppermost[path].noexec
    ]
    here: Sequence[str] = ()
    if runtimes is None:  # else nothing of the machine is there
        try:
            named = denials.find_named(denied)
            here = [denials.shown(path) for path in named if not path.startswith(f"{denials.OWN}/")]
        except OSError as error:
            wrong.append(f"the programs of this machine could not be read: {error}")
    for path in dict.fromkeys((*here, *names)):
        real = names.get(path)
        if real is None:
            wrong.append(f"{path} was not there when the box was built")
        elif real not in (denials.NOWHERE, *files) and path not in spared:
            wrong.append(f"{path} leads to {real}")
    left = ", ".join(f"{path} is part of {real}" for path, real in spared.items())
    shown = ", ".join(there[:20]) + (f" and {len(there) - 20} more" if len(there) > 20 else "")
    return Property(
        name="denied_programs",
        state="absent" if wrong else "partial" if spared else "enforced",
        mechanism="on each of these files lies an empty one that can be neither read nor executed, mounted read-only",
        evidence="; ".join(wrong[:5])
        or f"the keeper could neither open nor execute {shown or 'any, since there is none'}; mounts {view.source}",
        required=bool(wrong) or not spared,
        caveat=f"not covered: {left}" if left else None,
        remedy="terminate the sandbox and create another" if wrong else None,
    )


def _texts(told: object, key: str) -> dict[str, str]:
    found = told.get(key) if isinstance(told, Mapping) else None
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, Mapping) else {}
