"""Random requests to Auto Scaling's handlers: each response has the model's shape or is an error of the service."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import botocore.loaders
import botocore.model
import pytest

from corral.core.errors import ApiError
from corral.operations.services import SERVICES
from services.test_ec2_requests import check_shape
from virtual_clock.group_world import GPUS_1, GroupWorld

MODEL = botocore.model.ServiceModel(botocore.loaders.Loader().load_service_model("autoscaling", "service-2"), "autoscaling")
OPERATIONS = SERVICES["autoscaling"].operations
REQUESTS = 1500
TEXTS = ("", "x", "naïve ☃", "y" * 300, "*", "a:b", "1", "-1", "arn:aws:autoscaling:x")
LIKELY: dict[str, tuple[str, ...]] = {
    "AutoScalingGroupName": ("a", "b"), "AutoScalingGroupNames": ("a", "b"), "ResourceId": ("a", "b"),
    "LaunchConfigurationName": ("lc", "other"), "LaunchTemplateName": ("tpl",), "LifecycleHookName": ("hook", "other"),
    "PolicyName": ("p", "q"), "ScheduledActionName": ("s", "t"), "ScheduledActionNames": ("s", "t"), "PolicyNames": ("p",),
    "AvailabilityZones": ("us-east-1a", "us-east-1b"), "AvailabilityZoneIds": ("use1-az1",),
    "InstanceType": (GPUS_1, "t3.micro", "p2.16xlarge"), "ImageId": ("ami-1",), "Version": ("1", "$Latest"),
    "LifecycleTransition": ("autoscaling:EC2_INSTANCE_LAUNCHING", "autoscaling:EC2_INSTANCE_TERMINATING"),
    "LifecycleActionResult": ("CONTINUE", "ABANDON"), "DefaultResult": ("CONTINUE", "ABANDON"),
    "HealthStatus": ("Healthy", "Unhealthy"),
    "AdjustmentType": ("ChangeInCapacity", "ExactCapacity", "PercentChangeInCapacity"), "TopicARN": ("arn:aws:sns:us-east-1:1:t",),
    "PolicyType": ("SimpleScaling", "StepScaling", "TargetTrackingScaling"),
    "ScalingProcesses": ("Launch", "Terminate", "HealthCheck"),
    "TerminationPolicies": ("Default", "OldestInstance", "AllocationStrategy"), "HealthCheckType": ("EC2", "EC2,ELB"),
    "Granularity": ("1Minute",), "Metrics": ("GroupMinSize",), "Recurrence": ("* * * * *", "0 0 1 1 *", "60 * * * *"),
    "TimeZone": ("Europe/Berlin",),
    "NotificationTypes": ("autoscaling:EC2_INSTANCE_LAUNCH",), "WeightedCapacity": ("1", "2"), "VPCZoneIdentifier": ("",),
    "DesiredCapacityType": ("units", "vcpu"), "Name": ("tag-key", "tag:a", "auto-scaling-group", "Status"), "Key": ("a", "b"),
    "OnDemandAllocationStrategy": ("lowest-price", "prioritized"), "SpotAllocationStrategy": ("lowest-price", "capacity-optimized"),
    "NotificationTargetARN": ("", "arn:aws:sns:us-east-1:1:t"), "MetricAggregationType": ("Average",),
}  # fmt: skip
CHANCES = {"NextToken": 0.02, "Operator": 0.02, "AutoScalingGroupName": 0.8, "InstanceIds": 0.9, "InstanceId": 0.5}


class Requests:
    def __init__(self, seed: int, world: GroupWorld) -> None:
        self.rng = Random(seed)
        self.world = world

    def value(self, shape: Any, name: str, depth: int = 0) -> Any:
        rng = self.rng
        match shape.type_name:
            case "structure":
                chance = 0.5 if depth else 0.35
                chosen = [
                    each for each in shape.members
                    if each in shape.required_members or rng.random() < CHANCES.get(each, chance)
                ]  # fmt: skip
                return {each: self.value(shape.members[each], each, depth + 1) for each in chosen}
            case "list":
                return [self.value(shape.member, name, depth + 1) for _ in range(rng.choice((0, 1, 1, 2)))]
            case "boolean":
                return rng.random() < 0.5
            case "integer" | "long":
                return rng.choice((0, 1, 1, 2, 3, 5, 50, 100, 86_400, -1, 2**31 - 1))
            case "timestamp":
                return self.world.clock.now_s() + rng.choice((-10.0, 10.0, 1000.0))
            case "double" | "float":
                return rng.choice((0.0, 10.0, -5.0, 1e9))
        if shape.enum:
            return rng.choice(shape.enum)
        if rng.random() < 0.07:
            return rng.choice(TEXTS)
        if name in ("InstanceId", "InstanceIds"):
            return rng.choice([*(each for group in "ab" for each in self.ids(group)), "i-0123456789abcdef0"])
        return rng.choice(LIKELY.get(name) or TEXTS)

    def ids(self, group: str) -> list[str]:
        return [f"i-{member.instance_id[:17]}" for member in self.world.store.groups.members("us-east-1", group)]


@pytest.mark.parametrize("seed", range(3))
def test_random_requests(seed: int) -> None:
    world = GroupWorld(gpus=4)
    requests, answers = Requests(seed, world), Counter[str]()
    world.configuration()
    world.template()
    for name in ("a", "b"):
        world.group(name, desired=1)
    for number in range(REQUESTS):
        operation = requests.rng.choice(sorted(OPERATIONS))
        if operation == "DeleteAutoScalingGroup" and requests.rng.random() < 0.8:
            continue
        shape = MODEL.operation_model(operation).input_shape
        params = requests.value(shape, "") if shape is not None else {}
        try:
            reply = world.call(operation, **params)
        except ApiError as error:
            codes = {each.metadata["error"]["code"] for each in MODEL.error_shapes} | {"ValidationError"}
            assert error.code.removesuffix("Fault").removesuffix("Error") in {code.removesuffix("Error") for code in codes}, (
                error.code
            )
            answers[error.code] += 1
            continue
        answers["ok"] += 1
        output = MODEL.operation_model(operation).output_shape
        if output is not None:
            check_shape(output, {name: inner for name, inner in reply.items() if inner is not None}, operation)
        if number % 20 == 0:
            world.wait(requests.rng.choice((1, 60, 700)))
            for name in ("a", "b"):
                if world.shown(name) is None:
                    world.group(name, desired=1)
    assert answers["ok"] > REQUESTS / 4, answers
