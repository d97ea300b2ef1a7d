"""The limits of requests per second: a token bucket for each user and each group that has such a limit.

A bucket holds the requests of one second, at least one. The members of a group share its bucket. Callers without such a limit pass
without a bucket.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from corral.core.errors import ApiError, api_error
from corral.model.limits import SubjectLimits, shown_subject
from corral.store.limits import StoredLimits

# The service in the action → the error with which it refuses too many requests. All others: ThrottlingException.
ERRORS: dict[str, type[ApiError]] = {
    "batch": api_error("TooManyRequestsException", 429),
    "ec2": api_error("RequestLimitExceeded", 503),
    "lambda": api_error("TooManyRequestsException", 429),
    "registry": api_error("TOOMANYREQUESTS", 429),
    "s3": api_error("SlowDown", 503),
    "sns": api_error("Throttled", 429),
    "sqs": api_error("RequestThrottled"),
    **dict.fromkeys(("autoscaling", "cloudformation", "iam", "sts"), api_error("Throttling")),
}
ThrottlingException = api_error("ThrottlingException")


class _Bucket(Struct):
    left: float
    at_s: float


class RequestRates:
    """Runs on the event loop."""

    def __init__(self, stored: StoredLimits, limits_of: Callable[[str], list[SubjectLimits]]) -> None:
        self._stored = stored
        self._limits_of = limits_of
        self._buckets: dict[str, _Bucket] = {}  # the owner or group whose requests it counts → its bucket

    @property
    def are_limited(self) -> bool:
        """Whether any owner or group has a limit of requests."""
        return self._stored.limits_requests

    def take(self, owner: str, action: str, now_s: float) -> None:
        """Count a request of an owner. Raise the throttling error of the service if the owner or a group of it has sent too many.

        A refused request counts for none of them.
        """
        if not self.are_limited or not owner:
            return
        buckets = []
        for each in self._limits_of(owner):
            rate = each.limits.requests_per_second
            if rate is None:
                continue
            most = max(rate, 1.0)
            bucket = self._buckets.setdefault(each.subject, _Bucket(most, now_s))
            bucket.left = min(most, bucket.left + (now_s - bucket.at_s) * rate)
            bucket.at_s = now_s
            if bucket.left < 1:
                error = ERRORS.get(action.partition(":")[0], ThrottlingException)
                raise error(f"Rate exceeded: {shown_subject(each.subject)} may send {rate:g} requests per second. Retry later.")
            buckets.append(bucket)
        for bucket in buckets:
            bucket.left -= 1
