"""Instances, launch templates and images for the deep state of the fuzz tests, with examples of their operations."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import Any

JOIN = b64encode(b"#!/bin/sh\necho ECS_CLUSTER=default >> /etc/ecs/ecs.config\n").decode()


async def make_instances(
    call: Callable[..., Awaitable[Any]], example: Callable[[str, dict[str, Any]], None], knows: Callable[..., None], mark: str
) -> None:
    data = {
        "ImageId": "ami-1", "InstanceType": "m5.large", "UserData": JOIN, "Monitoring": {"Enabled": True},
        "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "b"}]}],
        "NetworkInterfaces": [{"DeviceIndex": 0, "AssociatePublicIpAddress": True}], "MetadataOptions": {"HttpTokens": "required"},
        "Placement": {"AvailabilityZone": "us-east-1a", "Tenancy": "default"},
        "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 30, "VolumeType": "gp3"}}],
    }  # fmt: skip
    name = f"fuzz-{mark}"
    template = (await call("CreateLaunchTemplate", LaunchTemplateName=name, LaunchTemplateData=data))["LaunchTemplate"]
    await call("CreateLaunchTemplateVersion", LaunchTemplateName=name, SourceVersion="1", LaunchTemplateData={"KeyName": "k"})
    await call("DescribeLaunchTemplateVersions", LaunchTemplateName=name, Versions=["1", "$Latest"])
    await call("ModifyLaunchTemplate", LaunchTemplateName=name, DefaultVersion="1")
    launched = await call("RunInstances", MinCount=1, MaxCount=2, **data)
    specification = {"LaunchTemplateName": name, "Version": "$Default"}
    await call("RunInstances", MinCount=1, MaxCount=1, LaunchTemplate=specification, ClientToken=name)
    first, second = [each["InstanceId"] for each in launched["Instances"]]
    image = (await call("CreateImage", InstanceId=first, Name=name))["ImageId"]
    await call("StopInstances", InstanceIds=[second])
    await call("ModifyInstanceAttribute", InstanceId=second, Attribute="instanceType", Value="p3.2xlarge")
    await call("ModifyInstanceAttribute", InstanceId=first, DisableApiStop={"Value": True})
    await call("DescribeInstanceAttribute", InstanceId=first, Attribute="userData")
    await call("DescribeImages", Owners=["self"], Filters=[{"Name": "name", "Values": ["f*"]}])
    await call("GetConsoleOutput", InstanceId=first)
    filters = [{"Name": "instance-state-name", "Values": ["running"]}, {"Name": "tag:a", "Values": ["*"]}]
    for operation in ("DescribeInstances", "DescribeInstanceStatus"):
        example(operation, {"Filters": filters[:1], "MaxResults": 5})
        example(operation, {"InstanceIds": [first, second]})
    example("DescribeInstances", {"Filters": filters})
    example("DescribeInstanceTypes", {"InstanceTypes": ["p3.2xlarge"]})
    for operation in ("StopInstances", "StartInstances", "RebootInstances", "TerminateInstances", "MonitorInstances"):
        example(operation, {"InstanceIds": [first, second]})
    knows(
        InstanceId=[first, second], InstanceIds=[first, second], ImageId=[image, "ami-1"], LaunchTemplateName=name,
        LaunchTemplateId=template["LaunchTemplateId"], Version=["1", "2", "$Latest", "$Default"], UserData=JOIN,
        InstanceType=["m5.large", "p3.2xlarge"], MinCount=1, MaxCount=1, Attribute=["userData", "instanceType", "groupSet"],
    )  # fmt: skip
