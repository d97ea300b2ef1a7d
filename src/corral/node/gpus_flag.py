"""The option `--gpus`, and the models of GPUs that it can simulate."""

from __future__ import annotations

import re

from msgspec import Struct

from corral.core.errors import Refused
from corral.model.gpu import MODELS, SIMULATED_MAX

DEFAULT_MODEL = "H100"


class GpusFlag(Struct, frozen=True):
    kind: str  # auto, none, sim
    count: int = 0
    model: str = DEFAULT_MODEL


def parse_gpus_flag(text: str) -> GpusFlag:
    """Parse the value of `--gpus`. Raises Refused if it is not valid."""
    if text in ("auto", "none"):
        return GpusFlag(text)
    match = re.fullmatch(r"sim:([0-9]{1,4})(?:x(.+))?", text)
    if match is None:
        raise Refused(f"--gpus {text} is not valid: use auto, none, sim:COUNT (sim:8) or sim:COUNTxMODEL (sim:2xH200)")
    count, model = int(match[1]), (match[2] or DEFAULT_MODEL).upper()
    if not 1 <= count <= SIMULATED_MAX:
        raise Refused(f"--gpus {text}: the number of simulated GPUs must be from 1 to {SIMULATED_MAX}")
    if model not in MODELS:
        raise Refused(f"--gpus {text}: unknown model; use one of {', '.join(MODELS)}")
    return GpusFlag("sim", count, model)
