"""The target of builds as SDKs of E2B describe them: images, steps, archives, commands."""

import json
import random
from typing import Any

from coldframe.contract.errors import InvalidArgument
from coldframe.contract.template import Recipe
from coldframe.control.template_archives import Archive
from coldframe.fronts.e2b.template_recipes import Built, keys_of, read_build
from tests.fuzz.target import Fault, spoil, within_processor_time

KEY = "a" * 64
WORDS = (
    "RUN", "COPY", "ENV", "WORKDIR", "USER", '"args":[', '"type":', '"steps":[', "]", "}", "{", ",", '""', "null", "true", "-1", "9" * 40,
    "/", "../", "..", "$A", "${A}", "$(", "`", "\\\\", "\\u0000", "\\ud800", "*", "root", "user:group", "0755", "x" * 5000, "[" * 300,
    '"startCmd":"x"', '"readyCmd":"y"', '"fromImage":"debian:12"', '"fromTemplate":"base"', '"filesHash":"' + KEY + '"', '"force":true',
)  # fmt: skip
BODY = json.dumps(
    {
        "fromTemplate": "base",
        "force": False,
        "steps": [
            {"type": "COPY", "args": ["app/*", "app", "", "0755"], "filesHash": KEY, "force": False},
            {"type": "RUN", "args": ["make", "root"]},
            {"type": "ENV", "args": ["A", "1", "B", "$A/b"]},
            {"type": "WORKDIR", "args": ["/srv"]},
            {"type": "USER", "args": ["worker"]},
        ],
        "startCmd": "serve",
        "readyCmd": "true",
    }
)


class E2bBuilds:
    """Any body is read, the same each time and as steps that a recipe can have, or refused as INVALID_ARGUMENT."""

    name = "e2b-builds"

    def make(self, random: random.Random) -> str:
        return spoil(random, BODY, WORDS)

    def check(self, value: Any) -> None:
        try:
            body = json.loads(value)
        except (ValueError, RecursionError):
            return
        if not isinstance(body, dict):
            return
        try:
            with within_processor_time():
                first, second = self._read(body), self._read(body)
                if first != second:
                    raise Fault("two readings of one body differ")
                recipe = Recipe(name="a", base="debian", steps=first.steps, start=first.start, home=True)
                if Recipe.model_validate_json(recipe.model_dump_json()) != recipe:
                    raise Fault("kept and read again it is another recipe")
        except InvalidArgument as error:
            json.dumps(error.to_wire()).encode()
        except Fault:
            raise
        except BaseException as error:
            raise Fault(f"{type(error).__name__}: {error}") from error

    def _read(self, body: dict[str, Any]) -> Built:
        found = read_build(body, {key: Archive("b" * 64, 10) for key in keys_of(body)})
        if len(found.steps) != len(found.numbers):
            raise Fault("a step without a number")
        return found
