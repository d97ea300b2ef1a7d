"""Placement constraints and strategies as requests and task definitions say them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from corral.decide.query import QueryError, parse
from corral.model.rules import Rules
from corral.services.ecs.naming import ClientException, InvalidParameterException

CONSTRAINTS_MAX = 10

REASONS = {
    "AGENT": "AGENT",
    "DRAINING": "DRAINING",
    "memberOf": "MemberOf placement constraint unsatisfied.",
    "distinctInstance": "DistinctInstance placement constraint unsatisfied.",
}


def failure_reason(resource: str) -> str:
    """ECS's word for what stands in the way."""
    return REASONS.get(resource, f"RESOURCE:{resource}")


def placement_rules(
    constraints: Sequence[dict[str, Any]], strategies: Sequence[dict[str, Any]], launch_type: str, scope: str, group: str
) -> Rules | None:
    """The rules of constraints (those of the task definition included) and strategies in ECS's shape; None: there are none."""
    if not constraints and not strategies:
        return None
    if launch_type == "FARGATE":
        what = "constraints" if constraints else "strategies"
        raise InvalidParameterException(f"Placement {what} are not supported with FARGATE launch type.")
    if len(constraints) > CONSTRAINTS_MAX:
        raise InvalidParameterException(
            f"A task can have up to {CONSTRAINTS_MAX} placement constraints, those of its task definition included."
        )
    expressions = tuple(dict.fromkeys(_expressions(constraints)))
    distinct = any(constraint.get("type") == "distinctInstance" for constraint in constraints)
    steps = tuple(_step(strategy) for strategy in strategies)
    return Rules(
        scope=scope,
        member_of=expressions,
        distinct=distinct,
        strategy=steps,
        group=f"{scope}/{group}" if distinct or any(kind == "spread" for kind, _ in steps) else "",
        restless=distinct or any(parse(expression).of_tasks for expression in expressions),
    )


def check_definition_constraints(constraints: Iterable[dict[str, Any]]) -> None:
    """A task definition may have memberOf alone."""
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
    try:
        parse(expression)
    except QueryError as error:
        raise InvalidParameterException(str(error)) from None
    return expression


def _step(strategy: dict[str, Any]) -> tuple[str, str]:
    kind, field = strategy.get("type"), strategy.get("field", "")
    if kind == "random":
        return "random", ""
    if kind == "binpack":
        if field.lower() not in ("cpu", "memory"):
            raise InvalidParameterException(f"The placement strategy binpack takes the field cpu or memory, not '{field}'.")
        return "binpack", field.lower()
    if kind == "spread":
        if field.lower() in ("instanceid", "host"):
            return "spread", "instanceId"
        if field.startswith("attribute:") and field != "attribute:":
            return "spread", field
        raise InvalidParameterException(
            f"The placement strategy spread takes the field instanceId, host or attribute:NAME, not '{field}'."
        )
    raise InvalidParameterException(f"The placement strategy '{kind}' is not supported; use random, spread or binpack.")
