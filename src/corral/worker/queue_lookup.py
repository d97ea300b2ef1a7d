"""Finds a queue by name, URL or ARN, and reads the attributes that the worker needs."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config

from .errors import LOG, WorkerError, code_of, explained

CONNECT_TIMEOUT_S = 10
ATTEMPTS_MAX = 4
VISIBILITY_DEFAULT_S = 30
_MAKING = threading.Lock()  # making a client is not thread-safe
MISSING = ("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue")


@dataclass(frozen=True, slots=True)
class QueueInfo:
    url: str
    name: str
    region: str | None
    visibility_s: int = VISIBILITY_DEFAULT_S
    receives_max: int | None = None  # maxReceiveCount of the redrive policy

    @property
    def is_fifo(self) -> bool:
        return self.name.endswith(".fifo")


def client(
    service: str, region: str | None, *, connections: int = 10, read_timeout_s: int = 60, signature_version: str | None = None
) -> Any:
    config = Config(
        retries={"mode": "standard", "max_attempts": ATTEMPTS_MAX},
        max_pool_connections=connections,
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=read_timeout_s,
        tcp_keepalive=True,
        signature_version=signature_version,
    )
    with _MAKING:
        return _session(_region(region)).client(service, config=config)


def credentials(region: str | None) -> Any:
    """Return the credentials of the clients of a region, or None if there are none."""
    with _MAKING:
        return _session(_region(region)).get_credentials()


def certificates() -> Any:
    """Return the file with the certificates that verify servers, as boto3 chooses it, or True for its own."""
    with _MAKING:
        return _session(_region(None))._session.get_config_variable("ca_bundle") or True


def _region(region: str | None) -> str | None:
    """Return `region`, or the region in the environment. ECS sets AWS_REGION, which boto3 does not read."""
    return region or os.environ.get("AWS_DEFAULT_REGION") or os.environ.get("AWS_REGION")


def read_environment_again() -> None:
    """Forget the sessions, so that the next call of `QueueWorker.run` uses the present credentials and endpoint."""
    _session.cache_clear()


@cache
def _session(region: str | None) -> boto3.session.Session:
    """Return the session of all clients of a region. The clients share its service models, also in forked processes."""
    return boto3.session.Session(region_name=region)


def find_queue(queue: str) -> QueueInfo:
    """Return the queue with its attributes. If it does not exist, raise a WorkerError that says what to do."""
    region = _region_of(queue)
    name = queue.rpartition("/")[2] if "://" in queue else queue.rpartition(":")[2]
    try:
        sqs = client("sqs", region)
        if "://" in queue:
            url = queue
        else:
            owner = {"QueueOwnerAWSAccountId": queue.split(":")[4]} if queue.startswith("arn:") else {}
            url = sqs.get_queue_url(QueueName=name, **owner)["QueueUrl"]
    except Exception as error:
        raise (
            _missing(name, sqs.meta, error) if code_of(error) in MISSING else explained(f"Queue {name} was not found", error)
        ) from error
    try:
        wanted = ["VisibilityTimeout", "RedrivePolicy"]
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=wanted).get("Attributes", {})
    except Exception as error:
        if code_of(error) in MISSING:
            raise _missing(name, sqs.meta, error) from error
        text = "the attributes of queue %s cannot be read, so a visibility timeout of %d s is used: %s"
        LOG.warning(text, name, VISIBILITY_DEFAULT_S, error)
        return QueueInfo(url, name, region)
    receives_max = json.loads(found["RedrivePolicy"]).get("maxReceiveCount") if found.get("RedrivePolicy") else None
    visibility_s = int(found.get("VisibilityTimeout", 0)) or VISIBILITY_DEFAULT_S
    return QueueInfo(url, name, region, visibility_s, int(receives_max) if receives_max else None)


def _region_of(queue: str) -> str | None:
    """Return the region in an ARN or in a URL of AWS. Return None for a name or another URL."""
    if queue.startswith("arn:"):
        parts = queue.split(":")
        if len(parts) != 6 or parts[2] != "sqs":
            raise WorkerError(f"{queue} is not the ARN of a queue: pass arn:aws:sqs:REGION:ACCOUNT:NAME, a URL or a name.")
        return parts[3]
    host = (urlsplit(queue).hostname or "").split(".") if "://" in queue else []
    return host[1] if len(host) > 3 and host[0] == "sqs" else None


def _missing(name: str, meta: Any, error: BaseException) -> WorkerError:
    failed = WorkerError(
        f"Queue {name} does not exist in region {meta.region_name} at {meta.endpoint_url}. Create it "
        f"(aws sqs create-queue --queue-name {name}), or set AWS_DEFAULT_REGION and AWS_ENDPOINT_URL to where it exists."
    )
    failed.__cause__ = error
    return failed
