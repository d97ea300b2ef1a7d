"""Finds out which files a shell script in user data writes, and with which text. No command is executed.

The script is read once, from left to right. The reader understands quotes, comments, heredocs, variables that the script sets,
`echo`, `printf`, `cat`, `tee`, redirections and pipes. It reads every branch of an `if` and the body of a loop once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
KEYWORDS = {"if", "then", "else", "elif", "fi", "do", "done", "while", "until", "for", "{", "}", "!", "sudo", "time", "exec"}
DECLARATIONS = {"export", "declare", "readonly", "local"}
ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "r": "\r"}
EXPANDED_MAX = 256 * 1024  # the most characters of values that replace variables, and of the output of `printf`
OPERATORS = ("<<<", "<<-", "&&", "||", ">>", "<<", "&>", ">&", ";", "\n", "&", "|", "<", ">", "(", ")")
FIRST_OF_OPERATORS = frozenset(operator[0] for operator in OPERATORS)


@dataclass
class Script:
    """The result of reading a script: the commands that were understood and skipped, and the variables that the script set."""

    write: Callable[[str, str], bool]  # called with a path and a text; returns whether Corral uses the file
    understood: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)


@dataclass
class _Command:
    start: int
    words: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)  # files that the output is redirected to
    text: str | None = None  # the input: a heredoc, a here-string, or the output of the command before a pipe
    heredocs: list[tuple[str, bool, bool]] = field(default_factory=list)  # (delimiter, strip tabs, expand variables)


def read_script(text: str, script: Script) -> None:
    """Read a script. Its commands are added to `understood` or `skipped`."""
    _Reader(text, script).read()


class _Reader:
    def __init__(self, text: str, script: Script) -> None:
        self.text = text
        self.script = script
        self.at = 0
        self.expanded = 0  # the characters of values that have replaced variables
        self.command = _Command(0)

    def read(self) -> None:
        pending: str | None = None  # a redirection operator whose file name has not been read yet
        while self.at < len(self.text):
            operator = self._operator()
            if operator is None:
                word, was_quoted = self._word()
                if word is None:
                    continue
                if pending is None:
                    self.command.words.append(word)
                else:
                    self._redirect(pending, word, was_quoted)
                pending = None
            elif operator in (">", ">>", "&>", ">&", "<", "<<", "<<-", "<<<"):
                pending = operator
            else:
                pending = None
                self._end(operator, self.at - len(operator))
        self._end("\n", len(self.text))

    def _operator(self) -> str | None:
        if self.text[self.at] not in FIRST_OF_OPERATORS:
            return None
        for operator in OPERATORS:
            if self.text.startswith(operator, self.at):
                self.at += len(operator)
                return operator
        return None

    def _word(self) -> tuple[str | None, bool]:
        """Return the next word, and whether a part of it was quoted. The word is None for blanks and comments."""
        text, parts, was_quoted, start = self.text, list[str](), False, self.at
        if text[start] in " \t\r":
            self.at += 1
            return None, False
        while self.at < len(text) and text[self.at] not in " \t\r;&|<>()\n":
            char = text[self.at]
            if char == "#" and self.at == start:
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
                return None, False
            if char == "\\":
                following = text[self.at + 1 : self.at + 2]
                parts.append("" if following == "\n" else following)
                self.at += 2
                if following == "\n" and not "".join(parts):
                    return None, False
            elif char == "'":
                end = text.find("'", self.at + 1)
                end = len(text) if end < 0 else end
                parts.append(text[self.at + 1 : end])
                self.at, was_quoted = end + 1, True
            elif char == '"':
                parts.append(self._double_quoted())
                was_quoted = True
            elif char == "$":
                parts.append(self._variable())
            else:
                parts.append(char)
                self.at += 1
        word = "".join(parts)
        if not was_quoted and len(word) == 1 and word in "12" and self.text[self.at : self.at + 1] == ">":
            return None, False  # the 1 of `1>` or the 2 of `2>` is no word
        return word, was_quoted

    def _double_quoted(self) -> str:
        text, parts = self.text, list[str]()
        self.at += 1
        while self.at < len(text) and text[self.at] != '"':
            char = text[self.at]
            if char == "\\":
                following = text[self.at + 1 : self.at + 2]
                parts.append(following if following in '"\\$`' else "" if following == "\n" else char + following)
                self.at += 2
            elif char == "$":
                parts.append(self._variable())
            else:
                parts.append(char)
                self.at += 1
        self.at += 1
        return "".join(parts)

    def _variable(self) -> str:
        """Return the value of the variable at this position. An unknown variable, or a command in `$( )`, is returned as text."""
        text, start = self.text, self.at
        if text.startswith("$(", start):
            depth, self.at = 1, start + 2
            while self.at < len(text) and depth:
                depth += {"(": 1, ")": -1}.get(text[self.at], 0)
                self.at += 1
            return text[start : self.at]
        braces = text.startswith("${", start)
        found = NAME.match(text, start + (2 if braces else 1))
        if found is None:
            self.at += 1
            return "$"
        end = found.end()
        if braces:
            if not text.startswith("}", end):
                self.at += 1
                return "$"
            end += 1
        self.at = end
        return self._value(found[0], text[start:end])

    def _value(self, name: str, source: str) -> str:
        """Return the value of a variable. Return its source if it is unknown, or if the values are too long altogether.

        A script can double a value in each line: `A=$A$A`.
        """
        value = self.script.variables.get(name, source)
        self.expanded += len(value)
        return value if self.expanded <= EXPANDED_MAX else source

    def _redirect(self, operator: str, word: str, was_quoted: bool) -> None:
        if operator in (">", ">>", "&>"):
            self.command.targets.append(word)
        elif operator == "<<<":
            self.command.text = word + "\n"
        elif operator in ("<<", "<<-"):
            self.command.heredocs.append((word, operator == "<<-", not was_quoted))

    def _end(self, operator: str, stop: int) -> None:
        """Complete the current command: read its heredocs, which begin on the next line, and apply it."""
        command = self.command
        source = self.text[command.start : stop].strip()
        if command.heredocs:
            if operator != "\n":  # other commands follow on this line: `cat <<EOF | tee FILE`
                end = self.text.find("\n", self.at)
                line_end = len(self.text) if end < 0 else end
                body_end, body = self._heredocs(command, line_end + 1)
                self.text = self.text[: line_end + 1] + self.text[body_end:]
            else:
                self.at, body = self._heredocs(command, self.at)
            command.text = body
        output = self._run(command, source.split("\n", 1)[0] if command.heredocs else source, operator == "|")
        is_piped = operator == "|"
        self.command = _Command(command.start if is_piped else self.at, text=output if is_piped else None)

    def _heredocs(self, command: _Command, at: int) -> tuple[int, str]:
        """Return the position after the last heredoc of a command, and the text of this heredoc."""
        lines: list[str] = []
        for delimiter, strip_tabs, expand in command.heredocs:
            lines = []
            while at < len(self.text):
                end = self.text.find("\n", at)
                end = len(self.text) if end < 0 else end
                line = self.text[at:end]
                at = min(end + 1, len(self.text))
                line = line.lstrip("\t") if strip_tabs else line
                if line.rstrip("\r") == delimiter:
                    break
                lines.append(self._expanded(line) if expand else line)
        return at, "".join(f"{line}\n" for line in lines)

    def _expanded(self, line: str) -> str:
        return re.sub(
            r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?", lambda found: self._value(found[1], found[0]), line.replace("\\$", "$\0")
        ).replace("$\0", "$")

    def _run(self, command: _Command, source: str, is_piped: bool) -> str | None:
        """Call `Script.write` for each file that a command writes. Return the output of the command, or None if it is not known."""
        words = command.words
        while words and words[0] in KEYWORDS:
            words = words[1:]
        if words and words[0] in DECLARATIONS:
            words = words[1:]
        assignments = [ASSIGNMENT.fullmatch(word) for word in words]
        if words and all(assignments) and not command.targets:
            self.script.variables |= {found[1]: found[2] for found in assignments if found}
            self.script.understood.append(source)
            return None
        while words and ASSIGNMENT.fullmatch(words[0]):
            words = words[1:]
        output = _output(words, command.text)
        targets = [*command.targets, *([word for word in words[1:] if word[:1] != "-"] if words[:1] == ["tee"] else ())]
        wrote = [self.script.write(path, output or "") for path in targets] if output is not None else []
        if any(wrote):
            self.script.understood.append(source)
        elif (words or command.targets) and not is_piped:
            self.script.skipped.append(source)
        return output


def _output(words: list[str], given: str | None) -> str | None:
    """Return the output of a command, or None if the command would have to be executed."""
    if not words:
        return given
    program, arguments = words[0].rpartition("/")[2], words[1:]
    if program == "echo":
        escapes = newline = False
        while arguments and re.fullmatch("-[neE]+", arguments[0]):
            escapes, newline = escapes or "e" in arguments[0], newline or "n" in arguments[0]
            arguments = arguments[1:]
        text = " ".join(arguments)
        return (_unescaped(text) if escapes else text) + ("" if newline else "\n")
    if program == "printf" and arguments:
        return _formatted(_unescaped(arguments[0]), arguments[1:])
    if program == "cat" and all(word == "-" for word in arguments):
        return given
    return given if program == "tee" else None


def _formatted(pattern: str, arguments: list[str]) -> str | None:
    """Format like `printf` with %s, %d and %%. As in a shell, the pattern is repeated until all arguments are used.

    Return None if the text becomes too long.
    """
    parts, values, text = re.split("(%[%sd])", pattern), list(reversed(arguments)), ""
    while True:
        before = len(values)
        for part in parts:
            if part == "%%":
                text += "%"
            elif part in ("%s", "%d"):
                text += values.pop() if values else ""
            else:
                text += part
        if len(text) > EXPANDED_MAX:
            return None
        if not values or len(values) == before:
            return text


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: ESCAPES.get(found[1], found[0]), text, flags=re.DOTALL)
