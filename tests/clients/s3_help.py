"""What tests of S3 share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
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
    """The typed error, its status, and further members of it."""
    with pytest.raises(ClientError) as raised:
        yield raised
    said = raised.value.response
    assert said["Error"]["Code"] == code, said
    assert status is None or said["ResponseMetadata"]["HTTPStatusCode"] == status
    assert {name: said["Error"].get(name) for name in members} == members


def files(corral: Corral) -> list[Path]:
    """All that lies in the folder of blobs, also what is still arriving."""
    return [Path(folder) / name for folder, _, names in os.walk(corral.data / "blobs") for name in names]


def settled(corral: Corral, count: int) -> None:
    """Nothing is thrown away at once: wait until so many files are left."""
    eventually(lambda: len(files(corral)) == count, f"{count} blobs, not {[str(file) for file in files(corral)]}")
