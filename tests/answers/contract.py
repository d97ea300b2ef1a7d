"""What botocore's model documents for the operations that Corral serves: their errors, and the members of their results."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from corral.operations.services import SERVICES
from wire.oracle import model_of

NOT_MODELLED = {("s3", "PostObject")}  # the form upload of browsers has no model


class Member(NamedTuple):
    structure: str  # the structure that has it; for a result as a whole, the operation
    name: str


@cache
def operations(service: str) -> list[str]:
    return sorted(name for name in SERVICES[service].operations if (service, name) not in NOT_MODELLED)


@cache
def documented_errors(service: str, operation: str) -> dict[str, str]:
    """The code in responses → the name of the error, by both of which clients know it."""
    shapes = model_of(service).operation_model(operation).error_shapes
    codes = {shape.metadata.get("error", {}).get("code", shape.name): shape.name for shape in shapes}
    return codes | {shape.name: shape.name for shape in shapes}


@cache
def members(service: str) -> dict[Member, str | None]:
    """All members of the results of served operations, and the structure to which each leads."""
    found: dict[Member, str | None] = {}
    for operation in operations(service):
        shape = model_of(service).operation_model(operation).output_shape
        if shape is not None:
            _collect(shape, operation, found)
    return found


def _collect(shape: Any, structure: str, found: dict[Member, str | None]) -> None:
    for name, inner in shape.members.items():
        member, target = Member(structure, name), _structure_in(inner)
        if member not in found:
            found[member] = target.name if target is not None else None
            if target is not None:
                _collect(target, target.name, found)


def _structure_in(shape: Any) -> Any:
    """The structure of a member, or that of its elements."""
    while shape.type_name in ("list", "map"):
        shape = shape.member if shape.type_name == "list" else shape.value
    return shape if shape.type_name == "structure" else None


def reachable(service: str, given: set[Member]) -> Iterator[Member]:
    """The members that could be in a result. What a member leads to is not, if the member itself is never given."""
    by_structure: dict[str, list[Member]] = {}
    for member in members(service):
        by_structure.setdefault(member.structure, []).append(member)
    seen, waiting = set[str](), list(operations(service))
    while waiting:
        structure = waiting.pop()
        if structure in seen:
            continue
        seen.add(structure)
        for member in by_structure.get(structure, ()):
            yield member
            target = members(service)[member]
            if member in given and target is not None:
                waiting.append(target)
