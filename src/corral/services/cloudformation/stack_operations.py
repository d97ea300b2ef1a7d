"""Operations on stacks: create, update, delete, cancel, roll back, signal.

An operation checks the request and writes rows. Then the reconciler of the stack (`reconcile/stacks.py`) does the work, a few steps
in each transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct, field

from corral.access.authorization import may_run_on_host
from corral.access.caller import Caller
from corral.access.object_writers import writer_refusal
from corral.core.transactions import Tx
from corral.decide.templates import Evaluation, ParameterValues
from corral.decide.templates.stack_plan import CAN_BE_DELETED, CAN_BE_UPDATED, STEADY
from corral.model.stack import ENDED, ResourceStatus, Stack, StackStatus, StackVersion
from corral.services.cloudformation.change_details import Change as Change
from corral.services.cloudformation.errors import AlreadyExistsException
from corral.services.cloudformation.stack_changes import outputs_now, planned
from corral.services.cloudformation.stack_evaluation import Lookups, StackWork, check_functions, find_imports, make_evaluation
from corral.services.cloudformation.stack_evaluation import evaluation as evaluation
from corral.services.cloudformation.stack_events import add_event, caller_of, sender_of, set_status, stored_caller
from corral.services.cloudformation.stack_quotas import count_nested_resources, require_nesting, require_room
from corral.services.cloudformation.step_execution import cancel_steps, step_key
from corral.store import Store
from corral.template_types.lookup import resource_type
from corral.template_types.schemas import ValidationError

ROLLED_BACK = StackStatus.UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS
ROLLBACK, DELETE, DO_NOTHING = "ROLLBACK", "DELETE", "DO_NOTHING"
USER_INITIATED = "User Initiated"


class StackSpec(Struct, frozen=True):
    name: str
    template_text: str  # the text of the request
    template: str  # JSON, after transforms
    parameters: ParameterValues
    capabilities: tuple[str, ...] = ()
    tags: dict[str, str] = field(default_factory=dict)
    role_arn: str = ""
    notification_arns: tuple[str, ...] = ()
    disable_rollback: bool = False
    on_failure: str = ROLLBACK
    timeout_minutes: int | None = None
    retain_except_on_create: bool = False
    client_token: str = ""
    termination_protection: bool = False
    policy: str = ""  # the stack policy; empty: an update does not change it
    change_set_id: str = ""
    writer: str | None = None  # see `StackVersion.writer`
    rollback: dict[str, Any] = field(default_factory=dict)


def new_stack(tx: Tx[Store], caller: Caller, spec: StackSpec, parent: Stack | None = None) -> Stack:
    if tx.store.stacks.named(caller.region, spec.name) is not None:
        raise AlreadyExistsException(f"Stack [{spec.name}] already exists")
    require_room(tx, caller.region)
    arn = f"arn:aws:cloudformation:{caller.region}:{caller.account}:stack/{spec.name}/{tx.ids.uuid()}"
    root_id = (parent.root_id or parent.id) if parent is not None else ""
    return Stack(
        arn, caller.region, spec.name, StackStatus.REVIEW_IN_PROGRESS, stored_caller(caller), StackVersion(0), tx.now_s,
        caller.owner, parent_id=parent.id if parent is not None else "", root_id=root_id,
    )  # fmt: skip


def review_stack(tx: Tx[Store], caller: Caller, spec: StackSpec) -> Stack:
    """Store a stack that a change set will create. It has no resources yet."""
    stack = new_stack(tx, caller, spec).but(client_token=spec.client_token)
    return set_status(tx, stack, StackStatus.REVIEW_IN_PROGRESS, USER_INITIATED)


def begin_create(
    tx: Tx[Store], caller: Caller, spec: StackSpec, *, parent: Stack | None = None, stack: Stack | None = None
) -> Stack:
    """Begin to create a stack. `parent` is the stack that contains a nested stack. `stack` is a stack in REVIEW_IN_PROGRESS."""
    if stack is None:
        stack = new_stack(tx, caller, spec, parent)
    stack = stack.but(
        caller=stored_caller(caller),
        version=_version(spec, 1),
        started_at_s=tx.now_s,
        disable_rollback=spec.disable_rollback,
        on_failure=DO_NOTHING if spec.disable_rollback else spec.on_failure,
        timeout_minutes=spec.timeout_minutes,
        retain_except_on_create=spec.retain_except_on_create,
        client_token=spec.client_token,
        termination_protection=spec.termination_protection,
        policy=spec.policy,
        change_set_id=spec.change_set_id,
        updated_at_s=tx.now_s if spec.change_set_id else None,  # AWS counts the execution of a change set as an update
    )
    work = StackWork(tx, stack, spec.parameters, spec.template)
    return _begin(tx, stack, spec, StackStatus.CREATE_IN_PROGRESS, work)


def require_updatable(stack: Stack) -> None:
    """Raise ValidationError if the status of a stack does not allow an update."""
    preserved = stack.status is StackStatus.CREATE_FAILED and stack.on_failure == DO_NOTHING
    if stack.status not in CAN_BE_UPDATED and not preserved and not stack.is_held:
        raise ValidationError(f"Stack:{stack.id} is in {stack.status.value} state and can not be updated.")


def begin_update(tx: Tx[Store], caller: Caller, stack: Stack, spec: StackSpec) -> Stack:
    """Begin to update a stack. Raise ValidationError if its status does not allow it, or if the update would change nothing."""
    require_updatable(stack)
    updated = stack.but(
        caller=stored_caller(caller),
        version=_version(spec, stack.operation + 1),
        stable=stack.version if stack.status in STEADY or stack.status is ROLLED_BACK else stack.stable,
        is_held=False,
        operation=stack.operation + 1,
        started_at_s=tx.now_s,
        updated_at_s=tx.now_s,
        disable_rollback=spec.disable_rollback,
        timeout_minutes=None,
        retain_except_on_create=spec.retain_except_on_create,
        client_token=spec.client_token,
        policy=spec.policy or stack.policy,
        change_set_id=spec.change_set_id,
        excepted=(),
        failure="",
    )
    work = StackWork(tx, updated, spec.parameters, spec.template)
    if stack.status in STEADY and not _is_changed(tx, stack, updated, spec, lambda: work.evaluation):
        raise ValidationError("No updates are to be performed.")
    return _begin(tx, updated, spec, StackStatus.UPDATE_IN_PROGRESS, work)


def begin_delete(
    tx: Tx[Store], caller: Caller, stack: Stack, retain: Iterable[str] = (), *, client_token: str = "", role_arn: str = ""
) -> Stack:
    """Begin to delete a stack, without the resources in `retain`. A stack that is being deleted or is deleted stays as it is."""
    retain = tuple(retain)
    if stack.status in (StackStatus.DELETE_IN_PROGRESS, StackStatus.DELETE_COMPLETE):
        return stack
    if stack.status not in CAN_BE_DELETED and not stack.is_held:
        raise ValidationError(f"Stack [{stack.id}] cannot be deleted while in status {stack.status.value}")
    if stack.termination_protection:
        raise ValidationError(f"Stack [{stack.name}] cannot be deleted while TerminationProtection is enabled")
    if retain and stack.status is not StackStatus.DELETE_FAILED:
        raise ValidationError(
            f"Invalid operation on stack [{stack.id}]. Specify resources to retain only when the current stack state is "
            "DELETE_FAILED."
        )
    resources = tx.store.stacks.resources(stack.id)
    unknown = sorted(name for name in retain if name not in resources)
    if unknown:
        raise ValidationError(f"Resources to retain [{', '.join(unknown)}] do not belong to stack [{stack.name}].")
    if any(resources[name].status in ENDED for name in retain):
        raise ValidationError(
            "The specified resources to retain must be in a valid state. Do not specify resources that are in the DELETE_COMPLETE "
            "state."
        )
    refuse_used_exports(tx, stack, {})
    tx.store.stacks.set_exports(stack, {})
    stack = stack.but(
        caller=stored_caller(caller),
        operation=stack.operation + 1,
        started_at_s=tx.now_s,
        excepted=retain,
        failure="",
        is_held=False,
        client_token=client_token,
        change_set_id="",
        deleting_at_s=tx.now_s,
        version=stack.version.but(role_arn=role_arn or stack.version.role_arn),
    )
    stack = set_status(tx, stack, StackStatus.DELETE_IN_PROGRESS, USER_INITIATED)
    cancel_steps(tx, stack)
    tx.mark(stack.key)
    return stack


def cancel_update(tx: Tx[Store], stack: Stack, *, client_token: str = "") -> Stack:
    if stack.status is not StackStatus.UPDATE_IN_PROGRESS:
        raise ValidationError("CancelUpdateStack cannot be called from current stack status")
    cancel_steps(tx, stack)
    stack = stack.but(failure=USER_INITIATED, client_token=client_token or stack.client_token)
    tx.store.stacks.put(stack)
    tx.mark(stack.key)
    return stack


def continue_rollback(tx: Tx[Store], caller: Caller, stack: Stack, skip: Iterable[str] = (), *, client_token: str = "") -> Stack:
    """Continue a rollback that failed. The resources in `skip` stay as they are."""
    if stack.status is not StackStatus.UPDATE_ROLLBACK_FAILED:
        raise ValidationError(f"Stack:{stack.id} is in {stack.status.value} state and can not continue update rollback.")
    skip = tuple(skip)
    resources = tx.store.stacks.resources(stack.id)
    for name in skip:
        if name not in resources:
            raise ValidationError(f"Resource {name} does not exist in stack {stack.name}")
        if resources[name].status is not ResourceStatus.UPDATE_FAILED:
            raise ValidationError(
                f"ResourcesToSkip can only contain resources in UPDATE_FAILED state. The resource {name} is in "
                f"{resources[name].status.value} state."
            )
    return _roll_back(tx, caller, stack.but(excepted=skip), StackStatus.UPDATE_ROLLBACK_IN_PROGRESS, client_token)


def roll_back_nested(tx: Tx[Store], caller: Caller, stack: Stack) -> Stack:
    """Roll back a successful update of a nested stack, because the update of its parent has failed."""
    assert stack.is_held and stack.stable is not None
    stacks, exports = tx.store.stacks, {each.export_name: each.value for each in stack.stable.outputs if each.export_name}
    free = {name: value for name, value in exports.items() if (stacks.export(stack.region, name) or ("", stack.id))[1] == stack.id}
    stacks.set_exports(stack, free)
    return _roll_back(
        tx, caller, stack.but(excepted=(), is_held=False), StackStatus.UPDATE_ROLLBACK_IN_PROGRESS, stack.client_token
    )


def rollback_stack(tx: Tx[Store], caller: Caller, stack: Stack, *, client_token: str = "") -> Stack:
    """Roll back a stack whose operation has failed while rollback was disabled."""
    to = {
        StackStatus.CREATE_FAILED: StackStatus.ROLLBACK_IN_PROGRESS,
        StackStatus.UPDATE_FAILED: StackStatus.UPDATE_ROLLBACK_IN_PROGRESS,
    }.get(stack.status)
    if to is None:
        raise ValidationError(f"Stack:{stack.id} is in {stack.status.value} state and can not be rolled back.")
    return _roll_back(tx, caller, stack.but(excepted=()), to, client_token)


def _roll_back(tx: Tx[Store], caller: Caller, stack: Stack, status: StackStatus, client_token: str) -> Stack:
    given = {"operation": stack.operation + 1, "started_at_s": tx.now_s, "failure": "", "client_token": client_token}
    if status is StackStatus.ROLLBACK_IN_PROGRESS:
        given["deleting_at_s"] = tx.now_s
    stack = set_status(tx, stack.but(caller=stored_caller(caller)), status, USER_INITIATED, **given)
    tx.mark(stack.key)
    return stack


def signal(tx: Tx[Store], stack: Stack, logical_id: str, unique_id: str, status: str) -> None:
    """Record a signal (SUCCESS or FAILURE) for a resource whose step is in progress."""
    resource = tx.store.stacks.resource(stack.id, logical_id)
    if resource is None:
        raise ValidationError(f"Resource {logical_id} does not exist for stack {stack.name}")
    step = resource.step
    if step is None or step.action == DELETE:
        raise ValidationError(f"Resource {logical_id} is in {resource.status.value} state and can not be signaled.")
    if unique_id in step.received and status != "FAILURE":
        raise ValidationError(
            f"Signal with ID {unique_id} for resource {logical_id} already exists. Signals may only be updated with a FAILURE "
            "status."
        )
    resource = resource.but(step=step.but(received={**step.received, unique_id: status}))
    tx.store.stacks.put_resource(resource)
    add_event(tx, stack, resource, f"Received {status} signal with UniqueId {unique_id}")
    tx.mark(step_key(resource))


def refuse_used_exports(tx: Tx[Store], stack: Stack, new: dict[str, str]) -> None:
    """Raise ValidationError if another stack imports an export of this stack that `new` changes or lacks."""
    for name, value in tx.store.stacks.exports_of(stack.id).items():
        if new.get(name) == value:
            continue
        users = [user for user in tx.store.stacks.importers(stack.region, name) if user != stack.name]
        if users:
            verb = "updated" if name in new else "deleted"
            raise ValidationError(f"Export {name} cannot be {verb} as it is in use by {' and '.join(users)}")


def planned_changes(tx: Tx[Store], caller: Caller, stack: Stack | None, spec: StackSpec) -> list[Change]:
    """Return what a request would change, for change sets and `corral stack diff`. `stack` is None for a new stack."""
    if stack is None:
        arn = f"arn:aws:cloudformation:{caller.region}:{caller.account}:stack/{spec.name}/"
        stack = Stack(
            arn, caller.region, spec.name, StackStatus.REVIEW_IN_PROGRESS, stored_caller(caller), StackVersion(0), tx.now_s,
            caller.owner,
        )  # fmt: skip
    wanted = stack.but(version=_version(spec, 0))
    evaluated = make_evaluation(Lookups(tx, caller), wanted, spec.parameters, spec.template)
    check_functions(evaluated, spec.parameters, spec.template)
    return planned(tx, wanted, evaluated)


def is_changed(tx: Tx[Store], caller: Caller, stack: Stack, spec: StackSpec, changes: Sequence[Change]) -> bool:
    """Whether an update would change anything: resources (`changes`), outputs, or settings of the stack itself."""
    wanted = stack.but(version=_version(spec, 0))
    return _is_changed(
        tx, stack, wanted, spec, lambda: make_evaluation(Lookups(tx, caller), wanted, spec.parameters, spec.template), changes
    )


def _is_changed(
    tx: Tx[Store], stack: Stack, wanted: Stack, spec: StackSpec, evaluate: Callable[[], Evaluation], changes: Sequence[Change] = ()
) -> bool:
    new, old = wanted.version, stack.version
    if any(getattr(new, setting) != getattr(old, setting) for setting in ("tags", "role_arn", "notification_arns", "rollback")):
        return True
    refers = any(resource.version.revision for resource in tx.store.stacks.resources(stack.id).values())
    if not refers and (spec.template, new.values) == (tx.store.stacks.template(stack.id, old.number)[1], old.values):
        return False
    if changes:
        return True
    evaluated = evaluate()
    if planned(tx, wanted, evaluated, only_first=True):
        return True
    outputs = outputs_now(tx, evaluated, stack)
    return outputs is None or tuple(outputs) != old.outputs


def _version(spec: StackSpec, number: int) -> StackVersion:
    given = spec.parameters
    return StackVersion(
        number=number,
        parameters=dict(given.texts),
        values=dict(given.values),
        resolved_ssm=dict(given.resolved_ssm),
        no_echo=tuple(sorted(given.no_echo)),
        capabilities=spec.capabilities,
        tags=spec.tags,
        role_arn=spec.role_arn,
        notification_arns=spec.notification_arns,
        writer=spec.writer,
        rollback=spec.rollback,
    )


def _check_writer(tx: Tx[Store], stack: Stack) -> None:
    """Raise ValidationError if a container sent the template or parameters, and may not run programs on the host as the caller may.

    The caller executes a change set of the container, or uses the previous template or a previous parameter of the container. A
    user or a session may do so with its own one, and with a role that it may pass.
    """
    writer, caller, sender = stack.version.writer, caller_of(stack), sender_of(stack)
    if writer is None or writer == caller.writer or not may_run_on_host(tx, caller):
        return
    if writer == sender.writer and not sender.confined:
        return
    if (refusal := writer_refusal(tx, f"the template or the parameters of stack {stack.name}", [writer])) is not None:
        raise ValidationError(refusal)


def _begin(tx: Tx[Store], stack: Stack, spec: StackSpec, status: StackStatus, work: StackWork) -> Stack:
    """Check the types, the imports and the writer of a new operation, and store the stack, its template and its imports."""
    _check_writer(tx, stack)
    for declared in work.evaluation.resources.values():
        resource_type(declared.type)  # raises ValidationError if there is no such type
    if (parent := tx.store.stacks.get(stack.parent_id) if stack.parent_id else None) is not None:
        require_nesting(tx, parent, spec.template_text, stack.version.values)
        count_nested_resources(tx, stack, len(work.evaluation.resources.keys() - tx.store.stacks.resources(stack.id)))
    check_functions(work.evaluation, spec.parameters, spec.template)
    imports = find_imports(work.evaluation, work.lookups, spec.parameters, spec.template)
    version = stack.version.but(description=work.evaluation.template.description or "", imports=imports)
    stack = set_status(tx, stack, status, USER_INITIATED, version=version)
    tx.store.stacks.put_template(stack.id, version.number, spec.template_text, spec.template)
    for name in imports:
        tx.store.stacks.add_import(stack, name)
    tx.store.stacks.compute(stack.id, work)
    tx.mark(stack.key)
    return stack
