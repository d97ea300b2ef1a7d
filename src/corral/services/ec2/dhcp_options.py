"""Sets of DHCP options, and the association of a set with a VPC."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.stored_resources import Document, Params, ResourceType
from corral.services.ec2.errors import InvalidParameterValue, in_use, invalid_value
from corral.services.ec2.filters import filtered
from corral.services.ec2.resources import EC2, every, existing, new_id
from corral.store import Store

KEYS = (
    "domain-name", "domain-name-servers", "ntp-servers", "netbios-name-servers", "netbios-node-type",
    "ipv6-address-preferred-lease-time",
)  # fmt: skip
DEFAULT = "default"  # with this id in AssociateDhcpOptions, the VPC uses no DHCP options


def _new(tx: Tx[Store], params: Params, caller: Caller) -> Document:
    configurations = list[Document]()
    for configuration in params["DhcpConfigurations"]:
        key, values = configuration.get("Key", ""), configuration.get("Values", [])
        if key not in KEYS:
            raise invalid_value(key, "key", f"Unknown DHCP option: use one of {', '.join(KEYS)}.")
        if not values:
            raise InvalidParameterValue(f"The DHCP option {key} must have at least one value.")
        configurations.append({"Key": key, "Values": [{"Value": value} for value in values]})
    return {"DhcpOptionsId": new_id(tx, "dopt"), "OwnerId": caller.account, "DhcpConfigurations": configurations}


def _check_delete(tx: Tx[Store], caller: Caller, options: Document) -> None:
    if every(tx, caller, "vpc", DhcpOptionsId=options["DhcpOptionsId"]):
        raise in_use("dhcpOptions", options["DhcpOptionsId"])


DHCP_OPTIONS = ResourceType(
    EC2,
    "dhcp-options",
    id="DhcpOptionsId",
    one="DhcpOptions",
    many="DhcpOptions",
    new=_new,
    defaults={"Tags": []},
    ids="DhcpOptionsIds",
    check_delete=_check_delete,
    selects=filtered(
        {
            "dhcp-options-id": "DhcpOptionsId",
            "key": "DhcpConfigurations[].Key",
            "value": "DhcpConfigurations[].Values[].Value",
        }
    ),
    create="CreateDhcpOptions",
    list="DescribeDhcpOptions",
    delete="DeleteDhcpOptions",
)


def associate_dhcp_options(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    vpc, options_id = existing(tx, caller, "vpc", params["VpcId"]), params["DhcpOptionsId"]
    if options_id != DEFAULT:
        existing(tx, caller, "dhcp-options", options_id)
    tx.store.stored.change("ec2", "vpc", caller.region, vpc["VpcId"], {**vpc, "DhcpOptionsId": options_id})
    return {}
