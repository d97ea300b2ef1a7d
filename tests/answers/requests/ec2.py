"""Requests of EC2."""

from __future__ import annotations

from typing import Any

from answers.calls import NOW, OTHER, SAME, Calls
from harness import eventually

ANYWHERE = [{"IpProtocol": "tcp", "FromPort": 1, "ToPort": 2, "IpRanges": [{"CidrIp": "0.0.0.0/0", "Description": "d"}]}]
UNUSED = "DryRun ClientToken Operator TagSpecifications InstanceRequirements SecurityGroups"
VALUES = {
    "ValidUntil": 4_000_000_000,
    "MaxPrice": "0.5",
    "SpotInstanceType": "persistent",
    "ImageId": "ami-0123456789abcdef0",
    "InstanceType": "g5.xlarge",
    "UserData": "YQ==",
    "LaunchTemplateName": "full",
}
TAGS = [{"Key": "a", "Value": "b"}]
ATTRIBUTES = (
    "disableApiStop disableApiTermination ebsOptimized enaSupport enclaveOptions groupSet instanceInitiatedShutdownBehavior "
    "instanceType kernel ramdisk rootDeviceName sourceDestCheck sriovNetSupport userData"
)


def tagged(kind: str) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": TAGS}]


def requests(calls: Calls) -> None:
    vpc = calls.twice("CreateVpc", OTHER, CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    calls("DescribeVpcs")
    calls.twice("ModifyVpcAttribute", SAME, VpcId=vpc, EnableDnsHostnames={"Value": True})
    calls("DescribeVpcAttribute", VpcId=vpc, Attribute="enableDnsHostnames")
    calls.twice("CreateTags", SAME, Resources=[vpc], Tags=TAGS)
    calls("DescribeTags")
    calls.twice("DeleteTags", SAME, Resources=[vpc], Tags=TAGS)
    subnet = calls.twice("CreateSubnet", "InvalidSubnet.Conflict", VpcId=vpc, CidrBlock="10.0.0.0/24")["Subnet"]["SubnetId"]
    calls.twice("ModifySubnetAttribute", SAME, SubnetId=subnet, MapPublicIpOnLaunch={"Value": True})
    calls("DescribeSubnets")
    calls.twice_refused("CreateDefaultVpc", "DefaultVpcAlreadyExists")
    calls.twice_refused("CreateDefaultSubnet", "DefaultSubnetAlreadyExistsInAvailabilityZone", AvailabilityZone="us-east-1a")
    gateways(calls, vpc, subnet)
    routes(calls, vpc, subnet)
    groups(calls, vpc)
    acls(calls, vpc, subnet)
    endpoint = calls.twice("CreateVpcEndpoint", OTHER, VpcId=vpc, ServiceName="com.amazonaws.us-east-1.s3")["VpcEndpoint"][
        "VpcEndpointId"
    ]
    calls("DescribeVpcEndpoints")
    calls.twice("ModifyVpcEndpoint", SAME, VpcEndpointId=endpoint, PolicyDocument="{}")
    endpoints = [each["VpcEndpointId"] for each in calls.of("ec2").describe_vpc_endpoints()["VpcEndpoints"]]
    calls.twice("DeleteVpcEndpoints", OTHER, VpcEndpointIds=endpoints)
    calls.twice("DeleteSubnet", "InvalidSubnetID.NotFound", SubnetId=subnet)
    options = [{"Key": "domain-name", "Values": ["a.b"]}]
    dhcp = {"DhcpOptionsId": calls.twice("CreateDhcpOptions", OTHER, DhcpConfigurations=options)["DhcpOptions"]["DhcpOptionsId"]}
    internet = calls.of("ec2").create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    acl = calls.of("ec2").create_network_acl(VpcId=vpc)["NetworkAcl"]["NetworkAclId"]
    calls("CreateTags", Resources=[dhcp["DhcpOptionsId"], internet, acl], Tags=TAGS)
    other = {"VpcId": vpc, "ServiceName": "com.amazonaws.us-east-1.s3", "TagSpecifications": tagged("vpc-endpoint")}
    inbound = {"PrivateDnsOnlyForInboundResolverEndpoint": True, "PrivateDnsPreference": "ALL_DOMAINS"}
    other["DnsOptions"] = inbound | {"DnsRecordIpType": "ipv4", "PrivateDnsSpecifiedDomains": ["a.b"]}
    calls("DeleteVpcEndpoints", VpcEndpointIds=[calls("CreateVpcEndpoint", **other)["VpcEndpoint"]["VpcEndpointId"]])
    calls("DescribeInternetGateways")
    calls("DescribeNetworkAcls")
    calls("DescribeDhcpOptions")
    calls("DeleteInternetGateway", InternetGatewayId=internet)
    calls("DeleteNetworkAcl", NetworkAclId=acl)
    calls.twice("AssociateDhcpOptions", SAME, **dhcp, VpcId=vpc)
    calls("AssociateDhcpOptions", DhcpOptionsId="default", VpcId=vpc)
    calls.twice("DeleteDhcpOptions", "InvalidDhcpOptionID.NotFound", **dhcp)
    instances(calls)
    templates(calls)
    for name in ("AddressesAttribute", "FlowLogs", "InstanceCreditSpecifications", "ManagedPrefixLists", "NetworkInterfaces"):
        calls(f"Describe{name}")
    lists = calls.of("ec2").describe_managed_prefix_lists()["PrefixLists"]
    calls("GetManagedPrefixListEntries", PrefixListId=lists[0]["PrefixListId"])
    for name in ("PrefixLists", "Volumes", "VpcPeeringConnections"):
        calls(f"Describe{name}")
    for each in calls.of("ec2").describe_internet_gateways(Filters=[{"Name": "attachment.vpc-id", "Values": [vpc]}])[
        "InternetGateways"
    ]:
        calls("DetachInternetGateway", InternetGatewayId=each["InternetGatewayId"], VpcId=vpc)
    other = calls("CreateVpc", CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    calls.twice("DeleteVpc", "InvalidVpcID.NotFound", VpcId=other)
    for name in ("Regions", "AvailabilityZones", "AccountAttributes", "InstanceTypes", "InstanceTypeOfferings"):
        calls(f"Describe{name}")


def gateways(calls: Calls, vpc: str, subnet: str) -> None:
    for kind, code in (("Internet", "Internet"), ("Vpn", "Vpn")):
        more: dict[str, Any] = {"Type": "ipsec.1", "TagSpecifications": tagged("vpn-gateway")} if kind == "Vpn" else {}
        made = calls.twice(f"Create{kind}Gateway", OTHER, **more)[f"{kind}Gateway"]
        name = f"{kind}GatewayId"
        one = {name: made[name]}
        attached = {"Internet": "Resource.AlreadyAssociated", "Vpn": "InvalidParameterValue"}[kind]
        calls.twice(f"Attach{kind}Gateway", attached, **one, VpcId=vpc)
        calls(f"Describe{kind}Gateways")
        detached = {"Internet": "Gateway.NotAttached", "Vpn": "InvalidVpnGatewayAttachment.NotFound"}[kind]
        calls.twice(f"Detach{kind}Gateway", detached, **one, VpcId=vpc)
        calls.twice(f"Delete{kind}Gateway", f"Invalid{code}GatewayID.NotFound", **one)
    address = calls.twice("AllocateAddress", OTHER, Domain="vpc")["AllocationId"]
    calls("DescribeAddresses")
    nat = calls.twice("CreateNatGateway", OTHER, SubnetId=subnet, ConnectivityType="private")["NatGateway"]["NatGatewayId"]
    calls("DescribeNatGateways")
    calls.twice("DeleteNatGateway", "NatGatewayNotFound", NatGatewayId=nat)
    for each in calls.of("ec2").describe_nat_gateways()["NatGateways"]:
        calls("DeleteNatGateway", NatGatewayId=each["NatGatewayId"])
    calls.twice("ReleaseAddress", "InvalidAllocationID.NotFound", AllocationId=address)


def routes(calls: Calls, vpc: str, subnet: str) -> None:
    table = {"RouteTableId": calls.twice("CreateRouteTable", OTHER, VpcId=vpc)["RouteTable"]["RouteTableId"]}
    gateway = calls("CreateInternetGateway")["InternetGateway"]["InternetGatewayId"]
    calls("AttachInternetGateway", InternetGatewayId=gateway, VpcId=vpc)
    route = {**table, "DestinationCidrBlock": "0.0.0.0/0", "GatewayId": gateway}
    calls.twice("CreateRoute", "RouteAlreadyExists", **route)
    calls.twice("ReplaceRoute", SAME, **route)
    calls("DescribeRouteTables")
    calls.twice("DeleteRoute", "InvalidRoute.NotFound", **table, DestinationCidrBlock="0.0.0.0/0")
    associated = calls.twice("AssociateRouteTable", SAME, **table, SubnetId=subnet)["AssociationId"]
    changed = calls.twice("ReplaceRouteTableAssociation", "InvalidAssociationID.NotFound", **table, AssociationId=associated)[
        "NewAssociationId"
    ]
    calls.twice("DisassociateRouteTable", "InvalidAssociationID.NotFound", AssociationId=changed)
    calls.twice("DeleteRouteTable", "InvalidRouteTableID.NotFound", **table)


def groups(calls: Calls, vpc: str) -> None:
    made = calls.twice("CreateSecurityGroup", "InvalidGroup.Duplicate", GroupName="answers", Description="d", VpcId=vpc)
    group = {"GroupId": made["GroupId"]}
    calls("DescribeSecurityGroups")
    for way in ("Ingress", "Egress"):
        calls.twice(f"AuthorizeSecurityGroup{way}", "InvalidPermission.Duplicate", **group, IpPermissions=ANYWHERE)
        calls.twice(f"UpdateSecurityGroupRuleDescriptions{way}", SAME, **group, IpPermissions=ANYWHERE)
    [rule, *_] = calls("DescribeSecurityGroupRules", Filters=[{"Name": "group-id", "Values": [made["GroupId"]]}])[
        "SecurityGroupRules"
    ]
    new = {"IpProtocol": "tcp", "FromPort": 3, "ToPort": 4, "CidrIpv4": "0.0.0.0/0", "Description": "d"}
    rules = [{"SecurityGroupRuleId": rule["SecurityGroupRuleId"], "SecurityGroupRule": new}]
    calls.twice("ModifySecurityGroupRules", SAME, **group, SecurityGroupRules=rules)
    calls("AuthorizeSecurityGroupIngress", **group, IpPermissions=[{**ANYWHERE[0], "FromPort": 9, "ToPort": 9}])
    calls("AuthorizeSecurityGroupEgress", **group, IpPermissions=[{**ANYWHERE[0], "FromPort": 9, "ToPort": 9}])
    itself = [{"IpProtocol": "udp", "FromPort": 1, "ToPort": 2, "UserIdGroupPairs": [group]}]
    calls("AuthorizeSecurityGroupIngress", **group, IpPermissions=itself)
    calls("RevokeSecurityGroupIngress", **group, IpPermissions=itself)
    for way in ("Ingress", "Egress"):
        revoked = [{**ANYWHERE[0], "FromPort": 9, "ToPort": 9}]
        calls.twice(f"RevokeSecurityGroup{way}", "InvalidPermission.NotFound", **group, IpPermissions=revoked)
    calls.twice("DeleteSecurityGroup", "InvalidGroup.NotFound", **group)


def acls(calls: Calls, vpc: str, subnet: str) -> None:
    acl = {"NetworkAclId": calls.twice("CreateNetworkAcl", OTHER, VpcId=vpc)["NetworkAcl"]["NetworkAclId"]}
    entry: dict[str, Any] = {"RuleNumber": 1, "Protocol": "-1", "RuleAction": "allow", "Egress": False, "CidrBlock": "0.0.0.0/0"}
    calls.twice("CreateNetworkAclEntry", "NetworkAclEntryAlreadyExists", **acl, **entry)
    calls.twice("ReplaceNetworkAclEntry", SAME, **acl, **entry)
    ping = {"RuleNumber": 2, "Protocol": "1", "IcmpTypeCode": {"Type": 8, "Code": -1}}
    calls("CreateNetworkAclEntry", **acl, **entry | ping)
    shown = calls("DescribeNetworkAcls", Filters=[{"Name": "association.subnet-id", "Values": [subnet]}])["NetworkAcls"]
    [association] = [each for each in shown[0]["Associations"] if each["SubnetId"] == subnet]
    used = {"AssociationId": association["NetworkAclAssociationId"]}
    calls.twice("ReplaceNetworkAclAssociation", "InvalidAssociationID.NotFound", **used, **acl)
    calls.twice("DeleteNetworkAclEntry", "InvalidNetworkAclEntry.NotFound", **acl, RuleNumber=1, Egress=False)
    other = calls("CreateNetworkAcl", VpcId=vpc)["NetworkAcl"]["NetworkAclId"]
    calls.twice("DeleteNetworkAcl", "InvalidNetworkAclID.NotFound", NetworkAclId=other)


def instances(calls: Calls) -> None:
    ec2 = calls.of("ec2")
    calls.refused("RunInstances", "InvalidAMIID.Malformed", ImageId="none", MinCount=1, MaxCount=1)
    wanted = {"ImageId": "ami-0123456789abcdef0", "InstanceType": "g5.xlarge", "MinCount": 1, "MaxCount": 1}
    made = calls.twice("RunInstances", OTHER, **wanted)
    instance = made["Instances"][0]["InstanceId"]
    one, ids = {"InstanceId": instance}, {"InstanceIds": [instance]}

    def state(wished: str) -> Any:
        shown = lambda: ec2.describe_instances(**ids)["Reservations"][0]["Instances"][0]["State"]["Name"]  # noqa: E731
        return lambda: shown() == wished

    eventually(state("running"), "the instance runs")
    calls("DescribeInstances")
    calls("DescribeInstanceStatus")
    calls.twice("GetConsoleOutput", NOW, **one)
    calls.twice("ModifyInstanceAttribute", SAME, **one, DisableApiTermination={"Value": False})
    calls("ModifyInstanceAttribute", **one, InstanceInitiatedShutdownBehavior={"Value": "terminate"})
    for attribute in ATTRIBUTES.split():
        calls("DescribeInstanceAttribute", **one, Attribute=attribute)
    calls.twice("ModifyInstanceMetadataOptions", SAME, **one, HttpTokens="required")
    calls.twice("MonitorInstances", SAME, **ids)
    calls.twice("UnmonitorInstances", SAME, **ids)
    address = calls("AllocateAddress", Domain="vpc")["AllocationId"]
    used = calls.twice("AssociateAddress", SAME, **one, AllocationId=address)["AssociationId"]
    calls("DescribeAddresses")
    calls.twice("DisassociateAddress", "InvalidAssociationID.NotFound", AssociationId=used)
    calls.twice("RebootInstances", SAME, **ids)
    calls.twice("CreateImage", "InvalidAMIName.Duplicate", **one, Name="answers")
    image = calls.twice("RegisterImage", "InvalidAMIName.Duplicate", Name="registered", RootDeviceName="/dev/xvda")["ImageId"]
    values = {"VolumeType": "gp3", "KmsKeyId": "k", "AvailabilityZone": "us-east-1a", "AvailabilityZoneId": "use1-az1"}
    values |= {"DeviceName": "/dev/xvda", "VirtualName": "ephemeral0", "NoDevice": ""}
    full = calls.full("RegisterImage", "DryRun BillingProducts TagSpecifications UefiData OutpostArn ImageLocation", **values)
    calls("RegisterImage", **full | {"Name": "full", "Architecture": "x86_64"}, TagSpecifications=tagged("image"))
    calls("DescribeImages", Owners=["self"])
    calls.twice("DeregisterImage", "InvalidAMIID.NotFound", ImageId=image)
    calls.twice("StopInstances", OTHER, state("stopped"), **ids)
    calls.twice("StartInstances", OTHER, state("running"), **ids)
    calls.twice("TerminateInstances", OTHER, state("terminated"), **ids)
    calls.twice("CreateKeyPair", "InvalidKeyPair.Duplicate", KeyName="answers")
    key = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0cvbm8o8mxbAkZ6ZcNDPYzbPAuqL1xHnXIwgVAAAAA a"
    calls.twice("ImportKeyPair", "InvalidKeyPair.Duplicate", KeyName="imported", PublicKeyMaterial=key)
    calls("ImportKeyPair", KeyName="tagged", PublicKeyMaterial=key, TagSpecifications=tagged("key-pair"))
    calls("DescribeKeyPairs")
    calls.twice("DeleteKeyPair", NOW, KeyName="answers")


def templates(calls: Calls) -> None:
    given = {"LaunchTemplateName": "answers", "LaunchTemplateData": {"InstanceType": "g5.xlarge"}}
    calls.twice("CreateLaunchTemplate", "InvalidLaunchTemplateName.AlreadyExistsException", **given)
    calls.twice("CreateLaunchTemplateVersion", OTHER, **given)
    named = {"LaunchTemplateName": "answers"}
    calls.twice("ModifyLaunchTemplate", SAME, **named, DefaultVersion="2")
    full = calls.full("CreateLaunchTemplate", UNUSED, **VALUES)
    data = {name: value for name, value in full["LaunchTemplateData"].items() if name != "TagSpecifications"}
    calls("CreateLaunchTemplate", LaunchTemplateName="full", LaunchTemplateData=data, TagSpecifications=tagged("launch-template"))
    calls("DescribeLaunchTemplateVersions", LaunchTemplateName="full")
    calls("DescribeLaunchTemplates")
    calls("DescribeLaunchTemplateVersions", **named)
    calls.twice("DeleteLaunchTemplateVersions", OTHER, **named, Versions=["3"])
    calls.twice("DeleteLaunchTemplate", "InvalidLaunchTemplateName.NotFoundException", **named)
