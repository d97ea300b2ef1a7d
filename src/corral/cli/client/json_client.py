"""A client of AWS services at a Corral endpoint, with botocore's call syntax. It does not import botocore.

    client.describe_tasks(cluster="default", tasks=[task_id])["tasks"]
    client.get_paginator("list_tasks").paginate(cluster="default")
    except client.exceptions.ResourceNotFoundException: ...

It uses the protocol AWS JSON: a request is the JSON of its parameters, and a response is JSON. So the client needs no model of a
service, except the names of its timestamps. Unlike botocore, it does not check parameters; the server does. On AWS, some services,
such as EC2, have another protocol. For these services, Corral also accepts AWS JSON, with a target such as
`Corral.ec2.DescribeInstances`. The client of S3 is in `s3.py`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple

from corral.cli.client.http import ConnectionFailed, ConnectionPool, LeanResponse, SigningKeys, signed_headers

RETRIED_STATUSES = (500, 502, 503, 504)
RETRIED_CODES = ("Throttling", "ThrottlingException", "TooManyRequestsException", "RequestLimitExceeded", "RequestTimeout")
PAUSE_MAX_S = 20.0


class JsonService(NamedTuple):
    target: str  # the prefix of the header X-Amz-Target
    timestamps: frozenset[str] = frozenset()  # the names of members that are timestamps
    in_utc: bool = False  # as in botocore, timestamps are in UTC for services with XML, and in the local time zone for others
    tokens: tuple[str, ...] = ()  # the operations whose member clientToken makes a repeated request safe
    signing_name: str = ""  # the name of the service in signatures; empty: its key in SERVICES
    version: str = "1.1"  # of the protocol AWS JSON
    page_token: str = "nextToken"  # the member with the token of the next page
    has_query_codes: bool = False  # whether errors have the codes of the protocol AWS Query, which the service had before


SERVICES = {
    "ecs": JsonService(
        "AmazonEC2ContainerServiceV20141113",
        frozenset({
            "after", "before", "connectivityAt", "createdAt", "deleteRequestedAt", "deregisteredAt", "executionStoppedAt",
            "expirationDate", "expiresAt", "finishedAt", "lastStartedAt", "lastStatusChange", "lastUpdated", "pullStartedAt",
            "pullStoppedAt", "registeredAt", "stabilityStatusAt", "startedAt", "stoppedAt", "stoppingAt", "updatedAt",
        }),
        tokens=("RunTask", "CreateGateway"),
    ),
    "cloudwatch": JsonService(
        "GraniteServiceVersion20100801",
        frozenset({
            "AlarmConfigurationUpdatedTimestamp", "CreatedAt", "CreationDate", "EndDate", "EndTime", "ExpireDate",
            "LastModified", "LastUpdateDate", "LastUpdatedTimestamp", "StartDate", "StartTime", "StateTransitionedTimestamp",
            "StateUpdatedTimestamp", "Timestamp", "Timestamps", "UpdatedAt",
        }),
        signing_name="monitoring", version="1.0", page_token="NextToken", has_query_codes=True,
    ),
    "cloudtrail": JsonService(
        "com.amazonaws.cloudtrail.v20131101.CloudTrail_20131101", frozenset({"EventTime"}), page_token="NextToken"
    ),
    "logs": JsonService("Logs_20140328", tokens=("PutQueryDefinition",)),
    "ecr": JsonService(
        "AmazonEC2ContainerRegistry_V20150921",
        frozenset({
            "createdAt", "endedAt", "expiresAt", "firstObservedAt", "imagePushedAt", "imageScanCompletedAt", "lastActivatedAt",
            "lastArchivedAt", "lastEvaluatedAt", "lastInUseAt", "lastObservedAt", "lastRecordedPullTime", "pushedAt", "startedAt",
            "updatedAt", "vendorCreatedAt", "vendorUpdatedAt", "vulnerabilitySourceUpdatedAt",
        }),
    ),
    "iam": JsonService(
        "Corral.iam", frozenset({"CreateDate", "LastUsedDate", "PasswordLastUsed"}), in_utc=True,
        page_token="Marker",
    ),
    "sts": JsonService("Corral.sts", in_utc=True),
    "sqs": JsonService("AmazonSQS", version="1.0", page_token="NextToken", has_query_codes=True),
    "batch": JsonService("Corral.batch"),
    "ec2": JsonService(
        "Corral.ec2",
        frozenset({
            "AttachTime", "CreateTime", "ElasticInferenceAcceleratorAssociationTime", "LaunchTime", "UsageOperationUpdateTime",
            "ValidUntil",
        }),
        in_utc=True, page_token="NextToken",
    ),
    "autoscaling": JsonService(
        "Corral.autoscaling", frozenset({"CreatedTime", "EndTime", "StartTime"}), in_utc=True, page_token="NextToken"
    ),
    "application-autoscaling": JsonService(
        "AnyScaleFrontendService", frozenset({"CreationTime", "EndTime", "StartTime"}), page_token="NextToken"
    ),
    "cloudformation": JsonService(
        "Corral.cloudformation",
        frozenset({
            "CreationTime", "DeletionTime", "DriftDetectionTimestamp", "LastCheckTimestamp", "LastUpdatedTime",
            "LastUpdatedTimestamp", "Timestamp",
        }),
        in_utc=True, page_token="NextToken",
    ),
}  # fmt: skip


class ApiRefusal(Exception):
    """The server refused a request. The exception has the attributes of botocore's ClientError: `response`, `operation_name`."""

    def __init__(self, response: dict[str, Any], operation_name: str) -> None:
        details = response["Error"]
        super().__init__(f"An error occurred ({details['Code']}) when calling the {operation_name} operation: {details['Message']}")
        self.response = response
        self.operation_name = operation_name


@cache
def refusal_class(code: str) -> type[ApiRefusal]:
    """Return the class of errors with this code."""
    return type(code, (ApiRefusal,), {})


class RefusalClasses:
    """The attribute `exceptions` of a client: `exceptions.CODE` is the class of errors with this code."""

    ClientError = ApiRefusal

    def __getattr__(self, code: str) -> type[ApiRefusal]:
        return refusal_class(code)


class LeanMeta(NamedTuple):
    endpoint_url: str
    region_name: str


class LeanClient:
    """Calls the operations of one service. Threads may share a client."""

    exceptions = RefusalClasses()

    def __init__(
        self, service: str, pool: ConnectionPool, keys: SigningKeys, *, attempts: int,
        more_headers: Callable[[], Mapping[str, str]] = dict,
    ) -> None:  # fmt: skip
        self.meta = LeanMeta(pool.url, keys.region)
        self._name, self._service = service, SERVICES[service]
        self._pool, self._keys = pool, keys
        self._attempts = attempts
        self._more_headers = more_headers

    def __getattr__(self, name: str) -> Callable[..., dict[str, Any]]:
        """Return a function that calls an operation: `describe_tasks` calls DescribeTasks."""
        if name.startswith("_"):
            raise AttributeError(name)
        operation = operation_name(name)
        return lambda **parameters: self._call(operation, parameters)

    def get_paginator(self, name: str) -> LeanPaginator:
        return LeanPaginator(getattr(self, name), self._service.page_token)

    def _call(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if operation in self._service.tokens and "clientToken" not in parameters:
            parameters = {**parameters, "clientToken": _client_token()}
        body = json.dumps(parameters, default=_seconds).encode()
        service = self._service
        headers = {"content-type": f"application/x-amz-json-{service.version}", "x-amz-target": f"{service.target}.{operation}"}
        headers |= {"x-amzn-query-mode": "true"} if service.has_query_codes else {}
        headers |= {"user-agent": "corral-cli", **{name.lower(): value for name, value in self._more_headers().items()}}
        attempt = 0
        while True:
            attempt += 1
            signing_name = service.signing_name or self._name
            signed = signed_headers(self._keys, signing_name, self._pool.host_header, "POST", "/", headers, body)
            try:
                response = self._pool.send("POST", "/", signed, body)
                return self._result(operation, response, attempt - 1)
            except ConnectionFailed:
                if attempt >= self._attempts:
                    raise
            except ApiRefusal as error:
                if attempt >= self._attempts or not _is_retried(error):
                    raise
            _pause(attempt)

    def _result(self, operation: str, response: LeanResponse, retries: int) -> dict[str, Any]:
        content = self._content(response)
        metadata = {
            "RequestId": response.headers.get("x-amzn-requestid", ""),
            "HTTPStatusCode": response.status,
            "HTTPHeaders": response.headers,
            "RetryAttempts": retries,
        }
        if response.status < 300:
            return {**content, "ResponseMetadata": metadata}
        code = str(content.pop("__type", response.status)).rpartition("#")[2].partition(":")[0]
        code = response.headers.get("x-amzn-query-error", "").partition(";")[0] or code
        message = content.get("message") or content.get("Message") or ""
        error = {**content, "Error": {"Message": message, "Code": code}, "ResponseMetadata": metadata}
        raise refusal_class(code)(error, operation)

    def _content(self, response: LeanResponse) -> dict[str, Any]:
        if not response.body:
            return {}
        try:
            content = json.loads(response.body, object_hook=self._with_times if self._service.timestamps else None)
        except ValueError:
            content = None
        if isinstance(content, dict):
            return content
        if response.status >= 300:
            return {"message": response.body[:200].decode("utf-8", "replace")}
        raise ConnectionFailed(f"{self._pool.url} sent a response that is not JSON: correct AWS_ENDPOINT_URL.")

    def _with_times(self, members: dict[str, Any]) -> dict[str, Any]:
        """Convert timestamps to datetimes, as botocore does."""
        for name in members.keys() & self._service.timestamps:
            value = members[name]
            members[name] = [self._time(each) for each in value] if isinstance(value, list) else self._time(value)
        return members

    def _time(self, value: Any) -> Any:
        if not isinstance(value, int | float):
            return value
        at = datetime.fromtimestamp(value, UTC)
        return at if self._service.in_utc else at.astimezone()


class LeanPaginator:
    """Repeats an operation with the token of the previous response, until a response has no token."""

    def __init__(self, call: Callable[..., dict[str, Any]], token: str) -> None:
        self._call, self._token = call, token

    def paginate(self, **parameters: Any) -> Iterator[dict[str, Any]]:
        while True:
            page = self._call(**parameters)
            yield page
            if not page.get(self._token):
                return
            parameters[self._token] = page[self._token]


def _seconds(value: Any) -> float:
    if isinstance(value, datetime):
        return value.timestamp()
    raise TypeError(f"{type(value).__name__} is not a value of the AWS JSON protocol")


def operation_name(method: str) -> str:
    return "".join(word.capitalize() for word in method.split("_"))


def _client_token() -> str:
    digits = os.urandom(16).hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _is_retried(error: ApiRefusal) -> bool:
    return (
        error.response["ResponseMetadata"]["HTTPStatusCode"] in RETRIED_STATUSES or error.response["Error"]["Code"] in RETRIED_CODES
    )


def _pause(attempt: int) -> None:
    """Wait a random time after a failed attempt: at most 1 s after the first, 2 s after the second, 4 s after the third ..."""
    import random

    time.sleep(min(random.random() * 2 ** (attempt - 1), PAUSE_MAX_S))
