"""Services that Corral does not serve: the error names the service and the operation, in the protocol of the service.

CORRAL_EXAMPLES=100 .venv/bin/python -m pytest -n 0 tests/wire/test_unserved_services.py      # all services, in a few minutes
"""

from __future__ import annotations

from typing import Any

import pytest
from botocore import xform_name
from botocore.exceptions import ClientError
from botocore.loaders import Loader
from botocore.model import OperationModel

from corral.aws import Request, Response, recognise, recognise_head, serialize_refusal
from corral.aws.catalogue import SERVICE_BY_NAME
from corral.aws.unserved_services import _all, rest_operation, signed_for
from corral.core.errors import ApiError
from each import check_each
from wire.generate import EXAMPLES
from wire.oracle import client

SAMPLE = (
    "route53", "cloudfront", "s3control",  # rest-xml
    "rds", "neptune", "elb", "ses", "elasticache", "sdb",  # query
    "athena", "dynamodbstreams", "timestream-write", "sagemaker", "stepfunctions",  # json
    "eks", "efs", "apigatewayv2", "sesv2", "bedrock-runtime", "lambda-core",  # rest-json
    "arc-region-switch", "route53-recovery-cluster",  # smithy-rpc-v2-cbor, and cbor or json
)  # fmt: skip
# A client with access keys cannot call them (bearer tokens, old signatures), needs an ARN, or sends requests unlike the model.
NOT_COMPARED = {
    "account-access-runtime", "cloudfront-keyvaluestore", "cloudsearchdomain", "codecatalyst", "iam-toolbox", "importexport",
}  # fmt: skip
SERVICES = {service.name: service for service in _all()}


def operations(made: Any, most: int) -> list[OperationModel]:
    """Operations that a client signs and sends to its endpoint, with and without labels in the path."""
    found = [made.meta.service_model.operation_model(name) for name in made.meta.service_model.operation_names]
    plain = [each for each in found if each.auth_type is None and not each.has_event_stream_input]
    labelled = [each for each in plain if "{" in each.http["requestUri"]]
    return [*[each for each in plain if each not in labelled][:most], *labelled[:most]]


def labels(operation: OperationModel) -> dict[str, str]:
    shape = operation.input_shape
    members = shape.members.items() if shape is not None else ()
    found = {name: "abcd" for name, member in members if member.serialization.get("location") == "uri"}
    return found | (
        {"AccountId": "123456789012"} if shape is not None and "AccountId" in shape.members else {}
    )  # S3 Control needs it


def test_the_error_of_an_unserved_service_names_the_operation() -> None:
    def check(service: str) -> None:
        refusals: list[ApiError] = []

        def answer(request: Request) -> Response:
            try:
                if recognise_head(request) is None:
                    recognise(request)
            except ApiError as error:
                refusals.append(error)
                return serialize_refusal(request, error, "request-1")
            raise AssertionError(f"{service} was recognised as a served service: {request}")

        made = client(service, answer)
        # Requests of services that share a signing name can be equal, for example those of RDS and Neptune.
        names = [each.name for each in signed_for(SERVICES[service].signing_name)]
        for operation in operations(made, 2):
            with pytest.raises(ClientError) as caught:
                getattr(made, xform_name(operation.name))(**labels(operation))
            error = caught.value.response["Error"]
            expected = [f"Corral does not serve {name}:{operation.name}" for name in names]
            assert error["Message"] in expected and error["Code"] == refusals[-1].code, (operation.name, error)

    check_each(sorted(SERVICES.keys() - NOT_COMPARED) if EXAMPLES > 3 else SAMPLE, check)


def test_the_file_has_all_services_of_botocore() -> None:
    """If it fails, run tools/unserved_services.py."""
    available = set(Loader().list_available_services("service-2")) - set(SERVICE_BY_NAME)
    assert available == SERVICES.keys()


def test_the_most_specific_path_is_the_operation() -> None:
    [cloudfront] = signed_for("cloudfront")
    distribution = "/2020-05-31/distribution"
    for query, operation in (("", "CreateDistribution"), ("WithTags", "CreateDistributionWithTags")):
        assert rest_operation(cloudfront, Request("POST", distribution, query, {}, b"")) == operation
    assert rest_operation(cloudfront, Request("POST", "/2020-05-31/nothing", "", {}, b"")) is None
