"""Reads corral.toml in the data folder when Corral starts. Errors name the file, the line and the key.

[instance-types]
p3.16xlarge = {gpus = 4}                               # an AWS type, with fewer GPUs
lab.large = {gpus = 2, vcpus = 16, memory_gib = 64}    # a type that AWS does not have

[scaling]
busy_wait_s = 900                                      # seconds; model/settings.py describes all keys of this table
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from corral.data_folder import CONFIGURATION
from corral.errors import Refused
from corral.model.instance import TypeMapping
from corral.model.settings import ScalingTimes
from corral.services.ec2.instance_types import is_known

TYPES, SCALING = "instance-types", "scaling"
TIMES = ScalingTimes.__struct_fields__
TIME_MAX_S = 48 * 3600  # as long as UpdateTaskProtection can protect a task
TYPE_NAME = re.compile(r"[a-z0-9-]{1,32}\.[a-z0-9-]{1,32}")
FIELDS = ("gpus", "vcpus", "memory_gib")
GPUS_MAX, VCPUS_MAX, MEMORY_MAX_GIB = 1024, 65_536, 1_048_576.0
FILE_MAX_BYTES = 1024 * 1024


class Configuration(Struct, frozen=True):
    """The content of corral.toml, with defaults for missing keys."""

    instance_types: dict[str, TypeMapping] = field(default_factory=dict)
    scaling: ScalingTimes = field(default_factory=ScalingTimes)


def read_configuration(data: Path) -> Configuration:
    """Read corral.toml. If the file does not exist, return the defaults."""
    path = data / CONFIGURATION
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Configuration()
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}.") from None
    import tomllib  # not at the top: most data folders have no corral.toml

    try:
        if len(content) > FILE_MAX_BYTES:
            raise ValueError(f"it has more than {FILE_MAX_BYTES} bytes")
        text = content.decode()
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{path} is not valid TOML: {error}. Correct or delete it.") from None
    file = _TomlFile(path, text)
    for table in document:
        if table not in (TYPES, SCALING):
            raise file.error(table, f"the table [{table}] is unknown. Corral reads [{TYPES}] and [{SCALING}]")
    types, scaling = document.get(TYPES, {}), document.get(SCALING, {})
    if not isinstance(types, dict):
        raise file.error(TYPES, f"{TYPES} is not a table. Write [{TYPES}] and one line per type below it")
    if not isinstance(scaling, dict):
        raise file.error(SCALING, f"{SCALING} is not a table. Write [{SCALING}], and {TIMES[0]} = 900 below it")
    mappings = {name: _mapping(file, name, value) for name, value in _by_type(types).items()}
    return Configuration(mappings, _scaling_times(file, scaling))


def _scaling_times(file: _TomlFile, scaling: dict[str, Any]) -> ScalingTimes:
    for key, given in scaling.items():
        if key not in TIMES:
            raise file.error(key, f"[{SCALING}] has the unknown key '{key}'. Use {', '.join(TIMES)}")
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= TIME_MAX_S:
            raise file.error(key, f"{key} is {given!r}, but it must be a number from 0 to {TIME_MAX_S}")
    return ScalingTimes(**{key: float(given) for key, given in scaling.items()})


class _TomlFile:
    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.lines = text.splitlines()

    def error(self, key: str, problem: str) -> Refused:
        """Return an error that names the line of a key."""
        plain = [line.replace('"', "").replace("'", "") for line in self.lines]
        for wanted in (key, key.rpartition(".")[2]):
            for number, line in enumerate(plain, 1):
                if re.search(rf"(?<![\w-]){re.escape(wanted)}(?![\w-])", line.partition("#")[0]):
                    return Refused(f"{self.path}, line {number}: {problem}.")
        return Refused(f"{self.path}: {problem}.")


def _by_type(types: dict[str, Any]) -> dict[str, Any]:
    """Return the definitions by type name. TOML reads the dot in `p3.16xlarge = …` as a nested table."""
    found: dict[str, Any] = {}
    for name, value in types.items():
        if "." not in name and isinstance(value, dict) and not set(value) & set(FIELDS):
            found |= {f"{name}.{size}": inner for size, inner in value.items()}
        else:
            found[name] = value
    return found


def _mapping(file: _TomlFile, name: str, value: Any) -> TypeMapping:
    if not TYPE_NAME.fullmatch(name):
        raise file.error(name, f"'{name}' is not an instance type: a type is a family and a size, such as p3.8xlarge")
    if not isinstance(value, dict) or not value:
        raise file.error(name, f"{name} needs a table: {name} = {{gpus = 4}}")
    for key, given in value.items():
        if key not in FIELDS:
            raise file.error(name, f"{name} has the unknown key '{key}'. Use {', '.join(FIELDS)}")
        most = {"gpus": GPUS_MAX, "vcpus": VCPUS_MAX, "memory_gib": MEMORY_MAX_GIB}[key]
        least = {"gpus": 0, "vcpus": 1, "memory_gib": 0.5}[key]
        kinds = int | float if key == "memory_gib" else int
        if isinstance(given, bool) or not isinstance(given, kinds) or not least <= given <= most:
            number = "number" if key == "memory_gib" else "whole number"
            raise file.error(name, f"{key} of {name} is {given!r}, but it must be a {number} from {least} to {most:g}")
    missing = [key for key in FIELDS if key not in value]
    if missing and not is_known(name):
        raise file.error(name, f"{name} is not a type of AWS, so it also needs {' and '.join(missing)}")
    memory = value.get("memory_gib")
    return TypeMapping(value.get("gpus"), value.get("vcpus"), None if memory is None else float(memory))
