"""What policies can test about the resources of a request: the owner, the tags and the policy of each."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from corral.access.caller import Caller
from corral.access.permissions import Permission
from corral.access.resources import ResourceFacts, facts_of
from corral.core.errors import ApiError
from corral.model.principal import ROOT, Principal
from corral.operations.listings import listing_of, visible
from corral.operations.services import MODULES, SERVICES, needed_permissions
from corral.services.lambda_.code import CODE, checked_code, inline_zip
from virtual_clock.group_world import CALLER, GPUS_1
from virtual_clock.service_world import ServiceWorld

ALICE, BOB = "user/alice", "user/bob"
BOUNDARY = "arn:aws:iam::aws:policy/ReadOnlyAccess"
ROLE = "arn:aws:iam::123456789012:role/r"
TEMPLATE = orjson.dumps({"Resources": {"Q": {"Type": "AWS::SQS::Queue"}}}).decode()
PAIRS = [{"Key": "team", "Value": "red"}]
STATEMENT = {"Sid": "s", "Effect": "Allow", "Principal": {"AWS": f"arn:aws:iam::{CALLER.account}:user/bob"}}


def user(owner: str) -> Caller:
    name = owner.partition("/")[2]
    return replace(CALLER, principal=Principal(CALLER.account, "user", name, owner=owner), endpoint_url="http://localhost")


def policy(action: str, resource: str | None = "*") -> str:
    statement = {**STATEMENT, "Action": action, **({"Resource": resource} if resource else {})}
    return orjson.dumps({"Version": "2012-10-17", "Statement": [statement]}).decode()


def arn(service: str, rest: str) -> str:
    return f"arn:aws:{service}:{CALLER.region}:{CALLER.account}:{rest}"


class Owned:
    """A world with one resource of each kind, which Alice has created."""

    def __init__(self) -> None:
        self.world = ServiceWorld(gpus=1)
        call = self.call
        call("sqs", "CreateQueue", QueueName="q", tags={"team": "red"}, Attributes={"Policy": policy("sqs:SendMessage")})
        call("sqs", "CreateQueue", QueueName="plain")
        topic = call("sns", "CreateTopic", Name="t", Tags=PAIRS)["TopicArn"]
        self.subscription = call("sns", "Subscribe", owner=BOB, TopicArn=topic, Protocol="sqs", Endpoint=arn("sqs", "q"),
                                 ReturnSubscriptionArn=True)["SubscriptionArn"]  # fmt: skip
        code = {CODE: checked_code(inline_zip("def handler(event, context): pass"))}
        function = {"Runtime": "python3.12", "Handler": "index.handler", "Role": ROLE}
        call("lambda", "CreateFunction", FunctionName="f", Tags={"team": "red"}, **function, **code)
        call(
            "lambda",
            "AddPermission",
            FunctionName="f",
            StatementId="s",
            Action="lambda:InvokeFunction",
            Principal="s3.amazonaws.com",
        )
        call("ecr", "CreateRepository", repositoryName="r", tags=PAIRS)
        call("ecr", "SetRepositoryPolicy", repositoryName="r", policyText=policy("ecr:BatchGetImage", None))
        call("secretsmanager", "CreateSecret", Name="s", SecretString="x", Tags=PAIRS, ClientRequestToken="0" * 32)
        call("secretsmanager", "PutResourcePolicy", SecretId="s", ResourcePolicy=policy("secretsmanager:GetSecretValue"))
        call("ssm", "PutParameter", Name="/a/b", Value="x", Type="String", Tags=PAIRS)
        call("ssm", "PutParameter", owner=BOB, Name="/a/b", Value="y", Overwrite=True)
        container = {"name": "c", "image": "corral/host", "command": ["true"], "memory": 6}
        call("ecs", "RegisterTaskDefinition", family="one", containerDefinitions=[container])
        call("ecs", "CreateService", serviceName="web", taskDefinition="one", desiredCount=0)
        call("application-autoscaling", "RegisterScalableTarget", ServiceNamespace="ecs", ResourceId="service/default/web",
             ScalableDimension="ecs:service:DesiredCount", MinCapacity=0, MaxCapacity=1, Tags={"team": "red"})  # fmt: skip
        call("autoscaling", "CreateLaunchConfiguration", LaunchConfigurationName="lc", ImageId="ami-1", InstanceType=GPUS_1)
        call("autoscaling", "CreateAutoScalingGroup", AutoScalingGroupName="g", LaunchConfigurationName="lc", MinSize=0, MaxSize=2,
             AvailabilityZones=["us-east-1a"], Tags=PAIRS)  # fmt: skip
        tagged = {"TagSpecifications": [{"ResourceType": "instance", "Tags": PAIRS}]}
        launched = call("ec2", "RunInstances", ImageId="ami-1", InstanceType=GPUS_1, MinCount=1, MaxCount=1, **tagged)
        self.instance = launched["Instances"][0]["InstanceId"]
        self.group = call("ec2", "CreateSecurityGroup", GroupName="sg", Description="d")["GroupId"]
        call("ec2", "CreateKeyPair", KeyName="k", KeyType="ed25519")
        trust = policy("sts:AssumeRole", None)
        call(
            "iam", "CreateRole", RoleName="r", Path="/p/", AssumeRolePolicyDocument=trust, Tags=PAIRS, PermissionsBoundary=BOUNDARY
        )
        call("iam", "CreateInstanceProfile", InstanceProfileName="i", Tags=PAIRS)
        allow = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
        call("iam", "CreatePolicy", PolicyName="p", PolicyDocument=orjson.dumps(allow).decode(), Tags=PAIRS)
        vpc = call("ec2", "CreateVpc", CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        call("ec2", "CreateSubnet", VpcId=vpc, CidrBlock="10.0.0.0/24")
        call("ec2", "AllocateAddress")
        data = {"ImageId": "ami-2", "InstanceType": GPUS_1}
        call("ec2", "CreateLaunchTemplate", LaunchTemplateName="template", LaunchTemplateData=data)

    def call(self, service: str, operation: str, *, owner: str = ALICE, **params: Any) -> Any:
        handler = SERVICES[service].operations.get(operation)
        assert handler is not None
        found = self.world.run(lambda tx: handler(tx, params, user(owner)))
        self.world.settle()
        return found

    def needed(self, service: str, operation: str, owner: str = BOB, **params: Any) -> list[Permission]:
        return self.world.run(lambda tx: needed_permissions(tx, user(owner), service, operation, params))  # type: ignore[no-any-return]

    def facts(self, permission: Permission, owner: str = BOB) -> ResourceFacts:
        found = self.world.run(lambda tx: facts_of(tx, user(owner), permission))
        assert isinstance(found, ResourceFacts)
        return found


@pytest.fixture(scope="module")
def owned() -> Owned:
    return Owned()


QUEUE = {"QueueUrl": f"http://localhost/{CALLER.account}/q"}
GROUP = {"AutoScalingGroupName": "g"}
TARGET = {"ServiceNamespace": "ecs", "ResourceId": "service/default/web", "ScalableDimension": "ecs:service:DesiredCount"}


@pytest.mark.parametrize(
    ("service", "operation", "params", "owner", "is_tagged", "has_policy"),
    [
        ("sqs", "SendMessage", QUEUE, ALICE, True, True),
        ("sqs", "CreateQueue", {"QueueName": "q"}, ALICE, True, True),
        ("sqs", "CreateQueue", {"QueueName": "new"}, None, False, False),
        ("sns", "Publish", {"TopicArn": arn("sns", "t")}, ALICE, True, True),
        ("sns", "CreateTopic", {"Name": "t"}, ALICE, True, True),
        ("lambda", "Invoke", {"FunctionName": "f"}, ALICE, True, True),
        ("lambda", "Invoke", {"FunctionName": "none"}, None, False, False),
        ("ecr", "PutImage", {"repositoryNames": ["r"]}, ALICE, True, True),
        ("ecr", "CreateRepository", {"repositoryName": "r"}, ALICE, True, True),
        ("ecr", "PutRegistryPolicy", {}, ROOT, False, False),
        ("ecr", "GetAuthorizationToken", {}, None, False, False),
        ("secretsmanager", "GetSecretValue", {"SecretId": "s"}, ALICE, True, True),
        ("secretsmanager", "CreateSecret", {"Name": "s"}, ALICE, True, True),
        ("ssm", "GetParameter", {"Name": "/a/b"}, ALICE, True, False),
        ("ssm", "PutParameter", {"Name": "/a/b"}, ALICE, True, False),
        ("ssm", "GetParametersByPath", {"Path": "/a"}, None, False, False),
        ("application-autoscaling", "DeregisterScalableTarget", TARGET, ALICE, True, False),
        ("autoscaling", "SetDesiredCapacity", GROUP, ALICE, True, False),
        ("autoscaling", "CreateAutoScalingGroup", GROUP, ALICE, True, False),
        ("autoscaling", "DeleteLaunchConfiguration", {"LaunchConfigurationName": "lc"}, ALICE, False, False),
        ("iam", "DeleteRole", {"RoleName": "r"}, ALICE, True, False),
        ("iam", "CreateRole", {"RoleName": "r"}, ALICE, True, False),
        ("iam", "PassRole", {"RoleName": "r"}, ALICE, True, False),
        ("iam", "DeleteInstanceProfile", {"InstanceProfileName": "i"}, ALICE, True, False),
        ("iam", "DeletePolicy", {"PolicyArn": "arn:aws:iam::123456789012:policy/p"}, ALICE, True, False),
        ("iam", "GetPolicy", {"PolicyArn": "arn:aws:iam::aws:policy/ReadOnlyAccess"}, None, False, False),
        ("sts", "AssumeRole", {"RoleArn": "arn:aws:iam::123456789012:role/p/r"}, ALICE, True, True),
        ("ec2", "DeleteKeyPair", {"KeyName": "k"}, ALICE, False, False),
        ("ec2", "DeleteLaunchTemplate", {"LaunchTemplateName": "template"}, ALICE, False, False),
        ("ec2", "DeleteSecurityGroup", {"GroupName": "sg"}, ALICE, False, False),
        ("ec2", "DeleteSecurityGroup", {"GroupName": "default"}, ROOT, False, False),
        ("ec2", "CreateVpc", {"CidrBlock": "10.0.0.0/16"}, None, False, False),
    ],
)  # fmt: skip
def test_facts(
    owned: Owned, service: str, operation: str, params: Any, owner: str | None, is_tagged: bool, has_policy: bool
) -> None:
    facts = owned.facts(owned.needed(service, operation, **params)[0])
    assert (facts.owner, facts.tags.get("team") == "red", facts.policy is not None) == (owner, is_tagged, has_policy)


def test_an_instance_belongs_to_its_creator(owned: Owned) -> None:
    [needed] = owned.needed("ec2", "TerminateInstances", InstanceIds=[owned.instance])
    facts = owned.facts(needed)
    assert (facts.owner, facts.tags) == (ALICE, {"team": "red"})
    assert needed.context["ec2:instancetype"] == (GPUS_1,) and needed.context["ec2:instanceid"] == (owned.instance,)
    [tagged] = owned.needed("ec2", "CreateTags", Resources=[owned.instance], Tags=PAIRS)
    assert owned.facts(tagged).owner == ALICE and tagged.context["aws:requesttag/team"] == ("red",)


def test_a_subscription_belongs_to_its_subscriber(owned: Owned) -> None:
    [needed] = owned.needed("sns", "Unsubscribe", SubscriptionArn=owned.subscription)
    assert needed.resource == arn("sns", "t") and owned.facts(needed).owner == BOB


def test_a_plain_queue_has_no_policy(owned: Owned) -> None:
    [needed] = owned.needed("sqs", "PurgeQueue", QueueUrl=f"http://localhost/{CALLER.account}/plain")
    assert owned.facts(needed) == ResourceFacts(ALICE)


@pytest.mark.parametrize(
    ("service", "operation", "params", "extra"),
    [
        ("sqs", "SetQueueAttributes",
         {"QueueUrl": "x", "Attributes": {"RedrivePolicy": orjson.dumps({"deadLetterTargetArn": arn("sqs", "q")}).decode()}},
         ("sqs:SendMessage", arn("sqs", "q"))),
        ("lambda", "CreateEventSourceMapping", {"FunctionName": "f", "EventSourceArn": arn("sqs", "mine")},
         ("lambda:InvokeFunction", arn("lambda", "function:f"))),
        ("autoscaling", "PutNotificationConfiguration", {"AutoScalingGroupName": "mine", "TopicARN": arn("sns", "t")},
         ("sns:Publish", arn("sns", "t"))),
    ],
)  # fmt: skip
def test_what_a_service_does_with_a_resource_of_another_owner_needs_a_permission(
    owned: Owned, service: str, operation: str, params: Any, extra: tuple[str, str]
) -> None:
    of_others = [(each.action, each.resource) for each in owned.needed(service, operation, **params)]
    own = [(each.action, each.resource) for each in owned.needed(service, operation, ALICE, **params)]
    assert extra in of_others and extra not in own
    assert owned.facts(Permission(*extra)).owner == ALICE


def test_a_group_of_the_launch_configuration_or_of_instances_of_another_owner_needs_permissions(owned: Owned) -> None:
    [_, other] = owned.needed("autoscaling", "UpdateAutoScalingGroup", AutoScalingGroupName="mine", LaunchConfigurationName="lc")
    assert other.action == "autoscaling:UpdateAutoScalingGroup" and owned.facts(other).owner == ALICE
    [_, other] = owned.needed("autoscaling", "AttachInstances", AutoScalingGroupName="mine", InstanceIds=[owned.instance])
    assert other.action == "autoscaling:AttachInstances" and owned.facts(other).owner == ALICE


def test_a_launch_needs_permissions_on_what_it_uses_and_creates(owned: Owned) -> None:
    given = {"ImageId": "ami-1", "InstanceType": GPUS_1, "MinCount": 1, "MaxCount": 1, "KeyName": "k", "SecurityGroups": ["sg"]}
    specification = [{"ResourceType": "instance", "Tags": PAIRS}]
    needed = owned.needed("ec2", "RunInstances", **given, TagSpecifications=specification)
    resources = {each.resource.rpartition(":")[2].partition("/")[0]: each for each in needed if each.action == "ec2:RunInstances"}
    assert list(resources) == ["image", "instance", "key-pair", "network-interface", "security-group", "subnet", "volume"]
    assert resources["image"].resource == f"arn:aws:ec2:{CALLER.region}::image/ami-1"
    assert resources["instance"].context["ec2:instancetype"] == (GPUS_1,)
    assert resources["instance"].context["aws:requesttag/team"] == ("red",)
    assert "aws:requesttag/team" not in resources["volume"].context
    owners = {type_: owned.facts(each).owner for type_, each in resources.items()}
    assert owners == {**dict.fromkeys(resources, None), "key-pair": ALICE, "security-group": ALICE, "subnet": ROOT}
    [tags] = [each for each in needed if each.action == "ec2:CreateTags"]
    assert tags.resource == arn("ec2", "instance/*") and tags.context["ec2:createaction"] == ("RunInstances",)


def test_a_launch_from_a_template_uses_what_the_template_names(owned: Owned) -> None:
    template = {"LaunchTemplateName": "template"}
    needed = owned.needed("ec2", "RunInstances", LaunchTemplate=template, MinCount=1, MaxCount=1, InstanceType="m5.large")
    found = {each.resource.rpartition(":")[2].partition("/")[0]: each for each in needed}
    assert found["image"].resource.endswith("image/ami-2") and found["image"].context["ec2:islaunchtemplateresource"] == ("true",)
    assert found["instance"].context["ec2:instancetype"] == ("m5.large",)
    assert found["instance"].context["ec2:islaunchtemplateresource"] == ("false",)
    assert owned.facts(found["launch-template"]).owner == ALICE
    group = {"AutoScalingGroupName": "mine", "LaunchTemplate": template, "MinSize": 0, "MaxSize": 1}
    of_group = owned.needed("autoscaling", "CreateAutoScalingGroup", **group)
    assert [each.action for each in of_group].count("ec2:RunInstances") == len(found)
    assert of_group[0].context["autoscaling:launchtemplateversionspecified"] == ("false",)


@pytest.mark.parametrize(
    ("service", "operation", "params", "receiver", "resource"),
    [
        ("lambda", "CreateFunction", {"FunctionName": "n", "Role": ROLE}, "lambda", arn("lambda", "function:n")),
        ("cloudformation", "DeleteStack", {"StackName": "n", "RoleARN": ROLE}, "cloudformation",
         arn("cloudformation", "stack/n/*")),
        ("sns", "SetTopicAttributes", {"TopicArn": arn("sns", "t"), "AttributeName": "SQSSuccessFeedbackRoleArn",
                                       "AttributeValue": ROLE}, "sns", arn("sns", "t")),
        ("sns", "CreateTopic", {"Name": "n", "Attributes": {"SQSFailureFeedbackRoleArn": ROLE}}, "sns", arn("sns", "n")),
    ],
)  # fmt: skip
def test_a_role_is_passed_to_a_resource(
    owned: Owned, service: str, operation: str, params: Any, receiver: str, resource: str
) -> None:
    [passed] = [each for each in owned.needed(service, operation, **params) if each.action == "iam:PassRole"]
    assert passed.context["iam:passedtoservice"] == (f"{receiver}.amazonaws.com",)
    assert passed.context["iam:associatedresourcearn"] == (resource,)


def test_the_owner_of_a_function_limits_what_its_event_source_mappings_receive(owned: Owned) -> None:
    """A function of Alice, whose role may do everything, receives no messages of queues that she may not read."""
    allow = {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}
    own = {"StringEquals": {"corral:Owner": "${corral:Caller}"}}
    mine = {"Version": "2012-10-17", "Statement": {**allow["Statement"], "Condition": own}}  # type: ignore[dict-item]
    alice = {"UserName": "alice", "UserId": "AIDA1", "Path": "/", "Arn": user(ALICE).principal.arn,
             "_inline": {"own": orjson.dumps(mine).decode()}, "_attached": [], "_groups": []}  # fmt: skip
    owned.world.run(lambda tx: tx.store.stored.put("iam", "user", "", "alice", alice, 0.0, ROOT))
    role = owned.call("iam", "CreateRole", RoleName="all", AssumeRolePolicyDocument=policy("sts:AssumeRole", None))["Role"]
    owned.call("iam", "PutRolePolicy", RoleName="all", PolicyName="all", PolicyDocument=orjson.dumps(allow).decode())
    code = {CODE: checked_code(inline_zip("def handler(event, context): pass"))}
    function = {"Runtime": "python3.12", "Handler": "index.handler", "Role": role["Arn"]}
    owned.call("lambda", "CreateFunction", FunctionName="reader", **function, **code)
    owned.call("sqs", "CreateQueue", QueueName="of-alice")
    owned.call("sqs", "CreateQueue", owner=BOB, QueueName="of-bob")
    owned.call("lambda", "CreateEventSourceMapping", FunctionName="reader", EventSourceArn=arn("sqs", "of-alice"))
    with pytest.raises(ApiError, match="belongs to user/alice, who does not have permissions to call ReceiveMessage on SQS"):
        owned.call("lambda", "CreateEventSourceMapping", FunctionName="reader", EventSourceArn=arn("sqs", "of-bob"))


@pytest.mark.parametrize(
    ("service", "operation", "params", "key", "values"),
    [
        ("sns", "Subscribe", {"TopicArn": arn("sns", "t"), "Protocol": "sqs", "Endpoint": "e"}, "sns:protocol", ("sqs",)),
        ("sns", "Subscribe", {"TopicArn": arn("sns", "t"), "Protocol": "sqs", "Endpoint": "e"}, "sns:endpoint", ("e",)),
        ("lambda", "AddPermission", {"FunctionName": "f", "Principal": "s3.amazonaws.com"}, "lambda:principal",
         ("s3.amazonaws.com",)),
        ("lambda", "CreateFunction", {"FunctionName": "n", "Layers": ["l1", "l2"]}, "lambda:layer", ("l1", "l2")),
        ("lambda", "CreateFunction", {"FunctionName": "n", "VpcConfig": {"SubnetIds": ["s"]}}, "lambda:subnetids", ("s",)),
        ("lambda", "CreateEventSourceMapping", {"FunctionName": "f"}, "lambda:functionarn", (arn("lambda", "function:f"),)),
        ("secretsmanager", "GetSecretValue", {"SecretId": "s"}, "secretsmanager:versionstage", ("AWSCURRENT",)),
        ("secretsmanager", "GetSecretValue", {"SecretId": "s", "VersionId": "v"}, "secretsmanager:versionid", ("v",)),
        ("secretsmanager", "DeleteSecret", {"SecretId": "s", "ForceDeleteWithoutRecovery": True},
         "secretsmanager:forcedeletewithoutrecovery", ("true",)),
        ("secretsmanager", "CreateSecret", {"Name": "n"}, "secretsmanager:name", ("n",)),
        ("secretsmanager", "PutResourcePolicy", {"SecretId": "s", "BlockPublicPolicy": False}, "secretsmanager:blockpublicpolicy",
         ("false",)),
        ("ssm", "GetParametersByPath", {"Path": "/a", "Recursive": True}, "ssm:recursive", ("true",)),
        ("ssm", "PutParameter", {"Name": "n", "Overwrite": False}, "ssm:overwrite", ("false",)),
        ("cloudformation", "CreateStack", {"StackName": "n", "ResourceTypes": ["AWS::S3::*"]}, "cloudformation:resourcetypes",
         ("AWS::S3::*",)),
        ("cloudformation", "SetStackPolicy", {"StackName": "n", "StackPolicyURL": "u"}, "cloudformation:stackpolicyurl", ("u",)),
        ("autoscaling", "UpdateAutoScalingGroup", {**GROUP, "MaxSize": 4}, "autoscaling:maxsize", ("4",)),
        ("autoscaling", "UpdateAutoScalingGroup", {**GROUP, "VPCZoneIdentifier": "a, b"}, "autoscaling:vpczoneidentifiers",
         ("a", "b")),
        ("autoscaling", "CreateLaunchConfiguration", {"LaunchConfigurationName": "n", "SpotPrice": "1"}, "autoscaling:spotprice",
         ("1",)),
        ("iam", "AttachRolePolicy", {"RoleName": "r", "PolicyArn": BOUNDARY}, "iam:policyarn", (BOUNDARY,)),
        ("iam", "PutRolePolicy", {"RoleName": "r", "PolicyName": "p"}, "iam:permissionsboundary", (BOUNDARY,)),
        ("iam", "CreateRole", {"RoleName": "n", "PermissionsBoundary": "b"}, "iam:permissionsboundary", ("b",)),
        ("iam", "CreateServiceLinkedRole", {"AWSServiceName": "ecs.amazonaws.com"}, "iam:awsservicename", ("ecs.amazonaws.com",)),
        ("sqs", "UntagQueue", {**QUEUE, "TagKeys": ["team"]}, "aws:tagkeys", ("team",)),
        ("ec2", "DescribeVpcs", {}, "ec2:region", (CALLER.region,)),
        ("ec2", "DeleteKeyPair", {"KeyName": "k"}, "ec2:keypairname", ("k",)),
        ("ec2", "ModifyInstanceAttribute", {"InstanceId": "i-1", "UserData": {}}, "ec2:attribute", ("UserData",)),
    ],
)  # fmt: skip
def test_condition_keys(owned: Owned, service: str, operation: str, params: Any, key: str, values: tuple[str, ...]) -> None:
    assert owned.needed(service, operation, **params)[0].context[key] == values


@pytest.mark.parametrize(
    ("service", "operation", "params", "action"),
    [
        ("sqs", "CreateQueue", {"QueueName": "n", "tags": {"team": "red"}}, "sqs:TagQueue"),
        ("iam", "CreateRole", {"RoleName": "n", "Tags": PAIRS}, "iam:TagRole"),
        ("sns", "CreateTopic", {"Name": "n", "Tags": PAIRS}, "sns:TagResource"),
        ("lambda", "CreateFunction", {"FunctionName": "n", "Tags": {"team": "red"}}, "lambda:TagResource"),
        ("ecr", "CreateRepository", {"repositoryName": "n", "tags": PAIRS}, "ecr:TagResource"),
        ("secretsmanager", "CreateSecret", {"Name": "n", "Tags": PAIRS}, "secretsmanager:TagResource"),
        ("ssm", "PutParameter", {"Name": "n", "Tags": PAIRS}, "ssm:AddTagsToResource"),
        ("cloudformation", "CreateStack", {"StackName": "n", "Tags": PAIRS}, "cloudformation:TagResource"),
        ("autoscaling", "CreateAutoScalingGroup", {"AutoScalingGroupName": "n", "Tags": PAIRS}, "autoscaling:CreateOrUpdateTags"),
        ("application-autoscaling", "RegisterScalableTarget", {**TARGET, "Tags": {"team": "red"}},
         "application-autoscaling:TagResource"),
    ],
)  # fmt: skip
def test_tags_on_creation_need_the_permission_to_tag(owned: Owned, service: str, operation: str, params: Any, action: str) -> None:
    [tagging] = [each for each in owned.needed(service, operation, **params) if each.action == action]
    assert tagging.context["aws:requesttag/team"] == ("red",)
    without = {name: value for name, value in params.items() if name.lower() != "tags"}
    assert action not in [each.action for each in owned.needed(service, operation, **without)]


ECS = {"ServiceNamespace": "ecs"}
LISTINGS = [
    ("sqs", "ListQueues", {}), ("sns", "ListTopics", {}), ("lambda", "ListFunctions", {}), ("ecr", "DescribeRepositories", {}),
    ("secretsmanager", "ListSecrets", {}), ("ssm", "DescribeParameters", {}), ("ssm", "GetParametersByPath", {"Path": "/a"}),
    ("application-autoscaling", "DescribeScalableTargets", ECS), ("autoscaling", "DescribeAutoScalingGroups", {}),
    ("autoscaling", "DescribeLaunchConfigurations", {}), ("autoscaling", "DescribeTags", {}), ("ec2", "DescribeInstances", {}),
    ("ec2", "DescribeInstanceStatus", {}), ("ec2", "DescribeKeyPairs", {}), ("ec2", "DescribeLaunchTemplates", {}),
    ("ec2", "DescribeLaunchTemplateVersions", {"LaunchTemplateName": "template"}), ("ec2", "DescribeAddresses", {}),
    ("ec2", "DescribeSecurityGroups", {}), ("ec2", "DescribeVpcs", {}), ("ec2", "DescribeSubnets", {}), ("ec2", "DescribeTags", {}),
    ("ec2", "DescribeNetworkInterfaces", {}), ("iam", "ListRoles", {}), ("iam", "ListInstanceProfiles", {}),
    ("iam", "ListPolicies", {}),
]  # fmt: skip


@pytest.mark.parametrize(("service", "operation", "params"), LISTINGS)
def test_a_listing_knows_the_owners_of_its_elements(owned: Owned, service: str, operation: str, params: Any) -> None:
    listing = listing_of(service, operation)
    assert listing is not None
    response = owned.call(service, operation, owner=BOB, **params)

    def shown_to(owner: str) -> list[Any]:
        found = owned.world.run(lambda tx: visible(tx, listing, user(BOB), params, response, lambda each: each == owner))
        return [each for member in listing.members for each in found.get(member, ())]

    every = [each for member in listing.members for each in response[member]]
    of_alice, of_bob = shown_to(ALICE), shown_to(BOB)
    assert of_alice and all(each in every for each in of_alice)
    assert not [each for each in of_bob if each in of_alice and operation != "ListPolicies"]


def test_a_listing_shows_subscriptions_and_public_images(owned: Owned) -> None:
    def shown(service: str, operation: str, owner: str) -> list[Any]:
        listing = listing_of(service, operation)
        assert listing is not None
        response = owned.call(service, operation, owner=BOB)
        found = owned.world.run(lambda tx: visible(tx, listing, user(BOB), {}, response, lambda each: each == owner))
        return list(found[listing.members[0]])

    assert [each["SubscriptionArn"] for each in shown("sns", "ListSubscriptions", BOB)] == [owned.subscription]
    assert shown("sns", "ListSubscriptions", ALICE) == []
    assert {each["OwnerId"] for each in shown("ec2", "DescribeImages", BOB)} == {"591542846629"}  # Amazon's account


@pytest.mark.parametrize("service", MODULES)
def test_no_resource_has_no_owner_or_belongs_to_the_root_user(owned: Owned, service: str) -> None:
    for operation in SERVICES[service].operations:
        found = owned.world.run(lambda tx: facts_of(tx, user(BOB), Permission(f"{service}:{operation}", "*")))  # noqa: B023
        assert found is None or found.owner in (None, ROOT), operation
