"""`corral check` checks the databases and the blobs of a data folder or a backup."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.printing.output import count, print_json, print_text
from corral.cli.server.backup_process import run_backup

SIGNS = {"ok": "✓", "warning": "!", "failure": "✗"}


@click.command(short_help="Check databases and objects for damage.")
@data_option
@click.option("--deep", is_flag=True, help="Also read all objects and layers, and compare their digests.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON: check, level, found, advice.")
@click.argument("backup", metavar="[BACKUP]", required=False, type=click.Path(path_type=Path, exists=True))
def check(data: DataFolder, deep: bool, as_json: bool, backup: Path | None) -> None:
    """Check the three databases. Also check that the file of every object and layer exists. Corral may run meanwhile.

    With BACKUP, check a backup: a folder or a tar file. Nothing is changed. The exit code is 1 if something is damaged.
    """
    options = ["--deep", "true"] if deep else []
    options += ["--backup", str(backup.absolute())] if backup is not None else []
    results = run_backup("check", data, *options, quiet=as_json)
    failures = sum(result["level"] == "failure" for result in results)
    if as_json:
        print_json(results)
    else:
        _print(results, failures)
    sys.exit(failures > 0)


def _print(results: list[dict[str, Any]], failures: int) -> None:
    for result in results:
        print_text(f"{SIGNS[result['level']]} {result['check']}: {result['found']}")
        if result["advice"]:
            print_text(f"  → {result['advice']}")
    warnings = sum(result["level"] == "warning" for result in results)
    print_text(f"{count(failures, 'failure')}, {count(warnings, 'warning')}")
