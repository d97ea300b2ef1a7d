"""Decides whether an instance type meets the InstanceRequirements of a mixed instances policy.

Requirements on network bandwidth, EBS bandwidth and hibernation are ignored, because Corral does not know these facts about types.
Price protection is ignored, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from math import inf
from typing import Any

from msgspec import Struct

GIB = 1024  # MiB per GiB


class TypeFacts(Struct, frozen=True):
    """The facts about an instance type that requirements are compared with."""

    name: str
    vcpus: int
    memory_mib: int
    accelerators: tuple[tuple[str, str, str, int, int], ...] = ()  # (kind, name, manufacturer, count, MiB each), in lower case
    processor: str = ""  # the manufacturer of the processor, in lower case
    is_current: bool = True
    is_metal: bool = False
    is_burstable: bool = False
    disk_gb: int = 0
    disk_kinds: frozenset[str] = frozenset()
    interfaces: int = 1


def meets(facts: TypeFacts, wanted: Mapping[str, Any]) -> bool:
    count = sum(each[3] for each in facts.accelerators)
    ranges = {
        "VCpuCount": facts.vcpus,
        "MemoryMiB": facts.memory_mib,
        "MemoryGiBPerVCpu": facts.memory_mib / GIB / facts.vcpus,
        "TotalLocalStorageGB": facts.disk_gb,
        "NetworkInterfaceCount": facts.interfaces,
        "AcceleratorCount": count,
        "AcceleratorTotalMemoryMiB": sum(each[3] * each[4] for each in facts.accelerators),
    }
    if not all(_within(value, wanted.get(member)) for member, value in ranges.items()):
        return False
    generation = "current" if facts.is_current else "previous"
    return (
        _allowed(facts.name, wanted.get("AllowedInstanceTypes"), wanted.get("ExcludedInstanceTypes"))
        and generation in (wanted.get("InstanceGenerations") or (generation,))
        and _wish(wanted.get("BareMetal", "excluded"), has=facts.is_metal)
        and _wish(wanted.get("BurstablePerformance", "excluded"), has=facts.is_burstable)
        and _wish(wanted.get("LocalStorage", "included"), has=facts.disk_gb > 0)
        and facts.disk_kinds >= set(wanted.get("LocalStorageTypes") or ())
        and facts.processor in (wanted.get("CpuManufacturers") or (facts.processor,))
        and _has_accelerator(facts, wanted)
    )


def _within(value: float, wanted: Mapping[str, float] | None) -> bool:
    return wanted is None or wanted.get("Min", 0) <= value <= wanted.get("Max", inf)


def _wish(wish: str, *, has: bool) -> bool:
    return wish == "included" or has == (wish == "required")


def _allowed(name: str, allowed: list[str] | None, excluded: list[str] | None) -> bool:
    if allowed and not any(_pattern(each).fullmatch(name) for each in allowed):
        return False
    return not any(_pattern(each).fullmatch(name) for each in excluded or ())


@lru_cache(maxsize=1024)
def _pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern of type names. `*` is the only wildcard. A pattern without a dot, for example `m5*`, names families."""
    whole = text if "." in text else f"{text}.*"
    return re.compile("[^ ]*".join(map(re.escape, re.sub(r"\*+", "*", whole).split("*"))))


def _has_accelerator(facts: TypeFacts, wanted: Mapping[str, Any]) -> bool:
    """Return whether an accelerator of the type has a wanted kind, a wanted manufacturer and a wanted name."""
    kinds, makers, names = (wanted.get(f"Accelerator{part}") for part in ("Types", "Manufacturers", "Names"))
    if not (kinds or makers or names):
        return True
    return any(
        (not kinds or kind in kinds) and (not makers or maker in makers) and (not names or name in names)
        for kind, name, maker, _, _ in facts.accelerators
    )
