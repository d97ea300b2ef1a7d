"""Cases of AWS Batch and Image Builder."""

from __future__ import annotations

from typing import Any

from stacks.resource_cases import Case

ENVIRONMENT, QUEUE, DEFINITION = "AWS::Batch::ComputeEnvironment", "AWS::Batch::JobQueue", "AWS::Batch::JobDefinition"
POLICY, RESOURCE, IMAGE = "AWS::Batch::SchedulingPolicy", "AWS::Batch::ConsumableResource", "AWS::ImageBuilder::Image"
ARN = "arn:aws:batch:us-east-1:123456789012:"
BUILDER = "arn:aws:imagebuilder:us-east-1:123456789012:"
TAGS, OTHER_TAGS = {"Tags": {"a": "1"}}, {"Tags": {"b": "2"}}
NEEDS = [{"Type": "VCPU", "Value": "1"}, {"Type": "MEMORY", "Value": "64"}]


def container(**more: Any) -> dict[str, Any]:
    return {"Image": "corral/host", "Command": ["true"], "ResourceRequirements": NEEDS, **more}


def order(key: str) -> dict[str, Any]:
    return {"ComputeEnvironmentOrder": [{"Order": 1, "ComputeEnvironment": {"Ref": key}}]}


CASES: dict[str, Case] = {
    ENVIRONMENT: Case(
        {"ComputeEnvironmentName": "ce", "Type": "UNMANAGED", "UnmanagedvCpus": "4", **TAGS},
        changed={"State": "DISABLED", "UnmanagedvCpus": "8"},
        replacing={"ComputeEnvironmentName": "ce2", "Tags": {}},
        starts=f"{ARN}compute-environment/ce",
        shown=("batch:DescribeComputeEnvironments", {}, "'unmanagedvCpus': 8"),
    ),
    QUEUE: Case(
        {"JobQueueName": "q", "Priority": "1", **order("first"), **TAGS},
        needs={"first": ENVIRONMENT, "second": (ENVIRONMENT, {"ComputeEnvironmentName": "other", "Type": "UNMANAGED"})},
        changed={
            "Priority": 7,
            **order("second"),
            "JobStateTimeLimitActions": [{"Action": "CANCEL", "MaxTimeSeconds": 600, "Reason": "r", "State": "RUNNABLE"}],
            **OTHER_TAGS,
        },
        replacing={"JobQueueName": "q2"},
        starts=f"{ARN}job-queue/q",
        shown=("batch:DescribeJobQueues", {}, "'priority': 7"),
    ),
    DEFINITION: Case(
        {
            "JobDefinitionName": "d",
            "Type": "container",
            "ContainerProperties": container(Environment=[{"Name": "A", "Value": "1"}]),
            "Parameters": {"Key": "1"},
            "Timeout": {"AttemptDurationSeconds": "60"},
            "RetryStrategy": {"Attempts": 2, "EvaluateOnExit": [{"OnReason": "*", "Action": "EXIT"}]},
            **TAGS,
        },
        changed={"Timeout": {"AttemptDurationSeconds": 77}, **OTHER_TAGS},
        replacing={"JobDefinitionName": "d2"},
        starts=f"{ARN}job-definition/d:",
        shown=("batch:DescribeJobDefinitions", {"status": "ACTIVE"}, "'attemptDurationSeconds': 77"),
    ),
    POLICY: Case(
        {"Name": "fair", "FairsharePolicy": {"ComputeReservation": 10, "ShareDecaySeconds": 60}, **TAGS},
        changed={"FairsharePolicy": {"ShareDistribution": [{"ShareIdentifier": "A*", "WeightFactor": 0.5}]}, **OTHER_TAGS},
        replacing={"Name": "fair2"},
        starts=f"{ARN}scheduling-policy/fair",
        shown=("batch:DescribeSchedulingPolicies", {"arns": [f"{ARN}scheduling-policy/fair"]}, "'A*'"),
    ),
    RESOURCE: Case(
        {"ConsumableResourceName": "licence", "ResourceType": "REPLENISHABLE", "TotalQuantity": "4", **TAGS},
        changed={"TotalQuantity": 77, **OTHER_TAGS},
        replacing={"ResourceType": "NON_REPLENISHABLE", "ConsumableResourceName": "tokens"},
        starts=f"{ARN}consumable-resource/licence",
        shown=("batch:ListConsumableResources", {}, "'totalQuantity': 77"),
    ),
    IMAGE: Case(
        {
            "ImageRecipeArn": f"{BUILDER}image-recipe/gpu/1.0.0",
            "InfrastructureConfigurationArn": f"{BUILDER}infrastructure-configuration/gpu",
            "DeletionSettings": {"ExecutionRole": "arn:aws:iam::123456789012:role/r"},  # the AMI is deleted, too
            **TAGS,
        },
        changed=OTHER_TAGS,
        replacing={"ImageRecipeArn": f"{BUILDER}image-recipe/gpu/1.1.0"},
        starts=f"{BUILDER}image/gpu/1.0.0/1",
        shown=("ec2:DescribeImages", {"Owners": ["self"]}, "Image Builder: "),
    ),
}
