"""Regions and availability zones. The regions are those of botocore's partitions; every region has the zones a, b and c."""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from corral.core import Tx
from corral.services.caller import Caller
from corral.services.ec2.filters import filtered
from corral.services.ec2.style import InvalidParameterValue
from corral.services.stored import Document, Params
from corral.store import Store

LETTERS = "abc"
WORDS = re.compile(r"north|south|east|west|\d+|.+")  # of a region's name
REGION_FILTERS = filtered({"region-name": "RegionName", "endpoint": "Endpoint", "opt-in-status": "OptInStatus"})
ZONE_FILTERS = filtered(
    {
        "region-name": "RegionName", "zone-name": "ZoneName", "zone-id": "ZoneId", "zone-type": "ZoneType", "state": "State",
        "group-name": "GroupName", "opt-in-status": "OptInStatus",
    }
)  # fmt: skip


@cache
def region_names(region: str) -> tuple[str, ...]:
    """The regions of the partition that `region` belongs to, and `region` itself."""
    package = find_spec("botocore")
    assert package is not None and package.origin is not None
    partitions = orjson.loads((Path(package.origin).parent / "data" / "partitions.json").read_bytes())["partitions"]
    found = next((each["regions"] for each in partitions if region in each["regions"]), partitions[0]["regions"])
    return tuple(sorted({name for name in found if not name.endswith("-global")} | {region}))


def zone_names(region: str) -> list[str]:
    return [region + letter for letter in LETTERS]


def zone_id(zone: str) -> str:
    """us-east-1a → use1-az1, ap-southeast-2b → apse2-az2"""
    area, *parts = zone[:-1].split("-")
    words = "".join(word[0] if not word.isdigit() else word for part in parts for word in WORDS.findall(part))
    return f"{area}{words}-az{LETTERS.index(zone[-1]) + 1}"


def check_zone(region: str, params: Params) -> str:
    """The zone that a request names, or the first one."""
    zones = zone_names(region)
    if "AvailabilityZoneId" in params:
        found = next((zone for zone in zones if zone_id(zone) == params["AvailabilityZoneId"]), None)
        if found is None:
            raise InvalidParameterValue(
                f"Value ({params['AvailabilityZoneId']}) for parameter availabilityZoneId is invalid. "
                f"Subnets can currently only be created in the following availability zones: {', '.join(map(zone_id, zones))}."
            )
        return found
    given: str = params.get("AvailabilityZone", zones[0])
    if given not in zones:
        raise InvalidParameterValue(
            f"Value ({given}) for parameter availabilityZone is invalid. "
            f"Subnets can currently only be created in the following availability zones: {', '.join(zones)}."
        )
    return given


def describe_regions(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    shown = [
        {"RegionName": name, "Endpoint": f"ec2.{name}.amazonaws.com", "OptInStatus": "opt-in-not-required"}
        for name in region_names(caller.region)
    ]
    shown = _named(shown, "RegionName", params.get("RegionNames"), "regionName")
    return {"Regions": list(filter(REGION_FILTERS(tx, caller, params), shown))}


def describe_availability_zones(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    shown: list[Document] = [
        {
            "State": "available",
            "OptInStatus": "opt-in-not-required",
            "Messages": [],
            "RegionName": caller.region,
            "ZoneName": zone,
            "ZoneId": zone_id(zone),
            "GroupName": f"{caller.region}-zg-1",
            "NetworkBorderGroup": caller.region,
            "ZoneType": "availability-zone",
        }
        for zone in zone_names(caller.region)
    ]
    shown = _named(shown, "ZoneName", params.get("ZoneNames"), "availabilityZone")
    shown = _named(shown, "ZoneId", params.get("ZoneIds"), "availabilityZoneId")
    return {"AvailabilityZones": list(filter(ZONE_FILTERS(tx, caller, params), shown))}


def _named(shown: list[Document], member: str, names: list[str] | None, parameter: str) -> list[Document]:
    if not names:
        return shown
    by_name = {each[member]: each for each in shown}
    for name in names:
        if name not in by_name:
            raise InvalidParameterValue(f"Invalid {parameter}: [{name}]")
    return [by_name[name] for name in dict.fromkeys(names)]
