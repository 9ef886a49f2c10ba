"""A hook is declared only once something asks it: one without a firing site, a schema or a test of its own fails here."""

import ast
from pathlib import Path

import pytest

from coldframe.contract.policy import Hook
from coldframe.policy.fields import SCHEMA

PACKAGE = Path(__file__).resolve().parents[2] / "coldframe"
DECISIONS = {
    Hook.PRE_TOOL_CALL: "decide_call",
    Hook.POST_TOOL_RESPONSE: "decide_result",
    Hook.NETWORK_EGRESS: "decide_egress",
    Hook.SECRET_ACCESS: "decide_secret",
}


def calls_of(name: str) -> list[str]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
                found.append(path.relative_to(PACKAGE).as_posix())
    return found


@pytest.mark.req("TP.01")
@pytest.mark.parametrize("hook", list(Hook))
def test_every_hook_is_asked_somewhere_and_has_a_schema(hook: Hook) -> None:
    assert SCHEMA[hook]
    assert [path for path in calls_of(DECISIONS[hook]) if path != "policy/hooks.py"], hook
