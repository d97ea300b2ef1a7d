"""A full disk: reads are answered, writes get a typed error, and Corral continues when there is space again."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fuzz.composer import NotSerializable, input_of, serialized, served_operations
from harness import Corral, container, eventually
from raw_aws import Connection, complaint

READS = ("Describe", "List", "Get", "Head")
DISK_MIB = 24


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with DISK_MIB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"this user cannot mount a file system: {mounted.stderr.decode()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(path: Path) -> None:
    file = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        while True:
            os.write(file, b"x" * 4096)
    except OSError:
        os.close(file)


@pytest.fixture
def full(disk: Path) -> Iterator[Corral]:
    """A Corral whose data folder is on the small file system."""
    made = Corral(disk / "data")
    yield made
    made.clear()


def test_a_full_disk(disk: Path, full: Corral) -> None:
    corral = full.start()
    ecs, sqs, s3 = (corral.client(service) for service in ("ecs", "sqs", "s3"))
    ecs.register_task_definition(family="sleeper", containerDefinitions=[container(["sleep", "600"])])
    task = ecs.run_task(taskDefinition="sleeper")["tasks"][0]["taskArn"]
    eventually(lambda: ecs.describe_tasks(tasks=[task])["tasks"][0]["lastStatus"] == "RUNNING", "the first task runs")
    url = sqs.create_queue(QueueName="q")["QueueUrl"]
    s3.create_bucket(Bucket="bucket")
    s3.put_object(Bucket="bucket", Key="key", Body=b"content")
    corral.client("ec2").describe_vpcs()  # the first request to EC2 creates the default VPC
    fill(disk / "filler")

    failed = asyncio.run(read_everything(corral, url))
    assert not failed, "\n".join(failed)
    assert ecs.describe_tasks(tasks=[task])["tasks"][0]["taskArn"] == task
    assert s3.get_object(Bucket="bucket", Key="key")["Body"].read() == b"content"
    writes: list[tuple[Any, str, dict[str, Any]]] = [
        (ecs, "run_task", {"taskDefinition": "sleeper"}), (sqs, "create_queue", {"QueueName": "other"}),
        (sqs, "send_message", {"QueueUrl": url, "MessageBody": "x"}),
        (s3, "put_object", {"Bucket": "bucket", "Key": "k", "Body": b"x"}),
    ]  # fmt: skip
    for client, operation, params in writes:
        with pytest.raises(client.exceptions.ClientError) as refused:
            getattr(client, operation)(**params)
        error = refused.value.response
        assert (error["Error"]["Code"], error["ResponseMetadata"]["HTTPStatusCode"]) == ("ServiceUnavailable", 503), operation
    assert corral.process is not None and corral.process.poll() is None

    (disk / "filler").unlink()
    for client, operation, params in writes:
        getattr(client, operation)(**params)
    running = {"desiredStatus": "RUNNING", "family": "sleeper"}
    tasks = ecs.list_tasks(**running)["taskArns"]
    assert len(tasks) == 2
    eventually(lambda: {each["lastStatus"] for each in ecs.describe_tasks(tasks=tasks)["tasks"]} == {"RUNNING"}, "both run")


async def read_everything(corral: Corral, queue_url: str) -> list[str]:
    """Call each operation that reads and needs no parameters, together with a request that writes. Return the reads that failed."""
    reading, writing, failed = Connection(corral), Connection(corral), []
    write = serialized("sqs", "json", "SendMessage", {"QueueUrl": queue_url, "MessageBody": "x"})
    for service, protocol, operation in served_operations():
        shape, _ = input_of(service, protocol, operation)
        if not operation.startswith(READS) or (shape is not None and shape.required_members):
            continue
        try:
            request = serialized(service, protocol, operation, {})
        except NotSerializable:
            continue
        answer, refused = await asyncio.gather(reading(request), writing(write))
        if answer.status >= 500 or complaint(request, answer) is not None or refused.status != 503:
            failed.append(f"{service}:{operation}: {answer.status} {answer.body[:200]!r}; the write: {refused.status}")
    await reading.close()
    await writing.close()
    return failed
