"""The shell script that a lender runs in an allocation: it starts the pilot (`node/pilot_start.py`)."""

from __future__ import annotations

import shlex
from functools import cache
from pathlib import Path

from corral.model.lender_settings import LenderSettings
from corral.node import pilot_start
from corral.server.lenders.lender import AllocationRequest

STARTED = "corral pilot starts: "  # then the pid of the script, which is also its process group


def pilot_script(settings: LenderSettings, request: AllocationRequest, handle: str) -> str:
    """Return the script of an allocation. It contains the token, so only the account of Corral and administrators may read it.

    `handle` is a word of shell that is the lender's id of the allocation, such as $SLURM_JOB_ID.
    """
    return (
        "#!/bin/sh\n"
        f"{settings.setup}\n"
        "trap : TERM\n"  # the pilot handles it, and this script removes the folder after that
        f"{_start(settings, request, handle)} <<END\n{request.token}\nEND\n"
        'code=$?\nrm -rf "$folder"\nexit $code\n'
    )


def held_pilot_script(settings: LenderSettings, request: AllocationRequest, handle: str) -> str:
    """Return the script of an allocation that lasts while its standard input is open (`node/hold.py`).

    The token is the first line of the input, so the script contains no secret. It prints STARTED, and at its end what was wrong.
    """
    return (
        f"echo '{STARTED}'$$\ntrap : TERM\n"
        f"{{ :\n{settings.setup}\n}} </dev/null\n"
        f'{_start(settings, request, handle)} --held true 2>"$folder/pilot.log"\n'
        'code=$?\n[ $code = 0 ] || tail -n 1 "$folder/pilot.log"\n'
        '[ $code -gt 128 ] || rm -rf "$folder"\nexit $code\n'  # the agent of a pilot that was killed may still report
    )


def _start(settings: LenderSettings, request: AllocationRequest, handle: str) -> str:
    words = ["--server", request.door, "--gpus", settings.gpus, "--needs", str(request.gpus)]
    return (
        f"folder=$(mktemp -d {shlex.quote(settings.folder)}/corral-pilot.XXXXXX) || exit 1\n"
        f"cat > \"$folder/start.py\" <<'END'\n{_program()}END\n"
        f'{shlex.quote(settings.python)} "$folder/start.py" {shlex.join(words)} --allocation "{handle}" --data "$folder"'
    )


@cache
def _program() -> str:
    return Path(pilot_start.__file__).read_text()
