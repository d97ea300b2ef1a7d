"""Reconcilers of CloudFormation stacks.

An operation creates, updates, rolls back or deletes a stack. A step of an operation creates, updates or deletes one resource.
`reconcile_stack` continues the operation of a stack, and begins at most STEPS_MAX steps in each transaction. The status of the
stack says what the operation does next. `reconcile_step` continues one step that waits, for example for instances.
"""

from __future__ import annotations

from collections.abc import Collection

from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.templates import TemplateError
from corral.decide.templates.stack_plan import (
    CLEANUPS,
    DELETING,
    Difference,
    Restoration,
    difference,
    failed_resources,
    next_deleted,
    next_forward,
    restoration,
    timed_out,
)
from corral.model.durations import DAY_S, MINUTE_S
from corral.model.stack import ENDED, Output, ResourceStatus, Stack, StackResource, StackStatus
from corral.services.cloudformation import stack_steps, step_execution
from corral.services.cloudformation.stack_changes import replacing
from corral.services.cloudformation.stack_evaluation import COMPLETE, StackWork, desired_version, is_done, references, work_of
from corral.services.cloudformation.stack_events import set_status
from corral.services.cloudformation.stack_operations import DELETE, DO_NOTHING, refuse_used_exports
from corral.store import Store
from corral.template_types.lookup import is_replaced

STEPS_MAX = 5  # the most steps that begin in one transaction: about 5 ms of work
CHECKS_MAX = 25  # the most resources that are compared with the template in one transaction
ROWS_MAX = 100  # the most rows that `_leave_over` rewrites, and the most events of a deleted stack that one transaction deletes
PACE_S = 0.001  # seconds until the next transaction continues
RETENTION_S = 90.0 * DAY_S  # how long a deleted stack is kept
ROLLS_BACK = "Rollback requested by user."
TIMED_OUT = "Stack creation time exceeded the specified timeout. "
UNDELETED = "Update successful. One or more resources could not be deleted."

FORWARD = frozenset({StackStatus.CREATE_IN_PROGRESS, StackStatus.UPDATE_IN_PROGRESS})
UPDATE_ROLLBACK = StackStatus.UPDATE_ROLLBACK_IN_PROGRESS
CLEANUP, ROLLBACK_CLEANUP = (
    StackStatus.UPDATE_COMPLETE_CLEANUP_IN_PROGRESS,
    StackStatus.UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS,
)


def reconcile_stack(tx: Tx[Store], stack_id: str) -> None:
    stack = tx.store.stacks.get(stack_id)
    if stack is None or (stack.status not in FORWARD and stack.status is not UPDATE_ROLLBACK and stack.status not in DELETING):
        return
    tx.store.stacks.remember(stack_id)
    if stack.status in FORWARD:
        more = _go_forward(tx, stack)
    elif stack.status is UPDATE_ROLLBACK:
        more = _restore(tx, stack)
    else:
        more = _delete(tx, stack)
    if more:
        tx.due(stack.key, tx.now_s + PACE_S)
    elif stack.timeout_minutes is not None and stack.status is StackStatus.CREATE_IN_PROGRESS:
        ends_s = stack.started_at_s + stack.timeout_minutes * MINUTE_S
        if ends_s > tx.now_s:  # after this time, only a step in another lane can still run: its end marks the stack
            tx.due(stack.key, ends_s)


def reconcile_step(tx: Tx[Store], name: str) -> None:
    stack_id, _, key = name.rpartition("#")
    stack, resource = tx.store.stacks.get(stack_id), tx.store.stacks.resource(stack_id, key)
    if stack is None or resource is None or resource.step is None or resource.step.handed:
        return
    (step_execution.settle if resource.step.has_run else step_execution.run_step)(tx, stack, resource)
    after = tx.store.stacks.resource(stack_id, key)
    if after is None or after.step is None:
        tx.mark(stack.key)


def drop_deleted_stacks(tx: Tx[Store], _: str) -> None:
    """Delete the rows of stacks that were deleted more than RETENTION_S ago, and schedule the next call."""
    first = tx.store.stacks.first_deleted()
    if first is None:
        return
    stack_id, deleted_at_s = first
    if deleted_at_s + RETENTION_S <= tx.now_s:
        tx.store.stacks.drop(stack_id, ROWS_MAX)
        tx.due("stacks:", tx.now_s + PACE_S)
    else:
        tx.due("stacks:", deleted_at_s + RETENTION_S)


def _busy(resources: Collection[StackResource]) -> dict[str, StackResource]:
    return {resource.key: resource for resource in resources if resource.step is not None}


# Create and update


def _go_forward(tx: Tx[Store], stack: Stack) -> bool:
    """Begin the next steps of a creation or an update. Return True if more can begin at once, in another transaction."""
    resources = tx.store.stacks.resources(stack.id)
    if _has_failed(tx, stack):
        return _turn_back(tx, stack)
    work = work_of(tx, stack)
    for resource in resources.values():
        if is_done(stack, resource):
            work.done.add(resource.logical_id)
    steps, checks = STEPS_MAX, CHECKS_MAX
    while steps > 0 and checks > 0:
        ready = next_forward(work.evaluation.dependencies, work.done, _busy(resources.values()), steps)
        if not ready:
            break
        for logical_id in ready:
            began = _begin_step(tx, stack, work, logical_id)
            checks -= 1
            steps -= began
            row = resources.get(logical_id)
            if not began or (row is not None and is_done(stack, row)):
                work.done.add(logical_id)
            elif row is not None and row.status.value.endswith("_FAILED"):
                return _turn_back(tx, stack)
    if len(work.done) == len(work.evaluation.resources):
        return _complete(tx, stack, work)
    return steps <= 0 or checks <= 0


def _begin_step(tx: Tx[Store], stack: Stack, work: StackWork, logical_id: str) -> bool:
    """Begin the step of a resource, or record why it failed. Return False if the resource stays as it is."""
    resources, declared = tx.store.stacks.resources(stack.id), work.evaluation.resources[logical_id]
    found = resources.get(logical_id)
    row = found.existing if found is not None else None
    exists = row is not None and row.physical_id is not None and row.status not in ENDED
    # A new attempt to create a resource needs another name, because the resource of the failed attempt still exists.
    now = row.version if row is not None and exists and row.status is not ResourceStatus.CREATE_FAILED else None
    ref, get_att = references(resources)
    new, failure = step_execution.attempt(
        tx, logical_id, lambda: desired_version(tx, stack, work.evaluation, declared, now, ref, get_att)
    )
    if not failure and row is not None and exists and row.type != declared.type:
        failure = "Update to resource type is not supported."
    if failure:
        stack_steps.refuse(tx, stack, logical_id, declared.type, row, failure)
        return True
    if row is None or not exists or row.status is ResourceStatus.CREATE_FAILED:
        stack_steps.begin_create(tx, stack, logical_id, new, row)
        return True
    forced = replacing(stack, logical_id, row.version, new) if row.version.properties != new.properties else []
    kind = difference(row.version, new, lambda: forced)
    if row.status is ResourceStatus.UPDATE_FAILED and kind is not Difference.REPLACE:
        kind = Difference.UPDATE  # the failed update may have changed a part of the resource
    if kind is Difference.UPDATE:
        stack_steps.begin_update(tx, stack, row, new)
    elif kind is Difference.REPLACE:
        if row.version.generated_name:  # the new resource needs another name
            new = desired_version(tx, stack, work.evaluation, declared, None, ref, get_att)
        stack_steps.begin_replacement(tx, stack, row, new)
    elif kind is Difference.METADATA:
        stack_steps.record(tx, stack, row, new, shown=True)
    elif kind is Difference.RECORD:
        stack_steps.record(tx, stack, row, new, shown=False)
    return kind in (Difference.UPDATE, Difference.REPLACE, Difference.METADATA)


def _has_failed(tx: Tx[Store], stack: Stack) -> bool:
    resources = tx.store.stacks.resources(stack.id).values()
    if stack.failure or any(_failed(stack, resource) for resource in resources):
        return True
    return stack.status is StackStatus.CREATE_IN_PROGRESS and timed_out(stack.started_at_s, stack.timeout_minutes, tx.now_s)


def _failed(stack: Stack, resource: StackResource, *statuses: ResourceStatus) -> bool:
    """Whether a step of the present operation has failed with one of `statuses`. If no statuses are given, any failure counts."""
    is_failed = resource.status in statuses if statuses else resource.status.value.endswith("_FAILED")
    return is_failed and resource.operation == stack.operation


def _turn_back(tx: Tx[Store], stack: Stack, failure: str = "") -> bool:
    """End an operation that has failed: begin to roll back or to delete the stack, or leave it as it is.

    If steps still run in other lanes, wait for them. Return True if the rollback or the deletion can begin at once, in another
    transaction.
    """
    late = stack.status is StackStatus.CREATE_IN_PROGRESS and timed_out(stack.started_at_s, stack.timeout_minutes, tx.now_s)
    failure = failure or stack.failure or (TIMED_OUT if late else "")
    if failure != stack.failure:
        stack = stack.but(failure=failure)
        tx.store.stacks.put(stack)
    step_execution.cancel_steps(tx, stack)
    resources = list(tx.store.stacks.resources(stack.id).values())
    if _busy(resources):
        return False
    failed = [each for each in resources if _failed(stack, each)]
    created = [each.logical_id for each in failed if each.status is ResourceStatus.CREATE_FAILED]
    updated = [each.logical_id for each in failed if each.status is ResourceStatus.UPDATE_FAILED]
    reason = failure or failed_resources(created, updated)
    adds = not failure or failure == TIMED_OUT
    is_create = stack.status is StackStatus.CREATE_IN_PROGRESS
    stops = stack.on_failure == DO_NOTHING if is_create else stack.disable_rollback
    if stops:
        status = StackStatus.CREATE_FAILED if is_create else StackStatus.UPDATE_FAILED
        _end(tx, set_status(tx, stack, status, reason, failure=""))
        return False
    status = UPDATE_ROLLBACK if not is_create and stack.stable is not None else StackStatus.ROLLBACK_IN_PROGRESS
    if is_create and stack.on_failure == DELETE:
        status = StackStatus.DELETE_IN_PROGRESS
    elif adds:
        reason += ROLLS_BACK
    deleting_at_s = tx.now_s if status in DELETING else stack.deleting_at_s
    set_status(tx, stack, status, reason, failure="", operation=stack.operation + 1, excepted=(), deleting_at_s=deleting_at_s)
    return True


def _complete(tx: Tx[Store], stack: Stack, work: StackWork) -> bool:
    """End a creation, or begin the cleanup after an update. All steps of the creation or the update are complete.

    Return True if the stack must be reconciled again at once.
    """
    ref, get_att = references(tx.store.stacks.resources(stack.id))
    try:
        outputs = tuple(
            Output(each.key, each.value, each.description or "", each.export_name or "")
            for each in work.evaluation.outputs(ref, get_att)
        )
        exports = {each.export_name: each.value for each in outputs if each.export_name}
        _check_exports(tx, stack, outputs, exports)
    except (TemplateError, ApiError) as error:
        return _turn_back(tx, stack, error.message)
    tx.store.stacks.set_exports(stack, exports)
    tx.store.stacks.set_imports(stack, stack.version.imports)
    version = stack.version.but(outputs=outputs)
    if stack.status is StackStatus.CREATE_IN_PROGRESS:
        _end(tx, set_status(tx, stack, StackStatus.CREATE_COMPLETE, version=version))
        return False
    set_status(tx, stack, CLEANUP, version=version, is_held=_is_held(tx, stack))
    return True


def _check_exports(tx: Tx[Store], stack: Stack, outputs: tuple[Output, ...], exports: dict[str, str]) -> None:
    names = [each.export_name for each in outputs if each.export_name]
    for name in names:
        if names.count(name) > 1:
            raise TemplateError(f"Duplicate Export names: [{name}]")
        found = tx.store.stacks.export(stack.region, name)
        if found is not None and found[1] != stack.id:
            owner = tx.store.stacks.get(found[1])
            raise TemplateError(f"Export with name {name} is already exported by stack {owner.name if owner else found[1]}")
    refuse_used_exports(tx, stack, exports)


# Roll an update back


def _restore(tx: Tx[Store], stack: Stack) -> bool:
    """Begin the next steps that restore resources. Return True if more can begin at once, in another transaction."""
    resources = tx.store.stacks.resources(stack.id)
    steps = STEPS_MAX
    while steps > 0:
        changed = {row.logical_id: row for row in resources.values() if not row.leftover and row.before is not None}
        busy, failed = _busy(resources.values()), [key for key, row in changed.items() if _failed(stack, row) and row.step is None]
        needed = {
            key: [each for each in row.before.dependencies if each in changed and each != key] if row.before else []
            for key, row in changed.items()
        }
        ready = next_forward(needed, set(), {*busy, *failed}, steps)
        for logical_id in ready:
            steps -= 1
            _restore_one(tx, stack, changed[logical_id])
        if not ready:
            if busy:
                return False
            if changed:
                reason = failed_resources((), failed or changed)
                _end(tx, set_status(tx, stack, StackStatus.UPDATE_ROLLBACK_FAILED, reason))
                return False
            held = _is_held(tx, stack)
            set_status(tx, stack, ROLLBACK_CLEANUP, version=stack.stable or stack.version, stable=None, is_held=held)
            return True
    return True


def _restore_one(tx: Tx[Store], stack: Stack, resource: StackResource) -> None:
    how, skips = restoration(resource, is_replaced), resource.logical_id in stack.excepted
    if how is Restoration.SWITCH:
        stack_steps.switch_back(tx, stack, resource, skips=skips)
    elif skips:
        step_execution.restored(tx, stack, resource.but(version=resource.before))
    elif how is Restoration.UPDATE:
        stack_steps.begin_restore(tx, stack, resource)
    else:
        step_execution.restored(tx, stack, resource, shown=resource.status not in COMPLETE or how is not Restoration.RECORD)


# Delete


def _delete(tx: Tx[Store], stack: Stack) -> bool:
    """Begin the next deletions of resources. Return True if more can begin at once, in another transaction.

    The resources are deleted because the stack is deleted, because its creation is rolled back, or because it no longer needs them
    after an update.
    """
    if stack.is_held:
        return False
    resources = tx.store.stacks.resources(stack.id)
    if _leave_over(tx, stack):
        return True
    steps = STEPS_MAX
    while True:
        remaining = _to_delete(tx, stack)
        nested = {key: each for key, each in _nested_cleanups(tx, stack).items() if key not in remaining}
        remaining += nested
        busy = {*_busy(resources.values()), *(key for key, each in nested.items() if not each.is_held)}
        failed = [key for key in remaining if _failed(stack, resources[key], ResourceStatus.DELETE_FAILED)]
        if failed and stack.status in CLEANUPS:
            stack = _give_up(tx, stack, failed)
            continue
        ready = next_deleted(resources, remaining, busy, failed, STEPS_MAX) if len(remaining) > len(failed) else []
        if not ready:
            break
        for key in ready:
            if steps <= 0:
                return True
            steps -= 1
            if key in nested:
                _release(tx, nested[key])
            else:
                stack_steps.begin_delete(tx, stack, resources[key])
    tx.watch(stack.key, [each.key for each in nested.values()])
    if busy:
        return False
    complete, incomplete = DELETING[stack.status]
    names = [resources[key].logical_id for key in failed]
    reason = failed_resources((), (), names) or stack.failure
    changes = _at_end(tx, stack, failed=bool(names))
    _end(tx, set_status(tx, stack, incomplete if names else complete, reason, failure="", **changes))
    return False


def _nested_cleanups(tx: Tx[Store], stack: Stack) -> dict[str, Stack]:
    """Return the nested stacks whose cleanup is not complete, by logical id.

    A nested stack begins its cleanup during the cleanup of its parent, after the deletion of resources that depend on the nested
    stack.
    """
    if stack.status not in CLEANUPS:
        return {}
    rows = {row.physical_id: key for key, row in tx.store.stacks.resources(stack.id).items() if not row.leftover}
    return {rows[each.id]: each for each in tx.store.stacks.nested(stack.id) if each.status in CLEANUPS and each.id in rows}


def _is_held(tx: Tx[Store], stack: Stack) -> bool:
    """Whether the cleanup of a nested stack must wait, because its parent has not begun its own cleanup."""
    parent = tx.store.stacks.get(stack.parent_id) if stack.parent_id else None
    return parent is not None and (parent.status in FORWARD or parent.status is UPDATE_ROLLBACK)


def _release(tx: Tx[Store], nested: Stack) -> None:
    nested = nested.but(is_held=False)
    tx.store.stacks.put(nested)
    tx.mark(nested.key)


def _give_up(tx: Tx[Store], stack: Stack, failed: list[str]) -> Stack:
    """Drop the rows of resources that a cleanup could not delete, as CloudFormation does. Return the updated stack."""
    for key in failed:
        tx.store.stacks.drop_resource(tx.store.stacks.resources(stack.id)[key])
    stack = stack.but(failure=UNDELETED)
    tx.store.stacks.put(stack)
    return stack


def _leave_over(tx: Tx[Store], stack: Stack) -> bool:
    """Add leftovers: rows of replaced resources that must be deleted. Return True if a later transaction must add more."""
    changed = [row for row in tx.store.stacks.resources(stack.id).values() if not row.leftover and _is_unfinished(stack, row)]
    for row in changed[:ROWS_MAX]:
        before = row.before
        if before is not None and is_replaced(before, row.version):
            step_execution.leave_over(tx, stack, row, before, is_new=False)
        tx.store.stacks.put_resource(row.but(before=None, is_new=False))
    return len(changed) > ROWS_MAX


def _is_unfinished(stack: Stack, row: StackResource) -> bool:
    return row.before is not None or (row.is_new and stack.status is CLEANUP)


def _to_delete(tx: Tx[Store], stack: Stack) -> list[str]:
    resources = tx.store.stacks.resources(stack.id)
    if stack.status is CLEANUP:
        declared = work_of(tx, stack).evaluation.resources
        return [key for key, row in resources.items() if row.leftover or key not in declared]
    if stack.status is ROLLBACK_CLEANUP:
        return [key for key, row in resources.items() if row.leftover or row.is_new]
    return [key for key, row in resources.items() if row.status not in ENDED]


def _at_end(tx: Tx[Store], stack: Stack, *, failed: bool) -> dict[str, object]:
    """Return the members that change in a stack whose deletions have ended."""
    if stack.status is StackStatus.DELETE_IN_PROGRESS:
        return {} if failed else {"deleted_at_s": tx.now_s}
    if stack.status is CLEANUP:
        return {"stable": None}
    return {}


def _end(tx: Tx[Store], stack: Stack) -> None:
    """Delete the data that only an operation in progress needs. Schedule the deletion of the rows of a deleted stack."""
    stacks = tx.store.stacks
    stacks.forget(stack.id)
    tx.watch(stack.key, ())
    kept = [version for version in (stack.version, stack.stable) if version is not None]
    stacks.drop_templates_except(stack.id, {version.number for version in kept})
    gone = stack.status in (StackStatus.DELETE_COMPLETE, StackStatus.ROLLBACK_COMPLETE)
    imports = () if gone else {name for version in kept for name in version.imports}
    stacks.set_imports(stack, sorted(imports))
    if stack.status is StackStatus.DELETE_COMPLETE:
        tx.due("stacks:", tx.now_s + RETENTION_S)
