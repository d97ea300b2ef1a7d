"""Subclasses of Rich's console and text that escape control characters. Commands use them instead of Rich's own classes."""

from __future__ import annotations

import os
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from corral.process.control_characters import escape_controls


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
        # Rich omits only colours if NO_COLOR is set. Without a colour system, it omits bold text and other styles as well.
        colours: Any = None if os.environ.get("NO_COLOR") else "auto"
        out = sys.stderr if stderr else sys.stdout
        super().__init__(file=out, width=width, color_system=colours, highlight=False, emoji=False, markup=False)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print. Rich fills lines with blanks, so remove those at the end of lines, unless the output is a terminal."""
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))

    def render_str(self, text: str, **options: Any) -> Text:  # Rich calls this for printed strings and strings in tables
        return super().render_str(escape_controls(text), **options)
