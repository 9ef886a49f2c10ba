"""The grammar above words: lists, compounds, functions, redirections and here-documents.

Flat on purpose: the answer is the simple commands in source order with what feeds them, not a tree. No judgement
needs the tree, and a flat reading survives a syntax error.
"""

import re

from coldframe.policy.words import INSIDE_BODY, Feed, Part, Script, Simple, Stop, Word, WordReader, literal

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[[^\]\s=]*\])?\+?=")
_REDIRECT = re.compile(r"(?:\{[A-Za-z_]\w*\}|\d+)?(?:&>>|&>|<<<|<<-|<<|<>|<&|<|>>|>&|>\||>)")
_SKIPPED = frozenset({"if", "then", "elif", "else", "fi", "do", "done", "while", "until", "!", "time", "coproc"})


def read_script(text: str) -> Script:
    """Read shell text. Never raises; bounds and errors are in the answer."""
    script = Script()
    _Reader(text, script, 0, [0]).read_all()
    return script


def _bare(word: Word) -> str | None:
    """Text of a wholly unquoted literal word: only that can be a reserved word."""
    if len(word) == 1 and word[0].kind == "text" and not word[0].quoted:
        return word[0].text
    return None


class _Reader(WordReader):
    def read_all(self) -> None:
        try:
            while self.at < len(self.text):
                before = self.at
                self.read_list(frozenset())
                if self.at < len(self.text):  # a closer that nobody opened
                    self.fail()
                    self.at = max(self.at, before + 1)
        except Stop:
            pass

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
        inner = self.nested(body)
        return tuple(inner.read_double(INSIDE_BODY, closer=None))
