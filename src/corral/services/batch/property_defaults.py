"""The properties of a job definition as Batch stores and shows them: as in the request, with the defaults that Batch adds.

Clients compare these properties with their own, for example Terraform. So every member that Batch does not add stays absent.
"""

from __future__ import annotations

from typing import Any

from corral.services.batch.definition_rules import FARGATE

Properties = dict[str, Any]

LATEST = "LATEST"  # the default platform version of Fargate
# Members that Batch shows as empty lists if a definition does not have them.
CONTAINER_LISTS = ("command", "volumes", "environment", "mountPoints", "ulimits", "resourceRequirements", "secrets")
TASK_CONTAINER_LISTS = ("command", "dependsOn", "environment", "mountPoints", "resourceRequirements", "secrets", "ulimits")


def with_defaults(document: Properties, platform: str) -> Properties:
    """Return a job definition with the defaults."""
    found = _with_properties(document, "containerProperties", platform)
    if "retryStrategy" in found:
        found["retryStrategy"] = {"evaluateOnExit": [], **found["retryStrategy"]}
    if "nodeProperties" in found:
        ranges = [_with_properties(each, "container", platform) for each in found["nodeProperties"]["nodeRangeProperties"]]
        found["nodeProperties"] = {**found["nodeProperties"], "nodeRangeProperties": ranges}
    return found


def _with_properties(given: Properties, container: str, platform: str) -> Properties:
    """Return a definition or a range of nodes. `container` is the name of the member that describes a single container."""
    found = dict(given)
    if given.get(container):
        found[container] = _nested(_container(given[container], CONTAINER_LISTS))
        if platform == FARGATE:
            version = {"platformVersion": LATEST, **given[container].get("fargatePlatformConfiguration", {})}
            found[container]["fargatePlatformConfiguration"] = version
    elif given.get("ecsProperties"):
        tasks = [_task(each, platform) for each in given["ecsProperties"]["taskProperties"]]
        found["ecsProperties"] = {**given["ecsProperties"], "taskProperties": tasks}
    return found


def _task(given: Properties, platform: str) -> Properties:
    containers = [{"essential": True, **_container(each, TASK_CONTAINER_LISTS)} for each in given["containers"]]
    version = {"platformVersion": LATEST} if platform == FARGATE else {}
    return {"volumes": [], **version, **given, "containers": containers}


def _container(given: Properties, lists: tuple[str, ...]) -> Properties:
    found = {**{member: [] for member in lists}, **given}
    # Batch ignores environment variables without a value.
    found["environment"] = [each for each in found["environment"] if each.get("value")]
    if "logConfiguration" in given:
        found["logConfiguration"] = {"secretOptions": [], **given["logConfiguration"]}
    return found


def _nested(found: Properties) -> Properties:
    """Add the empty members below `containerProperties`. The containers of `ecsProperties` do not get them.

    The evidence is Terraform's provider: it leaves these out of its comparison for `containerProperties` only.
    """
    if "logConfiguration" in found:
        found["logConfiguration"] = {"options": {}, **found["logConfiguration"]}
    if "linuxParameters" in found:
        linux = {"devices": [], "tmpfs": [], **found["linuxParameters"]}
        linux["devices"] = [{"permissions": [], **each} for each in linux["devices"]]
        linux["tmpfs"] = [{"mountOptions": [], **each} for each in linux["tmpfs"]]
        found["linuxParameters"] = linux
    return found
