"""Handlers of the requests that create, update and delete stacks.

They make a `StackSpec` from a request. `stack_operations.py` then begins the operation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson
from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.templates import USE_PREVIOUS, ParameterValues, parameter_declarations, parameter_values
from corral.model.change_set import AVAILABLE, OBSOLETE
from corral.model.stack import ResourceStatus, Stack, StackStatus
from corral.operations.tags import TagRules
from corral.services.cloudformation import stack_operations
from corral.services.cloudformation.errors import TokenAlreadyExistsException, ValidationError, absent_stack
from corral.services.cloudformation.lookup import find_stack, wait_for_stack
from corral.services.cloudformation.no_echo import hide, parameter_secrets
from corral.services.cloudformation.stack_evaluation import pseudo_parameters
from corral.services.cloudformation.stack_operations import StackSpec
from corral.services.cloudformation.stack_settings import check_allowed_types, checked_policy, checked_role, rollback_configuration
from corral.services.cloudformation.template_requests import (
    NO_TEMPLATE,
    TEMPLATE,
    ParsedTemplate,
    checked,
    refusing,
    require_capabilities,
    stored_template,
)
from corral.services.ssm.cloudformation_types import parameter_value
from corral.store import Store

TOKEN_S = 24 * 3600.0  # how long the response for a ClientRequestToken is stored
TAGS = TagRules(ValidationError)


# The settings of a stack in a request


def stack_spec(
    tx: Tx[Store], caller: Caller, params: Mapping[str, Any], name: str, stack: Stack | None = None, *, expands: bool = True
) -> StackSpec:
    """Return the settings of a stack from a request. If the request lacks a member, use the value of `stack`.

    With `expands`, a template with transforms needs the capability CAPABILITY_AUTO_EXPAND. A change set does not need it, because
    the caller can review the change set.
    """
    source = _source(tx, params, stack)
    values = _parameter_values(tx, caller, source, _given_parameters(params), stack)
    earlier = stack.version if stack is not None else None
    topics = params.get("NotificationARNs", earlier.notification_arns if earlier is not None else ())
    stack_id = stack.id if stack is not None else None
    try:
        found = checked(source, {**pseudo_parameters(caller.region, caller.account, name, stack_id, topics), **values.values})
    except ValidationError as error:
        raise ValidationError(hide(error.message, parameter_secrets(values.no_echo, values.texts, values.values))) from None
    require_capabilities(found.template, params.get("Capabilities", ()), expands=expands)
    check_allowed_types(found.template, params)
    tags = TAGS.read(params["Tags"]) if "Tags" in params else dict(earlier.tags) if earlier is not None else {}
    return StackSpec(
        name=name,
        template_text=found.text,
        template=found.processed,
        parameters=values,
        capabilities=tuple(params.get("Capabilities", ())),
        tags=tags,
        role_arn=params.get("RoleARN") or (earlier.role_arn if earlier is not None else ""),
        notification_arns=tuple(topics),
        disable_rollback=params.get("DisableRollback", False),
        retain_except_on_create=params.get("RetainExceptOnCreate", False),
        client_token=params.get("ClientRequestToken", ""),
        policy=checked_policy(params["StackPolicyBody"]) if "StackPolicyBody" in params else "",
        writer=caller.writer or (earlier.writer if earlier is not None and _uses_previous(params) else None),
        rollback=rollback_configuration(params, earlier.rollback if earlier is not None else {}),
    )


def _uses_previous(params: Mapping[str, Any]) -> bool:
    """Whether a request uses the previous template, or the previous value of a parameter."""
    given = params.get("Parameters") or ()
    return bool(params.get("UsePreviousTemplate")) or any(each.get("UsePreviousValue") for each in given)


def _parameter_values(
    tx: Tx[Store], caller: Caller, source: ParsedTemplate, given: Mapping[str, Any], stack: Stack | None
) -> ParameterValues:
    previous = stack.version.parameters if stack is not None else {}

    def ssm(name: str) -> str:
        return parameter_value(tx, caller, name)

    return refusing(lambda: parameter_values(parameter_declarations(source.tree), given, previous, ssm))


def _source(tx: Tx[Store], params: Mapping[str, Any], stack: Stack | None) -> ParsedTemplate:
    """Return the template of the request, or the stack's own template if the request says UsePreviousTemplate."""
    given: ParsedTemplate | None = params.get(TEMPLATE)
    if not params.get("UsePreviousTemplate"):
        if given is None:
            raise ValidationError(NO_TEMPLATE)
        return given
    if given is not None:
        raise ValidationError("You cannot specify both usePreviousTemplate and a template.")
    if stack is None or not stack.version.number:
        raise ValidationError("UsePreviousTemplate is not valid: the stack has no template.")
    return stored_template(tx, stack)


def _given_parameters(params: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for each in params.get("Parameters", ()):
        key = each.get("ParameterKey", "")
        if key in given:
            raise ValidationError(f"Duplicate input parameter key: {key}")
        if not each.get("UsePreviousValue"):
            given[key] = each.get("ParameterValue", "")
            continue
        if each.get("ParameterValue"):
            raise ValidationError(
                f"Invalid input for parameter key {key}. Cannot specify usePreviousValue as true and non empty value for a "
                "parameter"
            )
        given[key] = USE_PREVIOUS
    return given


# Client tokens


def recall(tx: Tx[Store], caller: Caller, operation: str, params: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the response of the first request with this ClientRequestToken. Return None if the token is new."""
    token = params.get("ClientRequestToken")
    stored = tx.store.tokens.get(_scope(caller), token, tx.now_s) if token else None
    if stored is None:
        return None
    if stored[0] != digest(operation, params):
        raise TokenAlreadyExistsException(f"Token {token} already exists.")
    reply: dict[str, Any] = orjson.loads(stored[1])
    return reply


def remember(tx: Tx[Store], caller: Caller, operation: str, params: Mapping[str, Any], reply: dict[str, Any]) -> dict[str, Any]:
    """Store the response for the ClientRequestToken of a request, if it has one. Return the response."""
    if token := params.get("ClientRequestToken"):
        text = orjson.dumps(reply).decode()
        tx.store.tokens.put(_scope(caller), token, digest(operation, params), text, tx.now_s + TOKEN_S)
    return reply


def digest(operation: str, params: Mapping[str, Any]) -> str:
    given = {name: value.text if isinstance(value, ParsedTemplate) else value for name, value in params.items()}
    return hashlib.sha256(orjson.dumps([operation, given], option=orjson.OPT_SORT_KEYS)).hexdigest()


def _scope(caller: Caller) -> str:
    return f"{caller.region}/cloudformation"


# Operations


def create_stack(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    if (reply := recall(tx, caller, "CreateStack", params)) is not None:
        return reply
    if "DisableRollback" in params and "OnFailure" in params:
        raise ValidationError("Either DisableRollback or OnFailure can be specified, not both.")
    checked_role(tx, caller, params)
    spec = stack_spec(tx, caller, params, params["StackName"])
    on_failure = params.get("OnFailure", "ROLLBACK")
    spec = replace(
        spec,
        on_failure=on_failure,
        disable_rollback=spec.disable_rollback or on_failure == "DO_NOTHING",
        timeout_minutes=params.get("TimeoutInMinutes"),
        termination_protection=params.get("EnableTerminationProtection", False),
    )
    reviewed = tx.store.stacks.named(caller.region, spec.name)
    if reviewed is not None and reviewed.status is StackStatus.REVIEW_IN_PROGRESS:
        _conclude_change_sets(tx, reviewed)
    else:
        reviewed = None
    stack = stack_operations.begin_create(tx, caller, spec, stack=reviewed)
    return remember(tx, caller, "CreateStack", params, {"StackId": stack.id})


def update_stack(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    if (reply := recall(tx, caller, "UpdateStack", params)) is not None:
        return reply
    stack = find_stack(tx, caller, params["StackName"], missing=absent_stack)
    checked_role(tx, caller, params)
    spec = stack_spec(tx, caller, params, stack.name, stack)
    stack_operations.begin_update(tx, caller, stack, spec)
    _conclude_change_sets(tx, stack)
    return remember(tx, caller, "UpdateStack", params, {"StackId": stack.id})


def _conclude_change_sets(tx: Tx[Store], before: Stack) -> None:
    """Make the available change sets of a stack obsolete, because CreateStack or UpdateStack changes the stack.

    Also store the result of the executed change set, because the status of the stack no longer shows this result. `before` is the
    stack before the update.
    """
    for each in tx.store.change_sets.listed(before.id):
        status = OBSOLETE if each.execution_status == AVAILABLE else each.execution_status_in(before.status)
        if status != each.execution_status:
            tx.store.change_sets.put(each.but(execution_status=status))


def delete_stack(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    if recall(tx, caller, "DeleteStack", params) is not None:
        return {}
    try:
        stack = find_stack(tx, caller, params["StackName"])
    except ApiError:
        return {}  # AWS does not report that the stack does not exist
    retained = set(params.get("RetainResources", ()))
    if params.get("DeletionMode") == "FORCE_DELETE_STACK" and stack.status is StackStatus.DELETE_FAILED:
        resources = tx.store.stacks.resources(stack.id).values()
        retained |= {each.logical_id for each in resources if each.status is ResourceStatus.DELETE_FAILED and not each.leftover}
    token, role_arn = params.get("ClientRequestToken", ""), checked_role(tx, caller, params)
    deleted = stack_operations.begin_delete(tx, caller, stack, sorted(retained), client_token=token, role_arn=role_arn)
    if deleted is not stack:
        _conclude_change_sets(tx, stack)
    return remember(tx, caller, "DeleteStack", params, {})


def wait_for_operation(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> None:
    wait_for_stack(tx, find_stack(tx, caller, params["StackName"]))


def cancel_update_stack(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    if recall(tx, caller, "CancelUpdateStack", params) is not None:
        return {}
    stack = find_stack(tx, caller, params["StackName"], missing=absent_stack)
    stack_operations.cancel_update(tx, stack, client_token=params.get("ClientRequestToken", ""))
    return remember(tx, caller, "CancelUpdateStack", params, {})


def continue_update_rollback(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    if recall(tx, caller, "ContinueUpdateRollback", params) is not None:
        return {}
    stack = find_stack(tx, caller, params["StackName"], missing=absent_stack)
    checked_role(tx, caller, params)
    token = params.get("ClientRequestToken", "")
    stack_operations.continue_rollback(tx, caller, stack, params.get("ResourcesToSkip", ()), client_token=token)
    return remember(tx, caller, "ContinueUpdateRollback", params, {})


def rollback_stack(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    if (reply := recall(tx, caller, "RollbackStack", params)) is not None:
        return reply
    stack = find_stack(tx, caller, params["StackName"], missing=absent_stack)
    checked_role(tx, caller, params)
    stack = stack.but(retain_except_on_create=params.get("RetainExceptOnCreate", stack.retain_except_on_create))
    stack_operations.rollback_stack(tx, caller, stack, client_token=params.get("ClientRequestToken", ""))
    return remember(tx, caller, "RollbackStack", params, {"StackId": stack.id})


def signal_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    stack = find_stack(tx, caller, params["StackName"], missing=absent_stack)
    stack_operations.signal(tx, stack, params["LogicalResourceId"], params["UniqueId"], params["Status"])
    return {}


def set_stack_policy(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    stack = find_stack(tx, caller, params["StackName"], missing=absent_stack)
    if "StackPolicyBody" not in params:
        raise ValidationError("Either StackPolicyBody or StackPolicyURL must be specified.")
    tx.store.stacks.put(stack.but(policy=checked_policy(params["StackPolicyBody"])))
    return {}


def get_stack_policy(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    stack = find_stack(tx, caller, params["StackName"], deleted=True, missing=absent_stack)
    return {"StackPolicyBody": stack.policy} if stack.policy else {}


def update_termination_protection(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    stack = find_stack(tx, caller, params["StackName"], missing=absent_stack)
    if stack.parent_id:
        raise ValidationError("Termination protection cannot be changed for a nested stack: change it for the root stack.")
    tx.store.stacks.put(stack.but(termination_protection=params["EnableTerminationProtection"]))
    return {"StackId": stack.id}
