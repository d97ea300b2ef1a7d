"""Invocations of Lambda functions: their rows, and the data that the server needs to run an invocation."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from corral.model.principal import ROOT

INVOCATIONS = "invocations"  # the key that changes when an invocation is queued


class InvocationState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # the function has returned an error, or could not run

    @property
    def has_ended(self) -> bool:
        return self in (InvocationState.SUCCEEDED, InvocationState.FAILED)


class Invocation(Struct, frozen=True):
    id: str  # the request id
    region: str
    function: str
    is_async: bool
    state: InvocationState
    payload: bytes
    context: str  # the ClientContext of the request, as JSON
    attempts: int
    created_at_s: float
    due_at_s: float  # if queued: the time of the next attempt; if ended: the time of the end
    result: bytes = b""
    log: bytes = b""  # the end of the log of the last attempt

    @property
    def key(self) -> str:
        """The key that changes when the invocation ends."""
        return f"invocation:{self.id}"

    def but(self, **changes: Any) -> Invocation:
        return replace(self, **changes)


class InvocationOrder(Struct, frozen=True):
    """All that the server needs to run an invocation."""

    id: str
    function_arn: str
    function: str
    region: str
    revision: str  # a process serves invocations of one revision of a function only
    code_id: int
    handler: str
    timeout_s: int
    memory_mib: int
    log_group: str
    environment: dict[str, str]
    payload: bytes
    context: str
    refusal: str = ""  # why the function cannot run; the invocation fails with this text
    owner: str = ROOT  # of the function


class EventBatch(Struct, frozen=True):
    """The messages with which an event source mapping has invoked its function."""

    invocation: str  # the id of the invocation
    mapping: str  # REGION/UUID
    queue: str  # the ARN of the queue
    receipts: list[tuple[str, str]]  # the MessageId and the ReceiptHandle of each message


class InvocationOutcome(Struct, frozen=True):
    succeeded: bool
    result: bytes
    log: bytes
    duration_ms: float | None = None  # None: the function did not run
