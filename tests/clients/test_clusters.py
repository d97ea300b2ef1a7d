"""Clusters and capacity providers."""

from __future__ import annotations

from typing import Any

import pytest

from harness import container


def described(ecs: Any, name: str, *include: str) -> dict[str, Any]:
    [cluster] = ecs.describe_clusters(clusters=[name], include=list(include))["clusters"]
    return cluster


def test_a_cluster_is_described_as_it_was_created(client):
    ecs = client("ecs")
    said = {
        "settings": [{"name": "containerInsights", "value": "enhanced"}],
        "configuration": {"executeCommandConfiguration": {"logging": "DEFAULT"}},
        "tags": [{"key": "team", "value": "vision"}],
        "capacityProviders": ["FARGATE", "FARGATE_SPOT"],
        "defaultCapacityProviderStrategy": [{"capacityProvider": "FARGATE", "weight": 1}],
        "serviceConnectDefaults": {"namespace": "arn:aws:servicediscovery:us-east-1:123456789012:namespace/ns-1"},
    }
    kept = {**said, "defaultCapacityProviderStrategy": [{"capacityProvider": "FARGATE", "weight": 1, "base": 0}]}
    made = ecs.create_cluster(clusterName="kept", **said)["cluster"]
    assert {key: made[key] for key in kept} == kept
    bare = described(ecs, "kept")
    assert (bare["tags"], bare["settings"], bare["statistics"]) == ([], [], []) and "configuration" not in bare
    assert bare["capacityProviders"] == kept["capacityProviders"]
    full = described(ecs, "kept", "TAGS", "SETTINGS", "CONFIGURATIONS", "ATTACHMENTS", "STATISTICS")
    assert {key: full[key] for key in kept} == kept and full["attachments"] == []
    assert ecs.create_cluster(clusterName="kept")["cluster"]["tags"] == said["tags"], "creating one that is there is no error"
    assert ecs.create_cluster(clusterName="kept", **said)["cluster"] == made
    with pytest.raises(ecs.exceptions.InvalidParameterException, match="inconsistent with arguments"):
        ecs.create_cluster(clusterName="kept", capacityProviders=["FARGATE"])


def test_updates(client):
    ecs = client("ecs")
    ecs.create_cluster(clusterName="changing", tags=[{"key": "a", "value": "b"}])
    assert described(ecs, "changing", "SETTINGS")["settings"] == [{"name": "containerInsights", "value": "disabled"}]
    ecs.update_cluster_settings(cluster="changing", settings=[{"name": "containerInsights", "value": "enabled"}])
    ecs.update_cluster(cluster="changing", configuration={"executeCommandConfiguration": {"logging": "NONE"}})
    full = described(ecs, "changing", "SETTINGS", "CONFIGURATIONS", "TAGS")
    assert full["settings"] == [{"name": "containerInsights", "value": "enabled"}]
    assert full["configuration"] == {"executeCommandConfiguration": {"logging": "NONE"}}
    assert full["tags"] == [{"key": "a", "value": "b"}]
    with pytest.raises(ecs.exceptions.InvalidParameterException):
        ecs.update_cluster_settings(cluster="changing", settings=[{"name": "containerInsights", "value": "perhaps"}])
    with pytest.raises(ecs.exceptions.ClusterNotFoundException):
        ecs.update_cluster(cluster="nowhere")


def test_a_deleted_cluster_can_be_created_again(client):
    ecs = client("ecs")
    ecs.create_cluster(clusterName="mortal", tags=[{"key": "a", "value": "b"}])
    assert ecs.delete_cluster(cluster="mortal")["cluster"]["status"] == "INACTIVE"
    assert described(ecs, "mortal")["status"] == "INACTIVE"
    assert not [arn for arn in ecs.list_clusters()["clusterArns"] if arn.endswith("/mortal")]
    with pytest.raises(ecs.exceptions.ClusterNotFoundException):
        ecs.delete_cluster(cluster="mortal")
    again = ecs.create_cluster(clusterName="mortal")["cluster"]
    assert (again["status"], again["tags"]) == ("ACTIVE", [])
    with pytest.raises(ecs.exceptions.ClientException, match="cannot be deleted"):
        ecs.delete_cluster(cluster="default")


def test_task_counts(client):
    ecs = client("ecs")
    ecs.register_task_definition(family="counted", containerDefinitions=[container(["sleep", "600"], gpus=1)])
    tasks = [ecs.run_task(taskDefinition="counted")["tasks"][0]["taskArn"] for _ in range(3)]  # there are two GPUs
    ecs.get_waiter("tasks_running").wait(tasks=tasks[:2], WaiterConfig={"Delay": 0.1, "MaxAttempts": 600})
    cluster = described(ecs, "default", "STATISTICS")
    assert (cluster["runningTasksCount"], cluster["pendingTasksCount"]) == (2, 1)
    assert cluster["registeredContainerInstancesCount"] == 1
    statistics = {each["name"]: each["value"] for each in cluster["statistics"]}
    assert statistics["runningEC2TasksCount"] == "2" and statistics["pendingEC2TasksCount"] == "1"
    assert statistics["runningFargateTasksCount"] == "0" and statistics["activeEC2ServiceCount"] == "0"
    with pytest.raises(ecs.exceptions.ClusterContainsTasksException):
        ecs.delete_cluster(cluster="default")
    for task in reversed(tasks):
        ecs.stop_task(task=task)


def test_the_default_cluster_is_this_machine(client):
    ecs = client("ecs", "eu-west-1")
    assert described(ecs, "default")["capacityProviders"] == ["host"]
    cluster = ecs.put_cluster_capacity_providers(
        cluster="default", capacityProviders=["FARGATE"], defaultCapacityProviderStrategy=[]
    )["cluster"]
    assert cluster["capacityProviders"] == ["host", "FARGATE"], "host stays"
    assert described(ecs, "default")["defaultCapacityProviderStrategy"] == []
    with pytest.raises(ecs.exceptions.ClientException):
        ecs.delete_capacity_provider(capacityProvider="host")


def test_capacity_providers(corral, client):
    ecs, group = client("ecs"), corral.group("gpus", NewInstancesProtectedFromScaleIn=True)
    made = ecs.create_capacity_provider(
        name="gpus",
        autoScalingGroupProvider={"autoScalingGroupArn": group, "managedScaling": {"status": "ENABLED", "targetCapacity": 80}},
        tags=[{"key": "a", "value": "b"}],
    )["capacityProvider"]
    assert (made["status"], made["type"], made["tags"]) == ("ACTIVE", "EC2_AUTOSCALING", [{"key": "a", "value": "b"}])
    assert made["autoScalingGroupProvider"] == {
        "autoScalingGroupArn": group,
        "managedScaling": {
            "status": "ENABLED",
            "targetCapacity": 80,
            "minimumScalingStepSize": 1,
            "maximumScalingStepSize": 10000,
            "instanceWarmupPeriod": 300,
        },
        "managedTerminationProtection": "DISABLED",
        "managedDraining": "ENABLED",
    }
    with pytest.raises(ecs.exceptions.ClientException, match="already exists"):
        ecs.create_capacity_provider(name="gpus", autoScalingGroupProvider={"autoScalingGroupArn": group})
    for name in ("FARGATE", "fargate-mine", "aws-mine", "ecs-mine", "host", "with space"):
        with pytest.raises(ecs.exceptions.ClientException, match="name is invalid"):
            ecs.create_capacity_provider(name=name, autoScalingGroupProvider={"autoScalingGroupArn": group})
    changed = ecs.update_capacity_provider(
        name="gpus",
        autoScalingGroupProvider={"managedScaling": {"targetCapacity": 90}, "managedTerminationProtection": "ENABLED"},
    )["capacityProvider"]
    assert changed["autoScalingGroupProvider"]["managedScaling"]["targetCapacity"] == 90
    assert changed["autoScalingGroupProvider"]["managedTerminationProtection"] == "ENABLED"
    with pytest.raises(ecs.exceptions.ClientException, match="less than or equal to 100"):
        ecs.update_capacity_provider(name="gpus", autoScalingGroupProvider={"managedScaling": {"targetCapacity": 101}})

    shown = ecs.describe_capacity_providers()["capacityProviders"]
    assert [provider["name"] for provider in shown] == ["FARGATE", "FARGATE_SPOT", "gpus", "host"]
    assert all(provider["tags"] == [] for provider in shown)
    reply = ecs.describe_capacity_providers(capacityProviders=[made["capacityProviderArn"], "nothing"], include=["TAGS"])
    assert [provider["tags"] for provider in reply["capacityProviders"]] == [[{"key": "a", "value": "b"}]]
    assert [failure["reason"] for failure in reply["failures"]] == ["MISSING"]
    first = ecs.describe_capacity_providers(maxResults=3)
    rest = ecs.describe_capacity_providers(maxResults=3, nextToken=first["nextToken"])
    assert [each["name"] for each in first["capacityProviders"] + rest["capacityProviders"]] == [each["name"] for each in shown]

    ecs.create_cluster(clusterName="with-gpus", capacityProviders=["gpus"])
    of_cluster = ecs.describe_capacity_providers(cluster="with-gpus")["capacityProviders"]
    assert [provider["name"] for provider in of_cluster] == ["gpus"]
    failed = ecs.delete_capacity_provider(capacityProvider="gpus")["capacityProvider"]
    assert (failed["status"], failed["updateStatus"], failed["updateStatusReason"]) == (
        "ACTIVE",
        "DELETE_FAILED",
        "The capacity provider cannot be deleted because it is associated with cluster: with-gpus. "
        "Remove the capacity provider from the cluster and try again.",
    )
    ecs.put_cluster_capacity_providers(cluster="with-gpus", capacityProviders=[], defaultCapacityProviderStrategy=[])
    deleted = ecs.delete_capacity_provider(capacityProvider="gpus")["capacityProvider"]
    assert (deleted["status"], deleted["updateStatus"]) == ("INACTIVE", "DELETE_COMPLETE") and "updateStatusReason" not in deleted
    with pytest.raises(ecs.exceptions.ClientException, match="does not exist"):
        ecs.delete_capacity_provider(capacityProvider="gpus")


def test_the_group_of_a_capacity_provider(corral, client):
    """The request gives the name or the ARN of a group that exists. Each group has at most one provider."""
    ecs, group = client("ecs"), corral.group("plain")

    def create(name: str, given: str, **more: Any) -> dict[str, Any]:
        return ecs.create_capacity_provider(name=name, autoScalingGroupProvider={"autoScalingGroupArn": given, **more})

    for given in ("no-such-group", group.replace("/plain", "/other"), group.replace("Group:", "Group:0")):
        with pytest.raises(ecs.exceptions.ClientException, match="of this Region and try again"):
            create("plain", given)
    protected = {"managedScaling": {"status": "ENABLED"}, "managedTerminationProtection": "ENABLED"}
    with pytest.raises(ecs.exceptions.ClientException, match="must have instance protection from scale in enabled"):
        create("plain", group, **protected)
    with pytest.raises(ecs.exceptions.ClientException, match="enable managed scaling"):
        create("plain", group, managedTerminationProtection="ENABLED")
    made = create("plain", "plain")["capacityProvider"]
    assert made["autoScalingGroupProvider"]["autoScalingGroupArn"] == group
    with pytest.raises(ecs.exceptions.ClientException, match="already being used by another capacity provider"):
        create("second", group)
    with pytest.raises(ecs.exceptions.ClientException, match="must have instance protection from scale in enabled"):
        ecs.update_capacity_provider(name="plain", autoScalingGroupProvider=protected)
    ecs.delete_capacity_provider(capacityProvider="plain")
    assert create("second", group)["capacityProvider"]["status"] == "ACTIVE"


@pytest.mark.parametrize(
    ("providers", "strategy", "words"),
    [
        (["nothing"], [], "'nothing' was not found"),
        (["host"], [], "is the hosts themselves"),
        (["FARGATE", "FARGATE"], [], "duplicate"),
        (["FARGATE"], [{"capacityProvider": "FARGATE_SPOT"}], "not associated with the cluster: FARGATE_SPOT"),
        (["FARGATE"], [{"capacityProvider": "FARGATE", "weight": 1001}], "weight must be between"),
        (
            ["FARGATE", "FARGATE_SPOT"],
            [{"capacityProvider": name, "base": 1} for name in ("FARGATE", "FARGATE_SPOT")],
            "can have a base",
        ),
    ],
)
def test_providers_and_strategies_that_are_refused(client, providers, strategy, words):
    ecs = client("ecs")
    ecs.create_cluster(clusterName="strict")
    with pytest.raises(ecs.exceptions.InvalidParameterException, match=words):
        ecs.put_cluster_capacity_providers(cluster="strict", capacityProviders=providers, defaultCapacityProviderStrategy=strategy)


def test_with_the_aws_command(aws):
    aws("ecs", "create-cluster", "--cluster-name", "cli", "--tags", "key=a,value=b")
    aws(
        "ecs", "put-cluster-capacity-providers", "--cluster", "cli", "--capacity-providers", "FARGATE", "FARGATE_SPOT",
        "--default-capacity-provider-strategy", "capacityProvider=FARGATE,weight=1,base=1",
        "capacityProvider=FARGATE_SPOT,weight=4",
    )  # fmt: skip
    [cluster] = aws("ecs", "describe-clusters", "--clusters", "cli", "--include", "TAGS")["clusters"]
    assert cluster["tags"] == [{"key": "a", "value": "b"}]
    assert cluster["defaultCapacityProviderStrategy"][1] == {"capacityProvider": "FARGATE_SPOT", "weight": 4, "base": 0}
