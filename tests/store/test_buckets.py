"""The cache of buckets never returns an old state, nor one that was rolled back."""

from __future__ import annotations

from pathlib import Path

from corral.store import Store

KMS = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms"}, "BucketKeyEnabled": False}]}


def new(path: Path) -> Store:
    store = Store(path / "state.db")
    store.begin()
    store.buckets.add("b", "r", 1.0, "root")
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
    writer.bucket_documents.put(bucket.id, "BucketEncryption", KMS, 2.0)
    writer.bucket_documents.put(bucket.id, "BucketLifecycleConfiguration", {"Rules": [1]}, 2.0)
    writer.commit()
    for store in (writer, reader):
        found = store.buckets.get("b")
        assert found is not None
        assert (found.encryption, found.has_lifecycle) == (KMS, True)
    writer.begin()
    writer.bucket_documents.drop(bucket.id, "BucketEncryption")
    writer.buckets.drop(bucket.id)
    writer.commit()
    assert (versioning(writer), versioning(reader)) == (None, None)
    reader.close()
    writer.close()


def test_a_reader_sees_each_change_of_a_policy(tmp_path: Path) -> None:
    writer = new(tmp_path)
    reader, bucket = writer.reader(), writer.buckets.get("b")
    assert bucket is not None

    def policies() -> list[str | None]:
        return [found.policy for store in (writer, reader) if (found := store.buckets.get("b")) is not None]

    assert policies() == [None, None]
    for document in ("one", "two", None):  # None: the bucket has no policy
        writer.begin()
        writer.bucket_documents.put(bucket.id, "BucketPolicy", document, 2.0)
        writer.commit()
        assert policies() == [document, document]
    writer.begin()
    writer.bucket_documents.put(bucket.id, "BucketPolicy", "three", 2.0)
    writer.commit()
    writer.begin()
    writer.bucket_documents.drop(bucket.id, "BucketPolicy")
    assert policies() == [None, "three"]
    writer.rollback()
    assert policies() == ["three", "three"]
    reader.close()
    writer.close()


def test_a_snapshot_does_not_fill_the_cache_for_later_snapshots(tmp_path: Path) -> None:
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


def test_rolled_back_changes_are_not_cached(tmp_path: Path) -> None:
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
    writer.buckets.add("another", "r", 1.0, "root")
    assert writer.buckets.get("another") is not None
    writer.rollback_to_savepoint()
    writer.commit()
    assert writer.buckets.get("another") is None
    writer.close()
