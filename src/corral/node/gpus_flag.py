"""The option `--gpus`, and the models of GPUs that it can simulate."""

from __future__ import annotations

import re

from msgspec import Struct

from corral.core.errors import Refused

SIMULATED_MAX = 64
DEFAULT_MODEL = "H100"

# Model → the name and the memory in MiB that NVML reports.
MODELS: dict[str, tuple[str, int]] = {
    "B200": ("NVIDIA B200", 183_359),
    "H200": ("NVIDIA H200", 143_771),
    "H100": ("NVIDIA H100 80GB HBM3", 81_559),
    "A100": ("NVIDIA A100-SXM4-40GB", 40_960),
    "A100-80GB": ("NVIDIA A100-SXM4-80GB", 81_920),
    "L40S": ("NVIDIA L40S", 46_068),
    "L4": ("NVIDIA L4", 23_034),
    "A10G": ("NVIDIA A10G", 23_028),
    "T4": ("Tesla T4", 15_360),
    "V100": ("Tesla V100-SXM2-16GB", 16_384),
    "V100-32GB": ("Tesla V100-SXM2-32GB", 32_768),
    "P100": ("Tesla P100-PCIE-16GB", 16_280),
    "M60": ("Tesla M60", 7_618),
    "K80": ("Tesla K80", 11_441),
}


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
