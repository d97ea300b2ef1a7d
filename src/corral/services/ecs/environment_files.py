"""Environment files of containers: objects of S3 whose lines a container finds in its environment.

Which object that is, and where its bytes lie, is looked up when a run is told to start. They are read on the way to its host.
"""

from __future__ import annotations

import re
from typing import Any

from corral.core import Tx
from corral.errors import ApiError
from corral.model.blob import Slice
from corral.store import Store

FILES_MAX_BYTES = 2**20  # of a container's, together. ECS has no limit, but no program could be started with much more
OBJECT = re.compile(r"arn:aws[a-z-]*:s3:::([^/]+)/(.+)")
NO_FILES = "ResourceInitializationError: failed to download env files: file download command: non empty error stream: {}"


def files_of(tx: Tx[Store], container: dict[str, Any]) -> tuple[list[tuple[Slice, ...]], str | None]:
    """Where the bytes of a container's files lie, in their order, and why it cannot start; None: it can."""
    wanted = [file["value"] for file in container.get("environmentFiles", ())]
    if not wanted:
        return [], None
    found, missing, size = list[tuple[Slice, ...]](), list[str](), 0
    for value in wanted:
        try:
            slices = _slices(tx, value)
            size += sum(each.size for each in slices)
            found.append(slices)
        except ApiError as error:
            missing.append(f"failed to download file {value}: {error.code}: {error.message}")
    if size > FILES_MAX_BYTES:
        missing.append(f"the files of a container must not be larger than {FILES_MAX_BYTES} bytes together")
    return ([], NO_FILES.format("; ".join(missing))) if missing else (found, None)


def _slices(tx: Tx[Store], value: str) -> tuple[Slice, ...]:
    from corral.services.s3.errors import NoSuchBucket  # only here: few have files
    from corral.services.s3.lookup import existing_version

    named = OBJECT.fullmatch(value)
    assert named is not None
    bucket = tx.store.buckets.get(named[1])
    if bucket is None:
        raise NoSuchBucket("The specified bucket does not exist")
    version = existing_version(tx, bucket, named[2], None)
    return tx.store.objects.slices(version.content, 0, version.size) if version.content is not None else ()
