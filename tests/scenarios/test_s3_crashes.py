"""kill -9 and full disks during uploads: acknowledged objects exist, no object is partial, and no file is orphaned."""

from __future__ import annotations

import hashlib
import json
import os
import random
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import BotoCoreError, ClientError
from urllib3.filepost import encode_multipart_formdata

from clients.s3_help import MIB, files
from harness import Corral, eventually

KILLS = int(os.environ.get("CORRAL_KILLS", "3"))
OBJECTS = 25 * KILLS
THREADS = 6
PAGE, FILES = 40, 130
QUEUE = "told"
ARN = f"arn:aws:sqs:us-east-1:123456789012:{QUEUE}"
ALLOW = {"Effect": "Allow", "Principal": {"Service": "s3.amazonaws.com"}, "Action": "sqs:SendMessage", "Resource": ARN}


def content_of(key: str) -> bytes:
    """Some bodies are larger than a socket buffer, so that a kill interrupts them."""
    seed = random.Random(key)
    return seed.randbytes(seed.choice([10, 5_000, 300_000, MIB]))


def rows_of(corral: Corral) -> tuple[set[str], int]:
    """(blobs that rows refer to, number of garbage blobs among them)"""
    with closing(sqlite3.connect(f"file:{corral.data}/state.db?mode=ro", uri=True)) as state:
        blobs = {blob for (blob,) in state.execute("SELECT blob FROM content_part")}
        (garbage,) = state.execute(
            "SELECT count(*) FROM content_part JOIN content ON content.id = content_part.content WHERE refs = 0"
        ).fetchone()
    return blobs, garbage


def files_match_rows(corral: Corral) -> bool:
    blobs, garbage = rows_of(corral)
    return not garbage and {file.name for file in files(corral)} == blobs


class Load:
    def __init__(self, corral: Corral, bucket: str) -> None:
        self.corral = corral
        self.bucket = bucket
        self.acknowledged: set[str] = set()
        self.deleted: set[str] = set()
        self.done = 0
        self.up = threading.Event()
        self.up.set()
        self._lock = threading.Lock()
        self._local = threading.local()

    @property
    def s3(self) -> Any:
        if not hasattr(self._local, "s3"):
            self._local.s3 = self.corral.client("s3", connect_timeout=5, read_timeout=20)
        return self._local.s3

    def work(self, number: int) -> None:
        """Put one object, at once or in parts, and delete some of them again. Failed requests are not retried."""
        key = f"{number:04d}"
        self.up.wait()
        try:
            (self._in_parts if in_parts(key) else self._whole)(key)
            with self._lock:
                self.acknowledged.add(key)
            if number % 5 == 0:
                self.s3.delete_object(Bucket=self.bucket, Key=key)
                with self._lock:
                    self.deleted.add(key)
        except (BotoCoreError, ClientError) as error:
            status = error.response["ResponseMetadata"]["HTTPStatusCode"] if isinstance(error, ClientError) else 500
            assert status >= 500, error  # a 4xx error would be wrong: the requests are valid
        with self._lock:
            self.done += 1

    def _whole(self, key: str) -> None:
        self.s3.put_object(Bucket=self.bucket, Key=key, Body=content_of(key))

    def _in_parts(self, key: str) -> None:
        place = {"Bucket": self.bucket, "Key": key}
        place["UploadId"] = self.s3.create_multipart_upload(**place)["UploadId"]
        content = content_of(key)
        large = content + bytes(5 * MIB - len(content))
        parts = [
            {"PartNumber": number, "ETag": self.s3.upload_part(**place, PartNumber=number, Body=body)["ETag"]}
            for number, body in enumerate((large, content), 1)
        ]
        self.s3.complete_multipart_upload(**place, MultipartUpload={"Parts": parts})


def in_parts(key: str) -> bool:
    return int(key) % 6 == 0


def whole_of(key: str) -> bytes:
    content = content_of(key)
    return content + bytes(5 * MIB - len(content)) + content if in_parts(key) else content


def test_kill_9_in_uploads(own_corral: Callable[..., Corral]) -> None:
    corral = own_corral("none").start()
    s3, sqs = corral.client("s3"), corral.client("sqs")
    s3.create_bucket(Bucket="crashing")
    url = sqs.create_queue(QueueName=QUEUE, Attributes={"Policy": json.dumps({"Statement": ALLOW})})["QueueUrl"]
    told = {"QueueConfigurations": [{"QueueArn": ARN, "Events": ["s3:ObjectCreated:*"]}]}
    s3.put_bucket_notification_configuration(Bucket="crashing", NotificationConfiguration=told)
    load = Load(corral, "crashing")
    with ThreadPoolExecutor(THREADS) as pool:
        working = [pool.submit(load.work, number) for number in range(OBJECTS)]
        for kill in range(1, KILLS + 1):
            eventually(lambda kill=kill: load.done >= kill * OBJECTS // (KILLS + 1), f"work before kill {kill}")
            load.up.clear()
            corral.kill("corral.server")
            corral.start()
            load.up.set()
        for each in working:
            each.result()
    assert len(load.acknowledged) > OBJECTS // 2
    corral.kill("corral.server")
    corral.start()

    pages = s3.get_paginator("list_objects_v2").paginate(Bucket="crashing")
    there = {each["Key"] for page in pages for each in page.get("Contents", [])}
    assert load.acknowledged - load.deleted <= there | {key for key in load.acknowledged if int(key) % 5 == 0}
    assert not there & load.deleted
    for key in there:  # also objects whose response was lost: they are complete
        found = s3.get_object(Bucket="crashing", Key=key)["Body"].read()
        assert hashlib.sha256(found).digest() == hashlib.sha256(whole_of(key)).digest(), key

    events = []
    while batch := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        events += [json.loads(message["Body"]) for message in batch]
    heard = [record["s3"]["object"]["key"] for event in events for record in event.get("Records", ())]
    assert len(heard) == len(set(heard))  # one transaction writes an object and its message
    assert load.acknowledged | there <= set(heard)
    assert set(heard) <= {f"{number:04d}" for number in range(OBJECTS)}

    for upload in s3.list_multipart_uploads(Bucket="crashing").get("Uploads", []):
        s3.abort_multipart_upload(Bucket="crashing", Key=upload["Key"], UploadId=upload["UploadId"])
    eventually(lambda: files_match_rows(corral), "every file has its row, and every row its file")
    assert len(rows_of(corral)[0]) == sum(2 if in_parts(key) else 1 for key in there)


def test_interrupted_connections(own_corral: Callable[..., Corral]) -> None:
    """Disconnect during an object, a part and a form: nothing of them is stored, and existing objects stay."""
    corral = own_corral("none").start()
    s3 = corral.client("s3")
    s3.create_bucket(Bucket="cut")
    s3.put_object(Bucket="cut", Key="a", Body=b"before")
    place = {"Bucket": "cut", "Key": "in parts"}
    place["UploadId"] = s3.create_multipart_upload(**place)["UploadId"]
    s3.upload_part(**place, PartNumber=1, Body=b"first")
    whole = s3.generate_presigned_url("put_object", Params={"Bucket": "cut", "Key": "a"})
    part = s3.generate_presigned_url("upload_part", Params={**place, "PartNumber": 1})
    form = s3.generate_presigned_post("cut", "a")
    body, content_type = encode_multipart_formdata({**form["fields"], "file": ("a", bytes(4 * MIB))})
    for url, method, kind, content in (
        (whole, "PUT", "", bytes(4 * MIB)),
        (part, "PUT", "", bytes(4 * MIB)),
        (form["url"], "POST", f"Content-Type: {content_type}\r\n", body),
    ):
        address = urlsplit(url)
        head = f"{method} {address.path}?{address.query} HTTP/1.1\r\nHost: {address.netloc}\r\n{kind}"
        head += f"Content-Length: {len(content)}\r\n\r\n"
        with socket.create_connection((address.hostname, address.port)) as connection:
            connection.sendall(head.encode() + content[: len(content) // 2])
            eventually(lambda: list((corral.data / "blobs" / "arriving").iterdir()), "some of it has arrived")
        eventually(lambda: files_match_rows(corral), "nothing of it is left")
    assert s3.get_object(Bucket="cut", Key="a")["Body"].read() == b"before"
    assert [each["Size"] for each in s3.list_parts(**place)["Parts"]] == [5]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A data folder of 48 MiB, if the user is allowed to mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small disk needs root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)  # lazily: a failed test may still have it open


def test_a_full_disk(small_disk: Path) -> None:
    corral = Corral(small_disk, "none").start()
    try:
        s3 = corral.client("s3")
        s3.create_bucket(Bucket="full")
        place = {"Bucket": "full", "Key": "in parts"}
        place["UploadId"] = s3.create_multipart_upload(**place)["UploadId"]
        content, stored, parts = random.Random(0).randbytes(3 * MIB), list[str](), list[dict[str, Any]]()
        with pytest.raises(ClientError) as refused:
            for number in range(1, 100):
                s3.put_object(Bucket="full", Key=f"{number}", Body=content)
                stored.append(f"{number}")
                part = s3.upload_part(**place, PartNumber=number, Body=content)
                parts.append({"PartNumber": number, "ETag": part["ETag"]})
        assert refused.value.response["Error"]["Code"] == "ServiceUnavailable"
        assert "No space left" in str(refused.value)
        with pytest.raises(ClientError, match="ServiceUnavailable"):
            s3.put_object(Bucket="full", Key="one more", Body=content)

        assert sorted(each["Key"] for each in s3.list_objects_v2(Bucket="full")["Contents"]) == sorted(stored)
        for key in stored:
            assert s3.get_object(Bucket="full", Key=key)["Body"].read() == content
        assert len(s3.list_parts(**place).get("Parts", [])) == len(parts)
        eventually(lambda: files_match_rows(corral), "what did not fit has left nothing")

        s3.delete_object(Bucket="full", Key=stored[0])
        eventually(lambda: files_match_rows(corral), "the deleted object's file is gone")
        s3.put_object(Bucket="full", Key="one more", Body=content)
        assert s3.get_object(Bucket="full", Key="one more")["Body"].read() == content
        s3.abort_multipart_upload(**place)
        eventually(lambda: files_match_rows(corral), "the upload's parts are gone")
        corral.kill("corral.server")
        corral.start()
        assert s3.get_object(Bucket="full", Key="one more")["Body"].read() == content
    finally:
        corral.clear()


def test_aws_s3_sync_of_more_files_than_a_page_of_a_listing_has(own_corral: Callable[..., Corral], tmp_path: Path) -> None:
    corral = own_corral("none").start()
    corral.client("s3").create_bucket(Bucket="synced")
    up, down = tmp_path / "up", tmp_path / "down"
    for number in range(FILES):
        file = up / f"folder {number % 50}" / f"{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{number}\n" * (number % 100))
        os.utime(
            file, (1e9, 1e9)
        )  # S3 has whole seconds: a file written and uploaded within the same second would seem newer than its object
    sync = ("s3", "sync", "--page-size", str(PAGE))
    corral.aws(*sync, "--quiet", str(up), "s3://synced/deep/er")
    corral.aws(*sync, "--quiet", "s3://synced/deep/er", str(down))
    sent = {file.relative_to(up): file.read_bytes() for file in up.rglob("*.txt")}
    assert {file.relative_to(down): file.read_bytes() for file in down.rglob("*.txt")} == sent
    assert len(sent) == FILES
    assert corral.aws(*sync, "--dryrun", str(up), "s3://synced/deep/er") is None  # nothing to upload
