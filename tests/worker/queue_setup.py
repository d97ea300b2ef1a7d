"""Queues, buckets and worker programs that the tests of the queue worker share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

from harness import Corral
from sqs_calls import ACCOUNT, arn, counts

SOURCE = Path(__file__).parents[2] / "src"
NUMBERS = count()


class WorkQueue:
    """A queue with a dead-letter queue, and a bucket whose objects it is told about."""

    def __init__(self, corral: Corral, *, receives_max: int | None = 2, fifo: bool = False, **attributes: str) -> None:
        self.sqs, self.s3 = corral.client("sqs"), corral.client("s3")
        self.receives_max = receives_max
        suffix = ".fifo" if fifo else ""
        self.name = f"work-{next(NUMBERS)}{suffix}"
        kind = {"FifoQueue": "true"} if fifo else {}
        self.dead = self.sqs.create_queue(QueueName=f"dead-{self.name}", Attributes=kind)["QueueUrl"]
        policy = {"deadLetterTargetArn": arn(self.dead), "maxReceiveCount": receives_max}
        redrive = {"RedrivePolicy": json.dumps(policy)} if receives_max else {}
        self.url = self.sqs.create_queue(QueueName=self.name, Attributes={**kind, **redrive, **attributes})["QueueUrl"]

    def send(self, bodies: Iterable[str], group: str | None = None) -> None:
        for number, body in enumerate(bodies):
            fifo = {"MessageGroupId": group, "MessageDeduplicationId": f"{group}-{number}-{body}"} if group else {}
            self.sqs.send_message(QueueUrl=self.url, MessageBody=body, **fifo)

    def counts(self) -> tuple[int, int]:
        """Messages that are visible, and messages in flight."""
        return counts(self.sqs, self.url)[:2]

    def dead_letters(self) -> list[str]:
        bodies = []
        while found := self.sqs.receive_message(QueueUrl=self.dead, MaxNumberOfMessages=10).get("Messages"):
            bodies += [message["Body"] for message in found]
        return sorted(bodies)

    def bucket(self) -> str:
        """A bucket that sends its events to this queue. S3 sends a test event at once."""
        name = self.name
        self.s3.create_bucket(Bucket=name)
        statement = {"Effect": "Allow", "Principal": "*", "Action": "SQS:SendMessage", "Resource": arn(self.url)}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        self.sqs.set_queue_attributes(QueueUrl=self.url, Attributes={"Policy": policy})
        told = {"QueueArn": arn(self.url), "Events": ["s3:ObjectCreated:*"]}
        self.s3.put_bucket_notification_configuration(Bucket=name, NotificationConfiguration={"QueueConfigurations": [told]})
        return name


def event_of(*objects: tuple[str, str], event: str = "ObjectCreated:Put") -> dict[str, Any]:
    """An S3 event as S3 writes it: (bucket, URL-encoded key)."""
    records = [
        {"eventName": event, "s3": {"bucket": {"name": bucket}, "object": {"key": key, "size": 1}}} for bucket, key in objects
    ]
    return {"Records": records}


def program(corral: Corral, folder: Path, text: str, *arguments: str, group: bool = False) -> subprocess.Popen[str]:
    """Run a worker program with the environment that a user has, in a process group of its own if asked."""
    path = folder / "worker.py"
    path.write_text(text)
    python_path = os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, str(path), *arguments],
        env=corral.environment | {"PYTHONPATH": python_path},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0 if group else None,
    )


__all__ = ["ACCOUNT", "WorkQueue", "event_of", "program"]
