"""Requests of ECS."""

from __future__ import annotations

from typing import Any

from answers.calls import ACCOUNT, NOW, OTHER, SAME, Calls
from harness import container, eventually

HERE = {"cluster": "answers"}
TAGS = [{"key": "a", "value": "b"}]


def requests(calls: Calls) -> None:
    ecs = calls.of("ecs")
    calls.twice("CreateCluster", SAME, clusterName="answers", tags=TAGS)
    calls.twice("UpdateCluster", SAME, cluster="answers", settings=[{"name": "containerInsights", "value": "enabled"}])
    calls.twice("UpdateClusterSettings", SAME, cluster="answers", settings=[{"name": "containerInsights", "value": "disabled"}])
    calls(
        "DescribeClusters",
        clusters=["answers", "none"],
        include=["SETTINGS", "TAGS", "STATISTICS", "CONFIGURATIONS", "ATTACHMENTS"],
    )
    calls("ListClusters")
    definitions(calls)
    tasks(calls)
    instances(calls)
    services(calls)
    task_sets(calls)
    all_members(calls)
    settings(calls)
    providers(calls)
    nodes(calls)
    refusals(calls)
    for arn in ecs.list_tasks()["taskArns"]:
        ecs.stop_task(task=arn)
    calls.twice("DeleteCluster", "ClusterNotFoundException", cluster="answers")
    calls.all_denied("AccessDeniedException")


def definitions(calls: Calls) -> None:
    given = {"family": "answers", "containerDefinitions": [container(["sleep", "600"])], "tags": TAGS}
    calls.twice("RegisterTaskDefinition", OTHER, **given)
    calls("DescribeTaskDefinition", taskDefinition="answers", include=["TAGS"])
    calls("ListTaskDefinitions", familyPrefix="answers")
    calls("ListTaskDefinitionFamilies", familyPrefix="answers")
    calls("RegisterTaskDefinition", **given)
    calls.twice("DeregisterTaskDefinition", SAME, taskDefinition="answers:1")
    calls.twice("DeleteTaskDefinitions", SAME, taskDefinitions=["answers:1", "answers:2"])


def tasks(calls: Calls) -> None:
    ecs = calls.of("ecs")
    started = calls.twice("RunTask", OTHER, taskDefinition="answers", enableExecuteCommand=True, startedBy="a", tags=TAGS)["tasks"][
        0
    ]
    running = lambda: ecs.describe_tasks(tasks=[started["taskArn"]])["tasks"][0]["lastStatus"] == "RUNNING"  # noqa: E731
    eventually(running, "the task runs")
    task = {"task": started["taskArn"]}
    calls("DescribeTasks", tasks=[started["taskArn"], "0" * 32], include=["TAGS"])
    calls("ListTasks")
    protection = {"cluster": "default", "protectionEnabled": True}
    calls.refused("UpdateTaskProtection", "InvalidParameterException", tasks=[], **protection)
    calls.twice("UpdateTaskProtection", OTHER, tasks=[started["taskArn"], "0" * 32], **protection)  # it expires later
    calls("GetTaskProtection", tasks=[started["taskArn"], "0" * 32], cluster="default")
    calls.twice("ExecuteCommand", OTHER, **task, command="true", interactive=True)
    [instance] = ecs.list_container_instances()["containerInstanceArns"]
    calls.twice("StartTask", OTHER, taskDefinition="answers", containerInstances=[instance, f"{instance[:-4]}0000"])
    calls.twice("StopTask", NOW, **task, reason="a")
    resource = {"resourceArn": started["taskArn"]}
    calls.twice("TagResource", SAME, **resource, tags=[{"key": "c", "value": "d"}])
    calls("ListTagsForResource", **resource)
    calls.twice("UntagResource", SAME, **resource, tagKeys=["c"])


def instances(calls: Calls) -> None:
    [instance] = calls.of("ecs").list_container_instances()["containerInstanceArns"]
    one = {"containerInstances": [instance]}
    calls("ListContainerInstances")
    calls("DescribeContainerInstances", containerInstances=[instance, "0" * 32], include=["TAGS", "CONTAINER_INSTANCE_HEALTH"])
    calls.twice("UpdateContainerInstancesState", NOW, containerInstances=[instance, "0" * 32], status="DRAINING")
    calls("UpdateContainerInstancesState", **one, status="ACTIVE")
    attribute = {"attributes": [{"name": "stack", "value": "a", "targetId": instance}]}
    calls.twice("PutAttributes", SAME, **attribute)
    calls("ListAttributes", targetType="container-instance", attributeName="stack")
    calls.twice("DeleteAttributes", SAME, **attribute)
    calls.refused("DeregisterContainerInstance", "ClientException", containerInstance=instance)


def services(calls: Calls) -> None:
    ecs = calls.of("ecs")
    service = {"serviceName": "web", "taskDefinition": "answers", "desiredCount": 0, "tags": TAGS}
    calls.twice("CreateService", "InvalidParameterException", **service)
    calls.twice("UpdateService", OTHER, service="web", desiredCount=0, forceNewDeployment=True)
    calls("DescribeServices", services=["web", "none"], include=["TAGS"])
    calls("ListServices")
    listed = calls("ListServiceDeployments", service="web")["serviceDeployments"]
    calls("DescribeServiceDeployments", serviceDeploymentArns=[listed[0]["serviceDeploymentArn"]])
    revision = listed[0]["targetServiceRevisionArn"]
    calls("DescribeServiceRevisions", serviceRevisionArns=[revision, f"{revision}0"])
    arn = {"serviceDeploymentArn": listed[-1]["serviceDeploymentArn"]}
    calls.twice_refused("StopServiceDeployment", "ConflictException", **arn)
    calls.twice_refused("ContinueServiceDeployment", "ConflictException", **arn, hookId="a", action="CONTINUE")
    gone = lambda: ecs.describe_services(services=["web"])["services"][0]["status"] == "INACTIVE"  # noqa: E731
    calls.twice("DeleteService", "ServiceNotFoundException", gone, service="web")


def task_sets(calls: Calls) -> None:
    ecs = calls.of("ecs")
    ecs.create_service(serviceName="sets", desiredCount=0, deploymentController={"type": "EXTERNAL"}, cluster="default")
    here = {"service": "sets", "cluster": "default"}
    made = calls.twice("CreateTaskSet", OTHER, **here, taskDefinition="answers", externalId="a", tags=TAGS)["taskSet"]
    one = {**here, "taskSet": made["taskSetArn"]}
    calls.twice("UpdateTaskSet", OTHER, **one, scale={"unit": "PERCENT", "value": 0.0})
    calls("DescribeTaskSets", **here, include=["TAGS"])
    calls.twice("UpdateServicePrimaryTaskSet", OTHER, **here, primaryTaskSet=made["taskSetArn"])
    gone = lambda: len(ecs.describe_task_sets(**here)["taskSets"]) < 2  # noqa: E731
    calls.twice("DeleteTaskSet", "TaskSetNotFoundException", gone, **one, force=True)
    none = {"taskSet": "ecs-svc/1234567890123456789", "primaryTaskSet": "ecs-svc/1234567890123456789"}
    calls.all_refused("TaskSetNotFoundException", "*", "", **here, **none, scale={"unit": "PERCENT", "value": 0.0})
    calls("DeleteService", **here, force=True)
    eventually(lambda: ecs.describe_services(services=["sets"])["services"][0]["status"] == "INACTIVE", "the service is deleted")
    inactive = {**here, **none, "taskDefinition": "answers", "scale": {"unit": "PERCENT", "value": 0.0}}
    calls.all_refused("ServiceNotActiveException", **inactive)


def all_members(calls: Calls) -> None:
    """Members that are shown as they were given: of a cluster, a task definition, a service and a task set."""
    logging = {"cloudWatchLogGroupName": "a", "cloudWatchEncryptionEnabled": False}
    logging |= {"s3BucketName": "b", "s3EncryptionEnabled": False, "s3KeyPrefix": "p"}
    command = {"kmsKeyId": "k", "logging": "OVERRIDE", "logConfiguration": logging}
    configuration = {"executeCommandConfiguration": command, "managedStorageConfiguration": {"kmsKeyId": "k"}}
    calls("CreateCluster", clusterName="members", configuration=configuration)
    calls("DescribeClusters", clusters=["members"], include=["CONFIGURATIONS"])
    calls("DeleteCluster", cluster="members")
    port = {"name": "web", "containerPort": 80, "appProtocol": "http"}
    more = {"interactive": True, "disableNetworking": False, "versionConsistency": "disabled", "portMappings": [port]}
    more |= {"repositoryCredentials": {"credentialsParameter": "a"}, "linuxParameters": {"maxSwap": 1, "swappiness": 1}}
    router = container(["true"], name="log", firelensConfiguration={"type": "fluentbit", "options": {"a": "b"}})
    efs = {"fileSystemId": "fs-1", "rootDirectory": "/a", "transitEncryption": "ENABLED", "transitEncryptionPort": 2049}
    volumes = [
        {"name": "a", "dockerVolumeConfiguration": {"scope": "task", "driver": "local", "driverOpts": {"size": "1m"}}},
        {"name": "b", "efsVolumeConfiguration": efs | {"authorizationConfig": {"accessPointId": "fsap-1", "iam": "ENABLED"}}},
        {"name": "c", "configuredAtLaunch": True},
    ]
    both = [container(["sleep", "600"], **more), router]
    calls("RegisterTaskDefinition", family="members", containerDefinitions=both, volumes=volumes)
    plain = [container(["sleep", "600"], portMappings=[port])]
    size = {"networkMode": "awsvpc", "cpu": "256", "memory": "512"}
    calls("RegisterTaskDefinition", family="network", containerDefinitions=plain, **size)
    network = {"subnets": ["subnet-1"], "securityGroups": ["sg-1"], "assignPublicIp": "ENABLED"}
    target = {"targetGroupArn": calls.arn("targetgroup/a/1", service="elasticloadbalancing"), "containerName": "main"}
    registry = {"registryArn": calls.arn("service/srv-1", service="servicediscovery"), "containerName": "main"}
    behind = {"loadBalancers": [{**target, "containerPort": 80}], "serviceRegistries": [{**registry, "containerPort": 80}]}
    given = {"taskDefinition": "network", "networkConfiguration": {"awsvpcConfiguration": network}, **behind}
    spread = [{"type": "spread", "field": "attribute:ecs.availability-zone"}]
    calls("CreateService", serviceName="members", desiredCount=0, role="a", placementStrategy=spread, **given)
    revision = calls("DescribeServices", services=["members"])["services"][0]["currentServiceRevisions"][0]["arn"]
    calls("DescribeServiceRevisions", serviceRevisionArns=[revision])
    calls("DeleteService", service="members")
    calls("CreateService", serviceName="member-sets", desiredCount=0, deploymentController={"type": "EXTERNAL"})
    calls("CreateTaskSet", service="member-sets", cluster="default", launchType="FARGATE", **given)
    calls("DeleteService", service="member-sets", force=True)
    overrides: dict[str, Any] = {"name": "main", "cpu": 1, "memory": 64, "memoryReservation": 32}
    sizes = {"cpu": "128", "memory": "128", "executionRoleArn": f"arn:aws:iam::{ACCOUNT}:role/a"}
    started = calls("RunTask", taskDefinition="answers", overrides={"containerOverrides": [overrides], **sizes})["tasks"]
    calls("StopTask", task=started[0]["taskArn"])
    subnets = {"awsvpcConfiguration": {"subnets": ["subnet-1"]}}
    more_storage = {"taskDefinition": "network", "launchType": "FARGATE", "networkConfiguration": subnets}
    started = calls("RunTask", **more_storage, overrides={"ephemeralStorage": {"sizeInGiB": 40}})["tasks"]
    if started[0]["ephemeralStorage"] != {"sizeInGiB": 40}:
        calls.wrong.append(f"a task has not the storage of its overrides, but {started[0]['ephemeralStorage']}")
    calls("StopTask", task=started[0]["taskArn"])


def settings(calls: Calls) -> None:
    setting = {"name": "containerInsights", "value": "enabled"}
    calls.twice("PutAccountSetting", SAME, **setting)
    calls.twice("PutAccountSettingDefault", SAME, **setting)
    calls("ListAccountSettings")
    calls.twice("DeleteAccountSetting", SAME, name="containerInsights")


def providers(calls: Calls) -> None:
    calls.corral.group("answers-group")
    [group] = calls.of("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=["answers-group"])["AutoScalingGroups"]
    scaling = {"status": "ENABLED", "targetCapacity": 100, "minimumScalingStepSize": 1, "maximumScalingStepSize": 1}
    given = {
        "autoScalingGroupArn": group["AutoScalingGroupARN"],
        "managedScaling": scaling,
        "managedTerminationProtection": "DISABLED",
    }
    calls.twice("CreateCapacityProvider", "ClientException", name="answers", autoScalingGroupProvider=given, tags=TAGS)
    calls("DescribeCapacityProviders", capacityProviders=["answers", "none"], include=["TAGS"])
    calls.twice("UpdateCapacityProvider", SAME, name="answers", autoScalingGroupProvider={"managedDraining": "DISABLED"})
    strategy = [{"capacityProvider": "answers", "weight": 1}]
    chosen = {"capacityProviders": ["answers"], "defaultCapacityProviderStrategy": strategy}
    calls.twice("PutClusterCapacityProviders", SAME, cluster="answers", **chosen)
    calls("PutClusterCapacityProviders", cluster="answers", capacityProviders=[], defaultCapacityProviderStrategy=[])
    calls.twice("DeleteCapacityProvider", "ClientException", capacityProvider="answers")


def nodes(calls: Calls) -> None:
    """Hosts join and report by themselves, so these operations only say so."""
    for operation in ("RegisterContainerInstance", "UpdateContainerAgent", "DiscoverPollEndpoint"):
        calls.twice_refused(
            operation, "ClientException", **({"containerInstance": "a"} if operation == "UpdateContainerAgent" else {})
        )
    for operation in ("SubmitTaskStateChange", "SubmitContainerStateChange"):
        calls.twice_refused(operation, "ClientException")
    calls.twice_refused("SubmitAttachmentStateChanges", "ClientException", attachments=[{"attachmentArn": "a", "status": "b"}])
    calls.twice_refused("DeregisterContainerInstance", "InvalidParameterException", containerInstance="0" * 32)


def refusals(calls: Calls) -> None:
    scale: dict[str, Any] = {
        "scale": {"unit": "PERCENT", "value": 0.0},
        "settings": [{"name": "containerInsights", "value": "enabled"}],
    }
    one = {
        "taskDefinition": "answers",
        "serviceName": "a",
        "service": "a",
        "task": "0" * 32,
        "tasks": ["0" * 32],
        "containerInstances": ["0" * 32],
        "containerInstance": "0" * 32,
    }
    one |= {"attributes": [{"name": "a", "targetId": "b"}], "capacityProviders": [], "command": "a", **scale}
    few = "Register* UpdateContainer* Submit* Discover* *CapacityProvider UpdateCluster*"
    calls.all_refused("ClusterNotFoundException", "*", few, cluster="none", clusterName="none", **one)
    calls.all_refused("ClusterNotFoundException", "UpdateCluster*", "", cluster="none", settings=scale["settings"])
    calls.all_refused(
        "ServiceNotFoundException", "*", "*Deployments *Revisions ListTasks", service="none", cluster="default", **scale
    )
    arn = f"arn:aws:ecs:us-east-1:{ACCOUNT}:service-deployment/default/none/0123456789012345678901"
    calls.all_refused("ServiceDeploymentNotFoundException", serviceDeploymentArn=arn, hookId="a", action="CONTINUE")
    calls.refused("ListTasks", "ServiceNotFoundException", serviceName="none")
    calls.refused(
        "UpdateContainerInstancesState", "ClusterNotFoundException", cluster="none", containerInstances=["0" * 32], status="ACTIVE"
    )
    resource = f"arn:aws:ecs:us-east-1:{ACCOUNT}:task/default/{'0' * 32}"
    calls.all_refused("ResourceNotFoundException", "TagResource UntagResource", "", resourceArn=resource, tags=TAGS, tagKeys=["a"])
