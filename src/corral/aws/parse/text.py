"""Scalars that arrive as text: in forms, labels, query strings and headers."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isfinite, nan

from corral.aws.faults import Misfit
from corral.aws.parse.scalars import INTEGER_BITS, SPECIAL_FLOATS, blob_from_base64
from corral.aws.shapes import Shape
from corral.aws.times import seconds_from_text

TextReader = Callable[[str], object]

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")  # int() alone would take "1_0" and other alphabets' digits
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_BOOLEANS = {"true": True, "false": False}


def text_reader(shape: Shape, timestamp_format: str) -> TextReader:
    """The reader of one scalar; `timestamp_format` is what this place in the protocol uses unless the model says."""
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


def _same(text: str) -> str:
    return text


def _integer_reader(bits: int) -> TextReader:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def read(text: str) -> int:
        if _INTEGER.fullmatch(text) is None:
            raise Misfit.type("not an integer")
        value = int(text)
        if not low <= value <= high:
            raise Misfit.type(f"not an integer of {bits} bits")
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
        raise Misfit.type("not a number")
    return value


def _boolean(text: str) -> bool:
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise Misfit.type("not true or false")
    return value


def _never(kind: str) -> TextReader:
    def read(text: str) -> object:
        raise Misfit.type(f"a {kind} cannot be given as text")

    return read
