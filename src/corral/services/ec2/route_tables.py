"""Route tables, their routes, and their associations with subnets."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.stored_resources import Document, Params, ResourceType, find, put
from corral.services.ec2 import errors
from corral.services.ec2.cidr import destination
from corral.services.ec2.filters import filtered
from corral.services.ec2.prefix_lists import prefix_list_id
from corral.services.ec2.resources import EC2, every, existing, new_id, required
from corral.store import Store

TARGETS = (
    "GatewayId", "NatGatewayId", "EgressOnlyInternetGatewayId", "InstanceId", "NetworkInterfaceId", "VpcPeeringConnectionId",
    "TransitGatewayId", "LocalGatewayId", "CarrierGatewayId", "CoreNetworkArn", "VpcEndpointId", "OdbNetworkArn",
)  # fmt: skip
ASSOCIATED = {"State": "associated"}


def _new(tx: Tx[Store], params: Params, caller: Caller) -> Document:
    vpc, table_id = existing(tx, caller, "vpc", params["VpcId"]), new_id(tx, "rtb")
    local = {"GatewayId": "local", "Origin": "CreateRouteTable", "State": "active"}
    blocks = [{"DestinationCidrBlock": each["CidrBlock"]} for each in vpc["CidrBlockAssociationSet"]]
    blocks += [{"DestinationIpv6CidrBlock": each["Ipv6CidrBlock"]} for each in vpc["Ipv6CidrBlockAssociationSet"]]
    main = [{"Main": True, **_association(tx, table_id)}] if params.get("_main") else []
    return {
        "RouteTableId": table_id,
        "OwnerId": caller.account,
        "Associations": main,
        "PropagatingVgws": [],
        "Routes": [{**block, **local} for block in blocks],
    }


def _association(tx: Tx[Store], table_id: str) -> Document:
    return {"RouteTableAssociationId": new_id(tx, "rtbassoc"), "RouteTableId": table_id, "AssociationState": ASSOCIATED}


def _check_delete(tx: Tx[Store], caller: Caller, table: Document) -> None:
    if table["Associations"]:
        raise errors.in_use("routeTable", table["RouteTableId"])


def _view(tx: Tx[Store], caller: Caller, table: Document) -> Document:
    """Return a table with the routes of gateway endpoints, and the state of each route.

    The state of a route is `blackhole` if its NAT gateway does not exist any more, or if its internet gateway is not attached to
    the VPC.
    """
    routes = [{**route, "State": "active" if _has_target(tx, caller, table, route) else "blackhole"} for route in table["Routes"]]
    routes += [
        {
            "DestinationPrefixListId": prefix_list_id(endpoint["ServiceName"]),
            "GatewayId": endpoint["VpcEndpointId"],
            "Origin": "CreateRoute",
            "State": "active",
        }
        for endpoint in every(tx, caller, "vpc-endpoint", VpcEndpointType="Gateway")
        if table["RouteTableId"] in endpoint["RouteTableIds"]
    ]
    return {**table, "Routes": routes}


def _has_target(tx: Tx[Store], caller: Caller, table: Document, route: Document) -> bool:
    if "NatGatewayId" in route:
        return tx.store.stored.get("ec2", "natgateway", caller.region, route["NatGatewayId"]) is not None
    gateway_id = route.get("GatewayId", "")
    if gateway_id.startswith("igw-"):
        gateway = tx.store.stored.get("ec2", "internet-gateway", caller.region, gateway_id)
        return gateway is not None and any(each["VpcId"] == table["VpcId"] for each in gateway["Attachments"])
    return True


ROUTE_TABLE = ResourceType(
    EC2,
    "route-table",
    id="RouteTableId",
    one="RouteTable",
    many="RouteTables",
    new=_new,
    members=("VpcId",),
    defaults={"Tags": []},
    ids="RouteTableIds",
    token="ClientToken",
    check_delete=_check_delete,
    view=_view,
    selects=filtered(
        {
            "route-table-id": "RouteTableId", "vpc-id": "VpcId", "association.main": "Associations[].Main",
            "association.subnet-id": "Associations[].SubnetId", "association.gateway-id": "Associations[].GatewayId",
            "association.route-table-id": "Associations[].RouteTableId",
            "association.route-table-association-id": "Associations[].RouteTableAssociationId",
            "route.destination-cidr-block": "Routes[].DestinationCidrBlock", "route.gateway-id": "Routes[].GatewayId",
            "route.destination-ipv6-cidr-block": "Routes[].DestinationIpv6CidrBlock",
            "route.destination-prefix-list-id": "Routes[].DestinationPrefixListId", "route.instance-id": "Routes[].InstanceId",
            "route.nat-gateway-id": "Routes[].NatGatewayId", "route.origin": "Routes[].Origin", "route.state": "Routes[].State",
            "route.transit-gateway-id": "Routes[].TransitGatewayId",
        }
    ),
    create="CreateRouteTable",
    list="DescribeRouteTables",
    delete="DeleteRouteTable",
)  # fmt: skip


# Routes


def create_route(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    table, (member, value) = find(tx, caller, ROUTE_TABLE, params), destination(params)
    if any(route.get(member) == value for route in table["Routes"]):
        raise errors.RouteAlreadyExists(f"The route identified by {value} already exists.")
    route = {member: value, **_target(tx, caller, table, params), "Origin": "CreateRoute", "State": "active"}
    put(tx, caller, ROUTE_TABLE, {**table, "Routes": [*table["Routes"], route]})
    return {"Return": True}


def replace_route(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    table, (member, value) = find(tx, caller, ROUTE_TABLE, params), destination(params)
    before = next((route for route in table["Routes"] if route.get(member) == value), None)
    if before is None:
        raise errors.InvalidParameterValue(f"There is no route defined for '{value}' in the route table. Use CreateRoute instead.")
    target = {"GatewayId": "local"} if params.get("LocalTarget") else _target(tx, caller, table, params)
    replaced = {member: value, **target, "Origin": before["Origin"], "State": "active"}
    routes = [replaced if route is before else route for route in table["Routes"]]
    put(tx, caller, ROUTE_TABLE, {**table, "Routes": routes})
    return {}


def delete_route(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    table, (member, value) = find(tx, caller, ROUTE_TABLE, params), destination(params)
    route = next((route for route in table["Routes"] if route.get(member) == value), None)
    if route is None:
        name = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in member).removeprefix("-")
        raise errors.InvalidRouteNotFound(f"no route with {name} {value} in route table {table['RouteTableId']}")
    if route["Origin"] == "CreateRouteTable":
        raise errors.InvalidParameterValue(f"cannot remove local route {value} in route table {table['RouteTableId']}")
    put(tx, caller, ROUTE_TABLE, {**table, "Routes": [other for other in table["Routes"] if other is not route]})
    return {}


def _target(tx: Tx[Store], caller: Caller, table: Document, params: Params) -> Document:
    given = {member: params[member] for member in TARGETS if member in params}
    if len(given) != 1:
        raise errors.InvalidParameterValue(f"A route must have exactly one target: one of {', '.join(TARGETS)}.")
    ((member, value),) = given.items()
    if member == "NatGatewayId":
        existing(tx, caller, "natgateway", value)
    elif member == "GatewayId" and value.startswith("igw-"):
        gateway = existing(tx, caller, "internet-gateway", value)
        if not any(each["VpcId"] == table["VpcId"] for each in gateway["Attachments"]):
            raise errors.InvalidParameterValue(
                f"route table {table['RouteTableId']} and network gateway {value} belong to different networks"
            )
    elif member == "VpcEndpointId":
        existing(tx, caller, "vpc-endpoint", value)
        return {"GatewayId": value}
    return given


# Associations


def associate_route_table(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    table = find(tx, caller, ROUTE_TABLE, params)
    member = "GatewayId" if "GatewayId" in params else "SubnetId"
    value = required(params, member)
    if member == "SubnetId":
        subnet = existing(tx, caller, "subnet", value)
        if subnet["VpcId"] != table["VpcId"]:
            raise errors.InvalidParameterValue(
                f"Route table {table['RouteTableId']} and subnet {value} belong to different networks"
            )
    else:
        existing(tx, caller, "internet-gateway", value)
    for other in every(tx, caller, "route-table", VpcId=table["VpcId"]):
        for association in other["Associations"]:
            if association.get(member) == value:
                if other["RouteTableId"] == table["RouteTableId"]:
                    return {"AssociationId": association["RouteTableAssociationId"], "AssociationState": ASSOCIATED}
                raise errors.ResourceAlreadyAssociated(
                    f"the specified association for route table {table['RouteTableId']} conflicts with an existing association"
                )
    association = {"Main": False, **_association(tx, table["RouteTableId"]), member: value}
    put(tx, caller, ROUTE_TABLE, {**table, "Associations": [*table["Associations"], association]})
    return {"AssociationId": association["RouteTableAssociationId"], "AssociationState": ASSOCIATED}


def disassociate_route_table(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    table, association = find_association(tx, caller, params["AssociationId"])
    if association["Main"]:
        raise errors.InvalidParameterValue(f"cannot disassociate the main route table association {params['AssociationId']}")
    _drop_association(tx, caller, table, association)
    return {}


def replace_route_table_association(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Associate a subnet with another table, or make another table the main table of the VPC."""
    table, association = find_association(tx, caller, params["AssociationId"])
    target = find(tx, caller, ROUTE_TABLE, params)
    if target["VpcId"] != table["VpcId"]:
        raise errors.InvalidParameterValue(
            f"Route table {target['RouteTableId']} and route table {table['RouteTableId']} belong to different networks"
        )
    _drop_association(tx, caller, table, association)
    target = find(tx, caller, ROUTE_TABLE, params)
    moved = {**association, **_association(tx, target["RouteTableId"])}
    put(tx, caller, ROUTE_TABLE, {**target, "Associations": [*target["Associations"], moved]})
    return {"NewAssociationId": moved["RouteTableAssociationId"], "AssociationState": ASSOCIATED}


def find_association(tx: Tx[Store], caller: Caller, association_id: str) -> tuple[Document, Document]:
    for table in every(tx, caller, "route-table"):
        for association in table["Associations"]:
            if association["RouteTableAssociationId"] == association_id:
                return table, association
    raise errors.not_found("association", association_id)


def forget_subnet(tx: Tx[Store], caller: Caller, subnet: Document) -> None:
    """Delete the associations of a subnet when the subnet is deleted."""
    for table in every(tx, caller, "route-table", VpcId=subnet["VpcId"]):
        for association in table["Associations"]:
            if association.get("SubnetId") == subnet["SubnetId"]:
                _drop_association(tx, caller, table, association)


def _drop_association(tx: Tx[Store], caller: Caller, table: Document, association: Document) -> None:
    put(tx, caller, ROUTE_TABLE, {**table, "Associations": [other for other in table["Associations"] if other is not association]})
