"""The errors of EC2: one class per error code, and the texts that several operations share."""

from __future__ import annotations

import re

from msgspec import Struct

from corral.aws.wire_errors import error_class
from corral.core.errors import ApiError, api_error

AddressLimitExceeded = api_error("AddressLimitExceeded")
CannotDelete = api_error("CannotDelete")
DefaultSubnetAlreadyExists = api_error("DefaultSubnetAlreadyExistsInAvailabilityZone")
DefaultVpcAlreadyExists = api_error("DefaultVpcAlreadyExists")
DefaultVpcDoesNotExist = api_error("DefaultVpcDoesNotExist")
DependencyViolation = api_error("DependencyViolation")
DryRunOperation = api_error("DryRunOperation", 412)
GatewayNotAttached = api_error("Gateway.NotAttached")
IdempotentParameterMismatch = api_error("IdempotentParameterMismatch")
IncorrectInstanceState = api_error("IncorrectInstanceState")
IncorrectState = api_error("IncorrectState")
InstanceLimitExceeded = api_error("InstanceLimitExceeded")
InsufficientCidrBlocks = api_error("InsufficientCidrBlocks")
InsufficientFreeAddressesInSubnet = api_error("InsufficientFreeAddressesInSubnet")
InsufficientInstanceCapacity = api_error("InsufficientInstanceCapacity")  # status 400, so that clients do not retry; AWS: 500
InvalidAMIName = api_error("InvalidAMIName.Duplicate")
InvalidAddressNotFound = api_error("InvalidAddress.NotFound")
InvalidGroupDuplicate = api_error("InvalidGroup.Duplicate")
InvalidID = api_error("InvalidID")
InvalidIPAddressInUse = api_error("InvalidIPAddress.InUse")
InvalidInstanceType = api_error("InvalidInstanceType")
InvalidKeyFormat = api_error("InvalidKey.Format")
InvalidKeyPairDuplicate = api_error("InvalidKeyPair.Duplicate")
InvalidLaunchTemplateName = api_error("InvalidLaunchTemplateName.NotFoundException")
InvalidLaunchTemplateNameMalformed = api_error("InvalidLaunchTemplateName.MalformedException")
InvalidLaunchTemplateNameExists = api_error("InvalidLaunchTemplateName.AlreadyExistsException")
InvalidLaunchTemplateVersion = api_error("InvalidLaunchTemplateId.VersionNotFound")
InvalidNetworkAclEntryNotFound = api_error("InvalidNetworkAclEntry.NotFound")
InvalidNextToken = api_error("InvalidNextToken")
InvalidParameterCombination = api_error("InvalidParameterCombination")
InvalidParameterValue = api_error("InvalidParameterValue")
InvalidPermissionDuplicate = api_error("InvalidPermission.Duplicate")
InvalidPermissionNotFound = api_error("InvalidPermission.NotFound")
InvalidPolicyDocument = api_error("InvalidPolicyDocument")
InvalidRouteNotFound = api_error("InvalidRoute.NotFound")
InvalidServiceName = api_error("InvalidServiceName")
InvalidSubnetConflict = api_error("InvalidSubnet.Conflict")
InvalidSubnetRange = api_error("InvalidSubnet.Range")
InvalidUserData = api_error("InvalidUserData.Malformed")
InvalidVpcRange = api_error("InvalidVpc.Range")
InvalidVpnGatewayAttachment = api_error("InvalidVpnGatewayAttachment.NotFound")
MissingParameter = api_error("MissingParameter")
NetworkAclEntryAlreadyExists = api_error("NetworkAclEntryAlreadyExists")
OperationNotPermitted = api_error("OperationNotPermitted")
ResourceAlreadyAssociated = api_error("Resource.AlreadyAssociated")
RouteAlreadyExists = api_error("RouteAlreadyExists")
RulesPerSecurityGroupLimitExceeded = api_error("RulesPerSecurityGroupLimitExceeded")
TagLimitExceeded = api_error("TagLimitExceeded")
UnsupportedOperation = api_error("UnsupportedOperation")
VPCIdNotSpecified = api_error("VPCIdNotSpecified")

ID_DIGITS = "[0-9a-f]{8}|[0-9a-f]{17}"  # an id has a prefix, a hyphen and these digits; ids of old resources have 8 digits


class IdErrors(Struct, frozen=True):
    """The errors of one resource type: for an id that does not exist, and for an id without the form of such ids."""

    prefix: str
    code: str
    text: str  # for an id that does not exist
    malformed: str | None = None  # the code for an id without the form; None: EC2 says that the id does not exist
    malformed_text: str = 'Invalid id: "{id}" (expecting "{prefix}-...")'
    several: str | None = None  # the text for several ids that do not exist; None: the error is about the first of them

    def has_form(self, given: str) -> bool:
        return re.fullmatch(rf"{self.prefix}-(?:{ID_DIGITS})", given) is not None


ID_ERRORS = {  # by resource type
    "vpc": IdErrors("vpc", "InvalidVpcID.NotFound", "The vpc ID '{id}' does not exist"),
    "subnet": IdErrors("subnet", "InvalidSubnetID.NotFound", "The subnet ID '{id}' does not exist"),
    "internet-gateway": IdErrors(
        "igw", "InvalidInternetGatewayID.NotFound", "The internetGateway ID '{id}' does not exist",
        "InvalidInternetGatewayId.Malformed",
    ),
    "route-table": IdErrors(
        "rtb", "InvalidRouteTableID.NotFound", "The routeTable ID '{id}' does not exist", "InvalidRouteTableId.Malformed",
    ),
    "security-group": IdErrors(
        "sg", "InvalidGroup.NotFound", "The security group '{id}' does not exist", "InvalidGroupId.Malformed",
    ),
    "security-group-rule": IdErrors(
        "sgr", "InvalidSecurityGroupRuleId.NotFound", "The security group rule ID '{id}' does not exist",
        "InvalidSecurityGroupRuleId.Malformed",
    ),
    "elastic-ip": IdErrors("eipalloc", "InvalidAllocationID.NotFound", "The allocation ID '{id}' does not exist"),
    "natgateway": IdErrors(
        "nat", "NatGatewayNotFound", "NatGateway {id} was not found", "NatGatewayMalformed", "Invalid Nat Gateway {id}",
    ),
    "vpn-gateway": IdErrors("vgw", "InvalidVpnGatewayID.NotFound", "The vpnGateway ID '{id}' does not exist"),
    "vpc-endpoint": IdErrors(
        "vpce", "InvalidVpcEndpointId.NotFound", "The Vpc Endpoint Id '{id}' does not exist", "InvalidVpcEndpointId.Malformed",
    ),
    "vpc-peering-connection": IdErrors(
        "pcx", "InvalidVpcPeeringConnectionID.NotFound", "The vpcPeeringConnection ID '{id}' does not exist",
        "InvalidVpcPeeringConnectionId.Malformed",
    ),
    "flow-log": IdErrors(
        "fl", "InvalidFlowLogId.NotFound", "These flow log ids in the input list are not found: [TotalCount: 1] {id}"
    ),
    "prefix-list": IdErrors(
        "pl", "InvalidPrefixListId.NotFound", "The prefix list ID '{id}' does not exist", "InvalidPrefixListId.Malformed",
    ),
    "network-interface": IdErrors(
        "eni", "InvalidNetworkInterfaceID.NotFound", "The networkInterface ID '{id}' does not exist",
        "InvalidNetworkInterfaceId.Malformed",
    ),
    "volume": IdErrors("vol", "InvalidVolume.NotFound", "The volume '{id}' does not exist.", "InvalidVolumeID.Malformed"),
    "key-pair": IdErrors("key", "InvalidKeyPair.NotFound", "The key pair '{id}' does not exist"),
    "network-acl": IdErrors(
        "acl", "InvalidNetworkAclID.NotFound", "The networkAcl ID '{id}' does not exist", "InvalidNetworkAclId.Malformed",
    ),
    "dhcp-options": IdErrors(
        "dopt", "InvalidDhcpOptionID.NotFound", "The dhcpOption ID '{id}' does not exist", "InvalidDhcpOptionsId.Malformed",
    ),
    "instance": IdErrors(
        "i", "InvalidInstanceID.NotFound", "The instance ID '{id}' does not exist", "InvalidInstanceID.Malformed",
        'Invalid id: "{id}"', several="The instance IDs '{id}' do not exist",
    ),
    "image": IdErrors(
        "ami", "InvalidAMIID.NotFound", "The image id '[{id}]' does not exist", "InvalidAMIID.Malformed",
        several="The image ids '[{id}]' do not exist",
    ),
    "launch-template": IdErrors(
        "lt", "InvalidLaunchTemplateId.NotFound", "The specified launch template, with template ID {id}, does not exist.",
        "InvalidLaunchTemplateId.Malformed",
    ),
    "association": IdErrors("", "InvalidAssociationID.NotFound", "The association ID '{id}' does not exist"),
}  # fmt: skip


InvalidAssociationNotFound = error_class(ID_ERRORS["association"].code)


def not_found(type_: str, *given: str) -> ApiError:
    """Return the error for ids that no resource of this type has."""
    known = ID_ERRORS[type_]
    malformed = next((each for each in given if not known.has_form(each)), None)
    if known.malformed is not None and malformed is not None:
        return error_class(known.malformed)(known.malformed_text.format(id=malformed, prefix=known.prefix))
    if len(given) > 1 and known.several is not None:
        return error_class(known.code)(known.several.format(id=", ".join(given)))
    return error_class(known.code)(known.text.format(id=given[0]))


def name_not_found(type_: str, name: str, *, where: str = "") -> ApiError:
    """Return the error for a name that no resource of this type has."""
    known = ID_ERRORS[type_]
    return error_class(known.code)(known.text.format(id=name) + where)


def in_use(type_: str, name: str) -> ApiError:
    """Return the error for deleting a resource on which other resources depend."""
    return DependencyViolation(f"The {type_} '{name}' has dependencies and cannot be deleted.")


def invalid_value(value: object, parameter: str, rule: str) -> ApiError:
    return InvalidParameterValue(f"Value ({value}) for parameter {parameter} is invalid. {rule}")


def permission_not_found() -> ApiError:
    return InvalidPermissionNotFound("The specified rule does not exist in this security group.")
