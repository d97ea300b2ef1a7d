"""Placement constraints and strategies: conversion from ECS's form to `PlacementRules`.

Requests and task definitions have ECS's form. `decide/placement/strategies.py` applies the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from corral.model.task import BINPACK, RANDOM, SPREAD, UNKNOWN_STRATEGY, PlacementRules
from corral.services.ecs.errors import ClientException, InvalidParameterException

CONSTRAINTS_MAX = 10

FAILURE_REASONS = {
    "AGENT": "AGENT",
    "DRAINING": "DRAINING",
    "memberOf": "MemberOf placement constraint unsatisfied.",
    "distinctInstance": "DistinctInstance placement constraint unsatisfied.",
}


def failure_reason(resource: str) -> str:
    """The `reason` of a failure in RunTask's response. `resource` is a key of FAILURE_REASONS, or a resource that is not free."""
    return FAILURE_REASONS.get(resource, f"RESOURCE:{resource}")


def placement_rules(
    constraints: Sequence[dict[str, Any]], strategies: Sequence[dict[str, Any]], launch_type: str, scope: str, group: str
) -> PlacementRules | None:
    """The rules for all given constraints and strategies; None if there are no constraints and no strategies.

    `constraints` includes the constraints of the task definition. `scope` is REGION/CLUSTER, and `group` is the group of the task.
    """
    if not constraints and not strategies:
        return None
    if launch_type == "FARGATE":
        what = "constraints" if constraints else "strategies"
        raise InvalidParameterException(f"Placement {what} are not supported with FARGATE launch type.")
    if len(constraints) > CONSTRAINTS_MAX:
        raise InvalidParameterException(
            f"A task can have up to {CONSTRAINTS_MAX} placement constraints, including those of its task definition."
        )
    expressions = tuple(dict.fromkeys(_expressions(constraints)))
    distinct = any(constraint.get("type") == "distinctInstance" for constraint in constraints)
    steps = tuple(_strategy_step(strategy) for strategy in strategies)
    return PlacementRules(
        scope=scope,
        member_of=expressions,
        distinct=distinct,
        strategy=steps,
        group=f"{scope}/{group}" if distinct or any(kind == SPREAD for kind, _ in steps) else "",
        depends_on_tasks=distinct or any(_depends_on_tasks(expression) for expression in expressions),
    )


def _depends_on_tasks(expression: str) -> bool:
    from corral.decide.placement.instance_query import parse_instance_query  # few tasks have constraints

    return parse_instance_query(expression).depends_on_tasks


def check_definition_constraints(constraints: Iterable[dict[str, Any]]) -> None:
    """Raise ClientException if a constraint of a task definition is not a valid memberOf constraint."""
    constraints = list(constraints)
    for constraint in constraints:
        if constraint.get("type") != "memberOf":
            raise ClientException(f"constraint.type '{constraint.get('type')}' is not supported.")
    try:
        list(_expressions(constraints))
    except InvalidParameterException as error:
        raise ClientException(error.message) from None


def _expressions(constraints: Iterable[dict[str, Any]]) -> Iterable[str]:
    for constraint in constraints:
        kind, expression = constraint.get("type"), constraint.get("expression")
        if kind == "distinctInstance":
            if expression is not None:
                raise InvalidParameterException("distinctInstance expression should not be specified.")
        elif kind == "memberOf":
            if not expression:
                raise InvalidParameterException("memberOf expression should be specified.")
            yield check_expression(expression)
        else:
            raise InvalidParameterException(f"constraint.type '{kind}' is not supported; use memberOf or distinctInstance.")


def check_expression(expression: str) -> str:
    from corral.decide.placement.instance_query import InstanceQueryError, parse_instance_query  # few tasks have constraints

    try:
        parse_instance_query(expression)
    except InstanceQueryError as error:
        raise InvalidParameterException(str(error)) from None
    return expression


def _strategy_step(strategy: dict[str, Any]) -> tuple[str, str]:
    kind, field = strategy.get("type"), strategy.get("field", "")
    if kind == RANDOM:
        return RANDOM, ""
    if kind == BINPACK:
        if field.lower() not in ("cpu", "memory"):
            raise InvalidParameterException(f"The placement strategy binpack takes the field cpu or memory, not '{field}'.")
        return BINPACK, field.lower()
    if kind == SPREAD:
        if field.lower() in ("instanceid", "host"):
            return SPREAD, "instanceId"
        if field.startswith("attribute:") and field != "attribute:":
            return SPREAD, field
        raise InvalidParameterException(
            f"The placement strategy spread takes the field instanceId, host or attribute:NAME, not '{field}'."
        )
    raise InvalidParameterException(UNKNOWN_STRATEGY.format(value=kind))
