"""ECS task definitions and overrides for Batch jobs.

Each revision of a job definition has its own ECS task definition, with the family `batch-NAME`. A multi-node job definition has one
task definition for each range of nodes, with the family `batch-NAME-nodePOSITION`. The attempts of a job use these task
definitions. If SubmitJob changes the command, the environment or the size of a job, the attempts also have overrides in ECS's form.

`Ref::NAME` in a command is a placeholder. Corral replaces it by the job's parameter NAME. If the job has no such parameter, the
placeholder stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from corral.access.caller import Caller
from corral.aws.direct_input import direct_input, members_of
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.run import BATCH_LOG_GROUP
from corral.services.batch.definition_rules import FARGATE, cpu_units_of, memory_mib_of, size_of
from corral.services.batch.errors import ClientException
from corral.services.ecs.definitions import register_task_definition
from corral.store import Store

Properties = dict[str, Any]

FAMILY_PREFIX = "batch-"
CONTAINER = "default"  # the name of the only container of a job, unless the job definition names it
MEMORY_MIN_MIB = 6  # the smallest memory that ECS accepts; Batch accepts 4
REFERENCE = re.compile(r"Ref::([A-Za-z0-9_-]+)")
# Members of a container that Batch and ECS both have, but with another form or meaning. All other common members are the same.
CONVERTED = {"command", "logConfiguration", "memory", "resourceRequirements"}


def substituted(command: list[str], parameters: Mapping[str, str]) -> list[str]:
    if not any("Ref::" in word for word in command):
        return command
    return [REFERENCE.sub(lambda found: parameters.get(found[1], found[0]), word) for word in command]


def register_tasks(tx: Tx[Store], caller: Caller, name: str, definition: Properties, platform: str) -> list[str]:
    """Register the ECS task definitions of a job definition. Return FAMILY:REVISION of each."""
    parameters, tasks = definition.get("parameters", {}), all_task_properties(definition)
    families = [f"{FAMILY_PREFIX}{name}"]
    if definition["type"] == "multinode":
        families = [f"{FAMILY_PREFIX}{name}-node{at}" for at in range(len(tasks))]
    return [_register(tx, caller, family, name, task, parameters, platform) for family, task in zip(families, tasks)]


def all_task_properties(definition: Properties) -> list[Properties]:
    """Return the properties of each task of a job definition. A multi-node definition has one task for each range of nodes."""
    if definition["type"] == "multinode":
        return [task_properties(each, "container") for each in definition["nodeProperties"]["nodeRangeProperties"]]
    return [task_properties(definition, "containerProperties")]


def task_properties(properties: Properties, container: str) -> Properties:
    """Return the properties of a job or of a range of nodes in the form of `ecsProperties.taskProperties`.

    `container` is the name of the member that describes a single container.
    """
    if properties.get("ecsProperties"):
        task: Properties = properties["ecsProperties"]["taskProperties"][0]
        containers = task["containers"]
        if len(containers) == 1 and not containers[0].get("name"):
            return {**task, "containers": [{**containers[0], "name": CONTAINER}]}
        return task
    given = properties[container]
    task = {name: value for name, value in given.items() if name in members_of("batch", "EcsTaskProperties")}
    if given.get("jobRoleArn"):
        task["taskRoleArn"] = given["jobRoleArn"]
    if platform_version := given.get("fargatePlatformConfiguration", {}).get("platformVersion"):
        task["platformVersion"] = platform_version
    return {**task, "containers": [{**given, "name": CONTAINER}]}


def _register(
    tx: Tx[Store], caller: Caller, family: str, name: str, task: Properties, parameters: Mapping[str, str], platform: str
) -> str:
    same = members_of("ecs", "RegisterTaskDefinitionRequest")
    document = {member: value for member, value in task.items() if member in same and value != ""}
    document["requiresCompatibilities"] = [platform]
    containers = [_container(each, name, caller.region, parameters, platform) for each in task["containers"]]
    if platform == FARGATE:
        document |= {"networkMode": "awsvpc", **_task_size(task["containers"])}
    document |= {"family": family, "containerDefinitions": containers}
    try:
        params = direct_input("ecs", "RegisterTaskDefinition", document)
        registered = register_task_definition(tx, params, caller)["taskDefinition"]
    except ApiError as error:
        raise ClientException(error.message) from None
    return f"{family}:{registered['revision']}"


def _task_size(containers: list[Properties]) -> dict[str, str]:
    """Return the CPU and memory of a Fargate task: the sums over its containers."""
    return {
        "cpu": str(sum(cpu_units_of(each) for each in containers)),
        "memory": str(sum(memory_mib_of(each) for each in containers)),
    }


def _container(given: Properties, name: str, region: str, parameters: Mapping[str, str], platform: str) -> Properties:
    same = members_of("ecs", "ContainerDefinition") - CONVERTED
    container = {member: value for member, value in given.items() if member in same}
    if given.get("command"):
        container["command"] = substituted(given["command"], parameters)
    if devices := given.get("linuxParameters", {}).get("devices"):
        container["linuxParameters"] = {**given["linuxParameters"], "devices": [_device(each) for each in devices]}
    container |= _size(given, platform)
    container["logConfiguration"] = _logging(given.get("logConfiguration"), name, region)
    return container


def _device(given: Properties) -> Properties:
    """Batch writes the permissions as READ, ECS as read."""
    return {**given, "permissions": [each.lower() for each in given["permissions"]]} if "permissions" in given else given


def _size(given: Properties, platform: str) -> Properties:
    """Return the CPU, memory and GPUs of a container in ECS's form. On Fargate, the task has the CPU and memory instead."""
    size: Properties = {}
    if platform != FARGATE:
        size = {"cpu": cpu_units_of(given), "memory": max(memory_mib_of(given), MEMORY_MIN_MIB)}
    if (gpus := size_of(given, "GPU")) is not None:
        size["resourceRequirements"] = [{"type": "GPU", "value": gpus}]
    return size


def _logging(given: Properties | None, name: str, region: str) -> Properties:
    """Return the log configuration of a container.

    The default is the log stream NAME/CONTAINER/TASK in the group /aws/batch/job.
    """
    if given is not None and given["logDriver"] != "awslogs":
        return given
    defaults = {
        "awslogs-group": BATCH_LOG_GROUP,
        "awslogs-region": region,
        "awslogs-stream-prefix": name,
        "awslogs-create-group": "true",
    }
    return {"logDriver": "awslogs", **(given or {}), "options": {**defaults, **(given or {}).get("options", {})}}


# Overrides


def merged_container(container: Properties, override: Properties) -> Properties:
    """Return the properties of a container after the overrides of SubmitJob.

    As on AWS, the older overrides `vcpus` and `memory` have no effect if the definition has a resource requirement for them.
    """
    merged = dict(container)
    if override.get("command"):
        merged["command"] = override["command"]
    if override.get("environment"):
        values = {pair["name"]: pair.get("value", "") for each in (container, override) for pair in each.get("environment", ())}
        merged["environment"] = [{"name": name, "value": value} for name, value in values.items()]
    if needs := override.get("resourceRequirements"):
        values = {need["type"]: need["value"] for each in (container, override) for need in each.get("resourceRequirements", ())}
        merged["resourceRequirements"] = [{"type": kind, "value": value} for kind, value in values.items()]
        for kind, member in (("VCPU", "vcpus"), ("MEMORY", "memory")):
            if any(need["type"] == kind for need in needs):
                merged.pop(member, None)
    for kind, member in (("VCPU", "vcpus"), ("MEMORY", "memory")):
        if override.get(member) and size_of(container, kind) is None and size_of(override, kind) is None:
            merged[member] = override[member]
    if override.get("instanceType"):
        merged["instanceType"] = override["instanceType"]
    return merged


def task_overrides(
    task: Properties, overrides: Mapping[str, Properties], defaults: Mapping[str, str], parameters: Mapping[str, str], platform: str
) -> Properties:
    """Return the overrides of a job in ECS's form. They are empty if the job changes nothing in its definition.

    `overrides` has the overrides of SubmitJob by container name. `defaults` has the parameters of the definition. `parameters` has
    the parameters of the job.
    """
    found, sizes = list[Properties](), list[Properties]()
    for container in task["containers"]:
        override = overrides.get(container["name"], {})
        merged = merged_container(container, override) if override else container
        sizes.append(merged)
        change: Properties = {}
        command = substituted(merged.get("command") or [], parameters)
        if command != substituted(container.get("command") or [], defaults):
            change["command"] = command
        if override.get("environment"):
            change["environment"] = override["environment"]
        before, after = _size(container, platform), _size(merged, platform)
        change |= {member: value for member, value in after.items() if value != before.get(member)}
        if change:
            found.append({"name": container["name"], **change})
    overridden: Properties = {"containerOverrides": found} if found else {}
    if platform == FARGATE and (size := _task_size(sizes)) != _task_size(task["containers"]):
        overridden |= size
    return overridden


def with_variable(overrides: Properties, container: str, name: str, value: str) -> Properties:
    """Return the overrides of a job with one more environment variable for a container. If they already set it, it stays."""
    containers = [dict(each) for each in overrides.get("containerOverrides", ())]
    changed = next((each for each in containers if each["name"] == container), None)
    if changed is None:
        changed = {"name": container}
        containers.append(changed)
    if not any(pair["name"] == name for pair in changed.get("environment", ())):
        changed["environment"] = [*changed.get("environment", ()), {"name": name, "value": value}]
    return {**overrides, "containerOverrides": containers}
