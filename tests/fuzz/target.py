"""What a fuzz target is, how texts are spoiled, and how an input that found a fault is made smaller and kept.

An input is one JSON value. Everything random comes from one `random.Random`, so that a seed says it all. Inputs
that once found a fault lie in `kept/TARGET/*.json` and are tried first, always.
"""

import json
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

KEPT = Path(__file__).parent / "kept"
MOST_PROCESSOR_S = 20.0
"""For one input. Processor time, which a busy machine does not use up, and far over what any honest input needs."""


class Fault(AssertionError):
    """The product did what it never may."""


class Target(Protocol):
    """One part of the product that takes what others wrote."""

    name: str

    def make(self, random: random.Random) -> Any:
        """A new input."""

    def check(self, value: Any) -> None:
        """Give it to the product. Raises Fault."""


def kept_inputs(name: str) -> list[Any]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((KEPT / name).glob("*.json"))]


def keep_input(name: str, value: Any) -> Path:
    folder = KEPT / name
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, indent=1) + "\n"
    path = folder / f"{random.Random(text).getrandbits(48):012x}.json"
    path.write_text(text, encoding="utf-8")
    return path


def hunt(target: Target, seed: int, examples: int) -> None:
    """Try the kept inputs and *examples* new ones. Raises Fault with the input, and the seed of a new one."""
    for value in kept_inputs(target.name):
        attempt(target, value, "a kept one")
    source = random.Random(seed)
    for number in range(examples):
        attempt(target, target.make(source), f"seed {seed}, example {number}")


def attempt(target: Target, value: Any, origin: str) -> None:
    try:
        target.check(value)
    except Fault as fault:
        raise Fault(f"{target.name}: {fault}\ninput ({origin}): {json.dumps(value)[:2000]}") from fault


def shrink(value: Any, is_faulty: Callable[[Any], bool], *, attempts: int = 400) -> Any:
    """A smaller input that still is faulty: parts of a text or list are left out as long as that goes."""
    if not isinstance(value, str | list):
        return value
    size = len(value) // 2
    while size:
        at = 0
        while at < len(value):
            shorter = [*value[:at], *value[at + size :]]
            candidate = "".join(shorter) if isinstance(value, str) else shorter
            attempts -= 1
            if attempts < 0:
                return value
            if is_faulty(candidate):
                value = candidate
            else:
                at += size
        size //= 2
    return value


def spoil(random: random.Random, text: str, words: Sequence[str]) -> str:
    """*text* with one to six changes: cut, doubled, moved, or a word or odd character put in."""
    for _ in range(random.randint(1, 6)):
        start, stop = sorted((random.randint(0, len(text)), random.randint(0, len(text))))
        if stop - start > 40 and random.random() < 0.7:
            stop = start + random.randint(0, 40)
        act = random.randrange(7)
        if act == 0:
            text = text[:start] + text[stop:]
        elif act == 1:
            text = text[:stop] + text[start:stop] * random.choice([1, 2, 50]) + text[stop:]
        elif act == 2:
            text = text[stop:] + text[:start]
        elif act == 3:
            text = text[:start] + odd_character(random) * random.choice([1, 1, 3, 200]) + text[start:]
        elif act == 4:
            text = text[:start] + odd_character(random) + text[start + 1 :]
        else:
            text = text[:start] + random.choice(words) * random.choice([1, 1, 1, 2, 100]) + text[start:]
    return text[:200_000]


def odd_character(random: random.Random) -> str:
    number = random.choice([random.randrange(128), random.randrange(256), random.randrange(0x110000)])
    return random.choice(
        [chr(number), "\0", "\ud800", "\u202e", "\ufeff", "\n", "\r", "\t", "\x1b", "\u2028", "'", '"']
    )


def odd_value(random: random.Random, words: Sequence[str], *, depth: int = 0) -> Any:
    """Any JSON value, with a liking for what programs trip over."""
    kind = random.randrange(9 if depth < 3 else 7)
    if kind == 0:
        return random.choice([None, True, False])
    if kind == 1:
        return random.choice([0, 1, -1, 2**31, 2**63, 2**64, -(2**63), 10**400, random.randrange(-1000, 100_000)])
    if kind == 2:
        return random.choice([0.0, -0.5, 1e308, 1e-308, float("inf"), float("-inf"), float("nan"), 1.5])
    if kind == 7:
        return [odd_value(random, words, depth=depth + 1) for _ in range(random.choice([0, 1, 3, 200]))]
    if kind == 8:
        return {
            random.choice([*words, odd_character(random)]): odd_value(random, words, depth=depth + 1)
            for _ in range(random.randrange(4))
        }
    return spoil(random, random.choice(words), words)[:5000]


@contextmanager
def within_processor_time(seconds: float = MOST_PROCESSOR_S) -> Iterator[None]:
    def too_long(_: int, __: FrameType | None) -> None:
        raise Fault(f"took more than {seconds:g} s of processor time")

    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
