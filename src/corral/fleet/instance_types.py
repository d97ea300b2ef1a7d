"""Sizes and prices of instance types.

`tools/instance_types.py` generates the file with the types of AWS. `[instance-types]` in corral.toml changes sizes and adds types.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path

from msgspec import Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from corral.model.instance import TypeMapping

CPU_UNITS = 1024  # CPU units per vCPU
MIB = 1024  # MiB per GiB
_FILE = Path(__file__).parent / "instance_types.jsonl.gz"


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


def price_of(name: str) -> Price | None:
    """Return the hourly prices of a type on AWS, or None if no price is known."""
    found = _facts(name)
    if found is None or (found.on_demand is None and found.spot is None):
        return None
    listed = Decoder(_FileHead).decode(_text().split(b"\n", 1)[0]).prices
    return Price(found.on_demand, found.spot, listed.date, listed.region)


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


def every_type(mappings: Mapping[str, TypeMapping]) -> dict[str, InstanceType]:
    """Return all types of AWS, changed and extended by these entries of corral.toml."""
    types = _catalogue()
    return {**types, **{name: _mapped(name, types.get(name), mapping) for name, mapping in mappings.items()}}
