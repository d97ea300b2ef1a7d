"""What alarms ask of scaling policies arrives in the state. Nothing acts on it yet."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.model.alarm import AlarmState, ScalingRequest
from corral.store import Store


def receive_requests(tx: Tx[Store], said: dict[str, Any]) -> None:
    """All that one alarm asks for now: what it asked for before is void (services/cloudwatch/alarm_actions.py)."""
    requests = [ScalingRequest(policy, AlarmState(state), *values) for policy, state, *values in said["requests"]]
    tx.store.scaling.put(said["alarm"], requests, said["asked_s"])
