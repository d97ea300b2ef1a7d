"""Sizes and prices of instance types, and the operations DescribeInstanceTypes and DescribeInstanceTypeOfferings.

`tools/instance_types.py` generates the file with the types of AWS. `[instance-types]` in corral.toml changes sizes and adds types.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.instance import TypeMapping
from corral.operations.pagination import among
from corral.operations.stored_resources import Document, Params
from corral.services.ec2.errors import InvalidInstanceType, InvalidNextToken, InvalidParameterValue
from corral.services.ec2.filters import filtered
from corral.services.ec2.resources import PAGES
from corral.services.ec2.zones import zone_id, zone_names
from corral.store import Store

CPU_UNITS = 1024  # CPU units per vCPU
MIB = 1024  # MiB per GiB
_FILE = Path(__file__).parent / "instance_types.jsonl.gz"
TYPE_PAGES = replace(PAGES, default=100, largest=100)


class TypeSize(Struct, frozen=True):
    """The resources that an instance of a type has on this machine."""

    gpus: int
    cpu_units: int
    memory_mib: int


class Price(Struct, frozen=True):
    """The prices per hour of a type on AWS, in US dollars. A price is None if AWS has no such price, or if it is unknown."""

    on_demand: float | None
    spot: float | None
    date: str  # the day on which AWS had these prices
    region: str


class InstanceType(Struct, frozen=True, array_like=True):
    """An instance type, as a line of the generated file describes it."""

    name: str
    vcpus: int
    cores: int | None
    memory_mib: int
    gpus: int = 0
    gpu: tuple[str, str, int] | None = None  # model, manufacturer, memory in MiB
    accelerators: list[tuple[str, str, str, int, int]] | None = None  # kind, name, manufacturer, count, memory in MiB
    architectures: tuple[str, ...] = ("x86_64",)
    processor: str | None = None
    clock_ghz: float | None = None
    current: int = 1
    metal: int = 0
    burstable: int = 0
    hypervisor: str | None = "nitro"
    storage: list[tuple[int, int, str]] | None = None  # count, size in GB, kind
    network: str = ""
    interfaces: int = 4
    addresses: int = 15
    efa: int = 0
    usage: tuple[str, ...] = ("on-demand",)
    on_demand: float | None = None
    spot: float | None = None


class _PriceList(Struct, frozen=True):
    region: str
    date: str


class _FileHead(Struct, frozen=True):
    prices: _PriceList


_decode = Decoder(InstanceType).decode


@cache
def _text() -> bytes:
    return zlib.decompress(_FILE.read_bytes(), wbits=16 + zlib.MAX_WBITS)


@cache
def _catalogue() -> dict[str, InstanceType]:
    """Return all types of AWS."""
    return {each.name: each for each in map(_decode, _text().splitlines()[1:])}


@lru_cache(maxsize=256)
def _facts(name: str) -> InstanceType | None:
    """Return one type of AWS, or None if AWS has no such type.

    Only one line of the file is decoded, because decoding all lines would delay a launch.
    """
    text = _text()
    start = text.find(b'\n["' + name.encode("utf-8", "replace") + b'",')
    return None if start < 0 else _decode(text[start + 1 : text.index(b"\n", start + 1)])


@lru_cache(maxsize=64)
def _family(name: str) -> tuple[InstanceType, ...]:
    """Return the types of a family of AWS, for example `p3`. Only the lines of the family are decoded."""
    text, found = _text(), list[InstanceType]()
    start = text.find(beginning := b'\n["' + name.encode("utf-8", "replace") + b".")
    while start >= 0:
        found.append(_decode(text[start + 1 : text.index(b"\n", start + 1)]))
        start = text.find(beginning, start + 1)
    return tuple(found)


def types_of_family(mappings: Mapping[str, TypeMapping], name: str) -> list[InstanceType]:
    """Return the types of a family, without bare metal types. The entries of corral.toml change sizes and add types."""
    own = {type_: _mapped(type_, _facts(type_), mapping) for type_, mapping in mappings.items() if type_.startswith(f"{name}.")}
    found = {each.name: each for each in _family(name)} | own
    return [each for each in found.values() if not each.metal]


def find_type(mappings: Mapping[str, TypeMapping], name: str) -> InstanceType | None:
    """Return a type with its size on this machine, or None if neither AWS nor corral.toml has it."""
    facts, mapping = _facts(name), mappings.get(name)
    return facts if mapping is None else _mapped(name, facts, mapping)


def is_known(name: str) -> bool:
    """Return whether AWS has a type with this name."""
    return _facts(name) is not None


def size_of(tx: Tx[Store], name: str) -> TypeSize:
    """Return the size of a type, with corral.toml applied. Raise EC2's error if neither AWS nor corral.toml has the type."""
    found = _find(tx, name)
    if found is None:
        raise InvalidParameterValue(
            f"Invalid value '{name}' for InstanceType: EC2 has no such type. Use a type that DescribeInstanceTypes lists, or "
            f"define it in corral.toml: [instance-types] {name} = {{gpus = 1, vcpus = 8, memory_gib = 32}}"
        )
    return TypeSize(found.gpus, found.vcpus * CPU_UNITS, found.memory_mib)


def price_of(name: str) -> Price | None:
    """Return the hourly prices of a type on AWS, or None if no price is known."""
    found = _facts(name)
    if found is None or (found.on_demand is None and found.spot is None):
        return None
    listed = Decoder(_FileHead).decode(_text().split(b"\n", 1)[0]).prices
    return Price(found.on_demand, found.spot, listed.date, listed.region)


def architecture_of(tx: Tx[Store], name: str) -> str:
    found = _find(tx, name)
    return found.architectures[-1] if found is not None else "x86_64"


def _find(tx: Tx[Store], name: str) -> InstanceType | None:
    return find_type(tx.settings.instance_types, name)


def _mapped(name: str, facts: InstanceType | None, mapping: TypeMapping) -> InstanceType:
    facts = facts or InstanceType(name, vcpus=1, cores=None, memory_mib=MIB)
    gpus = facts.gpus if mapping.gpus is None else mapping.gpus
    return replace(
        facts,
        gpus=gpus,
        gpu=(facts.gpu or ("GPU", "NVIDIA", 0)) if gpus else None,
        vcpus=facts.vcpus if mapping.vcpus is None else mapping.vcpus,
        cores=facts.cores if mapping.vcpus is None else None,
        memory_mib=facts.memory_mib if mapping.memory_gib is None else int(mapping.memory_gib * MIB),
    )


def _all(tx: Tx[Store]) -> dict[str, InstanceType]:
    """Return all types, with corral.toml applied."""
    return every_type(tx.settings.instance_types)


def every_type(mappings: Mapping[str, TypeMapping]) -> dict[str, InstanceType]:
    """Return all types of AWS, changed and extended by these entries of corral.toml."""
    types = _catalogue()
    return {**types, **{name: _mapped(name, types.get(name), mapping) for name, mapping in mappings.items()}}


# Operations

SELECTS = filtered(
    {
        "instance-type": "InstanceType", "current-generation": "CurrentGeneration", "bare-metal": "BareMetal",
        "burstable-performance-supported": "BurstablePerformanceSupported", "free-tier-eligible": "FreeTierEligible",
        "hypervisor": "Hypervisor", "instance-storage-supported": "InstanceStorageSupported",
        "auto-recovery-supported": "AutoRecoverySupported", "dedicated-hosts-supported": "DedicatedHostsSupported",
        "hibernation-supported": "HibernationSupported", "supported-root-device-type": "SupportedRootDeviceTypes[]",
        "supported-usage-class": "SupportedUsageClasses[]", "supported-virtualization-type": "SupportedVirtualizationTypes[]",
        "supported-boot-mode": "SupportedBootModes[]", "memory-info.size-in-mib": "MemoryInfo.SizeInMiB",
        "vcpu-info.default-vcpus": "VCpuInfo.DefaultVCpus", "vcpu-info.default-cores": "VCpuInfo.DefaultCores",
        "vcpu-info.default-threads-per-core": "VCpuInfo.DefaultThreadsPerCore",
        "processor-info.supported-architecture": "ProcessorInfo.SupportedArchitectures[]",
        "processor-info.sustained-clock-speed-in-ghz": "ProcessorInfo.SustainedClockSpeedInGhz",
        "network-info.network-performance": "NetworkInfo.NetworkPerformance",
        "network-info.efa-supported": "NetworkInfo.EfaSupported", "network-info.ena-support": "NetworkInfo.EnaSupport",
        "network-info.ipv6-supported": "NetworkInfo.Ipv6Supported",
        "network-info.maximum-network-interfaces": "NetworkInfo.MaximumNetworkInterfaces",
        "network-info.ipv4-addresses-per-interface": "NetworkInfo.Ipv4AddressesPerInterface",
        "instance-storage-info.total-size-in-gb": "InstanceStorageInfo.TotalSizeInGB",
        "instance-storage-info.disk.count": "InstanceStorageInfo.Disks[].Count",
        "instance-storage-info.disk.size-in-gb": "InstanceStorageInfo.Disks[].SizeInGB",
        "instance-storage-info.disk.type": "InstanceStorageInfo.Disks[].Type",
        "ebs-info.ebs-optimized-support": "EbsInfo.EbsOptimizedSupport", "ebs-info.nvme-support": "EbsInfo.NvmeSupport",
        "ebs-info.encryption-support": "EbsInfo.EncryptionSupport",
    }
)  # fmt: skip
OFFERED = filtered({"instance-type": "InstanceType", "location": "Location"})


def describe_instance_types(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Describe the types of AWS and of corral.toml. The sizes are those that an instance has on this machine."""
    types, chosen = _all(tx), SELECTS(tx, caller, params)
    names = sorted(types)
    if given := params.get("InstanceTypes"):
        if params.get("MaxResults") is not None:
            raise InvalidNextToken("MaxResults and InstanceTypes cannot be used together: use one of them.")
        if missing := [name for name in given if name not in types]:
            raise InvalidInstanceType(f"The following supplied instance types do not exist: [{', '.join(missing)}]")
        names = sorted(set(given))

    def candidates(after: str, limit: int) -> list[tuple[str, Document]]:
        found: list[tuple[str, Document]] = []
        for name in names:
            if name > after and chosen(view := _view(types[name])):
                found.append((name, view))
                if len(found) == limit:
                    break
        return found

    items, more = TYPE_PAGES.page(params, candidates)
    return {"InstanceTypes": items, **more}


def describe_instance_type_offerings(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """List the locations that offer each type. Every region and every zone offers every type."""
    kind, chosen = params.get("LocationType", "region"), OFFERED(tx, caller, params)
    places = {
        "region": [caller.region],
        "availability-zone": zone_names(caller.region),
        "availability-zone-id": [zone_id(zone) for zone in zone_names(caller.region)],
    }.get(kind, [])
    found: dict[str, Document] = {}
    for name in _all(tx):
        for place in places:
            offer = {"InstanceType": name, "LocationType": kind, "Location": place}
            if chosen(offer):
                found[f"{name} {place}"] = offer
    items, more = replace(PAGES, default=1000).page(params, among(found))
    return {"InstanceTypeOfferings": items, **more}


def _view(facts: InstanceType) -> Document:
    cores = facts.cores or max(1, facts.vcpus // 2)
    is_nitro = facts.hypervisor != "xen"
    view: Document = {
        "InstanceType": facts.name,
        "CurrentGeneration": bool(facts.current),
        "FreeTierEligible": facts.name in ("t2.micro", "t3.micro"),
        "SupportedUsageClasses": list(facts.usage),
        "SupportedRootDeviceTypes": ["ebs"],
        "SupportedVirtualizationTypes": ["hvm"],
        "SupportedBootModes": ["legacy-bios", "uefi"] if "x86_64" in facts.architectures else ["uefi"],
        "BareMetal": bool(facts.metal),
        "ProcessorInfo": {"SupportedArchitectures": list(facts.architectures)},
        "VCpuInfo": {
            "DefaultVCpus": facts.vcpus,
            "DefaultCores": cores,
            "DefaultThreadsPerCore": max(1, facts.vcpus // cores),
        },
        "MemoryInfo": {"SizeInMiB": facts.memory_mib},
        "InstanceStorageSupported": facts.storage is not None,
        "EbsInfo": {
            "EbsOptimizedSupport": "default",
            "EncryptionSupport": "supported",
            "NvmeSupport": "required" if is_nitro else "unsupported",
        },
        "NetworkInfo": {
            "NetworkPerformance": facts.network,
            "MaximumNetworkInterfaces": facts.interfaces,
            "MaximumNetworkCards": 1,
            "DefaultNetworkCardIndex": 0,
            "Ipv4AddressesPerInterface": facts.addresses,
            "Ipv6AddressesPerInterface": facts.addresses,
            "Ipv6Supported": True,
            "EnaSupport": "required" if is_nitro else "supported",
            "EfaSupported": bool(facts.efa),
        },
        "PlacementGroupInfo": {"SupportedStrategies": ["cluster", "partition", "spread"]},
        "HibernationSupported": False,
        "BurstablePerformanceSupported": bool(facts.burstable),
        "DedicatedHostsSupported": False,
        "AutoRecoverySupported": False,
    }
    if facts.hypervisor is not None:
        view["Hypervisor"] = facts.hypervisor
    if facts.processor is not None:
        view["ProcessorInfo"]["Manufacturer"] = facts.processor
    if facts.clock_ghz is not None:
        view["ProcessorInfo"]["SustainedClockSpeedInGhz"] = facts.clock_ghz
    if facts.gpu is not None:
        model, manufacturer, mib = facts.gpu
        device = {"Name": model, "Manufacturer": manufacturer, "Count": facts.gpus, "MemoryInfo": {"SizeInMiB": mib}}
        view["GpuInfo"] = {"Gpus": [device], "TotalGpuMemoryInMiB": mib * facts.gpus}
    for kind, name, manufacturer, count, mib in facts.accelerators or ():
        device = {"Name": name, "Count": count, "MemoryInfo": {"SizeInMiB": mib}}
        if kind == "neuron":
            view["NeuronInfo"] = {"NeuronDevices": [device], "TotalNeuronDeviceMemoryInMiB": mib * count}
        else:
            view["InferenceAcceleratorInfo"] = {"Accelerators": [{**device, "Manufacturer": manufacturer}]}
    if facts.storage is not None:
        disks = [{"Count": count, "SizeInGB": size, "Type": kind} for count, size, kind in facts.storage]
        total = sum(count * size for count, size, _ in facts.storage)
        view["InstanceStorageInfo"] = {
            "TotalSizeInGB": total,
            "Disks": disks,
            "NvmeSupport": "required" if is_nitro else "unsupported",
        }
    return view
