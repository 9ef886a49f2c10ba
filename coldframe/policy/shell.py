"""Reads shell text and argv lists for the programs they would start.

Text is advice: this reading lets a refusal come early, with a reason. The boundary is the box. What text cannot
decide is called `opaque`; the default mode lets it run, `strict_parsing` refuses it.

Two readers look at every text: our own (`words.py`, which knows values, here-documents and pipes) and
bashkit's `analyze`. Programs of both are joined, so that an error of one hides nothing.

Values of variables are taken from every assignment in the text, whatever its place: `$x` stands for all constants
that the text gives to `x`. Rejected: following control flow, which would be a second bash and still a guess.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import Literal

import bashkit

from coldframe.contract.policy import CommandReading, ProgramCall
from coldframe.policy.expansion import (
    ASSIGNMENT,
    BRACES,
    MAX_VARIANTS,
    Expansion,
    Field,
    join_fields,
    output_of,
    quote_whole,
    shell_words,
)
from coldframe.policy.script import read_script
from coldframe.policy.words import Script, Simple, literal
from coldframe.policy.wrappers import INTERPRETERS, SHELLS, WATCH, WRAPPERS, XARGS, Wrapper

MAX_TEXT_BYTES = 1024 * 1024
"""Longest text read; of a longer one only the start is, and the reading is opaque."""
MAX_PROGRAMS = 4096
MAX_REREADS = 64
"""Texts inside the text (`sh -c`, `eval`, here-documents to a shell) that are read in turn."""
MAX_REREAD_CHARACTERS = MAX_TEXT_BYTES
"""Of all these together: each may be many times as long as the one that it stands in."""
MAX_NESTING = 8
MAX_WRAPPERS = 32
MAX_TIMED = 200
"""`time` in one text that the second reader is given. It calls itself for each that follows another, with no end but that
of the stack: 2,458 of them ended the whole process (bashkit 0.20)."""
MAX_SOURCES = 256
"""Commands of one pipeline side whose output is put together."""
_MAX_REMEMBERED = 4096
"""Readings of texts up to this length are kept; the gate asks again for the same text at every hook."""

_VERSION = re.compile(r"-?[0-9][0-9.]*$")
_TIME = re.compile(r"\btime\b")
_LINE_COLUMN = re.compile(r"line (\d+), column (\d+)")


def read_shell(text: str) -> CommandReading:
    """Read shell text. Never raises; any failure makes the reading `unparsable` or `opaque`."""
    try:
        return _read_short(text) if len(text) <= _MAX_REMEMBERED else _read_shell(text)
    except RecursionError:
        return CommandReading(certainty="opaque", opaque_because=("nested too deep",))


@lru_cache(maxsize=256)
def _read_short(text: str) -> CommandReading:
    return _read_shell(text)


@lru_cache(maxsize=1)
def _second_reader() -> bashkit.Bash:
    return bashkit.Bash()


def _read_shell(text: str) -> CommandReading:
    reading = _Reading()
    start = text if len(text) <= MAX_TEXT_BYTES else text[:MAX_TEXT_BYTES]
    if start is not text:
        reading.doubt(f"text longer than {MAX_TEXT_BYTES} bytes")
    script = read_script(start)
    reading.read(script, ())
    position = None if script.failed_at is None else len(start[: script.failed_at].encode("utf-8", "surrogatepass"))
    if script.exhausted is None and start is text:
        failure = reading.read_again(text)
        if position is None:
            position = failure
    if position is not None and start is not text:
        position = None  # cut off by us, not wrong
    return reading.answer(position)


def read_argv(argv: Sequence[str]) -> CommandReading:
    """Read an argv list, which no shell expands. Never raises."""
    reading = _Reading()
    reading.run([Field(word) for word in argv], (), None)
    return reading.answer(None)


class _Reading(Expansion):
    """Collects what one text says; nested texts join in."""

    def __init__(self) -> None:
        super().__init__()
        self.programs: list[ProgramCall] = []
        self.seen: set[tuple[object, ...]] = set()
        self.written: dict[str, None] = {}
        self.bombs: dict[str, None] = {}
        self.aliases: dict[str, str] = {}
        self.rereads = 0
        self.reread_characters = 0
        self.nesting = 0
        self.alive: dict[int, Simple] = {}
        self.script = Script()

    def answer(self, position: int | None) -> CommandReading:
        certainty: Literal["complete", "opaque", "unparsable"] = (
            "unparsable" if position is not None else "opaque" if self.reasons else "complete"
        )
        return CommandReading(
            certainty=certainty,
            programs=tuple(self.programs),
            written_paths=tuple(self.written),
            self_spawning=tuple(self.bombs),
            opaque_because=tuple(self.reasons),
            position=position,
        )

    # --- texts ---

    def read(self, script: Script, via: tuple[str, ...]) -> None:
        outer, self.script = self.script, script
        if script.exhausted is not None:
            self.doubt(script.exhausted)
        self.collect_values(script)
        self.resolved.clear()
        self.find_bombs(script)
        for command in script.commands:
            for operator, target in command.redirects:
                if ">" in operator:
                    for variant in self.expand(target):
                        path = " ".join(field.text for field in variant)
                        if not (operator == ">&" and (path.isdigit() or path == "-")):
                            self.written[path] = None
            for argv in self.variants(command.words):
                self.run(argv, via, command)
        self.script = outer

    def read_text(self, field: Field, via: tuple[str, ...], what: str) -> None:
        """Read a text that a program of the text would hand to a shell."""
        if not field.known:
            self.doubt(f"{what} is only known at run time")
        self.rereads += 1
        if self.rereads > MAX_REREADS or self.nesting >= MAX_NESTING:
            self.doubt("shell text nested too deep")
            return
        self.reread_characters += len(field.text)
        if self.reread_characters > MAX_REREAD_CHARACTERS:
            self.doubt("shell text within shell text grows too long")
            return
        self.nesting += 1
        script = read_script(field.text)
        if script.failed_at is not None and field.known:
            self.doubt(f"{what} has a syntax error")
        self.read(script, via)
        self.nesting -= 1

    def read_again(self, text: str) -> int | None:
        """Second opinion. Answers the byte offset of a syntax error."""
        if sum(1 for _ in islice(_TIME.finditer(text), MAX_TIMED + 1)) > MAX_TIMED:
            self.doubt(f"more than {MAX_TIMED} `time`")
            return None
        try:
            analysis = _second_reader().analyze(text)
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            found = _LINE_COLUMN.search(str(error))
            if found is None:
                self.doubt(f"the second reader gave up: {error}")
                return None
            lines = text.split("\n")[: int(found.group(1)) - 1]
            return min(
                sum(len(line.encode("utf-8", "surrogatepass")) + 1 for line in lines) + int(found.group(2)) - 1,
                len(text.encode("utf-8", "surrogatepass")),
            )
        if analysis.truncated:
            self.doubt("the second reader did not read to the end")
        names = {call.word for call in self.programs}
        for command in analysis.commands:
            if command.name and command.name not in names and not BRACES.search(command.name):
                self.run([Field(command.name), *(Field(arg or "", arg is not None) for arg in command.args)], (), None)
        return None

    # --- values and words ---

    def find_bombs(self, script: Script) -> None:
        for command in script.commands:
            name = literal(command.words[0]) if command.words else None
            if name is None or name not in command.functions:
                continue
            first, last = command.sources or (0, 0)
            piped = (bool(c.words) and literal(c.words[0]) == name for c in script.commands[first:last])
            if command.background or any(piped):
                self.bombs[name] = None

    # --- programs ---

    def run(self, argv: list[Field], via: tuple[str, ...], command: Simple | None) -> None:
        """Note the program that this argv starts, and those that it starts in turn."""
        first = 0
        while first < len(argv) and not argv[first].names_program:
            self.doubt(f"program `{argv[first].text}` is only known at run time")
            if not argv[first].perhaps_empty:
                return
            first += 1  # `$SUDO rm` starts `rm` if the variable is empty
        if first >= len(argv):
            return
        head, args = argv[first], argv[first + 1 :]
        name = head.text.rstrip("/").rpartition("/")[2]
        if not name:
            return
        if len(via) > MAX_WRAPPERS:
            self.doubt(f"more than {MAX_WRAPPERS} wrappers")
            return
        if len(self.programs) >= MAX_PROGRAMS:
            self.doubt(f"more than {MAX_PROGRAMS} programs")
            return
        reads_input = name in SHELLS or name == "xargs"
        if reads_input and command is not None:
            self.alive[id(command)] = command  # a number is used again once its object is gone
        key = (head.text, via, tuple(args), id(command) if reads_input else None)
        if key in self.seen:
            return
        self.seen.add(key)
        self.programs.append(
            ProgramCall(
                name=name,
                word=head.text,
                arguments=tuple(arg.text for arg in args),
                via=via,
                unresolved=tuple(index for index, arg in enumerate(args) if not arg.known),
            )
        )
        inner = (*via, name)
        if name in self.aliases and name not in via:
            self.read_text(Field(self.aliases[name] + shell_words(args)), inner, f"alias `{name}`")
        plain = _VERSION.sub("", name)
        if name in WRAPPERS:
            self.unwrap(name, WRAPPERS[name], args, inner, command)
        elif name in SHELLS:
            self.run_shell(name, args, inner, command)
        elif name == "xargs":
            self.run_xargs(args, inner, command)
        elif name == "find":
            self.run_find(args, inner, command)
        elif name in ("eval", "watch"):
            start = 0 if name == "eval" else _skip_options(args, WATCH)
            self.read_text(join_fields(args[start:]), inner, f"text of `{name}`")
        elif name == "trap" and args:
            self.read_text(args[0], inner, "text of `trap`")
        elif name == "alias":
            for arg in args:
                if match := ASSIGNMENT.match(arg.text):
                    self.aliases[match.group(1)] = match.group(2)
                    self.read_text(Field(match.group(2), arg.known), inner, "alias")
        elif name in (".", "source"):
            self.doubt(f"`{name}` runs the text of a file")
        elif name == "hash" and any(arg.text.startswith("-p") for arg in args):
            self.doubt("`hash -p` renames a program")
        elif name == "parallel":
            self.doubt("`parallel` builds commands at run time")
        elif name in ("awk", "gawk", "mawk", "nawk"):
            if any("system" in arg.text or "|" in arg.text for arg in args):
                self.doubt(f"`{name}` program may start others")
        elif plain in INTERPRETERS:
            self.judge_interpreter(name, plain, args, command)
        elif name == "deno" and args and args[0].text in ("eval", "repl"):
            self.doubt("`deno` is given program text")
        elif name.startswith(("ld-linux", "ld-musl", "ld.so")):
            self.unwrap(name, Wrapper(long=("library-path", "preload", "argv0", "audit")), args, inner, command)

    def unwrap(
        self, name: str, wrapper: Wrapper, args: list[Field], via: tuple[str, ...], command: Simple | None
    ) -> None:
        start = _skip_options(args, wrapper)
        options = args[:start]
        if any(not arg.text.startswith("--") and arg.text[1:2] in wrapper.ends for arg in options if arg.text[1:]):
            return
        for index, arg in enumerate(args if wrapper.operands else options):
            for option in wrapper.text:
                value: Field | None = None
                rest: list[Field] = []
                if arg.text == option or (option[1] != "-" and _last_letter(arg.text) == option[1]):
                    value = args[index + 1] if index + 1 < len(args) else None
                    rest = args[index + 2 :]
                elif arg.text.startswith(option):
                    value = Field(arg.text[len(option) :].lstrip("="), arg.known)
                    rest = args[index + 1 :]
                if value is None:
                    continue
                if name == "env":
                    value = Field(
                        f"env {value.text}{shell_words(rest)}", value.known and all(word.known for word in rest)
                    )
                self.read_text(value, via, f"text of `{name}`")
                return
        self.run(args[start + wrapper.operands :], via, command)
        if wrapper.operands == 1:
            tail = args[start + 1 :]
            if again := _skip_options(tail, wrapper):  # options may stand behind the operand
                self.run(tail[again:], via, command)

    def run_shell(self, name: str, args: list[Field], via: tuple[str, ...], command: Simple | None) -> None:
        index, from_text, from_input = 0, False, False
        while index < len(args):
            text = args[index].text
            if not args[index].known:
                self.doubt(f"arguments of `{name}` are only known at run time")
            if text in ("--", "-"):
                index += 1
                break
            if text.startswith("--"):
                index += 2 if text in ("--rcfile", "--init-file") else 1
            elif text[:1] in ("-", "+") and len(text) > 1:
                letters = text[1:]
                from_text = from_text or (text[0] == "-" and "c" in letters)
                from_input = from_input or "s" in letters
                index += 1 + letters.count("o") + letters.count("O")
            else:
                break
        if from_text:
            if index < len(args):
                self.read_text(args[index], via, f"text of `{name} -c`")
            return
        if index < len(args) and not from_input:
            if args[index].text in ("/dev/stdin", "/proc/self/fd/0", "/dev/fd/0"):
                from_input = True
            elif not args[index].known:
                self.doubt(f"`{name}` runs a file only known at run time")
            if not from_input:
                return
        elif any(arg.text in ("--version", "--help") for arg in args):
            return
        for field in self.standard_input(command):
            self.read_text(field, via, f"standard input of `{name}`")

    def standard_input(self, command: Simple | None) -> list[Field]:
        """What the text feeds to this command; one unknown field if it does not say."""
        if command is not None and command.feed is not None and command.feed.body is not None:
            return [join_fields(variant) for variant in self.expand(quote_whole(command.feed.body))]
        if command is not None and command.feed is None and command.sources is not None:
            found: list[Field] = []
            if command.sources[1] - command.sources[0] > MAX_SOURCES or self.rereads > MAX_REREADS:
                return [Field("", known=False)]
            for source in self.script.commands[command.sources[0] : command.sources[1]]:
                if not source.words:
                    continue
                for argv in self.variants(source.words):
                    output = output_of(argv)
                    if output is None and argv and argv[0].text in ("cat", "tee") and source.feed is not None:
                        found.extend(self.standard_input(source))
                        continue
                    found.append(output if output is not None else Field("", known=False))
            if found and all(field.known for field in found):
                return [Field("".join(field.text for field in found)), *found] if len(found) > 1 else found
            return found or [Field("", known=False)]
        return [Field("", known=False)]

    def run_xargs(self, args: list[Field], via: tuple[str, ...], command: Simple | None) -> None:
        start = _skip_options(args, XARGS)
        replaced: str | None = None
        for index, arg in enumerate(args[:start]):
            if arg.text.startswith("-I"):
                replaced = arg.text[2:] or (args[index + 1].text if index + 1 < len(args) else "{}")
            elif arg.text.startswith(("-i", "--replace")):
                replaced = arg.text.partition("=")[2] or ("" if arg.text.startswith("--") else arg.text[2:]) or "{}"
        inner = args[start:] or [Field("echo")]
        for field in self.standard_input(command):
            fed = field.text.split() if field.known else []
            if replaced is None:
                added = [Field(word) for word in fed] if field.known else [Field("…", known=False)]
                self.run([*inner, *added], via, command)
            elif field.known:
                for line in field.text.splitlines()[:MAX_VARIANTS]:
                    self.run([word._replace(text=word.text.replace(replaced, line)) for word in inner], via, command)
            else:
                self.run(
                    [
                        Field(word.text, known=False, names_program=False) if replaced in word.text else word
                        for word in inner
                    ],
                    via,
                    command,
                )

    def run_find(self, args: list[Field], via: tuple[str, ...], command: Simple | None) -> None:
        index = 0
        while index < len(args):
            if args[index].text in ("-exec", "-execdir", "-ok", "-okdir"):
                end = index + 1
                while (
                    end < len(args)
                    and args[end].text != ";"
                    and not (args[end].text == "+" and args[end - 1].text == "{}")
                ):
                    end += 1
                self.run(
                    [
                        Field(word.text, known=False, names_program=False) if "{}" in word.text else word
                        for word in args[index + 1 : end]
                    ],
                    via,
                    command,
                )
                index = end
            index += 1

    def judge_interpreter(self, name: str, plain: str, args: list[Field], command: Simple | None) -> None:
        """An interpreter with program text, or with a program on its standard input, is opaque."""
        short, long, with_value = INTERPRETERS[plain]
        index = 0
        while index < len(args):
            text = args[index].text
            if text == "-" or not text.startswith("-"):
                break
            if text.startswith("--"):
                if text.partition("=")[0] in long:
                    self.doubt(f"`{name}` is given program text")
                    return
                if text in ("--version", "--help"):
                    return
            else:
                for place, letter in enumerate(text[1:]):
                    if letter in short:
                        self.doubt(f"`{name}` is given program text")
                        return
                    if letter in "mVhv" and plain in ("python", "pypy", "node", "perl", "ruby", "php"):
                        return
                    if letter in with_value:
                        index += place == len(text) - 2
                        break
            index += 1
        if index >= len(args) or args[index].text == "-":
            self.doubt(f"`{name}` reads its program from standard input")


def _last_letter(option: str) -> str:
    return option[-1] if len(option) > 1 and option[0] == "-" and option[1] != "-" else ""


def _skip_options(args: Sequence[Field], wrapper: Wrapper) -> int:
    """Index of the first word that is neither option nor value of one."""
    index = 0
    while index < len(args):
        text = args[index].text
        if text == "--":
            index += 1
            while wrapper.assignments and index < len(args) and ASSIGNMENT.match(args[index].text):
                index += 1
            return index
        if text.startswith("--"):
            key, equals, _ = text[2:].partition("=")
            takes = not equals and any(option.startswith(key) for option in wrapper.long)
            index += 2 if takes else 1
        elif text.startswith("-") and len(text) > 1:
            found = next((place for place, letter in enumerate(text[1:], 1) if letter in wrapper.short), None)
            index += 2 if found is not None and found == len(text) - 1 else 1
        elif text == "-" or (wrapper.assignments and ASSIGNMENT.match(text)):
            index += 1
        else:
            return index
    return index
