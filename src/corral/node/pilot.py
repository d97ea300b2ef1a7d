"""The program that a lender runs in an allocation: it joins the server as the host of one instance, and becomes its agent.

`pilot_start.py` starts it. The host offers only the GPUs of its allocation. The server accepts the token only while the lender says
that the allocation runs, so the pilot tries again for a while.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from msgspec import Struct

from corral.core.clock import WallClock
from corral.core.errors import Refused
from corral.model.allocation import NOT_YET, TOKEN_S
from corral.node.fingerprint import fingerprint
from corral.node.gpus import detect
from corral.node.joined_host import Token, join
from corral.process.control_characters import escape_controls
from corral.process.options import parse_options

AGAIN_S = 0.5


class PilotOptions(Struct, frozen=True, rename="kebab"):
    data: str
    server: str
    gpus: str
    needs: int = 0  # how many GPUs the instance has
    allocation: str = ""  # the lender's id of this allocation


def main(arguments: list[str], token: str) -> None:
    """Join, and become the agent. Raise Refused if this allocation does not have the GPUs of its instance."""
    options = parse_options(arguments, PilotOptions)
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    _check_gpus(options, given)
    _join(options, Token(token))
    # Containers would be children of an engine outside the allocation, and would outlive it: so all tasks are processes.
    words = [sys.executable, "-P", "-m", "corral.node", "--data", options.data, "--runtime", "process"]
    words += ["--gpus", options.gpus, "--only-gpus", given] if given else ["--gpus", "none"]
    os.execv(words[0], words)


def _check_gpus(options: PilotOptions, given: str) -> None:
    if not given and options.needs:
        raise Refused(
            "CUDA_VISIBLE_DEVICES is not set, so the GPUs of this allocation are not known, and none is offered. For Slurm, "
            "gres.conf must name the device files of the GPUs"
        )
    found = len(detect(options.gpus, "", given).devices()) if given else 0
    if found < options.needs:
        raise Refused(f"the instance has {options.needs} GPUs, and this allocation has {found}: CUDA_VISIBLE_DEVICES is {given}")


def _join(options: PilotOptions, token: Token) -> None:
    until_s, machine = time.monotonic() + TOKEN_S, fingerprint()
    while True:
        try:
            join(Path(options.data), options.server, token, "pilot", WallClock().now_s, machine, options.allocation)
            return
        except (Refused, OSError) as why:
            is_final = isinstance(why, Refused) and NOT_YET not in str(why)
            if is_final or time.monotonic() > until_s:
                sys.exit(escape_controls(f"corral pilot: {why}"))
            time.sleep(AGAIN_S)
