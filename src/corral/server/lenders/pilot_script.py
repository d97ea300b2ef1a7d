"""The shell script that a lender runs in an allocation: it starts the pilot (`node/pilot.py`)."""

from __future__ import annotations

import shlex
import sys

from corral.model.lender_settings import LenderSettings
from corral.server.lenders.lender import AllocationRequest


def pilot_script(settings: LenderSettings, request: AllocationRequest) -> str:
    """Return the script of an allocation. It contains the token, so only the account of Corral and administrators may read it."""
    python = settings.python or sys.executable
    words = [python, "-m", "corral.node.pilot", "--server", request.door, "--gpus", settings.gpus]
    return (
        "#!/bin/sh\n"
        f"{settings.setup}\n"
        f"folder=$(mktemp -d {shlex.quote(settings.folder)}/corral-pilot.XXXXXX) || exit 1\n"
        f'{shlex.join(words)} --data "$folder" <<END\n{request.token}\nEND\n'
        'code=$?\nrm -rf "$folder"\nexit $code\n'
    )
