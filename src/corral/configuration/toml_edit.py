"""Changes single values of a TOML text. Comments, order, blank lines and the spelling of all other values stay as they are.

The standard library reads TOML but does not write it. Each function here tries a few edits of single lines, for example to replace
the line of a key. It parses the text after each edit with tomllib, and returns the text only if it now says exactly what was
requested. So an edit in the wrong place, for example in a multi-line string that looks like a table, is never returned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

CANDIDATES_MAX = 50  # the maximum number of lines to try that look like the key, or like the header of the table
VALUE_LINES_MAX = 200  # the maximum number of lines of one value


class UnchangeableToml(ValueError):
    """No edit of single lines makes the change. The message says why."""


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a text. Raise ValueError or RecursionError if it is not valid TOML."""
    import tomllib  # imported here, because many servers have no corral.toml, and the parser takes memory

    return tomllib.loads(text)


def set_value(text: str, table: str, key: str, value: Any) -> str:
    """Return the text with `key = value` in a table. The table is appended if it is missing."""
    document = parse_toml(text)
    if not isinstance(document.get(table, {}), dict):
        raise UnchangeableToml(f"{table} is not a table: write [{table}]")
    wanted = deepcopy(document)
    wanted.setdefault(table, {})[key] = value
    if _same(document, wanted):
        return text
    shown = format_value(value)
    edits = _replacements(text, table, key, shown) if key in document.get(table, {}) else _insertions(text, table, key, shown)
    for edited in edits:
        if _same(_parsed(edited), wanted):
            return edited
    raise UnchangeableToml(f"Corral changes only files with [{table}] on a line and one key per line below it")


def unset_value(text: str, table: str, key: str) -> str:
    """Return the text without a key of a table. If the key is missing, return the text unchanged."""
    document = parse_toml(text)
    content = document.get(table)
    if not isinstance(content, dict) or key not in content:
        return text
    empty_table = deepcopy(document)
    del empty_table[table][key]
    no_table = {name: value for name, value in empty_table.items() if value or name != table}
    for edited in _replacements(text, table, key, None):
        found = _parsed(edited)
        if _same(found, empty_table) or _same(found, no_table):
            return edited
    raise UnchangeableToml(f"Corral removes only keys that are on a line of their own below [{table}]")


def format_value(value: Any) -> str:
    """Return a text, number, truth value or list of these as TOML."""
    if isinstance(value, list):
        return f"[{', '.join(map(format_value, value))}]"
    if isinstance(value, float):
        return repr(value)
    # TOML writes texts, whole numbers, true and false as JSON does.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def key_line(text: str, table: str, key: str) -> int | None:
    """Return the number of the line with a key of a table. Return None if it is not found. Error messages show the number."""
    current, plain = "", rf"\s*{_spelled(key)}\s*[=.]"
    dotted = rf"\s*{_spelled(table)}\s*\.\s*{_spelled(key)}\s*="
    for number, line in enumerate(_lines(text), 1):
        if header := re.match(r"\s*\[+([^]]*)\]", line):
            current = re.sub(r"[\s\"']", "", header[1])
        elif current in (table, "") and re.match(plain if current else dotted, line):
            return number
    return None


def _replacements(text: str, table: str, key: str, shown: str | None) -> Iterator[str]:
    """For each line that looks like the key, yield the text with the value `shown` in this line. If `shown` is None, yield the text
    without this line.
    """
    lines = _lines(text)
    pattern = re.compile(rf"(\s*(?:{_spelled(table)}\s*\.\s*)?{_spelled(key)}\s*=\s*)(.*)", re.DOTALL)
    candidates = [(at, match) for at, line in enumerate(lines) if (match := pattern.fullmatch(line))]
    for at, match in candidates[:CANDIDATES_MAX]:
        end, comment = _end_of_value(lines, at, match[2])
        if end is not None:
            fresh = [] if shown is None else [match[1] + shown + comment]
            yield "".join((*lines[:at], *fresh, *lines[end:]))


def _end_of_value(lines: list[str], at: int, rest: str) -> tuple[int | None, str]:
    """Return the index of the line after a value, and what follows the value on its line. The index is None if no end is found."""
    for position in [*(match.start() for match in re.finditer("#", rest)), len(rest)]:
        if _parsed(f"x = {rest[:position]}") is not None:
            return at + 1, rest[len(rest[:position].rstrip()) :]
    for end in range(at + 2, min(at + VALUE_LINES_MAX, len(lines)) + 1):
        if _parsed(f"x = {rest}{''.join(lines[at + 1 : end])}") is not None:
            return end, _newline(lines[end - 1])
    return None, ""


def _insertions(text: str, table: str, key: str, shown: str) -> Iterator[str]:
    """Yield the texts to try: the key below the last key of its table, the key below the header, and a new table at the end."""
    newline = _newline(text)
    lines = _lines(text)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += newline
    header = re.compile(rf"\s*\[\s*{_spelled(table)}\s*\]\s*(#.*)?", re.DOTALL)
    headers = [at for at, line in enumerate(lines) if header.fullmatch(line)]
    for at in headers[:CANDIDATES_MAX]:
        below = [index for index in range(at + 1, len(lines)) if re.match(r"\s*\[", lines[index])]
        section = range(at, below[0] if below else len(lines))
        last = max(index for index in section if lines[index].strip() and not lines[index].lstrip().startswith("#"))
        for place in dict.fromkeys((last, at)):
            indent = re.match(r"[ \t]*", lines[place])
            assert indent is not None
            yield "".join((*lines[: place + 1], f"{indent[0]}{key} = {shown}{newline}", *lines[place + 1 :]))
    blank = [newline] if lines and lines[-1].strip() else []
    yield "".join((*lines, *blank, f"[{table}]{newline}", f"{key} = {shown}{newline}"))


def _lines(text: str) -> list[str]:
    """Return the lines with their newlines. `str.splitlines` would also split at characters that TOML allows inside a line."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _spelled(name: str) -> str:
    return rf"(?:{re.escape(name)}|\"{re.escape(name)}\"|'{re.escape(name)}')"


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return parse_toml(text)
    except (ValueError, RecursionError):
        return None


def _same(left: Any, right: Any) -> bool:
    """Compare like ==, but 1, 1.0 and True differ, and a NaN is equal to itself."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(value, right[key]) for key, value in left.items())
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right) or (left != left and right != right)
