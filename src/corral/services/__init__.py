"""What Corral serves: for each AWS service, the store it works on and a handler per operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from corral.core import Tx
from corral.services import cloudwatch, ecs, iam, logs, sqs, sts
from corral.services.caller import Caller

Operation = Callable[[Tx[Any], dict[str, Any], Caller], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Service:
    lane: str  # "state", "logs" or "metrics": whose transaction it runs in
    operations: Mapping[str, Operation]
    heavy: frozenset[str] = frozenset()  # reads that run beside the lane, on a connection that only reads


SERVICES: dict[str, Service] = {
    "cloudwatch": Service("metrics", cloudwatch.HANDLERS, heavy=cloudwatch.HEAVY),
    "ecs": Service("state", ecs.HANDLERS),
    "iam": Service("state", iam.HANDLERS),
    "logs": Service("logs", logs.HANDLERS, heavy=logs.HEAVY),
    "sqs": Service("state", sqs.HANDLERS),
    "sts": Service("state", sts.HANDLERS),
}
