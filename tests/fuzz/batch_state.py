"""Job queues, definitions, jobs and compute environments for mutated requests to AWS Batch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

FAIR = {
    "shareDecaySeconds": 60,
    "computeReservation": 10,
    "shareDistribution": [{"shareIdentifier": "A*", "weightFactor": 0.5}, {"shareIdentifier": "B"}],
}


async def build_jobs(call: Callable[..., Awaitable[Any]], knows: Any, mark: str) -> None:
    """Resources of each kind. `mark` makes the names unique. The jobs need more than there is, so they wait."""
    name = f"fuzz-{mark}"
    unmanaged = await call(
        "CreateComputeEnvironment",
        computeEnvironmentName=name,
        type="UNMANAGED",
        state="ENABLED",
        unmanagedvCpus=4,
        tags={"a": "b"},
    )
    managed = await call(
        "CreateComputeEnvironment",
        computeEnvironmentName=f"{name}-spot",
        type="MANAGED",
        state="DISABLED",
        computeResources={
            "type": "SPOT",
            "allocationStrategy": "SPOT_CAPACITY_OPTIMIZED",
            "minvCpus": 0,
            "maxvCpus": 16,
            "bidPercentage": 60,
            "instanceTypes": ["p3.2xlarge", "g5"],
            "subnets": ["subnet-0"],
            "securityGroupIds": ["sg-0"],
            "instanceRole": "role",
            "ec2Configuration": [{"imageType": "ECS_AL2023_NVIDIA", "imageIdOverride": "ami-1"}],
            "tags": {"c": "d"},
        },
    )
    policy = (await call("CreateSchedulingPolicy", name=name, fairsharePolicy=FAIR, tags={"a": "b"}))["arn"]
    await call("CreateConsumableResource", consumableResourceName=name, totalQuantity=5, resourceType="REPLENISHABLE")
    order = [{"order": 1, "computeEnvironment": unmanaged["computeEnvironmentArn"]}]
    limits = [{"reason": "long", "state": "RUNNABLE", "maxTimeSeconds": 600, "action": "CANCEL"}]
    queue = await call(
        "CreateJobQueue",
        jobQueueName=name,
        priority=1,
        computeEnvironmentOrder=order,
        state="ENABLED",
        jobStateTimeLimitActions=limits,
        tags={"a": "b"},
    )
    await call("CreateJobQueue", jobQueueName=f"{name}-fair", priority=9, computeEnvironmentOrder=order, schedulingPolicyArn=policy)
    needs = [{"type": kind, "value": value} for kind, value in (("VCPU", "1"), ("MEMORY", "64"), ("GPU", "1"))]
    container = {
        "image": "corral/host",
        "command": ["echo", "Ref::what"],
        "resourceRequirements": needs,
        "privileged": False,
        "environment": [{"name": "A", "value": "b"}],
        "ulimits": [{"name": "nofile", "softLimit": 10, "hardLimit": 20}],
        "volumes": [{"name": "v", "host": {"sourcePath": "/tmp"}}],
        "mountPoints": [{"sourceVolume": "v", "containerPath": "/v"}],
    }
    retries = {
        "attempts": 3,
        "evaluateOnExit": [{"onExitCode": "1*", "onReason": "*", "onStatusReason": "Host*", "action": "RETRY"}],
    }
    made = await call(
        "RegisterJobDefinition",
        jobDefinitionName=name,
        type="container",
        containerProperties=container,
        retryStrategy=retries,
        timeout={"attemptDurationSeconds": 60},
        parameters={"what": "a"},
        tags={"a": "b"},
        schedulingPriority=3,
        consumableResourceProperties={"consumableResourceList": [{"consumableResource": name, "quantity": 1}]},
    )
    nodes = {"numNodes": 2, "mainNode": 0, "nodeRangeProperties": [{"targetNodes": "0:", "container": container}]}
    await call("RegisterJobDefinition", jobDefinitionName=f"{name}-nodes", type="multinode", nodeProperties=nodes)
    common = {"jobQueue": name, "jobDefinition": made["jobDefinitionArn"]}
    overrides = {"command": ["true"], "environment": [{"name": "B", "value": "c"}], "resourceRequirements": needs[:2]}
    first = await call(
        "SubmitJob",
        jobName="first",
        **common,
        containerOverrides=overrides,
        parameters={"what": "b"},
        timeout={"attemptDurationSeconds": 90},
        retryStrategy=retries,
        tags={"a": "b"},
        propagateTags=True,
    )
    array = await call(
        "SubmitJob",
        jobName="array",
        **common,
        arrayProperties={"size": 3},
        dependsOn=[{"jobId": first["jobId"]}, {"type": "SEQUENTIAL"}],
    )
    await call(
        "SubmitJob", jobName="next", **common, arrayProperties={"size": 3}, dependsOn=[{"jobId": array["jobId"], "type": "N_TO_N"}]
    )
    await call(
        "SubmitJob",
        jobName="nodes",
        jobQueue=name,
        jobDefinition=f"{name}-nodes",
        nodeOverrides={"numNodes": 3, "nodePropertyOverrides": [{"targetNodes": "0:2", "containerOverrides": overrides}]},
    )
    await call(
        "SubmitJob", jobName="fair", jobQueue=f"{name}-fair", jobDefinition=name, shareIdentifier="A1", schedulingPriorityOverride=5
    )
    await call("DescribeJobs", jobs=[first["jobId"], f"{array['jobId']}:0"])
    for filters in ([{"name": "JOB_NAME", "values": ["f*"]}], [{"name": "JOB_DEFINITION", "values": [name]}], []):
        await call("ListJobs", jobQueue=name, jobStatus="RUNNABLE", **({"filters": filters} if filters else {}))
    await call("ListJobs", arrayJobId=array["jobId"])
    await call("ListJobsByConsumableResource", consumableResource=name, filters=[{"name": "JOB_STATUS", "values": ["RUNNABLE"]}])
    await call("GetJobQueueSnapshot", jobQueue=name)
    await call("CancelJob", jobId=array["jobId"], reason="a")
    await call("TerminateJob", jobId=first["jobId"], reason="a")
    arns = [queue["jobQueueArn"], made["jobDefinitionArn"], policy, managed["computeEnvironmentArn"], first["jobArn"]]
    await call("TagResource", resourceArn=arns[0], tags={"c": "d"})
    knows(
        "batch",
        resourceArn=arns,
        jobQueue=[name, arns[0]],
        jobDefinition=[f"{name}:1", name],
        jobId=[first["jobId"], array["jobId"]],
        jobs=[first["jobId"], f"{array['jobId']}:1"],
        computeEnvironment=[name, f"{name}-spot"],
        consumableResource=name,
        arn=policy,
        schedulingPolicyArn=policy,
        arrayJobId=array["jobId"],
        jobDefinitionName=name,
        jobQueueName=name,
        shareIdentifier=["A1", "B"],
        arns=policy,
        jobQueues=name,
        computeEnvironments=name,
        jobDefinitions=f"{name}:1",
    )
