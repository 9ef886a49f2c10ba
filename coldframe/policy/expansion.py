"""What the words of a command become: values of variables, braces, splitting, and what `echo` would print.

Values are taken from every assignment in the text, whatever its place: `$x` stands for all constants that the text
gives to `x`. Quoted signs that would be magic unquoted are kept apart by private code points until the end.
"""

import re
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from coldframe.policy.words import Part, Script, Word, literal
from coldframe.policy.wrappers import ASSIGNING, READING

MAX_VARIANTS = 16
"""Combinations of values of variables tried for one command."""
MAX_REASONS = 16
MAX_VALUE_CHARACTERS = 4096
"""Of one value of a variable that is made of others; a longer one is not known. Values may name each other in circles."""
MAX_WORDS = 1024
"""Words of one word, past which its braces are not multiplied any more."""
MAX_BRACE_CHARACTERS = 4 * 1024 * 1024
"""Of all words made of the braces of a whole text; past it they are not taken apart any more."""
MAX_WORD_CHARACTERS = 262_144
"""Of one word after expansion."""

_QUOTED_UNKNOWN, _BARE_UNKNOWN, _EMPTY = "\U0010fff0", "\U0010fff1", "\U0010fff2"
_SPECIAL = "{},*?[] \t\n~!"
_PROTECT = {ord(sign): chr(0x10FF00 + index) for index, sign in enumerate(_SPECIAL)}
_RESTORE = {0x10FF00 + index: sign for index, sign in enumerate(_SPECIAL)}
_RESTORE |= {ord(mark): "" for mark in (_QUOTED_UNKNOWN, _BARE_UNKNOWN, _EMPTY)}
_GLOB = re.compile(r"[*?\[]")
_MAGIC = re.compile(r"[*?\[{]")
BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
_RANGE = re.compile(r"\{[^{},]*\.\.[^{},]*\}")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_DEFAULT = re.compile(r"\$\{([A-Za-z_]\w*):?[-=]([\w./+-]+)\}", re.ASCII)
"""`${name:-word}` and its like, with a word that needs no expansion."""
_FROM_OUTSIDE = {"HOME": "~", "PWD": ".", "IFS": " "}
"""Values of variables that the text does not set, as the box sets them."""


class Field(NamedTuple):
    """One word of a command after expansion."""

    text: str
    known: bool = True
    names_program: bool = True
    """Whether, standing first, it tells which program starts."""
    perhaps_empty: bool = False


class Expansion:
    """Values that one text gives to variables, and the expansion of its words by them."""

    def __init__(self) -> None:
        self.reasons: dict[str, None] = {}
        self.values: dict[str, list[Word]] = {}
        self.unknown: set[str] = set()
        self.resolved: dict[tuple[str, int], tuple[list[str], bool]] = {}
        self.separators = ""
        self.brace_characters = 0

    def doubt(self, reason: str) -> None:
        if len(self.reasons) < MAX_REASONS:
            self.reasons[reason if len(reason) <= 200 else reason[:200] + "…"] = None

    def collect_values(self, script: Script) -> None:
        for command in script.commands:
            for name, value in command.assignments:
                self.values.setdefault(name, []).append(value)
                if name == "IFS":
                    self.separators += literal(value) or ""
            program = literal(command.words[0]) if command.words else None
            if program in ASSIGNING:
                for word in command.words[1:]:
                    head = word[0] if word else None
                    if head is not None and head.kind == "text" and (match := ASSIGNMENT.match(head.text)):
                        value = (Part("text", match.group(2), True), *word[1:])
                        self.values.setdefault(match.group(1), []).append(value)
                if any(
                    (literal(word) or "").startswith("-") and "n" in (literal(word) or "") for word in command.words
                ):
                    self.unknown.update(literal(word) or "" for word in command.words)
            elif program in READING:
                self.unknown.update(literal(word) or "" for word in command.words[1:])

    def constants(self, name: str, depth: int) -> tuple[list[str], bool]:
        """Constant values of a variable, and whether these are all it can have."""
        known = self.resolved.get((name, depth))
        if known is None:
            # Kept at every depth: values that name each other would be followed again for each way there is.
            known = self.resolved[name, depth] = self.find_constants(name, depth)
        return known

    def find_constants(self, name: str, depth: int) -> tuple[list[str], bool]:
        if name not in self.values:
            outside = _FROM_OUTSIDE.get(name)
            return ([outside], True) if outside is not None and name not in self.unknown else ([], False)
        found: dict[str, None] = {}
        complete = name not in self.unknown
        for value in self.values[name][: MAX_VARIANTS * 2]:
            options = [""]
            for part in value:
                if part.kind == "text":
                    pieces = [part.text]
                elif part.kind == "variable" and depth < 5:
                    pieces, whole = self.constants(part.text, depth + 1)
                    complete = complete and whole
                else:
                    pieces, complete = [], False
                longer = islice((option + piece for option in options for piece in pieces), MAX_VARIANTS)
                options = [one for one in longer if len(value) == 1 or len(one) <= MAX_VALUE_CHARACTERS]
                if not options:
                    complete = False
                    break
            found |= dict.fromkeys(options)
        complete = complete and len(found) <= MAX_VARIANTS and len(self.values[name]) <= MAX_VARIANTS * 2
        return list(found)[:MAX_VARIANTS], complete

    def expand(self, word: Word) -> list[list[Field]]:
        """The alternatives of one word, each a list of fields."""
        if len(word) == 1 and word[0].kind == "text" and not word[0].quoted and not _MAGIC.search(word[0].text):
            return [[Field(word[0].text)]]
        options = [""]
        for part in word:
            if part.kind == "text":
                pieces = [part.text.translate(_PROTECT) + _EMPTY if part.quoted else part.text]
            elif part.kind == "variable":
                values, complete = self.constants(part.text, 0)
                for separator in self.separators if not part.quoted else "":
                    values = [value.replace(separator, " ") for value in values]
                pieces = [value.translate(_PROTECT) + _EMPTY if part.quoted else value for value in values]
                if not complete:
                    mark = _QUOTED_UNKNOWN if part.quoted else _BARE_UNKNOWN
                    pieces.append(mark + f"${part.text}".translate(_PROTECT))
            else:
                mark = _QUOTED_UNKNOWN if part.quoted else _BARE_UNKNOWN
                pieces = [mark + part.text.translate(_PROTECT)]
                if default := _DEFAULT.fullmatch(part.text):
                    pieces = [*self.constants(default[1], 0)[0], default[2], *pieces]
            options = list(islice((option + piece for option in options for piece in pieces), MAX_VARIANTS + 1))
            if len(word) > 1 and any(len(option) > MAX_WORD_CHARACTERS for option in options):
                self.doubt("a word grows too long")
                options = [_BARE_UNKNOWN + part.text[:MAX_VARIANTS].translate(_PROTECT)]
                break
            if len(options) > MAX_VARIANTS:
                self.doubt("too many values for one word")
                options = options[:MAX_VARIANTS]
        return [
            [_field(piece) for text in self._words_of(option) for piece in text.split(" ") if piece != ""]
            if " " in option or "\t" in option or "\n" in option
            else [_field(text) for text in self._words_of(option) if text != ""]
            for option in (option.replace("\t", " ").replace("\n", " ") for option in options)
        ]

    def _words_of(self, text: str) -> list[str]:
        """Brace expansion of commas, innermost first and from left to right. What is past the caps stays as it is."""
        done: list[str] = []
        waiting = [text]
        while waiting:
            current = waiting.pop()
            match = BRACES.search(current)
            if match is None:
                done.append(current)
                continue
            head, tail, parts = current[: match.start()], current[match.end() :], match.group(1).split(",")
            self.brace_characters += len(match.group(1)) + len(parts) * (len(head) + len(tail))
            # A list of words is no longer than its text, and is read whole; it is lists of lists that multiply.
            if len(done) + len(waiting) >= MAX_WORDS or self.brace_characters > MAX_BRACE_CHARACTERS:
                self.doubt("braces stand for too many words")
                return [*done, current, *reversed(waiting)]
            waiting.extend(head + part + tail for part in reversed(parts))
        return done

    def variants(self, words: list[Word]) -> list[list[Field]]:
        """The argv lists that a command can have."""
        answer: list[list[Field]] = [[]]
        for word in words:
            alternatives = self.expand(word)
            if len(alternatives) * len(answer) > MAX_VARIANTS:
                self.doubt("too many values for one command")
                alternatives = alternatives[:1]
            if len(alternatives) == 1:
                for argv in answer:
                    argv.extend(alternatives[0])
                continue
            answer = [[*argv, *alternative] for argv in answer for alternative in alternatives]
        return answer


def _field(text: str) -> Field:
    if text.isascii() and not _GLOB.search(text) and "{" not in text:
        return Field(text)
    unknown = _QUOTED_UNKNOWN in text or _BARE_UNKNOWN in text
    last = text.rpartition("/")[2]
    hidden = (
        _BARE_UNKNOWN in text
        or _QUOTED_UNKNOWN in last
        or (_GLOB.search(text) is not None and text not in ("[", "[["))
        or _RANGE.search(text) is not None
        or BRACES.search(text) is not None  # past the caps
    )
    return Field(text.translate(_RESTORE), not unknown, not hidden, text.startswith(_BARE_UNKNOWN))


def quote_whole(word: Word) -> Word:
    """The same word without splitting: a here-document is one text."""
    return tuple(part._replace(quoted=True) for part in word)


def join_fields(fields: Iterable[Field]) -> Field:
    fields = list(fields)
    return Field(" ".join(field.text for field in fields), all(field.known for field in fields))


def shell_words(fields: Iterable[Field]) -> str:
    """Words as shell text again."""
    return "".join(" '" + field.text.replace("'", "'\\''") + "'" for field in fields)


_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "a": "\a", "r": "\r", "e": "\x1b", '"': '"', "'": "'"}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|0?([0-7]{1,3})|(.))", re.DOTALL)


def _unescape(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        if match.group(1):
            return chr(int(match.group(1), 16))
        if match.group(2):
            return chr(int(match.group(2), 8) & 0xFF)
        return _ESCAPES.get(match.group(3), match.group())

    return _ESCAPE.sub(one, text)


def output_of(argv: list[Field]) -> Field | None:
    """What `echo` or a plain `printf` writes; None for any other program."""
    if not argv or argv[0].text.rpartition("/")[2] not in ("echo", "printf"):
        return None
    args = argv[1:]
    known = all(arg.known for arg in args)
    if argv[0].text.endswith("echo"):
        escapes = False
        while args and re.fullmatch(r"-[neE]+", args[0].text):
            escapes = escapes or "e" in args[0].text
            args = args[1:]
        text = " ".join(arg.text for arg in args) + "\n"
        return Field(_unescape(text) if escapes else text, known)
    if args and args[0].text == "--":
        args = args[1:]
    if not args:
        return Field("")
    pattern, rest = _unescape(args[0].text), [arg.text for arg in args[1:]]
    holes = pattern.count("%s") + pattern.count("%b")
    if pattern.replace("%s", "").replace("%b", "").replace("%%", "").count("%") or (holes == 0 and rest):
        return Field(pattern, known=False)
    if holes == 0:
        return Field(pattern.replace("%%", "%"), known)
    pieces: list[str] = []
    while True:
        here, rest = rest[:holes], rest[holes:]
        piece, values = pattern, [*here, *[""] * (holes - len(here))]
        for hole, value in zip(re.findall(r"%[sb]", pattern), values, strict=True):
            piece = piece.replace(hole, (_unescape(value) if hole == "%b" else value).replace("%", "%%"), 1)
        pieces.append(piece.replace("%%", "%"))
        if not rest or len(pieces) > 256:
            return Field("".join(pieces), known)
