"""Checks the members of requests that create or update compute environments.

These checks read only the request. `environment_groups.problem_of` checks whether the resources that an environment names exist,
for example subnets and instance profiles. As on AWS, an environment that names a missing resource is created, with the status
INVALID.
"""

from __future__ import annotations

from typing import Any

from corral.model.compute_environment import (
    DISABLED,
    EC2,
    ENABLED,
    FARGATE,
    FARGATE_SPOT,
    MANAGED,
    SPOT,
    UNMANAGED,
)
from corral.services.batch.errors import ClientException, refused

Params = dict[str, Any]

KINDS = (EC2, SPOT, FARGATE, FARGATE_SPOT)
ON_DEMAND_STRATEGIES = ("BEST_FIT", "BEST_FIT_PROGRESSIVE", "BEST_FIT_PROGRESSIVE_ORDERED")
SPOT_STRATEGIES = ("SPOT_CAPACITY_OPTIMIZED", "SPOT_PRICE_CAPACITY_OPTIMIZED", "SPOT_CAPACITY_OPTIMIZED_PRIORITIZED")
VCPUS_MAX = 1_000_000
SUBNETS_MAX, GROUPS_MAX, TYPES_MAX = 16, 16, 100
FARGATE_GROUPS_MAX = 5
EC2_CONFIGURATIONS_MAX = 2
OVERRIDES_MAX = 10
TEXT_MAX = 256
TIMEOUT_MAX_MINUTES = 7200
SCALE_DOWN_DELAYS_MINUTES = (20, 10_080)
NOT_FARGATE = (  # members that a Fargate environment must not have
    "allocationStrategy", "minvCpus", "desiredvCpus", "instanceTypes", "imageId", "ec2KeyPair", "instanceRole", "tags",
    "placementGroup", "bidPercentage", "spotIamFleetRole", "launchTemplate", "ec2Configuration", "scalingPolicy",
)  # fmt: skip
# An update of one of these members replaces the instances of an EC2 or Spot environment.
REPLACING = (
    "allocationStrategy", "bidPercentage", "ec2Configuration", "ec2KeyPair", "imageId", "instanceRole", "instanceTypes",
    "launchTemplate", "placementGroup", "securityGroupIds", "subnets", "tags", "type",
)  # fmt: skip
SCALING = ("minvCpus", "maxvCpus", "desiredvCpus", "scalingPolicy")
IMAGE_TYPES = ("ECS_AL2", "ECS_AL2_NVIDIA", "ECS_AL2023", "ECS_AL2023_NVIDIA", "ECS_AL1")
WORDS = ("optimal", "default_x86_64", "default_arm64")


def check_environment(params: Params) -> None:
    """Raise ClientException if Batch refuses a request for CreateComputeEnvironment."""
    type_ = params["type"]
    if type_ not in (MANAGED, UNMANAGED):
        raise refused("type", type_, f"it must be {MANAGED} or {UNMANAGED}.")
    check_state(params)
    if params.get("eksConfiguration"):
        raise ClientException("Corral has no EKS clusters: remove eksConfiguration to use ECS.")
    resources = params.get("computeResources")
    if type_ == UNMANAGED:
        if resources:
            raise ClientException("computeResources must not be provided for an UNMANAGED compute environment: remove it.")
        _check_number("unmanagedvCpus", params.get("unmanagedvCpus"))
        return
    if params.get("unmanagedvCpus") is not None:
        raise ClientException(
            "unmanagedvCpus must not be provided for a MANAGED compute environment: use computeResources.maxvCpus."
        )
    if not resources:
        raise ClientException("computeResources must be provided for a MANAGED compute environment.")
    check_resources(resources)


def check_state(params: Params) -> None:
    if params.get("state", ENABLED) not in (ENABLED, DISABLED):
        raise refused("state", params["state"], f"it must be {ENABLED} or {DISABLED}.")


def check_resources(resources: Params) -> None:
    """Check computeResources of a new environment, or of an environment after an update."""
    kind = resources.get("type", "")
    if kind not in KINDS:
        raise refused("computeResources.type", kind, f"Corral serves the types {', '.join(KINDS)}.")
    _check_limits(resources)
    _check_texts("subnets", resources.get("subnets") or [], SUBNETS_MAX)
    _check_texts("securityGroupIds", resources.get("securityGroupIds") or [], GROUPS_MAX)
    if not resources.get("subnets"):
        raise ClientException(f"computeResources.subnets must have at least one subnet for the type {kind}.")
    if kind in (FARGATE, FARGATE_SPOT):
        _check_fargate(resources)
    else:
        _check_ec2(resources, kind)


def _check_limits(resources: Params) -> None:
    for member in ("minvCpus", "maxvCpus", "desiredvCpus"):
        _check_number(f"computeResources.{member}", resources.get(member))
    least, most = resources.get("minvCpus") or 0, resources.get("maxvCpus")
    if most is None or most < 1:
        raise refused("computeResources.maxvCpus", most, "it must be at least 1.")
    if least > most:
        raise ClientException(f"minvCpus must be less than or equal to maxvCpus: minvCpus is {least}, and maxvCpus is {most}.")
    desired = resources.get("desiredvCpus")
    if desired is not None and not least <= desired <= most:
        raise ClientException(f"desiredvCpus must be between minvCpus ({least}) and maxvCpus ({most}): it is {desired}.")


def _check_fargate(resources: Params) -> None:
    kind = resources["type"]
    for member in NOT_FARGATE:
        if resources.get(member):
            raise ClientException(f"computeResources.{member} is not applicable to the type {kind}: remove it.")
    groups = resources.get("securityGroupIds") or []
    if not 1 <= len(groups) <= FARGATE_GROUPS_MAX:
        raise ClientException(
            f"computeResources.securityGroupIds must have 1 to {FARGATE_GROUPS_MAX} security groups for the type {kind}: "
            f"it has {len(groups)}."
        )


def _check_ec2(resources: Params, kind: str) -> None:
    types = resources.get("instanceTypes") or []
    if not types:
        raise ClientException(f"computeResources.instanceTypes must have at least one instance type or family for the type {kind}.")
    _check_texts("instanceTypes", types, TYPES_MAX)
    if not resources.get("instanceRole"):
        raise ClientException(f"computeResources.instanceRole must be provided for the type {kind}: name an instance profile.")
    if not resources.get("securityGroupIds") and not resources.get("launchTemplate"):
        raise ClientException("computeResources.securityGroupIds must have at least one group, unless a launchTemplate has one.")
    strategy = resources.get("allocationStrategy", "BEST_FIT")
    allowed = ON_DEMAND_STRATEGIES if kind == EC2 else (*ON_DEMAND_STRATEGIES[:2], *SPOT_STRATEGIES)
    if strategy not in allowed:
        raise refused("computeResources.allocationStrategy", strategy, f"for the type {kind}, use {', '.join(allowed)}.")
    bid = resources.get("bidPercentage")
    if bid is not None and not 0 <= bid <= 100:
        raise refused("computeResources.bidPercentage", bid, "it must be between 0 and 100.")
    if bid and kind == EC2:
        raise ClientException("computeResources.bidPercentage is applicable to the type SPOT only: remove it.")
    if kind == SPOT and strategy == "BEST_FIT" and not resources.get("spotIamFleetRole"):
        raise ClientException("computeResources.spotIamFleetRole must be provided for the type SPOT with the strategy BEST_FIT.")
    for member in ("ec2KeyPair", "imageId", "placementGroup", "instanceRole"):
        if len(resources.get(member) or "") > 2048:
            raise ClientException(f"computeResources.{member} is too long: it must have at most 2048 characters.")
    _check_configurations(resources.get("ec2Configuration") or [])
    _check_template(resources.get("launchTemplate") or {}, types)
    delay = (resources.get("scalingPolicy") or {}).get("minScaleDownDelayMinutes")
    low, high = SCALE_DOWN_DELAYS_MINUTES
    if delay and not low <= delay <= high:
        raise refused("computeResources.scalingPolicy.minScaleDownDelayMinutes", delay, f"use 0, or {low} to {high}.")


def _check_configurations(configurations: list[Params]) -> None:
    if len(configurations) > EC2_CONFIGURATIONS_MAX:
        raise ClientException(f"ec2Configuration can have at most {EC2_CONFIGURATIONS_MAX} elements: it has {len(configurations)}.")
    seen: set[str] = set()
    for each in configurations:
        image_type = each["imageType"]
        if image_type not in IMAGE_TYPES and not each.get("imageIdOverride"):
            rule = f"use {', '.join(IMAGE_TYPES)}, or give an imageIdOverride."
            raise refused("ec2Configuration.imageType", image_type, rule)
        if image_type in seen:
            raise ClientException(f"ec2Configuration has the imageType {image_type} more than once: each must be unique.")
        seen.add(image_type)


def _check_template(template: Params, types: list[str]) -> None:
    if not template:
        return
    _check_one_name("launchTemplate", template)
    overrides = template.get("overrides") or []
    if len(overrides) > OVERRIDES_MAX:
        raise ClientException(f"launchTemplate.overrides can have at most {OVERRIDES_MAX} elements: it has {len(overrides)}.")
    seen: set[str] = set()
    for each in overrides:
        _check_one_name("launchTemplate.overrides", each)
        targets = each.get("targetInstanceTypes") or []
        if not targets:
            raise ClientException("Each element of launchTemplate.overrides must have targetInstanceTypes.")
        for target in targets:
            is_included = target in types or target.partition(".")[0] in types
            if target in WORDS or not is_included:
                rule = f"it must be one of the environment's instanceTypes ({', '.join(types)}), or a type of such a family."
                raise refused("targetInstanceTypes", target, rule)
            if target in seen:
                raise ClientException(f"{target} is in more than one targetInstanceTypes: each type can have one launch template.")
            seen.add(target)


def _check_one_name(member: str, template: Params) -> None:
    if bool(template.get("launchTemplateId")) == bool(template.get("launchTemplateName")):
        raise ClientException(f"{member} must have either launchTemplateId or launchTemplateName, but not both.")


def check_policy(policy: Params) -> None:
    minutes = policy.get("jobExecutionTimeoutMinutes")
    if minutes is not None and not 1 <= minutes <= TIMEOUT_MAX_MINUTES:
        raise refused("updatePolicy.jobExecutionTimeoutMinutes", minutes, f"it must be between 1 and {TIMEOUT_MAX_MINUTES}.")


def _check_number(member: str, value: int | None) -> None:
    if value is not None and not 0 <= value <= VCPUS_MAX:
        raise refused(member, value, f"it must be between 0 and {VCPUS_MAX}.")


def _check_texts(member: str, values: list[str], most: int) -> None:
    if len(values) > most:
        raise ClientException(f"computeResources.{member} can have at most {most} elements: it has {len(values)}.")
    for value in values:
        if not value or len(value) > TEXT_MAX:
            raise refused(f"computeResources.{member}", value[:TEXT_MAX], f"each element must have 1 to {TEXT_MAX} characters.")
    if len(set(values)) != len(values):
        twice = next(value for value in values if values.count(value) > 1)
        raise ClientException(f"computeResources.{member} has {twice} more than once: each element must be unique.")
