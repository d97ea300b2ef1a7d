"""A cheap client of SQS: one connection, one signing key, and responses as parsed JSON."""

from __future__ import annotations

import hmac
import http.client
import json
import time
from hashlib import sha256
from typing import Any

from harness import REGION, Corral


class Unanswered(Exception):
    """The connection failed before the response: the request may or may not have been executed."""


class Refused(Exception):
    pass


class RawSqs:
    def __init__(self, corral: Corral) -> None:
        self._host = corral.url.removeprefix("http://")
        self._access_key, self._secret_key = corral.keys["access_key"], corral.keys["secret_key"]
        self._day = ""
        self._key = b""
        self._connection: http.client.HTTPConnection | None = None

    def __call__(self, operation: str, **params: Any) -> dict[str, Any]:
        body = json.dumps(params)
        try:
            if self._connection is None:
                self._connection = http.client.HTTPConnection(self._host, timeout=30)
            self._connection.request("POST", "/", body, self._headers(f"AmazonSQS.{operation}", body))
            answer = self._connection.getresponse()
            text = answer.read()
            if len(text) != int(answer.headers["content-length"]):
                raise http.client.HTTPException("half an answer")
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unanswered(str(error)) from error
        if answer.status >= 500:
            raise Unanswered(text.decode())
        if answer.status != 200:
            raise Refused(text.decode())
        return json.loads(text) if text else {}

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _headers(self, target: str, body: str) -> dict[str, str]:
        at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        scope = f"{at[:8]}/{REGION}/sqs/aws4_request"
        names = "host;x-amz-date;x-amz-target"
        canonical = f"POST\n/\n\nhost:{self._host}\nx-amz-date:{at}\nx-amz-target:{target}\n\n{names}\n{_hash(body)}"
        signature = hmac.new(self._signing_key(at[:8]), f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{_hash(canonical)}".encode(), sha256)
        credential = f"Credential={self._access_key}/{scope}, SignedHeaders={names}, Signature={signature.hexdigest()}"
        return {
            "Content-Type": "application/x-amz-json-1.0",
            "X-Amz-Date": at,
            "X-Amz-Target": target,
            "Authorization": f"AWS4-HMAC-SHA256 {credential}",
        }

    def _signing_key(self, day: str) -> bytes:
        if day != self._day:
            self._day, self._key = day, f"AWS4{self._secret_key}".encode()
            for part in (day, REGION, "sqs", "aws4_request"):
                self._key = hmac.new(self._key, part.encode(), sha256).digest()
        return self._key


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()
