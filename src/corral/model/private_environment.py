"""The private S3 bucket with the environment variables of runs.

`corral run` stores the variables of a run in an object of this bucket, because everybody who may describe a task can read its
overrides. The overrides refer to the object as an environment file. Its variables have the priority of overrides: they replace the
variables of the task definition. Only the root user can read the bucket. Corral deletes an object when all tasks that refer to it
have ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

BUCKET = "corral-run-environments"  # cli/runs/environment.py repeats this name
JSON_VALUES = "# corral: values are JSON strings"  # the first line of an environment file whose values are JSON strings
OBJECT_MAX_BYTES = 2**20  # Linux cannot start a program with a much larger environment
UNUSED_S = 60.0  # an object is deleted this long after the last task that refers to it has ended
UPLOADED_S = 3600.0  # an object to which no task ever refers is deleted this long after its upload
_PREFIX = f"arn:aws:s3:::{BUCKET}/"


def is_private(object_arn: str) -> bool:
    return object_arn.startswith(_PREFIX)


def private_objects(overrides: dict[str, Any]) -> Iterator[str]:
    """Yield the keys of the objects of the private bucket to which the overrides of a task refer."""
    for override in overrides.get("containerOverrides", ()):
        for file in override.get("environmentFiles", ()):
            if is_private(file["value"]):
                yield file["value"].removeprefix(_PREFIX)
