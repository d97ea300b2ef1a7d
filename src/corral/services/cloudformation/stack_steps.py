"""Begins the steps of a stack operation. A step creates, updates or deletes one resource; `step_execution.py` runs it."""

from __future__ import annotations

from corral.core.transactions import Tx
from corral.decide.templates.stack_plan import is_retained
from corral.model.stack import (
    CREATE,
    DELETE,
    ENDED,
    UPDATE,
    ResourceStatus,
    ResourceVersion,
    Stack,
    StackResource,
    StackStatus,
    StackStep,
)
from corral.services.cloudformation.stack_evaluation import given_properties
from corral.services.cloudformation.stack_events import caller_of, set_resource
from corral.services.cloudformation.step_execution import attempt, leave_over, restored, run_step, set_deleted
from corral.store import Store
from corral.template_types.lookup import is_replaced, resource_type

REPLACES = "Requested update requires the creation of a new physical resource; hence creating one."
NAMED = (
    "CloudFormation cannot update a stack when a custom-named resource requires replacing. Rename {} and update the stack again."
)


def begin_create(tx: Tx[Store], stack: Stack, logical_id: str, version: ResourceVersion, before: StackResource | None) -> None:
    """Create a resource. `before` is the row of an earlier attempt to create the resource, if such an attempt has failed."""
    if before is not None and before.physical_id is not None:
        leave_over(tx, stack, before, before.version, is_new=True)
    resource = StackResource(
        stack.id, logical_id, ResourceStatus.CREATE_IN_PROGRESS, version, tx.now_s, operation=stack.operation,
        is_new=stack.stable is not None, step=StackStep(CREATE, tx.now_s),
    )  # fmt: skip
    run_step(tx, stack, set_resource(tx, stack, resource, ResourceStatus.CREATE_IN_PROGRESS))


def begin_update(tx: Tx[Store], stack: Stack, resource: StackResource, version: ResourceVersion) -> None:
    """Update a resource in place."""
    kept = version.but(physical_id=resource.physical_id, attributes=resource.version.attributes)
    resource = set_resource(
        tx, stack, resource, ResourceStatus.UPDATE_IN_PROGRESS, operation=stack.operation, before=_before(resource),
        version=kept, step=StackStep(UPDATE, tx.now_s, old=resource.version),
    )  # fmt: skip
    run_step(tx, stack, resource)


def begin_replacement(tx: Tx[Store], stack: Stack, resource: StackResource, version: ResourceVersion) -> None:
    """Create a new resource that replaces an old resource. The old resource exists until the update is complete."""
    old, before = resource.version, _before(resource)
    if _takes_its_name(old, version):
        refuse(tx, stack, resource.logical_id, resource.type, resource, NAMED.format(old.physical_id))
        return
    resource = set_resource(
        tx, stack, resource, ResourceStatus.UPDATE_IN_PROGRESS, REPLACES, operation=stack.operation, before=before
    )
    if before is None or is_replaced(before, old):
        leave_over(tx, stack, resource, old, is_new=True)  # an earlier update, which failed, has created the resource
    resource = resource.but(version=version, step=StackStep(CREATE, tx.now_s, old=old))
    tx.store.stacks.put_resource(resource)
    run_step(tx, stack, resource)


def _takes_its_name(old: ResourceVersion, new: ResourceVersion) -> bool:
    """Whether a replacement would need the name of the old resource, which still has it."""
    type_ = resource_type(new.type)
    name = type_.name_property
    if name is None or type_.has_versions or new.generated_name:
        return False
    return all(old.properties.get(each) == new.properties.get(each) for each in (name, *type_.name_scope))


def record(tx: Tx[Store], stack: Stack, resource: StackResource, version: ResourceVersion, *, shown: bool) -> None:
    """Store a new declaration of a resource that needs no step. If `shown` is set, write events."""
    kept = version.but(physical_id=resource.physical_id, attributes=resource.version.attributes)
    before, reason = _before(resource), resource.status_reason
    if not shown:
        tx.store.stacks.put_resource(resource.but(version=kept, before=before))
        return
    resource = set_resource(tx, stack, resource, ResourceStatus.UPDATE_IN_PROGRESS, operation=stack.operation, before=before)
    set_resource(tx, stack, resource, ResourceStatus.UPDATE_COMPLETE, reason, version=kept)


def refuse(tx: Tx[Store], stack: Stack, logical_id: str, type_: str, resource: StackResource | None, reason: str) -> None:
    """Set the status of a resource to failed, and begin no step, because the template wants something invalid or impossible."""
    if resource is None or resource.physical_id is None or resource.status in ENDED:
        version, operation, is_new = ResourceVersion(type_), stack.operation, stack.stable is not None
        status = ResourceStatus.CREATE_FAILED
        resource = StackResource(stack.id, logical_id, status, version, tx.now_s, operation=operation, is_new=is_new)
        set_resource(tx, stack, resource, status, reason)
    else:
        changes = {"operation": stack.operation, "before": _before(resource)}
        is_created = resource.status is not ResourceStatus.CREATE_FAILED
        set_resource(tx, stack, resource, ResourceStatus.UPDATE_FAILED if is_created else resource.status, reason, **changes)


def begin_restore(tx: Tx[Store], stack: Stack, resource: StackResource) -> None:
    """Update a resource in place, so that it has the properties from before the update that is rolled back."""
    assert resource.before is not None
    resource = set_resource(
        tx, stack, resource, ResourceStatus.UPDATE_IN_PROGRESS, operation=stack.operation, version=resource.before,
        step=StackStep(UPDATE, tx.now_s, old=resource.version, is_rollback=True),
    )  # fmt: skip
    run_step(tx, stack, resource)


def switch_back(tx: Tx[Store], stack: Stack, resource: StackResource, *, skips: bool = False) -> None:
    """Return to the resource that was replaced. The new resource is deleted at the end of the rollback.

    If `skips` is set, do not call the type, because ContinueUpdateRollback names the resource in ResourcesToSkip.
    """
    before, replacement = resource.before, resource.version
    assert before is not None and before.physical_id is not None
    type_, physical_id = resource_type(before.type), before.physical_id
    resource = set_resource(tx, stack, resource.but(version=before), ResourceStatus.UPDATE_IN_PROGRESS, operation=stack.operation)
    if type_.restore is not None and not skips:
        restore, given = type_.restore, given_properties(stack, resource.logical_id, before)
        _, failure = attempt(tx, resource.key, lambda: restore(tx, caller_of(stack), physical_id, given))
        if failure:
            resource = resource.but(version=replacement)
            set_resource(tx, stack, resource, ResourceStatus.UPDATE_FAILED, failure)
            return
    if replacement.physical_id is not None:
        leave_over(tx, stack, resource, replacement, is_new=True)
    restored(tx, stack, resource)


def begin_delete(tx: Tx[Store], stack: Stack, resource: StackResource) -> None:
    """Delete a resource, unless a policy or the caller retains it."""
    resource = resource.but(operation=stack.operation)
    on_create = resource.is_new or stack.status is StackStatus.ROLLBACK_IN_PROGRESS
    excepted = stack.status is StackStatus.DELETE_IN_PROGRESS and resource.logical_id in stack.excepted
    if resource.physical_id is None:
        set_deleted(tx, stack, resource, ResourceStatus.DELETE_COMPLETE)
    elif excepted or is_retained(resource, on_create=on_create, except_on_create=stack.retain_except_on_create):
        set_deleted(tx, stack, resource, ResourceStatus.DELETE_SKIPPED)
    else:
        step = StackStep(DELETE, tx.now_s)
        run_step(tx, stack, set_resource(tx, stack, resource, ResourceStatus.DELETE_IN_PROGRESS, step=step))


def _before(resource: StackResource) -> ResourceVersion | None:
    return None if resource.is_new else resource.before or resource.version
