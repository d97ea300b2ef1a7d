"""Helpers for the tests of S3 and the registry."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from botocore.exceptions import ClientError

from eventually import eventually
from harness import Corral

MIB = 1024 * 1024


def new_bucket(s3: Any, *, versions: bool = False) -> str:
    name = f"tests-{uuid4().hex[:20]}"
    s3.create_bucket(Bucket=name)
    if versions:
        s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    return name


@contextmanager
def refused(code: str, status: int | None = None, **members: Any) -> Iterator[Any]:
    """Expect a typed error with this code, status and members."""
    with pytest.raises(ClientError) as raised:
        yield raised
    response = raised.value.response
    assert response["Error"]["Code"] == code, response
    assert status is None or response["ResponseMetadata"]["HTTPStatusCode"] == status
    assert {name: response["Error"].get(name) for name in members} == members


def files(corral: Corral) -> list[Path]:
    """All files in the folder of blobs, including unfinished ones."""
    return [Path(folder) / name for folder, _, names in os.walk(corral.data / "blobs") for name in names]


def sizes(corral: Corral) -> Iterator[int]:
    """The sizes of these files. A file can be erased in between."""
    for file in files(corral):
        with suppress(FileNotFoundError):
            yield file.stat().st_size


def wait_for_blobs(corral: Corral, count: int) -> None:
    """Wait until the garbage collection has left this number of files."""
    eventually(lambda: len(files(corral)) == count, f"{count} blobs, not {[str(file) for file in files(corral)]}")
