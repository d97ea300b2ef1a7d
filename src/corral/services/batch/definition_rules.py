"""Checks of job definitions, and of the members that requests for SubmitJob have in common with job definitions.

A job definition and an ECS task definition have common members: mounts, volumes, ulimits, dependencies between containers.
`services/ecs/definition_rules.py` checks these members. This module checks only the members that Batch adds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from corral.model.numbers import whole_number
from corral.model.units import CPU_UNITS_PER_CORE
from corral.services.batch.errors import ClientException, refused
from corral.services.batch.node_ranges import NODES_MAX, owners

Properties = dict[str, Any]

EC2, FARGATE = "EC2", "FARGATE"
ATTEMPTS_MAX = 10
EXIT_RULES_MAX = 5
PATTERN_MAX_CHARACTERS = 512
PRIORITY_MAX = 9999
TIMEOUT_MIN_S, TIMEOUT_MAX_S = 60, 2**31 - 1
MEMORY_MIN_MIB = 4
VCPUS_MAX, MEMORY_MAX_MIB, GPUS_MAX = 192, 2**31 - 1, 64
CONTAINERS_MAX = 10
NODE_RANGES_MAX = 5
DEFINITION_MAX_BYTES, JOB_MAX_BYTES = 24 * 1024, 30 * 1024  # quotas of AWS for RegisterJobDefinition and SubmitJob, as JSON
RESOURCES_MAX = 5
QUANTITY_MAX = 2**31 - 1
RESERVED_VARIABLES = "AWS_BATCH"
REFUSED_ON_EC2 = ("networkConfiguration", "fargatePlatformConfiguration", "platformVersion", "ephemeralStorage", "runtimePlatform")
REFUSED_ON_FARGATE = ("vcpus", "memory", "instanceType", "ulimits", "privileged")
VCPU_VALUE = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4})?")
EXIT_CODE_PATTERN = re.compile(r"[0-9]+\*?|\*")
REASON_PATTERN = re.compile(r"[A-Za-z0-9.:\s_/()'-]*\*?")


def check_job_definition(params: dict[str, Any]) -> None:
    """Raise ClientException if Batch refuses the definition."""
    if params.get("eksProperties"):
        raise ClientException(
            "Corral does not serve eksProperties: it runs jobs as ECS tasks. Use containerProperties or ecsProperties."
        )
    platform = platform_of(params)
    if params["type"] == "multinode":
        _check_multinode(params, platform)
    else:
        given = [name for name in ("containerProperties", "ecsProperties", "nodeProperties") if params.get(name)]
        if given not in (["containerProperties"], ["ecsProperties"]):
            raise ClientException(
                "A job definition of the type container needs containerProperties or ecsProperties, and only one of them; "
                f"the request has {' and '.join(given) or 'neither'}."
            )
        check_properties(params, "containerProperties", platform)
    if params.get("retryStrategy", {"attempts": 1}).get("attempts") is None:
        raise ClientException("RetryAttempts must be provided with retry strategy: add retryStrategy.attempts.")
    check_retry_strategy(params.get("retryStrategy", {}))
    check_timeout(params.get("timeout", {}))
    check_priority("schedulingPriority", params.get("schedulingPriority"))
    consumed(params.get("consumableResourceProperties"))


def check_bytes(what: str, size: int, most: int) -> None:
    """Raise ClientException if a request has more than `most` bytes as JSON."""
    if size > most:
        raise ClientException(
            f"The {what} has {size:,} bytes as JSON: it can have at most {most:,}. Put large values into a file or a bucket."
        )


def platform_of(definition: dict[str, Any]) -> str:
    """Return the platform of a job definition: EC2 or FARGATE."""
    given = definition.get("platformCapabilities") or [EC2]
    if len(given) != 1 or given[0] not in (EC2, FARGATE):
        raise ClientException(f"platformCapabilities {', '.join(given)} is not valid: give either EC2 or FARGATE.")
    return str(given[0])


def check_properties(properties: Properties, container: str, platform: str) -> None:
    """Check the properties of a job or of a range of nodes.

    `container` is the name of the member that describes a single container.
    """
    if properties.get("ecsProperties"):
        tasks = properties["ecsProperties"]["taskProperties"]
        if len(tasks) != 1:
            raise ClientException(f"ecsProperties.taskProperties must have exactly one element, not {len(tasks)}.")
        _check_task(tasks[0], platform)
        return
    given = properties[container]
    _check_container(given, platform, "")
    if platform == FARGATE:
        _require_role(given)
    elif refused := next((name for name in REFUSED_ON_EC2 if given.get(name)), None):
        raise ClientException(
            f"{refused} is only applicable to jobs on Fargate. Remove it, or set platformCapabilities to FARGATE."
        )
    if container == "containerProperties" and given.get("instanceType"):
        raise ClientException("instanceType is only applicable to multi-node jobs. Remove it from containerProperties.")


def _check_task(task: Properties, platform: str) -> None:
    containers = task["containers"]
    if not 1 <= len(containers) <= CONTAINERS_MAX:
        raise ClientException(f"taskProperties.containers must have from 1 to {CONTAINERS_MAX} elements, not {len(containers)}.")
    for container in containers:
        if len(containers) > 1 and not container.get("name"):
            raise ClientException("Each container of a job with several containers needs a name.")
        _check_container(container, platform, container.get("name", ""))
    if platform == FARGATE:
        _require_role(task)
    elif refused := next((name for name in REFUSED_ON_EC2 if task.get(name)), None):
        raise ClientException(
            f"{refused} is only applicable to jobs on Fargate. Remove it, or set platformCapabilities to FARGATE."
        )
    if task.get("networkMode"):
        raise ClientException("networkMode is only applicable to ECS Managed Instances, which Corral does not serve. Remove it.")


def _require_role(properties: Properties) -> None:
    if not properties.get("executionRoleArn"):
        raise ClientException("executionRoleArn is required for jobs that run on Fargate.")


def _check_container(container: Properties, platform: str, name: str) -> None:
    where = f" of container {name}" if name else ""
    if not container.get("image"):
        raise ClientException(f"image{where} is required: give the name of a container image.")
    if platform == FARGATE and (refused := next((member for member in REFUSED_ON_FARGATE if container.get(member)), None)):
        raise ClientException(f"{refused}{where} is not applicable to jobs that run on Fargate. Remove it.")
    check_sizes(container, platform, where)
    for kind, member in (("VCPU", "vcpus"), ("MEMORY", "memory")):
        if size_of(container, kind) is None and not container.get(member):
            raise ClientException(f"The resource requirement {kind}{where} is missing: add it to resourceRequirements.")
    check_environment(container.get("environment", ()), where)


def check_sizes(container: Properties, platform: str, where: str = "") -> None:
    """Check the vCPUs, the memory and the GPUs of a container, or of overrides for a container."""
    needs = container.get("resourceRequirements", ())
    for need in needs:
        if sum(other["type"] == need["type"] for other in needs) > 1:
            raise ClientException(f"resourceRequirements{where} has {need['type']} more than once.")
        _check_size(need["type"], need["value"], platform, where)
    for kind, member, least, most in (("VCPU", "vcpus", 1, VCPUS_MAX), ("MEMORY", "memory", MEMORY_MIN_MIB, MEMORY_MAX_MIB)):
        value = container.get(member)
        if value is None:
            continue
        if not least <= value <= most:
            raise ClientException(f"{member} {value}{where} is not valid: give a number from {least} to {most}.")
        if size_of(container, kind) is not None:
            raise ClientException(f"Specify either {member} or the resource requirement {kind}{where}, not both.")


def _check_size(kind: str, value: str, platform: str, where: str) -> None:
    if kind == "VCPU" and platform == FARGATE:
        if not VCPU_VALUE.fullmatch(value) or not 0 < float(value) <= VCPUS_MAX:
            raise ClientException(f"VCPU value '{value[:100]}'{where} is not valid: give 0.25, 0.5, 1, 2, 4, 8 or 16.")
        return
    least, most = {"VCPU": (1, VCPUS_MAX), "MEMORY": (MEMORY_MIN_MIB, MEMORY_MAX_MIB), "GPU": (1, GPUS_MAX)}[kind]
    if kind == "GPU" and platform == FARGATE:
        raise ClientException(f"GPU{where} is not available to jobs that run on Fargate. Remove it from resourceRequirements.")
    number = whole_number(value, most)
    if number is None or number < least:
        raise ClientException(f"{kind} value '{value[:100]}'{where} is not valid: give a whole number from {least} to {most}.")


def size_of(container: Properties, kind: str) -> str | None:
    """Return the value of a resource requirement of a container, for example of MEMORY. Return None if it is not given."""
    return next((need["value"] for need in container.get("resourceRequirements", ()) if need["type"] == kind), None)


def cpu_units_of(container: Properties) -> int:
    """Return the CPU units of a container: from its resource requirement VCPU, or from the older member `vcpus`."""
    return round(float(size_of(container, "VCPU") or container.get("vcpus") or 0) * CPU_UNITS_PER_CORE)


def memory_mib_of(container: Properties) -> int:
    return int(size_of(container, "MEMORY") or container.get("memory") or 0)


def check_environment(environment: Iterable[dict[str, str]], where: str = "") -> None:
    for pair in environment:
        name = pair.get("name", "")
        if not name:
            raise ClientException(f"An environment variable{where} has no name.")
        if name.startswith(RESERVED_VARIABLES):
            raise ClientException(
                f"Environment variable '{name}'{where} is not valid: Batch reserves names that begin with {RESERVED_VARIABLES}."
            )


def check_retry_strategy(strategy: Properties) -> None:
    attempts, rules = strategy.get("attempts"), strategy.get("evaluateOnExit", ())
    if attempts is not None and not 1 <= attempts <= ATTEMPTS_MAX:
        raise ClientException(f"retryStrategy.attempts {attempts} is not valid: give a number from 1 to {ATTEMPTS_MAX}.")
    if rules and attempts is None:
        raise ClientException("retryStrategy.evaluateOnExit needs retryStrategy.attempts. Add the number of attempts.")
    if len(rules) > EXIT_RULES_MAX:
        raise ClientException(f"retryStrategy.evaluateOnExit can have at most {EXIT_RULES_MAX} elements, not {len(rules)}.")
    for rule in rules:
        if rule["action"].upper() not in ("RETRY", "EXIT"):
            raise refused("action", rule["action"][:100], "the action of an element of evaluateOnExit must be RETRY or EXIT.")
        if not any(rule.get(member) for member in ("onStatusReason", "onReason", "onExitCode")):
            raise ClientException("An element of evaluateOnExit needs onStatusReason, onReason or onExitCode.")
        for member, allowed in (
            ("onStatusReason", REASON_PATTERN), ("onReason", REASON_PATTERN), ("onExitCode", EXIT_CODE_PATTERN),
        ):  # fmt: skip
            pattern = rule.get(member, "")
            if pattern and (len(pattern) > PATTERN_MAX_CHARACTERS or not allowed.fullmatch(pattern)):
                kind = "digits" if member == "onExitCode" else "letters, digits, periods, colons and spaces"
                raise ClientException(
                    f"{member} '{pattern[:100]}' is not valid: use up to {PATTERN_MAX_CHARACTERS} {kind}, and * only at the end."
                )


def check_timeout(timeout: Properties) -> None:
    given = timeout.get("attemptDurationSeconds")
    if given is not None and not TIMEOUT_MIN_S <= given <= TIMEOUT_MAX_S:
        raise ClientException(f"timeout.attemptDurationSeconds {given} is not valid: it must be at least {TIMEOUT_MIN_S} seconds.")


def check_priority(member: str, given: int | None) -> None:
    if given is not None and not 0 <= given <= PRIORITY_MAX:
        raise ClientException(f"{member} {given} is not valid: give a number from 0 to {PRIORITY_MAX}.")


def consumed(properties: Properties | None) -> tuple[tuple[str, int], ...]:
    """Check the consumable resources of a request. Return the name and the quantity of each."""
    found: dict[str, int] = {}
    for each in (properties or {}).get("consumableResourceList", ()):
        given, quantity = each.get("consumableResource", ""), each.get("quantity")
        name = given.rpartition("/")[2]
        if not name:
            raise ClientException("An element of consumableResourceList needs consumableResource: the name or ARN of a resource.")
        if quantity is None or not 1 <= quantity <= QUANTITY_MAX:
            raise ClientException(
                f"The quantity of the consumable resource '{name}' must be from 1 to {QUANTITY_MAX}, not {quantity}."
            )
        if name in found:
            raise ClientException(f"The consumable resource '{name}' is given more than once.")
        found[name] = quantity
    if len(found) > RESOURCES_MAX:
        raise ClientException(f"A job can require at most {RESOURCES_MAX} consumable resources, not {len(found)}.")
    return tuple(found.items())


def _check_multinode(params: dict[str, Any], platform: str) -> None:
    if platform == FARGATE:
        raise ClientException("Multi-node jobs cannot run on Fargate. Set platformCapabilities to EC2.")
    if params.get("containerProperties") or params.get("ecsProperties") or not params.get("nodeProperties"):
        raise ClientException(
            "A job definition of the type multinode needs nodeProperties, without containerProperties and ecsProperties."
        )
    properties = params["nodeProperties"]
    nodes, main, ranges = properties["numNodes"], properties["mainNode"], properties["nodeRangeProperties"]
    check_node_counts(nodes, main)
    if not 1 <= len(ranges) <= NODE_RANGES_MAX:
        raise ClientException(f"nodeRangeProperties must have from 1 to {NODE_RANGES_MAX} elements, not {len(ranges)}.")
    for each in ranges:
        if each.get("eksProperties"):
            raise ClientException("Corral does not serve eksProperties: it runs jobs as ECS tasks. Use container or ecsProperties.")
        if bool(each.get("container")) == bool(each.get("ecsProperties")):
            raise ClientException(f"The node range {each['targetNodes']} needs container or ecsProperties, and only one of them.")
        check_properties(each, "container", platform)
        consumed(each.get("consumableResourceProperties"))
    check_covered([each["targetNodes"] for each in ranges], nodes)


def check_node_counts(nodes: int, main: int) -> None:
    if not 1 <= nodes <= NODES_MAX:
        raise ClientException(f"numNodes {nodes} is not valid: give a number from 1 to {NODES_MAX}.")
    if not 0 <= main < nodes:
        raise ClientException(
            f"mainNode {main} is not valid: the index of the main node must be less than numNodes, which is {nodes}."
        )


def check_covered(ranges: Sequence[str], nodes: int) -> None:
    missing = [node for node, owner in enumerate(owners(ranges, nodes)) if owner is None]
    if missing:
        raise ClientException(
            f"The node ranges {', '.join(ranges)} do not include node {missing[0]}: together they must include all {nodes} nodes."
        )
