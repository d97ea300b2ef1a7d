"""Reads corral.toml in the data folder when Corral starts. Errors name the file, the line and the key.

[up]
port = 4600                                            # the options of `corral up`, which stores them here

[instance-types]
p3.16xlarge = {gpus = 4}                               # an AWS type, with fewer GPUs
lab.large = {gpus = 2, vcpus = 16, memory_gib = 64}    # a type that AWS does not have

[clusters]
train = {lost_after = 600}                             # seconds after which a silent host of the cluster is lost
[lenders.slurm]                                        # machines that a Slurm cluster gives to instances
partition = "gpu"

[scaling]
busy_wait_s = 900                                      # seconds

configuration/settings.py describes the keys of [up], of [scaling] and of further tables.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from msgspec import Struct, ValidationError, convert, field

from corral.configuration.file import ConfigurationFile, read_file
from corral.configuration.settings import CLUSTERS, HISTORY, INSTANCE_TYPES, LENDERS, OUTPUTS, SCALING, SHARES, USAGE, defaults
from corral.model.agent_protocol import SILENT_S
from corral.model.allocation import LOCAL
from corral.model.instance import TypeMapping
from corral.model.lender_settings import KINDS, LenderSettings, RaySettings
from corral.model.settings import HistorySettings, OutputSettings, ScalingTimes, UsageSettings

TYPE_NAME = re.compile(r"[a-z0-9-]{1,32}\.[a-z0-9-]{1,32}")
UNITS_S = {"h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}
LOST_AFTER, LOST_AFTER_MIN_S, LOST_AFTER_MAX_S = "lost_after", 2 * SILENT_S, 30 * 86_400.0
LENDER_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
SIZES = ("gpus", "vcpus", "memory_gib")
FIELDS = (*SIZES, "lenders")
DASHBOARD = re.compile(r"https?://[^/?#@\s]+(/[^?#\s]*)?")
POLL_MIN_S, POLL_MAX_S = 0.1, 300.0
GPUS_MAX, VCPUS_MAX, MEMORY_MAX_GIB = 1024, 65_536, 1_048_576.0


class Configuration(Struct, frozen=True):
    """The content of corral.toml, with defaults for missing keys."""

    instance_types: dict[str, TypeMapping] = field(default_factory=dict)
    lost_after: dict[str, float] = field(default_factory=dict)  # cluster → seconds
    lenders: dict[str, LenderSettings] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=defaults)  # all other settings by name, for example `up.port`

    @property
    def scaling(self) -> ScalingTimes:
        return ScalingTimes(**{key: float(self.values[f"{SCALING}.{key}"]) for key in ScalingTimes.__struct_fields__})

    @property
    def history(self) -> HistorySettings:
        return HistorySettings(float(self.values[f"{HISTORY}.days"]), self.values[f"{HISTORY}.tasks"])

    @property
    def half_life_s(self) -> float:
        text = self.values[f"{SHARES}.half_life"]
        return int(text[:-1]) * UNITS_S[text[-1]]

    @property
    def outputs(self) -> OutputSettings:
        return OutputSettings(**{key: self.values[f"{OUTPUTS}.{key}"] for key in OutputSettings.__struct_fields__})

    @property
    def usage(self) -> UsageSettings:
        return UsageSettings(float(self.values[f"{USAGE}.idle_after_s"]), self.values[f"{USAGE}.notify"])


def read_configuration(data: Path) -> Configuration:
    """Read corral.toml. If the file does not exist, return the defaults."""
    file = read_file(data)
    values, types = file.values(), file.document.get(INSTANCE_TYPES, {})
    if not isinstance(types, dict):
        raise file.error(
            INSTANCE_TYPES, f"{INSTANCE_TYPES} is not a table. Write [{INSTANCE_TYPES}] and one line per type below it"
        )
    lenders = _lenders(file)
    mappings = {name: _mapping(file, name, value, lenders) for name, value in _by_type(types).items()}
    return Configuration(mappings, _lost_after(file), lenders, values)


def _lost_after(file: ConfigurationFile) -> dict[str, float]:
    clusters, found = file.document.get(CLUSTERS, {}), {}
    if not isinstance(clusters, dict):
        raise file.error(CLUSTERS, f"{CLUSTERS} is not a table. Write [{CLUSTERS}] and one line per cluster below it")
    for name, about in clusters.items():
        if not isinstance(about, dict) or about.keys() - {LOST_AFTER}:
            raise file.error(name, f"{name} needs a table with {LOST_AFTER}: {name} = {{{LOST_AFTER} = 600}}")
        value = about.get(LOST_AFTER)
        if isinstance(value, bool) or not isinstance(value, int | float) or not LOST_AFTER_MIN_S <= value <= LOST_AFTER_MAX_S:
            limits = f"from {LOST_AFTER_MIN_S:.0f} to {LOST_AFTER_MAX_S:.0f}"
            raise file.error(name, f"{LOST_AFTER} of {name} is {value!r}, but it must be a number of seconds {limits}")
        found[name] = float(value)
    return found


def _lenders(file: ConfigurationFile) -> dict[str, LenderSettings]:
    tables = file.document.get(LENDERS, {})
    if not isinstance(tables, dict) or not all(isinstance(each, dict) for each in tables.values()):
        raise file.error(LENDERS, f"{LENDERS} has a table for each lender. Write [{LENDERS}.slurm], and its settings below it")
    return {name: _lender(file, name, table) for name, table in tables.items()}


def _lender(file: ConfigurationFile, name: str, table: dict[str, Any]) -> LenderSettings:
    if not LENDER_NAME.fullmatch(name) or name == LOCAL:
        rule = f"use up to 32 lowercase letters, digits and hyphens, and not {LOCAL}, which means the hosts that have joined"
        raise file.error(name, f"'{name}' is not valid as the name of a lender: {rule}")
    kind = table.get("kind", "slurm")
    if kind not in KINDS:
        raise file.error(f"{LENDERS}.{name}", f"kind of [{LENDERS}.{name}] is {kind!r}, but it must be {' or '.join(KINDS)}")
    try:
        found: LenderSettings = convert(table, KINDS[kind])
    except ValidationError as problem:
        raise file.error(f"{LENDERS}.{name}", f"[{LENDERS}.{name}] is not valid: {problem}") from None
    if unknown := next((key for key in found.allow if key not in found.options), None):
        raise file.error(unknown, f"allow of [{LENDERS}.{name}] has the unknown key '{unknown}'. Use {', '.join(found.options)}")
    if isinstance(found, RaySettings) and not DASHBOARD.fullmatch(found.dashboard):
        raise file.error("dashboard", f"dashboard of [{LENDERS}.{name}] is '{found.dashboard}', but it must be http://HOST:PORT")
    if not POLL_MIN_S <= found.poll_s <= POLL_MAX_S:
        raise file.error("poll_s", f"poll_s is {found.poll_s:g}, but it must be from {POLL_MIN_S:g} to {POLL_MAX_S:g} seconds")
    return found


def _by_type(types: dict[str, Any]) -> dict[str, Any]:
    """Return the definitions by type name. TOML reads `p3.16xlarge = …` as the key `16xlarge` in a nested table `p3`."""
    found: dict[str, Any] = {}
    for name, value in types.items():
        if "." not in name and isinstance(value, dict) and not set(value) & set(FIELDS):
            found |= {f"{name}.{size}": inner for size, inner in value.items()}
        else:
            found[name] = value
    return found


def _mapping(file: ConfigurationFile, name: str, value: Any, lenders: Collection[str]) -> TypeMapping:
    if not TYPE_NAME.fullmatch(name):
        raise file.error(name, f"'{name}' is not an instance type: a type is a family and a size, such as p3.8xlarge")
    if not isinstance(value, dict) or not value:
        raise file.error(name, f"{name} needs a table: {name} = {{gpus = 4}}")
    for key, given in value.items():
        if key not in FIELDS:
            raise file.error(name, f"{name} has the unknown key '{key}'. Use {', '.join(FIELDS)}")
        if key == "lenders":
            _check_lenders(file, name, given, lenders)
            continue
        most = {"gpus": GPUS_MAX, "vcpus": VCPUS_MAX, "memory_gib": MEMORY_MAX_GIB}[key]
        least = {"gpus": 0, "vcpus": 1, "memory_gib": 0.5}[key]
        kinds = int | float if key == "memory_gib" else int
        if isinstance(given, bool) or not isinstance(given, kinds) or not least <= given <= most:
            number = "number" if key == "memory_gib" else "whole number"
            raise file.error(name, f"{key} of {name} is {given!r}, but it must be a {number} from {least} to {most:g}")
    missing = [key for key in SIZES if key not in value]
    if missing and not _is_known(name):
        raise file.error(name, f"{name} is not a type of AWS, so it also needs {' and '.join(missing)}")
    memory = value.get("memory_gib")
    return TypeMapping(
        value.get("gpus"), value.get("vcpus"), None if memory is None else float(memory), tuple(value.get("lenders", ()))
    )


def _check_lenders(file: ConfigurationFile, name: str, given: Any, lenders: Collection[str]) -> None:
    if not isinstance(given, list) or not given:
        raise file.error(name, f'lenders of {name} is {given!r}, but it must be a list, such as ["slurm", "{LOCAL}"]')
    if unknown := next((each for each in given if each != LOCAL and each not in lenders), None):
        raise file.error(name, f"lenders of {name} names '{unknown}', but there is no table [{LENDERS}.{unknown}]")


def _is_known(name: str) -> bool:
    """Return whether AWS has a type with this name."""
    from corral.fleet.instance_types import is_known  # imported here, because it takes memory and few users define types

    return is_known(name)
