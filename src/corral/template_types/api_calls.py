"""Calls operations of Corral's services for a stack, without HTTP, with the permissions of the stack's caller.

A step of a stack creates, updates or deletes one resource.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from corral.access.authorization import refusal
from corral.access.caller import Caller
from corral.access.permissions import Permission
from corral.access.principals import policies_of_caller
from corral.aws.direct_input import denied, direct_input, with_model_case
from corral.aws.direct_input import request_of as request_of
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.policies.policy import UNKNOWN_RESOURCE
from corral.operations.services import SERVICES, needed_permissions
from corral.template_types.resource_types import TemplateType

# The services whose resource handlers on AWS ignore the case of enum values. The CDK's constructs for Batch write `managed`, and
# public templates write `Managed` and `Container`. Other handlers refuse such values.
ANY_CASE = frozenset({"batch"})


def call(tx: Tx[Any], caller: Caller, service: str, operation: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Run an operation and return its result. Raise an ApiError if the input is not valid, or if the caller lacks a permission.

    `params` has the members of botocore's model. A number or a boolean may be text. A member with the value None is omitted.
    Members that begin with "_" are Corral's own, for example the tags of a stack's resources. The operation gets them unchanged.
    The audit gets a record after the commit, and at once if the caller lacks the permission.
    """
    served = SERVICES[service]
    own = {name: value for name, value in params.items() if name.startswith("_")}
    given = {name: value for name, value in params.items() if name not in own}
    if service in ANY_CASE:
        given = with_model_case(service, operation, given)
    converted = direct_input(service, operation, given) | own
    record = partial(tx.settings.server.record_call, caller, (service, operation), converted)
    if caller.is_restricted:
        try:
            _authorize_in(tx, caller, service, operation, converted)
        except ApiError as error:
            record(error)
            raise
    prepared = served.prepare[operation](converted) if operation in served.prepare else converted
    result = served.operations[operation](tx, prepared, caller)
    tx.store.undo_log.on_commit(partial(record, result))
    return result


def _authorize_in(tx: Tx[Any], caller: Caller, service: str, operation: str, params: Mapping[str, Any]) -> None:
    """Check the permissions for an operation in any lane. Another lane reads the policies, which are in the state lane.

    This read sees the last commit. A resource that the step itself has created counts there as one that does not exist yet, so as
    one of the caller.
    """
    if SERVICES[service].lane == "state":
        authorize(tx, caller, service, operation, params)
        return

    def check(state: Tx[Any]) -> bool:
        authorize(state, caller, service, operation, params)
        return True

    if not tx.settings.server.read_lane("state", check):
        raise denied(service, f"{service}:{operation} cannot be authorized, because the policies cannot be read: try again.")


def authorize(tx: Tx[Any], caller: Caller, service: str, operation: str, params: Mapping[str, Any]) -> None:
    """Raise the service's access denied error if the policies restrict the caller and do not allow the operation."""
    if caller.is_restricted:
        is_open = caller.confined and operation in SERVICES[service].open_to_containers
        _require(tx, caller, service, needed_permissions(tx, caller, service, operation, params), is_open=is_open)


def authorize_step(tx: Tx[Any], caller: Caller, type_: TemplateType) -> None:
    """Check the caller's permissions in the state lane, before a stack creates, updates or deletes a resource of this type.

    This is for types that do not run operations through `call`. The operations of the step are not known yet. So
    a restricted caller needs the permission for all actions of the service on all resources, and its policies may not deny
    anything. The types AWS::CloudFormation::… need no check here: the steps of a nested stack are checked one by one, and a custom
    resource checks the permission for its own request.
    """
    if not caller.is_restricted or type_.checks_permissions or type_.name.startswith("AWS::CloudFormation::"):
        return
    service = type_.name.split("::")[1].lower()
    _require(tx, caller, service, [Permission(f"{service}:*", UNKNOWN_RESOURCE)], is_open=False)
    if policies_of_caller(tx, caller).layers.denies_anything:
        raise denied(service, f"User: {caller.principal.arn} is not authorized to perform: {service}:* with an explicit deny")


def _require(tx: Tx[Any], caller: Caller, service: str, needed: list[Permission], *, is_open: bool) -> None:
    why = refusal(tx, caller, policies_of_caller(tx, caller), needed, is_open=is_open)
    if why is not None:
        raise denied(service, why)
