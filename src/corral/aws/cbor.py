"""Decodes and encodes CBOR: the subset that the rpc-v2-cbor protocol uses.

Corral has its own decoder, because a general library decodes many types that the protocol does not use: bignums, shared references,
regular expressions and several kinds of dates. Corral would have to find and refuse these types in every request.

A timestamp is decoded as `EpochSeconds`, so that a timestamp and a number have different types. This module reads and writes
scalars. `parse/json_body.py` and `serialize/json_body.py` read and write structures, lists and maps.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from corral.aws.parse.json_body import JsonReader, boolean_value, integer_reader, string_value, wrong_type
from corral.aws.parse.text import INTEGER_BITS
from corral.aws.serialize.json_body import SCALARS, JsonWriter
from corral.aws.shapes import Shape
from corral.aws.timestamps import seconds_from_number, seconds_from_result
from corral.aws.wire_errors import NESTING_MAX, ParseError, WrongResult

EPOCH_TAG = 1
BODY_MAX_BYTES = 2 * 1024 * 1024  # CloudWatch, whose requests may have 1 MB, is the only service with this protocol

_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = range(8)
_INDEFINITE = 31
_BREAK = 0xFF
_ARGUMENT_BYTES = {24: 1, 25: 2, 26: 4, 27: 8}
_SIMPLE_VALUES = {20: False, 21: True, 22: None, 23: None}
_FLOATS = {25: Struct(">e"), 26: Struct(">f"), 27: Struct(">d")}


class EpochSeconds(float):
    """Seconds since the epoch. In CBOR this number has the timestamp tag."""


# --- bytes to values --------------------------------------------------------------------------------------------------


def value_from_cbor(body: bytes) -> Any:
    """Decode the value of a body. An empty body is an empty map."""
    if not body:
        return {}
    if len(body) > BODY_MAX_BYTES:
        raise ParseError.syntax(f"the body is larger than {BODY_MAX_BYTES} bytes")
    try:
        value, end = _item(body, 0, 0)
    except IndexError:
        raise _truncated() from None
    if end != len(body):
        raise ParseError.syntax("bytes after the end of the CBOR value")
    return value


def _item(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    first = data[at]
    if 0x60 <= first < 0x78:  # fast path, because most items of a body are short strings
        end = at + first - 0x5F
        return _string(data, at + 1, end - at - 1, _TEXT), end
    major, info = first >> 5, first & 31
    if major == _SIMPLE:
        return _simple(data, at + 1, info)
    if info == _INDEFINITE:
        if major in (_BYTES, _TEXT):
            return _indefinite_string(data, at + 1, major)
        if major in (_ARRAY, _MAP):
            return _compound(data, at + 1, depth + 1, major, None)
        raise ParseError.syntax("a CBOR number or tag cannot be of indefinite length")
    argument, at = _argument(data, at + 1, info)
    if major == _UNSIGNED:
        return argument, at
    if major == _NEGATIVE:
        return -1 - argument, at
    if major in (_BYTES, _TEXT):
        return _string(data, at, argument, major), at + argument
    if major == _TAG:
        return _tagged(data, at, depth, argument)
    return _compound(data, at, depth + 1, major, argument)


def _argument(data: bytes, at: int, info: int) -> tuple[int, int]:
    if info < 24:
        return info, at
    size = _ARGUMENT_BYTES.get(info)
    if size is None:
        raise ParseError.syntax("not valid CBOR")
    end = at + size
    if end > len(data):
        raise _truncated()
    return int.from_bytes(data[at:end], "big"), end


def _string(data: bytes, at: int, size: int, major: int) -> str | bytes:
    if at + size > len(data):
        raise _truncated()
    raw = data[at : at + size]
    return raw if major == _BYTES else _text(raw)


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise ParseError.syntax("CBOR text is not valid UTF-8") from None


def _indefinite_string(data: bytes, at: int, major: int) -> tuple[str | bytes, int]:
    parts: list[bytes] = []
    while data[at] != _BREAK:
        if data[at] >> 5 != major or data[at] & 31 == _INDEFINITE:
            raise ParseError.syntax("a CBOR string of indefinite length contains a chunk of another type")
        size, at = _argument(data, at + 1, data[at] & 31)
        parts.append(_string(data, at, size, _BYTES))  # type: ignore[arg-type]  # _BYTES returns bytes
        at += size
    whole = b"".join(parts)
    return whole if major == _BYTES else _text(whole), at + 1


def _compound(data: bytes, at: int, depth: int, major: int, count: int | None) -> tuple[Any, int]:
    if depth > NESTING_MAX:
        raise ParseError.too_deep()
    if count is not None and count > len(data) - at:  # each element takes at least one byte
        raise _truncated()
    values: list[Any] = []
    pairs: dict[str, Any] = {}
    while count is None or count > 0:
        if count is None:
            if data[at] == _BREAK:
                at += 1
                break
        else:
            count -= 1
        if major == _MAP:
            key, at = _item(data, at, depth)
            if key.__class__ is not str:
                raise ParseError.syntax("a key of a CBOR map is not text")
            pairs[key], at = _item(data, at, depth)
        else:
            value, at = _item(data, at, depth)
            values.append(value)
    return (pairs if major == _MAP else values), at


def _tagged(data: bytes, at: int, depth: int, tag: int) -> tuple[EpochSeconds, int]:
    if tag != EPOCH_TAG:
        raise ParseError.syntax(f"CBOR tag {tag} is not supported: the only supported tag is {EPOCH_TAG}, for timestamps")
    if data[at] >> 5 == _TAG:
        raise ParseError.syntax("a CBOR tag must not contain another tag")
    value, at = _item(data, at, depth)
    if value.__class__ is not int and value.__class__ is not float:
        raise ParseError.syntax("a CBOR timestamp is not a number")
    return EpochSeconds(value), at


def _simple(data: bytes, at: int, info: int) -> tuple[Any, int]:
    if info in _SIMPLE_VALUES:
        return _SIMPLE_VALUES[info], at
    form = _FLOATS.get(info)
    if form is None:
        raise ParseError.syntax("not valid CBOR")
    if at + form.size > len(data):
        raise _truncated()
    return form.unpack_from(data, at)[0], at + form.size


def _truncated() -> ParseError:
    return ParseError.syntax("the CBOR body is truncated")


# --- scalars of the service models ------------------------------------------------------------------------------------


def cbor_scalar_reader(shape: Shape) -> JsonReader:
    kind = shape.type_name
    if kind in INTEGER_BITS:
        return integer_reader(INTEGER_BITS[kind])
    if kind in ("float", "double"):
        return _read_float
    if kind == "timestamp":
        return _read_timestamp
    if kind == "blob":
        return _read_blob
    return boolean_value if kind == "boolean" else string_value


def _read_float(value: Any) -> float:
    if value.__class__ is not float and value.__class__ is not int:
        raise wrong_type(value, "a Double")
    return float(value)


def _read_timestamp(value: Any) -> float:
    if value.__class__ is not EpochSeconds:
        raise wrong_type(value, "a Timestamp")
    return seconds_from_number(float(value))


def _read_blob(value: Any) -> bytes:
    if value.__class__ is not bytes:
        raise wrong_type(value, "a Blob")
    return bytes(value)


def cbor_scalar_writer(shape: Shape) -> JsonWriter:
    return _SCALAR_WRITERS[shape.type_name]


def _write_timestamp(value: Any) -> EpochSeconds:
    return EpochSeconds(seconds_from_result(value))


def _write_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongResult.wrong_type("a number", value)
    return float(value)


def _write_blob(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise WrongResult.wrong_type("a bytes object", value)
    return bytes(value)


_SCALAR_WRITERS: dict[str, JsonWriter] = {
    **SCALARS,
    "timestamp": _write_timestamp,
    "float": _write_float,
    "double": _write_float,
    "blob": _write_blob,
}


# --- values to bytes --------------------------------------------------------------------------------------------------


def cbor_from_value(value: Any) -> bytes:
    """Encode a value made of dicts, lists, strings, bytes, numbers, booleans and EpochSeconds."""
    out = bytearray()
    _write(value, out)
    return bytes(out)


def _write(value: Any, out: bytearray) -> None:
    kind = value.__class__
    if kind is bool:
        out.append(0xF5 if value else 0xF4)
    elif kind is EpochSeconds:
        out.append(_TAG << 5 | EPOCH_TAG)
        _write(int(value) if value.is_integer() else float(value), out)
    elif isinstance(value, str):
        raw = value.encode()
        _head(_TEXT, len(raw), out)
        out += raw
    elif isinstance(value, int):
        _head(_UNSIGNED if value >= 0 else _NEGATIVE, value if value >= 0 else -1 - value, out)
    elif kind is float:
        out.append(_SIMPLE << 5 | 27)
        out += _FLOATS[27].pack(value)
    elif kind is dict:
        _head(_MAP, len(value), out)
        for key, item in value.items():
            _write(key, out)
            _write(item, out)
    elif kind is list:
        _head(_ARRAY, len(value), out)
        for item in value:
            _write(item, out)
    else:
        _head(_BYTES, len(value), out)
        out += value


def _head(major: int, argument: int, out: bytearray) -> None:
    if argument < 24:
        out.append(major << 5 | argument)
        return
    for info, size in _ARGUMENT_BYTES.items():
        if argument < 1 << 8 * size:
            out.append(major << 5 | info)
            out += argument.to_bytes(size, "big")
            return
    raise AssertionError("no service model has integers of more than 64 bits")
