"""When the next heartbeat of a host is due.

Hosts whose clocks agree report at the same quarters of a second, as far as their own times allow. Then the server handles the
messages of many hosts together. To wake it for each one would cost several times as much.
"""

from __future__ import annotations

import time

from corral.core.clock import Clock
from corral.model.agent_protocol import HEARTBEAT_S, IDLE_HEARTBEAT_S

TOGETHER_S = 0.25


def heartbeat_at(reported_at: float, clock: Clock, *, has_runs: bool) -> float:
    """Return the monotonic time of the next heartbeat: up to TOGETHER_S earlier than needed."""
    latest_at = reported_at + (HEARTBEAT_S if has_runs else IDLE_HEARTBEAT_S)
    return latest_at - (clock.wall_s() + latest_at - time.monotonic()) % TOGETHER_S
