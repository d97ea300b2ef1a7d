"""Scaling requests of alarms, as the state lane receives them."""

from __future__ import annotations

from random import Random
from typing import Any

from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.model.alarm import AlarmState, ScalingRequest
from corral.model.settings import Settings
from corral.reconcile.receivers import receive_scaling_requests
from corral.store import Store
from corral.store.scaling_requests import target_of_policy

POLICY, OTHER = "arn:aws:autoscaling:policy/one", "arn:aws:autoscaling:policy/other"


def test_the_last_request_of_each_alarm_counts() -> None:
    tx = Tx(Store(None), 0.0, SeededIds(Random(0)), Settings())

    def say(alarm: str, *requests: list[Any]) -> None:
        receive_scaling_requests(tx, {"alarm": alarm, "policies": [POLICY], "requests": list(requests), "asked_s": 1.0})

    def of_policy(policy: str) -> dict[str, ScalingRequest]:
        found = tx.store.scaling.of_target(*target_of_policy(policy))
        return {alarm: request for alarm, request, _ in found if request.policy == policy}

    say("a", [POLICY, "ALARM", None, 5.0], [OTHER, "ALARM", None, 5.0])
    say("b", [POLICY, "OK", 0.0, None])
    a, b = ScalingRequest(POLICY, AlarmState.ALARM, None, 5.0), ScalingRequest(POLICY, AlarmState.OK, 0.0, None)
    assert of_policy(POLICY) == {"a": a, "b": b}
    say("a", [POLICY, "ALARM", 4.0, 7.0])
    assert of_policy(POLICY) == {"a": ScalingRequest(POLICY, AlarmState.ALARM, 4.0, 7.0), "b": b}
    assert of_policy(OTHER) == {}
    say("a")
    assert of_policy(POLICY) == {"b": b}


def test_the_activities_of_a_target_are_found_by_an_index() -> None:
    """The newest activity of a target is read at each change of its desired count."""
    store = Store(None)
    plans: list[str] = []
    store.connection.set_trace_callback(plans.append)
    store.scaling.activities("r", "service/c/s", since_s=0.0, limit=1)
    store.scaling.activities("r", None, since_s=0.0, before=5, limit=1)
    store.connection.set_trace_callback(None)
    of_target, of_region = ([row[3] for row in store.execute(f"EXPLAIN QUERY PLAN {sql}")] for sql in plans[-2:])
    assert of_target == ["SEARCH target_activity USING INDEX target_activity_resource (region=? AND resource=? AND number<?)"]
    assert of_region == ["SEARCH target_activity USING INTEGER PRIMARY KEY (rowid<?)"]
