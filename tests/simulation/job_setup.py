"""Queues, environments and job definitions of the world with random graphs of Batch jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from corral.services.batch import job_definitions, queue_requests, resource_requests, scheduling_policies
from virtual_clock.group_world import GPUS_1
from virtual_clock.job_world import definition

if TYPE_CHECKING:
    from simulation.job_graphs import JobGraphs

GPUS = 6
QUEUES = {"urgent": 9, "work": 5, "fair": 5, "grow": 1}  # name → priority
SHARES = {"small": 1.0, "large": 0.25}  # share → weight; a smaller weight gets more capacity
DECAY_S = 600
LICENCES = 2


def create_resources(world: JobGraphs) -> None:
    """Create them by requests. The queue `grow` has environments that scale; the others use the whole machine."""

    def call(handler: Any, **params: Any) -> Any:
        return world.batch_call(handler, **world.parts.params(handler.__name__, params))

    shares = [{"shareIdentifier": share, "weightFactor": weight} for share, weight in SHARES.items()]
    policy = {"shareDecaySeconds": DECAY_S, "computeReservation": 0, "shareDistribution": shares}
    arn = call(scheduling_policies.create_scheduling_policy, name="fair", fairsharePolicy=policy)["arn"]
    call(
        resource_requests.create_consumable_resource,
        consumableResourceName="licence", totalQuantity=LICENCES, resourceType="REPLENISHABLE",
    )  # fmt: skip
    world.create("grow", computeResources=world.resources(GPUS_1, most=12))
    world.create("spot", computeResources=world.resources(GPUS_1, kind="SPOT", most=12))
    for name, priority in QUEUES.items():
        environments = ("grow", "spot") if name == "grow" else ("here",)
        order = [{"order": at, "computeEnvironment": each} for at, each in enumerate(environments)]
        more = {"schedulingPolicyArn": arn} if name == "fair" else {}
        call(queue_requests.create_job_queue, jobQueueName=name, priority=priority, computeEnvironmentOrder=order, **more)
    for name, gpus in (("two", 2), ("cpu", 0), ("all", GPUS)):
        call(job_definitions.register_job_definition, **definition(name, gpus=gpus))
    call(job_definitions.register_job_definition, **definition("licensed", gpus=1, resources={"licence": 1}))
    needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}, {"type": "GPU", "value": "1"}]
    container = {"image": "corral/host", "command": ["true"], "resourceRequirements": needs}
    nodes = {"numNodes": 3, "mainNode": 1, "nodeRangeProperties": [{"targetNodes": "0:", "container": container}]}
    call(job_definitions.register_job_definition, jobDefinitionName="nodes", type="multinode", nodeProperties=nodes)
