"""Promise: labels are a total order, join never lowers, and what is no label counts as the highest."""

import random
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from coldframe.contract.policy import Label
from coldframe.policy.labels import join, may_flow, parse

_LABELS = st.sampled_from(list(Label))


@pytest.mark.req("TP.09")
def test_flow_is_a_total_order() -> None:
    for a, b, c in product(Label, repeat=3):
        assert may_flow(a, a)
        assert may_flow(a, b) or may_flow(b, a)
        assert not (may_flow(a, b) and may_flow(b, a)) or a is b
        assert not (may_flow(a, b) and may_flow(b, c)) or may_flow(a, c)


@pytest.mark.req("TP.09")
@given(st.text().filter(lambda text: text not in Label.__members__))
def test_no_label_can_be_made_of_another_text(text: str) -> None:
    with pytest.raises(ValueError, match="is not a valid Label"):
        Label(text)
    with pytest.raises(ValidationError):
        TypeAdapter(Label).validate_python(text)


@given(_LABELS, _LABELS, _LABELS)
def test_join_is_commutative_associative_idempotent_and_never_lower(a: Label, b: Label, c: Label) -> None:
    assert join(a, b) is join(b, a)
    assert join(join(a, b), c) is join(a, join(b, c))
    assert join(a, a) is a
    assert may_flow(a, join(a, b))
    assert join() is Label.PUBLIC


@pytest.mark.req("TP.10")
@given(st.lists(st.one_of(st.binary(), st.text(), st.none(), st.integers(), _LABELS)))
def test_taint_never_falls_whatever_is_joined(values: list[object]) -> None:
    taint = Label.PUBLIC
    for value in values:
        raised = join(taint, parse(value))
        assert raised.rank >= taint.rank
        assert isinstance(value, Label) or value in Label.__members__ or raised is Label.RESTRICTED
        taint = raised


@pytest.mark.req("TP.10")
def test_taint_never_falls_in_a_million_random_operations() -> None:
    source = random.Random(10)
    pool: list[object] = [*Label, *(label.value for label in Label), b"PUBLIC", "public", "", None, 0, "SECRET"]
    taint = Label.PUBLIC
    for number in range(1_000_000):
        if number % 1000 == 0:
            taint = Label.PUBLIC  # a new session
        before = taint
        taint = join(taint, parse(source.choice(pool)))
        assert taint.rank >= before.rank


@pytest.mark.req("TP.10")
@pytest.mark.parametrize("middle", ["confidential", "SECRET", b"CONFIDENTIAL", None, 2, ""])
def test_no_downgrade_in_two_steps_by_way_of_an_unknown_label(middle: object) -> None:
    assert join(join(Label.CONFIDENTIAL, parse(middle)), parse("PUBLIC")) is Label.RESTRICTED


def test_an_unknown_target_takes_public_data_only() -> None:
    unknown: Label = "secret"  # type: ignore[assignment]
    assert may_flow(Label.PUBLIC, unknown)
    assert not may_flow(Label.INTERNAL, unknown)
