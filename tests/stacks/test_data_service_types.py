"""Template types of S3, SQS, Logs, CloudWatch, ECR, SSM and IAM: what a stack does with existing, used and missing resources."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.model.principal import ROOT, role_session
from corral.services.ssm.cloudformation_types import dynamic_value, parameter_value
from corral.template_types.lookup import template_type
from corral.template_types.resource_types import ResourceStep
from stacks.resource_cases import ALLOW, CALLER, DENY, TRUST
from stacks.resource_cases.data_services import BUCKET, CASES, QUEUE, REPOSITORY
from stacks.resource_cases.stack import Stack

ROLE, MANAGED = "AWS::IAM::Role", "AWS::IAM::ManagedPolicy"
MINE = {"aws:cloudformation:stack-name": "mine"}
# (type, operation, request): the operation that lists the tags of the resource in the case of the type
TAGGED = [
    (BUCKET, "s3:GetBucketTagging", {"Bucket": "bucket"}),
    (REPOSITORY, "ecr:ListTagsForResource", {"resourceArn": "arn:aws:ecr:us-east-1:123456789012:repository/team/app"}),
    ("AWS::Logs::LogGroup", "logs:ListTagsLogGroup", {"logGroupName": "group"}),
    (
        "AWS::CloudWatch::Alarm",
        "cloudwatch:ListTagsForResource",
        {"ResourceARN": "arn:aws:cloudwatch:us-east-1:123456789012:alarm:alarm"},
    ),
    ("AWS::SSM::Parameter", "ssm:ListTagsForResource", {"ResourceType": "Parameter", "ResourceId": "/app/size"}),
]


def refusal(action: Any, *arguments: Any) -> ApiError:
    with pytest.raises(ApiError) as refused:
        action(*arguments)
    return refused.value


def bucket_with_queue() -> Stack:
    stack = Stack()
    stack.create("queue", QUEUE, {"QueueName": "queue"})
    stack.create("policy", "AWS::SQS::QueuePolicy", CASES["AWS::SQS::QueuePolicy"].properties)
    stack.create("it", BUCKET, CASES[BUCKET].properties)
    return stack


def test_a_bucket_sends_notifications_and_goes_back_to_the_defaults():
    stack = bucket_with_queue()
    stored = stack.call("s3:GetBucketNotificationConfiguration", {"Bucket": "bucket"})
    assert [part["Events"] for part in stored["QueueConfigurations"]] == [["s3:ObjectCreated:Put"]]
    assert len(stored["TopicConfigurations"]) == 1, "topics are stored only, and do not refuse the bucket"
    messages = stack.call("sqs:ReceiveMessage", {"QueueUrl": "/123456789012/queue", "MaxNumberOfMessages": 10})["Messages"]
    assert [orjson.loads(message["Body"])["Event"] for message in messages] == ["s3:TestEvent"]

    large = stack.call("s3:GetBucketLifecycleConfiguration", {"Bucket": "bucket"})["Rules"][1]
    assert large["Filter"] == {"And": {"ObjectSizeGreaterThan": 1000, "Tags": [{"Key": "a", "Value": "b"}]}}
    assert large["Transitions"] == [{"StorageClass": "GLACIER", "Date": 1893456000.0}]

    stack.update("it", {"BucketName": "bucket"})
    assert "AES256" in str(stack.call("s3:GetBucketEncryption", {"Bucket": "bucket"}))
    assert stack.call("s3:GetBucketVersioning", {"Bucket": "bucket"}) == {"Status": "Suspended"}
    assert stack.call("s3:GetBucketLogging", {"Bucket": "bucket"}) == {}
    assert stack.call("s3:GetBucketNotificationConfiguration", {"Bucket": "bucket"}) == {}
    assert stack.call("s3:ListBucketMetricsConfigurations", {"Bucket": "bucket"})["MetricsConfigurationList"] == []
    for name in ("Tagging", "Cors", "Website", "Replication", "LifecycleConfiguration", "OwnershipControls"):
        assert refusal(stack.call, f"s3:GetBucket{name}", {"Bucket": "bucket"}).status == 404


def test_a_queue_that_does_not_allow_notifications_refuses_the_bucket():
    stack = Stack()
    stack.create("queue", QUEUE, {"QueueName": "queue"})
    refused = refusal(stack.create, "it", BUCKET, CASES[BUCKET].properties)
    assert refused.message == "Unable to validate the following destination configurations"


def test_a_bucket_with_a_version_is_not_deleted():
    stack, marker = Stack(), {"Bucket": "full", "Key": "k"}
    stack.create("it", BUCKET, {"BucketName": "full", "VersioningConfiguration": {"Status": "Enabled"}})
    marker["VersionId"] = stack.call("s3:DeleteObject", dict(marker))["VersionId"]
    it = stack.resources["it"]
    refused = refusal(stack.delete, "it")
    assert refused.code == "BucketNotEmpty"
    assert refused.message == "The bucket you tried to delete is not empty. You must delete all versions in the bucket."
    stack.call("s3:DeleteObject", marker)
    stack.resources["it"] = it
    stack.delete("it")
    assert refusal(stack.call, "s3:HeadBucket", {"Bucket": "full"}).code == "NoSuchBucket"


@pytest.mark.parametrize("empties", [False, True])
def test_a_repository_with_an_image_is_deleted_only_with_empty_on_delete(empties: bool):
    stack = Stack()
    stack.create("it", REPOSITORY, {"RepositoryName": "app", "EmptyOnDelete": empties})
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []}
    stack.call("ecr:PutImage", {"repositoryName": "app", "imageManifest": orjson.dumps(index).decode(), "imageTag": "v1"})
    if empties:
        stack.delete("it")
    else:
        refused = refusal(stack.delete, "it")
        assert refused.code == "RepositoryNotEmptyException"
        assert refused.message == (
            "The repository with name 'app' in registry with id '123456789012' cannot be deleted because it still contains images"
        )


@pytest.mark.parametrize("name", [BUCKET, QUEUE, "AWS::CloudWatch::Alarm", "AWS::CloudWatch::Dashboard", "AWS::SSM::Parameter"])
def test_an_existing_resource_is_not_taken_over(name: str):
    stack, small = Stack(), ("NotificationConfiguration", "RedrivePolicy")
    properties = {property_: value for property_, value in CASES[name].properties.items() if property_ not in small}
    identity = stack.create("it", name, properties)
    refused = refusal(stack.create, "other", name, properties)
    assert refused.message == f"{identity} already exists" or refused.code == "ParameterAlreadyExists"


@pytest.mark.parametrize(("name", "operation", "request_"), TAGGED)
def test_the_tags_of_the_stack_stay_when_the_tags_of_a_resource_change(name: str, operation: str, request_: dict[str, str]):
    stack = Stack()
    properties = {key: value for key, value in CASES[name].properties.items() if key != "NotificationConfiguration"}
    stack.create("it", name, {**properties, "_tags": MINE})
    assert "'mine'" in str(stack.call(operation, request_)) and "'a'" in str(stack.call(operation, request_))
    properties.pop("Tags")
    stack.update("it", {**properties, "_tags": MINE})
    assert "'mine'" in str(stack.call(operation, request_)) and "'a'" not in str(stack.call(operation, request_))


def test_properties_without_effect_are_named_in_a_note():
    type_ = template_type(BUCKET)
    assert type_ is not None and type_.settled is not None
    step = ResourceStep("arn", "stack", "it", "bucket", "CREATE", {"BucketName": "bucket", "ObjectLockEnabled": True})
    assert type_.settled(Stack().tx("state"), CALLER, step) is None
    assert step.notes == ["Corral stores these properties of AWS::S3::Bucket, but they have no effect: ObjectLockEnabled."]


def test_a_bucket_in_another_region():
    stack = Stack(Caller("123456789012", "eu-central-1", CALLER.principal))
    stack.create("it", BUCKET, {"BucketName": "bucket"})
    found = stack.attributes("it")
    assert found["RegionalDomainName"] == "bucket.s3.eu-central-1.amazonaws.com"
    assert found["WebsiteURL"] == "http://bucket.s3-website.eu-central-1.amazonaws.com"
    assert stack.call("s3:GetBucketLocation", {"Bucket": "bucket"}) == {"LocationConstraint": "eu-central-1"}


def test_a_policy_acts_on_its_users_groups_and_roles():
    stack = Stack()
    stack.create("user", "AWS::IAM::User", {"UserName": "ann"})
    stack.create("group", "AWS::IAM::Group", {"GroupName": "admins"})
    stack.create("role", ROLE, {"RoleName": "role", "AssumeRolePolicyDocument": TRUST})
    users = {"Users": ["ann"], "Groups": ["admins"], "Roles": [{"Ref": "role"}]}
    stack.create("inline", "AWS::IAM::Policy", {"PolicyName": "inline", "PolicyDocument": ALLOW, **users})
    stack.create("managed", MANAGED, {"ManagedPolicyName": "managed", "PolicyDocument": ALLOW, "Path": "/team/", **users})
    assert stack.call("iam:ListRolePolicies", {"RoleName": "role"})["PolicyNames"] == ["inline"]
    assert stack.call("iam:ListUserPolicies", {"UserName": "ann"})["PolicyNames"] == ["inline"]
    assert stack.call("iam:ListGroupPolicies", {"GroupName": "admins"})["PolicyNames"] == ["inline"]
    entities = stack.call("iam:ListEntitiesForPolicy", {"PolicyArn": "arn:aws:iam::123456789012:policy/team/managed"})
    assert [len(entities[f"Policy{kind}"]) for kind in ("Users", "Groups", "Roles")] == [1, 1, 1]
    for number in range(7):  # IAM stores at most five versions
        document = {**DENY, "Id": str(number)}
        stack.update("managed", {"ManagedPolicyName": "managed", "PolicyDocument": document, "Path": "/team/", **users})
    versions = stack.call("iam:ListPolicyVersions", {"PolicyArn": "arn:aws:iam::123456789012:policy/team/managed"})["Versions"]
    assert (versions[0]["VersionId"], versions[0]["IsDefaultVersion"], len(versions)) == ("v8", True, 5)
    refused = refusal(stack.delete, "role")
    assert refused.message == "Cannot delete entity, must detach all policies first."


def test_a_role_loses_what_the_template_no_longer_has():
    stack = Stack()
    boundary = "arn:aws:iam::aws:policy/ReadOnlyAccess"
    role = {"RoleName": "role", "AssumeRolePolicyDocument": TRUST}
    more = {"Description": "d", "MaxSessionDuration": 7200, "PermissionsBoundary": boundary, "ManagedPolicyArns": [boundary]}
    stack.create("it", ROLE, {**role, **more, "Policies": [{"PolicyName": "p", "PolicyDocument": ALLOW}]})
    shown = stack.call("iam:GetRole", {"RoleName": "role"})["Role"]
    assert (shown["MaxSessionDuration"], shown["PermissionsBoundary"]["PermissionsBoundaryArn"]) == (7200, boundary)
    stack.update("it", role)
    shown = stack.call("iam:GetRole", {"RoleName": "role"})["Role"]
    assert (shown["Description"], shown["MaxSessionDuration"]) == ("", 3600) and "PermissionsBoundary" not in shown
    assert stack.call("iam:ListAttachedRolePolicies", {"RoleName": "role"})["AttachedPolicies"] == []
    assert stack.call("iam:ListRolePolicies", {"RoleName": "role"})["PolicyNames"] == []


@pytest.mark.parametrize("name", [BUCKET, QUEUE, REPOSITORY, "AWS::SSM::Parameter", ROLE, "AWS::S3::BucketPolicy"])
def test_a_program_in_a_container_needs_the_permission_of_the_operation(name: str):
    confined = Caller("123456789012", "us-east-1", role_session("123456789012", "none", "task", ROOT), confined=True)
    stack = Stack(confined)
    properties = CASES[name].properties if name in CASES else {"RoleName": "role", "AssumeRolePolicyDocument": TRUST}
    given = {key: value for key, value in properties.items() if key not in ("NotificationConfiguration", "RedrivePolicy")}
    if name == "AWS::S3::BucketPolicy":
        stack.call("s3:CreateBucket", {"Bucket": "bucket"})
        given["Bucket"] = "bucket"
    refused = refusal(stack.create, "it", name, given)
    assert refused.code in ("AccessDenied", "AccessDeniedException"), refused


def test_values_of_parameters():
    stack = Stack()
    stack.create("it", "AWS::SSM::Parameter", {"Name": "/size", "Type": "String", "Value": "3"})
    stack.update("it", {"Name": "/size", "Type": "String", "Value": "4"})
    stack.call("ssm:PutParameter", {"Name": "/secret", "Type": "SecureString", "Value": "s3cret"})
    tx = stack.tx("state")
    assert (parameter_value(tx, CALLER, "/size"), parameter_value(tx, CALLER, "/size:1")) == ("4", "3")
    image = "/aws/service/ecs/optimized-ami/amazon-linux-2/gpu/recommended/image_id"
    assert parameter_value(tx, CALLER, image).startswith("ami-")
    assert (dynamic_value(tx, CALLER, "ssm:/size:1"), dynamic_value(tx, CALLER, "ssm-secure:/secret")) == ("3", "s3cret")
    for action, name, text in (
        (parameter_value, "/none", "Unable to fetch parameters [/none] from parameter store for this account."),
        (parameter_value, "/secret", "Parameters [/secret] referenced by template have types not supported by CloudFormation."),
        (dynamic_value, "ssm:/none", "Parameters: [ssm:/none] cannot be found."),
        (dynamic_value, "ssm:/secret", "Non-secure ssm prefix was used for secure parameter: /secret"),
    ):
        refused = refusal(action, tx, CALLER, name)
        assert (refused.code, refused.message) == ("ValidationError", text)
