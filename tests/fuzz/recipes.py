"""The target of recipes: files in TOML and JSON, Dockerfiles, and locks, as people and agents may hand them in."""

import json
import random
from typing import Any

from coldframe.contract.dockerfile import parse_dockerfile
from coldframe.contract.errors import RecipeInvalid
from coldframe.contract.recipes import Draft, parse_lock, parse_recipe, ready_made, ready_made_names
from tests.fuzz.target import Fault, spoil, within_processor_time

WORDS = (
    "FROM ", "FROM debian\n", "RUN ", "COPY ", "ADD ", "ENV A=", "ARG X=", "WORKDIR ", "USER ", "CMD ", "ENTRYPOINT ", "EXPOSE 1\n",
    "<<EOF\n", "<<-'E'\n", "EOF\n", "E\n", "\\\n", "# escape=`\n", "# ", "$", "${A}", "${A:-", "${", "}", '["', '"]', "'", '"', "=",
    "--chown=user ", "--from=x ", "/", "../", "*", "http://x/", "name = \"a\"\n", "[env]\n", "[[files]]\n", "[start]\n", "ready = {",
    "port = 1", "[[steps]]\n", "kind = \"run\"\n", "run = [\"", "]\n", "apt = [", "9" * 400, "1e999", "inf", "{", "[" * 200, "a==1\n",
    "a>=1\n", "{\"packages\": {", "\r\n", "\0", "\x85", "\u2028",
)  # fmt: skip
DOCKERFILE = (
    "ARG B=debian\nFROM $B\nENV A=1 C='x y'\nWORKDIR /srv\nCOPY --chmod=644 a b/ c/\nRUN <<EOF\necho $A\nEOF\n"
    'RUN a && \\\n  # b\n  c\nUSER user\nENTRYPOINT ["x"]\nCMD ["y"]\n'
)
LOCK = "numpy==1.26.4 \\\n  --hash=sha256:aa\n# x\npandas==2.2.0 ; python_version > '3'\n"


class Recipes:
    """Any text either is read, the same each time, or is refused as RECIPE_INVALID, with a line that the text has if any."""

    name = "recipes"

    def __init__(self) -> None:
        made = [text for name in ready_made_names() if (text := ready_made(name)) is not None]
        self._seeds = {
            "recipe": made,
            "dockerfile": [DOCKERFILE],
            "lock": [LOCK, '[{"manager":"pip","name":"a","version":"1"}]'],
        }

    def make(self, random: random.Random) -> str:
        """Its first line says what it is."""
        kind = random.choice(sorted(self._seeds))
        return f"{kind}\n{spoil(random, random.choice(self._seeds[kind]), WORDS)}"

    def check(self, value: Any) -> None:
        kind, _, text = value.partition("\n")
        try:
            with within_processor_time():
                if self._read(kind, text) != self._read(kind, text):
                    raise Fault("two readings of one text differ")
        except RecipeInvalid as error:
            line = error.facts.get("line")
            if line is not None and (
                not isinstance(line, int) or not 1 <= line <= text.count("\n") + text.count("\r") + 2
            ):
                raise Fault(f"refused at a line that the text has not: {error.facts}") from error
            json.dumps(error.to_wire())
        except Fault:
            raise
        except BaseException as error:
            raise Fault(f"{type(error).__name__}: {error}") from error

    def _read(self, kind: str, text: str) -> object:
        if kind == "lock":
            return parse_lock(text, source="a lock")
        draft = parse_recipe(text) if kind == "recipe" else parse_dockerfile(text, name="a")
        if not isinstance(draft, Draft):
            raise Fault("read, but as no draft")
        return draft
