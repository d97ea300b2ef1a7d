"""How many examples a property test tries. `make check` sets CORRAL_EXAMPLES to 1, so that it tries few."""

from __future__ import annotations

import os

LARGEST = 10 * int(os.environ.get("CORRAL_EXAMPLES", "1000"))


def examples(count: int) -> int:
    return min(count, LARGEST)
