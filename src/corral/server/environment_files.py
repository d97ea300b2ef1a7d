"""The bytes of a run's environment files, which lie in blobs, become variables of its environment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from msgspec.structs import replace

from corral.blobs import Blobs
from corral.decide.env_file import variables
from corral.model.blob import Slice
from corral.model.run import RunSpec


async def with_files(spec: RunSpec, blobs: Blobs) -> RunSpec:
    """The run as its host is told of it. FileNotFoundError: an object was replaced since; whoever asks again finds the new one."""
    if not spec.environment_files:
        return spec
    with blobs.reading([each.blob for slices in spec.environment_files for each in slices]):
        found = await asyncio.to_thread(_read, spec.environment_files, blobs)
    return replace(spec, environment={**found, **spec.environment}, environment_files=[])


def _read(files: Iterable[Iterable[Slice]], blobs: Blobs) -> dict[str, str]:
    return variables(blobs.read(slices).decode(errors="replace") for slices in files)
