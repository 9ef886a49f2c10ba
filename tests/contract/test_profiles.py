"""Profiles: what a spec says of its own, the table of what each can do, and which one a piece of work needs."""

import itertools
import subprocess
import sys
from functools import partial
from typing import Any

import pytest
from pydantic import ValidationError

from coldframe.contract.errors import InstallNotInProfile, NotInProfile
from coldframe.contract.profile import (
    CAPABILITIES,
    PROFILES,
    Requirements,
    find_install,
    has,
    recommend_profile,
    require_act,
    require_capability,
    require_install,
    require_tool,
)
from coldframe.contract.sandbox import SandboxSpec


@pytest.mark.parametrize(
    ("said", "profile", "template", "background"),
    [
        ({"agent_id": "one"}, "workspace", "host", False),
        ({"background": True}, "sandbox", "host", True),
        ({"agent_id": "one", "template": "python"}, "computer", "python", False),
        ({"background": True, "template": "python"}, "computer", "python", True),
        ({"profile": "interpreter"}, "interpreter", "host", True),
        ({"profile": "sandbox"}, "sandbox", "host", True),
        ({"profile": "computer", "agent_id": "one"}, "computer", "debian", False),
        ({"profile": "exec", "agent_id": "one"}, "workspace", "host", False),
        ({"profile": "exec", "background": True}, "sandbox", "host", True),
        ({"profile": None, "background": True, "template": "python"}, "computer", "python", True),
    ],
)
def test_a_profile_follows_from_what_is_said_and_brings_along_what_it_needs(
    said: dict[str, Any], profile: str, template: str, background: bool
) -> None:
    spec = SandboxSpec.model_validate(said)
    assert (spec.profile, spec.template, spec.background) == (profile, template, background)
    again = SandboxSpec.model_validate_json(spec.model_dump_json())
    assert again == spec, "what is kept is read as what it was"
    if "profile" not in said:
        assert "profile" not in spec.model_dump(exclude_unset=True), "who says nothing of it asks for nothing"


@pytest.mark.parametrize(
    "said",
    [
        {"profile": "interpreter", "agent_id": "one"},
        {"profile": "sandbox", "agent_id": "one"},
        {"profile": "workspace", "background": True},
        {"profile": "computer", "template": "host", "agent_id": "one"},
        {"profile": "exec", "template": "debian", "agent_id": "one"},
        {"profile": "laptop", "agent_id": "one"},
    ],
)
def test_what_no_profile_can_be_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SandboxSpec.model_validate(said)


def test_there_are_four_profiles_and_sixteen_capabilities_and_a_larger_one_can_do_more() -> None:
    assert (len(PROFILES), len(CAPABILITIES)) == (4, 16)
    for smaller, larger in itertools.pairwise(PROFILES):
        assert {name for name in CAPABILITIES if has(smaller, name)} <= {
            name for name in CAPABILITIES if has(larger, name)
        }


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", CAPABILITIES)
def test_each_cell_lets_through_or_names_the_profiles_that_have_it(profile: Any, name: str) -> None:
    if has(profile, name):
        require_capability(profile, name)
        return
    with pytest.raises(NotInProfile) as caught:
        require_capability(profile, name, sandbox_id="sbx_1")
    error = caught.value
    assert error.code == "NOT_IN_PROFILE"
    assert error.facts["profiles"] == list(CAPABILITIES[name].profiles)
    assert profile not in CAPABILITIES[name].profiles
    assert error.next_actions[0] == {
        "op": "sandbox.promote",
        "args": {"sandbox_id": "sbx_1", "to": CAPABILITIES[name].profiles[0]},
        "effect": error.next_actions[0]["effect"],
    }


def test_tools_and_acts_are_held_to_the_table_and_installing_has_a_code_of_its_own() -> None:
    require_tool("interpreter", "run_code")
    require_tool("interpreter", "write_file")
    require_tool("sandbox", "run_command", background=True)
    require_act("sandbox", "take_snapshot")
    require_act("interpreter", "replay_call")
    for ask in (
        partial(require_tool, "interpreter", "run_command"),
        partial(require_tool, "interpreter", "run_command", background=True),
        partial(require_act, "interpreter", "reset_sandbox"),
    ):
        with pytest.raises(NotInProfile):
            ask()
    require_install("workspace", "pip")
    with pytest.raises(InstallNotInProfile, match="`pip` would install") as caught:
        require_install("interpreter", "pip", sandbox_id="sbx_1")
    assert caught.value.code == "INSTALL_NOT_IN_PROFILE"
    assert caught.value.next_actions[0]["op"] == "sandbox.promote"


@pytest.mark.parametrize(
    ("code", "manager"),
    [
        ("!pip install tinychart", "pip"),
        ("%pip install tinychart", "pip"),
        ("x = 1\n  !python3 -m pip install -q tinychart", "pip"),
        ("pip3 --quiet install tinychart", "pip3"),
        ("!sudo apt-get -y install gcc", "apt-get"),
        ("import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'pip', 'install', 'x'])", "pip"),
        ("import os; os.system('pip install x')", "pip"),
        ("npm install leftbox", "npm"),
        ("!uv pip install x", "uv pip"),
        ("print('how to install pip')", None),
        ("text = 'run pip freeze'", None),
        ("!pip list", None),
        ("pip = 3\ninstall = pip", None),
    ],
)
def test_a_cell_that_installs_is_known_by_its_text(code: str, manager: str | None) -> None:
    assert find_install(code) == manager


def test_how_long_a_cell_is_read_for_installs_grows_no_faster_than_the_cell() -> None:
    """With a limit of CPU time that the square of the length would be far beyond."""
    program = (
        "import resource\n"
        "from coldframe.contract.profile import find_install\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (20, 20))\n"
        "for part in (' ', '\\t', '\\n', ' \\n', '!', '! ', '; ', '(', 'sudo ', 'python -m ', 'pip -', 'pip \\n', 'a/'):\n"
        "    assert find_install('x = 1\\n' + part * (1_000_000 // len(part))) is None\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]


CONDITIONS = (
    "inputs_at_start",
    "few_runs",
    "result_is_output",
    "nothing_to_install",
    "nothing_to_inspect",
    "may_be_deleted",
)
TRIGGERS = ("files", "packages", "long_processes", "browser_or_preview", "human_review")


@pytest.mark.req("T4.05")
@pytest.mark.parametrize(
    ("asked", "profiles"),
    [
        ({}, {"interpreter"}),
        *(({name: False}, {"sandbox", "workspace", "computer"}) for name in CONDITIONS),
        *(({name: True}, {"workspace", "computer"}) for name in TRIGGERS),
        ({"resumed_by_others": False}, {"interpreter"}),
        ({"resumed_by_others": True}, {"workspace", "computer"}),
    ],
)
def test_the_smallest_profile_that_is_enough_is_recommended_with_the_reason(
    asked: dict[str, bool], profiles: set[str]
) -> None:
    found = recommend_profile(Requirements(**asked))
    assert found.profile in profiles
    assert found.reasons
    if found.profile != "interpreter":
        assert [one.requirement for one in found.reasons] == list(asked)
    assert found == recommend_profile(Requirements(**asked))


def test_of_several_needs_the_largest_decides_and_each_is_told() -> None:
    found = recommend_profile(Requirements(few_runs=False, human_review=True, system_packages=True))
    assert found.profile == "computer"
    assert [(one.requirement, one.profile) for one in found.reasons] == [
        ("few_runs", "sandbox"),
        ("human_review", "workspace"),
        ("system_packages", "computer"),
    ]
