"""The generated file of instance types: sizes, prices, and what corral.toml changes."""

from __future__ import annotations

import pytest

from corral.access.caller import Caller
from corral.core.clock import VirtualClock
from corral.core.errors import ApiError
from corral.core.ids import RandomIds
from corral.core.transactions import Tx
from corral.fleet.instance_types import is_known, price_of
from corral.model.instance import TypeMapping
from corral.model.principal import root_user
from corral.model.settings import Settings
from corral.services.ec2.instance_types import TypeSize, describe_instance_types, size_of
from corral.store import Store

CALLER = Caller("123456789012", "us-east-1", root_user("123456789012"))
SIZES = {  # type → GPUs, vCPUs, GiB, as AWS documents them
    "p2.xlarge": (1, 4, 61),
    "p2.16xlarge": (16, 64, 732),
    "p3.2xlarge": (1, 8, 61),
    "p3.8xlarge": (4, 32, 244),
    "p3.16xlarge": (8, 64, 488),
    "p4d.24xlarge": (8, 96, 1152),
    "p5.48xlarge": (8, 192, 2048),
    "g2.2xlarge": (1, 8, 15),
    "g3s.xlarge": (1, 4, 30.5),
    "g4dn.12xlarge": (4, 48, 192),
    "g5.xlarge": (1, 4, 16),
    "g6f.large": (1, 2, 8),  # an eighth of a GPU; instances own whole GPUs
    "m5.large": (0, 2, 8),
    "inf1.xlarge": (0, 4, 8),
}


def tx(**mappings: TypeMapping) -> Tx[Store]:
    types = {name.replace("_", "."): mapping for name, mapping in mappings.items()}
    return Tx(Store(None), VirtualClock().now_s(), RandomIds(), Settings(instance_types=types))


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name: str) -> None:
    gpus, vcpus, memory_gib = SIZES[name]
    assert size_of(tx(), name) == TypeSize(gpus, vcpus * 1024, int(memory_gib * 1024))


def test_prices_state_their_date_and_region() -> None:
    p3, m5 = price_of("p3.8xlarge"), price_of("m5.large")
    assert p3 is not None and (p3.on_demand, p3.spot, p3.region) == (12.24, None, "us-east-1") and p3.date.startswith("20")
    assert m5 is not None and m5.on_demand is not None and m5.spot is not None and 0 < m5.spot < m5.on_demand
    assert price_of("lab.large") is None


def test_corral_toml_changes_sizes_and_adds_types() -> None:
    mapped = tx(p3_16xlarge=TypeMapping(gpus=4), lab_large=TypeMapping(2, 16, 64.0), p3_8xlarge=TypeMapping(gpus=0))
    assert size_of(mapped, "p3.16xlarge") == TypeSize(4, 64 * 1024, 488 * 1024)
    assert size_of(mapped, "lab.large") == TypeSize(2, 16 * 1024, 64 * 1024)
    assert size_of(mapped, "p3.8xlarge").gpus == 0
    shown = describe_instance_types(mapped, {"InstanceTypes": ["p3.16xlarge", "p3.8xlarge", "lab.large"]}, CALLER)["InstanceTypes"]
    assert [each.get("GpuInfo", {}).get("Gpus", [{"Count": 0}])[0]["Count"] for each in shown] == [2, 4, 0]
    assert not is_known("lab.large") and is_known("p3.16xlarge")
    with pytest.raises(ApiError, match=r"EC2 has no such type.*\[instance-types\] lab.small = "):
        size_of(mapped, "lab.small")
    for odd in ('p3.8xlarge",', "\n", "☃", "p3.8xlarge\x00"):
        assert not is_known(odd)


def test_every_type_has_a_size() -> None:
    params, names = {"MaxResults": 100}, list[str]()
    reader = tx()
    while True:
        page = describe_instance_types(reader, params, CALLER)
        for each in page["InstanceTypes"]:
            size = size_of(reader, each["InstanceType"])
            assert size.cpu_units >= 1024 and size.memory_mib >= 512 and 0 <= size.gpus <= 16, each["InstanceType"]
            names.append(each["InstanceType"])
        if "NextToken" not in page:
            break
        params["NextToken"] = page["NextToken"]
    assert len(names) > 1_400 and names == sorted(names)
