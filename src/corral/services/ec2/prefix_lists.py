"""The prefix lists of AWS services. They have no addresses, because no service of AWS is behind them."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.stored_resources import Document, Params
from corral.services.ec2.errors import not_found
from corral.services.ec2.filters import filtered
from corral.services.ec2.resources import PAGES, digest_of, every, listed
from corral.store import Store

TYPE = "prefix-list"
SERVICES = ("s3", "dynamodb")  # the services that have gateway endpoints on AWS
SELECTS = filtered({"prefix-list-id": "PrefixListId", "prefix-list-name": "PrefixListName"})


def prefix_list_id(service_name: str) -> str:
    return f"pl-{digest_of(service_name)[:8]}"


def describe_prefix_lists(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    names = _names(tx, caller)
    lists: dict[str, Document] = {
        list_id: {"PrefixListId": list_id, "PrefixListName": name, "Cidrs": []} for list_id, name in names.items()
    }
    found, more = listed(PAGES, params, TYPE, lists, params.get("PrefixListIds"), SELECTS(tx, caller, params))
    return {"PrefixLists": found, **more}


def describe_managed_prefix_lists(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    lists: dict[str, Document] = {
        list_id: {
            "PrefixListId": list_id,
            "PrefixListName": name,
            "PrefixListArn": f"arn:aws:ec2:{caller.region}:aws:prefix-list/{list_id}",
            "AddressFamily": "IPv4",
            "State": "create-complete",
            "OwnerId": "AWS",
            "Tags": [],
        }
        for list_id, name in _names(tx, caller).items()
    }
    found, more = listed(PAGES, params, TYPE, lists, params.get("PrefixListIds"), SELECTS(tx, caller, params))
    return {"PrefixLists": found, **more}


def get_managed_prefix_list_entries(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    if params["PrefixListId"] not in _names(tx, caller):
        raise not_found(TYPE, params["PrefixListId"])
    return {"Entries": []}


def _names(tx: Tx[Store], caller: Caller) -> dict[str, str]:
    """The names of the lists by id: those of SERVICES, and of the services that have a gateway endpoint here."""
    names = [f"com.amazonaws.{caller.region}.{service}" for service in SERVICES]
    names += [endpoint["ServiceName"] for endpoint in every(tx, caller, "vpc-endpoint", VpcEndpointType="Gateway")]
    return {prefix_list_id(name): name for name in names}
