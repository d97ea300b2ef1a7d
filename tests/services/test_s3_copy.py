"""Copies whose source or bucket changes between admission and commit."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from corral.access.caller import Caller
from corral.core.errors import ServiceUnavailable
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.model.blob import StoredBlob
from corral.model.principal import root_user
from corral.model.settings import Settings
from corral.services.s3 import handlers as s3
from corral.store import Store

CALLER = Caller("123456789012", "us-east-1", root_user("123456789012"))
BUCKET = "bucket"
KMS = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms"}}]}


def test_a_random_etag_is_not_copied_as_an_md5() -> None:
    store = Store(None)
    tx = Tx(store, 1.0, SeededIds(Random(0)), Settings())

    def ask(operation: str, **params: Any) -> Any:
        return s3.HANDLERS[operation](tx, {"Bucket": BUCKET, **params}, CALLER)

    store.begin()
    ask("CreateBucket")
    ask("PutBucketEncryption", ServerSideEncryptionConfiguration=KMS)
    put = {"Bucket": BUCKET, "Key": "a", "ContentLength": 1}
    admission = s3.ADMIT["PutObject"](tx, put, CALLER)
    assert admission is not None
    assert admission.algorithms == {"CRC64NVME"}
    ask("PutObject", **put, **admission.params, Body=StoredBlob("0" * 32, 1, {"CRC64NVME": b"c" * 8}))
    copy = {"Bucket": BUCKET, "Key": "c", "CopySource": f"{BUCKET}/a"}
    assert s3.ADMIT["CopyObject"](tx, copy, CALLER) is None, "the bytes can be shared"
    ask("DeleteBucketEncryption")
    with pytest.raises(ServiceUnavailable):
        ask("CopyObject", **copy)
    again = s3.ADMIT["CopyObject"](tx, copy, CALLER)
    assert again is not None
    assert "MD5" in again.algorithms
