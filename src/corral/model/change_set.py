"""Change sets of CloudFormation stacks. A change set is a stack request that was planned and not executed yet."""

from __future__ import annotations

from typing import Any, Self

from msgspec import Struct, field
from msgspec.structs import replace

CREATE_COMPLETE, FAILED = "CREATE_COMPLETE", "FAILED"  # values of `status`
AVAILABLE, UNAVAILABLE, EXECUTE_IN_PROGRESS, OBSOLETE = "AVAILABLE", "UNAVAILABLE", "EXECUTE_IN_PROGRESS", "OBSOLETE"


class ChangeSet(Struct, frozen=True):
    id: str  # the ARN
    name: str
    stack_id: str
    stack_name: str
    type: str  # CREATE or UPDATE
    status: str
    execution_status: str
    created_at_s: float
    request: str  # a digest of the request that created it
    spec: dict[str, Any]  # the request of the stack (services/cloudformation/stack_operations.py), as JSON
    changes: list[dict[str, Any]] = field(default_factory=list)  # in the shape in which DescribeChangeSet returns them
    status_reason: str = ""
    description: str = ""
    include_nested_stacks: bool = False
    on_stack_failure: str = ""
    client_token: str = ""

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)
