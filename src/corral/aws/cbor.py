"""CBOR, as much of it as rpc-v2-cbor uses: bytes to plain values and back.

Our own, because a general library reads far more than the protocol has (bignums, shared references, regular
expressions, dates of several kinds), and every one of those would have to be shut again for bytes from strangers.

A timestamp is an `EpochSeconds`, so that it is not taken for a number; everything else is Python's own type.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from corral.aws.faults import Misfit
from corral.aws.form import NESTING_MAX

EPOCH_TAG = 1

_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = range(8)
_INDEFINITE = 31
_BREAK = 0xFF
_ARGUMENT_BYTES = {24: 1, 25: 2, 26: 4, 27: 8}
_SIMPLE_VALUES = {20: False, 21: True, 22: None, 23: None}
_FLOATS = {25: Struct(">e"), 26: Struct(">f"), 27: Struct(">d")}


class EpochSeconds(float):
    """A number of seconds since the epoch, tagged as such."""


# --- bytes to values --------------------------------------------------------------------------------------------------


def value_from_cbor(body: bytes) -> Any:
    """The one value of a body; an empty body is an empty map."""
    if not body:
        return {}
    try:
        value, end = _item(body, 0, 0)
    except IndexError:
        raise _cut_short() from None
    if end != len(body):
        raise Misfit.form("bytes after the end of the CBOR value")
    return value


def _item(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    first = data[at]
    if 0x60 <= first < 0x78:  # most of any body is short texts
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
        raise Misfit.form("a CBOR number or tag cannot be of indefinite length")
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
        raise Misfit.form("not valid CBOR")
    end = at + size
    if end > len(data):
        raise _cut_short()
    return int.from_bytes(data[at:end], "big"), end


def _string(data: bytes, at: int, size: int, major: int) -> str | bytes:
    if at + size > len(data):
        raise _cut_short()
    raw = data[at : at + size]
    return raw if major == _BYTES else _text(raw)


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise Misfit.form("CBOR text is not valid UTF-8") from None


def _indefinite_string(data: bytes, at: int, major: int) -> tuple[str | bytes, int]:
    parts: list[bytes] = []
    while data[at] != _BREAK:
        if data[at] >> 5 != major or data[at] & 31 == _INDEFINITE:
            raise Misfit.form("a CBOR string has a piece of another kind")
        size, at = _argument(data, at + 1, data[at] & 31)
        parts.append(_string(data, at, size, _BYTES))  # type: ignore[arg-type]  # bytes, by the kind asked for
        at += size
    whole = b"".join(parts)
    return whole if major == _BYTES else _text(whole), at + 1


def _compound(data: bytes, at: int, depth: int, major: int, count: int | None) -> tuple[Any, int]:
    if depth > NESTING_MAX:
        raise Misfit.form(f"nested more than {NESTING_MAX} deep")
    if count is not None and count > len(data) - at:  # an element has a byte at least
        raise _cut_short()
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
                raise Misfit.form("a CBOR map has a key that is no text")
            pairs[key], at = _item(data, at, depth)
        else:
            value, at = _item(data, at, depth)
            values.append(value)
    return (pairs if major == _MAP else values), at


def _tagged(data: bytes, at: int, depth: int, tag: int) -> tuple[EpochSeconds, int]:
    if tag != EPOCH_TAG:
        raise Misfit.form(f"CBOR tag {tag} is not supported, only {EPOCH_TAG} for timestamps")
    if data[at] >> 5 == _TAG:
        raise Misfit.form("a CBOR tag has a tag")
    value, at = _item(data, at, depth)
    if value.__class__ is not int and value.__class__ is not float:
        raise Misfit.form("a CBOR timestamp is no number")
    return EpochSeconds(value), at


def _simple(data: bytes, at: int, info: int) -> tuple[Any, int]:
    if info in _SIMPLE_VALUES:
        return _SIMPLE_VALUES[info], at
    form = _FLOATS.get(info)
    if form is None:
        raise Misfit.form("not valid CBOR")
    if at + form.size > len(data):
        raise _cut_short()
    return form.unpack_from(data, at)[0], at + form.size


def _cut_short() -> Misfit:
    return Misfit.form("the CBOR body is cut short")


# --- values to bytes --------------------------------------------------------------------------------------------------


def cbor_from_value(value: Any) -> bytes:
    """The bytes of a value that is made of dicts, lists, strings, bytes, numbers, booleans and EpochSeconds."""
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
    raise AssertionError("integers of more than 64 bits are in no model")
