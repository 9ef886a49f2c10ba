"""Promise: the default deny list refuses what it names in every spelling that text shows, and no honest command."""

import pytest

from coldframe.contract.policy import CallContext, Label, Outcome, Role
from coldframe.policy.denylist import DENYLIST, find_denied
from coldframe.policy.hooks import decide_call
from coldframe.policy.rules import DEFAULT_RULES, load_rules
from coldframe.policy.shell import read_argv, read_shell
from tests.policy.corpus import benign, denied

_STRICT = load_rules("version: 1\nsettings: {strict_parsing: true}\n")


def _call(command: str) -> CallContext:
    return CallContext(
        tool="run_command",
        agent_id="a",
        session_id="s",
        sandbox_id="b",
        role=Role.AGENT,
        caller="rest:tok_1",
        profile="code",
        taint=Label.PUBLIC,
        workspace_label=Label.PUBLIC,
        command=command,
        shell=True,
    )


@pytest.mark.req("T1.94", "T1.95")
@pytest.mark.parametrize(("entry", "command"), list(denied()))
def test_a_listed_command_is_refused_under_the_id_of_its_entry(entry: str, command: str) -> None:
    decision = decide_call(_call(command), DEFAULT_RULES)
    assert (decision.outcome, decision.rule_id, decision.code) == (Outcome.DENY, entry, "DENIED_BY_RULE")


def test_the_corpus_covers_every_entry() -> None:
    assert {entry.id for entry in DENYLIST} | {"denylist:fork-bomb"} == {entry for entry, _ in denied()}


@pytest.mark.req("T1.96")
def test_no_command_of_the_benign_corpus_is_refused() -> None:
    commands = benign()
    assert len(set(commands)) >= 200
    refused = [command for command in commands if decide_call(_call(command), DEFAULT_RULES).code is not None]
    assert refused == []


@pytest.mark.parametrize(
    ("cwd", "command", "refused"),
    [
        ("", "rm -rf ..", True),
        ("a/b", "rm -rf ..", False),
        ("a/b", "rm -rf ../../..", True),
        ("a", "rm -rf ../*", False),
        ("", "cd /tmp; rm -rf *", False),
        ("", "cd /; cd /tmp; rm -rf *", False),
    ],
)
def test_a_relative_target_is_seen_from_the_directory_it_runs_in(cwd: str, command: str, refused: bool) -> None:
    assert (find_denied(read_shell(command), cwd) is not None) is refused


def test_an_argv_list_is_judged_without_a_shell() -> None:
    finding = find_denied(read_argv(["rm", "-rf", "/"]))
    assert finding is not None
    assert finding.certain
    assert find_denied(read_argv(["echo", "rm -rf /", ";", "sudo"])) is None


@pytest.mark.req("T1.97")
@pytest.mark.parametrize(
    ("command", "position"),
    [("echo 'open", 5), ("if true; then ls", 16), ("ls )", 3), ("ls\nls )", 6), ("echo é; ls )", 12)],
)
def test_unparsable_text_passes_by_default_and_is_refused_with_its_position_in_strict_mode(
    command: str, position: int
) -> None:
    assert decide_call(_call(command), DEFAULT_RULES).outcome is Outcome.ALLOW
    decision = decide_call(_call(command), _STRICT)
    assert (decision.outcome, decision.rule_id) == (Outcome.DENY, "settings:strict_parsing")
    assert f"from byte {position} on" in decision.reason


@pytest.mark.req("T1.97")
@pytest.mark.parametrize(
    "command", ["$x", "echo \x00", "echo cm0K | base64 -d | sh", "python3 -c 1", 'rm -rf "$x"', 'dd if=a of="$x"']
)
def test_what_text_cannot_decide_is_refused_in_strict_mode_only(command: str) -> None:
    assert decide_call(_call(command), DEFAULT_RULES).outcome is Outcome.ALLOW
    assert decide_call(_call(command), _STRICT).rule_id == "settings:strict_parsing"


def test_plain_commands_pass_in_strict_mode() -> None:
    for command in ("ls -la", "git push", "rm -rf build", "sh -c 'make test'", "x=a; cat $x"):
        assert decide_call(_call(command), _STRICT).outcome is Outcome.ALLOW
