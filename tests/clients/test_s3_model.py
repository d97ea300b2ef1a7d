"""A stateful test: a bucket and a dict get the same random requests through boto3, and must always agree."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from clients.s3_help import MIB, files, new_bucket, refused, wait_for_blobs
from harness import Corral

EXAMPLES = int(os.environ.get("CORRAL_EXAMPLES", "1"))
PART = b"5" * (5 * MIB)  # the minimum size of a part that is not the last
KEYS = st.sampled_from(["a", "a/1", "a/2", "a/b/1", "b", "b/", "é", "~"])
BODIES = st.one_of(st.binary(max_size=40), st.sampled_from([b"x" * 70_000, b"y" * 300_000]))
PAGES = st.integers(1, 3)


@dataclass
class Known:
    """A version in the model."""

    id: str
    body: bytes | None  # None: a delete marker
    metadata: dict[str, str] = field(default_factory=dict)


class Bucket(RuleBasedStateMachine):
    corral: Corral
    s3: Any

    @initialize()
    def begin(self) -> None:
        self.name = new_bucket(self.s3)
        self.versioning = ""
        self.versions: dict[str, list[Known]] = {}  # newest first
        self.uploads: dict[str, tuple[str, dict[int, bytes]]] = {}

    # The model

    def _add(self, key: str, body: bytes | None, metadata: dict[str, str], answer: dict[str, Any]) -> None:
        there = self.versions.setdefault(key, [])
        version_id = answer.get("VersionId", "null")
        if self.versioning != "Enabled":
            assert version_id == "null"
            there[:] = [each for each in there if each.id != "null"]
        assert version_id not in [each.id for each in there]
        there.insert(0, Known(version_id, body, metadata))

    def _current(self) -> dict[str, Known]:
        return {key: there[0] for key, there in self.versions.items() if there and there[0].body is not None}

    def _latest(self, key: str) -> Known | None:
        return self._current().get(key)

    # Requests to both

    @rule(status=st.sampled_from(["Enabled", "Suspended"]))
    def set_versioning(self, status: str) -> None:
        self.s3.put_bucket_versioning(Bucket=self.name, VersioningConfiguration={"Status": status})
        self.versioning = status

    @rule(key=KEYS, body=BODIES, tag=st.sampled_from(["", "one", "two"]))
    def put(self, key: str, body: bytes, tag: str) -> None:
        metadata = {"tag": tag} if tag else {}
        answer = self.s3.put_object(Bucket=self.name, Key=key, Body=body, Metadata=metadata)
        assert answer["ETag"] == f'"{hashlib.md5(body).hexdigest()}"'
        self._add(key, body, metadata, answer)

    @rule(key=KEYS, body=BODIES)
    def put_if_new(self, key: str, body: bytes) -> None:
        if self._latest(key) is not None:
            with refused("PreconditionFailed", 412):
                self.s3.put_object(Bucket=self.name, Key=key, Body=body, IfNoneMatch="*")
        else:
            self._add(key, body, {}, self.s3.put_object(Bucket=self.name, Key=key, Body=body, IfNoneMatch="*"))

    @rule(key=KEYS)
    def get(self, key: str) -> None:
        latest = self._latest(key)
        if latest is None:
            with refused("NoSuchKey", 404):
                self.s3.get_object(Bucket=self.name, Key=key)
            return
        got = self.s3.get_object(Bucket=self.name, Key=key)
        assert (got["Body"].read() == latest.body, got["Metadata"]) == (True, latest.metadata)

    @rule(key=KEYS, first=st.integers(0, 100), size=st.integers(1, 80_000))
    def get_range(self, key: str, first: int, size: int) -> None:
        latest = self._latest(key)
        if latest is None or latest.body is None:
            return
        if first >= len(latest.body):
            with refused("InvalidRange", 416):
                self.s3.get_object(Bucket=self.name, Key=key, Range=f"bytes={first}-{first + size - 1}")
            return
        got = self.s3.get_object(Bucket=self.name, Key=key, Range=f"bytes={first}-{first + size - 1}")
        assert got["Body"].read() == latest.body[first : first + size]

    @rule(source=KEYS, key=KEYS, pick=st.integers(0, 3))
    def copy(self, source: str, key: str, pick: int) -> None:
        there = [each for each in self.versions.get(source, []) if each.body is not None]
        if not there:
            return
        chosen = there[pick % len(there)]
        where = {"Bucket": self.name, "Key": source, "VersionId": chosen.id}
        answer = self.s3.copy_object(
            Bucket=self.name, Key=key, CopySource=where, MetadataDirective="REPLACE", Metadata={"copy": "yes"}
        )
        self._add(key, chosen.body, {"copy": "yes"}, answer)

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        answer = self.s3.delete_object(Bucket=self.name, Key=key)
        if self.versioning:
            assert answer["DeleteMarker"] is True
            self._add(key, None, {}, answer)
        else:
            self.versions.pop(key, None)

    @rule(key=KEYS, pick=st.integers(0, 3))
    def delete_version(self, key: str, pick: int) -> None:
        there = self.versions.get(key)
        if there:
            gone = there.pop(pick % len(there))
            answer = self.s3.delete_object(Bucket=self.name, Key=key, VersionId=gone.id)
            assert answer.get("DeleteMarker", False) == (gone.body is None)

    @rule(keys=st.lists(KEYS, min_size=1, max_size=4, unique=True))
    def delete_many(self, keys: list[str]) -> None:
        answer = self.s3.delete_objects(Bucket=self.name, Delete={"Objects": [{"Key": key} for key in keys]})
        assert [each["Key"] for each in answer["Deleted"]] == keys
        for key, each in zip(keys, answer["Deleted"]):
            if self.versioning:
                self._add(key, None, {}, {"VersionId": each["DeleteMarkerVersionId"]})
            else:
                self.versions.pop(key, None)

    @rule(key=KEYS)
    def begin_upload(self, key: str) -> None:
        if len(self.uploads) < 3:
            upload_id = self.s3.create_multipart_upload(Bucket=self.name, Key=key)["UploadId"]
            self.uploads[upload_id] = (key, {})

    @rule(pick=st.integers(0, 2), number=st.integers(1, 3), body=st.one_of(BODIES, st.just(PART)))
    def put_part(self, pick: int, number: int, body: bytes) -> None:
        if self.uploads:
            upload_id = sorted(self.uploads)[pick % len(self.uploads)]
            key, parts = self.uploads[upload_id]
            self.s3.upload_part(Bucket=self.name, Key=key, UploadId=upload_id, PartNumber=number, Body=body)
            parts[number] = body

    @rule(pick=st.integers(0, 2), wanted=st.sets(st.integers(1, 3), min_size=1), keep=st.booleans())
    def end_upload(self, pick: int, wanted: set[int], keep: bool) -> None:
        if not self.uploads:
            return
        upload_id = sorted(self.uploads)[pick % len(self.uploads)]
        key, parts = self.uploads[upload_id]
        where = {"Bucket": self.name, "Key": key, "UploadId": upload_id}
        if not keep:
            self.s3.abort_multipart_upload(**where)
            del self.uploads[upload_id]
            return
        there = {each["PartNumber"]: each["ETag"] for each in self.s3.list_parts(**where).get("Parts", [])}
        assert sorted(there) == sorted(parts)
        listed = [{"PartNumber": number, "ETag": there.get(number, '"none"')} for number in sorted(wanted)]
        chosen = [parts.get(number) for number in sorted(wanted)]
        if None in chosen:
            with refused("InvalidPart", 400):
                self.s3.complete_multipart_upload(**where, MultipartUpload={"Parts": listed})
        elif any(len(part or b"") < 5 * MIB for part in chosen[:-1]):
            with refused("EntityTooSmall", 400):
                self.s3.complete_multipart_upload(**where, MultipartUpload={"Parts": listed})
        else:
            answer = self.s3.complete_multipart_upload(**where, MultipartUpload={"Parts": listed})
            del self.uploads[upload_id]
            self._add(key, b"".join(part or b"" for part in chosen), {}, answer)

    @rule(prefix=st.sampled_from(["", "a", "a/", "b", "é"]), delimiter=st.sampled_from(["", "/"]), size=PAGES)
    def list_objects(self, prefix: str, delimiter: str, size: int) -> None:
        expected: dict[str, int | None] = {}
        for key, known in self._current().items():
            if key.startswith(prefix):
                at = key.find(delimiter, len(prefix)) if delimiter else -1
                expected[key if at < 0 else key[: at + 1]] = len(known.body or b"") if at < 0 else None
        options = {"Prefix": prefix, **({"Delimiter": delimiter} if delimiter else {}), "PaginationConfig": {"PageSize": size}}
        found: dict[str, int | None] = {}
        for page in self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.name, **options):
            here = {each["Key"]: each["Size"] for each in page.get("Contents", [])}
            here |= {each["Prefix"]: None for each in page.get("CommonPrefixes", [])}
            assert not here.keys() & found.keys() and len(here) <= size
            found |= here
        assert found == expected

    @rule(size=PAGES)
    def list_versions(self, size: int) -> None:
        found = []
        pages = self.s3.get_paginator("list_object_versions").paginate(Bucket=self.name, PaginationConfig={"PageSize": size})
        for page in pages:
            found += [(each["Key"], each["VersionId"], each["IsLatest"], False) for each in page.get("Versions", [])]
            found += [(each["Key"], each["VersionId"], each["IsLatest"], True) for each in page.get("DeleteMarkers", [])]
        expected = [
            (key, each.id, at == 0, each.body is None) for key, there in self.versions.items() for at, each in enumerate(there)
        ]
        assert sorted(found) == sorted(expected)

    @invariant()
    def versions_are_readable(self) -> None:
        """Reads one older version each time, because reading all would take too long."""
        older = [(key, each) for key, there in getattr(self, "versions", {}).items() for each in there[1:] if each.body is not None]
        for key, each in older[-1:]:
            got = self.s3.get_object(Bucket=self.name, Key=key, VersionId=each.id)
            assert got["Body"].read() == each.body

    def teardown(self) -> None:
        """Delete everything; no file may be left."""
        for upload_id, (key, _) in self.uploads.items():
            self.s3.abort_multipart_upload(Bucket=self.name, Key=key, UploadId=upload_id)
        doomed = [{"Key": key, "VersionId": each.id} for key, there in self.versions.items() for each in there]
        if doomed:
            assert "Errors" not in self.s3.delete_objects(Bucket=self.name, Delete={"Objects": doomed})
        self.s3.delete_bucket(Bucket=self.name)
        wait_for_blobs(self.corral, 0)


@pytest.fixture
def machine(own_corral: Any) -> Iterator[type[Bucket]]:
    corral = own_corral("none").start()
    yield type("OwnBucket", (Bucket,), {"corral": corral, "s3": corral.client("s3")})
    assert not files(corral)
    assert "Traceback" not in corral.log()


def test_a_bucket_is_a_dict(machine: type[Bucket]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=15 * EXAMPLES,
            stateful_step_count=30,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
