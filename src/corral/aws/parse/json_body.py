"""Parses JSON values into parameters. A shape is a type of botocore's model. A reader converts the JSON values of one shape.

Readers ignore members that the model does not have. They treat a null like an absent member, but refuse a null in a list. Readers
run for every request, so they are fast: each member takes one dictionary lookup, and a string or boolean takes no function call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import orjson

from corral.aws.parse.text import INTEGER_BITS, SPECIAL_FLOATS, blob_from_base64
from corral.aws.shapes import Shape, compiled_once
from corral.aws.timestamps import seconds_from_number, seconds_from_text
from corral.aws.wire_errors import NESTING_MAX, ParseError

JsonReader = Callable[[Any], Any]
JsonReaders = dict[str, JsonReader]  # shape name -> reader; all operations of a service share one dictionary
ScalarReader = Callable[[Shape], JsonReader]


class _Never:
    """A class that matches no JSON value."""


_UNCHANGED = {"string": str, "character": str, "boolean": bool}  # values of these types are used without conversion
_TOKENS = {
    str: "STRING_VALUE",
    int: "NUMBER_VALUE",
    float: "DECIMAL_VALUE",
    bytes: "BINARY_VALUE",
    list: "START_ARRAY",
    dict: "START_OBJECT",
}


def value_from_bytes(body: bytes) -> Any:
    """Parse a JSON body. An empty body is parsed as an empty object."""
    if not body:
        return {}
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ParseError.syntax(f"the body is not valid JSON: {error.msg}") from None


def json_scalar(shape: Shape) -> JsonReader:
    kind = shape.type_name
    if kind in INTEGER_BITS:
        return integer_reader(INTEGER_BITS[kind])
    if kind in ("float", "double"):
        return float_value
    if kind == "timestamp":
        return _timestamp_reader(shape.serialization.get("timestampFormat", "unixtimestamp").lower())
    if kind == "blob":
        return _blob
    return boolean_value if kind == "boolean" else string_value


def json_reader(shape: Shape, readers: JsonReaders, scalar: ScalarReader = json_scalar) -> JsonReader:
    """Return the reader of a shape.

    `scalar` returns the readers of scalars. The parser of CBOR passes its own function, because CBOR has other scalars.
    """
    if shape.type_name not in _COMPOUND:
        return scalar(shape)
    if shape.type_name == "structure" and shape.is_document_type:
        return _same
    return compiled_once(readers, shape.name, lambda: _COMPOUND[shape.type_name](shape, readers, scalar))


def members_reader(
    members: Iterable[tuple[str, Shape]], required: Iterable[str], readers: JsonReaders, scalar: ScalarReader = json_scalar
) -> JsonReader:
    by_wire_name = {
        shape.serialization.get("name", name): (
            name,
            _UNCHANGED.get(shape.type_name, _Never),
            json_reader(shape, readers, scalar),
        )
        for name, shape in members
    }
    lookup = by_wire_name.get
    needed = tuple(required)

    def read(value: Any) -> dict[str, Any]:
        if value.__class__ is not dict:
            raise wrong_type(value, "a structure")
        params = {}
        for wire_name, raw in value.items():
            if raw is None:
                continue
            member = lookup(wire_name)
            if member is None:
                continue
            name, unchanged, read_member = member
            if raw.__class__ is unchanged:
                params[name] = raw
                continue
            try:
                params[name] = read_member(raw)
            except ParseError as error:
                error.path.append(wire_name)
                raise
        for name in needed:
            if name not in params:
                raise ParseError.missing(*(name for name in needed if name not in params))
        return params

    return read


def check_depth(value: Any) -> None:
    """Raise a ParseError if a value is nested too deep. Only values of `unbounded` shapes need this check."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > NESTING_MAX:
            raise ParseError.too_deep()
        deeper: list[Any] = []
        for item in level:
            if item.__class__ is dict:
                deeper.extend(item.values())
            elif item.__class__ is list:
                deeper.extend(item)
        level = [item for item in deeper if item.__class__ in (dict, list)]


def unbounded(shape: Shape) -> bool:
    """Return True if values of the shape can be nested to any depth.

    This is so if the shape contains itself, or contains a member that accepts any JSON.
    """
    return _reaches_itself(shape, frozenset(), set())


def _reaches_itself(shape: Shape, above: frozenset[str], bounded: set[str]) -> bool:
    if shape.name in above:
        return True
    if shape.name in bounded:
        return False
    if shape.type_name == "structure":
        if shape.is_document_type:
            return True
        inner = list(shape.members.values())
    elif shape.type_name in _COMPOUND:
        inner = [shape.member if shape.type_name == "list" else shape.value]
    else:
        return False
    below = above | {shape.name}
    if any(_reaches_itself(child, below, bounded) for child in inner):
        return True
    bounded.add(shape.name)  # many members may have this shape, but it is visited only once
    return False


def _structure(shape: Shape, readers: JsonReaders, scalar: ScalarReader) -> JsonReader:
    return members_reader(shape.members.items(), shape.required_members, readers, scalar)


def _list(shape: Shape, readers: JsonReaders, scalar: ScalarReader) -> JsonReader:
    unchanged = _UNCHANGED.get(shape.member.type_name, _Never)
    read_element = json_reader(shape.member, readers, scalar)

    def read(value: Any) -> list[Any]:
        if value.__class__ is not list:
            raise wrong_type(value, "a list")
        params = []
        for raw in value:
            if raw.__class__ is unchanged:
                params.append(raw)
                continue
            try:
                if raw is None:
                    raise ParseError.missing("member")
                params.append(read_element(raw))
            except ParseError as error:
                error.path.append(f"{len(params) + 1}.member" if raw is not None else str(len(params) + 1))
                raise
        return params

    return read


def _map(shape: Shape, readers: JsonReaders, scalar: ScalarReader) -> JsonReader:
    unchanged = _UNCHANGED.get(shape.value.type_name, _Never)
    read_value = json_reader(shape.value, readers, scalar)

    def read(value: Any) -> dict[str, Any]:
        if value.__class__ is not dict:
            raise wrong_type(value, "a map")
        params = {}
        for key, raw in value.items():
            if raw.__class__ is unchanged:
                params[key] = raw
            elif raw is not None:
                try:
                    params[key] = read_value(raw)
                except ParseError as error:
                    error.path.append(key)
                    raise
        return params

    return read


def integer_reader(bits: int) -> JsonReader:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def read(value: Any) -> int:
        if value.__class__ is not int:
            raise wrong_type(value, "an Integer" if bits == 32 else "a Long")
        if not low <= value <= high:
            raise ParseError.wrong_type(f"{value} is not an integer of {bits} bits")
        return int(value)

    return read


def _timestamp_reader(form: str) -> JsonReader:
    def read(value: Any) -> float:
        if form == "unixtimestamp":
            if value.__class__ is float or value.__class__ is int:
                return seconds_from_number(value)
            raise wrong_type(value, "a Timestamp")
        if value.__class__ is not str:
            raise wrong_type(value, "a Timestamp")
        return seconds_from_text(value, form)

    return read


def float_value(value: Any) -> float:
    """Read a number, or one of the strings "NaN", "Infinity" and "-Infinity"."""
    if value.__class__ is float or value.__class__ is int:
        return float(value)
    if value.__class__ is str and value in SPECIAL_FLOATS:
        return SPECIAL_FLOATS[value]
    raise wrong_type(value, "a Double")


def _blob(value: Any) -> bytes:
    if value.__class__ is not str:
        raise wrong_type(value, "a Blob")
    return blob_from_base64(value)


def string_value(value: Any) -> str:
    if value.__class__ is not str:
        raise wrong_type(value, "a String")
    return str(value)


def boolean_value(value: Any) -> bool:
    if value.__class__ is not bool:
        raise wrong_type(value, "a Boolean")
    return bool(value)


def _same(value: Any) -> Any:
    return value


def wrong_type(value: Any, wanted: str) -> ParseError:
    """Return the error for a value of the wrong type. Its text is the same as AWS's."""
    if value.__class__ is bool:
        found = "TRUE_VALUE" if value else "FALSE_VALUE"
    else:
        found = _TOKENS.get(value.__class__, "NULL_VALUE")
    return ParseError.wrong_type(f"{found} can not be converted to {wanted}")


_COMPOUND: dict[str, Callable[[Shape, JsonReaders, ScalarReader], JsonReader]] = {
    "structure": _structure,
    "list": _list,
    "map": _map,
}
