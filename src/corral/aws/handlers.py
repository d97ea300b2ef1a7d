"""The handlers of a service: its functions that have the name of an operation in botocore's model of the service."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from corral.aws.catalogue import SERVICE_BY_NAME
from corral.aws.models import service_model


def handlers_in(service: str, imported: Mapping[str, Any]) -> dict[str, Any]:
    """Return operation → handler. `imported` has the global names of the module `handlers` of the service.

    For example, a function `describe_tasks` of a module that `handlers` imports handles DescribeTasks.
    """
    operations = service_model(service, SERVICE_BY_NAME[service].protocols[0]).operations
    found = {}
    for module in [value for value in imported.values() if isinstance(value, ModuleType)]:
        for name, value in vars(module).items():
            operation = "".join(word.capitalize() for word in name.split("_"))
            if operation in operations and getattr(value, "__module__", "") == module.__name__:
                found[operation] = value
    return found
