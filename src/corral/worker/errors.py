"""Errors of the worker, and the errors of AWS after which a request is retried."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from botocore.exceptions import (
    ClientError,
    ConnectionError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ResponseStreamingError,
)

T = TypeVar("T")
LOG = logging.getLogger("corral.worker")

TRANSIENT = (ConnectionError, HTTPClientError, IncompleteReadError, ResponseStreamingError)
TRANSIENT_CODES = {
    "InternalError",
    "InternalFailure",
    "OverLimit",
    "PriorRequestNotComplete",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
}
PAUSE_MIN_S = 0.2
PAUSE_MAX_S = 10.0


class WorkerError(Exception):
    """The worker cannot start or continue."""


def is_transient(error: BaseException) -> bool:
    """Whether the same request can succeed later, because the service is unreachable, overloaded or broken now."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status >= 500 or code_of(error) in TRANSIENT_CODES
    return isinstance(error, TRANSIENT)


def code_of(error: BaseException) -> str:
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def retried(what: str, call: Callable[[], T], stop: threading.Event, within_s: float) -> T:
    """Call a function. While its errors are transient, call it again with growing pauses, until `within_s` has passed.

    When `stop` is set, the pause ends, and the next call is the last one.
    """
    until_s = time.monotonic() + within_s
    pause_s = PAUSE_MIN_S
    while True:
        try:
            return call()
        except Exception as error:
            if not is_transient(error) or stop.is_set() or time.monotonic() + pause_s > until_s:
                raise
            LOG.warning("%s failed and is tried again in %.1f s: %s", what, pause_s, error)
        stop.wait(pause_s * random.uniform(0.5, 1.0))
        pause_s = min(pause_s * 2, PAUSE_MAX_S)


def explained(what: str, error: BaseException) -> WorkerError:
    """Return the error of a request to AWS as a WorkerError. For common errors, its text says what to do."""
    if isinstance(error, NoRegionError):
        return WorkerError(f"{what}: no region is set. Set AWS_DEFAULT_REGION.")
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return WorkerError(
            f"{what}: no credentials were found. Run the worker in a task with a role, or set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY."
        )
    if code_of(error) in ("AccessDenied", "AccessDeniedException"):
        return WorkerError(f"{what}: {error}. Allow the action in the policy of the worker's role.")
    return WorkerError(f"{what}: {error}")
