"""A cursor over the text of a filter pattern. Error messages contain the position of the cursor."""

from __future__ import annotations

import re

SPACES = re.compile(r"\s*")


class InvalidPattern(Exception):
    """The pattern is invalid. The message describes the error and contains its position."""

    def __init__(self, fault: str, at: int) -> None:
        super().__init__(f"{fault} (at character {at + 1})")


class Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def peek(self) -> str:
        """Skip spaces and return the next character without consuming it. Return an empty string at the end."""
        spaces = SPACES.match(self.text, self.at)
        assert spaces is not None
        self.at = spaces.end()
        return self.text[self.at : self.at + 1]

    def take(self, token: str) -> bool:
        """If the text continues with `token`, consume it and return True."""
        self.peek()
        found = self.text.startswith(token, self.at)
        if found:
            self.at += len(token)
        return found

    def expect(self, token: str, fault: str) -> None:
        if not self.take(token):
            raise self.error(fault)

    def match(self, expression: re.Pattern[str]) -> str:
        """Consume and return the text that the expression matches here. Return an empty string if it does not match."""
        found = expression.match(self.text, self.at)
        if found is None:
            return ""
        self.at = found.end()
        return found.group()

    def quoted(self) -> str:
        """Consume a text in double quotes. A backslash escapes a quotation mark or a backslash."""
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
        """Consume the closing bracket, which must be the last character."""
        if not self.take(closing):
            opening = "{" if closing == "}" else "["
            raise self.error(f"if a filter pattern starts with '{opening}' it must end with '{closing}'")
        if self.peek():
            raise self.error(f"no text may follow the closing '{closing}'")

    def error(self, fault: str) -> InvalidPattern:
        return InvalidPattern(fault, self.at)
