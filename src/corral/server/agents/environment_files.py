"""Environment files of containers: reads and parses them, in the same format as ECS's agent.

An order to start a run (a container) refers to the blobs that contain the files (`services/ecs/run_spec.py`). The server replaces
these references with variables before it sends the order to the agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from corral.blobs import Blobs
from corral.model.blob import Slice
from corral.model.private_environment import JSON_VALUES
from corral.model.run import RunSpec


async def with_files(spec: RunSpec, blobs: Blobs) -> RunSpec:
    """Return the run with the variables of its environment files.

    Raise FileNotFoundError if the object of a file has been replaced since the order was made.
    """
    if not has_files(spec):
        return spec
    with blobs.reading([each.blob for slices in (*spec.environment_files, *spec.private_files) for each in slices]):
        found, private = await asyncio.to_thread(
            lambda: [_read(files, blobs) for files in (spec.environment_files, spec.private_files)]
        )
    replacing = {name: value for name, value in private.items() if name not in spec.fixed_variables}
    return without_files(replace(spec, environment={**found, **spec.environment, **replacing}))


def has_files(spec: RunSpec) -> bool:
    return bool(spec.environment_files or spec.private_files)


def without_files(spec: RunSpec) -> RunSpec:
    return replace(spec, environment_files=[], private_files=[], fixed_variables=[])


def _read(files: Iterable[Iterable[Slice]], blobs: Blobs) -> dict[str, str]:
    return _variables(blobs.read(slices).decode(errors="replace") for slices in files)


def _variables(texts: Iterable[str]) -> dict[str, str]:
    """Return the variables of several files. If two files set the same variable, use the value of the first file."""
    found: dict[str, str] = {}
    for text in texts:
        for name, value in parse_file(text).items():
            found.setdefault(name, value)
    return found


def parse_file(text: str) -> dict[str, str]:
    """Parse lines of the form NAME=VALUE. Quotes and spaces belong to the value.

    If a file sets a name twice, the value of the last line is used. Comments (#) and lines without a name or a value are ignored.
    If the first line is JSON_VALUES, there are no comments, and each value is a JSON string, so that it can be empty and can
    contain newlines.
    """
    found: dict[str, str] = {}
    if text.partition("\n")[0] == JSON_VALUES:
        for line in text.split("\n")[1:]:
            name, equals, value = line.partition("=")
            if name and equals:
                found[name] = _json_string(value)
        return found
    for line in text.split("\n"):
        name, _, value = line.removesuffix("\r").partition("=")
        if name and value and not name.startswith("#"):
            found[name] = value
    return found


def _json_string(text: str) -> str:
    """Return the value of a JSON string. A text that is not a JSON string is returned unchanged."""
    try:
        return msgspec.json.decode(text, type=str)
    except (msgspec.DecodeError, UnicodeError):
        return text
