"""The shell script that a lender runs in an allocation: it starts the pilot (`node/pilot_start.py`)."""

from __future__ import annotations

import shlex
from functools import cache
from pathlib import Path

from corral.model.lender_settings import LenderSettings
from corral.node import pilot_start
from corral.server.lenders.lender import AllocationRequest


def pilot_script(settings: LenderSettings, request: AllocationRequest, handle: str) -> str:
    """Return the script of an allocation. It contains the token, so only the account of Corral and administrators may read it.

    `handle` is a word of shell that is the lender's id of the allocation, such as $SLURM_JOB_ID.
    """
    words = ["--server", request.door, "--gpus", settings.gpus, "--needs", str(request.gpus)]
    return (
        "#!/bin/sh\n"
        f"{settings.setup}\n"
        f"folder=$(mktemp -d {shlex.quote(settings.folder)}/corral-pilot.XXXXXX) || exit 1\n"
        f"cat > \"$folder/start.py\" <<'END'\n{_program()}END\n"
        f'{shlex.quote(settings.python)} "$folder/start.py" {shlex.join(words)} --allocation "{handle}" --data "$folder" <<END\n'
        f"{request.token}\nEND\n"
        'code=$?\nrm -rf "$folder"\nexit $code\n'
    )


@cache
def _program() -> str:
    return Path(pilot_start.__file__).read_text()
