"""Runs `python -m corral.backup`, which saves and restores backups, and checks data folders and backups.

In a terminal, it shows the progress.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from corral.cli.client.data_folder import DataFolder
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import format_bytes, print_progress


def run_backup(do: str, data: DataFolder, *options: str, quiet: bool) -> Any:
    """Run the process and return its result. `do` is `save`, `restore` or `check`.

    If the process fails, raise a CliError with the error message of the process. If `quiet` is True, show no progress.
    """
    command = [sys.executable, "-P", "-m", "corral.backup", "--do", do, "--data", str(data.path), *options]
    shows = not quiet and sys.stderr.isatty()
    result: Any = None
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            message = json.loads(line)
            if "result" in message:
                result = message["result"]
            elif shows:
                _show(message)
        errors = process.stderr.read()
    if shows:
        print_progress()
    if process.returncode:
        lines = errors.strip().splitlines() or [f"corral.backup ended with {process.returncode}"]
        raise CliError(lines[-1].removeprefix("corral: "))
    return result


def _show(message: dict[str, Any]) -> None:
    done, total = message["done"], message["total"]
    percent = 100 * done // total if total else 100
    print_progress(f"{message['step']}: {format_bytes(done)} of {format_bytes(total)} ({percent}%)")
