"""`corral restore` creates a data folder from a backup."""

from __future__ import annotations

from pathlib import Path

import click

from corral.cli.client import data_folder
from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.printing.output import count, format_bytes, print_json, print_text
from corral.cli.server.backup_process import run_backup


@click.command(short_help="Restore a backup into a new data folder.")
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
@click.argument("backup", metavar="FOLDER|FILE.tar", type=click.Path(path_type=Path, exists=True))
def restore(data: DataFolder, as_json: bool, backup: Path) -> None:
    """Restore a backup. The data folder must be new or empty.

    Tasks that were running during the backup are shown as stopped, except tasks whose containers still run on this machine.
    """
    made = run_backup("restore", data, "--backup", str(backup.absolute()), quiet=as_json)
    if as_json:
        print_json(made)
        return
    print_text(f"Restored {made['backup']} to {made['data']}: {count(made['blobs'], 'blob')}, {format_bytes(made['blobBytes'])}.")
    print_text(f"Start it with `{data_folder.start_command(data)}`.")
