"""A client that signs any bytes: requests are composed by hand, several are in flight, and responses are read to their end."""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import time
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from typing import Any
from urllib.parse import quote
from xml.parsers import expat

from corral.aws.cbor import value_from_cbor
from corral.aws.wire_errors import ParseError
from harness import REGION, Corral

ANSWER_MAX_S = 20.0
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_CODE = re.compile(rb"<Code>([^<]+)</Code>")


@dataclass
class RawRequest:
    """A request that is not signed yet. The text of path, query and headers is sent as it is."""

    signing_name: str
    method: str = "POST"
    path: str = "/"
    query: str = ""
    headers: dict[str, str] = field(default_factory=dict)  # lower-case names
    unsigned: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_signed: bool = True

    def signed(self, host: str, access_key: str, secret_key: str) -> bytes:
        """Return the bytes to send."""
        at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        scope = f"{at[:8]}/{REGION}/{self.signing_name}/aws4_request"
        signed = {name: _line(value) for name, value in self.headers.items()}
        payload = signed.get("x-amz-content-sha256") or sha256(self.body).hexdigest()
        signed = {"host": host, **signed, "x-amz-date": at, "x-amz-content-sha256": payload}
        names = ";".join(sorted(signed))
        lines = "".join(f"{name}:{' '.join(signed[name].split())}\n" for name in sorted(signed))
        pairs = sorted(tuple(pair.partition("=")[::2]) for pair in self.query.split("&")) if self.query else []
        query = "&".join(f"{name}={value}" for name, value in pairs)
        path = self.path if self.signing_name == "s3" else quote(self.path, safe="/-_.~")  # only S3 does not encode it twice
        canonical = f"{self.method}\n{path}\n{query}\n{lines}\n{names}\n{payload}".encode("latin-1")
        text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{sha256(canonical).hexdigest()}"
        signature = hmac.digest(_key(secret_key, at[:8], self.signing_name), text.encode(), "sha256").hex()
        by = f"AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
        sent = {"content-length": str(len(self.body)), **signed, **({"authorization": by} if self.is_signed else {})}
        sent |= {name: _line(value) for name, value in self.unsigned.items()}
        target = f"{self.path}?{self.query}" if self.query else self.path
        head = "\r\n".join([f"{self.method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())])
        return f"{head}\r\n\r\n".encode("latin-1") + self.body


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]  # lower-case names
    body: bytes

    @property
    def code(self) -> str:
        """The code of an error response without its namespace; "" if there is none."""
        if "x-amzn-errortype" in self.headers:
            return self.headers["x-amzn-errortype"]
        if self.headers.get("content-type") == "application/cbor":
            return str(value_from_cbor(self.body).get("__type", ""))
        if self.body.startswith(b"{"):
            document = json.loads(self.body)
            for error in document.get("errors", ()):  # of the registry
                document |= error
            document |= document.get("error", {})  # of the endpoints of tasks
            return str(document.get("__type") or document.get("code") or document.get("Code") or "").rpartition("#")[2]
        found = _CODE.search(self.body)
        return found[1].decode() if found else ""


class Connection:
    """Sends one request after the other. It connects again when the server has closed the connection."""

    def __init__(self, corral: Corral) -> None:
        self._host = corral.url.removeprefix("http://")
        self._keys = corral.keys
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __call__(self, request: RawRequest) -> Answer:
        data = request.signed(self._host, self._keys["access_key"], self._keys["secret_key"])
        return await self.send(data, is_head=request.method == "HEAD")

    async def send(self, data: bytes, *, is_head: bool = False) -> Answer:
        async with asyncio.timeout(ANSWER_MAX_S):
            if self._streams is None:
                name, _, port = self._host.rpartition(":")
                self._streams = await asyncio.open_connection(name, int(port), limit=2**20)
            reader, writer = self._streams
            writer.write(data)
            answer = await _read(reader, is_head)
        if answer.headers.get("connection") == "close" or reader.at_eof():
            await self.close()
        return answer

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _read(reader: asyncio.StreamReader, is_head: bool) -> Answer:
    status = 100
    while status == 100:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip("\r\n").split("\r\n")
        status = int(first.split(" ")[1])
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        assert colon and re.fullmatch(r"[A-Za-z0-9-]+", name), f"not a header: {line!r}"
        headers[name.lower()] = value.strip()
    has_body = not is_head and status not in (204, 304)
    assert not has_body or "content-length" in headers, f"{first} without a length"
    return Answer(status, headers, await reader.readexactly(int(headers["content-length"])) if has_body else b"")


def complaint(request: RawRequest, answer: Answer) -> str | None:
    """Say what is wrong with a response: a failure of the server, an error without a code, or a body that cannot be parsed."""
    if (answer.status >= 500 and answer.status not in (501, 503)) or b"InternalFailure" in answer.body:
        return f"status {answer.status}"
    if request.method == "HEAD" or answer.status in (204, 304):
        return None
    try:
        if answer.body.startswith(b"{"):
            json.loads(answer.body)
        elif answer.body.startswith(b"<?xml"):
            expat.ParserCreate().Parse(answer.body, True)
        if answer.status >= 400 and not answer.code:
            return "an error without a code"
    except (ValueError, expat.ExpatError, ParseError) as error:
        return f"the body cannot be parsed: {error}"
    return None


def query_text(pairs: list[tuple[str, str]]) -> str:
    return "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in pairs)


def _line(value: str) -> str:
    """The bytes of a value as latin-1, without the control characters that HTTP refuses before a request is recognised."""
    return _CONTROL.sub(" ", value.encode("utf-8", "replace").decode("latin-1")).strip()


def signature_of(secret_key: str, day: str, name: str, text: str) -> str:
    """Sign a text, as the policy of a form is signed."""
    return hmac.digest(_key(secret_key, day, name), text.encode(), "sha256").hex()


@cache
def _key(secret_key: str, day: str, name: str) -> bytes:
    key = f"AWS4{secret_key}".encode()
    for part in (day, REGION, name, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def shown(request: RawRequest, most: int = 3000) -> dict[str, Any]:
    """The parts of a request with which it can be sent again."""
    return {
        "method": request.method,
        "path": request.path[:most],
        "query": request.query[:most],
        "headers": {name: value[:most] for name, value in (request.headers | request.unsigned).items()},
        "body": request.body[:most],
    }
