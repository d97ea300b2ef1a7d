"""What a benchmark returns, and how it is shown."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LESS_IS_BETTER = frozenset({"ms", "µs", "s", "MB", "% of a core", "×"})


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: Corral's figure, the figure of a peer or a floor in the same run, and its budget."""

    what: str
    corral: float | None  # None: the row is itself a floor
    unit: str
    peer: float | None = None
    peer_name: str = ""
    budget: float | None = None
    note: str = ""
    error: str = ""

    def cells(self) -> list[str]:
        """What, Corral, floor or peer, ratio, budget, verdict, note."""
        peer = "" if self.peer is None else f"{figure(self.peer, self.unit)} ({self.peer_name})"
        ratio = f"{self.corral / self.peer:.2f}" if self.corral is not None and self.peer else ""
        sign = "<" if self.unit in LESS_IS_BETTER else "≥"
        budget = "" if self.budget is None else f"{sign} {figure(self.budget, self.unit)}"
        return [self.what, figure(self.corral, self.unit), peer, ratio, budget, self.verdict(), self.error or self.note]

    def verdict(self) -> str:
        """Met, or missed by how much; a row without a budget says nothing."""
        if self.error:
            return "failed"
        if self.budget is None or self.corral is None:
            return ""
        short = self.corral - self.budget if self.unit in LESS_IS_BETTER else self.budget - self.corral
        return "met" if short <= 0 else f"missed by {figure(short, self.unit)} ({short / self.budget:.0%})"


HEADINGS = ("what", "Corral", "compared with", "ratio", "budget", "verdict", "note")


@dataclass(frozen=True, slots=True)
class Bench:
    """What a benchmark is given: a folder on a real disk, and whether time is short."""

    folder: Path
    quick: bool = False

    def fresh(self, name: str) -> Path:
        """A new empty folder; removed with all others at the end."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full


def percentile(values: Sequence[float], percent: int) -> float:
    """The value below which `percent` of the values lie."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "| --- | --: | --: | --: | --: | --- | --- |"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row.cells()) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def figure(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    space = "" if unit in ("/s", "×") or unit.startswith("%") else " "
    return f"{value:,.{digits}f}{space}{unit}"
