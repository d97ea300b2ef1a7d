"""Converts plain values to the input of an operation, for callers inside Corral that have no HTTP request.

Stacks and Batch use this. The values of a stack come from a template, which may contain a number or a boolean as text, and a number
where the model has a text. The result is what the request parser would return for an HTTP request with these values, and the same
constraints are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from threading import Lock
from typing import Any

from corral.aws.catalogue import SERVICE_BY_NAME
from corral.aws.constraints import Check, compile_check, table_of
from corral.aws.models import service_model
from corral.aws.parse.text import text_reader
from corral.aws.shapes import Shape, compiled_once
from corral.aws.timestamps import TEXT_TIMESTAMP_FORMAT, seconds_from_number
from corral.aws.wire_errors import NESTING_MAX, ParseError, denied_action, to_api_error
from corral.core.errors import ApiError

Reader = Callable[[Any], Any]
Readers = dict[str, Reader]  # shape name -> reader; all operations of a service share one dictionary

_NUMBERS = frozenset({"integer", "long", "float", "double"})
_COMPILING = Lock()


def direct_input(service: str, operation: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the input of an operation. Raise an ApiError if it has an unknown member, lacks a required one, or is not valid."""
    protocol = SERVICE_BY_NAME[service].protocols[0]
    read, check = _compiled(service, protocol, operation)
    try:
        _check_depth(params)
        converted: dict[str, Any] = read(params)
    except ParseError as error:
        raise to_api_error(error, service, protocol) from None
    if check is not None:
        check(converted)
    return converted


def request_of(service: str, operation: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Rename template properties to the members of an operation's input. Properties that the operation does not have are omitted.

    A template writes `EFSVolumeConfiguration` where ECS writes `efsVolumeConfiguration`, so the case of names is ignored. The keys
    of maps are not names of members, and stay unchanged.
    """
    protocol = SERVICE_BY_NAME[service].protocols[0]
    shape = service_model(service, protocol).operation_model(operation).input_shape
    if shape is None:
        return {}
    members = {name.lower() for name in shape.members}
    return dict(_renamed(shape, {name: value for name, value in properties.items() if name.lower() in members}))


def _renamed(shape: Shape, value: Any) -> Any:
    if isinstance(value, Mapping) and shape.type_name == "structure":
        names = {name.lower(): name for name in shape.members}
        found = {names.get(name.lower(), name): inner for name, inner in value.items()}
        return {name: _renamed(shape.members[name], inner) if name in shape.members else inner for name, inner in found.items()}
    if isinstance(value, list) and shape.type_name == "list":
        return [_renamed(shape.member, each) for each in value]
    return value


def with_model_case(service: str, operation: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the input with the model's case of enum values, for example MANAGED for `managed`."""
    shape = service_model(service, SERVICE_BY_NAME[service].protocols[0]).operation_model(operation).input_shape
    return dict(_in_model_case(shape, params)) if shape is not None else dict(params)


def _in_model_case(shape: Shape, value: Any) -> Any:
    if isinstance(value, str) and (enum := shape.constraints.get("enum")) and value not in enum:
        return next((each for each in enum if each.lower() == value.lower()), value)
    if isinstance(value, Mapping) and shape.type_name == "structure":
        return {
            name: _in_model_case(shape.members[name], inner) if name in shape.members else inner for name, inner in value.items()
        }
    if isinstance(value, Mapping) and shape.type_name == "map":
        return {name: _in_model_case(shape.value, inner) for name, inner in value.items()}
    if isinstance(value, list) and shape.type_name == "list":
        return [_in_model_case(shape.member, each) for each in value]
    return value


@cache
def members_of(service: str, shape: str) -> frozenset[str]:
    """Return the names of the members of a structure in the model of a service."""
    return frozenset(service_model(service, SERVICE_BY_NAME[service].protocols[0]).shapes[shape]["members"])


def denied(service: str, message: str) -> ApiError:
    """Return the service's error for a caller who has no permission for the action."""
    return denied_action(service, SERVICE_BY_NAME[service].protocols[0], message)


@cache
def _compiled(service: str, protocol: str, operation: str) -> tuple[Reader, Check | None]:
    model = service_model(service, protocol).operation_model(operation)
    with _COMPILING:  # a thread must not use a reader that another thread still compiles
        read = _reader(model.input_shape, _readers(service)) if model.input_shape is not None else _no_members
        return read, compile_check(model, table_of(service, protocol))


@cache
def _readers(service: str) -> Readers:
    return {}


def _no_members(value: Any) -> dict[str, Any]:
    _refuse_unknown(value, ())
    return {}


def _reader(shape: Shape, readers: Readers) -> Reader:
    if shape.type_name not in _COMPOUND:
        return _scalar_reader(shape)
    if shape.type_name == "structure" and shape.is_document_type:
        return lambda value: value
    return compiled_once(readers, shape.name, lambda: _COMPOUND[shape.type_name](shape, readers))


def _structure(shape: Shape, readers: Readers) -> Reader:
    members = {name: _reader(member, readers) for name, member in shape.members.items()}
    needed = tuple(shape.required_members)

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ParseError.wrong_type("expected a structure")
        _refuse_unknown(value, members)
        params = {name: _inside(name, members[name], raw) for name, raw in value.items() if raw is not None}
        if missing := [name for name in needed if name not in params]:
            raise ParseError.missing(*missing)
        return params

    return read


def _list(shape: Shape, readers: Readers) -> Reader:
    read_element = _reader(shape.member, readers)

    def read(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise ParseError.wrong_type("expected a list")
        return [_inside(f"{number}.member", read_element, raw) for number, raw in enumerate(value, 1)]

    return read


def _map(shape: Shape, readers: Readers) -> Reader:
    read_value = _reader(shape.value, readers)

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ParseError.wrong_type("expected a map")
        return {str(key): _inside(str(key), read_value, raw) for key, raw in value.items() if raw is not None}

    return read


def _scalar_reader(shape: Shape) -> Reader:
    kind = shape.type_name
    read_text = text_reader(shape, TEXT_TIMESTAMP_FORMAT)

    def read(value: Any) -> Any:
        if value.__class__ is str:
            return value.encode() if kind == "blob" else read_text(value)
        if kind == "blob" and value.__class__ is bytes:
            return value
        if value.__class__ is bool:
            if kind in ("boolean", "string"):
                return value if kind == "boolean" else _text_of(value)
        elif isinstance(value, int | float):
            if kind == "timestamp":
                return seconds_from_number(value)
            if kind == "string" or kind in _NUMBERS:
                return read_text(_text_of(value))
        raise ParseError.wrong_type(f"expected a value of type {kind}, but found a {_NAMES.get(value.__class__, 'structure')}")

    return read


def _text_of(value: bool | int | float) -> str:
    """Return the text of a number or boolean as CloudFormation writes it: a whole number has no fraction."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _inside(name: str, read: Reader, raw: Any) -> Any:
    try:
        return read(raw)
    except ParseError as error:
        error.path.append(name)
        raise


def _refuse_unknown(value: Mapping[str, Any], members: Mapping[str, Any] | tuple[()]) -> None:
    unknown = sorted(str(name) for name in value if name not in members)
    if unknown:
        raise ParseError.wrong_type(f"unknown members: {', '.join(unknown)}")


def _check_depth(value: Any, depth: int = 0) -> None:
    if depth > NESTING_MAX:
        raise ParseError.too_deep()
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    for each in inner:
        if isinstance(each, Mapping | list | tuple):
            _check_depth(each, depth + 1)


_NAMES = {bool: "boolean", int: "number", float: "number", str: "text", list: "list", type(None): "null"}
_COMPOUND: dict[str, Callable[[Shape, Readers], Reader]] = {"structure": _structure, "list": _list, "map": _map}
