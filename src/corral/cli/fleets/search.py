"""Finds a fleet for `corral fleet`. A fleet is a number of workers that a scaling policy or a capacity provider changes.

There are two kinds of fleets. The workers of a group are the instances of an Auto Scaling group. The group has scaling policies, or
the managed scaling of a capacity provider scales it. The workers of a service are the tasks of an ECS service that is registered
with Application Auto Scaling. Most fleets follow an SQS queue: an alarm of a policy watches the queue.
"""

from __future__ import annotations

import base64
import re
from typing import Any, NamedTuple

from corral.cli.client.endpoint import Endpoint, client
from corral.cli.printing.errors import CliError

GROUP_TYPE = "AWS::AutoScaling::AutoScalingGroup"
TARGET_TYPE = "AWS::ApplicationAutoScaling::ScalableTarget"
PROVIDER_TYPE = "AWS::ECS::CapacityProvider"
CLUSTER = re.compile(r"^\s*(?:echo\s+)?[\"']?ECS_CLUSTER=([A-Za-z0-9_-]+)", re.MULTILINE)
NEEDED = (
    "`corral fleet` needs an Auto Scaling group with a scaling policy or a capacity provider, an ECS service that is registered "
    "with Application Auto Scaling, or a stack with one of them."
)


class WorkerFleet(NamedTuple):
    """The names of a fleet's parts. They are looked up once."""

    group: str | None  # the Auto Scaling group; None for a service
    service: str | None  # the ECS service; None for a group
    cluster: str | None  # None if the user data of the instances names no cluster
    queue: str | None  # None if no alarm watches a queue
    queue_url: str | None
    provider: str | None = None  # the capacity provider that scales the group

    @property
    def name(self) -> str:
        return self.group if self.group is not None else f"{self.cluster}/{self.service}"


def find_fleet(endpoint: Endpoint, name: str | None) -> WorkerFleet:
    """Find the fleet by the name of its group, service or capacity provider, or by the name of the stack that has them.

    If a stack has several fleets, the fleet that follows a queue is chosen. Without a name, there must be only one fleet.
    """
    groups, services, where = _named(endpoint, name) if name is not None else _all(endpoint)
    found = [fleet for each in groups if (fleet := _fleet_of_group(endpoint, each)) is not None]
    found += [_fleet_of_service(endpoint, each) for each in services]
    follow = [each for each in found if each.queue is not None] if name is not None else []
    chosen = follow if len(follow) == 1 else found
    if len(chosen) == 1:
        return chosen[0]
    if found:
        raise CliError(f"{where} has several fleets: name one of them: {', '.join(each.name for each in found)}.")
    if groups and name is not None:
        raise CliError(f"the group {groups[0]} has no scaling policy, and no capacity provider scales it. {NEEDED}")
    raise CliError(f"{where} has no fleet. {NEEDED}")


def _all(endpoint: Endpoint) -> tuple[list[str], list[str], str]:
    pages = client(endpoint, "autoscaling").get_paginator("describe_auto_scaling_groups").paginate()
    groups = [each["AutoScalingGroupName"] for page in pages for each in page["AutoScalingGroups"]]
    return groups, _scalable_services(endpoint), "the region"


def _scalable_services(endpoint: Endpoint) -> list[str]:
    """Return the resource ids of the services that are registered with Application Auto Scaling: service/CLUSTER/SERVICE."""
    pages = client(endpoint, "application-autoscaling").get_paginator("describe_scalable_targets").paginate(ServiceNamespace="ecs")
    resources = [each["ResourceId"] for page in pages for each in page["ScalableTargets"]]
    return [each for each in resources if each.startswith("service/")]


def _named(endpoint: Endpoint, name: str) -> tuple[list[str], list[str], str]:
    """Return the groups and the resource ids of services that a name means, and the words for their place in an error."""
    scaling = client(endpoint, "autoscaling")
    if scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]:
        return [name], [], name
    services = [each for each in _scalable_services(endpoint) if each.endswith(f"/{name}")]
    if services:
        return [], services, f"the service {name}"
    if group := _groups_of_providers(endpoint).get(name):
        return [group[0]], [], f"the capacity provider {name}"
    return *_of_stack(endpoint, name), f"the stack {name}"


def _of_stack(endpoint: Endpoint, stack: str) -> tuple[list[str], list[str]]:
    cloudformation = client(endpoint, "cloudformation")
    try:
        pages = list(cloudformation.get_paginator("list_stack_resources").paginate(StackName=stack))
    except cloudformation.exceptions.ClientError as error:
        if "does not exist" in str(error):
            raise CliError(
                f"no Auto Scaling group, no scalable service, no capacity provider and no stack has the name {stack}."
            ) from None
        raise
    listed = [(each["ResourceType"], each.get("PhysicalResourceId")) for page in pages for each in page["StackResourceSummaries"]]
    groups = [name for kind, name in listed if kind == GROUP_TYPE and name]
    providers = _groups_of_providers(endpoint) if any(kind == PROVIDER_TYPE for kind, _ in listed) else {}
    groups += [providers[name][0] for kind, name in listed if kind == PROVIDER_TYPE and name in providers]
    return list(dict.fromkeys(groups)), [name.partition("|")[0] for kind, name in listed if kind == TARGET_TYPE and name]


def _groups_of_providers(endpoint: Endpoint) -> dict[str, tuple[str, bool]]:
    """Return capacity provider → the name of its group, and whether managed scaling is on."""
    found, token = dict[str, tuple[str, bool]](), dict[str, str]()
    while True:
        page = client(endpoint, "ecs").describe_capacity_providers(**token)
        for each in page["capacityProviders"]:
            if about := each.get("autoScalingGroupProvider"):
                group = about["autoScalingGroupArn"].rpartition("autoScalingGroupName/")[2]
                found[each["name"]] = group, about.get("managedScaling", {}).get("status") == "ENABLED"
        if not page.get("nextToken"):
            return found
        token = {"nextToken": page["nextToken"]}


def _fleet_of_group(endpoint: Endpoint, name: str) -> WorkerFleet | None:
    """Return the fleet of a group. Return None if neither a policy nor a capacity provider scales the group."""
    policies = policies_of_group(endpoint, name)
    scaled = [provider for provider, (group, is_on) in _groups_of_providers(endpoint).items() if group == name and is_on]
    if not policies and not scaled:
        return None
    groups = client(endpoint, "autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
    named = CLUSTER.search(_user_data(endpoint, groups[0])) if groups else None
    queue, url = _queue_of(endpoint, policies)
    return WorkerFleet(name, None, named[1] if named else None, queue, url, scaled[0] if scaled else None)


def _fleet_of_service(endpoint: Endpoint, resource: str) -> WorkerFleet:
    _, cluster, service = resource.split("/")
    return WorkerFleet(None, service, cluster, *_queue_of(endpoint, policies_of_service(endpoint, resource)))


def _queue_of(endpoint: Endpoint, policies: list[dict[str, Any]]) -> tuple[str | None, str | None]:
    """Return the name and the URL of the queue that an alarm of the policies watches."""
    for alarm in alarms_of(endpoint, policies).values():
        stats = [each["MetricStat"]["Metric"] for each in alarm.get("Metrics", ()) if "MetricStat" in each]
        for metric in [alarm, *stats]:
            if metric.get("Namespace") == "AWS/SQS":
                queue = next((each["Value"] for each in metric.get("Dimensions", ()) if each["Name"] == "QueueName"), None)
                return queue, client(endpoint, "sqs").get_queue_url(QueueName=queue)["QueueUrl"] if queue else None
    return None, None


def policies_of_group(endpoint: Endpoint, group: str) -> list[dict[str, Any]]:
    pages = client(endpoint, "autoscaling").get_paginator("describe_policies").paginate(AutoScalingGroupName=group)
    return [each for page in pages for each in page["ScalingPolicies"]]


def policies_of_service(endpoint: Endpoint, resource: str) -> list[dict[str, Any]]:
    """Return the policies of a service, with the members of the policies of a group."""
    pages = (
        client(endpoint, "application-autoscaling")
        .get_paginator("describe_scaling_policies")
        .paginate(ServiceNamespace="ecs", ResourceId=resource)
    )
    found = []
    for each in (policy for page in pages for policy in page["ScalingPolicies"]):
        steps = each.get("StepScalingPolicyConfiguration", {})
        tracking = {"TargetTrackingConfiguration": each.get("TargetTrackingScalingPolicyConfiguration", {})}
        found.append({**each, **tracking, **{key: steps[key] for key in ("AdjustmentType", "StepAdjustments") if key in steps}})
    return found


def alarms_of(endpoint: Endpoint, policies: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    names = sorted({alarm["AlarmName"] for policy in policies for alarm in policy.get("Alarms", ())})
    found = client(endpoint, "cloudwatch").describe_alarms(AlarmNames=names)["MetricAlarms"] if names else []
    return {each["AlarmName"]: each for each in found}


def _user_data(endpoint: Endpoint, group: dict[str, Any]) -> str:
    source = group.get("LaunchTemplate")
    if source is None and "MixedInstancesPolicy" in group:
        source = group["MixedInstancesPolicy"]["LaunchTemplate"]["LaunchTemplateSpecification"]
    if source is not None:
        asked = {"LaunchTemplateId": source["LaunchTemplateId"], "Versions": [source.get("Version", "$Default")]}
        versions = client(endpoint, "ec2").describe_launch_template_versions(**asked)["LaunchTemplateVersions"]
        text = versions[0]["LaunchTemplateData"].get("UserData", "") if versions else ""
    else:
        asked = {"LaunchConfigurationNames": [group.get("LaunchConfigurationName", "")]}
        found = client(endpoint, "autoscaling").describe_launch_configurations(**asked)["LaunchConfigurations"]
        text = found[0].get("UserData", "") if found else ""
    return base64.b64decode(text).decode("utf-8", "replace")
