"""Generate src/corral/fleet/instance_types.jsonl.gz: the sizes and prices of EC2's instance types.

    pip download --no-deps moto==5.2.5
    python tools/instance_types.py moto-5.2.5-py3-none-any.whl aws-prices-us-east-1.csv

moto ships the responses of DescribeInstanceTypes; the table of prices has one line per type (instance_type, vcpus, memory_gib, gpu,
gpus, on_demand, spot), and its first line states source, region and date. The generated file has one line per type; COLUMNS names
the values. RETIRED has the families that AWS no longer describes and that templates still name.
"""

from __future__ import annotations

import csv
import datetime
import gzip
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

SOURCE = "moto/ec2/resources/instance_types.json.gz"
TARGET = Path(__file__).parent.parent / "src/corral/fleet/instance_types.jsonl.gz"
COLUMNS = (
    "type", "vcpus", "cores", "memory_mib", "gpus", "gpu", "accelerators", "architectures", "processor", "clock_ghz",
    "current", "metal", "burstable", "hypervisor", "storage", "network", "interfaces", "addresses", "efa", "usage",
    "on_demand", "spot",
)  # fmt: skip

# Type: vCPUs, GiB, GPUs, model, MiB per GPU, processor speed in GHz, network.
RETIRED: dict[str, tuple[int, float, int, str, int, float, str]] = {
    "g2.2xlarge": (8, 15, 1, "K520", 4096, 2.6, "Moderate"),
    "g2.8xlarge": (32, 60, 4, "K520", 4096, 2.6, "10 Gigabit"),
    "g3s.xlarge": (4, 30.5, 1, "M60", 8192, 2.3, "Up to 10 Gigabit"),
    "g3.4xlarge": (16, 122, 1, "M60", 8192, 2.3, "Up to 10 Gigabit"),
    "g3.8xlarge": (32, 244, 2, "M60", 8192, 2.3, "10 Gigabit"),
    "g3.16xlarge": (64, 488, 4, "M60", 8192, 2.3, "25 Gigabit"),
    "p2.xlarge": (4, 61, 1, "K80", 12288, 2.7, "High"),
    "p2.8xlarge": (32, 488, 8, "K80", 12288, 2.7, "10 Gigabit"),
    "p2.16xlarge": (64, 732, 16, "K80", 12288, 2.7, "25 Gigabit"),
    "p3.2xlarge": (8, 61, 1, "V100", 16384, 2.7, "Up to 10 Gigabit"),
    "p3.8xlarge": (32, 244, 4, "V100", 16384, 2.7, "10 Gigabit"),
    "p3.16xlarge": (64, 488, 8, "V100", 16384, 2.7, "25 Gigabit"),
}


def row(about: dict[str, Any]) -> dict[str, Any]:
    """The values of one type from its description."""
    devices = about.get("GpuInfo", {}).get("Gpus", [])
    accelerators = [
        [kind, each["Name"], each.get("Manufacturer", "AWS"), each["Count"], each.get("MemoryInfo", {}).get("SizeInMiB", 0)]
        for kind, group in (
            ("inference", about.get("InferenceAcceleratorInfo", {}).get("Accelerators", [])),
            ("neuron", about.get("NeuronInfo", {}).get("NeuronDevices", [])),
        )
        for each in group
    ]
    storage = [[disk["Count"], disk["SizeInGB"], disk["Type"]] for disk in about.get("InstanceStorageInfo", {}).get("Disks", [])]
    processor, network = about["ProcessorInfo"], about["NetworkInfo"]
    return {
        "type": about["InstanceType"],
        "vcpus": about["VCpuInfo"]["DefaultVCpus"],
        "cores": about["VCpuInfo"].get("DefaultCores"),
        "memory_mib": about["MemoryInfo"]["SizeInMiB"],
        "gpus": sum(max(each["Count"], each.get("LogicalGpuCount", 0)) for each in devices),  # a part of a GPU counts as one
        "gpu": [devices[0]["Name"], devices[0]["Manufacturer"], devices[0]["MemoryInfo"]["SizeInMiB"]] if devices else None,
        "accelerators": accelerators or None,
        "architectures": processor["SupportedArchitectures"],
        "processor": processor.get("Manufacturer"),
        "clock_ghz": processor.get("SustainedClockSpeedInGhz"),
        "current": int(about["CurrentGeneration"]),
        "metal": int(about["BareMetal"]),
        "burstable": int(about["BurstablePerformanceSupported"]),
        "hypervisor": about.get("Hypervisor"),
        "storage": storage or None,
        "network": network["NetworkPerformance"],
        "interfaces": network["MaximumNetworkInterfaces"],
        "addresses": network["Ipv4AddressesPerInterface"],
        "efa": int(network["EfaSupported"]),
        "usage": about["SupportedUsageClasses"],
    }


def retired_row(name: str) -> dict[str, Any]:
    vcpus, memory_gib, gpus, model, gpu_mib, clock_ghz, network = RETIRED[name]
    return {
        "type": name,
        "vcpus": vcpus,
        "cores": vcpus // 2,
        "memory_mib": int(memory_gib * 1024),
        "gpus": gpus,
        "gpu": [model, "NVIDIA", gpu_mib],
        "architectures": ["x86_64"],
        "processor": "Intel",
        "clock_ghz": clock_ghz,
        "current": 0,
        "metal": 0,
        "burstable": 0,
        "hypervisor": "xen",
        "network": network,
        "interfaces": 8,
        "addresses": 30,
        "efa": 0,
        "usage": ["on-demand", "spot"],
    }


def prices(path: Path) -> tuple[str, dict[str, tuple[float | None, float | None]]]:
    """(the statement of the source, type → hourly price on demand and spot)"""
    with path.open() as file:
        statement = file.readline().removeprefix("#").strip()
        table = {line["instance_type"]: (_price(line["on_demand"]), _price(line["spot"])) for line in csv.DictReader(file)}
    return statement, table


def _price(text: str) -> float | None:
    return float(text) if text else None


def main(wheel: Path, table: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        described = json.loads(gzip.decompress(archive.read(SOURCE)))
    statement, hourly = prices(table)
    rows = [row(about) for about in described.values()] + [retired_row(name) for name in RETIRED if name not in described]
    for each in rows:
        each["on_demand"], each["spot"] = hourly.get(each["type"], (None, None))
    dated = re.search(r"\d{4}-\d\d-\d\d", statement)
    about = {
        "source": f"{SOURCE} of {wheel.name} (Apache-2.0); prices: {statement}",
        "generated": datetime.date.today().isoformat(),
        "prices": {"region": "us-east-1", "date": dated[0] if dated else ""},
        "columns": COLUMNS,
    }
    lines = [about, *([each.get(column) for column in COLUMNS] for each in sorted(rows, key=lambda each: str(each["type"])))]
    content = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    TARGET.write_bytes(gzip.compress(content.encode(), 9, mtime=0))
    print(f"{TARGET}: {len(rows)} types, {TARGET.stat().st_size} bytes, {len(content)} uncompressed")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
