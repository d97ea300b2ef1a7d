"""The circuit breaker of deployments: its threshold, and which failures count."""

from __future__ import annotations

import pytest

from corral.decide.tasks.circuit_breaker import breaker_of, count_failures, failure_threshold
from corral.model.ecs_service import ServiceRollout


def configuration(**breaker):
    return {"deploymentCircuitBreaker": {"enable": True, "rollback": True, **breaker}}


@pytest.mark.parametrize(("desired", "threshold"), [(0, 3), (1, 3), (6, 3), (7, 4), (25, 13), (399, 200), (1000, 200)])
def test_the_threshold_is_half_of_the_desired_count_between_3_and_200(desired, threshold):
    assert failure_threshold(configuration(), desired) == threshold


@pytest.mark.parametrize(
    ("kind", "value", "desired", "threshold"),
    [
        ("COUNT", 1, 50, 1),
        ("UNBOUNDED_PERCENT", 10, 5, 1),
        ("UNBOUNDED_PERCENT", 100, 500, 500),
        ("BOUNDED_PERCENT", 100, 2, 3),
        ("BOUNDED_PERCENT", 100, 500, 200),
    ],
)
def test_configured_thresholds(kind, value, desired, threshold):
    assert failure_threshold(configuration(thresholdConfiguration={"type": kind, "value": value}), desired) == threshold


def test_a_breaker_must_be_enabled():
    assert breaker_of({}) is None and breaker_of(configuration(enable=False)) is None
    assert breaker_of(configuration()) is not None


def rollout(**breaker):
    return ServiceRollout("r", "1", (), 0.0, 0.0, configuration(**breaker), {})


def test_the_count_restarts_when_another_task_is_healthy():
    first = count_failures(rollout(), failed=2, healthy=0)
    second = count_failures(first, failed=3, healthy=1)
    third = count_failures(second, failed=5, healthy=1)
    assert [each.failures for each in (first, second, third)] == [2, 0, 2]
    assert count_failures(third, failed=6, healthy=0).failures == 3, "a healthy task that ends forgives nothing"


def test_a_task_that_was_healthy_before_the_failure_forgives_nothing():
    assert count_failures(rollout(), failed=2, healthy=1).failures == 2


def test_the_count_can_continue():
    first = count_failures(rollout(resetOnHealthyTask=False), failed=2, healthy=0)
    assert count_failures(first, failed=3, healthy=1).failures == 3


def test_rows_of_failed_tasks_that_were_deleted_do_not_hide_new_failures():
    forgiven = count_failures(count_failures(rollout(), failed=4, healthy=0), failed=5, healthy=1)
    fewer = count_failures(forgiven, failed=1, healthy=1)
    assert count_failures(fewer, failed=3, healthy=1).failures == 2


def test_an_unchanged_rollout_is_the_same_object():
    first = count_failures(rollout(), failed=1, healthy=1)
    assert count_failures(first, failed=1, healthy=1) is first
