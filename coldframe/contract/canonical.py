"""The one JSON form that is hashed and signed, and the texts of contexts in it.

A call's context is hashed for the decision about it, recorded with its start, hashed once more for the decision about its result,
and recorded with its end. It never changes meanwhile, so its text is made once and put in where it belongs.
"""

import json
from collections.abc import Callable, Sequence
from json import encoder as json_encoder
from typing import Any

from coldframe.contract.model import Model

MOST_TEXTS = 64
"""Contexts whose text is remembered."""
MOST_TEXT_CHARACTERS = 16 * 1024
"""A longer text is made anew each time."""
_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False, check_circular=False
)


def _make_pieces() -> Callable[[Any], Sequence[str]]:
    """What `_ENCODER` does, made ready once: it makes itself ready anew for each text, which is half the work of a short one."""
    make: Callable[..., Any] | None = getattr(json_encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without it
        return lambda value: (_ENCODER.encode(value),)
    quoted = json_encoder.encode_basestring_ascii
    # In the order of the C function: markers, default, encoder, indent, key and item separator, sort, skip, NaN.
    made = make(None, _ENCODER.default, quoted, None, ":", ",", True, False, False)
    return lambda value: made(value, 0)


_pieces = _make_pieces()
_texts: dict[int, tuple[Model, str]] = {}
"""By the identity of the model, which is held so that no other one can have it."""


def canonical(value: Any) -> str:
    """Keys sorted, no white space, everything past ASCII escaped."""
    return "".join(_pieces(value))


def text_of(model: Model, inner: str | None = None) -> str:
    """The canonical text of a model that holds no floats, and that many ask for; *inner* is a field that is such a one."""
    known = _texts.get(id(model))
    if known is not None:
        return known[1]
    if inner is None:
        text = canonical(model.__pydantic_serializer__.to_python(model, mode="json"))
    else:
        text = text_around(model, inner, text_of(getattr(model, inner)))
    if len(text) <= MOST_TEXT_CHARACTERS:
        if len(_texts) >= MOST_TEXTS:
            _texts.pop(next(iter(_texts)), None)
        _texts[id(model)] = model, text
    return text


def text_around(model: Model, name: str, inner: str) -> str:
    """The canonical text of *model*, with *inner* as that of its field *name*."""
    fields = model.__pydantic_serializer__.to_python(model, mode="json", exclude={name})
    before = canonical({key: value for key, value in fields.items() if key < name})[1:-1]
    after = canonical({key: value for key, value in fields.items() if key > name})[1:-1]
    return "".join(("{", before, "," if before else "", '"', name, '":', inner, "," if after else "", after, "}"))
