"""Says whether this machine can pause runs with GPUs, for `corral doctor`.

    python -m corral.node.pause_support

It prints the reason why not, or nothing. It is a program of its own, because a call of the driver may hang.
"""

from __future__ import annotations

import sys

from corral.node.gpu_states import DriverError
from corral.node.nvidia_gpu_states import NvidiaGpuStates, ignore_cuda_variables


def why_not() -> str:
    """Return why this machine cannot pause runs with GPUs. Return an empty text if it can."""
    try:
        NvidiaGpuStates()
    except DriverError as why:
        return str(why)
    return ""


def main() -> int:
    ignore_cuda_variables()
    print(why_not())
    return 0


if __name__ == "__main__":
    sys.exit(main())
