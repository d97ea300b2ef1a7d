"""`corral backup` copies the data folder. Corral may run meanwhile."""

from __future__ import annotations

from pathlib import Path

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.printing.output import count, format_bytes, print_json, print_text
from corral.cli.server.backup_process import run_backup


@click.command(short_help="Back up the data folder.")
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
@click.argument("backup", metavar="FOLDER|FILE.tar", type=click.Path(path_type=Path))
def backup(data: DataFolder, as_json: bool, backup: Path) -> None:
    """Back up databases, objects, images and keys into a folder, or into one tar file. Corral may run meanwhile.

    The next backup into the same folder adds only new objects and layers. The backup contains the root keys, so protect it like the
    data folder.
    """
    made = run_backup("save", data, "--backup", str(backup.absolute()), quiet=as_json)
    if as_json:
        print_json(made)
        return
    new = made["linked"] + made["copied"]
    how = f" ({new} new, {made['linked']} of them hard links)" if made["linked"] else f" ({new} new)"
    print_text(
        f"Backed up {made['data']} to {made['backup']}: {count(made['blobs'], 'blob')}{how}, {format_bytes(made['blobBytes'])}."
    )
