"""Computes the spec of a job from its job definition and the parameters of SubmitJob.

A `JobSpec` (`model/job.py`) has everything that the attempts of a job need: task definition, overrides, resources, retry rules.
Equal requests share one spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.job import ExitRule, JobSpec, NodeGroup
from corral.model.task import Demand
from corral.services.batch import definition_rules as rules
from corral.services.batch.errors import ClientException
from corral.services.batch.image_configs import VARIABLE, visible_devices
from corral.services.batch.job_definitions import JobDefinition
from corral.services.batch.names import DEFINITION, arn, checked_tags
from corral.services.batch.node_ranges import groups, is_open, node_range, owners
from corral.services.batch.task_documents import task_overrides, task_properties, with_variable
from corral.services.ecs import fargate
from corral.services.ecs.lookup import arn as ecs_arn
from corral.services.ecs.lookup import split_definition
from corral.services.ecs.task_spec import task_spec
from corral.store import Store

Properties = dict[str, Any]

CACHED_SPECS_MAX = 2_000
MEMBERS = (  # members of SubmitJob that are part of the spec
    "parameters", "containerOverrides", "ecsPropertiesOverride", "nodeOverrides", "retryStrategy", "propagateTags", "timeout",
    "tags", "shareIdentifier", "schedulingPriorityOverride", "consumableResourcePropertiesOverride",
)  # fmt: skip
# The members of SubmitJob that the spec stores unchanged, for DescribeJobs.
SHOWN = ("containerOverrides", "ecsPropertiesOverride", "nodeOverrides", "retryStrategy", "timeout")


class _Cached(NamedTuple):
    document: Properties  # the cache key contains id(document): this reference keeps the document alive, so the id stays unique
    spec: JobSpec


class _Task(NamedTuple):
    task_definition: str  # FAMILY:REVISION
    overrides: Properties
    demand: Demand
    asks_for_gpus: bool  # True if the task requires no GPU, but one of its images or containers sets NVIDIA_VISIBLE_DEVICES


_cache: dict[tuple[int, bytes, tuple[str, ...]], _Cached] = {}


def job_spec(tx: Tx[Store], definition: JobDefinition, params: dict[str, Any]) -> JobSpec:
    """Return the spec for the parameters of SubmitJob. Raise ClientException if a parameter is not valid."""
    given = {member: params[member] for member in MEMBERS if params.get(member) is not None}
    devices = {image: value for image in definition.images if (value := visible_devices(tx, definition.region, image))}
    text = orjson.dumps(given)
    rules.check_bytes("job", len(text), rules.JOB_MAX_BYTES)
    key = (id(definition.document), text, tuple(f"{image} {value}" for image, value in devices.items()))
    found = _cache.get(key)
    if found is None or found.document is not definition.document:
        if len(_cache) >= CACHED_SPECS_MAX:
            del _cache[next(iter(_cache))]
        found = _cache[key] = _Cached(definition.document, _spec(tx, definition, given, devices))
    return found.spec


def _spec(tx: Tx[Store], definition: JobDefinition, given: Properties, devices: Mapping[str, str]) -> JobSpec:
    document = definition.document
    rules.check_retry_strategy(given.get("retryStrategy", {}))
    rules.check_timeout(given.get("timeout", {}))
    rules.check_priority("schedulingPriorityOverride", given.get("schedulingPriorityOverride"))
    strategy = given.get("retryStrategy") or document.get("retryStrategy") or {}
    timeout = given.get("timeout") or document.get("timeout") or {}
    limit = timeout.get("attemptDurationSeconds")
    priority = given.get("schedulingPriorityOverride", document.get("schedulingPriority"))
    parameters = {**document["parameters"], **given.get("parameters", {})}
    nodes: tuple[NodeGroup, ...] = ()
    if definition.is_multinode:
        nodes, tasks = _node_groups(tx, definition, given, parameters, devices)
    else:
        tasks = [_single_task(tx, definition, given, parameters, devices)]
    resources = given.get("consumableResourcePropertiesOverride")
    return JobSpec(
        definition_arn=arn(tx.settings.account, definition.region, f"{DEFINITION}/{definition.name}:{definition.revision}"),
        task_definition=tasks[0].task_definition,
        demand=_largest([task.demand for task in tasks]),
        overrides={} if definition.is_multinode else tasks[0].overrides,
        parameters=parameters,
        attempts_max=strategy.get("attempts", 1),
        exit_rules=tuple(_exit_rule(rule) for rule in strategy.get("evaluateOnExit", ())),
        timeout_s=float(limit) if limit is not None else None,
        share=given.get("shareIdentifier", ""),
        priority=priority or 0,
        tags=checked_tags(given),
        propagate_tags=bool(given.get("propagateTags", document.get("propagateTags", False))),
        resources=_resources(definition, nodes) if resources is None else rules.consumed(resources),
        nodes=nodes,
        main_node=document["nodeProperties"]["mainNode"] if definition.is_multinode else 0,
        asks_for_gpus_by_image=any(task.asks_for_gpus for task in tasks),
        request={member: given[member] for member in SHOWN if member in given},
    )


def node_count(definition: JobDefinition, params: Properties) -> int:
    """Return the number of nodes of a multi-node job: from `nodeOverrides`, or else from its definition."""
    properties = definition.document["nodeProperties"]
    given = (params.get("nodeOverrides") or {}).get("numNodes")
    return int(properties["numNodes"] if given is None else given)


def _exit_rule(rule: Properties) -> ExitRule:
    return ExitRule(
        retries=rule["action"].upper() == "RETRY",
        on_status_reason=rule.get("onStatusReason", ""),
        on_reason=rule.get("onReason", ""),
        on_exit_code=rule.get("onExitCode", ""),
    )


def _largest(demands: list[Demand]) -> Demand:
    if len(demands) == 1:
        return demands[0]
    return Demand(
        gpus=max(demand.gpus for demand in demands),
        cpu_units=max(demand.cpu_units for demand in demands),
        memory_mib=max(demand.memory_mib for demand in demands),
    )


def _resources(definition: JobDefinition, nodes: tuple[NodeGroup, ...]) -> tuple[tuple[str, int], ...]:
    """Return the consumable resources of a job. A multi-node job needs the resources of all its nodes together."""
    needed = dict(rules.consumed(definition.document.get("consumableResourceProperties")))
    if nodes:
        ranges = definition.document["nodeProperties"]["nodeRangeProperties"]
        for group in nodes:
            family, revision = split_definition(group.definition_arn)
            own = ranges[definition.tasks.index(f"{family}:{revision}")].get("consumableResourceProperties")
            for name, quantity in rules.consumed(own):
                needed[name] = needed.get(name, 0) + quantity * (group.last - group.first + 1)
    return tuple(needed.items())


# Tasks of a job


def _single_task(
    tx: Tx[Store], definition: JobDefinition, given: Properties, parameters: Mapping[str, str], devices: Mapping[str, str]
) -> _Task:
    if given.get("nodeOverrides"):
        raise ClientException(
            "nodeOverrides is only applicable to multi-node jobs. Use containerOverrides or ecsPropertiesOverride."
        )
    task = task_properties(definition.document, "containerProperties")
    overrides = _by_container(task, given, definition.platform, is_single="containerProperties" in definition.document)
    return _task(tx, definition, definition.tasks[0], task, overrides, parameters, devices)


def _task(
    tx: Tx[Store],
    definition: JobDefinition,
    task_definition: str,
    task: Properties,
    given: Mapping[str, Properties],
    parameters: Mapping[str, str],
    devices: Mapping[str, str],
) -> _Task:
    overrides = task_overrides(task, given, definition.document["parameters"], parameters, definition.platform)
    for container in task["containers"]:
        if container["image"] in devices and not _sets_variable(container, given):
            overrides = with_variable(overrides, container["name"], VARIABLE, devices[container["image"]])
    family, revision = split_definition(task_definition)
    assert revision is not None
    found = tx.store.definitions.get(definition.region, family, revision)
    if found is None:
        raise ClientException(f"The task definition {task_definition} of the job definition was deleted. Register it again.")
    try:
        spec = task_spec(found[2], overrides)
        if definition.platform == rules.FARGATE:
            fargate.check_task(spec)
    except ApiError as error:
        raise ClientException(error.message) from None
    asks = not spec.demand.gpus and any(each.sets_visible_devices and each.visible_gpus for each in spec.containers.values())
    return _Task(task_definition, overrides, spec.demand, bool(asks) and definition.platform == rules.EC2)


def _sets_variable(container: Properties, given: Mapping[str, Properties]) -> bool:
    override = given.get(container["name"], {})
    return any(pair["name"] == VARIABLE for each in (container, override) for pair in each.get("environment", ()))


def _by_container(task: Properties, given: Properties, platform: str, *, is_single: bool) -> dict[str, Properties]:
    """Return the overrides of a request by container name."""
    single, several = given.get("containerOverrides"), given.get("ecsPropertiesOverride")
    if given.get("eksPropertiesOverride"):
        raise ClientException("Corral does not serve eksPropertiesOverride: it runs jobs as ECS tasks. Use containerOverrides.")
    if single and not is_single:
        raise ClientException("The job definition has ecsProperties. Use ecsPropertiesOverride instead of containerOverrides.")
    if several and is_single:
        raise ClientException("The job definition has no ecsProperties. Use containerOverrides instead of ecsPropertiesOverride.")
    found: dict[str, Properties] = {}
    names = [container["name"] for container in task["containers"]]
    if single:
        found = {names[0]: single}
    elif several:
        tasks = several.get("taskProperties", ())
        if len(tasks) > 1:
            raise ClientException(f"ecsPropertiesOverride.taskProperties can have only one element, not {len(tasks)}.")
        for override in tasks[0].get("containers", ()) if tasks else ():
            name = override.get("name") or (names[0] if len(names) == 1 else "")
            if name not in names:
                raise ClientException(f"The job definition has no container named '{name}': it has {', '.join(names)}.")
            if name in found:
                raise ClientException(f"ecsPropertiesOverride has the container '{name}' more than once.")
            found[name] = override
    for override in found.values():
        rules.check_environment(override.get("environment", ()))
        rules.check_sizes(override, platform)
        if "" in override.get("command", ()):
            raise ClientException("command in the overrides contains an empty string. Remove it.")
        if platform == rules.FARGATE and (override.get("vcpus") or override.get("memory")):
            raise ClientException("vcpus and memory are not applicable to jobs that run on Fargate. Use resourceRequirements.")
    return found


def _node_groups(
    tx: Tx[Store], definition: JobDefinition, given: Properties, parameters: Mapping[str, str], devices: Mapping[str, str]
) -> tuple[tuple[NodeGroup, ...], list[_Task]]:
    """Return the node groups of a multi-node job. A node group is a range of nodes with equal properties and overrides."""
    if given.get("containerOverrides") or given.get("ecsPropertiesOverride"):
        raise ClientException(
            "The job is a multi-node job. Use nodeOverrides instead of containerOverrides and ecsPropertiesOverride."
        )
    properties = definition.document["nodeProperties"]
    ranges, nodes = properties["nodeRangeProperties"], node_count(definition, given)
    targets = [each["targetNodes"] for each in ranges]
    if nodes != properties["numNodes"]:
        _check_resized(targets, nodes, properties["mainNode"])
    changes = (given.get("nodeOverrides") or {}).get("nodePropertyOverrides", [])
    for change in changes:
        if node_range(change["targetNodes"], nodes)[0] >= nodes:
            raise ClientException(
                f"nodePropertyOverrides: the range {change['targetNodes']} is outside of the {nodes} nodes of the job."
            )
    owner = owners(targets, nodes)
    changed = owners([change["targetNodes"] for change in changes], nodes)
    found, tasks = list[NodeGroup](), dict[tuple[int, int | None], _Task]()
    for first, last in groups(list(zip(owner, changed))):
        at, change_at = owner[first], changed[first]
        assert at is not None, "RegisterJobDefinition checks that the ranges include all nodes"
        if (at, change_at) not in tasks:
            task = task_properties(ranges[at], "container")
            change = changes[change_at] if change_at is not None else {}
            overrides = _by_container(task, change, definition.platform, is_single=bool(ranges[at].get("container")))
            tasks[at, change_at] = _task(tx, definition, definition.tasks[at], task, overrides, parameters, devices)
        one = tasks[at, change_at]
        task_arn = ecs_arn(tx.settings.account, definition.region, f"task-definition/{one.task_definition}")
        found.append(NodeGroup(first, last, task_arn, one.demand, one.overrides, one.asks_for_gpus))
    return tuple(found), list(tasks.values())


def _check_resized(targets: list[str], nodes: int, main: int) -> None:
    """Refuse a number of nodes in `nodeOverrides` that the ranges of the definition do not allow."""
    rules.check_node_counts(nodes, main)
    if not any(is_open(each) and node_range(each, nodes)[0] < nodes for each in targets):
        raise ClientException(
            f"nodeOverrides.numNodes {nodes} is not valid: the job definition needs a node range with an open end, such as 0:, "
            "that begins below this number."
        )
    rules.check_covered(targets, nodes)
