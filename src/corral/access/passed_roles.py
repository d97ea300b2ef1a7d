"""The roles that a request passes to a service. As on AWS, the caller needs `iam:PassRole` for each of them.

What a role allows, the caller can do through the service that gets the role.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, pass_profile, pass_role
from corral.core.transactions import Tx
from corral.store import Store

PROFILE = "an instance profile, whose role EC2 gets"
SUBSCRIPTION_ROLE = "SubscriptionRoleArn"
FEEDBACK_ROLES = tuple(
    f"{protocol}{result}FeedbackRoleArn"
    for protocol in ("Application", "Firehose", "HTTP", "Lambda", "SQS")
    for result in ("Failure", "Success")
)
# Service → the request members that name a role → the service that gets the role. `[]` is each element of a list. A stored document
# that a request names can pass more roles: those of a task definition (`services/ecs/permissions.py`) and of a launch template.
PASSED: Mapping[str, Mapping[str, str]] = {
    "application-autoscaling": {"RoleARN": "application-autoscaling"},
    "autoscaling": {
        "LifecycleHookSpecificationList.[].RoleARN": "autoscaling",
        "RoleARN": "autoscaling",
        "ServiceLinkedRoleARN": "autoscaling",
        "IamInstanceProfile": PROFILE,
    },
    "batch": {
        "serviceRole": "batch",
        "computeResources.instanceRole": PROFILE,
        "computeResources.spotIamFleetRole": "spotfleet",
        "computeResources.managedInstancesProvider.infrastructureRoleArn": "ecs",
        "computeResources.managedInstancesProvider.instanceLaunchTemplate.ec2InstanceProfileArn": PROFILE,
        "containerProperties.jobRoleArn": "ecs-tasks",
        "containerProperties.executionRoleArn": "ecs-tasks",
        "ecsProperties.taskProperties.[].taskRoleArn": "ecs-tasks",
        "ecsProperties.taskProperties.[].executionRoleArn": "ecs-tasks",
        "nodeProperties.nodeRangeProperties.[].container.jobRoleArn": "ecs-tasks",
        "nodeProperties.nodeRangeProperties.[].container.executionRoleArn": "ecs-tasks",
        "nodeProperties.nodeRangeProperties.[].ecsProperties.taskProperties.[].taskRoleArn": "ecs-tasks",
        "nodeProperties.nodeRangeProperties.[].ecsProperties.taskProperties.[].executionRoleArn": "ecs-tasks",
    },
    "cloudformation": {"RoleARN": "cloudformation"},
    # A launch template passes its role when an instance is launched from it, and not when the template is created.
    "ec2": {"IamInstanceProfile.Arn": PROFILE, "IamInstanceProfile.Name": PROFILE},
    "ecs": {
        "taskRoleArn": "ecs-tasks",
        "executionRoleArn": "ecs-tasks",
        "overrides.taskRoleArn": "ecs-tasks",
        "overrides.executionRoleArn": "ecs-tasks",
        "role": "ecs",
        "deploymentConfiguration.lifecycleHooks.[].roleArn": "ecs",
        "loadBalancers.[].advancedConfiguration.roleArn": "ecs",
        "managedInstancesProvider.infrastructureRoleArn": "ecs",
        "managedInstancesProvider.instanceLaunchTemplate.ec2InstanceProfileArn": PROFILE,
        "serviceConnectConfiguration.services.[].tls.roleArn": "ecs",
        "volumeConfigurations.[].managedEBSVolume.roleArn": "ecs",
        "vpcLatticeConfigurations.[].roleArn": "ecs",
    },
    "lambda": {"Role": "lambda"},
    "secretsmanager": {"ExternalSecretRotationRoleArn": "secretsmanager"},
    "sns": {f"Attributes.{name}": "sns" for name in (*FEEDBACK_ROLES, SUBSCRIPTION_ROLE)},  # of topics and subscriptions
}
DEFAULT_LINKED_ROLE = "AWSServiceRoleForAutoScaling"  # Auto Scaling uses this role without a PassRole


def passed_roles(tx: Tx[Store], caller: Caller, service: str, params: Params, resource: str = "") -> list[Permission]:
    """The permissions to pass the roles that the members of a request name. `resource` is the ARN of what gets them."""
    needed: list[Permission] = []
    by_member = _by_first_member(service)
    for path, receiver in [each for member in by_member if member in params for each in by_member[member]]:
        for role in dict.fromkeys(_values(params, path)):
            if receiver == PROFILE:
                needed += pass_profile(tx, caller, role, resource)
            elif role.rpartition("/")[2] != DEFAULT_LINKED_ROLE or path != "ServiceLinkedRoleARN":
                needed.append(pass_role(tx, caller, role, receiver, resource))
    return needed


def passing_members(service: str) -> frozenset[str]:
    """Return the members of a service's requests that may pass a role. Most requests have none of them."""
    return frozenset(_by_first_member(service))


@cache
def _by_first_member(service: str) -> Mapping[str, list[tuple[str, str]]]:
    """Return the rows of PASSED by the first part of their path."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path, receiver in PASSED.get(service, {}).items():
        found.setdefault(path.partition(".")[0], []).append((path, receiver))
    return found


def _values(params: Params, path: str) -> Iterable[str]:
    """Yield the texts at a path such as `volumes.[].name`."""
    found: list[Any] = [params]
    for part in path.split("."):
        if part == "[]":
            found = [element for each in found if isinstance(each, list) for element in each]
        else:
            found = [each[part] for each in found if isinstance(each, Mapping) and each.get(part)]
    return (each for each in found if isinstance(each, str))
