"""Random values for any shape. The same seed gives the same value, so a failure can be repeated with its seed."""

from __future__ import annotations

import os
import re
from random import Random
from typing import Any

EXAMPLES = int(os.environ.get("CORRAL_EXAMPLES", "3"))  # per operation and direction; raise it for a long run
DEPTH_MAX = 5  # below this depth only required members are generated, so that recursive shapes end

TEXTS = (
    "",
    " ",
    "a",
    "default",
    " leading and trailing ",
    "two\nlines\r\nand a tab\t.",
    '<a href="x">&amp;\'</a>',
    "100% & more=less?a+b%2Fc#d;e,f",
    "naïve façade — ünïcode",
    "日本語の文字列",
    "🐎🐎 corral",
    "e\u0301 \u2028 \ufeff \u200d",
    "arn:aws:ecs:eu-west-1:000000000000:task/default/0123456789abcdef",
    "NaN",
    "null",
    '{"json": [1, 2, {"a": null}]}',
    "\\ud800 \\u0000",
    "escapes \x00 \x1b[31m \x7f \x85 \ufffe",
    "x" * 300,
)
HEADER_TEXTS = (
    "a",
    "default",
    "bytes=0-9",
    'W/"etag", "b"',
    "100% & more=less?a+b%2Fc#d;e,f",
    "x" * 300,
    "two  words",
    "text/plain; charset=utf-8",
)
HEADER_KEYS = ("a", "my-key", "x_1", "0")
KEYS_OF_S3 = (
    "a",
    "a/b/c.txt",
    "folder/",
    "/leading",
    "a//b",
    "../up/./here",
    "a+b c&d=e?f#g%20%2F;,:@!'()*~[]{}|^`<>\"\\$",
    "naïve/日本語/🐎",
    "line\nbreak\ttab\x01",
    "uploads",
    "x" * 1024,
)
XML_TEXTS = tuple(text for text in TEXTS if not re.search("[\x00-\x08\x0b-\x1f\ufffe\uffff]", text))
INTEGERS = (0, 1, -1, 7, 1024, 2**31 - 1, -(2**31))
LONGS = (*INTEGERS, 2**31, 2**53 + 1, 2**63 - 1, -(2**63))
FLOATS = (0.0, 1.0, -1.5, 0.1, 1e-300, 1.7976931348623157e308, 75.0, 3.14159, float("inf"), float("-inf"), float("nan"))
BLOBS = (b"", b"\x00", b"\xff\xfe\xfd", b"plain text", bytes(range(256)))
MOMENTS_S = (0.0, 1.0, 1700000000.0, 1700000000.123, 1234567890.5, -86400.0, 4102444800.0, 253370764800.0)
WHOLE_MOMENTS_S = tuple(moment for moment in MOMENTS_S if moment.is_integer())


class Generator:
    """Generates values of shapes that the protocol can transmit.

    A form leaves no trace of empty maps and structures, ec2's not even of empty lists, XML none of flattened ones, and it
    has no way to write some characters; what a structure has in headers and labels must fit there.
    """

    def __init__(self, seed: str, protocol: str = "json", *, asked: bool = False) -> None:
        self._rng = Random(seed)
        self._solid = asked and protocol in ("query", "ec2")
        self._solid_lists = asked and protocol == "ec2"
        self._solid_flat_lists = asked and protocol == "rest-xml"
        self._texts = XML_TEXTS if asked and protocol == "rest-xml" else TEXTS

    def value(self, shape: Any, depth: int = 0) -> Any:
        """A value of the shape, as `Call.params()` would give it: timestamps are float seconds, blobs are bytes."""
        return getattr(self, f"_{shape.type_name}")(shape, depth)

    def _structure(self, shape: Any, depth: int) -> Any:
        rng = self._rng
        if shape.is_document_type:
            return {"any": ["json", 1, 2.5, None, {"nested": [True]}]}
        members = {n: m for n, m in shape.members.items() if not m.serialization.get("eventstream")}
        if self._solid:
            members = {n: m for n, m in members.items() if m.type_name != "structure" or m.members}
        if shape.is_tagged_union:
            chosen = [rng.choice(list(members))]
        else:
            likely = 0.5 if depth < DEPTH_MAX else 0.0
            chosen = [n for n in members if n in shape.required_members or rng.random() < likely]
            if self._solid and not chosen and members:
                chosen = [min(members, key=lambda name: members[name].type_name in ("structure", "list", "map"))]
        rng.shuffle(chosen)
        return {name: self._member(members[name], depth + 1) for name in chosen}

    def _member(self, shape: Any, depth: int) -> Any:
        location = shape.serialization.get("location")
        if location == "uri":  # cannot be empty
            return self._rng.choice(KEYS_OF_S3) if shape.name == "ObjectKey" else self._label(shape)
        if location == "querystring" and shape.type_name == "list":  # a query string cannot contain an empty list
            return self.value(shape, depth) or [self.value(shape.member)]
        if location == "header":
            return self._header(shape)
        if location == "headers":
            keys = self._rng.sample(HEADER_KEYS, self._rng.randrange(1, len(HEADER_KEYS)))
            return {key: self._rng.choice(HEADER_TEXTS) for key in keys}
        if shape.serialization.get("xmlAttribute"):
            return self._rng.choice(("CanonicalUser", 'a "b" <c> & d'))
        return self.value(shape, depth)

    def _label(self, shape: Any) -> Any:
        if shape.name == "BucketName":
            return self._rng.choice(("bucket", "my.bucket-1"))
        return self.value(shape) or "x"

    def _header(self, shape: Any) -> Any:
        if shape.type_name == "string":
            return self._rng.choice(shape.enum or HEADER_TEXTS)
        if shape.type_name == "list":
            return [self._rng.choice(shape.member.enum or HEADER_TEXTS) for _ in range(self._rng.choice((1, 2, 3)))]
        if shape.type_name == "timestamp":
            return self._rng.choice(WHOLE_MOMENTS_S)
        return self.value(shape)

    def _list(self, shape: Any, depth: int) -> list[Any]:
        count = self._rng.choice((0, 1, 1, 2, 3, 11)) if depth < DEPTH_MAX else int(self._solid)
        count = max(count, int(self._solid_lists or (self._solid_flat_lists and bool(shape.serialization.get("flattened")))))
        return [self.value(shape.member, depth + 1) for _ in range(count if depth < 3 else min(count, 2))]

    def _map(self, shape: Any, depth: int) -> dict[str, Any]:
        count = self._rng.choice((0, 1, 2, 3)) if depth < DEPTH_MAX else 0
        count = max(count, int(self._solid))
        return {self._key(shape.key): self.value(shape.value, depth + 1) for _ in range(count)}

    def _key(self, shape: Any) -> str:
        return self._string(shape, 0) or "key"

    def _string(self, shape: Any, depth: int) -> str:
        if getattr(shape, "enum", None) and self._rng.random() < 0.7:
            return self._rng.choice(shape.enum)
        return self._rng.choice(self._texts)

    def _integer(self, shape: Any, depth: int) -> int:
        return self._rng.choice(INTEGERS)

    def _long(self, shape: Any, depth: int) -> int:
        return self._rng.choice(LONGS)

    def _double(self, shape: Any, depth: int) -> float:
        return self._rng.choice(FLOATS)

    _float = _double

    def _boolean(self, shape: Any, depth: int) -> bool:
        return self._rng.random() < 0.5

    def _blob(self, shape: Any, depth: int) -> bytes:
        return self._rng.choice((*BLOBS, self._rng.randbytes(self._rng.randrange(40))))

    def _timestamp(self, shape: Any, depth: int) -> float:
        rfc822 = shape.serialization.get("timestampFormat") == "rfc822"
        return self._rng.choice(WHOLE_MOMENTS_S if rfc822 else MOMENTS_S)
