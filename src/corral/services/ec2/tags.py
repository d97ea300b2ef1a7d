"""Tags of EC2 resources. CreateTags and DeleteTags find the type of a resource by the prefix of its id."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.fleet.instances import put_details
from corral.model.instance import ec2_id
from corral.operations.pagination import among
from corral.operations.stored_resources import Document, Params, put
from corral.operations.tags import Tags
from corral.services.ec2.dhcp_options import DHCP_OPTIONS
from corral.services.ec2.elastic_ips import ELASTIC_IP
from corral.services.ec2.errors import InvalidID
from corral.services.ec2.filters import filtered
from corral.services.ec2.gateways import INTERNET_GATEWAY, NAT_GATEWAY, VPN_GATEWAY
from corral.services.ec2.images import IMAGE
from corral.services.ec2.instance_description import find_instance
from corral.services.ec2.key_pairs import KEY_PAIR
from corral.services.ec2.launch_templates import LAUNCH_TEMPLATE
from corral.services.ec2.network_acls import NETWORK_ACL
from corral.services.ec2.resources import PAGES, TAGS, every, existing, required
from corral.services.ec2.route_tables import ROUTE_TABLE
from corral.services.ec2.security_group_rules import TYPE as RULE
from corral.services.ec2.security_group_rules import find_rule, set_rule
from corral.services.ec2.security_groups import SECURITY_GROUP
from corral.services.ec2.subnets import SUBNET
from corral.services.ec2.vpc_endpoints import VPC_ENDPOINT
from corral.services.ec2.vpcs import VPC
from corral.store import Store

TYPES = {  # prefix of an id → resource type
    "acl": NETWORK_ACL,
    "ami": IMAGE,
    "dopt": DHCP_OPTIONS,
    "eipalloc": ELASTIC_IP,
    "igw": INTERNET_GATEWAY,
    "key": KEY_PAIR,
    "lt": LAUNCH_TEMPLATE,
    "nat": NAT_GATEWAY,
    "rtb": ROUTE_TABLE,
    "sg": SECURITY_GROUP,
    "subnet": SUBNET,
    "vgw": VPN_GATEWAY,
    "vpc": VPC,
    "vpce": VPC_ENDPOINT,
}
SELECTS = filtered({"key": "Key", "resource-id": "ResourceId", "resource-type": "ResourceType", "value": "Value"})


def create_tags(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    added = TAGS.read(params["Tags"])
    for name in params["Resources"]:
        _set(tx, caller, name, TAGS.merge(_tags(tx, caller, name), added))
    return {}


def delete_tags(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Delete tags. If the request gives the value of a tag, the tag is deleted only if it has this value.

    If the request has no Tags, all tags are deleted, except the tags that AWS reserves.
    """
    for name in params["Resources"]:
        tags = _tags(tx, caller, name)
        if params.get("Tags"):
            given = [(required(tag, "Key"), tag.get("Value")) for tag in params["Tags"]]
            removed = [key for key, value in given if value is None or tags.get(key) == value]
        else:
            removed = [key for key in tags if not key.lower().startswith("aws:")]
        _set(tx, caller, name, TAGS.remove(tags, removed))
    return {}


def describe_tags(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    rules = [rule for group in every(tx, caller, SECURITY_GROUP.name) for rule in group["_rules"]]
    tagged = [(type_.name, document[type_.id], document) for type_ in TYPES.values() for document in every(tx, caller, type_.name)]
    tagged += [("instance", ec2_id(each.id), each.details) for each in tx.store.instances.live(caller.region)]
    tagged += [(RULE, rule["SecurityGroupRuleId"], rule) for rule in rules]
    chosen = SELECTS(tx, caller, params)
    listed = (
        {"Key": tag["Key"], "Value": tag["Value"], "ResourceId": name, "ResourceType": type_}
        for type_, name, document in tagged
        for tag in document.get("Tags", ())
    )
    found = {f"{tag['ResourceId']} {tag['Key']}": tag for tag in listed if chosen({**tag, "Tags": [tag]})}
    items, more = PAGES.page(params, among(found))
    return {"Tags": items, **more}


def _tags(tx: Tx[Store], caller: Caller, name: str) -> Tags:
    return {tag["Key"]: tag["Value"] for tag in _find(tx, caller, name).get("Tags", ())}


def _find(tx: Tx[Store], caller: Caller, name: str) -> Document:
    prefix = name.partition("-")[0]
    if prefix == "sgr":
        return find_rule(tx, caller, name)[1]
    if prefix == "i":
        return find_instance(tx, caller, name).details
    if prefix not in TYPES:
        raise InvalidID(f"The ID '{name}' is not valid")
    return existing(tx, caller, TYPES[prefix].name, name)


def _set(tx: Tx[Store], caller: Caller, name: str, tags: Tags) -> None:
    if name.startswith("sgr-"):
        group, rule = find_rule(tx, caller, name)
        set_rule(tx, caller, group, rule, {**rule, "Tags": TAGS.to_list(tags)})
        return
    if name.startswith("i-"):
        instance = find_instance(tx, caller, name)
        put_details(tx, instance, {**instance.details, "Tags": TAGS.to_list(tags)})
        return
    type_ = TYPES[name.partition("-")[0]]
    put(tx, caller, type_, {**existing(tx, caller, type_.name, name), "Tags": TAGS.to_list(tags)})
