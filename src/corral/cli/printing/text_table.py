"""Lays out tables as lines of text. Rich also does this, but its import takes longer than a whole command."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

GAP, NARROW_GAP = "  ", " "
ELLIPSIS = "…"
INDENT = "    "
LAST_MIN = 24  # if the last column would be narrower, its cells are on lines of their own
FOLDED_MIN = 12  # the other folded columns are not narrower than this, unless a line is still too long
BREAK_AFTER = "-_/.,:="  # signs after which a wide word is broken
_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}  # the codes of styles in an SGR sequence


def cell_width(text: str) -> int:
    """Return how many columns of a terminal a text needs."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def fold(text: str, width: int, lines_max: int | None = None) -> list[str]:
    """Break a text into lines of at most `width` columns: between words, and also inside a word that is wider than a line.

    If there are more than `lines_max` lines, the others are omitted, and the last line ends with an ellipsis.
    """
    lines = [""]
    for word in text.split():
        if lines[-1] and cell_width(lines[-1]) + 1 + cell_width(word) <= width:
            lines[-1] += f" {word}"
            continue
        if lines[-1]:
            lines.append("")
        while cell_width(word) > width:
            lines[-1] = _beginning(word, width)
            word = word[len(lines[-1]) :]
            lines.append("")
        lines[-1] = word
    if lines_max is None or len(lines) <= lines_max:
        return lines
    end = lines[lines_max - 1]
    return [*lines[: lines_max - 1], (_beginning(end, width - 1) if cell_width(end) >= width else end) + ELLIPSIS]


def _beginning(word: str, width: int) -> str:
    """Return the part of a wide word that fits into a line. It ends after a sign such as `-` if one is in its second half."""
    size = 1
    while size < len(word) and cell_width(word[: size + 1]) <= width:
        size += 1
    sign = max(word.rfind(each, size // 2, size) for each in BREAK_AFTER)
    return word[: sign + 1 if sign >= 0 else size]


def painted(text: str, style: str) -> str:
    """Return a text in a style for a terminal, such as `bold red`. If the variable NO_COLOR is set, the text has no style."""
    codes = "" if os.environ.get("NO_COLOR") else ";".join(str(_CODES[word]) for word in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m" if text and codes else text


def table_lines(
    rows: Sequence[Mapping[str, str]], *, width: int | None = None, widths_max: Mapping[str, int] | None = None,
    lines_max: int | None = None, optional: Sequence[str] = (), folded: Sequence[str] = (), right: Sequence[str] = (),
    styles: Mapping[str, Callable[[str], str]] | None = None, head_style: str = "",
) -> list[str]:  # fmt: skip
    """Return the header and at least one line for each row. The keys of the first row are the titles of the columns.

    If a line needs more than `width` columns of the terminal, the cells of the last column and of the columns in `folded` are
    folded into several lines, the widest column first. If this is not enough, each cell of the last column follows its row on
    lines of its own, and then all columns may be folded. Cells are not cut, but `lines_max` limits the lines of the last column.

    `widths_max` has the largest width of columns, by title. Titles in `optional` are omitted if all their cells are empty. Cells
    under the titles in `right` are aligned to the right. `styles` has functions that return the style of a cell, and
    `head_style` is the style of the header.
    """
    titles = [title for title in rows[0] if title not in optional or any(row.get(title) for row in rows)]
    columns = {title: [title, *(" ".join(row.get(title, "").split()) for row in rows)] for title in titles}
    sizes, gap = _sizes(columns, width, widths_max or {}, folded)
    last = titles[-1]
    lines = []
    for number in range(len(rows) + 1):
        texts = {title: column[number] for title, column in columns.items()}
        cells = {title: fold(texts[title], sizes[title], lines_max if title == last else None) for title in sizes}
        used = {title: style(texts[title]) for title, style in (styles or {}).items() if title in texts and number > 0}
        for at in range(max(map(len, cells.values()))):
            line = ""
            for title, parts in cells.items():
                text = parts[at] if at < len(parts) else ""
                space = " " * (sizes[title] - cell_width(text))
                text = painted(text, used.get(title, ""))
                line += (space + text if title in right else text + space) + gap
            lines.append(line.rstrip())
        if last not in sizes and width is not None and texts[last]:
            below = fold(texts[last], max(1, width - len(INDENT)), lines_max)
            lines += [INDENT + painted(text, used.get(last, "")) for text in below]
        if number == 0:
            lines = [painted(line, head_style) for line in lines]
    return lines


def _sizes(
    columns: Mapping[str, Sequence[str]], width: int | None, widths_max: Mapping[str, int], folded: Sequence[str]
) -> tuple[dict[str, int], str]:
    """Return the width of each column, and the gap between columns.

    The last column is missing if its cells must be on lines of their own.
    """
    sizes = {title: max(map(cell_width, column)) for title, column in columns.items()}
    if width is None:
        return sizes, GAP
    sizes |= {title: max(cell_width(title), min(sizes[title], widths_max[title])) for title in sizes if title in widths_max}
    last = next(reversed(sizes))
    least = {title: FOLDED_MIN for title in sizes if title in folded}
    for gap in (GAP, NARROW_GAP) if sizes[last] < LAST_MIN else (GAP,):
        narrowed = dict(sizes)
        if _narrow(narrowed, width, {**least, last: LAST_MIN}, gap):
            return narrowed, gap
    if len(sizes) > 1:
        del sizes[last]
        least.pop(last, None)
    if _narrow(sizes, width, least):
        return sizes, GAP
    if not _narrow(sizes, width, {}, NARROW_GAP):
        _narrow(sizes, width, dict.fromkeys(sizes, 1), NARROW_GAP)
    return sizes, NARROW_GAP


def _narrow(sizes: dict[str, int], width: int, least: Mapping[str, int], gap: str = GAP) -> bool:
    """Make columns narrower, the widest first, until a line fits. Return whether it fits.

    `least` has the smallest width of columns by title. No column becomes narrower than its title.
    """
    over = sum(sizes.values()) + len(gap) * (len(sizes) - 1) - width
    while over > 0 and (wide := [each for each in least if sizes[each] > max(least[each], cell_width(each))]):
        sizes[max(wide, key=sizes.__getitem__)] -= 1
        over -= 1
    return over <= 0
