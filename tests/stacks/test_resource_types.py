"""Every resource type of CloudFormation templates: create, Ref and GetAtt, update in place, replace and delete, without HTTP.

`CASES` has a case for each declared type; a type without one fails. A case names resources that must exist first, by their key.
"""

from __future__ import annotations

from typing import Any

import pytest

from corral.core.errors import ApiError
from corral.operations.services import SERVICES
from corral.services.ec2 import cloudformation_images
from corral.template_types.lookup import (
    is_known,
    replacing_properties,
    resource_type,
    stored_only_reason,
    template_type,
    template_types,
)
from corral.template_types.schemas import facts, has_schema, type_names
from stacks.resource_cases import (
    ALLOW,
    CALLER,
    DENY,
    GROUP,
    OTHER_TAGS,
    OTHER_TRUST,
    REGISTRY,
    TAGS,
    TRUST,
    Case,
    data_services,
    fleet,
    functions,
    jobs,
    topics,
)
from stacks.resource_cases.stack import Stack

VPC, SUBNET, TABLE, GATEWAY = "AWS::EC2::VPC", "AWS::EC2::Subnet", "AWS::EC2::RouteTable", "AWS::EC2::InternetGateway"
ACL, SG, EIP, ATTACHED = "AWS::EC2::NetworkAcl", "AWS::EC2::SecurityGroup", "AWS::EC2::EIP", "AWS::EC2::VPCGatewayAttachment"
ROLE, USER, USER_GROUP = "AWS::IAM::Role", "AWS::IAM::User", "AWS::IAM::Group"
BOUNDARY = "arn:aws:iam::aws:policy/ReadOnlyAccess"
IN_VPC = {"VpcId": {"Ref": "vpc"}}

CASES: dict[str, Case] = {
    VPC: Case(
        {"CidrBlock": "10.0.0.0/16", "EnableDnsHostnames": True, **TAGS},
        changed={"EnableDnsSupport": False, "InstanceTenancy": "default", **OTHER_TAGS},
        replacing={"CidrBlock": "10.1.0.0/16"},
        starts="vpc-0",
        shown=("ec2:DescribeVpcs", {"Filters": [{"Name": "tag-key", "Values": ["b"]}]}, "10.0.0.0/16"),
    ),
    SUBNET: Case(
        {**IN_VPC, "CidrBlock": "10.0.1.0/24", "AvailabilityZone": "us-east-1b", **TAGS},
        needs={"vpc": VPC},
        changed={"MapPublicIpOnLaunch": True, **OTHER_TAGS},
        replacing={"CidrBlock": "10.0.3.0/24"},
        starts="subnet-0",
        shown=("ec2:DescribeSubnets", {"Filters": [{"Name": "tag:b", "Values": ["2"]}]}, "'MapPublicIpOnLaunch': True"),
    ),
    GATEWAY: Case(dict(TAGS), changed=OTHER_TAGS, starts="igw-0", shown=("ec2:DescribeInternetGateways", {}, "'b'")),
    ATTACHED: Case(
        {**IN_VPC, "InternetGatewayId": {"Ref": "gateway"}},
        needs={"vpc": VPC, "second": VPC, "gateway": GATEWAY, "other": GATEWAY},
        changed={"InternetGatewayId": {"Ref": "other"}},
        replacing={"VpcId": {"Ref": "second"}, "InternetGatewayId": {"Ref": "gateway"}},
        starts="IGW|vpc-0",
    ),
    TABLE: Case(
        {**IN_VPC, **TAGS},
        needs={"vpc": VPC, "second": VPC},
        changed=OTHER_TAGS,
        replacing={"VpcId": {"Ref": "second"}},
        starts="rtb-0",
    ),
    "AWS::EC2::Route": Case(
        {"RouteTableId": {"Ref": "table"}, "DestinationCidrBlock": "0.0.0.0/0", "NetworkInterfaceId": "eni-01"},
        needs={"vpc": VPC, "table": TABLE},
        changed={"NetworkInterfaceId": "eni-02"},
        replacing={"DestinationCidrBlock": "1.0.0.0/8"},
        starts="rtb-0",
        shown=("ec2:DescribeRouteTables", {}, "eni-02"),
    ),
    "AWS::EC2::SubnetRouteTableAssociation": Case(
        {"RouteTableId": {"Ref": "table"}, "SubnetId": {"Ref": "subnet"}},
        needs={"vpc": VPC, "table": TABLE, "subnet": SUBNET, "second": (SUBNET, {**IN_VPC, "CidrBlock": "10.0.2.0/24"})},
        replacing={"SubnetId": {"Ref": "second"}},
        starts="rtbassoc-0",
    ),
    SG: Case(
        {
            **IN_VPC,
            **TAGS,
            "GroupName": "web",
            "GroupDescription": "web",
            "SecurityGroupIngress": [{"IpProtocol": "tcp", "FromPort": "80", "ToPort": "80", "CidrIp": "0.0.0.0/0"}],
        },
        needs={"vpc": VPC},
        changed={
            **OTHER_TAGS,
            "SecurityGroupIngress": [{"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "CidrIp": "10.0.0.0/8"}],
            "SecurityGroupEgress": [{"IpProtocol": "udp", "FromPort": 53, "ToPort": 53, "CidrIpv6": "::/0"}],
        },
        replacing={"GroupDescription": "other", "GroupName": "other"},
        starts="sg-0",
        shown=("ec2:DescribeSecurityGroups", {"Filters": [{"Name": "egress.ip-permission.to-port", "Values": ["53"]}]}, "'web'"),
    ),
    "AWS::EC2::SecurityGroupIngress": Case(
        {"GroupId": {"Ref": "group"}, "IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "SourceSecurityGroupId": {"Ref": "group"}},
        needs={"vpc": VPC, "group": SG},
        changed={"Description": "ssh"},
        replacing={"FromPort": 21},
        starts="sgr-0",
        shown=("ec2:DescribeSecurityGroupRules", {}, "ssh"),
    ),
    "AWS::EC2::SecurityGroupEgress": Case(
        {"GroupId": {"Ref": "group"}, "IpProtocol": "-1", "CidrIpv6": "::/0"},
        needs={"vpc": VPC, "group": SG},
        changed={"Description": "all"},
        replacing={"CidrIpv6": "2001:db8::/32"},
        starts="sgr-0",
    ),
    EIP: Case(
        {"Domain": "vpc", **TAGS},
        changed={"InstanceId": "i-01", "Domain": None, **OTHER_TAGS},
        replacing={"NetworkBorderGroup": "us-east-1-x"},
        starts="198.1",
        shown=("ec2:DescribeAddresses", {}, "i-01"),
    ),
    "AWS::EC2::EIPAssociation": Case(
        {"AllocationId": {"GetAtt": ["address", "AllocationId"]}, "InstanceId": "i-01"},
        needs={"address": EIP},
        replacing={"InstanceId": "i-02"},
        starts="eipassoc-0",
    ),
    "AWS::EC2::NatGateway": Case(
        {"SubnetId": {"Ref": "subnet"}, "AllocationId": {"GetAtt": ["address", "AllocationId"]}, **TAGS},
        needs={"vpc": VPC, "subnet": SUBNET, "gateway": GATEWAY, "attached": ATTACHED, "address": EIP},
        changed={"MaxDrainDurationSeconds": 60, **OTHER_TAGS},
        replacing={"ConnectivityType": "private"},
        starts="nat-0",
    ),
    "AWS::EC2::VPCEndpoint": Case(
        {**IN_VPC, "ServiceName": "com.amazonaws.us-east-1.s3", "RouteTableIds": [{"Ref": "table"}], "PolicyDocument": ALLOW},
        needs={"vpc": VPC, "table": TABLE, "second": TABLE},
        changed={"RouteTableIds": [{"Ref": "second"}], "PolicyDocument": DENY, **TAGS},
        replacing={"ServiceName": "com.amazonaws.us-east-1.dynamodb"},
        starts="vpce-0",
        shown=("ec2:DescribeVpcEndpoints", {}, "Deny"),
    ),
    "AWS::EC2::KeyPair": Case({"KeyName": "key", "KeyType": "ed25519", **TAGS}, replacing={"KeyName": "key2"}, starts="key"),
    ACL: Case(
        {**IN_VPC, **TAGS},
        needs={"vpc": VPC, "second": VPC},
        changed=OTHER_TAGS,
        replacing={"VpcId": {"Ref": "second"}},
        starts="acl-0",
    ),
    "AWS::EC2::NetworkAclEntry": Case(
        {"NetworkAclId": {"Ref": "acl"}, "RuleNumber": 100, "Protocol": -1, "RuleAction": "allow", "CidrBlock": "0.0.0.0/0"},
        needs={"vpc": VPC, "acl": ACL},
        changed={"RuleAction": "deny", "Protocol": 1, "Icmp": {"Code": -1, "Type": -1}},
        replacing={"RuleNumber": 200},
        starts="acl-0",
        shown=("ec2:DescribeNetworkAcls", {"Filters": [{"Name": "entry.icmp.code", "Values": ["-1"]}]}, "deny"),
    ),
    "AWS::EC2::SubnetNetworkAclAssociation": Case(
        {"NetworkAclId": {"Ref": "acl"}, "SubnetId": {"Ref": "subnet"}},
        needs={"vpc": VPC, "subnet": SUBNET, "acl": ACL, "second": ACL},
        replacing={"NetworkAclId": {"Ref": "second"}},
        starts="aclassoc-0",
    ),
    "AWS::EC2::DHCPOptions": Case(
        {"DomainName": "corral.test", "DomainNameServers": ["AmazonProvidedDNS"], "NetbiosNodeType": 2, **TAGS},
        changed=OTHER_TAGS,
        replacing={"DomainName": "other.test"},
        starts="dopt-0",
    ),
    "AWS::EC2::VPCDHCPOptionsAssociation": Case(
        {**IN_VPC, "DhcpOptionsId": {"Ref": "options"}},
        needs={"vpc": VPC, "options": "AWS::EC2::DHCPOptions", "second": "AWS::EC2::DHCPOptions"},
        replacing={"DhcpOptionsId": {"Ref": "second"}},
        starts="dopt-0",
    ),
    ROLE: Case(
        {
            "RoleName": "role",
            "AssumeRolePolicyDocument": TRUST,
            "ManagedPolicyArns": ["arn:aws:iam::aws:policy/One"],
            "Policies": [{"PolicyName": "inline", "PolicyDocument": ALLOW}],
            **TAGS,
        },
        changed={
            "AssumeRolePolicyDocument": OTHER_TRUST,
            "ManagedPolicyArns": ["arn:aws:iam::aws:policy/Two"],
            "Policies": [{"PolicyName": "inline", "PolicyDocument": DENY}],
            "MaxSessionDuration": 7200,
            **OTHER_TAGS,
        },
        replacing={"RoleName": "role2", "Path": "/other/"},
        starts="role",
        shown=("iam:ListAttachedRolePolicies", {"RoleName": "role"}, "policy/Two"),
    ),
    "AWS::IAM::ManagedPolicy": Case(
        {"ManagedPolicyName": "managed", "PolicyDocument": ALLOW, "Roles": [{"Ref": "role"}]},
        needs={"role": ROLE},
        changed={"PolicyDocument": DENY, "Roles": []},
        replacing={"ManagedPolicyName": "managed2"},
        starts="arn:aws:iam::123456789012:policy/managed",
        shown=("iam:ListPolicies", {"Scope": "Local"}, "'DefaultVersionId': 'v2'"),
    ),
    "AWS::IAM::Policy": Case(
        {"PolicyName": "inline2", "PolicyDocument": ALLOW, "Roles": [{"Ref": "role"}]},
        needs={"role": ROLE},
        changed={"PolicyDocument": DENY},
        starts="inline2",
        shown=("iam:GetRolePolicy", {"RoleName": "role", "PolicyName": "inline2"}, "Deny"),
    ),
    "AWS::IAM::RolePolicy": Case(
        {"PolicyName": "inline3", "PolicyDocument": ALLOW, "RoleName": {"Ref": "role"}},
        needs={"role": ROLE},
        changed={"PolicyDocument": DENY},
        replacing={"PolicyName": "other"},
        starts="inline3|role",
    ),
    USER: Case(
        {
            "UserName": "user",
            "Groups": [{"Ref": "group"}],
            "Policies": [{"PolicyName": "p", "PolicyDocument": ALLOW}],
            "ManagedPolicyArns": ["arn:aws:iam::aws:policy/ReadOnlyAccess"],
            **TAGS,
        },
        needs={"group": USER_GROUP},
        changed={"Path": "/lab/", "Groups": [], "Policies": [], "PermissionsBoundary": BOUNDARY, **OTHER_TAGS},
        replacing={"UserName": "user2"},
        starts="user",
        shown=("iam:GetUser", {"UserName": "user"}, "user/lab/user"),
    ),
    USER_GROUP: Case(
        {"GroupName": "group", "Policies": [{"PolicyName": "p", "PolicyDocument": ALLOW}]},
        changed={"Path": "/lab/", "Policies": [{"PolicyName": "q", "PolicyDocument": DENY}], "ManagedPolicyArns": [BOUNDARY]},
        replacing={"GroupName": "group2"},
        starts="group",
        shown=("iam:ListGroupPolicies", {"GroupName": "group"}, "['q']"),
    ),
    "AWS::IAM::UserToGroupAddition": Case(
        {"GroupName": {"Ref": "group"}, "Users": [{"Ref": "user"}]},
        needs={"group": USER_GROUP, "user": (USER, {"UserName": "user"}), "other": (USER, {"UserName": "other"})},
        changed={"Users": [{"Ref": "other"}]},
        shown=("iam:GetGroup", {"GroupName": "group"}, "user/other"),
    ),
    "AWS::IAM::AccessKey": Case(
        {"UserName": {"Ref": "user"}, "Serial": 1},
        needs={"user": (USER, {"UserName": "user"})},
        changed={"Status": "Inactive"},
        replacing={"Serial": 2},
        starts="AKIA",
        shown=("iam:ListAccessKeys", {"UserName": "user"}, "Inactive"),
    ),
    "AWS::IAM::UserPolicy": Case(
        {"PolicyName": "inline4", "PolicyDocument": ALLOW, "UserName": {"Ref": "user"}},
        needs={"user": (USER, {"UserName": "user"})},
        changed={"PolicyDocument": DENY},
        replacing={"PolicyName": "other"},
        starts="inline4|user",
        shown=("iam:GetUserPolicy", {"UserName": "user", "PolicyName": "inline4"}, "Deny"),
    ),
    "AWS::IAM::GroupPolicy": Case(
        {"PolicyName": "inline5", "PolicyDocument": ALLOW, "GroupName": {"Ref": "group"}},
        needs={"group": USER_GROUP},
        changed={"PolicyDocument": DENY},
        replacing={"PolicyName": "other"},
        starts="inline5|group",
        shown=("iam:GetGroupPolicy", {"GroupName": "group", "PolicyName": "inline5"}, "Deny"),
    ),
    "AWS::IAM::InstanceProfile": Case(
        {"InstanceProfileName": "profile", "Roles": [{"Ref": "role"}]},
        needs={"role": ROLE},
        changed={"Roles": []},
        replacing={"InstanceProfileName": "profile2"},
        starts="profile",
    ),
    "AWS::IAM::ServiceLinkedRole": Case(
        {"AWSServiceName": "autoscaling.amazonaws.com", "Description": "d"},
        changed={"Description": "other"},
        replacing={"CustomSuffix": "x"},
        starts="AWSServiceRoleForAutoScaling",
        shown=("iam:GetRole", {"RoleName": "AWSServiceRoleForAutoScaling"}, "other"),
    ),
    "AWS::ECS::CapacityProvider": Case(
        {"Name": "fleet", "AutoScalingGroupProvider": {"AutoScalingGroupArn": {"Ref": "group"}}, **TAGS},
        needs={"launch": fleet.LAUNCH, "group": fleet.ASG, "other": fleet.OTHER_GROUP},
        changed={
            "AutoScalingGroupProvider": {
                "AutoScalingGroupArn": {"Ref": "group"},
                "ManagedScaling": {"Status": "ENABLED", "TargetCapacity": 50},
            },
            **OTHER_TAGS,
        },
        replacing={"Name": "fleet2", "AutoScalingGroupProvider": {"AutoScalingGroupArn": {"Ref": "other"}}},
        starts="fleet",
        shown=("ecs:DescribeCapacityProviders", {"capacityProviders": ["fleet"]}, "'targetCapacity': 50"),
    ),
    "AWS::ECR::RegistryPolicy": Case(
        {"PolicyText": REGISTRY},
        changed={"PolicyText": {**REGISTRY, "Statement": [{**REGISTRY["Statement"][0], "Sid": "changed"}]}},  # type: ignore[dict-item]
        starts="123456789012",
        shown=("ecr:GetRegistryPolicy", {}, "changed"),
    ),
    **data_services.CASES,
    **functions.CASES,
    **topics.CASES,
    **fleet.CASES,
    **jobs.CASES,
}
# Types that need the engine of stacks: tests/clients/test_nested_stacks.py tests them.
ELSEWHERE = ("AWS::CloudFormation::",)
LEFT = {  # lane → the query that returns all resources of the lane
    "state": """
        SELECT service, type, region, name FROM stored_resource UNION ALL SELECT 's3', 'bucket', region, name FROM bucket
        UNION ALL SELECT 's3', kind, bucket, name FROM bucket_document UNION ALL SELECT 'sqs', 'queue', region, name FROM queue
        UNION ALL SELECT 'ecr', 'repository', region, name FROM repository WHERE region != ''
        UNION ALL SELECT 'ssm', 'parameter', region, name FROM parameter
        UNION ALL SELECT 'secretsmanager', 'secret', region, name FROM secret
        UNION ALL SELECT 'lambda', 'code', id, length(zip) FROM function_code
    """,
    "logs": """
        SELECT 'group', region, name FROM log_group WHERE name IS NOT NULL UNION ALL
        SELECT 'stream', s.group_id, s.name FROM log_stream s JOIN log_group g ON g.id = s.group_id AND g.name IS NOT NULL
        UNION ALL SELECT 'filter', group_id, name FROM metric_filter
    """,
    "metrics": """
        SELECT 'alarm', name FROM alarm UNION ALL SELECT 'dashboard', name FROM dashboard UNION ALL SELECT 'tag', arn FROM tag
    """,
}


def rows(stack: Stack) -> set[tuple[str, ...]]:
    return {(lane, *row) for lane, query in LEFT.items() for row in stack.stores[lane].execute(query)}


def changed(case: Case) -> dict[str, Any]:
    return without_none({**case.properties, **case.changed})


def without_none(merged: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in merged.items() if value is not None}


def test_every_type_has_a_case():
    assert set(CASES) <= (names := {type_.name for type_ in template_types()})
    assert [name for name in names - set(CASES) if not name.startswith(ELSEWHERE)] == []
    assert template_type("AWS::KMS::Key") is None and resource_type("AWS::KMS::Key").is_stored_only


@pytest.mark.parametrize("name", CASES)
def test_a_resource_of_a_stack(name: str):
    case, stack = CASES[name], Stack()
    stack.call("ec2:DescribeVpcs", {})  # creates the default network, which is not part of the stack
    untouched = rows(stack)
    for key, needed in case.needs.items():
        type_name, properties = (needed, CASES[needed].properties) if isinstance(needed, str) else needed
        stack.create(key, type_name, properties)
    before = rows(stack)

    identity = stack.create("it", name, case.properties)
    assert identity.startswith(case.starts)
    read_only = {path for path in facts(name).read_only if "/" not in path}
    assert read_only <= stack.attributes("it").keys()
    assert set(case.properties) | set(case.changed) | set(case.replacing) <= facts(name).properties.keys()

    stack.update("it", changed(case))
    stack.attributes("it")
    if case.shown is not None:
        operation, request, text = case.shown
        assert text in str(stack.call(operation, request))

    assert bool(case.replacing) == bool(facts(name).create_only)
    if case.replacing:  # the new resource is created first
        properties = without_none({**changed(case), **case.replacing})
        assert replacing_properties(name, stack.resolved(changed(case)), stack.resolved(properties)) != []
        assert stack.create("successor", name, properties) != identity
        stack.delete("it")
        stack.attributes("successor")
    last = "successor" if case.replacing else "it"
    deleted = stack.resources[last]
    stack.delete(last)
    assert rows(stack) == before
    stack.resources[last] = deleted
    stack.delete(last)  # a resource that no longer exists
    assert rows(stack) == before
    for key in reversed(case.needs):
        stack.delete(key)
    assert rows(stack) == untouched


def test_types_in_no_schema_are_refused():
    for name in ("AWS::EC2::Vpc", "AWS::Serverless::Function", "Thing", "AWS::EC2"):
        assert not is_known(name)
        with pytest.raises(ApiError) as refused:
            resource_type(name)
        assert refused.value.message == f"Template format error: Unrecognized resource types: [{name}]"
    assert is_known("Custom::Thing") and is_known("AWS::CloudFormation::CustomResource") and is_known("AWS::CDK::Metadata")


def test_get_att_returns_properties_of_some_types():
    stack = Stack()
    stack.create("vpc", VPC, {"CidrBlock": "10.0.0.0/16", "EnableDnsSupport": "false"})
    assert stack.attributes("vpc")["EnableDnsSupport"] is False


def test_a_nested_property_can_force_a_replacement():
    old = {"Name": "fleet", "AutoScalingGroupProvider": {"AutoScalingGroupArn": GROUP, "ManagedScaling": {"Status": "ENABLED"}}}
    new = {"Name": "fleet", "AutoScalingGroupProvider": {"AutoScalingGroupArn": GROUP, "ManagedScaling": {"Status": "DISABLED"}}}
    assert replacing_properties("AWS::ECS::CapacityProvider", old, new) == []
    new = {"Name": "fleet", "AutoScalingGroupProvider": {"AutoScalingGroupArn": "other"}}
    assert replacing_properties("AWS::ECS::CapacityProvider", old, new) == ["AutoScalingGroupProvider/AutoScalingGroupArn"]


def test_a_property_that_sometimes_forces_a_replacement():
    """A type can update such a property in place. Otherwise the resource is replaced."""
    assert replacing_properties(VPC, {"InstanceTenancy": "dedicated"}, {"InstanceTenancy": "default"}) == []
    assert replacing_properties(SUBNET, {}, {"Ipv6CidrBlock": "2001:db8::/64"}) == ["Ipv6CidrBlock"]
    assert replacing_properties("AWS::RDS::DBInstance", {"MultiAZ": False}, {"MultiAZ": True}) == ["MultiAZ"]


def test_a_property_that_cannot_be_updated_in_place_is_refused():
    stack = Stack()
    stack.create("vpc", VPC, CASES[VPC].properties)
    stack.create("it", SUBNET, CASES[SUBNET].properties)
    with pytest.raises(
        ApiError, match=r"cannot change EnableLniAtDeviceIndex of AWS::EC2::Subnet subnet-\w+ in place: replace the resource"
    ):
        stack.update("it", {**CASES[SUBNET].properties, "EnableLniAtDeviceIndex": 1})


def test_members_of_the_stack_are_no_properties():
    """The stack adds `_tags`, which clients may not set, and `_metadata`."""
    stack, type_ = Stack(), resource_type(VPC)
    given = {"CidrBlock": "10.0.0.0/16", **TAGS, "_tags": {"aws:cloudformation:stack-name": "demo"}, "_metadata": {"a": 1}}
    identity = type_.create(stack.tx("state"), CALLER, given)
    type_.update(stack.tx("state"), CALLER, identity, given, {**given, **OTHER_TAGS, "_metadata": {"a": 2}})
    found = stack.call("ec2:DescribeVpcs", {"VpcIds": [identity]})["Vpcs"][0]["Tags"]
    assert {tag["Key"]: tag["Value"] for tag in found} == {"aws:cloudformation:stack-name": "demo", "b": "2"}


def test_a_dependency_refuses_the_deletion():
    stack = Stack()
    stack.create("vpc", VPC, CASES[VPC].properties)
    stack.create("subnet", SUBNET, CASES[SUBNET].properties)
    with pytest.raises(ApiError) as refused:
        stack.delete("vpc")
    assert refused.value.code == "DependencyViolation"


def test_the_gateway_of_a_vpn_is_stored_only():
    stack = Stack()
    stack.create("vpc", VPC, CASES[VPC].properties)
    identity = stack.create("it", ATTACHED, {**IN_VPC, "VpnGatewayId": "vgw-01"})
    assert identity.startswith("VGW|vpc-0") and stack.attributes("it")["AttachmentType"] == "VGW"
    stack.delete("it")


def test_the_private_key_of_a_key_pair_is_a_parameter():
    stack = Stack()
    stack.create("key", "AWS::EC2::KeyPair", {"KeyName": "k", "KeyType": "ed25519"})
    name = f"/ec2/keypair/{stack.attributes('key')['KeyPairId']}"
    assert "PRIVATE KEY" in stack.call("ssm:GetParameter", {"Name": name, "WithDecryption": True})["Parameter"]["Value"]
    stack.delete("key")
    with pytest.raises(ApiError):
        stack.call("ssm:GetParameter", {"Name": name})


def test_an_update_of_an_endpoint_adds_no_security_group():
    name = "AWS::EC2::VPCEndpoint"
    stack = Stack()
    for key, needed in CASES[name].needs.items():
        stack.create(key, needed, CASES[needed].properties)
    stack.create("it", name, CASES[name].properties)
    stack.update("it", changed(CASES[name]))
    (shown,) = stack.call("ec2:DescribeVpcEndpoints", {})["VpcEndpoints"]
    assert shown["Groups"] == []


def test_a_subnet_without_free_addresses_gets_no_nat_gateway():
    stack = Stack()
    stack.create("vpc", VPC, CASES[VPC].properties)
    vpc_id = stack.call("ec2:DescribeVpcs", {"Filters": [{"Name": "is-default", "Values": ["false"]}]})["Vpcs"][0]["VpcId"]
    subnet = stack.call("ec2:CreateSubnet", {"VpcId": vpc_id, "CidrBlock": "10.0.200.0/28"})["Subnet"]["SubnetId"]
    wanted = {"SubnetId": subnet, "ConnectivityType": "private"}
    made = [stack.call("ec2:CreateNatGateway", wanted)["NatGateway"]["NatGatewayAddresses"][0]["PrivateIp"] for _ in range(11)]
    assert made == [f"10.0.200.{at}" for at in range(4, 15)]
    with pytest.raises(ApiError) as refused:
        stack.call("ec2:CreateNatGateway", wanted)
    assert refused.value.code == "InsufficientFreeAddressesInSubnet"


def test_a_recipe_has_a_limited_number_of_images(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cloudformation_images, "BUILDS_MAX", 2)
    name = "AWS::ImageBuilder::Image"
    stack = Stack()
    made = [stack.create(f"image{at}", name, CASES[name].properties) for at in (1, 2)]
    assert [each.rpartition("/")[2] for each in made] == ["1", "2"]
    with pytest.raises(ApiError, match="has 2 images"):
        stack.create("image3", name, CASES[name].properties)


def test_each_type_says_which_operation_shows_its_resources():
    """The API of a type shows its resources, or the reason of their status says that they are stored only, and where."""
    base = "Stored only: this resource has no effect on this machine."

    def is_served(read: str) -> bool:
        service, _, operation = read.partition(":")
        return service in SERVICES and operation in SERVICES[service].operations

    for type_ in template_types():
        read = facts(type_.name).read if has_schema(type_.name) else ""
        # Without `read`, a type is a part of another one, such as a policy of a queue. s3:ListBucket is an action of ListObjects.
        if not type_.is_stored_only and read != "s3:ListBucket":
            assert is_served(read) or not read, f"{type_.name} is real, but {read} is not served"
        elif is_served(read):
            assert stored_only_reason(type_.name) == f"{base} {read} shows it."
    reasons = {
        "AWS::EC2::NetworkAclEntry": f"{base} The API of EC2 shows it.",
        "AWS::IAM::SAMLProvider": f"{base} Only its stack shows it (DescribeStackResource): Corral does not serve "
        "iam:GetSAMLProvider.",
        "AWS::Lambda::Version": f"{base} Only its stack shows it (DescribeStackResource), and not lambda:GetFunctionConfiguration.",
        "AWS::KMS::Key": f"{base} Only its stack shows it (DescribeStackResource): Corral does not serve kms:DescribeKey.",
        "AWS::Batch::JobQueue": "",
        "AWS::ImageBuilder::Image": f"{base} Only its stack shows it (DescribeStackResource): Corral does not serve "
        "imagebuilder:GetImage.",
    }
    for name, reason in reasons.items():
        assert (stored_only_reason(name) if resource_type(name).is_stored_only else "") == reason
    for name in type_names():
        if template_type(name) is None and not name.startswith("AWS::Serverless::"):
            assert resource_type(name).is_stored_only and "Only its stack shows it" in stored_only_reason(name), name
