"""Buckets are remembered, and nobody is told of one as it was, or as it never came to be."""

from __future__ import annotations

from pathlib import Path

from corral.store import Store

KMS = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms"}, "BucketKeyEnabled": False}]}


def new(path: Path) -> Store:
    store = Store(path / "state.db")
    store.begin()
    store.buckets.add("b", "r", 1.0)
    store.commit()
    return store


def versioning(store: Store) -> str | None:
    bucket = store.buckets.get("b")
    return None if bucket is None else bucket.versioning


def test_a_reader_sees_what_was_committed(tmp_path: Path) -> None:
    writer = new(tmp_path)
    reader = writer.reader()
    assert (versioning(writer), versioning(reader)) == ("", "")
    bucket = writer.buckets.get("b")
    assert bucket is not None
    assert bucket.encryption is None
    writer.begin()
    writer.buckets.set_versioning(bucket.id, "Enabled")
    assert (versioning(writer), versioning(reader)) == ("Enabled", "")
    writer.commit()
    assert (versioning(writer), versioning(reader)) == ("Enabled", "Enabled")
    writer.begin()
    writer.documents.put(bucket.id, "BucketEncryption", KMS, 2.0)
    writer.documents.put(bucket.id, "BucketLifecycleConfiguration", {"Rules": [1]}, 2.0)
    writer.commit()
    for store in (writer, reader):
        found = store.buckets.get("b")
        assert found is not None
        assert (found.encryption, found.has_lifecycle) == (KMS, True)
    writer.begin()
    writer.documents.drop(bucket.id, "BucketEncryption")
    writer.buckets.drop(bucket.id)
    writer.commit()
    assert (versioning(writer), versioning(reader)) == (None, None)
    reader.close()
    writer.close()


def test_what_a_snapshot_shows_is_not_remembered_for_what_comes_after_it(tmp_path: Path) -> None:
    writer = new(tmp_path)
    reader, bucket = writer.reader(), writer.buckets.get("b")
    assert bucket is not None
    reader.begin_reading()
    assert reader.buckets.get("another") is None, "with this the snapshot has begun"
    writer.begin()
    writer.buckets.set_versioning(bucket.id, "Enabled")
    writer.commit()
    assert versioning(reader) == ""
    reader.end_reading()
    assert versioning(reader) == "Enabled"
    reader.close()
    writer.close()


def test_what_is_taken_back_was_never_there(tmp_path: Path) -> None:
    writer = new(tmp_path)
    bucket = writer.buckets.get("b")
    assert bucket is not None
    writer.begin()
    writer.savepoint()
    writer.buckets.set_versioning(bucket.id, "Enabled")
    writer.release()
    writer.savepoint()
    writer.buckets.set_versioning(bucket.id, "Suspended")
    assert versioning(writer) == "Suspended"
    writer.rollback_to_savepoint()
    assert versioning(writer) == "Enabled"
    writer.rollback()
    assert versioning(writer) == ""
    writer.begin()
    writer.savepoint()
    writer.buckets.add("another", "r", 1.0)
    assert writer.buckets.get("another") is not None
    writer.rollback_to_savepoint()
    writer.commit()
    assert writer.buckets.get("another") is None
    writer.close()
