"""Takes shell text apart into simple commands: words, assignments, redirections, pipes, here-documents.

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
from typing import Literal, NamedTuple

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


class _Stop(Exception):
    """A bound was reached; what was read stays."""


_PLAIN = re.compile(r"[^\s;&|<>()'\"\\$`]+")
_BLANK = re.compile(r"(?:[ \t\r\f\v]|\\\n)+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[[^\]\s=]*\])?\+?=")
_SPECIAL_PARAMETER = re.compile(r"[0-9@*#?$!_-]")
_INSIDE_DOUBLE = re.compile(r"[^\"\\$`]+")
_INSIDE_BODY = re.compile(r"[^\\$`]+")
_REDIRECT = re.compile(r"(?:\{[A-Za-z_]\w*\}|\d+)?(?:&>>|&>|<<<|<<-|<<|<>|<&|<|>>|>&|>\||>)")
_SKIPPED = frozenset({"if", "then", "elif", "else", "fi", "do", "done", "while", "until", "!", "time", "coproc"})
_ANSI = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ANSI_NUMBER = re.compile(r"x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})")


def read_script(text: str) -> Script:
    """Read shell text. Never raises; bounds and errors are in the answer."""
    script = Script()
    _Reader(text, script, 0, [0]).read_all()
    return script


def literal(word: Word) -> str | None:
    """The text of a word that holds nothing but text, else None."""
    if all(part.kind == "text" for part in word):
        return "".join(part.text for part in word)
    return None


def _bare(word: Word) -> str | None:
    """Text of a wholly unquoted literal word: only that can be a reserved word."""
    if len(word) == 1 and word[0].kind == "text" and not word[0].quoted:
        return word[0].text
    return None


class _Reader:
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

    # --- bounds and errors ---

    def read_all(self) -> None:
        try:
            while self.at < len(self.text):
                before = self.at
                self.read_list(frozenset())
                if self.at < len(self.text):  # a closer that nobody opened
                    self.fail()
                    self.at = max(self.at, before + 1)
        except _Stop:
            pass

    def fail(self) -> None:
        if self.script.failed_at is None:
            self.script.failed_at = min(self.at, len(self.text)) if self.root else 0

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.script.exhausted = f"nested deeper than {MAX_DEPTH} levels"
            raise _Stop

    def count(self) -> None:
        self.counter[0] += 1
        if self.counter[0] > MAX_PARTS:
            self.script.exhausted = f"more than {MAX_PARTS} parts of words"
            raise _Stop

    # --- lists and compounds ---

    def starts(self, sign: str) -> bool:
        return self.text.startswith(sign, self.at)

    def skip_blanks(self) -> None:
        if match := _BLANK.match(self.text, self.at):
            self.at = match.end()

    def read_list(self, closers: frozenset[str]) -> None:
        """Read commands until a closer stands where a command could, or the text ends. The closer is left."""
        self.enter()
        text, end = self.text, len(self.text)
        current = Simple()
        source: tuple[int, int] | None = None
        first = len(self.script.commands)  # first command of the current pipeline element
        compound: tuple[int, int] | None = None  # range of the compound that just ended
        pending_function: str | None = None

        def finish(*, piped: bool = False, background: bool = False) -> None:
            nonlocal current, source, first, compound, pending_function
            commands = self.script.commands
            if compound is not None:
                for inner in commands[compound[0] : compound[1]]:
                    inner.feed = inner.feed or current.feed
                    inner.background = inner.background or background
                    inner.piped = inner.piped or piped
            if current.words or current.assignments or current.redirects or current.feed:
                current.sources = source or self.inherited
                current.piped, current.background, current.functions = piped, background, self.functions
                commands.append(current)
            if background:
                for inner in commands[first:]:
                    if inner.functions == self.functions:
                        inner.background = True
            source = (first, len(commands)) if piped else None
            first = len(commands)
            current, compound, pending_function = Simple(), None, None

        def at_command() -> bool:
            return not (current.words or current.assignments) and compound is None

        try:
            while self.at < end:
                self.skip_blanks()
                if self.at >= end:
                    break
                sign = text[self.at]
                if sign == "\n":
                    self.at += 1
                    if not (pending_function and at_command()):
                        keep = source if not (current.words or compound is not None) else None
                        finish()
                        source = source or keep  # `a |⏎ b`
                    self.read_bodies()
                elif sign == "#":
                    newline = text.find("\n", self.at)
                    self.at = end if newline < 0 else newline
                elif redirect := _REDIRECT.match(text, self.at):
                    if text.startswith(("<(", ">("), self.at):
                        current.words.append(self.read_word())
                    else:
                        self.at = redirect.end()
                        self.read_redirect(redirect.group(), current)
                elif sign == ";":
                    if text.startswith((";;", ";&"), self.at):
                        finish()
                        if ";;" in closers:
                            break
                        self.fail()
                    self.at += 1
                    finish()
                elif sign == "&":
                    double = self.starts("&&")
                    self.at += 2 if double else 1
                    finish(background=not double)
                elif sign == "|":
                    double = self.starts("||")
                    self.at += 2 if double or self.starts("|&") else 1
                    finish(piped=not double)
                elif sign == ")":
                    finish()
                    if ")" in closers:
                        break
                    self.fail()
                    self.at += 1
                elif sign == "(":
                    if at_command() and self.starts("((") and self.skip_arithmetic(2):
                        compound = (len(self.script.commands),) * 2
                    elif len(current.words) == 1 and (close := re.compile(r"\([ \t]*\)").match(text, self.at)):
                        pending_function = literal(current.words[0]) or "?"
                        self.script.functions.append(pending_function)
                        current = Simple()
                        self.at = close.end()
                    else:
                        if not at_command():
                            self.fail()
                        compound = self.read_compound(")", source, pending_function)
                else:
                    position = self.at
                    word = self.read_word()
                    if self.at == position:  # no progress is possible: never loop
                        self.at += 1
                        continue
                    bare = _bare(word)
                    if not at_command() or bare is None:
                        if compound is not None and bare is not None and bare in closers:
                            self.at = position
                            finish()
                            break
                        if compound is not None and bare in _SKIPPED:
                            finish()
                            continue
                        self.add_word(current, word)
                    elif bare in closers:
                        self.at = position
                        finish()
                        break
                    elif bare == "{":
                        compound = self.read_compound("}", source, pending_function)
                    elif bare in ("}", "esac"):
                        self.fail()
                    elif bare in _SKIPPED:
                        if bare == "time":
                            self.skip_blanks()
                            if self.starts("-p") and self.text[self.at + 2 : self.at + 3] in (" ", "\t"):
                                self.at += 2
                    elif bare in ("for", "select"):
                        self.read_for()
                    elif bare == "case":
                        compound = self.read_case(source)
                    elif bare == "function":
                        self.skip_blanks()
                        pending_function = literal(self.read_word()) or "?"
                        self.script.functions.append(pending_function)
                        if close := re.compile(r"[ \t]*\([ \t]*\)").match(text, self.at):
                            self.at = close.end()
                    elif bare == "[[":
                        self.read_test()
                        compound = (len(self.script.commands),) * 2
                    else:
                        self.add_word(current, word)
            else:
                self.read_bodies()
                if closers:
                    self.fail()
        finally:
            finish()  # also when a bound stops the reading: what was read stays
        self.depth -= 1

    def add_word(self, current: Simple, word: Word) -> None:
        head = word[0] if word else None
        if not current.words and head is not None and head.kind == "text" and not head.quoted:
            match = _ASSIGNMENT.match(head.text)
            if match:
                name = _NAME.match(head.text)
                rest = head.text[match.end() :]
                value = ((Part("text", rest, False), *word[1:]) if rest else word[1:]) or (Part("text", "", True),)
                if rest == "" and len(word) == 1 and self.starts("("):
                    value = self.read_array()
                if "[" in match.group() or "+=" in match.group():
                    value = (Part("unknown", self.text[self.at : self.at], False),)
                if name is not None:
                    current.assignments.append((name.group(), value))
                return
        if self.starts("(") and head is not None and head.kind == "text" and head.text.endswith("="):
            self.read_array()  # `declare -a x=(…)`
        current.words.append(word)

    def read_array(self) -> Word:
        self.at += 1
        first: Word | None = None
        while self.at < len(self.text):
            self.skip_blanks()
            if self.starts(")"):
                self.at += 1
                break
            if self.text[self.at : self.at + 1] in ("\n", "(", ";", "|", "&", "<", ">"):
                self.at += 1
                continue
            word = self.read_word()
            first = first or word
        return first if first is not None and literal(first) is not None else (Part("unknown", "(…)", False),)

    def read_compound(self, closer: str, source: tuple[int, int] | None, function: str | None) -> tuple[int, int]:
        start = len(self.script.commands)
        if closer == ")":
            self.at += 1
        outer, inherited = self.functions, self.inherited
        if function is not None:
            self.functions = (*outer, function)
        self.inherited = source or inherited
        self.read_list(frozenset({closer}))
        self.functions, self.inherited = outer, inherited
        if self.starts(closer):
            self.at += 1
        return start, len(self.script.commands)

    def read_for(self) -> None:
        self.skip_blanks()
        if self.starts("((") and self.skip_arithmetic(2):
            return
        name = literal(self.read_word())
        self.skip_blanks()
        while self.starts("\n"):
            self.at += 1
            self.skip_blanks()
        here = self.at
        if self.at < len(self.text) and _bare(self.read_word()) == "in":
            found = Simple(functions=self.functions)
            while self.at < len(self.text):
                self.skip_blanks()
                if self.text[self.at : self.at + 1] in ("", "\n", ";", "&", "|", ")", "(", "<", ">"):
                    break
                word = self.read_word()
                if name:
                    found.assignments.append((name, word))
            self.script.commands.append(found)
        else:
            self.at = here
            if name:
                self.script.commands.append(Simple(assignments=[(name, (Part("unknown", "$@", False),))]))

    def read_case(self, source: tuple[int, int] | None) -> tuple[int, int]:
        start = len(self.script.commands)
        self.enter()
        inherited, self.inherited = self.inherited, source or self.inherited
        self.skip_blanks()
        self.read_word()
        self.skip_space()
        self.read_word()  # in
        while self.at < len(self.text):
            self.skip_space()
            here = self.at
            if self.starts("("):
                self.at += 1
            elif self.at < len(self.text) and _bare(self.read_word()) == "esac":
                break
            else:
                self.at = here
            while self.at < len(self.text) and not self.starts(")"):
                self.skip_blanks()
                here = self.at
                if self.text[self.at : self.at + 1] not in ("|", ")", "\n"):
                    self.read_word()
                if self.at == here and not self.starts(")"):
                    self.at += 1
            self.at += 1
            self.read_list(frozenset({";;", "esac"}))
            for sign in (";;&", ";;", ";&"):
                if self.starts(sign):
                    self.at += len(sign)
                    break
        else:
            self.fail()
        self.inherited = inherited
        self.depth -= 1
        return start, len(self.script.commands)

    def skip_space(self) -> None:
        while self.at < len(self.text):
            self.skip_blanks()
            if self.starts("#"):
                newline = self.text.find("\n", self.at)
                self.at = len(self.text) if newline < 0 else newline
            elif self.starts("\n"):
                self.at += 1
                self.read_bodies()
            else:
                return

    def read_test(self) -> None:
        """Skip `[[ … ]]`, reading the substitutions in it."""
        while self.at < len(self.text):
            self.skip_blanks()
            here = self.at
            word = self.read_word()
            if _bare(word) == "]]":
                return
            if self.at == here:
                self.at += 1
        self.fail()

    # --- redirections and here-documents ---

    def read_redirect(self, operator: str, current: Simple) -> None:
        sign = operator.lstrip("0123456789")
        if sign.startswith("{"):
            sign = sign[sign.index("}") + 1 :]
        self.skip_blanks()
        target = self.read_word()
        if not target:
            self.fail()
            return
        if sign in ("<<", "<<-"):
            delimiter = "".join(part.text for part in target)
            feed = Feed()
            self.waiting.append((delimiter, sign == "<<-", any(part.quoted for part in target), feed))
            current.feed = feed
        elif sign == "<<<":
            current.feed = Feed((*target, Part("text", "\n", True)))
        else:
            current.redirects.append((sign, target))
            if sign in ("<", "<>"):
                current.feed = Feed()

    def read_bodies(self) -> None:
        """Take the bodies of here-documents that start at this line."""
        waiting, self.waiting = self.waiting, []
        for delimiter, strip_tabs, quoted, feed in waiting:
            lines: list[str] = []
            while True:
                if self.at >= len(self.text):
                    self.fail()  # bash warns and takes the rest
                    break
                newline = self.text.find("\n", self.at)
                stop = len(self.text) if newline < 0 else newline
                line = self.text[self.at : stop]
                self.at = stop + 1
                if strip_tabs:
                    line = line.lstrip("\t")
                if line == delimiter:
                    break
                lines.append(line + "\n")
            body = "".join(lines)
            self.at = min(self.at, len(self.text))
            feed.body = (Part("text", body, True),) if quoted else self.read_apart(body)

    def read_apart(self, body: str) -> Word:
        """Parts of a text that expands like the inside of double quotes, read by a reader of its own."""
        if "$" not in body and "`" not in body and "\\" not in body:
            return (Part("text", body, True),)
        inner = _Reader(body, self.script, self.depth, self.counter)
        inner.functions = self.functions
        inner.enter()
        return tuple(inner.read_double(_INSIDE_BODY, closer=None))

    # --- words ---

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
        reader = _Reader(inner, self.script, self.depth, self.counter)
        reader.functions = self.functions
        reader.enter()
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
            inner = _Reader(inside, self.script, self.depth, self.counter)
            inner.functions = self.functions
            inner.enter()
            inner.read_double(_INSIDE_BODY, closer=None)
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
