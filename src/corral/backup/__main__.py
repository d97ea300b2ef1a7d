"""The program `python -m corral.backup --do save|restore|check --data FOLDER`.

The commands `corral backup`, `corral restore` and `corral check` run this program.
"""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from corral.backup.check import check
from corral.backup.progress import ProgressLines, print_result
from corral.backup.restore import restore
from corral.backup.save import save
from corral.core.clock import WallClock
from corral.core.database import DAMAGE
from corral.core.errors import Refused
from corral.core.ids import RandomIds
from corral.process.options import parse_options

INTERRUPTED = 130  # the exit code after Ctrl-C


class BackupOptions(Struct, frozen=True, rename="kebab"):
    do: Literal["save", "restore", "check"]
    data: str
    backup: str = ""
    deep: bool = False


def main() -> None:
    options = parse_options(sys.argv[1:], BackupOptions)
    try:
        print_result(_run(options))
    except Refused as refusal:
        sys.exit(f"corral: {refusal}")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except (OSError, *DAMAGE) as error:
        sys.exit(f"corral: {_failure(options, error)}")


def _run(options: BackupOptions) -> Any:
    data, backup, progress = Path(options.data).resolve(), Path(options.backup).resolve(), ProgressLines()
    if options.do == "save":
        return save(data, backup, WallClock(), RandomIds(), progress)
    if options.do == "restore":
        return restore(backup, data, progress)
    return msgspec.to_builtins(check(backup if options.backup else data, WallClock(), progress, deep=options.deep))


def _failure(options: BackupOptions, error: Exception) -> str:
    is_full = "is full" in str(error) or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
    what = "the disk is full" if is_full else str(error)
    if options.do == "save":
        return f"the backup was not finished: {what}. An earlier backup in {options.backup} is unchanged."
    if options.do == "restore":
        return f"the restore was not finished: {what}. Run it again. Until then, Corral does not start on {options.data}."
    return f"the check was not finished: {what}."


if __name__ == "__main__":
    main()
