"""What a message may hold: its characters, attributes and size; and the digests by which clients check it."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from hashlib import md5
from typing import Any

import orjson

from corral.services.sqs.naming import InvalidMessageContents, InvalidParameterValue, MissingParameter

Attributes = Mapping[str, Mapping[str, Any]]

NOT_ALLOWED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
CHARACTERS = (
    "Invalid characters found. Valid unicode characters are "
    "#x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF"
)
ATTRIBUTES_MAX = 10
ATTRIBUTE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,256}")
ATTRIBUTE_TYPE = re.compile(r"(String|Number|Binary)(\..+)?", re.DOTALL)
TYPE_MAX_CHARACTERS = 256
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
TRACE_HEADER = "AWSTraceHeader"


def check_body(body: str) -> None:
    if not body:
        raise MissingParameter("The request must contain the parameter MessageBody.")
    if NOT_ALLOWED.search(body):
        raise InvalidMessageContents(CHARACTERS)


def check_attributes(attributes: Attributes) -> None:
    if len(attributes) > ATTRIBUTES_MAX:
        raise InvalidParameterValue(
            f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [{ATTRIBUTES_MAX}]."
        )
    for name, attribute in attributes.items():
        lowered = name.lower()
        if not ATTRIBUTE_NAME.fullmatch(name):
            raise InvalidParameterValue(
                f"Message (user) attribute name '{name}' can only contain letters, digits, periods, hyphens and underscores, "
                "and has 1 to 256 of them."
            )
        if lowered.startswith(("aws.", "amazon.", ".")) or name.endswith(".") or ".." in name:
            raise InvalidParameterValue(
                "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. These strings are reserved for "
                "internal use. Additionally, they cannot start or end with '.', nor have periods in succession."
            )
        _check_value(name, attribute)


def _check_value(name: str, attribute: Mapping[str, Any]) -> None:
    data_type = attribute["DataType"]
    if len(data_type) > TYPE_MAX_CHARACTERS or not ATTRIBUTE_TYPE.fullmatch(data_type):
        raise InvalidParameterValue(
            f"The type of message (user) attribute '{name}' is invalid. You must use only the following supported type prefixes: "
            "Binary, Number, String."
        )
    if "StringListValues" in attribute or "BinaryListValues" in attribute:
        raise InvalidParameterValue("Message attribute list values in SendMessage operation are not supported.")
    kind = data_type.partition(".")[0]
    value = attribute.get("BinaryValue" if kind == "Binary" else "StringValue")
    if not value:
        raise InvalidParameterValue(f"Message (user) attribute '{name}' must contain a non-empty value of type '{kind}'.")
    if kind == "Number" and not NUMBER.fullmatch(value):
        raise InvalidParameterValue(f"Can't cast the value of message (user) attribute '{name}' to a number.")
    if kind != "Binary" and NOT_ALLOWED.search(value):
        raise InvalidParameterValue(CHARACTERS)


def trace_header(attributes: Attributes) -> str | None:
    """The one attribute of the system that a sender may set."""
    for name, attribute in attributes.items():
        if name != TRACE_HEADER:
            raise InvalidParameterValue(f"Message system attribute name '{name}' is invalid.")
        if attribute["DataType"] != "String" or not attribute.get("StringValue"):
            raise InvalidParameterValue(f"Message system attribute '{name}' must contain a non-empty value of type 'String'.")
    found = attributes.get(TRACE_HEADER)
    return None if found is None else str(found["StringValue"])


def size_of(attributes: Attributes) -> int:
    """In bytes: name, type and value count."""
    return sum(len(name.encode()) + len(kind.encode()) + len(value) for name, kind, _, value in _parts(attributes))


def digest(attributes: Attributes) -> str:
    """MD5OfMessageAttributes: names in order, each part with its length before it."""
    found = md5(usedforsecurity=False)
    for name, kind, transport, value in sorted(_parts(attributes)):
        for part in (name.encode(), kind.encode()):
            found.update(len(part).to_bytes(4, "big") + part)
        found.update(transport + len(value).to_bytes(4, "big") + value)
    return found.hexdigest()


def _parts(attributes: Attributes) -> list[tuple[str, str, bytes, bytes]]:
    """Name, type, how the value travels, value."""
    return [
        (name, attribute["DataType"], b"\2", attribute["BinaryValue"])
        if attribute["DataType"].startswith("Binary")
        else (name, attribute["DataType"], b"\1", attribute["StringValue"].encode())
        for name, attribute in attributes.items()
    ]


def packed(attributes: Attributes) -> str | None:
    """As they are kept."""
    if not attributes:
        return None
    kept = {name: [kind, transport[0], b64encode(value).decode() if transport == b"\2" else value.decode()]
            for name, kind, transport, value in _parts(attributes)}  # fmt: skip
    return orjson.dumps(kept).decode()


def unpacked(text: str) -> dict[str, dict[str, Any]]:
    return {
        name: {"DataType": kind, **({"BinaryValue": b64decode(value)} if transport == 2 else {"StringValue": value})}
        for name, (kind, transport, value) in orjson.loads(text).items()
    }


def chosen(attributes: Attributes, names: list[str]) -> dict[str, Mapping[str, Any]]:
    """Those that a receiver asks for: by name, by the beginning of a name (`bar.*`), or all."""
    if "All" in names or ".*" in names or "*" in names:
        return dict(attributes)
    prefixes = tuple(name.removesuffix(".*") for name in names if name.endswith(".*"))
    return {name: value for name, value in attributes.items() if name in names or name.startswith(prefixes)}
