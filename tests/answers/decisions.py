"""The differences from AWS that docs/services.md lists, each with its reason.

A section of a service has a table under `### Differences`, and the section `Differences of all services` has one for all. The first
cell of a row names what AWS documents:

    errors `CODE` …                      those that no operation answers
    errors `CODE` … of `OPERATION` …     those that these operations do not answer
    errors `CODE` … of other operations  those that only some operations answer
    members `STRUCTURE.MEMBER` …         members of results that are never there, or always empty
    second calls of `OPERATION` …        what another call with the same request does differently

Names may contain `*`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

PAGE = Path(__file__).parent.parent.parent / "docs" / "services.md"
ALL = "Differences of all services"
_ROW = re.compile(r"^\| (errors|members|second calls of) (.*?) \| (.*) \|$")


@dataclass(frozen=True)
class Difference:
    kind: str
    names: tuple[str, ...]
    operations: tuple[str, ...]
    reason: str

    def has(self, kind: str, name: str, operation: str = "") -> bool:
        if kind != self.kind or not any(fnmatchcase(name, pattern) for pattern in self.names):
            return False
        return not self.operations or any(fnmatchcase(operation, pattern) for pattern in self.operations)

    def excludes(self, name: str, operation: str = "") -> bool:
        """Whether the page says without a wildcard that this never occurs."""
        return name in self.names and (not self.operations or operation in self.operations)


@dataclass
class Differences:
    """Those of one service and those of all. `used` are the ones that matched something."""

    listed: list[Difference]
    used: set[Difference] = field(default_factory=set)

    def find(self, kind: str, name: str, operation: str = "") -> Difference | None:
        for each in self.listed:
            if each.has(kind, name, operation):
                self.used.add(each)
                return each
        return None


@cache
def sections() -> dict[str, list[Difference]]:
    found: dict[str, list[Difference]] = {}
    for part in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        title, _, text = part.partition("\n")
        if title != ALL:
            text = text.partition("\n### Differences\n")[2]
        rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
        found[title] = [_read(line) for line in rows[1:]]
    return found


def _read(line: str) -> Difference:
    row = _ROW.match(line)
    assert row, f"docs/services.md: this row names no difference: {line}"
    kind, what, reason = row.groups()
    names, _, operations = what.partition(" of ") if kind == "errors" else (what, "", "")
    return Difference(kind.split()[0], _spans(names), ("*",) if operations == "other operations" else _spans(operations), reason)


def _spans(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", text))


def differences(service: str) -> Differences:
    return Differences([*sections().get(service, []), *sections()[ALL]])
