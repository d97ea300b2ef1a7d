"""EC2's codes and texts for ids, and the operations with which clients look for dependents before they delete a network."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from botocore.exceptions import ClientError

from each import check_each

ACCOUNT = "123456789012"


@pytest.fixture
def ec2(client) -> Any:
    return client("ec2")


def by(name: str, *values: str) -> dict[str, Any]:
    return {"Filters": [{"Name": name, "Values": list(values)}]}


ABSENT = "0123456789abcdef0"
IDS = [  # operation, its parameter, an id, code, text
    ("describe_vpcs", "VpcIds", f"vpc-{ABSENT}", "InvalidVpcID.NotFound", "The vpc ID '{}' does not exist"),
    ("describe_vpcs", "VpcIds", "10.0.0.0/16", "InvalidVpcID.NotFound", "The vpc ID '{}' does not exist"),
    ("describe_subnets", "SubnetIds", "subnet-x", "InvalidSubnetID.NotFound", "The subnet ID '{}' does not exist"),
    ("describe_security_groups", "GroupIds", f"sg-{ABSENT}", "InvalidGroup.NotFound", "The security group '{}' does not exist"),
    ("describe_security_groups", "GroupIds", "web", "InvalidGroupId.Malformed", 'Invalid id: "{}" (expecting "sg-...")'),
    ("delete_security_group", "GroupId", "i-01234567", "InvalidGroupId.Malformed", 'Invalid id: "{}" (expecting "sg-...")'),
    ("describe_security_group_rules", "SecurityGroupRuleIds", f"sgr-{ABSENT}", "InvalidSecurityGroupRuleId.NotFound",
     "The security group rule ID '{}' does not exist"),
    ("describe_security_group_rules", "SecurityGroupRuleIds", "10.0.0.0/8", "InvalidSecurityGroupRuleId.Malformed",
     'Invalid id: "{}" (expecting "sgr-...")'),
    ("describe_route_tables", "RouteTableIds", f"rtb-{ABSENT}", "InvalidRouteTableID.NotFound",
     "The routeTable ID '{}' does not exist"),
    ("delete_route_table", "RouteTableId", "vpc-01234567", "InvalidRouteTableId.Malformed",
     'Invalid id: "{}" (expecting "rtb-...")'),
    ("describe_internet_gateways", "InternetGatewayIds", "igw", "InvalidInternetGatewayId.Malformed",
     'Invalid id: "{}" (expecting "igw-...")'),
    ("describe_nat_gateways", "NatGatewayIds", f"nat-{ABSENT}", "NatGatewayNotFound", "NatGateway {} was not found"),
    ("describe_nat_gateways", "NatGatewayIds", "nat-xxxxx", "NatGatewayMalformed", "Invalid Nat Gateway {}"),
    ("release_address", "AllocationId", "eipassoc-01234567", "InvalidAllocationID.NotFound",
     "The allocation ID '{}' does not exist"),
    ("describe_network_interfaces", "NetworkInterfaceIds", f"eni-{ABSENT}", "InvalidNetworkInterfaceID.NotFound",
     "The networkInterface ID '{}' does not exist"),
    ("describe_network_interfaces", "NetworkInterfaceIds", "eni-1", "InvalidNetworkInterfaceId.Malformed",
     'Invalid id: "{}" (expecting "eni-...")'),
    ("describe_volumes", "VolumeIds", f"vol-{ABSENT}", "InvalidVolume.NotFound", "The volume '{}' does not exist."),
    ("describe_images", "ImageIds", f"ami-{ABSENT}", "InvalidAMIID.NotFound", "The image id '[{}]' does not exist"),
    ("deregister_image", "ImageId", "ami-1", "InvalidAMIID.Malformed", 'Invalid id: "{}" (expecting "ami-...")'),
    ("describe_instances", "InstanceIds", f"i-{ABSENT}", "InvalidInstanceID.NotFound", "The instance ID '{}' does not exist"),
    ("start_instances", "InstanceIds", "i-01265b7abcdefghij", "InvalidInstanceID.Malformed", 'Invalid id: "{}"'),
    ("describe_launch_templates", "LaunchTemplateIds", f"lt-{ABSENT}", "InvalidLaunchTemplateId.NotFound",
     "The specified launch template, with template ID {}, does not exist."),
    ("delete_launch_template", "LaunchTemplateId", "gpu", "InvalidLaunchTemplateId.Malformed",
     'Invalid id: "{}" (expecting "lt-...")'),
    ("describe_vpc_peering_connections", "VpcPeeringConnectionIds", f"pcx-{ABSENT}", "InvalidVpcPeeringConnectionID.NotFound",
     "The vpcPeeringConnection ID '{}' does not exist"),
    ("describe_managed_prefix_lists", "PrefixListIds", f"pl-{ABSENT}", "InvalidPrefixListId.NotFound",
     "The prefix list ID '{}' does not exist"),
]  # fmt: skip


def test_ids_that_do_not_exist_or_have_another_form(ec2):
    def check(case: tuple[str, str, str, str, str]) -> None:
        operation, member, given, code, text = case
        with pytest.raises(ClientError) as error:
            getattr(ec2, operation)(**{member: [given] if member.endswith("s") else given})
        assert error.value.response["Error"] == {"Code": code, "Message": text.format(given)}

    check_each(IDS, check)


def test_several_absent_ids_and_names_of_groups(ec2):
    with pytest.raises(ClientError, match=r"The instance IDs 'i-11111111, i-22222222' do not exist"):
        ec2.describe_instances(InstanceIds=["i-11111111", "i-22222222"])
    many = [f"i-{number:017x}" for number in range(1001)]
    for call in (partial(ec2.terminate_instances, InstanceIds=many), partial(ec2.delete_tags, Resources=many)):
        with pytest.raises(ClientError, match="length less than or equal to 1000"):
            call()
    with pytest.raises(ClientError, match=r"The image ids '\[ami-11111111, ami-22222222\]' do not exist"):
        ec2.describe_images(ImageIds=["ami-11111111", "ami-22222222"])
    [default] = ec2.describe_vpcs(**by("is-default", "true"))["Vpcs"]
    with pytest.raises(ClientError, match=rf"The security group 'none' does not exist in default VPC '{default['VpcId']}'"):
        ec2.describe_security_groups(GroupNames=["none"])


def test_interfaces_block_the_deletion_of_their_subnet_and_groups(ec2):
    """The calls of Terraform when it deletes a subnet or a security group."""
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.1.0/24")["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName="g", Description="d", VpcId=vpc)["GroupId"]
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    address = ec2.allocate_address()
    nat = ec2.create_nat_gateway(SubnetId=subnet, AllocationId=address["AllocationId"])["NatGateway"]["NatGatewayId"]
    endpoint = ec2.create_vpc_endpoint(
        VpcId=vpc, ServiceName="com.amazonaws.us-east-1.ecr.api", VpcEndpointType="Interface", SubnetIds=[subnet],
        SecurityGroupIds=[group],
    )["VpcEndpoint"]  # fmt: skip
    [instance] = ec2.run_instances(
        ImageId="ami-01234567", InstanceType="t3.micro", MinCount=1, MaxCount=1, SubnetId=subnet, SecurityGroupIds=[group]
    )["Instances"]
    found = {
        each["InterfaceType"]: each for each in ec2.describe_network_interfaces(**by("subnet-id", subnet))["NetworkInterfaces"]
    }
    own = found["interface"]
    assert {**instance["NetworkInterfaces"][0]["Attachment"], "InstanceId": instance["InstanceId"], "InstanceOwnerId": ACCOUNT} == (
        own["Attachment"]
    )
    assert (own["PrivateIpAddress"], own["VpcId"], own["AvailabilityZone"]) == (instance["PrivateIpAddress"], vpc, "us-east-1a")
    assert (own["Status"], own["Groups"], own["TagSet"]) == ("in-use", [{"GroupId": group, "GroupName": "g"}], [])
    assert found["nat_gateway"]["Description"] == f"Interface for NAT Gateway {nat}"
    assert found["nat_gateway"]["Association"]["PublicIp"] == address["PublicIp"]
    assert [found["vpc_endpoint"]["NetworkInterfaceId"]] == endpoint["NetworkInterfaceIds"]
    for name, value in (("group-id", group), ("attachment.instance-id", instance["InstanceId"])):
        assert own in ec2.describe_network_interfaces(**by(name, value))["NetworkInterfaces"]
    assert ec2.describe_network_interfaces(NetworkInterfaceIds=[own["NetworkInterfaceId"]])["NetworkInterfaces"] == [own]
    ec2.delete_vpc_endpoints(VpcEndpointIds=[endpoint["VpcEndpointId"]])
    ec2.delete_nat_gateway(NatGatewayId=nat)
    with pytest.raises(ClientError, match=rf"The subnet '{subnet}' has dependencies and cannot be deleted\."):
        ec2.delete_subnet(SubnetId=subnet)
    with pytest.raises(ClientError, match=f"resource {group} has a dependent object"):
        ec2.delete_security_group(GroupId=group)
    ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
    ec2.get_waiter("instance_terminated").wait(InstanceIds=[instance["InstanceId"]])
    assert ec2.describe_network_interfaces(**by("vpc-id", vpc))["NetworkInterfaces"] == []
    ec2.delete_subnet(SubnetId=subnet)
    ec2.delete_security_group(GroupId=group)


def test_prefix_lists_addresses_and_credits(ec2):
    name = "com.amazonaws.us-east-1.s3"
    [plain] = ec2.describe_prefix_lists(**by("prefix-list-name", name))["PrefixLists"]
    [managed] = ec2.describe_managed_prefix_lists(PrefixListIds=[plain["PrefixListId"]])["PrefixLists"]
    assert (plain["PrefixListName"], plain["Cidrs"], managed["OwnerId"]) == (name, [], "AWS")
    assert ec2.get_managed_prefix_list_entries(PrefixListId=plain["PrefixListId"])["Entries"] == []
    with pytest.raises(ClientError, match="InvalidPrefixListId"):
        ec2.get_managed_prefix_list_entries(PrefixListId="pl-01234567")
    vpc = ec2.create_vpc(CidrBlock="10.8.0.0/16")["Vpc"]["VpcId"]
    [table] = ec2.describe_route_tables(**by("vpc-id", vpc))["RouteTables"]
    ec2.create_vpc_endpoint(VpcId=vpc, ServiceName=name, RouteTableIds=[table["RouteTableId"]])
    [table] = ec2.describe_route_tables(**by("vpc-id", vpc))["RouteTables"]
    assert table["Routes"][-1]["DestinationPrefixListId"] == plain["PrefixListId"]
    address = ec2.allocate_address()
    [attribute] = ec2.describe_addresses_attribute(AllocationIds=[address["AllocationId"]], Attribute="domain-name")["Addresses"]
    assert attribute == {"AllocationId": address["AllocationId"], "PublicIp": address["PublicIp"]}
    ran = {"ImageId": "ami-01234567", "MinCount": 1, "MaxCount": 1}
    burstable, standard, other = (
        ec2.run_instances(**ran, **more)["Instances"][0]["InstanceId"]
        for more in (
            {"InstanceType": "t3.micro", "Placement": {"AvailabilityZone": ""}},
            {"InstanceType": "t3.micro", "CreditSpecification": {"CpuCredits": "standard"}},
            {"InstanceType": "m5.large"},
        )
    )
    every = ec2.describe_instance_credit_specifications()["InstanceCreditSpecifications"]
    assert {"InstanceId": burstable, "CpuCredits": "unlimited"} in every
    assert not {standard, other} & {each["InstanceId"] for each in every}
    [one] = ec2.describe_instance_credit_specifications(InstanceIds=[standard])["InstanceCreditSpecifications"]
    assert one["CpuCredits"] == "standard"
    ec2.terminate_instances(InstanceIds=[burstable, standard, other])


def test_resources_that_do_not_exist_here(ec2):
    assert ec2.describe_volumes(**by("attachment.instance-id", "i-01234567"))["Volumes"] == []
    assert ec2.describe_flow_logs(Filter=[{"Name": "resource-id", "Values": ["vpc-1"]}])["FlowLogs"] == []
    found = ec2.describe_vpc_peering_connections(**by("requester-vpc-info.vpc-id", "vpc-1"))
    assert found["VpcPeeringConnections"] == []
    with pytest.raises(ClientError, match="The filter 'colour' is invalid"):
        ec2.describe_volumes(**by("colour", "red"))


def test_errors_of_launch_templates_and_members_of_groups(ec2):
    data = {"ImageId": "ami-01234567"}
    ec2.create_launch_template(LaunchTemplateName="answers", LaunchTemplateData=data)
    cases = [
        (ec2.create_launch_template, {"LaunchTemplateName": "answers", "LaunchTemplateData": data},
         "InvalidLaunchTemplateName.AlreadyExistsException", "Launch template name already in use."),
        (ec2.create_launch_template, {"LaunchTemplateName": "a b c", "LaunchTemplateData": data},
         "InvalidLaunchTemplateName.MalformedException",
         "A launch template name must be between 3 and 128 characters, and may contain letters, numbers, and the following "
         "characters: - ( ) . / _."),
        (ec2.describe_launch_templates, {"LaunchTemplateNames": ["answers", "none"]},
         "InvalidLaunchTemplateName.NotFoundException",
         "At least one of the launch templates specified in the request does not exist."),
        (ec2.delete_launch_template, {"LaunchTemplateName": "none"}, "InvalidLaunchTemplateName.NotFoundException",
         "The specified launch template, with template name none, does not exist."),
    ]  # fmt: skip

    def check(case: tuple[Any, dict[str, Any], str, str]) -> None:
        call, params, code, text = case
        with pytest.raises(ClientError) as error:
            call(**params)
        assert error.value.response["Error"] == {"Code": code, "Message": text}

    check_each(cases, check)
    assert "Tags" not in ec2.create_security_group(GroupName="answers", Description="d")


def test_instances_show_the_settings_that_instances_have_on_aws(ec2):
    given = {"MaintenanceOptions": {"AutoRecovery": "disabled"}, "ImageId": f"ami-{ABSENT}", "InstanceType": "g5.xlarge"}
    made = ec2.run_instances(**given, MinCount=1, MaxCount=1)["Instances"][0]
    ids = {"InstanceIds": [made["InstanceId"]]}
    [instance] = ec2.describe_instances(**ids)["Reservations"][0]["Instances"]
    assert instance["MaintenanceOptions"] == {"AutoRecovery": "disabled", "RebootMigration": "default"}
    assert instance["HibernationOptions"] == {"Configured": False} and instance["Operator"] == {"Managed": False}
    assert instance["CapacityReservationSpecification"] == {"CapacityReservationPreference": "open"}
    assert instance["Placement"]["AvailabilityZoneId"] == "use1-az1"
    [status] = ec2.describe_instance_status(**ids, IncludeAllInstances=True)["InstanceStatuses"]
    assert (status["AvailabilityZoneId"], status["Operator"]) == ("use1-az1", {"Managed": False})
    [interface] = ec2.describe_network_interfaces(**by("attachment.instance-id", made["InstanceId"]))["NetworkInterfaces"]
    assert interface["PrivateIpAddresses"][0]["PrivateDnsName"] == instance["PrivateDnsName"]
    assert (interface["AvailabilityZoneId"], interface["Operator"]) == ("use1-az1", {"Managed": False})
    ec2.terminate_instances(**ids)
    with pytest.raises(ClientError, match='Invalid id: "none"'):
        ec2.run_instances(ImageId="none", InstanceType="g5.xlarge", MinCount=1, MaxCount=1)


def test_an_unknown_rule_is_an_error_only_outside_of_the_default_vpc(ec2):
    """botocore's documentation of RevokeSecurityGroupIngress."""
    other = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    here, there = (ec2.create_security_group(GroupName="r", Description="r", **vpc)["GroupId"] for vpc in ({}, {"VpcId": other}))
    ssh, web = (
        {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, "IpRanges": [{"CidrIp": "10.0.0.0/8"}]} for port in (22, 80)
    )
    for group in (here, there):
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[ssh])
    revoked = ec2.revoke_security_group_ingress(GroupId=here, IpPermissions=[ssh, web])
    assert [rule["FromPort"] for rule in revoked["RevokedSecurityGroupRules"]] == [22]
    assert [(each["FromPort"], each["IpRanges"]) for each in revoked["UnknownIpPermissions"]] == [(80, [{"CidrIp": "10.0.0.0/8"}])]
    with pytest.raises(ClientError, match=r"InvalidPermission\.NotFound"):
        ec2.revoke_security_group_ingress(GroupId=there, IpPermissions=[ssh, web])
    assert len(ec2.describe_security_groups(GroupIds=[there])["SecurityGroups"][0]["IpPermissions"]) == 1
    ec2.revoke_security_group_egress(GroupId=here, IpPermissions=[web])


def test_members_of_networks_and_images_that_aws_always_gives(ec2):
    block = {"CidrBlock": "10.7.0.0/16"}
    vpc = ec2.create_vpc(**block, AmazonProvidedIpv6CidrBlock=True)["Vpc"]
    [ipv6] = vpc["Ipv6CidrBlockAssociationSet"]
    inside = {"VpcId": vpc["VpcId"], "Ipv6CidrBlock": ipv6["Ipv6CidrBlock"].replace("/56", "/64")}
    subnet = ec2.create_subnet(CidrBlock="10.7.1.0/24", **inside)["Subnet"]
    for made in (vpc, subnet):
        assert made["BlockPublicAccessStates"] == {"InternetGatewayBlockMode": "off"}
        [association] = made["Ipv6CidrBlockAssociationSet"]
        assert (association["Ipv6AddressAttribute"], association["IpSource"]) == ("public", "amazon")
    assert ec2.describe_vpcs(VpcIds=[vpc["VpcId"]])["Vpcs"] == [vpc]
    here, token = {"VpcId": vpc["VpcId"]}, {"ClientToken": "once"}
    named = {"ServiceName": "com.amazonaws.us-east-1.s3", "DnsOptions": {"DnsRecordIpType": "ipv4"}}
    creates = [
        (ec2.create_nat_gateway, {"SubnetId": subnet["SubnetId"], "ConnectivityType": "private"}),
        (ec2.create_vpc_endpoint, here | named),
        (ec2.create_route_table, here),
        (ec2.create_network_acl, here),
    ]
    for create, params in creates:
        first, second = create(**params, **token), create(**params, **token)
        assert first.pop("ResponseMetadata") and second.pop("ResponseMetadata")
        assert first == second and first["ClientToken"] == "once"
    [endpoint] = ec2.describe_vpc_endpoints(**by("vpc-id", vpc["VpcId"]))["VpcEndpoints"]
    assert (endpoint["ServiceRegion"], endpoint["DnsOptions"]) == ("us-east-1", named["DnsOptions"])
    given = {"BootMode": "uefi", "TpmSupport": "v2.0", "ImdsSupport": "v2.0", "SriovNetSupport": "simple", "KernelId": "aki-1"}
    given |= {"RamdiskId": "ari-1", "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 8}}]}
    tags = [{"Key": "a", "Value": "b"}]
    image = ec2.register_image(Name="given", **given, TagSpecifications=[{"ResourceType": "image", "Tags": tags}])["ImageId"]
    [shown] = ec2.describe_images(ImageIds=[image])["Images"]
    assert shown.items() >= {**given, "Tags": tags, "DeregistrationProtection": "disabled"}.items()
