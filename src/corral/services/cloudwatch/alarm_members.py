"""What metric and composite alarms have in common in a request: names and actions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from corral.errors import ApiError
from corral.services.cloudwatch.naming import ValidationError

NAME_MAX = 255
ACTIONS = ("OKActions", "AlarmActions", "InsufficientDataActions")
ACTIONS_MAX = 5
ARN = re.compile(r"arn:[^:]+:[^:]+:[^:]*:[^:]*:.+")


def check_name(name: str) -> None:
    if not 1 <= len(name) <= NAME_MAX or not name.isprintable():
        raise ValidationError(f"The alarm name must be between 1 and {NAME_MAX} characters long, without control characters.")


def check_actions(params: Mapping[str, Any], unfit: Sequence[str], alarm: str) -> None:
    """`unfit`: services that this kind of alarm may not call."""
    for member in ACTIONS:
        actions = params.get(member, [])
        if len(actions) > ACTIONS_MAX:
            raise ValidationError(
                f"1 validation error detected: Value '{actions}' at '{member[0].lower()}{member[1:]}' failed to satisfy "
                f"constraint: Member must have length less than or equal to {ACTIONS_MAX}"
            )
        if len(set(actions)) < len(actions):
            raise ValidationError(f"{member} must not contain the same action twice.")
        for action in actions:
            if not ARN.fullmatch(action):
                raise ValidationError(f"Invalid arn syntax: {action}")
            if action.split(":")[2] in unfit:
                raise ValidationError(f"The action {action} is not supported for {alarm}.")


def kept_config(params: Mapping[str, Any], members: Iterable[str]) -> str:
    """JSON, of what was said: an update overwrites all of it."""
    return json.dumps({member: params[member] for member in members if member in params}, separators=(",", ":"))


def other_kind(name: str) -> ApiError:
    return ValidationError(f"An alarm with the name {name} and of another type exists already.")
