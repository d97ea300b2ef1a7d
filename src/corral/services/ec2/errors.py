"""The errors of EC2: one class per error code, and the texts that several operations share."""

from __future__ import annotations

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
InvalidAMIID = api_error("InvalidAMIID.NotFound")
InvalidAMIName = api_error("InvalidAMIName.Duplicate")
InvalidAddressNotFound = api_error("InvalidAddress.NotFound")
InvalidAssociationNotFound = api_error("InvalidAssociationID.NotFound")
InvalidGroupDuplicate = api_error("InvalidGroup.Duplicate")
InvalidID = api_error("InvalidID")
InvalidIPAddressInUse = api_error("InvalidIPAddress.InUse")
InvalidInstanceID = api_error("InvalidInstanceID.NotFound")
InvalidInstanceIDMalformed = api_error("InvalidInstanceID.Malformed")
InvalidInstanceType = api_error("InvalidInstanceType")
InvalidKeyFormat = api_error("InvalidKey.Format")
InvalidKeyPairDuplicate = api_error("InvalidKeyPair.Duplicate")
InvalidLaunchTemplateId = api_error("InvalidLaunchTemplateId.NotFound")
InvalidLaunchTemplateName = api_error("InvalidLaunchTemplateName.NotFoundException")
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

NOT_FOUND = {  # resource type → the error and its text for an id that does not exist
    "vpc": (api_error("InvalidVpcID.NotFound"), "The vpc ID '{}' does not exist"),
    "subnet": (api_error("InvalidSubnetID.NotFound"), "The subnet ID '{}' does not exist"),
    "internet-gateway": (api_error("InvalidInternetGatewayID.NotFound"), "The internetGateway ID '{}' does not exist"),
    "route-table": (api_error("InvalidRouteTableID.NotFound"), "The routeTable ID '{}' does not exist"),
    "security-group": (api_error("InvalidGroup.NotFound"), "The security group '{}' does not exist"),
    "security-group-rule": (
        api_error("InvalidSecurityGroupRuleId.NotFound"), "The security group rule ID '{}' does not exist",
    ),
    "elastic-ip": (api_error("InvalidAllocationID.NotFound"), "The allocation ID '{}' does not exist"),
    "natgateway": (api_error("NatGatewayNotFound"), "The Nat Gateway {} was not found"),
    "vpn-gateway": (api_error("InvalidVpnGatewayID.NotFound"), "The vpnGateway ID '{}' does not exist"),
    "vpc-endpoint": (api_error("InvalidVpcEndpointId.NotFound"), "The Vpc Endpoint Id '{}' does not exist"),
    "key-pair": (api_error("InvalidKeyPair.NotFound"), "The key pair '{}' does not exist"),
    "network-acl": (api_error("InvalidNetworkAclID.NotFound"), "The networkAcl ID '{}' does not exist"),
    "dhcp-options": (api_error("InvalidDhcpOptionID.NotFound"), "The dhcpOption ID '{}' does not exist"),
    "instance": (InvalidInstanceID, "The instance ID '{}' does not exist"),
    "image": (InvalidAMIID, "The image id '[{}]' does not exist"),
    "launch-template": (InvalidLaunchTemplateId, "The specified launch template, with template ID {}, does not exist."),
    "association": (InvalidAssociationNotFound, "The association ID '{}' does not exist"),
}  # fmt: skip


def not_found(type_: str, name: str) -> ApiError:
    error, text = NOT_FOUND[type_]
    return error(text.format(name))


def in_use(type_: str, name: str) -> ApiError:
    """Return the error for deleting a resource on which other resources depend."""
    return DependencyViolation(f"The {type_} '{name}' has dependencies and cannot be deleted.")


def invalid_value(value: object, parameter: str, rule: str) -> ApiError:
    return InvalidParameterValue(f"Value ({value}) for parameter {parameter} is invalid. {rule}")


def permission_not_found() -> ApiError:
    return InvalidPermissionNotFound("The specified rule does not exist in this security group.")
