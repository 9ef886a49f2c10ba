"""A program that the rules deny by name is not in a box: no spelling, copy, link, other name or language starts it."""

import os
import platform
from collections.abc import Iterator

import pytest

from coldframe.client.answers import CommandAnswer
from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import DeniedByRule, IsolationUnavailable
from coldframe.contract.isolation import Property
from coldframe.contract.sandbox import SandboxSpec
from tests.cases.spellings import PROGRAM, READABLE, UNREADABLE, language_of
from tests.programs import needs_its_own
from tests.promises.governed import NO_RULES

MARK = platform.machine()
DENY = f"version: 1\nsettings: {{deny_commands: [{PROGRAM}]}}\n"

SH = os.path.basename(os.path.realpath("/bin/sh"))
"""What `sh` is here."""

needs_program = needs_its_own(PROGRAM)
needs_rbash = pytest.mark.skipif(
    os.path.realpath("/usr/bin/rbash") != "/usr/bin/bash", reason="`rbash` is no link to `bash` here"
)


def wall(sandbox: SyncSandbox) -> Property | None:
    return next((one for one in sandbox.report().properties if one.name == "denied_programs"), None)


def said(ran: CommandAnswer) -> str:
    return f"{ran.stdout}{ran.stderr}"


@pytest.fixture
def denied(owner: SyncColdframe, agent_id: str) -> Iterator[SyncSandbox]:
    """A sandbox that was made under the rule, of an agent of its own."""
    owner.policy.load(DENY)
    with owner.sandboxes.create(agent_id=f"{agent_id}-denied") as sandbox:
        yield sandbox


@needs_program
@pytest.mark.timeout(240)
@pytest.mark.req("T1.95")
def test_a_denied_program_starts_in_no_spelling_copy_link_or_language(
    owner: SyncColdframe, box: SyncSandbox, denied: SyncSandbox, agent_id: str
) -> None:
    """With the rule the text is refused where it shows; without it, in the same sandbox, what is left is the wall."""
    for text in READABLE:
        with pytest.raises(DeniedByRule):
            denied.run_command(text)
    for spelling, text in UNREADABLE.items():
        try:
            ran = denied.run_command(text)
        except DeniedByRule:
            continue
        assert MARK not in said(ran), spelling
    owner.policy.load(NO_RULES)
    with owner.sandboxes.create(agent_id=f"{agent_id}-open") as control:
        needed = set(map(language_of, UNREADABLE))
        present = {name for name in needed if control.run_command(f"command -v {name}").exit_code == 0}
        tried = [one for one in UNREADABLE if language_of(one) in present]
        print("not tried, since what they need is not here:", sorted(UNREADABLE.keys() - set(tried)))
        assert len(tried) > len(UNREADABLE) // 2
        for spelling in tried:
            assert MARK in said(control.run_command(UNREADABLE[spelling])), f"{spelling} would start nothing anyway"
    for text in (*READABLE, *UNREADABLE.values()):
        assert MARK not in said(denied.run_command(text)), text
    assert MARK in said(box.run_command(PROGRAM))  # a sandbox from before the rule has it


@needs_program
@pytest.mark.req("T1.95")
def test_a_denied_program_can_be_neither_read_nor_changed_and_the_cover_stays(
    owner: SyncColdframe, denied: SyncSandbox
) -> None:
    owner.policy.load(NO_RULES)
    path = f"/usr/bin/{PROGRAM}"
    assert denied.run_command(["stat", "-c", "%a %s", path]).stdout == "0 0\n"
    for argv in (
        ["cat", path],
        ["dd", f"if={path}", "of=copied"],
        ["chmod", "755", path],
        ["touch", path],
        ["rm", "-f", path],
        ["mv", path, "gone"],
        ["cp", "/usr/bin/true", path],
        ["truncate", "-s", "1", path],
        ["setfacl", "-m", "u::rwx", path],
    ):
        assert denied.run_command(argv).exit_code != 0, argv
    assert denied.run_command([PROGRAM]).exit_code == 126
    held = wall(denied)
    assert held is not None and held.state == "enforced" and held.required and path in held.evidence
    assert path in [one.target for one in denied.report().mounts if one.source == "mask" and not one.writable]
    assert denied.report().boundary_weakened == ()


@pytest.mark.req("T1.95")
def test_other_names_of_a_file_go_with_it_and_links_are_followed(owner: SyncColdframe, agent_id: str) -> None:
    """What they are differs from machine to machine: asked of a sandbox without the rule."""
    with owner.sandboxes.create(agent_id=agent_id) as sandbox:
        listed = sandbox.run_command(
            "find /usr/bin -type f -links +1 -printf '%i %f\\n' | sort; echo -;"
            " case $(readlink /usr/bin/awk) in /etc/alternatives/*) readlink -f /usr/bin/awk;; esac;"
            " case $(readlink -f /usr/bin/python3) in */python3.*) readlink -f /usr/bin/python3;; esac"
        ).stdout
    hard, _, links = (listed or "").partition("-\n")
    names: dict[str, list[str]] = {}
    for line in hard.splitlines():
        inode, _, name = line.partition(" ")
        names.setdefault(inode, []).append(name)
    some = (one for one in names.values() if len(one) > 1 and not {"busybox", "toybox", "coreutils"} & set(one))
    same = sorted(next(some, []), key=len)  # a longer one may be a form of the first, which is not denied then
    owner.policy.load(f"version: 1\nsettings: {{deny_commands: {['awk', 'python3', 'python', *same[:1]]}}}\n")
    with owner.sandboxes.create(agent_id=agent_id) as sandbox:
        owner.policy.load(NO_RULES)
        for path in (*links.split(), *(f"/usr/bin/{name}" for name in same), "/opt/coldframe/bin/python"):
            assert sandbox.run_command(["cat", path]).exit_code == 1, path
            assert sandbox.run_command([path, "--version"]).exit_code in (126, 127), path
        assert not [one.name for one in sandbox.runtimes() if one.present and one.name.startswith("python")]


@needs_its_own("sleep", "bash", "env", "cat")
@pytest.mark.req("T1.95")
def test_the_program_that_holds_a_box_open_and_the_shell_can_be_denied_too(owner: SyncColdframe, agent_id: str) -> None:
    owner.policy.load(f"version: 1\nsettings: {{deny_commands: [sleep, bash, {SH}, env]}}\n")
    with owner.sandboxes.create(agent_id=agent_id) as sandbox:
        with pytest.raises(DeniedByRule) as refused:
            sandbox.run_command("echo hi")
        assert refused.value.facts["rule"] == "settings:shell"
        assert sandbox.run_command(["echo", "hi"]).stdout == "hi\n"
        ways = "import os, sys; print([os.access(one, os.R_OK | os.X_OK) for one in sys.argv[1:]])"
        files = ["/usr/bin/sleep", "/opt/coldframe/sleep", "/bin/bash", "/bin/sh", "/usr/bin/env", "/proc/1/exe"]
        assert sandbox.run_command(["python3", "-c", ways, *files]).stdout == f"{[False] * len(files)}\n"
        owner.policy.load(NO_RULES)
        for file in files[:-1]:
            assert sandbox.run_command([file, "0"]).exit_code == 126, file
        with pytest.raises(DeniedByRule):  # it has no shell, whatever the rules say now
            sandbox.run_command("echo hi")
        assert sandbox.run_command(["cat", "-"], stdin=b"still there\n").stdout == "still there\n"


@needs_its_own("bash")
@pytest.mark.req("T1.95")
def test_a_sandbox_that_was_asked_for_without_a_shell_refuses_lines_and_says_why(
    owner: SyncColdframe, agent_id: str
) -> None:
    owner.policy.load(NO_RULES)
    with owner.sandboxes.create(spec=SandboxSpec(agent_id=agent_id, denied_programs=("ba?h",))) as sandbox:
        with pytest.raises(DeniedByRule, match="made without") as refused:
            sandbox.run_command("echo hi")
        assert refused.value.facts["rule"] == "settings:shell"
        answers = {one.operation: one.answer for one in sandbox.allowed()}
        assert (answers["tool.run_command"], answers["tool.run_command:shell"]) == ("allow", "deny")
        assert sandbox.run_command(["echo", "hi"]).stdout == "hi\n"


@needs_program
@needs_rbash
@pytest.mark.req("T1.95")
def test_a_name_by_which_another_program_acts_differently_does_not_take_that_away_and_is_told(
    owner: SyncColdframe, agent_id: str
) -> None:
    owner.policy.load(f"version: 1\nsettings: {{deny_commands: [rbash, {PROGRAM}]}}\n")
    with owner.sandboxes.create(agent_id=agent_id) as sandbox:
        assert sandbox.run_command("echo hi").stdout == "hi\n"
        with pytest.raises(DeniedByRule):
            sandbox.run_command("rbash -c true")
        held = wall(sandbox)
        assert held is not None and (held.state, held.required) == ("partial", False)
        assert held.caveat == "not covered: /usr/bin/rbash is part of /usr/bin/bash"
        assert f"/usr/bin/{PROGRAM}" in held.evidence
        owner.policy.load(NO_RULES)
        assert sandbox.run_command([PROGRAM]).exit_code == 126
    with pytest.raises(IsolationUnavailable):
        owner.sandboxes.create(
            spec=SandboxSpec(agent_id=agent_id, denied_programs=("rbash",), requires=("denied_programs",))
        )


RULES = {
    "an entry for any arguments": ("settings: {deny_commands: ['arch *']}", True),
    "a pattern": ("settings: {deny_commands: ['arc*']}", True),
    "a path": ("settings: {deny_commands: [/usr/bin/arch]}", True),
    "some arguments only": ("settings: {deny_commands: [arch --version]}", False),
    "a rule": ("rules: [{id: a, hook: PRE_TOOL_CALL, when: {program: arch}, then: deny}]", True),
    "a rule of several": ("rules: [{id: a, hook: PRE_TOOL_CALL, when: {program: [git push, arch]}, then: deny}]", True),
    "a rule with a pattern": (
        "rules: [{id: a, hook: PRE_TOOL_CALL, when: {program: {glob: 'ar?h'}}, then: deny}]",
        True,
    ),
    "a rule for this agent": (
        "rules: [{id: a, hook: PRE_TOOL_CALL, when: {program: arch, agent_id: AGENT, tool: run_command}, then: deny}]",
        True,
    ),
    "a rule for another agent": (
        "rules: [{id: a, hook: PRE_TOOL_CALL, when: {program: arch, agent_id: another}, then: deny}]",
        False,
    ),
    "a rule with more to it": (
        "rules: [{id: a, hook: PRE_TOOL_CALL, when: {program: arch, taint: RESTRICTED}, then: deny}]",
        False,
    ),
    "a rule that asks": ("rules: [{id: a, hook: PRE_TOOL_CALL, when: {program: arch}, then: ask}]", False),
}


@needs_program
@pytest.mark.req("T1.95")
@pytest.mark.parametrize("rule", RULES)
def test_what_denies_a_program_as_such_covers_it_and_nothing_else_does(
    owner: SyncColdframe, agent_id: str, rule: str
) -> None:
    text, covers = RULES[rule]
    owner.policy.load(f"version: 1\n{text.replace('AGENT', agent_id)}\n")
    with owner.sandboxes.create(agent_id=agent_id) as sandbox:
        assert (wall(sandbox) is not None) is covers
        owner.policy.load(NO_RULES)
        assert (sandbox.run_command([PROGRAM]).exit_code == 126) is covers


@needs_its_own(PROGRAM, "tac")
@pytest.mark.req("T1.95")
def test_whoever_makes_a_sandbox_may_deny_more_and_cannot_deny_less(owner: SyncColdframe, agent_id: str) -> None:
    owner.policy.load(DENY)
    spec = SandboxSpec(agent_id=agent_id, denied_programs=("tac", "no-such-program"), requires=("denied_programs",))
    with owner.sandboxes.create(spec=spec) as sandbox:
        assert set(sandbox.info.spec.denied_programs) == {"tac", "no-such-program", PROGRAM}
        assert sandbox.run_command(["tac"], stdin=b"a\nb\n").exit_code == 126
        with pytest.raises(DeniedByRule):
            sandbox.run_command(PROGRAM)
    owner.policy.load(NO_RULES)
    with pytest.raises(IsolationUnavailable):  # where nothing is denied there is no such wall
        owner.sandboxes.create(spec=SandboxSpec(agent_id=agent_id, requires=("denied_programs",)))
