"""The switches of the rule file: tools off, limits by agent, own deny entries, a threshold for asking, few runtimes."""

import itertools
import json
import os
import shutil
from collections.abc import Iterator, Sequence

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import ColdframeError, DeniedByRule, GrantMissing, RulesInvalid
from coldframe.contract.policy import Role
from coldframe.contract.sandbox import Limits, SandboxSpec
from coldframe.host.offered_tools import offered_tools
from tests.installation import Installation
from tests.promises.governed import EVERY_TOOL, NO_RULES, head, token_of, tokens_of
from tests.promises.raw import all_entries, call, rest

MIB = 1 << 20
_others = itertools.count(1)


@pytest.fixture
def other(owner: SyncColdframe) -> Iterator[SyncSandbox]:
    """A sandbox of an agent that no rule names."""
    with owner.sandboxes.create(agent_id=f"other-{next(_others)}") as sandbox:
        sandbox.write_file("a.txt", "one\n")
        yield sandbox


# -- T1.109 ----------------------------------------------------------------------------------------


@pytest.mark.req("T1.109")
@pytest.mark.parametrize("off", [("run_command",), tuple(EVERY_TOOL)])
@pytest.mark.parametrize("by", ["agent id", "role"])
def test_tools_that_are_off_are_neither_shown_nor_run_for_whom_they_are_off(
    governed: Installation,
    owner: SyncColdframe,
    box: SyncSandbox,
    other: SyncSandbox,
    agent_id: str,
    off: tuple[str, ...],
    by: str,
) -> None:
    agents = token_of(owner, Role.AGENT, agent_id)
    members = token_of(owner, Role.MEMBER)
    names = "['*']" if len(off) == len(EVERY_TOOL) else f"[{', '.join(off)}]"
    whom = agent_id if by == "agent id" else "agent"
    owner.policy.load(f"version: 1\nsettings: {{disabled_tools: {{{whom}: {names}}}}}\n")
    shown = {one["name"] for one in rest(governed, "GET", "/v1/tools", token=agents).json}
    assert shown == set(EVERY_TOOL) - set(off)
    listed = rest(governed, "GET", f"/v1/sandboxes/{box.id}/allowed", token=agents).json
    offered = {one["operation"].removeprefix("tool.").partition(":")[0] for one in listed} & set(EVERY_TOOL)
    assert offered == set(EVERY_TOOL) - set(off)
    since = head(owner)
    for tool, arguments in EVERY_TOOL.items():
        answer = call(governed, box.id, tool, arguments, token=agents)
        assert answer.code == ("NOT_IN_PROFILE" if tool in off else None), (tool, answer.body)
    refused = [one.body for one in all_entries(owner, after=since) if one.kind == "call.refused"]
    assert [(one["tool"], one["code"]) for one in refused] == [
        (one, "NOT_IN_PROFILE") for one in EVERY_TOOL if one in off
    ]
    # Somebody of another role, and another agent, go on as before; by agent id its sandboxes are closed to all.
    assert {one["name"] for one in rest(governed, "GET", "/v1/tools", token=members).json} == set(EVERY_TOOL)
    theirs = call(governed, box.id, "run_command", EVERY_TOOL["run_command"], token=members)
    assert theirs.code == ("NOT_IN_PROFILE" if by == "agent id" else None)
    for tool, arguments in EVERY_TOOL.items():
        assert call(governed, other.id, tool, arguments, token=members).code is None
    owner.policy.load(NO_RULES)
    assert call(governed, box.id, "run_command", EVERY_TOOL["run_command"], token=agents).code is None


@pytest.mark.req("T1.109")
def test_a_command_that_runs_when_its_tool_is_switched_off_ends_as_it_would_have_and_is_recorded(
    governed: Installation, owner: SyncColdframe, box: SyncSandbox, agent_id: str
) -> None:
    """Switching off binds calls, not what runs: a person can end that by a signal."""
    token = token_of(owner, Role.AGENT, agent_id)
    box.run_command("mkfifo go")
    started, stopped = (
        box.run_command(f"echo begun; read -r _ < go; echo done-{name}", background=True) for name in ("a", "b")
    )
    owner.policy.load(f"version: 1\nsettings: {{disabled_tools: {{{agent_id}: [run_command]}}}}\n")
    refused = call(governed, box.id, "run_command", {"command": "echo now > go"}, token=token)
    assert refused.code == "NOT_IN_PROFILE"
    box.signal(stopped.command_id, cancel=True)
    for _ in box.follow(stopped.command_id):
        pass
    assert box.command(stopped.command_id).state == "ended"
    assert box.command(started.command_id).state == "running"
    owner.policy.load(NO_RULES)
    box.run_command("echo now > go")
    for _ in box.follow(started.command_id):
        pass
    assert box.output(started.command_id).data == b"begun\ndone-a\n"
    entries = all_entries(owner)
    calls = {entry.body.get("command_id"): entry.subject for entry in entries if entry.kind == "call.started"}
    finished = {entry.subject for entry in entries if entry.kind == "call.ended"}
    assert {calls[started.command_id], calls[stopped.command_id]} <= finished


# -- T1.111 ----------------------------------------------------------------------------------------


@pytest.mark.req("T1.111")
def test_two_agents_are_held_to_limits_of_their_own_from_the_next_call_on(
    owner: SyncColdframe, box: SyncSandbox, other: SyncSandbox, agent_id: str
) -> None:
    burn = ["python3", "-c", "import time\nwhile time.process_time() < 1.5: pass\nprint('done')"]
    # Held for a while, since memory that no controller counts is looked at now and then.
    hold = ["python3", "-c", "import time; held = bytearray(150 << 20); time.sleep(1); print(len(held) >> 20)"]
    fill = "rm -f big*; for n in 1 2 3 4 5 6; do head -c 3M /dev/zero > big$n || exit 1; sleep 0.2; done; echo done"
    assert box.run_command(burn).stdout == "done\n"
    assert box.run_command(hold).stdout == "150\n"
    assert box.run_command(fill).stdout == "done\n"
    box.run_command("rm -f big*")
    # CPU time by itself: on a slow machine whoever takes memory would meet so little of it first.
    owner.policy.load(f"version: 1\nsettings: {{limits: {{{agent_id}: {{cpu_s: 1}}}}}}\n")
    ended = box.run_command(burn)
    assert ended.limit is not None and ended.limit.kind == "cpu" and ended.limit.limit == 1.0
    assert (ended.cpu_s or 0) < 1.5
    owner.policy.load(f"version: 1\nsettings: {{limits: {{{agent_id}: {{cpu_s: 60, memory_mib: 64, disk_mib: 8}}}}}}\n")
    assert box.run_command(burn).stdout == "done\n"
    ended = box.run_command(hold)
    assert ended.limit is not None and ended.limit.kind == "memory" and ended.limit.limit == 64 * MIB
    assert ended.stdout == ""
    ended = box.run_command(fill)
    assert ended.limit is not None and ended.limit.kind == "disk" and ended.limit.limit == 8 * MIB
    with pytest.raises(ColdframeError) as refused:
        box.write_file("more.txt", "x" * MIB * 4)
    assert refused.value.code == "LIMIT_DISK"
    assert refused.value.facts["kind"] == "disk"
    assert other.run_command(burn).stdout == "done\n"
    assert other.run_command(hold).stdout == "150\n"
    assert other.run_command(fill).stdout == "done\n"
    assert box.refresh().spec.limits.memory_mib == 64
    told = {one.kind: one.limit for one in box.report().limits}
    assert (told["cpu"], told["memory"], told["disk"]) == (60, 64, 8)
    owner.policy.load(NO_RULES)
    box.run_command("rm -f big*")
    assert box.run_command(burn).stdout == "done\n"
    assert box.run_command(hold).stdout == "150\n"
    assert box.run_command(fill).stdout == "done\n"


@pytest.mark.req("T1.111", "T1.114")
def test_limits_of_the_rules_never_raise_those_of_the_sandbox(owner: SyncColdframe, agent_id: str) -> None:
    owner.policy.load(f"version: 1\nsettings: {{limits: {{{agent_id}: {{cpu_s: 9000, memory_mib: 9000}}}}}}\n")
    with owner.sandboxes.create(agent_id=agent_id, limits=Limits(memory_mib=128, cpu_s=20)) as sandbox:
        assert (sandbox.refresh().spec.limits.memory_mib, sandbox.info.spec.limits.cpu_s) == (128, 20)
        ended = sandbox.run_command(["python3", "-c", "import time; held = bytearray(200 << 20); time.sleep(15)"])
        assert ended.limit is not None and ended.limit.kind == "memory"
        owner.policy.load("version: 1\nsettings: {limits: {'*': {memory_mib: 64, wall_s: 5}}}\n")
        with pytest.raises(ColdframeError):
            sandbox.run_command("true", timeout_s=6)
        assert sandbox.run_command("true").exit_code == 0
        assert sandbox.refresh().spec.limits.wall_s == 5


# -- T1.112 (the threshold), T1.113, T1.114 ----------------------------------------------------------


@pytest.mark.req("T1.112")
def test_above_the_threshold_commands_wait_for_a_person_and_files_do_not(
    owner: SyncColdframe, box: SyncSandbox
) -> None:
    asking = "settings: {ask_above: INTERNAL}"
    for label, code in (("INTERNAL", None), ("CONFIDENTIAL", "PENDING_APPROVAL")):
        labels = f"rules:\n  - {{id: mark, hook: PRE_TOOL_CALL, when: {{tool: list_directory}}, label: {label}}}\n"
        owner.policy.load(f"version: 1\n{asking}\n{labels}")
        box.list_directory()
        try:
            box.run_command("echo ran >> log")
            found = None
        except ColdframeError as error:
            found = error.code
        assert found == code
        box.read_file("a.txt")
    assert box.read_file("log").data == b"ran\n"
    refused = [entry for entry in all_entries(owner) if entry.kind == "call.refused"][-1]
    assert refused.body["decision"]["rule_id"] == "settings:ask_above"
    assert (refused.body["outcome"], refused.body["command"]) == ("pending", "echo ran >> log")
    lines = [json.loads(line) for line in (box.read_file(".exec_history").content or "").splitlines()]
    assert [line["command"] for line in lines if line["attempt"] == "pending"] == ["echo ran >> log"]


@pytest.mark.req("T1.113")
def test_own_entries_of_the_deny_list_refuse_come_off_again_and_no_allow_entry_shadows_the_defaults(
    owner: SyncColdframe, box: SyncSandbox
) -> None:
    assert box.run_command("printf one").stdout == "one"
    owner.policy.load("version: 1\nsettings: {deny_commands: [printf, 'git push']}\n")
    for command in (
        "printf one",
        "/usr/bin/printf one",
        "env printf one",
        "true && printf one",
        "bash -c 'printf one'",
    ):
        with pytest.raises(DeniedByRule):
            box.run_command(command)
    with pytest.raises(DeniedByRule):
        box.run_command(["printf", "one"])
    with pytest.raises(DeniedByRule):
        box.run_command("git -C a push")
    assert box.run_command("git --version").exit_code == 0
    owner.policy.load("version: 1\nsettings: {deny_commands: ['git push']}\n")
    assert box.run_command("printf one").stdout == "one"
    owner.policy.load(
        "version: 1\nsettings: {allow_programs: [sudo, rm, printf], deny_commands: []}\n"
        "rules:\n  - {id: all, hook: PRE_TOOL_CALL, when: {program: [sudo, rm]}, then: allow}\n"
    )
    assert box.run_command("printf one").stdout == "one"
    for command in ("sudo true", "rm -rf /"):
        with pytest.raises(DeniedByRule):
            box.run_command(command)
    owner.policy.load("version: 1\nsettings: {allow_programs: [printf], deny_commands: [printf]}\n")
    with pytest.raises(DeniedByRule):
        box.run_command("printf one")


SWITCHES = (
    "disabled_tools: {member: ['*']}",
    "limits: {'*': {cpu_s: 1}}",
    "runtimes: {'*': [deno]}",
    "deny_commands: [printf]",
    "allow_programs: [printf]",
    "strict_parsing: true",
    "ask_above: PUBLIC",
)


@pytest.mark.req("T1.114")
def test_only_owner_and_admin_change_a_switch_and_each_change_is_recorded_with_before_and_after(
    governed: Installation, owner: SyncColdframe, agent_id: str
) -> None:
    tokens = tokens_of(owner, agent_id)
    before = owner.policy.show()
    since = owner.ledger.verify().head_seq
    for switch in SWITCHES:
        text = f"version: 1\nsettings: {{{switch}}}\n".encode()
        for role in (Role.AGENT, Role.MEMBER, Role.VIEWER):
            assert rest(governed, "PUT", "/v1/policy", text, token=tokens[role]).code == "GRANT_MISSING"
        assert owner.policy.show() == before
    refused = [entry for entry in all_entries(owner, after=since) if entry.kind == "policy.refused"]
    assert len(refused) == 3 * len(SWITCHES)
    assert not [entry for entry in all_entries(owner, after=since) if entry.kind == "policy.changed"]
    admin = SyncColdframe(governed.url, tokens[Role.ADMIN])
    try:
        loaded = [admin.policy.load(f"version: 1\nsettings: {{{switch}}}\n") for switch in SWITCHES]
    finally:
        admin.close()
    changes = [entry.body for entry in all_entries(owner, after=since) if entry.kind == "policy.changed"]
    digests = [before.sha256, *(one.sha256 for one in loaded)]
    assert [(one["sha256_before"], one["sha256_after"]) for one in changes] == list(itertools.pairwise(digests))
    assert [one["text"] for one in changes] == [one.text for one in loaded]
    settings = [(json.loads(one["settings_before"]), json.loads(one["settings_after"])) for one in changes]
    for (_, after), (following, _) in itertools.pairwise(settings):
        assert after == following
    assert all(before != after for before, after in settings)
    assert all(one["caller"].startswith("rest:tok_") for one in changes)


@pytest.mark.req("T1.114")
@pytest.mark.parametrize(
    "loosening",
    [
        "deny_list: false",
        "default_deny_list: []",
        "allow_programs: {floor: off}",
        "limits: {'*': {pids: 99999}}",
        "limits: {'*': {cpu_s: -1}}",
        "limits: {'*': {memory_mib: 1.5}}",
        "limits: {'*': {cpu_s: unlimited}}",
        "runtimes: {'*': [bash]}",
        "runtimes: {'*': '*'}",
        "ask_above: NOTHING",
        "isolation: none",
        "network: open",
        "seccomp: off",
    ],
)
def test_there_is_no_switch_that_loosens_anything(owner: SyncColdframe, loosening: str) -> None:
    before = owner.policy.show()
    with pytest.raises(RulesInvalid):
        owner.policy.load(f"version: 1\nsettings: {{{loosening}}}\n")
    assert owner.policy.show() == before


@pytest.mark.req("T1.114")
def test_a_member_cannot_ask_for_more_than_the_defaults(governed: Installation, owner: SyncColdframe) -> None:
    with SyncColdframe(governed.url, token_of(owner, Role.MEMBER)) as member, pytest.raises(GrantMissing):
        member.sandboxes.create(agent_id="greedy", limits=Limits(cpu_s=301))


# -- T1.110 ----------------------------------------------------------------------------------------

needs_deno = pytest.mark.skipif("deno" not in offered_tools(), reason="needs deno")

TRIES = """
const bytes = (path) => Deno.readFileSync(path);
const start = (program, args = [], stdin = "null") => {
  const ran = new Deno.Command(program, { args, stdin, stdout: "piped", stderr: "piped" }).outputSync();
  return `ran ${ran.code} ${new TextDecoder().decode(ran.stdout)}`;
};
const copy = (from, to) => { Deno.writeFileSync(to, bytes(from), { mode: 0o755 }); Deno.chmodSync(to, 0o755); };
const loader = [...Deno.readDirSync("/usr/lib64")].map((one) => `/usr/lib64/${one.name}`).find((one) => one.includes("ld-"));
const tries = {
  start: (...words) => start(words[0], words.slice(1)),
  copied: (...words) => { copy(words[0], words[1]); return start(words[1], ["--version"]); },
  script: (...words) => {
    Deno.writeTextFileSync(words[0], `#!${Deno.execPath()} run\\nconsole.log("started")`, { mode: 0o755 });
    return start(words[0]);
  },
  link: (...words) => { Deno.symlinkSync(words[0], words[1]); return start(words[1], ["--version"]); },
  loader: (...words) => { copy(words[0], words[1]); return start(loader, [words[1], "--version"]); },
  stdin: () => start(loader, ["/proc/self/fd/0", "--version"], "inherit"),
  stdin_started: () => start("/proc/self/fd/0", ["--version"], "inherit"),
  first: () => start("/proc/1/exe", ["0"]),
  memory: () => {
    const c = Deno.dlopen("libc.so.6", { memfd_create: { parameters: ["buffer", "u32"], result: "i32" } });
    const made = c.symbols.memfd_create(new Uint8Array([97, 0]), 0);
    if (made < 0) throw new Error("refused");
    return `ran: file ${made} in memory`;
  },
  library: (...words) => { copy(words[0], words[1]); Deno.dlopen(words[1], {}); return "ran: loaded"; },
};
for (const [kind, ...words] of JSON.parse(Deno.args[0])) {
  let found;
  try { found = tries[kind](...words); } catch (error) { found = `refused: ${error.name}`; }
  console.log(JSON.stringify(found));
}
"""
PROGRAMS = (
    "sh bash dash python3 python node perl awk mawk gawk ruby php lua busybox env find xargs git vim gdb tclsh npm ldd"
)
PLACES = (
    "/home/user/copy",
    "/tmp/copy",
    "/var/tmp/copy",
    "/dev/shm/copy",
    "/run/copy",
    "/home/user/.local/bin/python3",
)


@pytest.fixture
def deno(owner: SyncColdframe, agent_id: str) -> Iterator[SyncSandbox]:
    """A sandbox of an agent that may use Deno alone, with an interpreter of the machine uploaded into it."""
    owner.policy.load(f"version: 1\nsettings: {{runtimes: {{{agent_id}: [deno]}}}}\n")
    with owner.sandboxes.create(agent_id=agent_id) as sandbox:
        sandbox.write_file("tries.js", TRIES)
        with open(os.path.realpath(shutil.which("python3") or "/usr/bin/python3"), "rb") as program:
            sandbox.upload("program", program.read())
        sandbox.write_file(".local/bin/.keep", "")
        yield sandbox


def attempt_all(sandbox: SyncSandbox, cases: Sequence[tuple[str, ...]], *, stdin: bytes | None = None) -> list[str]:
    answer = sandbox.run_command(["deno", "run", "-A", "tries.js", json.dumps(cases)], stdin=stdin)
    assert answer.exit_code == 0, answer.stderr
    return [str(json.loads(line)) for line in str(answer.stdout).splitlines()]


def attempt(sandbox: SyncSandbox, *case: str, stdin: bytes | None = None) -> str:
    return attempt_all(sandbox, [case], stdin=stdin)[0]


@pytest.mark.req("T1.110")
@needs_deno
def test_with_only_deno_it_runs_and_nothing_else_starts_however_it_is_tried(
    deno: SyncSandbox,
) -> None:
    assert deno.run_command(["deno", "eval", "console.log(6 * 7)"]).stdout == "42\n"
    assert attempt(deno, "start", "deno", "--version").startswith("ran 0 deno")
    # At the gate, early and with a reason.
    for command in ("echo hi", ["sh", "-c", "true"], ["python3", "-V"], ["./program", "-V"]):
        with pytest.raises(DeniedByRule) as refused:
            deno.run_command(command)
        assert refused.value.facts["rule"] == "settings:runtimes"
    # At exec, by what a program inside tries.
    tries: list[tuple[str, ...]] = [
        ("start", f"{place}{name}")
        for name in PROGRAMS.split()
        for place in ("", "/bin/", "/usr/bin/", "/usr/local/bin/")
    ]
    for case, found in zip(tries, attempt_all(deno, tries), strict=True):
        if case[1] != "node":  # Deno takes this name for itself
            assert found == "refused: NotFound", (case, found)
    tries = [("copied", program, place) for place in PLACES for program in ("program", "/opt/coldframe/bin/deno")]
    tries += [("script", f"{place}.js") for place in PLACES]
    tries += [("link", "/home/user/program", "/tmp/link"), ("start", "/opt/coldframe/sleep", "0"), ("first",)]
    for case, found in zip(tries, attempt_all(deno, tries), strict=True):
        assert found.startswith("refused: "), (case, found)
    tries = [("loader", "program", place) for place in PLACES]
    for case, found in zip(tries, attempt_all(deno, tries), strict=True):
        assert found.startswith("ran 1"), (case, found)  # the loader itself runs, and may map nothing


@pytest.mark.req("T1.110")
@needs_deno
def test_nothing_that_is_handed_in_or_kept_in_memory_can_be_started(deno: SyncSandbox) -> None:
    with open(os.path.realpath(shutil.which("python3") or "/usr/bin/python3"), "rb") as program:
        content = program.read()
    assert not attempt(deno, "stdin", stdin=content).startswith("ran 0")
    assert attempt(deno, "stdin_started", stdin=content).startswith("refused: ")
    assert attempt(deno, "memory").startswith("refused: ")
    assert attempt(deno, "library", "/usr/lib/x86_64-linux-gnu/libm.so.6", "/tmp/libm.so").startswith("refused: ")
    deno.write_file("package.json", json.dumps({"scripts": {"x": "python3 -V || sh -c 'echo hi'"}}))
    ran = deno.run_command(["deno", "task", "x"])
    assert ran.exit_code == 127 and "hi" not in str(ran.stdout)


@pytest.mark.req("T1.110")
@needs_deno
def test_the_report_and_the_runtimes_say_what_the_box_is_restricted_to(deno: SyncSandbox) -> None:
    held = {one.name: one.state for one in deno.report().properties}
    assert held["programs"] == "enforced"
    present = {one.name: one.allowed for one in deno.runtimes() if one.present}
    assert present == {"deno": True}
    assert deno.info.spec.runtimes == ("deno",)


@pytest.mark.req("T1.110")
@needs_deno
def test_a_sandbox_from_before_the_restriction_runs_nothing_and_others_are_not_touched(
    owner: SyncColdframe, box: SyncSandbox, other: SyncSandbox, agent_id: str
) -> None:
    owner.policy.load(f"version: 1\nsettings: {{runtimes: {{{agent_id}: [deno]}}}}\n")
    for command in ("true", ["deno", "--version"]):
        with pytest.raises(DeniedByRule) as refused:
            box.run_command(command)
        assert refused.value.facts["rule"] == "settings:runtimes"
    assert box.read_file("a.txt").data == b"one\n"
    assert other.run_command("echo hi").stdout == "hi\n"
    with owner.sandboxes.create(spec=SandboxSpec(agent_id=agent_id, runtimes=("deno",))) as fresh:
        assert fresh.run_command(["deno", "eval", "console.log(1)"]).stdout == "1\n"
