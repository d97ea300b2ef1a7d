"""What Corral serves: for each AWS service, the store it works on and a handler per operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from corral.core import Tx
from corral.model.blob import Intake
from corral.services import cloudwatch, ecs, iam, logs, s3, sqs, ssm, sts
from corral.services.caller import Caller

Operation = Callable[[Tx[Any], dict[str, Any], Caller], dict[str, Any]]
Split = Callable[[dict[str, Any]], list[dict[str, Any]]]
Admit = Callable[[Tx[Any], dict[str, Any], Caller], Intake | None]


@dataclass(frozen=True, slots=True)
class Service:
    lane: str  # "state", "logs" or "metrics": whose transaction it runs in
    operations: Mapping[str, Operation]
    heavy: frozenset[str] = frozenset()  # reads that run beside the lane, on a connection that only reads
    quick: frozenset[str] = frozenset()  # reads of a few rows that need not wait for anybody (S3's alone)
    admit: Mapping[str, Admit] = field(default_factory=dict)  # whose bytes become a blob: asked first; None: there are none
    pieces: Mapping[str, Split] = field(default_factory=dict)  # too much for one command: what to ask one after the other


SERVICES: dict[str, Service] = {
    "cloudwatch": Service("metrics", cloudwatch.HANDLERS, heavy=cloudwatch.HEAVY),
    "ecs": Service("state", ecs.HANDLERS),
    "iam": Service("state", iam.HANDLERS),
    "logs": Service("logs", logs.HANDLERS, heavy=logs.HEAVY),
    "s3": Service("state", s3.HANDLERS, heavy=s3.HEAVY, quick=s3.QUICK, admit=s3.ADMIT, pieces=s3.PIECES),
    "sqs": Service("state", sqs.HANDLERS),
    "ssm": Service("state", ssm.HANDLERS),
    "sts": Service("state", sts.HANDLERS),
}
