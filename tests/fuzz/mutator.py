"""Mutates parameters and requests: values, types, lengths, digits, control characters, and everything around them."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from random import Random
from typing import Any
from urllib.parse import quote

from raw_aws import RawRequest

DIGITS = (
    "²", "٣", "１２", "𝟙", "-1", "0", "00", "+1", " 1", "1_0", "1.5", "1e3", "0x10", "NaN", "", "2147483648", "4294967296",
    "9223372036854775807", "9223372036854775808", "18446744073709551616", "9" * 30, "9" * 400, "9" * 5000, "-9223372036854775809",
)  # fmt: skip
TEXTS = (
    *DIGITS, "\r\n", "a\r\nx-injected: 1", "\n", "\x00", "\x1b[31m", "\x7f", "\x85", "\u2028", "\ud800", "😀", "é" * 40, "x" * 300,
    "x" * 5000, "/" * 50, "..", "../../etc", "%", "%zz", "%00", "%0d%0a", "'", '"', "\\", "<a>", "&amp;", "]]>", "{", "[]", "{}",
    "null", "true", ":", "::::::", "arn:", "arn:aws:ecs:us-east-1:000000000000:", "arn:aws:::::", " ", "\t", ",", ";", "=", "*",
    "*" * 100, "(" * 200, "[" * 200, "a" * 100 + "!", "\ufeff", "\u202e", "İ", "ß", "1" * 20 + "²", "-", "--", "$(x)", "{value}",
    "%s",
    "[" * 900 + "]" * 900, '{"a":' * 500 + "1" + "}" * 500, "(" * 3000, "NOT " * 1000, "!" * 2000, "-" * 900 + "1", "a." * 500,
)  # fmt: skip
NUMBERS = (
    0, -1, 1, 2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 10**30, 0.5, 1e308,
    -0.0,
)  # fmt: skip
ELEMENTS_MAX, TEXT_MAX = 1200, 200_000  # several mutations of one value must not multiply without bound
MOMENTS_S = (0.0, -1.0, 1e-9, 0.1, -62135596800.0, 253402300799.0, 1e12, 4e9)
OTHER_TYPES: tuple[Any, ...] = (
    "NaN",
    "Infinity",
    "-Infinity",
    None,
    True,
    False,
    0,
    -1,
    1.5,
    2**63,
    2**64 - 1,
    "",
    "x",
    [],
    {},
    [None],
    [[]],
    {"": ""},
    {"x": {}},
)
# Members that name the resource: seldom changed, because a request to nothing reaches little.
WHERE = {
    "AlarmName", "Bucket", "GroupId", "PolicyArn", "QueueUrl", "RoleName", "VpcId", "cluster", "logGroupName", "repositoryName",
    "resourceArn",
}  # fmt: skip
HEADERS = {
    "range": ("bytes=0-", "bytes=-1", "bytes=5-2", "bytes=0-0,1-1"),
    "if-modified-since": ("Sat, 31 Feb 2026 00:00:00 GMT",),
    "if-match": ('"x"', "*"),
    "if-none-match": ('"x"', "*"),
    "content-md5": ("AAAAAAAAAAAAAAAAAAAAAA==",),
    "content-encoding": ("gzip", "aws-chunked", "aws-chunked,gzip", "br"),
    "content-type": ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "application/cbor"),
    "content-disposition": ("attachment",),
    "cache-control": ("no-cache",),
    "expires": ("0", "Sat, 31 Feb 2026 00:00:00 GMT"),
    "x-amz-decoded-content-length": ("0", "1"),
    "x-amz-content-sha256": ("UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
    "x-amz-trailer": ("x-amz-checksum-crc32",),
    "x-amz-sdk-checksum-algorithm": ("CRC32", "MD7"),
    "x-amz-checksum-crc32": ("AAAAAA==",),
    "x-amz-checksum-type": ("FULL_OBJECT", "COMPOSITE"),
    "x-amz-copy-source": ("/b/k", "b/k?versionId=x"),
    "x-amz-copy-source-range": ("bytes=0-1",),
    "x-amz-meta-a": ("b",),
    "x-amz-tagging": ("a=b",),
    "x-amz-acl": ("private",),
    "x-amz-security-token": ("x",),
    "x-amz-mp-object-size": ("1",),
    "x-amz-object-attributes": ("ETag",),
    "x-amz-max-parts": ("1",),
    "x-amz-part-number-marker": ("1",),
    "x-amz-expected-bucket-owner": ("000000000000",),
    "x-amz-bucket-object-lock-token": ("x",),
    "x-amz-website-redirect-location": ("/x",),
    "x-amz-storage-class": ("STANDARD",),
    "x-amz-server-side-encryption": ("AES256",),
    "x-amz-date-of-nothing": ("x",),
    "x-amzn-query-mode": ("true",),
    "x-amz-target": ("AmazonSQS.SendMessage",),
    "host": ("a:99999999", "[", "a:b", "bucket.localhost:80", "[::1]:x"),
    "origin": ("http://example.com", "null"),
    "access-control-request-method": ("PUT",),
}
UNSIGNED_HEADERS = {"x-corral-wait": ("0", "nan", "inf", "-1", "1e400"), "x-corral-seen": ("1",), "expect": ("100-continue",)}
QUERIES = (
    "versionId", "uploadId", "partNumber", "max-keys", "max-parts", "max-uploads", "part-number-marker", "list-type", "marker",
    "continuation-token", "start-after", "key-marker", "version-id-marker", "upload-id-marker", "encoding-type", "prefix",
    "delimiter",
    "response-content-disposition", "response-content-type", "response-expires", "response-cache-control", "fetch-owner", "id",
    "tagging", "acl", "attributes", "uploads", "delete", "versions", "lifecycle", "policy", "X-Amz-Expires", "X-Amz-Signature",
    "x-amz-meta-a",
    "x-amz-website-redirect-location", "x-amz-decoded-content-length", "x-amz-tagging", "x-amz-copy-source",
)  # fmt: skip
_NUMBER = re.compile(r"[0-9]+")
_XML_TEXT = re.compile(r">([^<>]*)</")
_XML_ELEMENT = re.compile(r"<(\w+)>[^<>]*</\1>")


class Mutator:
    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def text(self, text: str) -> str:
        rng = self._rng
        if text[:1] in ("{", "[") and rng.random() < 0.6:
            with suppress(ValueError, RecursionError):  # a text that was made too deep before
                return json.dumps(self.params(json.loads(text), typed=False))
        at = rng.randrange(len(text) + 1)
        match rng.randrange(9):
            case 0:
                return rng.choice(TEXTS)
            case 1:
                return text[:at]
            case 2:
                return text[:at] + rng.choice(TEXTS) + text[at:]
            case 3:
                return text + rng.choice(TEXTS)
            case 4:
                return (text * rng.choice((2, 50)))[:TEXT_MAX]
            case 5 | 6 if _NUMBER.search(text):
                places = list(_NUMBER.finditer(text))
                place = rng.choice(places)
                return text[: place.start()] + rng.choice(DIGITS) + text[place.end() :]
            case 7:
                return text.swapcase()
            case _:
                return text[:at] + chr(rng.choice((rng.randrange(32), rng.randrange(256), rng.randrange(0xD800)))) + text[at + 1 :]

    def params(self, params: Any, *, typed: bool) -> Any:
        """Change one to three values. `typed` keeps each value's type."""
        for _ in range(self._rng.choice((1, 1, 1, 2, 3))):
            params = self._change(params, typed, 0)
        return params

    def _change(self, value: Any, typed: bool, depth: int) -> Any:
        """Descend to a random value and change it there."""
        rng = self._rng
        if isinstance(value, dict) and value and (depth == 0 or rng.random() < 0.85):
            names = [name for name in value if name not in WHERE or rng.random() < 0.15]
            if not names:
                return value
            key = rng.choice(names)
            if rng.random() < 0.06:
                return {name: inner for name, inner in value.items() if name != key}
            if rng.random() < 0.04 and not typed:
                return {**value, self.text(key): value[key]}
            return {**value, key: self._change(value[key], typed, depth + 1)}
        if isinstance(value, list) and value and rng.random() < 0.8:
            at = rng.randrange(len(value))
            if rng.random() < 0.1:
                return (value * rng.choice((2, 12, 101, 1001)))[:ELEMENTS_MAX]
            return [*value[:at], self._change(value[at], typed, depth + 1), *value[at + 1 :]]
        return self._other(value, typed)

    def _other(self, value: Any, typed: bool) -> Any:
        rng = self._rng
        if not typed and rng.random() < 0.12:
            return rng.choice(OTHER_TYPES)
        if isinstance(value, bool):
            return not value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bytes):
            return rng.choice((b"", value * 100, b"\x00" + value))
        if isinstance(value, float) and typed:
            return rng.choice(MOMENTS_S)
        if isinstance(value, int | float):
            return rng.choice(NUMBERS) if not typed else rng.choice((*NUMBERS, 10**400))
        if isinstance(value, list):
            return [] if rng.random() < 0.5 else (value * rng.choice((2, 101)))[:ELEMENTS_MAX]
        return value if typed else rng.choice(({}, None, [value]))

    def request(self, request: RawRequest) -> RawRequest:
        """Change one to three parts of a request as it goes over the wire, apart from its framing."""
        for _ in range(self._rng.choice((1, 1, 2, 3))):
            self._change_request(request)
        return request

    def _change_request(self, request: RawRequest) -> None:
        rng = self._rng
        match rng.randrange(8):
            case 0 | 1 if request.query:
                pairs = request.query.split("&")
                at = rng.randrange(len(pairs))
                name, _, value = pairs[at].partition("=")
                pairs[at] = rng.choice((f"{name}={self._quoted(value)}", f"{name}={self._quoted('')}", name, f"{value}={name}"))
                if rng.random() < 0.15:
                    pairs.append(pairs[at])
                request.query = "&".join(pairs)
            case 2 if request.method != "POST" or request.query:
                pair = f"{rng.choice(QUERIES)}={self._quoted('1')}"
                request.query = f"{request.query}&{pair}" if request.query else pair
            case 3 if len(request.path) > 1:
                parts = request.path.split("/")
                at = rng.randrange(1, len(parts))
                parts[at] = self._quoted(parts[at])
                request.path = "/".join(parts)
            case 4:
                self._change_header(request)
            case 5 if request.headers:
                name = rng.choice(list(request.headers))
                request.headers[name] = self.text(request.headers[name])[:6000]
            case _ if request.body:
                request.body = self._body(request)
            case _:
                self._change_header(request)

    def _quoted(self, text: str) -> str:
        return quote(self.text(text).encode("utf-8", "replace"), safe="%-_.~")[:8000].replace("%%", "%25")

    def _change_header(self, request: RawRequest) -> None:
        rng = self._rng
        if rng.random() < 0.1:
            name = rng.choice(list(UNSIGNED_HEADERS))
            value = rng.choice(UNSIGNED_HEADERS[name])
            if name == "x-corral-seen" and rng.random() < 0.7:
                value = rng.choice(DIGITS)
            if name == "expect":
                return
            request.unsigned[name] = value
            return
        name = rng.choice(list(HEADERS))
        value = rng.choice(HEADERS[name])
        request.headers[name] = value if rng.random() < 0.4 else self.text(value)[:6000]

    def _body(self, request: RawRequest) -> bytes:
        rng, text = self._rng, request.body.decode("latin-1")
        if text.startswith(("<", "\n<")):
            return self._xml(request.body.decode("utf-8", "replace")).encode("utf-8", "replace")
        if "x-www-form-urlencoded" in request.headers.get("content-type", ""):
            return self._form(text).encode("latin-1")
        at, to = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        match rng.randrange(5):
            case 0:
                return request.body[:at]
            case 1:
                return request.body[:at] + request.body[to:]
            case 2:
                return request.body[:to] + request.body[at:]
            case 3 if _NUMBER.search(text):
                place = rng.choice(list(_NUMBER.finditer(text)))
                return (text[: place.start()] + rng.choice(DIGITS) + text[place.end() :]).encode("utf-8", "surrogatepass")
            case _:
                return (
                    request.body[:at]
                    + rng.choice((b"\x00", b"\xff", b"\xed\xa0\x80", b'"', b"{", b"[" * 200))
                    + request.body[at + 1 :]
                )

    def _form(self, text: str) -> str:
        rng, pairs = self._rng, text.split("&")
        at = rng.randrange(len(pairs))
        name, _, value = pairs[at].partition("=")
        match rng.randrange(6):
            case 0:
                del pairs[at]
            case 1:
                pairs.append(pairs[at])
            case 2:
                pairs[at] = f"{self._quoted(name)}={value}"
            case 3:
                pairs[at] = f"{name}.1={value}"
            case _:
                pairs[at] = f"{name}={self._quoted(value)}"
        return "&".join(pairs)

    def _xml(self, text: str) -> str:
        rng = self._rng
        places = list(_XML_TEXT.finditer(text))
        elements = list(_XML_ELEMENT.finditer(text))
        kind = rng.randrange(6)
        if places and kind < 4:
            place = rng.choice(places)
            new = self.text(place[1])
            if rng.random() < 0.9:
                new = new.replace("&", "&amp;").replace("<", "&lt;").replace("\r", "&#13;").replace("\n", "&#10;")
            return text[: place.start(1)] + new + text[place.end(1) :]
        if elements and kind == 4:
            element = rng.choice(elements)
            return text[: element.end()] + rng.choice(("", element[0], element[0] * 101)) + text[element.end() :]
        if elements:
            element = rng.choice(elements)
            return text[: element.start()] + text[element.end() :]
        return text[: rng.randrange(len(text) + 1)]
