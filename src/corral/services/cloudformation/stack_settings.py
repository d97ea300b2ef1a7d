"""Checks the settings of a stack in a request: the role, the rollback triggers, the stack policy and the allowed types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from corral.access.authorization import trusts_service
from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.templates import Template
from corral.model.json_documents import read_json
from corral.services.cloudformation.errors import ValidationError
from corral.store import Store

SERVICE_PRINCIPAL = "cloudformation.amazonaws.com"
TRIGGER_TYPES = frozenset({"AWS::CloudWatch::Alarm", "AWS::CloudWatch::CompositeAlarm"})
INVALID_POLICY = "Error validating stack policy: Invalid stack policy"

_ALARM = re.compile(r"arn:aws[a-z-]*:cloudwatch:[^:]+:[0-9]{12}:alarm:.+")


def checked_role(tx: Tx[Store], caller: Caller, params: Mapping[str, Any]) -> str:
    """Return the role of a request, or an empty text. Refuse a role that does not exist or does not trust CloudFormation."""
    arn: str = params.get("RoleARN") or ""
    if arn and not trusts_service(tx, caller.account, arn, SERVICE_PRINCIPAL):
        raise ValidationError(f"Role {arn} is invalid or cannot be assumed")
    return arn


def rollback_configuration(params: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rollback configuration of a request. If the request lacks the triggers, the earlier ones stay."""
    if "RollbackConfiguration" not in params:
        return dict(earlier)
    given = params["RollbackConfiguration"]
    for trigger in given.get("RollbackTriggers", ()):
        if trigger["Type"] not in TRIGGER_TYPES:
            raise ValidationError("Rollback Trigger Type not supported")
        if not _ALARM.fullmatch(trigger["Arn"]):
            raise ValidationError("RelativeId of a Rollback Trigger's ARN is incorrect")
    kept = {"RollbackTriggers": earlier["RollbackTriggers"]} if "RollbackTriggers" in earlier else {}
    return {name: value for name, value in {**kept, **given}.items() if value}


def checked_policy(text: str) -> str:
    """Check a stack policy. Stack policies are stored and have no effect."""
    try:
        policy = read_json(text)
    except ValueError:
        policy = None
    if not isinstance(policy, dict):
        raise ValidationError(INVALID_POLICY)
    statements = policy.get("Statement", [])
    for statement in statements if isinstance(statements, list) else [statements]:
        if not isinstance(statement, dict) or not _is_valid(statement):
            raise ValidationError(INVALID_POLICY)
    return text


def _is_valid(statement: dict[str, Any]) -> bool:
    """Whether AWS accepts a statement: it is about updates, and its principal is everybody."""
    actions = statement.get("Action", statement.get("NotAction"))
    actions = actions if isinstance(actions, list) else [actions]
    return (
        statement.get("Effect") in ("Allow", "Deny")
        and statement.get("Principal") == "*"
        and all(isinstance(action, str) and (action == "*" or action.startswith("Update:")) for action in actions)
    )


def check_allowed_types(template: Template, params: Mapping[str, Any]) -> None:
    """Refuse a template with a type that ResourceTypes does not allow.

    The elements of ResourceTypes are types, or patterns such as `AWS::EC2::*`.
    """
    allowed = params.get("ResourceTypes")
    if not allowed:
        return
    prefixes = tuple(each[:-1] for each in allowed if each.endswith("::*"))
    for resource in template.resources.values():
        if resource.type not in allowed and not (prefixes and resource.type.startswith(prefixes)):
            raise ValidationError(f"Resource type {resource.type} is not allowed by parameter ResourceTypes {sorted(allowed)}")
