"""Receivers of hand-overs. A hand-over is a message from one lane to another (`handovers.py`), and a receiver applies it.

A lane is the thread that writes one database. The table has the receivers by lane and by kind of hand-over.
"""

from __future__ import annotations

from typing import Any

from corral.core import Receiver, Tx
from corral.model.alarm import AlarmState, ScalingRequest
from corral.services.cloudwatch.metric_writes import receive_points
from corral.store import Store


def receive_scaling_requests(tx: Tx[Store], payload: dict[str, Any]) -> None:
    """Replace the requests of one alarm to scaling policies with the given requests. Nothing acts on the requests yet."""
    requests = [ScalingRequest(policy, AlarmState(state), *values) for policy, state, *values in payload["requests"]]
    tx.store.scaling.put(payload["alarm"], requests, payload["asked_s"])


RECEIVERS: dict[str, dict[str, Receiver]] = {
    "state": {"scaling requests": receive_scaling_requests},
    "logs": {},
    "metrics": {"points": receive_points},
}
