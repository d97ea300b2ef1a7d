"""Operations that a stack calls without HTTP: their input comes from a template, and the caller's policies apply."""

from __future__ import annotations

from random import Random
from typing import Any

import orjson
import pytest

from corral.access.caller import Caller
from corral.aws.direct_input import direct_input
from corral.core.errors import ApiError
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.model.principal import role_session, root_user
from corral.model.settings import Settings
from corral.operations.services import SERVICES
from corral.store import Store
from corral.template_types.api_calls import authorize_step, call
from corral.template_types.lookup import resource_type
from wire.generate import Generator
from wire.oracle import model_of

ROOT = Caller("123456789012", "us-east-1", root_user("123456789012"))
TASK = Caller("123456789012", "us-east-1", role_session("123456789012", "train", "me", "root"), confined=True)
TRUST = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}]}


@pytest.fixture
def tx() -> Tx[Store]:
    return Tx(Store(None), 1_700_000_000.0, SeededIds(Random(0)), Settings())


@pytest.mark.parametrize(
    ("service", "operation", "params", "expected"),
    [
        ("ecs", "CreateService", {"serviceName": 7, "desiredCount": "2", "enableECSManagedTags": "True"},
         {"serviceName": "7", "desiredCount": 2, "enableECSManagedTags": True}),
        ("ecs", "CreateCluster", {"clusterName": "c", "settings": None}, {"clusterName": "c"}),
        ("autoscaling", "CreateAutoScalingGroup",
         {"AutoScalingGroupName": "g", "MinSize": "0", "MaxSize": 2.0, "Tags": [{"Key": "k", "Value": True}]},
         {"AutoScalingGroupName": "g", "MinSize": 0, "MaxSize": 2, "Tags": [{"Key": "k", "Value": "true"}]}),
        ("autoscaling", "PutScheduledUpdateGroupAction",
         {"AutoScalingGroupName": "g", "ScheduledActionName": "a", "StartTime": "1970-01-01T00:01:00Z", "EndTime": 90},
         {"AutoScalingGroupName": "g", "ScheduledActionName": "a", "StartTime": 60.0, "EndTime": 90.0}),
        ("cloudwatch", "PutDashboard", {"DashboardName": "d", "DashboardBody": 1}, {"DashboardName": "d", "DashboardBody": "1"}),
        ("sqs", "CreateQueue", {"QueueName": "q", "Attributes": {"DelaySeconds": 5}},
         {"QueueName": "q", "Attributes": {"DelaySeconds": "5"}}),
        ("ec2", "ImportKeyPair", {"KeyName": "k", "PublicKeyMaterial": "ssh"}, {"KeyName": "k", "PublicKeyMaterial": b"ssh"}),
        ("sts", "GetCallerIdentity", {}, {}),
    ],
)  # fmt: skip
def test_values_of_a_template_become_the_input(service: str, operation: str, params: Any, expected: Any):
    found = direct_input(service, operation, params)
    assert found == expected and repr(found) == repr(expected)


@pytest.mark.parametrize(
    ("service", "operation", "params", "code", "text"),
    [
        ("ecs", "CreateCluster", {"ClusterName": "c"}, "SerializationException", "unknown members: ClusterName"),
        ("sts", "GetCallerIdentity", {"X": 1}, "MalformedInput", "unknown members: X"),
        ("iam", "CreateRole", {"RoleName": "r"}, "ValidationError", "Value null at 'assumeRolePolicyDocument'"),
        ("iam", "CreateRole", {"RoleName": "r s", "AssumeRolePolicyDocument": "{}"}, "ValidationError", "roleName is invalid"),
        ("iam", "CreateRole", {"RoleName": ["r"], "AssumeRolePolicyDocument": "{}"}, "MalformedInput", "of type string"),
        ("ecs", "CreateService", {"serviceName": "s", "desiredCount": "two"}, "SerializationException", "(at 'desiredCount')"),
        ("ecs", "CreateService", {"serviceName": "s", "desiredCount": True}, "SerializationException", "found a boolean"),
        ("ecs", "CreateService", {"serviceName": "s", "desiredCount": 1.5}, "SerializationException", "not an integer"),
        ("ecs", "CreateService", {"serviceName": "s", "tags": [{"key": 1, "value": {}}]}, "SerializationException",
         "expected a value of type string, but found a structure (at 'tags.1.member.value')"),
        ("ecs", "CreateCluster", {"clusterName": "c", "tags": {"key": "k"}}, "SerializationException", "expected a list"),
        ("ecs", "CreateCluster", {"clusterName": "c", "configuration": 1}, "SerializationException", "expected a structure"),
    ],
)  # fmt: skip
def test_input_that_does_not_match_the_model_is_refused(service: str, operation: str, params: Any, code: str, text: str):
    with pytest.raises(ApiError) as refused:
        direct_input(service, operation, params)
    assert refused.value.code == code and text in refused.value.message


@pytest.mark.parametrize("service", SERVICES)
def test_values_of_the_right_type_do_not_change(service: str):
    model = model_of(service)
    for operation in SERVICES[service].operations:
        shape = model.operation_model(operation).input_shape if operation in model.operation_names else None
        if shape is None or any(member.type_name == "blob" for member in shape.members.values()):
            continue
        params = Generator(f"direct {operation}").value(shape)
        try:
            assert direct_input(service, operation, params).keys() == params.keys()
        except ApiError as refused:  # generated values may violate a constraint, but they match the model
            assert "unknown members" not in refused.message and "expected a" not in refused.message, (operation, refused.message)


def role_of_task(tx: Tx[Store], *statements: dict[str, Any]) -> None:
    policy = {"Version": "2012-10-17", "Statement": list(statements)}
    call(tx, ROOT, "iam", "CreateRole", {"RoleName": "train", "AssumeRolePolicyDocument": orjson.dumps(TRUST).decode()})
    document = orjson.dumps(policy).decode()
    call(tx, ROOT, "iam", "PutRolePolicy", {"RoleName": "train", "PolicyName": "p", "PolicyDocument": document})


def test_a_program_in_a_container_gains_nothing_by_a_stack(tx: Tx[Store]):
    role_of_task(tx, {"Effect": "Allow", "Action": "ecs:CreateCluster", "Resource": "*"})
    assert call(tx, TASK, "ecs", "CreateCluster", {"clusterName": "own"})["cluster"]["clusterName"] == "own"
    with pytest.raises(ApiError) as refused:
        call(tx, TASK, "ecs", "DeleteCluster", {"cluster": "own"})
    assert refused.value.code == "AccessDeniedException" and "ecs:DeleteCluster on resource" in refused.value.message
    with pytest.raises(ApiError) as refused:
        call(tx, TASK, "iam", "CreateRole", {"RoleName": "more", "AssumeRolePolicyDocument": orjson.dumps(TRUST).decode()})
    assert refused.value.code == "AccessDenied" and "not authorized to perform: iam:CreateRole" in refused.value.message
    assert call(tx, ROOT, "iam", "ListRoles", {})["Roles"][0]["RoleName"] == "train"


@pytest.mark.parametrize(
    ("statements", "allowed"),
    [
        ([{"Effect": "Allow", "Action": "ec2:*", "Resource": "*"}], True),
        ([{"Effect": "Allow", "Action": "ec2:CreateVpc", "Resource": "*"}], False),
        ([{"Effect": "Allow", "Action": "*", "Resource": "*"},
          {"Effect": "Deny", "Action": "ec2:DeleteVpc", "Resource": "*"}], False),
    ],
)  # fmt: skip
def test_a_step_without_operations_needs_all_actions_of_its_service(tx: Tx[Store], statements: list[dict[str, Any]], allowed: bool):
    role_of_task(tx, *statements)
    name = "AWS::EC2::VPC"  # it calls handlers
    for caller, type_name in ((ROOT, name), (TASK, "AWS::SNS::Topic"), (TASK, "AWS::Logs::LogGroup")):
        authorize_step(tx, caller, resource_type(type_name))  # these types run operations, which check the permissions
    if allowed:
        authorize_step(tx, TASK, resource_type(name))
    else:
        with pytest.raises(ApiError) as refused:
            authorize_step(tx, TASK, resource_type(name))
        assert refused.value.code == "UnauthorizedOperation"
