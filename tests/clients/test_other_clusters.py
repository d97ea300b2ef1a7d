"""What users may do with the clusters, queues and capacity providers of others, and what they see of the tasks of others."""

from __future__ import annotations

import json

import pytest

from eventually import eventually
from people.attempts import DENIED_KIND, WORKS, Actor, outcome_of
from people.setting import add_user

CONTAINER = {"name": "main", "image": "busybox", "memory": 64, "command": ["true"]}
NEEDS = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}]
PROPERTIES = {"image": "busybox", "command": ["true"], "resourceRequirements": NEEDS}
ARN = "arn:aws:ecs:us-east-1:123456789012:"


@pytest.fixture(scope="module")
def people(corral) -> dict[str, Actor]:
    """Root, and the members alice and bob of the group users. Each has a cluster, a queue and a capacity provider."""
    root = Actor("root", corral.url, **corral.keys)
    found = {"root": root, **{name: add_user(root, name, "users") for name in ("alice", "bob")}}
    for name, actor in found.items():
        ecs, batch, scaling = actor.client("ecs"), actor.client("batch"), actor.client("autoscaling")
        ecs.create_cluster(clusterName=f"{name}-cluster")
        batch.create_compute_environment(
            computeEnvironmentName=f"{name}-cluster", type="UNMANAGED", tags={"corral:cluster": f"{name}-cluster"}
        )
        order = [{"order": 1, "computeEnvironment": f"{name}-cluster"}]
        batch.create_job_queue(jobQueueName=f"{name}-queue", priority=1, computeEnvironmentOrder=order)
        template = {"ImageId": "ami-0123456789abcdef0", "InstanceType": "t3.nano"}
        actor.client("ec2").create_launch_template(LaunchTemplateName=name, LaunchTemplateData=template)
        scaling.create_auto_scaling_group(
            AutoScalingGroupName=name, MinSize=0, MaxSize=0, AvailabilityZones=["us-east-1a"],
            LaunchTemplate={"LaunchTemplateName": name},
        )  # fmt: skip
        [group] = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
        ecs.create_capacity_provider(
            name=f"{name}-provider", autoScalingGroupProvider={"autoScalingGroupArn": group["AutoScalingGroupARN"]}
        )
    bob = found["bob"]
    host = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "corral:RunOnHost", "Resource": "*"}]}
    root.client("iam").put_user_policy(UserName="bob", PolicyName="host", PolicyDocument=json.dumps(host))
    bob.client("ecs").register_task_definition(family="bob-task", containerDefinitions=[CONTAINER])
    bob.client("batch").register_job_definition(jobDefinitionName="bob-job", type="container", containerProperties=PROPERTIES)
    return found


@pytest.mark.parametrize("owner", ["alice", "root", "bob"])
def test_clusters_of_other_users(people, owner):
    ecs, batch, cluster = people["bob"].client("ecs"), people["bob"].client("batch"), f"{owner}-cluster"
    service, tags = {"serviceName": f"bob-in-{owner}", "taskDefinition": "bob-task"}, {"corral:cluster": cluster}
    calls = {
        "run": lambda: ecs.run_task(cluster=cluster, taskDefinition="bob-task"),
        "start": lambda: ecs.start_task(cluster=cluster, taskDefinition="bob-task", containerInstances=["0" * 32]),
        "service": lambda: ecs.create_service(cluster=cluster, **service, desiredCount=0),
        "environment": lambda: batch.create_compute_environment(
            computeEnvironmentName=f"bob-in-{owner}", type="UNMANAGED", tags=tags
        ),
        "job": lambda: batch.submit_job(jobName="x", jobQueue=f"{owner}-queue", jobDefinition="bob-job"),
    }
    found = {name: outcome_of(call) for name, call in calls.items()}
    denied = {name for name, outcome in found.items() if outcome.kind == DENIED_KIND}
    assert denied == ({*calls} if owner == "alice" else set()), found
    if denied:
        assert {found[name].reason for name in ("run", "start", "service", "environment")} == {
            ("ecs:RunTask", f"{ARN}cluster/{cluster}")
        }


@pytest.mark.parametrize("owner", ["alice", "root", "bob"])
def test_capacity_providers_of_others(people, owner):
    ecs, given = people["bob"].client("ecs"), {"capacityProviders": [f"{owner}-provider"]}
    found = [
        outcome_of(lambda: ecs.create_cluster(clusterName=f"bob-with-{owner}", **given)).kind,
        outcome_of(
            lambda: ecs.put_cluster_capacity_providers(cluster="bob-cluster", defaultCapacityProviderStrategy=[], **given)
        ).kind,
    ]
    assert found == [WORKS if owner == "bob" else DENIED_KIND] * 2


def test_why_containers_of_others_failed_is_not_shown(people):
    root, bob = people["root"], people["bob"]
    host = {"image": "corral/host", "memory": 64}
    containers = [
        {**host, "name": "main", "command": ["sleep", "600"]},
        {**host, "name": "side", "command": ["/nowhere/secret-tool"], "essential": False},
    ]
    root.client("ecs").register_task_definition(family="two", containerDefinitions=containers)
    [task] = root.client("ecs").run_task(taskDefinition="two")["tasks"]

    def reason(actor: Actor) -> str:
        return next(row["reason"] for row in actor.client("corral").list_runs()["running"] if row["task"] in task["taskArn"])

    eventually(lambda: "secret-tool" in reason(root))
    assert reason(bob) == ""
    root.client("ecs").stop_task(task=task["taskArn"])
