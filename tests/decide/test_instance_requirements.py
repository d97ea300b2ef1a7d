"""Attribute-based selection of instance types."""

from __future__ import annotations

from typing import Any

import pytest

from corral.decide.scaling.instance_requirements import TypeFacts, meets

G5 = TypeFacts("g5.xlarge", 4, 16_384, (("gpu", "a10g", "nvidia", 1, 22_888),), "amd", disk_gb=250, disk_kinds=frozenset({"ssd"}))
M5 = TypeFacts("m5.large", 2, 8192, processor="intel", is_current=False)
T3 = TypeFacts("t3.micro", 2, 1024, processor="intel", is_burstable=True)
METAL = TypeFacts("m5.metal", 96, 393_216, processor="intel", is_metal=True)
ANY: dict[str, Any] = {"VCpuCount": {"Min": 0}, "MemoryMiB": {"Min": 0}}


@pytest.mark.parametrize(
    "wanted, names",
    [
        ({}, {"g5.xlarge", "m5.large"}),  # neither metal nor burstable by default
        ({"BareMetal": "included", "BurstablePerformance": "included"}, {"g5.xlarge", "m5.large", "t3.micro", "m5.metal"}),
        ({"BareMetal": "required"}, {"m5.metal"}),
        ({"VCpuCount": {"Min": 3}}, {"g5.xlarge"}),
        ({"VCpuCount": {"Min": 0, "Max": 2}}, {"m5.large"}),
        ({"MemoryMiB": {"Min": 8192, "Max": 8192}}, {"m5.large"}),
        ({"MemoryGiBPerVCpu": {"Max": 3.9}}, set()),
        ({"AcceleratorCount": {"Min": 1}}, {"g5.xlarge"}),
        ({"AcceleratorCount": {"Max": 0}}, {"m5.large"}),
        ({"AcceleratorTypes": ["gpu"], "AcceleratorManufacturers": ["nvidia"]}, {"g5.xlarge"}),
        ({"AcceleratorManufacturers": ["amd"]}, set()),
        ({"AcceleratorNames": ["a100"]}, set()),
        ({"AcceleratorTotalMemoryMiB": {"Min": 20_000}}, {"g5.xlarge"}),
        ({"CpuManufacturers": ["intel"]}, {"m5.large"}),
        ({"InstanceGenerations": ["current"]}, {"g5.xlarge"}),
        ({"LocalStorage": "required"}, {"g5.xlarge"}),
        ({"LocalStorage": "excluded"}, {"m5.large"}),
        ({"LocalStorageTypes": ["hdd"]}, set()),
        ({"TotalLocalStorageGB": {"Min": 100}}, {"g5.xlarge"}),
        ({"AllowedInstanceTypes": ["g*"]}, {"g5.xlarge"}),
        ({"AllowedInstanceTypes": ["g5.*", "m5.large"]}, {"g5.xlarge", "m5.large"}),
        ({"ExcludedInstanceTypes": ["*5"]}, set()),
        ({"ExcludedInstanceTypes": ["m5.large"]}, {"g5.xlarge"}),
        ({"ExcludedInstanceTypes": ["m+"]}, {"g5.xlarge", "m5.large"}),  # only * is special
    ],
)
def test_requirements(wanted: dict[str, Any], names: set[str]) -> None:
    assert {facts.name for facts in (G5, M5, T3, METAL) if meets(facts, {**ANY, **wanted})} == names
