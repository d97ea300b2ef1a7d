"""How many examples a property test tries.

A test names the number for a long run. The usual run tries fewer, because each run tries others. CORRAL_EXAMPLES sets the limit to
ten times its value: `make check` sets it to 1, and a long run to 1000.
"""

from __future__ import annotations

import os

USUAL = 20
_GIVEN = os.environ.get("CORRAL_EXAMPLES")


def examples(count: int, usual: int = USUAL) -> int:
    return min(count, usual if _GIVEN is None else 10 * int(_GIVEN))
