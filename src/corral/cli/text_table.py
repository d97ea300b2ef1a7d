"""Lays out tables as lines of text. Rich also does this, but its import takes longer than a whole command."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

GAP = "  "
ELLIPSIS = "…"
_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}  # the codes of styles in an SGR sequence


def cell_width(text: str) -> int:
    """Return how many columns of a terminal a text needs."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def cut(text: str, width: int) -> str:
    """Shorten a text to at most `width` columns. A shortened text ends with an ellipsis."""
    if cell_width(text) <= width:
        return text
    if width < 1:
        return ""
    while text and cell_width(text) > width - 1:
        text = text[: max(0, min(len(text) - 1, width - 1))]
    return text + ELLIPSIS


def fold(text: str, width: int) -> list[str]:
    """Break a text into lines of at most `width` columns: between words, and also inside a word that is wider than a line."""
    lines = [""]
    for word in text.split():
        if lines[-1] and cell_width(lines[-1]) + 1 + cell_width(word) <= width:
            lines[-1] += f" {word}"
            continue
        if lines[-1]:
            lines.append("")
        for char in word:
            if lines[-1] and cell_width(lines[-1] + char) > width:
                lines.append("")
            lines[-1] += char
    return lines


def painted(text: str, style: str) -> str:
    """Return a text in a style for a terminal, such as `bold red`. If the variable NO_COLOR is set, omit the colour."""
    words = [word for word in style.split() if word in ("bold", "dim") or not os.environ.get("NO_COLOR")]
    codes = ";".join(str(_CODES[word]) for word in words)
    return f"\x1b[{codes}m{text}\x1b[0m" if text and codes else text


def table_lines(
    rows: Sequence[Mapping[str, str]], *, width: int | None = None, widths_max: Mapping[str, int] | None = None,
    optional: Sequence[str] = (), folded: Sequence[str] = (), right: Sequence[str] = (),
    styles: Mapping[str, Callable[[str], str]] | None = None,
) -> list[str]:  # fmt: skip
    """Return the header and at least one line for each row. The keys of the first row are the titles of the columns.

    If a line needs more than `width` columns of the terminal, the cells under the titles in `folded` are folded into several lines,
    the widest column first. If this is not enough, the cells under the last title are cut, if it is not in `folded`. `widths_max`
    has the largest width of cells, by title. Titles in `optional` are omitted if all their cells are empty. Cells under the titles
    in `right` are aligned to the right. `styles` has functions that return the style of a cell.
    """
    titles = [title for title in rows[0] if title not in optional or any(row.get(title) for row in rows)]
    columns = {title: [title, *(" ".join(row.get(title, "").split()) for row in rows)] for title in titles}
    for title in columns.keys() & (widths_max or {}).keys():
        columns[title] = [cut(text, (widths_max or {})[title]) for text in columns[title]]
    sizes = _sizes(columns, width, folded)
    lines = []
    for number in range(len(rows) + 1):
        cells = {
            title: fold(column[number], sizes[title]) if title in folded else [cut(column[number], sizes[title])]
            for title, column in columns.items()
        }
        for at in range(max(map(len, cells.values()))):
            line = ""
            for title, parts in cells.items():
                text = parts[at] if at < len(parts) else ""
                space = " " * (sizes[title] - cell_width(text))
                if styles and title in styles and number > 0:
                    text = painted(text, styles[title](columns[title][number]))
                line += (space + text if title in right else text + space) + GAP
            lines.append(line.rstrip())
    return lines


def _sizes(columns: Mapping[str, Sequence[str]], width: int | None, folded: Sequence[str]) -> dict[str, int]:
    """Return the width of each column. A folded column is at least as wide as its title."""
    sizes = {title: max(map(cell_width, column)) for title, column in columns.items()}
    over = 0 if width is None else sum(sizes.values()) + len(GAP) * (len(sizes) - 1) - width
    while over > 0 and (wide := [title for title in sizes if title in folded and sizes[title] > cell_width(title)]):
        sizes[max(wide, key=sizes.__getitem__)] -= 1
        over -= 1
    last = next(reversed(sizes))
    if over > 0 and last not in folded:
        sizes[last] = max(0, sizes[last] - over)
    return sizes
