"""The operations DescribeInstanceTypes and DescribeInstanceTypeOfferings, and the sizes of types (`fleet/instance_types.py`)."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.fleet.instance_types import CPU_UNITS, InstanceType, every_type, find_type
from corral.operations.pagination import among
from corral.operations.stored_resources import Document, Params
from corral.services.ec2.errors import InvalidInstanceType, InvalidNextToken, InvalidParameterValue
from corral.services.ec2.filters import filtered
from corral.services.ec2.resources import PAGES
from corral.services.ec2.zones import zone_id, zone_names
from corral.store import Store

TYPE_PAGES = replace(PAGES, default=100, largest=100)


class TypeSize(Struct, frozen=True):
    """The resources that an instance of a type has on this machine."""

    gpus: int
    cpu_units: int
    memory_mib: int


def size_of(tx: Tx[Store], name: str) -> TypeSize:
    """Return the size of a type, with corral.toml applied. Raise EC2's error if neither AWS nor corral.toml has the type."""
    found = _find(tx, name)
    if found is None:
        raise InvalidParameterValue(
            f"Invalid value '{name}' for InstanceType: EC2 has no such type. Use a type that DescribeInstanceTypes lists, or "
            f"define it in corral.toml: [instance-types] {name} = {{gpus = 1, vcpus = 8, memory_gib = 32}}"
        )
    return TypeSize(found.gpus, found.vcpus * CPU_UNITS, found.memory_mib)


def architecture_of(tx: Tx[Store], name: str) -> str:
    found = _find(tx, name)
    return found.architectures[-1] if found is not None else "x86_64"


def _find(tx: Tx[Store], name: str) -> InstanceType | None:
    return find_type(tx.settings.instance_types, name)


def _all(tx: Tx[Store]) -> dict[str, InstanceType]:
    """Return all types, with corral.toml applied."""
    return every_type(tx.settings.instance_types)


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
