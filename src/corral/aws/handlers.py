"""The handlers of a service: its functions that have the name of an operation in botocore's model of the service."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from corral.aws.catalogue import SERVICE_BY_NAME
from corral.aws.models import service_model


def handlers_in(service: str, *modules: ModuleType) -> dict[str, Any]:
    """Return operation → handler. For example, a function `describe_tasks` of one of these modules handles DescribeTasks."""
    operations = service_model(service, SERVICE_BY_NAME[service].protocols[0]).operations
    found = {}
    for module in modules:
        for name, value in vars(module).items():
            operation = "".join(word.capitalize() for word in name.split("_"))
            if operation in operations and getattr(value, "__module__", "") == module.__name__:
                found[operation] = value
    return found
