"""The permissions that operations need: every operation that is served names its action, whatever its parameters are."""

from __future__ import annotations

import re
from importlib import import_module
from random import Random
from typing import Any

import pytest

from corral.access.caller import Caller
from corral.access.permissions import Permission
from corral.core.errors import ApiError
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.decide.policies.policy import NO_RESOURCE
from corral.model.principal import ROOT, role_session
from corral.model.settings import Settings
from corral.operations.services import MODULES, SERVICES, needed_permissions
from corral.store import Store
from wire.generate import Generator
from wire.oracle import model_of

CALLER = Caller("123456789012", "us-east-1", role_session("123456789012", "train", "me", ROOT), confined=True)
HERE = "us-east-1:123456789012"


@pytest.fixture(scope="module")
def tx() -> Tx[Store]:
    return Tx(Store(None), 1_700_000_000.0, SeededIds(Random(0)), Settings())


@pytest.mark.parametrize("service", SERVICES)
def test_every_operation_needs_an_action(tx: Tx[Store], service: str) -> None:
    model = model_of(service)
    for operation in SERVICES[service].operations:
        if operation not in model.operation_names:
            continue  # PostObject is a form
        for seed in range(3):
            shape = model.operation_model(operation).input_shape
            params = Generator(f"permissions {operation} {seed}").value(shape) if shape is not None else {}
            try:
                needed = needed_permissions(tx, CALLER, service, operation, params)
            except ApiError:
                continue
            assert needed or operation == "DeleteObjects"  # its handler checks the permission for each key
            assert all(each.action.partition(":")[2] for each in needed), operation
            owner = "sqs" if operation == "PeekMessages" else service  # it needs the action of ReceiveMessage
            assert not needed or needed[0].action.startswith(f"{owner}:")


def test_actions_are_those_of_served_operations() -> None:
    for service, (_, module) in MODULES.items():
        tables = vars(import_module(f"corral.services.{module.partition('.')[0]}.permissions"))
        assert tables.get("ACTIONS", {}).keys() <= SERVICES[service].operations.keys()


@pytest.mark.parametrize(
    ("service", "operation", "params", "expected"),
    [
        ("ecs", "StopTask", {"task": "abc"}, [("ecs:StopTask", f"arn:aws:ecs:{HERE}:task/default/abc")]),
        ("ecs", "StopTask", {"task": f"arn:aws:ecs:{HERE}:task/x/abc", "cluster": "c"},
         [("ecs:StopTask", f"arn:aws:ecs:{HERE}:task/c/abc")]),
        ("ecs", "ListClusters", {}, [("ecs:ListClusters", "*")]),
        ("ecs", "CreateCluster", {"clusterName": "c"}, [("ecs:CreateCluster", f"arn:aws:ecs:{HERE}:cluster/c")]),
        ("ecs", "DeregisterTaskDefinition", {"taskDefinition": "f:007"},
         [("ecs:DeregisterTaskDefinition", f"arn:aws:ecs:{HERE}:task-definition/f:7")]),
        ("ecs", "DeleteTaskDefinitions", {"taskDefinitions": ["arn:aws-cn:ecs:x:1:task-definition/f:01", "g:2", "h"]},
         [("ecs:DeleteTaskDefinitions", f"arn:aws:ecs:{HERE}:task-definition/{each}") for each in ("f:1", "g:2", "h")]),
        ("ecs", "CreateService", {"serviceName": "s", "cluster": "c", "taskDefinition": "f"},
         [("ecs:CreateService", f"arn:aws:ecs:{HERE}:service/c/s")]),
        ("ecs", "DeleteService", {"service": "arn:aws:ecs:eu-west-1:1:service/x/s"},
         [("ecs:DeleteService", f"arn:aws:ecs:{HERE}:service/default/s")]),
        ("ecs", "DescribeServices", {"services": ["s", "x/t"], "cluster": "c"},
         [("ecs:DescribeServices", f"arn:aws:ecs:{HERE}:service/c/{each}") for each in "st"]),
        ("ecs", "StopServiceDeployment", {"serviceDeploymentArn": "arn:aws-cn:ecs:us-east-1:1:service-deployment/c/s/1"},
         [("ecs:StopServiceDeployment", f"arn:aws:ecs:{HERE}:service-deployment/c/s/1")]),
        ("ecs", "DescribeServiceRevisions", {"serviceRevisionArns": ["arn:x:ecs:us-east-1:1:service-revision/c/s/1"]},
         [("ecs:DescribeServiceRevisions", f"arn:aws:ecs:{HERE}:service-revision/c/s/1")]),
        ("ecs", "UpdateTaskSet", {"cluster": "c", "service": "x/s", "taskSet": "x/1"},
         [("ecs:UpdateTaskSet", f"arn:aws:ecs:{HERE}:task-set/c/s/ecs-svc/1")]),
        ("ecs", "PutAttributes", {"cluster": "c", "attributes": [{"name": "a", "targetId": "i"}, {"name": "b", "targetId": "x/i"}]},
         [("ecs:PutAttributes", f"arn:aws:ecs:{HERE}:container-instance/c/i")]),
        ("ecs", "DescribeCapacityProviders", {"capacityProviders": ["x/p"]},
         [("ecs:DescribeCapacityProviders", f"arn:aws:ecs:{HERE}:capacity-provider/p")]),
        ("autoscaling", "DescribeAutoScalingGroups", {}, [("autoscaling:DescribeAutoScalingGroups", "*")]),
        ("autoscaling", "SetDesiredCapacity", {"AutoScalingGroupName": "g"},
         [("autoscaling:SetDesiredCapacity", f"arn:aws:autoscaling:{HERE}:autoScalingGroup:*:autoScalingGroupName/g")]),
        ("autoscaling", "ExecutePolicy",
         {"AutoScalingGroupName": "mine",
          "PolicyName": f"arn:aws:autoscaling:{HERE}:scalingPolicy:1:autoScalingGroupName/g:policyName/p"},
         [("autoscaling:ExecutePolicy", f"arn:aws:autoscaling:{HERE}:autoScalingGroup:*:autoScalingGroupName/g")]),
        ("application-autoscaling", "DescribeScalableTargets", {"ServiceNamespace": "ecs"},
         [("application-autoscaling:DescribeScalableTargets", "*")]),
        ("application-autoscaling", "RegisterScalableTarget", {"ServiceNamespace": "ecs", "ResourceId": "service/c/s"},
         [("application-autoscaling:RegisterScalableTarget", f"arn:aws:application-autoscaling:{HERE}:scalable-target/*"),
          ("ecs:DescribeServices", f"arn:aws:ecs:{HERE}:service/c/s"), ("ecs:UpdateService", f"arn:aws:ecs:{HERE}:service/c/s")]),
        ("application-autoscaling", "TagResource", {"ResourceARN": f"arn:aws:application-autoscaling:{HERE}:scalable-target/1"},
         [("application-autoscaling:TagResource", f"arn:aws:application-autoscaling:{HERE}:scalable-target/1")]),
        ("batch", "DescribeJobQueues", {}, [("batch:DescribeJobQueues", "*")]),
        ("batch", "SubmitJob", {"jobName": "n", "jobQueue": f"arn:aws:batch:{HERE}:job-queue/q", "jobDefinition": "d:3"},
         [("batch:SubmitJob", f"arn:aws:batch:{HERE}:job-definition/d:3"),
          ("batch:SubmitJob", f"arn:aws:batch:{HERE}:job-queue/q")]),
        ("batch", "TerminateJob", {"jobId": "1", "reason": "r"}, [("batch:TerminateJob", f"arn:aws:batch:{HERE}:job/1")]),
        ("batch", "CancelJobs", {"jobs": ["1", "2"], "reason": "r"},
         [("batch:CancelJob", f"arn:aws:batch:{HERE}:job/1"), ("batch:CancelJob", f"arn:aws:batch:{HERE}:job/2")]),
        ("batch", "TagResource", {"resourceArn": f"arn:aws:batch:{HERE}:job/1"},
         [("batch:TagResource", f"arn:aws:batch:{HERE}:job/1")]),
        ("batch", "CreateJobQueue", {"jobQueueName": "q", "computeEnvironmentOrder": [{"order": 1, "computeEnvironment": "e"}]},
         [("batch:CreateJobQueue", f"arn:aws:batch:{HERE}:job-queue/q"),
          ("batch:CreateJobQueue", f"arn:aws:batch:{HERE}:compute-environment/e")]),
        ("batch", "CreateComputeEnvironment", {"computeEnvironmentName": "e", "type": "MANAGED", "serviceRole": "r"},
         [("batch:CreateComputeEnvironment", f"arn:aws:batch:{HERE}:compute-environment/e"),
          ("iam:PassRole", "arn:aws:iam::123456789012:role/r")]),
        ("batch", "RegisterJobDefinition",
         {"jobDefinitionName": "d", "type": "container",
          "containerProperties": {"image": "corral/host", "jobRoleArn": "r", "executionRoleArn": "x", "vcpus": 1, "memory": 4}},
         [("batch:RegisterJobDefinition", f"arn:aws:batch:{HERE}:job-definition/d"),
          ("iam:PassRole", "arn:aws:iam::123456789012:role/r"), ("iam:PassRole", "arn:aws:iam::123456789012:role/x"),
          ("corral:RunOnHost", "*")]),
        ("ecs", "RunTask", {"taskDefinition": "f:3"}, [("ecs:RunTask", f"arn:aws:ecs:{HERE}:task-definition/f:3")]),
        (
            "ecs", "RegisterTaskDefinition", {"family": "f", "taskRoleArn": "r", "executionRoleArn": "e"},
            [
                ("ecs:RegisterTaskDefinition", f"arn:aws:ecs:{HERE}:task-definition/f:*"),
                ("iam:PassRole", "arn:aws:iam::123456789012:role/r"),
                ("iam:PassRole", "arn:aws:iam::123456789012:role/e"),
            ],
        ),
        ("s3", "ListObjectsV2", {"Bucket": "b"}, [("s3:ListBucket", "arn:aws:s3:::b")]),
        ("s3", "GetObject", {"Bucket": "b", "Key": "k", "VersionId": "v"}, [("s3:GetObjectVersion", "arn:aws:s3:::b/k")]),
        (
            "s3", "CopyObject", {"Bucket": "b", "Key": "k", "CopySource": "/c/a%20b?versionId=v"},
            [("s3:PutObject", "arn:aws:s3:::b/k"), ("s3:GetObjectVersion", "arn:aws:s3:::c/a b")],
        ),
        ("sqs", "SendMessageBatch", {"QueueUrl": "http://h/123456789012/q"}, [("sqs:SendMessage", f"arn:aws:sqs:{HERE}:q")]),
        ("sns", "PublishBatch", {"TopicArn": f"arn:aws:sns:{HERE}:t"}, [("sns:Publish", f"arn:aws:sns:{HERE}:t")]),
        ("sns", "CreateTopic", {"Name": "t"}, [("sns:CreateTopic", f"arn:aws:sns:{HERE}:t")]),
        ("sns", "Unsubscribe", {"SubscriptionArn": f"arn:aws:sns:{HERE}:t:1"}, [("sns:Unsubscribe", f"arn:aws:sns:{HERE}:t")]),
        ("logs", "PutLogEvents", {"logGroupName": "/g", "logStreamName": "s"},
         [("logs:PutLogEvents", f"arn:aws:logs:{HERE}:log-group:/g:log-stream:s")]),
        ("logs", "DeleteLogGroup", {"logGroupName": "/g"}, [("logs:DeleteLogGroup", f"arn:aws:logs:{HERE}:log-group:/g:*")]),
        ("logs", "TagResource", {"resourceArn": "arn:aws:logs:eu-west-1:999999999999:log-group:/g:*"},
         [("logs:TagResource", f"arn:aws:logs:{HERE}:log-group:/g")]),
        ("secretsmanager", "GetSecretValue", {"SecretId": "a/b"},
         [("secretsmanager:GetSecretValue", f"arn:aws:secretsmanager:{HERE}:secret:a/b-??????")]),
        ("secretsmanager", "GetRandomPassword", {}, [("secretsmanager:GetRandomPassword", "*")]),
        ("secretsmanager", "CreateSecret", {"Name": "a", "Tags": [{"Key": "k", "Value": "v"}]},
         [("secretsmanager:CreateSecret", f"arn:aws:secretsmanager:{HERE}:secret:a-??????"),
          ("secretsmanager:TagResource", f"arn:aws:secretsmanager:{HERE}:secret:a-??????")]),
        ("ssm", "GetParameter", {"Name": "/aws/reference/secretsmanager/a:AWSPREVIOUS"},
         [("ssm:GetParameter", f"arn:aws:ssm:{HERE}:parameter/aws/reference/secretsmanager/a"),
          ("secretsmanager:GetSecretValue", f"arn:aws:secretsmanager:{HERE}:secret:a-??????")]),
        ("ssm", "GetParameter", {"Name": "/a/b:3"}, [("ssm:GetParameter", f"arn:aws:ssm:{HERE}:parameter/a/b")]),
        ("ssm", "GetParametersByPath", {"Path": "/a/"}, [("ssm:GetParametersByPath", f"arn:aws:ssm:{HERE}:parameter/a")]),
        ("ecr", "DescribeRepositories", {}, [("ecr:DescribeRepositories", f"arn:aws:ecr:{HERE}:repository/*")]),
        ("ecr", "InitiateLayerUpload", {"repositoryNames": ["a"], "mountedFrom": ["b"]},
         [("ecr:InitiateLayerUpload", f"arn:aws:ecr:{HERE}:repository/a"),
          ("ecr:GetDownloadUrlForLayer", f"arn:aws:ecr:{HERE}:repository/b")]),
        ("ec2", "DescribeVpcs", {}, [("ec2:DescribeVpcs", "*")]),
        ("sts", "AssumeRole", {"RoleArn": "arn:aws:iam::123456789012:role/p/r"},
         [("sts:AssumeRole", "arn:aws:iam::123456789012:role/p/r")]),
        ("cloudformation", "DeleteStack", {"StackName": "s"},
         [("cloudformation:DeleteStack", f"arn:aws:cloudformation:{HERE}:stack/s/*")]),
        ("cloudformation", "ListStacks", {}, [("cloudformation:ListStacks", "*")]),
        ("cloudformation", "CreateStack",
         {"StackName": "s", "TemplateURL": "https://b.s3.x.amazonaws.com/k?versionId=v", "RoleARN": "arn:aws:iam::1:role/r"},
         [("cloudformation:CreateStack", f"arn:aws:cloudformation:{HERE}:stack/s/*"), ("s3:GetObjectVersion", "arn:aws:s3:::b/k"),
          ("iam:PassRole", "arn:aws:iam::1:role/r")]),
        ("lambda", "Invoke", {"FunctionName": f"arn:aws:lambda:{HERE}:function:f:$LATEST"},
         [("lambda:InvokeFunction", f"arn:aws:lambda:{HERE}:function:f")]),
        ("lambda", "CreateFunction",
         {"FunctionName": "f", "Role": "arn:aws:iam::1:role/r", "Code": {"S3Bucket": "b", "S3Key": "k"}},
         [("lambda:CreateFunction", f"arn:aws:lambda:{HERE}:function:f"), ("s3:GetObject", "arn:aws:s3:::b/k"),
          ("iam:PassRole", "arn:aws:iam::1:role/r"), ("corral:RunOnHost", "*")]),
    ],
)  # fmt: skip
def test_actions_and_resources(tx: Tx[Store], service: str, operation: str, params: Any, expected: Any) -> None:
    found: list[Permission] = needed_permissions(tx, CALLER, service, operation, params)
    assert [(each.action, each.resource) for each in found] == expected


@pytest.mark.parametrize(
    ("operation", "params", "cluster"),
    [
        ("ListServices", {}, "default"),
        ("ListServices", {"cluster": "x/c"}, "c"),
        ("StopServiceDeployment", {"serviceDeploymentArn": f"arn:aws:ecs:{HERE}:service-deployment/c/s/1"}, "c"),
        ("DescribeClusters", {"clusters": ["c"]}, "c"),
        ("RunTask", {"cluster": "c", "taskDefinition": "f"}, "c"),
    ],
)
def test_the_condition_key_of_the_cluster(tx: Tx[Store], operation: str, params: Any, cluster: str) -> None:
    [needed] = needed_permissions(tx, CALLER, "ecs", operation, params)
    assert needed.context["ecs:cluster"] == (f"arn:aws:ecs:{HERE}:cluster/{cluster}",)


# A member of a request that names a resource. Other members, such as tokens and filters, name none.
NAMES = re.compile(
    "cluster|clusters|service|services|serviceName|tasks?|taskDefinitions?|containerInstances?|capacityProviders?|taskSets?"
    "|service(Deployment|Revision)Arns?|resourceArn"
)
# Operations without a resource on AWS, though they name one.
WITHOUT_RESOURCE = {"CreateCapacityProvider", "DescribeTaskDefinition", "ListServices", "ListTasks"}


def test_every_operation_that_names_a_resource_of_ecs_has_its_arn(tx: Tx[Store]) -> None:
    model = model_of("ecs")
    handlers = SERVICES["ecs"].operations
    for operation in sorted(handlers.keys() - WITHOUT_RESOURCE):
        members = model.operation_model(operation).input_shape.members
        params = {
            name: [f"x:/y/{name}"] if shape.type_name == "list" else f"x:/y/{name}"
            for name, shape in members.items()
            if NAMES.fullmatch(name)
        }
        if "Attributes" in operation:
            params["attributes"] = [{"name": "a", "targetId": "x:/y/z"}]
        if params and not operation.startswith(("Submit", "Discover", "Register")):
            resources = [each.resource for each in needed_permissions(tx, CALLER, "ecs", operation, params)]
            assert NO_RESOURCE not in resources, operation


def test_a_revision_of_a_job_definition_has_no_leading_zeros() -> None:
    own = Tx(Store(None), 1_700_000_000.0, SeededIds(Random(0)), Settings())
    own.store.job_definitions.add("us-east-1", "d", {}, "root")
    for given in ("d:1", "d:01", "arn:aws-cn:batch:us-east-1:1:job-definition/d:001"):
        [needed] = needed_permissions(own, CALLER, "batch", "DeregisterJobDefinition", {"jobDefinition": given})
        assert needed.resource == f"arn:aws:batch:{HERE}:job-definition/d:1"


def test_a_registered_target_has_its_own_arn() -> None:
    own = Tx(Store(None), 1_700_000_000.0, SeededIds(Random(0)), Settings())
    arn = f"arn:aws:application-autoscaling:{HERE}:scalable-target/0ec51"
    target = {"ResourceId": "service/c/s", "ScalableTargetARN": arn}
    own.store.stored.put("application-autoscaling", "target", "us-east-1", "service/c/s", target, 0.0)
    params = {"ServiceNamespace": "ecs", "ResourceId": "service/c/s", "ScalableDimension": "ecs:service:DesiredCount"}
    [needed] = needed_permissions(own, CALLER, "application-autoscaling", "DeleteScalingPolicy", params)
    assert needed.resource == arn
    assert needed.context["application-autoscaling:scalable-dimension"] == ("ecs:service:DesiredCount",)
