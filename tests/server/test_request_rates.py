"""Limits of requests per second: the token bucket of an owner, and the error of each service."""

from __future__ import annotations

import pytest

from corral.core.errors import ApiError
from corral.model.limits import Limits, SubjectLimits
from corral.server.request_rates import RequestRates
from corral.store import Store

ANN = "user/ann"


def rates(limit: float | None) -> RequestRates:
    store = Store(None)
    store.limits.put(ANN, Limits(requests_per_second=limit, gpus=1))
    return RequestRates(store.limits, lambda owner: [SubjectLimits(each, limits) for each, limits in store.limits.of.items()])


def passed(of: RequestRates, owner: str, times: list[float], action: str = "ecs:ListTasks") -> int:
    """Send requests at these times. Return how many of them pass."""
    count = 0
    for at_s in times:
        try:
            of.take(owner, action, at_s)
            count += 1
        except ApiError:
            pass
    return count


@pytest.mark.parametrize(
    ("limit", "times", "expected"),
    [
        (10.0, [0.0] * 50, 10),  # a burst has the requests of a second
        (10.0, [0.0] * 50 + [0.5] * 50, 15),
        (10.0, [0.0] * 50 + [60.0] * 50, 20),  # a pause saves no more than a second
        (0.5, [0.0, 1.0, 2.0, 3.0, 4.0], 3),
        (None, [0.0] * 50, 50),
    ],
)
def test_a_bucket_holds_the_requests_of_a_second(limit: float | None, times: list[float], expected: int) -> None:
    assert passed(rates(limit), ANN, times) == expected


def test_the_members_of_a_group_share_its_rate() -> None:
    store = Store(None)
    store.limits.put("group/lab", Limits(requests_per_second=10.0))
    store.limits.put(ANN, Limits(requests_per_second=4.0))
    limits = store.limits.of
    of = RequestRates(
        store.limits, lambda owner: [SubjectLimits(each, limits[each]) for each in (owner, "group/lab") if each in limits]
    )
    assert passed(of, ANN, [0.0] * 50) == 4
    assert passed(of, "user/bob", [0.0] * 50) == 6, "what ann has sent counts, what was refused does not"
    assert passed(of, "user/carol", [0.5] * 50) == 5


@pytest.mark.parametrize(
    ("action", "code"),
    [
        ("s3:GetObject", "SlowDown"),
        ("ecs:ListTasks", "ThrottlingException"),
        ("sns:Publish", "Throttled"),
        ("iam:GetUser", "Throttling"),
    ],
)
def test_each_service_has_its_error(action: str, code: str) -> None:
    of = rates(1.0)
    of.take(ANN, action, 0.0)
    with pytest.raises(ApiError, match="user:ann may send 1 requests per second") as refused:
        of.take(ANN, action, 0.0)
    assert refused.value.code == code
