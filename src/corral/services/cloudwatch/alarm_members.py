"""What metric and composite alarms have in common in a request: names and actions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from corral.errors import ApiError
from corral.services.cloudwatch.naming import ValidationError

ACTIONS = ("OKActions", "AlarmActions", "InsufficientDataActions")


def check_actions(params: Mapping[str, Any], unfit: Sequence[str], alarm: str) -> None:
    """`unfit`: services that this kind of alarm may not call."""
    for member in ACTIONS:
        actions = params.get(member, [])
        if len(set(actions)) < len(actions):
            raise ValidationError(f"{member} must not contain the same action twice.")
        for action in actions:
            if action.split(":")[2] in unfit:
                raise ValidationError(f"The action {action} is not supported for {alarm}.")


def kept_config(params: Mapping[str, Any], members: Iterable[str]) -> str:
    """JSON, of what was said: an update overwrites all of it."""
    return json.dumps({member: params[member] for member in members if member in params}, separators=(",", ":"))


def other_kind(name: str) -> ApiError:
    return ValidationError(f"An alarm with the name {name} and of another type exists already.")
