"""EC2's network resources as boto3 and the aws command see them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from ipaddress import ip_network
from typing import Any

import pytest
from botocore.exceptions import ClientError
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)

from harness import Corral

ACCOUNT = "123456789012"


@pytest.fixture
def ec2(client) -> Any:
    return client("ec2")


@pytest.fixture
def vpc(ec2) -> str:
    return new_vpc(ec2)


def new_vpc(ec2: Any, block: str = "10.0.0.0/16") -> str:
    return ec2.create_vpc(CidrBlock=block)["Vpc"]["VpcId"]


def new_subnet(ec2: Any, vpc: str, block: str = "10.0.0.0/24", **more: Any) -> str:
    return ec2.create_subnet(VpcId=vpc, CidrBlock=block, **more)["Subnet"]["SubnetId"]


def refused(call: Callable[..., Any], **params: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as error:
        call(**params)
    return error.value.response["Error"]["Code"], error.value.response["Error"]["Message"]


def by_vpc(vpc: str) -> dict[str, Any]:
    return {"Filters": [{"Name": "vpc-id", "Values": [vpc]}]}


def tagged(type_: str, **tags: str) -> list[dict[str, Any]]:
    return [{"ResourceType": type_, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}]


def test_a_default_network_in_every_region(client):
    for region in ("us-east-1", "eu-central-1"):
        ec2 = client("ec2", region=region)
        (vpc,) = ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
        assert (vpc["CidrBlock"], vpc["State"], vpc["OwnerId"]) == ("172.31.0.0/16", "available", ACCOUNT)
        assert len(vpc["VpcId"]) == len("vpc-0123456789abcdef0")
        subnets = ec2.describe_subnets(**by_vpc(vpc["VpcId"]))["Subnets"]
        zones = [zone["ZoneName"] for zone in ec2.describe_availability_zones()["AvailabilityZones"]]
        assert sorted(each["AvailabilityZone"] for each in subnets) == zones == [f"{region}{letter}" for letter in "abc"]
        assert all(each["DefaultForAz"] and each["MapPublicIpOnLaunch"] for each in subnets)
        assert {each["CidrBlock"] for each in subnets} == {"172.31.0.0/20", "172.31.16.0/20", "172.31.32.0/20"}
        (gateway,) = ec2.describe_internet_gateways(Filters=[{"Name": "attachment.vpc-id", "Values": [vpc["VpcId"]]}])[
            "InternetGateways"
        ]
        (table,) = ec2.describe_route_tables(**by_vpc(vpc["VpcId"]))["RouteTables"]
        assert table["Associations"][0]["Main"]
        assert {route["DestinationCidrBlock"]: route["GatewayId"] for route in table["Routes"]} == {
            "172.31.0.0/16": "local",
            "0.0.0.0/0": gateway["InternetGatewayId"],
        }
        (group,) = ec2.describe_security_groups(GroupNames=["default"])["SecurityGroups"]
        assert group["IpPermissions"][0]["UserIdGroupPairs"] == [{"GroupId": group["GroupId"], "UserId": ACCOUNT}]
        (acl,) = ec2.describe_network_acls(**by_vpc(vpc["VpcId"]))["NetworkAcls"]
        assert acl["IsDefault"] and {each["SubnetId"] for each in acl["Associations"]} == {each["SubnetId"] for each in subnets}
        (options,) = ec2.describe_dhcp_options(DhcpOptionsIds=[vpc["DhcpOptionsId"]])["DhcpOptions"]
        domain = "ec2.internal" if region == "us-east-1" else f"{region}.compute.internal"
        assert options["DhcpConfigurations"][0] == {"Key": "domain-name", "Values": [{"Value": domain}]}
        attributes = ec2.describe_account_attributes(AttributeNames=["default-vpc"])["AccountAttributes"]
        assert attributes[0]["AttributeValues"] == [{"AttributeValue": vpc["VpcId"]}]
    assert zones == [f"eu-central-1{letter}" for letter in "abc"]


def test_default_ids_depend_on_account_and_region_alone(client, own_corral):
    def default_vpc(ec2: Any) -> str:
        return ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"][0]["VpcId"]

    other: Corral = own_corral().start()
    ids = [default_vpc(client("ec2", region=region)) for region in ("us-east-1", "eu-west-1")]
    assert ids == [default_vpc(other.client("ec2", region=region)) for region in ("us-east-1", "eu-west-1")]
    assert len(set(ids)) == 2


def test_a_deleted_default_vpc_stays_deleted_until_it_is_created_again(client):
    ec2 = client("ec2", region="ap-south-1")
    assert refused(ec2.create_default_vpc)[0] == "DefaultVpcAlreadyExists"
    (vpc,) = ec2.describe_vpcs()["Vpcs"]
    for subnet in ec2.describe_subnets()["Subnets"]:
        ec2.delete_subnet(SubnetId=subnet["SubnetId"])
    (gateway,) = ec2.describe_internet_gateways()["InternetGateways"]
    ec2.detach_internet_gateway(InternetGatewayId=gateway["InternetGatewayId"], VpcId=vpc["VpcId"])
    ec2.delete_internet_gateway(InternetGatewayId=gateway["InternetGatewayId"])
    assert refused(ec2.create_default_subnet, AvailabilityZone="ap-south-1z")[0] == "InvalidParameterValue"
    again = ec2.create_default_subnet(AvailabilityZone="ap-south-1b")["Subnet"]
    assert (again["CidrBlock"], again["DefaultForAz"]) == ("172.31.0.0/20", True)
    assert refused(ec2.create_default_subnet, AvailabilityZone="ap-south-1b")[0] == "DefaultSubnetAlreadyExistsInAvailabilityZone"
    ec2.delete_subnet(SubnetId=again["SubnetId"])
    ec2.delete_vpc(VpcId=vpc["VpcId"])
    assert ec2.describe_vpcs()["Vpcs"] == ec2.describe_security_groups()["SecurityGroups"] == []
    assert ec2.describe_route_tables()["RouteTables"] == ec2.describe_network_acls()["NetworkAcls"] == []
    assert refused(ec2.create_security_group, GroupName="g", Description="d")[0] == "VPCIdNotSpecified"
    made = ec2.create_default_vpc()["Vpc"]
    assert made["IsDefault"] and made["VpcId"] != vpc["VpcId"]
    assert len(ec2.describe_subnets()["Subnets"]) == 3


def test_regions_and_zones(ec2):
    regions = ec2.describe_regions()["Regions"]
    assert {"us-east-1", "eu-west-1", "ap-southeast-2"} <= {region["RegionName"] for region in regions}
    (one,) = ec2.describe_regions(Filters=[{"Name": "region-name", "Values": ["eu-central-?"]}], RegionNames=["eu-central-1"])[
        "Regions"
    ]
    assert one == {"RegionName": "eu-central-1", "Endpoint": "ec2.eu-central-1.amazonaws.com", "OptInStatus": "opt-in-not-required"}
    (zone,) = ec2.describe_availability_zones(ZoneNames=["us-east-1b"])["AvailabilityZones"]
    assert (zone["ZoneId"], zone["State"], zone["RegionName"]) == ("use1-az2", "available", "us-east-1")
    assert refused(ec2.describe_availability_zones, ZoneNames=["us-east-1x"])[0] == "InvalidParameterValue"
    assert refused(ec2.describe_regions, RegionNames=["moon-1"])[0] == "InvalidParameterValue"


def test_a_vpc_and_its_parts(ec2):
    made = ec2.create_vpc(CidrBlock="10.1.2.3/16", TagSpecifications=tagged("vpc", Name="mine"))["Vpc"]
    vpc = made["VpcId"]
    assert (made["CidrBlock"], made["IsDefault"], made["Tags"]) == ("10.1.0.0/16", False, [{"Key": "Name", "Value": "mine"}])
    ec2.get_waiter("vpc_available").wait(VpcIds=[vpc])
    (table,) = ec2.describe_route_tables(**by_vpc(vpc))["RouteTables"]
    assert table["Routes"] == [
        {"DestinationCidrBlock": "10.1.0.0/16", "GatewayId": "local", "Origin": "CreateRouteTable", "State": "active"}
    ]
    (group,) = ec2.describe_security_groups(**by_vpc(vpc))["SecurityGroups"]
    assert refused(ec2.delete_security_group, GroupId=group["GroupId"])[0] == "CannotDelete"
    assert ec2.describe_vpc_attribute(VpcId=vpc, Attribute="enableDnsSupport")["EnableDnsSupport"] == {"Value": True}
    assert ec2.describe_vpc_attribute(VpcId=vpc, Attribute="enableDnsHostnames")["EnableDnsHostnames"] == {"Value": False}
    ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsHostnames={"Value": True})
    assert ec2.describe_vpc_attribute(VpcId=vpc, Attribute="enableDnsHostnames")["EnableDnsHostnames"] == {"Value": True}
    ec2.delete_vpc(VpcId=vpc)
    assert refused(ec2.describe_vpcs, VpcIds=[vpc]) == ("InvalidVpcID.NotFound", f"The vpc ID '{vpc}' does not exist")
    assert ec2.describe_route_tables(**by_vpc(vpc))["RouteTables"] == []


@pytest.mark.parametrize(
    ("block", "code"),
    [
        ("10.0.0.0/15", "InvalidVpc.Range"),
        ("10.0.0.0/29", "InvalidVpc.Range"),
        ("10.0.0.0", "InvalidParameterValue"),
        ("ten/8", "InvalidParameterValue"),
        ("2001:db8::/56", "InvalidParameterValue"),
    ],
)
def test_cidr_of_a_vpc(ec2, block: str, code: str):
    assert refused(ec2.create_vpc, CidrBlock=block)[0] == code


@pytest.mark.parametrize(
    ("block", "code"),
    [
        ("10.0.0.0/24", None),
        ("10.0.0.128/25", "InvalidSubnet.Conflict"),
        ("10.0.0.0/16", "InvalidSubnet.Conflict"),
        ("10.0.1.0/29", "InvalidSubnet.Range"),
        ("10.1.0.0/24", "InvalidSubnet.Range"),
        ("10.0.1.0/33", "InvalidParameterValue"),
    ],
)
def test_cidr_of_a_subnet(ec2, block: str, code: str | None):
    vpc = new_vpc(ec2)
    if code is None:
        assert ec2.create_subnet(VpcId=vpc, CidrBlock=block)["Subnet"]["AvailableIpAddressCount"] == 251
    else:
        new_subnet(ec2, vpc)
        assert refused(ec2.create_subnet, VpcId=vpc, CidrBlock=block)[0] == code


def test_a_subnet(ec2, vpc):
    made = ec2.create_subnet(
        VpcId=vpc, CidrBlock="10.0.8.0/24", AvailabilityZone="us-east-1b", TagSpecifications=tagged("subnet", tier="web")
    )["Subnet"]
    assert (made["AvailabilityZoneId"], made["MapPublicIpOnLaunch"], made["State"]) == ("use1-az2", False, "available")
    ec2.get_waiter("subnet_available").wait(SubnetIds=[made["SubnetId"]])
    ec2.modify_subnet_attribute(SubnetId=made["SubnetId"], MapPublicIpOnLaunch={"Value": True})
    (shown,) = ec2.describe_subnets(SubnetIds=[made["SubnetId"]])["Subnets"]
    assert shown == {**made, "MapPublicIpOnLaunch": True}
    assert (
        refused(ec2.create_subnet, VpcId=vpc, CidrBlock="10.0.9.0/24", AvailabilityZone="us-east-2a")[0] == "InvalidParameterValue"
    )
    assert refused(ec2.delete_vpc, VpcId=vpc) == (
        "DependencyViolation",
        f"The vpc '{vpc}' has dependencies and cannot be deleted.",
    )
    ec2.delete_subnet(SubnetId=made["SubnetId"])
    assert refused(ec2.delete_subnet, SubnetId=made["SubnetId"])[0] == "InvalidSubnetID.NotFound"
    (acl,) = ec2.describe_network_acls(**by_vpc(vpc))["NetworkAcls"]
    assert acl["Associations"] == []


def test_ipv6_of_a_vpc_and_a_subnet(ec2):
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16", AmazonProvidedIpv6CidrBlock=True)["Vpc"]
    block = vpc["Ipv6CidrBlockAssociationSet"][0]["Ipv6CidrBlock"]
    assert block.endswith("::/56")
    first = block.replace("::/56", "::/64")
    made = ec2.create_subnet(VpcId=vpc["VpcId"], CidrBlock="10.0.0.0/24", Ipv6CidrBlock=first)["Subnet"]
    assert made["Ipv6CidrBlockAssociationSet"][0]["Ipv6CidrBlock"] == first
    outside = {"VpcId": vpc["VpcId"], "CidrBlock": "10.0.1.0/24", "Ipv6CidrBlock": "2001:db8::/64"}
    assert refused(ec2.create_subnet, **outside)[0] == "InvalidSubnet.Range"


def test_an_internet_gateway(ec2, vpc):
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    assert refused(ec2.detach_internet_gateway, InternetGatewayId=gateway, VpcId=vpc)[0] == "Gateway.NotAttached"
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    (shown,) = ec2.describe_internet_gateways(InternetGatewayIds=[gateway])["InternetGateways"]
    assert shown["Attachments"] == [{"State": "available", "VpcId": vpc}]
    assert refused(ec2.attach_internet_gateway, InternetGatewayId=gateway, VpcId=vpc)[0] == "Resource.AlreadyAssociated"
    second = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    assert refused(ec2.attach_internet_gateway, InternetGatewayId=second, VpcId=vpc)[0] == "InvalidParameterValue"
    assert refused(ec2.delete_internet_gateway, InternetGatewayId=gateway)[0] == "DependencyViolation"
    assert refused(ec2.delete_vpc, VpcId=vpc)[0] == "DependencyViolation"
    ec2.detach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    ec2.delete_internet_gateway(InternetGatewayId=gateway)
    assert refused(ec2.describe_internet_gateways, InternetGatewayIds=[gateway])[0] == "InvalidInternetGatewayID.NotFound"


def test_a_vpn_gateway(ec2, vpc):
    made = ec2.create_vpn_gateway(Type="ipsec.1")["VpnGateway"]
    gateway = made["VpnGatewayId"]
    assert gateway.startswith("vgw-0") and (made["State"], made["Type"], made["AmazonSideAsn"]) == ("available", "ipsec.1", 64512)
    of_vpc = [{"Name": "attachment.vpc-id", "Values": [vpc]}]
    assert ec2.describe_vpn_gateways(Filters=of_vpc)["VpnGateways"] == []
    assert refused(ec2.detach_vpn_gateway, VpnGatewayId=gateway, VpcId=vpc)[0] == "InvalidVpnGatewayAttachment.NotFound"
    attached = ec2.attach_vpn_gateway(VpnGatewayId=gateway, VpcId=vpc)["VpcAttachment"]
    (shown,) = ec2.describe_vpn_gateways(Filters=of_vpc)["VpnGateways"]
    assert shown["VpnGatewayId"] == gateway and shown["VpcAttachments"] == [attached] == [{"State": "attached", "VpcId": vpc}]
    assert refused(ec2.attach_vpn_gateway, VpnGatewayId=gateway, VpcId=vpc)[0] == "InvalidParameterValue"
    assert refused(ec2.delete_vpn_gateway, VpnGatewayId=gateway)[0] == "IncorrectState"
    assert refused(ec2.delete_vpc, VpcId=vpc)[0] == "DependencyViolation"
    ec2.create_tags(Resources=[gateway], Tags=[{"Key": "Name", "Value": "office"}])
    assert ec2.describe_tags(Filters=[{"Name": "resource-id", "Values": [gateway]}])["Tags"][0]["ResourceType"] == "vpn-gateway"
    ec2.detach_vpn_gateway(VpnGatewayId=gateway, VpcId=vpc)
    ec2.delete_vpn_gateway(VpnGatewayId=gateway)
    assert refused(ec2.describe_vpn_gateways, VpnGatewayIds=[gateway])[0] == "InvalidVpnGatewayID.NotFound"


def test_routes_and_associations(ec2, vpc):
    subnet, gateway = new_subnet(ec2, vpc), ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    table = ec2.create_route_table(VpcId=vpc, TagSpecifications=tagged("route-table", Name="public"))["RouteTable"]["RouteTableId"]
    route = {"RouteTableId": table, "DestinationCidrBlock": "0.0.0.0/0", "GatewayId": gateway}
    assert refused(ec2.create_route, **route)[0] == "InvalidParameterValue", "the gateway is not attached"
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    ec2.create_route(**route)
    assert refused(ec2.create_route, **route) == ("RouteAlreadyExists", "The route identified by 0.0.0.0/0 already exists.")
    assert refused(ec2.create_route, RouteTableId=table, DestinationCidrBlock="1.0.0.0/8")[0] == "InvalidParameterValue"

    def routes() -> dict[str, str]:
        (shown,) = ec2.describe_route_tables(RouteTableIds=[table])["RouteTables"]
        return {each["DestinationCidrBlock"]: each["State"] for each in shown["Routes"]}

    assert routes() == {"10.0.0.0/16": "active", "0.0.0.0/0": "active"}
    ec2.detach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    assert routes()["0.0.0.0/0"] == "blackhole"
    ec2.replace_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", NetworkInterfaceId="eni-01234567890abcdef")
    assert routes()["0.0.0.0/0"] == "active"
    association = ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)["AssociationId"]
    assert ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)["AssociationId"] == association
    found = ec2.describe_route_tables(Filters=[{"Name": "association.subnet-id", "Values": [subnet]}])["RouteTables"]
    assert [each["RouteTableId"] for each in found] == [table]
    assert refused(ec2.delete_route_table, RouteTableId=table)[0] == "DependencyViolation"
    other = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    assert refused(ec2.associate_route_table, RouteTableId=other, SubnetId=subnet)[0] == "Resource.AlreadyAssociated"
    association = ec2.replace_route_table_association(AssociationId=association, RouteTableId=other)["NewAssociationId"]
    ec2.disassociate_route_table(AssociationId=association)
    assert refused(ec2.disassociate_route_table, AssociationId=association)[0] == "InvalidAssociationID.NotFound"
    ec2.delete_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0")
    assert refused(ec2.delete_route, RouteTableId=table, DestinationCidrBlock="0.0.0.0/0") == (
        "InvalidRoute.NotFound",
        f"no route with destination-cidr-block 0.0.0.0/0 in route table {table}",
    )
    assert refused(ec2.delete_route, RouteTableId=table, DestinationCidrBlock="10.0.0.0/16")[0] == "InvalidParameterValue"
    ec2.delete_route_table(RouteTableId=table)
    assert refused(ec2.delete_vpc, VpcId=vpc)[0] == "DependencyViolation", "the other table and the subnet are left"


def test_a_local_route_stays_one_when_its_target_is_replaced(ec2, vpc):
    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    local = {"RouteTableId": table, "DestinationCidrBlock": "10.0.0.0/16"}
    for target, shown in (
        ({"NetworkInterfaceId": "eni-01234567890abcdef"}, {"NetworkInterfaceId": "eni-01234567890abcdef"}),
        ({"LocalTarget": True}, {"GatewayId": "local"}),
    ):
        ec2.replace_route(**local, **target)
        (route,) = ec2.describe_route_tables(RouteTableIds=[table])["RouteTables"][0]["Routes"]
        assert route == {"DestinationCidrBlock": "10.0.0.0/16", **shown, "Origin": "CreateRouteTable", "State": "active"}
        assert refused(ec2.delete_route, **local)[0] == "InvalidParameterValue"


def test_the_main_route_table_can_be_replaced(ec2, vpc):
    (main,) = ec2.describe_route_tables(**by_vpc(vpc))["RouteTables"]
    (association,) = main["Associations"]
    other = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    assert refused(ec2.disassociate_route_table, AssociationId=association["RouteTableAssociationId"])[0] == "InvalidParameterValue"
    assert refused(ec2.delete_route_table, RouteTableId=main["RouteTableId"])[0] == "DependencyViolation"
    ec2.replace_route_table_association(AssociationId=association["RouteTableAssociationId"], RouteTableId=other)
    ec2.delete_route_table(RouteTableId=main["RouteTableId"])
    filters = [{"Name": "vpc-id", "Values": [vpc]}, {"Name": "association.main", "Values": ["true"]}]
    assert ec2.describe_route_tables(Filters=filters)["RouteTables"][0]["RouteTableId"] == other
    ec2.delete_vpc(VpcId=vpc)


def test_a_client_token_makes_creation_idempotent(ec2, vpc):
    made = [ec2.create_route_table(VpcId=vpc, ClientToken="once")["RouteTable"]["RouteTableId"] for _ in range(2)]
    assert made[0] == made[1]
    other = new_vpc(ec2)
    assert refused(ec2.create_route_table, VpcId=other, ClientToken="once")[0] == "IdempotentParameterMismatch"
    assert len(ec2.describe_route_tables(**by_vpc(vpc))["RouteTables"]) == 2


def rule(port: int, *blocks: str, **more: Any) -> dict[str, Any]:
    ranges = [{"CidrIp": block} for block in blocks]
    return {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, **({"IpRanges": ranges} if blocks else {}), **more}


def test_security_groups_and_rules(ec2, vpc):
    made = ec2.create_security_group(
        GroupName="web", Description="web servers", VpcId=vpc, TagSpecifications=tagged("security-group", a="b")
    )
    web, db = made["GroupId"], ec2.create_security_group(GroupName="db", Description="databases", VpcId=vpc)["GroupId"]
    assert made["Tags"] == [{"Key": "a", "Value": "b"}]
    assert refused(ec2.create_security_group, GroupName="web", Description="x", VpcId=vpc) == (
        "InvalidGroup.Duplicate",
        f"The security group 'web' already exists for VPC '{vpc}'",
    )
    rules = ec2.authorize_security_group_ingress(
        GroupId=web,
        IpPermissions=[rule(80, "0.0.0.0/0"), rule(443, "10.0.0.0/8", "192.168.0.0/16", Ipv6Ranges=[{"CidrIpv6": "::/0"}])],
        TagSpecifications=tagged("security-group-rule", kind="public"),
    )["SecurityGroupRules"]
    assert [(each["FromPort"], each.get("CidrIpv4") or each["CidrIpv6"]) for each in rules] == [
        (80, "0.0.0.0/0"), (443, "10.0.0.0/8"), (443, "192.168.0.0/16"), (443, "::/0"),
    ]  # fmt: skip
    assert refused(ec2.authorize_security_group_ingress, GroupId=web, IpPermissions=[rule(80, "0.0.0.0/0")]) == (
        "InvalidPermission.Duplicate",
        'the specified rule "peer: 0.0.0.0/0, TCP, from port: 80, to port: 80, ALLOW" already exists',
    )
    pair = [{"GroupId": web, "Description": "from the web servers"}]
    ec2.authorize_security_group_ingress(GroupId=db, IpPermissions=[rule(5432, UserIdGroupPairs=pair)])
    (shown,) = ec2.describe_security_groups(GroupIds=[db])["SecurityGroups"]
    assert shown["IpPermissions"] == [
        {
            "IpProtocol": "tcp", "FromPort": 5432, "ToPort": 5432, "IpRanges": [], "Ipv6Ranges": [], "PrefixListIds": [],
            "UserIdGroupPairs": [{"GroupId": web, "UserId": ACCOUNT, "Description": "from the web servers"}],
        }
    ]  # fmt: skip
    assert shown["IpPermissionsEgress"] == [
        {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}], "Ipv6Ranges": [], "PrefixListIds": [], "UserIdGroupPairs": []}
    ]
    (shown,) = ec2.describe_security_groups(GroupIds=[web])["SecurityGroups"]
    assert [(each["FromPort"], len(each["IpRanges"]), len(each["Ipv6Ranges"])) for each in shown["IpPermissions"]] == [
        (80, 1, 0), (443, 2, 1),
    ]  # fmt: skip
    listed = ec2.describe_security_group_rules(Filters=[{"Name": "group-id", "Values": [web]}])["SecurityGroupRules"]
    assert sum(each["IsEgress"] for each in listed) == 1 and len(listed) == 5
    tagged_rules = ec2.describe_security_group_rules(Filters=[{"Name": "tag:kind", "Values": ["public"]}])["SecurityGroupRules"]
    assert len(tagged_rules) == 4
    assert refused(ec2.delete_security_group, GroupId=web) == ("DependencyViolation", f"resource {web} has a dependent object")

    https = ec2.describe_security_groups(Filters=[{"Name": "ip-permission.from-port", "Values": ["443"]}])["SecurityGroups"]
    assert [each["GroupId"] for each in https] == [web]
    ec2.modify_security_group_rules(
        GroupId=web,
        SecurityGroupRules=[
            {
                "SecurityGroupRuleId": rules[0]["SecurityGroupRuleId"],
                "SecurityGroupRule": {"IpProtocol": "tcp", "FromPort": 8080, "ToPort": 8081, "CidrIpv4": "1.2.3.4/32"},
            }
        ],
    )
    (changed,) = ec2.describe_security_group_rules(SecurityGroupRuleIds=[rules[0]["SecurityGroupRuleId"]])["SecurityGroupRules"]
    assert (changed["FromPort"], changed["ToPort"], changed["CidrIpv4"]) == (8080, 8081, "1.2.3.4/32")
    ec2.update_security_group_rule_descriptions_ingress(
        GroupId=web, IpPermissions=[rule(443, IpRanges=[{"CidrIp": "10.0.0.0/8", "Description": "inside"}])]
    )
    (shown,) = ec2.describe_security_groups(GroupIds=[web])["SecurityGroups"]
    assert {"CidrIp": "10.0.0.0/8", "Description": "inside"} in shown["IpPermissions"][1]["IpRanges"]

    revoked = ec2.revoke_security_group_ingress(GroupId=web, SecurityGroupRuleIds=[rules[0]["SecurityGroupRuleId"]])
    assert revoked["RevokedSecurityGroupRules"][0]["CidrIpv4"] == "1.2.3.4/32"
    ec2.revoke_security_group_ingress(GroupId=web, IpPermissions=[rule(443, "10.0.0.0/8")])
    assert refused(ec2.revoke_security_group_ingress, GroupId=web, IpPermissions=[rule(443, "10.0.0.0/8")])[0] == (
        "InvalidPermission.NotFound"
    )
    ec2.revoke_security_group_egress(GroupId=web, IpPermissions=[{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}])
    (shown,) = ec2.describe_security_groups(GroupIds=[web])["SecurityGroups"]
    assert (len(shown["IpPermissions"]), shown["IpPermissionsEgress"]) == (1, [])
    ec2.get_waiter("security_group_exists").wait(GroupIds=[web])
    ec2.delete_security_group(GroupId=db)
    assert ec2.delete_security_group(GroupId=web)["GroupId"] == web
    assert refused(ec2.describe_security_groups, GroupIds=[web]) == (
        "InvalidGroup.NotFound",
        f"The security group '{web}' does not exist",
    )


@pytest.mark.parametrize(
    ("permission", "code"),
    [
        ({"IpProtocol": "tcp", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}, "InvalidParameterValue"),
        (rule(70_000, "0.0.0.0/0"), "InvalidParameterValue"),
        ({**rule(80, "0.0.0.0/0"), "ToPort": 79}, "InvalidParameterValue"),
        ({"IpProtocol": "carrier-pigeon", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}, "InvalidParameterValue"),
        (rule(80, "0.0.0.0"), "InvalidParameterValue"),
        (rule(80), "MissingParameter"),
        (rule(80, UserIdGroupPairs=[{"GroupId": "sg-01234567890abcdef"}]), "InvalidGroup.NotFound"),
    ],
)
def test_an_invalid_rule(ec2, vpc, permission: dict[str, Any], code: str):
    group = ec2.create_security_group(GroupName="g", Description="d", VpcId=vpc)["GroupId"]
    assert refused(ec2.authorize_security_group_ingress, GroupId=group, IpPermissions=[permission])[0] == code


@pytest.mark.parametrize("name", ["default", "sg-mine", "é"])
def test_a_name_that_a_group_cannot_have(ec2, vpc, name: str):
    assert refused(ec2.create_security_group, GroupName=name, Description="d", VpcId=vpc)[0] == "InvalidParameterValue"


def test_elastic_ips_and_a_nat_gateway(ec2, vpc):
    subnet, gateway = new_subnet(ec2, vpc), ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    address = ec2.allocate_address(Domain="vpc", TagSpecifications=tagged("elastic-ip", Name="nat"))
    assert address["AllocationId"].startswith("eipalloc-0")
    wanted = {"SubnetId": subnet, "AllocationId": address["AllocationId"]}
    assert refused(ec2.create_nat_gateway, **wanted)[0] == "Gateway.NotAttached"
    assert "AssociationId" not in ec2.describe_addresses(PublicIps=[address["PublicIp"]])["Addresses"][0], "nothing has changed"
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    made = ec2.create_nat_gateway(**wanted, TagSpecifications=tagged("natgateway", Name="nat"))["NatGateway"]
    nat = made["NatGatewayId"]
    assert (made["VpcId"], made["NatGatewayAddresses"][0]["PublicIp"]) == (vpc, address["PublicIp"])
    assert made["NatGatewayAddresses"][0]["PrivateIp"] == "10.0.0.4"
    (shown,) = ec2.describe_subnets(SubnetIds=[subnet])["Subnets"]
    assert shown["AvailableIpAddressCount"] == ip_network(shown["CidrBlock"]).num_addresses - 6
    ec2.get_waiter("nat_gateway_available").wait(NatGatewayIds=[nat])
    (shown,) = ec2.describe_addresses(AllocationIds=[address["AllocationId"]])["Addresses"]
    assert shown["AssociationId"] == made["NatGatewayAddresses"][0]["AssociationId"]
    assert refused(ec2.release_address, AllocationId=address["AllocationId"])[0] == "InvalidIPAddress.InUse"
    assert refused(ec2.create_nat_gateway, **wanted)[0] == "Resource.AlreadyAssociated"
    assert refused(ec2.delete_subnet, SubnetId=subnet)[0] == "DependencyViolation"
    assert refused(ec2.detach_internet_gateway, InternetGatewayId=gateway, VpcId=vpc)[0] == "DependencyViolation"
    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", NatGatewayId=nat)
    found = ec2.describe_nat_gateways(Filter=[{"Name": "subnet-id", "Values": [subnet]}])["NatGateways"]
    assert [each["NatGatewayId"] for each in found] == [nat]
    assert ec2.delete_nat_gateway(NatGatewayId=nat)["NatGatewayId"] == nat
    ec2.get_waiter("nat_gateway_deleted").wait(NatGatewayIds=[nat])
    (shown,) = ec2.describe_route_tables(RouteTableIds=[table])["RouteTables"]
    assert [each["State"] for each in shown["Routes"]] == ["active", "blackhole"]
    ec2.release_address(AllocationId=address["AllocationId"])
    assert refused(ec2.describe_addresses, PublicIps=[address["PublicIp"]])[0] == "InvalidAddress.NotFound"


def test_an_elastic_ip_of_an_instance(ec2):
    address, second = (ec2.allocate_address() for _ in range(2))
    assert address["PublicIp"] != second["PublicIp"]
    target = {"AllocationId": address["AllocationId"], "InstanceId": "i-01234567890abcdef"}
    association = ec2.associate_address(**target)["AssociationId"]
    assert ec2.associate_address(**target)["AssociationId"] == association
    other = {**target, "InstanceId": "i-0fedcba9876543210"}
    assert refused(ec2.associate_address, **other, AllowReassociation=False)[0] == "Resource.AlreadyAssociated"
    assert ec2.associate_address(**other)["AssociationId"] != association, "reassociation is automatic"
    association = ec2.associate_address(**target)["AssociationId"]
    found = ec2.describe_addresses(Filters=[{"Name": "instance-id", "Values": ["i-01234567890abcdef"]}])["Addresses"]
    assert [each["AssociationId"] for each in found] == [association]
    ec2.disassociate_address(AssociationId=association)
    assert refused(ec2.disassociate_address, AssociationId=association)[0] == "InvalidAssociationID.NotFound"
    ec2.release_address(PublicIp=address["PublicIp"])
    assert refused(ec2.release_address, AllocationId=address["AllocationId"])[0] == "InvalidAllocationID.NotFound"


def test_vpc_endpoints(ec2, vpc):
    subnet, table = new_subnet(ec2, vpc), ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    service = "com.amazonaws.us-east-1.s3"
    gateway = ec2.create_vpc_endpoint(VpcId=vpc, ServiceName=service, RouteTableIds=[table])["VpcEndpoint"]
    assert (gateway["VpcEndpointType"], gateway["State"]) == ("Gateway", "available")
    (shown,) = ec2.describe_route_tables(RouteTableIds=[table])["RouteTables"]
    assert [each["GatewayId"] for each in shown["Routes"]] == ["local", gateway["VpcEndpointId"]]
    interface = ec2.create_vpc_endpoint(
        VpcId=vpc, ServiceName="com.amazonaws.us-east-1.sqs", VpcEndpointType="Interface", SubnetIds=[subnet]
    )["VpcEndpoint"]
    assert [each["GroupName"] for each in interface["Groups"]] == ["default"]
    assert refused(ec2.create_vpc_endpoint, VpcId=vpc, ServiceName="s3")[0] == "InvalidServiceName"
    assert refused(ec2.delete_subnet, SubnetId=subnet)[0] == "DependencyViolation"
    ec2.modify_vpc_endpoint(VpcEndpointId=gateway["VpcEndpointId"], RemoveRouteTableIds=[table])
    found = ec2.describe_vpc_endpoints(Filters=[{"Name": "service-name", "Values": ["*.s3"]}, *by_vpc(vpc)["Filters"]])
    assert [each["RouteTableIds"] for each in found["VpcEndpoints"]] == [[]]
    ids = [gateway["VpcEndpointId"], interface["VpcEndpointId"]]
    failed = ec2.delete_vpc_endpoints(VpcEndpointIds=[*ids, "vpce-01234567890abcdef"])["Unsuccessful"]
    assert [each["Error"]["Code"] for each in failed] == ["InvalidVpcEndpointId.NotFound"]
    ec2.delete_subnet(SubnetId=subnet)


def test_a_generated_key_pair(ec2):
    made = ec2.create_key_pair(KeyName="rsa", TagSpecifications=tagged("key-pair", a="b"))
    key = load_pem_private_key(made["KeyMaterial"].encode(), None)
    assert isinstance(key, RSAPrivateKey) and key.key_size == 2048
    digest = hashlib.sha1(key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())).hexdigest()
    assert made["KeyFingerprint"].replace(":", "") == digest
    ec2.get_waiter("key_pair_exists").wait(KeyNames=["rsa"])
    (shown,) = ec2.describe_key_pairs(KeyNames=["rsa"], IncludePublicKey=True)["KeyPairs"]
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    assert (shown["PublicKey"], shown["KeyType"], shown["Tags"]) == (f"{public} rsa", "rsa", [{"Key": "a", "Value": "b"}])
    assert refused(ec2.create_key_pair, KeyName="rsa")[0] == "InvalidKeyPair.Duplicate"
    small = ec2.create_key_pair(KeyName="small", KeyType="ed25519")
    assert isinstance(load_ssh_private_key(small["KeyMaterial"].encode(), None), Ed25519PrivateKey)
    assert ec2.delete_key_pair(KeyPairId=small["KeyPairId"])["Return"]
    ec2.delete_key_pair(KeyName="rsa")
    ec2.delete_key_pair(KeyName="rsa")
    assert refused(ec2.describe_key_pairs, KeyNames=["rsa"])[0] == "InvalidKeyPair.NotFound"


def test_an_imported_key_pair(ec2):
    public = generate_private_key(65537, 2048).public_key()
    text = public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    made = ec2.import_key_pair(KeyName="mine", PublicKeyMaterial=text + b" me@here")
    digest = hashlib.md5(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
    assert made["KeyFingerprint"].replace(":", "") == digest
    small = Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    made = ec2.import_key_pair(KeyName="small", PublicKeyMaterial=small)
    assert made["KeyFingerprint"] == base64.b64encode(hashlib.sha256(base64.b64decode(small.split()[1])).digest()).decode()
    assert refused(ec2.import_key_pair, KeyName="bad", PublicKeyMaterial=b"ssh-rsa nothing")[0] == "InvalidKey.Format"


def test_network_acls(ec2, vpc):
    subnet = new_subnet(ec2, vpc)
    acl = ec2.create_network_acl(VpcId=vpc)["NetworkAcl"]["NetworkAclId"]
    entry = {
        "NetworkAclId": acl,
        "RuleNumber": 100,
        "Protocol": "6",
        "RuleAction": "allow",
        "Egress": False,
        "CidrBlock": "0.0.0.0/0",
    }
    assert refused(ec2.create_network_acl_entry, **entry)[0] == "MissingParameter", "TCP needs ports"
    ec2.create_network_acl_entry(**entry, PortRange={"From": 80, "To": 80})
    assert refused(ec2.create_network_acl_entry, **entry, PortRange={"From": 80, "To": 80})[0] == "NetworkAclEntryAlreadyExists"
    ec2.replace_network_acl_entry(**entry, PortRange={"From": 443, "To": 443})
    (shown,) = ec2.describe_network_acls(NetworkAclIds=[acl])["NetworkAcls"]
    numbers = [(each["Egress"], each["RuleNumber"]) for each in shown["Entries"]]
    assert numbers == [(True, 32767), (False, 100), (False, 32767)]
    assert shown["Entries"][1]["PortRange"] == {"From": 443, "To": 443}
    (default,) = ec2.describe_network_acls(Filters=[{"Name": "association.subnet-id", "Values": [subnet]}])["NetworkAcls"]
    association = default["Associations"][0]["NetworkAclAssociationId"]
    moved = ec2.replace_network_acl_association(AssociationId=association, NetworkAclId=acl)["NewAssociationId"]
    assert (
        refused(ec2.replace_network_acl_association, AssociationId=association, NetworkAclId=acl)[0]
        == "InvalidAssociationID.NotFound"
    )
    assert refused(ec2.delete_network_acl, NetworkAclId=acl)[0] == "DependencyViolation"
    ec2.replace_network_acl_association(AssociationId=moved, NetworkAclId=default["NetworkAclId"])
    ec2.delete_network_acl_entry(NetworkAclId=acl, RuleNumber=100, Egress=False)
    assert (
        refused(ec2.delete_network_acl_entry, NetworkAclId=acl, RuleNumber=100, Egress=False)[0]
        == "InvalidNetworkAclEntry.NotFound"
    )
    ec2.delete_network_acl(NetworkAclId=acl)
    assert refused(ec2.delete_network_acl, NetworkAclId=default["NetworkAclId"])[0] == "InvalidParameterValue"


def test_dhcp_options(ec2, vpc):
    configurations = [{"Key": "domain-name", "Values": ["corral.test"]}, {"Key": "ntp-servers", "Values": ["10.0.0.1", "10.0.0.2"]}]
    options = ec2.create_dhcp_options(DhcpConfigurations=configurations)["DhcpOptions"]["DhcpOptionsId"]
    ec2.associate_dhcp_options(DhcpOptionsId=options, VpcId=vpc)
    assert ec2.describe_vpcs(VpcIds=[vpc])["Vpcs"][0]["DhcpOptionsId"] == options
    (shown,) = ec2.describe_dhcp_options(Filters=[{"Name": "value", "Values": ["corral.*"]}])["DhcpOptions"]
    assert shown["DhcpConfigurations"][1]["Values"] == [{"Value": "10.0.0.1"}, {"Value": "10.0.0.2"}]
    assert refused(ec2.delete_dhcp_options, DhcpOptionsId=options)[0] == "DependencyViolation"
    ec2.associate_dhcp_options(DhcpOptionsId="default", VpcId=vpc)
    ec2.delete_dhcp_options(DhcpOptionsId=options)
    unknown = [{"Key": "colour", "Values": ["red"]}]
    assert refused(ec2.create_dhcp_options, DhcpConfigurations=unknown)[0] == "InvalidParameterValue"


def test_tags(ec2, vpc):
    subnet = new_subnet(ec2, vpc, TagSpecifications=tagged("subnet", Name="one", drop="x"))
    ec2.create_tags(Resources=[vpc, subnet], Tags=[{"Key": "team", "Value": "a"}, {"Key": "Name", "Value": "two"}])
    mine = {"Filters": [{"Name": "resource-id", "Values": [vpc, subnet]}]}
    listed = {(tag["ResourceType"], tag["Key"], tag["Value"]) for tag in ec2.describe_tags(**mine)["Tags"]}
    assert listed == {
        ("vpc", "team", "a"),
        ("vpc", "Name", "two"),
        ("subnet", "team", "a"),
        ("subnet", "Name", "two"),
        ("subnet", "drop", "x"),
    }
    ec2.delete_tags(Resources=[vpc, subnet], Tags=[{"Key": "drop"}, {"Key": "team", "Value": "other"}])
    assert {tag["Key"] for tag in ec2.describe_subnets(SubnetIds=[subnet])["Subnets"][0]["Tags"]} == {"Name", "team"}
    ec2.delete_tags(Resources=[subnet])
    assert [tag["ResourceType"] for tag in ec2.describe_tags(**mine)["Tags"]] == ["vpc", "vpc"]
    assert refused(ec2.create_tags, Resources=["thing-1"], Tags=[{"Key": "a"}]) == ("InvalidID", "The ID 'thing-1' is not valid")
    assert refused(ec2.create_tags, Resources=["vpc-0"], Tags=[{"Key": "a"}])[0] == "InvalidVpcID.NotFound"
    assert refused(ec2.create_tags, Resources=[vpc], Tags=[{"Key": "aws:a", "Value": ""}])[0] == "InvalidParameterValue"
    many = [{"Key": f"k{at}", "Value": ""} for at in range(51)]
    assert refused(ec2.create_tags, Resources=[vpc], Tags=many)[0] == "TagLimitExceeded"
    wrong = tagged("subnet", a="b")
    assert refused(ec2.create_vpc, CidrBlock="10.0.0.0/16", TagSpecifications=wrong)[0] == "InvalidParameterValue"


def test_filters(ec2):
    first = ec2.create_vpc(CidrBlock="10.7.0.0/16", TagSpecifications=tagged("vpc", Name="front-1", env="x*y"))["Vpc"]["VpcId"]
    second = ec2.create_vpc(CidrBlock="10.8.0.0/16", TagSpecifications=tagged("vpc", Name="front-2"))["Vpc"]["VpcId"]

    def found(**filters: list[str]) -> set[str]:
        given = [{"Name": name.replace("__", ":").replace("_", "-"), "Values": values} for name, values in filters.items()]
        return {vpc["VpcId"] for vpc in ec2.describe_vpcs(Filters=given)["Vpcs"]} & {first, second}

    assert found(tag__Name=["front-*"]) == {first, second}
    assert found(tag__Name=["front-?"], cidr=["10.8.*"]) == {second}
    assert found(tag__Name=["front-1", "front-2"]) == {first, second}
    assert found(tag__Name=["FRONT-1"]) == set(), "values are case-sensitive"
    assert found(tag_key=["env"]) == {first}
    assert found(tag__env=["x\\*y"]) == {first} and found(tag__env=["x\\?y"]) == set()
    assert found(is_default=["false"]) == {first, second}
    assert refused(ec2.describe_vpcs, Filters=[{"Name": "colour", "Values": ["red"]}]) == (
        "InvalidParameterValue",
        "The filter 'colour' is invalid",
    )


def test_a_dry_run_changes_nothing(ec2, vpc):
    before = len(ec2.describe_subnets(**by_vpc(vpc))["Subnets"])
    with pytest.raises(ClientError) as error:
        ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24", DryRun=True)
    assert error.value.response["Error"] == {
        "Code": "DryRunOperation",
        "Message": "Request would have succeeded, but DryRun flag is set.",
    }
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 412
    assert len(ec2.describe_subnets(**by_vpc(vpc))["Subnets"]) == before
    assert refused(ec2.create_subnet, VpcId="vpc-0", CidrBlock="10.0.0.0/24", DryRun=True)[0] == "InvalidVpcID.NotFound"


def test_regions_have_separate_resources(client, vpc):
    elsewhere = client("ec2", region="us-west-2")
    assert refused(elsewhere.describe_vpcs, VpcIds=[vpc])[0] == "InvalidVpcID.NotFound"


def test_pagination(client):
    ec2 = client("ec2", parameter_validation=False)
    for at in range(12):
        new_vpc(ec2, f"10.{at}.0.0/16")
    assert refused(ec2.describe_vpcs, NextToken="nonsense")[0] == "InvalidNextToken"
    assert refused(ec2.describe_vpcs, MaxResults=4)[0] == "InvalidParameterValue"
    first = ec2.describe_vpcs(MaxResults=5)
    assert len(first["Vpcs"]) == 5 and first["NextToken"]


def test_a_network_with_the_aws_command(aws):
    """Create, tag, filter and delete a VPC with two subnets, a gateway, routes and security groups."""

    def made(*command: str) -> str:
        *words, query = command
        return aws("ec2", *words, "--query", query)

    vpc = made("create-vpc", "--cidr-block", "10.20.0.0/16", "--tag-specifications",
               "ResourceType=vpc,Tags=[{Key=Name,Value=lab},{Key=env,Value=test}]", "Vpc.VpcId")  # fmt: skip
    aws("ec2", "wait", "vpc-available", "--vpc-ids", vpc)
    aws("ec2", "modify-vpc-attribute", "--vpc-id", vpc, "--enable-dns-hostnames")
    subnets = [
        made("create-subnet", "--vpc-id", vpc, "--cidr-block", f"10.20.{at}.0/24", "--availability-zone", zone, "Subnet.SubnetId")
        for at, zone in enumerate(("us-east-1a", "us-east-1b"))
    ]
    aws("ec2", "create-tags", "--resources", *subnets, "--tags", "Key=tier,Value=public", "Key=env,Value=test")
    for subnet in subnets:
        aws("ec2", "modify-subnet-attribute", "--subnet-id", subnet, "--map-public-ip-on-launch")
    gateway = made("create-internet-gateway", "InternetGateway.InternetGatewayId")
    aws("ec2", "attach-internet-gateway", "--internet-gateway-id", gateway, "--vpc-id", vpc)
    table = made("create-route-table", "--vpc-id", vpc, "RouteTable.RouteTableId")
    aws("ec2", "create-route", "--route-table-id", table, "--destination-cidr-block", "0.0.0.0/0", "--gateway-id", gateway)
    associations = [
        made("associate-route-table", "--route-table-id", table, "--subnet-id", subnet, "AssociationId") for subnet in subnets
    ]
    web = made("create-security-group", "--group-name", "web", "--description", "web", "--vpc-id", vpc, "GroupId")
    db = made("create-security-group", "--group-name", "db", "--description", "db", "--vpc-id", vpc, "GroupId")
    aws("ec2", "authorize-security-group-ingress", "--group-id", web, "--protocol", "tcp", "--port", "443", "--cidr", "0.0.0.0/0")
    aws("ec2", "authorize-security-group-ingress", "--group-id", db, "--protocol", "tcp", "--port", "5432", "--source-group", web)

    tagged = ("--filters", "Name=tag:tier,Values=pub*", f"Name=vpc-id,Values={vpc}")
    assert sorted(aws("ec2", "describe-subnets", *tagged, "--query", "Subnets[].SubnetId")) == sorted(subnets)
    groups = aws(
        "ec2", "describe-security-groups", "--filters", f"Name=vpc-id,Values={vpc}", "--query", "SecurityGroups[].GroupName"
    )
    assert sorted(groups) == ["db", "default", "web"]
    found = aws("ec2", "describe-tags", "--filters", "Name=key,Values=env", "--query", "Tags[].ResourceId")
    assert set(found) >= {vpc, *subnets}
    with pytest.raises(AssertionError, match="DependencyViolation"):
        aws("ec2", "delete-vpc", "--vpc-id", vpc)

    aws("ec2", "delete-security-group", "--group-id", db)
    aws("ec2", "delete-security-group", "--group-id", web)
    for association in associations:
        aws("ec2", "disassociate-route-table", "--association-id", association)
    aws("ec2", "delete-route", "--route-table-id", table, "--destination-cidr-block", "0.0.0.0/0")
    aws("ec2", "delete-route-table", "--route-table-id", table)
    aws("ec2", "detach-internet-gateway", "--internet-gateway-id", gateway, "--vpc-id", vpc)
    aws("ec2", "delete-internet-gateway", "--internet-gateway-id", gateway)
    for subnet in subnets:
        aws("ec2", "delete-subnet", "--subnet-id", subnet)
    aws("ec2", "delete-vpc", "--vpc-id", vpc)
    with pytest.raises(AssertionError, match=r"InvalidVpcID\.NotFound"):
        aws("ec2", "describe-vpcs", "--vpc-ids", vpc)
