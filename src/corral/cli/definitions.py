"""Task definitions from files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from corral.cli.refusals import Failed

# What DescribeTaskDefinition adds to what was registered.
READ_ONLY = {
    "taskDefinitionArn", "revision", "status", "requiresAttributes", "compatibilities", "registeredAt", "registeredBy",
    "deregisteredAt", "deleteRequestedAt",
}  # fmt: skip


def read_definition(path: Path) -> dict[str, Any]:
    """What register-task-definition takes: as its --cli-input-json, or as DescribeTaskDefinition told it."""
    try:
        said = json.loads(path.read_text())
    except ValueError as error:
        raise Failed(f"{path} is no JSON: {error}") from None
    if isinstance(said, dict) and isinstance(said.get("taskDefinition"), dict):
        said = {**said["taskDefinition"], **({"tags": said["tags"]} if said.get("tags") else {})}
    if not isinstance(said, dict) or not said.get("containerDefinitions"):
        raise Failed(f"{path} is no task definition: it has no containerDefinitions.")
    return {"family": path.stem, **{name: value for name, value in said.items() if name not in READ_ONLY}}


def is_essential(container: dict[str, Any]) -> bool:
    return bool(container.get("essential", True))


def first_essential(definition: dict[str, Any]) -> str:
    containers = definition["containerDefinitions"]
    return str(next(filter(is_essential, containers), containers[0]).get("name", ""))
