"""The types AWS::CloudFormation::…: nested stacks, wait conditions and custom resources."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec.structs import replace

from corral.access.caller import Caller
from corral.blobs import read_slices
from corral.core.errors import ApiError, api_error
from corral.core.transactions import Tx
from corral.decide.templates.stack_plan import CAN_BE_DELETED
from corral.model.blob import Slice
from corral.model.stack import STACK_TYPE, Stack, StackStatus
from corral.services.cloudformation import stack_operations, wait_conditions
from corral.services.cloudformation.custom_resources import CUSTOM_RESOURCE
from corral.services.cloudformation.stack_requests import stack_spec
from corral.services.cloudformation.template_requests import TEMPLATE, ParsedTemplate, parsed
from corral.services.cloudformation.template_sources import object_of_url, template_slices, template_text
from corral.store import Store
from corral.template_types.api_calls import authorize
from corral.template_types.generated_names import generated_name
from corral.template_types.resource_types import Properties, ResourceStep, TemplateType, Waiting

# The service and the type of a stored document. It has the template of a nested stack from before the last update of its parent.
SERVICE, SAVED_TEMPLATE = "cloudformation", "saved-template"
NO_UPDATES = "No updates are to be performed."
COMPLETE = frozenset({StackStatus.CREATE_COMPLETE, StackStatus.UPDATE_COMPLETE})
ROLLED_BACK = frozenset({StackStatus.UPDATE_ROLLBACK_COMPLETE, StackStatus.UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS})
VERBS = {"CREATE": "created", "UPDATE": "updated", "DELETE": "deleted"}

NestedStackFailed = api_error("NestedStackFailed")


# Nested stacks


def _parent(tx: Tx[Store], properties: Properties) -> Stack:
    parent = tx.store.stacks.get(properties["_tags"]["aws:cloudformation:stack-id"])
    assert parent is not None, "a resource has a stack"
    return parent


def _request(properties: Properties, parent: Stack, template: ParsedTemplate) -> dict[str, Any]:
    """Return the request for a nested stack. The nested stack has the capabilities of its parent."""
    given = properties.get("Parameters", {})
    parameters = [{"ParameterKey": name, "ParameterValue": _text(value)} for name, value in given.items()]
    return {
        TEMPLATE: template,
        "Parameters": parameters,
        "Capabilities": list(parent.version.capabilities),
        "Tags": list(properties.get("Tags", ())),
        "NotificationARNs": list(properties.get("NotificationARNs", ())),
        "RoleARN": parent.version.role_arn,
    }


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _template_slices(tx: Tx[Store], caller: Caller, url: str) -> tuple[Slice, ...]:
    """Find the template of a nested stack. The caller needs the permission to read the object."""
    address = object_of_url(tx, caller, url)
    given = {"Bucket": address.bucket, "Key": address.key, "VersionId": address.version_id}
    authorize(tx, caller, "s3", "GetObject", given)
    return template_slices(tx, caller, url)


def _read_template(tx: Tx[Store], caller: Caller, url: str) -> ParsedTemplate:
    slices, folder = _template_slices(tx, caller, url), tx.settings.blobs_folder
    return tx.result_of(("template", slices), lambda: parsed(template_text(read_slices(folder, slices))))


def _create_stack(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    parent = _parent(tx, properties)
    name = generated_name(tx, parent.name, properties["_tags"]["aws:cloudformation:logical-id"], NESTED_STACK, {})
    template = _read_template(tx, caller, properties["TemplateURL"])
    spec = stack_spec(tx, caller, _request(properties, parent, template), name, expands=False)
    # A nested stack that failed stays as it is. The rollback of its parent deletes it.
    spec = replace(spec, on_failure="DO_NOTHING", timeout_minutes=properties.get("TimeoutInMinutes"))
    return stack_operations.begin_create(tx, caller, spec, parent=parent).id


def _update_stack(tx: Tx[Store], caller: Caller, arn: str, old: Properties, new: Properties) -> None:
    stack = tx.store.stacks.get(arn)
    if stack is None or stack.deleted_at_s is not None:
        raise NestedStackFailed(f"Stack [{arn}] does not exist")
    parent = _parent(tx, new)
    if parent.status is StackStatus.UPDATE_ROLLBACK_IN_PROGRESS:
        if stack.status is StackStatus.UPDATE_IN_PROGRESS:
            stack_operations.cancel_update(tx, stack)
        elif stack.is_held and stack.stable is not None:
            stack_operations.roll_back_nested(tx, caller, stack)
        return  # `_stack_settled` restores the nested stack when the operation of the nested stack has ended
    _save_template(tx, caller, stack, parent)
    _begin_update(tx, caller, stack, new, _read_template(tx, caller, new["TemplateURL"]))


def _save_template(tx: Tx[Store], caller: Caller, stack: Stack, parent: Stack) -> None:
    """Save the template that a rollback of the parent restores. An update after a failed update keeps the saved template."""
    restored = parent.stable.number if parent.stable is not None else 0
    saved = tx.store.stored.get(SERVICE, SAVED_TEMPLATE, caller.region, stack.id)
    if saved is None or saved["parent_version"] != restored:
        now = tx.store.stacks.template(stack.id, stack.version.number)[0]
        document = {"template": now, "version": stack.version.number, "parent_version": restored}
        tx.store.stored.put(SERVICE, SAVED_TEMPLATE, caller.region, stack.id, document, tx.now_s)


def _begin_update(tx: Tx[Store], caller: Caller, stack: Stack, properties: Properties, template: ParsedTemplate) -> bool:
    """Begin to update a nested stack. Return False if nothing changes."""
    request = _request(properties, _parent(tx, properties), template)
    spec = stack_spec(tx, caller, request, stack.name, stack, expands=False)
    try:
        tx.attempt(lambda: stack_operations.begin_update(tx, caller, stack, spec))
    except ApiError as error:
        if error.message != NO_UPDATES:
            raise
        return False
    return True


def _delete_stack(tx: Tx[Store], caller: Caller, arn: str, properties: Properties) -> None:
    stack = tx.store.stacks.get(arn)
    tx.store.stored.drop(SERVICE, SAVED_TEMPLATE, caller.region, arn)
    if stack is None:
        return
    if stack.status is StackStatus.UPDATE_IN_PROGRESS:
        stack_operations.cancel_update(tx, stack)
    elif not _is_busy(stack):
        stack_operations.begin_delete(tx, caller, stack)


def _template_revision(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    try:
        return ",".join(each.blob for each in _template_slices(tx, caller, str(properties.get("TemplateURL", ""))))
    except ApiError:
        return ""  # the step of the nested stack will fail with the same error


def _stack_attributes(tx: Tx[Store], caller: Caller, arn: str) -> dict[str, Any]:
    stack = tx.store.stacks.get(arn)
    return {f"Outputs.{output.key}": output.value for output in stack.version.outputs} if stack is not None else {}


def _stack_settled(tx: Tx[Store], caller: Caller, step: ResourceStep) -> Waiting | None:
    stack = tx.store.stacks.get(step.physical_id)
    if stack is None or stack.status is StackStatus.DELETE_COMPLETE:
        raise NestedStackFailed(f"Embedded stack {step.physical_id} was deleted")
    restores = step.is_rollback and step.action == "UPDATE"
    if stack.is_held and not restores and stack.status is StackStatus.UPDATE_COMPLETE_CLEANUP_IN_PROGRESS:
        return None
    if stack.status.in_progress and not stack.is_held:
        return Waiting((stack.key,), f"The nested stack is in {stack.status.value}.")
    if restores and (stack.is_held or stack.status in COMPLETE or stack.status in ROLLED_BACK):
        return _restore(tx, caller, step, stack)
    # If nothing changes, the step begins no operation, and the nested stack keeps the status of its last operation. If this status
    # says that an update was rolled back, the present step has not failed.
    unchanged = step.action == "UPDATE" and stack.started_at_s < step.started_s and stack.status in ROLLED_BACK
    if stack.status not in COMPLETE and not unchanged:
        raise _not_successful(step, stack)
    return None


def _restore(tx: Tx[Store], caller: Caller, step: ResourceStep, stack: Stack) -> Waiting | None:
    """Update a nested stack to the saved template. Do nothing if the nested stack has already rolled back to this template.

    The template was saved because the object at its URL may have changed.
    """
    saved = tx.store.stored.get(SERVICE, SAVED_TEMPLATE, caller.region, stack.id)
    if saved is not None and saved["version"] != stack.version.number:
        if step.memory.get("restores") and stack.status in ROLLED_BACK:
            raise _not_successful(step, stack)
        if not step.memory.get("restores"):
            template = tx.result_of(("template", saved["template"]), partial(parsed, saved["template"]))
            if _begin_update(tx, caller, stack, step.properties, template):
                step.memory["restores"] = True
                return Waiting((stack.key,), "The nested stack is being restored.")
    tx.store.stored.drop(SERVICE, SAVED_TEMPLATE, caller.region, stack.id)
    return None


def _not_successful(step: ResourceStep, stack: Stack) -> ApiError:
    return NestedStackFailed(f"Embedded stack {stack.id} was not successfully {VERBS[step.action]}: {stack.status_reason}")


def _is_busy(stack: Stack) -> bool:
    """Whether a nested stack cannot be deleted yet, because an update or a rollback of the nested stack is in progress."""
    return stack.status.in_progress and stack.status not in CAN_BE_DELETED and not stack.is_held


def _stack_gone(tx: Tx[Store], caller: Caller, step: ResourceStep) -> Waiting | None:
    stack = tx.store.stacks.get(step.physical_id)
    if stack is None or stack.status is StackStatus.DELETE_COMPLETE:
        return None
    if stack.status is StackStatus.DELETE_IN_PROGRESS or _is_busy(stack):
        return Waiting((stack.key,), f"The nested stack is in {stack.status.value}.")
    if stack.status is StackStatus.DELETE_FAILED:
        raise _not_successful(step, stack)
    stack = stack_operations.begin_delete(tx, caller, stack)  # `_delete_stack` could not, because an update was in progress
    return Waiting((stack.key,), "The nested stack is being deleted.")


NESTED_STACK = TemplateType(
    STACK_TYPE,
    _create_stack,
    _stack_attributes,
    _update_stack,
    _delete_stack,
    settled=_stack_settled,
    gone=_stack_gone,
    revision=_template_revision,
)

TEMPLATE_TYPES = (NESTED_STACK, CUSTOM_RESOURCE, *wait_conditions.TEMPLATE_TYPES)
