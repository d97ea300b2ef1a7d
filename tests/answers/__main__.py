"""`python -m answers FOLDER` in tests/ makes the tables from what a run of the suite has recorded.

    CORRAL_ANSWERS=FOLDER make test
    cd tests && ../.venv/bin/python -m answers FOLDER [SERVICE…]

With `--add`, the tables keep what they have, so that a run of a few test files is enough.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from answers.completeness import gaps
from answers.decisions import differences
from answers.recorder import Record
from answers.tables import NEVER, Table, read_table, recorded_table, write_table
from corral.operations.services import SERVICES


def main(folder: str, services: list[str], add: bool) -> None:
    record = Record()
    for path in Path(folder).glob("*.json"):
        record.read(path)
    for service in services or SERVICES:
        table = recorded_table(service, record, read_table(service) if add else Table())
        write_table(service, table)
        print(f"{service}: {summary(table)}")
        for what, names in grouped(gaps(service, table, differences(service))).items():
            print(f"  {what}: {' '.join(names)}")


def grouped(found: list[str]) -> dict[str, list[str]]:
    """Join the gaps of the same error and of the same structure in one line each."""
    groups: dict[str, list[str]] = {}
    for gap in found:
        what, _, problem = gap.partition(" is ")
        kind, _, name = what.partition(" ")
        first, _, last = name.rpartition(": " if kind == "error" else ".")
        key, each = (f"{kind} {last}", first) if kind == "error" else (f"{kind} {first}", last)
        groups.setdefault(key if problem.startswith("neither") else f"{key}, is {problem}", []).append(each)
    return groups


def summary(table: Table) -> str:
    errors = Counter(file != NEVER for row in table.errors.values() for file in row.values())
    results = Counter(when != NEVER for when in table.results.values())
    return (
        f"{len(table.errors)} operations, {errors[True]} errors tested and {errors[False]} not, "
        f"{results[True]} members seen and {results[False]} not, {len(table.seconds)} second calls tested"
    )


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--add"]
    main(arguments[0], arguments[1:], "--add" in sys.argv)
