"""Profiles: what kinds of sandbox there are, what each can do, and which one a piece of work needs.

The table is the one place that says so. The gate, creation and acts ask it, `describe` shows it, and the table of
docs/profiles.md is written from it. What belongs to a profile is what its state can carry: an interpreter is gone with its
session, so there is nothing in it to come back to, to show to others, or to install into.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

from pydantic import Field

from coldframe.contract.errors import InstallNotInProfile, NextAction, NotInProfile, next_action
from coldframe.contract.model import Model

Profile = Literal["interpreter", "sandbox", "workspace", "computer"]
PROFILES: tuple[Profile, ...] = get_args(Profile)
"""From the smallest to the largest: work can go on in a later one (`promote`), and never in an earlier one."""


class ProfileFacts(NamedTuple):
    """One profile in words."""

    what: str
    state: str
    """What remains, and how long."""


FACTS: Mapping[Profile, ProfileFacts] = MappingProxyType(
    {
        "interpreter": ProfileFacts(
            "Runs cells of code in the managed environment, for a result", "its variables and files, until it ends"
        ),
        "sandbox": ProfileFacts(
            "Runs commands on a temporary workspace", "files until it ends; with `ephemeral` until it stops"
        ),
        "workspace": ProfileFacts(
            "Works on the durable workspace of an agent, with the system of the machine",
            "files, packages in them, snapshots and records, until the agent is deleted",
        ),
        "computer": ProfileFacts(
            "Has a system of its own with a root, begun from a template",
            "system and files, snapshots and records, as long as the workspace they belong to",
        ),
    }
)


class Capability(NamedTuple):
    """One row of the table."""

    what: str
    profiles: tuple[Profile, ...]
    """Those that have it, the smallest first."""
    tools: tuple[str, ...] = ()
    """Of the gate, which need it."""
    acts: tuple[str, ...] = ()
    """As rules name them."""
    exists: bool = True
    """False for what no sandbox of this version has."""


_ALL = PROFILES
_COMMANDS: tuple[Profile, ...] = ("sandbox", "workspace", "computer")
_DURABLE: tuple[Profile, ...] = ("workspace", "computer")
_COMPUTER: tuple[Profile, ...] = ("computer",)

CAPABILITIES: Mapping[str, Capability] = MappingProxyType(
    {
        "code_cells": Capability("Cells of code whose variables stay from one to the next", _ALL, ("run_code",)),
        "shell": Capability("Commands and shell lines", _COMMANDS, ("run_command", "run_anywhere")),
        "files": Capability(
            "Reading, writing, editing, listing and searching files",
            _ALL,
            ("edit_file", "list_directory", "read_file", "search_files", "write_file"),
        ),
        "package_install": Capability("Installing packages beside those that are there", _COMMANDS),
        "background_jobs": Capability("Commands that go on when their call has answered", _COMMANDS),
        "ports": Capability("Servers inside that can be connected to", _COMMANDS),
        "preview": Capability(
            "Addresses under which others see a server inside",
            _COMMANDS,
            acts=("share_port", "rebuild_preview"),
        ),
        "browser": Capability("A browser that is driven and watched", _COMPUTER, exists=False),
        "snapshots": Capability(
            "Snapshots of the files, and forks of them", _COMMANDS, acts=("take_snapshot", "fork_sandbox")
        ),
        "reset": Capability("Going back to a snapshot, or to nothing", _COMMANDS, acts=("reset_sandbox",)),
        "templates": Capability("Beginning with a system of its own, from a template", _COMPUTER),
        "volume": Capability("Durable directories that several sandboxes share", _COMMANDS, acts=("attach_volume",)),
        "artifacts": Capability("Declared outputs, told with digest, size and type", _ALL),
        "evidence": Capability("Receipts, and the record of every call", _ALL),
        "human_takeover": Capability("A person who takes over, and hands back", _DURABLE, exists=False),
        "schedule": Capability("Work that begins by the clock", _DURABLE, exists=False),
    }
)
"""By name. Sixteen of them."""
_OF_TOOL: Mapping[str, str] = MappingProxyType(
    {tool: name for name, capability in CAPABILITIES.items() for tool in capability.tools}
)
_OF_ACT: Mapping[str, str] = MappingProxyType(
    {act: name for name, capability in CAPABILITIES.items() for act in capability.acts}
)


class ProfileInfo(Model):
    """One profile, with its column of the table."""

    name: Profile
    what: str
    state: str
    """What remains, and how long."""
    capabilities: tuple[str, ...]
    """Those that it has, in a version that has them."""


def list_profiles() -> list[ProfileInfo]:
    """From the smallest to the largest."""
    return [
        ProfileInfo(
            name=name,
            what=facts.what,
            state=facts.state,
            capabilities=tuple(one for one, row in CAPABILITIES.items() if name in row.profiles and row.exists),
        )
        for name, facts in FACTS.items()
    ]


def has(profile: Profile, capability: str) -> bool:
    """Whether a sandbox of that profile has it, in a version that has it at all."""
    return profile in CAPABILITIES[capability].profiles


def require_capability(profile: Profile, capability: str, *, sandbox_id: str | None = None) -> None:
    """Return if sandboxes of that profile have it.

    Raises:
        NotInProfile: with the profiles that have it, and the way there.
    """
    if has(profile, capability):
        return
    raise NotInProfile(
        f"a sandbox of the profile `{profile}` has no {capability.replace('_', ' ')}",
        hint=_hint(CAPABILITIES[capability].profiles),
        next_actions=_ways(CAPABILITIES[capability].profiles, sandbox_id),
        capability=capability,
        profile=profile,
        profiles=list(CAPABILITIES[capability].profiles),
    )


def require_tool(profile: Profile, tool: str, *, sandbox_id: str | None = None, background: bool = False) -> None:
    """Return if a tool can be called in such a sandbox, a command also if it goes on in the *background*. One that no
    capability names can be: it is a part of something else. Raises NotInProfile."""
    capability = _OF_TOOL.get(tool)
    if capability == "shell" and background:
        capability = "background_jobs"
    if capability is not None:
        require_capability(profile, capability, sandbox_id=sandbox_id)


def require_act(profile: Profile, act: str, *, sandbox_id: str | None = None) -> None:
    """Return if such a sandbox takes an act, by the name that rules have for it. Raises NotInProfile."""
    capability = _OF_ACT.get(act)
    if capability is not None:
        require_capability(profile, capability, sandbox_id=sandbox_id)


def require_install(profile: Profile, what: str, *, sandbox_id: str | None = None) -> None:
    """Return if packages can be installed in such a sandbox. *what* is the manager that was called, as `pip`.

    Raises:
        InstallNotInProfile: with the way to promote.
    """
    wanted = CAPABILITIES["package_install"].profiles
    if profile in wanted:
        return
    raise InstallNotInProfile(
        f"`{what}` would install packages, and a sandbox of the profile `{profile}` has those of its environment alone",
        hint=_hint(wanted),
        next_actions=_ways(wanted, sandbox_id),
        capability="package_install",
        profile=profile,
        profiles=list(wanted),
        manager=what,
    )


_INSTALL = re.compile(
    r"""(?:^|[;&|(]|\bsudo\s)[ \t]*(?:[!%]{1,2}[ \t]*)?(?:[\w./-]{0,200}python[\d.]{0,8}\s+-m\s+)?
    (?P<manager>pip[\d.]{0,4}|uv\s+pip|conda|mamba|npm|pnpm|yarn|apt|apt-get)\s+(?:-\S{1,40}\s+){0,8}(?:install|add|i|ci)\b
    |['"](?P<quoted>pip[\d.]{0,4}|conda|npm|apt-get)['"]\s{0,9},\s{0,9}['"](?:install|add)['"]
    |['"](?P<line>pip[\d.]{0,4}|conda|npm|apt-get)\s+install\s""",
    re.MULTILINE | re.VERBOSE,
)


def find_install(code: str) -> str | None:
    """The manager of packages that a cell of code calls to install something, as far as its text says."""
    found = _INSTALL.search(code)
    return None if found is None else found["manager"] or found["quoted"] or found["line"]


def _hint(profiles: tuple[Profile, ...]) -> str:
    named = " or ".join(f"`{one}`" for one in profiles)
    return f"promote it to {named}, or create a sandbox of that profile"


def _ways(profiles: tuple[Profile, ...], sandbox_id: str | None) -> list[NextAction]:
    which = {} if sandbox_id is None else {"sandbox_id": sandbox_id}
    effect = f"goes on as `{profiles[0]}` under the same id, with the same files"
    return [
        next_action("sandbox.promote", effect, **which, to=profiles[0]),
        next_action("sandbox.create", f"makes one of the profile `{profiles[0]}`", profile=profiles[0]),
    ]


# -- which one a piece of work needs ----------------------------------------------------------------------------------


class Requirements(Model):
    """What is known of a piece of work. By default all six conditions of ephemeral use hold and nothing else is needed."""

    inputs_at_start: bool = True
    """All that goes in is there when it begins."""
    few_runs: bool = True
    """One or a few runs are enough."""
    result_is_output: bool = True
    """What counts is a chart, a table, a file or a number."""
    nothing_to_install: bool = True
    """The managed environment has all packages."""
    nothing_to_inspect: bool = True
    """Nobody looks at how the result came about but by its record."""
    may_be_deleted: bool = True
    """Nothing is needed any more when the answer is there."""
    files: bool = False
    """Files have to stay from one step to the next."""
    packages: bool = False
    """Packages have to be installed, and stay."""
    long_processes: bool = False
    """Something runs longer than a call."""
    browser_or_preview: bool = False
    """A browser is driven, or somebody looks at a server inside."""
    human_review: bool = False
    """A person decides on the work."""
    system_packages: bool = False
    """The system itself is changed, as by `apt-get install`."""
    resumed_by_others: bool = False
    """The question: a second person or agent could resume, inspect or reproduce this work after the first model turn."""


class Reason(Model):
    requirement: str
    """Field of `Requirements`."""
    profile: Profile
    """The smallest that answers it."""
    text: str


class Recommendation(Model):
    profile: Profile
    reasons: tuple[Reason, ...] = Field(min_length=1)
    """Why no smaller one is enough; why this one is, where nothing asks for more."""


NEEDS: tuple[tuple[str, bool, Profile, str], ...] = (
    ("inputs_at_start", False, "sandbox", "inputs that come later need a place that waits for them"),
    ("few_runs", False, "sandbox", "many runs build on what the ones before have left"),
    ("result_is_output", False, "workspace", "a result that is a changed state has to be somewhere"),
    ("nothing_to_install", False, "sandbox", "an interpreter has the packages of its environment alone"),
    ("nothing_to_inspect", False, "workspace", "what is to be inspected has to be there when somebody looks"),
    ("may_be_deleted", False, "workspace", "what is needed later may not go with the session"),
    ("files", True, "workspace", "files stay with the workspace of an agent"),
    ("packages", True, "workspace", "packages that are installed once are there in the next step"),
    ("long_processes", True, "workspace", "what outlives a call is come back to, with its files"),
    ("browser_or_preview", True, "computer", "a browser and the servers it looks at need a system of their own"),
    ("human_review", True, "workspace", "a reviewer sees the files, the record and the preview later than the agent"),
    ("system_packages", True, "computer", "only a system of its own can be changed"),
    ("resumed_by_others", True, "workspace", "whoever resumes, inspects or reproduces it needs what it stood on"),
)
"""Field, the answer that asks for more than an interpreter, the smallest profile that has it, and why."""


def recommend_profile(requirements: Requirements) -> Recommendation:
    """The smallest profile that is enough, and why. The question behind it: could a second person or agent resume, inspect or
    reproduce this work after the first model turn?"""
    reasons = [
        Reason(requirement=name, profile=profile, text=text)
        for name, answer, profile, text in NEEDS
        if getattr(requirements, name) is answer
    ]
    if not reasons:
        text = "all six conditions of ephemeral use hold, and nobody comes back to it"
        return Recommendation(
            profile="interpreter",
            reasons=(Reason(requirement="resumed_by_others", profile="interpreter", text=text),),
        )
    largest = max((one.profile for one in reasons), key=PROFILES.index)
    return Recommendation(profile=largest, reasons=tuple(reasons))
