"""Formats scalars as text, for XML and headers."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from math import isinf, isnan
from typing import Any

from corral.aws.shapes import Shape
from corral.aws.timestamps import seconds_from_result, text_from_seconds
from corral.aws.wire_errors import WrongResult

TextWriter = Callable[[Any], str]


def text_writer(shape: Shape, timestamp_format: str) -> TextWriter:
    """Return a function that formats a scalar. `timestamp_format` is used if the model defines no format."""
    kind = shape.type_name
    if kind == "timestamp":
        form = shape.serialization.get("timestampFormat", timestamp_format).lower()
        return lambda value: text_from_seconds(seconds_from_result(value), form)
    return _WRITERS.get(kind) or _never(shape)


def base64_text(value: Any) -> str:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise WrongResult.wrong_type("a bytes object", value)
    return b64encode(value).decode("ascii")


def special_float(value: float) -> str | None:
    """Return "NaN", "Infinity" or "-Infinity" if the float has this value. Return None for all other floats."""
    if isnan(value):
        return "NaN"
    if isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return None


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise WrongResult.wrong_type("a string", value)
    return str.__str__(value)  # also works for a StrEnum


def _boolean(value: Any) -> str:
    if not isinstance(value, bool):
        raise WrongResult.wrong_type("a boolean", value)
    return "true" if value else "false"


def _integer(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        raise WrongResult.wrong_type("an integer", value)
    return str(int(value))


def _float(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongResult.wrong_type("a number", value)
    return special_float(value) or repr(float(value))


def _never(shape: Shape) -> TextWriter:
    def write(value: Any) -> str:
        raise WrongResult(f"{shape.name}, a {shape.type_name}, cannot be written as text")

    return write


_WRITERS: dict[str, TextWriter] = {
    "string": _string,
    "character": _string,
    "boolean": _boolean,
    "integer": _integer,
    "long": _integer,
    "float": _float,
    "double": _float,
    "blob": base64_text,
}
