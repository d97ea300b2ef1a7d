"""Serializes results to JSON values.

Members whose value is None are omitted, unless the model of the structure has the key `nulls`. A result that does not match the
model raises WrongResult.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isfinite
from typing import Any

import orjson

from corral.aws.serialize.text import base64_text, special_float
from corral.aws.shapes import Shape, compiled_once
from corral.aws.timestamps import seconds_from_result, text_from_seconds
from corral.aws.wire_errors import WrongResult
from corral.model.constant_result import ConstantResult, ExtendedResult

JsonWriter = Callable[[Any], Any]
JsonWriters = dict[str, JsonWriter]  # shape name -> writer; all operations of a service share one dictionary
ScalarWriter = Callable[[Shape], JsonWriter]


class _Never:
    """A class that matches no value of a result."""


# Shape type → the class whose values are written without a check. Values of other classes, also of subclasses such as StrEnum, are
# checked first.
_UNCHANGED = {"string": str, "character": str, "boolean": bool, "integer": int, "long": int}


def json_scalar(shape: Shape) -> JsonWriter:
    """Return a function that converts a scalar to its JSON value."""
    if shape.type_name == "timestamp":
        return _timestamp_writer(shape.serialization.get("timestampFormat", "unixtimestamp").lower())
    return SCALARS[shape.type_name]


def json_writer(shape: Shape, writers: JsonWriters, scalar: ScalarWriter = json_scalar) -> JsonWriter:
    """Return the writer of a shape.

    `scalar` returns the writers of scalars. The CBOR protocol also uses this function, and passes its own function for scalars.
    """
    if shape.type_name not in _COMPOUND:
        return scalar(shape)
    if shape.type_name == "structure" and shape.is_document_type:
        return _same
    return compiled_once(writers, shape.name, lambda: _COMPOUND[shape.type_name](shape, writers, scalar))


def members_writer(
    name: str,
    members: Iterable[tuple[str, Shape]],
    writers: JsonWriters,
    scalar: ScalarWriter = json_scalar,
    *,
    nulls: bool = False,
) -> JsonWriter:
    by_name = {
        member: (
            shape.serialization.get("name", member),
            _UNCHANGED.get(shape.type_name, _Never),
            json_writer(shape, writers, scalar),
        )
        for member, shape in members
    }
    lookup = by_name.get

    def write(value: Any) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, item in value.items() if value.__class__ is dict else mapping_items(value, name):
            if item is None:
                if nulls:
                    out[by_name[key][0]] = None
                continue
            member = lookup(key)
            if member is None:
                raise WrongResult(f"{name} has no member {key!r}")
            wire_name, unchanged, write_member = member
            if item.__class__ is unchanged:
                out[wire_name] = item
                continue
            try:
                out[wire_name] = write_member(item)
            except WrongResult as wrong:
                raise WrongResult(f"{name}.{key}: {wrong}") from None
        return out

    return write


def mapping_items(value: Any, name: str) -> Any:
    """Return the items of a value of the handler's result, which must be a mapping. `name` is the name of its shape."""
    try:
        return value.items()
    except AttributeError:
        raise WrongResult(f"{name} must be a mapping, not {type(value).__name__}") from None


def _structure(shape: Shape, writers: JsonWriters, scalar: ScalarWriter) -> JsonWriter:
    return members_writer(shape.name, shape.members.items(), writers, scalar, nulls=shape.writes_nulls)


def _element(value: Any, write: JsonWriter) -> Any:
    """Return the JSON value of an element of a list. orjson copies a text that is already JSON into the text of the response."""
    if value.__class__ is ConstantResult:
        return orjson.Fragment(_constant(value, write))
    if value.__class__ is ExtendedResult:
        return orjson.Fragment(b"%b,%b" % (_constant(value.constant, write)[:-1], orjson.dumps(write(value.others))[1:]))
    return write(value)


def _constant(value: ConstantResult, write: JsonWriter) -> bytes:
    if not value.json:
        value.json = orjson.dumps(write(value))
    return value.json


def _list(shape: Shape, writers: JsonWriters, scalar: ScalarWriter) -> JsonWriter:
    write_element = json_writer(shape.member, writers, scalar)
    has_parts = scalar is json_scalar and shape.member.type_name == "structure"
    unchanged = _UNCHANGED.get(shape.member.type_name, _Never)

    def write(value: Any) -> list[Any]:
        if value.__class__ is not list and isinstance(value, str | bytes | dict):
            raise WrongResult(f"{shape.name} must be a list, not {type(value).__name__}")
        if has_parts and value and value[0].__class__ in (ConstantResult, ExtendedResult):
            return [_element(item, write_element) for item in value]
        return [item if item.__class__ is unchanged else write_element(item) for item in value] if value != [] else []

    return write


def _map(shape: Shape, writers: JsonWriters, scalar: ScalarWriter) -> JsonWriter:
    write_value = json_writer(shape.value, writers, scalar)

    def write(value: Any) -> dict[str, Any]:
        return {_string(key): write_value(item) for key, item in mapping_items(value, shape.name) if item is not None}

    return write


def _timestamp_writer(form: str) -> JsonWriter:
    if form == "unixtimestamp":
        return seconds_from_result
    return lambda value: text_from_seconds(seconds_from_result(value), form)


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise WrongResult.wrong_type("a string", value)
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise WrongResult.wrong_type("a boolean", value)
    return value


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise WrongResult.wrong_type("an integer", value)
    return value


def _float(value: Any) -> float | str:
    if value.__class__ is float and isfinite(value):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongResult.wrong_type("a number", value)
    return special_float(value) or value


def _same(value: Any) -> Any:
    return value


SCALARS: dict[str, JsonWriter] = {
    "string": _string,
    "character": _string,
    "boolean": _boolean,
    "integer": _integer,
    "long": _integer,
    "float": _float,
    "double": _float,
    "blob": base64_text,
}
_COMPOUND: dict[str, Callable[[Shape, JsonWriters, ScalarWriter], JsonWriter]] = {
    "structure": _structure,
    "list": _list,
    "map": _map,
}
