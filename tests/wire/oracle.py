"""botocore as the client: the requests that it sends, and how it parses Corral's responses."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

import botocore.session
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSResponse, HeadersDict, create_request_object, prepare_request_dict
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.parsers import create_parser
from botocore.serialize import create_serializer

from corral.aws import Request, Response, Secret
from corral.aws.models import OWN_DATA
from corral.aws.sqs_query_names import sqs_query_description
from corral.model.principal import root_user
from corral.operations.services import SERVICES
from wire.generate import EXAMPLES

SERVED = (
    "application-autoscaling",
    "autoscaling",
    "batch",
    "cloudformation",
    "cloudwatch",
    "corral",
    "ec2",
    "ecr",
    "ecs",
    "iam",
    "logs",
    "s3",
    "secretsmanager",
    "sqs",
    "ssm",
    "sts",
)
PROTOCOLS = {"cloudwatch": ("json", "query", "smithy-rpc-v2-cbor"), "sqs": ("json", "query")}
# S3 operations whose requests look like those of others: deprecated ones, and those that only the host name distinguishes.
TWINS = {
    "GetBucketLifecycle",
    "GetBucketNotification",
    "PutBucketLifecycle",
    "PutBucketNotification",
    "ListDirectoryBuckets",
    "WriteGetObjectResponse",
}
EC2_STEP = 12 if EXAMPLES <= 3 else 1  # test one operation in this many: the model is huge and its operations are similar
EC2_ALWAYS = {"RunInstances", "DescribeInstances", "CreateLaunchTemplate", "CreateTags", "AuthorizeSecurityGroupIngress"}
FORBIDDEN_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
ENDPOINT = "http://127.0.0.1:4566"
REGION = "eu-west-1"
ROOT = root_user("123456789012")
KEYS = {"AKIDEXAMPLE": Secret("wJalrXUtnFEMI/K7MDENG", None, None, ROOT)}
LOADER = Loader()  # lists the services once
KEYS = {"AKIDEXAMPLE": Secret("wJalrXUtnFEMI/K7MDENG", None, None, "arn:aws:iam::000000000000:root")}
LOADER = Loader(extra_search_paths=[str(OWN_DATA)])  # lists the services once
CREDENTIALS = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG")


def lookup(access_key_id: str, token: str | None) -> Secret | None:
    return KEYS.get(access_key_id)


@cache
def model_of(service: str, protocol: str | None = None) -> ServiceModel:
    """Return botocore's model, but Corral's for SQS with query, since botocore's no longer has the names of old clients."""
    if (service, protocol) == ("sqs", "query"):
        description = sqs_query_description(LOADER.load_service_model("sqs", "service-2"))
        return ServiceModel(description, service)
    return ServiceModel(LOADER.load_service_model(service, "service-2"), service)


def protocols_of(service: str) -> tuple[str, ...]:
    """Return the protocols in which to test a service."""
    return PROTOCOLS.get(service, (model_of(service).resolved_protocol,))


def every_operation(services: Sequence[str] = SERVED) -> list[tuple[str, str, str]]:
    """Return (service, protocol, operation) for these services, or for all that Corral serves or will serve."""
    return [
        (service, protocol, operation)
        for service in services
        for protocol in protocols_of(service)
        for operation in operations_of(service)
    ]


def operations_of(service: str) -> list[str]:
    """Return the operations of a service to test."""
    names = list(model_of(service).operation_names)
    if service == "ec2":
        return [name for number, name in enumerate(names) if number % EC2_STEP == 0 or name in EC2_ALWAYS]
    return [name for name in names if name not in TWINS] if service == "s3" else names


def examples_of(service: str, operation: str) -> range:
    """One example where no handler reads the parameters, unless CORRAL_EXAMPLES asks for a long run."""
    served = service in SERVICES and operation in SERVICES[service].operations
    return range(EXAMPLES if served or EXAMPLES > 3 else 1)


def sent_by_botocore(service: str, protocol: str, operation: str, params: dict[str, Any], *, sign: bool = True) -> Request:
    """Return the request that botocore sends for these parameters."""
    model = model_of(service, protocol)
    serialized = create_serializer(protocol, include_validation=False).serialize_to_request(
        params, model.operation_model(operation)
    )
    prepare_request_dict(serialized, ENDPOINT, context={})
    request = create_request_object(serialized)
    if sign:
        signer = S3SigV4Auth if service == "s3" else SigV4Auth
        signer(CREDENTIALS, model.signing_name, REGION).add_auth(request)
    return as_received(request.prepare())


def as_received(prepared: Any) -> Request:
    """Convert a prepared request of botocore to the form in which the server passes it on."""
    url = urlsplit(prepared.url)
    headers = {"host": url.netloc}
    for name, value in prepared.headers.items():
        headers[name.lower()] = value.decode("latin-1") if isinstance(value, bytes) else str(value)
    body = prepared.body or b""
    if hasattr(body, "read"):
        body = body.read()
    return Request(prepared.method, url.path, url.query, headers, body.encode() if isinstance(body, str) else body)


def read_by_botocore(service: str, protocol: str, operation: str, response: Response) -> dict[str, Any]:
    """Parse a response with botocore."""
    shape = model_of(service, protocol).operation_model(operation).output_shape
    payload = shape.serialization.get("payload") if shape is not None else None
    streams = payload is not None and shape.members[payload].type_name == "blob"
    body: Any = BytesIO(response.body) if streams else response.body
    parsed = create_parser(protocol).parse(
        {"status_code": response.status, "headers": HeadersDict(response.headers), "body": body}, shape
    )
    if streams:
        parsed[payload] = parsed[payload].read()
    return parsed


def as_datetimes(shape: Any, value: Any) -> Any:
    """Convert timestamps to datetimes, which botocore uses."""
    return mapped(shape, value, lambda leaf, v: datetime.fromtimestamp(v, UTC) if leaf.type_name == "timestamp" else v)


def mapped(shape: Any, value: Any, change: Any) -> Any:
    """Replace every scalar of a value by `change(shape, scalar)`."""
    if shape.type_name == "structure":
        if shape.is_document_type:
            return value
        return {name: mapped(shape.members[name], item, change) for name, item in value.items()}
    if shape.type_name == "list":
        return [mapped(shape.member, item, change) for item in value]
    if shape.type_name == "map":
        return {change(shape.key, key): mapped(shape.value, item, change) for key, item in value.items()}
    return change(shape, value)


def seen(shape: Any, value: Any, protocol: str) -> Any:
    """Apply the changes that the protocol or botocore's parser makes to a value."""
    if protocol in ("query", "ec2", "rest-xml"):
        return without_empty_flattened(shape, mapped(shape, value, xml_text))
    return mapped(shape, value, json_scalar if protocol == "json" else lambda leaf, scalar: scalar)


def json_scalar(shape: Any, value: Any) -> Any:
    """JSON has no infinities: they are sent as strings, which botocore's json parser does not convert."""
    if shape.type_name in ("float", "double") and value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def xml_text(shape: Any, value: Any) -> Any:
    """XML 1.0 cannot represent some characters; Corral sends U+FFFD instead."""
    return FORBIDDEN_IN_XML.sub("\ufffd", value) if isinstance(value, str) else value


def without_empty_flattened(shape: Any, value: Any) -> Any:
    """A flattened list or map has no enclosing element, so an empty one is absent."""
    if shape.type_name == "structure":
        return {
            name: without_empty_flattened(shape.members[name], item)
            for name, item in value.items()
            if item not in ([], {}) or not shape.members[name].serialization.get("flattened")
        }
    if shape.type_name == "list":
        return [without_empty_flattened(shape.member, item) for item in value]
    if shape.type_name == "map":
        return {key: without_empty_flattened(shape.value, item) for key, item in value.items()}
    return value


def comparable(value: Any) -> Any:
    """Make values comparable: NaN equals itself, and datetimes become seconds rounded to milliseconds."""
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [comparable(item) for item in value]
    if isinstance(value, datetime):
        return round(value.timestamp(), 3)
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else round(value, 3) if 1e3 < abs(value) < 1e12 else value
    return value


class _Raw:
    """The part of urllib3's response that botocore reads."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        yield self._body


def client(service: str, answer: Any, protocol: str | None = None, endpoint: str = ENDPOINT) -> Any:
    """A real client whose requests are passed to `answer(Request) -> Response` instead of a socket.

    With a protocol, one whose model leaves it no other.
    """
    made = _session(service if protocol else None, protocol).create_client(
        service,
        region_name=REGION,
        endpoint_url=endpoint,
        aws_access_key_id="AKIDEXAMPLE",
        aws_secret_access_key=KEYS["AKIDEXAMPLE"].secret_key,
        config=Config(retries={"total_max_attempts": 1}, parameter_validation=False),
    )

    def send(request: Any, **kwargs: Any) -> AWSResponse:
        response = answer(as_received(request))
        return AWSResponse(request.url, response.status, HeadersDict(response.headers), _Raw(response.body))

    made.meta.events.register("before-send", send)
    return made


@cache
def _session(service: str | None, protocol: str | None) -> botocore.session.Session:
    session = botocore.session.Session()
    loader = Loader(extra_search_paths=[str(OWN_DATA)])  # not LOADER, because a client of S3 changes its model
    session.register_component("data_loader", loader)
    if service is not None and protocol is not None:
        session.register_component("data_loader", _OneProtocol(service, protocol))
    return session


class _OneProtocol(Loader):
    """Loads botocore's models, with only one protocol for one service."""

    def __init__(self, service: str, protocol: str) -> None:
        super().__init__()
        self._service, self._protocol = service, protocol

    def load_service_model(self, service_name: str, type_name: str, api_version: str | None = None) -> Any:
        model = super().load_service_model(service_name, type_name, api_version)
        if (service_name, type_name) != (self._service, "service-2"):
            return model
        if (self._service, self._protocol) == ("sqs", "query"):
            model = {**model, **sqs_query_description(model)}
        metadata = {**model["metadata"], "protocol": self._protocol, "protocols": [self._protocol]}
        if self._protocol == "query":
            metadata.pop("awsQueryCompatible", None)
        return {**model, "metadata": metadata}
