"""What recipes are given is there whole under its digest, or not at all, and there is an end to it."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coldframe.contract.errors import ColdframeError, InvalidArgument, LimitReached, TooLarge
from coldframe.host.templates import inputs as inputs_module
from coldframe.host.templates.inputs import Inputs


async def pieces(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), 10):
        yield content[start : start + 10]


def test_all_that_was_put_has_an_end_and_what_was_refused_counts_no_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(inputs_module, "MOST_BYTES", 100)
    inputs = Inputs(str(tmp_path / "inputs"))

    async def put(content: bytes, *, sha256: str | None = None, most: int = 1000) -> type[ColdframeError] | int:
        try:
            return await inputs.put(sha256 or hashlib.sha256(content).hexdigest(), pieces(content), most_bytes=most)
        except ColdframeError as error:
            return type(error)

    async def steps() -> None:
        assert await put(b"a" * 60) == 60
        assert await put(b"b" * 41) is LimitReached
        assert await put(b"c" * 30, most=20) is TooLarge
        assert await put(b"d" * 30, sha256="0" * 64) is InvalidArgument
        at_once = await asyncio.gather(*(put(bytes([one]) * 30) for one in range(2)))
        assert sorted(at_once, key=str) == [30, LimitReached]
        assert await put(b"e" * 10) == 10
        assert len(os.listdir(tmp_path / "inputs")) == 3

    asyncio.run(steps())
