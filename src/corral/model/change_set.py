"""Change sets of CloudFormation stacks. A change set is a plan to create or update a stack, which a client can execute later."""

from __future__ import annotations

from typing import Any, Self

from msgspec import Struct, field
from msgspec.structs import replace

from corral.model.stack import StackStatus

CREATE_COMPLETE, FAILED = "CREATE_COMPLETE", "FAILED"  # values of `status`
# Values of `execution_status`
AVAILABLE, UNAVAILABLE, OBSOLETE = "AVAILABLE", "UNAVAILABLE", "OBSOLETE"
EXECUTE_IN_PROGRESS, EXECUTE_COMPLETE, EXECUTE_FAILED = "EXECUTE_IN_PROGRESS", "EXECUTE_COMPLETE", "EXECUTE_FAILED"
EXECUTED = frozenset({EXECUTE_IN_PROGRESS, EXECUTE_COMPLETE, EXECUTE_FAILED})

SUCCEEDED = frozenset({StackStatus.CREATE_COMPLETE, StackStatus.UPDATE_COMPLETE, StackStatus.UPDATE_COMPLETE_CLEANUP_IN_PROGRESS})


class ChangeSet(Struct, frozen=True):
    id: str  # the ARN
    name: str
    stack_id: str
    stack_name: str
    type: str  # CREATE or UPDATE
    status: str
    execution_status: str
    created_at_s: float
    request: str  # a digest of the request that created the change set
    spec: dict[str, Any]  # a StackSpec (services/cloudformation/stack_operations.py) as JSON
    changes: list[dict[str, Any]] = field(default_factory=list)  # in the shape in which DescribeChangeSet returns them
    status_reason: str = ""
    description: str = ""
    include_nested_stacks: bool = False
    on_stack_failure: str = ""
    client_token: str = ""

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)

    def execution_status_in(self, stack: StackStatus) -> str:
        """Return the execution status of a change set whose stack has the given status.

        The result of an execution is not stored when the execution ends. Until the next update of the stack, the status of the
        stack shows the result. UpdateStack stores the result in the change set before it changes the stack.
        """
        if self.execution_status != EXECUTE_IN_PROGRESS:
            return self.execution_status
        if stack in SUCCEEDED:
            return EXECUTE_COMPLETE
        return EXECUTE_IN_PROGRESS if stack.in_progress else EXECUTE_FAILED
