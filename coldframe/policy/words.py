"""Takes shell text apart: the words, and the shapes in which `script.py` hands them on.

This is a reader for judgement, not for execution. It follows the grammar of bash closely enough to see
every program word that the text spells out, keeps what it found before a syntax error (bash, too, runs the
lines before one), and never raises on any text. What it cannot know (`$(…)`, `${x#y}`, positional parameters)
becomes a part of kind "unknown".

Why our own reader beside bashkit: bashkit reports neither values of assignments, nor bodies of
here-documents, nor who is piped into whom, nor commands inside `${x:-$(…)}`. Both readings are joined
in `policy/shell.py`; each covers what the other misses.
"""

import re
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Self

MAX_PARTS = 65_536
"""Words and parts of words read of one text; then reading stops with `exhausted`. Bounds the time to about 0.2 s."""

_MAX_ARITHMETIC = 65_536
"""Longest `((…))` looked at, in characters."""

MAX_DEPTH = 40
"""Nesting of compounds and substitutions."""


class Part(NamedTuple):
    kind: Literal["text", "variable", "unknown"]
    text: str
    """The text, the variable's name, or the unknown part as written."""
    quoted: bool


Word = tuple[Part, ...]


@dataclass
class Feed:
    """What arrives on a standard input that the text itself provides."""

    body: Word | None = None


@dataclass
class Simple:
    """One simple command in source order."""

    words: list[Word] = field(default_factory=list)
    assignments: list[tuple[str, Word]] = field(default_factory=list)
    redirects: list[tuple[str, Word]] = field(default_factory=list)
    feed: Feed | None = None
    sources: tuple[int, int] | None = None
    """Range of commands whose output is piped into this one."""
    piped: bool = False
    """Its output goes into a pipe."""
    background: bool = False
    functions: tuple[str, ...] = ()
    """Functions whose bodies it stands in, outermost first."""


@dataclass
class Script:
    """Everything one text says."""

    commands: list[Simple] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    failed_at: int | None = None
    """Character offset of the first syntax error."""
    exhausted: str | None = None
    """Which bound stopped the reading."""


class Stop(Exception):
    """A bound was reached; what was read stays."""


_PLAIN = re.compile(r"[^\s;&|<>()'\"\\$`]+")
_BLANK = re.compile(r"(?:[ \t\r\f\v]|\\\n)+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPECIAL_PARAMETER = re.compile(r"[0-9@*#?$!_-]")
_INSIDE_DOUBLE = re.compile(r"[^\"\\$`]+")
INSIDE_BODY = re.compile(r"[^\\$`]+")
_ANSI = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ANSI_NUMBER = re.compile(r"x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})")


def literal(word: Word) -> str | None:
    """The text of a word that holds nothing but text, else None."""
    if all(part.kind == "text" for part in word):
        return "".join(part.text for part in word)
    return None


class WordReader:
    """Reads words at a place in a text. Commands inside words are read by `read_list` of the grammar."""

    def __init__(self, text: str, script: Script, depth: int, counter: list[int]) -> None:
        self.text = text
        self.root = depth == 0
        self.script = script
        self.depth = depth
        self.counter = counter
        self.at = 0
        self.functions: tuple[str, ...] = ()
        self.inherited: tuple[int, int] | None = None
        self.waiting: list[tuple[str, bool, bool, Feed]] = []

    def read_list(self, closers: frozenset[str]) -> None:
        raise NotImplementedError

    def nested(self, text: str) -> Self:
        """A reader of a text inside this one, which adds to the same script."""
        inner = type(self)(text, self.script, self.depth, self.counter)
        inner.functions = self.functions
        inner.enter()
        return inner

    def fail(self) -> None:
        if self.script.failed_at is None:
            self.script.failed_at = min(self.at, len(self.text)) if self.root else 0

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.script.exhausted = f"nested deeper than {MAX_DEPTH} levels"
            raise Stop

    def count(self) -> None:
        self.counter[0] += 1
        if self.counter[0] > MAX_PARTS:
            self.script.exhausted = f"more than {MAX_PARTS} parts of words"
            raise Stop

    def starts(self, sign: str) -> bool:
        return self.text.startswith(sign, self.at)

    def skip_blanks(self) -> None:
        if match := _BLANK.match(self.text, self.at):
            self.at = match.end()

    def read_word(self) -> Word:
        self.count()
        text, end = self.text, len(self.text)
        parts: list[Part] = []
        while self.at < end:
            self.count()
            sign = text[self.at]
            if sign == "'":
                close = text.find("'", self.at + 1)
                if close < 0:
                    self.fail()
                    close = end
                parts.append(Part("text", text[self.at + 1 : close], True))
                self.at = close + 1
            elif sign == '"':
                self.at += 1
                parts.extend(self.read_double(_INSIDE_DOUBLE, closer='"') or [Part("text", "", True)])
            elif sign == "\\":
                if self.starts("\\\n"):
                    self.at += 2
                    continue
                parts.append(Part("text", text[self.at + 1 : self.at + 2], True))
                self.at += 2
            elif sign == "$":
                parts.append(self.read_dollar(quoted=False))
            elif sign == "`":
                parts.append(self.read_backticks(quoted=False))
            elif sign in "<>":
                if not (text.startswith(("<(", ">("), self.at)):
                    break
                here = self.at
                self.at += 1
                self.read_substitution()
                parts.append(Part("unknown", text[here : self.at], True))
            elif sign == "(" and parts and parts[-1].kind == "text" and parts[-1].text[-1:] in "@?*+!":
                here = self.at  # extended glob, or an array value that follows `=`
                close = text.find(")", self.at)
                if parts[-1].quoted or parts[-1].text[-1:] == "" or close < 0:
                    break
                self.at = close + 1
                parts.append(Part("text", text[here : self.at], False))
            elif sign in " \t\n\r\f\v;&|()":
                break
            elif match := _PLAIN.match(text, self.at):
                parts.append(Part("text", match.group(), False))
                self.at = match.end()
            else:  # white space that is none to a shell
                parts.append(Part("text", sign, False))
                self.at += 1
        self.at = min(self.at, end)
        return _merge(parts)

    def read_double(self, inside: re.Pattern[str], closer: str | None) -> list[Part]:
        """Parts up to the closing sign (consumed), or to the end of the text."""
        text, end = self.text, len(self.text)
        parts: list[Part] = []
        while self.at < end:
            self.count()
            sign = text[self.at]
            if sign == closer:
                self.at += 1
                return parts
            if sign == "\\":
                following = text[self.at + 1 : self.at + 2]
                self.at += 2
                if following == "\n":
                    continue
                keep = following in ("$", "`", '"', "\\") if closer == '"' else following in ("$", "`", "\\")
                parts.append(Part("text", following if keep else "\\" + following, True))
            elif sign == "$":
                parts.append(self.read_dollar(quoted=True))
            elif sign == "`":
                parts.append(self.read_backticks(quoted=True))
            elif match := inside.match(text, self.at):
                parts.append(Part("text", match.group(), True))
                self.at = match.end()
            else:
                parts.append(Part("text", sign, True))
                self.at += 1
        self.at = min(self.at, end)
        if closer is not None:
            self.fail()
        return parts

    def read_dollar(self, *, quoted: bool) -> Part:
        text, here = self.text, self.at
        following = text[here + 1 : here + 2]
        if following == "(":
            if self.starts("$((") and self.skip_arithmetic(3):
                return Part("unknown", text[here : self.at], quoted)
            self.at += 1
            self.read_substitution()
            return Part("unknown", text[here : self.at], quoted)
        if following == "{":
            return self.read_braces(quoted=quoted)
        if following == "[":
            close = text.find("]", here)
            self.at = len(text) if close < 0 else close + 1
            return Part("unknown", text[here : self.at], quoted)
        if following == "'" and not quoted:
            return self.read_ansi()
        if following == '"' and not quoted:
            self.at += 1
            return Part("text", "", True)  # the double quotes follow as usual
        if match := _NAME.match(text, here + 1):
            self.at = match.end()
            return Part("variable", match.group(), quoted)
        if _SPECIAL_PARAMETER.match(text, here + 1):
            self.at += 2
            return Part("unknown", text[here : self.at], quoted)
        self.at += 1
        return Part("text", "$", True)

    def read_ansi(self) -> Part:
        """`$'…'` with its escapes taken back."""
        text = self.text
        out: list[str] = []
        self.at += 2
        while self.at < len(text):
            sign = text[self.at]
            self.at += 1
            if sign == "'":
                return Part("text", "".join(out), True)
            if sign != "\\":
                out.append(sign)
            elif match := _ANSI_NUMBER.match(text, self.at):
                digits = match.group(match.lastindex or 0)
                code = int(digits, 8 if match.lastindex == 4 else 16)
                out.append(chr(code) if code <= 0x10FFFF and not 0xD800 <= code < 0xE000 else "?")
                self.at = match.end()
            elif text[self.at : self.at + 1] == "c":
                out.append(chr(ord(text[self.at + 1 : self.at + 2] or "?") & 0x1F))
                self.at += 2
            else:
                following = text[self.at : self.at + 1]
                out.append(_ANSI.get(following, following if following in "\\'\"?" else "\\" + following))
                self.at += 1
        self.fail()
        return Part("text", "".join(out), True)

    def read_braces(self, *, quoted: bool) -> Part:
        """`${…}`: a variable if it is just a name; else unknown, with everything inside it read."""
        text, here = self.text, self.at
        if match := re.compile(r"\$\{([A-Za-z_]\w*)\}").match(text, here):
            self.at = match.end()
            return Part("variable", match.group(1), quoted)
        self.at += 2
        self.enter()
        while self.at < len(text):
            sign = text[self.at]
            if sign == "}":
                self.at += 1
                self.depth -= 1
                return Part("unknown", text[here : self.at], quoted)
            if sign == "\\":
                self.at += 2
            elif sign == "$":
                self.read_dollar(quoted=True)
            elif sign == "`":
                self.read_backticks(quoted=True)
            elif sign == '"':
                self.at += 1
                self.read_double(_INSIDE_DOUBLE, closer='"')
            elif sign == "'" and not quoted:
                close = text.find("'", self.at + 1)
                self.at = len(text) if close < 0 else close + 1
            else:
                self.at += 1
        self.depth -= 1
        self.fail()
        return Part("unknown", text[here:], quoted)

    def read_substitution(self) -> None:
        """Read `(…)` as commands; `at` stands on the bracket."""
        self.at += 1
        inherited, self.inherited = self.inherited, None
        waiting, self.waiting = self.waiting, []
        self.read_list(frozenset({")"}))
        self.inherited, self.waiting = inherited, waiting
        if self.starts(")"):
            self.at += 1

    def read_backticks(self, *, quoted: bool) -> Part:
        text, here = self.text, self.at
        close = here + 1
        while close < len(text) and text[close] != "`":
            close += 2 if text[close] == "\\" else 1
        if close >= len(text):
            self.fail()
        inner = re.sub(r"\\([\\`$\"])" if quoted else r"\\([\\`$])", r"\1", text[here + 1 : close])
        reader = self.nested(inner)
        while reader.at < len(inner):
            reader.read_list(frozenset())
            reader.at += 1
        self.at = min(close + 1, len(text))
        return Part("unknown", text[here : self.at], quoted)

    def skip_arithmetic(self, opening: int) -> bool:
        """Skip `((…))` from `at`, reading substitutions in it. False, and nothing moved, if it is no arithmetic."""
        text, at, level = self.text, self.at + opening, 2
        end = min(len(text), at + _MAX_ARITHMETIC)
        while at < end and level:
            if text[at] == "(":
                level += 1
            elif text[at] == ")":
                level -= 1
                if level == 1 and text[at + 1 : at + 2] != ")":
                    return False  # `((a); b)`: nested subshells
            elif text[at] == "\n" and opening == 2 and ";" not in text[self.at : at]:
                return False
            at += 1
        if level:
            return False
        inside = text[self.at + opening : at - 2]
        if "$" in inside or "`" in inside:
            inner = self.nested(inside)
            inner.read_double(INSIDE_BODY, closer=None)
        self.at = at
        return True


def _merge(parts: list[Part]) -> Word:
    """Join neighbouring texts of the same quoting, so that a plain word is one part."""
    if len(parts) < 2:
        return tuple(parts)
    merged = [parts[0]]
    for part in parts[1:]:
        last = merged[-1]
        if part.kind == last.kind == "text" and part.quoted == last.quoted:
            merged[-1] = Part("text", last.text + part.text, part.quoted)
        else:
            merged.append(part)
    return tuple(merged)
