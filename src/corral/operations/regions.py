"""The regions of AWS, read from botocore's partitions."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson


@cache
def region_names(region: str) -> tuple[str, ...]:
    """Return the regions of the partition that contains `region`. The result always contains `region`."""
    found = _regions_with(region)
    return tuple(sorted({name for name in found if not name.endswith("-global")} | {region}))


@cache
def region_title(region: str) -> str:
    """Return the name of a region for people, such as `US East (N. Virginia)`."""
    return str(_regions_with(region).get(region, {}).get("description", region))


def _regions_with(region: str) -> dict[str, Any]:
    """Return the regions of the partition that contains `region`, from botocore's data."""
    package = find_spec("botocore")
    assert package is not None and package.origin is not None
    partitions = orjson.loads((Path(package.origin).parent / "data" / "partitions.json").read_bytes())["partitions"]
    regions: dict[str, Any] = next((each["regions"] for each in partitions if region in each["regions"]), partitions[0]["regions"])
    return regions
