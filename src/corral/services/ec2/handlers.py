"""EC2's operations: instances, launch templates, images, stored-only network resources, key pairs, regions and zones."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.services import Handler
from corral.operations.stored_resources import Params, handlers
from corral.services.ec2 import (
    default_vpc,
    dhcp_options,
    elastic_ips,
    gateways,
    images,
    instance_attributes,
    instance_types,
    instances,
    key_pairs,
    launch_templates,
    network_acls,
    route_tables,
    security_group_rules,
    security_groups,
    subnets,
    tags,
    vpc_endpoints,
    vpcs,
    zones,
)
from corral.services.ec2.errors import DryRunOperation
from corral.store import Store

FUNCTIONS: dict[str, Handler] = {  # operations that the declaration of a `ResourceType` cannot express
    "AssociateAddress": elastic_ips.associate_address,
    "AssociateDhcpOptions": dhcp_options.associate_dhcp_options,
    "AssociateRouteTable": route_tables.associate_route_table,
    "AttachInternetGateway": gateways.attach_internet_gateway,
    "AttachVpnGateway": gateways.attach_vpn_gateway,
    "AuthorizeSecurityGroupEgress": security_group_rules.authorize_security_group_egress,
    "AuthorizeSecurityGroupIngress": security_group_rules.authorize_security_group_ingress,
    "CreateDefaultSubnet": default_vpc.create_default_subnet,
    "CreateDefaultVpc": default_vpc.create_default_vpc,
    "CreateImage": images.create_image,
    "CreateKeyPair": key_pairs.create_key_pair,
    "CreateLaunchTemplate": launch_templates.create_launch_template,
    "CreateLaunchTemplateVersion": launch_templates.create_launch_template_version,
    "CreateNetworkAclEntry": network_acls.create_network_acl_entry,
    "CreateRoute": route_tables.create_route,
    "CreateTags": tags.create_tags,
    "DeleteKeyPair": key_pairs.delete_key_pair,
    "DeleteLaunchTemplate": launch_templates.delete_launch_template,
    "DeleteLaunchTemplateVersions": launch_templates.delete_launch_template_versions,
    "DeleteNetworkAclEntry": network_acls.delete_network_acl_entry,
    "DeleteRoute": route_tables.delete_route,
    "DeleteSecurityGroup": security_groups.delete_security_group,
    "DeleteTags": tags.delete_tags,
    "DeleteVpcEndpoints": vpc_endpoints.delete_vpc_endpoints,
    "DeregisterImage": images.deregister_image,
    "DescribeAccountAttributes": default_vpc.describe_account_attributes,
    "DescribeAddresses": elastic_ips.describe_addresses,
    "DescribeAvailabilityZones": zones.describe_availability_zones,
    "DescribeImages": images.describe_images,
    "DescribeInstanceAttribute": instance_attributes.describe_instance_attribute,
    "DescribeInstanceStatus": instances.describe_instance_status,
    "DescribeInstanceTypeOfferings": instance_types.describe_instance_type_offerings,
    "DescribeInstanceTypes": instance_types.describe_instance_types,
    "DescribeInstances": instances.describe_instances,
    "DescribeKeyPairs": key_pairs.describe_key_pairs,
    "DescribeLaunchTemplateVersions": launch_templates.describe_launch_template_versions,
    "DescribeLaunchTemplates": launch_templates.describe_launch_templates,
    "DescribeRegions": zones.describe_regions,
    "DescribeSecurityGroupRules": security_group_rules.describe_security_group_rules,
    "DescribeSecurityGroups": security_groups.describe_security_groups,
    "DescribeTags": tags.describe_tags,
    "DescribeVpcAttribute": vpcs.describe_vpc_attribute,
    "DetachInternetGateway": gateways.detach_internet_gateway,
    "DetachVpnGateway": gateways.detach_vpn_gateway,
    "DisassociateAddress": elastic_ips.disassociate_address,
    "DisassociateRouteTable": route_tables.disassociate_route_table,
    "GetConsoleOutput": instance_attributes.get_console_output,
    "ImportKeyPair": key_pairs.import_key_pair,
    "ModifyInstanceAttribute": instance_attributes.modify_instance_attribute,
    "ModifyInstanceMetadataOptions": instance_attributes.modify_instance_metadata_options,
    "ModifyLaunchTemplate": launch_templates.modify_launch_template,
    "ModifySecurityGroupRules": security_group_rules.modify_security_group_rules,
    "ModifySubnetAttribute": subnets.modify_subnet_attribute,
    "ModifyVpcAttribute": vpcs.modify_vpc_attribute,
    "ModifyVpcEndpoint": vpc_endpoints.modify_vpc_endpoint,
    "MonitorInstances": instance_attributes.monitor_instances,
    "RebootInstances": instances.reboot_instances,
    "ReleaseAddress": elastic_ips.release_address,
    "ReplaceNetworkAclAssociation": network_acls.replace_network_acl_association,
    "ReplaceNetworkAclEntry": network_acls.replace_network_acl_entry,
    "ReplaceRoute": route_tables.replace_route,
    "ReplaceRouteTableAssociation": route_tables.replace_route_table_association,
    "RevokeSecurityGroupEgress": security_group_rules.revoke_security_group_egress,
    "RevokeSecurityGroupIngress": security_group_rules.revoke_security_group_ingress,
    "RunInstances": instances.run_instances,
    "StartInstances": instances.start_instances,
    "StopInstances": instances.stop_instances,
    "TerminateInstances": instances.terminate_instances,
    "UnmonitorInstances": instance_attributes.unmonitor_instances,
    "UpdateSecurityGroupRuleDescriptionsEgress": security_group_rules.update_security_group_rule_descriptions_egress,
    "UpdateSecurityGroupRuleDescriptionsIngress": security_group_rules.update_security_group_rule_descriptions_ingress,
}


# Long reads: they run on a read-only connection, so they do not create the default network.
HEAVY = frozenset({"DescribeInstanceStatus", "DescribeInstanceTypeOfferings", "DescribeInstanceTypes", "DescribeInstances"})


def _operation(name: str, handler: Handler) -> Handler:
    def operation(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        if name not in HEAVY:
            default_vpc.ensure(tx, caller)
        reply = handler(tx, params, caller)
        if params.get("DryRun"):  # raising this error rolls back all changes of the handler
            raise DryRunOperation("Request would have succeeded, but DryRun flag is set.")
        return reply

    return operation


PREPARE = {"CreateKeyPair": key_pairs.generate_key}
DECLARED = {name: handler for type_ in tags.TYPES.values() for name, handler in handlers(type_).items()}
HANDLERS: dict[str, Handler] = {name: _operation(name, handler) for name, handler in (DECLARED | FUNCTIONS).items()}
