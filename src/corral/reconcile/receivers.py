"""Receivers of hand-overs. A hand-over is a message from one lane to another (`core/handovers.py`), and a receiver applies it.

The table RECEIVERS has the receivers by lane and by kind of hand-over.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from msgspec.structs import replace

from corral.core.errors import ApiError
from corral.core.transactions import Receiver, Tx
from corral.model.alarm import AlarmState, ScalingRequest
from corral.model.group import scaling_key
from corral.services.cloudwatch.metric_writes import receive_points
from corral.services.logs.ingestion import ingest_own
from corral.store import Store
from corral.telemetry import LogStore


def receive_scaling_requests(tx: Tx[Store], payload: dict[str, Any]) -> None:
    """Replace the stored requests of one alarm to scaling policies, and the stored policies that the actions of this alarm name."""
    requests = [ScalingRequest(policy, AlarmState(state), *values) for policy, state, *values in payload["requests"]]
    requests = [
        replace(each, measured_s=tx.steps.steady_s(each.measured_s)) if each.measured_s is not None else each for each in requests
    ]
    tx.store.scaling.set_policies(payload["alarm"], payload["policies"])
    for region, target in sorted(tx.store.scaling.put(payload["alarm"], requests, tx.steps.steady_s(payload["asked_s"]))):
        tx.mark(scaling_key(region, target))


def receive_notification(tx: Tx[Store], payload: dict[str, Any]) -> None:
    """Publish the message of an alarm to an SNS topic, and send the result to the history of the alarm."""
    from corral.services.sns.publish import Publisher, deliver  # imported here, so that the server starts faster

    error, publisher = "", Publisher("cloudwatch.amazonaws.com", payload["alarm"], for_owner=True)
    try:
        deliver(tx, payload["topic"], payload["message"], publisher=publisher, subject=payload["subject"])
    except ApiError as refusal:
        error = refusal.message
    tx.hand_over("metrics", "action results", {"alarm": payload["alarm"], "action": payload["topic"], "error": error})


def receive_watched_alarms(tx: Tx[Store], payload: dict[str, Any]) -> None:
    """Store the states of the alarms that the deployment of a service watches."""
    from corral.services.ecs.rollouts import receive_watched_alarms  # imported with the first deployment that has alarms

    receive_watched_alarms(tx, payload)


def receive_passing(tx: Tx[Any], payload: dict[str, Any]) -> None:
    """Pass what a removed user has left in this lane to another owner."""
    from corral.reconcile import passing  # imported with the first removed user

    passing.receive_passing(tx, payload)


def receive_passed(tx: Tx[Store], payload: dict[str, Any]) -> None:
    from corral.reconcile import passing

    passing.receive_passed(tx, payload)


def _once_needed(module: str, name: str) -> Receiver:
    """Return a receiver that imports its module on the first call."""

    def receive(tx: Tx[Any], payload: Any) -> None:
        getattr(import_module(f"corral.services.cloudwatch.{module}"), name)(tx, payload)

    return receive


def run_stack_step(tx: Tx[Any], payload: dict[str, Any]) -> None:
    """Run a step of a stack in this lane, because the database of this lane has the resource of the step."""
    from corral.services.cloudformation.step_execution import run_lane_step  # imported with the first stack

    run_lane_step(tx, payload)


def receive_stack_result(tx: Tx[Store], payload: dict[str, Any]) -> None:
    """Continue a step of a stack after another lane has run it."""
    from corral.services.cloudformation.step_execution import receive_lane_result

    receive_lane_result(tx, payload)


def receive_run_notice(tx: Tx[LogStore], payload: dict[str, str]) -> None:
    """Write a message from Corral itself, not from the program, to the log stream of a run, if the run has one."""
    known = tx.store.shipment(payload["run"])
    stream = tx.store.stream_by_id(known[0]) if known is not None and known[0] is not None else None
    if stream is not None:
        ingest_own(tx, stream, [(round(tx.wall_s * 1000), payload["text"])])


RECEIVERS: dict[str, dict[str, Receiver]] = {
    "state": {
        "scaling requests": receive_scaling_requests,
        "notifications": receive_notification,
        "watched alarms": receive_watched_alarms,
        "stack step result": receive_stack_result,
        "passing": receive_passed,
    },
    "logs": {"stack step": run_stack_step, "run notice": receive_run_notice, "passing": receive_passing},
    "metrics": {
        "points": receive_points,
        "action results": _once_needed("alarm_actions", "receive_action_results"),
        "alarm watches": _once_needed("alarm_state", "receive_alarm_watches"),
        "tracking alarms": _once_needed("alarms", "receive_tracking_alarms"),
        "stack step": run_stack_step,
        "passing": receive_passing,
    },
}
