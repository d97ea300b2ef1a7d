"""EC2's operations: instances, launch templates, images, stored-only network resources, key pairs, regions and zones."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.aws.handlers import handlers_in
from corral.core.transactions import Tx
from corral.operations.services import Handler
from corral.operations.stored_resources import Params, handlers
from corral.services.ec2 import (
    absent_resources,
    default_vpc,
    dhcp_options,
    elastic_ips,
    gateways,
    images,
    instance_attributes,
    instance_types,
    instances,
    key_pairs,
    launch_specs,
    launch_templates,
    network_acls,
    network_interfaces,
    prefix_lists,
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

FUNCTIONS: dict[str, Handler] = handlers_in("ec2", globals())  # operations that the declaration of a `ResourceType` cannot express


# Long reads: they run on a read-only connection, so they do not create the default network.
HEAVY = frozenset(
    {
        "DescribeInstanceStatus", "DescribeInstanceTypeOfferings", "DescribeInstanceTypes", "DescribeInstances",
        "DescribeNetworkInterfaces",
    }
)  # fmt: skip


def _operation(name: str, handler: Handler) -> Handler:
    def operation(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        if name not in HEAVY:
            default_vpc.ensure(tx, caller)
        reply = handler(tx, params, caller)
        if params.get("DryRun"):  # raising this error rolls back all changes of the handler
            raise DryRunOperation("Request would have succeeded, but DryRun flag is set.")
        return reply

    return operation


PREPARE = {
    "CreateKeyPair": key_pairs.generate_key,
    **dict.fromkeys(("RunInstances", "CreateLaunchTemplate", "CreateLaunchTemplateVersion"), launch_specs.read_user_data_early),
}
ABSENT = (absent_resources.FLOW_LOG, absent_resources.VOLUME, absent_resources.VPC_PEERING_CONNECTION)
DECLARED = {name: handler for type_ in (*tags.TYPES.values(), *ABSENT) for name, handler in handlers(type_).items()}
HANDLERS: dict[str, Handler] = {name: _operation(name, handler) for name, handler in (DECLARED | FUNCTIONS).items()}
