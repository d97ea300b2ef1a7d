"""`bench/compare.py BASE_DIR [NAME…] [--pairs 5] [--minutes N] [--quick]`: compare two checkouts, row by row, on this machine.

The benchmarks run alternately for the two checkouts, so that both meet the same load. Both sides run the benchmarks of this
checkout; only those that use Corral's internals run as each checkout has them. A row is worse beyond its spread if the median of
each side lies outside the range of the other side, in the wrong direction. A row in "×" is the quotient of two other rows, such as
the cost on 10,000 hosts and the cost on 100. It is shown, and has a budget of its own, but those two rows are compared, not it: it
also grows if both become better and the second one more so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table
from rows import LESS_IS_BETTER, figure
from run import NAMES

HERE = Path(__file__).resolve().parent.parent
USE_INTERNALS = frozenset({"fleet", "job_queue", "placing", "queue_fleet", "service_scaling", "shares", "starting"})
QUOTIENT = "×"
PAIRS_MIN = 3  # fewer say nothing of the spread
BAD = ("worse", "missing")
HEADINGS = ("what", "base, median", "base, range", "this, median", "this, range", "ratio", "verdict")


@dataclass(slots=True)
class Compared:
    """One row: Corral's figures in both checkouts, in the order of the pairs."""

    unit: str
    base: list[float] = field(default_factory=list)
    this: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return median(self.this) / median(self.base) if median(self.base) else float("nan")

    def verdict(self) -> str:
        if not self.base or not self.this:
            return "missing" if self.base else "new"
        if min(len(self.base), len(self.this)) < PAIRS_MIN:
            return f"needs {PAIRS_MIN} pairs"
        if self.unit == QUOTIENT:
            return "quotient"
        if _is_beyond(self.this, self.base) and _is_beyond(self.base, self.this):
            is_less = median(self.this) < median(self.base)
            return "better" if is_less == (self.unit in LESS_IS_BETTER) else "worse"
        return "same"

    def cells(self) -> list[str]:
        ratio = f"{self.ratio:.3f}" if self.base and self.this else ""
        return [*_summary(self.base, self.unit), *_summary(self.this, self.unit), ratio, self.verdict()]


def main() -> int:
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else 200)
    rows: dict[str, Compared] = {}
    errors: list[str] = []
    began, longest_s = time.monotonic(), 0.0
    for pair in range(options.pairs):
        pair_began = time.monotonic()
        if options.minutes and pair_began + longest_s > began + options.minutes * 60:
            console.print(f"[dim]no time for pair {pair + 1}[/dim]")
            break
        for name in options.names:
            sides = ((options.base, "base"), (HERE, "this"))
            for checkout, side in sides if pair % 2 == 0 else sides[::-1]:
                console.print(f"[dim]pair {pair + 1} of {options.pairs}, {name}, {side}[/dim]")
                _add(rows, errors, side, _run(name, checkout, quick=options.quick))
        longest_s = max(longest_s, time.monotonic() - pair_began)
    table = Table(*HEADINGS, header_style="bold")
    for what, row in rows.items():
        verdict = row.verdict()
        table.add_row(what, *row.cells(), style="red" if verdict in BAD else "green" if verdict == "better" else None)
    console.print(table)
    for error in errors:
        console.print(error, style="red", markup=False)
    bad = [what for what, row in rows.items() if row.verdict() in BAD]
    if options.pairs >= PAIRS_MIN:
        failed = f"; {len(errors)} runs failed" if errors else ""
        console.print(
            f"{len(bad)} of {len(rows)} rows are worse beyond their spread{failed}" + "".join(f"\n  {what}" for what in bad)
        )
    return 1 if bad or errors else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/compare.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("base", type=Path, metavar="BASE_DIR", help="the checkout to compare with")
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="NAME", help=f"which ones: {', '.join(NAMES)}")
    parser.add_argument("--pairs", type=int, default=5, help="how often each checkout is measured (default 5)")
    parser.add_argument("--minutes", type=float, metavar="N", help="begin no pair that would probably end after this time")
    parser.add_argument("--quick", action="store_true", help="shorter runs")
    options = parser.parse_args()
    options.base = options.base.resolve()
    if not (options.base / "src" / "corral").is_dir():
        parser.error(f"{options.base} is not a checkout of Corral: it has no src/corral")
    options.names = [name for name in NAMES if not options.names or name in options.names]
    return options


def _run(name: str, checkout: Path, *, quick: bool) -> list[dict[str, object]]:
    """The rows of one benchmark with the source of one checkout."""
    with tempfile.TemporaryDirectory(prefix="corral-compare-") as folder:
        found = Path(folder) / "rows.json"
        command = [sys.executable, str(HERE / "bench" / "run.py"), name, "--json", str(found), *(["--quick"] if quick else [])]
        if name in USE_INTERNALS:
            command += ["--modules", str(checkout / "bench")]
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
        done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if not found.exists():
            return [{"what": name, "error": done.stderr[-500:] or f"run.py ended with {done.returncode}"}]
        rows: list[dict[str, object]] = json.loads(found.read_text())
        return rows


def _add(rows: dict[str, Compared], errors: list[str], side: str, found: Sequence[dict[str, object]]) -> None:
    """Rows that share a name show the same figure with different peers: it counts once."""
    seen = set()
    for row in found:
        what, measured = str(row["what"]), row.get("corral")
        if row.get("error"):
            errors.append(f"{side}: {what}: {row['error']}")
        elif isinstance(measured, int | float) and what not in seen:
            seen.add(what)
            compared = rows.setdefault(what, Compared(str(row["unit"])))
            (compared.base if side == "base" else compared.this).append(measured)


def _is_beyond(values: Sequence[float], others: Sequence[float]) -> bool:
    return not min(others) <= median(values) <= max(others)


def _summary(values: Sequence[float], unit: str) -> list[str]:
    if not values:
        return ["", ""]
    return [figure(median(values), unit), f"{figure(min(values), unit)} … {figure(max(values), unit)}"]


if __name__ == "__main__":
    sys.exit(main())
