"""Lays out tables as lines of text. Rich also does this, but its import takes longer than a whole command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

GAP = "  "
ELLIPSIS = "…"


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


def table_lines(
    rows: Sequence[Mapping[str, str]], *, width: int | None = None, widths_max: Mapping[str, int] | None = None,
    optional: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """Return the header and one line for each row. The keys of the first row are the titles of the columns.

    Lines have at most `width` columns: the last cell of a row is shortened. `widths_max` limits other columns. Columns in
    `optional` are omitted if all their cells are empty.
    """
    titles = [title for title in rows[0] if title not in optional or any(row[title] for row in rows)]
    cells = [titles, *([" ".join(row[title].split()) for title in titles] for row in rows)]
    lines = [""] * len(cells)
    used = 0
    for at, title in enumerate(titles):
        most = (widths_max or {}).get(title)
        is_last = at == len(titles) - 1
        if is_last and width is not None:
            most = width - used
        column = [cut(row[at], most) if most is not None else row[at] for row in cells]
        size = max(map(cell_width, column))
        for number, text in enumerate(column):
            lines[number] += text + " " * (size - cell_width(text)) + GAP
        used += size + len(GAP)
    return [line.rstrip() for line in lines]
