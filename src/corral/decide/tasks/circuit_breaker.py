"""The circuit breaker of deployments: decides which failed tasks count, and how many of them fail a deployment."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from corral.model.ecs_service import ServiceRollout

THRESHOLD_MIN, THRESHOLD_MAX = 3, 200  # bounds of the threshold type BOUNDED_PERCENT
DEFAULT_THRESHOLD: Mapping[str, Any] = {"type": "BOUNDED_PERCENT", "value": 50}
# With a circuit breaker, a task without a health check counts as healthy after this time. ECS waits 40 seconds.
SETTLED_S = 5.0


def breaker_of(configuration: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the circuit breaker of a deployment configuration. Return None if it is not enabled."""
    breaker: Mapping[str, Any] = configuration.get("deploymentCircuitBreaker") or {}
    return breaker if breaker.get("enable") else None


def failure_threshold(configuration: Mapping[str, Any], desired: int) -> int:
    """Return how many failed tasks make a deployment fail: by default half of the desired count, at least 3 and at most 200."""
    breaker = configuration.get("deploymentCircuitBreaker") or {}
    threshold = breaker.get("thresholdConfiguration") or DEFAULT_THRESHOLD
    if threshold["type"] == "COUNT":
        return max(1, int(threshold["value"]))
    share: int = ceil(desired * int(threshold["value"]) / 100)
    if threshold["type"] == "UNBOUNDED_PERCENT":
        return max(1, share)
    return min(THRESHOLD_MAX, max(THRESHOLD_MIN, share))


def count_failures(rollout: ServiceRollout, failed: int, healthy: int) -> ServiceRollout:
    """Return the rollout of a deployment with the failures that count now.

    `failed` is the number of all failed tasks of the deployment. `healthy` is the number of its healthy tasks. Unless the breaker
    has `resetOnHealthyTask: false`, the count restarts at zero when another task has become healthy after a failure that counts.
    """
    resets = (breaker_of(rollout.configuration) or {}).get("resetOnHealthyTask", True)
    forgiven = failed if resets and rollout.failures and healthy > rollout.healthy else min(rollout.forgiven, failed)
    if (forgiven, healthy, failed - forgiven) == (rollout.forgiven, rollout.healthy, rollout.failures):
        return rollout
    return rollout.but(forgiven=forgiven, healthy=healthy, failures=failed - forgiven)
