"""Parses scalars that are sent as text: in forms, XML, paths, query strings and headers."""

from __future__ import annotations

import re
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Callable
from math import inf, isfinite, nan

from corral.aws.shapes import Shape
from corral.aws.timestamps import seconds_from_text
from corral.aws.wire_errors import ParseError

TextReader = Callable[[str], object]

INTEGER_BITS = {"integer": 32, "long": 64}
SPECIAL_FLOATS = {"NaN": nan, "Infinity": inf, "-Infinity": -inf}

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")  # int() also accepts "1_0" and digits of other scripts
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_BOOLEANS = {"true": True, "false": False}


def text_reader(shape: Shape, timestamp_format: str) -> TextReader:
    """Return a function that parses a scalar. `timestamp_format` is used if the model defines no format."""
    kind = shape.type_name
    if kind in ("string", "character"):
        return _same
    if kind in INTEGER_BITS:
        return _integer_reader(INTEGER_BITS[kind])
    if kind in ("float", "double"):
        return _float
    if kind == "boolean":
        return _boolean
    if kind == "blob":
        return blob_from_base64
    if kind == "timestamp":
        form = shape.serialization.get("timestampFormat", timestamp_format).lower()
        return lambda text: seconds_from_text(text, form)
    return _never(kind)


def blob_from_base64(text: str) -> bytes:
    """Decode base64. Refuse invalid characters and wrong padding, because ignoring them could change the client's data."""
    try:
        return a2b_base64(text, strict_mode=True)
    except (Base64Error, ValueError):  # ValueError means that the text is not ASCII
        raise ParseError.wrong_type("not valid base64") from None


def _same(text: str) -> str:
    return text


def _integer_reader(bits: int) -> TextReader:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def read(text: str) -> int:
        if _INTEGER.fullmatch(text) is None:
            raise ParseError.wrong_type("not an integer")
        value = int(text)
        if not low <= value <= high:
            raise ParseError.wrong_type(f"not an integer of {bits} bits")
        return value

    return read


def _float(text: str) -> float:
    if _NUMBER.fullmatch(text) is not None:
        value = float(text)
    else:
        value = SPECIAL_FLOATS.get(text, nan)
        if text in SPECIAL_FLOATS:
            return value
    if not isfinite(value):
        raise ParseError.wrong_type("not a number")
    return value


def _boolean(text: str) -> bool:
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise ParseError.wrong_type("neither true nor false")
    return value


def _never(kind: str) -> TextReader:
    def read(text: str) -> object:
        raise ParseError.wrong_type(f"a {kind} cannot be given as text")

    return read
