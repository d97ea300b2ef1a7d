"""Requests of Batch."""

from __future__ import annotations

from typing import Any

from answers.calls import OTHER, SAME, Calls
from harness import eventually

ROLE = "arn:aws:iam::123456789012:role/a"
SECRETS = [{"name": "S", "valueFrom": "arn:aws:ssm:us-east-1:123456789012:parameter/a"}]
SIZE = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "16"}]
RUNS = {"image": "corral/host", "command": ["true"], "resourceRequirements": SIZE}
FARGATE_SIZE = [{"type": "VCPU", "value": "0.25"}, {"type": "MEMORY", "value": "512"}]
FARGATE = {
    "executionRoleArn": ROLE,
    "networkConfiguration": {"assignPublicIp": "ENABLED"},
    "ephemeralStorage": {"sizeInGiB": 30},
    "runtimePlatform": {"cpuArchitecture": "X86_64", "operatingSystemFamily": "LINUX"},
}
FAIR = {"shareDecaySeconds": 60, "computeReservation": 1, "shareDistribution": [{"shareIdentifier": "A", "weightFactor": 0.5}]}
STATUSES = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING", "SUCCEEDED", "FAILED")
LARGE = {"resourceRequirements": [{"type": "VCPU", "value": "192"}]}
LIMIT = {"reason": "long", "state": "RUNNABLE", "maxTimeSeconds": 600, "action": "CANCEL"}


def requests(calls: Calls) -> None:
    name = "answers"
    environment(calls, name)
    policy = calls.twice("CreateSchedulingPolicy", "ClientException", name=name, fairsharePolicy=FAIR, tags={"a": "b"})["arn"]
    calls.twice("UpdateSchedulingPolicy", SAME, arn=policy, fairsharePolicy=FAIR)
    calls("DescribeSchedulingPolicies", arns=[policy])
    calls("ListSchedulingPolicies")
    order = [{"order": 1, "computeEnvironment": name}]
    given = {"jobQueueName": name, "priority": 1, "computeEnvironmentOrder": order, "schedulingPolicyArn": policy}
    given |= {"jobStateTimeLimitActions": [LIMIT], "tags": {"a": "b"}}
    queue = calls.twice("CreateJobQueue", "ClientException", **given)["jobQueueArn"]
    shown = lambda: calls.of("batch").describe_job_queues(jobQueues=[name])["jobQueues"][0]["status"]  # noqa: E731
    eventually(lambda: shown() == "VALID", "the queue is valid")
    calls("DescribeJobQueues", jobQueues=[name])
    calls.twice("UpdateJobQueue", SAME, jobQueue=name, priority=2)
    calls.twice("TagResource", SAME, resourceArn=queue, tags={"c": "d"})
    calls("ListTagsForResource", resourceArn=queue)
    calls.twice("UntagResource", SAME, resourceArn=queue, tagKeys=["c"])
    fargate = {"jobQueueName": f"{name}-fargate", "priority": 1}
    fargate["computeEnvironmentOrder"] = [{"order": 1, "computeEnvironment": f"{name}-fargate"}]
    calls("CreateJobQueue", **fargate)
    consumable(calls, name)
    definitions(calls, name)
    jobs(calls, name)
    refusals(calls)
    calls("UpdateJobQueue", jobQueue=name, state="DISABLED")
    batch = calls.of("batch")
    gone = lambda: not batch.describe_job_queues(jobQueues=[name])["jobQueues"]  # noqa: E731
    calls.twice("DeleteJobQueue", SAME, gone, jobQueue=name)
    calls.twice("DeleteSchedulingPolicy", "ClientException", arn=policy)
    calls("UpdateComputeEnvironment", computeEnvironment=name, state="DISABLED")
    gone = lambda: not batch.describe_compute_environments(computeEnvironments=[name])["computeEnvironments"]  # noqa: E731
    calls.twice("DeleteComputeEnvironment", SAME, gone, computeEnvironment=name)


def environment(calls: Calls, name: str) -> None:
    own = {"computeEnvironmentName": name, "type": "UNMANAGED", "unmanagedvCpus": 4, "tags": {"corral:cluster": "default"}}
    calls.twice("CreateComputeEnvironment", "ClientException", **own)
    resources = {
        "type": "EC2", "minvCpus": 0, "maxvCpus": 4, "desiredvCpus": 0, "instanceTypes": ["g5.xlarge"], "subnets": ["subnet-0"],
        "securityGroupIds": ["sg-0"], "instanceRole": "role", "ec2KeyPair": "key", "imageId": "ami-1", "tags": {"a": "b"},
        "placementGroup": "p", "allocationStrategy": "BEST_FIT_PROGRESSIVE",
        "ec2Configuration": [{"imageType": "ECS_AL2023", "imageIdOverride": "ami-2"}],
    }  # fmt: skip
    calls("CreateComputeEnvironment", computeEnvironmentName=f"{name}-2", type="MANAGED", computeResources=resources, context="c")
    template = {"launchTemplateName": "none", "version": "1", "userdataType": "EKS_BOOTSTRAP_SH"}
    template["overrides"] = [{"launchTemplateId": "lt-1", "version": "1", "targetInstanceTypes": ["g5.xlarge"]}]
    spot = {**resources, "launchTemplate": {"launchTemplateId": "lt-1", "overrides": template["overrides"]}}
    calls("CreateComputeEnvironment", computeEnvironmentName=f"{name}-4", type="MANAGED", computeResources=spot)
    template["overrides"] = [{"launchTemplateName": "a", "targetInstanceTypes": ["g5.xlarge"], "userdataType": "EKS_BOOTSTRAP_SH"}]
    spot = {**resources, "type": "SPOT", "spotIamFleetRole": "role", "bidPercentage": 50, "launchTemplate": template}
    calls("CreateComputeEnvironment", computeEnvironmentName=f"{name}-3", type="MANAGED", computeResources=spot)
    policy = {"terminateJobsOnUpdate": True, "jobExecutionTimeoutMinutes": 5}
    calls.twice("UpdateComputeEnvironment", SAME, computeEnvironment=f"{name}-2", updatePolicy=policy)
    subnet = calls.of("ec2").describe_subnets()["Subnets"][0]["SubnetId"]
    group = calls.of("ec2").describe_security_groups()["SecurityGroups"][0]["GroupId"]
    fargate = {"type": "FARGATE", "maxvCpus": 1, "subnets": [subnet], "securityGroupIds": [group]}
    calls("CreateComputeEnvironment", computeEnvironmentName=f"{name}-fargate", type="MANAGED", computeResources=fargate)
    eventually(lambda: environment_status(calls, name) == "VALID", "the environment is valid")
    eventually(lambda: environment_status(calls, f"{name}-fargate") == "VALID", "the environment on Fargate is valid")
    for each in (f"{name}-2", f"{name}-3", f"{name}-4"):  # their subnets do not exist
        eventually(lambda each=each: environment_status(calls, each) == "INVALID", f"the environment {each} is not valid")
    calls("DescribeComputeEnvironments")
    calls("DescribeComputeEnvironments", computeEnvironments=[name])


def environment_status(calls: Calls, name: str) -> str:
    found = calls.of("batch").describe_compute_environments(computeEnvironments=[name])["computeEnvironments"]
    return str(found[0]["status"])


def consumable(calls: Calls, name: str) -> None:
    given = {"consumableResourceName": name, "totalQuantity": 5, "resourceType": "REPLENISHABLE", "tags": {"a": "b"}}
    calls.twice("CreateConsumableResource", "ClientException", **given)
    calls.twice("UpdateConsumableResource", SAME, consumableResource=name, operation="ADD", quantity=1, clientToken="a")
    calls("DescribeConsumableResource", consumableResource=name)
    calls("ListConsumableResources")
    calls("ListJobsByConsumableResource", consumableResource=name)
    calls("CreateConsumableResource", consumableResourceName=f"{name}-2")
    calls.twice("DeleteConsumableResource", "ClientException", consumableResource=f"{name}-2")


def definitions(calls: Calls, name: str) -> None:
    used = [{"consumableResource": name, "quantity": 1}]
    definition = {"jobDefinitionName": name, "type": "container", "containerProperties": RUNS}
    definition |= {"consumableResourceProperties": {"consumableResourceList": used}, "tags": {"a": "b"}}
    made = calls.twice("RegisterJobDefinition", OTHER, **definition)["jobDefinitionArn"]
    for at, more in enumerate(full_definitions(calls)):
        calls("RegisterJobDefinition", **more, jobDefinitionName=f"{name}-{at}")
        queue = f"{name}-fargate" if more.get("platformCapabilities") == ["FARGATE"] else name
        given = {"jobName": f"full-{at}", "jobQueue": queue, "jobDefinition": f"{name}-{at}"}
        job = calls("SubmitJob", **given, **({"shareIdentifier": "A"} if queue == name else {}))["jobId"]
        parts = [job, f"{job}#0", f"{job}#1"]
        eventually(lambda parts=parts: set(statuses(calls, parts)) == {"FAILED"}, "no host has what the job needs")
        calls("DescribeJobs", jobs=parts[:2])
        if more["type"] == "multinode":
            for status in STATUSES:
                calls("ListJobs", multiNodeJobId=job, jobStatus=status)
        calls("DescribeJobDefinitions", jobDefinitionName=f"{name}-{at}")
    calls("DescribeJobDefinitions", jobDefinitionName=name)
    calls.twice("DeregisterJobDefinition", SAME, jobDefinition=made)


def full_definitions(calls: Calls) -> list[dict[str, Any]]:
    """Definitions with all members that Corral does not refuse."""
    values: dict[str, Any] = {
        "resourceRequirements": SIZE,
        "volumes": [{"name": "a", "host": {"sourcePath": "/tmp"}}],
        "mountPoints": [{"sourceVolume": "a", "containerPath": "/a", "readOnly": True}],
        "logConfiguration": {"logDriver": "awslogs", "options": {"awslogs-group": "/a"}, "secretOptions": SECRETS},
        "secrets": SECRETS,
        "jobRoleArn": ROLE,
        "executionRoleArn": ROLE,
        "taskRoleArn": ROLE,
        "onExitCode": "1",
        "schedulingPriority": 1,
        "attemptDurationSeconds": 60,
        "platformCapabilities": ["EC2"],
        "essential": True,
        "image": "corral/host",
        "networkMode": "host",
        "name": "a",
        "environment": [{"name": "A", "value": "b"}],
        "firelensConfiguration": {"type": "fluentbit", "options": {"a": "b"}},
        "consumableResource": "answers",
        "instanceType": "g5.xlarge",
        "instanceTypes": ["g5.xlarge"],
        "numNodes": 2,
        "mainNode": 0,
        "targetNodes": "0:1",
        "action": "RETRY",
        "ulimits": [{"name": "nofile", "softLimit": 1, "hardLimit": 1}],
        "attempts": 2,
        "ipcMode": "host",
        "pidMode": "host",
    }
    no = "jobDefinitionName eksProperties vcpus memory networkConfiguration fargatePlatformConfiguration platformVersion"
    no += " networkMode ephemeralStorage runtimePlatform efsVolumeConfiguration s3filesVolumeConfiguration propagateTags"
    full = lambda without, **more: calls.full("RegisterJobDefinition", f"{no} {without}", **values, **more)  # noqa: E731
    several = full("containerProperties nodeProperties instanceType dependsOn", type="container")
    [task] = several["ecsProperties"]["taskProperties"]
    after = [{"containerName": "a", "condition": "START"}]
    task["containers"].append({"name": "b", "image": "corral/host", "resourceRequirements": SIZE, "dependsOn": after})
    container = {"image": "a", "resourceRequirements": FARGATE_SIZE}
    alone = {**container, **FARGATE, "fargatePlatformConfiguration": {"platformVersion": "1.4.0"}}
    together = {"containers": [{**container, "name": "a"}], **FARGATE, "platformVersion": "1.4.0"}
    nodes = full("containerProperties ecsProperties dependsOn instanceType", type="multinode")
    [first] = nodes["nodeProperties"]["nodeRangeProperties"]
    last = {name: value for name, value in first.items() if name != "container"}
    last |= {"targetNodes": "1:1", "ecsProperties": {"taskProperties": [{"containers": [{**RUNS, "name": "a"}]}]}}
    nodes["nodeProperties"]["nodeRangeProperties"] = [{**first, "targetNodes": "0:0"}, last]
    return [
        several,
        nodes,
        full("ecsProperties nodeProperties instanceType", type="container"),
        {"type": "container", "containerProperties": {"image": "a", "vcpus": 1, "memory": 16}, "tags": {"a": "b"}},
        {"type": "container", "containerProperties": alone, "platformCapabilities": ["FARGATE"], "propagateTags": True},
        {"type": "container", "ecsProperties": {"taskProperties": [together]}, "platformCapabilities": ["FARGATE"]},
    ]


def statuses(calls: Calls, jobs: list[str]) -> list[str]:
    return [job["status"] for job in calls.of("batch").describe_jobs(jobs=jobs)["jobs"]]


def unfinished(calls: Calls, name: str) -> list[str]:
    pages = [calls.of("batch").list_jobs(jobQueue=name, jobStatus=status) for status in STATUSES[:-2]]
    return [job["jobId"] for page in pages for job in page["jobSummaryList"]]


def jobs(calls: Calls, name: str) -> None:
    common = {"jobName": "j", "jobQueue": name, "shareIdentifier": "A", "jobDefinition": name}

    def submit(**more: Any) -> str:
        return str(calls("SubmitJob", **common | more)["jobId"])

    calls.twice("SubmitJob", OTHER, jobName="j", jobQueue=name, jobDefinition=name, shareIdentifier="A")
    first = submit(containerOverrides=LARGE)  # it waits, and so do those that depend on it: nothing moves between two calls
    last = submit(dependsOn=[{"jobId": first}], timeout={"attemptDurationSeconds": 60}, tags={"a": "b"})
    array = submit(arrayProperties={"size": 2}, dependsOn=[{"jobId": first}, {"type": "SEQUENTIAL"}])
    calls("ListJobs", jobQueue=name, jobStatus="PENDING")
    calls("ListJobs", arrayJobId=array)
    calls.twice("GetJobQueueSnapshot", OTHER, jobQueue=name)
    calls.twice("CancelJob", SAME, jobId=last, reason="a")
    calls.twice("TerminateJob", SAME, jobId=array, reason="a")
    calls.twice("CancelJobs", SAME, jobs=[last, "none"], reason="a")
    calls.twice("TerminateJobs", SAME, jobs=[array, "none"], reason="a")
    wrong = {**RUNS, "name": "a", "command": ["/no/such/program"]}
    several = {"taskProperties": [{"containers": [wrong]}]}
    calls("RegisterJobDefinition", jobDefinitionName="wrong", type="container", ecsProperties=several)
    ended = [submit(jobDefinition="wrong"), submit(containerOverrides={"command": wrong["command"]})]
    eventually(lambda: statuses(calls, ended) == ["FAILED"] * 2, "the jobs have failed")
    calls("DescribeJobs", jobs=ended)
    calls("DescribeJobs", jobs=[first, last, array, f"{array}:0"])
    calls("CancelJob", jobId=first, reason="a")
    eventually(lambda: not unfinished(calls, name), "all jobs have ended")
    for status in STATUSES:
        calls("ListJobs", jobQueue=name, jobStatus=status)
    calls("ListJobsByConsumableResource", consumableResource=name)


def refusals(calls: Calls) -> None:
    nothing = dict.fromkeys(("jobQueue", "jobDefinition", "computeEnvironment", "consumableResource"), "none")
    calls.all_refused("ClientException", "*", "Delete* List* Describe*", **nothing, resourceArn=calls.arn("job-queue/none"))
    calls.refused("UpdateSchedulingPolicy", "ClientException", arn=calls.arn("scheduling-policy/none"))
    calls.all_refused("ClientException", "ListTags* ListJobs*", **nothing, resourceArn=calls.arn("job-queue/none"))
    calls.all_refused("ClientException", "List* Describe*", "ListTags*", nextToken="none")
