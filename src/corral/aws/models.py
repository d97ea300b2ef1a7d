"""Loads the service models: those of AWS from botocore's data files, and the model of Corral's own service from `aws/data`.

Each service is loaded on first use, without its documentation texts.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from corral.aws.s3 import with_form_upload
from corral.aws.shapes import WIRE_KEYS, ServiceModel, Shape
from corral.aws.sqs_query_names import SQS_QUERY_CODES, sqs_query_description

GZIPPED = 16 + zlib.MAX_WBITS
OWN_DATA = Path(__file__).with_name("data")  # in the form of botocore's data, so that boto3 can use it, too (AWS_DATA_PATH)


@cache
def service_model(service: str, protocol: str) -> ServiceModel:
    """Load the model of a service for one protocol."""
    if (service, protocol) == ("sqs", "query"):
        return ServiceModel(sqs_query_description(_description(service)), service)
    if service == "s3":
        return ServiceModel(with_form_upload(_description(service)), service)
    return ServiceModel(_description(service), service)


@cache
def plain_model(service: str) -> ServiceModel:
    """Load the model of a service for AWS JSON, if this is not a protocol of the service.

    All members are in the body, with the names that they have in the model.
    """
    description = _description(service)
    return ServiceModel({**description, "shapes": _PlainShapes(description["shapes"])}, service)


class _PlainShapes(Mapping[str, Any]):
    """The shapes of a model without the locations, names and formats of its protocol. Each is converted on first use."""

    def __init__(self, shapes: Mapping[str, Any]) -> None:
        self._shapes = shapes
        self._plain: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._plain:
            self._plain[name] = _without_wire_keys(self._shapes[name])
        return self._plain[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def _without_wire_keys(shape: Mapping[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in shape.items() if key not in WIRE_KEYS}
    for part in shape.keys() & {"member", "key", "value"}:
        plain[part] = _without_wire_keys(shape[part])
    if "members" in shape:
        plain["members"] = {name: _without_wire_keys(member) for name, member in shape["members"].items()}
    return plain


@cache
def _description(service: str) -> dict[str, Any]:
    folder = OWN_DATA / service if service == "corral" else _botocore() / "data" / service
    version = max(path for path in folder.iterdir() if path.is_dir())
    whole = _read(version / "service-2.json")
    extras = version / "service-2.sdk-extras.json"  # AWS's SDKs apply these corrections to the model
    if extras.exists():
        whole = _merged(whole, _read(extras)["merge"])
    return {part: _without_documentation(whole[part]) for part in ("metadata", "operations", "shapes")}


def _botocore() -> Path:
    """Return botocore's folder. Do not import botocore for this, because only its data files are needed."""
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
    if isinstance(value, dict):  # remove only documentation texts, which are str: a member named "documentation" is a dict
        return {k: _without_documentation(v) for k, v in value.items() if not (k == "documentation" and isinstance(v, str))}
    if isinstance(value, list):
        return [_without_documentation(v) for v in value]
    return value


def form_name(name: str, member: Shape) -> str:
    """Return the name of a member in form-encoded requests and in XML. A flattened list has the name of its elements."""
    if member.type_name == "list" and member.serialization.get("flattened"):
        element_name = member.member.serialization.get("name")
        if element_name:
            return str(element_name)
    return str(member.serialization.get("name", name))


def ec2_name(name: str, member: Shape) -> str:
    """Return a member's name in an ec2 form: its queryName, else its locationName with a capital first letter."""
    if "queryName" in member.serialization:
        return str(member.serialization["queryName"])
    response_name = member.serialization.get("name")
    return response_name[:1].upper() + response_name[1:] if response_name else name


def error_shape(model: ServiceModel, code: str) -> Shape | None:
    """Return the error shape with this name or this error code, or None. Handlers of some services use names, others use codes."""
    return _error_shapes(model).get(code)


def query_code(model: ServiceModel, shape: Shape) -> str:
    """Return the code of an error in the query protocol. It may differ from the name of the error's shape."""
    if model.service_name == "sqs":
        return SQS_QUERY_CODES.get(str(shape.name), str(shape.name))
    return str(shape.error.get("code") or shape.name)


@cache
def _error_shapes(model: ServiceModel) -> dict[str, Shape]:
    shapes = {shape.name: shape for shape in model.error_shapes}
    # In cloudwatch, ResourceNotFound is the name of one shape and the code of another: the name takes precedence.
    for shape in model.error_shapes:
        shapes.setdefault(query_code(model, shape), shape)
    return shapes
