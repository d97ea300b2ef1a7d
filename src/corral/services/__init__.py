"""What Corral serves: for each AWS service, the store it works on and a handler per operation.

A service is a module with a table `HANDLERS` and, if it needs them, `HEAVY`, `QUICK`, `ADMIT`, `PREPARE` and `PIECES`. It is
imported when it is first called: nobody uses all of them, and everybody would wait for all of them at each start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from corral.core import Tx
from corral.model.blob import Admission
from corral.services.caller import Caller

Operation = Callable[[Tx[Any], dict[str, Any], Caller], dict[str, Any]]
Split = Callable[[dict[str, Any]], list[dict[str, Any]]]
Prepare = Callable[[dict[str, Any]], dict[str, Any]]  # parameters → parameters
Admit = Callable[[Tx[Any], dict[str, Any], Caller], Admission | None]


@dataclass(frozen=True, slots=True)
class Service:
    lane: str  # "state", "logs" or "metrics": whose transaction it runs in
    operations: Mapping[str, Operation]
    heavy: frozenset[str] = frozenset()  # reads that run beside the lane, on a connection that only reads
    quick: frozenset[str] = frozenset()  # reads of a few rows that need not wait for anybody (S3's alone)
    admit: Mapping[str, Admit] = field(default_factory=dict)  # whose bytes become a blob: asked first; None: there are none
    prepare: Mapping[str, Prepare] = field(default_factory=dict)  # slow work without the store, done in another thread first
    pieces: Mapping[str, Split] = field(default_factory=dict)  # too much for one command: what to ask one after the other


WHERE = {  # the lane it works in, and the module with its tables
    "cloudwatch": ("metrics", "cloudwatch.handlers"),
    "ec2": ("state", "ec2.handlers"),
    "ecr": ("state", "ecr.handlers"),
    "ecs": ("state", "ecs.handlers"),
    "iam": ("state", "iam.handlers"),
    "logs": ("logs", "logs.handlers"),
    "s3": ("state", "s3.handlers"),
    "sqs": ("state", "sqs.handlers"),
    "ssm": ("state", "ssm.handlers"),
    "sts": ("state", "sts"),
}


class Services(Mapping[str, Service]):
    """By botocore's name."""

    def __init__(self) -> None:
        self._loaded: dict[str, Service] = {}

    def __getitem__(self, name: str) -> Service:
        found = self._loaded.get(name)
        if found is None:
            found = self._loaded[name] = _load(*WHERE[name])
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(WHERE)

    def __len__(self) -> int:
        return len(WHERE)


def _load(lane: str, module: str) -> Service:
    tables = vars(import_module(f"{__name__}.{module}"))
    return Service(
        lane=lane,
        operations=tables["HANDLERS"],
        heavy=tables.get("HEAVY", frozenset()),
        quick=tables.get("QUICK", frozenset()),
        admit=tables.get("ADMIT", {}),
        prepare=tables.get("PREPARE", {}),
        pieces=tables.get("PIECES", {}),
    )


SERVICES = Services()
