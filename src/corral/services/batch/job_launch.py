"""Makes the requests that launch the attempts of Batch jobs as ECS tasks.

All children of an array have the same task definition and the same overrides. The environment variables that differ between the
children, such as AWS_BATCH_JOB_ARRAY_INDEX, are in `LaunchRequest.job_environment`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from corral.core.transactions import Tx
from corral.model.agent_protocol import HostOptions
from corral.model.compute_environment import ComputeEnvironment
from corral.model.job import STARTED_BY, Job, JobKind, JobSpec, NodeGroup
from corral.model.pause import PREEMPTIBLE_TAG, TURNS_TAG, PauseTagError, pause_of_tags
from corral.services.batch.environments import pool_of
from corral.services.batch.errors import ClientException
from corral.services.batch.job_definitions import definition_of
from corral.services.batch.job_queues import find_queue
from corral.services.batch.node_addresses import main_node_address, node_address
from corral.services.batch.task_documents import task_properties
from corral.services.ecs.launch import LaunchRequest
from corral.services.ecs.lookup import split_definition
from corral.services.ecs.run_spec import MAIN_NODE_ADDRESS, NODE_ADDRESS, SOCKET_INTERFACES
from corral.services.ecs.task_capacity import Capacity
from corral.store import Store

CACHED_REQUESTS_MAX = 1_000
Hosts = Sequence[HostOptions] | None  # the host of each node of a multi-node job; None: all nodes run on one host


class _Cached(NamedTuple):
    spec: JobSpec  # the cache key contains id(spec): this reference keeps the spec alive, so no other object can get the same id
    environment: ComputeEnvironment  # if the environment has changed, callers pass another object, and the request is made again
    request: LaunchRequest


# id of the spec, queue, environment, first node of the node group (-1 if the job is no multi-node job) → request
_cache: dict[tuple[int, str, str, int], _Cached] = {}


def launch_request(
    tx: Tx[Store], job: Job, environment: ComputeEnvironment, *, node: int | None = None, hosts: Hosts = None
) -> LaunchRequest:
    """Return the request to launch the next attempt of a job in a compute environment.

    `job` is a job with one task, or the parent of a multi-node job. For the parent, `node` is the index of the node to launch, and
    `hosts` has the host of each node, if they run on several hosts.
    """
    spec = job.spec
    group = _group_of(spec, node) if node is not None else None
    key = (id(spec), job.queue, environment.name, group.first if group is not None else -1)
    found = _cache.get(key)
    if found is None or found.spec is not spec or found.environment is not environment:
        if len(_cache) >= CACHED_REQUESTS_MAX:
            del _cache[next(iter(_cache))]
        found = _cache[key] = _Cached(spec, environment, _base_request(tx, job, environment, group))
    request = found.request
    if request.pause is not None and (queue := find_queue(tx, job.region, job.queue)) is not None:
        scheduling_priority = spec.priority if queue.policy_arn else 0
        request = replace(request, pause=request.pause.but(priority=(0.0, float(queue.priority), float(scheduling_priority))))
    started_by = f"{STARTED_BY}{job.id}" if node is None else f"{STARTED_BY}{job.id}#{node}"
    return replace(request, started_by=started_by, job_environment=job_environment(tx, job, environment.name, node, hosts))


def job_environment(tx: Tx[Store], job: Job, environment: str, node: int | None, hosts: Hosts) -> dict[str, str]:
    """Return the environment variables that Batch sets for the next attempt of a job."""
    variables = {
        "AWS_BATCH_JOB_ID": job.id if node is None else f"{job.id}#{node}",
        "AWS_BATCH_JOB_ATTEMPT": str(len(job.attempts) + 1),
        "AWS_BATCH_JQ_NAME": job.queue,
        "AWS_BATCH_CE_NAME": environment,
    }
    if job.kind is JobKind.CHILD:
        variables["AWS_BATCH_JOB_ARRAY_INDEX"] = str(job.index)
        variables["AWS_BATCH_JOB_ARRAY_SIZE"] = str(_array_size(tx, job))
    if node is not None:
        variables |= {
            "AWS_BATCH_JOB_NODE_INDEX": str(node),
            "AWS_BATCH_JOB_NUM_NODES": str(job.size),
            "AWS_BATCH_JOB_MAIN_NODE_INDEX": str(job.spec.main_node),
            NODE_ADDRESS: node_address(tx, job, node) if hosts is None else hosts[node].address,
        }
        main = job.spec.main_node
        if node != main:
            variables[MAIN_NODE_ADDRESS] = main_node_address(tx, job) if hosts is None else hosts[main].address
        if hosts is not None and hosts[node].interface:
            variables |= dict.fromkeys(SOCKET_INTERFACES, hosts[node].interface)
    return variables


def _array_size(tx: Tx[Store], child: Job) -> int:
    if child.size:
        return child.size
    parent = tx.store.jobs.get(child.parent_id)
    assert parent is not None, "a child exists only while its parent exists"
    return parent.size


def _group_of(spec: JobSpec, node: int) -> NodeGroup:
    return next(group for group in spec.nodes if group.first <= node <= group.last)


def _base_request(tx: Tx[Store], job: Job, environment: ComputeEnvironment, group: NodeGroup | None) -> LaunchRequest:
    """Return a request with the members that are equal for all jobs with this spec in this queue and environment."""
    spec = job.spec
    family, revision = split_definition(group.definition_arn if group is not None else spec.task_definition)
    found = tx.store.definitions.get(job.region, family, revision)
    if found is None:
        raise ClientException(f"The task definition {family}:{revision} of the job was deleted. Register the job definition again.")
    definition = definition_of(tx, job.region, spec.definition_arn)
    if group is None:
        task = task_properties(definition.document, "containerProperties")
    else:
        ranges = definition.document["nodeProperties"]["nodeRangeProperties"]
        at = definition.tasks.index(f"{family}:{revision}")
        task = task_properties(ranges[at], "container")
    is_fargate = environment.kind.startswith("FARGATE")
    tags = {**definition.document.get("tags", {}), **spec.tags} if spec.propagate_tags else {}
    network = None
    if is_fargate:
        resources = environment.document.get("computeResources", {})
        network = {
            "awsvpcConfiguration": {
                "subnets": resources.get("subnets", []),
                "securityGroups": resources.get("securityGroupIds", []),
                **task.get("networkConfiguration", {}),
            }
        }
    given = {**definition.document.get("tags", {}), **spec.tags}
    try:
        pause = pause_of_tags({key: given[key] for key in (PREEMPTIBLE_TAG, TURNS_TAG) if key in given}, (0.0,))
    except PauseTagError as error:
        raise ClientException(str(error)) from error
    return LaunchRequest(
        pause=pause,
        owner=job.owner,
        region=job.region,
        cluster=environment.cluster,
        definition=found[2],
        revision=found[0],
        capacity=Capacity("FARGATE" if is_fargate else "EC2", (pool_of(tx, environment),), waits=True),
        overrides=group.overrides if group is not None else spec.overrides,
        group=f"batch:{job.queue}",
        tags=[{"key": key, "value": value} for key, value in tags.items()],
        network_configuration=network,
        platform_version=task.get("platformVersion") if is_fargate else None,
        enable_execute_command=bool(task.get("enableExecuteCommand")),
        attempt_timeout_s=spec.timeout_s,
        only_in_docker=spec.only_in_docker,
        as_account=spec.as_account,
        passed_from=spec.passed_from,
    )
