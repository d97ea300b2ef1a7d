"""Regions and availability zones. Every region has the zones a, b and c."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.regions import region_names
from corral.operations.stored_resources import Document, Params
from corral.services.ec2.errors import InvalidParameterValue, invalid_value
from corral.services.ec2.filters import filtered
from corral.store import Store

LETTERS = "abc"
WORDS = re.compile(r"north|south|east|west|\d+|.+")  # the parts of a region's name, for `zone_id`
REGION_FILTERS = filtered({"region-name": "RegionName", "endpoint": "Endpoint", "opt-in-status": "OptInStatus"})
ZONE_FILTERS = filtered(
    {
        "region-name": "RegionName", "zone-name": "ZoneName", "zone-id": "ZoneId", "zone-type": "ZoneType", "state": "State",
        "group-name": "GroupName", "opt-in-status": "OptInStatus",
    }
)  # fmt: skip


def zone_names(region: str) -> list[str]:
    return [region + letter for letter in LETTERS]


@lru_cache(maxsize=1024)
def zone_id(zone: str) -> str:
    """Return the id of a zone. Examples: us-east-1a → use1-az1, ap-southeast-2b → apse2-az2."""
    area, *parts = zone[:-1].split("-")
    words = "".join(word[0] if word.isalpha() else word for part in parts for word in WORDS.findall(part))
    return f"{area}{words}-az{LETTERS.index(zone[-1]) + 1}"


def check_zone(region: str, params: Params) -> str:
    """Return the zone in a request. If there is none, return the first zone of the region."""
    zones = zone_names(region)
    if "AvailabilityZoneId" in params:
        found = next((zone for zone in zones if zone_id(zone) == params["AvailabilityZoneId"]), None)
        if found is None:
            raise invalid_value(params["AvailabilityZoneId"], "availabilityZoneId", _choose_from(map(zone_id, zones)))
        return found
    given: str = params.get("AvailabilityZone", zones[0])
    if given not in zones:
        raise invalid_value(given, "availabilityZone", _choose_from(zones))
    return given


def _choose_from(zones: Iterable[str]) -> str:
    return f"Subnets can currently only be created in the following availability zones: {', '.join(zones)}."


def describe_regions(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    regions = [
        {"RegionName": name, "Endpoint": f"ec2.{name}.amazonaws.com", "OptInStatus": "opt-in-not-required"}
        for name in region_names(caller.region)
    ]
    regions = _named(regions, "RegionName", params.get("RegionNames"), "regionName")
    return {"Regions": list(filter(REGION_FILTERS(tx, caller, params), regions))}


def describe_availability_zones(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    zones: list[Document] = [
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
    zones = _named(zones, "ZoneName", params.get("ZoneNames"), "availabilityZone")
    zones = _named(zones, "ZoneId", params.get("ZoneIds"), "availabilityZoneId")
    return {"AvailabilityZones": list(filter(ZONE_FILTERS(tx, caller, params), zones))}


def _named(documents: list[Document], member: str, names: list[str] | None, parameter: str) -> list[Document]:
    """Return the documents with these names. Without names, return all documents."""
    if not names:
        return documents
    by_name = {each[member]: each for each in documents}
    for name in names:
        if name not in by_name:
            raise InvalidParameterValue(f"Invalid {parameter}: [{name}]")
    return [by_name[name] for name in dict.fromkeys(names)]
