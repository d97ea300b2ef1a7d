"""The actions and resources of permissions are those that AWS documents. cfn-lint contains the Service Authorization Reference."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import distribution
from random import Random
from typing import Any

import orjson
import pytest

from corral.access.caller import Caller
from corral.access.passed_roles import PASSED
from corral.access.permissions import Permission
from corral.core.errors import ApiError
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.decide.policies.policy import NO_RESOURCE, UNKNOWN_RESOURCE
from corral.model.principal import USER, Principal
from corral.model.settings import Settings
from corral.operations.listings import listing_of
from corral.operations.services import SERVICES, needed_permissions
from corral.store import Store
from wire.oracle import model_of

CALLER = Caller("123456789012", "us-east-1", Principal("123456789012", USER, "ann", owner="user/ann"))
HERE = "us-east-1:123456789012"
POLICIES = "cfnlint/data/AdditionalSpecs/Policies.json"
SERVICES_HERE = (
    "application-autoscaling", "autoscaling", "cloudformation", "ec2", "ecr", "iam", "lambda", "secretsmanager", "sns", "sqs",
    "ssm", "sts",
)  # fmt: skip
NOT_DOCUMENTED = {  # actions that AWS checks, and that the data lacks
    "lambda:invokefunction", "secretsmanager:listresourcepolicies",
}  # fmt: skip
# Actions of operations whose resource is optional.
OPTIONAL = {
    "cloudformation:describestacks", "cloudformation:gettemplate", "cloudformation:gettemplatesummary",
    "secretsmanager:validateresourcepolicy", "sns:publish",
}  # fmt: skip
# Actions without a resource on AWS. Here they have one: what they show of a group is for its owner.
OF_OWNER = {"autoscaling:describewarmpool"}
# Operations that name a resource only by something that belongs to it. If there is no such thing, the resource is unknown.
INDIRECT = {
    "autoscaling:DeletePolicy", "autoscaling:ExecutePolicy", "autoscaling:SetInstanceHealth",
    "autoscaling:TerminateInstanceInAutoScalingGroup", "cloudformation:DeleteChangeSet", "cloudformation:DescribeChangeSet",
    "cloudformation:DescribeStackResources", "cloudformation:ExecuteChangeSet", "iam:GetAccessKeyLastUsed",
    "iam:GetServiceLinkedRoleDeletionStatus", "sqs:CancelMessageMoveTask",
}  # fmt: skip
VALUES = {  # members of requests that need a value of a certain form
    "sns": {"TopicArn": f"arn:aws:sns:{HERE}:t", "TargetArn": f"arn:aws:sns:{HERE}:t", "ResourceArn": f"arn:aws:sns:{HERE}:t",
            "SubscriptionArn": f"arn:aws:sns:{HERE}:t:1"},
    "sqs": {"QueueUrl": "http://localhost/123456789012/q", "SourceArn": f"arn:aws:sqs:{HERE}:q",
            "DestinationArn": f"arn:aws:sqs:{HERE}:d"},
    "lambda": {"FunctionName": "f", "Resource": f"arn:aws:lambda:{HERE}:function:f"},
    "ec2": {"ResourceType": "instance", "Resources": ["vpc-1"]},
    "ecr": {"resourceArn": f"arn:aws:ecr:{HERE}:repository/r"},
    "ssm": {"ResourceType": "Parameter", "Path": "/a"},
    "application-autoscaling": {"ResourceARN": f"arn:aws:application-autoscaling:{HERE}:scalable-target/1",
                                "ResourceId": "service/c/s"},
    "iam": {"PolicyArn": "arn:aws:iam::123456789012:policy/p", "PolicySourceArn": "arn:aws:iam::123456789012:role/r",
            "Path": "/", "NewPath": "/",
            "Arn": "arn:aws:iam::123456789012:role/r", "AWSServiceName": "ecs.amazonaws.com"},
    "sts": {"RoleArn": "arn:aws:iam::123456789012:role/r"},
}  # fmt: skip


@pytest.fixture(scope="module")
def tx() -> Tx[Store]:
    return Tx(Store(None), 1_700_000_000.0, SeededIds(Random(0)), Settings())


def value_of(service: str, name: str, shape: Any, depth: int = 0) -> Any:
    """A value for a member of a request: each member that may name a resource gets one."""
    if name in VALUES.get(service, {}):
        return VALUES[service][name]
    if shape.type_name == "list":
        return [value_of(service, name, shape.member, depth + 1)]
    if shape.type_name == "structure":
        if depth > 2:
            return {}
        return {each: value_of(service, each, inner, depth + 1) for each, inner in shape.members.items()}
    return {"map": {"k": "v"}, "boolean": True, "integer": 1, "long": 1, "blob": b"", "timestamp": 0.0}.get(shape.type_name, "x")


def requests(service: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every operation, with all members and with only the required members."""
    model = model_of(service)
    for operation in sorted(SERVICES[service].operations.keys() & set(model.operation_names)):
        shape = model.operation_model(operation).input_shape
        members = dict(shape.members) if shape is not None else {}
        required = shape.required_members if shape is not None else ()
        params = {name: value_of(service, name, each) for name, each in members.items() if name != "DryRun"}
        yield operation, params
        yield operation, {name: each for name, each in params.items() if name in required}


@cache
def documented() -> Mapping[str, Any]:
    """The reference. The package is not imported: this would take longer than the tests."""
    return orjson.loads(distribution("cfn-lint").locate_file(POLICIES).read_bytes())


def formats(service: str, types: list[str]) -> list[re.Pattern[str]]:
    found = []
    for type_ in types:
        resource = documented()[service]["Resources"].get(type_.lower(), {})
        for text in resource.get("ARNFormats", ()):
            values = {"${Partition}": "aws", "${Region}": "us-east-1", "${Account}": "123456789012"}
            for name, value in values.items():
                text = text.replace(name, value)
            found.append(re.compile(text))
    return found


def faults(service: str, operation: str, needed: list[Permission]) -> Iterator[str]:
    for each in needed:
        prefix, _, action = each.action.lower().partition(":")
        if prefix == "corral" or each.action.lower() in NOT_DOCUMENTED:
            continue
        row = documented()[prefix]["Actions"].get(action)
        if row is None:
            yield f"{operation}: AWS has no action {each.action}"
        elif "Resources" not in row:
            if each.resource != NO_RESOURCE and each.action.lower() not in OF_OWNER:
                yield f"{operation}: {each.action} has no resource on AWS, but here {each.resource!r}"
        elif each.resource == NO_RESOURCE:
            if each.action.lower() not in OPTIONAL:
                yield f"{operation}: {each.action} has a resource on AWS: {row['Resources'][:4]}"
        elif each.resource == UNKNOWN_RESOURCE and f"{service}:{operation}" in INDIRECT:
            continue
        elif each.action == "sts:TagSession" and ":federated-user/" in each.resource:
            continue  # the guide of session tags has it, and the reference has not
        elif prefix == service and not any(form.fullmatch(each.resource) for form in formats(prefix, row["Resources"])):
            yield f"{operation}: {each.resource!r} is no resource of {each.action}: {row['Resources'][:4]}"


@pytest.mark.parametrize("service", SERVICES_HERE)
def test_actions_and_resources_are_those_of_aws(tx: Tx[Store], service: str) -> None:
    found = list[str]()
    for operation, params in requests(service):
        try:
            needed = needed_permissions(tx, CALLER, service, operation, params)
        except ApiError:
            continue
        found += faults(service, operation, needed)
    assert not found, "\n".join(dict.fromkeys(found))


# Operations that list what AWS or this machine offers, or what no operation here creates.
NOT_OWNED = {
    "autoscaling": {
        "DescribeAdjustmentTypes", "DescribeAutoScalingNotificationTypes", "DescribeLifecycleHookTypes",
        "DescribeMetricCollectionTypes", "DescribeScalingProcessTypes", "DescribeTerminationPolicyTypes",
    },
    "application-autoscaling": {"GetPredictiveScalingForecast"},
    "cloudformation": {"DescribeAccountLimits"},
    "ec2": {
        "DescribeAccountAttributes", "DescribeAvailabilityZones", "DescribeFlowLogs", "DescribeInstanceTypeOfferings",
        "DescribeInstanceTypes", "DescribeManagedPrefixLists", "DescribePrefixLists", "DescribeRegions", "DescribeVolumes",
        "DescribeVpcPeeringConnections",
    },
    "ecr": {"GetAuthorizationToken"},
    "iam": {
        "GetContextKeysForCustomPolicy", "GetServiceLastAccessedDetails", "GetServiceLastAccessedDetailsWithEntities",
        "ListAccountAliases",
    },
}  # fmt: skip


ROLE_MEMBER = re.compile("role|instanceprofile", re.IGNORECASE)
NOT_PASSED = {"s3": {"ReplicationConfiguration.Role"}}  # stored only: nothing replicates objects


def members_with_roles(shape: Any, path: str = "", seen: tuple[str, ...] = ()) -> Iterator[str]:
    """The paths of the members whose name says that they name a role, or an instance profile."""
    if shape.name in seen or len(seen) > 8:
        return
    if shape.type_name == "list":
        yield from members_with_roles(shape.member, f"{path}.[]", seen)
    for name, member in shape.members.items() if shape.type_name == "structure" else ():
        here = f"{path}.{name}" if path else name
        if member.type_name == "string" and ROLE_MEMBER.search(name):
            yield here
        else:
            yield from members_with_roles(member, here, (*seen, shape.name))


@pytest.mark.parametrize("service", sorted(SERVICES.keys() - {"corral", "iam", "sts"}))
def test_every_member_that_names_a_role_needs_the_permission_to_pass_it(service: str) -> None:
    model = model_of(service)
    for operation in sorted(SERVICES[service].operations.keys() & set(model.operation_names)):
        shape = model.operation_model(operation).input_shape
        found = set(members_with_roles(shape)) if shape is not None else set()
        assert found <= PASSED.get(service, {}).keys() | NOT_PASSED.get(service, set()), operation


@pytest.mark.parametrize("service", SERVICES_HERE)
def test_a_listing_without_a_resource_on_aws_is_filtered_by_owners(service: str) -> None:
    model = model_of(service)
    for operation in sorted(SERVICES[service].operations.keys() & set(model.operation_names)):
        shape = model.operation_model(operation).output_shape
        lists = {name for name, each in shape.members.items() if each.type_name == "list"} if shape is not None else set()
        listing = listing_of(service, operation)
        if listing is not None:
            assert lists >= set(listing.members), operation
        elif operation.startswith(("Describe", "List", "Get", "Batch")) and operation not in NOT_OWNED.get(service, ()):
            row = documented()[service]["Actions"].get(operation.lower(), {"Resources": []})
            assert not lists or "Resources" in row, operation
