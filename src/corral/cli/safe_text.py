"""Subclasses of Rich's console and text that escape control characters. Commands use them instead of Rich's own classes."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from corral.control_characters import escape_controls


class SafeText(Text):
    def __init__(self, text: str = "", *options: Any, **named: Any) -> None:
        super().__init__(escape_controls(text), *options, **named)

    def append(self, text: Text | str, *options: Any, **named: Any) -> SafeText:
        super().append(escape_controls(text) if isinstance(text, str) else text, *options, **named)
        return self

    @classmethod
    def assemble(cls, *parts: Any, **options: Any) -> SafeText:
        """Rich's `assemble` calls `append` for each part, so each part is escaped."""
        found = super().assemble(*parts, **options)
        assert isinstance(found, SafeText)
        return found


class SafeConsole(Console):
    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(file=sys.stderr if stderr else sys.stdout, width=width, highlight=False, emoji=False, markup=False)

    def render_str(self, text: str, **options: Any) -> Text:  # Rich calls this for printed strings and strings in tables
        return super().render_str(escape_controls(text), **options)
