"""Keep the GPU of this task busy, for a number of seconds or until the program is stopped.

    python3 stress.py [SECONDS]

With PyTorch and an NVIDIA GPU, it multiplies matrices. Otherwise it keeps one CPU core busy: this is the load of a simulated GPU.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

SIZE = 8192  # rows and columns of the matrices
REPORT_S = 10.0


def gpu_work() -> Callable[[], None] | None:
    """Return a function that computes on the GPU for a moment. Return None if there is no GPU or no PyTorch."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    left, right = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.float16) for _ in range(2))

    def multiply() -> None:
        for _ in range(50):
            torch.matmul(left, right)
        torch.cuda.synchronize()

    return multiply


def cpu_work() -> None:
    total = 0
    for number in range(1_000_000):
        total += number * number


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else float("inf")
    work = gpu_work()
    print("stressing", "the GPU" if work else "a CPU core, because there is no PyTorch with a GPU", flush=True)
    began_s = reported_s = time.monotonic()
    while (now_s := time.monotonic()) < began_s + seconds:
        (work or cpu_work)()
        if now_s >= reported_s + REPORT_S:
            print(f"busy for {now_s - began_s:.0f} s", flush=True)
            reported_s = now_s


if __name__ == "__main__":
    main()
