"""The canonical text of records and contexts: the same as if each were encoded whole, however it is put together."""

import json
from typing import Any

import pytest

from coldframe.contract.canonical import canonical, text_around, text_of
from coldframe.contract.ledger import CallEnded, CallInterrupted, CallRecord, CallRefused, CallStarted, InputSent
from coldframe.contract.policy import CallContext, Label, ResultContext, Role

WORDS = ("plain", 'quotes " and \\', "line\nand\ttab\x01\x7f", "ä 😀 \u2028", "name \udcff", '"context":null,"zz":{')


def context(word: str) -> CallContext:
    return CallContext(
        tool="run_command",
        agent_id=word,
        session_id="ses_1",
        sandbox_id="sbx_1",
        role=Role.OWNER,
        caller="rest:tok_1",
        profile="sandbox",
        taint=Label.PUBLIC,
        workspace_label=Label.INTERNAL,
        command=word,
        argv=(word,),
    )


@pytest.mark.parametrize("word", WORDS)
def test_a_text_that_is_put_together_is_that_of_the_whole(word: str) -> None:
    call = context(word)
    result = ResultContext(call=call, output_sha256=word)
    assert text_of(call) == canonical(call.model_dump(mode="json"))
    assert text_around(result, "call", text_of(call)) == canonical(result.model_dump(mode="json"))
    assert text_of(result, "call") == text_of(result) == canonical(result.model_dump(mode="json"))
    fields = {"command": "x" * 20_000}
    assert text_of(call.model_copy(update=fields)) == canonical({**call.model_dump(mode="json"), **fields})


def test_texts_are_those_of_the_very_model_also_where_many_come_and_go() -> None:
    for number in range(300):
        assert json.loads(text_of(context(f"agent-{number}")))["agent_id"] == f"agent-{number}"


@pytest.mark.parametrize("record", [CallStarted, CallEnded, CallRefused, CallInterrupted, InputSent])
def test_no_record_of_a_call_can_hold_a_number_without_one_form(record: type[CallRecord]) -> None:
    """The ledger does not look for floats in these."""

    def kinds(schema: Any) -> set[str]:
        if isinstance(schema, dict):
            return {str(schema.get("type"))}.union(*(kinds(one) for one in schema.values()))
        return set().union(*(kinds(one) for one in schema)) if isinstance(schema, list | tuple) else set()

    found = kinds(record.__pydantic_core_schema__)
    assert "str" in found
    assert not found & {"float", "decimal", "any", "complex", "timedelta"}
