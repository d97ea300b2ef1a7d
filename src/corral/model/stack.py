"""CloudFormation stacks: their settings, their resources and the steps that change these, and their events."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self

from msgspec import Struct, field
from msgspec.structs import replace

from corral.model.principal import Principal
from corral.model.session import SessionTerms

STACK_TYPE = "AWS::CloudFormation::Stack"
CREATE, UPDATE, DELETE = "CREATE", "UPDATE", "DELETE"  # actions of a step
STORED_ONLY = "Stored only: this resource has no effect on this machine."


class StackStatus(StrEnum):
    REVIEW_IN_PROGRESS = "REVIEW_IN_PROGRESS"  # a change set will create the stack; it has no resources yet
    CREATE_IN_PROGRESS = "CREATE_IN_PROGRESS"
    CREATE_COMPLETE = "CREATE_COMPLETE"
    CREATE_FAILED = "CREATE_FAILED"
    ROLLBACK_IN_PROGRESS = "ROLLBACK_IN_PROGRESS"
    ROLLBACK_COMPLETE = "ROLLBACK_COMPLETE"
    ROLLBACK_FAILED = "ROLLBACK_FAILED"
    UPDATE_IN_PROGRESS = "UPDATE_IN_PROGRESS"
    UPDATE_COMPLETE_CLEANUP_IN_PROGRESS = "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS"
    UPDATE_COMPLETE = "UPDATE_COMPLETE"
    UPDATE_FAILED = "UPDATE_FAILED"
    UPDATE_ROLLBACK_IN_PROGRESS = "UPDATE_ROLLBACK_IN_PROGRESS"
    UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS = "UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS"
    UPDATE_ROLLBACK_COMPLETE = "UPDATE_ROLLBACK_COMPLETE"
    UPDATE_ROLLBACK_FAILED = "UPDATE_ROLLBACK_FAILED"
    DELETE_IN_PROGRESS = "DELETE_IN_PROGRESS"
    DELETE_COMPLETE = "DELETE_COMPLETE"
    DELETE_FAILED = "DELETE_FAILED"

    @property
    def in_progress(self) -> bool:
        return self.value.endswith("_IN_PROGRESS")


class ResourceStatus(StrEnum):
    CREATE_IN_PROGRESS = "CREATE_IN_PROGRESS"
    CREATE_COMPLETE = "CREATE_COMPLETE"
    CREATE_FAILED = "CREATE_FAILED"
    UPDATE_IN_PROGRESS = "UPDATE_IN_PROGRESS"
    UPDATE_COMPLETE = "UPDATE_COMPLETE"
    UPDATE_FAILED = "UPDATE_FAILED"
    DELETE_IN_PROGRESS = "DELETE_IN_PROGRESS"
    DELETE_COMPLETE = "DELETE_COMPLETE"
    DELETE_FAILED = "DELETE_FAILED"
    DELETE_SKIPPED = "DELETE_SKIPPED"  # a policy of the template, or the caller, retains the resource


ENDED = frozenset({ResourceStatus.DELETE_COMPLETE, ResourceStatus.DELETE_SKIPPED})


class StackCaller(Struct, frozen=True):
    """The caller of a stack operation. The steps of the stack run as this caller."""

    account: str
    region: str
    principal: Principal
    confined: bool = False
    terms: SessionTerms | None = None
    task_id: str | None = None
    access_key_id: str = ""
    endpoint_url: str = ""
    source_ip: str = ""


class Output(Struct, frozen=True):
    key: str
    value: str
    description: str = ""
    export_name: str = ""  # empty: the output is not exported


class StackVersion(Struct, frozen=True):
    """The settings of a stack from CreateStack or UpdateStack. A rollback restores the previous version."""

    number: int  # the template is the row of `stack_template` with this number
    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict)  # name → value, as given or as the default of the template
    values: dict[str, Any] = field(default_factory=dict)  # name → what Ref returns: a string, or a list of strings
    resolved_ssm: dict[str, str] = field(default_factory=dict)  # name → the value of the SSM parameter that `parameters` names
    no_echo: tuple[str, ...] = ()  # the names of parameters whose values are not shown
    capabilities: tuple[str, ...] = ()
    tags: dict[str, str] = field(default_factory=dict)
    role_arn: str = ""
    notification_arns: tuple[str, ...] = ()
    outputs: tuple[Output, ...] = ()
    imports: tuple[str, ...] = ()  # the names of the exports that the template imports
    writer: str | None = None  # `Caller.writer` of the caller who sent the template or the parameters
    rollback: dict[str, Any] = field(default_factory=dict)  # RollbackConfiguration, as in requests

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)


class Stack(Struct, frozen=True):
    id: str  # the ARN
    region: str
    name: str
    status: StackStatus
    caller: StackCaller
    version: StackVersion  # of the last operation, also while it is in progress
    created_at_s: float
    owner: str  # of the stack and its resources; see `model/principal.py`
    status_reason: str = ""
    # The version that a rollback restores. It is set while an update is in progress, or has failed and was not rolled back.
    stable: StackVersion | None = None
    operation: int = 1  # the number of the last operation; a resource that the operation has changed has the same number
    started_at_s: float = 0.0  # when the last operation began
    updated_at_s: float | None = None
    deleting_at_s: float | None = None  # when the deletion of its resources began: DeleteStack, or the rollback of its creation
    deleted_at_s: float | None = None
    disable_rollback: bool = False
    on_failure: str = "ROLLBACK"  # of CreateStack: ROLLBACK, DELETE or DO_NOTHING
    timeout_minutes: int | None = None
    # Of the last operation: its rollback also deletes those new resources that have the DeletionPolicy Retain.
    retain_except_on_create: bool = False
    client_token: str = ""  # of the last operation
    termination_protection: bool = False
    policy: str = ""  # the stack policy, as JSON; it is stored but not enforced
    parent_id: str = ""  # of a nested stack
    root_id: str = ""
    change_set_id: str = ""  # of the last change set that was executed
    # DeleteStack: the resources to retain. ContinueUpdateRollback: the resources to skip.
    excepted: tuple[str, ...] = ()
    # True: this nested stack has updated its resources, and its cleanup waits for the parent, which may still roll back.
    is_held: bool = False
    failure: str = ""  # why the operation has failed, while it waits for steps that cannot be cancelled
    # Of a root stack: the number of an operation, and how many resources its nested stacks have got in this operation.
    nested_resources: tuple[int, int] = (0, 0)

    @property
    def key(self) -> str:
        """The key of the reconciler. `tx.changed` also gets this key, when the status changes or an event is written."""
        return f"stack:{self.id}"

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)


class ResourceVersion(Struct, frozen=True):
    """One version of a resource: its declaration with all values resolved, and the id and attributes of what was created."""

    type: str
    properties: dict[str, Any] = field(default_factory=dict)  # without the members that begin with "_"
    dependencies: tuple[str, ...] = ()  # the logical ids of the resources that it needs
    deletion_policy: str = ""
    update_replace_policy: str = ""
    creation_policy: dict[str, Any] = field(default_factory=dict)
    update_policy: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    generated_name: str = ""  # the value of the name property, if the template has none
    # Identifies what the properties refer to, for example the object at a TemplateURL. If it changes, the resource is updated.
    revision: str = ""
    physical_id: str | None = None  # None: not created
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def declared(self) -> dict[str, Any]:
        """The properties without the generated name, which AWS does not show either."""
        name = self.generated_name
        return {key: value for key, value in self.properties.items() if value != name} if name else self.properties

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)


class StackStep(Struct, frozen=True):
    """An action of a stack on one resource. The row of the resource contains the step until the step ends."""

    action: str  # CREATE, UPDATE or DELETE
    started_at_s: float
    old: ResourceVersion | None = None  # UPDATE: the version before; CREATE: the version that the new resource replaces
    is_rollback: bool = False
    has_run: bool = False  # the resource type's `create`, `update` or `delete` was called; its `settled` says when the step ends
    handed: str = ""  # the token of a hand-over: another lane runs the step
    received: dict[str, str] = field(default_factory=dict)  # unique id → SUCCESS or FAILURE: signals of SignalResource
    memory: dict[str, Any] = field(default_factory=dict)  # what the resource type stores between two calls
    waits_for: str = ""  # why the step is not complete, as a sentence for people

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)


NO_ECHO = "_NoEcho"  # a member of the attributes of a custom resource whose other attributes are secret


class StackResource(Struct, frozen=True):
    stack_id: str
    logical_id: str
    status: ResourceStatus
    version: ResourceVersion
    changed_at_s: float
    status_reason: str = ""
    operation: int = 0  # the last operation of the stack that changed it
    # The version that a rollback restores: set if an operation that is not complete has changed or replaced the resource.
    before: ResourceVersion | None = None
    is_new: bool = False  # an operation that is not complete has created it; a rollback deletes it
    step: StackStep | None = None  # None: nothing is in progress
    is_stored_only: bool = False
    # A leftover is a resource that was replaced, or whose replacement was rolled back. The stack only has to delete it. Its number
    # distinguishes it from the resource that has the same logical id; 0: the resource is no leftover.
    leftover: int = 0

    @property
    def key(self) -> str:
        """The key that distinguishes the resource from the other resources of the stack."""
        return f"{self.logical_id}/{self.leftover}" if self.leftover else self.logical_id

    @property
    def existing(self) -> Self:
        """The resource with the version that exists. If a replacement could not be created, this is the earlier version."""
        is_lost = self.before is not None and self.version.physical_id is None
        return self.but(version=self.before) if is_lost else self

    @property
    def has_no_echo(self) -> bool:
        """Whether its attributes are secret, or were before the operation in progress."""
        return NO_ECHO in self.version.attributes or (self.before is not None and NO_ECHO in self.before.attributes)

    @property
    def type(self) -> str:
        return self.version.type

    @property
    def physical_id(self) -> str | None:
        return self.version.physical_id

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)


class StackEvent(Struct, frozen=True):
    id: str
    stack_id: str
    stack_name: str
    logical_id: str
    physical_id: str
    type: str
    status: str
    at_s: float
    reason: str = ""
    properties: str = ""  # JSON
    client_token: str = ""
