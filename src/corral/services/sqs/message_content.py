"""The content of a message: checks of body and attributes, the size for the limits, and the MD5 digests in responses."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from hashlib import md5
from typing import Any

import orjson

from corral.model.sqs_limits import ATTRIBUTE_NAME_MAX_CHARACTERS, ATTRIBUTE_TYPE_MAX_CHARACTERS, ATTRIBUTES_MAX
from corral.services.sqs.errors import InvalidMessageContents, InvalidParameterValue, MissingParameter

MessageAttributes = Mapping[str, Mapping[str, Any]]

NOT_ALLOWED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
INVALID_CHARACTERS = (  # AWS's text
    "Invalid characters found. Valid unicode characters are "
    "#x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF"
)
ATTRIBUTE_NAME = re.compile(rf"[\w.-]{{1,{ATTRIBUTE_NAME_MAX_CHARACTERS}}}")  # letters of all scripts
ATTRIBUTE_TYPE = re.compile(r"(String|Number|Binary)(\..+)?", re.DOTALL)
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
TRACE_HEADER = "AWSTraceHeader"
_NO_BYTES = md5(usedforsecurity=False)  # a copy of it takes less time than a new object


def body_digest(body: bytes) -> str:
    """Compute MD5OfMessageBody, which ReceiveMessage calls MD5OfBody."""
    found = _NO_BYTES.copy()
    found.update(body)
    return found.hexdigest()


def check_body(body: str) -> None:
    if not body:
        raise MissingParameter("The request must contain the parameter MessageBody.")
    if NOT_ALLOWED.search(body):
        raise InvalidMessageContents(INVALID_CHARACTERS)


def check_attributes(attributes: MessageAttributes) -> None:
    if len(attributes) > ATTRIBUTES_MAX:
        raise InvalidParameterValue(
            f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [{ATTRIBUTES_MAX}]."
        )
    for name, attribute in attributes.items():
        lowered = name.lower()
        if not ATTRIBUTE_NAME.fullmatch(name):
            raise InvalidParameterValue(
                f"Message (user) attribute name '{name}' can only contain letters, digits, periods, hyphens and underscores, "
                f"and has 1 to {ATTRIBUTE_NAME_MAX_CHARACTERS} of them."
            )
        if lowered.startswith(("aws.", "amazon.", ".")) or name.endswith(".") or ".." in name:
            raise InvalidParameterValue(
                "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. These strings are reserved for "
                "internal use. Additionally, they cannot start or end with '.', nor have periods in succession."
            )
        _check_value(name, attribute)


def _check_value(name: str, attribute: Mapping[str, Any]) -> None:
    data_type = attribute["DataType"]
    if len(data_type) > ATTRIBUTE_TYPE_MAX_CHARACTERS or not ATTRIBUTE_TYPE.fullmatch(data_type):
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
        raise InvalidParameterValue(INVALID_CHARACTERS)


def trace_header(attributes: MessageAttributes) -> str | None:
    """The value of AWSTraceHeader, the only system attribute that a sender may set."""
    for name, attribute in attributes.items():
        if name != TRACE_HEADER:
            raise InvalidParameterValue(f"Message system attribute name '{name}' is invalid.")
        if attribute["DataType"] != "String" or not attribute.get("StringValue"):
            raise InvalidParameterValue(f"Message system attribute '{name}' must contain a non-empty value of type 'String'.")
    found = attributes.get(TRACE_HEADER)
    return None if found is None else str(found["StringValue"])


def attributes_size(attributes: MessageAttributes) -> int:
    """The number of bytes of all names, types and values."""
    return sum(len(name.encode()) + len(kind.encode()) + len(value) for name, kind, _, value in _parts(attributes))


def digest(attributes: MessageAttributes) -> str:
    """Compute MD5OfMessageAttributes: the attributes sorted by name, with a length before each part."""
    found = md5(usedforsecurity=False)
    for name, kind, transport, value in sorted(_parts(attributes)):
        for part in (name.encode(), kind.encode()):
            found.update(len(part).to_bytes(4, "big") + part)
        found.update(transport + len(value).to_bytes(4, "big") + value)
    return found.hexdigest()


def _parts(attributes: MessageAttributes) -> list[tuple[str, str, bytes, bytes]]:
    """Return (name, type, transport type, value) for each attribute. The transport type is 1 for text and 2 for bytes."""
    return [
        (name, attribute["DataType"], b"\2", attribute["BinaryValue"])
        if attribute["DataType"].startswith("Binary")
        else (name, attribute["DataType"], b"\1", attribute["StringValue"].encode())
        for name, attribute in attributes.items()
    ]


def dump_attributes(attributes: MessageAttributes) -> str | None:
    """The attributes as JSON text for the message's row."""
    if not attributes:
        return None
    stored = {name: [kind, transport[0], b64encode(value).decode() if transport == b"\2" else value.decode()]
            for name, kind, transport, value in _parts(attributes)}  # fmt: skip
    return orjson.dumps(stored).decode()


def load_attributes(text: str) -> dict[str, dict[str, Any]]:
    return {
        name: {"DataType": kind, **({"BinaryValue": b64decode(value)} if transport == 2 else {"StringValue": value})}
        for name, (kind, transport, value) in orjson.loads(text).items()
    }


def select_attributes(attributes: MessageAttributes, names: list[str]) -> dict[str, Mapping[str, Any]]:
    """The attributes that MessageAttributeNames selects by name, by a prefix such as `bar.*`, or all."""
    if "All" in names or ".*" in names or "*" in names:
        return dict(attributes)
    prefixes = tuple(name.removesuffix(".*") for name in names if name.endswith(".*"))
    return {name: value for name, value in attributes.items() if name in names or name.startswith(prefixes)}
