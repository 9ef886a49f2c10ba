"""Every error says what to do next, and comes back over the wire as what it was."""

import json

import pytest

from coldframe.client.codes import Code
from coldframe.contract.code import CodeInfo
from coldframe.contract.errors import ColdframeError, WrongState, catalogue, from_wire
from coldframe.control.codes import codes


@pytest.mark.parametrize("code", sorted(catalogue()))
def test_each_code_has_words_and_an_operation_for_what_to_do_next(code: str) -> None:
    wire = catalogue()[code]("something happened").to_wire()
    assert wire["code"] == code
    assert wire["hint"]
    (action,) = wire["next_actions"]
    assert set(action) == {"op", "args", "effect"}
    assert action["op"]
    assert action["effect"]


@pytest.mark.parametrize("code", sorted(catalogue()))
def test_an_error_survives_the_wire(code: str) -> None:
    sent = catalogue()[code]("`x` happened", hint="do y", count=2, names=["a"])
    back = from_wire(json.loads(json.dumps(sent.to_wire())))
    assert type(back) is type(sent)
    assert back.to_wire() == sent.to_wire()


def test_an_unknown_code_keeps_its_code_in_the_base_class() -> None:
    back = from_wire({"code": "FROM_THE_FUTURE", "message": "m", "facts": {"a": 1}})
    assert type(back) is ColdframeError
    assert back.to_wire()["code"] == "FROM_THE_FUTURE"
    assert back.facts == {"a": 1}


@pytest.mark.parametrize("answer", [{}, {"code": 7, "facts": [], "next_actions": "x"}, {"next_actions": [1, None]}])
def test_a_malformed_error_is_still_an_error(answer: dict[str, object]) -> None:
    assert isinstance(from_wire(answer), ColdframeError)


def test_the_enumeration_of_the_sdk_is_the_catalogue_and_an_unknown_code_is_none_of_it() -> None:
    assert {one.value for one in Code} == {one.code for one in codes()}
    assert Code.of("GUEST_LOST") is Code.GUEST_LOST
    assert Code.of("FROM_THE_FUTURE") is Code.of(None) is None


@pytest.mark.parametrize("info", codes(), ids=lambda info: f"{info.of}-{info.code}")
def test_each_code_says_what_it_means_and_what_to_do(info: CodeInfo) -> None:
    assert info.meaning.endswith(".")
    assert info.fix and info.op and info.family


@pytest.mark.req("T3.72")
def test_one_time_may_say_more_of_a_retry_than_the_code_does_and_the_wire_carries_it() -> None:
    sent = WrongState("sandbox `s` is lost", retry="after_change")
    back = from_wire(json.loads(json.dumps(sent.to_wire())))
    assert (sent.retry, back.retry_now, back.to_wire()) == ("later", "after_change", sent.to_wire())
    assert from_wire({**sent.to_wire(), "retry": "whenever"}).retry_now == WrongState.retry
    assert from_wire({**sent.to_wire(), "retry": ["later"]}).retry_now == WrongState.retry


@pytest.mark.req("T3.72")
def test_what_a_box_refuses_without_saying_what_to_do_next_offers_what_its_code_does() -> None:
    back = from_wire({"code": "LIMIT_DISK", "message": "no space is left for `a`"})
    assert [action["op"] for action in back.next_actions] == ["run_command"]
    assert from_wire({**back.to_wire(), "next_actions": []}).next_actions == []
    assert from_wire({**back.to_wire(), "next_actions": [1, {"op": "x"}]}).next_actions == [{"op": "x"}]
