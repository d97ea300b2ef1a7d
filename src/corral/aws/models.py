"""Loads the service models that botocore ships, one service at a time and without their documentation."""

from __future__ import annotations

import zlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from corral.aws.s3 import with_form_upload
from corral.aws.shapes import ServiceModel, Shape
from corral.aws.sqs_query_names import SQS_QUERY_CODES, sqs_query_description

GZIPPED = 16 + zlib.MAX_WBITS


@cache
def service_model(service: str, protocol: str) -> ServiceModel:
    """Load the model of one service of the catalogue, in the form that one protocol uses."""
    if (service, protocol) == ("sqs", "query"):
        return ServiceModel(sqs_query_description(_description(service)), service)
    if service == "s3":
        return ServiceModel(with_form_upload(_description(service)), service)
    return ServiceModel(_description(service), service)


@cache
def _description(service: str) -> dict[str, Any]:
    version = max(path for path in (_botocore() / "data" / service).iterdir() if path.is_dir())
    whole = _read(version / "service-2.json")
    extras = version / "service-2.sdk-extras.json"  # corrections that AWS's SDKs apply to the service's own model
    if extras.exists():
        whole = _merged(whole, _read(extras)["merge"])
    return {part: _without_documentation(whole[part]) for part in ("metadata", "operations", "shapes")}


def _botocore() -> Path:
    """Find botocore's folder without importing botocore, since only its data files are needed here."""
    found = find_spec("botocore")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("botocore is not installed", name="botocore")
    return Path(found.origin).parent


def _read(path: Path) -> Any:
    if path.exists():
        return orjson.loads(path.read_bytes())
    return orjson.loads(zlib.decompress(path.with_name(path.name + ".gz").read_bytes(), GZIPPED))


def _merged(value: Any, over: Any) -> Any:
    if not (isinstance(value, dict) and isinstance(over, dict)):
        return over
    return {**value, **{key: _merged(value.get(key), inner) for key, inner in over.items()}}


def _without_documentation(value: Any) -> Any:
    if isinstance(value, dict):  # a member named "documentation" is a dict; a documentation text is a str
        return {k: _without_documentation(v) for k, v in value.items() if not (k == "documentation" and isinstance(v, str))}
    if isinstance(value, list):
        return [_without_documentation(v) for v in value]
    return value


def form_name(name: str, member: Shape) -> str:
    """Return the name of a member in forms and XML. A flattened list has the name of its elements."""
    if member.type_name == "list" and member.serialization.get("flattened"):
        element_name = member.member.serialization.get("name")
        if element_name:
            return str(element_name)
    return str(member.serialization.get("name", name))


def ec2_name(name: str, member: Shape) -> str:
    """Return the name of a member in an ec2 form: its queryName, or its response name with a capital first letter."""
    if "queryName" in member.serialization:
        return str(member.serialization["queryName"])
    response_name = member.serialization.get("name")
    return response_name[:1].upper() + response_name[1:] if response_name else name


def error_shape(model: ServiceModel, code: str) -> Shape | None:
    """Return the modelled error with this name or code. Services use either."""
    return _error_shapes(model).get(code)


def query_code(model: ServiceModel, shape: Shape) -> str:
    """Return the code of a modelled error in the query protocol, which may differ from the name of its shape."""
    if model.service_name == "sqs":
        return SQS_QUERY_CODES.get(str(shape.name), str(shape.name))
    return str(shape.error.get("code") or shape.name)


@cache
def _error_shapes(model: ServiceModel) -> dict[str, Shape]:
    shapes = {shape.name: shape for shape in model.error_shapes}
    for shape in model.error_shapes:  # a name takes precedence over another shape's code: cloudwatch has both for ResourceNotFound
        shapes.setdefault(query_code(model, shape), shape)
    return shapes
