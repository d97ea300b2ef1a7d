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


def run_stack_step(tx: Tx[Any], payload: dict[str, Any]) -> None:
    """Run the step of a stack whose resource belongs to this lane."""
    from corral.services.cloudformation.stack_steps import run_lane_step  # imported with the first stack

    run_lane_step(tx, payload)


def receive_stack_result(tx: Tx[Store], payload: dict[str, Any]) -> None:
    """Continue the step of a stack that another lane has run."""
    from corral.services.cloudformation.stack_steps import receive_lane_result

    receive_lane_result(tx, payload)


RECEIVERS: dict[str, dict[str, Receiver]] = {
    "state": {"scaling requests": receive_scaling_requests, "stack step result": receive_stack_result},
    "logs": {"stack step": run_stack_step},
    "metrics": {"points": receive_points, "stack step": run_stack_step},
}
