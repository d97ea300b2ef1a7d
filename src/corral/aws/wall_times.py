"""Converts the times in the result of a handler to wall times. Only results of a server whose wall clock was set need this."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral.aws.shapes import Shape
from corral.core.clock import WallSeconds


def in_wall_time(service: str, shape: Shape, value: Any, wall_s: Callable[[float], float]) -> Any:
    """Return a value with its times converted by `wall_s`. Values of other types than the model says are returned unchanged."""
    kind = shape.type_name
    if kind == "structure" and isinstance(value, dict):
        members = shape.members
        return {
            name: _converted(service, name, members[name], each, wall_s) if name in members else each
            for name, each in value.items()
        }
    if kind == "list" and isinstance(value, list | tuple):
        return [_converted(service, "", shape.member, each, wall_s) for each in value]
    if kind == "map" and isinstance(value, dict):
        return {name: _converted(service, "", shape.value, each, wall_s) for name, each in value.items()}
    return value


def _converted(service: str, name: str, shape: Shape, value: Any, wall_s: Callable[[float], float]) -> Any:
    kind = shape.type_name
    if kind in ("structure", "list", "map"):
        return in_wall_time(service, shape, value, wall_s)
    if isinstance(value, WallSeconds) or not isinstance(value, int | float):
        return value
    if kind == "timestamp" or (service == "corral" and kind == "double" and name.endswith("S")):
        return wall_s(value)
    if service == "batch" and kind == "long" and name.endswith("At"):  # milliseconds
        return int(wall_s(value / 1000) * 1000)
    return value
