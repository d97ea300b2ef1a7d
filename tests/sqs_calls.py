"""Helpers that the tests of SQS share."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from harness import REGION, Corral

ACCOUNT = "123456789012"


def name_for(request: pytest.FixtureRequest) -> str:
    """The name of a queue for one test."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:70]


def arn(url: str) -> str:
    return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{url.rpartition('/')[2]}"


def counts(sqs, url: str) -> tuple[int, int, int]:
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    names = ("", "NotVisible", "Delayed")
    visible, in_flight, delayed = (int(found[f"ApproximateNumberOfMessages{name}"]) for name in names)
    return visible, in_flight, delayed


def refusal(call: Any, **params: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as refused:
        call(**params)
    return refused.value.response["Error"]["Code"], refused.value.response["Error"]["Message"]


def signed(corral: Corral, url: str, headers: dict[str, str], body: bytes) -> AWSRequest:
    request = AWSRequest("POST", url, headers, body)
    SigV4Auth(Credentials(corral.keys["access_key"], corral.keys["secret_key"]), "sqs", REGION).add_auth(request)
    return request
