"""The scalars of CBOR: timestamps, blobs and all floats are written as themselves. Compounds are JSON's."""

from __future__ import annotations

from typing import Any

from corral.aws.cbor import EpochSeconds
from corral.aws.faults import WrongResult
from corral.aws.serialize.json_body import SCALARS, JsonWriter
from corral.aws.shapes import Shape
from corral.aws.times import seconds_from_result


def cbor_scalar(shape: Shape) -> JsonWriter:
    """The writer of one scalar."""
    return _SCALARS[shape.type_name]


def _timestamp(value: Any) -> EpochSeconds:
    return EpochSeconds(seconds_from_result(value))


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongResult(f"a number is needed, not {type(value).__name__}")
    return float(value)


def _blob(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise WrongResult(f"a blob must be bytes, not {type(value).__name__}")
    return bytes(value)


_SCALARS: dict[str, JsonWriter] = {**SCALARS, "timestamp": _timestamp, "float": _float, "double": _float, "blob": _blob}
