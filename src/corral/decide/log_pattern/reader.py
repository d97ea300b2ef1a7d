"""Reading a pattern from left to right; whatever is wrong is said with its place."""

from __future__ import annotations

import re

SPACES = re.compile(r"\s*")


class InvalidPattern(Exception):
    def __init__(self, what: str, at: int) -> None:
        super().__init__(f"{what} (at character {at + 1})")


class Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def peek(self) -> str:
        """The next character that is not a space, not taken; empty at the end."""
        spaces = SPACES.match(self.text, self.at)
        assert spaces is not None
        self.at = spaces.end()
        return self.text[self.at : self.at + 1]

    def take(self, word: str) -> bool:
        """Step over `word` if it comes next."""
        self.peek()
        found = self.text.startswith(word, self.at)
        if found:
            self.at += len(word)
        return found

    def expect(self, word: str, why: str) -> None:
        if not self.take(word):
            raise self.wrong(why)

    def match(self, expression: re.Pattern[str]) -> str:
        """What the expression finds right here, taken; empty if nothing."""
        found = expression.match(self.text, self.at)
        if found is None:
            return ""
        self.at = found.end()
        return found.group()

    def quoted(self) -> str:
        """A text in double quotes; a backslash keeps the character after it."""
        start, parts = self.at, []
        at = start + 1
        while at < len(self.text) and self.text[at] != '"':
            if self.text[at] == "\\" and self.text[at + 1 : at + 2] in ('"', "\\"):
                at += 1
            parts.append(self.text[at])
            at += 1
        if at >= len(self.text):
            raise InvalidPattern("a quotation mark is not closed", start)
        self.at = at + 1
        return "".join(parts)

    def end(self, closing: str) -> None:
        """Nothing may come after the bracket that closes the pattern."""
        if not self.take(closing):
            opening = "{" if closing == "}" else "["
            raise self.wrong(f"if a filter pattern starts with '{opening}' it must end with '{closing}'")
        if self.peek():
            raise self.wrong(f"nothing may come after the closing '{closing}'")

    def wrong(self, what: str) -> InvalidPattern:
        return InvalidPattern(what, self.at)
