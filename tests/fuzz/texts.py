"""Targets that are pure functions of a text: the rule loader, the shell reader, and the frames of the wires."""

import itertools
import json
import random
import re
from typing import Any

from coldframe.contract.errors import RulesInvalid
from coldframe.contract.policy import CommandReading
from coldframe.guest.frames import PREFIX, BadFrame, Reader, encode
from coldframe.policy import shell
from coldframe.policy.rules import RuleSet, load_rules
from coldframe.policy.shell import read_argv, read_shell
from tests.fuzz.target import Fault, odd_value, spoil, within_processor_time
from tests.installation import CHECKOUT
from tests.policy import corpus

RULE_WORDS = (
    "version: 1\n", "rules:\n", "settings:\n", "  - id: x\n", "hook: PRE_TOOL_CALL", "hook: POST_TOOL_RESPONSE",
    "when: {tool: run_command}", "then: deny", "label: SECRET", "reason: r", "{any: [", "{all: [", "{not: ", "glob: ",
    "regex: ", "contains: ", "&a ", "*a", "<<: *a", "!!python/object:os.system ", "!x ", "---\n", "...\n", "? ", ": ",
    "- ", "  ", "{", "}", "[", "]", "|\n", ">\n", "%YAML 9.9\n", "'", '"', "#", "~", "0x1", "1e999", ".inf", "9" * 400,
    "2026-01-01", "(a*)*b", "(?P<x>", "[[:alpha:]]", "\\", "exec:", "deny:", "allow:", "roles:", "agents:", "commands:",
)  # fmt: skip
SHELL_WORDS = (
    "$(", ")", "`", "${", "}", "$((", "))", "<<E\n", "<<-'E'\n", "E\n", "<(", ">&", "2>", "|&", "&&", "||", ";;", ";",
    "case x in ", "esac", "if ", "then ", "fi", "for i in ", "do ", "done", "while ", "{ ", "(", "[[ ", "]]", "function f",
    "f() ", "\\", "\\\n", "'", '"', "$'", "$\"", "*", "?", "[!", "{a,b}", "{1..9}", "~", "!", "#", "=", "eval ", "sh -c ",
    "env -S ", "xargs ", "find . -exec ", "sudo ", "exec ", "time ", "coproc ", "trap ", "alias a=", "export A=",
    "${a:-", "${!a}", "${a/b/c}", "$IFS", "$@", "\0", "\r\n",
)  # fmt: skip


class Rules:
    """Any text either is a rule set, or is refused as RULES_INVALID with a line that the text has."""

    name = "rules"

    def __init__(self) -> None:
        manual = (CHECKOUT / "docs" / "policy.md").read_text(encoding="utf-8")
        self._seeds = ["version: 1\n", *re.findall(r"```yaml\n(.*?)```", manual, re.S)]

    def make(self, random: random.Random) -> str:
        return spoil(random, random.choice(self._seeds), (*RULE_WORDS, *self._seeds[:1]))

    def check(self, value: Any) -> None:
        try:
            with within_processor_time():
                rules = load_rules(value)
        except RulesInvalid as error:
            line = error.facts.get("line")
            if not isinstance(line, int) or not 1 <= line <= max(1, len(value.splitlines()) + 1):
                raise Fault(f"refused without a line of the text: {error.facts}") from error
            error.message.encode("utf-8", "backslashreplace")
            json.dumps(error.to_wire())
        except Fault:
            raise
        except BaseException as error:
            raise Fault(f"{type(error).__name__}: {error}") from error
        else:
            if not isinstance(rules, RuleSet) or rules.text != value:
                raise Fault("loaded, but not the text that was given")


class Shell:
    """Any text and any list of words gives a reading, the same one each time, that the ledger can hold."""

    name = "shell"

    def __init__(self) -> None:
        self._seeds = [*corpus.benign(), *(command for _, command in corpus.denied())]

    def make(self, random: random.Random) -> str | list[str]:
        text = spoil(random, random.choice(self._seeds), SHELL_WORDS)
        return text if random.random() < 0.8 else text.split(" ")

    def check(self, value: Any) -> None:
        try:
            with within_processor_time():
                reading = read_shell(value) if isinstance(value, str) else read_argv(value)
                shell._read_short.cache_clear()
                again = read_shell(value) if isinstance(value, str) else read_argv(value)
        except Fault:
            raise
        except BaseException as error:
            raise Fault(f"{type(error).__name__}: {error}") from error
        if not isinstance(reading, CommandReading) or reading != again:
            raise Fault("two readings of one text differ")
        try:
            json.dumps(reading.model_dump(mode="json"))
        except (ValueError, TypeError) as error:
            raise Fault(f"a reading that cannot be recorded: {error}") from error


class Frames:
    """Whatever arrives in whatever pieces is a frame as it was sent, not whole yet, or a BadFrame."""

    name = "frames"

    def make(self, random: random.Random) -> dict[str, Any]:
        frames = [
            encode({"op": odd_value(random, ("run", "ask", "x"))}, random.randbytes(random.choice([0, 1, 70, 5000])))
            for _ in range(random.randrange(4))
        ]
        stream = bytearray(b"".join(frames))
        honest = random.random() < 0.4
        finite = b"NaN" not in stream and b"Infinity" not in stream
        if not honest:
            for _ in range(random.randint(1, 4)):
                at = random.randint(0, len(stream))
                stream[at : at + random.randrange(9)] = random.choice(
                    [random.randbytes(random.randrange(20)), b"\xff" * 8, PREFIX.pack(3, 0) + b"[1]", b"\0" * 8]
                )
        cuts = sorted(random.randint(0, len(stream)) for _ in range(random.randrange(8)))
        return {
            "stream": stream.hex(),
            "cuts": cuts,
            "honest": [frame.hex() for frame in frames] if honest and finite else None,
        }

    def check(self, value: Any) -> None:
        stream, reader, got = bytes.fromhex(value["stream"]), Reader(), []
        edges = [0, *value["cuts"], len(stream)]
        try:
            with within_processor_time():
                for start, stop in itertools.pairwise(edges):
                    got += reader.feed(stream[start:stop])
        except BadFrame as error:
            if value["honest"] is not None:
                raise Fault("an honest frame was refused") from error
            return
        except Fault:
            raise
        except BaseException as error:
            raise Fault(f"{type(error).__name__}: {error}") from error
        if value["honest"] is not None:
            sent = [encode(head, body).hex() for head, body in got]
            if sent != value["honest"]:
                raise Fault("frames arrived other than they were sent")
