"""Receivers of hand-overs, by lane and kind: the functions that apply what another lane has caused (handovers.py)."""

from __future__ import annotations

from typing import Any

from corral.core import Receiver, Tx
from corral.model.alarm import AlarmState, ScalingRequest
from corral.services.cloudwatch.metric_writes import receive_points
from corral.store import Store


def receive_scaling_requests(tx: Tx[Store], payload: dict[str, Any]) -> None:
    """Store all requests that one alarm makes to scaling policies now; its earlier ones are void. Nothing acts on them yet."""
    requests = [ScalingRequest(policy, AlarmState(state), *values) for policy, state, *values in payload["requests"]]
    tx.store.scaling.put(payload["alarm"], requests, payload["asked_s"])


RECEIVERS: dict[str, dict[str, Receiver]] = {
    "state": {"scaling requests": receive_scaling_requests},
    "logs": {},
    "metrics": {"points": receive_points},
}
