"""`bench/run.py [NAME…] [--quick] [--json FILE]`: run the benchmarks, print their table, and write it to bench/results.md."""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import machine
from rich.console import Console
from rich.table import Table
from rows import HEADINGS, Bench, Row, markdown

# Objects come before what deletes thousands of files: for minutes after that ext4 takes long to make new ones.
NAMES = (
    "launches",
    "placing",
    "shares",
    "job_queue",
    "objects",
    "tls",
    "registry",
    "latency",
    "commands",
    "throughput",
    "jobs",
    "calls",
    "authorization",
    "polling",
    "operations",
    "starting",
    "fleet",
    "queue_fleet",
    "service_scaling",
    "stacks",
    "many_stacks",
    "logs",
    "filtering",
    "queues",
    "metrics",
    "containers",
)
RESULTS = Path(__file__).with_name("results.md")


def main() -> int:
    options = _options()
    if options.modules is not None:
        sys.path.insert(0, str(options.modules))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    console, began = Console(width=None if sys.stdout.isatty() else 200), time.monotonic()
    bench = Bench(Path(tempfile.mkdtemp(prefix="corral-bench-", dir=machine.real_disk())), options.quick)
    try:
        about = machine.described(bench.folder)
        rows = [row for name in options.names for row in _rows_of(name, bench, console)]
    finally:
        shutil.rmtree(bench.folder, ignore_errors=True)
    about["took"] = f"{time.monotonic() - began:.0f} s{', shortened by --quick' if bench.quick else ''}"
    console.print(table_of(rows))
    for name, value in about.items():
        console.print(f"[dim]{name}: {value}[/dim]", highlight=False)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows]))
    if options.write or (len(options.names) == len(NAMES) and not bench.quick):
        RESULTS.write_text(_page(rows, about))
    return 1 if any(row.error for row in rows) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/run.py", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="NAME", help=f"which ones: {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="shorter runs: less than a minute in all")
    parser.add_argument("--write", action="store_true", help="write results.md though the run was short or not of all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to a file, as JSON")
    parser.add_argument(
        "--modules", type=Path, metavar="DIR", help="import the benchmarks from the bench folder of another checkout"
    )
    options = parser.parse_args()
    options.names = [name for name in NAMES if not options.names or name in options.names]
    return options


def _rows_of(name: str, bench: Bench, console: Console) -> Sequence[Row]:
    """The rows of one benchmark; one that fails is a row that says so, and the others go on."""
    began = time.monotonic()
    console.print(f"[dim]{name}…[/dim]", end=" ")
    try:
        rows: Sequence[Row] = importlib.import_module(name).rows(bench)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        rows = [Row(name, None, "", error=f"{type(error).__name__}: {str(error)[:300].replace(str(bench.folder), '…')}")]
    console.print(f"[dim]{time.monotonic() - began:.1f} s[/dim]")
    return rows


def table_of(rows: Sequence[Row]) -> Table:
    table = Table(*HEADINGS, header_style="bold", show_lines=False)
    for row in rows:
        style = "red" if row.error else "yellow" if row.verdict().startswith("missed") else None
        table.add_row(*row.cells(), style=style)
    return table


def _page(rows: Sequence[Row], about: dict[str, str]) -> str:
    lines = [
        "# What `make bench` measured",
        "",
        "All rows are of one run. A ratio is Corral's figure divided by the one it is compared with. Written by `bench/run.py`.",
        "",
        *[f"- {name}: {value}" for name, value in about.items()],
        "",
        markdown(rows),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
