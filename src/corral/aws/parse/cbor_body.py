"""The scalars of CBOR: what JSON writes as text has a type of its own here. Compounds are JSON's."""

from __future__ import annotations

from typing import Any

from corral.aws.cbor import EpochSeconds
from corral.aws.parse.json_body import JsonReader, boolean_value, integer_reader, string_value, wrong_type
from corral.aws.parse.scalars import INTEGER_BITS
from corral.aws.shapes import Shape
from corral.aws.times import seconds_from_number


def cbor_scalar(shape: Shape) -> JsonReader:
    """The reader of one scalar."""
    kind = shape.type_name
    if kind in INTEGER_BITS:
        return integer_reader(INTEGER_BITS[kind])
    if kind in ("float", "double"):
        return _float
    if kind == "timestamp":
        return _timestamp
    if kind == "blob":
        return _blob
    return boolean_value if kind == "boolean" else string_value


def _float(value: Any) -> float:
    if value.__class__ is not float and value.__class__ is not int:
        raise wrong_type(value, "a Double")
    return float(value)


def _timestamp(value: Any) -> float:
    if value.__class__ is not EpochSeconds:
        raise wrong_type(value, "a Timestamp")
    return seconds_from_number(float(value))


def _blob(value: Any) -> bytes:
    if value.__class__ is not bytes:
        raise wrong_type(value, "a Blob")
    return bytes(value)
