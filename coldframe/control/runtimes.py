"""What a sandbox has to run programs with: each language and manager of packages, measured inside, and how to get what is
not there."""

import re
from collections.abc import Mapping
from types import MappingProxyType

from coldframe.contract.caller import Caller
from coldframe.contract.errors import from_wire
from coldframe.contract.files import Runtime
from coldframe.contract.sandbox import SandboxInfo
from coldframe.control.gate import Gate
from coldframe.control.sandboxes import Sandboxes

_PACKAGES: Mapping[str, str] = MappingProxyType(
    {
        "python3": "python3",
        "python": "python-is-python3",
        "pip": "python3-pip python3-venv",
        "node": "nodejs",
        "npm": "npm",
        "perl": "perl",
        "ruby": "ruby",
        "git": "git",
        "bash": "bash",
        "gcc": "gcc libc6-dev",
        "cc": "gcc libc6-dev",
        "make": "make",
    }
)
"""Of Debian, by the program that is wanted."""
_IN_WORKSPACE: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "uv": ("pip", "python3 -m venv .venv && .venv/bin/pip install uv"),
        "pnpm": ("npm", "npm install pnpm && export PATH=$PWD/node_modules/.bin:$PATH"),
        "deno": ("npm", "npm install deno && export PATH=$PWD/node_modules/.bin:$PATH"),
    }
)
"""What has to be there, and what to run."""
_ASK = 'for p; do printf "%s\\t" "$p"; "$p" --version 2>&1 </dev/null | head -c 300 | tr "\\n" " "; echo; done'
_VERSION = re.compile(r"\d+(?:\.\d+)+")
MEASURE_S = 60.0


class Runtimes:
    """Of every sandbox that has a box."""

    def __init__(self, sandboxes: Sandboxes, gate: Gate) -> None:
        self._sandboxes = sandboxes
        self._gate = gate

    async def find(self, caller: Caller, sandbox_id: str, *, measure: bool = False) -> list[Runtime]:
        """All that are known, there or not. A program that somebody inside may have changed has no version unless *measure*:
        then it is started as a command, which is judged and recorded.

        Raises:
            GrantMissing, NotFound: not the caller's.
            WrongState: there is no box to look into.
            Refused: a rule is against the command that measures.
        """
        found = await self._sandboxes.runtimes(caller, sandbox_id)
        info = self._sandboxes.get(caller, sandbox_id)
        if measure:
            found = await self._measured(caller, info, found)
        there = {one.name for one in found if one.present}
        return [one if one.present else _missing(info, one, there) for one in found]

    async def _measured(self, caller: Caller, info: SandboxInfo, found: list[Runtime]) -> list[Runtime]:
        names = [one.name for one in found if one.present and one.version is None and one.allowed]
        if (
            not names or info.spec.runtimes is not None
        ):  # where there is no shell, what there is cannot be changed either
            return found
        command = ["sh", "-c", _ASK, "sh", *names]
        arguments = {"command": command, "timeout_s": min(MEASURE_S, info.spec.limits.wall_s)}
        result = await self._gate.call(caller, info.sandbox_id, "run_command", arguments)
        if result.error is not None:
            raise from_wire(result.error)
        told = {}
        for line in str(result.value.get("stdout") or "").splitlines():
            name, tab, text = line.partition("\t")
            if tab and (version := _VERSION.search(text)):
                told[name] = version.group()
        return [one.model_copy(update={"version": one.version or told.get(one.name)}) for one in found]


def _missing(info: SandboxInfo, runtime: Runtime, there: set[str]) -> Runtime:
    return runtime.model_copy(update={"code": "NOT_AVAILABLE", "recipe": _recipe(info, runtime.name, there)})


def _recipe(info: SandboxInfo, name: str, there: set[str]) -> str | None:
    if info.spec.runtimes is not None:
        return None  # the only programs that can start
    first = "" if info.network is not None else "create the sandbox with `network: packages`, then "
    if name in _IN_WORKSPACE and _IN_WORKSPACE[name][0] in there:
        return f"{first}run `{_IN_WORKSPACE[name][1]}`"
    if name not in _PACKAGES:
        return None
    if info.spec.profile == "computer":
        return f"{first}run `apt-get update && apt-get install -y {_PACKAGES[name]}` as `user: root`"
    return (
        "create a sandbox with `template: debian` and `network: packages`, and run "
        f"`apt-get update && apt-get install -y {_PACKAGES[name]}` in it as `user: root`"
    )
