"""How the steps of a recipe are carried out: the programs of those that run in a box, and what they say when they fail.

What a step says is hostile. It is read for one thing: which versions a package manager has, to name the nearest in an error.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from coldframe.contract.command import BoxUserName
from coldframe.contract.errors import DependencyMissing
from coldframe.contract.template import HOME_STORE, AptStep, NpmStep, Package, PipStep, RunStep, UnpackStep
from coldframe.host.templates.debian import EPOCH_S
from coldframe.host.templates.inventory import missing

PACKAGES_TIMEOUT_S = 3600.0
"""Of a step that installs packages."""
VARIABLES = {
    "DEBIAN_FRONTEND": "noninteractive",
    "SOURCE_DATE_EPOCH": str(EPOCH_S),  # by which Python compiles what a change of times leaves valid
    "PIP_NO_CACHE_DIR": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
    "PIP_BREAK_SYSTEM_PACKAGES": "1",  # the system is the template's own, and nobody else manages its Python
    "NPM_CONFIG_CACHE": "/tmp/npm",
}
"""Of each step that runs, below those of the recipe."""
_BASH = ("/bin/bash", "-e", "-o", "pipefail", "-c")
_APT = """
pins=/etc/apt/preferences.d/zz-coldframe-locked
trap 'rm -f "$pins"' EXIT
cat > "$pins"
apt-get update
apt-get install --yes --no-install-recommends --allow-downgrades -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-confold "$@"
"""
_PIP = """
cat > /tmp/coldframe-locked.txt
python3 -m pip install --no-input --progress-bar off --constraint /tmp/coldframe-locked.txt "$@"
"""
_NPM = 'npm install --global --no-audit --no-fund --no-update-notifier --loglevel=http "$@"'
_IN_FOLDER = 'if ! [ -d "$0" ]; then mkdir -p "$0"; chown "$1:" "$0"; fi'
UNPACKED = "coldframe-archive"
"""The archive of a step, at the top of the system while that is carried out."""
_UNPACK = """
archive=$0 entries=$1 to=$2 owner=$3 mode=$4
place=/$archive-entries
trap 'rm -rf "/$archive" "$place"' EXIT
mkdir "$place"
tar --extract --file "/$archive" --directory "$place" --no-same-owner
cd "$place"
shopt -s dotglob nullglob globstar
IFS=
found=( $entries )
if [ ${#found[@]} = 0 ] && { [ -e "$entries" ] || [ -L "$entries" ]; }; then found=( "$entries" ); fi
if [ ${#found[@]} = 0 ]; then echo "nothing in the archive is called '$entries'" >&2; exit 1; fi
if [ ${#found[@]} -gt 1 ] && [ -e "$to" ] && ! [ -d "$to" ]; then echo "'$to' is no folder" >&2; exit 1; fi
chown -R -h -- "$owner" "${found[@]}"
if [ -n "$mode" ]; then chmod -R -- "$mode" "${found[@]}"; fi
for one in "${found[@]}"; do
    if [ -d "$one" ] && ! [ -L "$one" ]; then
        mkdir -p -- "$to"
        cp -a -- "$one/." "$to/"
    elif [ ${#found[@]} -gt 1 ] || [ -d "$to" ] || [ "${to%/}" != "$to" ]; then
        mkdir -p -- "$to"
        cp -a -- "$one" "$to/"
    else
        mkdir -p -- "$(dirname -- "$to")"
        cp -a --remove-destination -- "$one" "$to"
    fi
done
"""
_TAKE_HOME = """
if [ -d "$0" ]; then cp -a -- "$0/." /home/user/; fi
touch /tmp/.coldframe-home
sleep 0.02
"""
"""What changes from here on has a later time of change, also if it is given an earlier time of writing. The pause is that
of the kernel's clock, which moves by a few milliseconds."""
_KEEP_HOME = """
if ! [ -d "$0" ]; then mkdir -p -- "$0" && chown user:user -- "$0"; fi
cd -- "$0"
find . -mindepth 1 -depth -print0 | while IFS= read -r -d '' one; do
    now=/home/user/$one
    if ! [ -e "$now" ] && ! [ -L "$now" ]; then rm -rf -- "$one"; fi
    if [ -d "$one" ] && ! [ -L "$one" ] && { [ -L "$now" ] || ! [ -d "$now" ]; }; then rm -rf -- "$one"; fi
done
cd /home/user
changed=/tmp/.coldframe-changed
find . -mindepth 1 -cnewer /tmp/.coldframe-home ! -type s ! -path ./.exec_history -print0 > "$changed"
if [ -s "$changed" ]; then
    tar --create --file - --null --no-recursion --owner user --group user --files-from "$changed" |
        tar --extract --file - --directory "$0" --same-owner --same-permissions
fi
"""
_TIMES = re.compile(
    r"Could not find a version that satisfies the requirement (\S+?)\s*==\s*(\S+) \(from versions: (.*?)\)"
)
_HELD = re.compile(r"\(constraint\) ([A-Za-z0-9._-]+)==(\S+)")
_PIP_VERSIONS = 'for name in "$@"; do python3 -m pip index versions "$name" || true; done'
_NO_TARGET = re.compile(r"No matching version found for (\S+)@([^\s@]+?)\.?\s*$", re.MULTILINE)


class Act(NamedTuple):
    """One program of a step."""

    argv: tuple[str, ...]
    timeout_s: float
    user: BoxUserName = "root"
    stdin: bytes = b""


Running = AptStep | PipStep | NpmStep | UnpackStep | RunStep
"""Steps that run something."""


def acts_of(step: Running, locked: Sequence[Package] | None, *, keeps_home: bool = False) -> list[Act]:
    """What is to be run, one after the other; *locked* holds packages to versions."""
    acts = _acts_of(step, locked)
    if not keeps_home:
        return acts
    take, keep = ((*_BASH, script, HOME_STORE) for script in (_TAKE_HOME, _KEEP_HOME))
    return [Act(take, PACKAGES_TIMEOUT_S), *acts, Act(keep, PACKAGES_TIMEOUT_S)]


def _acts_of(step: Running, locked: Sequence[Package] | None) -> list[Act]:
    if isinstance(step, UnpackStep):
        mode = "" if step.mode is None else f"{step.mode:o}"
        words = (UNPACKED, step.entries, step.to, step.owner, mode)
        return [Act((*_BASH, _UNPACK, *words), PACKAGES_TIMEOUT_S)]
    if isinstance(step, RunStep):
        argv = (*_BASH, step.command) if isinstance(step.command, str) else step.command
        if step.cwd == "/":
            return [Act(("/bin/bash", "-c", 'cd / && exec "$@"', "sh", *argv), step.timeout_s, step.user)]
        folder = Act((*_BASH, _IN_FOLDER, step.cwd, step.user), step.timeout_s)
        return [folder, Act(("/bin/bash", "-c", 'cd "$0" && exec "$@"', step.cwd, *argv), step.timeout_s, step.user)]
    versions = {(one.name, one.architecture): one.version for one in locked or () if one.manager == step.kind}
    by_name = {name: version for (name, _), version in versions.items()}
    if isinstance(step, AptStep):
        pins = "".join(
            f"Package: {name}\nPin: version {version}\nPin-Priority: 1001\n\n"
            for (name, _), version in versions.items()
        )
        asked = [one if "=" in one or one not in by_name else f"{one}={by_name[one]}" for one in step.packages]
        return [Act((*_BASH, _APT, "apt", *asked), PACKAGES_TIMEOUT_S, stdin=pins.encode())]
    if isinstance(step, PipStep):
        lines = "".join(f"{name}=={version}\n" for name, version in by_name.items())
        return [Act((*_BASH, _PIP, "pip", *step.packages), PACKAGES_TIMEOUT_S, stdin=lines.encode())]
    asked = [one if "@" in one[1:] or one not in by_name else f"{one}@{by_name[one]}" for one in step.packages]
    return [Act((*_BASH, _NPM, "npm", *asked), PACKAGES_TIMEOUT_S)]


class Question(NamedTuple):
    """What is asked of a package manager once it has failed: a program, and what its answer means."""

    argv: tuple[str, ...]
    understood: Callable[[str], DependencyMissing | None]


def reason_in(step: Running, said: str, act: Act) -> DependencyMissing | Question | None:
    """Why it failed, if it is that a version is not to be had, or how to find out; *said* is the end of its log."""
    if isinstance(step, PipStep) and (found := _TIMES.search(said)) is not None:
        there_are = [] if found[3] == "none" else found[3].split(", ")
        return missing("pip", found[1][:300], found[2][:300], there_are)
    if isinstance(step, PipStep) and (held := dict(_HELD.findall(said))):
        return Question(("/bin/bash", "-c", _PIP_VERSIONS, "pip", *held), lambda answer: _of_pip_versions(answer, held))
    if isinstance(step, NpmStep) and (target := _NO_TARGET.search(said)) is not None:
        name, version = target[1][:300], target[2][:300]
        argv = ("npm", "view", name, "versions", "--json")
        return Question(argv, lambda answer: missing("npm", name, version, _of_json(answer)))
    if isinstance(step, AptStep):
        wanted = dict(one.split("=", 1) for one in act.argv[len(_BASH) + 2 :] if "=" in one)
        if wanted:
            return Question(("apt-cache", "madison", *wanted), lambda answer: _of_madison(answer, wanted))
    return None


def _of_json(answer: str) -> list[str]:
    try:
        told = json.loads(answer)
    except (ValueError, RecursionError):
        return []
    listed = told if isinstance(told, list) else [told]
    return [str(one)[:300].encode("utf-8", "replace").decode() for one in listed[:10_000]]


def _of_pip_versions(answer: str, wanted: dict[str, str]) -> DependencyMissing | None:
    name = ""
    for line in answer.splitlines():
        title, _, rest = line.partition(":")
        if (head := re.fullmatch(r"(\S+) \(\S+\)", line)) is not None:
            name = head[1]
        elif title == "Available versions" and name in wanted:
            there_are = rest.strip().split(", ")
            if wanted[name] not in there_are:
                return missing("pip", name, wanted[name], there_are)
    return None


def _of_madison(answer: str, wanted: dict[str, str]) -> DependencyMissing | None:
    there_are: dict[str, list[str]] = {name: [] for name in wanted}
    for line in answer.splitlines():
        fields = [one.strip() for one in line.split("|")]
        if len(fields) == 3 and fields[0] in there_are:
            there_are[fields[0]].append(fields[1])
    for name, version in wanted.items():
        if version not in there_are[name]:
            return missing("apt", name, version, there_are[name])
    return None
