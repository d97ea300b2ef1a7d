"""AWS's service models as botocore brings them, loaded one service at a time and without their documentation."""

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
    """The model of one service of the catalogue, as one protocol sees it."""
    if (service, protocol) == ("sqs", "query"):
        return ServiceModel(sqs_query_description(_description(service)), service)
    if service == "s3":
        return ServiceModel(with_form_upload(_description(service)), service)
    return ServiceModel(_description(service), service)


@cache
def _description(service: str) -> dict[str, Any]:
    version = max(path for path in (_botocore() / "data" / service).iterdir() if path.is_dir())
    whole = _read(version / "service-2.json")
    extras = version / "service-2.sdk-extras.json"  # what AWS's libraries put over what the service says
    if extras.exists():
        whole = _merged(whole, _read(extras)["merge"])
    return {part: _lean(whole[part]) for part in ("metadata", "operations", "shapes")}


def _botocore() -> Path:
    """Its folder. It is not imported: of all that it brings, only its data are needed here."""
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


def _lean(value: Any) -> Any:
    if isinstance(value, dict):  # a member that is named "documentation" is a dict, its text a str
        return {k: _lean(v) for k, v in value.items() if not (k == "documentation" and isinstance(v, str))}
    if isinstance(value, list):
        return [_lean(v) for v in value]
    return value


def form_name(name: str, member: Shape) -> str:
    """What a member is called in forms and in XML: an element of a flattened list stands for the list."""
    if member.type_name == "list" and member.serialization.get("flattened"):
        element_name = member.member.serialization.get("name")
        if element_name:
            return str(element_name)
    return str(member.serialization.get("name", name))


def ec2_name(name: str, member: Shape) -> str:
    """What a member is called in a form of ec2: a name of its own, or that of the answer with a capital letter."""
    if "queryName" in member.serialization:
        return str(member.serialization["queryName"])
    answered = member.serialization.get("name")
    return answered[:1].upper() + answered[1:] if answered else name


def error_shape(model: ServiceModel, code: str) -> Shape | None:
    """The modelled error with this name or code; services may use either."""
    return _error_shapes(model).get(code)


def query_code(model: ServiceModel, shape: Shape) -> str:
    """The code of a modelled error on the query wire, which need not be the name of its shape."""
    if model.service_name == "sqs":
        return SQS_QUERY_CODES.get(str(shape.name), str(shape.name))
    return str(shape.error.get("code") or shape.name)


@cache
def _error_shapes(model: ServiceModel) -> dict[str, Shape]:
    shapes = {shape.name: shape for shape in model.error_shapes}
    for shape in model.error_shapes:  # a name wins over another shape's code: cloudwatch has both for ResourceNotFound
        shapes.setdefault(query_code(model, shape), shape)
    return shapes
